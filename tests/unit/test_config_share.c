/* Shared budgets: the guarantees for holders of little, checked with random sequences. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config/share.h"

enum { HOLDERS = 5, STEPS = 400000 };

static uint64_t rng = 1;
static uint32_t below(uint32_t n)
{
  rng ^= rng << 13;
  rng ^= rng >> 7;
  rng ^= rng << 17;
  return (uint32_t)((rng >> 32) * n >> 32);
}

static void test_alone(void **state)
{
  for (uint64_t total = 1; total <= 4096; total++) {
    uint64_t most = 0;
    while (td_share_allows(total, most, most, 1))
      most++;
    assert_int_equal(most, td_share_most(total));
    assert_true(most == 1 || (most * 4 <= total * 3 && (most + 1) * 4 > total * 3));
    if (most > 1) /* in one piece too */
      assert_true(td_share_allows(total, 0, 0, most) && !td_share_allows(total, 0, 0, most + 1));
  }
  assert_int_equal(td_share_most(0), 0);
  assert_false(td_share_allows(0, 0, 0, 1));
}

static void test_edges(void **state)
{
  assert_false(td_share_allows(10, 11, 0, 0)); /* the total may have been lowered below what is held */
  assert_false(td_share_allows(10, 3, 0, UINT64_MAX));
  assert_true(td_share_allows(UINT64_C(1) << 40, 0, 0, UINT64_C(3) << 38));
  assert_true(td_share_allows(3, 2, 0, 1) && !td_share_allows(3, 3, 0, 1) && !td_share_allows(3, 2, 1, 1));
}

/* Holders that take all they can get, in equal turns, end with equal shares. */
static void test_hogs_share(void **state)
{
  for (uint32_t n = 1; n <= 64; n++) {
    uint64_t total = 1 << 20, taken = 0, held[64] = {0};
    for (uint32_t refused = 0, i = 0; refused < n; i = (i + 1) % n) {
      bool gets = td_share_allows(total, taken, held[i], 1);
      held[i] += gets;
      taken += gets;
      refused = gets ? 0 : refused + 1;
    }
    for (uint32_t i = 0; i < n; i++)
      assert_true(fabs((double)held[i] - 3.0 * (double)total / (1 + 3.0 * n)) <= 4);
    assert_true(td_share_allows(total, taken, 0, (total - taken) / 2)); /* and a new holder finds room */
  }
}

/* For any sequence of takes and gives: never more than the total, and share.h's guarantee. */
static void test_promise(void **state)
{
  uint64_t total = 0, taken = 0, held[HOLDERS] = {0}, n_refused = 0, n_promised = 0;
  for (uint32_t step = 0; step < STEPS; step++) {
    if (step % 200 == 0) {
      total = 1 + below(step % 400 == 0 ? 40 : 1 << 20);
      taken = 0;
      for (uint32_t i = 0; i < HOLDERS; i++)
        held[i] = 0;
    }
    uint32_t who = below(HOLDERS), n_others = 0;
    if (below(4) == 0) {
      uint64_t back = held[who] == 0 ? 0 : below(2) ? held[who] : below((uint32_t)held[who] + 1);
      held[who] -= back;
      taken -= back;
      continue;
    }
    uint64_t more = 1 + (below(2) ? below((uint32_t)total) : below((uint32_t)(total - taken) + 1));
    for (uint32_t i = 0; i < HOLDERS; i++)
      n_others += i != who && held[i] > 0;
    bool gets = td_share_allows(total, taken, held[who], more);
    double promise = TD_SHARE_ALPHA * (double)total / pow(1 + TD_SHARE_ALPHA, n_others + 1);
    bool promised = (double)(held[who] + more) <= promise;
    assert_true(gets || !promised);
    n_refused += !gets;
    n_promised += promised;
    if (gets) {
      held[who] += more;
      taken += more;
    }
    assert_true(taken <= total);
  }
  assert_true(n_refused > STEPS / 10 && n_promised > STEPS / 50);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_alone),
      cmocka_unit_test(test_edges),
      cmocka_unit_test(test_hogs_share),
      cmocka_unit_test(test_promise),
  };
  return cmocka_run_group_tests_name("config share", tests, NULL, NULL);
}
