/* The logits of two backends for the same tokens, the CPU's and BACKEND's (cuda): `parity MODEL CASES
 * [BACKEND]`.
 *
 * A case is a line of JSON: "ids", a prompt followed by an answer; "n_prompt"; and if another answer
 * diverged from this one, "differs_at", an index into the answer, and "other", its token there. Both
 * backends get the same tokens, so errors do not add up from token to token. The answer's tokens are decode
 * rows in the prompt's own step, over the same pages: each sees what it would see alone. A third side is
 * the CPU again, rounding as a GPU does (rounded.h): the effect of bf16 alone on these logits. The program
 * prints a line of JSON for each case; the caller decides what is good enough. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/log.h"
#include "models/model.h"
#include "rounded.h"

enum {
  MAX_TOKENS = 1024,
  MAX_ROWS = 128,
  PAGE_TOKENS = 16,
  N_PAGES = MAX_TOKENS / PAGE_TOKENS,
  LINE_BYTES = 1 << 16
};

typedef struct side {
  td_backend *be;
  td_model *model;
  td_kv *kv;
  td_compiled *forward; /* without sampling, which might overwrite the logits */
  td_devptr logits_at;
  float *logits; /* [MAX_ROWS, vocab] */
} side;

typedef struct test_case {
  int32_t ids[MAX_TOKENS];
  uint32_t n_ids, n_prompt, n_answer;
  int32_t other;
  uint32_t differs_at; /* n_answer: nowhere */
} test_case;

/* One side's logits against the CPU's, over all positions of a case. */
typedef struct measured {
  double max_diff, worst_relative, diff2, spread2;
  double max_diff_there; /* at differs_at */
  uint32_t agrees,
      bad; /* number of largest logits that are the answer's token; of logits that are not finite */
} measured;

static td_plan *plan;
static int32_t page_table[N_PAGES];
static td_model_desc desc;

static void must(td_status st, const td_error *err)
{
  if (st == TD_OK)
    return;
  fprintf(stderr, "parity: %s\n", err->message);
  exit(1);
}

static void compile(side *s)
{
  td_error err;
  td_program *forward;
  must(td_model_program(s->model, s->kv, &forward, &err), &err);
  must(s->be->ops->compile(s->be, forward, &s->forward, &err), &err);
  s->logits_at = td_program_buffer_at(forward, "logits");
  td_program_destroy(forward);
}

static void open_side(const char *backend, bool round, const td_model_files *files, side *s)
{
  td_error err;
  td_backend_config c = {.max_slots = MAX_ROWS,
                         .max_rows = MAX_ROWS,
                         .max_tokens = MAX_TOKENS,
                         .max_context_tokens = MAX_TOKENS,
                         .max_vocab = desc.vocab,
                         .gpu_memory_percent = 90};
  must(td_backend_create(backend, &c, &s->be, &err), &err);
  td_kv_spec shape = td_model_kv_spec(&desc, s->be->kv_dtype, N_PAGES, PAGE_TOKENS);
  if (round)
    rounded_arm(s->be);
  must(td_model_load(files, &desc, s->be, MAX_TOKENS, MAX_ROWS, NULL, NULL, &s->model, &err), &err);
  must(s->be->ops->weights_wait(s->be, &err), &err);
  must(s->be->ops->kv_create(s->be, &shape, &s->kv, &err), &err);
  compile(s);
  s->logits = malloc((size_t)MAX_ROWS * desc.vocab * sizeof *s->logits);
  must(s->logits ? TD_OK : td_fail(&err, TD_ERR_NOMEM, "no memory for logits"), &err);
}

static void close_side(side *s)
{
  td_model_destroy(s->model);
  s->be->ops->discard(s->be, s->forward);
  s->be->ops->destroy(s->be);
  free(s->logits);
}

/* ---- cases ---- */

