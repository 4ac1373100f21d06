/* One simulated daemon. It runs the daemon's own scheduler, and its steps take as long as the cost
 * model says.
 *
 * It knows requests by their number in the load and writes the result of each into `results`. The caller
 * keeps the time: the daemon says how long its step takes (step_us), and the caller tells it when the step
 * ended. Several of them are replicas. */
#ifndef TD_CAPACITY_SIM_DAEMON_H
#define TD_CAPACITY_SIM_DAEMON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "loadgen/load.h"
#include "loadgen/measures.h"
#include "capacity/measured_steps.h"
#include "capacity/log_histogram.h"
#include "scheduler/cost_model.h"
#include "scheduler/scheduler.h"

/* The result of a request. Times are in us from the start of the run. */
typedef struct td_sim_result {
  double due_us, first_run_us, first_us, end_us;
  double longest_tbt_us; /* longest TBT */
  uint32_t n_tokens;     /* answered */
  uint32_t n_over;       /* TBTs longer than the SLO */
  uint8_t result;        /* td_request_result */
  bool has_run;          /* first_run_us is known: it has a token */
} td_sim_result;

/* Sums of a run over all daemons. */
typedef struct td_tally {
  td_log_histogram ttft_us, tbt_us,
      queue_us;    /* from due_us to the first token; between two tokens; from due_us to the first step */
  uint64_t n_over; /* TBTs longer than tbt_slo_us */
  double tbt_slo_us;
  size_t by_result[TD_RESULTS];
  uint64_t n_late_start; /* first steps more than queue_target_us after due_us */
  uint64_t n_late_first; /* first tokens more than ttft_target_us after due_us */
  double queue_target_us, ttft_target_us;
  uint64_t tokens_out;
  size_t n_ended; /* sum of by_result */
} td_tally;
void td_tally_deinit(td_tally *t);

typedef struct td_sim_daemon_config {
  td_sched_config sched;
  const td_cost_model *cost;
  double correction[2]; /* factor on the calibrated time of a step [without, with] prompts, which the
                         * scheduler has to learn like the daemon's. 0: the cost model's `learned`, which
                         * the scheduler knows from the start */
  const td_measured_steps *measured_steps; /* replaces the correction, for kinds of steps that it has, or
                                            * gives step times; NULL: none. The scheduler has to learn it */
  FILE *log;  /* gets a line for each step, see td_sim_daemon_log_head; NULL: no log */
  bool ahead; /* plans the next step shortly before one ends, if it can (a device of pipeline depth 2) */
  uint64_t queue_tokens; /* prompt tokens that may wait; 0: any number. sched.n_slots bounds the requests */
} td_sim_daemon_config;

typedef struct td_sim_daemon_slot {
  double last_us; /* time of its last token */
  double longest_tbt_us;
  int32_t *tokens;
  uint32_t request;
  uint32_t n_new, n_over;
  int32_t answer; /* the token that it samples: unique, so that answers share no prefix */
} td_sim_daemon_slot;

/* Sums of a daemon since td_sim_daemon_reset_sums. */
typedef struct td_sim_daemon_sums {
  uint64_t n_steps, n_hybrid_steps, decode_rows;
  double busy_us, owned_pages_us, cached_pages_us; /* sums of pages x step time */
  uint32_t most_owned_pages;
  td_sched_stats before; /* the scheduler's counters at that time */
} td_sim_daemon_sums;

typedef struct td_sim_daemon {
  td_sim_daemon_config config;
  const td_load *load;
  td_sim_result *results; /* [load->n] */
  td_tally *tally;

  td_sched *sched;
  td_plan *plan, *next; /* the running step; the step planned ahead */
  bool in_step, has_next;
  td_step_work work; /* of `plan` */
  double step_us;
  double plan_ahead_us; /* when the next step is planned, if nothing has come during the running one */
  bool is_disturbed;    /* something has come before */

  td_sim_daemon_slot *slots; /* [n_slots] */
  uint32_t *free_slots, n_free;
  int32_t *sampled;
  uint8_t *stop;
  uint32_t *finished;

  uint32_t *inbox; /* requests that came since the last plan */
  size_t n_inbox, inbox_cap;

  uint64_t n_steps; /* since the start of the run */
  td_sim_daemon_sums sums;
} td_sim_daemon;

/* load, results and tally are borrowed. Errors are those of td_sched_create. */
TD_MUST_CHECK td_status td_sim_daemon_init(td_sim_daemon *d, const td_sim_daemon_config *c,
                                           const td_load *load, td_sim_result *results, td_tally *tally,
                                           td_error *err);
void td_sim_daemon_deinit(td_sim_daemon *d);
/* A request has come. May be called during a step. The next plan sees the request, unless it was made ahead
 * before. */
void td_sim_daemon_send(td_sim_daemon *d, uint32_t request, double now_us);
/* Requests in the daemon: sent, waiting or running. */
uint32_t td_sim_daemon_n_requests(const td_sim_daemon *d);
/* Plans a step, unless one is planned already, and begins it. Returns false if there is nothing to do. Do
 * not call it while a step is running. */
bool td_sim_daemon_begin_step(td_sim_daemon *d, double now_us);
/* Sets the sums to 0. */
void td_sim_daemon_reset_sums(td_sim_daemon *d);
/* The step has ended. */
void td_sim_daemon_end_step(td_sim_daemon *d, double now_us);
/* The columns of the log: those of the daemon's /v1/steps without prediction and sums. */
extern const char td_sim_daemon_log_head[];

#endif
