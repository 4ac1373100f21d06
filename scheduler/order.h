/* The order of the waiting requests, and of the running prompts.
 *
 * Two questions are kept apart. Which account is next? Each account (API key) has a virtual token counter
 * (Sheng et al., "Fairness in Serving Large Language Models", 2024). The least served account with waiting
 * requests is next. When an idle account comes back, its counter is raised to that of the least served
 * account that waits, so idleness earns no credit. Which of its requests? The one with the earliest place, a
 * time fixed at submission: arrival, plus the slack that the prompt's length allows, plus its priority as
 * time. Places never change. So a waiting request is overtaken only by requests that come before the clock
 * reaches its place. That is the ageing, and it needs no upkeep.
 *
 * Light requests have few tokens to compute and are in a heap of their own: plan.c may take the first of them
 * before an earlier request that is not light.
 *
 * An account's requests are leftist heaps (Crane) linked through the entries. So any of 65,536 requests
 * can be removed in O(log n), and nothing is allocated. Accounts with waiting requests are a binary heap
 * whose keys are refreshed only when they come to the top (counters only grow). */
#ifndef TD_SCHEDULER_ORDER_H
#define TD_SCHEDULER_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "config/limits.h"
#include "scheduler/request_table.h"
#include "step/terms.h"

/* A sampled token is charged like this many prompt tokens (the paper's weights). */
enum { TD_ORDER_TOKEN_COST = 2 };

typedef struct td_order_entry {
  int64_t place_us;             /* place in the queue of its account */
  uint64_t seq;                 /* order of submission: breaks ties */
  uint64_t latest_start_us;     /* the place without its priority; orders prompts in a step (prompts.c) */
  uint64_t followers_us;        /* earliest latest_start_us of its followers */
  td_terms terms;               /* account: below TD_ACCOUNTS_MAX */
  uint32_t left, right, parent; /* heap of the account */
  uint32_t prev, next;          /* list of its leader's followers */
  uint32_t followers;           /* first of its own followers */
  uint32_t leader;              /* TD_NO_SLOT: it follows no prompt */
  uint32_t wake_pages;          /* it waits until the leader has this many pages in the tree */
  uint32_t followers_pages;     /* the least wake_pages of its followers */
  uint32_t n_follows;
  uint32_t expiry_at;            /* index in the heap of deadlines; TD_NO_SLOT: not there */
  uint32_t rank;                 /* leftist heap: nodes on the path down the right children, itself
                                  * included */
  uint32_t n_prompt, n_uncached; /* uncached: at arrival; 0 if nothing needs it */
  uint32_t n_expected_uncached;  /* uncached tokens that it will compute itself, estimated at arrival, for
                                  * the forecast */
  bool is_light;                 /* it has few tokens to compute (td_sched_is_light) */
} td_order_entry;

typedef struct td_account {
  uint64_t heap_served; /* key in the heap of accounts: never above `served` */
  uint32_t root[2];     /* heaps of its waiting requests: [not light, light]; TD_NO_SLOT: empty */
  uint32_t at;          /* index in the heap of accounts */
} td_account;

typedef struct td_order {
  td_order_entry *entries; /* [n_slots] */
  td_account *accounts;    /* [TD_ACCOUNTS_MAX] */
  uint64_t *served;        /* [TD_ACCOUNTS_MAX] tokens, weighted */
  uint16_t *heap;          /* accounts with waiting requests */
  uint32_t n_slots, n_heap;
  uint32_t n_accounts; /* every account number used so far is below this */
  uint32_t n_queued;   /* in the accounts' heaps: waiting, and not following */
  uint32_t n_following;
  uint64_t waiting_prompt_tokens; /* of queued and following requests */
  uint64_t next_seq;
  bool any_priority; /* a priority other than 0 was seen */
} td_order;

TD_MUST_CHECK bool td_order_init(td_order *o, uint32_t n_slots); /* false: no memory */
void td_order_deinit(td_order *o);

/* Puts a waiting request into the heaps (submitted, preempted, follows no longer), or takes it out
 * (started, cancelled, follows). */
void td_order_enter(td_order *o, uint32_t slot);
void td_order_leave(td_order *o, uint32_t slot);
/* The front: the request that is next to start; TD_NO_SLOT: none. */
uint32_t td_order_front(td_order *o);
/* The earliest waiting request of an account that has some; the earliest light one (TD_NO_SLOT: none). */
uint32_t td_order_first(const td_order *o, uint32_t account);
static inline uint32_t td_order_first_light(const td_order *o, uint32_t account)
{
  return o->accounts[account].root[1];
}
/* The next request of the least served account whose n_of is 0; TD_NO_SLOT: none. O(accounts that wait). */
uint32_t td_order_front_of_idle(const td_order *o, const uint32_t *n_of);

/* The next request of the account whose n_of is least, among equals the least served; TD_NO_SLOT: none.
 * O(accounts that wait). */
uint32_t td_order_front_of_fewest(const td_order *o, const uint32_t *n_of);

static inline void td_order_charge(td_order *o, uint32_t account, uint64_t n_tokens)
{
  o->served[account] += n_tokens;
}

/* Checks heaps and counts. O(n_slots). */
void td_order_check(const td_order *o);

#endif
