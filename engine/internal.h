/* What the files of engine/ share: the engine's parts and who may touch which.
 *
 *   engine.c    life: create, start, the thread, stop; state, info, statistics
 *   load.c      from options to a loaded model, with the memory plan
 *   capture.c   which decode steps are captured, where the backend can, and when
 *   idle.c      what is done while nobody asks for anything: capturing, and tuning
 *   times.c     what steps take, as a start knows it: kept, or guessed from the device class
 *   calibrate.c the same, measured on purpose; dummy_run.c runs the steps
 *   learn.c     the same, learned from the steps that are served, and kept at an orderly end
 *   requests.c  the hand-over between loop and engine thread: slots, rings, tickets
 *   step.c      the step loop: inbox -> plan -> submit -> sample -> wait -> commit -> publish
 *   tokens.c    what a step's outcome means for its requests; masks.c makes masks for the next one
 *   predict.c   steps and waits as predicted, beside what they were; when to come back
 *   sampling.c  what sampling needs beside its parameters
 *   gpu_watch.c what a GPU says of itself
 *   kv_feed.c   KV events, for who publishes them
 *   vectors.c   embeddings: the program that makes them, and their way to the slots
 *   step_log.c  records of the last steps, for who watches
 *   trace.c     --trace: what host and device did when, as Chrome trace JSON
 *   text.c      tokenising, chat templates and detokenising for the server
 */
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

/* Where a slot is in its life, as the loop thread sees it. */
typedef enum td_slot_phase {
  TD_SLOT_FREE,
  TD_SLOT_LIVE,      /* submitted; updates flow */
  TD_SLOT_CANCELLED, /* the loop forgot it; the engine has not confirmed yet */
  TD_SLOT_ENDED,     /* last update handed out; waits for release */
} td_slot_phase;

/* `ended`, published by the engine thread: it will not touch the slot again. */
enum { TD_SLOT_ENDED_CANCELLED = 100 };

/* When the host did what for one step. */
typedef struct td_engine_step_times {
  uint64_t plan_begin_us, plan_end_us, queued_us, ended_us;
  uint64_t since_us;   /* the end of the step before, if the engine was not idle since */
  double predicted_us; /* 0: not known */
} td_engine_step_times;

typedef struct td_slot {
  /* loop thread */
  td_slot_phase phase;
  uint32_t generation;
  uint32_t next_free;
  uint32_t n_reported;    /* generated tokens already handed out */
  uint32_t queued_tokens; /* its share of n_queued_tokens, 0 once it runs */
  uint64_t polled;        /* the last poll that told of it, and where among its updates */
  uint32_t polled_at;
  uint64_t submit_us;

  /* written by the loop before the submit command, read by the engine after it */
  td_engine_request request;  /* tokens owned */
  td_token_logprob *logprobs; /* [n_prompt_logits + max_new], or NULL: not asked for; written as tokens are */
  td_top_token *top;          /* [as many][n_top] */
  float *vector;              /* [width], or NULL: no embedding is made; written as the one token is */
  void *lists;                /* what its sampling points to; owned */
  uint32_t *mask;             /* owned; NULL: any id may be sampled */

  /* engine thread */
  bool active;
  uint32_t active_generation;
  uint32_t n_new; /* tokens generated */
  const char *error;
  bool gave_up;         /* the error is its mask provider's */
  int ends_as;          /* ended, once the fill that runs of its mask is over */
  uint32_t next_ending; /* of those that wait for that */

  /* engine -> loop; `n_generated` and `ended` are stored with release after what they cover */
  _Atomic uint32_t n_generated;
  _Atomic int ended; /* td_finish, or TD_SLOT_ENDED_CANCELLED */
  _Atomic bool in_outbox;
  _Atomic uint32_t n_cached_prompt;
  _Atomic uint64_t predicted_queue_us, first_run_us, first_token_us, last_token_us;
} td_slot;

enum { TD_STEP_ERRORS_KEPT = 1024, TD_LEARNED_BINS = 2048 };

/* What this run's steps tell. Of a table that was measured: measured / calibrated of steps [without, with]
 * prompts, in bins of equal shares, which hold what these steps take by the calibration. Of one that was not:
 * the table itself. Engine thread. */
typedef struct td_engine_learned {
  uint64_t n[2];
  double bins_us[2][TD_LEARNED_BINS];
  td_cost_learner learner;
} td_engine_learned;

