/* Who runs this step: a stall-free hybrid-batch scheduler over paged KV with a prefix tree.
 *
 * Every step runs all decodes first, then prefill chunks fill the token budget, several prompts at
 * once (SARATHI section 4). Each page has one holder; finished and preempted requests leave their
 * whole pages in a radix tree, where later prompts find them. When pages run out: evict unreferenced cached
 * pages (least recently used leaf first), then preempt the running request that was started last (it is
 * recomputed later), and admit nothing that could not finish alone. Who is next: order.h.
 *
 * Pure: no I/O, threads, clock or device. State changes only in these calls, in the caller's order; `now_us`
 * is whatever monotonic time the caller has. The same calls give the same schedule.
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

/* What a step is made of. The others are for comparison, as in SARATHI's evaluation (sections 4 and 5). */
typedef enum td_policy {
  TD_POLICY_TANDEM,  /* decodes first, then the largest chunks that keep the TBT target by the cost model;
                      * without  one, as SARATHI */
  TD_POLICY_SARATHI, /* decodes first, then chunks up to the static budget, step_tokens */
  TD_POLICY_PREFILL_FIRST, /* steps of prompts alone while there are any that fit; decodes wait (vLLM 0) */
  TD_POLICY_DECODE_FIRST, /* prompts are computed only when nothing decodes: whole batches (FasterTransformer)
                           */
  TD_POLICY_ORCA,         /* decodes and whole prompts in one step, however long it gets */
  TD_POLICY_COUNT
} td_policy;
extern const char
    *const td_policy_names[TD_POLICY_COUNT + 1]; /* as the option `policy` spells them; ends with NULL */

/* An SLO that follows the decodes: so many times what a step of them alone takes, from least_us to
 * tbt_slo_us. decode_times 0: it is tbt_slo_us. */
typedef struct td_tbt_pace {
  double decode_times;
  uint64_t least_us;
} td_tbt_pace;

typedef struct td_sched_config {
  uint32_t n_slots;       /* requests known at once, waiting ones included */
  uint32_t max_running;   /* rows of a step */
  uint32_t step_tokens;   /* token budget of a step; >= max_running, so that every decode fits every step */
  uint32_t page_tokens;   /* 16, 32 or 64 */
  uint32_t prompt_logits; /* of a step, beside one for each row */
  uint32_t n_pages;       /* KV pages in the pool */
  uint32_t max_context_tokens; /* longest prompt + answer */
  uint64_t hash_seed; /* for the prefix tree's buckets: any value gives the same schedule; a random one keeps
                       * clients from choosing prompts that share a bucket */
  td_policy policy;
  const struct td_cost_model *cost; /* copied; NULL: none, then steps are limited by step_tokens alone */
  bool cost_is_guess;               /* nobody measured it here: no request is refused by it */
  uint64_t tbt_slo_us;              /* policy tandem: the longest step that decodes should see; 0: none */
  td_tbt_pace tbt_pace;
  /* Order (order.h); all 0: as they come. */
  uint32_t prompt_ns_per_token; /* what a prompt's token takes at least, when the device does nothing else; 0:
                                 * by the cost model; without one, the order goes by the fastest step with
                                 * prompts, and deadlines by none */
  uint32_t slack_percent;       /* a prompt may wait this share of its own time for shorter ones */
  uint64_t priority_us;         /* one step of priority is as good as having come so much earlier */
  bool reads_shared_once;       /* the backend reads KV that several decodes share once (kernels/attention) */
  bool coalesces;               /* wait for pages that a running prompt is computing (coalesce.h) */
  uint32_t n_accounts; /* that may come: places are kept for those that run nothing (places.h); 0, 1: one */
  bool tells_pages;    /* td_sched_take_page_event says what the prefix tree gains and loses */
} td_sched_config;

/* tbt_slo_us and tbt_pace where nobody says. A GPU computes tokens of a long chunk faster than of a short
 * one, up to thousands; on a CPU a step of 128 gains a few percent of all tokens over one of 60, and holds
 * answers up. How long is too long depends on model, machine and how many answers run: they go at
 * a quarter of their pace at worst, or at 40 tokens a second if that is less. */
