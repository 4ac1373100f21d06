/* The engine as the server sees it: the only header of engine/ and below that server/ may include.
 *
 * One engine thread owns the device, the scheduler, the pages and the prefix tree. The loop thread hands it
 * requests and cancellations through a ring, and collects progress by polling after a wake-up; neither ever
 * waits for the other. Requests are named by tickets (slot + generation), never by pointers or client ids.
 * The engine believes what it is given: the server validates requests wholly before submit.
 *
 * Threads: functions marked [loop] are called by the one loop thread only; [any] by any thread; the text
 * functions are [any] once the engine is ready (read-only data). */
#ifndef TD_ENGINE_ENGINE_H
#define TD_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/json.h"
#include "config/options.h"
#include "step/grammar.h"
#include "step/outcome.h"
#include "step/sampling.h"
#include "step/terms.h"
#include "common/status.h"

typedef struct td_engine td_engine;

typedef enum td_engine_state {
  TD_ENGINE_LOADING,
  TD_ENGINE_READY,
  TD_ENGINE_STOPPED, /* engine thread has ended as asked */
  TD_ENGINE_FAILED,  /* could not load, or device fault: td_engine_failure says why */
} td_engine_state;

/* ---- life ---- */

/* Loads as a start would, in the calling thread, and ends. It measures nothing, and has KV pages only as far
 * as loading needs them. */
TD_MUST_CHECK td_status td_engine_check(const td_options *options, td_error *err);

/* `tandemd --calibrate`: loads as a start would, in the calling thread, chooses algorithms, measures what
 * steps take, keeps both and ends. *table receives the step times as they are kept. */
TD_MUST_CHECK td_status td_engine_calibrate(const td_options *options, td_buf *table, td_error *err);

/* Copies options; cheap. */
TD_MUST_CHECK td_status td_engine_create(const td_options *options, td_engine **out, td_error *err);
/* How many accounts may come, of ids below TD_ACCOUNTS_MAX: they share what waits and runs. Without it,
 * and for n < 2, all is one's. Before start, or while READY; then places (scheduler/places.h) are still kept
 * as for the number before. */
TD_MUST_CHECK td_status td_engine_set_accounts(td_engine *e, uint32_t n, td_error *err);
/* Starts the engine thread, which loads the model, logs the memory plan, then serves. wake(arg) is called on
 * the engine thread whenever td_engine_poll or the state has something new; it must only signal
 * (uv_async_send). */
TD_MUST_CHECK td_status td_engine_start(td_engine *e, void (*wake)(void *arg), void *arg, td_error *err);
td_engine_state td_engine_get_state(const td_engine *e);   /* [any] */
void td_engine_failure(const td_engine *e, td_error *out); /* [any] after FAILED */
/* [loop] Ends the engine thread after the current step; unfinished requests get no more updates. Joins. */
void td_engine_stop(td_engine *e);
void td_engine_destroy(td_engine *e); /* after stop */

/* ---- what it serves: valid once READY ---- */

enum { TD_NOT_FUSED_MAX = 8 };

/* Captured decode steps whose ops run one by one, and why. */
typedef struct td_engine_not_fused {
  const char *reason; /* static text */
  uint32_t n_steps;
} td_engine_not_fused;

typedef struct td_engine_info {
  char model_name[256]; /* served name */
  char arch[64];
  char backend[16];
  uint32_t vocab;
  uint32_t max_context_tokens; /* prompt + answer */
  uint32_t page_tokens, n_pages;
  uint32_t n_slots, max_running, step_tokens;
  uint64_t parameters, weight_bytes;
  uint32_t width;         /* of its vectors, */
  bool makes_embeddings;  /* which are all that it makes (option pooling) */
  int32_t bos_id, eos_id; /* of the tokenizer; -1: none */
  bool has_chat_template;
  bool template_has_developer; /* it speaks of that role */
  bool context_is_cut;         /* the model could do more; KV memory cannot */
  bool has_tokenizer; /* false: prompts are token ids, answers have no text (a made-up model without one) */
  td_sampling default_sampling; /* the operator's over the model's over the API's; seed 0 */
  uint64_t loaded_at_unix_s;
} td_engine_info;
const td_engine_info *td_engine_get_info(const td_engine *e); /* [any] */

/* ---- requests ---- */

typedef struct td_ticket {
  uint32_t slot;
  uint32_t generation; /* 0 is no ticket */
} td_ticket;

/* What may be sampled next, from outside: a grammar. fill writes the mask of the ids that may follow
 * tokens[0 .. n), prompt and answer: bit i % 32 of word i / 32 for id i, (vocab + 31) / 32 words; at least
 * one must be set. It returns NULL, or why there is no mask any more, as static text: then the request ends
 * as TD_FINISH_REFUSED. It is called by threads of the engine's, for one request one call after the other and
 * with more tokens each time. drop is called once, on the loop thread, when no fill runs or comes any more.
 */
