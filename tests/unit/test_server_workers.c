/* Workers: whose job is next, and what large jobs leave to others. Jobs wait at gates, so that the order
 * does not depend on time. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/progress.h"
#include "server/server.h"
#include "server/workers.h"

enum { LARGE = TD_WORK_LARGE_BYTES + 1, JOBS = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static char order[JOBS + 1]; /* the jobs' names as they began */
static int n_begun, n_done;

typedef struct job {
  td_job base;
  char name;
  bool open; /* under lock: it may end */
  uint64_t ms;
} job;

static void run(td_job *base)
{
  job *j = (job *)base;
  if (j->ms > 0)
    usleep((useconds_t)(j->ms * 1000));
  pthread_mutex_lock(&lock);
  order[n_begun++] = j->name;
  pthread_cond_broadcast(&moved);
  while (!j->open)
    pthread_cond_wait(&moved, &lock);
  pthread_mutex_unlock(&lock);
}

static void done(td_job *base) { n_done++; }

static void open_gate(job *j)
{
  pthread_mutex_lock(&lock);
  j->open = true;
  pthread_cond_broadcast(&moved);
  pthread_mutex_unlock(&lock);
}

static void until_begun(int n)
{
  pthread_mutex_lock(&lock);
  while (n_begun < n)
    pthread_cond_wait(&moved, &lock);
  pthread_mutex_unlock(&lock);
}

typedef struct world {
  uv_loop_t loop;
  td_workers *w;
} world;

static void begin(world *d, uint32_t n_threads, uint32_t max_queued)
{
  td_error err;
  n_begun = n_done = 0;
  order[0] = order[JOBS] = '\0';
  assert_int_equal(uv_loop_init(&d->loop), 0);
  assert_int_equal(td_workers_create(&d->loop, n_threads, max_queued, &d->w, &err), TD_OK);
}

static void end(world *d)
{
  td_workers_stop(d->w);
  uv_run(&d->loop, UV_RUN_DEFAULT);
  td_workers_destroy(d->w);
  assert_int_equal(uv_loop_close(&d->loop), 0);
}

static td_status submit(world *d, job *j, td_work *of, char name, size_t n_bytes, bool others)
{
  td_error err;
  j->base = (td_job){.run = run, .done = done, .work = of, .n_bytes = n_bytes};
  j->name = name;
  return td_workers_submit(d->w, &j->base, others, &err);
}

static void until_done(world *d, int n)
{
  while (n_done < n)
    uv_run(&d->loop, UV_RUN_ONCE);
  order[n_begun] = '\0';
}

/* The tenant that has used the worker comes after all jobs of the one that has not. */
static void test_least_served_is_next(void **state)
{
  world d;
  td_work a = {0}, b = {0};
  job jobs[7] = {0};
  begin(&d, 1, 64);
  for (int i = 0; i < 7; i++)
    jobs[i].open = i > 0;
  jobs[0].ms = 300; /* b's three small ones take much less */
  for (int i = 0; i < 4; i++)
    assert_int_equal(submit(&d, &jobs[i], &a, 'a', 10, true), TD_OK);
  until_begun(1);
  for (int i = 4; i < 7; i++)
    assert_int_equal(submit(&d, &jobs[i], &b, 'b', 10, true), TD_OK);
  open_gate(&jobs[0]);
  until_done(&d, 7);
  assert_string_equal(order, "abbbaaa");
  end(&d);
}

/* Idleness gives no credit: work that a used while there was no other tenant does not put it behind. */
static void test_past_use_is_forgotten(void **state)
{
  world d;
  td_work a = {0}, b = {0};
  job first = {.open = true, .ms = 100}, jobs[3] = {{.open = false}, {.open = true}, {.open = true}};
  begin(&d, 1, 64);
  assert_int_equal(submit(&d, &first, &a, '-', 10, true), TD_OK);
  until_done(&d, 1);
  td_work gate = {0};
  assert_int_equal(submit(&d, &jobs[0], &gate, 'g', 10, true), TD_OK);
  until_begun(2);
  assert_int_equal(submit(&d, &jobs[1], &a, 'a', 10, true), TD_OK);
  assert_int_equal(submit(&d, &jobs[2], &b, 'b', 10, true), TD_OK);
  open_gate(&jobs[0]);
  until_done(&d, 4);
  assert_string_equal(order, "-gab");
  end(&d);
}

static void test_large_jobs_leave_a_worker(void **state)
{
  world d;
  td_work a = {0}, b = {0};
  job large[3] = {0}, small = {.open = true}, own = {.open = true};
  begin(&d, 2, 64);
  for (int i = 0; i < 3; i++)
    assert_int_equal(submit(&d, &large[i], &a, 'A', LARGE, true), TD_OK);
  until_begun(1);
  assert_int_equal(submit(&d, &small, &b, 'b', 10, true), TD_OK);
  until_begun(2); /* or the test hangs */
  assert_int_equal(order[1], 'b');
  assert_int_equal(submit(&d, &own, &a, 'a', 10, true), TD_OK); /* small, but after a's own large ones */
  until_done(&d, 1);
  usleep(20000);
  assert_int_equal(n_begun, 2);
  open_gate(&large[0]);
  until_begun(3);
  usleep(20000);
  assert_int_equal(n_begun, 3);
  assert_memory_equal(order, "AbA",
                      3); /* the third large one waits for the second, and a's own small one for both */
  open_gate(&large[1]);
  until_begun(5); /* two workers: these two begin in any order */
  open_gate(&large[2]);
  until_done(&d, 5);
  end(&d);
}

