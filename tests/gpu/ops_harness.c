/* See ops_harness.h. */
#include "ops_harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops_watch.h"
#include "random.h"

td_backend *be;
double eps_out;
int n_passed, n_failed;
static uint64_t rng_state = 88172645463325252ull;
void rng_seed(uint64_t seed) { rng_state = seed | 1; }
uint64_t rng_now(void) { return rng_state; }
uint64_t rng(void) { return random_next(&rng_state); }

double uniform(void) { return (double)(rng() >> 11) / 9007199254740992.0; }

/* The sum of four uniform numbers is roughly normal. */
static float value_of(uint64_t four, double scale)
{
  uint64_t sum = (four & 0xffff) + (four >> 16 & 0xffff) + (four >> 32 & 0xffff) + (four >> 48);
  return td_bf16_to_f32(td_f32_to_bf16((float)(((double)sum / 65536 - 2) * 1.7 * scale)));
}

float random_value(double scale) { return value_of(rng(), scale); }

/* One random sequence per block of rows, so that results do not depend on the number of threads. */
void random_fill(float *v, size_t n, double scale)
{
  enum { RUN = 8192 };
  uint64_t first = rng() | 1;
#pragma omp parallel for
  for (size_t at = 0; at < n; at += RUN) {
    uint64_t state = (first + at / RUN) * 0x9e3779b97f4a7c15ull | 1;
    random_next(&state);
    for (size_t i = at; i < n && i < at + RUN; i++)
      v[i] = value_of(random_next(&state), scale);
  }
}

float *random_values(size_t n, double scale)
{
  float *v = malloc((n ? n : 1) * sizeof *v);
  random_fill(v, n, scale);
  return v;
}

bool is_hopper(void) { return strstr(be->identity, " cc9.0 ") && strstr(TD_CUDA_ARCHS, "90a"); }

void die(td_status st, const td_error *err, const char *what)
{
  if (st != TD_OK) {
    printf("%s: %s\n", what, err->message);
    exit(1);
  }
}

td_devptr device_alloc(size_t bytes)
{
  td_error err;
  td_devptr p;
  die(be->ops->alloc(be, bytes, &p, &err), &err, "alloc");
  return p;
}

td_devptr device_f32(const float *v, size_t n)
{
  td_error err;
  td_devptr p;
  die(be->ops->upload_f32(be, v, n, &p, &err), &err, "upload");
  return p;
}

td_weight *device_weight(const td_weight_part *parts, uint32_t n_parts, uint64_t n_cols)
{
  td_error err;
  td_weight *w = NULL;
  die(be->ops->weight_import(be, parts, n_parts, n_cols, &w, &err), &err, "weight");
  die(be->ops->weights_wait(be, &err), &err, "weights");
  return w;
}

/* ---- a plan that the tests fill by hand ---- */

td_plan *plan;
int32_t *page_table;
int32_t sampled[MAX_ROWS];

void plan_reset(uint32_t page_tokens)
{
  td_plan_clear(plan);
  plan->page_tokens = page_tokens;
  plan->page_table = page_table;
  plan->page_table_len = MAX_ROWS * (MAX_CONTEXT / 16);
}

/* Tokens are numbered 0.. so that embed picks row t of a table for token t. */
void plan_add_row(uint32_t q_len, uint32_t kv_len, const int32_t *pages)
{
  uint32_t r = plan->n_rows++;
  uint32_t n_pages = (kv_len + plan->page_tokens - 1) / plan->page_tokens, offset = r * (MAX_CONTEXT / 16);
  plan->rows[r] = (td_plan_row){
      .slot = r, .q_start = plan->n_tokens, .q_len = q_len, .kv_len = kv_len, .page_table_offset = offset};
  td_plan_add_sample(plan, r);
  for (uint32_t i = 0; i < q_len; i++) {
    plan->token_ids[plan->n_tokens] = (int32_t)plan->n_tokens;
    plan->positions[plan->n_tokens++] = (int32_t)(kv_len - q_len + i);
  }
  for (uint32_t i = 0; pages && i < n_pages; i++) {
    page_table[offset + i] = pages[i];
    plan->page_updates[plan->n_page_updates++] = (td_plan_page_update){offset + i, pages[i]};
  }
}

