/* Shared by the files of engine/: the parts of the engine, and which thread may use each.
 *
 *   engine.c    create, start, the thread, stop; state, info, statistics
 *   load.c      from options to a loaded model, with the memory plan
 *   capture.c   which decode steps are captured, and when
 *   idle.c      idle moments: captures and tuning
 *   times.c     step times at start: kept in a file, or guessed from the device class
 *   calibrate.c step times, measured by dummy runs (dummy_run.c)
 *   learn.c     step times, learned from the steps that are served and written at an orderly end
 *   requests.c  the hand-over between loop and engine thread: slots, rings, tickets
 *   step.c      the step loop: inbox -> plan -> submit -> sample -> wait -> commit -> publish
 *   tokens.c    from a step's outcome to tokens of requests; masks for sampling
 *   masks.c     threads that make masks
 *   predict.c   predicted against measured step times; Retry-After
 *   sampling.c  lists and histories that sampling needs
 *   gpu_watch.c what a GPU reports about itself
 *   kv_feed.c   KV events for the thread that publishes them
 *   vectors.c   embeddings: their program, and the copy of vectors to slots
 *   step_log.c  records of the last steps
 *   trace.c     --trace: times of host and device as Chrome trace JSON
 *   text.c      tokenising, chat templates and detokenising for the server */
#ifndef TD_ENGINE_INTERNAL_H
#define TD_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "common/cache.h"
#include "engine/engine.h"
#include "engine/gpu_watch.h"
#include "engine/kv_feed.h"
#include "engine/masks.h"
#include "engine/ring.h"
#include "engine/step_log.h"
#include "engine/trace.h"
#include "engine/dummy_run.h"
#include "kernels/kernels.h"
#include "models/model.h"
#include "models/template/chat_template.h"
#include "models/tokenizer/tokenizer.h"
#include "scheduler/cost_learn.h"
#include "scheduler/cost_model.h"
#include "scheduler/cost_text.h"
#include "scheduler/scheduler.h"

enum { TD_COMMAND_SUBMIT = 1, TD_COMMAND_CANCEL = 2, TD_COMMAND_END = 3 };

/* The state of a slot, as the loop thread sees it. */
typedef enum td_slot_phase {
  TD_SLOT_FREE,
  TD_SLOT_LIVE,      /* submitted; updates flow */
  TD_SLOT_CANCELLED, /* the loop forgot it; the engine has not confirmed yet */
  TD_SLOT_ENDED,     /* its last update was returned; waits for release */
} td_slot_phase;

/* A value of `ended`, which the engine thread publishes when it will not touch the slot any more. */
enum { TD_SLOT_ENDED_CANCELLED = 100 };

/* Host times of one step. */
typedef struct td_engine_step_times {
  uint64_t plan_begin_us, plan_end_us, queued_us, ended_us;
  uint64_t since_us;   /* the end of the step before, if the engine was not idle in between */
  double predicted_us; /* 0: not known */
} td_engine_step_times;

typedef struct td_slot {
  /* loop thread */
  td_slot_phase phase;
  uint32_t generation;
  uint32_t next_free;
  uint32_t n_reported;    /* generated tokens already returned in updates */
  uint32_t queued_tokens; /* its part of n_queued_tokens; 0 from its first update on */
  uint64_t last_poll; /* n_polls at the last poll that returned it, and its index among that poll's updates */
  uint32_t last_update_index;
  uint64_t submit_us;

  /* written by the loop before the submit command, read by the engine after it */
  td_engine_request request;  /* tokens owned */
  td_token_logprob *logprobs; /* [n_prompt_logits + max_new], published like tokens; NULL: not requested */
  td_top_token *top;          /* [n_prompt_logits + max_new][n_top] */
  float *vector;              /* [width], published like the one token; NULL: no embedding is made */
  void *sampling_arrays;      /* the arrays that request.sampling points to; owned */
  uint32_t *mask;             /* owned; NULL: any id may be sampled */

  /* engine thread */
  bool active;
  uint32_t active_generation;
  uint32_t n_new; /* tokens generated */
  const char *error;
  bool mask_failed;          /* `error` comes from its mask provider */
  int pending_finish;        /* value for `ended`, to publish when the running fill is over */
  uint32_t next_pending_end; /* next slot of the list at first_pending_end */

  /* engine -> loop; `n_generated` and `ended` are stored with release after the data that they cover */
  _Atomic uint32_t n_generated;
  _Atomic int ended; /* td_finish, or TD_SLOT_ENDED_CANCELLED */
  _Atomic bool in_outbox;
  _Atomic uint32_t n_cached_prompt;
  _Atomic uint64_t predicted_queue_us, first_run_us, first_token_us, last_token_us;
} td_slot;

