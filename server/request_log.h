/* The line that a request leaves in the log when its answer has ended: who, what, how long, and how it ended.
 * Nothing of prompt or answer stands in it, nor messages of errors, which may quote them. */
#ifndef TD_SERVER_REQUEST_LOG_H
#define TD_SERVER_REQUEST_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

typedef struct td_conn td_conn;
typedef struct td_call td_call;

/* What is known of the request under way; all 0 at its begin. */
typedef struct td_request_note {
  bool is_call;              /* of the API: it is told at info, others at debug */
  bool is_anthropic;         /* its errors have Anthropic's shape */
  bool has_tokens;           /* the numbers of tokens, and the times, are set */
  uint32_t account;          /* its key's */
  const char *code, *finish; /* of the error; "stop", "length", "abort", "error"; static, NULL: none */
  char param[TD_ERROR_PARAM_BYTES];
  uint64_t prompt_tokens, cached_tokens, output_tokens;
  double queue_ms, prefill_ms, decode_ms; /* of the slowest choice */
} td_request_note;

/* Of a call with choices: tokens and times so far. finish: NULL for what its choices say. */
void td_request_log_note(td_request_note *n, const td_call *call, const char *finish);
/* The answer has ended; status as sent, 499 if the client went before there was one. */
void td_request_log_tell(td_conn *c, int status);

#endif
