/* Whose turn it is: the order of those that wait, and of the prompts that run.
 *
 * Two questions, kept apart. Which key's turn is it? Each API key has an account of tokens served (virtual
 * token counters: Sheng et al., "Fairness in Serving Large Language Models", 2024); the least served account
 * with somebody waiting is next. A key that comes back from idleness is lifted to the least served of those
 * that wait: idleness is no credit. Which of the key's requests? The one with the earliest place, a time
 * fixed at submission: when it came, plus what its length lets it wait (slack), plus its priority as time.
 * Because places never change, whoever waits is overtaken only by those that come before the clock reaches
 * its place: that is the ageing, and needs no upkeep.
 *
 * Light requests, those with few tokens to compute, are a heap of their own: plan.c may take the first of
 * them before an earlier one that is not light.
 *
 * An account's requests are leftist heaps linked through the entries, so that any of 65,536 can be taken out
 * in O(log n) and nothing is allocated; accounts with somebody waiting are a binary heap whose keys are
 * brought up to date only when they come to the top (counters only grow). Source: Crane, leftist trees. */
#ifndef TD_SCHEDULER_ORDER_H
#define TD_SCHEDULER_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "config/limits.h"
#include "scheduler/request_table.h"
#include "step/terms.h"

/* A sampled token costs an account this many of a prompt (the paper's weights). */
enum { TD_ORDER_TOKEN_COST = 2 };

typedef struct td_order_entry {
  int64_t place_us; /* among the waiting ones of its account */
  uint64_t seq;     /* order of submission: breaks ties */
  uint64_t
      latest_start_us;   /* the place without its priority; among the prompts that run or would (prompts.c) */
  uint64_t followers_us; /* the earliest of those that wait for what it computes */
  td_terms terms;        /* account: below TD_ACCOUNTS_MAX */
  uint32_t left, right, parent; /* heap of the account */
  uint32_t prev, next;          /* list of the leader's followers, while it is one */
  uint32_t followers;           /* first of those that wait for this one's pages */
  uint32_t leader;              /* TD_NO_SLOT: it follows nobody */
  uint32_t wake_pages;          /* the leader's pages in the tree that end the wait */
  uint32_t followers_pages;     /* the fewest that one of those who wait for this one needs */
  uint32_t n_follows;
  uint32_t expiry_at;            /* in the heap of deadlines; TD_NO_SLOT: not there */
  uint32_t rank;                 /* steps down the right to where a child is missing, this one included */
  uint32_t n_prompt, n_uncached; /* uncached: when it came; 0 where nobody asks */
  uint32_t n_expected; /* of these, what it will compute itself, as far as one knew when it came (forecast) */
  bool is_light;       /* it has few tokens to compute: td_order_light */
} td_order_entry;

typedef struct td_account {
  uint64_t heap_served; /* served as the heap of accounts has it: never above */
  uint32_t root[2];     /* of its waiting requests that are not light, that are; TD_NO_SLOT: none */
  uint32_t at;          /* in the heap of accounts */
} td_account;

typedef struct td_order {
  td_order_entry *entries; /* [n_slots] */
  td_account *accounts;    /* [TD_ACCOUNTS_MAX] */
  uint64_t *served;        /* [TD_ACCOUNTS_MAX] tokens, weighted */
  uint16_t *heap;          /* accounts with somebody waiting */
  uint32_t n_slots, n_heap;
  uint32_t n_accounts; /* all that were ever used are below */
  uint32_t n_queued;   /* in the accounts' heaps: waiting, and following nobody */
  uint32_t n_following;
  uint64_t waiting_prompt_tokens; /* of both */
  uint64_t next_seq;
  bool any_priority; /* one that is not 0 was ever seen */
} td_order;

TD_MUST_CHECK bool td_order_init(td_order *o, uint32_t n_slots); /* false: no memory */
void td_order_deinit(td_order *o);

/* A request that waits goes in (submitted, preempted, follows no longer), or out (started, cancelled,
 * follows). */
void td_order_enter(td_order *o, uint32_t slot);
void td_order_leave(td_order *o, uint32_t slot);
/* The next to start; TD_NO_SLOT: none. */
uint32_t td_order_front(td_order *o);
/* The next of an account that waits; of its light ones (TD_NO_SLOT: none). */
uint32_t td_order_first(const td_order *o, uint32_t account);
static inline uint32_t td_order_light(const td_order *o, uint32_t account)
{
  return o->accounts[account].root[1];
}
/* The next of the accounts whose n_of is 0; TD_NO_SLOT: none. O(accounts that wait). */
uint32_t td_order_front_without(const td_order *o, const uint32_t *n_of);

/* The next of the account whose n_of is least, the least served of these; TD_NO_SLOT: none. O(accounts that
 * wait). */
uint32_t td_order_front_of_fewest(const td_order *o, const uint32_t *n_of);

static inline void td_order_charge(td_order *o, uint32_t account, uint64_t n_tokens)
{
  o->served[account] += n_tokens;
}

/* Heaps and counts. O(n_slots). */
void td_order_check(const td_order *o);

#endif