extern const char
    td_mask_no_memory[]; /* what fill returns if the process has none: not the request's doing */
typedef struct td_mask_provider {
  const char *(*fill)(void *arg, const int32_t *tokens, uint32_t n, uint32_t *mask); /* NULL: any id may */
  void (*drop)(void *arg); /* NULL: nothing is called */
  void *arg;
} td_mask_provider;

/* Where embeddings are made, max_new is 1: what counts as the generated token is the vector. */
typedef struct td_engine_request {
  int32_t *tokens;      /* malloc'ed [n_prompt + max_new] with the prompt in front; every id < vocab */
  uint32_t n_prompt;    /* >= 1 */
  uint32_t max_new;     /* >= 1; n_prompt + max_new <= max_context_tokens */
  td_sampling sampling; /* what it points to is copied; end_ids are the engine's to fill in */
  td_mask_provider mask;
  uint32_t n_prompt_logits; /* < n_prompt: so many of the prompt's last tokens are told with their
                             * log-probabilities, if sampling.wants_logprobs */
  bool ignore_eos;
  uint32_t n_stop_ids;
  int32_t stop_ids[TD_STOP_IDS_MAX];
  td_terms terms;
  void *user; /* comes back in updates */
} td_engine_request;

/* [loop] On TD_OK the engine owns r->tokens and mask.arg (taken). TD_ERR_CAPACITY: all slots,
 * the token queue or the account's share of it are full, or the engine is not READY (then the state says so).
 * TD_ERR_REQUEST: could never fit. */
TD_MUST_CHECK td_status td_engine_submit(td_engine *e, const td_engine_request *r, td_ticket *out,
                                         td_error *err);
/* [loop] After a submission was refused for lack of room: in how long one with such a prompt would find some,
 * by what steps take and who is before it. Each answer is a promise that the next one counts in, so that
 * those who were refused do not all come back at once. 0: not known. */
uint64_t td_engine_retry_after_us(td_engine *e, uint32_t n_prompt);
/* [loop] Forgets a request in any state: td_engine_poll returns nothing for it from now on, its pages are
 * free within two steps, and the engine recycles the slot by itself. Unknown or ended tickets are ignored. */
void td_engine_cancel(td_engine *e, td_ticket ticket);
/* [loop] The same for an answer that is complete (a stop string): it counts among those that tell how long
 * answers get. */
void td_engine_end(td_engine *e, td_ticket ticket);

typedef enum td_finish {
  TD_FINISH_NONE,      /* still going */
  TD_FINISH_STOP,      /* end-of-sequence or a stop id (the last token is that id) */
  TD_FINISH_LENGTH,    /* max_new reached */
  TD_FINISH_ERROR,     /* `error` of the update says why (NaN in the logits) */
  TD_FINISH_REFUSED,   /* its mask provider gave up; `error` says why */
  TD_FINISH_UNSTARTED, /* a deadline passed, or could not be met any more, before it was started */
  TD_FINISH_CUT,       /* the same, while it was computed */
} td_finish;

typedef struct td_engine_update {
  td_ticket ticket;
  void *user;
  const int32_t *tokens; /* prompt and answer; [0, n_prompt + n_generated) may be read until release */
  const td_token_logprob *logprobs; /* [n_prompt_logits + n_generated] of the prompt's last tokens, once
                            n_generated > 0, then of the answer's; NULL: not asked for. As long as tokens */
  const td_top_token *top;          /* [as many][n_top], likeliest first; NULL: not asked for */
  const float *vector; /* [width] once n_generated > 0, of an engine that makes embeddings; else NULL */
  uint32_t n_prompt;
  uint32_t n_generated; /* so far; grows from update to update */
  uint32_t n_cached_prompt;
  td_finish finish;
  const char *error; /* for TD_FINISH_ERROR and _REFUSED; static text */
  uint64_t submit_us, first_run_us, first_token_us, last_token_us; /* CLOCK_MONOTONIC; 0 = not yet */
  uint64_t
      predicted_queue_us; /* when it came: how long it would wait for its first step; UINT64_MAX: not known */
} td_engine_update;

/* [loop] Requests with news since the last call, each at most once. Returns how many were stored. Call until
 * it returns less than max. A finished request must be given back by td_engine_release after its last update.
 */
uint32_t td_engine_poll(td_engine *e, td_engine_update *out, uint32_t max);
/* [loop] Frees a finished request's slot and tokens. */
void td_engine_release(td_engine *e, td_ticket ticket);