void plan_tokens_only(uint32_t n)
{
  static const int32_t pages[MAX_CONTEXT / 16];
  plan_reset(16);
  plan_add_row(n, n, pages);
}

td_compiled *compile_ops(const td_op *ops, uint32_t n)
{
  td_error err;
  td_program *p;
  td_compiled *compiled;
  die(td_program_create(n, &p, &err), &err, "program");
  for (uint32_t i = 0; i < n; i++)
    td_program_add(p, ops[i]);
  die(be->ops->compile(be, p, &compiled, &err), &err, "compile");
  td_program_destroy(p);
  return compiled;
}

bool run_step(td_compiled *compiled)
{
  td_error err;
  td_outcome out;
  static uint64_t n_steps;
  plan->step = ++n_steps; /* which TANDEM_FAULT may stall (kernels/fault.h) */
  td_backend_queue_step(be, compiled, NULL, plan);
  die(watch_wait(be, plan, &out, &err), &err, "step");
  for (uint32_t i = 0; i < out.n_logits && i < MAX_ROWS; i++)
    sampled[i] = out.flags[i] & TD_LOGITS_NAN ? SAMPLED_NAN : out.ids[i * TD_STEP_IDS];
  return out.captured;
}

void run_ops(const td_op *ops, uint32_t n)
{
  td_compiled *compiled = compile_ops(ops, n);
  run_step(compiled);
  be->ops->discard(be, compiled);
}

/* Puts [n, width] values on the device as activations, in the layout that a download of them has. */
td_devptr activations(const float *v, uint32_t n, uint32_t width)
{
  size_t n_all = (size_t)n * width, n_words = (n_all + 1) / 2;
  if (be->activation_bytes == 4)
    return device_f32(v, n_all);
  float *words = malloc(n_words * sizeof *words); /* upload_f32 copies words of any kind */
#pragma omp parallel for
  for (size_t i = 0; i < n_words; i++) {
    uint16_t two[2] = {td_f32_to_bf16(v[2 * i]), 2 * i + 1 < n_all ? td_f32_to_bf16(v[2 * i + 1]) : 0};
    memcpy(&words[i], two, sizeof two);
  }
  td_devptr out = device_f32(words, n_words);
  free(words);
  return out;
}

float *fetch(td_devptr p, size_t n, bool f32)
{
  td_error err;
  float *out = malloc(n * sizeof *out);
  if (f32 || be->activation_bytes == 4) {
    die(be->ops->download(be, p, n * 4, out, &err), &err, "download");
    return out;
  }
  uint16_t *raw = malloc(n * 2);
  die(be->ops->download(be, p, n * 2, raw, &err), &err, "download");
#pragma omp parallel for
  for (size_t i = 0; i < n; i++)
    out[i] = td_bf16_to_f32(raw[i]);
  free(raw);
  return out;
}

/* The error as a norm ratio, and its maximum relative to the largest value. */
void check(const char *what, const float *got, const double *want, size_t n, double tolerance)
{
  double diff2 = 0, want2 = 0, worst = 0, largest = 0;
#pragma omp parallel for reduction(+ : diff2, want2) reduction(max : worst, largest)
  for (size_t i = 0; i < n; i++) {
    double d = fabs((double)got[i] - want[i]);
    if (!(d <= 1e30))
      d = 1e30;
    diff2 += d * d;
    want2 += want[i] * want[i];
    worst = fmax(worst, d);
    largest = fmax(largest, fabs(want[i]));
  }
  double ratio = sqrt(diff2 / (want2 + 1e-30)), max_ratio = worst / (largest + 1e-30);
  bool ok = ratio <= tolerance && max_ratio <= 4 * tolerance;
  n_passed += ok;
  n_failed += !ok;
  if (!ok)
    printf("FAIL %s: norm error %.2e, max error %.2e of the largest (tolerance %.1e)\n", what, ratio,
           max_ratio, tolerance);
}

void expect(bool ok, const char *what)
{
  n_passed += ok;
  n_failed += !ok;
  if (!ok)
    printf("FAIL %s\n", what);
}
