/* The engine as the server sees it. server/ may include this header, and nothing else of engine/ or below.
 *
 * One engine thread owns the device, the scheduler, the pages and the prefix tree. The loop thread hands
 * requests and cancellations to the engine thread through a ring. After a wake-up it collects progress by
 * polling. Neither thread ever waits for the other. Tickets (slot and generation) name requests; pointers and
 * client ids never do. The engine does not validate requests again: the server validates them completely
 * before submit.
 *
 * Threads: only the one loop thread calls functions marked [loop]; any thread may call those marked [any].
 * The text functions are [any] once the engine is ready, because they only read. */
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
  TD_ENGINE_STOPPED, /* the engine thread has ended as asked */
  TD_ENGINE_FAILED,  /* loading failed, or the device did: see td_engine_failure */
} td_engine_state;

/* ---- life ---- */

/* Loads the model as a start would, in the calling thread, and returns. Measures nothing, and allocates only
 * the KV pages that loading needs. */
TD_MUST_CHECK td_status td_engine_check(const td_options *options, td_error *err);

/* `tandemd --calibrate`: loads the model as a start would, in the calling thread. Then chooses algorithms,
 * measures step times, writes both to cache_dir and returns. *table receives the step times in their file
 * format. */
TD_MUST_CHECK td_status td_engine_calibrate(const td_options *options, td_buf *table, td_error *err);

/* Copies the options. Does not load the model. */
TD_MUST_CHECK td_status td_engine_create(const td_options *options, td_engine **out, td_error *err);
/* Sets how many accounts there may be; their ids are below TD_ACCOUNTS_MAX. Accounts share the queue and the
 * running places. Without this call, and for n < 2, there is one account. Call before start, or while READY;
 * in the latter case the scheduler still reserves running places (scheduler/places.h) for the previous number
 * of accounts. */
TD_MUST_CHECK td_status td_engine_set_accounts(td_engine *e, uint32_t n, td_error *err);
/* Starts the engine thread, which loads the model, logs the memory plan and then serves. The engine thread
 * calls wake(arg) whenever td_engine_poll or the state has news. wake must only signal (uv_async_send). */
TD_MUST_CHECK td_status td_engine_start(td_engine *e, void (*wake)(void *arg), void *arg, td_error *err);
td_engine_state td_engine_get_state(const td_engine *e);   /* [any] */
void td_engine_failure(const td_engine *e, td_error *out); /* [any] after FAILED */
/* [loop] Ends the engine thread after the current step, and joins it. Unfinished requests get no more
 * updates. */
void td_engine_stop(td_engine *e);
void td_engine_destroy(td_engine *e); /* after td_engine_stop */

/* ---- what the engine serves: valid once READY ---- */

enum { TD_NOT_FUSED_MAX = 8 };

/* How many captured decode steps run op by op instead of fused, for one reason. */
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
  uint32_t width;         /* of an embedding */
  bool makes_embeddings;  /* option pooling: the engine makes embeddings and no text */
  int32_t bos_id, eos_id; /* of the tokenizer; -1 if it has none */
  bool has_chat_template;
  bool template_has_developer; /* the template mentions the role "developer" */
  bool context_is_cut;         /* KV memory holds fewer tokens than the model supports */
  bool has_tokenizer; /* false: prompts are token ids, and answers have no text (load_format = dummy) */
  td_sampling default_sampling; /* the operator's defaults, or the model's, or the API's; seed 0 */
  uint64_t loaded_at_unix_s;
} td_engine_info;
const td_engine_info *td_engine_get_info(const td_engine *e); /* [any] */

/* ---- requests ---- */

typedef struct td_ticket {
  uint32_t slot;
  uint32_t generation; /* 0 is no ticket */
} td_ticket;

/* Masks from outside the engine that say which ids may be sampled next: a grammar.
 *
 * fill writes the mask of the ids that may follow tokens[0 .. n), which are prompt and answer. Bit i % 32 of
 * word i / 32 stands for id i; there are (vocab + 31) / 32 words. At least one bit must be set. fill returns
 * NULL, or static text that says why there is no mask any more; the request then ends as TD_FINISH_REFUSED.
 * Threads of the engine call fill: one call at a time for a request, each with more tokens than the call
 * before.
 *
 * The loop thread calls drop once, after the last fill has returned. */
/* What fill returns when memory is short; the request is not to blame. */
extern const char td_mask_no_memory[];
typedef struct td_mask_provider {
  /* NULL: any id may be sampled */
  const char *(*fill)(void *arg, const int32_t *tokens, uint32_t n, uint32_t *mask);
  void (*drop)(void *arg); /* may be NULL */
  void *arg;
} td_mask_provider;

