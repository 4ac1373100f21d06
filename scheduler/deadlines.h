/* Deadlines: finds the requests that can no longer be served in time, without looking at the others.
 *
 * A binary heap holds the requests that have a deadline. Its key is a time before which a request need not
 * be looked at: the deadline less the time of computing the whole prompt alone. The true time moves later
 * as work is done, or as useful pages appear in the tree. So it is computed only when the heap's time is
 * reached; the request is then put back or ended. The true time moves earlier only when pages are lost. So
 * it is also computed when a request is started or preempted. */
#ifndef TD_SCHEDULER_DEADLINES_H
#define TD_SCHEDULER_DEADLINES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "scheduler/order.h"

typedef struct td_deadline {
  uint64_t us;
  uint32_t slot;
} td_deadline;

typedef struct td_deadlines {
  td_deadline *heap; /* [n_slots] */
  uint32_t n;
} td_deadlines;

TD_MUST_CHECK bool td_deadlines_init(td_deadlines *d, uint32_t n_slots); /* false: no memory */
void td_deadlines_deinit(td_deadlines *d);
/* Inserts the request at time us, moves it there, or removes it (UINT64_MAX). entries[].expiry_at follows. */
void td_deadlines_set(td_deadlines *d, td_order_entry *entries, uint32_t slot, uint64_t us);
void td_deadlines_check(const td_deadlines *d, const td_order_entry *entries);

#endif
