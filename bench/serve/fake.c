/* tandem-bench fake: a server that sends made-up tokens at exact times, to measure the load generator. The
 * figures of `serve` against it are known in advance, and any difference is the overhead of `serve`.
 *
 * It works in steps, like an engine: every --tbt ms each stream gets one token, the first no sooner than
 * --ttft ms after its request. */
#include <llhttp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include <uv.h>

#include "bench/commands.h"
#include "loadgen/tool.h"
#include "common/buf.h"

enum { READ_BYTES = 1 << 16 };

typedef struct client {
  uv_tcp_t tcp;
  llhttp_t parser;
  struct fake *fake;
  td_buf body;
  uint32_t left, sent; /* tokens of the current stream */
  double first_s;      /* no token before this time */
  bool streaming, closing;
  struct client *prev, *next;
} client;

typedef struct fake {
  uv_loop_t loop;
  uv_tcp_t listener;
  uv_poll_t step;
  int step_fd; /* a timerfd, because libuv's timers have whole milliseconds only */
  uv_signal_t signals[2];
  llhttp_settings_t settings;
  client *all;
  double port, tbt_ms, ttft_ms, fail_every, merge;
  uint64_t n_requests, n_late;
  char read_buffer[READ_BYTES];
} fake;

typedef struct write_job {
  uv_write_t write;
  char bytes[];
} write_job;

static void on_closed(uv_handle_t *h)
{
  client *c = h->data;
  if (c->prev)
    c->prev->next = c->next;
  else
    c->fake->all = c->next;
  if (c->next)
    c->next->prev = c->prev;
  td_buf_deinit(&c->body);
  free(c);
}

static void close_client(client *c)
{
  if (!c->closing)
    uv_close((uv_handle_t *)&c->tcp, on_closed);
  c->closing = true;
}

static void on_written(uv_write_t *w, int status) { free(w); }

static void send_bytes(client *c, const char *bytes, size_t n)
{
  uv_buf_t whole = uv_buf_init((char *)bytes, (unsigned)n);
  int sent = uv_try_write((uv_stream_t *)&c->tcp, &whole, 1);
  size_t done = sent > 0 ? (size_t)sent : 0;
  if (done == n || c->closing)
    return;
  write_job *job = td_tool_alloc(1, sizeof *job + n - done);
  memcpy(job->bytes, bytes + done, n - done);
  uv_buf_t rest = uv_buf_init(job->bytes, (unsigned)(n - done));
  if (uv_write(&job->write, (uv_stream_t *)&c->tcp, &rest, 1, on_written) < 0) {
    free(job);
    close_client(c);
  }
}

static size_t add_chunk(char *out, size_t size, const char *payload)
{
  return (size_t)snprintf(out, size, "%zx\r\ndata: %s\n\n\r\n", strlen(payload) + 8, payload);
}

/* Sends one event of the stream; the last one includes the end of the answer. */
static void send_token(client *c)
{
  char out[1024], payload[256];
  uint32_t n = c->left < c->fake->merge ? c->left : (uint32_t)c->fake->merge;
  c->left -= n;
  c->sent += n;
  snprintf(payload, sizeof payload,
           "{\"id\":\"f\",\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":\" "
           "token\",\"finish_reason\":%s}]}",
           c->left == 0 ? "\"length\"" : "null");
  size_t at = add_chunk(out, sizeof out, payload);
  if (c->left == 0) {
    snprintf(payload, sizeof payload,
             "{\"id\":\"f\",\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":%u}}",
             c->sent);
    at += add_chunk(out + at, sizeof out - at, payload);
    at += add_chunk(out + at, sizeof out - at, "[DONE]");
    at += (size_t)snprintf(out + at, sizeof out - at, "0\r\n\r\n");
    c->streaming = false;
  }
  send_bytes(c, out, at);
}

static void on_step(uv_poll_t *p, int status, int events)
{
  fake *f = p->data;
  uint64_t n_due;
  double now = td_tool_now_s();
  if (read(f->step_fd, &n_due, sizeof n_due) < 0)
    return;
  for (client *c = f->all; c; c = c->next)
    if (c->streaming && !c->closing && now >= c->first_s)
      send_token(c);
  f->n_late += n_due - 1;
}

static void start_steps(fake *f)
{
  double s = f->tbt_ms / 1e3;
  struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
  f->step_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (f->step_fd < 0 || timerfd_settime(f->step_fd, 0, &(struct itimerspec){t, t}, NULL) < 0 ||
      uv_poll_init(&f->loop, &f->step, f->step_fd) < 0)
    td_tool_die("fake: timerfd: %m");
  f->step.data = f;
  uv_poll_start(&f->step, UV_READABLE, on_step);
}

static void answer_error(client *c)
{
  const char *body =
      "{\"error\":{\"message\":\"the queue is full\",\"type\":\"server_error\",\"code\":\"queue_full\"}}";
  char out[512];
  int n = snprintf(
      out, sizeof out,
      "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
      strlen(body), body);
  send_bytes(c, out, (size_t)n);
}

