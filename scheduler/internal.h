/* The scheduler's state, shared by its files: scheduler.c (life, submit, cancel, numbers), memory.c (pages of
 * requests), plan.c (who decodes and starts), prompts.c (whose chunks), coalesce.c, deadlines.c, commit.c,
 * check.c. */
#ifndef TD_SCHEDULER_INTERNAL_H
#define TD_SCHEDULER_INTERNAL_H

#include "scheduler/output_lengths.h"
#include "scheduler/budget.h"
#include "scheduler/deadlines.h"
#include "scheduler/coalesce.h"
#include "scheduler/order.h"
#include "scheduler/page_pool.h"
#include "scheduler/fair.h"
#include "scheduler/places.h"
#include "scheduler/prefix_tree.h"
#include "scheduler/request_table.h"
#include "scheduler/scheduler.h"

struct td_sched {
  td_sched_config config;
  td_request_table table;
  td_page_pool pool;
  td_prefix_tree tree;
  td_page_events page_events; /* used if config.tells_pages */
  td_budget budget;
  td_order order;   /* of those that wait */
  td_places places; /* of those that run */
  td_fair fair;
  td_deadlines deadlines;

  int32_t *page_table;    /* [max_running * stripe_pages] */
  uint32_t stripe_pages;  /* pages of the longest request */
  uint32_t *free_stripes; /* stack [max_running] */
  uint32_t n_free_stripes;

  /* Pages that running prefills will still take for the tokens they already have. They are promised: free +
   * evictable never falls below this, so a prefill, once admitted, never fails to get its next page. */
  uint32_t reserved_pages;

  /* Entries of page_table written since the last plan (by commit), and room for those of a plan. */
  uint32_t *pending_updates;
  uint32_t n_pending_updates, max_pending_updates;
  uint32_t max_hit_updates;  /* entries that prefix hits may write in one plan */
  uint32_t max_page_updates; /* of a plan */

  uint32_t *prefills; /* of the last plan: running prompts, then those that it started [max_running] */
  uint32_t n_prompts; /* in it */
  uint64_t *turns_us; /* scratch of plan: when each running prompt has to go on [max_running] */
  td_claim *claims;   /* scratch of plan: which pages they compute next [claim_mask + 1] */
  uint32_t claim_mask;
  uint64_t claims_step; /* the step that they are of */
  uint32_t
      n_looked_up;   /* pages compared for admission in this plan: no more are begun past max_hit_updates */
  uint32_t *scratch; /* of check: [2 * n_pages] */

  uint32_t
      n_extra_logits; /* of the plan in the making, beside one for each row; with those kept for the elder */

  uint64_t step;
  uint32_t n_in_flight; /* plans that wait for their commit: 0, 1 or 2 */
  /* After the front of the queue was refused: where it stood, and from when on to look again even if no page
   * came free (others may have computed pages that it can share). */
  uint64_t refused_seq, refused_until_step;
  uint32_t refused_need_pages;

  uint32_t order_ns_per_token; /* prompt_ns_per_token, or what stands in for it: for the order alone, nobody
                                  is refused by it */
  bool order_is_learned;
  /* The least that steps with prompts ever took of what was predicted: what was calibrated on a busy day must
   * refuse nobody. It only falls, so that a place in the heap of deadlines is never too late. */
  double least_correction;
  td_output_lengths answers;
  uint64_t prefix_query_tokens, prefix_hit_tokens, n_preemptions, n_follows, n_expired;
};

static inline uint32_t td_sched_pages_for(const td_sched *s, uint32_t n_tokens)
{
  return n_tokens / s->config.page_tokens + (n_tokens % s->config.page_tokens != 0);
}

/* Free, or free as soon as they are asked for. */
static inline uint32_t td_sched_available_pages(const td_sched *s)
{
  return s->pool.n_free + s->tree.n_unpinned_pages;
}

static inline int32_t *td_sched_stripe(const td_sched *s, const td_request *r)
{
  return s->page_table + (size_t)r->stripe * s->stripe_pages;
}

/* May one that waits have the pages that it needs besides what it can share? `need` counts its known tokens'
 * pages, less those that are in use by others anyway. One page per running request is left for their growth,
 * so that what is admitted is not preempted at once; with none running, this is no hindrance. */
static inline bool td_sched_pages_suffice(const td_sched *s, uint32_t need)
{
  uint64_t kept = (uint64_t)s->reserved_pages + s->table.n_running;
  return td_sched_available_pages(s) >= need + kept;
}

static inline bool td_request_runs(const td_request *r)
{
  return r->state == TD_REQUEST_PREFILL || r->state == TD_REQUEST_DECODE;
}

/* How many pages the request has been promised and has not taken. */
static inline uint32_t td_sched_reserved_for(const td_sched *s, const td_request *r)
{
  if (r->state != TD_REQUEST_PREFILL)
    return 0;
  uint32_t n_pages = td_sched_pages_for(s, r->n_tokens);
  return n_pages > r->n_pages ? n_pages - r->n_pages : 0; /* planned ahead, it may have one more already */
}

/* What computing so many tokens of a prompt takes alone, for its place among others. */
static inline uint64_t td_sched_order_us(const td_sched *s, uint32_t n_tokens)
{
  return (uint64_t)n_tokens * s->order_ns_per_token / 1000;
}

