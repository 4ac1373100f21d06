/* A call: one API request, from its complete body to the end of its answer. One struct owns all its memory.
 *
 * Life of a call:
 *   1. The router creates it when the body is complete.
 *   2. A worker reads the body (`prepare`), or the loop does if the body is short.
 *   3. The loop answers, or submits the choices to the engine and sends their text as it is generated.
 *
 * The connection owns the call. If the connection closes while a worker has the call, `conn` becomes NULL and
 * the loop frees the call when the worker is done. */
#ifndef TD_SERVER_CALL_H
#define TD_SERVER_CALL_H

#include <stdatomic.h>

#include "answers/reader.h"
#include "server/bad_words.h"
#include "server/conn.h"
#include "server/logprobs.h"
#include "server/request.h"

/* The last item (Responses) or content block (Messages) that a stream has begun. */
typedef struct td_item {
  uint32_t n; /* items begun so far */
  bool open;
  td_answer_part_kind kind;
  uint32_t n_events;
} td_item;

typedef struct td_choice {
  td_call *call;
  uint32_t index, prompt;
  uint64_t seed;
  td_ticket ticket; /* generation 0: the engine does not have the choice, or no longer */
  td_text_stream *text;
  td_stop_filter filter;
  td_buf out;               /* answer text: all of it, or in a stream the part not yet sent */
  td_buf ids;               /* int32_t ids not yet rendered, if token ids are wanted */
  td_buf logprobs;          /* records (logprobs.h) not yet rendered, if log-probabilities are wanted */
  uint32_t n_logprobs_gone; /* records that were rendered and removed from logprobs */
  uint32_t text_offset;     /* characters in the tokens of all records so far, an echoed prompt's included */

  /* the engine's side, as of the last update */
  const int32_t *tokens; /* valid as long as the ticket, like the next two */
  const td_token_logprob *engine_logprobs;
  const td_top_token *engine_top;
  const float *vector; /* the embedding, once n_generated > 0 */
  uint32_t n_prompt, n_generated, n_cached;
  uint32_t n_scored; /* prompt tokens whose log-probabilities precede the answer's in engine_logprobs */
  td_finish engine_finish;
  uint64_t submit_us, first_run_us, first_token_us, last_token_us;

  /* chats only: parses the text into reasoning, calls and content. NULL: all of the text is content */
  td_reader *reader;
  td_parsed_answer parsed; /* all of it, or in a stream the part not yet sent */
  uint32_t n_reasoning;    /* tokens of reasoning */
  bool parse_done;         /* the reader has been finished */
  td_item item;
  td_parsed_answer sent_so_far; /* by a stream; kept for routes whose last events repeat it */

  uint32_t n_read;    /* tokens turned to text so far */
  uint32_t n_echoed;  /* in a stream: prompt tokens whose log-probabilities were sent */
  const char *finish; /* finish_reason: set when the text is complete ("stop", "length", "tool_calls") */
  bool first_chunk_sent;
  bool slot_released;           /* the engine slot was given back */
  bool first_token_counted;     /* in the metrics */
  uint64_t answer_memory_bytes; /* part of the call's answer_memory_bytes */
} td_choice;

typedef struct td_prompt {
  int32_t *ids; /* owned; NULL once the engine has them */
  size_t n;
  td_buf json;     /* the ids as JSON, if the answer returns them */
  td_buf text;     /* the prompt's text, if the answer echoes it */
  td_buf logprobs; /* records of its tokens, once is_scored */
  bool is_scored;
} td_prompt;

/* A piece of one choice's answer. */
typedef struct td_delta {
  td_choice *choice;
  bool first;
  const char *text; /* content, if the choice has no reader */
  size_t n_text;
  const int32_t *ids;
  size_t n_ids;
  uint32_t echo_begin, echo_end; /* range of prompt tokens whose log-probabilities this piece includes */
  const char *finish;            /* NULL: more follows */
} td_delta;

