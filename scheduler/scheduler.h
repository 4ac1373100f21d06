/* A stall-free hybrid-batch scheduler over paged KV with a prefix tree. It decides what runs in each step.
 *
 * Every step runs all decodes. Prefill chunks of several prompts then fill the token budget (SARATHI section
 * 4). Each page has one holder. Finished and preempted requests leave their whole pages in a radix tree,
 * where later prompts find them. When pages run out, the scheduler evicts unpinned cached pages (least
 * recently used leaf first), then preempts the running request that was started last (it is recomputed
 * later). It admits no request that could not finish alone. order.h says which request is next.
 *
 * Pure: no I/O, threads, clock or device. State changes only in these calls, in the caller's order. `now_us`
 * is any monotonic time of the caller. The same calls give the same schedule.
 * Thread: one (the engine's, or a simulator's). No call allocates after create. */
#ifndef TD_SCHEDULER_SCHEDULER_H
#define TD_SCHEDULER_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "scheduler/page_events.h"
#include "step/plan.h"
#include "step/terms.h"
#include "common/status.h"

typedef struct td_sched td_sched;

/* What a step is made of. All but tandem are for comparison, as in SARATHI's evaluation (sections 4, 5). */
typedef enum td_policy {
  TD_POLICY_TANDEM,  /* decodes first, then the largest chunks that keep the TBT target by the cost model;
                      * without a cost model, as SARATHI */
  TD_POLICY_SARATHI, /* decodes first, then chunks up to the static budget, step_tokens */
  TD_POLICY_PREFILL_FIRST, /* steps of prompts alone while any fit; decodes wait (vLLM 0) */
  TD_POLICY_DECODE_FIRST,  /* prompts only when nothing decodes: whole batches (FasterTransformer) */
  TD_POLICY_ORCA,          /* decodes and whole prompts in one step, however long it gets */
  TD_POLICY_COUNT
} td_policy;
/* In the spelling of the option `policy`; ends with NULL. */
extern const char *const td_policy_names[TD_POLICY_COUNT + 1];

/* An SLO that follows the decodes: decode_factor x the time of a step of the decodes alone, clamped to
 * [least_us, tbt_slo_us]. decode_factor 0: the SLO is tbt_slo_us. */
typedef struct td_adaptive_slo {
  double decode_factor;
  uint64_t least_us;
} td_adaptive_slo;

typedef struct td_sched_config {
  uint32_t n_slots;       /* requests known at once, waiting ones included */
  uint32_t max_running;   /* rows of a step */
  uint32_t step_tokens;   /* token budget of a step; >= max_running, so that every decode fits every step */
  uint32_t page_tokens;   /* 16, 32 or 64 */
  uint32_t prompt_logits; /* of a step, in addition to one for each row */
  uint32_t n_pages;       /* KV pages in the pool */
  uint32_t max_context_tokens; /* longest prompt + answer */
  uint64_t hash_seed; /* for the prefix tree's buckets. Any value gives the same schedule. A random one
                       * keeps clients from choosing prompts that share a bucket */
  td_policy policy;
  const struct td_cost_model *cost; /* copied; NULL: none, and only step_tokens limits steps */
  bool cost_is_guess;               /* `cost` was not measured here: it refuses no request */
  uint64_t tbt_slo_us;              /* policy tandem: the longest step with decodes; 0: no SLO */
  td_adaptive_slo adaptive_slo;
  /* Order (order.h); all 0: first come, first served. */
  uint32_t prompt_ns_per_token; /* the least time of a prompt token on an idle device; 0: from the cost
                                 * model. Without one, the order uses the fastest step with prompts so far,
                                 * and deadlines assume that prompts take no time */
  uint32_t slack_percent;       /* a prompt may wait this share of its own time for shorter prompts */
  uint64_t priority_us;         /* one step of priority is worth an arrival this much earlier */
  bool reads_shared_once;       /* the backend reads KV that several decodes share only once
                                 * (kernels/attention) */
  bool coalesces;               /* wait for pages that a running prompt is computing (coalesce.h) */
  uint32_t
      n_accounts; /* accounts that may come: places are kept for those that run nothing (places.h); 0: one */
  bool emits_page_events; /* record page events for td_sched_take_page_event */
} td_sched_config;

