/* Life tables of answers (scheduler/output_lengths.c) compared with the distributions from which the
 * answers are drawn. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "scheduler/output_lengths.h"

enum { ACCOUNTS = 8, MANY = 20000 };

static td_output_lengths a;

static int set_up(void **state)
{
  (void)state;
  return td_output_lengths_init(&a, ACCOUNTS) ? 0 : -1;
}

static int tear_down(void **state)
{
  (void)state;
  td_output_lengths_deinit(&a);
  return 0;
}

static uint32_t below(uint32_t n)
{
  static uint64_t random = 7;
  random = random * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)((random >> 33) % n);
}

/* Answers of 1 to n tokens, all equally likely, cut off at max_new. */
static void note_uniform(uint32_t account, uint32_t n, uint32_t max_new, uint32_t n_answers)
{
  for (uint32_t i = 0; i < n_answers; i++) {
    uint32_t length = 1 + below(n);
    td_output_lengths_observe(&a, account, length < max_new ? length : max_new, 1000, length >= max_new);
  }
}

static double mean_rest(uint32_t account, uint32_t age, uint32_t max_new)
{
  td_length_chance c = td_output_lengths_chance(&a, account, age, max_new);
  double sum = 0;
  for (uint32_t i = 0; i < TD_LENGTH_PARTS; i++)
    sum += (c.at[i] + c.at[i + 1]) / 2 / TD_LENGTH_PARTS;
  return c.full * (max_new - age) + (1 - c.full) * sum;
}

/* The averages are of some thirty answers, so one look proves little; the test uses the mean of many. */
static double mean_full(uint32_t account, uint32_t n, uint32_t cut_at, uint32_t age, uint32_t max_new,
                        double *rest)
{
  double full = 0;
  *rest = 0;
  for (uint32_t i = 0; i < 1000; i++) {
    note_uniform(account, n, below(2) ? UINT32_MAX : cut_at, 10);
    full += td_output_lengths_chance(&a, account, age, max_new).full / 1000;
    *rest += mean_rest(account, age, max_new) / 1000;
  }
  return full;
}

static void assert_near(double x, double want, double within)
{
  if (fabs(x - want) > within)
    fail_msg("%.3f, not %.3f", x, want);
}

static void it_learns_a_distribution(void **state)
{
  double rest;
  (void)state;
  for (uint32_t age = 0; age < 400; age += 100) {
    double full = mean_full(0, 400, UINT32_MAX, age, 10000, &rest);
    assert_near(full, 0, 0.02);
    assert_near(rest, (400 - age) / 2.0, 0.1 * (400 - age) + 5);
  }
  assert_near(mean_full(0, 400, UINT32_MAX, 0, 300, &rest), 0.25, 0.04);
  assert_near(mean_full(0, 400, UINT32_MAX, 100, 300, &rest), 1 / 3.0, 0.05);
  assert_near(rest, 200 * 1 / 3.0 + 100 * 2 / 3.0, 12);
}

/* Half of the clients ask for at most 50 tokens: that these answers are cut says nothing about the length of
 * others. */
static void who_is_cut_got_at_least_so_far(void **state)
{
  double rest;
  (void)state;
  assert_near(mean_full(0, 400, 50, 0, 10000, &rest), 0, 0.02);
  assert_near(rest, 200, 20);
  assert_near(mean_full(0, 400, 50, 0, 51, &rest), 350 / 400.0, 0.04);
}

static void an_account_is_its_own(void **state)
{
  (void)state;
  note_uniform(1, 400, UINT32_MAX, MANY);
  double before = mean_rest(1, 10, 10000);
  for (uint32_t i = 0; i < MANY; i++)
    td_output_lengths_observe(&a, 2, 3, 3, false);
  assert_true(mean_rest(1, 10, 10000) == before);
  assert_near(mean_rest(2, 0, 10000), 3, 1);
}

/* For an unknown account, the other accounts count equally. */
static void the_mean_of_accounts_stands_in(void **state)
{
  (void)state;
  for (uint32_t account = 0; account < 4; account++)
    note_uniform(account, 400, UINT32_MAX, 1000);
  for (uint32_t i = 0; i < MANY; i++)
    td_output_lengths_observe(&a, 4, 3, 1000, false);
  assert_near(td_output_lengths_chance(&a, 5, 0, 10).full, 0.8, 0.05);
  assert_near(td_output_lengths_chance(&a, 5, 10, 1000000).full, 0, 0.01);
}

/* Without data all answers are expected to reach max_new. An answer that outlived all that ended lasts as
 * long again with even odds. */
static void what_was_never_seen(void **state)
{
  (void)state;
  assert_true(td_output_lengths_chance(&a, 0, 0, 1000).full == 1);
  for (uint32_t i = 0; i < MANY; i++)
    td_output_lengths_observe(&a, 0, 100, 1000, false);
  assert_near(td_output_lengths_chance(&a, 0, 1000, 2000).full, 0.5, 0.03);
  assert_near(td_output_lengths_chance(&a, 0, 0, 90).full, 1, 0.01);
  assert_true(td_output_lengths_chance(&a, 0, 100, 101).full == 1);
}

/* As large as limits allow. */
static void nothing_overflows(void **state)
{
  (void)state;
  for (uint32_t i = 0; i < 1000; i++)
    td_output_lengths_observe(&a, 0, 16777216, 16777216, i % 2);
  for (uint32_t age = 0; age < 16777216; age = age * 2 + 1)
    for (uint32_t max_new = age + 1; max_new <= 16777216; max_new *= 3) {
      td_length_chance c = td_output_lengths_chance(&a, 0, age, max_new);
      assert_true(c.full >= 0 && c.full <= 1);
      for (uint32_t k = 0; c.full < 1 && k <= TD_LENGTH_PARTS; k++)
        assert_true(c.at[k] >= (k > 0 ? c.at[k - 1] : 0) && c.at[k] <= max_new - age);
    }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(it_learns_a_distribution, set_up, tear_down),
      cmocka_unit_test_setup_teardown(who_is_cut_got_at_least_so_far, set_up, tear_down),
      cmocka_unit_test_setup_teardown(an_account_is_its_own, set_up, tear_down),
      cmocka_unit_test_setup_teardown(the_mean_of_accounts_stands_in, set_up, tear_down),
      cmocka_unit_test_setup_teardown(what_was_never_seen, set_up, tear_down),
      cmocka_unit_test_setup_teardown(nothing_overflows, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
