/* TANDEM_FAULT: exactly the named step fails or stalls, also if two are under way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "kernels/fault.h"

int __wrap_nanosleep(const struct timespec *time, struct timespec *rest);

static unsigned n_stalls;
static long stalled_s;

int __wrap_nanosleep(const struct timespec *time, struct timespec *rest)
{
  n_stalls++;
  stalled_s = (long)time->tv_sec;
  return 0;
}

static void submit_nothing(td_backend *be, td_compiled *compiled, const td_plan *plan) {}

static td_status wait_for_nothing(td_backend *be, td_outcome *out, td_error *err) { return TD_OK; }

static void sample_nothing(td_backend *be, td_compiled *sampling, const td_sample_input *input) {}

static const td_backend_ops ops = {
    .name = "none", .submit = submit_nothing, .sample = sample_nothing, .wait = wait_for_nothing};

static td_backend armed(const char *fault)
{
  td_backend be = {.ops = &ops, .pipeline_depth = 2};
  td_error err;
  setenv("TANDEM_FAULT", fault, 1);
  assert_int_equal(td_fault_arm(&be, &err), TD_OK);
  unsetenv("TANDEM_FAULT");
  n_stalls = 0;
  return be;
}

static void submit_step(td_backend *be, uint64_t step)
{
  td_plan plan = {.step = step};
  td_backend_queue_step(be, NULL, NULL, &plan);
}

static td_status wait_step(td_backend *be)
{
  td_outcome out;
  td_error err;
  return td_backend_wait(be, &out, &err);
}

static void test_the_step_stalls_and_no_other(void **state)
{
  for (uint32_t depth = 1; depth <= 2; depth++) {
    td_backend be = armed("stall:3");
    submit_step(&be, 0); /* measured at start */
    assert_int_equal(wait_step(&be), TD_OK);
    submit_step(&be, 1);
    for (uint64_t step = 1; step <= 6; step++) {
      if (depth == 2)
        submit_step(&be, step + 1);
      assert_int_equal(wait_step(&be), TD_OK);
      assert_int_equal(n_stalls, step >= 3);
      if (depth == 1)
        submit_step(&be, step + 1);
    }
    assert_int_equal(stalled_s, TD_FAULT_STALL_S);
  }
}

static void test_the_step_fails_and_none_before(void **state)
{
  td_backend be = armed("device:2");
  submit_step(&be, 1);
  submit_step(&be, 2);
  assert_int_equal(wait_step(&be), TD_OK);
  assert_int_equal(wait_step(&be), TD_ERR_DEVICE);
  assert_int_equal(n_stalls, 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_step_stalls_and_no_other),
                                     cmocka_unit_test(test_the_step_fails_and_none_before)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
