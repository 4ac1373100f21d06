/* Coalescing of requests: one whose next page a running prompt, its leader, is about to compute waits for it,
 * instead of computing it too.
 *
 * When the front of the queue is looked up in the tree, its path may end exactly where a running prompt's
 * does, with the same page of tokens next: that prompt has the claim to this page. The request then leaves
 * the queue and stands in a list of the leader's until the tree has all whole pages that the two have in
 * common, or the leader stops computing (cancelled, preempted, ended); then it is queued again at its place,
 * and finds the pages as any prefix hit. It takes no row and no page meanwhile. So n choices of one request,
 * or n clients with one prompt, compute it once.
 *
 * The leader does the followers' work, so it takes their turn: its chunks go where the most urgent of them
 * would. */
#ifndef TD_SCHEDULER_COALESCE_H
#define TD_SCHEDULER_COALESCE_H

#include "scheduler/prefix_tree.h"
#include "scheduler/scheduler.h"

/* So that leaders who come and go cannot hold a request up for ever. */
enum { TD_COALESCE_MAX = 8 };

/* A page that a running prompt will compute next; of one step. */
typedef struct td_claim {
  uint64_t step;
  uint32_t hash, slot;
} td_claim;

/* The waiting request follows a running prompt from now on, if one computes its next page. */
bool td_coalesce_try(td_sched *s, uint32_t slot, const td_prefix_hit *hit);
/* A prompt that was started in this step: its next page is claimed. */
void td_coalesce_claim(td_sched *s, uint32_t slot);
/* The leader has so many pages in the tree (UINT32_MAX: it will compute no more): who waited for that is
 * queued again. */
void td_coalesce_wake(td_sched *s, uint32_t leader, uint32_t n_tree_pages);
/* The request, which follows, is to be no more. */
void td_coalesce_drop(td_sched *s, uint32_t slot);

#endif
