/* Deadlines: who can no longer be served in time, found without looking at anybody else.
 *
 * A binary heap over the requests that have a deadline, by a time before which they need not be looked at:
 * the deadline less what computing the whole prompt would take alone. As work is done, or pages that help
 * appear in the tree, the true time moves later; so it is worked out when the heap's is reached, and the
 * request put back or ended. It moves earlier only when pages are lost: worked out too when a request is
 * started or preempted. */
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
/* In, moved, or out (UINT64_MAX). The entries know their places. */
void td_deadlines_set(td_deadlines *d, td_order_entry *entries, uint32_t slot, uint64_t us);
void td_deadlines_check(const td_deadlines *d, const td_order_entry *entries);

#endif
