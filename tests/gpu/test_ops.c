/* Every op of a backend against float64 references written here: `test_ops cpu` or `test_ops cuda`.
 *
 * All inputs are bf16 numbers, exact on every backend; tolerances are those of bf16 or f32 results. KV pages
 * beyond a row's length are poisoned with NaN. No test framework: this also runs where only a compiler and
 * the device are. */
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench/attention_policies.h"
#include "common/clock.h"
#include "ops_attention.h"
#include "ops_cuts.h"
#include "ops_harness.h"
#include "ops_decoder.h"
#include "ops_glu.h"
#include "ops_pointwise.h"
#include "ops_sample.h"
#include "ops_step.h"
#include "ops_watch.h"

/* ---- ops ---- */

/* A weight, made once for all row counts that want it: beside a GPU it takes longer than the product does. */
typedef struct product {
  uint32_t n_in, n_out, n_parts, outs[TD_WEIGHT_PARTS_MAX];
  float *w, *bias; /* [n_out, n_in]; NULL: none */
  td_weight *weight;
} product;

static product products[100]; /* of one backend: see forget_products */
static size_t n_products;

static void forget_products(void)
{
  while (n_products > 0) {
    product *p = &products[--n_products];
    free(p->w), free(p->bias);
  }
}

static void make_product(product *p, uint32_t n_in, const uint32_t *outs, uint32_t n_parts, bool bias)
{
  td_weight_part parts[TD_WEIGHT_PARTS_MAX];
  *p = (product){.n_in = n_in, .n_parts = n_parts};
  memcpy(p->outs, outs, n_parts * sizeof *outs);
  for (uint32_t i = 0; i < n_parts; i++)
    p->n_out += outs[i];
  p->w = random_values((size_t)p->n_out * n_in, 1);
  p->bias = bias ? random_values(p->n_out, 1) : NULL;
  for (uint32_t i = 0, j0 = 0; i < n_parts; j0 += outs[i++])
    parts[i] = (td_weight_part){.dtype = TD_F32,
                                .data = p->w + (size_t)j0 * n_in,
                                .n_rows = outs[i],
                                .bias = bias ? p->bias + j0 : NULL};
  p->weight = device_weight(parts, n_parts, n_in);
}

static const product *product_of(uint32_t n_in, const uint32_t *outs, uint32_t n_parts, bool bias)
{
  for (size_t i = 0; i < n_products; i++)
    if (products[i].n_in == n_in && products[i].n_parts == n_parts && (products[i].bias != NULL) == bias &&
        memcmp(products[i].outs, outs, n_parts * sizeof *outs) == 0)
      return &products[i];
  if (n_products == sizeof products / sizeof *products)
    forget_products();
  make_product(&products[n_products], n_in, outs, n_parts, bias);
  return &products[n_products++];
}

static double dot(const float *x, const float *w, uint32_t n)
{
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (uint32_t k = 0; k < n; k++)
    sum += (double)x[k] * (double)w[k];
  return sum;
}

static double *want_linear(const product *p, const float *x, uint32_t n)
{
  double *want = malloc((size_t)n * p->n_out * sizeof *want);
#pragma omp parallel for collapse(2) schedule(static)
  for (uint32_t j = 0; j < p->n_out; j++)
    for (uint32_t t = 0; t < n; t++)
      want[(size_t)t * p->n_out + j] =
          dot(x + (size_t)t * p->n_in, p->w + (size_t)j * p->n_in, p->n_in) + (p->bias ? p->bias[j] : 0);
  return want;
}

static void test_linear(uint32_t n, uint32_t n_in, const uint32_t *outs, uint32_t n_parts, bool bias,
                        bool f32)
{
  char what[120];
  const product *p = product_of(n_in, outs, n_parts, bias);
  size_t n_all = (size_t)n * p->n_out;
  watch_case(rng_now(), "linear n=%u n_in=%u n_out=%u f32=%d", n, n_in, p->n_out, f32);
  float *x = random_values((size_t)n * n_in, 1), *held = random_values(n_all, 100);
  double *want = want_linear(p, x, n);
  plan_tokens_only(n);
  td_devptr dx = activations(x, n, n_in);
  size_t out_bytes = n_all * (f32 ? 4 : be->activation_bytes);
  td_devptr out = device_alloc(out_bytes),
            again = f32 ? device_f32(held, n_all) : activations(held, n, p->n_out);
  td_devptr sum = f32 ? device_f32(held, n_all) : activations(held, n, p->n_out);
  td_linear_params once = {p->weight, dx, out, n_in, p->n_out, bias, f32, false}, added = once, twice = once;
  added.out = sum;
  added.add = true;
  twice.out = again;
  const td_op ops[] = {{.kind = TD_OP_LINEAR, .linear = once},
                       {.kind = TD_OP_LINEAR, .linear = added},
                       {.kind = TD_OP_LINEAR, .linear = twice}};
  run_ops(ops, 3);
  float *got = fetch(out, n_all, f32), *got_again = fetch(again, n_all, f32),
        *got_sum = fetch(sum, n_all, f32);
  snprintf(what, sizeof what, "linear n=%u n_in=%u n_out=%u parts=%u bias=%d f32=%d", n, n_in, p->n_out,
           n_parts, bias, f32);
  check(what, got, want, n_all, f32 ? 1e-5 : eps_out);
  for (size_t i = 0; i < n_all; i++)
    want[i] += held[i];
  strcat(what, ", added");
  check(what, got_sum, want, n_all, f32 ? 1e-5 : eps_out);
  bool same = memcmp(got, got_again, n_all * sizeof *got) == 0;
  n_passed += same;
  n_failed += !same;
  if (!same)
    printf("FAIL %s: other bits the second time, to where something was\n", what);
  free(x), free(held), free(want), free(got), free(got_again), free(got_sum);
}

