/* A world around one scheduler: random requests, a simulated device, and what must be true of both.
 *
 * The simulated device holds, for every line of every page, what the plans wrote there: the hash of the
 * namespace and of all tokens up to that one, which is exactly what a KV line is a function of. It learns
 * the page table from page_updates alone. It runs plans in order. A plan may have been made before the
 * outcome of the plan before was known; what a row of it computes for a request that has ended must not
 * affect any other. So a page shared wrongly or reused too early, or a missing update of a table entry,
 * shows as a row that reads a line that is not its own. */
#ifndef TD_TESTS_SIM_WORLD_H
#define TD_TESTS_SIM_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "scheduler/budget.h"
#include "scheduler/scheduler.h"

typedef struct sim_rng {
  uint64_t state;
} sim_rng;
uint64_t sim_next(sim_rng *r);
uint32_t sim_below(sim_rng *r, uint32_t n); /* uniform in [0, n) */
bool sim_chance(sim_rng *r, double p);
uint64_t sim_mix(uint64_t a, uint64_t b);

enum {
  SIM_PREFIXES = 24,
  SIM_MAX_SLOTS = 48,
  SIM_MAX_LOGITS = 2 * SIM_MAX_SLOTS,
  SIM_ACCOUNTS = 4,
  SIM_TOKEN_COST = 2
};

typedef struct sim_slot {
  bool used;
  int32_t *tokens; /* [max_context] */
  uint64_t *lines; /* [max_context]: what the KV line of each token must hold */
  uint32_t n_tokens, n_prompt, max_tokens;
  td_terms terms;
  uint64_t answer_salt;
  uint32_t n_prompt_logits;
  uint32_t scored_to;  /* the first token whose logits are still needed */
  uint64_t submit_seq; /* of submission */
  uint64_t submit_step;
  /* The README's bound on the steps from submission to the end: the work of requests that ran when it
   * arrived, and of those that started while it waited. counted has a bit for each of these. */
  uint64_t steps_allowed, counted;
  uint64_t late_before; /* steps with a late row when it arrived: each later one may delay all by one more */
  int64_t place_us;
  bool running, following, has_run; /* when last looked at */
  uint64_t start_seq;               /* order of being started, while running */
  bool answering;                   /* sampled since it last started: a decode */
  uint32_t n_preemptions, n_pages;  /* when last looked at */
  uint32_t n_known;                 /* tokens when it last started: for a decode, these are in the tree */
} sim_slot;

typedef struct sim_prefix {
  int32_t *tokens;
  uint32_t n;
} sim_prefix;

typedef struct sim_totals {
  uint64_t worlds;
  uint64_t steps, requests, finished, cancelled, refused, preemptions, evicted, hit_tokens, query_tokens;
  uint64_t cancelled_in[3]; /* waiting, prefill, decode */
  uint64_t repeating_steps; /* decodes shared KV */
  uint64_t steps_of[TD_POLICY_COUNT], timed_steps,
      floor_steps; /* floor: the decodes alone exceeded the target, prompts went on */
  uint64_t rows, decode_rows, shared_steps, ahead_steps, ahead_past_queue, wasted_rows;
  uint64_t expired[3]; /* waiting, in prefill, in decode */
  uint64_t late_rows, late_prompts, late_ahead, scored_tokens, scored_requests, full_of_logits;
  uint64_t cancelled_following, follows, overtakes, elder_kept, priority_victims, account_turns, kept_places;
  uint64_t gave_way, turns_due, turns_for_pages, page_turns, page_turns_due, passed_fronts, light_first;
  uint64_t longest_short_steps; /* an account waited this long for a place that another had to give */
  double worst_share_of_lead;
  uint64_t longest_wait_steps, longest_life_steps;
  double worst_share_of_bound;
} sim_totals;

