/* The metrics of a GPU (engine/gpu_watch.h), with a fake NVML library (fake_nvml.c): changing values,
 * values that a device does not have, calls that do not return. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "common/clock.h"
#include "engine/gpu_watch.h"

static bool get_within(td_gpu_watch *w, td_engine_gpu *g, uint64_t ms)
{
  for (uint64_t end = td_clock_us() + 1000 * ms; td_clock_us() < end;) {
    if (td_gpu_watch_get(w, g))
      return true;
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  return false;
}

static void values_as_they_come(void **state)
{
  td_engine_gpu g;
  setenv("FAKE_NVML", "", 1);
  td_gpu_watch *w = td_gpu_watch_start(FAKE_NVML, "0000:1B:00.0");
  assert_non_null(w);
  assert_true(get_within(w, &g, 5000));
  assert_true(g.sm_hz == 1980e6 && g.memory_hz == 3201e6 && g.celsius == 61);
  assert_true(fabs(g.watts - 612.5) < 1e-9 && fabs(g.limit_watts - 700) < 1e-9);
  assert_true(g.knows_slowed && g.slowed_by_power && !g.slowed_by_heat && !g.slowed_by_hardware);
  td_gpu_watch_stop(w);
}

static void what_is_not_told(void **state)
{
  td_engine_gpu g;
  setenv("FAKE_NVML", "mute", 1);
  td_gpu_watch *w = td_gpu_watch_start(FAKE_NVML, "0000:1B:00.0");
  assert_non_null(w);
  assert_true(get_within(w, &g, 5000));
  assert_true(isnan(g.watts) && isnan(g.celsius) && isnan(g.limit_watts) && !g.knows_slowed);
  assert_true(g.sm_hz == 1980e6);
  td_gpu_watch_stop(w);
}

static void what_cannot_be_watched(void **state)
{
  setenv("FAKE_NVML", "", 1);
  assert_null(td_gpu_watch_start("libnvidia-ml-that-is-not-there.so.1", "0000:1B:00.0"));
  assert_null(td_gpu_watch_start("libm.so.6", "0000:1B:00.0"));
  assert_null(td_gpu_watch_start(FAKE_NVML, "0000:FF:00.0"));
  setenv("FAKE_NVML", "broken", 1);
  assert_null(td_gpu_watch_start(FAKE_NVML, "0000:1B:00.0"));
}

/* The daemon's end does not wait for a lost device. */
static void a_call_that_does_not_come_back(void **state)
{
  td_engine_gpu g;
  setenv("FAKE_NVML", "hang", 1);
  td_gpu_watch *w = td_gpu_watch_start(FAKE_NVML, "0000:1B:00.0");
  assert_non_null(w);
  assert_false(get_within(w, &g, 50));
  uint64_t begin = td_clock_us();
  td_gpu_watch_stop(w);
  assert_true(td_clock_us() - begin < 5000000);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(values_as_they_come),
      cmocka_unit_test(what_is_not_told),
      cmocka_unit_test(what_cannot_be_watched),
      cmocka_unit_test(a_call_that_does_not_come_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