/* Decode steps: every row count, n_in and n_out that are no whole tiles of anything, one tile and many. */
static void test_few_rows(bool small)
{
  static const uint32_t ins[] = {64, 96, 192, 1088, 2568}, outs[] = {1, 37, 129, 130, 1004};
  for (uint32_t n = 1; n <= MAX_ROWS; n += small ? 9 : 1)
    for (size_t i = 0; i < (small ? 3 : 5); i++) {
      uint32_t k = (n + (uint32_t)i) % 5;
      test_linear(n, ins[i], &outs[k], 1, n % 2 == 0, false);
      test_linear(n, ins[i], &outs[(k + 2) % 5], 1, false, true);
    }
  test_linear(8, 64, (const uint32_t[]){45000}, 1, true,
              false); /* more tiles for each block of an H200 than it has slots */
  if (small)
    return;
  test_linear(1, 4096, (const uint32_t[]){4096, 1024, 1024}, 3, false,
              false); /* more tiles than multiprocessors */
  test_linear(4, 4416, (const uint32_t[]){9001}, 1, true,
              false); /* and more parts than slots, of tiles of each height */
  test_linear(6, 1088, (const uint32_t[]){10000}, 1, true, false);
  test_linear(7, 14400, (const uint32_t[]){1000}, 1, true, false);
  test_linear(1, 14400, (const uint32_t[]){1000}, 1, false, false);
  test_linear(2, 14336, (const uint32_t[]){4096}, 1, false, false);
  test_linear(3, 4160, (const uint32_t[]){2304}, 1, false, true);
  test_linear(7, 14400, (const uint32_t[]){1990}, 1, true, false);
  test_linear(5, 4096, (const uint32_t[]){6144}, 1, false, false);
  test_linear(8, 14336, (const uint32_t[]){4096}, 1, true, false);
  test_linear(12, 14336, (const uint32_t[]){4096}, 1, true, false); /* the ring of more rows */
  test_linear(16, 1024, (const uint32_t[]){9000, 9000}, 2, true, false);
  test_linear(29, 576, (const uint32_t[]){20001}, 1, false, true);
  test_linear(64, 256, (const uint32_t[]){40004}, 1, false, true);
}

/* ---- tuning: products are as right after it, and what was measured is found again ---- */

typedef struct tuned {
  td_weight *table, *wide, *back, *head;
  td_devptr x, out, logits;
} tuned;

static td_op linear_op(const td_weight *w, td_devptr x, td_devptr out, uint32_t n_in, uint32_t n_out)
{
  return (td_op){.kind = TD_OP_LINEAR,
                 .linear = {.weight = w, .x = x, .out = out, .n_in = n_in, .n_out = n_out}};
}

static td_compiled *compile_tuned(const tuned *t)
{
  td_op ops[] = {{.kind = TD_OP_EMBED, .embed = {t->table, t->x, 576, 0}},
                 linear_op(t->wide, t->x, t->out, 576, 704),
                 linear_op(t->back, t->out, t->x, 704, 576),
                 linear_op(t->head, t->x, t->logits, 576, 1000)};
  ops[2].linear.add = true;
  ops[3].linear.out_f32 = true;
  ops[3].extent = TD_EXTENT_LOGITS;
  return compile_ops(ops, 4);
}

static void tune(const tuned *t, const char *folder, uint32_t ms)
{
  td_error err;
  td_tuning now;
  td_compiled *compiled = compile_tuned(t);
  die(td_backend_tune(be, compiled, folder, ms, &now, &err), &err, "tune");
  expect(ms > 0 || now.n_measured == 0, "tune: without time nothing is measured");
  be->ops->discard(be, compiled);
}

static void damage_files(const char *folder)
{
  char command[300];
  snprintf(command, sizeof command,
           "for f in %s/*; do printf x | dd of=\"$f\" bs=1 seek=300 conv=notrunc 2>/dev/null; done", folder);
  if (system(command) != 0)
    printf("FAIL tune: no cache file to damage\n"), n_failed++;
}

/* Products of both shapes are kept for every bucket that cuBLASLt serves, those of steps with chunks too; the
 * head's are not measured. */
static bool all_kept(const char *folder, char *kept, int size)
{
  char command[300];
  unsigned wide = 0, back = 0, head = 1;
  snprintf(command, sizeof command,
           "awk 'NF == 14 { n[$1, $2, $3]++ } END { print n[704, 576, 0] + 0, n[576, 704, 0] + 0, n[1000, "
           "576, 1] + 0 }' %s/products*",
           folder);
  FILE *f = popen(command, "r");
  bool all = f && fgets(kept, size, f) && sscanf(kept, "%u %u %u", &wide, &back, &head) == 3 && wide >= 30 &&
             back == wide && head == 0;
  if (f)
    pclose(f);
  return all;
}

/* Measuring goes on where it stopped, in a call of its own each time. How long it takes is nobody's business
 * here: minutes under a sanitizer that others run beside. */
static void tune_until_kept(const tuned *t, const char *folder)
{
  char ignored[64];
  for (uint32_t calls = 1; calls <= 20; calls++) {
    tune(t, folder, 2000 * calls);
    if (all_kept(folder, ignored, sizeof ignored))
      return;
  }
}

static void check_kept(const char *folder)
{
  char kept[64] = "";
  bool all = all_kept(folder, kept, sizeof kept);
  if (!all)
    printf("FAIL tune: kept of both shapes and the head: %s\n", kept);
  n_passed += all;
  n_failed += !all;
}

/* As a daemon does it: nothing is measured before it serves, then one thing a call, with steps between, and
 * what was captured is captured anew when its algorithms have changed. Then a captured step gives the bits of
 * one that is not. */

static td_tuning begin_tuning(td_compiled *compiled, const char *folder)
{
  td_error err;
  td_tuning begun;
  die(be->ops->tune_begin(be, compiled, folder, &begun, &err), &err, "tune_begin");
  return begun;
}

static void capture_tuned(td_compiled *compiled, uint32_t least, uint32_t most)
{
  td_error err;
  td_capture ignored;
  for (uint32_t n = 8; n <= MAX_ROWS; n += 8)
    if (n >= least && n <= most)
      die(watch_capture(be, compiled, n, &ignored, &err), &err, "capture");
}

static float *decode_tuned(const tuned *t, td_compiled *compiled, uint32_t n, bool captured)
{
  static const int32_t pages[MAX_CONTEXT / 16];
  plan_reset(16);
  for (uint32_t i = 0; i < n; i++)
    plan_add_row(1, 1, pages);
  expect(run_step(compiled) == captured, "tune: a captured step is launched");
  return fetch(t->logits, (size_t)n * 1000, true);
}

static void compare_tuned(const tuned *t, td_compiled *captured, td_compiled *plain, uint32_t n)
{
  char what[100];
  float *replayed = decode_tuned(t, captured, n, true), *queued = decode_tuned(t, plain, n, false);
  bool same = memcmp(replayed, queued, (size_t)n * 1000 * sizeof *queued) == 0;
  for (uint32_t i = 0; i < n * 1000; i++)
    same &= isfinite(queued[i]) && queued[i] != 0;
  snprintf(what, sizeof what, "tune: a step of %u captured anew = queued", n);
  expect(same, what);
  free(replayed), free(queued);
}

