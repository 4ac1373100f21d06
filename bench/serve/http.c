/* See http.h. */
#include "bench/serve/http.h"

#include <llhttp.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loadgen/tool.h"

enum { READ_BYTES = 1 << 18 };

typedef struct conn conn;

/* A request's bytes. The exchange holds them, because it may have to send them again, and so does the write
 * under way. */
typedef struct message {
  int n_holders;
  td_buf head, body;
} message;

typedef struct write_job {
  uv_write_t write;
  conn *c;
  message *m;
} write_job;

struct td_exchange {
  conn *c;
  td_http_handlers on;
  void *arg;
  message *m;
};

struct conn {
  uv_tcp_t tcp;
  uv_connect_t connect;
  llhttp_t parser;
  td_http_client *h;
  td_exchange *ex;   /* NULL: the connection is idle */
  conn *prev, *next; /* in h->all */
  conn *next_idle;
  bool reused, answered, complete, keep, idle, closing;
};

struct td_http_client {
  uv_loop_t *loop;
  struct sockaddr_storage address;
  llhttp_settings_t settings;
  char host[300], prefix[256];
  char *headers;
  conn *all, *idle;
  td_http_counts counts;
  char *read_buffer;
  double read_s;
};

static void open_connection(td_http_client *h, td_exchange *ex);

/* ---- the connection's life ---- */

static void on_closed(uv_handle_t *handle)
{
  conn *c = handle->data;
  td_http_client *h = c->h;
  if (c->prev)
    c->prev->next = c->next;
  else
    h->all = c->next;
  if (c->next)
    c->next->prev = c->prev;
  free(c);
}

static void close_connection(conn *c)
{
  if (c->closing)
    return;
  c->closing = true;
  if (c->idle)
    for (conn **p = &c->h->idle; *p; p = &(*p)->next_idle)
      if (*p == c) {
        *p = c->next_idle;
        break;
      }
  c->idle = false;
  uv_close((uv_handle_t *)&c->tcp, on_closed);
}

static void message_drop(message *m)
{
  if (--m->n_holders > 0)
    return;
  td_buf_deinit(&m->head);
  td_buf_deinit(&m->body);
  free(m);
}

static void exchange_free(td_exchange *ex)
{
  message_drop(ex->m);
  free(ex);
}

/* Ends an exchange. Its handler may immediately send the next one. */
static void end_exchange(conn *c, td_http_end why, const char *detail)
{
  td_exchange *ex = c->ex;
  c->ex = NULL;
  ex->c = NULL;
  ex->on.end(ex->arg, why, detail);
  exchange_free(ex);
}

static void fail(conn *c, td_http_end why, const char *detail)
{
  td_exchange *ex = c->ex;
  td_http_client *h = c->h;
  bool stale = c->reused && !c->answered && why == TD_HTTP_CUT;
  close_connection(c);
  if (!ex)
    return;
  if (stale) {
    h->counts.n_retried++;
    c->ex = NULL;
    open_connection(h, ex);
  } else {
    end_exchange(c, why, detail);
  }
}

/* ---- bytes in ---- */

static int on_status_line(llhttp_t *p)
{
  conn *c = p->data;
  c->answered = true;
  if (c->ex && c->ex->on.status)
    c->ex->on.status(c->ex->arg, llhttp_get_status_code(p));
  return 0;
}

static int on_body(llhttp_t *p, const char *at, size_t n)
{
  conn *c = p->data;
  if (c->ex)
    c->ex->on.bytes(c->ex->arg, at, n);
  return 0;
}

static int on_message_complete(llhttp_t *p)
{
  conn *c = p->data;
  c->complete = true;
  c->keep = llhttp_should_keep_alive(p);
  return HPE_PAUSED; /* bytes after an answer must not be parsed as part of it */
}

static void make_idle(conn *c)
{
  llhttp_init(&c->parser, HTTP_RESPONSE, &c->h->settings);
  c->parser.data = c;
  c->complete = false;
  c->idle = true;
  c->next_idle = c->h->idle;
  c->h->idle = c;
}