enum { TD_STEP_ERRORS_KEPT = 1024, TD_LEARNED_BINS = 2048 };

/* What this run's step times teach. Engine thread. If the cost model was measured: a histogram of measured /
 * calibrated time, for steps [without, with] prompts. The bins divide the ratio's logarithm evenly, and each
 * holds the sum of its steps' calibrated times. If it was not measured: a better cost model (learner). */
typedef struct td_engine_learned {
  uint64_t n[2];
  double bins_us[2][TD_LEARNED_BINS];
  td_cost_learner learner;
} td_engine_learned;

/* A row count that decode steps are captured for. */
typedef struct td_captured_count {
  uint32_t n_rows;
  bool is_captured, is_stale; /* stale: captured with algorithms that have changed since */
} td_captured_count;

/* Decode steps that are captured or will be. Engine thread. */
typedef struct td_engine_captures {
  td_captured_count counts[TD_CAPTURE_COUNTS_MAX]; /* [n_counts] ascending; n_counts 0: nothing is captured */
  uint32_t n_counts;
  uint32_t n_missing; /* still to be captured; also 0 if first captures ended early */
  uint32_t n_stale;
  uint64_t budget_us, spent_us; /* of first captures */
  uint64_t last_us;             /* when the most recent one ended */
  /* forms of captured steps: all, fused, and those whose attention gets its grid at each launch */
  uint32_t n_forms, n_fused, n_fitted;
  uint32_t n_recaptured;
} td_engine_captures;

/* Work that is done in idle moments. Engine thread. */
typedef struct td_engine_idle {
  td_tuning tuning;
  uint64_t budget_us, spent_us; /* for tuning in this run */
  uint64_t since_us;            /* no request has run or waited since then; 0: one does */
} td_engine_idle;

/* grammar.c: the vocabulary's trie, and the cache of compiled grammars */
typedef struct td_grammars td_grammars;

enum { TD_TIMES_HISTORY_BYTES = 80 };

/* The content of a file of step times. */
typedef struct td_kept_times {
  td_cost_model cost;
  td_times_source source;
  uint64_t n_steps;                     /* the cost model was learned from this many */
  char history[TD_TIMES_HISTORY_BYTES]; /* how the cost model came about, as text */
} td_kept_times;

struct td_engine {
  td_options options;
  td_engine_info info;

  /* the model and its text functions; read-only once READY */
  td_model_files *files;
  td_model_desc desc;
  td_tokenizer *tokenizer;         /* NULL: none */
  td_grammars *grammars;           /* NULL: no tokenizer */
  td_chat_template *chat_template; /* NULL: none */
  td_chat_template *tool_template; /* for requests with tools; NULL: chat_template serves them too */
  td_error chat_template_error;    /* why chat_template is NULL */
  char *chat_template_text;        /* source of chat_template; NULL: there is none, or no memory for it */
  td_buf template_text;            /* source of the template for requests with tools */