static void test_tune_in_pieces(const tuned *t, const char *folder)
{
  enum { STEP_EACH = 37 }; /* calls: more than any comparison takes, or none would be finished */
  static const uint32_t ns[] = {9, 24, 33, 64, 129, 300, 777};
  td_error err;
  td_compiled *captured = compile_tuned(t), *plain = compile_tuned(t);
  td_tuning now = begin_tuning(captured, folder);
  uint32_t n_calls = 0, n_changed = 0;
  uint64_t longest_us = 0, begin_us = td_clock_us();
  expect(now.n_measured == 0 && now.n_known == 0 && now.n_all >= 60 && !now.is_done,
         "tune: a start measures nothing");
  capture_tuned(captured, 1, MAX_ROWS);
  compare_tuned(t, captured, plain, 64);
  for (; !now.is_done && n_calls < 100000; n_calls++) {
    uint64_t call_us = td_clock_us();
    die(be->ops->tune(be, captured, &now, &err), &err, "tune");
    call_us = td_clock_us() - call_us;
    longest_us = call_us > longest_us ? call_us : longest_us;
    n_changed += now.changed_most > 0;
    if (now.changed_most > 0) {
      expect(now.changed_least > 0 && now.changed_least <= now.changed_most, "tune: which rows have changed");
      capture_tuned(captured, now.changed_least, now.changed_most);
    }
    if (n_calls % STEP_EACH == 0)
      test_linear(ns[n_calls / STEP_EACH % 7], 576, (const uint32_t[]){576, 64, 64}, 3, false, false);
  }
  printf("tune: %u of %u algorithms in %u calls, the longest %.1f ms, %.2f s with steps between; %u not the "
         "first; %u buckets changed\n",
         now.n_known, now.n_all, n_calls, (double)longest_us / 1e3, (double)(td_clock_us() - begin_us) / 1e6,
         now.n_not_first, n_changed);
  expect(now.is_done && now.n_known == now.n_all && now.n_measured == now.n_all, "tune: all is measured");
  expect(now.n_not_first == 0 || n_changed > 0, "tune: changes are told");
  for (uint32_t n = 8; n <= MAX_ROWS; n += 8)
    compare_tuned(t, captured, plain, n);
  be->ops->discard(be, captured);
  now = begin_tuning(plain, folder);
  expect(now.is_done && now.n_known == now.n_all && now.n_all > 0, "tune: it is kept");
  be->ops->discard(be, plain);
}

static bool is_written(const char *folder)
{
  char command[300];
  snprintf(command, sizeof command, "ls %s/products* >/dev/null 2>&1", folder);
  return system(command) == 0;
}

/* Measuring that ends inside a bucket, right behind a decision that changed an algorithm, as where tune_ms is
 * over: the change is told and written, and what was captured with the one before is captured anew. */
static void test_tune_ends_early(const tuned *t, const char *folder)
{
  td_error err;
  td_compiled *captured = compile_tuned(t), *plain = compile_tuned(t);
  td_tuning now = begin_tuning(captured, folder);
  capture_tuned(captured, 1, MAX_ROWS);
  while (!now.is_done && (now.n_not_first == 0 || now.changed_most > 0))
    die(be->ops->tune(be, captured, &now, &err), &err, "tune");
  printf("tune: ended early with %u of %u algorithms, %u not the first\n", now.n_known, now.n_all,
         now.n_not_first);
  if (!now.is_done) { /* else every guess is the fastest here, and nothing changes */
    be->ops->tune_end(be, captured, &now);
    expect(now.changed_least > 0 && now.changed_least <= now.changed_most,
           "tune: an early end tells changes");
    expect(is_written(folder), "tune: an early end writes what is decided");
    capture_tuned(captured, now.changed_least, now.changed_most);
  }
  expect(now.is_done, "tune: no more is measured after the end");
  for (uint32_t n = 8; n <= MAX_ROWS; n += 8)
    compare_tuned(t, captured, plain, n);
  uint32_t n_known = now.n_known;
  now = begin_tuning(plain, folder);
  expect(now.n_known == n_known, "tune: what was decided before an early end is kept");
  be->ops->discard(be, captured);
  be->ops->discard(be, plain);
}

/* All at once, of a time in which something is decided and not all: written when it is over, not only when
 * the program goes. */
static void test_tune_of_short_time(const tuned *t, const char *folder)
{
  td_error err;
  td_tuning now = {0};
  for (uint32_t ms = 1; now.n_measured == 0 && ms < 100000; ms *= 2) {
    td_compiled *compiled = compile_tuned(t);
    die(td_backend_tune(be, compiled, folder, ms, &now, &err), &err, "tune");
    expect(is_written(folder) == (now.n_measured > 0), "tune: written when its time is over");
    be->ops->discard(be, compiled);
  }
  expect(now.n_measured > 0, "tune: something is measured");
}

/* With batch_invariant one algorithm serves all rows. */
static void test_no_tuning(void)
{
  td_weight *w = device_weight(&(td_weight_part){.dtype = TD_BF16, .n_rows = 704, .seed = 5}, 1, 576);
  td_op op = linear_op(w, device_alloc((size_t)MAX_TOKENS * 576 * 4),
                       device_alloc((size_t)MAX_TOKENS * 704 * 4), 576, 704);
  td_compiled *compiled = compile_ops(&op, 1);
  if (be->ops->tune_begin) {
    td_tuning now = begin_tuning(compiled, "");
    expect(now.is_done && now.n_all == 0, "batch rule: nothing is tuned");
  }
  be->ops->discard(be, compiled);
}

static void test_tune(bool small)
{
  static const uint32_t ns[] = {8, 9, 16, 17, 40, 63, 64, 100, 129, 256, 300, 513, 777, 1000};
  char folder[] = "/tmp/test_ops_XXXXXX", pieces[] = "/tmp/test_ops_XXXXXX", early[] = "/tmp/test_ops_XXXXXX",
       shortly[] = "/tmp/test_ops_XXXXXX", command[200];
  td_weight_part table = {.dtype = TD_BF16, .n_rows = MAX_ROWS, .seed = 8},
                 wide = {.dtype = TD_BF16, .n_rows = 704, .seed = 5},
                 back = {.dtype = TD_BF16, .n_rows = 576, .seed = 7},
                 head = {.dtype = TD_BF16, .n_rows = 1000, .seed = 6};
  tuned t = {device_weight(&table, 1, 576),
             device_weight(&wide, 1, 576),
             device_weight(&back, 1, 704),
             device_weight(&head, 1, 576),
             device_alloc((size_t)MAX_TOKENS * 576 * 4),
             device_alloc((size_t)MAX_TOKENS * 704 * 4),
             device_alloc((size_t)MAX_ROWS * 1000 * 4)};
  if (!be->ops->tune || !mkdtemp(folder) || !mkdtemp(pieces) || !mkdtemp(early) || !mkdtemp(shortly))
    return;
  for (int round = 0; round < 4; round++) {
    if (round == 2)
      damage_files(folder);
    if (round == 0 || round == 3) /* begun, finished, measured anew, only read */
      tune(&t, folder, round == 0 ? 50 : 0);
    else
      tune_until_kept(&t, folder);
    if (round > 0)
      check_kept(folder);
    for (size_t i = 0; i < (small ? 6 : 14); i++)
      test_linear(ns[i], 576, (const uint32_t[]){576, 64, 64}, 3, false, false);
    test_linear(33, 576, (const uint32_t[]){1000}, 1, false, true);
  }
  tune(&t, "/proc/nowhere", 0);
  tune(&t, "", 0);
  test_tune_in_pieces(&t, pieces);
  test_tune_ends_early(&t, early);
  test_tune_of_short_time(&t, shortly);
  snprintf(command, sizeof command, "rm -r %s %s %s %s", folder, pieces, early, shortly);
  if (system(command) != 0)
    printf("FAIL tune: %s\n", command), n_failed++;
}

