/* How tandem-plan uses its options: which step times the simulated daemon has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "capacity/scenario.h"
#include "scheduler/cost_text.h"

static char path[] = "/tmp/td_scene_XXXXXX";

static td_scenario_options options(const char *correction)
{
  return (td_scenario_options){.calibration = path,
                               .kv_tokens = 10000,
                               .in = "10",
                               .out = "10",
                               .requests = 2,
                               .slack_percent = -1,
                               .correction = correction};
}

/* A calibration includes what its daemon learned under load, unless an option gives the factors. */
static void what_was_learned(void **state)
{
  static td_scenario s;
  td_error err;
  td_buf text;
  td_cost_model m = {.n_points = 1, .tokens = {1}, .tokens_us = {1000}, .learned = {1.5, 0.75}};
  td_buf_init(&text, TD_COST_TEXT_BYTES);
  td_cost_print(&m, "a device", &text);
  FILE *f = fopen(path, "w");
  assert_int_equal(fwrite(text.data, 1, text.len_bytes, f), text.len_bytes);
  fclose(f);
  td_buf_deinit(&text);

  td_scenario_options o = options(NULL);
  assert_int_equal(td_scenario_make(&o, &s, &err), TD_OK);
  assert_true(s.replay.daemon.cost->learned[0] == 1.5 && s.replay.daemon.sched.cost->learned[1] == 0.75);
  assert_true(s.replay.daemon.correction[0] == 0 && s.replay.daemon.correction[1] == 0);
  td_device two = td_device_tp2(&s.device);
  td_replay_config c = td_scenario_replay_on(&s, &two);
  assert_true(c.daemon.cost->learned[0] == 1.5 && c.daemon.sched.cost->learned[1] == 0.75);
  td_scenario_deinit(&s);

  o = options("1,1.25");
  assert_int_equal(td_scenario_make(&o, &s, &err), TD_OK);
  assert_true(s.replay.daemon.cost->learned[0] == 0 && s.replay.daemon.sched.cost->learned[1] == 0);
  assert_true(s.replay.daemon.correction[0] == 1 && s.replay.daemon.correction[1] == 1.25);
  td_scenario_deinit(&s);
  o = options("1");
  assert_int_equal(td_scenario_make(&o, &s, &err), TD_ERR_CONFIG);
}

static int setup(void **state)
{
  int fd = mkstemp(path);
  return fd < 0 ? -1 : close(fd);
}

static int teardown(void **state) { return unlink(path); }

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(what_was_learned)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
