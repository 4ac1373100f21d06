/* Listening sockets: see listener.h.
 *
 * Out of descriptors: server.c sizes max_conns to RLIMIT_NOFILE so that this does not happen by connections; if it does,
 * libuv closes the waiting connections with its spare descriptor, and serving goes on. */
#include "server/listener.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/conn.h"
#include "server/notify.h"

enum { SOCKETS_MAX = 16 };

typedef union socket_handle {
  uv_handle_t handle;
  uv_stream_t stream;
  uv_tcp_t tcp;
  uv_pipe_t pipe;
} socket_handle;

struct td_listener {
  td_server *server;
  bool inherited;
  int n, n_open;
  uint64_t last_complaint_ms;
  socket_handle sockets[SOCKETS_MAX];
};

td_status td_listen_parse(const char *spec, char host[256], char port[8], bool *is_unix, td_error *err)
{
  *is_unix = strncmp(spec, "unix:", 5) == 0;
  if (*is_unix) {
    if (spec[5] == '\0' || strlen(spec + 5) >= sizeof((struct sockaddr_un *)0)->sun_path)
      return td_fail_param(err, TD_ERR_CONFIG, "listen", "listen: '%s': the path must have 1 to %zu bytes", spec,
                           sizeof((struct sockaddr_un *)0)->sun_path - 1);
    snprintf(host, 256, "%s", spec + 5);
    port[0] = '\0';
    return TD_OK;
  }
  const char *colon = strrchr(spec, ':'), *h = spec;
  size_t n = colon ? (size_t)(colon - spec) : 0;
  bool v6 = n >= 2 && spec[0] == '[' && spec[n - 1] == ']';
  if (v6) {
    h++;
    n -= 2;
  }
  if (!colon || n == 0 || n >= 256 || (!v6 && memchr(h, ':', n)))
    return td_fail_param(err, TD_ERR_CONFIG, "listen", "listen: '%s' is not HOST:PORT, [IPv6]:PORT or unix:PATH",
                         spec);
  size_t digits = strspn(colon + 1, "0123456789");
  if (digits == 0 || digits > 5 || colon[1 + digits] != '\0' || atoi(colon + 1) > 65535)
    return td_fail_param(err, TD_ERR_CONFIG, "listen", "listen: '%s': the port must be 0 to 65535", spec);
  memcpy(host, h, n);
  host[n] = '\0';
  snprintf(port, 8, "%s", colon + 1);
  return TD_OK;
}

/* ---- accepting ---- */

static uint32_t hash_ip(const unsigned char *ip, size_t n)
{
  uint32_t h = 2166136261u;
  for (size_t i = 0; i < n; i++)
    h = (h ^ ip[i]) * 16777619u;
  return (h ^ h >> 15) % TD_IP_BUCKETS;
}

/* The peer's IPv4 address, or the /64 that its owner has in IPv6. */
static bool peer_ip(td_conn *c)
{
  struct sockaddr_storage a;
  int len = sizeof a;
  if (c->uv.handle.type != UV_TCP || uv_tcp_getpeername(&c->uv.tcp, (struct sockaddr *)&a, &len) != 0)
    return false;
  const struct sockaddr_in6 *a6 = (struct sockaddr_in6 *)&a;
  if (a.ss_family == AF_INET)
    memcpy(c->ip, &((struct sockaddr_in *)&a)->sin_addr, 4);
  else if (IN6_IS_ADDR_V4MAPPED(&a6->sin6_addr))
    memcpy(c->ip, &a6->sin6_addr.s6_addr[12], 4);
  else
    memcpy(c->ip, &a6->sin6_addr, 8);
  return true;
}

/* Enters c in the lists; false if there is no room for it. */
static bool admit(td_conn *c)
{
  td_server *s = c->server;
  if (s->n_conns >= s->max_conns)
    return false;
  if (peer_ip(c)) {
    uint32_t same = 0;
    c->ip_bucket = hash_ip(c->ip, sizeof c->ip);
    for (td_conn *o = s->ip_buckets[c->ip_bucket]; o; o = o->ip_next)
      same += memcmp(o->ip, c->ip, sizeof c->ip) == 0;
    if (same >= (uint32_t)td_option(s->options, TD_LIMIT_CONNECTIONS_PER_IP))
      return false;
    c->has_ip = true;
    c->ip_next = s->ip_buckets[c->ip_bucket];
    if (c->ip_next)
      c->ip_next->ip_prev = c;
    s->ip_buckets[c->ip_bucket] = c;
  }
  c->next = s->conns;
  if (c->next)
    c->next->prev = c;
  s->conns = c;
  s->n_conns++;
  return true;
}

