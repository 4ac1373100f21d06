/* A client connection: bytes in through the HTTP policy, one request at a time, answers out.
 *
 * Reading continues while a request is being answered, so that we notice a close immediately. Bytes that
 * arrive meanwhile are only buffered; reading stops when the buffer reaches its bound. Output collects in
 * `out` and is sent once per turn of the loop. */
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
  TD_CONN_ANSWERING, /* a call or a watcher writes the answer */
  TD_CONN_LINGERING, /* last answer is sent; input is dropped until the peer closes, because closing first
                        could destroy the answer */
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
  td_conn *tenant_prev, *tenant_next; /* list of the tenant's connections (answer_memory.h) */
  td_client peer;                     /* the other end of the connection: a client, or a proxy */
  td_client client;                   /* the client of the current request, perhaps behind a proxy */
  td_address address;                 /* the peer's full IP, if it has one; peer.ip may be only its /64 */
  bool dirty, processing, reading;

  td_conn_state state;
  td_http http;
  td_buf pending; /* input that arrived while answering */
  td_buf out;
  td_call *call;       /* owned; only while ANSWERING */
  td_watcher *watcher; /* owned; only while ANSWERING, instead of a call */
  bool keep_alive, chunked, head_only, in_stream;
  td_api_error
      *deferred_error; /* error found at the head, sent after the body has been received and dropped */
  char request_id[132];
  td_tenant *tenant;            /* of the last request that was admitted; NULL: none yet */
  uint64_t body_counted;        /* part of the tenant's and the server's body_bytes */
  uint64_t answer_memory_bytes; /* buffers queued at the socket, each until its last byte is written
                                   (answer_memory.h) */
  td_body_pace pace;

  /* uv_now() at: the state's start, the request's first byte, the end of its head, the last output, the last
   * time the peer took output. arrival_us is td_clock_us() at the request's first byte */
  uint64_t since_ms, first_byte_ms, body_ms, sent_ms, progress_ms, arrival_us;
  size_t unsent_bytes;
  int status; /* HTTP status of the current answer; 0: no answer has begun */
  td_request_note note;
};

/* Starts reading from a connection that was just accepted; c->uv is open. */
void td_conn_start(td_conn *c);
/* Abandons the call or watcher and closes. c is freed later, in the close callback. */
void td_conn_close(td_conn *c);
/* Closes because the server decided to, not the client; counts and logs it. */
void td_conn_cut(td_conn *c, td_cut why);
/* Makes the connection, and the bytes it holds, the tenant's. Takes over the caller's reference to tenant. */
void td_conn_set_tenant(td_conn *c, td_tenant *tenant);
void td_conn_sweep(td_conn *c, uint64_t now_ms);
/* The next process takes over: closes the connection unless a request may still be on its way. */
void td_conn_hand_over(td_conn *c, uint64_t now_ms);
/* Whether the peer is a trusted proxy, whose X-Forwarded-For names the client. */
bool td_conn_is_proxy(const td_conn *c);
/* The peer's address for the log, or "a unix socket". */
void td_conn_peer(const td_conn *c, char out[TD_ADDRESS_TEXT_BYTES]);

/* Sends one whole answer and ends the request. headers: extra lines, each with CRLF, or NULL. */
void td_conn_respond(td_conn *c, int status, const char *content_type, const char *headers, const char *body,
                     size_t n);
/* The same for a rendered body, whose memory is taken if it is long. A body that failed becomes a 503. */
void td_conn_respond_buf(td_conn *c, int status, const char *content_type, const char *headers, td_buf *body);
void td_conn_respond_error(td_conn *c, const td_api_error *e);
/* A streamed answer: begin, send any number of times, end. */
void td_conn_stream_begin(td_conn *c, const char *content_type, const char *headers);
void td_conn_stream_send(td_conn *c, const char *data, size_t n);
void td_conn_stream_end(td_conn *c);
/* Whether more output may be rendered now. If not, td_call_writable is called once it may. */
bool td_conn_writable(const td_conn *c);
/* Sends `out` of every dirty connection. */
void td_conn_flush_all(td_server *s);

#endif
