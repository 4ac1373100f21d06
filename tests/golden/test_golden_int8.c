/* The effect of option cpu_exact 0 on a whole model: the logits of golden answers, whose tokens are fed,
 * compared with those of the exact backend. Once as it is, with int8 activations and K and V as f16, and
 * once with K and V as f16 alone.
 *
 *   test_golden_int8 GOLDEN.json FILE.gguf [PROMPTS]
 *
 * Per token: the root mean square of the difference, relative to the logits' own standard deviation; the
 * divergence of the two distributions (KL, in nats); whether the best token is the same. Also the batch
 * rule: the same bits whether the answer is computed in one step or token by token. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/json.h"
#include "models/model.h"

enum { MAX_TOKENS = 192, PAGE_TOKENS = 16, PAGES = MAX_TOKENS / PAGE_TOKENS, SKIPPED = 77 };

typedef struct bounds {
  const char *what;
  double error, divergence, agreement; /* most, most, least */
} bounds;

/* The error of llama.cpp's own 8-bit activations is of this size; that of a wrong weight or scale is far
 * larger. */
static const bounds all_bounds = {"int8 activations, f16 K and V", 0.08, 0.005, 0.95};
/* bf16 would have an error of 0.006, 8-bit integers in blocks of 32 one of 0.027. */
static const bounds kv_bounds = {"f16 K and V alone", 0.002, 4e-6, 0.99};

typedef struct machine {
  td_backend *be;
  td_model *model;
  td_kv *kv;
  td_plan *plan;
  td_compiled *forward;
  td_devptr logits_at;
  int32_t page_table[PAGES];
} machine;

typedef struct answer {
  uint32_t n_prompt, n_tokens; /* n_tokens: prompt and answer */
  int32_t tokens[MAX_TOKENS];
} answer;

static void check(td_status st, const char *what, const td_error *err)
{
  if (st == TD_OK)
    return;
  fprintf(stderr, "%s: %s\n", what, err->message);
  exit(1);
}

static void start(machine *m, td_model_files *files, const td_model_desc *desc, bool int8, td_dtype kv)
{
  td_error err = {0};
  td_program *program = NULL;
  td_backend_config config = {.n_threads = 2,
                              .max_slots = 1,
                              .max_rows = 1,
                              .prompt_logits = MAX_TOKENS,
                              .max_tokens = MAX_TOKENS,
                              .max_context_tokens = MAX_TOKENS,
                              .max_vocab = desc->vocab,
                              .int8_activations = int8};
  check(td_backend_create("cpu", &config, &m->be, &err), "backend", &err);
  TD_BUG_ON(int8 && m->be->kv_dtype != kv); /* what the daemon has */
  m->be->kv_dtype = kv;
  check(td_model_load(files, desc, m->be, MAX_TOKENS, MAX_TOKENS + 1, NULL, NULL, &m->model, &err), "model",
        &err);
  td_kv_spec spec = td_model_kv_spec(desc, m->be->kv_dtype, PAGES, PAGE_TOKENS);
  check(m->be->ops->kv_create(m->be, &spec, &m->kv, &err), "KV", &err);
  check(td_plan_create(1, MAX_TOKENS, MAX_TOKENS + 1, PAGES, PAGE_TOKENS, &m->plan, &err), "plan", &err);
  check(td_model_program(m->model, m->kv, &program, &err), "program", &err);
  check(m->be->ops->compile(m->be, program, &m->forward, &err), "compile", &err);
  m->logits_at = td_program_buffer_at(program, "logits");
  td_program_destroy(program);
  m->plan->page_table = m->page_table;
  m->plan->page_table_len = PAGES;
}

static void stop(machine *m)
{
  td_plan_destroy(m->plan);
  td_model_destroy(m->model);
  m->be->ops->discard(m->be, m->forward);
  m->be->ops->destroy(m->be);
}

/* Writes the logits after tokens [from, end) to out; computes tokens [begin, end). */
static void run(machine *m, const answer *a, uint32_t begin, uint32_t end, uint32_t from, uint32_t vocab,
                float *out)
{
  td_plan *p = m->plan;
  td_error err = {0};
  td_outcome outcome;
  td_plan_clear(p);
  p->rows[0] = (td_plan_row){.q_len = end - begin, .kv_len = end};
  p->n_rows = 1;
  p->n_tokens = p->n_prefill_tokens = end - begin;
  for (uint32_t i = 0; i < PAGES; i++)
    p->page_updates[p->n_page_updates++] = (td_plan_page_update){i, m->page_table[i] = (int32_t)i};
  for (uint32_t i = begin; i < end; i++) {
    p->token_ids[i - begin] = a->tokens[i];
    p->positions[i - begin] = (int32_t)i;
    if (i >= from)
      td_plan_add_logits(p, 0, i - begin, i + 1 == end ? TD_SAMPLE_HERE : a->tokens[i + 1]);
  }
  td_backend_submit(m->be, m->forward, p);
  uint32_t n = end - (from > begin ? from : begin);
  check(m->be->ops->download(m->be, m->logits_at, (size_t)n * vocab * sizeof *out, out, &err), "download",
        &err);
  td_backend_sample(m->be, NULL, NULL);
  check(td_backend_wait(m->be, &outcome, &err), "step", &err);
}

typedef struct totals {
  uint32_t n_tokens, n_same;
  double error, divergence, largest;
} totals;

static uint32_t best(const float *v, uint32_t n)
{
  uint32_t at = 0;
  for (uint32_t i = 1; i < n; i++)
    at = v[i] > v[at] ? i : at;
  return at;
}

static double log_sum(const float *v, uint32_t n)
{
  double sum = 0, most = (double)v[best(v, n)];
  for (uint32_t i = 0; i < n; i++)
    sum += exp((double)v[i] - most);
  return log(sum) + most;
}