/* A count of rows that decode steps are captured for. */
typedef struct td_captured_count {
  uint32_t n_rows;
  bool is_captured, is_stale; /* stale: captured with algorithms that are old now */
} td_captured_count;

/* Captured decode steps, and those that will be. Engine thread. */
typedef struct td_engine_captures {
  td_captured_count counts[TD_CAPTURE_COUNTS_MAX]; /* [n_counts] ascending; none: nothing is captured */
  uint32_t n_counts;
  uint32_t n_missing; /* that are still to be captured; 0 too where that has ended early */
  uint32_t n_stale;
  uint64_t budget_us, spent_us;        /* of those that are, or were, missing */
  uint64_t last_us;                    /* the end of the last such capture */
  uint32_t n_forms, n_fused, n_fitted; /* of them */
  uint32_t n_recaptured;
} td_engine_captures;

/* What is done in idle moments. Engine thread. */
typedef struct td_engine_idle {
  td_tuning tuning;
  uint64_t budget_us, spent_us; /* of tuning in this run */
  uint64_t since_us;            /* nothing has run or waited since then; 0: something does */
} td_engine_idle;

/* grammar.c: the vocabulary's trie, and compiled grammars */
typedef struct td_grammars td_grammars;

enum { TD_TIMES_HISTORY_BYTES = 80 };

/* What is kept of step times. */
typedef struct td_kept_times {
  td_cost_model cost;
  td_times_source source;
  uint64_t n_steps;                     /* that it was learned from */
  char history[TD_TIMES_HISTORY_BYTES]; /* how they came about, as text */
} td_kept_times;

struct td_engine {
  td_options options;
  td_engine_info info;

  /* the model and its text, read-only once READY */
  td_model_files *files;
  td_model_desc desc;
  td_tokenizer *tokenizer;         /* NULL: none */
  td_grammars *grammars;           /* NULL: no tokenizer */
  td_chat_template *chat_template; /* NULL: none */
  td_chat_template *tool_template; /* for requests with tools; NULL: the same */
  td_error chat_template_error;    /* why there is none */
  char *chat_template_text;        /* of chat_template; NULL: none, or no memory for it */
  td_buf template_text;            /* of the one for requests with tools */

  /* engine thread */
  td_backend *backend;
  td_model *model;
  td_kv *kv;
  td_program *program;             /* the forward of every step, */
  td_compiled *forward, *sampling; /* as the backend runs it, and what chooses tokens behind it (embeddings:
                                      NULL) */
  td_engine_idle idle;
  td_engine_captures captures;
  td_sched *sched;
  td_cost_model cost; /* what steps take, as it was known at start */
  double cost_unsure; /* how far off that may be: cost_learn.h */
  td_times_source cost_source;
  uint64_t n_learned_before; /* steps, in earlier runs */
  char cost_identity[TD_COST_IDENTITY_BYTES - TD_TIMES_HISTORY_BYTES];
  char cost_path[TD_CACHE_PATH_BYTES]; /* where it is kept; "": nowhere */
  td_engine_learned learned;
  td_plan *plan, *next;      /* the oldest step under way, and one planned ahead of its outcome */
  td_outcome outcome;        /* of the step that ended last */
  int32_t *sampled;          /* [max_logits] its ids, as they are committed */
  uint8_t *verdict;          /* [max_logits] TD_TOKEN_* */
  uint8_t *late, *next_late; /* [max_logits] of plan and next: rows whose mask is late */
  bool has_late, next_has_late;
  const uint32_t **row_masks; /* [max_logits] of the step that is being sampled */
  td_masks *masks;            /* NULL: no request has any */
  uint32_t n_masked;          /* active requests with a mask */
  uint64_t n_late_rows;
  uint32_t first_ending;
  uint32_t *finished; /* [max_running] */
  td_engine_step_times times, next_times;
  uint64_t foreseen_us; /* when the forecast in stats was made */
  bool foresaw_idle;
  td_trace *trace; /* NULL: none is written */

