/* Progress of jobs: see progress.h. */
#include "config/progress.h"

#include <time.h>

_Thread_local td_progress *td_progress_here;

void td_progress_note(td_progress *p)
{
  struct timespec t;
  if (!p)
    return;
  clock_gettime(CLOCK_MONOTONIC, &t);
  p->n_units = 0;
  atomic_store_explicit(&p->at_us, (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u,
                        memory_order_relaxed);
}
