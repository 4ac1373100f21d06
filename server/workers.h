/* Worker threads: what may take longer than the loop can wait (JSON, templates, tokenising) runs here.
 *
 * A bounded queue in, an unbounded one out (it can hold no more than went in); `done` runs on the loop thread. libuv's own
 * pool is not used: it is shared with DNS and files and is not bounded. A job that has begun cannot be stopped, so
 * what jobs do is bounded by limits.def. */
#ifndef TD_SERVER_WORKERS_H
#define TD_SERVER_WORKERS_H

#include <stdint.h>
#include <uv.h>

#include "config/status.h"

typedef struct td_job td_job;
struct td_job {
  void (*run)(td_job *job);  /* on a worker */
  void (*done)(td_job *job); /* on the loop; may free the job */
  td_job *next;
};

typedef struct td_workers td_workers;

TD_MUST_CHECK td_status td_workers_create(uv_loop_t *loop, uint32_t n_threads, uint32_t max_queued, td_workers **out,
                                          td_error *err);
/* [loop] TD_ERR_CAPACITY if the queue is full. The job must live until done. */
TD_MUST_CHECK td_status td_workers_submit(td_workers *w, td_job *job, td_error *err);
/* [loop] Waits for running jobs, calls done for all (run for none that had not begun), closes the loop handle. The loop
 * must run once more before td_workers_destroy. */
void td_workers_stop(td_workers *w);
void td_workers_destroy(td_workers *w);

#endif