static inline uint32_t td_sched_slot_of(const td_sched *s, const td_request *r)
{
  return (uint32_t)(r - s->table.requests);
}

static inline const td_terms *td_sched_terms(const td_sched *s, const td_request *r)
{
  return &s->order.entries[td_sched_slot_of(s, r)].terms;
}

static inline uint32_t td_sched_free_places(const td_sched *s)
{
  return s->config.max_running - s->table.n_running;
}

/* The first token that must be computed, whatever the tree has: the last one, or one whose logits are wanted.
 */
static inline uint32_t td_sched_must_compute(const td_sched *s, const td_request *r)
{
  uint32_t last = r->n_tokens - 1;
  const td_request_wants *w = &s->table.wants[td_sched_slot_of(s, r)];
  return r->has_wants && w->logits_of_prompt && w->logits_from + 1 < r->n_prompt ? w->logits_from : last;
}

/* Pages that it may take from the tree. */
static inline uint32_t td_sched_most_hits(const td_sched *s, const td_request *r)
{
  if (r->has_wants && s->table.wants[td_sched_slot_of(s, r)].all_tokens)
    return 0;
  return td_sched_must_compute(s, r) / s->config.page_tokens;
}

/* ---- plan.c ---- */

/* Of the next q_len tokens of a running prompt, how many want logits. */
uint32_t td_sched_chunk_logits(const td_sched *s, const td_request *r, uint32_t q_len);
/* How many tokens of a prompt the step takes, as far as budget and logits go, with n_computed computed. */
uint32_t td_sched_chunk(td_sched *s, const td_request *r, uint32_t n_computed);

/* The next of those that wait and may have a place; TD_NO_SLOT: none. */
uint32_t td_sched_next(td_sched *s);

/* The next chunk of a running prompt. False: the budget has nothing left for it. */
bool td_sched_plan_chunk(td_sched *s, td_plan *plan, uint32_t slot, uint32_t at_least, uint32_t at_most);
/* Starts the front of the queue if it can run now, with a chunk of at most so many tokens, or sends it away
 * to follow another. False: nobody more in this step. */
bool td_sched_admit(td_sched *s, td_plan *plan, uint64_t now_us, uint32_t at_most, uint32_t *hit_updates);

/* ---- prompts.c ---- */

/* Chunks of the n_prompts running prompts in s->prefills (in order of being started), and of those that may
 * start. */
void td_sched_plan_prompts(td_sched *s, td_plan *plan, uint64_t now_us, bool admits);

/* ---- deadlines.c ---- */

/* A new request's, if it has any. */
void td_sched_set_deadline(td_sched *s, uint32_t slot, uint32_t n_prompt);
/* The request has fewer computed tokens than when it was last looked at, or may have. */
void td_sched_watch(td_sched *s, uint32_t slot);

/* ---- scheduler.c ---- */

/* The request begins or ceases (n = -1) to wait: the forecast counts it. */
void td_sched_count_waiting(td_sched *s, uint32_t slot, int n);
/* Whether a request that must compute n_uncached tokens is light (order.h). None is without slack. */
bool td_sched_is_light(const td_sched *s, uint32_t n_uncached);

/* ---- memory.c ---- */

/* n more pages at the end of the request's stripe; they must be available. Returns the first index written.
 */
uint32_t td_sched_grow(td_sched *s, td_request *r, uint32_t n);
/* Puts the request's whole computed pages that are not in the tree there. Returns how many of them were there
 * already: the first so many entries from *first (of the page table) on have changed. */
uint32_t td_sched_cache_pages(td_sched *s, td_request *r, uint32_t *first);
/* Pages that nobody else holds, as far as the end of its path shows. O(1). */
uint32_t td_sched_sole_pages(const td_sched *s, const td_request *r);
/* KV that decodes with so many pages read, once for each reader of a page but the first; the other running
 * requests hold others_pages by themselves. */
uint64_t td_sched_repeated_kv(const td_sched *s, uint64_t decode_pages, uint64_t others_pages);
/* Caches the computed pages and lets go of all, of the stripe and of the promise. The request's state, still
 * a running one, is the caller's to change. */
void td_sched_leave(td_sched *s, td_request *r);

/* ---- fair.c ---- */

static inline bool td_fair_applies(const td_sched *s)
{
  return s->config.n_accounts > 1 && s->config.policy == TD_POLICY_TANDEM;
}
/* Is it time to look at what accounts hold, in that step? */
static inline bool td_fair_is_due(const td_sched *s, uint64_t step)
{
  return td_fair_applies(s) && s->order.n_queued > 0 && step >= s->fair.next_step;
}
/* In the beginning of a plan: makes others give way to an account that holds less, if it is due. */
void td_fair_take_turn(td_sched *s);
/* Whose turn it is; TD_NO_SLOT: nobody's but by the order. */
uint32_t td_fair_slot(const td_sched *s);
/* Who goes before a front that lacks pages: the next of the account that owns fewest of them, of those that
 * own fewer than the front's account even with it, and find room whatever the tree has. So the front waits
 * for nobody's start once its account runs nothing. TD_NO_SLOT: none. O(accounts that wait). */
uint32_t td_fair_passes(const td_sched *s, uint32_t front);
/* plan.c: a running request goes back to the queue. */
void td_sched_preempt(td_sched *s, uint32_t slot);

#endif