/* ---- the batch rule: a row's bits do not depend on what else is in its step ---- */

static void test_linear_alone(uint32_t n_in, uint32_t n_out, bool f32, bool add)
{
  enum { MOST = 300 };
  static const uint32_t ns[] = {MOST, 1, 2, 5, 8, 9, 16, 33, 64, 100, 257};
  char what[100];
  float *x = random_values((size_t)MOST * n_in, 1), *w = random_values((size_t)n_out * n_in, 1), *all = NULL;
  float *held = random_values((size_t)MOST * n_out, 30);
  td_weight *weight = device_weight(&(td_weight_part){.dtype = TD_F32, .data = w, .n_rows = n_out}, 1, n_in);
  for (size_t i = 0; i < sizeof ns / sizeof *ns; i++) {
    uint32_t n = ns[i], first = (MOST - n) / 2;
    plan_tokens_only(n);
    td_devptr out =
        f32 ? device_alloc((size_t)n * n_out * 4) : activations(held + (size_t)first * n_out, n, n_out);
    td_op op = linear_op(weight, activations(x + (size_t)first * n_in, n, n_in), out, n_in, n_out);
    op.linear.out_f32 = f32;
    op.linear.add = add;
    run_ops(&op, 1);
    float *got = fetch(out, (size_t)n * n_out, f32);
    snprintf(what, sizeof what, "batch rule: linear n=%u n_in=%u n_out=%u add=%d", n, n_in, n_out, add);
    if (all) {
      expect(memcmp(got, all + (size_t)first * n_out, (size_t)n * n_out * sizeof *got) == 0, what);
      free(got);
    } else {
      all = got;
    }
  }
  free(x), free(w), free(held), free(all);
}

/* ---- sampling ---- */

/* One row of logits per plan row; the same logits for all rows, seeds and positions differ. */
static void sample_rows(const float *logits, uint32_t vocab, const td_sampling *s, uint32_t n, uint32_t round)
{
  static const int32_t pages[MAX_CONTEXT / 16];
  float *all = malloc((size_t)n * vocab * sizeof *all);
  plan_reset(16);
  for (uint32_t i = 0; i < n; i++) {
    td_sampling one = *s;
    one.seed += i * 7919;
    memcpy(all + (size_t)i * vocab, logits, vocab * sizeof *all);
    plan_add_row(1, 1 + round, pages);
    be->ops->set_sampling(be, i, &one);
  }
  td_devptr dl = device_f32(all, (size_t)n * vocab);
  run_ops(&(td_op){.kind = TD_OP_SAMPLE, .extent = TD_EXTENT_LOGITS, .sample = {dl, vocab}}, 1);
  free(all);
}

static void test_sampling(void)
{
  enum { V = 1000, ROUNDS = 100 };
  float *x = random_values(V, 2);
  td_sampling greedy = {.temperature = 0, .top_p = 1, .seed = 1};
  uint32_t best = 0;
  x[700] = x[300] = 9;
  for (uint32_t i = 0; i < V; i++)
    best = x[i] > x[best] ? i : best;
  sample_rows(x, V, &greedy, 5, 0);
  expect(sampled[0] == 300 && sampled[4] == 300 && best == 300, "greedy takes the lowest id among equals");
  x[10] = NAN;
  sample_rows(x, V, &greedy, 1, 0);
  expect(sampled[0] == SAMPLED_NAN, "NaN is told");
  x[10] = 0;
  x[700] = x[300] = 3;
  /* 6400 draws against the softmax: every bucket of mass 1/16 within 6 sigma */
  td_sampling t1 = {.temperature = 0.8f, .top_p = 1, .seed = 99};
  double total = 0, *p = malloc(V * sizeof *p);
  for (uint32_t i = 0; i < V; i++)
    total += p[i] = exp(x[i] / (double)t1.temperature);
  uint32_t hits[V] = {0};
  for (uint32_t r = 0; r < ROUNDS; r++) {
    sample_rows(x, V, &t1, MAX_ROWS, r);
    for (uint32_t i = 0; i < MAX_ROWS; i++)
      if (sampled[i] >= 0 && sampled[i] < V)
        hits[sampled[i]]++;
  }
  double mass = 0, n = ROUNDS * MAX_ROWS, worst = 0;
  uint32_t seen = 0;
  for (uint32_t i = 0; i < V; i++) {
    mass += p[i] / total;
    seen += hits[i];
    if (mass > 1.0 / 16 || i == V - 1) {
      worst = fmax(worst, fabs(seen - n * mass) / sqrt(n * mass * (1 - mass) + 1));
      mass = 0;
      seen = 0;
    }
  }
  expect(worst < 5, "draws follow the softmax");
  /* support of top-k, top-p and min-p */
  for (int mode = 0; mode < 3; mode++) {
    td_sampling s = {.temperature = 1,
                     .top_p = mode == 1 ? 0.3f : 1,
                     .top_k = mode == 0 ? 7 : 0,
                     .min_p = mode == 2 ? 0.3f : 0,
                     .seed = 5};
    total = 0;
    for (uint32_t i = 0; i < V; i++)
      total += p[i] = exp(x[i]);
    bool ok = true;
    uint32_t kept[V] = {0};
    for (uint32_t r = 0; r < 8; r++) {
      sample_rows(x, V, &s, MAX_ROWS, r);
      for (uint32_t i = 0; i < MAX_ROWS; i++) {
        double above = 0, max = 0;
        uint32_t better = 0, id = (uint32_t)sampled[i];
        for (uint32_t k = 0; k < V; k++) {
          max = fmax(max, p[k]);
          if (x[k] > x[id]) {
            above += p[k];
            better++;
          }
        }
        kept[id]++;
        ok &= mode == 0 ? better < 7 : mode == 1 ? above < 0.3 * total : p[id] >= 0.299 * max;
      }
    }
    uint32_t distinct = 0;
    for (uint32_t k = 0; k < V; k++)
      distinct += kept[k] > 0;
    expect(ok && distinct > 1, mode == 0 ? "top-k support" : mode == 1 ? "top-p support" : "min-p support");
  }
  free(x), free(p);
}

/* ---- attention ---- */

