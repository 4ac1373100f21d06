/* The threads of the CPU backend. They do one job at a time, split into tasks that any thread may take.
 *
 * One atomic word holds the job's generation, its number of tasks and the next task. A thread takes a task by
 * a compare-and-swap of this word. A thread that comes late sees another generation or no task left, and
 * touches nothing. The caller waits until all tasks are done, not for threads: a thread that the system has
 * paused delays the job only if it is inside a task. Workers spin briefly between jobs (a step is some
 * hundred jobs, microseconds apart) and sleep between steps. */
#ifndef TD_KERNELS_CPU_THREAD_POOL_H
#define TD_KERNELS_CPU_THREAD_POOL_H

#include <stdint.h>

#include "common/status.h"

typedef struct td_thread_pool td_thread_pool;
/* thread: 0 (the caller) .. n_threads - 1 */
typedef void td_thread_pool_fn(void *arg, uint32_t task, uint32_t thread);

/* n_threads includes the caller; 0: one per usable core (affinity and cgroup quota). */
TD_MUST_CHECK td_status td_thread_pool_create(uint32_t n_threads, td_thread_pool **out, td_error *err);
void td_thread_pool_destroy(td_thread_pool *pool); /* joins the workers; NULL is fine */
uint32_t td_thread_pool_threads(const td_thread_pool *pool);

/* Runs fn for tasks [0, n_tasks) and returns when all are done. Only one thread may call it. */
void td_thread_pool_run(td_thread_pool *pool, td_thread_pool_fn *fn, void *arg, uint32_t n_tasks);

/* Makes sleeping workers spin, because a job will come soon. */
void td_thread_pool_wake(td_thread_pool *pool);

#endif