void td_sched_set_default_slo(td_sched_config *c, bool on_device);

/* TD_ERR_CONFIG: a size is out of range, step_tokens < max_running (a decode would wait), an unknown policy,
 * or a target that cannot be reached (the message says the smallest that can). */
TD_MUST_CHECK td_status td_sched_create(const td_sched_config *config, td_sched **out, td_error *err);
void td_sched_destroy(td_sched *s);
/* A plan large enough for any step of this scheduler. */
TD_MUST_CHECK td_status td_sched_plan_create(const td_sched *s, td_plan **out, td_error *err);

typedef struct td_sched_request {
  int32_t *tokens;   /* [n_prompt + max_new], borrowed until finished/cancelled; commit appends to it */
  uint32_t n_prompt; /* >= 1 */
  uint32_t max_new;  /* >= 1; n_prompt + max_new <= max_context_tokens */
  uint32_t n_prompt_logits; /* so many of the prompt's last tokens are wanted with their log-probabilities:
                             * the token before each is computed, with its logits; < n_prompt. 0: none */
  bool computes_all;        /* it takes nothing from the tree: something is made of every token */
  td_terms terms;           /* deadlines: on the clock of now_us, see td_sched_expire */
} td_sched_request;

/* Queues a request in a free slot. TD_ERR_REQUEST: could never fit (param "prompt" or "max_tokens", the
 * message gives the largest that does). Slots are the caller's numbering; a slot is free again after it
 * finished or was cancelled. */
TD_MUST_CHECK td_status td_sched_submit(td_sched *s, uint32_t slot, const td_sched_request *r,
                                        uint64_t now_us, td_error *err);
/* Drops a request in any state; its pages are freed or stay cached. Not while a plan waits for its commit. */
void td_sched_cancel(td_sched *s, uint32_t slot);
/* The same for a request whose answer turned out to be complete: the forecast learns from it how long answers
 * get. */
void td_sched_end(td_sched *s, uint32_t slot);

typedef struct td_sched_expired {
  uint32_t slot;
  bool has_run, has_answer; /* it was ever started; its first token is out */
} td_sched_expired;
/* Cancels requests whose deadline has passed or cannot be met any more: not even alone on the device, with
 * what is computed or cached. Fills out; call until it returns less than max. Not while a plan waits for its
 * commit. */
uint32_t td_sched_expire(td_sched *s, uint64_t now_us, td_sched_expired *out, uint32_t max);
/* Nobody expires before this moment; UINT64_MAX: nobody has a deadline. */
uint64_t td_sched_next_expiry_us(const td_sched *s);

/* Fills plan with the next step; false when there is nothing to run (then nothing changed). Not while a plan
 * waits for its commit. */
bool td_sched_plan(td_sched *s, uint64_t now_us, td_plan *plan);
/* Fills `next` with the step that follows `plan`, the only one that waits for its commit, before its outcome
 * is known: all its rows decode once more. Their token ids are -1 - (logits entry of `plan`). late [n_logits
 * of plan] is nonzero for rows that `plan` does not sample, and may be NULL: they compute their last token
 * again. False, and nothing changed, where the next step should be another: a prompt goes on or may start, a
 * row may take more than one token, a page is short, nobody is left. A request that turns out to end with
 * `plan` is still in `next`: it computes there for nothing (td_sched_is_running tells, before next's commit).
 * The device must run plans in order; both are committed in order. */
bool td_sched_plan_ahead(td_sched *s, const td_plan *plan, const uint8_t *late, td_plan *next);

/* What becomes of a request with what a step chose for its row. */
enum { TD_TOKEN_GOES_ON, TD_TOKEN_ENDS, TD_TOKEN_LATE };
/* Takes the step's outcome: sampled[i] is the token for plan->logits[i]; verdict[i] says that its request
 * goes on with it, ends with it (it is appended), or that there is none: the row was not sampled, and
 * computes its last token again. What entries with a target say is not looked at. Requests that reach max_new
 * end by themselves. `finished` receives the slots that ended (capacity max_running), *n_finished their
 * number. */
