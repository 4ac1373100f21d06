/* Tools and calls of them, as templates are given them. */
#ifndef TD_SERVER_TOOLS_H
#define TD_SERVER_TOOLS_H

#include "common/json.h"
#include "server/api_error.h"

/* A message's calls: each an object with a function's name; arguments, which clients send as text, become the
 * object that the text states, as templates want them; what is no object stays text. No calls are none. path
 * names the message, with a dot behind; *nodes_left bounds what texts are made into. */
TD_MUST_CHECK bool td_tool_calls_normalise(cJSON *message, const char *path, size_t *nodes_left,
                                           td_api_error *e);

#endif
