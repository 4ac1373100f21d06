/* The thread pool: every task runs once, all are done at return, workers sleep and wake. Also for TSan. */
#include "kernels_fixture.h"

#include <stdatomic.h>
#include <time.h>

#include "common/cores.h"
#include "kernels/cpu/thread_pool.h"

enum { TASKS = 1000 };

typedef struct job {
  uint32_t plain[TASKS]; /* not atomic: a task touched twice at once is a race */
  _Atomic uint32_t n_threads_seen[64];
} job;

static void count(void *arg, uint32_t task, uint32_t thread)
{
  job *j = arg;
  j->plain[task]++;
  atomic_fetch_add(&j->n_threads_seen[thread], 1);
}

static void pause_ms(int ms)
{
  struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
  nanosleep(&t, NULL);
}

static void test_every_task_once(void **state)
{
  for (uint32_t n_threads = 1; n_threads <= 5; n_threads++) {
    td_thread_pool *pool;
    assert_int_equal(td_thread_pool_create(n_threads, &pool, NULL), TD_OK);
    assert_int_equal(td_thread_pool_threads(pool), n_threads);
    static job j;
    memset(&j, 0, sizeof j);
    for (uint32_t round = 1; round <= 2000; round++) {
      uint32_t n = fx_below(8) ? fx_below(20) : TASKS;
      uint32_t before[TASKS];
      memcpy(before, j.plain, sizeof before);
      td_thread_pool_run(pool, count, &j, n);
      for (uint32_t i = 0; i < TASKS; i++)
        assert_int_equal(j.plain[i], before[i] + (i < n));
      if (round % 200 == 0) { /* long enough for the workers to sleep */
        pause_ms(2);
        if (round % 400 == 0)
          td_thread_pool_wake(pool);
      }
    }
    td_thread_pool_destroy(pool);
  }
}

static void wait_a_little(void *arg, uint32_t task, uint32_t thread)
{
  pause_ms(3);
  atomic_fetch_add(&((job *)arg)->n_threads_seen[thread], 1);
}

static void test_workers_take_part_and_then_sleep(void **state)
{
  td_thread_pool *pool;
  static job j;
  memset(&j, 0, sizeof j);
  assert_int_equal(td_thread_pool_create(3, &pool, NULL), TD_OK);
  pause_ms(20);
  td_thread_pool_run(pool, wait_a_little, &j, 60);
  for (int i = 0; i < 3; i++)
    assert_true(atomic_load(&j.n_threads_seen[i]) > 0);
  pause_ms(20);
  struct timespec before, after;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  pause_ms(200);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  double used = (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
  assert_true(used < 0.02);
  td_thread_pool_destroy(pool);
}

static void test_usable_cores(void **state)
{
  uint32_t n = td_usable_cores();
  assert_true(n >= 1 && n <= 4096);
  td_thread_pool *pool;
  assert_int_equal(td_thread_pool_create(0, &pool, NULL), TD_OK);
  assert_int_equal(td_thread_pool_threads(pool), n);
  td_thread_pool_destroy(pool);
  td_thread_pool_destroy(NULL);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_task_once),
      cmocka_unit_test(test_workers_take_part_and_then_sleep),
      cmocka_unit_test(test_usable_cores),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