static void compare(const float *exact, const float *rounded, uint32_t n, totals *t)
{
  double mean = 0, square = 0, off = 0, divergence = 0;
  double total = log_sum(exact, n), total_rounded = log_sum(rounded, n);
  for (uint32_t i = 0; i < n; i++) {
    double e = (double)exact[i], d = (double)rounded[i] - e;
    mean += e / n;
    square += e * e / n;
    off += d * d / n;
    divergence += exp(e - total) * (e - total - ((double)rounded[i] - total_rounded));
    t->largest = fmax(t->largest, fabs(d));
  }
  t->error += sqrt(off / (square - mean * mean));
  t->divergence += divergence;
  t->n_same += best(exact, n) == best(rounded, n);
  t->n_tokens++;
}

/* The answer's logits in one step, and token by token: the same bits. */
static int check_batch_rule(machine *m, const answer *a, uint32_t vocab, const float *at_once, float *one)
{
  for (uint32_t i = a->n_prompt; i < a->n_tokens; i++) {
    run(m, a, i, i + 1, i, vocab, one);
    if (memcmp(one, at_once + (size_t)(i - a->n_prompt + 1) * vocab, vocab * sizeof *one) != 0) {
      printf("logits behind token %u alone have other bits than those at once\n", i);
      return 1;
    }
  }
  return 0;
}

static void read_answer(const cJSON *run, answer *a)
{
  const cJSON *id;
  *a = (answer){0};
  cJSON_ArrayForEach(id, td_json_get(run, "prompt")) if (a->n_tokens < MAX_TOKENS) a->tokens[a->n_tokens++] =
      (int32_t)id->valuedouble;
  a->n_prompt = a->n_tokens;
  cJSON_ArrayForEach(id, td_json_get(run, "tokens")) if (a->n_tokens < MAX_TOKENS) a->tokens[a->n_tokens++] =
      (int32_t)id->valuedouble;
}

static int compare_answers(const cJSON *model, uint32_t n_prompts, machine *exact, machine *rounded,
                           uint32_t vocab, const bounds *most)
{
  const cJSON *each;
  totals t = {0};
  int failures = 0;
  float *a = malloc((size_t)MAX_TOKENS * vocab * sizeof *a);
  float *b = malloc((size_t)MAX_TOKENS * vocab * sizeof *b), *one = malloc(vocab * sizeof *one);
  if (!a || !b || !one)
    abort();
  cJSON_ArrayForEach(each, model)
  {
    answer given;
    if (n_prompts-- == 0)
      break;
    read_answer(each, &given);
    uint32_t from = given.n_prompt - 1, n = given.n_tokens - from;
    run(exact, &given, 0, given.n_tokens, from, vocab, a);
    run(rounded, &given, 0, given.n_tokens, from, vocab, b);
    for (uint32_t i = 0; i < n; i++)
      compare(a + (size_t)i * vocab, b + (size_t)i * vocab, vocab, &t);
    if (each == model->child)
      failures += check_batch_rule(rounded, &given, vocab, b, one);
  }
  free(a);
  free(b);
  free(one);
  double n = t.n_tokens, error = t.error / n, divergence = t.divergence / n, same = t.n_same / n;
  printf("%s, %s: %u tokens, teacher-forced: error %.5f of the logits' deviation (most: %.4f), largest %.3f, "
         "divergence %.8f nats (most: %.6f), same best token %.2f %% (least: %.1f)\n",
         model->string, most->what, t.n_tokens, error, most->error, t.largest, divergence, most->divergence,
         100 * same, 100 * most->agreement);
  bool small = error <= most->error && divergence <= most->divergence && same >= most->agreement;
  bool rounds = error > 0; /* or the option does nothing */
  return failures + !small + !rounds;
}

static cJSON *read_golden(const char *path)
{
  const td_json_limits limits = {16, 1 << 20, TD_ERR_MODEL};
  static char text[1 << 20];
  td_error err = {0};
  cJSON *out = NULL;
  FILE *f = fopen(path, "re");
  if (!f) {
    perror(path);
    exit(1);
  }
  size_t n = fread(text, 1, sizeof text, f);
  fclose(f);
  check(td_json_parse(text, n, &limits, &out, &err), path, &err);
  return out;
}

int main(int argc, char **argv)
{
  td_error err = {0};
  td_model_files *files;
  td_model_desc desc;
  machine exact = {0}, rounded = {0}, kv_alone = {0};
  if (argc < 3 || argv[2][0] == '\0') {
    printf("skipped: no model given (set TANDEM_TEST_MODEL or TD_TEST_MODEL to the GGUF file)\n");
    return SKIPPED;
  }
  cJSON *golden = read_golden(argv[1]);
  check(td_model_files_open(argv[2], &files, &err), argv[2], &err);
  check(td_model_desc_read(files, &desc, &err), argv[2], &err);
  start(&exact, files, &desc, false, TD_F32);
  start(&rounded, files, &desc, true, TD_F16);
  start(&kv_alone, files, &desc, false, TD_F16);
  const cJSON *model = td_json_get(golden, "models")->child;
  uint32_t n_prompts = argc > 3 ? (uint32_t)atoi(argv[3]) : 6;
  int failures = compare_answers(model, n_prompts, &exact, &rounded, desc.vocab, &all_bounds) +
                 compare_answers(model, n_prompts, &exact, &kv_alone, desc.vocab, &kv_bounds);
  stop(&exact);
  stop(&rounded);
  stop(&kv_alone);
  td_model_files_close(files);
  cJSON_Delete(golden);
  printf(failures ? "FAILED\n" : "ok\n");
  return failures != 0;
}
