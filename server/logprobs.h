/* Log-probabilities in answers: what a token's record holds, and how the API families write it.
 *
 * The engine's arrays go with the slot, so what an answer or a chunk is to say is kept as records, of
 * td_logprob_record_bytes each, until it is written: for a whole answer that is 12 bytes a token, and 8 more
 * for each of the likeliest. */
#ifndef TD_SERVER_LOGPROBS_H
#define TD_SERVER_LOGPROBS_H

#include "common/buf.h"
#include "engine/engine.h"
#include "server/request.h"

typedef struct td_logprob_record {
  int32_t id;
  td_token_logprob told;
  uint32_t text_offset; /* characters of the answer before it */
  td_top_token top[];   /* [n_top] */
} td_logprob_record;

/* About what one log-probability takes in an answer: token, number, bytes, and the names of these. */
enum { TD_LOGPROB_TEXT_BYTES = 80 };

static inline size_t td_logprob_record_bytes(uint32_t n_top)
{
  return sizeof(td_logprob_record) + n_top * sizeof(td_top_token);
}

/* Records of which some are told: [begin, end) of those in `all`, each with as many of the likeliest as were
 * asked for, of which n_told are told. */
typedef struct td_logprob_view {
  const td_buf *all;
  const td_api_request *asked;
  uint32_t n_told;
  size_t begin, end;
} td_logprob_view;

td_logprob_view td_logprobs_view(const td_buf *all, const td_api_request *asked, uint32_t n_told);

/* Appends a token's record, and moves *text_offset behind its text (NULL: nobody asks). told NULL: it has no
 * log-probability, as a prompt's first token; top NULL then. */
void td_logprobs_keep(const td_engine *e, int32_t id, const td_token_logprob *told, const td_top_token *top,
                      uint32_t n_top, uint32_t *text_offset, td_buf *records);

/* [{"token":..,"logprob":..,"bytes":[..],"top_logprobs":[..]}] */
void td_logprobs_render_list(const td_engine *e, const td_logprob_view *v, td_buf *out);
/* {"content":list,"refusal":null} */
void td_logprobs_render_chat(const td_engine *e, const td_logprob_view *v, td_buf *out);
/* {"tokens":[..],"token_logprobs":[..],"top_logprobs":[{..}],"text_offset":[..]}, of views one after another
 */
void td_logprobs_render_completion(const td_engine *e, const td_logprob_view *views, size_t n_views,
                                   td_buf *out);
/* [null,{"id":{"logprob":..,"rank":..,"decoded_token":..},..},..]: vLLM's prompt_logprobs */
void td_logprobs_render_prompt(const td_engine *e, const td_logprob_view *v, td_buf *out);

#endif