/* Sets the default tbt_slo_us and adaptive_slo. A GPU computes a token faster in a longer chunk, up to
 * thousands of tokens. On a CPU a step of 128 tokens gains only a few percent of throughput over one of
 * 60, and delays answers. How long is too long depends on the model, the machine and the number of
 * answers: answers slow down to a quarter of their pace at worst, or to 40 tokens a second if that is
 * less. */
void td_sched_set_default_slo(td_sched_config *c, bool on_device);

/* TD_ERR_CONFIG: a size is out of range, step_tokens < max_running (a decode would wait), the policy is
 * unknown, or policy orca with step_tokens that do not hold the longest prompt. */
TD_MUST_CHECK td_status td_sched_create(const td_sched_config *config, td_sched **out, td_error *err);
void td_sched_destroy(td_sched *s);
/* Creates a plan that is large enough for any step of this scheduler. */
TD_MUST_CHECK td_status td_sched_plan_create(const td_sched *s, td_plan **out, td_error *err);

typedef struct td_sched_request {
  int32_t *tokens;          /* [n_prompt + max_new], borrowed until the request ends; commit appends to it */
  uint32_t n_prompt;        /* >= 1 */
  uint32_t max_new;         /* >= 1; n_prompt + max_new <= max_context_tokens */
  uint32_t n_prompt_logits; /* how many of the prompt's last tokens need log-probabilities: for each, the
                             * logits of the token before it are computed; < n_prompt */
  bool computes_all;        /* it takes nothing from the tree, because it needs the result of every token */
  td_terms terms;           /* deadlines are on the clock of now_us, see td_sched_expire */
} td_sched_request;

/* Queues a request in a free slot. TD_ERR_REQUEST: it could never fit (param "prompt" or "max_tokens"; the
 * message gives the largest that fits). The caller numbers the slots. A slot is free again after its
 * request finished or was cancelled. */
TD_MUST_CHECK td_status td_sched_submit(td_sched *s, uint32_t slot, const td_sched_request *r,
                                        uint64_t now_us, td_error *err);
/* Drops a request in any state. Its pages are freed or stay cached. Do not call it while a plan is
 * uncommitted. */
void td_sched_cancel(td_sched *s, uint32_t slot);
/* The same for a request whose answer turned out to be complete. The forecast learns the answer's length. */
void td_sched_end(td_sched *s, uint32_t slot);

typedef struct td_sched_expired {
  uint32_t slot;
  bool has_run, has_answer; /* it was started at least once; its first token is out */
} td_sched_expired;
/* Cancels requests whose deadline has passed, or which could not meet it even alone on the device, with
 * what is computed or cached. Fills `out` and returns the count. Call it until it returns less than max.
 * Do not call it while a plan is uncommitted. */
uint32_t td_sched_expire(td_sched *s, uint64_t now_us, td_sched_expired *out, uint32_t max);
/* No request expires before this time; UINT64_MAX: no request has a deadline. */
uint64_t td_sched_next_expiry_us(const td_sched *s);

/* Fills plan with the next step. Returns false, and changes nothing, if there is nothing to run. Do not
 * call it while a plan is uncommitted. */
bool td_sched_plan(td_sched *s, uint64_t now_us, td_plan *plan);
/* Whether the step after `plan` can be planned before the outcome of `plan` is known: all rows decode once
 * more. `plan` must be the only plan that is not committed. late [n_logits of plan] is nonzero for rows that
 * `plan` does not sample: they compute their last token again. It may be NULL. Returns false if the next step
 * should be a different one: a prompt goes on or may start, a row may take more than one token, a page is
 * lacking, or no row is left. Changes nothing. The answer does not depend on the time: it holds until the
 * scheduler is changed. */
bool td_sched_may_plan_ahead(td_sched *s, const td_plan *plan, const uint8_t *late);
/* Fills `next` with that step. Call it only if td_sched_may_plan_ahead is true. All rows of `plan` decode
 * once more, with token ids -1 - (logits entry of `plan`). A request that turns out to end with `plan` is
 * still in `next` and computes there for nothing (td_sched_is_running tells which, before next's commit). The
 * device must run both plans in order, and they are committed in order. */
void td_sched_plan_ahead(td_sched *s, const td_plan *plan, const uint8_t *late, td_plan *next);

