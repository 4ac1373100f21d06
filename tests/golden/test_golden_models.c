/* Whole models compared with transformers: greedy tokens must equal the golden ones at every step, and the
 * bits of the logits must not depend on batch-mates, chunks, pages or threads.
 *
 *   test_golden_models GOLDEN.json FOLDER       every model of the file: FOLDER/NAME or FOLDER/NAME.gguf
 *   test_golden_models GOLDEN.json FILE.gguf    the file's only model
 *
 * A small engine (run_scenario) makes the plans: decodes first, then chunks of several prompts up to a
 * token budget. After a wrong token it feeds the golden one, so that one early mistake does not count many
 * times. */
#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/buf.h"
#include "common/json.h"
#include "models/model.h"

enum { MAX_ROWS = 32, MAX_TOKENS = 192, PROMPT_LOGITS = 20, MAX_LOGITS = MAX_ROWS + PROMPT_LOGITS };
enum { SKIPPED = 77 };

typedef struct golden_run {
  uint32_t n_prompt, n_tokens;
  int32_t *prompt, *tokens;
  double *margins;
  const cJSON *logits; /* logits of some ids after the prompt: [[id, logit], ...], or NULL */
  double scale;        /* the largest of all of them */
} golden_run;

typedef struct scenario {
  const char *name;
  uint32_t threads, page_tokens;
  uint32_t together; /* sequences running at once */
  uint32_t budget;   /* tokens of a step */
  uint32_t chunk;    /* maximum of prompt tokens per sequence and step */
  bool scattered;    /* pages in no order */
  bool scored;       /* the answer is part of the prompt, whose logits are needed */
} scenario;

static const scenario scenarios[] = {
    {"alone, whole prompts", 1, 16, 1, MAX_TOKENS, MAX_TOKENS, false, false},
    {"all together, budget 40, pages scattered", 2, 16, MAX_ROWS, 40, 40, true, false},
    {"three at once, chunks of 5, pages of 32", 3, 32, 3, MAX_TOKENS, 5, true, false},
    {"alone, token by token", 2, 16, 1, 1, 1, true, false},
    {"answers scored, all together", 2, 16, MAX_ROWS, MAX_TOKENS, MAX_TOKENS, true, true},
};

typedef struct sequence {
  const golden_run *golden;
  uint32_t done;  /* tokens in KV */
  uint32_t n_out; /* tokens chosen */
  uint64_t *hash; /* [golden->n_tokens]: hashes of the logits' bits */
  bool pages_told;
} sequence;

typedef struct machine {
  td_model_files *files;
  td_model_desc desc;
  td_backend *be;
  td_model *model;
  td_kv *kv;
  td_plan *plan;
  int32_t *page_table;
  uint32_t stripe; /* pages of one sequence */
  float *logits;
  const scenario *scenario;
  td_compiled *forward, *sample;
  td_devptr logits_at, h_at;
} machine;

static void die(const char *what, const td_error *err)
{
  fprintf(stderr, "%s: %s\n", what, err->message);
  exit(1);
}

static void *must_alloc(size_t n, size_t size)
{
  void *p = calloc(n ? n : 1, size);
  if (!p)
    abort();
  return p;
}

/* ---- the machine of one scenario ---- */

static void order_pages(machine *m, uint32_t n_pages)
{
  for (uint32_t i = 0; i < n_pages; i++)
    m->page_table[i] = (int32_t)i;
  uint32_t state = 12345;
  for (uint32_t i = n_pages - 1; m->scenario->scattered && i > 0; i--) {
    state = state * 1664525 + 1013904223;
    uint32_t j = (uint32_t)((uint64_t)state * (i + 1) >> 32);
    int32_t t = m->page_table[i];
    m->page_table[i] = m->page_table[j];
    m->page_table[j] = t;
  }
}

