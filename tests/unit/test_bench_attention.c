/* What `tandem-bench attention` measures: its cells are the defined ones, traces depend on their seed alone
 * and follow their definition, and the figures of a trace are means over its held-out seeds. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bench/attention_cells.h"
#include "bench/attention_policies.h"
#include "bench/attention_traces.h"

/* Checks the lengths of all steps of a trace; returns a checksum, by which two runs can be compared. */
static uint64_t check_trace(uint32_t trace, uint64_t seed)
{
  const struct td_attention_trace *d = &td_attention_traces[trace];
  td_trace_run run = td_trace_begin(trace, seed), before = run;
  uint32_t first[TD_TRACE_REQUESTS] = {0}, n_steps_of[TD_TRACE_REQUESTS] = {0}, n_steps = 0;
  uint64_t sum = 0;
  while (td_trace_run_step(&run)) {
    for (uint32_t i = 0; i < TD_TRACE_ROWS_MAX; i++) {
      if (run.left[i] == 0)
        continue;
      assert_true(i < d->batch && run.kv_len[i] < TD_TRACE_TOKENS_MAX);
      uint32_t request = run.request[i];
      if (n_steps_of[request]++ == 0)
        first[request] = run.kv_len[i] - 1; /* the prompt */
      else
        assert_int_equal(run.kv_len[i], before.kv_len[i] + 1);
      sum = sum * 31 + run.kv_len[i];
    }
    before = run;
    n_steps++;
  }
  assert_true(n_steps * d->batch >= TD_TRACE_REQUESTS * d->decode_min);
  for (uint32_t r = 0; r < TD_TRACE_REQUESTS; r++) {
    assert_in_range(n_steps_of[r], d->decode_min, d->decode_max);
    switch (d->kind) {
    case TD_TRACE_BUCKETED: assert_int_equal(first[r], 8192u << r % 4); break;
    case TD_TRACE_UNIFORM: assert_in_range(first[r], 4096, 32768); break;
    case TD_TRACE_HOMOGENEOUS: assert_int_equal(first[r], 32768); break;
    case TD_TRACE_BIMODAL:
      assert_in_range(first[r], r % 4 == 3 ? 24576 : 2048, r % 4 == 3 ? 65536 : 12288);
      break;
    default: assert_in_range(first[r], 2048 + 11585 - 512, 2048 + 65536 + 512);
    }
  }
  return sum;
}

static void test_traces(void **unused)
{
  (void)unused;
  for (uint32_t trace = 0; trace < TD_ATTENTION_TRACES; trace++) {
    uint64_t sums[6];
    for (uint64_t seed = 0; seed < 6; seed++) {
      sums[seed] = check_trace(trace, seed);
      assert_true(sums[seed] == check_trace(trace, seed));
      for (uint64_t other = 0; other < seed; other++)
        assert_true(sums[other] != sums[seed]);
    }
  }
}

static void test_cells(void **unused)
{
  (void)unused;
  td_attention_cells c;
  size_t n[TD_CELL_KINDS] = {0}, n_of[TD_ATTENTION_TRACES][TD_TRACE_SEEDS + 1] = {{0}};
  td_attention_cells_make(
      &c, &(td_cells_request){.kinds = {true, true, true}, .head_dim = 128, .steps_of_a_trace = 7});
  for (size_t i = 0; i < c.n; i++) {
    const td_attention_cell *k = &c.cells[i];
    n[k->kind]++;
    assert_true(k->n_rows > 0 && k->n_rows <= TD_CELL_ROWS_MAX && k->n_heads % k->n_kv_heads == 0);
    assert_int_equal(k->shared[0], 0);
    for (uint32_t r = 0; r < k->n_rows; r++)
      assert_true(k->shared[r] < k->kv_len[r] && k->shared[r] % TD_CELL_PAGE_TOKENS == 0);
    if (k->kind == TD_CELL_TRACE)
      n_of[k->trace][k->seed]++;
    if (k->kind == TD_CELL_TREE && strcmp(k->name, "1,4,16,512_1024,256,128,32") == 0) {
      assert_int_equal(k->n_rows, 512);
      assert_true(k->unique_keys == 1024 + 4 * 256 + 16 * 128 + 512 * 32);
    }
  }
  assert_int_equal(n[TD_CELL_DECODE],
                   11 + 3 * 4 + 9); /* 32/8, and four each for 32/32, 16/4, 64/8; those found by search */
  assert_int_equal(n[TD_CELL_TREE], 4 * 20);
  for (uint32_t t = 0; t < TD_ATTENTION_TRACES; t++)
    for (uint32_t seed = 0; seed <= TD_TRACE_SEEDS; seed++)
      assert_int_equal(n_of[t][seed], 7);
  td_attention_cells_deinit(&c);

  td_attention_cells_make(
      &c,
      &(td_cells_request){
          .kinds = {true, true, false}, .head_dim = 64, .n_heads = 16, .n_kv_heads = 8, .max_keys = 80000});
  assert_true(c.n > 1 && c.n < 20); /* only trees are measured with these heads */
  for (size_t i = 0; i < c.n; i++) {
    double keys = 0;
    for (uint32_t r = 0; r < c.cells[i].n_rows; r++)
      keys += c.cells[i].kv_len[r];
    assert_true(keys <= 80000 && c.cells[i].n_heads == 16 && c.cells[i].head_dim == 64);
  }
  td_attention_cells_deinit(&c);
}

static void test_figures_of_a_trace(void **unused)
{
  (void)unused;
  td_attention_cells c;
  td_attention_cells_make(
      &c, &(td_cells_request){.kinds = {false, false, true}, .head_dim = 128, .steps_of_a_trace = 2});
  double *us = malloc(c.n * sizeof *us);
  for (size_t i = 0; i < c.n; i++) /* a seed's two steps: 10 x seed - 1 and + 1, in the second trace only */
    us[i] = c.cells[i].trace == 1 ? 10.0 * c.cells[i].seed + (i % 2 ? 1 : -1) : NAN;
  td_trace_figures f = td_attention_trace_figures(&c, us, 1);
  assert_int_equal(f.n_seeds, TD_TRACE_SEEDS);
  assert_true(fabs(f.mean_us - 30) < 1e-9);      /* of 10, 20, 30, 40, 50 */
  assert_true(fabs(f.sd_us - sqrt(250)) < 1e-9); /* with n - 1 */
  assert_true(fabs(f.calibration_us) < 1e-9);    /* seed 0, not among them */
  assert_int_equal(td_attention_trace_figures(&c, us, 0).n_seeds, 0);
  assert_true(isnan(td_attention_trace_figures(&c, us, 0).mean_us));
  free(us);
  td_attention_cells_deinit(&c);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_traces), cmocka_unit_test(test_cells),
                                     cmocka_unit_test(test_figures_of_a_trace)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
