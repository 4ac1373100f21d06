/* A client connection: bytes in through the HTTP policy, one request at a time, answers out.
 *
 * While a request is being answered reading goes on, so that a close is seen at once, but what arrives is
 * only kept, up to a bound; then reading stops. What is sent collects in `out` and leaves once per turn of
 * the loop. */
#ifndef TD_SERVER_CONN_H
#define TD_SERVER_CONN_H

#include "server/address.h"
#include "server/api_error.h"
#include "server/body_pace.h"
#include "server/http_policy.h"
#include "server/request_log.h"
#include "server/server.h"

typedef enum td_conn_state {
  TD_CONN_READING,   /* idle, or a request is arriving */
  TD_CONN_ANSWERING, /* a call has it */
  TD_CONN_LINGERING, /* last answer is sent; reads and drops until the peer closes, so that it can read it */
  TD_CONN_CLOSING,
} td_conn_state;

struct td_conn {
  td_server *server;
  union {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_tcp_t tcp;
    uv_pipe_t pipe;
  } uv;
  td_conn *prev, *next, *ip_prev, *ip_next, *dirty_next;
  td_conn *tenant_prev, *tenant_next; /* others of its tenant (held.h) */
  td_client peer;                     /* who is connected: a client, or a proxy */
  td_client client;                   /* who asks: of the request under way */
  td_address address; /* the peer's own, where it has one: that may be a proxy's, unlike all of its owner's */
  bool dirty, processing, reading;

  td_conn_state state;
  td_http http;
  td_buf pending; /* read ahead while answering */
  td_buf out;
  td_call *call;       /* owned; while ANSWERING */
  td_watcher *watcher; /* owned; ANSWERING too, with no call */
  bool keep_alive, chunked, head_only, in_stream;
  td_api_error *early; /* found at the head, told when the body has passed */
  char request_id[132];
  td_tenant *tenant;     /* of the last request that was let in; NULL: none was yet */
  uint64_t body_counted; /* its part of the tenant's and the server's body_bytes */
  uint64_t held_bytes;   /* buffers that wait for the socket, each until its last byte is taken (held.h) */
  td_body_pace pace;

  /* uv_now() of: the state's start, the request's first byte, the body's, the last output, the last progress
   * of output */
  uint64_t since_ms, first_byte_ms, body_ms, sent_ms, progress_ms, arrival_us;
  size_t unsent_bytes;
  int status; /* of the answer under way; 0: none is */
  td_request_note note;
};

/* Takes a fresh, accepted handle. */
void td_conn_start(td_conn *c);
/* Frees all that hangs on it and closes; c is gone soon after. */
void td_conn_close(td_conn *c);
/* The same by our doing, not by the client's: the log and the metrics tell. */
void td_conn_cut(td_conn *c, td_cut why);
/* From now on its requests are this tenant's, of which it becomes a user. */
void td_conn_belong(td_conn *c, td_tenant *tenant);
void td_conn_sweep(td_conn *c, uint64_t now_ms);
/* The next process takes over: closes it unless a request is on its way. */
void td_conn_hand_over(td_conn *c, uint64_t now_ms);
/* Whether its peer may say who asks. */
bool td_conn_is_proxy(const td_conn *c);
/* Its address, for the log; "a unix socket" has none. */
void td_conn_peer(const td_conn *c, char out[TD_ADDRESS_TEXT_BYTES]);

/* One whole answer. headers: extra lines, each with CRLF, or NULL. Ends the request. */
void td_conn_respond(td_conn *c, int status, const char *content_type, const char *headers, const char *body,
                     size_t n);
/* The same of a rendered body, which is taken if it is long; what could not be rendered whole becomes a 503.
 */
void td_conn_respond_buf(td_conn *c, int status, const char *content_type, const char *headers, td_buf *body);
void td_conn_respond_error(td_conn *c, const td_api_error *e);
/* A streamed answer: begin, send any number of times, end. */
void td_conn_stream_begin(td_conn *c, const char *content_type, const char *headers);
void td_conn_stream_send(td_conn *c, const char *data, size_t n);
void td_conn_stream_end(td_conn *c);
/* Whether more can be rendered for it now; if not, td_call_writable is called when it can. */
bool td_conn_writable(const td_conn *c);
/* Sends `out` of every dirty connection. */
void td_conn_flush_all(td_server *s);

#endif