static void compile(machine *m, const char *path)
{
  td_error err = {0};
  td_program *forward = NULL, *sampling = NULL;
  if (td_model_program(m->model, m->kv, &forward, &err) || td_model_sampling(m->model, &sampling, &err) ||
      m->be->ops->compile(m->be, forward, &m->forward, &err) ||
      m->be->ops->compile(m->be, sampling, &m->sample, &err))
    die(path, &err);
  m->logits_at = td_program_buffer_at(forward, "logits");
  m->h_at = td_program_buffer_at(forward, "h");
  td_program_destroy(forward);
  td_program_destroy(sampling);
}

static void machine_start(machine *m, const char *path, const scenario *s, uint32_t n_sequences,
                          uint32_t context)
{
  td_error err = {0};
  m->scenario = s;
  m->stripe = (context + s->page_tokens - 1) / s->page_tokens;
  uint32_t n_pages = n_sequences * m->stripe;
  if (td_model_files_open(path, &m->files, &err) || td_model_desc_read(m->files, &m->desc, &err))
    die(path, &err);
  td_backend_config config = {.n_threads = s->threads,
                              .max_slots = n_sequences,
                              .max_rows = MAX_ROWS,
                              .prompt_logits = PROMPT_LOGITS,
                              .max_tokens = MAX_TOKENS,
                              .max_context_tokens = context,
                              .max_vocab = m->desc.vocab};
  if (td_backend_create("cpu", &config, &m->be, &err) ||
      td_model_load(m->files, &m->desc, m->be, MAX_TOKENS, MAX_LOGITS, NULL, NULL, &m->model, &err) ||
      td_plan_create(MAX_ROWS, MAX_TOKENS, MAX_LOGITS, n_pages, s->page_tokens, &m->plan, &err))
    die(path, &err);
  td_kv_spec shape = td_model_kv_spec(&m->desc, m->be->kv_dtype, n_pages, s->page_tokens);
  if (m->be->ops->kv_create(m->be, &shape, &m->kv, &err))
    die(path, &err);
  compile(m, path);
  m->page_table = must_alloc(n_pages, sizeof *m->page_table);
  m->logits = must_alloc((size_t)MAX_LOGITS * m->desc.vocab, sizeof *m->logits);
  order_pages(m, n_pages);
  m->plan->page_table = m->page_table;
  m->plan->page_table_len = n_pages;
  td_sampling is_greedy = {.temperature = 0, .top_p = 1};
  for (uint32_t i = 0; i < n_sequences; i++)
    m->be->ops->set_sampling(m->be, i, &is_greedy);
}

static void machine_stop(machine *m)
{
  free(m->page_table);
  free(m->logits);
  td_plan_destroy(m->plan);
  td_model_destroy(m->model);
  m->be->ops->discard(m->be, m->forward);
  m->be->ops->discard(m->be, m->sample);
  m->be->ops->destroy(m->be);
  td_model_files_close(m->files);
}

/* ---- plans ---- */

static int32_t token_at(const golden_run *g, uint32_t at)
{
  return at < g->n_prompt ? g->prompt[at] : g->tokens[at - g->n_prompt];
}

/* Number of tokens to compute before one is sampled. */
static uint32_t known_tokens(const machine *m, const golden_run *g)
{
  return m->scenario->scored ? g->n_prompt + g->n_tokens - 1 : g->n_prompt;
}

/* The row's last tokens, from the one before the answer on: the next token of the answer is the target of
 * each. */
static void add_scored(machine *m, const golden_run *g, uint32_t row)
{
  td_plan *p = m->plan;
  uint32_t end = p->rows[row].kv_len, begin = end - p->rows[row].q_len;
  for (uint32_t at = begin < g->n_prompt ? g->n_prompt - 1 : begin; at < end; at++)
    td_plan_add_logits(p, row, at - begin,
                       at + 1 == known_tokens(m, g) ? TD_SAMPLE_HERE : token_at(g, at + 1));
}

