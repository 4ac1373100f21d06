/* What an answer says, as OpenAI's chat writes it; and the ids of its calls. */
#ifndef TD_SERVER_SAID_JSON_H
#define TD_SERVER_SAID_JSON_H

#include "server/call.h"

enum { TD_CALL_ID_BYTES = 40 };

/* The id of the choice's n-th call: the same whenever it is asked. */
void td_said_json_id(const td_choice *ch, uint32_t n, char out[TD_CALL_ID_BYTES]);
/* Members of a chunk's delta for one piece. */
void td_said_json_delta(const td_choice *ch, const td_said_piece *p, td_buf *out);
/* ,"content":..,"reasoning_content":..,"tool_calls":[..] of all that was said. */
void td_said_json_message(const td_choice *ch, td_buf *out);

#endif
