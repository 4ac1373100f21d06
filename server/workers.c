/* Worker threads: see workers.h. */
#include "server/workers.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/progress.h"
#include "config/share.h"

typedef struct worker {
  td_workers *workers;
  pthread_t thread;
  td_job *job;         /* running; NULL: none */
  uint64_t counted_us; /* its tenant was charged up to then */
  td_progress progress;
} worker;

struct td_workers {
  pthread_mutex_t lock; /* guards all below, and every td_work with jobs */
  pthread_cond_t more;
  td_work *first, *last; /* those with queued jobs, in order of arrival */
  td_job *finished, **finished_end;
  bool stopping, others;
  bool is_waking; /* a worker was signalled but has not woken up yet; it will signal the next */
  uint32_t n_queued, n_running, n_waiting, max_queued, n_threads;
  uint64_t service_us; /* the virtual time of SFQ: busy_us of the tenant that was picked last */
  uint64_t most_us;    /* the largest busy_us of any tenant */
  worker *threads;
  uv_async_t wake;
};

static bool is_large(const td_job *job) { return job->n_bytes > TD_WORK_LARGE_BYTES; }

/* ---- choosing the next job; all under lock ---- */

static void finish(td_workers *w, td_job *job)
{
  job->next = NULL;
  *w->finished_end = job;
  w->finished_end = &job->next;
}

static void push(td_workers *w, td_job *job)
{
  td_work *work = job->work;
  if (w->n_queued + w->n_running == 0)
    w->service_us = w->most_us; /* the workers were idle: all start equal */
  job->next = NULL;
  *(work->first ? &work->last->next : &work->first) = job;
  work->last = job;
  w->n_queued++;
  if (work->n_queued++ > 0)
    return;
  if (work->busy_us < w->service_us)
    work->busy_us = w->service_us;
  work->next = NULL;
  *(w->first ? &w->last->next : &w->first) = work;
  w->last = work;
}

static td_job *pop(td_workers *w, td_work *work, td_work *before)
{
  td_job *job = work->first;
  work->first = job->next;
  w->n_queued--;
  if (--work->n_queued == 0) {
    *(before ? &before->next : &w->first) = work->next;
    if (w->last == work)
      w->last = before;
  }
  return job;
}

/* Charges the tenants of running jobs for the time since the last charge. */
static void charge(td_workers *w)
{
  uint64_t now = td_clock_us();
  for (uint32_t i = 0; i < w->n_threads; i++) {
    worker *t = &w->threads[i];
    if (!t->job)
      continue;
    td_work *work = t->job->work;
    work->busy_us += now - t->counted_us;
    t->counted_us = now;
    if (work->busy_us > w->most_us)
      w->most_us = work->busy_us;
  }
}

static bool must_wait(const td_workers *w, const td_work *work)
{
  return w->others && is_large(work->first) && w->n_threads > 1 && work->n_large + 1 >= w->n_threads;
}

/* The next job for a worker, or NULL. Linear in the number of tenants with queued jobs. */
static td_job *pick(td_workers *w)
{
  td_work *best = NULL, *before_best = NULL;
  charge(w);
  for (td_work *work = w->first, *before = NULL; work; before = work, work = work->next)
    if (!must_wait(w, work) && (!best || work->busy_us < best->busy_us)) {
      best = work;
      before_best = before;
    }
  if (!best)
    return NULL;
  if (w->service_us < best->busy_us)
    w->service_us = best->busy_us;
  return pop(w, best, before_best);
}

static void begin(td_workers *w, worker *t, td_job *job)
{
  t->job = job;
  t->counted_us = td_clock_us();
  td_progress_touch(&t->progress);
  job->work->n_large += is_large(job);
  w->n_running++;
}

static void end(td_workers *w, worker *t)
{
  td_job *job = t->job;
  charge(w);
  t->job = NULL;
  job->work->n_large -= is_large(job);
  w->n_running--;
  finish(w, job);
}

/* ---- threads ---- */

/* Whether the caller must signal a worker after it has released the lock. Only one worker is woken at a
 * time: a signal costs the loop more than most jobs cost a worker. A woken worker that leaves jobs behind
 * signals the next. */
static bool calls_worker(td_workers *w)
{
  if (w->is_waking || w->n_waiting == 0 || !w->first)
    return false;
  w->is_waking = true;
  return true;
}

static void wait_for_jobs(td_workers *w)
{
  w->n_waiting++;
  pthread_cond_wait(&w->more, &w->lock);
  w->n_waiting--;
  w->is_waking = false;
}