static void add_row(machine *m, sequence *all, uint32_t slot, uint32_t q_len)
{
  td_plan *p = m->plan;
  sequence *s = &all[slot];
  const golden_run *g = s->golden;
  td_plan_row *row = &p->rows[p->n_rows++];
  *row = (td_plan_row){.slot = slot,
                       .q_start = p->n_tokens,
                       .q_len = q_len,
                       .kv_len = s->done + q_len,
                       .page_table_offset = slot * m->stripe};
  for (uint32_t i = 0; i < q_len; i++) {
    uint32_t at = s->done + i;
    p->token_ids[p->n_tokens] = token_at(g, at);
    p->positions[p->n_tokens++] = (int32_t)at;
  }
  s->done += q_len;
  if (m->scenario->scored)
    add_scored(m, g, p->n_rows - 1);
  else if (s->done >= g->n_prompt)
    td_plan_add_sample(p, p->n_rows - 1);
  for (uint32_t i = 0; i < m->stripe && !s->pages_told; i++) {
    uint32_t index = slot * m->stripe + i;
    p->page_updates[p->n_page_updates++] = (td_plan_page_update){index, m->page_table[index]};
  }
  s->pages_told = true;
}

static bool is_finished(const sequence *s) { return s->n_out == s->golden->n_tokens; }

static void make_plan(machine *m, sequence *all, uint32_t first, uint32_t last)
{
  td_plan *p = m->plan;
  td_plan_clear(p);
  p->step++;
  for (uint32_t i = first; i < last; i++)
    if (!is_finished(&all[i]) && all[i].done >= known_tokens(m, all[i].golden) &&
        p->n_tokens < m->scenario->budget)
      add_row(m, all, i, 1);
  p->n_decode_rows = p->n_rows;
  for (uint32_t i = first; i < last; i++) {
    uint32_t known = known_tokens(m, all[i].golden);
    uint32_t left = known - all[i].done, room = m->scenario->budget - p->n_tokens;
    if (m->scenario->scored) { /* reserve one for each other row */
      uint32_t n_before = all[i].golden->n_prompt - 1, extra = PROMPT_LOGITS + p->n_rows - p->n_logits;
      uint32_t most = (n_before > all[i].done ? n_before - all[i].done : 0) + 1 + extra;
      room = room < most ? room : most;
    }
    if (all[i].done >= known || room == 0)
      continue;
    uint32_t n = left < m->scenario->chunk ? left : m->scenario->chunk;
    add_row(m, all, i, n < room ? n : room);
  }
  p->n_prefill_tokens = p->n_tokens - p->n_decode_rows;
}

/* ---- steps ---- */

static uint64_t hash_bits(const float *v, uint32_t n)
{
  uint64_t h = 14695981039346656037u;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t u;
    memcpy(&u, &v[i], 4);
    h = (h ^ u) * 1099511628211u;
  }
  return h;
}

static int32_t best(const float *v, uint32_t n)
{
  uint32_t at = 0;
  for (uint32_t i = 1; i < n; i++)
    if (v[i] > v[at])
      at = i;
  return (int32_t)at;
}

/* Totals of the comparison for one model, for scripts/fidelity. */
static struct {
  uint32_t logits, bad_logits, tokens, bad_tokens;
} seen;

/* Within 2e-4 of the largest. */
static int check_logits(const golden_run *g, uint32_t slot, const float *logits)
{
  const cJSON *pair;
  int failures = 0;
  cJSON_ArrayForEach(pair, g->logits)
  {
    int id = (int)pair->child->valuedouble;
    double want = pair->child->next->valuedouble, off = fabs((double)logits[id] - want);
    seen.logits++;
    if (off <= 2e-4 * g->scale)
      continue;
    seen.bad_logits++;
    printf("  prompt %" PRIu32 ": logit %d is %g, not %g\n", slot, id, (double)logits[id], want);
    failures++;
  }
  return failures;
}