/* For an embedding, max_new is 1: the vector counts as the one generated token. */
typedef struct td_engine_request {
  int32_t *tokens;      /* malloc'ed [n_prompt + max_new]; starts with the prompt; every id < vocab */
  uint32_t n_prompt;    /* >= 1 */
  uint32_t max_new;     /* >= 1; n_prompt + max_new <= max_context_tokens */
  td_sampling sampling; /* arrays it points to are copied; the engine sets end_ids */
  td_mask_provider mask;
  /* < n_prompt: updates give the log-probabilities of this many of the prompt's last tokens, if
   * sampling.wants_logprobs */
  uint32_t n_prompt_logits;
  bool ignore_eos;
  uint32_t n_stop_ids;
  int32_t stop_ids[TD_STOP_IDS_MAX];
  td_terms terms;
  void *user; /* returned in updates */
} td_engine_request;

/* [loop] On TD_OK the engine owns r->tokens and mask.arg. TD_ERR_CAPACITY: no slot is free, the queue has no
 * room for the prompt's tokens, or the account has used up its share of the queue; or the engine is not READY
 * (see its state). TD_ERR_REQUEST: the request can never fit. */
TD_MUST_CHECK td_status td_engine_submit(td_engine *e, const td_engine_request *r, td_ticket *out,
                                         td_error *err);
/* [loop] Call after a submit was refused with TD_ERR_CAPACITY. Predicts when a request with a prompt of
 * n_prompt tokens would find room, from the cost model and the requests that wait. The next call takes this
 * answer into account, so that refused clients do not all come back at the same time. 0: not known. */
uint64_t td_engine_retry_after_us(td_engine *e, uint32_t n_prompt);
/* [loop] Cancels a request in any state. td_engine_poll returns nothing for it any more, its pages are free
 * within two steps, and the engine frees the slot. Tickets that are unknown or have ended are ignored. */
void td_engine_cancel(td_engine *e, td_ticket ticket);
/* [loop] Like td_engine_cancel, for an answer that is complete (at a stop string). Its length is added to the
 * distribution of answer lengths that the forecast uses. */
void td_engine_end(td_engine *e, td_ticket ticket);

typedef enum td_finish {
  TD_FINISH_NONE,      /* not finished */
  TD_FINISH_STOP,      /* end-of-sequence token or a stop id, which is the last token */
  TD_FINISH_LENGTH,    /* max_new reached */
  TD_FINISH_ERROR,     /* see `error` of the update (NaN in the logits) */
  TD_FINISH_REFUSED,   /* its mask provider gave up; see `error` */
  TD_FINISH_UNSTARTED, /* before the request started, its deadline passed or became impossible to meet */
  TD_FINISH_CUT,       /* the same, after it had started */
} td_finish;

typedef struct td_engine_update {
  td_ticket ticket;
  void *user;
  const int32_t *tokens; /* prompt and answer; [0, n_prompt + n_generated) may be read until release */
  /* [n_prompt_logits + n_generated]: of the prompt's last tokens (once n_generated > 0), then of the
   * answer's. NULL: not requested. Valid as long as tokens */
  const td_token_logprob *logprobs;
  /* [n_prompt_logits + n_generated][n_top], most likely first; NULL: not requested */
  const td_top_token *top;
  const float *vector; /* [width] once n_generated > 0, if the engine makes embeddings; otherwise NULL */
  uint32_t n_prompt;
  uint32_t n_generated; /* so far */
  uint32_t n_cached_prompt;
  td_finish finish;
  const char *error; /* for TD_FINISH_ERROR and _REFUSED; static text */
  uint64_t submit_us, first_run_us, first_token_us, last_token_us; /* CLOCK_MONOTONIC; 0 = not yet */
  uint64_t predicted_queue_us; /* until its first step, predicted at submit; UINT64_MAX: not known */
} td_engine_update;

/* [loop] Fills out[] with requests that have news since the last call, each at most once, and returns how
 * many. Call again until the result is less than max. After the update that says a request has finished, call
 * td_engine_release. */
uint32_t td_engine_poll(td_engine *e, td_engine_update *out, uint32_t max);
/* [loop] Frees a finished request's slot and tokens. */
void td_engine_release(td_engine *e, td_ticket ticket);

/* ---- text: [any] once READY ---- */

/* *ids is malloc'ed. parse_special: whether the text may spell special tokens (as raw completions may).
 * TD_ERR_REQUEST (param "prompt"): more than max_tokens ids. */
TD_MUST_CHECK td_status td_engine_tokenize(const td_engine *e, const char *text, size_t n_bytes,
                                           bool parse_special, bool add_bos, size_t max_tokens, int32_t **ids,
                                           size_t *n_ids, td_error *err);

