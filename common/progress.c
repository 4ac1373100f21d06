/* Progress of jobs: see progress.h. */
#include "common/progress.h"

#include "common/clock.h"

_Thread_local td_progress *td_progress_here;

void td_progress_touch(td_progress *p)
{
  if (!p)
    return;
  p->n_units = 0;
  atomic_store_explicit(&p->at_us, td_clock_us(), memory_order_relaxed);
}
