/* Log-probabilities in answers: a record for each token, and how the API families write records.
 *
 * The engine frees its arrays with the slot, so values are copied into records until they are written. A
 * record takes 12 bytes, and 8 more for each of the likeliest tokens. */
#ifndef TD_SERVER_LOGPROBS_H
#define TD_SERVER_LOGPROBS_H

#include "common/buf.h"
#include "engine/engine.h"
#include "server/request.h"

typedef struct td_logprob_record {
  int32_t id;
  td_token_logprob value;
  uint32_t text_offset; /* characters of the answer before the token */
  td_top_token top[];   /* [n_top] */
} td_logprob_record;

/* Estimated JSON bytes of one log-probability: token, number, bytes, and member names. */
enum { TD_LOGPROB_TEXT_BYTES = 80 };

static inline size_t td_logprob_record_bytes(uint32_t n_top)
{
  return sizeof(td_logprob_record) + n_top * sizeof(td_top_token);
}

/* The records [begin, end) of `all`. Each has request->n_top likeliest tokens, of which n_written are
 * written. */
typedef struct td_logprob_view {
  const td_buf *all;
  const td_api_request *request;
  uint32_t n_written;
  size_t begin, end;
} td_logprob_view;

td_logprob_view td_logprobs_view(const td_buf *all, const td_api_request *request, uint32_t n_written);

/* Appends a token's record and advances *text_offset by the token's characters (NULL: not wanted). value and
 * top are NULL for a token without log-probability, such as a prompt's first. */
void td_logprobs_keep(const td_engine *e, int32_t id, const td_token_logprob *value, const td_top_token *top,
                      uint32_t n_top, uint32_t *text_offset, td_buf *records);

/* [{"token":..,"logprob":..,"bytes":[..],"top_logprobs":[..]}] */
void td_logprobs_render_list(const td_engine *e, const td_logprob_view *v, td_buf *out);
/* {"content":list,"refusal":null} */
void td_logprobs_render_chat(const td_engine *e, const td_logprob_view *v, td_buf *out);
/* {"tokens":[..],"token_logprobs":[..],"top_logprobs":[{..}],"text_offset":[..]} of consecutive views */
void td_logprobs_render_completion(const td_engine *e, const td_logprob_view *views, size_t n_views,
                                   td_buf *out);
/* [null,{"id":{"logprob":..,"rank":..,"decoded_token":..},..},..]: vLLM's prompt_logprobs */
void td_logprobs_render_prompt(const td_engine *e, const td_logprob_view *v, td_buf *out);

#endif