  /* engine thread */
  td_backend *backend;
  td_model *model;
  td_kv *kv;
  td_program *program; /* the forward of every step */
  /* program as compiled, and the compiled program that samples (NULL if the engine makes embeddings) */
  td_compiled *forward, *sampling;
  td_engine_idle idle;
  td_engine_captures captures;
  td_sched *sched;
  td_cost_model cost;      /* the cost model as it was at start */
  double cost_uncertainty; /* its relative error: see cost_learn.h */
  td_times_source cost_source;
  uint64_t n_learned_before; /* steps that cost was learned from in earlier runs */
  char cost_identity[TD_COST_IDENTITY_BYTES - TD_TIMES_HISTORY_BYTES];
  char cost_path[TD_CACHE_PATH_BYTES]; /* file of step times; "": none */
  td_engine_learned learned;
  td_plan *plan, *next;      /* the oldest step under way, and the one planned ahead */
  td_outcome outcome;        /* of the last step that ended */
  int32_t *sampled;          /* [max_logits] its sampled ids, as they are committed */
  uint8_t *verdict;          /* [max_logits] TD_TOKEN_* */
  uint8_t *late, *next_late; /* [max_logits] of plan and next: nonzero for entries whose mask is late */
  bool has_late, next_has_late;
  const uint32_t **row_masks; /* [max_logits] masks of the step that is being sampled */
  td_masks *masks;            /* the threads that make masks */
  uint32_t n_masked;          /* active requests with a mask */
  uint64_t n_late_rows;
  uint32_t first_pending_end;
  uint32_t *finished; /* [max_running]; filled by td_sched_commit */
  td_engine_step_times times, next_times;
  double ahead_lead_us; /* how long before the predicted end of a step the next one is planned ahead */
  uint64_t forecast_us; /* the time of the forecast in stats */
  bool was_idle_at_forecast;
  td_trace *trace; /* NULL: option trace is not set */

  /* hand-over */
  td_slot *slots; /* [n_slots] */
  uint32_t n_slots;
  uint32_t free_head;       /* loop thread: first of the free slots, UINT32_MAX: none */
  uint64_t n_queued_tokens; /* loop thread: prompt tokens in the queue */
  uint64_t *account_tokens; /* loop thread: [TD_ACCOUNTS_MAX] n_queued_tokens by account */
  uint32_t n_accounts;
  uint32_t n_used_slots;  /* loop thread: slots that are not free */
  uint64_t n_polls;       /* loop thread */
  uint64_t retry_at_us;   /* loop thread: the time that the last refused client was given (Retry-After) */
  td_ring inbox;          /* loop -> engine */
  td_ring outbox;         /* engine -> loop: slots with news */
  int wake_fd;            /* eventfd that the idle engine thread reads */
  _Atomic bool is_asleep; /* set by the engine thread before it checks the inbox a last time and sleeps */
  void (*wake)(void *arg);
  void *wake_arg;

  pthread_t thread;
  bool thread_started;
  bool only_checks;  /* td_engine_check: loads, measures nothing, serves nothing */
  bool calibrates;   /* td_engine_calibrate: loads, tunes and measures, serves nothing */
  _Atomic int state; /* td_engine_state */
  _Atomic bool stop_requested;
  td_error failure; /* written before state becomes FAILED */

  pthread_mutex_t stats_lock;
  td_engine_stats stats;
  float step_errors[TD_STEP_ERRORS_KEPT]; /* a ring; protected by stats_lock */
  uint64_t n_step_errors;
  _Atomic uint64_t heartbeat_us;
  _Atomic bool in_step;
  _Atomic uint64_t longest_predicted_us;
  td_step_log step_log;
  td_kv_feed kv_feed;
  td_gpu_watch *gpu_watch; /* NULL: no GPU, or it cannot be queried */
};

/* Whether the engine makes embeddings, and nothing else. */
static inline bool td_engine_embeds(const td_engine *e) { return strcmp(e->options.pooling, "none") != 0; }
/* Tokens of a request that take no room in the context. A request for an embedding ends with a generated
 * token that is never computed (vectors.c). */
static inline uint32_t td_engine_beyond_context(const td_engine *e) { return td_engine_embeds(e) ? 1 : 0; }

