/* The requests: one entry per slot, and an array of the running ones.
 *
 *            submit             plan                   commit
 *   FREE ------------> WAITING -------> PREFILL -----------------> DECODE ---> FREE (finished)
 *                         ^                |   all known tokens      |
 *                         +----------------+---- computed -----------+
 *                          plan: preempted               cancel: any state -> FREE
 *
 * The array is in the order in which requests were started. Its first request is never preempted, so that
 * some request always advances. Waiting requests are in the heaps of order.h.
 */
#ifndef TD_SCHEDULER_REQUEST_TABLE_H
#define TD_SCHEDULER_REQUEST_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

#define TD_NO_SLOT UINT32_MAX

typedef enum td_request_state {
  TD_REQUEST_FREE = 0,
  TD_REQUEST_WAITING,
  TD_REQUEST_PREFILL,
  TD_REQUEST_DECODE,
} td_request_state;

/* The state that every step touches: one cache line of the table. A copy on a stack has no special
 * alignment. */
typedef struct td_request {
  int32_t *tokens;       /* borrowed: [n_tokens], with room for max_tokens */
  uint64_t start_seq;    /* while running: order in which it was started */
  uint32_t n_tokens;     /* prompt + generated */
  uint32_t n_computed;   /* tokens whose KV is in the pages */
  uint32_t max_tokens;   /* n_prompt + max_new */
  uint32_t n_pages;      /* valid entries of the page-table stripe */
  uint32_t n_tree_pages; /* how many of these, from the first on, are the prefix tree's and pinned */
  uint32_t node;         /* end of that path */
  uint32_t stripe;       /* of the page table, while running */
  int32_t last_token;    /* tokens[n_tokens - 1]: saves planning a decode a cache miss */
  uint8_t state;         /* td_request_state */
  bool has_run : 1;
  bool has_wants : 1; /* an adapter, logits of its prompt, or all tokens */
  bool is_late : 1;   /* its last token was computed but not sampled from: it is computed again */
  uint16_t account;   /* copied from its terms: each sampled token is charged to it (README, "Terms") */
  uint32_t n_prompt;
  uint8_t pad[8]; /* fills the cache line */
} td_request;
_Static_assert(sizeof(td_request) == 64, "a request is a cache line; the table aligns them");

/* What only few requests want. Steps look here only if has_wants is set. */
typedef struct td_request_wants {
  bool all_tokens; /* it takes no pages from the tree */
  bool logits_of_prompt;
  uint32_t logits_from; /* if logits_of_prompt: the first prompt token whose logits are still to be
                         * computed */
} td_request_wants;

/* What is only reported about a request. */
typedef struct td_request_history {
  uint32_t n_cached_prompt, n_preemptions;
  uint64_t submit_us, first_run_us, submit_step;
} td_request_history;

typedef struct td_request_table {
  td_request *requests;          /* [n_slots], each a cache line */
  td_request_history *histories; /* [n_slots] */
  td_request_wants *wants;       /* [n_slots] */
  uint32_t n_slots;
  uint32_t *running; /* [max_running] slots, ordered by start_seq */
  uint32_t n_running, max_running;
  uint64_t next_start_seq;
} td_request_table;

TD_MUST_CHECK bool td_request_table_init(td_request_table *t, uint32_t n_slots, uint32_t max_running);
void td_request_table_deinit(td_request_table *t);

/* FREE -> WAITING. Copies *r, sets its state, and begins its history. */
void td_request_table_add(td_request_table *t, uint32_t slot, const td_request *r, uint64_t now_us,
                          uint64_t step);
/* WAITING -> PREFILL, at the end of the running array. */
void td_request_table_start(td_request_table *t, uint32_t slot);
/* running[at] -> WAITING. */
void td_request_table_stop(td_request_table *t, uint32_t at);
/* Any state -> FREE. */
void td_request_table_remove(td_request_table *t, uint32_t slot);
/* Drops all requests whose state was set to FREE from the running array, in one pass. */
void td_request_table_sweep(td_request_table *t);

/* Checks order, counts and states. Returns how many requests wait. O(n_slots). */
uint32_t td_request_table_check(const td_request_table *t);

/* The running array holds slots in any order, and the requests may exceed the cache. So loops over it
 * prefetch this many entries ahead. */
enum { TD_REQUEST_PREFETCH = 12 };
static inline void td_request_prefetch(const td_request *r) { __builtin_prefetch(r, 1); }

#endif
