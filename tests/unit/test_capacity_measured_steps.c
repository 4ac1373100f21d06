/* The file of a daemon's step times, as the simulator reads it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "capacity/measured_steps.h"

static td_status read_text(const char *text, bool given, td_measured_steps *out, td_error *err)
{
  char path[] = "/tmp/pace-XXXXXX";
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, strlen(text)), strlen(text));
  close(fd);
  *out = (td_measured_steps){0};
  td_status st =
      given ? td_measured_steps_read_times(path, out, err) : td_measured_steps_read_slowdowns(path, out, err);
  unlink(path);
  return st;
}

static void the_nearest_step_of_the_kind(void **state)
{
  td_measured_steps p;
  td_error err;
  assert_int_equal(read_text("0.5 0 2\n1 1 3\n1.5 0 0.5\r\n4 0 1.25\n", false, &p, &err), TD_OK);
  const struct {
    double at_us, factors[2];
  } cases[] = {{0, {2, 3}},       {0.9e6, {2, 3}},    {1.1e6, {0.5, 3}},
               {2.7e6, {0.5, 3}}, {2.8e6, {1.25, 3}}, {1e9, {1.25, 3}}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int kind = 0; kind < 2; kind++)
      assert_true(td_measured_steps_slowdown_at(&p, cases[i].at_us, kind) == cases[i].factors[kind]);
  td_measured_steps_deinit(&p);
  assert_true(td_measured_steps_slowdown_at(&p, 5, true) ==
              1); /* nothing is known about steps that were never seen */
}

static void given_times(void **state)
{
  td_measured_steps p;
  td_error err;
  assert_int_equal(read_text("100\n0\n2.5e3\n", true, &p, &err), TD_OK);
  assert_int_equal(p.n_times, 3);
  assert_true(p.times_us[0] == 100 && p.times_us[1] == 0 && p.times_us[2] == 2500);
  td_measured_steps_deinit(&p);
}

static void names_the_line(void **state)
{
  static const struct {
    const char *text, *says;
    bool given;
  } cases[] = {{"1 0 1\n2 0\n", ":2: ", false},       {"1 0 1\n2 2 1\n", "kind", false},
               {"1 0 1\n2 0 0\n", "factor", false},   {"1 0 1\n0.5 0 1\n", "go back", false},
               {"-1 0 1\n", "seconds", false},        {"1 0 1 7\n", ":1: ", false},
               {"1 0 nan\n", "three numbers", false}, {"5\n-5\n", ":2: the micro", true},
               {"5\nfive\n", "not a number", true}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    td_measured_steps p;
    td_error err = {0};
    assert_int_equal(read_text(cases[i].text, cases[i].given, &p, &err), TD_ERR_CONFIG);
    if (!strstr(err.message, cases[i].says))
      fail_msg("'%s' does not say '%s'", err.message, cases[i].says);
    td_measured_steps_deinit(&p);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_nearest_step_of_the_kind),
      cmocka_unit_test(given_times),
      cmocka_unit_test(names_the_line),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