/* Returns the number of failures. */
static int check_token(const machine *m, sequence *s, uint32_t slot, const float *logits, int32_t sampled,
                       bool reference)
{
  const golden_run *g = s->golden;
  uint32_t i = s->n_out++;
  int32_t id = best(logits, m->desc.vocab);
  uint64_t hash = hash_bits(logits, m->desc.vocab);
  int failures = i == 0 ? check_logits(g, slot, logits) : 0;
  seen.tokens++;
  seen.bad_tokens += id != g->tokens[i];
  if (id != g->tokens[i]) {
    printf("  prompt %" PRIu32 " token %" PRIu32 ": %" PRId32 " instead of %" PRId32
           ", golden margin %g, logits differ by %g\n",
           slot, i, id, g->tokens[i], g->margins[i], (double)(logits[id] - logits[g->tokens[i]]));
    failures++;
  }
  if (sampled != id) {
    printf("  prompt %" PRIu32 " token %" PRIu32 ": sampled %" PRId32 ", but the best logit is %" PRId32 "\n",
           slot, i, sampled, id);
    failures++;
  }
  if (reference)
    s->hash[i] = hash;
  else if (s->hash[i] != hash) {
    printf("  prompt %" PRIu32 " token %" PRIu32 ": the bits of the logits differ from those of '%s'\n", slot,
           i, scenarios[0].name);
    failures++;
  }
  return failures;
}

/* The logits are read before sampling, which may overwrite them. */
static int run_step(machine *m, sequence *all, bool reference)
{
  td_error err = {0};
  td_outcome out;
  td_plan *p = m->plan;
  int failures = 0;
  td_backend_submit(m->be, m->forward, p);
  if (m->be->ops->download(m->be, m->logits_at, (size_t)p->n_logits * m->desc.vocab * sizeof(float),
                           m->logits, &err))
    die("download", &err);
  td_backend_sample(m->be, m->sample, NULL);
  if (td_backend_wait(m->be, &out, &err))
    die("sampling", &err);
  for (uint32_t i = 0; i < p->n_logits; i++) {
    uint32_t slot = p->rows[p->logits[i].row].slot;
    const float *logits = m->logits + (size_t)i * m->desc.vocab;
    bool samples = p->logits[i].target == TD_SAMPLE_HERE;
    failures += out.n_ids[i] != samples || out.flags[i] != 0;
    failures += check_token(m, &all[slot], slot, logits,
                            samples ? out.ids[i * TD_STEP_IDS] : best(logits, m->desc.vocab), reference);
  }
  return failures;
}

static int run_scenario(const char *path, const scenario *s, sequence *all, uint32_t n, bool reference)
{
  machine m = {0};
  uint32_t context = 0;
  int failures = 0;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t len = all[i].golden->n_prompt + all[i].golden->n_tokens;
    context = len > context ? len : context;
    all[i].done = all[i].n_out = 0;
    all[i].pages_told = false;
  }
  machine_start(&m, path, s, n, context);
  uint32_t first = 0, last;
  while (first < n) { /* a window of sequences; the next joins when the oldest is done: hybrid steps */
    last = first + s->together < n ? first + s->together : n;
    make_plan(&m, all, first, last);
    failures += run_step(&m, all, reference);
    while (first < n && is_finished(&all[first]))
      first++;
  }
  machine_stop(&m);
  if (failures)
    printf("  %d failures in '%s'\n", failures, s->name);
  return failures;
}

/* ---- vectors ---- */

/* One row of slot 0: tokens [begin, end) of the prompt, either all with logits or none. */
static void plan_prompt(machine *m, const golden_run *g, uint32_t begin, uint32_t end, bool wants_logits)
{
  td_plan *p = m->plan;
  td_plan_clear(p);
  p->rows[0] = (td_plan_row){.q_len = end - begin, .kv_len = end};
  p->n_rows = 1;
  p->n_tokens = p->n_prefill_tokens = end - begin;
  for (uint32_t i = begin; i < end; i++) {
    p->token_ids[i - begin] = g->prompt[i];
    p->positions[i - begin] = (int32_t)i;
    if (wants_logits)
      td_plan_add_logits(p, 0, i - begin, i + 1 == end ? TD_SAMPLE_HERE : g->prompt[i + 1]);
  }
  for (uint32_t i = 0; i < m->stripe; i++)
    p->page_updates[p->n_page_updates++] = (td_plan_page_update){i, m->page_table[i]};
}

