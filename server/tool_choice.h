/* Which tools an answer may call, and whether it must: `tools`, `tool_choice`, `parallel_tool_calls`. */
#ifndef TD_SERVER_TOOL_CHOICE_H
#define TD_SERVER_TOOL_CHOICE_H

#include "server/request.h"

/* Checks the three fields of a chat, and fills the request's `choice`. */
TD_MUST_CHECK bool td_tool_choice_read(td_api_request *r, unsigned route, td_api_error *error);
void td_tool_choice_deinit(td_tool_choice *c);
/* The tools that the template gets; NULL if the answer may call none. */
const cJSON *td_tool_choice_shown(const td_api_request *r);
/* Whether calls must conform to a grammar: a call is required, a tool is strict, not all tools are allowed,
 * or only one call is. */
bool td_tool_choice_is_constrained(const td_api_request *r);

#endif