static void finish(conn *c)
{
  td_exchange *ex = c->ex;
  c->ex = NULL;
  ex->c = NULL;
  if (c->keep)
    make_idle(c);
  else
    close_connection(c);
  ex->on.end(ex->arg, TD_HTTP_OK, NULL);
  exchange_free(ex);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
  conn *c = stream->data;
  if (n == 0 || c->closing)
    return;
  if (!c->ex) { /* a server may close an idle connection, but not send on it */
    close_connection(c);
    return;
  }
  if (n < 0) {
    if (n == UV_EOF && c->answered && llhttp_finish(&c->parser) == HPE_PAUSED && c->complete) {
      c->keep = false;
      finish(c);
    } else {
      fail(c, TD_HTTP_CUT, n == UV_EOF ? "closed by the server" : uv_strerror((int)n));
    }
    return;
  }
  c->h->read_s = td_tool_now_s();
  c->h->counts.bytes_in += (uint64_t)n;
  c->h->counts.n_reads++;
  llhttp_errno_t e = llhttp_execute(&c->parser, buf->base, (size_t)n);
  if (c->closing) /* a handler aborted the exchange */
    return;
  if (c->complete)
    finish(c);
  else if (e != HPE_OK)
    fail(c, TD_HTTP_BROKEN, llhttp_errno_name(e));
}

static void on_alloc(uv_handle_t *handle, size_t hint, uv_buf_t *out)
{
  conn *c = handle->data;
  /* shared by all connections: the bytes are used before the next read */
  *out = uv_buf_init(c->h->read_buffer, READ_BYTES);
}

/* ---- bytes out ---- */

static void on_written(uv_write_t *w, int status)
{
  write_job *job = (write_job *)w;
  conn *c = job->c;
  message_drop(job->m);
  free(job);
  if (status < 0 && status != UV_ECANCELED && !c->closing)
    fail(c, TD_HTTP_CUT, uv_strerror(status));
}

static void send_on(conn *c, td_exchange *ex)
{
  message *m = ex->m;
  uv_buf_t bufs[] = {uv_buf_init(m->head.data, (unsigned)m->head.len_bytes),
                     uv_buf_init(m->body.data, (unsigned)m->body.len_bytes)};
  write_job *job = td_tool_alloc(1, sizeof *job);
  *job = (write_job){.c = c, .m = m};
  m->n_holders++;
  c->ex = ex;
  ex->c = c;
  c->answered = false;
  c->h->counts.bytes_out += m->head.len_bytes + m->body.len_bytes;
  int e = uv_write(&job->write, (uv_stream_t *)&c->tcp, bufs, m->body.len_bytes > 0 ? 2 : 1, on_written);
  if (e < 0) {
    message_drop(m);
    free(job);
    fail(c, TD_HTTP_CUT, uv_strerror(e));
  }
}

static void on_connected(uv_connect_t *r, int status)
{
  conn *c = r->data;
  if (status == UV_ECANCELED || c->closing)
    return;
  if (status >= 0)
    status = uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
  if (status < 0)
    fail(c, TD_HTTP_NO_CONNECTION, uv_strerror(status));
  else
    send_on(c, c->ex);
}

static void open_connection(td_http_client *h, td_exchange *ex)
{
  conn *c = td_tool_alloc(1, sizeof *c);
  c->h = h;
  c->ex = ex;
  ex->c = c;
  c->next = h->all;
  if (h->all)
    h->all->prev = c;
  h->all = c;
  h->counts.n_opened++;
  llhttp_init(&c->parser, HTTP_RESPONSE, &h->settings);
  c->parser.data = c->tcp.data = c->connect.data = c;
  int e = uv_tcp_init(h->loop, &c->tcp);
  TD_BUG_ON(e < 0);
  c->tcp.data = c;
  uv_tcp_nodelay(&c->tcp, 1);
  e = uv_tcp_connect(&c->connect, &c->tcp, (const struct sockaddr *)&h->address, on_connected);
  if (e < 0)
    fail(c, TD_HTTP_NO_CONNECTION, uv_strerror(e));
}

static message *compose(td_http_client *h, const char *path, td_buf *body)
{
  message *m = td_tool_alloc(1, sizeof *m);
  m->n_holders = 1;
  td_buf_init(&m->head, 0);
  td_buf_init(&m->body, 0);
  td_buf_printf(&m->head, "%s %s%s HTTP/1.1\r\nHost: %s\r\nAccept: */*\r\nUser-Agent: tandem-bench\r\n%s",
                body ? "POST" : "GET", h->prefix, path, h->host, h->headers);
  if (body)
    td_buf_printf(&m->head, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body->len_bytes);
  td_buf_append_str(&m->head, "\r\n");
  if (body) {
    m->body = *body;
    td_buf_init(body, 0);
  }
  if (m->head.failed || m->body.failed)
    td_tool_die("no memory for a request");
  return m;
}

