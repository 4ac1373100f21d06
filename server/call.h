/* A call: one API request, from its body to its answer. One struct holds all it needs and is freed at once.
 *
 * Life: made by the router when the body is complete -> a worker reads it (`prepare`), or the loop where that
 * is little -> the loop answers, or submits its choices to the engine and streams. The connection owns it. If
 * the connection goes while a worker has it, `conn` becomes NULL and the loop frees it when the worker is
 * done. */
#ifndef TD_SERVER_CALL_H
#define TD_SERVER_CALL_H

#include <stdatomic.h>

#include "answers/reader.h"
#include "server/bad_words.h"
#include "server/conn.h"
#include "server/logprobs.h"
#include "server/request.h"

/* What a stream of a route with items (blocks) has begun. */
typedef struct td_item {
  uint32_t n; /* begun so far */
  bool open;
  td_said_kind kind;
  uint32_t n_events;
} td_item;

typedef struct td_choice {
  td_call *call;
  uint32_t index, prompt;
  uint64_t seed;
  td_ticket ticket; /* generation 0: not with the engine (any more) */
  td_text_stream *text;
  td_stop_filter filter;
  td_buf out;               /* answer text: all of it, or what is not yet sent */
  td_buf ids;               /* int32_t ids not yet rendered, if token ids are wanted */
  td_buf logprobs;          /* records (logprobs.h) not yet rendered, if log-probabilities are wanted */
  uint32_t n_logprobs_gone; /* records that were rendered, and are no more in it */
  uint32_t text_offset;     /* characters in the tokens of all records so far, those of an echo before */

  /* the engine's side, as of the last update */
  const int32_t *tokens; /* valid while ticket is, as the next two */
  const td_token_logprob *engine_logprobs;
  const td_top_token *engine_top;
  const float *vector; /* of an embedding, once there are tokens */
  uint32_t n_prompt, n_generated, n_cached;
  uint32_t n_scored; /* of the prompt's tokens, whose log-probabilities lie before the answer's */
  td_finish engine_finish;
  uint64_t submit_us, first_run_us, first_token_us, last_token_us;

  /* a chat's: its text is read for reasoning and calls; NULL: all of it is content */
  td_reader *reader;
  td_said said;         /* what it has said: all of it, or what is not yet sent */
  uint32_t n_reasoning; /* tokens */
  bool said_all;
  td_item item;
  td_said told; /* all that a stream has sent, where its end repeats it */

  uint32_t n_read;     /* tokens turned to text so far */
  uint32_t n_echoed;   /* in a stream: the prompt's tokens whose log-probabilities are sent */
  const char *finish;  /* "stop", "length": the text is complete */
  bool opened, closed; /* first and last chunk are sent */
  bool first_seen;     /* metrics have its first token */
  uint64_t held_bytes; /* its part of the call's */
} td_choice;

typedef struct td_prompt {
  int32_t *ids; /* owned; NULL once the engine has them */
  size_t n;
  td_buf json;     /* the ids for the answer, if it is to have them */
  td_buf text;     /* what is echoed of it */
  td_buf logprobs; /* records of its tokens, once they are there */
  bool is_scored;
} td_prompt;

/* A piece of one choice's answer. */
typedef struct td_delta {
  td_choice *choice;
  bool first;
  const char *text; /* content, where nothing else is looked for */
  size_t n_text;
  const int32_t *ids;
  size_t n_ids;
  uint32_t echo_begin, echo_end; /* of the prompt's tokens, whose log-probabilities it tells */
  const char *finish;            /* NULL: more follows */
} td_delta;

/* What one API family does; see api_*.c. */
typedef struct td_api {
  unsigned route; /* TD_ROUTE_* */
  bool is_chat;   /* the prompt is a conversation, rendered by the model's template */
  const char *id_prefix;
  const char *ids_member; /* of the body: it may hold a whole prompt's token ids; NULL: none does */
  /* [worker] From the parsed body to a chat's; NULL: c->error says why. NULL: the body is the route's own. */
  cJSON *(*translate)(td_call *c, const cJSON *body);
  /* [worker] From the parsed body to prompts, or to c->answer. false: c->error says why. */
  bool (*prepare)(td_call *c);
  /* [loop] NULL for routes that do not generate. */
  void (*render_delta)(const td_call *c, const td_delta *d, td_buf *out);
  const char *chunk_object; /* of a stream's events */
  void (*render_answer)(const td_call *c, td_buf *out);
  /* How a stream ends, well or not; NULL: as OpenAI's chat does. */
  void (*render_end)(const td_call *c, td_buf *out);
  void (*render_error_event)(const td_call *c, const td_api_error *e, td_buf *out);
} td_api;

extern const td_api td_api_completions, td_api_chat, td_api_tokenize, td_api_detokenize, td_api_messages,
    td_api_count_tokens, td_api_responses, td_api_embeddings;