static void test_one_alone_has_all_workers(void **state)
{
  world d;
  td_work a = {0};
  job large[2] = {0};
  begin(&d, 2, 64);
  for (int i = 0; i < 2; i++)
    assert_int_equal(submit(&d, &large[i], &a, 'A', LARGE, false), TD_OK);
  until_begun(2); /* or the test hangs */
  for (int i = 0; i < 2; i++)
    open_gate(&large[i]);
  until_done(&d, 2);
  end(&d);
}

/* If there are other tenants, three quarters; jobs that did not start are finished without running. */
static void test_queue_has_shares(void **state)
{
  world d;
  td_work a = {0}, b = {0};
  job first = {0}, jobs[8] = {0}, extra = {0};
  begin(&d, 1, 8);
  assert_int_equal(submit(&d, &first, &a, 'a', 10, true), TD_OK);
  until_begun(1);
  for (int i = 0; i < 6; i++)
    assert_int_equal(submit(&d, &jobs[i], &a, 'a', 10, true), TD_OK);
  assert_int_equal(submit(&d, &extra, &a, 'a', 10, true), TD_ERR_CAPACITY);
  assert_int_equal(submit(&d, &jobs[6], &b, 'b', 10, true), TD_OK);
  assert_int_equal(submit(&d, &jobs[7], &a, 'a', 10, false), TD_OK);
  assert_int_equal(submit(&d, &extra, &a, 'a', 10, false), TD_ERR_CAPACITY);
  open_gate(&first);
  for (int i = 0; i < 8; i++)
    open_gate(&jobs[i]);
  end(&d);
  assert_int_equal(n_done, 9);
}

/* A small job after large ones of its own tenant runs on the worker that large ones must leave free, as soon
 * as it is first. */
static void test_a_small_job_does_not_wait_for_large_ones(void **state)
{
  world d;
  td_work a = {0};
  job first = {0}, second = {0}, small = {0};
  begin(&d, 2, 8);
  assert_int_equal(submit(&d, &first, &a, 'L', LARGE, true), TD_OK);
  until_begun(1);
  assert_int_equal(submit(&d, &second, &a, 'M', LARGE, true), TD_OK);
  assert_int_equal(submit(&d, &small, &a, 's', 10, true), TD_OK);
  usleep(20000); /* the other worker has looked, and found the large job first */
  open_gate(&first);
  until_begun(3);
  open_gate(&small);
  until_done(&d, 2);
  open_gate(&second);
  until_done(&d, 3);
  end(&d);
}

/* A job that reports progress is never stuck, however long it takes; one that does not is. */
static void count(td_job *base)
{
  for (int i = 0; i < 120; i++) {
    td_progress_add(TD_PROGRESS_UNITS / 2);
    td_progress_add(TD_PROGRESS_UNITS / 2);
    usleep(5000);
  }
}

static void test_stuck_jobs_are_seen(void **state)
{
  world d;
  td_work a = {0};
  job j = {0};
  begin(&d, 2, 8);
  assert_false(td_workers_are_stuck(d.w, 0));
  assert_int_equal(submit(&d, &j, &a, 'a', 1 << 20, true), TD_OK);
  until_begun(1);
  usleep(30000);
  assert_true(td_workers_are_stuck(d.w, 20000));
  assert_false(td_workers_are_stuck(d.w, 1000000000));
  open_gate(&j);
  until_done(&d, 1);
  assert_false(td_workers_are_stuck(d.w, 0));

  td_job busy = {.run = count, .done = done, .work = &a, .n_bytes = 1 << 20};
  td_error err;
  assert_int_equal(td_workers_submit(d.w, &busy, false, &err), TD_OK);
  for (int n = n_done; n_done == n;) {
    assert_false(td_workers_are_stuck(d.w, 300000)); /* it takes 600 ms */
    uv_run(&d.loop, UV_RUN_NOWAIT);
    usleep(1000);
  }
  end(&d);
}

/* Health tells of it after health_stall_ms. */
static void test_health_tells_of_a_stuck_job(void **state)
{
  static td_options options;
  world d;
  td_work a = {0};
  job j = {0};
  begin(&d, 2, 8);
  td_server *s = calloc(1, sizeof *s);
  assert_non_null(s);
  td_options_init(&options);
  options.limit[TD_LIMIT_HEALTH_STALL_MS] = 100;
  s->options = &options;
  s->workers = d.w;
  s->engine_state = TD_ENGINE_LOADING;
  assert_int_equal(submit(&d, &j, &a, 'a', 10, false), TD_OK);
  until_begun(1);
  assert_null(td_server_unhealthy_reason(s));
  usleep(150000);
  assert_string_equal(td_server_unhealthy_reason(s), "workers: a job is stuck");
  open_gate(&j);
  until_done(&d, 1);
  assert_null(td_server_unhealthy_reason(s));
  free(s);
  end(&d);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_least_served_is_next),
      cmocka_unit_test(test_past_use_is_forgotten),
      cmocka_unit_test(test_large_jobs_leave_a_worker),
      cmocka_unit_test(test_one_alone_has_all_workers),
      cmocka_unit_test(test_queue_has_shares),
      cmocka_unit_test(test_a_small_job_does_not_wait_for_large_ones),
      cmocka_unit_test(test_stuck_jobs_are_seen),
      cmocka_unit_test(test_health_tells_of_a_stuck_job),
  };
  return cmocka_run_group_tests_name("server workers", tests, NULL, NULL);
}
