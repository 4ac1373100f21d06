/* Listening sockets: see listener.h.
 *
 * We call accept ourselves, for two reasons. uv_listen starts accepting immediately, but an inherited socket
 * must wait until the model is loaded. And uv_listen stops polling a socket for good if one connection is not
 * taken. When accepting fails here, clients wait in the backlog and we try again every RETRY_MS. */
#include "server/listener.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/conn.h"
#include "server/notify.h"

/* ACCEPTS_AT_ONCE: the most connections accepted in one turn of the loop. */
enum { ACCEPTS_AT_ONCE = 64, RETRY_MS = 100 };

typedef struct listening {
  td_listener *listener;
  int fd;
  bool is_unix;
  char path[sizeof((struct sockaddr_un *)0)->sun_path]; /* socket file to remove at the end; "": none */
  struct stat made;                                     /* of that file when we bound it */
  uint64_t blocked_ms; /* time of the first failed accept since one succeeded; 0: none */
  uv_poll_t poll;
} listening;

struct td_listener {
  td_server *server;
  bool inherited;
  int n, n_handles; /* uv handles that must close before the listener is freed */
  td_conn *spare;   /* allocated before a connection is accepted */
  td_log_gate failures, refusals;
  uv_timer_t retry;
  listening sockets[TD_LISTEN_SOCKETS_MAX];
};

