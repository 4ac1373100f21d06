/* Progress of the job on this thread, so that a watchdog on another thread can distinguish a long job from
 * one that is stuck.
 *
 * Loops whose length depends on a client's bytes count their work (td_progress_add). After every
 * TD_PROGRESS_UNITS units the thread stores the time, and the watchdog reads only that time. Without a
 * watchdog, counting costs one test of a pointer. */
#ifndef TD_COMMON_PROGRESS_H
#define TD_COMMON_PROGRESS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* units, of at most a microsecond each, between two readings of the clock */
enum { TD_PROGRESS_UNITS = 4096 };

typedef struct td_progress {
  size_t n_units;         /* since at_us was stored; used by the job's thread only */
  _Atomic uint64_t at_us; /* CLOCK_MONOTONIC of the last sign of progress */
} td_progress;

/* The progress of the job on this thread. NULL: it has no watchdog. */
extern _Thread_local td_progress *td_progress_here;

/* [job's thread] Stores the time: a job begins, or a part of it has ended that counts no units. */
void td_progress_touch(td_progress *p);

static inline void td_progress_add(size_t n_units)
{
  td_progress *p = td_progress_here;
  if (p && (p->n_units += n_units) >= TD_PROGRESS_UNITS)
    td_progress_touch(p);
}

#endif
