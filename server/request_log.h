/* The log line that is written for a request when its answer has ended: who, what, how long, and how it
 * ended. It contains nothing of prompt or answer. Error messages are left out too, because they may quote
 * the request. */
#ifndef TD_SERVER_REQUEST_LOG_H
#define TD_SERVER_REQUEST_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

typedef struct td_conn td_conn;
typedef struct td_call td_call;

/* What is known of the current request; all 0 at its start. */
typedef struct td_request_note {
  bool is_call;      /* to the API: logged at level info; others at debug, unless they fail */
  bool is_anthropic; /* its errors have Anthropic's format */
  bool has_tokens;   /* token counts and times below are set */
  uint32_t account;  /* of its key */
  /* code: of the error. finish: "stop", "length", "abort" or "error". Both static, or NULL. */
  const char *code, *finish;
  char param[TD_ERROR_PARAM_BYTES];
  uint64_t prompt_tokens, cached_tokens, output_tokens;
  double queue_ms, prefill_ms, decode_ms; /* of the slowest choice */
} td_request_note;

/* Adds tokens and times of the call's choices so far. finish NULL: takes it from the choices. */
void td_request_log_note(td_request_note *n, const td_call *call, const char *finish);
/* Writes the line, when the answer has ended. status is the one sent, or 499 if the client left before there
 * was an answer. */
void td_request_log_write(td_conn *c, int status);

#endif