/* The slot of the plan's i-th logits entry. */
static inline uint32_t td_engine_slot_of(const td_plan *plan, uint32_t i)
{
  return plan->rows[plan->logits[i].row].slot;
}

/* The compiled programs and backend that dummy steps run on. */
static inline td_stepper td_engine_stepper(const td_engine *e)
{
  return (td_stepper){.backend = e->backend,
                      .program = e->program,
                      .forward = e->forward,
                      .sampling = e->sampling,
                      .vocab = e->desc.vocab};
}

/* load.c; engine thread. On failure, the parts made so far stay in *e for td_engine_destroy. */
TD_MUST_CHECK td_status td_engine_load(td_engine *e, td_error *err);

/* idle.c; engine thread, before captures. Reads the algorithms in cache_dir. With --calibrate, measures the
 * others too. */
TD_MUST_CHECK td_status td_engine_begin_tuning(td_engine *e, td_error *err);
/* Call with nothing under way. Returns how long to wait for a command before td_engine_do_idle_work may be
 * called; negative: there is no idle work, wait without limit. */
int td_engine_idle_wait_ms(td_engine *e);
TD_MUST_CHECK td_status td_engine_do_idle_work(td_engine *e, td_error *err); /* does one piece of idle work */
uint32_t td_engine_idle_work_left(const td_engine *e); /* the value of td_engine_stats.tuning_left */
void td_engine_publish_idle_work(td_engine *e);        /* writes that value to stats */

/* capture.c; engine thread, after td_engine_load has allocated memory. Captures need that no step is under
 * way.
 *
 * Chooses the row counts to capture; captures nothing. */
void td_engine_begin_captures(td_engine *e);
/* Captures all of them, until capture_ms is used up. */
TD_MUST_CHECK td_status td_engine_capture_all(td_engine *e, td_error *err);
/* Captures one row count of captures.n_missing. Returns an error only if the device failed. */
TD_MUST_CHECK td_status td_engine_capture_next(td_engine *e, td_error *err);
/* Whether a step like this plan runs op by op now, but will be captured. */
bool td_engine_awaits_capture(const td_engine *e, const td_plan *plan);
/* Whether such a capture is due now although requests run. If so, call td_engine_capture_needed after the
 * step, with the plan's n_rows. */
bool td_engine_needs_capture(const td_engine *e, const td_plan *plan);
TD_MUST_CHECK td_status td_engine_capture_needed(td_engine *e, uint32_t n_rows, td_error *err);
/* td_engine_mark_stale: the algorithms for least_rows to most_rows have changed. td_engine_recapture_stale
 * captures one row count of captures.n_stale again. */
void td_engine_mark_stale(td_engine *e, uint32_t least_rows, uint32_t most_rows);
TD_MUST_CHECK td_status td_engine_recapture_stale(td_engine *e, td_error *err);

/* times.c; engine thread, at start: sets cost, cost_uncertainty and cost_source. */
void td_engine_load_times(td_engine *e, uint32_t page_tokens);
/* Reads the file of step times as it is now. */
TD_MUST_CHECK td_status td_engine_read_times(const td_engine *e, bool *found, td_kept_times *out,
                                             td_error *err);
TD_MUST_CHECK td_status td_engine_write_times(const td_engine *e, const td_cost_model *m, const char *history,
                                              td_error *err);
void td_engine_format_measured(char history[TD_TIMES_HISTORY_BYTES], uint32_t n_measured, uint32_t n_kinds,
                               uint32_t within_ms);
void td_engine_format_learned(char history[TD_TIMES_HISTORY_BYTES], uint64_t n_steps);

/* calibrate.c; engine thread, after td_engine_load_times and before the first request. Measures step times,
 * fits cost to them and writes the file. Overwrites KV pages. */
TD_MUST_CHECK td_status td_engine_measure_times(td_engine *e, uint32_t page_tokens, uint32_t n_pages,
                                                uint32_t max_context, td_error *err);

