/* HTTP requests in: what is let through, over llhttp.
 *
 * The head of a request (request line and headers) is collected whole, checked line by line by our own rules,
 * and only then given to llhttp, which frames the body. Both must agree, or the connection is closed: a
 * request that two parsers could read differently is the stuff of request smuggling. What llhttp lets through
 * that we do not: folded lines, empty names, a missing or second Host, Transfer-Encoding on 1.0 or beside
 * Content-Length, HTTP/2.0, odd methods, Content-Length in trailers, Upgrade.
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
  TD_HTTP_OTHER_METHOD, /* PUT, DELETE, PATCH: known, served nowhere */
} td_http_method;

/* What the rest of the server needs of a head. Strings lie in the parser's head buffer, terminated, until
 * reset. */
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
  TD_HTTP_MORE,    /* all bytes taken, more are needed */
  TD_HTTP_IS_HEAD, /* head is complete and valid; feed on (even 0 bytes) for the body */
  TD_HTTP_IS_DONE, /* body is complete too */
  TD_HTTP_IS_ERROR /* error_status and error_text say what to answer before closing */
} td_http_event;

typedef struct td_http {
  llhttp_t parser;
  int stage;
  td_buf raw;        /* head as received */
  size_t line_start; /* offset in raw of the line being received */
  unsigned n_lines;
  td_http_head head;
  td_buf forwarded; /* several X-Forwarded-For as one */
  td_buf body;
  size_t max_body_bytes;
  bool discard_body; /* set by the caller at the head: the body is framed, but not kept */
  uint64_t body_bytes, body_wire_bytes;
  char trailer_name[24]; /* its beginning */
  size_t n_trailer_name;
  bool complete;
  int error_status;
  const char *error_text;
} td_http;

void td_http_init(td_http *h, size_t max_body_bytes);
void td_http_deinit(td_http *h);
/* Makes ready for the next request of the connection and gives the memory back. */
void td_http_reset(td_http *h);
/* Takes up to n bytes; *used says how many. After IS_DONE or IS_ERROR only td_http_reset may follow. */
td_http_event td_http_feed(td_http *h, const char *data, size_t n, size_t *used);
/* Whether a request has begun to arrive. */
bool td_http_started(const td_http *h);

#endif
