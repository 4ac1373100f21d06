/* The HTTP policy: parses requests with llhttp and accepts only those that also satisfy our own rules.
 *
 * The head of a request (request line and headers) is collected whole. llhttp parses it, and our rules check
 * it line by line. Both must agree, or the connection is closed: requests that two parsers read differently
 * are what makes request smuggling possible. llhttp then frames the body. It accepts the following, but we
 * refuse or ignore it: folded lines, empty names, a missing or second Host, Transfer-Encoding on HTTP/1.0 or
 * together with Content-Length, HTTP/2.0, unusual methods, Content-Length in trailers, Upgrade.
 *
 * Pure: bytes in, events out; no sockets, no clock. One per connection. */
#ifndef TD_SERVER_HTTP_POLICY_H
#define TD_SERVER_HTTP_POLICY_H

#include <llhttp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"

typedef enum td_http_method {
  TD_HTTP_GET,
  TD_HTTP_HEAD,
  TD_HTTP_POST,
  TD_HTTP_OPTIONS,
  TD_HTTP_OTHER_METHOD, /* PUT, DELETE, PATCH: known, but no route serves them */
} td_http_method;

/* What the rest of the server needs from a head. The strings point into the parser's buffers and are valid
 * until td_http_reset. */
typedef struct td_http_head {
  td_http_method method;
  const char *method_name;
  const char *path; /* origin form without the query; "*" for OPTIONS * */
  int minor;        /* HTTP/1.minor */
  const char *host, *origin, *content_type, *content_encoding, *authorization, *api_key, *request_id,
      *if_none_match, *forwarded_for; /* NULL: absent */
  bool keep_alive, expect_continue, chunked, has_length;
  uint64_t content_length;
} td_http_head;

typedef enum td_http_event {
  TD_HTTP_MORE,    /* all bytes were taken, more are needed */
  TD_HTTP_IS_HEAD, /* the head is complete and valid; feed again (even 0 bytes) for the body */
  TD_HTTP_IS_DONE, /* the body is complete too */
  TD_HTTP_IS_ERROR /* error_status and error_text are the answer to send before closing */
} td_http_event;

typedef struct td_http {
  llhttp_t parser;
  int stage;
  td_buf raw;        /* head as received */
  size_t line_start; /* offset in raw of the line being received */
  unsigned n_lines;
  td_http_head head;
  td_buf forwarded; /* several X-Forwarded-For lines joined into one */
  td_buf body;
  size_t max_body_bytes;
  bool discard_body; /* set by the caller at the head: the body is framed, but not kept */
  uint64_t body_bytes, body_wire_bytes;
  char trailer_name[24]; /* the beginning of the name */
  size_t n_trailer_name;
  bool complete;
  int error_status;
  const char *error_text;
} td_http;

void td_http_init(td_http *h, size_t max_body_bytes);
void td_http_deinit(td_http *h);
/* Frees the buffers and prepares for the connection's next request. */
void td_http_reset(td_http *h);
/* Takes up to n bytes; *used says how many. After IS_DONE or IS_ERROR only td_http_reset may follow. */
td_http_event td_http_feed(td_http *h, const char *data, size_t n, size_t *used);
/* Whether a request has begun to arrive. */
bool td_http_started(const td_http *h);

#endif