/* requests.c */
TD_MUST_CHECK td_status td_engine_requests_init(td_engine *e, td_error *err);
void td_engine_requests_deinit(td_engine *e);
/* Any thread: makes the idle engine thread look for work. */
void td_engine_wake_thread(td_engine *e);
/* Engine thread: puts a slot into the outbox, so that the loop looks at it. */
void td_engine_notify_slot(td_engine *e, uint32_t slot);
/* Engine thread: the request has ended. Publishes that immediately, or, if a fill of its mask is running,
 * after the fill. */
void td_engine_end_slot(td_engine *e, uint32_t slot, int ended);
/* Publishes that a slot has ended. The engine does not touch the slot afterwards. */
void td_engine_publish_end(td_engine *e, uint32_t slot, int ended);

/* sampling.c; loop thread: copies the arrays that the request's sampling points to into s->sampling_arrays.
 * False: no memory. */
TD_MUST_CHECK bool td_engine_copy_sampling_arrays(const td_engine *e, td_slot *s);
/* Engine thread, before a plan is submitted: prepares sampler state for the slots that the plan samples
 * for. */
void td_engine_prepare_sampling(td_engine *e, const td_plan *plan);

/* predict.c; engine thread. Makes a new forecast if one is due; otherwise returns false. idle: no request
 * runs or waits. */
bool td_engine_make_forecast(td_engine *e, bool idle, td_sched_forecast *f);
/* Both write to stats; the caller holds stats_lock. */
void td_engine_record_step_error(td_engine *e, double predicted_us, double measured_us);
void td_engine_record_forecast(td_engine *e, const td_sched_forecast *f);

/* learn.c; engine thread. */
void td_engine_begin_learning(td_engine *e);
/* calibrated_us: the step's time by e->cost. */
void td_engine_learn_step(td_engine *e, const td_step_work *w, double calibrated_us, double measured_us);
/* Call at an orderly end. Writes what was learned to the file of step times: factors beside a measured cost
 * model, otherwise a learned cost model. */
void td_engine_save_learned(td_engine *e);

/* tokens.c; engine thread. Memory that steps need in addition to the scheduler's plans. */
TD_MUST_CHECK td_status td_engine_make_step_memory(td_engine *e, uint32_t max_running, uint32_t max_logits,
                                                   td_error *err);
void td_engine_free_step_memory(td_engine *e);
/* Whether any entry of a plan that was planned ahead obeys a mask. Such a mask depends on a token that is not
 * known yet. */
bool td_engine_awaits_masks(const td_engine *e, const td_plan *plan);
/* Queues the sampling of the last submitted plan, with the masks that are made. Waits for late masks only
 * while the device computes the forward, or longer if every row's mask is late. */
void td_engine_sample(td_engine *e, const td_plan *plan, uint8_t *late, bool *has_late);
/* Commits e->plan's outcome to the scheduler and hands its tokens to the loop. */
void td_engine_commit(td_engine *e);
/* Queues the making of the request's next mask, if it has masks. */
void td_engine_queue_mask(td_engine *e, uint32_t slot);
/* Publishes the ends that were waiting for a fill of a mask. Returns true if there were any. */
bool td_engine_publish_pending_ends(td_engine *e);

/* vectors.c; engine thread. Makes the program of all steps: one that generates, or one that makes
 * embeddings. */
TD_MUST_CHECK td_status td_engine_make_program(td_engine *e, td_error *err);
uint64_t td_engine_vectors_bytes(const td_engine *e);
/* Before commit: copies the vectors of prompts that end in this step to their slots. */
TD_MUST_CHECK td_status td_engine_copy_vectors(td_engine *e, td_error *err);

/* step.c; engine thread: runs until stop_requested or a device fault. Writes what was learned in the former
 * case only. */
TD_MUST_CHECK td_status td_engine_run(td_engine *e, td_error *err);

/* grammar.c; at start, after the tokenizer was loaded */
TD_MUST_CHECK td_status td_engine_load_grammars(td_engine *e, td_error *err);
void td_engine_free_grammars(td_engine *e);

#endif
