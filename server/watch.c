/* Watchers: see watch.h. docs/API.md describes the events. */
#include "server/watch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* TICK_MS: at up to 10,000 steps a second no step is overwritten between two ticks. BEFORE: a new watcher
 * immediately gets that many of the last steps, so that a page is not empty. */
enum { TICK_MS = 100, BEFORE = 256 };

struct td_watcher {
  td_conn *conn;
  td_watcher *prev, *next;
  uint32_t account; /* of its key; 0 if no key is asked for */
  uint64_t cursor;  /* steps read so far, as td_engine_read_steps counts them */
  uint64_t n_missed;
  bool hello_sent;
  bool state_sent; /* `last` and `state` are those of the last event */
  td_engine_state state;
  td_engine_stats last;
};

static const char *state_name(const td_server *s)
{
  switch (s->engine_state) {
  case TD_ENGINE_FAILED: return "failed";
  case TD_ENGINE_STOPPED: return "stopped";
  case TD_ENGINE_LOADING: return s->draining ? "draining" : "loading";
  default: return s->draining ? "draining" : "ready";
  }
}

/* ---- events ---- */

/* If several keys share the device, tokens, pages and the predictions made from them are left out, because
 * the length of another key's prompt could be derived from each. The rest shows in the pace of a client's
 * own answers anyway. */
static bool is_shared(const td_server *s) { return s->keys.n > 1; }

static void render_hello(const td_server *s, td_buf *out)
{
  const td_engine_info *i = td_engine_get_info(s->engine);
  td_buf_append_str(out, "event: hello\ndata: {\"version\":\"" TD_VERSION "\",\"model\":");
  td_buf_append_json_string(out, i->model_name, strlen(i->model_name));
  td_buf_append_str(out, ",\"backend\":");
  td_buf_append_json_string(out, i->backend, strlen(i->backend));
  td_buf_printf(
      out, ",\"max_model_len\":%u,\"pages\":%u,\"page_tokens\":%u,\"step_tokens\":%u,\"max_running\":%u,",
      i->max_context_tokens, i->n_pages, i->page_tokens, i->step_tokens, i->max_running);
  td_buf_append_str(
      out,
      is_shared(s)
          ? "\"fields\":[\"step\",\"end_us\",\"step_us\",\"decodes\",\"prefills\",\"running\",\"waiting\","
            "\"preemptions\"]}\n\n"
          : "\"fields\":[\"step\",\"end_us\",\"step_us\",\"predicted_us\",\"decodes\",\"prefills\","
            "\"prefill_tokens\",\"hit_tokens\",\"running\",\"waiting\",\"free\",\"cached\",\"owned\","
            "\"preemptions\",\"calibrated_us\"]}\n\n");
}

static void render_step(const td_engine_step *s, bool shared, td_buf *out)
{
  if (shared) {
    td_buf_printf(out, "[%" PRIu64 ",%" PRIu64 ",%u,%u,%u,%u,%u,%u]", s->step, s->end_us, s->step_us,
                  s->n_decodes, s->n_prefills, s->n_running, s->n_waiting, s->preemptions);
    return;
  }
  td_buf_printf(out, "[%" PRIu64 ",%" PRIu64 ",%u,%u,%u,%u,%u,%u,%u,%u,%u,%u,%u,%u,%u]", s->step, s->end_us,
                s->step_us, s->predicted_us, s->n_decodes, s->n_prefills, s->n_prefill_tokens, s->hit_tokens,
                s->n_running, s->n_waiting, s->pages_free, s->pages_cached, s->pages_owned, s->preemptions,
                s->calibrated_us);
}

static void render_news(const td_watcher *w, const td_engine_stats *st, const td_engine_step *steps,
                        uint32_t n, td_buf *out)
{
  bool shared = is_shared(w->conn->server);
  td_buf_printf(out,
                "data: {\"state\":\"%s\",\"running\":%u,\"waiting\":%u,\"preemptions\":%" PRIu64
                ",\"tbt_slo_us\":%.0f,\"missed\":%" PRIu64,
                state_name(w->conn->server), st->n_running, st->n_waiting, st->preemptions, st->tbt_slo_us,
                w->n_missed);
  if (!shared)
    td_buf_printf(out,
                  ",\"pages_free\":%u,\"pages_cached\":%u,\"pages_owned\":%u,\"prefix_query_tokens\":%" PRIu64
                  ",\"prefix_hit_tokens\":%" PRIu64 ",\"evicted_pages\":%" PRIu64 ",\"queue_delay_us\":%.0f",
                  st->pages_free, st->pages_cached, st->pages_owned, st->prefix_query_tokens,
                  st->prefix_hit_tokens, st->evicted_pages, st->queue_delay_us);
  td_buf_append_str(out, ",\"steps\":[");
  for (uint32_t i = 0; i < n; i++) {
    if (i > 0)
      td_buf_append_char(out, ',');
    render_step(&steps[i], shared, out);
  }
  td_buf_append_str(out, "]}\n\n");
}

/* ---- sending ---- */

static bool is_news(const td_watcher *w, const td_engine_stats *st)
{
  return !w->state_sent || w->state != w->conn->server->engine_state || w->last.n_running != st->n_running ||
         w->last.n_waiting != st->n_waiting || w->last.pages_free != st->pages_free ||
         w->last.pages_cached != st->pages_cached;
}