static bool read_case(const char *line, test_case *c)
{
  static const td_json_limits limits = {.max_depth = 4, .max_nodes = MAX_TOKENS + 16};
  td_error err;
  cJSON *o;
  const cJSON *id;
  int64_t n_prompt = 0, differs_at = -1, other = 0;
  bool present, ok;
  if (td_json_parse(line, strlen(line), &limits, &o, &err) != TD_OK)
    return false;
  ok = td_json_get_int64(o, "n_prompt", 1, MAX_TOKENS, &n_prompt, &present, &err) == TD_OK &&
       td_json_get_int64(o, "differs_at", 0, MAX_TOKENS, &differs_at, &present, &err) == TD_OK &&
       td_json_get_int64(o, "other", 0, desc.vocab - 1, &other, &present, &err) == TD_OK;
  c->n_ids = 0;
  cJSON_ArrayForEach(id, td_json_get(o, "ids"))
  {
    ok = ok && cJSON_IsNumber(id) && id->valuedouble >= 0 && id->valuedouble < desc.vocab &&
         c->n_ids < MAX_TOKENS;
    if (ok)
      c->ids[c->n_ids++] = (int32_t)id->valuedouble;
  }
  cJSON_Delete(o);
  if (!ok || n_prompt < 1 || n_prompt >= c->n_ids || c->n_ids - n_prompt > MAX_ROWS)
    return false;
  c->n_prompt = (uint32_t)n_prompt;
  c->n_answer = c->n_ids - c->n_prompt;
  c->differs_at = differs_at >= 0 && differs_at < c->n_answer ? (uint32_t)differs_at : c->n_answer;
  c->other = (int32_t)other;
  return true;
}

/* ---- logits ---- */

static void add_row(const test_case *c, uint32_t q_len, uint32_t kv_len)
{
  uint32_t r = plan->n_rows++;
  plan->rows[r] = (td_plan_row){.slot = r, .q_start = plan->n_tokens, .q_len = q_len, .kv_len = kv_len};
  td_plan_add_sample(plan, r);
  for (uint32_t p = kv_len - q_len; p < kv_len; p++) {
    plan->token_ids[plan->n_tokens] = c->ids[p];
    plan->positions[plan->n_tokens++] = (int32_t)p;
  }
}

/* Row i's logits precede answer token i + 1; the last row is the prompt, before answer token 0. */
static void make_plan(const test_case *c)
{
  td_plan_clear(plan);
  plan->page_tokens = PAGE_TOKENS;
  plan->page_table = page_table;
  plan->page_table_len = N_PAGES;
  for (uint32_t i = 0; i < N_PAGES; i++)
    plan->page_updates[plan->n_page_updates++] = (td_plan_page_update){i, page_table[i]};
  for (uint32_t i = 0; i + 1 < c->n_answer; i++)
    add_row(c, 1, c->n_prompt + i + 1);
  plan->n_decode_rows = plan->n_rows;
  add_row(c, c->n_prompt, c->n_prompt);
  plan->n_prefill_tokens = c->n_prompt;
}

static void compute(side *s, const test_case *c)
{
  td_error err;
  td_outcome ignored;
  make_plan(c);
  td_backend_queue_step(s->be, s->forward, NULL, plan);
  must(td_backend_wait(s->be, &ignored, &err), &err);
  must(s->be->ops->download(s->be, s->logits_at, (size_t)c->n_answer * desc.vocab * sizeof(float), s->logits,
                            &err),
       &err);
}

static const float *before_token(const side *s, const test_case *c, uint32_t i)
{
  return s->logits + (size_t)(i == 0 ? c->n_answer - 1 : i - 1) * desc.vocab;
}

static int32_t largest(const float *x)
{
  uint32_t best = 0;
  for (uint32_t v = 1; v < desc.vocab; v++)
    if (x[v] > x[best])
      best = v;
  return (int32_t)best;
}

/* Spread: the root mean square distance of a row's logits from their mean. */
static double measure_row(const float *want, const float *got, measured *m)
{
  double sum = 0, spread2 = 0, diff2 = 0, max_diff = 0;
  for (uint32_t v = 0; v < desc.vocab; v++)
    sum += want[v];
  for (uint32_t v = 0; v < desc.vocab; v++) {
    double d = fabs((double)got[v] - want[v]), s = want[v] - sum / desc.vocab;
    m->bad += !isfinite(d);
    d = isfinite(d) ? d : 1e30;
    max_diff = fmax(max_diff, d);
    diff2 += d * d;
    spread2 += s * s;
  }
  m->max_diff = fmax(m->max_diff, max_diff);
  m->diff2 += diff2;
  m->spread2 += spread2;
  m->worst_relative = fmax(m->worst_relative, sqrt(diff2 / (spread2 + 1e-30)));
  return max_diff;
}

