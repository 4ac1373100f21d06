/* A request: its fields read, with what is absent filled in. Which fields there are: fields.h. */
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
  td_tool_mode mode; /* NONE: no call is looked for */
  bool *allowed;     /* of each tool: it may be called; owned; NULL: all may */
} td_tool_choice;

typedef struct td_api_request {
  /* borrowed from the JSON tree */
  const char *model, *cache_salt, *reasoning_effort;
  const cJSON *prompt, *messages, *tokens, *chat_template_kwargs, *stop, *stop_token_ids, *stream_options,
      *tools, *tool_choice, *response_format, *structured_outputs, *guided_json, *guided_regex,
      *guided_choice, *guided_grammar, *logit_bias, *logprobs, *input, *bad_words;
  const char *encoding_format;
  int64_t dimensions; /* of embeddings; 0: all */
  bool normalizes, wants_base64;

  double temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
  int64_t top_k, n, best_of, min_tokens;
  int64_t top_logprobs;                          /* at completions: what `logprobs` says */
  int64_t prompt_logprobs;                       /* likeliest tokens told with each of the prompt's */
  int64_t priority, timeout_ms, ttft_timeout_ms; /* timeouts 0: none */
  int64_t max_tokens, max_completion_tokens;     /* -1: as far as the context goes */
  bool has_max_tokens, has_max_completion_tokens, has_prompt_logprobs;
  uint64_t seed;
  bool has_seed;
  bool stream, include_usage, continuous_usage_stats, ignore_eos, return_token_ids, skip_special_tokens,
      add_special_tokens, return_token_strs, echo, include_stop_str_in_output, parallel_tool_calls,
      include_reasoning;
  bool add_generation_prompt, continue_final_message;
  bool has_add_generation_prompt;
  td_unknown unknown; /* fields that are ignored */

  bool wants_logprobs; /* of the answer's tokens; with echo of the prompt's too */
  bool scores_prompt;  /* log-probabilities of the prompt's tokens are told */
  bool has_answer;     /* false: max_tokens is 0, and only the prompt is told of */
  uint32_t n_top;      /* the most likeliest tokens that are told with one */
  td_tool_choice choice;

  /* what the answer is to be made of (structured.c), and the field that says so; borrowed but for its JSON,
   * if that came as text */
  td_grammar_source grammar;
  const char *grammar_field;
  cJSON *grammar_json;

  /* `chat_template_kwargs` with what `reasoning_effort` means to templates; owned, with references to the
   * client's. NULL: no effort is given */
  cJSON *effort_kwargs;

  /* made from `logit_bias`, `stop` and `stop_token_ids`; owned */
  td_logit_bias *biases;
  uint32_t n_biases;
  td_stop_set stops;
  uint32_t n_stop_ids;
  int32_t stop_ids[TD_STOP_IDS_MAX];
} td_api_request;

/* What a request is read by. */
typedef struct td_request_rules {
  td_sampling defaults; /* what absent sampling fields mean */
  uint32_t vocab;       /* bound of token ids */
  bool strict_fields;   /* unknown fields are refused */
} td_request_rules;

/* Fills *r from a parsed body. r must be deinitialised in any case. On failure *error is filled. */
TD_MUST_CHECK bool td_request_read(const cJSON *root, unsigned route, const td_request_rules *rules,
                                   td_api_request *r, td_api_error *error);
void td_request_deinit(td_api_request *r);
/* structured.c: response_format, structured_outputs, guided_*: one of them at most. */
TD_MUST_CHECK bool td_structured_read(td_api_request *r, td_api_error *error);
/* The sampler's parameters, but for the seed of a request that gave none, and the ids that min_tokens is
 * about. Points to *r's biases. */
td_sampling td_request_sampling(const td_api_request *r);

/* How messages are read. */
typedef struct td_message_rules {
  bool keeps_developer; /* the template knows that role; else it becomes system */
  size_t json_nodes;    /* of the values that arguments of tool calls, which are text, are made into */
} td_message_rules;

/* Checks `messages` (and nothing else) and brings them to the plain form that templates know: content is a
 * string; text parts are joined by a newline; arguments of tool calls are objects; what templates have no use
 * for goes. */
TD_MUST_CHECK bool td_messages_normalise(cJSON *messages, const td_message_rules *rules, td_unknown *unknown,
                                         td_api_error *error);
/* `tools` as a template is given them: an array of objects with a function's name. */
TD_MUST_CHECK bool td_tools_check(const cJSON *tools, td_api_error *error);

#endif
