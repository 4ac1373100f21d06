/* Records of the last steps (engine/step_log.h): every record is read or missed exactly once, complete and
 * in order, while the writer overtakes the reader any number of times. Every word of a record is a function
 * of its number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "engine/step_log.h"

enum { N_STEPS = 300000, N_TIMED = 1000000 };

static td_step_log *make_log(void)
{
  td_step_log *log = aligned_alloc(_Alignof(td_step_log), sizeof *log);
  assert_non_null(log);
  memset(log, 0, sizeof *log);
  return log;
}

static td_engine_step record_of(uint64_t step)
{
  uint32_t x = (uint32_t)step;
  return (td_engine_step){.step = step,
                          .end_us = step * 3,
                          .step_us = x + 1,
                          .predicted_us = x ^ 5,
                          .calibrated_us = x ^ 12,
                          .n_decodes = (uint16_t)(x * 7),
                          .n_prefills = (uint16_t)(x + 2),
                          .n_prefill_tokens = x * 11,
                          .hit_tokens = x ^ 9,
                          .n_running = x + 3,
                          .n_waiting = x * 13,
                          .pages_free = x + 4,
                          .pages_cached = x * 17,
                          .pages_owned = x ^ 33,
                          .preemptions = x + 6};
}

static void check_record(const td_engine_step *s, uint64_t step)
{
  td_engine_step want = record_of(step);
  assert_memory_equal(s, &want, sizeof want);
}

static void test_in_turns(void **state)
{
  td_step_log *log = make_log();
  static td_engine_step out[TD_STEP_LOG_RECORDS];
  uint64_t cursor = 0, missed = 0;
  assert_int_equal(td_step_log_read(log, &cursor, out, 8, &missed), 0);
  for (uint64_t step = 1; step <= 5; step++)
    td_step_log_write(log, &(td_engine_step){.step = step});
  assert_int_equal(td_step_log_read(log, &cursor, out, 3, &missed), 3);
  assert_true(out[0].step == 1 && out[2].step == 3 && cursor == 3);
  assert_int_equal(td_step_log_read(log, &cursor, out, 3, &missed), 2);
  assert_true(out[0].step == 4 && out[1].step == 5 && cursor == 5 && missed == 0);
  for (uint64_t step = 6; step <= 5 + TD_STEP_LOG_RECORDS; step++)
    td_step_log_write(log, &(td_engine_step){.step = step});
  assert_int_equal(td_step_log_read(log, &cursor, out, TD_STEP_LOG_RECORDS, &missed), TD_STEP_LOG_RECORDS);
  assert_true(out[0].step == 6 && missed == 0); /* exactly full, so nothing is lost */
  for (uint64_t step = 0; step < TD_STEP_LOG_RECORDS + 10; step++)
    td_step_log_write(log, &(td_engine_step){.step = 6 + TD_STEP_LOG_RECORDS + step});
  assert_int_equal(td_step_log_read(log, &cursor, out, 1, &missed), 1);
  assert_true(missed == 10 && out[0].step == 16 + TD_STEP_LOG_RECORDS);
  cursor = UINT64_MAX; /* without a log: as if all had been read */
  assert_int_equal(td_step_log_read(log, &cursor, out, 8, &missed), 0);
  assert_true(cursor == 15 + 2 * TD_STEP_LOG_RECORDS && missed == 10);
  free(log);
}

static void *write_all(void *arg)
{
  for (uint64_t step = 1; step <= N_STEPS; step++) {
    td_engine_step s = record_of(step);
    td_step_log_write(arg, &s);
    if (step % 4096 == 0)
      sched_yield();
  }
  return NULL;
}

static void test_while_written(void **state)
{
  td_step_log *log = make_log();
  static td_engine_step out[TD_STEP_LOG_RECORDS];
  uint64_t cursor = 0, missed = 0, n_read = 0;
  pthread_t writer;
  assert_int_equal(pthread_create(&writer, NULL, write_all, log), 0);
  for (uint32_t turn = 0; cursor < N_STEPS; turn++) {
    uint32_t max = turn % 3 == 0 ? TD_STEP_LOG_RECORDS
                                 : 1 + turn % 50; /* reading the whole ring is most likely to be torn */
    uint32_t n = td_step_log_read(log, &cursor, out, max, &missed);
    for (uint32_t i = 0; i < n; i++)
      check_record(&out[i], cursor - n + 1 + i);
    n_read += n;
    assert_true(n_read + missed == cursor);
  }
  assert_int_equal(pthread_join(writer, NULL), 0);
  printf("%llu records read, %llu missed\n", (unsigned long long)n_read, (unsigned long long)missed);
  assert_true(n_read > 0);
  free(log);
}

/* The cost per step without a watcher. It is only printed, because a bound would depend on the machine. */
static void test_cost(void **state)
{
  td_step_log *log = make_log();
  struct timespec a, b;
  td_engine_step s = record_of(1);
  clock_gettime(CLOCK_MONOTONIC, &a);
  for (s.step = 1; s.step <= N_TIMED; s.step++)
    td_step_log_write(log, &s);
  clock_gettime(CLOCK_MONOTONIC, &b);
  printf("a record takes %.1f ns\n",
         ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / N_TIMED);
  assert_int_equal(atomic_load(&log->done), N_TIMED);
  free(log);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_in_turns), cmocka_unit_test(test_while_written),
                                     cmocka_unit_test(test_cost)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
