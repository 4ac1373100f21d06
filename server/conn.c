/* Connections: see conn.h. */
#include "server/conn.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "config/share.h"
#include "server/call.h"
#include "server/forwarded.h"
#include "server/answer_memory.h"
#include "server/key_limits.h"
#include "server/origin.h"
#include "server/router.h"
#include "server/watch.h"

enum { KEPT_OUT_BYTES = 2048 }; /* an output buffer up to this size is kept for the next answer */
enum { MOVED_BYTES = 65536 };   /* a longer body is sent from its own buffer, not copied */
static const char OUT_OF_MEMORY[] = "out_of_memory";
/* When the next process takes over: how long to wait for a connection's first request, and for a later one */
enum { HAND_OVER_FIRST_MS = 1000, HAND_OVER_NEXT_MS = 100 };

static void process(td_conn *c, const char *data, size_t n);

static uint64_t now_ms(const td_conn *c) { return uv_now(&c->server->loop); }

static int64_t option(const td_conn *c, td_limit_id id) { return td_option(c->server->options, id); }

void td_conn_peer(const td_conn *c, char out[TD_ADDRESS_TEXT_BYTES]) { td_client_text(&c->peer, out); }

/* Looked up each time, because a reload may change the ranges. */
bool td_conn_is_proxy(const td_conn *c)
{
  const td_ranges *trusted = &c->server->trusted_proxies;
  return c->peer.has_ip ? td_ranges_have(trusted, &c->address) : trusted->has_unix;
}

/* The client of the current request: the peer, or the client that a trusted proxy names. */
static td_client client_of(const td_conn *c)
{
  td_address ip;
  const char *forwarded = c->http.head.forwarded_for;
  if (forwarded && td_conn_is_proxy(c) && td_forwarded_client(&c->server->trusted_proxies, forwarded, &ip))
    return td_client_of(ip);
  return c->peer;
}

/* ---- closing ---- */

/* Counts and logs a connection that the server ends, not the client. */
static void note_cut(td_conn *c, td_cut why)
{
  static const char *const texts[TD_CUT_KINDS] = {
      [TD_CUT_STALL] = "took nothing for sse_stall_ms",
      [TD_CUT_HEAD_TIMEOUT] = "its request head took longer than http_header_timeout_ms",
      [TD_CUT_BODY_RATE] = "its request body came slower than http_body_min_rate",
      [TD_CUT_BODY_TIMEOUT] = "its request body took longer than http_body_timeout_ms",
      [TD_CUT_ANSWER_MEMORY] = "its unread answer takes memory that others need (answers_bytes)",
      [TD_CUT_MEMORY] = "there is no memory for what it sends or gets",
  };
  td_server *s = c->server;
  char who[TD_ADDRESS_TEXT_BYTES], more[TD_LOG_GATE_BYTES];
  s->metrics.connections_cut[why]++;
  if (!td_log_gate_pass(&s->cuts, now_ms(c), td_limit_max(TD_LIMIT_LOG_CUTS), more))
    return;
  td_conn_peer(c, who);
  td_info("cut a connection from %s, request %s: %s%s", who, c->request_id[0] ? c->request_id : "-",
          texts[why], more);
}

static void on_closed(uv_handle_t *h)
{
  td_conn *c = h->data;
  td_http_deinit(&c->http);
  td_buf_deinit(&c->pending);
  td_buf_deinit(&c->out);
  free(c->deferred_error);
  free(c);
}

static void unlink_conn(td_conn *c)
{
  td_server *s = c->server;
  *(c->prev ? &c->prev->next : &s->conns) = c->next;
  if (c->next)
    c->next->prev = c->prev;
  if (c->peer.has_ip) {
    *(c->ip_prev ? &c->ip_prev->ip_next : &s->ip_buckets[c->peer.bucket]) = c->ip_next;
    if (c->ip_next)
      c->ip_next->ip_prev = c->ip_prev;
  }
  for (td_conn **p = &s->dirty; c->dirty && *p; p = &(*p)->dirty_next)
    if (*p == c) {
      *p = c->dirty_next;
      break;
    }
  s->n_conns--;
}