/* The functions of one API family; see api_*.c. */
typedef struct td_api {
  unsigned route; /* TD_ROUTE_* */
  bool generates; /* its choices are submitted to the engine; embeddings too */
  bool is_chat;   /* the prompt is a conversation, rendered by the model's template */
  const char *id_prefix;
  const char *ids_member; /* member of the body that may be a long array of token ids; NULL: none */
  /* [worker] Makes a chat's body from the parsed body; returns NULL and sets c->error on failure. The pointer
   * is NULL for routes that read their own body. */
  cJSON *(*translate)(td_call *c, const cJSON *body);
  /* [worker] Makes prompts, or c->answer, from the parsed body; false: c->error says why. */
  bool (*prepare)(td_call *c);
  /* [loop] One event of a stream. NULL for routes that do not stream. */
  void (*render_delta)(const td_call *c, const td_delta *d, td_buf *out);
  const char *chunk_object; /* "object" member of a stream's events */
  void (*render_answer)(const td_call *c, td_buf *out);
  /* The end of a stream, and its error event. NULL: as OpenAI's chat writes them. */
  void (*render_end)(const td_call *c, td_buf *out);
  void (*render_error_event)(const td_call *c, const td_api_error *e, td_buf *out);
} td_api;

extern const td_api td_api_completions, td_api_chat, td_api_tokenize, td_api_detokenize, td_api_messages,
    td_api_count_tokens, td_api_responses, td_api_embeddings;

struct td_call {
  td_job job;
  td_server *server;
  td_conn *conn; /* NULL: closed, or detached from the call */
  td_call *prev, *next;
  const td_api *api;
  const td_engine *engine;
  const td_engine_info *info;
  /* copies of options, because workers read these and a reload on the loop may change the options */
  size_t json_nodes;
  bool strict_fields, drops_billing_line;
  uint32_t max_choices;       /* most choices that its key could ever have in the queue */
  uint64_t max_prompt_tokens; /* most prompt tokens, summed over choices, if there are several choices */
  uint64_t max_prompt_scores;
  char id[64];
  uint64_t arrival_us;
  int64_t created_s;
  td_tenant *tenant;
  atomic_bool abandoned; /* set by the loop: the worker may stop, nobody reads its result */
  td_buf body;
  uint64_t body_counted;        /* part of the tenant's and the server's body_bytes */
  uint64_t answer_memory_bytes; /* part of the tenant's and the server's answer_memory_bytes
                                   (answer_memory.h): choices and answer */

  /* set by the thread that reads the body (a worker, or the loop) */
  cJSON *root; /* the parsed body, or the chat translated from it; freed once prepared */
  bool failed;
  td_api_error error;
  td_api_request request;
  td_terms terms; /* the same for all choices */
  uint32_t max_new;
  td_bad_words *bad_words;
  td_grammar *grammar; /* constrains the answers; NULL: any text */
  const char *grammar_field;
  td_tools tools; /* tools that answers may call, for the readers */
  td_prompt_end prompt_end;
  bool reads_answers; /* choices have readers, which look for reasoning and calls */
  bool translated;    /* root is a chat translated from the route's own body */
  td_prompt *prompts;
  uint32_t n_prompts;
  td_buf answer;
  td_buf echo; /* members of the request that the answer repeats (Responses) */

  /* used by the loop only, except rendered */
  bool rendered; /* a worker has run the rendering */
  bool with_worker, generating;
  bool is_to_generate; /* counted in the tenant's n_to_generate */
  td_choice *choices;
  uint32_t n_choices, n_open;
};

/* Starts a call for the complete request of c. */
void td_call_begin(td_conn *c, const td_api *api);
/* The connection has closed: cancels the call's choices and frees it, now or when the worker is done. */
void td_call_abandon(td_call *call);
/* The connection can take more output. */
void td_call_writable(td_call *call);
/* Ends a call that cannot be finished (shutdown, device fault) with an error answer, or in a stream with an
 * error event. */