/* A token as the vocabulary writes it ("<|im_end|>"). NULL: unknown id. */
const char *td_engine_token_text(const td_engine *e, int32_t id);
/* The source text of the chat template, from the operator or the model. NULL: there is none. */
const char *td_engine_chat_template_text(const td_engine *e);
/* Appends a token's bytes to *out. They may be part of a character. */
void td_engine_token_bytes(const td_engine *e, int32_t id, td_buf *out);

/* Finds an added token ("<|im_end|>", "<tool_call>") by its text. Returns its id, or -1. *special: whether it
 * is a special token, which is not part of an answer's text. */
int32_t td_engine_find_token(const td_engine *e, const char *text, bool *special);
/* The source text of the template that renders requests with tools. NULL: there is none. */
const char *td_engine_template_text(const td_engine *e, size_t *n);

typedef struct td_chat_input {
  const cJSON *messages;             /* validated array */
  const cJSON *tools;                /* array or NULL */
  const cJSON *chat_template_kwargs; /* object or NULL */
  bool add_generation_prompt;
  bool continue_final_message;
  size_t max_tokens;
} td_chat_input;
/* Renders the model's chat template and tokenises the result. Special tokens come only from template text,
 * and BOS is never doubled. *rendered receives the text; rendered may be NULL, otherwise it must be
 * initialised. TD_ERR_UNSUPPORTED: the model has no template. TD_ERR_REQUEST: the template refused the
 * messages; the error is the template's own message. */
TD_MUST_CHECK td_status td_engine_chat_tokens(const td_engine *e, const td_chat_input *in, td_buf *rendered,
                                              int32_t **ids, size_t *n_ids, td_error *err);

/* Streaming detokeniser. One for each answer; one thread at a time may use it. */
typedef struct td_text_stream td_text_stream;
/* begins: the ids are a complete text, not the continuation of one. (SentencePiece puts a space before the
 * first word of a text, which is then removed.) Returns NULL without memory. */
td_text_stream *td_text_stream_create(const td_engine *e, bool skip_special, bool begins);
/* Marks these special tokens in the output: each appears as TD_STREAM_MARK followed by its text. ids is
 * borrowed. */
#define TD_STREAM_MARK "\xFF"
void td_text_stream_mark_tokens(td_text_stream *s, const int32_t *ids, uint32_t n);
void td_text_stream_destroy(td_text_stream *s);
/* Appends the characters that these tokens complete. */
void td_text_stream_push(td_text_stream *s, const int32_t *ids, size_t n, td_buf *out);
void td_text_stream_finish(td_text_stream *s, td_buf *out);

/* ---- grammars: [any] once READY ---- */

typedef struct td_grammar td_grammar;

/* Compiles a grammar, or returns it from the cache. TD_ERR_REQUEST, TD_ERR_UNSUPPORTED: the source cannot be
 * compiled. TD_ERR_CAPACITY: the grammars in use have used up the memory for grammars. *out may serve any
 * number of requests; drop it after the last of them was submitted. */
TD_MUST_CHECK td_status td_engine_compile_grammar(const td_engine *e, const td_grammar_source *source,
                                                  td_grammar **out, td_error *err);
void td_engine_drop_grammar(td_grammar *g); /* g may be NULL */
/* A mask provider for one request whose answer must match the grammar. Its fill is NULL if memory is
 * short. */
td_mask_provider td_engine_make_masks(td_grammar *g, uint32_t n_prompt);

/* ---- KV events: with option kv_events ---- */

/* A page entered the prefix tree or left it. The page's name identifies all tokens up to its end, in its
 * cache namespace. */
typedef struct td_engine_kv_event {
  bool is_stored; /* false: removed, and only `name` is set */
  uint64_t name;
  uint64_t before; /* name of the page before it; 0: it is the first */
  uint64_t namespace_id;
  const int32_t *tokens; /* [page_tokens] */
} td_engine_kv_event;
/* An eventfd that becomes readable when there are events. Read the eventfd before the events. */
int td_engine_kv_events_fd(const td_engine *e);
/* Returns at most max of the next events, in the order in which they happened; 0 if there are none now. *out
 * is valid until the next call. Only one thread may call this. */
uint32_t td_engine_read_kv_events(td_engine *e, const td_engine_kv_event **out, uint32_t max);

/* ---- monitoring: [any] ---- */

/* Where the step times come from: the device class, steps that were served, or a calibration, in an earlier
 * run or this one. */
typedef enum td_times_source {
  TD_TIMES_NONE, /* until the model is loaded */
  TD_TIMES_BUILT_IN,
  TD_TIMES_LEARNED,
  TD_TIMES_KEPT,
  TD_TIMES_MEASURED,
  TD_TIMES_SOURCES
} td_times_source;
extern const char *const td_times_source_names[TD_TIMES_SOURCES];

