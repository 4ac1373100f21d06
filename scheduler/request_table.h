/* The requests: one entry per slot, a queue of those that wait and an array of those that run.
 *
 *            submit             plan                   commit
 *   FREE ------------> WAITING -------> PREFILL -----------------> DECODE ---> FREE (finished)
 *                         ^                |   all known tokens      |
 *                         +----------------+---- computed -----------+
 *                          plan: preempted               cancel: any state -> FREE
 *
 * Both orders are by arrival (seq), and every running request is older than every waiting one: admission
 * takes the front of the queue only, preemption takes the end of the running array only and puts it back at
 * the front of the queue. So neither needs a search, and the oldest request of all is always a running one.
 */
#ifndef TD_SCHEDULER_REQUEST_TABLE_H
#define TD_SCHEDULER_REQUEST_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "config/status.h"

#define TD_NO_SLOT UINT32_MAX

typedef enum td_request_state {
  TD_REQUEST_FREE = 0,
  TD_REQUEST_WAITING,
  TD_REQUEST_PREFILL,
  TD_REQUEST_DECODE,
} td_request_state;

typedef struct td_request {
  /* What a decode step touches comes first. */
  int32_t *tokens;       /* borrowed; [n_tokens] known, room for max_tokens */
  uint64_t seq;          /* order of arrival */
  uint32_t n_tokens;     /* prompt + generated */
  uint32_t n_computed;   /* tokens whose KV is in the pages */
  uint32_t max_tokens;   /* n_prompt + max_new */
  uint32_t n_pages;      /* valid entries of the page-table stripe */
  uint32_t n_tree_pages; /* of which the first so many are the prefix tree's, and pinned */
  uint32_t node;         /* end of that path */
  uint32_t stripe;       /* of the page table, while running */
  int32_t last_token;    /* tokens[n_tokens - 1], so that planning a decode need not look there */
  uint8_t state;         /* td_request_state */

  uint32_t prev, next; /* in the waiting queue */
  uint64_t namespace_id;
  uint32_t n_prompt;
  uint32_t n_cached_prompt;
  uint32_t n_preemptions;
  bool has_run;
  uint64_t submit_us, first_run_us;
} td_request;

typedef struct td_request_table {
  td_request *requests; /* [n_slots] */
  uint32_t n_slots;
  uint32_t *running; /* [max_running] slots, oldest first */
  uint32_t n_running, max_running;
  uint32_t wait_front, wait_back; /* oldest, youngest */
  uint32_t n_waiting;
  uint64_t waiting_prompt_tokens;
  uint64_t next_seq;
} td_request_table;

TD_MUST_CHECK bool td_request_table_init(td_request_table *t, uint32_t n_slots, uint32_t max_running);
void td_request_table_deinit(td_request_table *t);

/* FREE -> WAITING, behind all others; r's fields are copied, seq and state are set here. */
void td_request_table_add(td_request_table *t, uint32_t slot, const td_request *r);
/* The front of the queue -> PREFILL, the youngest that runs. */
void td_request_table_start_front(td_request_table *t);
/* The youngest that runs -> WAITING, at the front of the queue. */
void td_request_table_stop_youngest(td_request_table *t);
/* Any state -> FREE. */
void td_request_table_remove(td_request_table *t, uint32_t slot);
/* Drops from the running array all whose state was set to FREE: many at once, in one pass. */
void td_request_table_sweep(td_request_table *t);

/* Orders, links, counts, states. O(n_slots). */
void td_request_table_check(const td_request_table *t);

#endif