static void on_refused_closed(uv_handle_t *h) { free(h->data); }

static void refuse(td_conn *c)
{
  static const char text[] = "HTTP/1.1 503 Service Unavailable\r\nserver: tandem\r\nretry-after: 1\r\n"
                             "connection: close\r\ncontent-length: 0\r\n\r\n";
  uv_buf_t b = uv_buf_init((char *)text, sizeof text - 1);
  (void)uv_try_write(&c->uv.stream, &b, 1);
  c->server->metrics.connections_refused++;
  uv_close(&c->uv.handle, on_refused_closed);
}

static void complain(td_listener *l, const char *what)
{
  uint64_t now = uv_now(&l->server->loop);
  if (l->last_complaint_ms && now - l->last_complaint_ms < 1000)
    return;
  l->last_complaint_ms = now;
  td_warn("accepting connections: %s", what);
}

static void on_connection(uv_stream_t *stream, int status)
{
  td_listener *l = stream->data;
  if (status < 0) {
    complain(l, uv_strerror(status));
    return;
  }
  td_conn *c = calloc(1, sizeof *c);
  if (!c) {
    complain(l, "no memory");
    return; /* it stays in the backlog; libuv asks again when another is accepted */
  }
  c->server = l->server;
  int rc = stream->type == UV_TCP ? uv_tcp_init(&l->server->loop, &c->uv.tcp)
                                  : uv_pipe_init(&l->server->loop, &c->uv.pipe, 0);
  if (rc != 0) {
    free(c);
    complain(l, uv_strerror(rc));
    return;
  }
  c->uv.handle.data = c;
  if (uv_accept(stream, &c->uv.stream) != 0) {
    uv_close(&c->uv.handle, on_refused_closed);
    return;
  }
  if (!admit(c)) {
    refuse(c);
    return;
  }
  if (stream->type == UV_TCP)
    uv_tcp_nodelay(&c->uv.tcp, 1);
  /* What the kernel holds for a client that does not read counts too; left alone it takes megabytes. */
  int send_bytes = (int)td_option(l->server->options, TD_LIMIT_SSE_QUEUE_BYTES);
  uv_send_buffer_size(&c->uv.handle, &send_bytes);
  td_conn_start(c);
}

/* ---- opening ---- */

static td_status listen_on(td_listener *l, socket_handle *h, const char *name, td_error *err)
{
  int rc = uv_listen(&h->stream, (int)td_option(l->server->options, TD_LIMIT_LISTEN_BACKLOG), on_connection);
  if (rc != 0)
    return td_fail_param(err, TD_ERR_IO, "listen", "cannot listen on %s: %s", name, uv_strerror(rc));
  return TD_OK;
}

static socket_handle *add_socket(td_listener *l, bool tcp)
{
  socket_handle *h = &l->sockets[l->n];
  int rc = tcp ? uv_tcp_init(&l->server->loop, &h->tcp) : uv_pipe_init(&l->server->loop, &h->pipe, 0);
  if (rc != 0)
    return NULL;
  h->handle.data = l;
  l->n++;
  l->n_open++;
  return h;
}

static void say_listening(const socket_handle *h)
{
  struct sockaddr_storage a;
  int len = sizeof a;
  char ip[64];
  if (uv_tcp_getsockname(&h->tcp, (struct sockaddr *)&a, &len) != 0)
    return;
  bool v6 = a.ss_family == AF_INET6;
  if (v6)
    uv_ip6_name((struct sockaddr_in6 *)&a, ip, sizeof ip);
  else
    uv_ip4_name((struct sockaddr_in *)&a, ip, sizeof ip);
  td_info("listening on http://%s%s%s:%u", v6 ? "[" : "", ip, v6 ? "]" : "",
          ntohs(v6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port));
}

