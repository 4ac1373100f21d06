/* Worker threads: see workers.h. */
#include "server/workers.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

typedef struct job_list {
  td_job *first, **last;
  uint32_t n;
} job_list;

struct td_workers {
  pthread_mutex_t lock;
  pthread_cond_t more;
  job_list queued, finished; /* under lock */
  bool stopping;             /* under lock */
  uint32_t max_queued, n_threads;
  pthread_t *threads;
  uv_async_t wake;
};

static void list_init(job_list *l)
{
  l->first = NULL;
  l->last = &l->first;
  l->n = 0;
}

static void list_push(job_list *l, td_job *job)
{
  job->next = NULL;
  *l->last = job;
  l->last = &job->next;
  l->n++;
}

static td_job *list_pop(job_list *l)
{
  td_job *job = l->first;
  l->first = job->next;
  if (!l->first)
    l->last = &l->first;
  l->n--;
  return job;
}

static void *worker_main(void *arg)
{
  td_workers *w = arg;
  pthread_mutex_lock(&w->lock);
  for (;;) {
    while (!w->stopping && !w->queued.first)
      pthread_cond_wait(&w->more, &w->lock);
    if (w->stopping)
      break;
    td_job *job = list_pop(&w->queued);
    pthread_mutex_unlock(&w->lock);
    job->run(job);
    pthread_mutex_lock(&w->lock);
    list_push(&w->finished, job);
    uv_async_send(&w->wake);
  }
  pthread_mutex_unlock(&w->lock);
  return NULL;
}

/* [loop] The list is taken whole: `done` may submit again. */
static void finish_jobs(td_workers *w)
{
  pthread_mutex_lock(&w->lock);
  td_job *job = w->finished.first;
  list_init(&w->finished);
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
  pthread_t *threads = calloc(n_threads, sizeof *threads);
  if (!w || !threads) {
    free(w);
    free(threads);
    return td_fail(err, TD_ERR_NOMEM, "no memory for worker threads");
  }
  w->threads = threads;
  w->max_queued = max_queued;
  list_init(&w->queued);
  list_init(&w->finished);
  pthread_mutex_init(&w->lock, NULL);
  pthread_cond_init(&w->more, NULL);
  w->wake.data = w;
  if (uv_async_init(loop, &w->wake, on_wake) != 0) {
    free(w->threads);
    free(w);
    return td_fail(err, TD_ERR_IO, "no event handle for worker threads");
  }
  for (; w->n_threads < n_threads; w->n_threads++)
    if (pthread_create(&w->threads[w->n_threads], NULL, worker_main, w) != 0) {
      td_fail(err, TD_ERR_IO, "cannot start worker thread %u", w->n_threads);
      td_workers_stop(w);
      uv_run(loop, UV_RUN_NOWAIT);
      td_workers_destroy(w);
      return TD_ERR_IO;
    }
  *out = w;
  return TD_OK;
}

td_status td_workers_submit(td_workers *w, td_job *job, td_error *err)
{
  pthread_mutex_lock(&w->lock);
  bool full = w->queued.n >= w->max_queued || w->stopping;
  if (!full)
    list_push(&w->queued, job);
  pthread_mutex_unlock(&w->lock);
  if (full)
    return td_fail(err, TD_ERR_CAPACITY, "too many requests are waiting to be read");
  pthread_cond_signal(&w->more);
  return TD_OK;
}

void td_workers_stop(td_workers *w)
{
  pthread_mutex_lock(&w->lock);
  w->stopping = true;
  pthread_cond_broadcast(&w->more);
  pthread_mutex_unlock(&w->lock);
  for (uint32_t i = 0; i < w->n_threads; i++)
    pthread_join(w->threads[i], NULL);
  while (w->queued.first)
    list_push(&w->finished, list_pop(&w->queued));
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
