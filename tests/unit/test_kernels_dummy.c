/* Dummy weights: the hash compared with published values, the distribution of the values, and that seeds
 * and positions give different ones. */
#include "kernels_fixture.h"

#include "kernels/dummy.h"

/* SplitMix64 with state 0 and with state 1234567, as published with xoshiro's seeding code. */
static void test_hash_is_splitmix64(void **state)
{
  assert_true(td_dummy_hash(0, 0) == 0xE220A8397B1DCDAFull);
  assert_true(td_dummy_hash(0, 1) == 0x6E789E6AA1B965F4ull);
  assert_true(td_dummy_hash(0, 2) == 0x06C45D188009454Full);
  assert_true(td_dummy_hash(1234567, 0) == 6457827717110365317ull);
  assert_true(td_dummy_hash(1234567, 1) == 3203168211198807973ull);
}

static void test_values_form_a_bell(void **state)
{
  enum { N = 1 << 20 };
  double sum = 0, squares = 0, neighbours = 0, last = 0;
  uint32_t beyond_one = 0;
  for (uint64_t i = 0; i < N; i++) {
    double v = td_bf16_to_f32(td_dummy_bf16(42, i));
    assert_true(fabs(v) < 0.07);
    sum += v;
    squares += v * v;
    neighbours += v * last;
    beyond_one += fabs(v) > 0.02;
    last = v;
  }
  assert_true(fabs(sum / N) < 5 * 0.02 / sqrt(N));
  assert_true(fabs(sqrt(squares / N) - 0.02) < 1e-4);
  assert_true(fabs(neighbours / N) < 5 * 0.0004 / sqrt(N));
  assert_true(fabs(beyond_one / (double)N - 0.32) < 0.02); /* 0.317 for the normal distribution */
}

static void test_seeds_differ(void **state)
{
  uint32_t same = 0;
  for (uint64_t i = 0; i < 4096; i++)
    same += td_dummy_bf16(1, i) == td_dummy_bf16(2, i);
  assert_true(same < 200);
}

static void test_only_bf16_is_made_up(void **state)
{
  td_backend *be;
  td_weight *w;
  td_error err = {0};
  assert_int_equal(td_backend_create("cpu",
                                     &(td_backend_config){.n_threads = 2, .max_slots = 4, .max_vocab = 64},
                                     &be, &err),
                   TD_OK);
  td_weight_part part = {.dtype = TD_F32, .n_rows = 8, .seed = 1};
  assert_int_equal(be->ops->weight_import(be, &part, 1, 64, &w, &err), TD_ERR_MODEL);
  part.dtype = TD_BF16;
  assert_int_equal(be->ops->weight_import(be, &part, 1, 64, &w, &err), TD_OK);
  assert_int_equal(be->ops->weights_wait(be, &err), TD_OK);
  be->ops->destroy(be);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_hash_is_splitmix64),
      cmocka_unit_test(test_values_form_a_bell),
      cmocka_unit_test(test_seeds_differ),
      cmocka_unit_test(test_only_bf16_is_made_up),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
