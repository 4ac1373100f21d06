/* The listening sockets: no failure while a connection is accepted stops the server from accepting, and
 * /health reports a lasting one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/json.h"
#include "server/conn.h"
#include "stderr_fixture.h"

/* ---- faults ---- */

static int fail_conns;   /* number of connections that find no memory; -1: all */
static int accept_errno; /* the error of accept while fail_accepts is not 0 */
static int fail_accepts;

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size)
{
  if (fail_conns != 0 && size == sizeof(td_conn)) {
    fail_conns -= fail_conns > 0;
    return NULL;
  }
  return __real_calloc(n, size);
}

int __real_accept4(int fd, struct sockaddr *a, socklen_t *n, int flags);
int __wrap_accept4(int fd, struct sockaddr *a, socklen_t *n, int flags);
int __wrap_accept4(int fd, struct sockaddr *a, socklen_t *n, int flags)
{
  if (fail_accepts == 0)
    return __real_accept4(fd, a, n, flags);
  fail_accepts -= fail_accepts > 0;
  errno = accept_errno;
  return -1;
}

int __real_uv_tcp_init(uv_loop_t *loop, uv_tcp_t *h);
int __wrap_uv_tcp_init(uv_loop_t *loop, uv_tcp_t *h);
static int fail_inits;
int __wrap_uv_tcp_init(uv_loop_t *loop, uv_tcp_t *h)
{
  if (fail_inits == 0)
    return __real_uv_tcp_init(loop, h);
  fail_inits--;
  return UV_ENOMEM;
}

/* ---- a server that has a loop and a listener ---- */

typedef struct world {
  td_server *s;
  td_options options;
  struct sockaddr_in address;
  int fd; /* the listener's */
} world;

static void find_port(world *w)
{
  for (int fd = 3; fd < 256; fd++) { /* the listener keeps it to itself */
    socklen_t n = sizeof w->address;
    int on = 0;
    socklen_t on_bytes = sizeof on;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &on_bytes) == 0 && on &&
        getsockname(fd, (struct sockaddr *)&w->address, &n) == 0 && w->address.sin_family == AF_INET) {
      w->fd = fd;
      return;
    }
  }
  fail_msg("nothing listens");
}

static void open_world(world *w)
{
  td_error err;
  memset(w, 0, sizeof *w);
  fail_conns = fail_accepts = fail_inits = 0;
  td_options_init(&w->options);
  w->s = calloc(1, sizeof *w->s);
  assert_non_null(w->s);
  assert_int_equal(uv_loop_init(&w->s->loop), 0);
  w->s->options = &w->options;
  w->s->max_conns = 100;
  assert_int_equal(td_listener_open(w->s, "127.0.0.1:0", &w->s->listener, &err), TD_OK);
  td_listener_accept(w->s->listener);
  find_port(w);
}

static void close_world(world *w)
{
  td_listener_close(w->s->listener);
  while (w->s->conns)
    td_conn_close(w->s->conns);
  uv_run(&w->s->loop, UV_RUN_DEFAULT);
  assert_int_equal(uv_loop_close(&w->s->loop), 0);
  free(w->s);
}

static int connect_to(const world *w)
{
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(connect(fd, (const struct sockaddr *)&w->address, sizeof w->address), 0);
  return fd;
}

/* Runs the loop for up to ms, or until that many connections are open. */
static void turn(world *w, uint32_t until_conns, uint64_t ms)
{
  uint64_t end = uv_hrtime() + ms * 1000000u;
  while (w->s->n_conns != until_conns && uv_hrtime() < end) {
    uv_run(&w->s->loop, UV_RUN_NOWAIT);
    usleep(1000);
  }
}

/* ---- tests ---- */

static void test_no_memory_once(void **state)
{
  world w;
  open_world(&w);
  fail_conns = 1;
  int fds[3];
  for (uint32_t i = 0; i < 3; i++) {
    fds[i] = connect_to(&w);
    turn(&w, i + 1, 100);
  }
  turn(&w, 3, 3000);
  assert_int_equal(w.s->n_conns, 3);
  assert_int_equal(fail_conns, 0);
  for (int i = 0; i < 3; i++)
    close(fds[i]);
  close_world(&w);
}

static void test_no_handle_once(void **state)
{
  world w;
  open_world(&w);
  fail_inits = 1;
  int a = connect_to(&w);
  turn(&w, 1, 100);
  int b = connect_to(&w);
  turn(&w, 1, 3000); /* the first was accepted and closed */
  assert_int_equal(w.s->n_conns, 1);
  close(a);
  close(b);
  close_world(&w);
}