/* ---- text: [any] once READY ---- */

/* *ids is malloc'ed. parse_special: the text may spell special tokens (raw completions); else it may not.
 * TD_ERR_REQUEST (param "prompt") past max_tokens ids. */
TD_MUST_CHECK td_status td_engine_tokenize(const td_engine *e, const char *text, size_t n_bytes,
                                           bool parse_special, bool add_bos, size_t max_tokens, int32_t **ids,
                                           size_t *n_ids, td_error *err);

/* A token as the vocabulary writes it ("<|im_end|>"), or NULL for an unknown id. */
const char *td_engine_token_text(const td_engine *e, int32_t id);
/* The chat template as the model or the operator wrote it; NULL: there is none. */
const char *td_engine_chat_template_text(const td_engine *e);
/* Appends the bytes that a token adds to a text, which need not be whole characters. */
void td_engine_token_bytes(const td_engine *e, int32_t id, td_buf *out);

/* The id of a token that the vocabulary was given as one ("<|im_end|>", "<tool_call>"), or -1. *special: it
 * is no text. */
int32_t td_engine_find_token(const td_engine *e, const char *text, bool *special);
/* Text of the chat template that requests with tools are rendered by; NULL: there is none. */
const char *td_engine_template_text(const td_engine *e, size_t *n);

typedef struct td_chat_input {
  const cJSON *messages;             /* validated array */
  const cJSON *tools;                /* array or NULL */
  const cJSON *chat_template_kwargs; /* object or NULL */
  bool add_generation_prompt;
  bool continue_final_message;
  size_t max_tokens;
} td_chat_input;
/* Renders the model's chat template and tokenises it: only template text makes special tokens, and BOS is
 * never doubled. rendered (may be NULL, else initialised) receives the text. TD_ERR_UNSUPPORTED if the model
 * has no template; TD_ERR_REQUEST with the template's own words if it refuses the messages. */
TD_MUST_CHECK td_status td_engine_chat_tokens(const td_engine *e, const td_chat_input *in, td_buf *rendered,
                                              int32_t **ids, size_t *n_ids, td_error *err);

/* Streaming detokeniser; one per answer, used by one thread at a time. */
typedef struct td_text_stream td_text_stream;
/* begins: the ids are a whole text, not what goes on behind another (SentencePiece's begin with a space that
 * is none). NULL: no memory. */
td_text_stream *td_text_stream_create(const td_engine *e, bool skip_special, bool begins);
/* Special tokens of these ids, which are borrowed, are told: each as TD_STREAM_MARK and its text. */
#define TD_STREAM_MARK "\xFF"
void td_text_stream_tell(td_text_stream *s, const int32_t *ids, uint32_t n);
void td_text_stream_destroy(td_text_stream *s);
/* Appends the whole characters that these tokens complete. */
void td_text_stream_push(td_text_stream *s, const int32_t *ids, size_t n, td_buf *out);
void td_text_stream_finish(td_text_stream *s, td_buf *out);

/* ---- grammars: [any] once READY ---- */

typedef struct td_grammar td_grammar;

/* Compiles, or finds what was compiled before. TD_ERR_REQUEST, TD_ERR_UNSUPPORTED say why it cannot;
 * TD_ERR_CAPACITY: live grammars have taken their memory. *out is
 * for any number of requests, and is dropped when the last was submitted. */
TD_MUST_CHECK td_status td_engine_compile_grammar(const td_engine *e, const td_grammar_source *source,
                                                  td_grammar **out, td_error *err);
void td_engine_drop_grammar(td_grammar *g); /* NULL: does nothing */
/* Masks for one request whose answer is of the grammar; fill NULL: no memory. */
td_mask_provider td_engine_make_masks(td_grammar *g, uint32_t n_prompt);

/* ---- KV events: where the option kv_events asks for them ---- */

/* A page of the prefix tree came or went. Its name stands for all tokens up to its end, in its cache
 * namespace.
 */
typedef struct td_engine_kv_event {
  bool is_stored; /* else removed: then only the name is told */
  uint64_t name;
  uint64_t before; /* the name of the page before it; 0: it is the first */
  uint64_t namespace_id;
  const int32_t *tokens; /* [page_tokens] */
} td_engine_kv_event;
/* Becomes readable when there is something to read; who reads KV events reads it empty first. An eventfd. */
int td_engine_kv_events_fd(const td_engine *e);
/* The next ones, at most max, in the order in which they happened, valid until the next call; one thread. 0:
 * no more for now. */
uint32_t td_engine_read_kv_events(td_engine *e, const td_engine_kv_event **out, uint32_t max);

/* ---- watching it: [any] ---- */

/* Where what steps take is known from: the device class, steps that were served, or a measurement on purpose,
 * of an earlier run or this one. */