static void open_backend(const char *name, const td_backend_config *config)
{
  td_error err;
  watch_policy(config->attention_policy ? config->attention_policy->name : "none");
  die(td_backend_create(name, config, &be, &err), &err, "backend");
  eps_out = be->activation_bytes == 2 ? 1.0 / 256 : 1e-5;
}

static bool is_cpu(void) { return strcmp(be->ops->name, "cpu") == 0; }

static const heads shapes[] = {
    {9, 3, 64, 16, 0, TD_ROPE_PAIRS, false, 0},      {32, 8, 128, 16, 0, TD_ROPE_HALVES, false, 0},
    {4, 4, 96, 32, 0, TD_ROPE_HALVES, false, 0},     {14, 2, 64, 64, 0, TD_ROPE_HALVES, false, 0},
    {16, 8, 128, 16, 0, TD_ROPE_HALVES, true, 0},    {8, 1, 256, 16, 0, TD_ROPE_HALVES, false, 0},
    {8, 2, 128, 16, 100, TD_ROPE_HALVES, false, 0},  {16, 1, 64, 16, 0, TD_ROPE_HALVES, false, 0},
    {32, 1, 64, 16, 33, TD_ROPE_PAIRS, false, 0},    {28, 4, 128, 32, 0, TD_ROPE_HALVES, false, 0},
    {4, 4, 128, 64, 300, TD_ROPE_HALVES, false, 0},  {16, 4, 256, 64, 0, TD_ROPE_HALVES, false, 0},
    {4, 4, 128, 16, 1500, TD_ROPE_HALVES, false, 0}, {5, 5, 96, 16, 0, TD_ROPE_HALVES, false, 0},
    {12, 2, 96, 16, 0, TD_ROPE_PAIRS, false, 0},     {6, 2, 96, 64, 0, TD_ROPE_HALVES, true, 0},
    {16, 1, 96, 32, 40, TD_ROPE_HALVES, false, 0},   {20, 1, 96, 16, 0, TD_ROPE_HALVES, false, 0},
    {12, 1, 128, 16, 0, TD_ROPE_HALVES, false, 0},   {20, 2, 96, 16, 0, TD_ROPE_HALVES, false, 0},
    {24, 8, 128, 16, 0, TD_ROPE_HALVES, false, 96},  {4, 2, 64, 16, 0, TD_ROPE_PAIRS, true, 32},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };
static uint32_t step_s = WATCH_STEP_S;
static uint32_t only_dim; /* of the heads that are tested; 0: all */
static bool is_wanted(uint32_t head_dim) { return only_dim == 0 || head_dim == only_dim; }

/* Of the tests of plans and captures, in small amounts. */
static bool is_in_small(size_t i) { return i == 1 || i == 6 || i == 8 || i == 14; }

static const uint32_t decodes[][2] = {{1, 1},  {1, 2},  {1, 15}, {1, 16},  {1, 17},
                                      {1, 63}, {1, 64}, {1, 65}, {1, 300}, {1, 777}};
static const uint32_t mixed[][2] = {{1, 500}, {1, 33}, {2, 90}, {100, 100}, {5, 700}, {60, 61}};
static const uint32_t split[][2] = {{1, 3500}, {1, 2000}, {1, 70}};

/* More decodes than the blocks of any device's that run at once, for so many kv heads: on Hopper a warp takes
 * a short one alone (kernels/attention/work_list.h). The last but one has so many that those of 320 tokens
 * are short, the last groups whose warps add what rows share. */
static const heads many_heads[] = {
    {32, 32, 128, 16, 0, TD_ROPE_HALVES, false, 0},  {64, 32, 64, 32, 0, TD_ROPE_PAIRS, false, 0},
    {32, 32, 96, 16, 0, TD_ROPE_HALVES, false, 0},   {48, 16, 256, 16, 0, TD_ROPE_HALVES, false, 0},
    {64, 32, 64, 64, 40, TD_ROPE_HALVES, false, 0},  {64, 64, 64, 16, 0, TD_ROPE_HALVES, false, 0},
    {160, 32, 128, 16, 0, TD_ROPE_HALVES, false, 0},
};
enum { N_MANY_HEADS = sizeof many_heads / sizeof *many_heads };

/* Of long rows, 67 shares each on an H200: more than a warp takes of a slice at once. */
static const heads one_kv_head = {8, 1, 128, 16, 0, TD_ROPE_HALVES, false, 0};
/* Of two tokens: more slices than four for each of the blocks that are sure to run at once. */
static const heads many_slices = {64, 8, 128, 16, 0, TD_ROPE_HALVES, false, 0};

/* Prefixes in pieces of more pages than are looked up at once, one that all rows share, and five and pairs of
 * more pieces than blocks do at once (kernels/attention/work_list.c: of 64 kv heads an H200 does 6, of 32
 * 12), long and short ones in turn, some with a short tile at the end. */
static const struct {
  heads heads;
  uint32_t tokens[3];
} many_pieces[] = {
    {{32, 32, 128, 16, 0, TD_ROPE_HALVES, false, 0}, {7984, 240, 48}},
    {{64, 64, 96, 16, 0, TD_ROPE_HALVES, false, 0}, {48, 1536, 240}},
    {{64, 64, 64, 16, 0, TD_ROPE_PAIRS, false, 0}, {40, 1336, 640}},
    {{64, 64, 128, 16, 0, TD_ROPE_HALVES, false, 0}, {48, 1536, 240}},
    {{64, 32, 64, 64, 0, TD_ROPE_HALVES, false, 0}, {64, 1536, 640}},
};
/* Rows that share a prefix and are cut into so many shares that several blocks add them up, by the two ways
 * to add what is shared (groups to 4, and above). */
static const heads long_own[] = {{4, 1, 128, 16, 0, TD_ROPE_HALVES, false, 0},
                                 {8, 1, 128, 16, 0, TD_ROPE_HALVES, false, 0},
                                 {12, 1, 96, 32, 0, TD_ROPE_HALVES, false, 0}};
enum { N_LONG_OWN = sizeof long_own / sizeof *long_own };
/* Whose KV is more than the L2 cache holds, so that prefill goes through some heads after others. */
static const heads many_kv_heads = {32, 32, 128, 16, 0, TD_ROPE_HALVES, false, 0};
static const heads many_captured = {64, 64, 128, 16, 0, TD_ROPE_HALVES, false, 0};

/* Two stores at once; the second one's layers have a window, so that its rows share nothing where the first
 * one's do. */
static const heads store_pairs[][2] = {
    {{32, 8, 128, 16, 0, TD_ROPE_HALVES, false, 0}, {8, 2, 64, 16, 300, TD_ROPE_HALVES, false, 0}},
    {{8, 1, 128, 32, 0, TD_ROPE_HALVES, false, 0}, {8, 8, 256, 32, 0, TD_ROPE_HALVES, false, 0}},
    {{12, 4, 96, 16, 0, TD_ROPE_PAIRS, false, 0}, {12, 4, 96, 16, 0, TD_ROPE_PAIRS, false, 0}},
};