static void *worker_main(void *arg)
{
  worker *t = arg;
  td_workers *w = t->workers;
  td_job *job = NULL;
  td_progress_here = &t->progress;
  pthread_mutex_lock(&w->lock);
  for (;;) {
    while (!w->stopping && !(job = pick(w)))
      wait_for_jobs(w);
    if (w->stopping)
      break;
    begin(w, t, job);
    bool calls = calls_worker(w); /* later jobs of this tenant may run now */
    pthread_mutex_unlock(&w->lock);
    if (calls)
      pthread_cond_signal(&w->more);
    job->run(job);
    pthread_mutex_lock(&w->lock);
    end(w, t);
    uv_async_send(&w->wake);
  }
  pthread_mutex_unlock(&w->lock);
  return NULL;
}

/* [loop] Takes the whole list first, because `done` may submit again. */
static void finish_jobs(td_workers *w)
{
  pthread_mutex_lock(&w->lock);
  td_job *job = w->finished;
  w->finished = NULL;
  w->finished_end = &w->finished;
  pthread_mutex_unlock(&w->lock);
  while (job) {
    td_job *next = job->next;
    job->done(job);
    job = next;
  }
}

static void on_wake(uv_async_t *a) { finish_jobs(a->data); }

td_status td_workers_create(uv_loop_t *loop, uint32_t n_threads, uint32_t max_queued, td_workers **out,
                            td_error *err)
{
  *out = NULL;
  td_workers *w = calloc(1, sizeof *w);
  worker *threads = calloc(n_threads, sizeof *threads);
  if (!w || !threads) {
    free(w);
    free(threads);
    return td_fail(err, TD_ERR_NOMEM, "no memory for worker threads");
  }
  w->threads = threads;
  w->max_queued = max_queued;
  w->finished_end = &w->finished;
  pthread_mutex_init(&w->lock, NULL);
  pthread_cond_init(&w->more, NULL);
  w->wake.data = w;
  if (uv_async_init(loop, &w->wake, on_wake) != 0) {
    free(w->threads);
    free(w);
    return td_fail(err, TD_ERR_IO, "no event handle for worker threads");
  }
  for (uint32_t i = 0; i < n_threads; i++) {
    threads[i].workers = w;
    if (pthread_create(&threads[i].thread, NULL, worker_main, &threads[i]) != 0) {
      td_fail(err, TD_ERR_NOMEM, "cannot start worker thread %u: no memory for it, or too many threads", i);
      td_workers_stop(w);
      uv_run(loop, UV_RUN_NOWAIT);
      td_workers_destroy(w);
      return TD_ERR_NOMEM;
    }
    pthread_mutex_lock(&w->lock);
    w->n_threads++;
    pthread_mutex_unlock(&w->lock);
  }
  *out = w;
  return TD_OK;
}

td_status td_workers_submit(td_workers *w, td_job *job, bool others, td_error *err)
{
  pthread_mutex_lock(&w->lock);
  bool full = w->n_queued >= w->max_queued || w->stopping;
  uint32_t n_of_tenant = job->work->n_queued;
  bool refused = full || (others && !td_share_allows(w->max_queued, w->n_queued, n_of_tenant, 1));
  w->others = others;
  if (!refused)
    push(w, job);
  bool calls = !refused && calls_worker(w);
  pthread_mutex_unlock(&w->lock);
  if (full)
    return td_fail(err, TD_ERR_CAPACITY, "too many requests are waiting to be read");
  if (refused)
    return td_fail(err, TD_ERR_CAPACITY,
                   "your requests already take %u of %u places among those that wait to be read", n_of_tenant,
                   w->max_queued);
  if (calls)
    pthread_cond_signal(&w->more);
  return TD_OK;
}

bool td_workers_are_stuck(td_workers *w, uint64_t stall_us)
{
  uint64_t now = td_clock_us();
  bool stuck = false;
  pthread_mutex_lock(&w->lock);
  for (uint32_t i = 0; i < w->n_threads; i++) {
    worker *t = &w->threads[i];
    stuck |= t->job && now > atomic_load(&t->progress.at_us) + stall_us;
  }
  pthread_mutex_unlock(&w->lock);
  return stuck;
}

void td_workers_stop(td_workers *w)
{
  pthread_mutex_lock(&w->lock);
  w->stopping = true;
  pthread_cond_broadcast(&w->more);
  pthread_mutex_unlock(&w->lock);
  for (uint32_t i = 0; i < w->n_threads; i++)
    pthread_join(w->threads[i].thread, NULL);
  while (w->first)
    finish(w, pop(w, w->first, NULL));
  finish_jobs(w);
  uv_close((uv_handle_t *)&w->wake, NULL);
}

void td_workers_destroy(td_workers *w)
{
  if (!w)
    return;
  pthread_mutex_destroy(&w->lock);
  pthread_cond_destroy(&w->more);
  free(w->threads);
  free(w);
}