static void run_alone(machine *m, td_compiled *forward)
{
  td_error err = {0};
  td_outcome out;
  td_backend_queue_step(m->be, forward, NULL, m->plan);
  if (td_backend_wait(m->be, &out, &err))
    die("step", &err);
}

static void fetch(machine *m, td_devptr at, float *out, size_t n)
{
  td_error err = {0};
  if (m->be->ops->download(m->be, at, n * sizeof *out, out, &err))
    die("download", &err);
}

/* Pools the prompt in chunks of this many tokens, and compares with the bits of `want`. */
static int check_pooled(machine *m, const golden_run *g, uint32_t n, uint32_t chunk, td_pooling pooling,
                        const float *want)
{
  td_error err = {0};
  td_program *program;
  td_compiled *compiled;
  uint32_t width = m->desc.width;
  float *got = must_alloc(width, sizeof *got);
  if (td_model_embedding(m->model, m->kv, pooling, 1, &program, &err) ||
      m->be->ops->compile(m->be, program, &compiled, &err))
    die("embedding", &err);
  for (uint32_t at = 0; at < n; at += chunk) {
    plan_prompt(m, g, at, at + chunk < n ? at + chunk : n, false);
    run_alone(m, compiled);
  }
  fetch(m, td_program_buffer_at(program, "vectors"), got, width);
  bool same = memcmp(got, want, width * sizeof *got) == 0;
  if (!same)
    printf("  the %s vector of %" PRIu32 " tokens in chunks of %" PRIu32 " is another\n",
           pooling == TD_POOL_MEAN ? "mean" : "last", n, chunk);
  m->be->ops->discard(m->be, compiled);
  td_program_destroy(program);
  free(got);
  return !same;
}

/* Embedding programs pool the input of the generating program's head, whose "h" holds it for tokens that need
 * logits. */
static int check_vectors(const char *path, const golden_run *g)
{
  machine m = {0};
  uint32_t n = g->n_prompt < MAX_LOGITS ? g->n_prompt : MAX_LOGITS, width;
  int failures = 0;
  machine_start(&m, path, &scenarios[0], 1, g->n_prompt + g->n_tokens);
  width = m.desc.width;
  float *h = must_alloc((size_t)n * width, sizeof *h), *mean = must_alloc(width, sizeof *mean);
  plan_prompt(&m, g, 0, n, true);
  run_alone(&m, m.forward);
  fetch(&m, m.h_at, h, (size_t)n * width);
  for (size_t i = 0; m.desc.logit_scale != 0 && i < (size_t)n * width; i++)
    h[i] /= m.desc.logit_scale; /* the head's norm has it: a power of two in all models here */
  for (uint32_t i = 0; i < width; i++) {
    double sum = 0;
    for (uint32_t t = 0; t < n; t++)
      sum += (double)h[(size_t)t * width + i];
    mean[i] = (float)(sum / n);
  }
  for (uint32_t chunk = 1; chunk < 3 * n; chunk = 3 * chunk) {
    failures += check_pooled(&m, g, n, chunk, TD_POOL_MEAN, mean);
    failures += check_pooled(&m, g, n, chunk, TD_POOL_LAST, h + (size_t)(n - 1) * width);
  }
  free(h);
  free(mean);
  machine_stop(&m);
  return failures;
}

/* ---- goldens ---- */

static int32_t *read_ids(const cJSON *array, uint32_t *n)
{
  const cJSON *item;
  int32_t *ids = must_alloc((size_t)cJSON_GetArraySize(array), sizeof *ids);
  *n = 0;
  cJSON_ArrayForEach(item, array) ids[(*n)++] = (int32_t)item->valuedouble;
  return ids;
}

