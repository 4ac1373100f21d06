/* Which tools an answer may call, and whether it must: `tools`, `tool_choice`, `parallel_tool_calls`. */
#ifndef TD_SERVER_TOOL_CHOICE_H
#define TD_SERVER_TOOL_CHOICE_H

#include "server/request.h"

/* Checks the three fields of a chat, and fills the request's `choice`. */
TD_MUST_CHECK bool td_tool_choice_read(td_api_request *r, unsigned route, td_api_error *error);
void td_tool_choice_deinit(td_tool_choice *c);
/* Tools that the template is given: none where none may be called. */
const cJSON *td_tool_choice_shown(const td_api_request *r);
/* Calls must hold to a grammar: one is demanded, a tool is strict, not all may be called, or only one may be.
 */
bool td_tool_choice_is_held(const td_api_request *r);

#endif
