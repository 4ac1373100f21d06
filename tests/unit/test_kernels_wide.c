/* The loops in AVX-512's shapes, built here from portable C: the tile kernel with two weight rows in one
 * vector, and attention of more queries together, give the bits of the plain ones. So machines without
 * AVX-512 test these shapes. */
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

/* Keys that a query must not see are NaN. K and V are floats, and every other time f16. */
static void test_attention_gives_the_same_bits(void **state)
{
  enum { KEYS_MAX = 200, PAGES = 16, PAGE_TOKENS = 16 };
  for (int round = 0; round < 60; round++) {
    uint32_t dim = 8 * (1 + fx_below(10)), n_heads = 1 + fx_below(TD_ATTENTION_TILE);
    td_isa_attention p = {.first_position = fx_below(KEYS_MAX - TD_ATTENTION_TILE),
                          .n_tokens = 1 + fx_below(TD_ATTENTION_TILE / n_heads),
                          .n_heads = n_heads,
                          .head_dim = dim,
                          .padded_dim = dim,
                          .window_tokens = round % 3 ? 0 : 1 + fx_below(KEYS_MAX),
                          .scale = 0.2f,
                          .q_stride = (uint64_t)n_heads * dim,
                          .out_stride = (uint64_t)n_heads * dim,
                          .f16 = round % 2,
                          .page_tokens = PAGE_TOKENS,
                          .segment_end = 1};
    int32_t pages[PAGES];
    uint32_t n_keys = p.first_position + p.n_tokens, n_out = p.n_tokens * n_heads * dim;
    float *q = fx_floats(n_out, 1), *a = fx_floats(n_out, 1), *b = fx_floats(n_out, 1);
    size_t page_elements = (size_t)2 * PAGE_TOKENS * dim;
    float *kv = fx_floats(PAGES * page_elements, 1);
    uint16_t *kv_f16 = malloc(PAGES * page_elements * sizeof *kv_f16);
    assert_non_null(kv_f16);
    for (uint32_t i = 0; i < PAGES; i++)
      pages[i] = (int32_t)(i * 5 % PAGES);
    for (uint32_t key = n_keys; key < PAGES * PAGE_TOKENS; key++)
      for (uint32_t d = 0; d < dim; d++) {
        float *page = kv + (size_t)pages[key / PAGE_TOKENS] * page_elements;
        page[d * TD_KEY_LANES + key % PAGE_TOKENS] = page[(PAGE_TOKENS + key % PAGE_TOKENS) * dim + d] = NAN;
      }
    for (size_t i = 0; i < PAGES * page_elements; i++)
      kv_f16[i] = td_f32_to_f16(kv[i]);
    p.q = q;
    p.kv = p.f16 ? (const void *)kv_f16 : kv;
    p.page_bytes = page_elements * (p.f16 ? sizeof *kv_f16 : sizeof *kv);
    p.pages = pages;
    p.out = a;
    td_isa_scalar.attention(&p);
    p.out = b;
    td_isa_pair.attention(&p);
    assert_false(isnan(a[0]));
    fx_same(a, b, n_out, "attention");
    free(q);
    free(kv);
    free(kv_f16);
    free(a);
    free(b);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_pairs_give_the_same_bits),
                                     cmocka_unit_test(test_attention_gives_the_same_bits)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