  /* hand-over */
  td_slot *slots; /* [n_slots] */
  uint32_t n_slots;
  uint32_t free_head;       /* loop thread: list of free slots, UINT32_MAX = none */
  uint64_t n_queued_tokens; /* loop thread */
  uint64_t *account_tokens; /* [TD_ACCOUNTS_MAX] of n_queued_tokens; loop thread */
  uint32_t n_accounts;
  uint32_t n_taken;       /* slots that are not free; loop thread */
  uint64_t n_polls;       /* loop thread */
  uint64_t promised_us;   /* loop thread: when the last one that was refused was told to come back */
  td_ring inbox;          /* loop -> engine */
  td_ring outbox;         /* engine -> loop: slots with news */
  int wake_fd;            /* eventfd that the idle engine thread reads */
  _Atomic bool is_asleep; /* or about to be: it looks into the inbox once more after it says so */
  void (*wake)(void *arg);
  void *wake_arg;

  pthread_t thread;
  bool thread_started;
  bool only_checks;  /* td_engine_check: load, measure nothing, serve nothing */
  bool calibrates;   /* td_engine_calibrate: tunes and measures, and serves nothing */
  _Atomic int state; /* td_engine_state */
  _Atomic bool stop_asked;
  td_error failure; /* written before state becomes FAILED */

  pthread_mutex_t stats_lock;
  td_engine_stats stats;
  float step_errors[TD_STEP_ERRORS_KEPT]; /* a ring, as stats */
  uint64_t n_step_errors;
  _Atomic uint64_t heartbeat_us;
  _Atomic bool in_step;
  _Atomic uint64_t longest_predicted_us;
  td_step_log step_log;
  td_kv_feed kv_feed;
  td_gpu_watch *gpu_watch; /* NULL: none, or it cannot be asked */
};

/* Whether it makes embeddings, and nothing else. */
static inline bool td_engine_embeds(const td_engine *e) { return strcmp(e->options.pooling, "none") != 0; }
/* Tokens of a request beside those that are computed: what ends a request of embeddings is no part of the
 * context (vectors.c). */
static inline uint32_t td_engine_beyond_context(const td_engine *e) { return td_engine_embeds(e) ? 1 : 0; }

/* What dummy steps are run by. */
static inline td_stepper td_engine_stepper(const td_engine *e)
{
  return (td_stepper){.backend = e->backend,
                      .program = e->program,
                      .forward = e->forward,
                      .sampling = e->sampling,
                      .vocab = e->desc.vocab};
}

/* load.c; engine thread. On failure what was made stays in *e for td_engine_destroy. */
TD_MUST_CHECK td_status td_engine_load(td_engine *e, td_error *err);

/* idle.c; engine thread. Before captures: takes the algorithms that are kept; measures the others if that is
 * what this start is for (--calibrate). */
TD_MUST_CHECK td_status td_engine_begin_tuning(td_engine *e, td_error *err);
/* With nothing under way: how long to wait for work before td_engine_use_idleness; negative: until some
 * comes.
 */
int td_engine_idle_wait_ms(td_engine *e);
TD_MUST_CHECK td_status td_engine_use_idleness(td_engine *e, td_error *err); /* one piece */
uint32_t td_engine_idle_left(const td_engine *e); /* as td_engine_stats.tuning_left */
void td_engine_tell_idle_left(td_engine *e);      /* in stats */

/* capture.c; engine thread, after load's memory is there. What captures wants nothing under way.
 * Nothing is captured yet, but will be. */
void td_engine_begin_captures(td_engine *e);
/* As far as capture_ms reaches. */
TD_MUST_CHECK td_status td_engine_capture_all(td_engine *e, td_error *err);
/* One of captures.n_missing; fails only as the device fails. */
TD_MUST_CHECK td_status td_engine_capture_next(td_engine *e, td_error *err);
/* Whether such a step runs op by op, but will be captured. */
bool td_engine_awaits_capture(const td_engine *e, const td_plan *plan);
/* Whether that is due now, though requests run; then, behind the step, that of its n_rows. */
bool td_engine_needs_capture(const td_engine *e, const td_plan *plan);
TD_MUST_CHECK td_status td_engine_capture_needed(td_engine *e, uint32_t n_rows, td_error *err);
/* Captured steps of so many rows have other algorithms now; one of captures.n_stale anew. */
void td_engine_mark_stale(td_engine *e, uint32_t least_rows, uint32_t most_rows);
TD_MUST_CHECK td_status td_engine_capture_anew(td_engine *e, td_error *err);

/* times.c; engine thread, at start: fills cost and where it comes from. */
void td_engine_know_times(td_engine *e, uint32_t page_tokens);
/* The file as it is now. */
TD_MUST_CHECK td_status td_engine_read_times(const td_engine *e, bool *found, td_kept_times *out,
                                             td_error *err);