static void test_two_stores(bool small)
{
  for (size_t i = 0; i < sizeof store_pairs / sizeof *store_pairs; i++)
    if (is_wanted(store_pairs[i][0].head_dim) && (!small || i == 0)) {
      test_attention_of_two_stores(&store_pairs[i][0], &store_pairs[i][1], false);
      test_attention_of_two_stores(&store_pairs[i][1], &store_pairs[i][0], true);
    }
}

static void test_many_short(const heads *h, bool small)
{
  static const uint32_t lens[] = {1, 2, 31, 32, 33, 63, 64, 65, 16, 17, 256, 320, 321, 48, 700, 100};
  uint32_t rows[MAX_ROWS][2], n = small ? 24 : 60;
  for (uint32_t r = 0; r < n; r++) {
    rows[r][1] = lens[r % 16];
    rows[r][0] = r == 40 ? 50 : r % 7 == 3 && rows[r][1] > 3 ? 1 + r % 3 : 1;
    rows[r][1] += r == 40 ? 50 : 0;
  }
  test_attention(h, (const uint32_t(*)[2])rows, n);
}

static void expect_no_plans(const heads *h)
{
  td_error err;
  td_kv_spec shape = {.n_pages = 1,
                      .page_tokens = h->page_tokens,
                      .n_groups = 1,
                      .groups = {{.dtype = be->kv_dtype,
                                  .n_layers = 1,
                                  .n_kv_heads = h->n_kv_heads,
                                  .head_dim = h->head_dim,
                                  .n_heads = h->n_heads,
                                  .window_tokens = h->window}}};
  expect(be->ops->kv_check(be, &shape, &err) == TD_ERR_UNSUPPORTED,
         "plans are refused where no kernel does them");
}

/* Ways to decide what decodes share, by name in the command line. */
enum { N_POLICIES = 4 };
static const td_attention_policy *policies[N_POLICIES];

static void find_policies(void)
{
  static const char *const names[N_POLICIES] = {"always", "pat", "persistentkv", "flashdecode"};
  for (uint32_t i = 0; i < N_POLICIES; i++)
    if (!td_attention_policy_of(names[i], &policies[i]))
      exit(2);
}

/* Heads that have no plans are done as a daemon does them: by prefill tiles, or every row by itself. */
static bool has_plans(const heads *h) { return h->head_dim != 256 && h->n_heads / h->n_kv_heads <= 16; }

/* Decodes by plans of one policy (a CPU does not look at it), with the first one also of heads that have
 * none. */
static void test_plans(const char *name, const td_backend_config *with, const td_attention_policy *policy,
                       test_size size)
{
  bool first = policy == policies[0];
  static const uint32_t trees[][3] = {{1024, 256, 64}, {300, 40, 20}, {160, 160, 160}};
  td_backend_config config = *with;
  for (size_t i = 0; i < N_SHAPES; i++) {
    bool has = has_plans(&shapes[i]) || first;
    config.attention_policy = has_plans(&shapes[i]) ? policy : NULL;
    if ((size != TEST_ALL && !is_in_small(i)) || !has || !is_wanted(shapes[i].head_dim))
      continue;
    open_backend(name, &config);
    if (!is_cpu() && !is_hopper() && has_plans(&shapes[i])) {
      expect_no_plans(&shapes[i]);
      be->ops->destroy(be);
      return;
    }
    for (size_t k = size == TEST_TINY ? 2 : 0; k < (size == TEST_SMALL ? 2 : 3); k++)
      test_attention_shared(&shapes[i],
                            size == TEST_TINY    ? 6
                            : size == TEST_SMALL ? 12
                            : i == 1             ? 48
                                                 : 20,
                            trees[k]);
    test_attention_shared_values(&shapes[i], 6, trees[2]);
    if (shapes[i].window == 0)
      test_attention_shared_nan(&shapes[i]);
    if (!is_cpu()) {
      test_attention(&shapes[i], decodes, size == TEST_TINY ? 3 : 10);
      test_attention(&shapes[i], mixed, size == TEST_ALL ? 6 : 3);
      test_attention(&shapes[i], split, size == TEST_ALL ? 3 : 2);
      if (shapes[i].window == 0 && !shapes[i].norm && size != TEST_TINY)
        test_attention_passes_nan_on(&shapes[i]);
      if (!shapes[i].norm)
        test_attention_captured(&shapes[i]);
    }
    be->ops->destroy(be);
  }
  for (size_t i = 0; i < N_MANY_HEADS && first && size == TEST_ALL; i++) {
    if (!is_wanted(many_heads[i].head_dim))
      continue;
    config.attention_policy = has_plans(&many_heads[i]) ? policy : NULL;
    open_backend(name, &config);
    if (!is_cpu()) {
      test_attention_shared(&many_heads[i], 36, (const uint32_t[]){512, 256, 0});
      test_attention_captured_short(&many_heads[i]);
    }
    be->ops->destroy(be);
  }
  config.attention_policy = policy;
  for (size_t i = 0; i < sizeof many_pieces / sizeof *many_pieces && first && size == TEST_ALL; i++) {
    if (!is_wanted(many_pieces[i].heads.head_dim))
      continue;
    open_backend(name, &config);
    if (!is_cpu())
      test_attention_shared(&many_pieces[i].heads, 24, many_pieces[i].tokens);
    be->ops->destroy(be);
  }
  if (first && size == TEST_ALL) { /* with a policy no store may have heads without plans */
    open_backend(name, &config);
    if (!is_cpu() && is_wanted(store_pairs[0][0].head_dim)) {
      test_attention_of_two_stores(&store_pairs[0][0], &store_pairs[0][1], false);
      test_attention_of_two_stores(&store_pairs[2][0], &store_pairs[0][1], true);
    }
    be->ops->destroy(be);
  }
  for (size_t i = 0; i < N_LONG_OWN && first && size == TEST_ALL; i++)
    if (is_wanted(long_own[i].head_dim)) {
      open_backend(name, &config);
      test_attention_shared(&long_own[i], 3, (const uint32_t[]){2048, 3000, 3000});
      be->ops->destroy(be);
    }
  if (first && size == TEST_ALL && is_wanted(many_captured.head_dim)) {
    open_backend(name, &config);
    test_attention_captured_long(&many_captured);
    be->ops->destroy(be);
  }
}

/* ---- all of it ---- */