static void uncount_body(td_conn *c)
{
  c->server->body_bytes -= c->body_counted;
  if (c->tenant)
    c->tenant->body_bytes -= c->body_counted;
  c->body_counted = 0;
}

void td_conn_set_tenant(td_conn *c, td_tenant *tenant)
{
  uint64_t unread_bytes = c->answer_memory_bytes; /* earlier answers that the peer has not read yet */
  td_answer_memory_set(c->server, c->tenant, &c->answer_memory_bytes, 0);
  td_answer_memory_remove_conn(c);
  td_tenant_drop(&c->server->tenants, c->tenant);
  c->tenant = tenant;
  td_answer_memory_add_conn(c);
  td_answer_memory_set(c->server, tenant, &c->answer_memory_bytes, unread_bytes);
}

void td_conn_cut(td_conn *c, td_cut why)
{
  note_cut(c, why);
  td_conn_close(c);
}

void td_conn_close(td_conn *c)
{
  if (c->state == TD_CONN_CLOSING)
    return;
  if (c->out.len_bytes > 0 && !c->out.failed && c->uv.stream.write_queue_size == 0) {
    /* send an answer that was just written, even if the peer has already shut its sending side */
    uv_buf_t b = uv_buf_init(c->out.data, (unsigned)c->out.len_bytes);
    (void)uv_try_write(&c->uv.stream, &b, 1);
  }
  td_call *call = c->call;
  if (call) {
    td_request_log_note(&c->note, call, "abort");
    td_request_log_write(c, c->status > 0 ? c->status : 499);
  }
  c->state = TD_CONN_CLOSING;
  c->call = NULL;
  if (call)
    td_call_abandon(call);
  td_watch_forget(c);
  uncount_body(c);
  td_answer_memory_set(c->server, c->tenant, &c->answer_memory_bytes, 0);
  td_answer_memory_remove_conn(c);
  td_tenant_drop(&c->server->tenants, c->tenant);
  c->tenant = NULL;
  unlink_conn(c);
  uv_close(&c->uv.handle, on_closed);
  td_server_stop_if_drained(c->server);
}

/* ---- writing ---- */

typedef struct write_request {
  uv_write_t uv;
  td_conn *conn;
  char *data;
  size_t n;
} write_request;

static void mark_dirty(td_conn *c)
{
  if (c->dirty || c->state == TD_CONN_CLOSING)
    return;
  c->dirty = true;
  c->dirty_next = c->server->dirty;
  c->server->dirty = c;
}

static size_t unsent(const td_conn *c) { return c->out.len_bytes + c->uv.stream.write_queue_size; }

bool td_conn_writable(const td_conn *c)
{
  return c->state != TD_CONN_CLOSING && unsent(c) < (size_t)option(c, TD_LIMIT_SSE_QUEUE_BYTES) / 16;
}

static void resume(td_conn *c);

static void on_written(uv_write_t *w, int status)
{
  write_request *r = (write_request *)w;
  td_conn *c = r->conn;
  size_t n = r->n;
  free(r->data);
  free(r);
  if (c->state == TD_CONN_CLOSING) /* td_conn_close has set answer_memory_bytes to 0 */
    return;
  td_answer_memory_set(c->server, c->tenant, &c->answer_memory_bytes, c->answer_memory_bytes - n);
  if (status < 0) {
    td_conn_close(c);
    return;
  }
  c->progress_ms = now_ms(c);
  if (c->in_stream && c->call && td_conn_writable(c))
    td_call_writable(c->call);
  resume(c);
}

static void on_shutdown(uv_shutdown_t *r, int status) { free(r); }

/* Writes without uv_write, because the socket takes most answers immediately and then nothing needs a
 * callback. Returns false if something is left. A stream that has reached its bound of unsent bytes goes
 * through uv_write, whose callback renders more. */
static bool write_at_once(td_conn *c)
{
  if (c->uv.stream.write_queue_size > 0 || (c->in_stream && !td_conn_writable(c)))
    return false;
  uv_buf_t b = uv_buf_init(c->out.data, (unsigned)c->out.len_bytes);
  int n = uv_try_write(&c->uv.stream, &b, 1);
  if (n <= 0) /* uv_write will report any error */
    return false;
  c->progress_ms = c->sent_ms = now_ms(c);
  td_buf_consume(&c->out, (size_t)n);
  if (c->out.len_bytes > 0)
    return false;
  if (c->out.cap_bytes > KEPT_OUT_BYTES)
    td_buf_deinit(&c->out);
  return true;
}

