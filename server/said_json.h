/* The reasoning, content and calls of an answer as OpenAI's chat writes them, and the ids of calls. */
#ifndef TD_SERVER_SAID_JSON_H
#define TD_SERVER_SAID_JSON_H

#include "server/call.h"

enum { TD_CALL_ID_BYTES = 40 };

/* The id of the choice's n-th call. It is the same each time. */
void td_said_json_id(const td_choice *ch, uint32_t n, char out[TD_CALL_ID_BYTES]);
/* The members of a chunk's delta for one piece. */
void td_said_json_delta(const td_choice *ch, const td_said_piece *p, td_buf *out);
/* Appends ,"content":..,"reasoning_content":..,"tool_calls":[..] for everything that the choice said. */
void td_said_json_message(const td_choice *ch, td_buf *out);

#endif
