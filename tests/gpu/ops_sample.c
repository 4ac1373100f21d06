/* The backend under test and the CPU backend choose the same token for the same logits, sampling state and
 * position, without tolerance. If the backend under test is the CPU itself, the portable loops are the
 * reference.
 *
 * Rows are random in everything: scale, ties, masks of -inf, NaN, one finite logit, temperature, top-p,
 * top-k, min-p, seed. They run in steps of 1 to 256 rows, op by op and (if the backend can) from captured
 * steps with more rows than the step. */
#include "ops_sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"
#include "ops_watch.h"
#include "sample_side.h"

enum { SAMPLED_NAN = -1 };
enum { ROWS = 256, TIMED_OPS = 100 };

typedef struct tally {
  int rows, steps, captured, bad, greedy, top_k, top_p, min_p, wrong;
} tally;

/* ---- steps ---- */

static void fill_plan(side *s, uint32_t n, const td_sampling *sampling, const uint32_t *positions)
{
  td_plan *p = s->plan;
  td_plan_clear(p);
  for (uint32_t i = 0; i < n; i++) { /* row i samples for slot n - 1 - i, because slots are not rows */
    uint32_t slot = n - 1 - i;
    s->be->ops->set_sampling(s->be, slot, &sampling[i]);
    p->rows[i] = (td_plan_row){.slot = slot, .q_start = i, .q_len = 1, .kv_len = positions[i]};
    td_plan_add_sample(p, i);
    p->token_ids[i] = 0;
    p->positions[i] = (int32_t)positions[i] - 1;
  }
  p->n_rows = p->n_tokens = p->n_decode_rows = n;
  p->page_tokens = 16;
}

/* Returns whether it was launched from a captured step. */
static bool run_step(side *s, td_compiled *compiled, int32_t *ids)
{
  td_error err;
  td_outcome out;
  td_backend_queue_step(s->be, compiled, NULL, s->plan);
  must(watch_wait(s->be, s->plan, &out, &err), &err);
  memset(ids, 0x55, ROWS * sizeof *ids);
  for (uint32_t i = 0; i < out.n_logits; i++)
    ids[i] = out.flags[i] & TD_LOGITS_NAN ? SAMPLED_NAN : out.ids[i * TD_STEP_IDS];
  return out.captured;
}

/* A step that is not captured. */
static void run_once(side *s, td_devptr logits, uint32_t vocab, int32_t *ids)
{
  td_compiled *compiled = compile(s, logits, vocab, 1);
  run_step(s, compiled, ids);
  s->be->ops->discard(s->be, compiled);
}

static void count(tally *t, const td_sampling *s, int32_t id)
{
  t->rows++;
  t->bad += id == SAMPLED_NAN;
  t->greedy += s->temperature < 1e-5f;
  t->top_k += s->top_k > 0;
  t->top_p += s->top_p < 1;
  t->min_p += s->min_p > 0;
}

/* The same n rows, from row `first` of the logits, on both sides. captured: replaces the first side's op,
 * with first 0. */
static void compare_step(side *got, side *want, td_devptr got_logits, td_devptr want_logits, uint32_t vocab,
                         uint32_t first, uint32_t n, td_compiled *captured, tally *t)
{
  static td_sampling sampling[ROWS];
  static uint32_t positions[ROWS];
  int32_t ids[ROWS], reference[ROWS];
  size_t offset = (size_t)first * vocab * sizeof(float);
  for (uint32_t i = 0; i < n; i++) {
    sampling[i] = make_sampling(vocab);
    positions[i] = 1 + below(100000);
  }
  fill_plan(got, n, sampling, positions);
  fill_plan(want, n, sampling, positions);
  if (captured)
    t->captured += run_step(got, captured, ids);
  else
    run_once(got, td_devptr_at(got_logits, offset), vocab, ids);
  run_once(want, td_devptr_at(want_logits, offset), vocab, reference);
  t->steps++;
  for (uint32_t i = 0; i < n; i++) {
    const td_sampling *s = &sampling[i];
    count(t, s, reference[i]);
    if (ids[i] != reference[i] && t->wrong++ < 5)
      printf("  vocab %u, row %u of %u: token %d, the CPU's is %d (temperature %g, top_p %g, min_p %g, top_k "
             "%d, %s)\n",
             vocab, i, n, ids[i], reference[i], (double)s->temperature, (double)s->top_p, (double)s->min_p,
             s->top_k, captured ? "captured" : "op by op");
  }
}