/* Takes over the bytes of buf and keeps them until the socket has taken them. Returns false if the connection
 * was closed. */
static bool queue(td_conn *c, td_buf *buf)
{
  write_request *r = malloc(sizeof *r);
  size_t n = 0;
  char *data = r ? td_buf_detach(buf, &n) : NULL;
  if (!data) {
    free(r);
    c->note.code = OUT_OF_MEMORY;
    td_conn_cut(c, TD_CUT_MEMORY);
    return false;
  }
  *r = (write_request){.conn = c, .data = data, .n = n};
  uv_buf_t b = {.base = data, .len = n}; /* uv_buf_init takes only a 32-bit length */
  if (c->uv.stream.write_queue_size == 0)
    c->progress_ms = now_ms(c);
  if (uv_write(&r->uv, &c->uv.stream, &b, 1, on_written) != 0) {
    free(data);
    free(r);
    td_conn_close(c);
    return false;
  }
  td_answer_memory_set(c->server, c->tenant, &c->answer_memory_bytes, c->answer_memory_bytes + n);
  c->sent_ms = now_ms(c);
  return true;
}

static void flush_one(td_conn *c)
{
  if (c->out.failed) { /* part of the answer is missing, so it must not look whole */
    td_conn_cut(c, TD_CUT_MEMORY);
    return;
  }
  if (c->out.len_bytes > 0 && write_at_once(c))
    resume(c);
  if (c->out.len_bytes > 0 && !queue(c, &c->out))
    return;
  if (c->state == TD_CONN_LINGERING) {
    uv_shutdown_t *r = malloc(sizeof *r);
    if (!r || uv_shutdown(r, &c->uv.stream, on_shutdown) != 0)
      free(r); /* no memory, or already shut */
  }
}

void td_conn_flush_all(td_server *s)
{
  while (s->dirty) {
    td_conn *c = s->dirty;
    s->dirty = c->dirty_next;
    c->dirty = false;
    flush_one(c);
  }
}

/* ---- answers ---- */

static const char *http_date(void)
{
  static time_t cached;
  static char text[40];
  time_t now = time(NULL);
  if (now != cached) {
    struct tm tm;
    gmtime_r(&now, &tm);
    strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &tm); /* names of the C locale */
    cached = now;
  }
  return text;
}

/* Takes the client's request id if it is short visible ASCII, otherwise makes one. */
static void take_request_id(td_conn *c)
{
  const char *given = c->http.head.request_id;
  size_t n = given ? strlen(given) : 0;
  bool sane = n > 0 && n <= td_limit_max(TD_LIMIT_REQUEST_ID_BYTES) && n < sizeof c->request_id;
  for (size_t i = 0; sane && i < n; i++)
    sane = given[i] > 0x20 && given[i] < 0x7f;
  if (sane)
    memcpy(c->request_id, given, n + 1);
  else
    snprintf(c->request_id, sizeof c->request_id, "req-%016" PRIx64 "-%" PRIx64, (uint64_t)time(NULL),
             ++c->server->last_request_id);
}

static void append_header(td_buf *out, const char *name, const char *value)
{
  td_buf_append_str(out, name);
  td_buf_append_str(out, value);
  td_buf_append(out, "\r\n", 2);
}

static void answer_head(td_conn *c, int status, const char *content_type, const char *headers)
{
  if (c->request_id[0] == '\0')
    take_request_id(c);
  if (c->server->draining)
    c->keep_alive = false;
  td_buf_append_str(&c->out, "HTTP/1.1 ");
  td_buf_append_uint(&c->out, (uint64_t)status);
  td_buf_append_char(&c->out, ' ');
  td_buf_append_str(&c->out, td_http_reason(status));
  append_header(&c->out, "\r\nserver: tandem\r\ndate: ", http_date());
  append_header(&c->out, "x-request-id: ", c->request_id);
  if (content_type)
    append_header(&c->out, "content-type: ", content_type);
  if (!c->keep_alive)
    td_buf_append_str(&c->out, "connection: close\r\n");
  else if (c->http.head.minor == 0)
    td_buf_append_str(&c->out, "connection: keep-alive\r\n");
  if (headers)
    td_buf_append_str(&c->out, headers);
  td_origin_append_headers(c->server->options, &c->http.head, &c->out);
  if (c->note.is_call && c->note.account > 0)
    td_key_limits_append_headers(&c->server->tenants.keys[c->note.account], td_clock_us(), &c->out);
  c->status = status;
  c->server->metrics.responses[status / 100]++;
  mark_dirty(c);
}

