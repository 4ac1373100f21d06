/* Brings tools and calls to the form that templates expect. */
#ifndef TD_SERVER_TOOLS_H
#define TD_SERVER_TOOLS_H

#include "common/json.h"
#include "server/api_error.h"

/* Checks a message's tool_calls: each must be an object with a function's name. Clients send arguments as
 * text, and templates expect an object: text that is a JSON object is replaced by it, other text stays. An
 * empty tool_calls is removed. path names the message and ends with a dot. *nodes_left bounds the JSON
 * values made from texts. */
TD_MUST_CHECK bool td_tool_calls_normalise(cJSON *message, const char *path, size_t *nodes_left,
                                           td_api_error *e);

#endif
