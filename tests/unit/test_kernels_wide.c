/* The tile kernel with two weight rows in one vector, as AVX-512 has it, built here from portable C: its
 * panel layout gives the bits of the plain one. So the layout is tested on machines without AVX-512. */
#define TD_WIDE_PAIR
#include "kernels/cpu/isa.h"
#include "kernels/cpu/vec_scalar.h"

#include "kernels/cpu/strip_scalar.inc"
#define TD_ISA_TABLE td_isa_pair
#define TD_ISA_NAME "pair"
extern const td_isa td_isa_pair;
#include "kernels/cpu/isa_body.inc"

#include "kernels_fixture.h"

static void run_panels(const td_isa *isa, td_isa_linear p, const float *x)
{
  uint32_t width = p.n_strips * 32, n_tiles = (p.n_tokens + isa->tile_tokens - 1) / isa->tile_tokens;
  float *packed = fx_floats((size_t)n_tiles * isa->tile_tokens * width, 1);
  p.panel = fx_floats((size_t)TD_ISA_PANEL_ROWS * width, 1);
  for (uint32_t i = 0; i < n_tiles; i++)
    isa->pack(x, p.n_tokens, p.n_cols, p.n_strips, i, packed + (size_t)i * isa->tile_tokens * width);
  p.x = packed;
  isa->linear_panel(&p);
  free(packed);
  free(p.panel);
}

static void test_pairs_give_the_same_bits(void **state)
{
  assert_int_not_equal(td_isa_pair.tile_tokens, td_isa_scalar.tile_tokens);
  for (int round = 0; round < 60; round++) {
    td_dtype t = round % 2 ? TD_Q4_1 : TD_BF16;
    uint32_t n_rows = 1 + fx_below(40), n_cols = round % 2 ? 32 * (1 + fx_below(8)) : 1 + fx_below(200);
    td_isa_linear p = {.dtype = t, .row_end = n_rows, .n_cols = n_cols, .n_strips = (n_cols + 31) / 32};
    uint8_t *w = fx_matrix(t, n_rows, n_cols);
    assert_true(td_dtype_row_bytes(t, n_cols, &p.row_bytes));
    p.weight = w;
    p.n_tokens = 1 + fx_below(20);
    p.out_stride = n_rows;
    float *x = fx_floats((size_t)p.n_tokens * n_cols, 1), *a = fx_floats((size_t)p.n_tokens * n_rows, 1);
    float *b = fx_floats((size_t)p.n_tokens * n_rows, 1);
    p.out = a;
    run_panels(&td_isa_scalar, p, x);
    p.out = b;
    run_panels(&td_isa_pair, p, x);
    fx_same(a, b, (size_t)p.n_tokens * n_rows, "pairs of rows");
    free(w);
    free(x);
    free(a);
    free(b);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_pairs_give_the_same_bits)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