/* The caller's verdict on the token that a step sampled for a row. */
enum { TD_TOKEN_GOES_ON, TD_TOKEN_ENDS, TD_TOKEN_LATE };
/* Takes the step's outcome. sampled[i] is the token for plan->logits[i]. verdict[i] says that the request
 * goes on with the token, ends with it (it is appended), or that the row was not sampled and computes its
 * last token again. Entries with a target are ignored. A request that reaches max_new ends by itself.
 * `finished` receives the slots that ended (capacity max_running), *n_finished their number. */
void td_sched_commit(td_sched *s, const td_plan *plan, const int32_t *sampled, const uint8_t *verdict,
                     uint32_t *finished, uint32_t *n_finished);

bool td_sched_is_running(const td_sched *s, uint32_t slot);

/* The time of a plan by the cost model, corrected by observed steps; 0 without a cost model. */
double td_sched_predict_us(const td_sched *s, const td_plan *plan);
/* Reports how long a plan took. Later schedules depend on it, slowly and within bounds. Calling it is
 * optional. */
void td_sched_observe(td_sched *s, const td_plan *plan, double measured_us);
/* Replaces the cost model by a better one. Predictions start anew at `cost`, uncorrected. The scheduler
 * must have been created with a cost model. */
void td_sched_set_cost(td_sched *s, const struct td_cost_model *cost);

/* Predicted from the running and waiting requests; all 0 without a cost model or when idle (forecast.c). */
typedef struct td_sched_forecast {
  double start_us;        /* until a request that came now would be started, after all that wait */
  double next_end_us;     /* until the next running request ends */
  double end_interval_us; /* between two ends after that */
  double prompt_token_us; /* that each token of a waiting prompt adds to these times */
  double step_us;         /* the present time of a step */
} td_sched_forecast;
td_sched_forecast td_sched_make_forecast(const td_sched *s);
/* Only start_us of td_sched_make_forecast; usually much less work. */
double td_sched_forecast_start_us(const td_sched *s);

typedef struct td_sched_slot_info {
  uint32_t n_tokens; /* prompt + generated so far */
  uint32_t n_generated;
  uint32_t n_computed;      /* tokens whose KV is in pages */
  uint32_t n_cached_prompt; /* prompt tokens taken from the prefix tree at first admission */
  uint32_t n_preemptions;
  uint32_t n_pages;                 /* pages that it uses, shared ones included */
  uint64_t submit_us, first_run_us; /* first_run_us 0: still waiting */
  bool running;
  bool is_light;  /* it has few tokens to compute (README, "Order") */
  bool following; /* waits for pages that a running prompt computes */
  uint32_t n_follows;
  int64_t place_us; /* place in the queue of its account: the earliest is first, ties in order of arrival */
} td_sched_slot_info;
/* Valid from submit to the end of the commit/cancel that ends the request. */
td_sched_slot_info td_sched_slot(const td_sched *s, uint32_t slot);

/* The account's virtual token counter: weighted tokens that it was served, plus what it was raised by
 * after idleness. It can only be compared between accounts that wait. */
uint64_t td_sched_account_served(const td_sched *s, uint64_t account);

typedef struct td_sched_stats {
  uint32_t n_waiting, n_running;
  uint32_t pages_total, pages_free, pages_cached,
      pages_owned; /* free + cached + owned = total; cached: in the tree and unpinned */
  uint64_t waiting_prompt_tokens;
  uint64_t prefix_query_tokens, prefix_hit_tokens, preemptions, evicted_pages;
  uint64_t fair_preemptions; /* of these, for an account that held less (fair.h) */
  uint32_t n_following;      /* of n_waiting */
  uint64_t follows, expired;
  double tbt_slo_us;         /* 0: none */
  double cost_correction[2]; /* measured / predicted, of steps [without, with] prompts; 1: as calibrated */
} td_sched_stats;
void td_sched_get_stats(const td_sched *s, td_sched_stats *out);

/* Takes the oldest page event that was not taken yet. Returns false if there is none. out->tokens is valid
 * until the next call that changes the scheduler. Events are not lost, however late they are taken. */
bool td_sched_take_page_event(td_sched *s, td_page_event *out);

/* Checks every invariant that the README states. Aborts through TD_BUG_ON on the first that fails. For
 * tests: O(all slots and pages). */
void td_sched_check(const td_sched *s);

#endif