static void tell(td_watcher *w, const td_engine_stats *st, bool last)
{
  td_server *s = w->conn->server;
  td_engine_step steps[TD_ENGINE_STEPS_KEPT];
  uint64_t missed_before = w->n_missed;
  if (!last && !td_conn_writable(w->conn)) /* steps that it does not read in time are missed */
    return;
  uint32_t n = td_engine_read_steps(s->engine, &w->cursor, steps, TD_ENGINE_STEPS_KEPT, &w->n_missed);
  s->metrics.steps_missed += w->n_missed - missed_before;
  if (n == 0 && !last && !is_news(w, st))
    return;
  td_buf out;
  td_buf_init(&out, 0);
  if (!w->hello_sent && s->engine_state == TD_ENGINE_READY) {
    render_hello(s, &out);
    w->hello_sent = true;
  }
  render_news(w, st, steps, n, &out);
  w->state_sent = true;
  w->state = s->engine_state;
  w->last = *st;
  if (out.failed)
    w->conn->out.failed = true; /* closes the connection */
  td_conn_stream_send(w->conn, out.data ? out.data : "", out.len_bytes);
  td_buf_deinit(&out);
}

static void on_tick(uv_timer_t *t)
{
  td_server *s = t->data;
  td_engine_stats st;
  td_engine_get_stats(s->engine, &st);
  for (td_watcher *w = s->watchers; w; w = w->next)
    tell(w, &st, false);
}

/* ---- connecting and leaving ---- */

/* How many watchers have c's key, or c's address if there are not several keys. A client gets at most a
 * quarter of all. */
static uint32_t count_same(const td_conn *c, uint32_t account)
{
  uint32_t n = 0;
  for (const td_watcher *w = c->server->watchers; w; w = w->next)
    n += c->server->keys.n > 1 ? w->account == account
                               : memcmp(&w->conn->client.ip, &c->client.ip, sizeof c->client.ip) == 0;
  return n;
}

static bool admit(const td_conn *c, uint32_t account, td_api_error *e)
{
  const td_server *s = c->server;
  uint32_t max = (uint32_t)td_option(s->options, TD_LIMIT_WATCHERS), share = max < 8 ? 1 : max / 4;
  if (s->draining)
    td_api_error_set(e, 503, "shutting_down", NULL, "the server is shutting down");
  else if (max == 0)
    td_api_error_set(e, 404, "not_found", NULL, "watching the steps is switched off (watchers = 0)");
  else if (s->n_watchers >= max)
    td_api_error_set(e, 429, "too_many_watchers", NULL, "%u clients watch the steps already", s->n_watchers);
  else if (count_same(c, account) >= share)
    td_api_error_set(e, 429, "too_many_watchers", NULL, "this client watches the steps %u times already",
                     share);
  else
    return true;
  return false;
}

static void link_watcher(td_server *s, td_watcher *w)
{
  w->next = s->watchers;
  if (w->next)
    w->next->prev = w;
  s->watchers = w;
  if (s->n_watchers++ == 0)
    uv_timer_start(&s->watch_timer, on_tick, TICK_MS, TICK_MS);
}

void td_watch_begin(td_conn *c)
{
  td_server *s = c->server;
  td_api_error e;
  td_engine_stats st;
  uint32_t account;
  const td_http_head *h = &c->http.head;
  (void)td_keys_allow(&s->keys, h->authorization, h->api_key, &account); /* was checked at the head */
  if (!admit(c, account, &e)) {
    td_conn_respond_error(c, &e);
    return;
  }
  td_watcher *w = c->head_only ? NULL : calloc(1, sizeof *w);
  if (!c->head_only && !w) {
    td_api_error_set(&e, 503, "out_of_memory", NULL, "no memory for a watcher");
    td_conn_respond_error(c, &e);
    return;
  }
  td_conn_stream_begin(c, "text/event-stream; charset=utf-8",
                       "cache-control: no-cache\r\nx-accel-buffering: no\r\n");
  if (!w) { /* HEAD */
    td_conn_stream_end(c);
    return;
  }
  w->conn = c;
  w->account = account;
  c->watcher = w;
  c->state = TD_CONN_ANSWERING;
  c->since_ms = uv_now(&s->loop);
  link_watcher(s, w);
  td_engine_get_stats(s->engine, &st);
  w->cursor = st.steps > BEFORE ? st.steps - BEFORE : 0;
  tell(w, &st, false);
}

void td_watch_forget(td_conn *c)
{
  td_watcher *w = c->watcher;
  td_server *s = c->server;
  if (!w)
    return;
  c->watcher = NULL;
  *(w->prev ? &w->prev->next : &s->watchers) = w->next;
  if (w->next)
    w->next->prev = w->prev;
  if (--s->n_watchers == 0)
    uv_timer_stop(&s->watch_timer);
  free(w);
}

void td_watch_end_all(td_server *s)
{
  td_engine_stats st;
  td_engine_get_stats(s->engine, &st);
  while (s->watchers) {
    td_conn *c = s->watchers->conn;
    tell(s->watchers, &st, true);
    td_watch_forget(c);
    c->keep_alive = false;
    td_conn_stream_end(c);
  }
}