TD_MUST_CHECK td_status td_engine_write_times(const td_engine *e, const td_cost_model *m, const char *history,
                                              td_error *err);
void td_engine_say_measured(char history[TD_TIMES_HISTORY_BYTES], uint32_t n_measured, uint32_t n_kinds,
                            uint32_t within_ms);
void td_engine_say_learned(char history[TD_TIMES_HISTORY_BYTES], uint64_t n_steps);

/* calibrate.c; engine thread, after td_engine_know_times and before the first request: measures cost and
 * keeps it. The pages of the KV store are written. */
TD_MUST_CHECK td_status td_engine_measure_times(td_engine *e, uint32_t page_tokens, uint32_t n_pages,
                                                uint32_t max_context, td_error *err);

/* requests.c */
TD_MUST_CHECK td_status td_engine_requests_init(td_engine *e, td_error *err);
void td_engine_requests_deinit(td_engine *e);
/* Engine thread: tells the loop to look at a slot. */
void td_engine_notify_slot(td_engine *e, uint32_t slot);
/* Engine thread: the request has ended. Its end is published at once, or when no fill of its mask runs any
 * more. */
void td_engine_end_slot(td_engine *e, uint32_t slot, int ended);
/* Publishes the end of a slot, after which the engine does not touch it. */
void td_engine_publish_end(td_engine *e, uint32_t slot, int ended);

/* sampling.c; loop thread: the slot's request gets its own lists (s->lists). False: no memory. */
TD_MUST_CHECK bool td_engine_copy_lists(const td_engine *e, td_slot *s);
/* Engine thread: before a plan is submitted, the state of the slots that it samples for. */
void td_engine_prepare_sampling(td_engine *e, const td_plan *plan);

/* predict.c; engine thread. The forecast, if it is time for another; false: not yet. Idle: nothing runs or
 * waits. */
bool td_engine_foresee(td_engine *e, bool idle, td_sched_forecast *f);
/* For stats, locked by the caller. */
void td_engine_note_step(td_engine *e, double predicted_us, double measured_us);
void td_engine_note_forecast(td_engine *e, const td_sched_forecast *f);

/* learn.c; engine thread. */
void td_engine_begin_learning(td_engine *e);
/* calibrated_us: by what was known at start. */
void td_engine_learn_step(td_engine *e, const td_step_work *w, double calibrated_us, double measured_us);
/* At an orderly end: keeps what was learned, beside a table that was measured, else as a table. */
void td_engine_keep_learned(td_engine *e);

/* tokens.c; engine thread. What steps need beside the scheduler's plans. */
TD_MUST_CHECK td_status td_engine_make_step_memory(td_engine *e, uint32_t max_running, uint32_t max_logits,
                                                   td_error *err);
void td_engine_free_step_memory(td_engine *e);
/* Whether some row of the plan, which is planned ahead, obeys a mask that is made of a token not yet known.
 */
bool td_engine_awaits_masks(const td_engine *e, const td_plan *plan);
/* Queues the sampling of the plan that was submitted last, with the masks that are made; waits for others as
 * long as the device computes. */
void td_engine_sample(td_engine *e, const td_plan *plan, uint8_t *late, bool *has_late);
/* Commits e->plan's outcome to the scheduler and hands its tokens to the loop. */
void td_engine_commit(td_engine *e);
/* The request's first mask. */
void td_engine_ask_mask(td_engine *e, uint32_t slot);
/* Publishes ends that waited for a mask. True: there were some. */
bool td_engine_finish_endings(td_engine *e);

/* vectors.c; engine thread. The program of steps: of one that generates, or makes embeddings. */
TD_MUST_CHECK td_status td_engine_make_program(td_engine *e, td_error *err);
uint64_t td_engine_vectors_bytes(const td_engine *e);
/* The vectors of prompts that the step has ended, before its commit. */
TD_MUST_CHECK td_status td_engine_take_vectors(td_engine *e, td_error *err);

/* step.c; engine thread: runs until stop_asked or a device fault. What was learned is kept in the former
 * case. */
TD_MUST_CHECK td_status td_engine_run(td_engine *e, td_error *err);

/* grammar.c: at start, behind the tokenizer */
TD_MUST_CHECK td_status td_engine_load_grammars(td_engine *e, td_error *err);
void td_engine_free_grammars(td_engine *e);

#endif