/* Until there are descriptors again, connections wait; none is closed. */
static void test_out_of_descriptors(void **state)
{
  world w;
  open_world(&w);
  accept_errno = EMFILE;
  fail_accepts = -1;
  int fds[3];
  for (int i = 0; i < 3; i++)
    fds[i] = connect_to(&w);
  turn(&w, 1, 350);
  assert_int_equal(w.s->n_conns, 0);
  fail_accepts = 0;
  turn(&w, 3, 3000);
  assert_int_equal(w.s->n_conns, 3);
  for (int i = 0; i < 3; i++)
    close(fds[i]);
  close_world(&w);
}

/* Errors of the accepted connection itself are skipped without a pause. */
static void test_a_connection_that_has_gone(void **state)
{
  world w;
  open_world(&w);
  accept_errno = ECONNABORTED;
  fail_accepts = 5;
  int fd = connect_to(&w);
  turn(&w, 1, 3000);
  assert_int_equal(w.s->n_conns, 1);
  assert_int_equal(fail_accepts, 0);
  close(fd);
  close_world(&w);
}

/* The log has one line per second about refused connections, and the next line says how many were left out.
 */
static void test_refusals_are_told_once(void **state)
{
  world w;
  open_world(&w);
  w.s->max_conns = 1;
  int fds[4];
  capture();
  for (uint32_t i = 0; i < 4; i++) {
    fds[i] = connect_to(&w);
    turn(&w, 9, 50);
  }
  const char *at = strstr(captured(), "refused a connection from");
  assert_non_null(at);
  assert_non_null(strstr(at, "1 connections are open, and no more are taken (connections)"));
  assert_null(strstr(at + 1, "refused a connection from"));
  for (uint32_t i = 0; i < 4; i++)
    close(fds[i]);
  close_world(&w);
}

static void test_health(void **state)
{
  world w;
  open_world(&w);
  w.options.limit[TD_LIMIT_HEALTH_STALL_MS] = 200;
  assert_null(td_server_unhealthy_reason(w.s)); /* it is loading */
  fail_conns = -1;
  int spare = connect_to(&w), fd = connect_to(&w); /* memory for the first is allocated before it arrives */
  turn(&w, 2, 100);
  assert_int_equal(w.s->n_conns, 1);
  assert_null(td_server_unhealthy_reason(w.s)); /* a moment is no stall */
  turn(&w, 2, 400);
  assert_non_null(td_server_unhealthy_reason(w.s));
  fail_conns = 0;
  turn(&w, 2, 3000);
  assert_int_equal(w.s->n_conns, 2);
  assert_null(td_server_unhealthy_reason(w.s));
  close(spare);
  close(fd);

  fail_accepts = -1; /* a client that has gone meanwhile is waited for no longer */
  accept_errno = ENOBUFS;
  fd = connect_to(&w);
  turn(&w, 9, 100);
  close(fd);
  accept_errno = EAGAIN;
  turn(&w, 9, 400);
  assert_null(td_server_unhealthy_reason(w.s));
  close_world(&w);
}

static void test_a_socket_that_was_shut_is_unhealthy(void **state)
{
  world w;
  open_world(&w);
  assert_null(td_server_unhealthy_reason(w.s));
  shutdown(w.fd, SHUT_RDWR);
  turn(&w, 1, 50);
  assert_non_null(td_server_unhealthy_reason(w.s));
  close_world(&w);
}

/* ---- how many ---- */

static size_t read_answer(world *w, int fd, char *text, size_t max)
{
  size_t n = 0;
  uint64_t end = uv_hrtime() + 3000000000u;
  while (uv_hrtime() < end) {
    uv_run(&w->s->loop, UV_RUN_NOWAIT);
    ssize_t r = recv(fd, text + n, max - 1 - n, MSG_DONTWAIT);
    if (r == 0)
      break;
    n += r > 0 ? (size_t)r : 0;
    usleep(500);
  }
  text[n] = '\0';
  return n;
}

/* A connection over the limit of an address gets an error in OpenAI's format, although it has already sent
 * its request. */