td_status td_listen_parse(const char *spec, char host[256], char port[8], bool *is_unix, td_error *err)
{
  *is_unix = strncmp(spec, "unix:", 5) == 0;
  if (*is_unix) {
    if (spec[5] == '\0' || strlen(spec + 5) >= sizeof((struct sockaddr_un *)0)->sun_path)
      return td_fail_param(err, TD_ERR_CONFIG, "listen", "listen: '%s': the path must have 1 to %zu bytes",
                           spec, sizeof((struct sockaddr_un *)0)->sun_path - 1);
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
    return td_fail_param(err, TD_ERR_CONFIG, "listen",
                         "listen: '%s' is not HOST:PORT, [IPv6]:PORT or unix:PATH", spec);
  size_t digits = strspn(colon + 1, "0123456789");
  if (digits == 0 || digits > 5 || colon[1 + digits] != '\0' || atoi(colon + 1) > 65535)
    return td_fail_param(err, TD_ERR_CONFIG, "listen", "listen: '%s': the port must be 0 to 65535", spec);
  memcpy(host, h, n);
  host[n] = '\0';
  snprintf(port, 8, "%s", colon + 1);
  return TD_OK;
}

/* ---- refusing ---- */

/* Refuses a connection without a td_conn of its own, because it must work when there is no room for one. */
static void refuse(td_listener *l, int fd, const td_api_error *e)
{
  char unread[4096];
  td_buf body, out;
  td_buf_init(&body, 0);
  td_buf_init(&out, 0);
  td_api_error_render(e, &body);
  td_buf_printf(&out,
                "HTTP/1.1 %d %s\r\nserver: tandem\r\ncontent-type: application/json\r\nretry-after: %d\r\n"
                "connection: close\r\ncontent-length: %zu\r\n\r\n",
                e->status, td_http_reason(e->status), e->retry_after_s, body.len_bytes);
  td_buf_append(&out, body.data ? body.data : "", body.len_bytes);
  if (!body.failed && !out.failed)
    (void)send(fd, out.data, out.len_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  td_buf_deinit(&body);
  td_buf_deinit(&out);
  shutdown(fd, SHUT_WR);
  for (int i = 0; i < 16 && recv(fd, unread, sizeof unread, MSG_DONTWAIT) > 0; i++)
    ; /* closing with unread bytes resets the connection, which may destroy the answer */
  close(fd);
  l->server->metrics.connections_refused++;
}

static uint32_t allowed_per_address(const td_server *s)
{
  uint32_t set = (uint32_t)td_option(s->options, TD_LIMIT_CONNECTIONS_PER_IP);
  return set > 0 ? set : (s->max_conns + 1) / 2;
}

static uint32_t open_of_owner(const td_conn *c)
{
  uint32_t n = 0;
  for (const td_conn *o = c->server->ip_buckets[c->peer.bucket]; o; o = o->ip_next)
    n += memcmp(&o->peer.ip, &c->peer.ip, sizeof c->peer.ip) == 0;
  return n;
}

/* Whether there is room for c, which is in no list yet. On false, *e says why. */
static bool has_room(td_listener *l, const td_conn *c, td_api_error *e)
{
  td_server *s = l->server;
  uint32_t max = allowed_per_address(s);
  char who[TD_ADDRESS_TEXT_BYTES], more[TD_LOG_GATE_BYTES];
  td_conn_peer(c, who);
  if (s->n_conns >= s->max_conns)
    td_api_error_set(e, 503, "too_many_connections", NULL,
                     "%u connections are open, and no more are taken (connections)", s->n_conns);
  else if (c->peer.has_ip && !td_conn_is_proxy(c) && open_of_owner(c) >= max)
    td_api_error_set(
        e, 503, "too_many_connections", NULL,
        "%u connections are open from this address, and no more are taken from one (connections_per_ip)",
        max);
  else
    return true;
  e->retry_after_s = 1;
  if (td_log_gate_pass(&l->refusals, uv_now(&s->loop), 1, more))
    td_warn("refused a connection from %s: %s%s", who, e->message, more);
  return false;
}

/* ---- accepting ---- */

typedef enum accepted { ACCEPTED_ONE, ACCEPTED_NONE, ACCEPT_FAILED } accepted;

static void complain(td_listener *l, const char *what)
{
  char more[TD_LOG_GATE_BYTES];
  if (td_log_gate_pass(&l->failures, uv_now(&l->server->loop), 1, more))
    td_warn("accepting connections: %s%s", what, more);
}

static void enter(td_conn *c)
{
  td_server *s = c->server;
  if (c->peer.has_ip) {
    c->ip_next = s->ip_buckets[c->peer.bucket];
    if (c->ip_next)
      c->ip_next->ip_prev = c;
    s->ip_buckets[c->peer.bucket] = c;
  }
  c->next = s->conns;
  if (c->next)
    c->next->prev = c;
  s->conns = c;
  s->n_conns++;
}

static void on_unused_closed(uv_handle_t *h) { free(h->data); }

/* Gives fd to c and starts it. On failure both are closed and freed. */
static void adopt(td_listener *l, td_conn *c, int fd, bool is_unix)
{
  td_server *s = l->server;
  int rc = is_unix ? uv_pipe_init(&s->loop, &c->uv.pipe, 0) : uv_tcp_init(&s->loop, &c->uv.tcp);
  bool has_handle = rc == 0;
  if (rc == 0)
    rc = is_unix ? uv_pipe_open(&c->uv.pipe, fd) : uv_tcp_open(&c->uv.tcp, fd);
  c->uv.handle.data = c;
  if (rc != 0) {
    complain(l, uv_strerror(rc));
    close(fd);
    if (has_handle)
      uv_close(&c->uv.handle, on_unused_closed);
    else
      free(c);
    return;
  }
  if (!is_unix)
    uv_tcp_nodelay(&c->uv.tcp, 1);
  /* Without this bound the kernel would buffer megabytes for a client that does not read. */
  int send_bytes = (int)td_option(s->options, TD_LIMIT_SSE_QUEUE_BYTES);
  uv_send_buffer_size(&c->uv.handle, &send_bytes);
  enter(c);
  td_conn_start(c);
}

static accepted accept_error(td_listener *l, int e)
{
  switch (e) {
  case EAGAIN: return ACCEPTED_NONE;
  case EINTR: /* these errors concern one connection only, which is gone (accept(2)) */
  case ECONNABORTED:
  case EPERM:
  case EPROTO:
  case ENETDOWN:
  case ENOPROTOOPT:
  case EHOSTDOWN:
  case ENONET:
  case EHOSTUNREACH:
  case EOPNOTSUPP:
  case ENETUNREACH: return ACCEPTED_ONE;
  default: complain(l, strerror(e)); return ACCEPT_FAILED;
  }
}

static accepted accept_one(td_listener *l, const listening *k)
{
  struct sockaddr_storage from = {0};
  socklen_t n = sizeof from;
  td_api_error e;
  if (!l->spare && !(l->spare = calloc(1, sizeof *l->spare))) {
    complain(l, "no memory");
    return ACCEPT_FAILED;
  }
  int fd = accept4(k->fd, (struct sockaddr *)&from, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0)
    return accept_error(l, errno);
  td_conn *c = l->spare;
  c->server = l->server;
  bool has_ip = td_address_of(&from, &c->address);
  c->peer = has_ip ? td_client_of(c->address) : (td_client){0}; /* clears what a refused client left */
  if (!has_room(l, c, &e)) {
    refuse(l, fd, &e);
    return ACCEPTED_ONE;
  }
  l->spare = NULL;
  adopt(l, c, fd, k->is_unix);
  return ACCEPTED_ONE;
}

static void on_retry(uv_timer_t *t);
static void on_readable(uv_poll_t *p, int status, int events);

/* Stops polling the socket until the next retry; its clients wait in the backlog. */
static void block(listening *k)
{
  td_listener *l = k->listener;
  uv_poll_stop(&k->poll);
  if (k->blocked_ms == 0)
    k->blocked_ms = uv_now(&l->server->loop);
  if (!uv_is_active((uv_handle_t *)&l->retry))
    uv_timer_start(&l->retry, on_retry, RETRY_MS, 0);
}

static void accept_some(listening *k)
{
  accepted a = ACCEPTED_ONE;
  for (int i = 0; i < ACCEPTS_AT_ONCE && a == ACCEPTED_ONE; i++) {
    a = accept_one(k->listener, k);
    if (a != ACCEPT_FAILED)
      k->blocked_ms = 0;
  }
  if (a == ACCEPT_FAILED || uv_poll_start(&k->poll, UV_READABLE, on_readable) != 0)
    block(k);
}

static void on_readable(uv_poll_t *p, int status, int events)
{
  listening *k = p->data;
  if (status == 0) {
    accept_some(k);
    return;
  }
  complain(k->listener, uv_strerror(status));
  block(k);
}

static void on_retry(uv_timer_t *t)
{
  td_listener *l = t->data;
  for (int i = 0; i < l->n; i++)
    if (l->sockets[i].blocked_ms > 0)
      accept_some(&l->sockets[i]);
}

void td_listener_accept(td_listener *l)
{
  for (int i = 0; i < l->n; i++)
    accept_some(&l->sockets[i]);
}

bool td_listener_healthy(const td_listener *l)
{
  uint64_t now = uv_now(&l->server->loop);
  uint64_t set_ms = (uint64_t)td_option(l->server->options, TD_LIMIT_HEALTH_STALL_MS);
  uint64_t stall_ms = set_ms > 0 ? set_ms : (uint64_t)td_limit_max(TD_LIMIT_HEALTH_LEAST_MS);
  for (int i = 0; i < l->n; i++) {
    const listening *k = &l->sockets[i];
    int listens = 0;
    socklen_t n = sizeof listens;
    if (getsockopt(k->fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &n) != 0 || !listens)
      return false; /* something else closed it or shut it down */
    if (k->blocked_ms > 0 && now - k->blocked_ms > stall_ms)
      return false;
  }
  return true;
}

/* ---- opening ---- */

/* Takes over fd; closes it on failure. */
static td_status add_socket(td_listener *l, int fd, bool is_unix, const char *name, td_error *err)
{
  int backlog = (int)td_option(l->server->options, TD_LIMIT_LISTEN_BACKLOG);
  listening *k = &l->sockets[l->n];
  int rc =
      listen(fd, backlog) == 0 ? uv_poll_init(&l->server->loop, &k->poll, fd) : uv_translate_sys_error(errno);
  if (rc != 0) {
    close(fd);
    return td_fail_param(err, TD_ERR_IO, "listen", "cannot listen on %s: %s", name, uv_strerror(rc));
  }
  k->listener = l;
  k->fd = fd;
  k->is_unix = is_unix;
  k->poll.data = k;
  l->n++;
  l->n_handles++;
  return TD_OK;
}

static void say_listening(int fd)
{
  struct sockaddr_storage a;
  socklen_t len = sizeof a;
  char ip[64];
  if (getsockname(fd, (struct sockaddr *)&a, &len) != 0)
    return;
  bool v6 = a.ss_family == AF_INET6;
  if (v6)
    uv_ip6_name((struct sockaddr_in6 *)&a, ip, sizeof ip);
  else
    uv_ip4_name((struct sockaddr_in *)&a, ip, sizeof ip);
  td_info("listening on http://%s%s%s:%u", v6 ? "[" : "", ip, v6 ? "]" : "",
          ntohs(v6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port));
}

/* Opens and binds a socket and adds it to the listener, which listens on it. */
static td_status bind_one(td_listener *l, int family, const struct sockaddr *a, socklen_t n, bool v6_only,
                          const char *spec, td_error *err)
{
  int on = 1, fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0 || (family != AF_UNIX && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) ||
      (v6_only && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) != 0) || bind(fd, a, n) != 0) {
    td_status st = td_fail_param(err, TD_ERR_IO, "listen", "cannot listen on %s: %s", spec, strerror(errno));
    if (fd >= 0)
      close(fd);
    return st;
  }
  return add_socket(l, fd, family == AF_UNIX, spec, err);
}