enum { TD_STEP_ERROR_BORDERS = 12 };
/* borders of the histogram step_errors, ascending */
extern const double td_step_error_borders[TD_STEP_ERROR_BORDERS];

typedef struct td_engine_stats {
  uint32_t n_waiting, n_running;
  uint32_t pages_total, pages_free, pages_cached, pages_owned;
  uint64_t steps, decode_tokens, prefill_tokens; /* since start */
  uint64_t captured_steps;                       /* of `steps`: launched as a captured step (GPU) */
  uint64_t late_rows; /* logits entries that were not sampled because their mask was late */
  uint64_t prefix_query_tokens, prefix_hit_tokens, preemptions, evicted_pages;
  uint64_t fair_preemptions; /* of `preemptions`: in favour of an account that held less */
  uint32_t n_following;      /* of n_waiting: followers of a running prompt (coalescing) */
  uint64_t follows;
  uint64_t step_us_sum, plan_us_sum;
  /* 0 where the backend does not measure it; idle: between consecutive steps */
  double device_busy_us_sum, device_idle_us_sum;
  uint32_t last_step_us, last_step_decodes, last_step_prefill_tokens;
  /* Step times as predicted before the steps ran; all 0 where nothing was predicted. */
  double predicted_us_sum, step_error_sum;         /* error: |predicted - measured| / measured */
  uint64_t step_errors[TD_STEP_ERROR_BORDERS + 1]; /* counts, not cumulative; the last is above all borders */
  double last_step_predicted_us, tbt_slo_us;       /* tbt_slo_us 0: no target */
  td_times_source times_source;
  uint32_t tuning_left; /* steps to capture and algorithms to measure in idle moments; 0: none */
  td_engine_not_fused not_fused[TD_NOT_FUSED_MAX]; /* [n_not_fused], one for each reason */
  uint32_t n_not_fused;
  double cost_correction[2]; /* learned factors on steps without and with prompts */
  double ahead_lead_us; /* learned: how long before a step's end the next one is planned; 0: only after it */
  /* predicted for a request that arrives now; the fields below: see td_sched_forecast */
  double queue_delay_us;
  double next_end_us, end_interval_us, prompt_token_us;
  uint64_t heartbeat_us; /* CLOCK_MONOTONIC: when the engine last began or ended a step, or woke up idle */
  bool in_step;          /* a step is running; if heartbeat_us is also old, the engine is stuck */
  uint64_t longest_predicted_us; /* of all steps so far, including the running one; 0: not known */
} td_engine_stats;
void td_engine_get_stats(const td_engine *e, td_engine_stats *out);
/* Median and 99th percentile of the last 1024 steps' errors; 0 before the first. */
void td_engine_step_errors(const td_engine *e, double *median, double *p99);

/* What a GPU reports about itself, at most some seconds old. NaN: the GPU does not report this value. */
typedef struct td_engine_gpu {
  double sm_hz, memory_hz, watts, limit_watts, celsius;
  bool knows_slowed, slowed_by_power, slowed_by_heat, slowed_by_hardware;
} td_engine_gpu;
/* [loop] once READY. Returns false if there is no GPU, or if it cannot be queried. */
bool td_engine_get_gpu(const td_engine *e, td_engine_gpu *out);

enum { TD_ENGINE_STEPS_KEPT = 1024 }; /* a power of two */

/* The record of one step. Pages and requests are counted after its commit. */
typedef struct td_engine_step {
  uint64_t step;                  /* counts from 1 */
  uint64_t end_us;                /* CLOCK_MONOTONIC */
  uint32_t step_us, predicted_us; /* predicted_us 0: no prediction */
  uint32_t calibrated_us;         /* predicted by the cost model as it was at start */
  uint16_t n_decodes, n_prefills; /* plan rows */
  uint32_t n_prefill_tokens;
  uint32_t hit_tokens; /* prompt tokens found in the prefix tree since the step before */
  uint32_t n_running, n_waiting;
  uint32_t pages_free, pages_cached, pages_owned;
  uint32_t preemptions; /* since the step before */
} td_engine_step;
/* Copies at most max step records, oldest first, from *cursor on, and moves *cursor behind them. *cursor
 * counts steps since start; 0: from the oldest record that is kept. *n_missed grows by the records that were
 * overwritten before they could be read. Neither the caller nor the engine waits for the other. */
uint32_t td_engine_read_steps(const td_engine *e, uint64_t *cursor, td_engine_step *out, uint32_t max,
                              uint64_t *n_missed);

#endif