void td_sched_commit(td_sched *s, const td_plan *plan, const int32_t *sampled, const uint8_t *verdict,
                     uint32_t *finished, uint32_t *n_finished);

bool td_sched_is_running(const td_sched *s, uint32_t slot);

/* What the cost model says a plan takes, corrected by what was observed; 0 without one. */
double td_sched_predict_us(const td_sched *s, const td_plan *plan);
/* How long a plan took. An input like any other: later schedules depend on it, slowly and within bounds. May
 * be left out. */
void td_sched_observe(td_sched *s, const td_plan *plan, double measured_us);
/* What steps take is known better now: predictions begin anew at `cost`, uncorrected. Only where the
 * scheduler was made with a cost model. */
void td_sched_set_cost(td_sched *s, const struct td_cost_model *cost);

/* Predicted from what runs and waits now; all 0 without a cost model or when idle (forecast.c). */
typedef struct td_sched_forecast {
  double start_us;        /* until a request that came now would be started, behind all that wait */
  double next_end_us;     /* until one that runs has ended */
  double end_gap_us;      /* from then on one ends every so often */
  double prompt_token_us; /* that a waiting prompt's token adds to all this */
  double step_us;
} td_sched_forecast;
td_sched_forecast td_sched_foresee(const td_sched *s);
/* Its start_us alone: mostly much less work. */
double td_sched_foresee_start_us(const td_sched *s);

typedef struct td_sched_slot_info {
  uint32_t n_tokens; /* prompt + generated so far */
  uint32_t n_generated;
  uint32_t n_computed;      /* tokens whose KV is there */
  uint32_t n_cached_prompt; /* prompt tokens taken from the prefix tree at first admission */
  uint32_t n_preemptions;
  uint32_t n_pages;                 /* that it holds, with those that it shares */
  uint64_t submit_us, first_run_us; /* first_run_us 0: still waiting */
  bool running;
  bool is_light;  /* it has few tokens to compute (order.h) */
  bool following; /* waits for a prompt that a running request computes */
  uint32_t n_follows;
  int64_t place_us; /* in the queue of its account: earlier is first, ties as they came */
} td_sched_slot_info;
/* Valid from submit to the end of the commit/cancel that ends the request. */
td_sched_slot_info td_sched_slot(const td_sched *s, uint32_t slot);

/* Tokens served to an account, weighted, and what it was lifted by: comparable between accounts that wait, in
 * no other way. */
uint64_t td_sched_account_served(const td_sched *s, uint64_t account);

typedef struct td_sched_stats {
  uint32_t n_waiting, n_running;
  uint32_t pages_total, pages_free, pages_cached,
      pages_owned; /* free + cached + owned = total; cached: tree only */
  uint64_t waiting_prompt_tokens;
  uint64_t prefix_query_tokens, prefix_hit_tokens, preemptions, evicted_pages;
  uint64_t fair_preemptions; /* of the preemptions: for an account that held less (fair.h) */
  uint32_t n_following;      /* of n_waiting */
  uint64_t follows, expired;
  double tbt_slo_us;         /* 0: none */
  double cost_correction[2]; /* measured / predicted of steps without, with prompts; 1: as calibrated */
} td_sched_stats;
void td_sched_get_stats(const td_sched *s, td_sched_stats *out);

/* What the prefix tree gained or lost, the oldest that was not told yet; false: nothing more. out->tokens is
 * valid until the next call that changes something. Nothing is forgotten, however late it is asked for. */
bool td_sched_take_page_event(td_sched *s, td_page_event *out);

/* Checks every invariant the README states; aborts through TD_BUG_ON on the first that fails. O(total): for
 * tests. */
void td_sched_check(const td_sched *s);

#endif
