/* The pace of a request body, with a fake clock: 1 KiB/s over windows of 5 s, checked every 100 ms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/body_pace.h"

enum { WINDOW_MS = 5000, RATE = 1024, LOOK_MS = 100, BEGIN_MS = 77777 };

typedef uint64_t bytes_at(uint64_t ms); /* number of bytes received by then */

/* When it is found slow, from the body's first moment; UINT64_MAX: never in an hour. */
static uint64_t cut_at(bytes_at *bytes)
{
  td_body_pace p;
  td_body_pace_begin(&p, 0, BEGIN_MS, WINDOW_MS);
  for (uint64_t ms = LOOK_MS; ms <= 3600000; ms += LOOK_MS)
    if (td_body_pace_is_slow(&p, bytes(ms), BEGIN_MS + ms, WINDOW_MS, RATE))
      return ms;
  return UINT64_MAX;
}

static uint64_t silence(uint64_t ms) { return 0; }
static uint64_t burst(uint64_t ms) { return 8388607; }
static uint64_t burst_at_4_s(uint64_t ms) { return ms < 4000 ? 0 : 8388607; }
static uint64_t just_enough(uint64_t ms) { return 1024 * ms / 1000; }
static uint64_t too_little(uint64_t ms) { return 1000 * ms / 1000; }
static uint64_t fast_then_nothing(uint64_t ms) { return ms < 60000 ? 1000 * ms : 60000000; }
static uint64_t in_lumps(uint64_t ms) { return 5120 * (1 + ms / 4000); }
static uint64_t a_lump_too_late(uint64_t ms) { return 60000 * (1 + ms / 8000); }

static void test_pace(void **state)
{
  static const struct {
    bytes_at *bytes;
    uint64_t from_ms, to_ms;
  } cases[] = {
      {silence, 5000, 5000},
      {burst, 5000, 5700}, /* a burst buys no silence: a window, and an eighth as it is looked at then */
      {burst_at_4_s, 9000, 9700},
      {just_enough, UINT64_MAX, UINT64_MAX},
      {too_little, 5000, 5000},
      {fast_then_nothing, 65000, 65700},
      {in_lumps, UINT64_MAX, UINT64_MAX},
      {a_lump_too_late, 5000, 5700},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    assert_in_range(cut_at(cases[i].bytes), cases[i].from_ms, cases[i].to_ms);
}

/* The smallest window is as long as the time between two checks. */
static void test_short_window(void **state)
{
  td_body_pace p;
  td_body_pace_begin(&p, 0, 1000, 100);
  assert_false(td_body_pace_is_slow(&p, 200, 1099, 100, RATE));
  assert_false(td_body_pace_is_slow(&p, 400, 1198, 100, RATE));
  assert_true(td_body_pace_is_slow(&p, 400, 1299, 100, RATE));
}

/* Time without checks does not count against the client. */
static void test_a_pause_of_ours(void **state)
{
  td_body_pace p;
  td_body_pace_begin(&p, 0, 0, WINDOW_MS);
  assert_false(td_body_pace_is_slow(&p, 500, 100, WINDOW_MS, RATE));
  assert_false(td_body_pace_is_slow(&p, 500, 60000, WINDOW_MS, RATE));
  assert_false(td_body_pace_is_slow(&p, 500, 64900, WINDOW_MS, RATE));
  assert_true(td_body_pace_is_slow(&p, 500, 65000, WINDOW_MS, RATE));
}

static void test_no_rate(void **state)
{
  td_body_pace p;
  td_body_pace_begin(&p, 0, 0, WINDOW_MS);
  for (uint64_t ms = 0; ms < 100000; ms += LOOK_MS)
    assert_false(td_body_pace_is_slow(&p, 0, ms, WINDOW_MS, 0));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_pace),
      cmocka_unit_test(test_short_window),
      cmocka_unit_test(test_a_pause_of_ours),
      cmocka_unit_test(test_no_rate),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
