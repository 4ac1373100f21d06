/* The scheduler's state, shared by its files: scheduler.c (create, submit, cancel, statistics), memory.c
 * (pages of requests), plan.c (decodes and starts), prompts.c (prefill chunks), coalesce.c, deadlines.c,
 * commit.c, check.c, fair.c, forecast.c. */
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
  td_page_events page_events;
  td_budget budget;
  td_order order;   /* of waiting requests */
  td_places places; /* of running requests */
  td_fair fair;
  td_deadlines deadlines;

  int32_t *page_table;    /* [max_running * stripe_pages] */
  uint32_t stripe_pages;  /* pages of the longest request */
  uint32_t *free_stripes; /* stack [max_running] */
  uint32_t n_free_stripes;

  /* Pages that running prefills will still take for the tokens they already have. They are promised: free
   * + evictable never falls below this, so an admitted prefill always gets its next page. */
  uint32_t reserved_pages;

  /* Entries of page_table that commit wrote since the last plan: [max_pending_updates]. */
  uint32_t *pending_updates;
  uint32_t n_pending_updates, max_pending_updates;
  uint32_t max_hit_updates;  /* entries that prefix hits may write in one plan */
  uint32_t max_page_updates; /* of a plan */

  uint32_t *prefills;       /* [max_running] of the last plan: running prompts, then those that it started */
  uint32_t n_prompts;       /* in prefills */
  uint64_t *continue_by_us; /* scratch of plan: the latest time at which each running prompt has to go on
                             * [max_running] */
  td_claim *claims;         /* scratch of plan: the next page of each running prompt [claim_mask + 1] */
  uint32_t claim_mask;
  uint64_t claims_step; /* the step whose claims these are */
  uint32_t
      n_looked_up;   /* pages compared for admission in this plan; past max_hit_updates no look-up is begun */
  uint32_t *scratch; /* [2 * n_pages], of td_sched_check */

  uint32_t n_extra_logits; /* of the current plan, in addition to one for each row; includes those kept for
                            * the elder */

  uint64_t step;
  uint32_t n_in_flight; /* plans that are not committed: 0, 1 or 2 */
  /* The request at the front that was refused last, and the step from which on it is looked up again even
   * if no page came free (others may have computed pages that it can share). */
  uint64_t refused_seq, refused_until_step;
  uint32_t refused_need_pages;

  uint32_t estimated_prompt_ns_per_token; /* prompt_ns_per_token or an estimate. Only the order uses it, so an
                                           * estimate refuses no request */
  bool prompt_time_is_learned;
  /* The least measured / predicted of steps with prompts, at most 1: a calibration on a busy day must not
   * refuse a request. It only falls, so that a time in the heap of deadlines is never too late. */
  double least_correction;
  td_output_lengths answers;
  uint64_t prefix_query_tokens, prefix_hit_tokens, n_preemptions, n_follows, n_expired;
};

static inline uint32_t td_sched_pages_for(const td_sched *s, uint32_t n_tokens)
{
  return n_tokens / s->config.page_tokens + (n_tokens % s->config.page_tokens != 0);
}

/* Free pages, and cached ones that can be evicted. */
static inline uint32_t td_sched_available_pages(const td_sched *s)
{
  return s->pool.n_free + s->tree.n_unpinned_pages;
}

static inline int32_t *td_sched_stripe(const td_sched *s, const td_request *r)
{
  return s->page_table + (size_t)r->stripe * s->stripe_pages;
}

/* Returns whether a waiting request may have the pages that it needs. `need` counts the pages of its known
 * tokens, less those that other requests use anyway. One page for each running request is left for its
 * growth, so that an admitted request is not preempted immediately. */
static inline bool td_sched_pages_suffice(const td_sched *s, uint32_t need)
{
  uint64_t kept = (uint64_t)s->reserved_pages + s->table.n_running;
  return td_sched_available_pages(s) >= need + kept;
}

static inline bool td_request_runs(const td_request *r)
{
  return r->state == TD_REQUEST_PREFILL || r->state == TD_REQUEST_DECODE;
}

/* Pages that the request was promised and has not taken yet. */
static inline uint32_t td_sched_reserved_for(const td_sched *s, const td_request *r)
{
  if (r->state != TD_REQUEST_PREFILL)
    return 0;
  uint32_t n_pages = td_sched_pages_for(s, r->n_tokens);
  return n_pages > r->n_pages ? n_pages - r->n_pages : 0; /* if planned ahead, it may have one page more */
}