static measured measure(const test_case *c, const side *want, const side *got)
{
  measured m = {0};
  for (uint32_t i = 0; i < c->n_answer; i++) {
    const float *g = before_token(got, c, i);
    double max_diff = measure_row(before_token(want, c, i), g, &m);
    if (i == c->differs_at)
      m.max_diff_there = max_diff;
    m.agrees += largest(g) == c->ids[c->n_prompt + i];
  }
  return m;
}

static void print_side(const char *name, const measured *m, const test_case *c)
{
  printf(
      ",\"%s\":{\"max_diff\":%.6g,\"relative\":%.6g,\"worst_relative\":%.6g,\"not_finite\":%u,\"agrees\":%u",
      name, m->max_diff, sqrt(m->diff2 / (m->spread2 + 1e-30)), m->worst_relative, m->bad, m->agrees);
  if (c->differs_at < c->n_answer)
    printf(",\"max_diff_there\":%.6g", m->max_diff_there);
  printf("}");
}

static void run_case(const test_case *c, side *want, side *got, side *rounded)
{
  compute(want, c);
  compute(got, c);
  compute(rounded, c);
  measured own = measure(c, want, want), g = measure(c, want, got), r = measure(c, want, rounded);
  printf("{\"positions\":%u,\"spread\":%.6g,\"cpu_agrees\":%u", c->n_answer,
         sqrt(own.spread2 / ((double)c->n_answer * desc.vocab)), own.agrees);
  print_side("got", &g, c);
  print_side("rounded", &r, c);
  if (c->differs_at < c->n_answer) {
    const float *w = before_token(want, c, c->differs_at), *x = before_token(got, c, c->differs_at);
    int32_t token = c->ids[c->n_prompt + c->differs_at];
    printf(",\"differs_at\":%u,\"cpu_margin\":%.6g,\"got_margin\":%.6g", c->differs_at,
           (double)w[token] - w[c->other], (double)x[c->other] - x[token]);
  }
  printf("}\n");
  fflush(stdout);
}

int main(int argc, char **argv)
{
  static char line[LINE_BYTES];
  static test_case c;
  td_error err = {0};
  td_model_files *files;
  side want, got, rounded;
  td_log_init(TD_LOG_WARN, false);
  if (argc < 3)
    return fprintf(stderr, "usage: parity MODEL CASES.jsonl [BACKEND]\n"), 64;
  must(td_model_files_open(argv[1], &files, &err), &err);
  must(td_model_desc_read(files, &desc, &err), &err);
  must(td_plan_create(MAX_ROWS, MAX_TOKENS, MAX_ROWS, N_PAGES, PAGE_TOKENS, &plan, &err), &err);
  for (int i = 0; i < N_PAGES; i++)
    page_table[i] = (i * 37 + 11) % N_PAGES; /* 37 is odd, so every page occurs once, out of order */
  open_side("cpu", false, files, &want);
  open_side("cpu", true, files, &rounded);
  if (argc <= 3 || strcmp(argv[3], "rounded") != 0)
    open_side(argc > 3 ? argv[3] : "cuda", false, files, &got);
  else
    got = rounded; /* for work on this program */
  FILE *f = fopen(argv[2], "re");
  if (!f)
    return perror(argv[2]), 1;
  printf("{\"layers\":%u,\"vocab\":%u,\"backend\":\"%s\"}\n", desc.n_layers, desc.vocab, got.be->ops->name);
  for (int n = 1; fgets(line, sizeof line, f); n++) {
    if (!read_case(line, &c))
      return fprintf(stderr, "parity: %s:%d: not a case\n", argv[2], n), 1;
    run_case(&c, &want, &got, &rounded);
  }
  fclose(f);
  close_side(&want);
  if (got.be != rounded.be)
    close_side(&got);
  close_side(&rounded);
  rounded_free();
  td_plan_destroy(plan);
  td_model_files_close(files);
  return 0;
}