static td_status open_tcp(td_listener *l, const char *host, const char *port, const char *spec, td_error *err)
{
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *all;
  int rc = getaddrinfo(host, port, &hints, &all);
  if (rc != 0)
    return td_fail_param(err, TD_ERR_IO, "listen", "cannot listen on %s: %s", spec, gai_strerror(rc));
  td_status st = TD_OK;
  for (struct addrinfo *a = all; a && st == TD_OK && l->n < TD_LISTEN_SOCKETS_MAX; a = a->ai_next) {
    st = bind_one(l, a->ai_family, a->ai_addr, a->ai_addrlen, a->ai_family == AF_INET6 && all->ai_next, spec,
                  err);
    if (st == TD_OK)
      say_listening(l->sockets[l->n - 1].fd);
  }
  freeaddrinfo(all);
  return st;
}

/* Removes a socket file left by a process that was killed: none listens on it. Refuses any other file. */
static td_status remove_stale(const struct sockaddr_un *a, td_error *err)
{
  struct stat st;
  if (lstat(a->sun_path, &st) != 0)
    return TD_OK;
  if (!S_ISSOCK(st.st_mode))
    return td_fail_param(err, TD_ERR_IO, "listen",
                         "cannot listen on unix:%s: there is a file of that name that is no socket",
                         a->sun_path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return TD_OK; /* bind will report the error */
  if (connect(fd, (const struct sockaddr *)a, sizeof *a) != 0 && errno == ECONNREFUSED)
    unlink(a->sun_path);
  close(fd);
  return TD_OK;
}

static td_status open_unix(td_listener *l, const char *path, const char *spec, td_error *err)
{
  struct sockaddr_un a = {.sun_family = AF_UNIX};
  memcpy(a.sun_path, path, strnlen(path, sizeof a.sun_path - 1));
  TD_TRY(remove_stale(&a, err));
  TD_TRY(bind_one(l, AF_UNIX, (const struct sockaddr *)&a, sizeof a, false, spec, err));
  listening *k = &l->sockets[l->n - 1];
  if (lstat(path, &k->made) == 0)
    snprintf(k->path, sizeof k->path, "%s", path);
  td_info("listening on %s", spec);
  return TD_OK;
}

static td_status open_inherited(td_listener *l, int first, int n, td_error *err)
{
  l->inherited = true;
  if (n > TD_LISTEN_SOCKETS_MAX)
    return td_fail_param(err, TD_ERR_IO, "listen", "%d sockets from systemd are more than %d", n,
                         TD_LISTEN_SOCKETS_MAX);
  for (int fd = first; fd < first + n; fd++) {
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    char name[40];
    snprintf(name, sizeof name, "socket %d from systemd", fd);
    if (getsockname(fd, (struct sockaddr *)&a, &len) != 0) /* fd stays open: it may be another file of ours */
      return td_fail_param(err, TD_ERR_IO, "listen", "cannot listen on %s: %s", name, strerror(errno));
    bool is_unix = a.ss_family == AF_UNIX;
    TD_TRY(add_socket(l, fd, is_unix, name, err));
    if (is_unix)
      td_info("listening on a unix socket from systemd");
    else
      say_listening(fd);
  }
  return TD_OK;
}

td_status td_listener_open(td_server *s, const char *spec, td_listener **out, td_error *err)
{
  char host[256], port[8];
  bool is_unix;
  int first, n = td_notify_listen_fds(&first);
  td_listener *l = calloc(1, sizeof *l);
  *out = NULL;
  if (!l || uv_timer_init(&s->loop, &l->retry) != 0) {
    free(l);
    return td_fail(err, TD_ERR_NOMEM, "no memory for the listener");
  }
  *out = l; /* also on failure below, because open handles must be closed */
  l->server = s;
  l->retry.data = l;
  l->n_handles = 1;
  if (n > 0)
    return open_inherited(l, first, n, err);
  TD_TRY(td_listen_parse(spec, host, port, &is_unix, err));
  return is_unix ? open_unix(l, host, spec, err) : open_tcp(l, host, port, spec, err);
}

bool td_listener_is_inherited(const td_listener *l) { return l && l->inherited; }

static void let_go(td_listener *l)
{
  if (--l->n_handles > 0)
    return;
  free(l->spare);
  free(l);
}

static void on_timer_closed(uv_handle_t *h) { let_go(h->data); }
static void on_poll_closed(uv_handle_t *h) { let_go(((listening *)h->data)->listener); }

/* Removes our socket file, but not one that another process has put in its place. */
static void remove_own(const listening *k)
{
  struct stat st;
  if (k->path[0] != '\0' && lstat(k->path, &st) == 0 && st.st_dev == k->made.st_dev &&
      st.st_ino == k->made.st_ino)
    unlink(k->path);
}

void td_listener_close(td_listener *l)
{
  if (!l)
    return;
  for (int i = 0; i < l->n; i++) {
    listening *k = &l->sockets[i];
    remove_own(k); /* before closing, so that a client that finds the file finds a listener */
    uv_close((uv_handle_t *)&k->poll, on_poll_closed);
    close(k->fd);
  }
  uv_close((uv_handle_t *)&l->retry, on_timer_closed);
}