typedef struct sim_world {
  sim_rng rng;
  td_sched_config config;
  td_sched *sched;
  td_plan *plan, *next;         /* next: planned ahead */
  bool ahead;                   /* plan was made ahead, and the step before was committed since */
  bool ended[SIM_MAX_SLOTS];    /* [row of plan] whose request ended with the step before */
  bool was_late[SIM_MAX_SLOTS]; /* [row of plan] that the step before did not sample */
  int32_t sampled_before[SIM_MAX_LOGITS];
  sim_slot slots[SIM_MAX_SLOTS];
  sim_prefix prefixes[SIM_PREFIXES];
  uint64_t *device_lines; /* [n_pages * page_tokens] */
  int32_t *device_table;
  uint32_t *readers, *writers; /* [n_pages] scratch of verify */
  uint64_t repeated_pages;     /* of a plan: each reader of a page but the first */
  int32_t sampled[SIM_MAX_LOGITS];
  uint8_t verdict[SIM_MAX_LOGITS], late[SIM_MAX_LOGITS];
  uint64_t late_steps;
  uint32_t finished[SIM_MAX_SLOTS];
  uint64_t step, next_submit_seq, next_start_seq, clock_us;
  double least_correction;         /* seen by now, 1 at most */
  uint64_t least_token_ns;         /* the fastest so far in steps with prompts; 0: none */
  uint64_t served[SIM_ACCOUNTS];   /* at the last look, then including what the plan must have charged */
  bool jumped_queue[SIM_ACCOUNTS]; /* at its last start, a less served account waited, because places were
                                      kept */
  uint32_t n_accounts, last_submitted;
  uint32_t beneficiary_slot, available_before;
  uint64_t beneficiary_seq, beneficiary_until_step, next_turn_step, n_fair_preempted;
  bool turn_by_pages;
  uint64_t short_since; /* step from which on `short_account` is poorest and lacks a place */
  uint32_t short_account;
  double priority_rate, deadline_rate, copy_rate, greedy_rate;
  uint64_t scratch_step, scratch_submit_seq; /* at the last plan from scratch: its step, next_submit_seq */
  double arrival_rate, cancel_rate, stop_rate, ahead_rate, late_rate, score_rate;
  uint32_t n_namespaces, longest_prompt, longest_answer;
  uint64_t schedule_hash; /* of every plan so far */
  int64_t n_stored_pages; /* stored and not removed, according to a subscriber */
  sim_totals *totals;
} sim_world;

/* Everything is drawn from the seed, except hash_seed, which must not matter. */
sim_world *sim_world_create(uint64_t seed, uint64_t hash_seed, sim_totals *totals);
void sim_world_destroy(sim_world *w);
/* Arrivals and cancels, one plan and commit. Returns false if there was nothing to run. */
bool sim_world_step(sim_world *w, bool arrivals);
/* No more arrivals: all admitted requests must end, and every page must be free or cached again. */
void sim_world_drain(sim_world *w);

/* sim_order.c: before and after a plan from scratch. */
void sim_order_record(sim_world *w);
void sim_order_verify(sim_world *w);
/* The request that is next by the rules; SIM_MAX_SLOTS: no waiting request may have a place. */
uint32_t sim_order_front(const sim_world *w);
/* Ends requests whose deadline has passed, and checks what the scheduler reports about them. */
void sim_order_expire(sim_world *w);
/* Checks that a request's place follows from its length, its priority and the clock. */
void sim_order_verify_place(sim_world *w, uint32_t slot);

/* sim_fair.c: before a plan from scratch; and after it, when slots still are as before: how many gave way in
 * it to an account that held less. */
void sim_fair_record(sim_world *w);
uint32_t sim_fair_verify(sim_world *w);
/* Whose turn it now is; SIM_MAX_SLOTS: no one's. */
uint32_t sim_fair_front(const sim_world *w);
/* Whether the request of the plan's row may have been started before that front. */
bool sim_fair_may_pass(const sim_world *w, uint32_t front, uint32_t row);
/* After a plan without preemption: every account that may pass the front has passed. */
void sim_fair_verify_passed(sim_world *w);

/* sim_verify.c */
#define SIM_CHECK(w, cond)                                                                                   \
  do {                                                                                                       \
    if (!(cond))                                                                                             \
      sim_fail(w, __FILE__, __LINE__, #cond);                                                                \
  } while (0)
_Noreturn void sim_fail(const sim_world *w, const char *file, int line, const char *what);
/* The cost model by which steps of this world must keep a target; NULL: none. */
const td_cost_model *sim_cost_of(const sim_world *w);
/* Checks the plan against the slots and the device, before it runs. */
void sim_verify_plan(sim_world *w);
void sim_verify_stats(sim_world *w);

#endif
