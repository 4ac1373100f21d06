/* Block layouts against the gguf package's widening (tests/vectors/make_dtype_vectors.py), bit for bit, and
 * the two 16-bit conversions for all values. */
#include "kernels_fixture.h"

#include "kernels/cpu/isa.h"

static void read_exactly(FILE *f, void *dst, size_t n) { assert_int_equal(fread(dst, 1, n, f), n); }

static void check_vector(td_dtype t)
{
  char path[512];
  uint32_t head[3]; /* block bytes, elements, blocks */
  snprintf(path, sizeof path, "%s/tests/vectors/dtype/%s.bin", TD_SOURCE_DIR, td_dtypes[t].name);
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  read_exactly(f, head, sizeof head);
  assert_int_equal(head[0], td_dtypes[t].block_bytes);
  assert_int_equal(head[1], td_dtypes[t].block_elements);
  size_t n = (size_t)head[1] * head[2];
  uint8_t *blocks = malloc((size_t)head[0] * head[2]);
  float *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);
  assert_true(blocks && want && got);
  read_exactly(f, blocks, (size_t)head[0] * head[2]);
  read_exactly(f, want, n * sizeof *want);
  fclose(f);
  td_dtype_to_f32(t, blocks, n, got);
  fx_same(got, want, n, td_dtypes[t].name);
  free(blocks);
  free(want);
  free(got);
}

static void test_layouts_are_gguf(void **state)
{
  for (td_dtype t = TD_F16; t < TD_DTYPE_COUNT; t++)
    check_vector(t);
}

static void test_f16_and_bf16_round_trip(void **state)
{
  for (uint32_t h = 0; h < 65536; h++) {
    float f = td_f16_to_f32((uint16_t)h), b = td_bf16_to_f32((uint16_t)h);
    if (f == f)
      assert_int_equal(td_f32_to_f16(f), h);
    else
      assert_int_equal(td_f32_to_f16(f), h | 0x200); /* the quiet bit is set, the rest is unchanged */
    if (b == b)
      assert_int_equal(td_f32_to_bf16(b), h);
  }
  assert_int_equal(td_f32_to_bf16(1.0f + 0x1p-8f), 0x3F80);
  assert_int_equal(td_f32_to_bf16(1.0f + 0x1.8p-7f), 0x3F82);
}

/* Halfway between two neighbours the even one is chosen, otherwise the nearer one. 65520 is halfway to
 * infinity. */
static void test_f16_rounds_to_the_nearest(void **state)
{
  for (uint32_t h = 0; h < 0x7C00; h++) {
    float low = td_f16_to_f32((uint16_t)h), high = h < 0x7BFF ? td_f16_to_f32((uint16_t)(h + 1)) : 65536.0f;
    float middle = low + (high - low) / 2;
    assert_int_equal(td_f32_to_f16(middle), h + (h & 1));
    assert_int_equal(td_f32_to_f16(-middle), 0x8000 | (h + (h & 1)));
    assert_int_equal(td_f32_to_f16(nextafterf(middle, 0)), h);
    assert_int_equal(td_f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
  }
  assert_int_equal(td_f32_to_f16(INFINITY), 0x7C00);
  assert_int_equal(td_f32_to_f16(-3e38f), 0xFC00);
  assert_int_equal(td_f32_to_f16(1e-45f), 0);
}

/* numpy's value of i * 2^-24 etc. follows from the format: sign, 5 exponent bits and 10 mantissa bits. */
static void test_f16_values(void **state)
{
  for (uint32_t h = 0; h < 0x7C00; h++) {
    uint32_t e = h >> 10, m = h & 1023;
    double want = e ? ldexp(1 + m / 1024.0, (int)e - 15) : ldexp(m, -24);
    assert_true((double)td_f16_to_f32((uint16_t)h) == want);
    assert_true((double)td_f16_to_f32((uint16_t)(h | 0x8000)) == -want);
  }
}

static void test_row_bytes(void **state)
{
  uint64_t bytes;
  assert_true(td_dtype_row_bytes(TD_Q4_1, 576, &bytes));
  assert_int_equal(bytes, 360);
  assert_true(td_dtype_row_bytes(TD_Q6_K, 512, &bytes));
  assert_int_equal(bytes, 420);
  assert_false(td_dtype_row_bytes(TD_Q4_1, 577, &bytes));
  assert_false(td_dtype_row_bytes(TD_Q4_K, 128, &bytes));
  assert_false(td_dtype_row_bytes(TD_F32, UINT64_MAX / 2, &bytes));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_layouts_are_gguf),
      cmocka_unit_test(test_f16_and_bf16_round_trip),
      cmocka_unit_test(test_f16_rounds_to_the_nearest),
      cmocka_unit_test(test_f16_values),
      cmocka_unit_test(test_row_bytes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
