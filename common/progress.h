/* Progress of a job on this thread, so that a watchdog on another can tell a job that takes its time from one
 * that is stuck.
 *
 * Loops that a client's bytes can make long count what they do (td_progress_add). Every so many units the
 * time is noted; who watches reads only that. Where nobody watches, counting is a test of one pointer. */
#ifndef TD_COMMON_PROGRESS_H
#define TD_COMMON_PROGRESS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { TD_PROGRESS_UNITS = 4096 }; /* of at most a microsecond, between two looks at the clock */

typedef struct td_progress {
  size_t n_units;         /* since the last note; its thread's alone */
  _Atomic uint64_t at_us; /* CLOCK_MONOTONIC of the last note */
} td_progress;

/* Of the job that this thread runs; NULL: nobody watches. */
extern _Thread_local td_progress *td_progress_here;

/* [its thread] Notes the time now: a job begins, or a part of it that counts nothing has ended. */
void td_progress_note(td_progress *p);

static inline void td_progress_add(size_t n_units)
{
  td_progress *p = td_progress_here;
  if (p && (p->n_units += n_units) >= TD_PROGRESS_UNITS)
    td_progress_note(p);
}

#endif