/* The answer is whole: goes on to the next request, or lingers until the peer closes. */
static void answer_end(td_conn *c)
{
  td_request_log_write(c, c->status);
  c->status = 0;
  uncount_body(c);
  td_http_reset(&c->http);
  free(c->deferred_error);
  c->deferred_error = NULL;
  c->in_stream = c->chunked = c->head_only = false;
  c->since_ms = now_ms(c);
  c->state = c->keep_alive ? TD_CONN_READING : TD_CONN_LINGERING;
  mark_dirty(c);
  if (!c->processing)
    resume(c);
}

static void whole_head(td_conn *c, int status, const char *content_type, const char *headers, size_t n)
{
  answer_head(c, status, content_type, headers);
  if (status != 204 && status != 304) {
    td_buf_append_str(&c->out, "content-length: ");
    td_buf_append_uint(&c->out, n);
    td_buf_append_str(&c->out, "\r\n");
  }
  td_buf_append_str(&c->out, "\r\n");
}

void td_conn_respond(td_conn *c, int status, const char *content_type, const char *headers, const char *body,
                     size_t n)
{
  whole_head(c, status, content_type, headers, n);
  if (!c->head_only)
    td_buf_append(&c->out, body, n);
  answer_end(c);
}

/* Allocates nothing but the connection's output buffer. If that fails too, the connection is closed. */
static void respond_no_memory(td_conn *c)
{
  static const char body[] =
      "{\"error\":{\"message\":\"no memory for the answer\",\"type\":\"server_error\",\"param\":null,"
      "\"code\":\"out_of_memory\"}}";
  c->note.code = OUT_OF_MEMORY;
  td_conn_respond(c, 503, "application/json", "retry-after: 2\r\n", body, sizeof body - 1);
}

void td_conn_respond_buf(td_conn *c, int status, const char *content_type, const char *headers, td_buf *body)
{
  if (body->failed) {
    respond_no_memory(c);
  } else if (body->len_bytes > MOVED_BYTES && !c->head_only) {
    whole_head(c, status, content_type, headers, body->len_bytes);
    if (queue(c, &c->out) && queue(c, body))
      answer_end(c);
    else { /* the call is detached, so td_conn_close did not log the request */
      c->note.finish = "abort";
      td_request_log_write(c, c->status);
    }
  } else {
    td_conn_respond(c, status, content_type, headers, body->data ? body->data : "", body->len_bytes);
  }
}

static void respond_error(td_conn *c, const td_api_error *e, const char *headers)
{
  char extra[256];
  td_buf body;
  c->note.code = e->code;
  snprintf(c->note.param, sizeof c->note.param, "%s", e->param);
  td_buf_init(&body, 0);
  if (c->note.is_anthropic)
    td_api_error_render_anthropic(e, &body);
  else
    td_api_error_render(e, &body);
  snprintf(extra, sizeof extra, "%s", headers ? headers : "");
  if (e->retry_after_s > 0)
    snprintf(extra + strlen(extra), sizeof extra - strlen(extra), "retry-after: %d\r\n", e->retry_after_s);
  if (e->no_retry)
    snprintf(extra + strlen(extra), sizeof extra - strlen(extra), "x-should-retry: false\r\n");
  td_conn_respond_buf(c, e->status, "application/json", extra, &body);
  td_buf_deinit(&body);
}

void td_conn_respond_error(td_conn *c, const td_api_error *e) { respond_error(c, e, NULL); }