typedef enum td_times_source {
  TD_TIMES_NONE,
  TD_TIMES_BUILT_IN,
  TD_TIMES_LEARNED,
  TD_TIMES_KEPT,
  TD_TIMES_MEASURED,
  TD_TIMES_SOURCES
} td_times_source;
extern const char *const td_times_source_names[TD_TIMES_SOURCES];

enum { TD_STEP_ERROR_BORDERS = 12 };
extern const double td_step_error_borders[TD_STEP_ERROR_BORDERS]; /* of step_errors, ascending */

typedef struct td_engine_stats {
  uint32_t n_waiting, n_running;
  uint32_t pages_total, pages_free, pages_cached, pages_owned;
  uint64_t steps, decode_tokens, prefill_tokens; /* since start */
  uint64_t captured_steps;                       /* of the steps, those launched from a captured one (GPU) */
  uint64_t late_rows;                            /* not sampled, because their mask was late */
  uint64_t prefix_query_tokens, prefix_hit_tokens, preemptions, evicted_pages;
  uint64_t fair_preemptions; /* of the preemptions: for an account that held less */
  uint32_t n_following;      /* of n_waiting: wait for a prompt that another request computes */
  uint64_t follows;
  uint64_t step_us_sum, plan_us_sum;
  double device_busy_us_sum,
      device_idle_us_sum; /* 0 where the backend does not tell; idle: between steps that follow at once */
  uint32_t last_step_us, last_step_decodes, last_step_prefill_tokens;
  /* Step times as predicted before they ran; all 0 where they are not known. */
  double predicted_us_sum, step_error_sum;         /* error: |predicted - measured| / measured */
  uint64_t step_errors[TD_STEP_ERROR_BORDERS + 1]; /* not cumulative; the last: above all borders */
  double last_step_predicted_us, tbt_slo_us;       /* target 0: none */
  td_times_source times_source;
  uint32_t tuning_left; /* steps to capture and algorithms to measure, in idle moments; 0: all is done */
  td_engine_not_fused not_fused[TD_NOT_FUSED_MAX]; /* [n_not_fused] by reason */
  uint32_t n_not_fused;
  double cost_correction[2]; /* learned factor on steps without, with prompts */
  double queue_delay_us;     /* predicted for a request that came now; next_end, end_gap, token: see
                                td_sched_forecast */
  double next_end_us, end_gap_us, prompt_token_us;
  uint64_t heartbeat_us; /* CLOCK_MONOTONIC when the engine last began or ended a step, or woke idle */
  bool in_step;          /* a step is running: unhealthy if heartbeat_us is long ago */
  uint64_t longest_predicted_us; /* of all steps so far, the one that runs included; 0: not known */
} td_engine_stats;
void td_engine_get_stats(const td_engine *e, td_engine_stats *out);
/* Median and 99th percentile of the last 1024 steps' errors; 0 before the first. */
void td_engine_step_errors(const td_engine *e, double *median, double *p99);

/* What a GPU says of itself, a second ago at most. NaN: it does not say that. */
typedef struct td_engine_gpu {
  double sm_hz, memory_hz, watts, limit_watts, celsius;
  bool knows_slowed, slowed_by_power, slowed_by_heat, slowed_by_hardware;
} td_engine_gpu;
/* False: there is no GPU, or it cannot be asked. [loop] once READY */
bool td_engine_get_gpu(const td_engine *e, td_engine_gpu *out);

enum { TD_ENGINE_STEPS_KEPT = 1024 }; /* a power of two */

/* One step as it was. Pages and requests: after it was committed. */
typedef struct td_engine_step {
  uint64_t step;                  /* counts from 1 */
  uint64_t end_us;                /* CLOCK_MONOTONIC */
  uint32_t step_us, predicted_us; /* predicted_us 0: nothing was predicted */
  uint32_t calibrated_us;         /* by what was known at start, without what was learned since */
  uint16_t n_decodes, n_prefills; /* rows */
  uint32_t n_prefill_tokens;
  uint32_t hit_tokens; /* prompt tokens that the prefix tree spared since the step before */
  uint32_t n_running, n_waiting;
  uint32_t pages_free, pages_cached, pages_owned;
  uint32_t preemptions; /* since the step before */
} td_engine_step;
/* The steps from *cursor (a count of steps since start; 0: as far back as is remembered) on, oldest first, at
 * most max; *cursor moves behind them. *n_missed grows by those that were overwritten before they could be
 * read. Never waits for the engine, nor the engine for it. */
uint32_t td_engine_read_steps(const td_engine *e, uint64_t *cursor, td_engine_step *out, uint32_t max,
                              uint64_t *n_missed);

#endif
