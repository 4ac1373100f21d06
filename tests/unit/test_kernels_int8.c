/* The int8 GEMMs of each instruction set of this machine give the bits of the scalar ones. So do those of
 * AVX-512 when each of its registers is emulated by two of AVX2. Thus a machine without AVX-512 tests all
 * of that code except the instructions themselves. */
#include "kernels_fixture.h"

#include "kernels/cpu/int8.h"

#ifdef __AVX2__
#define TD_INT8_PAIR
#include "kernels/cpu/int8_lanes16.h"

#define TD_INT8_TABLE td_int8_pair
extern const td_int8 td_int8_pair;
#include "kernels/cpu/int8_body.inc"
#endif

/* The rows as the table wants them. */
static uint8_t *pack_rows(const td_int8 *table, const td_int8_linear *p)
{
  size_t group_bytes = td_int8_group_bytes(p->dtype, p->n_strips, table->lanes);
  uint32_t n_groups = (p->row_end + table->lanes - 1) / table->lanes;
  uint8_t *out = aligned_alloc(64, group_bytes * n_groups);
  assert_non_null(out);
  memset(out, 0, group_bytes * n_groups);
  for (uint32_t g = 0; g < n_groups; g++) {
    uint32_t row = g * table->lanes, left = p->row_end - row;
    td_int8_pack(p->dtype, p->weight + row * p->row_bytes, p->row_bytes,
                 left < table->lanes ? left : table->lanes, p->n_strips, table->lanes, out + g * group_bytes);
  }
  return out;
}

static float *run_table(const td_int8 *table, td_int8_linear p, const float *x)
{
  size_t n = (size_t)p.n_tokens * p.n_strips;
  td_int8_strip *rounded = malloc(n * sizeof *rounded);
  float *out = calloc((size_t)p.n_tokens * p.out_stride, sizeof *out);
  assert_true(rounded && out);
  uint8_t *packed = table->lanes ? pack_rows(table, &p) : NULL;
  p.weight = packed ? packed : p.weight;
  table->round(x, (uint32_t)n * 32, rounded);
  p.x = rounded;
  p.out = out;
  p.panel = aligned_alloc(64, (size_t)p.n_strips * (table->panel_bytes + 64));
  if (p.n_tokens <= TD_INT8_DIRECT_TOKENS)
    table->direct(&p);
  else
    table->panel(&p);
  free(p.panel);
  free(packed);
  free(rounded);
  return out;
}

enum { TABLES_MAX = 3 };

/* The tables that this machine can run, in addition to the scalar one. */
static uint32_t tables_here(const td_int8 *out[TABLES_MAX])
{
  uint32_t n = 0;
#ifdef __AVX2__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    out[n++] = &td_int8_avx2;
    out[n++] = &td_int8_pair;
  }
#endif
#ifdef TD_ISA_AVX512
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vnni"))
    out[n++] = &td_int8_avx512;
  else
    print_message("AVX-512 VNNI NOT RUN: not in this CPU\n");
#endif
#ifdef TD_ISA_ARM64
  out[n++] = &td_int8_neon;
  if (td_has_dotprod())
    out[n++] = &td_int8_dotprod;
  else
    print_message("dotprod NOT RUN: not in this CPU\n");
#endif
  return n;
}

static void test_every_table_gives_the_same_bits(void **state)
{
  const td_int8 *tables[TABLES_MAX];
  uint32_t n_tables = tables_here(tables);
  if (n_tables == 0)
    skip();
  for (uint32_t i = 0; i < n_tables; i++)
    print_message("beside the scalar table: %s, %u rows at once\n", tables[i]->name, tables[i]->tile_rows);
  for (int round = 0; round < 160; round++) {
    td_dtype t = TD_Q4_0 + round % (TD_DTYPE_COUNT - TD_Q4_0);
    uint32_t n_cols = td_dtypes[t].block_elements * (1 + fx_below(4)), n_rows = 1 + fx_below(80);
    td_int8_linear p = {.dtype = t, .row_end = n_rows, .n_strips = n_cols / 32, .out_stride = n_rows};
    uint8_t *w = fx_matrix(t, n_rows, n_cols);
    float *bias = fx_floats(n_rows, 1);
    assert_true(td_dtype_row_bytes(t, n_cols, &p.row_bytes));
    p.weight = w;
    p.row_begin = fx_below(n_rows) / 16 * 16;
    p.n_tokens = 1 + fx_below(20);
    p.bias = round % 3 ? bias : NULL;
    p.add = round % 2;
    float *x = fx_floats((size_t)p.n_tokens * n_cols, 1);
    float *want = run_table(&td_int8_scalar, p, x);
    for (uint32_t i = 0; i < n_tables; i++) {
      float *got = run_table(tables[i], p, x);
      fx_same(want, got, (size_t)p.n_tokens * n_rows, tables[i]->name);
      free(got);
    }
    free(want);
    free(x);
    free(w);
    free(bias);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_table_gives_the_same_bits)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
