/* Coalescing: if a running prompt, the leader, is about to compute a request's next page, the request waits
 * for that page instead of computing it too.
 *
 * When the front of the queue is looked up in the tree, its path may end exactly where a running prompt's
 * path ends, with the same page of tokens next. That prompt claims the page. The request then leaves the
 * queue and joins the leader's list of followers. It leaves that list when the tree has all whole pages that
 * the two share, or when the leader stops computing (cancelled, preempted, ended). It is then queued again at
 * its place, and finds the pages like any prefix hit. In between it takes no row and no page. So n choices of
 * one request, or n clients with one prompt, compute the prompt once.
 *
 * The leader does its followers' work, so it has the turn of the most urgent of them. */
#ifndef TD_SCHEDULER_COALESCE_H
#define TD_SCHEDULER_COALESCE_H

#include "scheduler/prefix_tree.h"
#include "scheduler/scheduler.h"

/* How often a request follows, so that leaders that come and go cannot delay it forever. */
enum { TD_COALESCE_MAX = 8 };

/* The page that a running prompt will compute next. Claims are valid for one step. */
typedef struct td_claim {
  uint64_t step;
  uint32_t hash, slot;
} td_claim;

/* Makes the waiting request follow a running prompt that computes its next page. Returns false if there is
 * none. */
bool td_coalesce_try(td_sched *s, uint32_t slot, const td_prefix_hit *hit);
/* Claims the next page of a prompt that was started in this step. */
void td_coalesce_claim(td_sched *s, uint32_t slot);
/* Queues the followers again that waited for at most n_tree_pages pages of the leader in the tree
 * (UINT32_MAX: the leader stops computing, so all of them). */
void td_coalesce_wake(td_sched *s, uint32_t leader, uint32_t n_tree_pages);
/* Removes a following request for good. */
void td_coalesce_drop(td_sched *s, uint32_t slot);

#endif