static void test_one_address(void **state)
{
  world w;
  open_world(&w);
  int fds[50], one_more;
  char text[2000];
  for (int i = 0; i < 50; i++) /* half of max_conns */
    fds[i] = connect_to(&w);
  turn(&w, 50, 3000);
  assert_int_equal(w.s->n_conns, 50);
  one_more = connect_to(&w);
  assert_int_equal(send(one_more, "GET /health HTTP/1.1\r\n\r\n", 24, 0), 24);
  read_answer(&w, one_more, text, sizeof text);
  assert_int_equal(strncmp(text, "HTTP/1.1 503 Service Unavailable\r\n", 34), 0);
  assert_non_null(strstr(text, "\r\nretry-after: 1\r\n"));
  cJSON *j = cJSON_Parse(strstr(text, "\r\n\r\n") + 4);
  assert_string_equal(td_json_get(td_json_get(j, "error"), "code")->valuestring, "too_many_connections");
  assert_string_equal(td_json_get(td_json_get(j, "error"), "type")->valuestring, "server_error");
  cJSON_Delete(j);
  close(one_more);
  assert_int_equal(w.s->metrics.connections_refused, 1);

  td_error err;
  assert_int_equal(td_ranges_read(&w.s->trusted_proxies, "10.0.0.0/8, 127.0.0.1", &err), TD_OK);
  one_more = connect_to(&w);
  turn(&w, 51, 3000);
  assert_int_equal(w.s->n_conns, 51);
  close(one_more);
  for (int i = 0; i < 50; i++)
    close(fds[i]);
  close_world(&w);
}

static void test_all(void **state)
{
  world w;
  open_world(&w);
  w.s->max_conns = 2;
  w.options.limit[TD_LIMIT_CONNECTIONS_PER_IP] = 65536;
  int a = connect_to(&w), b = connect_to(&w);
  turn(&w, 2, 3000);
  int c = connect_to(&w);
  char text[2000];
  read_answer(&w, c, text, sizeof text);
  assert_non_null(strstr(text, "too_many_connections"));
  assert_non_null(strstr(text, "(connections)"));
  close(a);
  close(b);
  close(c);
  close_world(&w);
}

/* ---- unix sockets ---- */

static td_status try_path(const char *path, td_error *err)
{
  td_options options;
  char spec[200];
  td_server *s = calloc(1, sizeof *s);
  assert_non_null(s);
  td_options_init(&options);
  s->options = &options;
  assert_int_equal(uv_loop_init(&s->loop), 0);
  snprintf(spec, sizeof spec, "unix:%s", path);
  td_status st = td_listener_open(s, spec, &s->listener, err);
  td_listener_close(s->listener);
  uv_run(&s->loop, UV_RUN_DEFAULT);
  assert_int_equal(uv_loop_close(&s->loop), 0);
  free(s);
  return st;
}

static void test_only_a_stale_socket_is_removed(void **state)
{
  char dir[] = "/tmp/td_listener_XXXXXX", path[100];
  td_error err;
  struct stat st;
  assert_non_null(mkdtemp(dir));
  snprintf(path, sizeof path, "%s/x", dir);

  FILE *f = fopen(path, "w");
  assert_true(f && fputs("precious", f) >= 0 && fclose(f) == 0);
  assert_int_equal(try_path(path, &err), TD_ERR_IO);
  assert_non_null(strstr(err.message, path));
  assert_string_equal(err.param, "listen");
  assert_true(stat(path, &st) == 0 && st.st_size == 8);
  assert_int_equal(unlink(path), 0);

  struct sockaddr_un a = {.sun_family = AF_UNIX};
  snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
  assert_int_equal(listen(fd, 1), 0);
  assert_int_equal(try_path(path, &err), TD_ERR_IO); /* another process listens there */
  assert_int_equal(stat(path, &st), 0);
  close(fd);

  char link[sizeof path];
  snprintf(link, sizeof link, "%s/link", dir);
  assert_int_equal(symlink(path, link), 0);
  assert_int_equal(try_path(link, &err), TD_ERR_IO);
  assert_int_equal(unlink(link), 0);

  assert_int_equal(try_path(path, &err), TD_OK); /* stale now */
  assert_int_not_equal(stat(path, &st), 0);      /* and removed at the end */
  assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_no_memory_once),
      cmocka_unit_test(test_no_handle_once),
      cmocka_unit_test(test_out_of_descriptors),
      cmocka_unit_test(test_a_connection_that_has_gone),
      cmocka_unit_test(test_refusals_are_told_once),
      cmocka_unit_test(test_health),
      cmocka_unit_test(test_a_socket_that_was_shut_is_unhealthy),
      cmocka_unit_test(test_one_address),
      cmocka_unit_test(test_all),
      cmocka_unit_test(test_only_a_stale_socket_is_removed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