struct td_call {
  td_job job;
  td_server *server;
  td_conn *conn; /* NULL: it has gone */
  td_call *prev, *next;
  const td_api *api;
  const td_engine *engine;
  const td_engine_info *info;
  size_t json_nodes; /* as the next: options are the loop's, which may change them */
  bool strict_fields, drops_billing_line;
  uint32_t max_choices;       /* that its key may ever have in the queue */
  uint64_t max_prompt_tokens; /* the same, of all of several choices */
  uint64_t max_prompt_scores;
  char id[64];
  uint64_t arrival_us;
  int64_t created_s;
  td_tenant *tenant;
  atomic_bool abandoned; /* the worker need not go on */
  td_buf body;
  uint64_t body_counted; /* its part of the tenant's and the server's body_bytes */
  uint64_t held_bytes;   /* its part of theirs (held.h): its choices, and the answer that is made of them */

  /* made by who reads it */
  cJSON *root; /* of the body, or the chat that was made of it; until it is prepared */
  bool failed;
  td_api_error error;
  td_api_request request;
  td_terms terms; /* of all its choices */
  uint32_t max_new;
  td_bad_words *bad_words;
  td_grammar *grammar; /* of its answers; NULL: any text */
  const char *grammar_field;
  td_tools tools; /* that answers may call, for who reads them */
  td_prompt_end prompt_end;
  bool reads_answers; /* for reasoning or calls */
  bool translated;    /* root is a chat that was made of the route's own body */
  td_prompt *prompts;
  uint32_t n_prompts;
  td_buf answer;
  td_buf echo; /* members of the request that answers repeat */

  /* the loop's */
  bool rendered;                        /* by a worker */
  bool with_worker, generating, asking; /* asking: counted in its tenant's n_asking */
  td_choice *choices;
  uint32_t n_choices, n_open;
};

/* Takes c's complete request. */
void td_call_begin(td_conn *c, const td_api *api);
/* The connection has gone: cancels and frees, now or when the worker is done. */
void td_call_abandon(td_call *call);
/* The connection can take more output. */
void td_call_writable(td_call *call);
/* Ends a call that cannot be finished (shutdown, device fault): an error answer, or an error event in a
 * stream. */
void td_call_fail(td_call *call, const td_api_error *e);
/* A whole 200 answer in JSON, with the names of ignored fields; the connection is no longer the call's.
 * headers: lines; freed here. */
void td_call_respond(td_call *call, td_buf *headers, td_buf *body);
void td_call_destroy(td_call *call);
/* Frees the calls that ended while updates were being read. */
void td_call_bury(td_server *s);

/* generation.c */
void td_generation_submit(td_call *call);
void td_generation_poll(td_server *s);
void td_generation_pump(td_call *call);
void td_generation_cancel(td_call *call, td_finished why);

/* answer.c: the whole answer of a call whose choices are complete; the call is gone then, or a worker's. */
void td_answer_send(td_call *call);

/* For workers: prompts of a body's member: a string, token ids, or at most `most` of one of them. */
bool td_call_read_prompts(td_call *call, const cJSON *member, const char *param, size_t most);
/* For workers: makes room for n prompts; tokens of one prompt; the check that all fit the context. */
bool td_call_alloc_prompts(td_call *call, size_t n);
bool td_call_check_context(td_call *call, bool default_rest);
/* Prompts are tokenised up to this many tokens. */
size_t td_call_count_to(const td_call *call);
/* Prompt and answer do not fit: context_length_exceeded. or_more: the prompt has more tokens than that,
 * uncounted. false. */
bool td_call_fail_context(td_call *call, const char *param, uint64_t n_prompt, bool or_more);
/* A tokenising call has failed: too many tokens is context_length_exceeded; else as td_api_error_from. */
bool td_call_fail_tokens(td_call *call, const td_error *err, const char *param);
/* Token ids of an array, each below the vocabulary. */
bool td_call_read_ids(td_call *call, const cJSON *array, const char *param, td_prompt *p);

/* constrain.c, for workers: the grammar of a source, or that of a chat's calls and content. field: who is at
 * fault if it cannot be. */
bool td_call_compile_grammar(td_call *call, const td_grammar_source *source, const char *field);
bool td_call_constrain_chat(td_call *call);

/* api_chat.c, for workers: messages of the request to its first prompt's ids, and the text too where there is
 * a buffer; the same, and what its answers are held to. */
bool td_chat_tokens(td_call *call, td_buf *text);
bool td_chat_prepare(td_call *call);

/* render.c: what both families share */
void td_render_usage(const td_call *c, td_buf *out); /* the object */
void td_render_usage_event(const td_call *c, td_buf *out);
/* ,"usage":...: of one chunk of a stream: null, or that of its choice so far, n_answer tokens, where it is
 * asked for. */
void td_render_chunk_usage(const td_choice *ch, uint32_t n_answer, td_buf *out);
void td_render_prompt_ids(const td_prompt *p, td_buf *out); /* ,"prompt_token_ids":[..] */
/* ,"logprobs":..: of what the choice has kept of them, behind those of the prompt's tokens [echo_begin,
 * echo_end); null if none are wanted, or none is there. */
void td_render_logprobs(const td_choice *ch, uint32_t echo_begin, uint32_t echo_end, td_buf *out);
/* ,"prompt_logprobs":..: where they are asked for. */
void td_render_prompt_logprobs(const td_call *c, const td_prompt *p, td_buf *out);
void td_render_head(const td_call *c, const char *object,
                    td_buf *out); /* {"id":..,"object":..,"created":..,"model":.. */

#endif
