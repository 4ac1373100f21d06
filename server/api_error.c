/* Errors for clients: see api_error.h. */
#include "server/api_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *type_of_status(int status)
{
  switch (status) {
  case 401: return "authentication_error";
  case 403: return "permission_error";
  case 404: return "not_found_error";
  case 408:
  case 504: return "timeout_error";
  case 429: return "rate_limit_error";
  default: return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

static int retry_of_status(int status) { return status == 429 ? 1 : status == 503 ? 2 : 0; }

void td_api_error_set(td_api_error *e, int status, const char *code, const char *param, const char *fmt, ...)
{
  va_list ap;
  memset(e, 0, sizeof *e);
  e->status = status;
  e->type = type_of_status(status);
  e->code = code;
  e->retry_after_s = retry_of_status(status);
  if (param)
    snprintf(e->param, sizeof e->param, "%s", param);
  va_start(ap, fmt);
  vsnprintf(e->message, sizeof e->message, fmt, ap);
  va_end(ap);
}

void td_api_error_from(td_api_error *e, const td_error *err)
{
  switch (err->code) {
  case TD_ERR_REQUEST: td_api_error_set(e, 400, "invalid_value", err->param, "%s", err->message); break;
  case TD_ERR_UNSUPPORTED:
    td_api_error_set(e, 400, "unsupported_parameter", err->param, "%s", err->message);
    break;
  case TD_ERR_CAPACITY: td_api_error_set(e, 429, "queue_full", NULL, "%s", err->message); break;
  case TD_ERR_NOMEM: td_api_error_set(e, 503, "out_of_memory", NULL, "%s", err->message); break;
  default: td_api_error_set(e, 500, "internal_error", NULL, "%s", err->message); break;
  }
}

static void render_string_or_null(td_buf *out, const char *s)
{
  if (s && *s)
    td_buf_append_json_string(out, s, strlen(s));
  else
    td_buf_append_str(out, "null");
}

void td_api_error_render(const td_api_error *e, td_buf *out)
{
  td_buf_append_str(out, "{\"error\":{\"message\":");
  td_buf_append_json_string(out, e->message, strlen(e->message));
  td_buf_append_str(out, ",\"type\":");
  render_string_or_null(out, e->type);
  td_buf_append_str(out, ",\"param\":");
  render_string_or_null(out, e->param);
  td_buf_append_str(out, ",\"code\":");
  render_string_or_null(out, e->code);
  td_buf_append_str(out, "}}");
}

static const char *anthropic_type(int status)
{
  switch (status) {
  case 401: return "authentication_error";
  case 403: return "permission_error";
  case 404: return "not_found_error";
  case 413: return "request_too_large";
  case 429: return "rate_limit_error";
  case 503: return "overloaded_error";
  case 408:
  case 504: return "timeout_error";
  default: return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

void td_api_error_render_anthropic(const td_api_error *e, td_buf *out)
{
  td_buf_printf(out,
                "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", anthropic_type(e->status));
  td_buf_append_json_string(out, e->message, strlen(e->message));
  td_buf_append_str(out, "}}");
}

const char *td_http_reason(int status)
{
  switch (status) {
  case 200: return "OK";
  case 204: return "No Content";
  case 304: return "Not Modified";
  case 400: return "Bad Request";
  case 401: return "Unauthorized";
  case 403: return "Forbidden";
  case 404: return "Not Found";
  case 405: return "Method Not Allowed";
  case 408: return "Request Timeout";
  case 413: return "Content Too Large";
  case 414: return "URI Too Long";
  case 415: return "Unsupported Media Type";
  case 417: return "Expectation Failed";
  case 429: return "Too Many Requests";
  case 431: return "Request Header Fields Too Large";
  case 500: return "Internal Server Error";
  case 503: return "Service Unavailable";
  case 504: return "Gateway Timeout";
  default: return "Unknown";
  }
}
