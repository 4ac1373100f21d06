/* The reasoning, content and calls of an answer as OpenAI's chat writes them, and the ids of calls. */
#ifndef TD_SERVER_PARTS_JSON_H
#define TD_SERVER_PARTS_JSON_H

#include "server/call.h"

enum { TD_CALL_ID_BYTES = 40 };

/* The id of the choice's n-th call. It is the same each time. */
void td_parts_json_call_id(const td_choice *ch, uint32_t n, char out[TD_CALL_ID_BYTES]);
/* The members of a chunk's delta for one part. */
void td_parts_json_delta(const td_choice *ch, const td_answer_part *p, td_buf *out);
/* Appends ,"content":..,"reasoning_content":..,"tool_calls":[..] for the whole parsed answer. */
void td_parts_json_message(const td_choice *ch, td_buf *out);

#endif
