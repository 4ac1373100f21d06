/* A request: its fields as read, with defaults where they are absent. fields.h lists the fields. */
#ifndef TD_SERVER_REQUEST_H
#define TD_SERVER_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "common/json.h"
#include "step/grammar.h"
#include "step/sampling.h"
#include "server/api_error.h"
#include "server/fields.h"
#include "server/stop_filter.h"

typedef enum td_tool_mode { TD_TOOLS_NONE, TD_TOOLS_AUTO, TD_TOOLS_REQUIRED } td_tool_mode;

typedef struct td_tool_choice {
  td_tool_mode mode; /* NONE: the answer is not searched for calls */
  bool *allowed;     /* [tools] which tools may be called; owned; NULL: all */
} td_tool_choice;

typedef struct td_api_request {
  /* borrowed from the JSON tree */
  const char *model, *cache_salt, *reasoning_effort;
  const cJSON *prompt, *messages, *tokens, *chat_template_kwargs, *stop, *stop_token_ids, *stream_options,
      *tools, *tool_choice, *response_format, *structured_outputs, *guided_json, *guided_regex,
      *guided_choice, *guided_grammar, *logit_bias, *logprobs, *input, *bad_words;
  const char *encoding_format;
  int64_t dimensions; /* of embeddings; 0: all that the model has */
  bool normalizes, wants_base64;

  double temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
  int64_t top_k, n, best_of, min_tokens;
  int64_t top_logprobs;    /* for completions: the number in `logprobs` */
  int64_t prompt_logprobs; /* how many of the likeliest tokens to report for each prompt token */
  int64_t priority, timeout_ms, ttft_timeout_ms; /* a timeout of 0 means none */
  int64_t max_tokens, max_completion_tokens;     /* -1: up to the end of the context */
  bool has_max_tokens, has_max_completion_tokens, has_prompt_logprobs;
  uint64_t seed;
  bool has_seed;
  bool stream, include_usage, continuous_usage_stats, ignore_eos, return_token_ids, skip_special_tokens,
      add_special_tokens, return_token_strs, echo, include_stop_str_in_output, parallel_tool_calls,
      include_reasoning;
  bool add_generation_prompt, continue_final_message;
  bool has_add_generation_prompt;
  td_unknown unknown; /* names of fields that were ignored */

  bool wants_logprobs; /* of the answer's tokens; with `echo` of the prompt's tokens too */
  bool scores_prompt;  /* log-probabilities of the prompt's tokens are reported */
  bool has_answer;     /* false if max_tokens is 0: only the prompt is reported on */
  uint32_t n_top;      /* the larger of top_logprobs and prompt_logprobs */
  td_tool_choice choice;

  /* What the answer must conform to (structured.c), and the field that demands it. Borrowed from the JSON
   * tree; only grammar_json is owned: it is set if the schema came as text. */
  td_grammar_source grammar;
  const char *grammar_field;
  cJSON *grammar_json;

  /* `chat_template_kwargs` plus the variables that `reasoning_effort` sets. Owned, but its members refer to
   * the client's tree. NULL if no effort is given. */
  cJSON *effort_kwargs;

  /* made from `logit_bias`, `stop` and `stop_token_ids`; owned */
  td_logit_bias *biases;
  uint32_t n_biases;
  td_stop_set stops;
  uint32_t n_stop_ids;
  int32_t stop_ids[TD_STOP_IDS_MAX];
} td_api_request;

/* What reading a request depends on. */
typedef struct td_request_rules {
  td_sampling defaults; /* values of absent sampling fields */
  uint32_t vocab;       /* token ids must be below */
  bool strict_fields;   /* refuse unknown fields */
} td_request_rules;

/* Fills *r from a parsed body. On failure *error is filled. The caller must deinitialise r in either case. */
TD_MUST_CHECK bool td_request_read(const cJSON *root, unsigned route, const td_request_rules *rules,
                                   td_api_request *r, td_api_error *error);
void td_request_deinit(td_api_request *r);
/* structured.c: reads response_format, structured_outputs and guided_*, of which only one may be given. */
TD_MUST_CHECK bool td_structured_read(td_api_request *r, td_api_error *error);
/* The sampler's parameters. Two things are left to the caller: the seed of a request that gave none, and the
 * ids that min_tokens forbids. Points to *r's biases. */
td_sampling td_request_sampling(const td_api_request *r);

/* What reading messages depends on. */
typedef struct td_message_rules {
  bool keeps_developer; /* the template knows the role developer; if not, it becomes system */
  size_t json_nodes;    /* bound on JSON values in the arguments of tool calls, which come as text */
} td_message_rules;

/* Checks `messages` (and nothing else) and brings them to the plain form that templates know:
 * - content is a string; text parts are joined by a newline;
 * - arguments of tool calls are objects;
 * - members that templates do not read are removed. */
TD_MUST_CHECK bool td_messages_normalise(cJSON *messages, const td_message_rules *rules, td_unknown *unknown,
                                         td_api_error *error);
/* Checks that `tools` is what a template expects: an array of objects, each with a function's name. */
TD_MUST_CHECK bool td_tools_check(const cJSON *tools, td_api_error *error);

#endif
