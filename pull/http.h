/* One HTTP exchange by libcurl: a GET, with redirects followed.
 *
 * https stays https: a redirect to anything else is refused. The token goes to the first host only. */
#ifndef TD_PULL_HTTP_H
#define TD_PULL_HTTP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/status.h"

#define TD_HTTP_UNKNOWN UINT64_MAX

enum { TD_HTTP_REDIRECTS = 8, TD_HTTP_HEADER_BYTES = 256 };

/* Of the last answer; what the hub says of a file (linked_*) also from those that redirect. */
typedef struct td_http_reply {
  long status;
  char etag[TD_HTTP_HEADER_BYTES]; /* as it was sent, with its quotes; "": none */
  uint64_t content_length, range_first, range_total;
  char linked_etag[TD_HTTP_HEADER_BYTES]; /* without quotes */
  bool is_encoded;                        /* the bytes are not the file's */
  uint32_t retry_after_s;
  bool again; /* what failed may work another time */
} td_http_reply;

typedef struct td_http_get {
  const char *url, *token; /* token "": none */
  const char *name;        /* in messages: the URL may hold a password */
  uint64_t from;           /* > 0: only what comes from this byte on */
  const char *if_range;    /* "": no condition */
  uint32_t stall_s;        /* nothing came for so long: given up */
  /* When the head is whole, then for its bytes. false ends the exchange. */
  bool (*on_head)(void *arg, const td_http_reply *reply);
  bool (*on_bytes)(void *arg, const void *bytes, size_t n);
  void *arg;
} td_http_get;

/* TD_OK: an answer came whole, whatever its status. TD_ERR_IO: reply->again says whether to try again. */
TD_MUST_CHECK td_status td_http_run(const td_http_get *get, td_http_reply *reply, td_error *err);
/* What a status other than 200 and 206 means to a person. */
td_status td_http_refused(const char *name, long status, bool has_token, td_error *err);
/* The whole answer, of at most `out`'s cap. */
TD_MUST_CHECK td_status td_http_text(const char *url, const char *name, const char *token, uint32_t stall_s,
                                     td_buf *out, td_http_reply *reply, td_error *err);

#endif