static int check_model(const char *path, const cJSON *model, size_t n_scenarios)
{
  uint32_t n = 0, n_tokens = 0, n_margins;
  golden_run *runs = must_alloc((size_t)cJSON_GetArraySize(model), sizeof *runs);
  sequence *all = must_alloc((size_t)cJSON_GetArraySize(model), sizeof *all);
  const cJSON *run, *margin;
  int failures = 0;
  cJSON_ArrayForEach(run, model)
  {
    golden_run *g = &runs[n];
    g->prompt = read_ids(td_json_get(run, "prompt"), &g->n_prompt);
    g->tokens = read_ids(td_json_get(run, "tokens"), &g->n_tokens);
    g->margins = must_alloc(g->n_tokens, sizeof *g->margins);
    g->logits = td_json_get(run, "logits");
    g->scale = g->logits ? td_json_get(run, "scale")->valuedouble : 0;
    n_margins = 0;
    cJSON_ArrayForEach(margin, td_json_get(run, "margins")) if (n_margins < g->n_tokens)
        g->margins[n_margins++] = margin->valuedouble;
    all[n].golden = g;
    all[n++].hash = must_alloc(g->n_tokens, sizeof(uint64_t));
    n_tokens += g->n_tokens;
  }
  for (size_t i = 0; i < n_scenarios; i++)
    failures += run_scenario(path, &scenarios[i], all, n, i == 0);
  failures += check_vectors(path, &runs[0]);
  printf("%-6s %-18s %" PRIu32 " prompts, %" PRIu32 " tokens in %zu scenarios\n",
         failures || n_tokens == 0 ? "FAILED" : "ok", model->string, n, n_tokens, n_scenarios);
  printf("fidelity model | %s | %u | %u | %u | %u\n", model->string, seen.logits, seen.bad_logits,
         seen.tokens, seen.bad_tokens + (failures > 0 && seen.bad_tokens + seen.bad_logits == 0));
  memset(&seen, 0, sizeof seen);
  fflush(stdout);
  for (uint32_t i = 0; i < n; i++) {
    free(runs[i].prompt);
    free(runs[i].tokens);
    free(runs[i].margins);
    free(all[i].hash);
  }
  free(runs);
  free(all);
  return failures + (n_tokens == 0);
}

static cJSON *read_golden(const char *path)
{
  const td_json_limits limits = {16, 1 << 20, TD_ERR_MODEL};
  char chunk[4096];
  size_t n;
  td_buf text;
  td_error err = {0};
  cJSON *out;
  FILE *f = fopen(path, "re");
  if (!f) {
    perror(path);
    exit(1);
  }
  td_buf_init(&text, 0);
  while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
    td_buf_append(&text, chunk, n);
  fclose(f);
  if (td_json_parse(text.data, text.len_bytes, &limits, &out, &err))
    die(path, &err);
  td_buf_deinit(&text);
  return out;
}

int main(int argc, char **argv)
{
  struct stat st;
  char path[4096];
  int failures = 0, n_models = 0;
  if (argc < 3 || argv[2][0] == '\0') {
    printf("skipped: no model given (set TANDEM_TEST_MODEL or TD_TEST_MODEL to the GGUF file)\n");
    return SKIPPED;
  }
  if (stat(argv[2], &st) != 0) {
    perror(argv[2]);
    return 1;
  }
  cJSON *golden = read_golden(argv[1]);
  const cJSON *model;
  cJSON_ArrayForEach(model, td_json_get(golden, "models"))
  {
    bool folder = S_ISDIR(st.st_mode);
    const char *gguf = strcmp(model->string, "gguf_split") == 0 ? "-00001-of-00003.gguf" : ".gguf";
    snprintf(path, sizeof path, folder ? "%s/%s%s" : "%s", argv[2], model->string,
             strncmp(model->string, "gguf_", 5) == 0 ? gguf : "");
    /* The real model is large, so only two scenarios: alone, and all together. */
    failures += check_model(path, model, folder ? sizeof scenarios / sizeof *scenarios : 2);
    n_models++;
  }
  cJSON_Delete(golden);
  printf("%d passed, %d failed\n", n_models - (failures > 0), failures);
  return failures || n_models == 0;
}
