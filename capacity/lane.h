/* A lane: one scheduler, the very one of the daemon, whose steps take as long as the cost model says.
 *
 * It knows requests by their number in the load and writes what becomes of each into `lives`. Time is the
 * caller's: a lane says how long its step takes (step_us) and is told when it ended. So one lane is a daemon,
 * and two beside each other are replicas.
 */
#ifndef TD_CAPACITY_LANE_H
#define TD_CAPACITY_LANE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "loadgen/load.h"
#include "loadgen/measures.h"
#include "capacity/pace.h"
#include "capacity/spread.h"
#include "scheduler/cost_model.h"
#include "scheduler/scheduler.h"

/* What became of a request; times in us from the run's begin. */
typedef struct td_life {
  double due_us, first_run_us, first_us, end_us;
  double longest_gap_us;
  uint32_t n_tokens; /* answered */
  uint32_t n_over;   /* gaps longer than the SLO */
  uint8_t end;       /* td_request_end */
  bool has_run;      /* first_run_us is known: it has a token */
} td_life;

/* What a run has seen, over all lanes. */
typedef struct td_tally {
  td_spread ttft_us, tbt_us,
      queue_us;    /* from the due moment to the first token, between tokens, to the first step */
  uint64_t n_over; /* gaps longer than tbt_slo_us */
  double tbt_slo_us;
  size_t by_end[TD_ENDS];
  uint64_t n_late_start; /* first steps that came more than queue_target_us after the due moment */
  uint64_t n_late_first; /* first tokens more than ttft_target_us after it */
  double queue_target_us, ttft_target_us;
  uint64_t tokens_out;
  size_t n_ended; /* sum of by_end */
} td_tally;
void td_tally_deinit(td_tally *t);

typedef struct td_lane_config {
  td_sched_config sched;
  const td_cost_model *cost;
  double correction[2]; /* a step [without, with] prompts takes so many times what was calibrated; 0: what the
                         * cost model has learned, which its scheduler knows from the start; else it is told,
                         * as the daemon's is */
  const td_pace *pace;  /* how many times longer steps take, of kinds that it has, or what they take; NULL:
                           nothing. It is told */
  FILE *log;            /* a line for each step, see td_lane_log_head; NULL: none */
  bool ahead;           /* plans the next step while one runs where it can (a device of pipeline depth 2) */
  uint64_t queue_tokens; /* prompt tokens that may wait; 0: any number. (Requests: sched.n_slots) */
} td_lane_config;

typedef struct td_lane_slot {
  double last_us; /* when its last token came */
  double longest_gap_us;
  int32_t *tokens;
  uint32_t request;
  uint32_t n_new, n_over;
  int32_t answer; /* the token that it samples: its own, so that answers are not taken for shared */
} td_lane_slot;

/* What a lane did since td_lane_begin_sums. */
typedef struct td_lane_sums {
  uint64_t n_steps, n_hybrid_steps, decode_rows;
  double busy_us, owned_pages_us, cached_pages_us; /* pages x time */
  uint32_t most_owned_pages;
  td_sched_stats before; /* the scheduler's own counters then */
} td_lane_sums;

typedef struct td_lane {
  td_lane_config config;
  const td_load *load;
  td_life *lives; /* [load->n] */
  td_tally *tally;

  td_sched *sched;
  td_plan *plan, *next; /* the step under way; the one planned behind it */
  bool in_step, has_next;
  td_step_work work; /* of plan */
  double step_us;

  td_lane_slot *slots; /* [n_slots] */
  uint32_t *free_slots, n_free;
  int32_t *sampled;
  uint8_t *stop;
  uint32_t *finished;

  uint32_t *inbox; /* requests that came since the last plan */
  size_t n_inbox, inbox_cap;

  uint64_t n_steps; /* since the run's begin */
  td_lane_sums sums;
} td_lane;

/* TD_ERR_CONFIG: what td_sched_create says. load, lives and tally are borrowed. */
TD_MUST_CHECK td_status td_lane_init(td_lane *l, const td_lane_config *c, const td_load *load, td_life *lives,
                                     td_tally *tally, td_error *err);
void td_lane_deinit(td_lane *l);
/* A request has come (any time); the next plan sees it. */
void td_lane_send(td_lane *l, uint32_t request);
/* Requests waiting or running, and tokens that they still want. */
uint32_t td_lane_load(const td_lane *l);
/* Plans a step, unless one is planned already, and begins it; false: nothing to do. Not while a step is under
 * way. */
bool td_lane_begin(td_lane *l, double now_us);
/* Sums are of what comes from now on. */
void td_lane_begin_sums(td_lane *l);
/* The step has ended. */
void td_lane_end(td_lane *l, double now_us);
/* The columns of the log, which are those of the daemon's /v1/steps without its prediction and sums. */
extern const char td_lane_log_head[];

#endif