/* The time that n_tokens of a prompt take alone, for the request's place in the queue. */
static inline uint64_t td_sched_estimate_prompt_us(const td_sched *s, uint32_t n_tokens)
{
  return (uint64_t)n_tokens * s->estimated_prompt_ns_per_token / 1000;
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

/* The first token that must be computed whatever the tree has: the last one, or one whose logits are
 * wanted. */
static inline uint32_t td_sched_first_required_token(const td_sched *s, const td_request *r)
{
  uint32_t last = r->n_tokens - 1;
  const td_request_wants *w = &s->table.wants[td_sched_slot_of(s, r)];
  return r->has_wants && w->logits_of_prompt && w->logits_from + 1 < r->n_prompt ? w->logits_from : last;
}

/* The most pages that the request may take from the tree. */
static inline uint32_t td_sched_max_hit_pages(const td_sched *s, const td_request *r)
{
  if (r->has_wants && s->table.wants[td_sched_slot_of(s, r)].all_tokens)
    return 0;
  return td_sched_first_required_token(s, r) / s->config.page_tokens;
}

/* ---- plan.c ---- */

/* How many of the next q_len tokens of a running prompt want logits. */
uint32_t td_sched_chunk_logits(const td_sched *s, const td_request *r, uint32_t q_len);
/* How many tokens of a prompt, of which n_computed are computed, fit the step's budget and logits. */
uint32_t td_sched_chunk_tokens(td_sched *s, const td_request *r, uint32_t n_computed);

/* The next waiting request that may have a place; TD_NO_SLOT: none. */
uint32_t td_sched_next_to_start(td_sched *s);

/* Plans the next chunk of a running prompt. Returns false if the budget has nothing left for it. */
bool td_sched_plan_chunk(td_sched *s, td_plan *plan, uint32_t slot, uint32_t at_least, uint32_t at_most);
/* Starts the front of the queue with a chunk of at most at_most tokens, or makes it follow a running
 * prompt. Returns false if no further request may start in this step. */
bool td_sched_admit(td_sched *s, td_plan *plan, uint64_t now_us, uint32_t at_most, uint32_t *hit_updates);

/* ---- prompts.c ---- */

/* Plans chunks of the n_prompts running prompts in s->prefills (in the order in which they were started),
 * and, if `admits`, of prompts that may start. */
void td_sched_plan_prompts(td_sched *s, td_plan *plan, uint64_t now_us, bool admits);

/* ---- deadlines.c ---- */

/* Enters a new request into the heap if it has a deadline. */
void td_sched_set_deadline(td_sched *s, uint32_t slot, uint32_t n_prompt);
/* Call it when the request may have fewer computed tokens than when its deadline was last looked at. */
void td_sched_refresh_deadline(td_sched *s, uint32_t slot);

/* ---- scheduler.c ---- */

/* The request begins (n = 1) or ceases (n = -1) to wait: the forecast counts it. */
void td_sched_count_waiting(td_sched *s, uint32_t slot, int n);
/* Whether a request that must compute n_uncached tokens is light (order.h). Without slack no request is. */
bool td_sched_is_light(const td_sched *s, uint32_t n_uncached);

/* ---- memory.c ---- */

/* Adds n pages at the end of the request's stripe; they must be available. Returns the first index
 * written. */
uint32_t td_sched_add_pages(td_sched *s, td_request *r, uint32_t n);
/* Puts the request's whole computed pages into the tree. Returns how many of them the tree had already:
 * that many page-table entries from *first on have changed. */
uint32_t td_sched_cache_pages(td_sched *s, td_request *r, uint32_t *first);
/* Pages that no other request uses, as far as the last nodes of its path show. O(1). */
uint32_t td_sched_unshared_pages(const td_sched *s, const td_request *r);
/* KV tokens that decodes with decode_pages in all read, counted once for each reader of a page except the
 * first. The other running requests hold others_pages alone. */
uint64_t td_sched_repeated_kv(const td_sched *s, uint64_t decode_pages, uint64_t others_pages);
/* Caches the computed pages; then gives up all pages, the stripe and the promise. The caller changes the
 * request's state, which must still be a running one. */
void td_sched_release(td_sched *s, td_request *r);

/* ---- fair.c ---- */

static inline bool td_fair_applies(const td_sched *s)
{
  return s->config.n_accounts > 1 && s->config.policy == TD_POLICY_TANDEM;
}
/* Whether a turn by what accounts hold is due in that step. */
static inline bool td_fair_is_due(const td_sched *s, uint64_t step)
{
  return td_fair_applies(s) && s->order.n_queued > 0 && step >= s->fair.next_turn_step;
}
/* Called at the start of a plan. If a turn is due, preempts requests in favour of an account that holds
 * less. */
void td_fair_rebalance(td_sched *s);
/* The request whose turn it is; TD_NO_SLOT: none, and the order decides. */
uint32_t td_fair_beneficiary(const td_sched *s);
/* The request that passes a front that lacks pages; TD_NO_SLOT: none. Candidates are the next requests of
 * accounts that would own at most as many pages as the front's account even with that request, and that
 * find room without help from the tree. Of these the account that owns fewest pages goes. So no request
 * passes the front once its account runs nothing. O(accounts that wait). */
uint32_t td_fair_find_bypass(const td_sched *s, uint32_t front);
/* plan.c: sends a running request back to the queue. */
void td_sched_preempt(td_sched *s, uint32_t slot);

#endif
