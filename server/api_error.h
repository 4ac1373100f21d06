/* Error answers: OpenAI's error object and the HTTP status. */
#ifndef TD_SERVER_API_ERROR_H
#define TD_SERVER_API_ERROR_H

#include <stdbool.h>

#include "common/buf.h"
#include "common/status.h"

typedef struct td_api_error {
  int status;        /* HTTP */
  const char *type;  /* static: "invalid_request_error", "rate_limit_error", ... */
  const char *code;  /* static; NULL is written as null */
  int retry_after_s; /* 0: no Retry-After */
  bool no_retry;     /* asks clients that would retry by status alone not to (x-should-retry) */
  char param[TD_ERROR_PARAM_BYTES]; /* "" is written as null */
  char message[TD_ERROR_MESSAGE_BYTES];
} td_api_error;

void td_api_error_set(td_api_error *e, int status, const char *code, const char *param, const char *fmt, ...)
    TD_PRINTF(5, 6);
/* Converts an error of a lower layer: request errors become 400, capacity 429, memory 503, all others 500. */
void td_api_error_from(td_api_error *e, const td_error *err);
/* {"error":{...}} */
void td_api_error_render(const td_api_error *e, td_buf *out);
/* {"type":"error","error":{"type":..,"message":..}}, Anthropic's format */
void td_api_error_render_anthropic(const td_api_error *e, td_buf *out);
/* "Bad Request" for 400, ... */
const char *td_http_reason(int status);

#endif
