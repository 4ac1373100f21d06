/* One HTTP exchange by libcurl: a GET that follows redirects.
 *
 * A redirect from https to another scheme is refused. The token is sent only to the first host. */
#ifndef TD_PULL_HTTP_H
#define TD_PULL_HTTP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/status.h"

#define TD_HTTP_UNKNOWN UINT64_MAX

enum { TD_HTTP_REDIRECTS = 8, TD_HTTP_HEADER_BYTES = 256 };

/* The last answer. linked_etag, which a hub sends with a redirect, is kept from earlier answers. */
typedef struct td_http_reply {
  long status;
  char etag[TD_HTTP_HEADER_BYTES]; /* as sent, quotes included; "": none */
  uint64_t content_length, range_first, range_total;
  char linked_etag[TD_HTTP_HEADER_BYTES]; /* the hub's ETag of the file, without quotes */
  bool is_encoded;                        /* the body has a Content-Encoding */
  uint32_t retry_after_s;
  bool may_retry; /* the error may be temporary */
} td_http_reply;

typedef struct td_http_get {
  const char *url, *token; /* token "": none */
  const char *name;        /* for messages, because the URL may hold a password */
  uint64_t from;           /* if not 0, asks for the bytes from this one on */
  const char *if_range;    /* ETag for If-Range; "": no condition */
  uint32_t stall_s;        /* give up after this many seconds without a byte */
  /* Called with the complete head, then with the bytes of the body. Return false to end the exchange. */
  bool (*on_head)(void *arg, const td_http_reply *reply);
  bool (*on_bytes)(void *arg, const void *bytes, size_t n);
  void *arg;
} td_http_get;

/* Returns TD_OK if a complete answer arrived, whatever its status. On TD_ERR_IO, reply->may_retry says
 * whether to retry. */
TD_MUST_CHECK td_status td_http_run(const td_http_get *get, td_http_reply *reply, td_error *err);
/* Makes an error that explains a status other than 200 and 206. */
td_status td_http_status_error(const char *name, long status, bool has_token, td_error *err);
/* Fetches a whole answer, of at most `out`'s capacity. */
TD_MUST_CHECK td_status td_http_get_text(const char *url, const char *name, const char *token,
                                         uint32_t stall_s, td_buf *out, td_http_reply *reply, td_error *err);

#endif