static int on_message_complete(llhttp_t *p)
{
  client *c = p->data;
  fake *f = c->fake;
  static const char head[] =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
  static const char models[] = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
                               "24\r\n\r\n{\"data\":[{\"id\":\"fake\"}]}";
  if (p->method == HTTP_GET) {
    send_bytes(c, models, sizeof models - 1);
    return 0;
  }
  td_buf_append_char(&c->body, '\0');
  const char *max = c->body.failed ? NULL : strstr(c->body.data, "\"max_tokens\":");
  td_buf_clear(&c->body);
  f->n_requests++;
  if (f->fail_every > 0 && f->n_requests % (uint64_t)f->fail_every == 0) {
    answer_error(c);
    return 0;
  }
  c->left = max ? (uint32_t)strtoul(max + 13, NULL, 10) : 16;
  c->sent = 0;
  c->first_s = td_tool_now_s() + f->ttft_ms / 1e3;
  c->streaming = c->left > 0;
  send_bytes(c, head, sizeof head - 1);
  return 0;
}

static int on_body(llhttp_t *p, const char *at, size_t n)
{
  td_buf_append(&((client *)p->data)->body, at, n);
  return 0;
}

static void on_alloc(uv_handle_t *h, size_t hint, uv_buf_t *out)
{
  *out = uv_buf_init(((client *)h->data)->fake->read_buffer, READ_BYTES);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
  client *c = s->data;
  if (n < 0 || (n > 0 && llhttp_execute(&c->parser, buf->base, (size_t)n) != HPE_OK))
    close_client(c);
}

static void on_connection(uv_stream_t *s, int status)
{
  fake *f = s->data;
  client *c = td_tool_alloc(1, sizeof *c);
  c->fake = f;
  td_buf_init(&c->body, 0);
  llhttp_init(&c->parser, HTTP_REQUEST, &f->settings);
  uv_tcp_init(&f->loop, &c->tcp);
  c->parser.data = c->tcp.data = c;
  c->next = f->all;
  if (f->all)
    f->all->prev = c;
  f->all = c;
  if (uv_accept(s, (uv_stream_t *)&c->tcp) < 0 ||
      uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read) < 0)
    close_client(c);
  uv_tcp_nodelay(&c->tcp, 1);
}

static void on_signal(uv_signal_t *s, int number) { uv_stop(s->loop); }

static void close_any(uv_handle_t *h, void *arg)
{
  if (!uv_is_closing(h))
    uv_close(h, h->type == UV_TCP && h != arg ? on_closed : NULL);
}

int td_bench_fake(int argc, char **argv)
{
  static fake f = {.port = 8099, .tbt_ms = 20, .ttft_ms = 100, .merge = 1};
  const td_arg args[] = {
      {"--port", "N", "of 127.0.0.1 (8099)", TD_ARG_NUMBER, &f.port},
      {"--tbt", "MS", "between tokens (20)", TD_ARG_NUMBER, &f.tbt_ms},
      {"--ttft", "MS", "before the first token, rounded up to a step (100)", TD_ARG_NUMBER, &f.ttft_ms},
      {"--fail-every", "N", "every N-th completion gets a 429 (0: none)", TD_ARG_NUMBER, &f.fail_every},
      {"--merge", "N", "tokens in one event (1)", TD_ARG_NUMBER, &f.merge},
  };
  struct sockaddr_in at;
  td_tool_args("tandem-bench fake",
               "A server with made-up tokens at exact moments, to measure the load generator itself.", args,
               sizeof args / sizeof *args, argc, argv);
  if (f.port < 0 || f.port > 65535 || f.tbt_ms < 1 || f.ttft_ms < 0 || f.merge < 1)
    td_tool_die("fake: a number is out of range");
  uv_loop_init(&f.loop);
  llhttp_settings_init(&f.settings);
  f.settings.on_body = on_body;
  f.settings.on_message_complete = on_message_complete;
  uv_tcp_init(&f.loop, &f.listener);
  f.listener.data = &f;
  uv_ip4_addr("127.0.0.1", (int)f.port, &at);
  if (uv_tcp_bind(&f.listener, (const struct sockaddr *)&at, 0) < 0 ||
      uv_listen((uv_stream_t *)&f.listener, 4096, on_connection) < 0)
    td_tool_die("fake: cannot listen on 127.0.0.1:%d", (int)f.port);
  start_steps(&f);
  for (int i = 0; i < 2; i++) {
    uv_signal_init(&f.loop, &f.signals[i]);
    uv_signal_start(&f.signals[i], on_signal, i == 0 ? SIGTERM : SIGINT);
  }
  uv_run(&f.loop, UV_RUN_DEFAULT);
  fprintf(stderr, "fake: %llu requests, %llu steps missed, %.2f s of processor time\n",
          (unsigned long long)f.n_requests, (unsigned long long)f.n_late, td_tool_cpu_s());
  uv_walk(&f.loop, close_any, &f.listener);
  uv_run(&f.loop, UV_RUN_DEFAULT);
  uv_loop_close(&f.loop);
  return 0;
}