/* Captured steps of these sizes; NULL: the backend captures nothing. They need a KV store. */
static td_compiled *capture_steps(side *s, td_devptr logits, uint32_t vocab, uint32_t n_ops,
                                  const uint32_t *sizes, uint32_t n_sizes)
{
  td_error err;
  td_kv *kv;
  td_capture ignored;
  td_kv_spec shape = {
      .n_pages = 4,
      .page_tokens = 16,
      .n_groups = 1,
      .groups = {{.dtype = s->be->kv_dtype, .n_layers = 1, .n_kv_heads = 1, .head_dim = 64, .n_heads = 1}}};
  if (!s->be->ops->capture)
    return NULL;
  must(s->be->ops->kv_create(s->be, &shape, &kv, &err), &err);
  td_compiled *compiled = compile(s, logits, vocab, n_ops);
  for (uint32_t i = 0; i < n_sizes; i++)
    must(watch_capture(s->be, compiled, 1, sizes[i], &ignored, &err), &err);
  return compiled;
}

/* One upload of n rows, sampled in steps of many sizes. */
static void compare_rows(side *got, side *want, float *x, uint32_t vocab, uint32_t n, bool capture, tally *t)
{
  static const uint32_t sizes[] = {1, 3, 8, 19, 28, 29, 40, 57, 71}, capture_sizes[] = {8, 40, ROWS};
  watch_case(rng_state, "sampling, vocab %u, %u rows of logits", vocab, n);
  for (uint32_t i = 0; i < n; i++)
    make_row(x + (size_t)i * vocab, vocab);
  td_devptr a = upload(got, x, (size_t)n * vocab), b = upload(want, x, (size_t)n * vocab);
  for (uint32_t first = 0, i = 0; first < n; i++) {
    uint32_t m = sizes[i % 9] < n - first ? sizes[i % 9] : n - first;
    compare_step(got, want, a, b, vocab, first, m, NULL, t);
    first += m;
  }
  compare_step(got, want, a, b, vocab, 0, n, NULL, t);
  td_compiled *captured = capture && n == ROWS ? capture_steps(got, a, vocab, 1, capture_sizes, 3) : NULL;
  if (!captured)
    return;
  for (uint32_t i = 0; i < 9; i++)
    compare_step(got, want, a, b, vocab, 0, sizes[i], captured, t);
  compare_step(got, want, a, b, vocab, 0, 200, captured, t);
  compare_step(got, want, a, b, vocab, 0, ROWS, captured, t);
  got->be->ops->discard(got->be, captured);
}

static bool compare_vocab(const char *backend, uint32_t vocab, uint32_t rounds, uint32_t rows)
{
  tally t = {0};
  side got = open_side(backend, NULL, vocab, ROWS, ROWS),
       want = open_side("cpu", strcmp(backend, "cpu") ? NULL : "scalar", vocab, ROWS, ROWS);
  float *x = malloc((size_t)rows * vocab * sizeof *x);
  if (!x) {
    printf("sampling: no memory for %u rows\n", rows);
    exit(1);
  }
  for (uint32_t i = 0; i < rounds; i++)
    compare_rows(&got, &want, x, vocab, rows, i == 0, &t);
  printf("sampling, vocab %u: %d tokens in %d steps, %d of them captured (%d tokens greedy, %d top-k, %d "
         "top-p, %d min-p, %d not a "
         "number): %d differ\n",
         vocab, t.rows, t.steps, t.captured, t.greedy, t.top_k, t.top_p, t.min_p, t.bad, t.wrong);
  free(x);
  close_side(&got);
  close_side(&want);
  return t.wrong == 0;
}

typedef struct amount {
  uint32_t vocab, rounds, rows;
} amount;