td_exchange *td_http_send(td_http_client *h, const char *path, td_buf *body, const td_http_handlers *handlers,
                          void *arg)
{
  td_exchange *ex = td_tool_alloc(1, sizeof *ex);
  *ex = (td_exchange){.on = *handlers, .arg = arg, .m = compose(h, path, body)};
  conn *c = h->idle;
  if (c) {
    h->idle = c->next_idle;
    c->idle = false;
    c->reused = true;
    h->counts.n_reused++;
    send_on(c, ex);
  } else {
    open_connection(h, ex);
  }
  return ex;
}

void td_http_abort(td_exchange *ex)
{
  conn *c = ex->c;
  c->ex = NULL;
  close_connection(c);
  exchange_free(ex);
}

double td_http_read_s(const td_http_client *h) { return h->read_s; }

const td_http_counts *td_http_get_counts(const td_http_client *h) { return &h->counts; }

/* ---- the server's address ---- */

static td_status read_url(td_http_client *h, const char *url, char *name, size_t name_size, char *port,
                          size_t port_size, td_error *err)
{
  if (strncmp(url, "https://", 8) == 0)
    return td_fail(err, TD_ERR_CONFIG,
                   "%s: https is not spoken here; measure the server itself, or put a proxy before it", url);
  const char *at = strncmp(url, "http://", 7) == 0 ? url + 7 : url;
  size_t n = strcspn(at, "/"), n_name = n;
  const char *slash = at + n;
  const char *colon = memrchr(at, ':', n), *bracket = memrchr(at, ']', n);
  snprintf(port, port_size, "80");
  if (colon && (!bracket || colon > bracket)) {
    n_name = (size_t)(colon - at);
    snprintf(port, port_size, "%.*s", (int)(n - n_name - 1), colon + 1);
  }
  snprintf(h->host, sizeof h->host, "%.*s", (int)n, at);
  if (n_name >= 2 && at[0] == '[' && at[n_name - 1] == ']') {
    at++;
    n_name -= 2;
  }
  snprintf(name, name_size, "%.*s", (int)n_name, at);
  if (!*name || strspn(port, "0123456789") != strlen(port) || !*port)
    return td_fail(err, TD_ERR_CONFIG, "'%s' is not of the form http://HOST:PORT", url);
  snprintf(h->prefix, sizeof h->prefix, "%s", slash);
  size_t len = strlen(h->prefix);
  while (len > 0 && h->prefix[len - 1] == '/')
    h->prefix[--len] = '\0';
  if (len >= 3 && strcmp(h->prefix + len - 3, "/v1") == 0)
    h->prefix[len - 3] = '\0';
  return TD_OK;
}

static td_status resolve(td_http_client *h, const char *name, const char *port, td_error *err)
{
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found;
  int e = getaddrinfo(name, port, &hints, &found);
  if (e != 0)
    return td_fail(err, TD_ERR_CONFIG, "%s: %s", name, gai_strerror(e));
  memcpy(&h->address, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return TD_OK;
}

td_status td_http_create(uv_loop_t *loop, const char *url, const char *headers, td_http_client **out,
                         td_error *err)
{
  char name[256], port[16];
  td_http_client *h = td_tool_alloc(1, sizeof *h);
  h->loop = loop;
  h->headers = strdup(headers);
  h->read_buffer = malloc(READ_BYTES);
  td_status st = h->headers && h->read_buffer ? read_url(h, url, name, sizeof name, port, sizeof port, err)
                                              : td_fail(err, TD_ERR_NOMEM, "no memory");
  if (st == TD_OK)
    st = resolve(h, name, port, err);
  llhttp_settings_init(&h->settings);
  h->settings.on_headers_complete = on_status_line;
  h->settings.on_body = on_body;
  h->settings.on_message_complete = on_message_complete;
  *out = h;
  if (st != TD_OK) {
    td_http_destroy(h);
    *out = NULL;
  }
  return st;
}

void td_http_destroy(td_http_client *h)
{
  for (conn *c = h->all; c; c = c->next) {
    if (c->ex)
      exchange_free(c->ex);
    c->ex = NULL;
    close_connection(c);
  }
  while (h->all)
    uv_run(h->loop, UV_RUN_ONCE);
  free(h->headers);
  free(h->read_buffer);
  free(h);
}
