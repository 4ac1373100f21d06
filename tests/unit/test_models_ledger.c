/* The ledger of the grammars' memory: what fits is taken, whatever other threads try. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>

#include "models/grammar/ledger.h"

enum { ROUNDS = 300000, MAX_BYTES = 100 };

static td_ledger_sum sum = {.max_bytes = MAX_BYTES};
static atomic_bool done;

static void *take_too_much(void *arg)
{
  (void)arg;
  while (!atomic_load(&done)) {
    td_ledger l;
    if (td_ledger_open(&l, &sum, MAX_BYTES + 1))
      return &sum;
  }
  return NULL;
}

/* Attempts that fail leave no trace, even for a moment: other threads would fail too. */
static void test_failed_attempts(void **state)
{
  pthread_t thread;
  void *took = NULL;
  uint32_t n_refused = 0;
  assert_int_equal(pthread_create(&thread, NULL, take_too_much, NULL), 0);
  for (int i = 0; i < ROUNDS; i++) {
    td_ledger l;
    n_refused += !td_ledger_open(&l, &sum, MAX_BYTES / 2);
    td_ledger_close(&l);
  }
  atomic_store(&done, true);
  assert_int_equal(pthread_join(thread, &took), 0);
  assert_null(took);
  assert_int_equal(n_refused, 0);
  assert_int_equal(atomic_load(&sum.bytes), 0);
}

static void test_bounds(void **state)
{
  td_ledger a, b;
  assert_true(td_ledger_open(&a, &sum, MAX_BYTES - 10));
  assert_false(td_ledger_open(&b, &sum, 11));
  assert_true(td_ledger_open(&b, &sum, 10));
  assert_true(td_ledger_use(&b, 10)); /* its reserve */
  assert_false(td_ledger_use(&b, 1));
  td_ledger_close(&a);
  assert_true(td_ledger_use(&b, 1));
  assert_int_equal(atomic_load(&sum.bytes), 11);
  td_ledger_close(&b);
  assert_int_equal(atomic_load(&sum.bytes), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_failed_attempts), cmocka_unit_test(test_bounds)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
