/* Worker threads: what may take longer than the loop can wait (JSON, templates, tokenising) runs here.
 *
 * A bounded queue in, an unbounded one out (it can hold no more than went in); `done` runs on the loop
 * thread. libuv's own pool is not used: it is shared with DNS and files and is not bounded. A job that has
 * begun cannot be stopped, so what jobs do is bounded by limits.def, and one that makes no progress is seen.
 *
 * Each job is somebody's (td_work). The next is of whoever has used the least worker time among those that
 * wait; who comes back from idleness begins where service is now (start-time fair queuing: Goyal, Vin,
 * Cheng, SIGCOMM 1996), and is charged what its jobs take, for nobody knows before. Large jobs of one leave
 * a worker to the others, if there are others. */
#ifndef TD_SERVER_WORKERS_H
#define TD_SERVER_WORKERS_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "common/status.h"

/* A job over so many bytes may take longer than others can wait for. */
enum { TD_WORK_LARGE_BYTES = 65536 };

typedef struct td_job td_job;
typedef struct td_work td_work;

/* Whose jobs these are: zeroed to begin with, and the workers' alone while it has jobs. */
struct td_work {
  td_job *first, *last;
  uint32_t n_queued, n_large; /* large: being run */
  uint64_t busy_us;           /* lifted to where service was when it came */
  td_work *next;              /* of those with jobs queued */
};

struct td_job {
  void (*run)(td_job *job);  /* on a worker */
  void (*done)(td_job *job); /* on the loop; may free the job */
  td_work *work;
  size_t n_bytes;
  td_job *next;
};

typedef struct td_workers td_workers;

TD_MUST_CHECK td_status td_workers_create(uv_loop_t *loop, uint32_t n_threads, uint32_t max_queued,
                                          td_workers **out, td_error *err);
/* [loop] TD_ERR_CAPACITY if the queue, or its share of it, is full. The job must live until done. others:
 * other people's jobs may come. */
TD_MUST_CHECK td_status td_workers_submit(td_workers *w, td_job *job, bool others, td_error *err);
/* [any] Has a job made no progress (common/progress.h) for longer than that? */
bool td_workers_are_stuck(td_workers *w, uint64_t stall_us);
/* [loop] Waits for running jobs, calls done for all (run for none that had not begun), closes the loop
 * handle. The loop must run once more before td_workers_destroy. */
void td_workers_stop(td_workers *w);
void td_workers_destroy(td_workers *w);

#endif
