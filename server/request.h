/* The request schema: which fields a route takes, of what type, within which bounds; one table.
 *
 * A field the table does not have is refused by name. A field of OpenAI's or vLLM's API that is not served yet is
 * taken with the value that means "off", because clients send those, and refused with any other. null is absent. */
#ifndef TD_SERVER_REQUEST_H
#define TD_SERVER_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "config/json.h"
#include "config/sampling.h"
#include "server/api_error.h"
#include "server/stop_filter.h"

enum { TD_ROUTE_COMPLETIONS = 1, TD_ROUTE_CHAT = 2, TD_ROUTE_TOKENIZE = 4, TD_ROUTE_DETOKENIZE = 8 };
enum { TD_REQUEST_STOP_IDS_MAX = 64 };

typedef struct td_request {
  /* borrowed from the JSON tree */
  const char *model, *cache_salt;
  const cJSON *prompt, *messages, *tokens, *chat_template_kwargs, *stop, *stop_token_ids, *stream_options;

  double temperature, top_p, min_p;
  int64_t top_k, n, best_of;
  int64_t priority, timeout_ms, ttft_timeout_ms; /* timeouts 0: none */
  int64_t max_tokens, max_completion_tokens; /* 0: absent */
  uint64_t seed;
  bool has_seed;
  bool stream, include_usage, ignore_eos, return_token_ids, skip_special_tokens, add_special_tokens,
      return_token_strs;
  bool add_generation_prompt, continue_final_message;
  bool has_add_generation_prompt;

  /* made from `stop` and `stop_token_ids`; owned */
  td_stop_set stops;
  uint32_t n_stop_ids;
  int32_t stop_ids[TD_REQUEST_STOP_IDS_MAX];
} td_request;

/* Fills *r from a parsed body. defaults: what absent sampling fields mean. vocab: bound of token ids. r must be
 * deinitialised in any case. On failure *error is filled. */
TD_MUST_CHECK bool td_request_read(const cJSON *root, unsigned route, const td_sampling *defaults, uint32_t vocab,
                                   td_request *r, td_api_error *error);
void td_request_deinit(td_request *r);
/* The sampler's parameters, but for the seed of a request that gave none. */
td_sampling td_request_sampling(const td_request *r);

/* Checks `messages` (and nothing else) and brings them to the plain form that templates know: content is a string; text
 * parts are joined by a newline; role developer becomes system; fields with no value go. */
TD_MUST_CHECK bool td_messages_normalise(cJSON *messages, td_api_error *error);

#endif
