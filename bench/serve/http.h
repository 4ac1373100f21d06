/* An HTTP/1.1 client of one server for very many concurrent requests: libuv sockets, llhttp, connections kept
 * and reused.
 *
 * An exchange is one request and its answer. The loop's thread calls its handlers: status once, bytes as they
 * arrive, end once. After `end` the exchange is freed. If a kept connection turns out to be closed before the
 * first byte of an answer, the request is sent again once on a new connection, and this is no error: the
 * server was allowed to close it. */
#ifndef TD_BENCH_SERVE_HTTP_H
#define TD_BENCH_SERVE_HTTP_H

#include <stdint.h>
#include <uv.h>

#include "common/buf.h"
#include "common/status.h"

typedef struct td_http_client td_http_client;
typedef struct td_exchange td_exchange;

typedef enum td_http_end {
  TD_HTTP_OK,
  TD_HTTP_NO_CONNECTION, /* refused, unreachable, or no more sockets */
  TD_HTTP_CUT,           /* closed or reset before the end of the answer */
  TD_HTTP_BROKEN,        /* not HTTP */
} td_http_end;

typedef struct td_http_handlers {
  void (*status)(void *arg, int code);
  void (*bytes)(void *arg, const char *bytes, size_t n);
  void (*end)(void *arg, td_http_end why, const char *detail);
} td_http_handlers;

typedef struct td_http_counts {
  uint64_t n_opened, n_reused, n_retried; /* connections */
  uint64_t bytes_in, bytes_out, n_reads;
} td_http_counts;

/* url: "http://HOST[:PORT][/PREFIX]"; a /v1 at the end of PREFIX is removed. Resolves the name. headers: more
 * header lines, each with CRLF, or "". */
TD_MUST_CHECK td_status td_http_create(uv_loop_t *loop, const char *url, const char *headers,
                                       td_http_client **out, td_error *err);
void td_http_destroy(td_http_client *h); /* aborts open exchanges and runs the loop until all is freed */

/* path: after the prefix, such as "/v1/models". body NULL: a GET; otherwise a POST that takes the body's
 * bytes and leaves it empty. */
td_exchange *td_http_send(td_http_client *h, const char *path, td_buf *body, const td_http_handlers *handlers,
                          void *arg);
void td_http_abort(td_exchange *ex); /* calls no more handlers */
/* For handlers: when the bytes they are called for were read (td_tool_now_s). */
double td_http_read_s(const td_http_client *h);
const td_http_counts *td_http_get_counts(const td_http_client *h);

#endif