static void test_products(bool small, bool tiny)
{
  static const uint32_t widths[] = {64, 576, 1536, 4096, 8192},
                        ns[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 64, 130, 300};
  for (size_t i = 0; i < (tiny ? 1 : small ? 2 : 5); i++) {
    test_rmsnorm(1, widths[i]);
    for (uint32_t form = 0; form < 5; form++)
      test_rmsnorm_forms(37, widths[i], form & 1, form & 2, form == 0 || form == 4);
    test_rmsnorm(37, widths[i]);
    test_swiglu(5, widths[i]);
  }
  test_rmsnorm(300, 8192); /* more than there are blocks at once */
  test_rmsnorm(300, 9000);
  test_dummy(33, 64);
  test_embed(5, 40, 64);
  if (!tiny) {
    test_dummy(1000, 576);
    test_embed(1, 1000, 576);
    test_embed(small ? 300 : 1000, 700, 4096);
  }
  for (size_t i = 0; i < (small ? 9 : 13); i += tiny ? 4 : 1) {
    test_linear(ns[i], 576, (const uint32_t[]){576, 192, 192}, 3, false, false);
    test_linear(ns[i], 64, (const uint32_t[]){104, 24, 24}, 3, true, false);
    if (small)
      continue;
    test_linear(ns[i], 1536, (const uint32_t[]){576}, 1, false, false);
    test_linear(ns[i], 896, (const uint32_t[]){896, 128, 128}, 3, true, false);
    test_linear(ns[i], 2048, (const uint32_t[]){1000}, 1, false, true);
    test_linear(ns[i], 4096, (const uint32_t[]){512, 512}, 2, true, false);
  }
  test_linear(8, 7232, (const uint32_t[]){8}, 1, false,
              false); /* one tile of more parts than its block has slots */
  if (!tiny) {
    test_few_rows(small);
    test_tune(small);
  }
}

static void test_attentions(bool small, bool tiny)
{
  static const uint32_t chunks[][2] = {{1, 1}, {17, 17}, {64, 64}, {65, 65}, {50, 333}, {128, 400}};
  static const uint32_t long_chunks[][2] = {{40, 3300}, {33, 1025}, {7, 1290}};
  for (size_t i = 0; i < N_SHAPES; i++) {
    if ((small && i % 3) || !is_wanted(shapes[i].head_dim))
      continue;
    test_attention(&shapes[i], decodes, tiny ? 3 : small ? 6 : 10);
    if (!tiny)
      test_attention(&shapes[i], chunks, small ? 3 : 6);
    test_attention(&shapes[i], mixed, small ? 3 : 6);
    if (shapes[i].window == 0 && !shapes[i].norm && !tiny)
      test_attention_passes_nan_on(&shapes[i]);
    if (!tiny)
      test_attention_again(&shapes[i], 12, 2, 4 * 3 * 128 + 1);
    if (!small) {
      test_attention(&shapes[i], split, 3);
      if (be->activation_bytes == 2) /* those of a GPU have borders there */
        test_attention(&shapes[i], long_chunks, 3);
    }
  }
  if (!tiny)
    test_two_stores(small);
  if (is_wanted(one_kv_head.head_dim) && !tiny)
    test_attention_again(&one_kv_head, 2, 1, 66 * 128 + 1);
  if (is_wanted(many_kv_heads.head_dim) && !small && !is_cpu())
    test_attention(&many_kv_heads, (const uint32_t[][2]){{200, 8600}, {40, 300}}, 2);
  if (is_wanted(many_slices.head_dim) && !small)
    test_attention(&many_slices, (const uint32_t[][2]){{2, 8600}}, 1);
  for (size_t i = 0; i < (small ? 1 : N_MANY_HEADS) && !is_cpu(); i++) /* a CPU does not know short ones */
    if (is_wanted(many_heads[i].head_dim))
      test_many_short(&many_heads[i], small);
}

/* One backend each: nothing that another left behind is there. */
static void test_recordings(const char *name, const td_backend_config *config, bool small, bool tiny)
{
  static const decoder_shape decoders[] = {
      {256, 4, 2, 64, 512, 2300, 16, 0, TD_ROPE_HALVES, false, false},
      {576, 6, 6, 96, 1536, 1031, 16, 0, TD_ROPE_HALVES, false, false},
      {576, 9, 3, 64, 1536, 1031, 16, 0, TD_ROPE_PAIRS, false, false},
      {1024, 8, 2, 128, 2816, 5000, 32, 0, TD_ROPE_HALVES, true, false},
      {1024, 32, 8, 128, 8448, 2000, 16, 200, TD_ROPE_HALVES, false, false},
      {512, 16, 1, 128, 1344, 8500, 64, 0, TD_ROPE_HALVES, true, false},
      {512, 16, 1, 96, 1344, 3000, 64, 150, TD_ROPE_PAIRS, true, false},
      {768, 20, 4, 96, 2048, 1000, 32, 0, TD_ROPE_HALVES, false, false},
      {1536, 16, 16, 96, 4480, 4700, 16, 0, TD_ROPE_HALVES, false,
       false}, /* several tiles of 16 and of 24 rows a block, of more parts than slots */
      {1024, 16, 8, 128, 3072, 2000, 16, 0, TD_ROPE_HALVES, false, true},
      {512, 8, 2, 64, 1536, 1200, 32, 100, TD_ROPE_PAIRS, true, true},
  };
  for (size_t i = 0; i < N_SHAPES; i++) {
    if (shapes[i].norm || (small && !is_in_small(i)) || !is_wanted(shapes[i].head_dim))
      continue;
    open_backend(name, config);
    test_attention_captured(&shapes[i]);
    be->ops->destroy(be);
  }
  for (size_t i = 0; i < N_MANY_HEADS && !small; i++)
    if (is_wanted(many_heads[i].head_dim)) {
      open_backend(name, config);
      test_attention_captured_short(&many_heads[i]);
      be->ops->destroy(be);
    }
  int n = 0, n_most = tiny ? 1 : small ? 5 : 11;
  for (size_t i = 0; i < sizeof decoders / sizeof *decoders && n < n_most; i++)
    if (is_wanted(decoders[i].head_dim)) {
      test_decoder(name, config, &decoders[i], false);
      if (decoders[i].window > 0)
        test_decoder(name, config, &decoders[i], true);
      n++;
    }
}

static void test_alone(const char *name, td_backend_config config, bool small, bool tiny)
{
  config.batch_invariant = true;
  open_backend(name, &config);
  if (only_dim == 0) {
    test_linear_alone(576, 960, false, false);
    test_linear_alone(576, 960, false, true);
    if (!tiny)
      test_linear_alone(1536, 1000, true, false);
    if (!small)
      test_linear_alone(4096, 6144, false, true);
    test_no_tuning();
    test_no_glu();
  }
  for (size_t i = tiny ? 1 : 0; i < N_SHAPES; i++)
    if (!shapes[i].norm && (!small || i < 3) && is_wanted(shapes[i].head_dim))
      test_attention_alone(&shapes[i], small ? 300 : 700);
  be->ops->destroy(be);
}

