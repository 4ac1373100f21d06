/* The clock's units. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/clock.h"

static void microseconds(void **state)
{
  (void)state;
  uint64_t before = td_clock_ns() / 1000, now = td_clock_us(), after = td_clock_ns() / 1000;
  assert_true(before > 0 && before <= now && now <= after);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(microseconds)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