/* tiny: steps of 1 to 120 rows, which the CUDA sampler splits over 8, 4, 2 (100 rows) and 1 CTAs per row. */
void test_sampled_tokens(const char *backend, test_size size, int *n_passed, int *n_failed)
{
  static const amount all[] = {{1, 1, ROWS},
                               {2, 1, ROWS},
                               {3, 1, ROWS},
                               {31, 2, ROWS},
                               {127, 2, ROWS},
                               {1000, 4, ROWS},
                               {5003, 8, ROWS},
                               {32001, 2, ROWS},
                               {49152, 6, ROWS},
                               {128256, 4, ROWS},
                               {151937, 1, ROWS},
                               {262144, 1, ROWS},
                               {0}},
                      few[] = {{1, 1, 40},     {3, 1, 40},      {127, 2, 40}, {5003, 2, 60},
                               {49152, 1, 20}, {151937, 1, 10}, {0}},
                      tiny[] = {{3, 1, 5}, {1031, 1, 120}, {1030, 1, 100}, {20011, 1, 4}, {0}};
  const amount *a = size == TEST_TINY ? tiny : size == TEST_SMALL || strcmp(backend, "cpu") == 0 ? few : all;
  for (; a->vocab > 0; a++) {
    bool ok = compare_vocab(backend, a->vocab, a->rounds, a->rows);
    *n_passed += ok;
    *n_failed += !ok;
  }
}

/* ---- time ---- */

static double now_us(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static double time_step(side *s, td_compiled *captured, uint32_t n, const td_sampling *sampling)
{
  static td_sampling each[ROWS];
  static uint32_t positions[ROWS];
  int32_t ids[ROWS];
  double best = INFINITY;
  for (uint32_t i = 0; i < n; i++) {
    each[i] = *sampling;
    each[i].seed = i;
    positions[i] = 1000;
  }
  for (int round = 0; round < 6; round++) {
    fill_plan(s, n, each, positions);
    double begin = now_us();
    if (!run_step(s, captured, ids))
      return NAN;
    double us = (now_us() - begin) / TIMED_OPS;
    best = us < best ? us : best;
  }
  return best;
}

static void time_logits(const char *backend, const char *what, float scale)
{
  enum { VOCAB = 128256, CASES = 6 };
  static const uint32_t sizes[] = {1, 2, 8, 16, 28, 64, 128, ROWS};
  static const struct {
    const char *name;
    td_sampling sampling;
  } cases[CASES] = {
      {"greedy", {.top_p = 1}},
      {"temperature 1", {.temperature = 1, .top_p = 1}},
      {"top_p .9", {.temperature = 1, .top_p = 0.9f}},
      {"min_p .05", {.temperature = 1, .top_p = 1, .min_p = 0.05f}},
      {"top_k 50", {.temperature = 1, .top_p = 1, .top_k = 50}},
      {"T .7 k 50 p .95", {.temperature = 0.7f, .top_p = 0.95f, .top_k = 50}},
  };
  side s = open_side(backend, NULL, VOCAB, ROWS, ROWS);
  float *x = malloc((size_t)ROWS * VOCAB * sizeof *x);
  for (size_t i = 0; x && i < (size_t)ROWS * VOCAB; i++)
    x[i] = normal() * scale;
  td_compiled *captured =
      x ? capture_steps(&s, upload(&s, x, (size_t)ROWS * VOCAB), VOCAB, TIMED_OPS, sizes, 8) : NULL;
  if (captured) {
    printf("sampling, us per op, vocab %u, %s logits\n%8s", VOCAB, what, "rows");
    for (int c = 0; c < CASES; c++)
      printf("%17s", cases[c].name);
    printf("\n");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
      printf("%8u", sizes[i]);
      for (int c = 0; c < CASES; c++)
        printf("%17.1f", time_step(&s, captured, sizes[i], &cases[c].sampling));
      printf("\n");
    }
    s.be->ops->discard(s.be, captured);
  }
  free(x);
  close_side(&s);
}

void time_sampling(const char *backend)
{
  time_logits(backend, "flat (deviation 1.3)", 1.3f);
  time_logits(backend, "peaked (deviation 4)", 4);
}
