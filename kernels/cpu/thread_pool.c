/* See thread_pool.h. */
#include "kernels/cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/cores.h"

enum { SPIN_US = 60, SPINS_BEFORE_YIELD = 500, TASK_BITS = 20, TASK_MASK = (1 << TASK_BITS) - 1 };

typedef struct worker {
  td_thread_pool *pool;
  uint32_t index;
  pthread_t thread;
} worker;

struct td_thread_pool {
  /* generation << 40 | n_tasks << 20 | next task */
  _Alignas(64) _Atomic uint64_t job_word;
  _Alignas(64) _Atomic uint32_t n_done;
  _Alignas(64) td_thread_pool_fn *fn; /* of the current job: only for threads that hold one of its tasks */
  void *arg;
  _Atomic uint32_t n_sleeping;
  _Atomic uint32_t n_wakes; /* calls of td_thread_pool_wake, so that sleepers notice one and spin again */
  _Atomic bool stop;
  uint32_t n_threads, n_started;
  worker *workers;
  pthread_mutex_t lock;
  pthread_cond_t wake;
};

static inline void relax(void)
{
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static bool has_task(uint64_t job_word)
{
  return (job_word & TASK_MASK) < (job_word >> TASK_BITS & TASK_MASK);
}

/* Runs tasks of the current job while there are any. */
static void work(td_thread_pool *p, uint32_t thread)
{
  uint64_t job_word = atomic_load(&p->job_word);
  while (has_task(job_word)) {
    if (!atomic_compare_exchange_weak(&p->job_word, &job_word, job_word + 1))
      continue;
    p->fn(p->arg, (uint32_t)(job_word & TASK_MASK), thread);
    atomic_fetch_add(&p->n_done, 1);
    job_word = atomic_load(&p->job_word);
  }
}

static bool has_work(td_thread_pool *p)
{
  return has_task(atomic_load(&p->job_word)) || atomic_load(&p->stop);
}

/* Returns true if there is something to do, or false after SPIN_US without work. */
static bool spin(td_thread_pool *p)
{
  uint64_t end = td_clock_us() + SPIN_US;
  do {
    for (int i = 0; i < 32; i++) {
      if (has_work(p))
        return true;
      relax();
    }
  } while (td_clock_us() < end);
  return false;
}

static void *worker_main(void *arg)
{
  worker *w = arg;
  td_thread_pool *p = w->pool;
  while (!atomic_load(&p->stop)) {
    work(p, w->index);
    uint32_t wakes = atomic_load(&p->n_wakes);
    if (spin(p))
      continue;
    /* Both sides are sequentially consistent: either the caller sees n_sleeping, or this thread sees its
     * job. */
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->n_sleeping, 1);
    while (!has_work(p) && atomic_load(&p->n_wakes) == wakes)
      pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->n_sleeping, 1);
    pthread_mutex_unlock(&p->lock);
  }
  return NULL;
}

static void wake_sleepers(td_thread_pool *p)
{
  if (atomic_load(&p->n_sleeping) == 0)
    return;
  pthread_mutex_lock(&p->lock);
  pthread_cond_broadcast(&p->wake);
  pthread_mutex_unlock(&p->lock);
}

void td_thread_pool_wake(td_thread_pool *p)
{
  atomic_fetch_add(&p->n_wakes, 1);
  wake_sleepers(p);
}

void td_thread_pool_run(td_thread_pool *p, td_thread_pool_fn *fn, void *arg, uint32_t n_tasks)
{
  TD_BUG_ON(n_tasks > TASK_MASK);
  if (p->n_threads == 1 || n_tasks <= 1) {
    for (uint32_t i = 0; i < n_tasks; i++)
      fn(arg, i, 0);
    return;
  }
  p->fn = fn;
  p->arg = arg;
  atomic_store(&p->n_done, 0);
  uint64_t generation = (atomic_load(&p->job_word) >> 2 * TASK_BITS) + 1;
  atomic_store(&p->job_word, generation << 2 * TASK_BITS | (uint64_t)n_tasks << TASK_BITS);
  wake_sleepers(p);
  work(p, 0);
  for (uint32_t spins = 0; atomic_load(&p->n_done) < n_tasks; spins++) {
    relax();
    if (spins > SPINS_BEFORE_YIELD) /* the worker may need this core */
      sched_yield();
  }
}

td_status td_thread_pool_create(uint32_t n_threads, td_thread_pool **out, td_error *err)
{
  n_threads = n_threads ? n_threads : td_usable_cores();
  td_thread_pool *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
  if (!p)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the thread pool");
  memset(p, 0, sizeof *p);
  p->n_threads = n_threads;
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->wake, NULL);
  p->workers = calloc(n_threads, sizeof *p->workers);
  if (!p->workers) {
    td_thread_pool_destroy(p);
    return td_fail(err, TD_ERR_NOMEM, "no memory for %u threads", n_threads);
  }
  for (uint32_t i = 1; i < n_threads; i++) {
    worker *w = &p->workers[i];
    *w = (worker){.pool = p, .index = i};
    int e = pthread_create(&w->thread, NULL, worker_main, w);
    if (e) {
      td_thread_pool_destroy(p);
      return td_fail(err, TD_ERR_NOMEM, "cannot start compute thread %u of %u: %s", i, n_threads,
                     strerror(e));
    }
    p->n_started = i;
  }
  *out = p;
  return TD_OK;
}

void td_thread_pool_destroy(td_thread_pool *p)
{
  if (!p)
    return;
  pthread_mutex_lock(&p->lock);
  atomic_store(&p->stop, true);
  pthread_cond_broadcast(&p->wake);
  pthread_mutex_unlock(&p->lock);
  for (uint32_t i = 1; i <= p->n_started; i++)
    pthread_join(p->workers[i].thread, NULL);
  pthread_cond_destroy(&p->wake);
  pthread_mutex_destroy(&p->lock);
  free(p->workers);
  free(p);
}

uint32_t td_thread_pool_threads(const td_thread_pool *p) { return p->n_threads; }