void td_conn_stream_begin(td_conn *c, const char *content_type, const char *headers)
{
  c->chunked = c->http.head.minor == 1;
  if (!c->chunked)
    c->keep_alive = false; /* HTTP/1.0: the end of the connection is the end of the answer */
  answer_head(c, 200, content_type, headers);
  td_buf_append_str(&c->out, c->chunked ? "transfer-encoding: chunked\r\n\r\n" : "\r\n");
  c->in_stream = true;
  c->sent_ms = now_ms(c); /* without this, the first sweep would find a long silence and send a ping */
}

void td_conn_stream_send(td_conn *c, const char *data, size_t n)
{
  if ((n == 0 && !c->out.failed) || c->head_only)
    return;
  if (c->chunked)
    td_buf_printf(&c->out, "%zx\r\n", n);
  td_buf_append(&c->out, data, n);
  if (c->chunked)
    td_buf_append_str(&c->out, "\r\n");
  mark_dirty(c);
}

void td_conn_stream_end(td_conn *c)
{
  if (c->chunked && !c->head_only)
    td_buf_append_str(&c->out, "0\r\n\r\n");
  answer_end(c);
}

/* ---- reading ---- */

static void protocol_error(td_conn *c, int status, const char *code, const char *text)
{
  td_api_error e;
  td_api_error_set(&e, status, code, NULL, "%s", text);
  c->keep_alive = false;
  td_conn_respond_error(c, &e);
}

/* Answers a request that the parser refused. */
static void malformed(td_conn *c)
{
  const td_http *h = &c->http;
  char too_large[80];
  snprintf(too_large, sizeof too_large, "the body is larger than %zu bytes (http_body_bytes)",
           h->max_body_bytes);
  c->note.is_anthropic = td_router_is_anthropic(h->head.path);
  if (h->error_status == 413)
    protocol_error(c, 413, "body_too_large", too_large);
  else
    protocol_error(c, h->error_status, h->error_status == 503 ? "out_of_memory" : "malformed_request",
                   h->error_text);
}