static td_status open_tcp(td_listener *l, const char *host, const char *port, const char *spec, td_error *err)
{
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *all;
  int rc = getaddrinfo(host, port, &hints, &all);
  if (rc != 0)
    return td_fail_param(err, TD_ERR_IO, "listen", "cannot listen on %s: %s", spec, gai_strerror(rc));
  td_status st = TD_OK;
  for (struct addrinfo *a = all; a && st == TD_OK && l->n < SOCKETS_MAX; a = a->ai_next) {
    socket_handle *h = add_socket(l, true);
    bool v6_only = a->ai_family == AF_INET6 && all->ai_next;
    rc = h ? uv_tcp_bind(&h->tcp, a->ai_addr, v6_only ? UV_TCP_IPV6ONLY : 0) : UV_ENOMEM;
    if (rc != 0)
      st = td_fail_param(err, TD_ERR_IO, "listen", "cannot listen on %s: %s", spec, uv_strerror(rc));
    else
      st = listen_on(l, h, spec, err);
    if (st == TD_OK)
      say_listening(h);
  }
  freeaddrinfo(all);
  return st;
}

/* A socket file that nobody listens on is left over from a process that was killed. */
static void remove_stale(const char *path)
{
  struct sockaddr_un a = {.sun_family = AF_UNIX};
  memcpy(a.sun_path, path, strnlen(path, sizeof a.sun_path - 1));
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return;
  if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0 && errno == ECONNREFUSED)
    unlink(path);
  close(fd);
}

static td_status open_unix(td_listener *l, const char *path, const char *spec, td_error *err)
{
  remove_stale(path);
  socket_handle *h = add_socket(l, false);
  int rc = h ? uv_pipe_bind(&h->pipe, path) : UV_ENOMEM;
  if (rc != 0)
    return td_fail_param(err, TD_ERR_IO, "listen", "cannot listen on %s: %s", spec, uv_strerror(rc));
  TD_TRY(listen_on(l, h, spec, err));
  td_info("listening on %s", spec);
  return TD_OK;
}

static td_status open_inherited(td_listener *l, int first, int n, td_error *err)
{
  l->inherited = true;
  for (int fd = first; fd < first + n && l->n < SOCKETS_MAX; fd++) {
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    bool tcp = getsockname(fd, (struct sockaddr *)&a, &len) == 0 && a.ss_family != AF_UNIX;
    socket_handle *h = add_socket(l, tcp);
    int rc = !h ? UV_ENOMEM : tcp ? uv_tcp_open(&h->tcp, fd) : uv_pipe_open(&h->pipe, fd);
    if (rc != 0)
      return td_fail_param(err, TD_ERR_IO, "listen", "socket %d from systemd: %s", fd, uv_strerror(rc));
    TD_TRY(listen_on(l, h, "a socket from systemd", err));
    if (tcp)
      say_listening(h);
    else
      td_info("listening on a unix socket from systemd");
  }
  return TD_OK;
}

td_status td_listener_open(td_server *s, const char *spec, td_listener **out, td_error *err)
{
  char host[256], port[8];
  bool is_unix;
  int first, n = td_notify_listen_fds(&first);
  td_listener *l = calloc(1, sizeof *l);
  *out = l; /* also on failure: what is open must be closed */
  if (!l)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the listener");
  l->server = s;
  if (n > 0)
    return open_inherited(l, first, n, err);
  TD_TRY(td_listen_parse(spec, host, port, &is_unix, err));
  return is_unix ? open_unix(l, host, spec, err) : open_tcp(l, host, port, spec, err);
}

bool td_listener_is_inherited(const td_listener *l) { return l && l->inherited; }

static void on_socket_closed(uv_handle_t *h)
{
  td_listener *l = h->data;
  if (--l->n_open == 0)
    free(l);
}

void td_listener_close(td_listener *l)
{
  if (!l)
    return;
  if (l->n == 0)
    free(l);
  else
    for (int i = 0, n = l->n; i < n; i++)
      uv_close(&l->sockets[i].handle, on_socket_closed);
}