static void test_cuts_of(const char *name, td_backend_config config, const heads *h, test_size size)
{
  double *kept[CUTS_BATCHES] = {NULL};
  for (size_t k = 0; k == 0 || td_attention_cuts[k - 1]; k++) {
    config.attention_policy = k > 0 ? td_attention_cuts[k - 1] : NULL;
    open_backend(name, &config);
    bool serves = is_cpu() || is_hopper();
    if (serves && (!is_cpu() || k == 0))
      test_cuts(h, config.attention_policy, size == TEST_TINY || is_cpu(), kept);
    be->ops->destroy(be);
  }
  for (uint32_t i = 0; i < CUTS_BATCHES; i++)
    free(kept[i]);
}

/* How prefill is cut is fixed, or the planner's; a CPU cuts nothing. Small amounts have heads of 64 elements
 * too, which are colocated. */
static void test_all_cuts(const char *name, const td_backend_config *config, test_size size)
{
  for (size_t i = 0; i < N_SHAPES; i++)
    if (has_plans(&shapes[i]) && is_wanted(shapes[i].head_dim) &&
        (size == TEST_ALL || is_in_small(i) || i == 0))
      test_cuts_of(name, *config, &shapes[i], size);
}

/* ---- sections ---- */

enum { PRODUCTS, ATTENTION, CUTS, PLANS, CAPTURES, ALONE, STEPS, SAMPLING, TIMES, N_SECTIONS };
static const char *const sections[N_SECTIONS] = {"products", "attention", "cuts",     "plans", "captures",
                                                 "alone",    "steps",     "sampling", "times"};

static void run_section(int section, const char *name, const td_backend_config *config, test_size size,
                        const td_attention_policy *only_policy)
{
  bool small = size != TEST_ALL, tiny = size == TEST_TINY;
  watch_case(rng_now(), "none yet of %s", sections[section]);
  if (section == PLANS) {
    for (uint32_t i = 0; i < (strcmp(name, "cpu") == 0 ? 1 : N_POLICIES); i++)
      if (!only_policy || policies[i] == only_policy)
        test_plans(name, config, policies[i], size);
  } else if (section == CUTS) {
    test_all_cuts(name, config, size);
  } else if (section == CAPTURES) {
    test_recordings(name, config, small, tiny);
  } else if (section == ALONE) {
    test_alone(name, *config, small, tiny);
  } else if (section == ATTENTION) {
    open_backend(name, config);
    test_attentions(small, tiny);
    be->ops->destroy(be);
  } else if (only_dim != 0) { /* the others have no heads */
    return;
  } else if (section == PRODUCTS) {
    open_backend(name, config);
    test_products(small, tiny);
    test_glus(size);
    be->ops->destroy(be);
    forget_products();
  } else if (section == STEPS) {
    open_backend(name, config);
    test_steps();
    be->ops->destroy(be);
  } else if (section == SAMPLING) {
    open_backend(name, config);
    if (!tiny)
      test_sampling();
    be->ops->destroy(be);
    test_sampled_tokens(name, size, &n_passed, &n_failed);
    test_special_tokens(name, size, &n_passed, &n_failed);
  } else if (!small) {
    time_sampling(name);
    time_special_rows(name);
  }
}

/* Whoever waits for all of it sees where the time goes. */
static void tell(int section, const struct timespec *begin)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  printf("%s: %d passed, %d failed by now, %.1f s\n", sections[section], n_passed, n_failed,
         difftime(now.tv_sec, begin->tv_sec) + (double)(now.tv_nsec - begin->tv_nsec) * 1e-9);
}

static const char usage[] =
    "usage: test_ops [BACKEND [all | small | tiny [WORD...]]]\n"
    "  WORD: a section (products attention cuts plans captures alone steps sampling times), "
    "all of them where none is named;\n"
    "        always, pat, persistentkv, flashdecode: plans, of this policy only; "
    "dim=N: only heads of so many elements;\n"
    "        step_s=N: a step of more seconds (120) is told and ends all, with exit code 124\n";

/* Returns whether it is a word. */
static bool take_word(const char *word, bool wanted[N_SECTIONS], const td_attention_policy **only_policy)
{
  if (strncmp(word, "dim=", 4) == 0)
    return (only_dim = (uint32_t)atoi(word + 4)) > 0;
  if (strncmp(word, "step_s=", 7) == 0)
    return (step_s = (uint32_t)atoi(word + 7)) > 0;
  for (uint32_t i = 0; i < N_POLICIES; i++)
    if (strcmp(word, policies[i]->name) == 0) {
      *only_policy = policies[i];
      return wanted[PLANS] = true;
    }
  for (int i = 0; i < N_SECTIONS; i++)
    if (strcmp(word, sections[i]) == 0)
      return wanted[i] = true;
  return false;
}

int main(int argc, char **argv)
{
  td_error err;
  struct timespec begin;
  bool wanted[N_SECTIONS] = {false}, any = false;
  const td_attention_policy *only_policy = NULL;
  setvbuf(stdout, NULL, _IOLBF, 0);
  mallopt(M_MMAP_THRESHOLD,
          1 << 30); /* freed memory is kept: else a third of the time goes into clearing pages */
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  find_policies();
  const char *name = argc > 1 ? argv[1] : "cpu";
  const char *amount = argc > 2 ? argv[2] : "all"; /* the others are for compute-sanitizer */
  test_size size = strcmp(amount, "tiny") == 0    ? TEST_TINY
                   : strcmp(amount, "small") == 0 ? TEST_SMALL
                                                  : TEST_ALL;
  bool known = size != TEST_ALL || strcmp(amount, "all") == 0;
  for (int i = 3; i < argc; i++)
    known &= take_word(argv[i], wanted, &only_policy);
  if (!known) {
    fputs(usage, stderr);
    return 2;
  }
  watch_steps(step_s);
  for (int i = 0; i < N_SECTIONS; i++)
    any |= wanted[i];
  td_backend_config config = {.max_slots = MAX_SLOTS,
                              .max_rows = MAX_ROWS,
                              .max_tokens = MAX_TOKENS,
                              .max_context_tokens = MAX_CONTEXT,
                              .max_vocab = VOCAB_MAX};
  die(td_plan_create(MAX_ROWS, MAX_TOKENS, MAX_ROWS, MAX_ROWS * (MAX_CONTEXT / 16), 16, &plan, &err), &err,
      "plan");
  page_table = calloc(MAX_ROWS * (MAX_CONTEXT / 16), sizeof *page_table);
  for (int i = 0; i < N_SECTIONS; i++) {
    if (any && !wanted[i])
      continue;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    run_section(i, name, &config, size, only_policy);
    tell(i, &begin);
  }
  td_plan_destroy(plan);
  free(page_table);
  printf("test_ops %s: %d passed, %d failed\n", name, n_passed, n_failed);
  return n_failed > 0;
}
