/* A server without an engine or listener, and one connection whose client is the test. */
#ifndef TD_TESTS_SERVER_WORLD_FIXTURE_H
#define TD_TESTS_SERVER_WORLD_FIXTURE_H

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/call.h"

typedef struct world {
  td_server *s;
  td_options options;
  td_conn *c;
  int client;
} world;

static void make_world(world *w)
{
  int fds[2];
  td_error err;
  td_options_init(&w->options);
  w->s = calloc(1, sizeof *w->s);
  w->c = calloc(1, sizeof *w->c);
  assert_true(w->s && w->c);
  assert_int_equal(uv_loop_init(&w->s->loop), 0);
  w->s->options = &w->options;
  w->s->engine_state = TD_ENGINE_READY;
  assert_int_equal(td_tenants_init(&w->s->tenants, &(td_keys){.required = true}, &err), TD_OK);
  td_metrics_init(&w->s->metrics);
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  w->client = fds[0];
  assert_int_equal(uv_pipe_init(&w->s->loop, &w->c->uv.pipe, 0), 0);
  assert_int_equal(uv_pipe_open(&w->c->uv.pipe, fds[1]), 0);
  w->c->server = w->s;
  w->s->conns = w->c;
  w->s->n_conns = 1;
  td_conn_start(w->c);
}

static void close_world(world *w)
{
  while (w->s->conns)
    td_conn_close(w->s->conns);
  while (uv_run(&w->s->loop, UV_RUN_DEFAULT)) /* again if the server stopped the loop */
    ;
  assert_int_equal(uv_loop_close(&w->s->loop), 0);
  close(w->client);
  td_tenants_deinit(&w->s->tenants);
  free(w->s);
}

#endif