void td_call_fail(td_call *call, const td_api_error *e);
/* Sends a whole 200 answer in JSON, with a header that names ignored fields, and detaches the connection from
 * the call. headers: extra header lines; freed here. */
void td_call_respond(td_call *call, td_buf *headers, td_buf *body);
void td_call_destroy(td_call *call);
/* Frees the calls that ended while updates were being read. */
void td_call_free_ended(td_server *s);

/* generation.c */
void td_generation_submit(td_call *call);
void td_generation_poll(td_server *s);
void td_generation_pump(td_call *call);
void td_generation_cancel(td_call *call, td_finished why);

/* answer.c: sends the whole answer of a call whose choices are complete. Frees the call, or hands it to a
 * worker. */
void td_answer_send(td_call *call);

/* For workers. All return false and set call->error on failure. */
/* Reads prompts from a member of the body: a string, an array of token ids, or an array of at most `most`
 * strings or at most `most` arrays of ids. */
bool td_call_read_prompts(td_call *call, const cJSON *member, const char *param, size_t most);
bool td_call_alloc_prompts(td_call *call, size_t n);
/* Sets max_new and checks that all prompts fit the context and the bounds of a request. An absent max_tokens
 * means the rest of the context if default_rest, otherwise 16, OpenAI's default for completions. */
bool td_call_check_context(td_call *call, bool default_rest);
/* Prompts are tokenised up to this many tokens. */
size_t td_call_token_limit(const td_call *call);
/* Sets context_length_exceeded: prompt and answer do not fit. or_more: n_prompt is a lower bound, because
 * counting stopped there. Always returns false. */
bool td_call_fail_context(td_call *call, const char *param, uint64_t n_prompt, bool or_more);
/* Sets the error of a failed tokenisation: context_length_exceeded for too many tokens, otherwise as
 * td_api_error_from. Always returns false. */
bool td_call_fail_tokens(td_call *call, const td_error *err, const char *param);
/* Reads an array of token ids, each below the vocabulary size. */
bool td_call_read_ids(td_call *call, const cJSON *array, const char *param, td_prompt *p);

/* constrain.c, for workers: compiles the grammar of a source, or that of a chat's thoughts, calls and
 * content. field: the request field that an error names. */
bool td_call_compile_grammar(td_call *call, const td_grammar_source *source, const char *field);
bool td_call_constrain_chat(td_call *call);

/* api_chat.c, for workers. td_chat_tokens renders the messages and tokenises them into the first prompt; text
 * (may be NULL) receives the rendered text. td_chat_prepare does so too, checks the context and compiles the
 * grammar. */
bool td_chat_tokens(td_call *call, td_buf *text);
bool td_chat_prepare(td_call *call);

/* render.c: JSON that several API families share */
void td_render_usage(const td_call *c, td_buf *out); /* {"prompt_tokens":..,..} */
void td_render_usage_event(const td_call *c, td_buf *out);
/* ,"usage":... of one chunk, if the request includes usage: null, or with continuous_usage_stats that of the
 * choice so far, with n_answer answer tokens. */
void td_render_chunk_usage(const td_choice *ch, uint32_t n_answer, td_buf *out);
void td_render_prompt_ids(const td_prompt *p, td_buf *out); /* ,"prompt_token_ids":[..] */
/* ,"logprobs":..: those of prompt tokens [echo_begin, echo_end), then the choice's records. null if none are
 * wanted, or in a stream if there are none yet. */
void td_render_logprobs(const td_choice *ch, uint32_t echo_begin, uint32_t echo_end, td_buf *out);
/* ,"prompt_logprobs":.., if the request asks for them. */
void td_render_prompt_logprobs(const td_call *c, const td_prompt *p, td_buf *out);
void td_render_head(const td_call *c, const char *object,
                    td_buf *out); /* {"id":..,"object":..,"created":..,"model":.. */

#endif
