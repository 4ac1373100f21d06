/* Worker threads: run what may take longer than the loop can wait (JSON, templates, tokenising).
 *
 * Jobs enter through a bounded queue. Finished jobs return through a list, and `done` is called on the loop
 * thread. We do not use libuv's pool, because DNS and files share it and it is unbounded. A job that has
 * begun cannot be stopped. Therefore limits.def bounds what jobs do, and a job that makes no progress is
 * detected.
 *
 * Each job belongs to a tenant's td_work. The next job is of the tenant that has used the least worker time.
 * A tenant that was idle starts at the current level of service (start-time fair queuing: Goyal, Vin, Cheng,
 * SIGCOMM 1996). Tenants are charged while jobs run, because nobody knows beforehand what a job costs. If
 * there are several tenants, the large jobs of one leave a worker free for the others. */
#ifndef TD_SERVER_WORKERS_H
#define TD_SERVER_WORKERS_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "common/status.h"

/* A job with more bytes than this may take longer than other tenants should wait. */
enum { TD_WORK_LARGE_BYTES = 65536 };

typedef struct td_job td_job;
typedef struct td_work td_work;

/* The jobs of one tenant. Zero it before use. While it has jobs, only the workers may access it. */
struct td_work {
  td_job *first, *last;
  uint32_t n_queued, n_large; /* n_large: how many of its large jobs are running */
  uint64_t busy_us;           /* worker time used; raised to service_us after it was idle */
  td_work *next;              /* in the list of those with queued jobs */
};

struct td_job {
  void (*run)(td_job *job);  /* on a worker thread */
  void (*done)(td_job *job); /* on the loop thread; may free the job */
  td_work *work;
  size_t n_bytes;
  td_job *next;
};

typedef struct td_workers td_workers;

TD_MUST_CHECK td_status td_workers_create(uv_loop_t *loop, uint32_t n_threads, uint32_t max_queued,
                                          td_workers **out, td_error *err);
/* [loop] Returns TD_ERR_CAPACITY if the queue, or this tenant's share of it, is full. The job must live
 * until `done`. others: there are other tenants. */
TD_MUST_CHECK td_status td_workers_submit(td_workers *w, td_job *job, bool others, td_error *err);
/* [any thread] Whether a job has made no progress (common/progress.h) for longer than stall_us. */
bool td_workers_are_stuck(td_workers *w, uint64_t stall_us);
/* [loop] Waits for running jobs, calls `done` for all jobs (without `run` for those that had not begun) and
 * closes the loop handle. The loop must run once more before td_workers_destroy. */
void td_workers_stop(td_workers *w);
void td_workers_destroy(td_workers *w);

#endif