/* The head is complete and valid. Refuses before the body whatever can be refused by the head alone. */
static void on_head(td_conn *c)
{
  td_http_head *h = &c->http.head;
  td_api_error e;
  const char *headers;
  c->keep_alive = h->keep_alive;
  c->head_only = h->method == TD_HTTP_HEAD;
  c->body_ms = now_ms(c);
  td_body_pace_begin(&c->pace, 0, c->body_ms, (uint64_t)option(c, TD_LIMIT_HTTP_BODY_GRACE_MS));
  c->client = client_of(c);
  take_request_id(c);
  if (td_router_admit(c, &e, &headers)) {
    c->http.discard_body = h->method != TD_HTTP_POST; /* only POST routes read a body */
    if (h->expect_continue) {
      td_buf_append_str(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
      mark_dirty(c);
    }
    return;
  }
  bool has_body = h->chunked || h->content_length > 0;
  if (!has_body || h->expect_continue || !(c->deferred_error = malloc(sizeof e))) {
    /* After a final answer a client that waits for 100 may send its body or not. We cannot tell what the next
     * bytes are, so the connection ends. */
    if (has_body)
      c->keep_alive = false;
    respond_error(c, &e, headers);
    return;
  }
  /* The client is already sending and may look for the answer only after its body. So the body is dropped
   * first and the error sent then. on_request admits again to get the answer's headers (Allow,
   * WWW-Authenticate). */
  *c->deferred_error = e;
  c->http.discard_body = true;
}

static void on_request(td_conn *c)
{
  td_api_error e;
  const char *headers = NULL;
  if (c->deferred_error) {
    td_api_error now;
    e = *c->deferred_error;
    if (td_router_admit(c, &now, &headers) || now.status != e.status)
      headers = NULL;
    respond_error(c, &e, headers);
    return;
  }
  td_router_dispatch(c);
}

/* Counts newly received bytes of the body; false: the request was refused. The bodies of all connections
 * together have a cap, and each tenant has a share of it. A body that is the only one may fill the cap. */
static bool count_body(td_conn *c)
{
  td_server *s = c->server;
  td_tenant *t = c->tenant;
  uint64_t cap = (uint64_t)option(c, TD_LIMIT_HTTP_BODIES_BYTES),
           more = c->http.body.len_bytes - c->body_counted;
  if (more == 0)
    return true;
  bool fits = s->body_bytes + more <= cap, is_alone = s->body_bytes == c->body_counted;
  if (fits && (is_alone || !t || td_share_allows(cap, s->body_bytes, t->body_bytes, more))) {
    s->body_bytes += more;
    c->body_counted += more;
    if (t)
      t->body_bytes += more;
    return true;
  }
  protocol_error(c, 429, "queue_full",
                 fits ? "your request bodies already take your share of the memory for bodies"
                      : "too many request bodies are being received");
  return false;
}

static void read_ahead(td_conn *c, const char *data, size_t n)
{
  td_buf_append(&c->pending, data, n);
  if (c->pending.failed) {
    td_conn_cut(c, TD_CUT_MEMORY);
    return;
  }
  if (c->pending.len_bytes > td_limit_max(TD_LIMIT_HTTP_AHEAD_BYTES) && c->reading) {
    uv_read_stop(&c->uv.stream);
    c->reading = false;
  }
}

/* Feeds the parser once, and a second time if it has completed a head. *used: bytes consumed. */
static void step(td_conn *c, const char *data, size_t n, size_t *used)
{
  if (!td_http_started(&c->http)) {
    c->request_id[0] = '\0'; /* not earlier: logs name the previous request until its answer is sent */
    c->note = (td_request_note){0};
    c->client = c->peer;                                                  /* until the head says otherwise */
    c->http.max_body_bytes = (size_t)option(c, TD_LIMIT_HTTP_BODY_BYTES); /* a reload may have changed it */
    c->first_byte_ms = now_ms(c);
    c->arrival_us = td_clock_us();
  }
  switch (td_http_feed(&c->http, data, n, used)) {
  case TD_HTTP_MORE: (void)count_body(c); break;
  case TD_HTTP_IS_HEAD:
    on_head(c);
    if (c->state == TD_CONN_READING && td_http_started(&c->http)) {
      size_t more = 0;
      step(c, data + *used, n - *used, &more); /* recurses only once: a request has one head */
      *used += more;
    }
    break;
  case TD_HTTP_IS_DONE:
    if (count_body(c))
      on_request(c);
    break;
  case TD_HTTP_IS_ERROR: malformed(c); break;
  }
}

/* Handles the requests in data. Stops when the peer reads its answers too slowly; the rest is read ahead. */
static void process(td_conn *c, const char *data, size_t n)
{
  c->processing = true;
  while (n > 0 && c->state == TD_CONN_READING && unsent(c) < td_limit_max(TD_LIMIT_HTTP_AHEAD_BYTES)) {
    size_t used = 0;
    step(c, data, n, &used);
    data += used;
    n -= used;
  }
  c->processing = false;
  if (n > 0 && (c->state == TD_CONN_READING || c->state == TD_CONN_ANSWERING))
    read_ahead(c, data, n);
}

static void on_alloc(uv_handle_t *h, size_t hint, uv_buf_t *b)
{
  td_conn *c = h->data;
  *b = uv_buf_init(c->server->read_buffer, TD_READ_BUFFER_BYTES);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *b)
{
  td_conn *c = stream->data;
  if (n < 0)
    td_conn_close(c);
  else if (n > 0 && (c->state == TD_CONN_ANSWERING || c->pending.len_bytes > 0))
    read_ahead(c, b->base, (size_t)n);
  else if (n > 0 && c->state == TD_CONN_READING)
    process(c, b->base, (size_t)n);
}

static void start_reading(td_conn *c)
{
  if (c->reading || c->state == TD_CONN_CLOSING)
    return;
  c->reading = true;
  if (uv_read_start(&c->uv.stream, on_alloc, on_read) != 0)
    td_conn_close(c);
}

/* Handles input that was read ahead, and starts reading again. */
static void resume(td_conn *c)
{
  if (c->processing || c->state == TD_CONN_CLOSING || c->state == TD_CONN_ANSWERING)
    return;
  if (c->pending.len_bytes > 0 && c->state == TD_CONN_READING &&
      unsent(c) < td_limit_max(TD_LIMIT_HTTP_AHEAD_BYTES)) {
    td_buf ahead = c->pending;
    td_buf_init(&c->pending, 0);
    process(c, ahead.data, ahead.len_bytes);
    td_buf_deinit(&ahead);
  }
  if (c->pending.len_bytes <= td_limit_max(TD_LIMIT_HTTP_AHEAD_BYTES) || c->state == TD_CONN_LINGERING)
    start_reading(c);
}

void td_conn_start(td_conn *c)
{
  c->uv.handle.data = c;
  c->state = TD_CONN_READING;
  c->since_ms = c->progress_ms = now_ms(c);
  td_http_init(&c->http, 0);
  td_buf_init(&c->pending, 0);
  td_buf_init(&c->out, 0);
  td_answer_memory_add_conn(c);
  start_reading(c);
}

/* ---- deadlines ---- */

static void too_slow(td_conn *c, td_cut why, const char *text)
{
  note_cut(c, why);
  protocol_error(c, 408, "request_timeout", text);
}

static void sweep_body(td_conn *c, uint64_t now, bool waits_for_peer)
{
  uint64_t window_ms = (uint64_t)option(c, TD_LIMIT_HTTP_BODY_GRACE_MS), n = c->http.body_bytes;
  if (now - c->body_ms > (uint64_t)option(c, TD_LIMIT_HTTP_BODY_TIMEOUT_MS))
    too_slow(c, TD_CUT_BODY_TIMEOUT, "the request body took too long");
  else if (waits_for_peer) /* we are not reading the body meanwhile */
    td_body_pace_begin(&c->pace, n, now, window_ms);
  else if (td_body_pace_is_slow(&c->pace, n, now, window_ms,
                                (uint64_t)option(c, TD_LIMIT_HTTP_BODY_MIN_RATE)))
    too_slow(c, TD_CUT_BODY_RATE, "the request body came too slowly");
}

static void sweep_reading(td_conn *c, uint64_t now)
{
  uint64_t header_ms = (uint64_t)option(c, TD_LIMIT_HTTP_HEADER_TIMEOUT_MS);
  bool waits_for_peer = c->pending.len_bytes > 0 || unsent(c) > 0; /* to read: sse_stall_ms applies instead */
  if (td_http_started(&c->http) && c->http.head.method_name != NULL) {
    sweep_body(c, now, waits_for_peer);
  } else if (waits_for_peer) {
    return;
  } else if (td_http_started(&c->http)) {
    if (now - c->first_byte_ms > header_ms)
      too_slow(c, TD_CUT_HEAD_TIMEOUT, "the request head took too long");
  } else {
    uint64_t idle_ms = c->arrival_us == 0 ? header_ms : (uint64_t)option(c, TD_LIMIT_HTTP_IDLE_TIMEOUT_MS);
    if (now - c->since_ms > idle_ms)
      td_conn_close(c);
  }
}

/* A connection that has just been opened, or has just got an answer, may have a request on the wire. */
void td_conn_hand_over(td_conn *c, uint64_t now)
{
  uint64_t may_come_ms = c->arrival_us == 0 ? HAND_OVER_FIRST_MS : HAND_OVER_NEXT_MS;
  if (c->state == TD_CONN_READING && !td_http_started(&c->http) && c->pending.len_bytes == 0 &&
      unsent(c) == 0 && now - c->since_ms >= may_come_ms)
    td_conn_close(c);
}

void td_conn_sweep(td_conn *c, uint64_t now)
{
  size_t n = c->uv.stream.write_queue_size;
  if (n == 0 || n != c->unsent_bytes)
    c->progress_ms = now;
  c->unsent_bytes = n;
  if (n > 0 && now - c->progress_ms > (uint64_t)option(c, TD_LIMIT_SSE_STALL_MS)) {
    td_conn_cut(c, TD_CUT_STALL);
    return;
  }
  switch (c->state) {
  case TD_CONN_READING: sweep_reading(c, now); break;
  case TD_CONN_ANSWERING:
    if (c->in_stream && n == 0 && now - c->sent_ms >= (uint64_t)option(c, TD_LIMIT_SSE_PING_MS))
      td_conn_stream_send(c, ": ping\n\n", 8);
    break;
  case TD_CONN_LINGERING:
    if (n == 0 && now - c->since_ms > td_limit_max(TD_LIMIT_HTTP_LINGER_MS))
      td_conn_close(c);
    break;
  case TD_CONN_CLOSING: break;
  }
}
