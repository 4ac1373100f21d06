/* GET /health (alive), /ready (can take work), /metrics. None of them waits for the engine. */
#include <stdio.h>

#include "common/list.h"
#include "server/router.h"

static void respond_text(td_conn *c, int status, const char *json)
{
  td_conn_respond(c, status, "application/json", status == 503 ? "retry-after: 2\r\n" : NULL, json,
                  __builtin_strlen(json));
}

static void respond_trouble(td_conn *c, const char *trouble)
{
  char json[200];
  snprintf(json, sizeof json, "{\"status\":\"unhealthy\",\"reason\":\"%s\"}", trouble);
  respond_text(c, 503, json);
}

void td_api_health(td_conn *c)
{
  const char *trouble = td_server_unhealthy_reason(c->server);
  if (trouble)
    respond_trouble(c, trouble);
  else
    respond_text(c, 200, "{\"status\":\"ok\"}");
}

void td_api_ready(td_conn *c)
{
  const td_server *s = c->server;
  const char *trouble = td_server_unhealthy_reason(s);
  if (s->draining)
    respond_text(c, 503, "{\"status\":\"draining\"}");
  else if (s->engine_state == TD_ENGINE_LOADING)
    respond_text(c, 503, "{\"status\":\"loading\"}");
  else if (trouble)
    respond_trouble(c, trouble);
  else
    respond_text(c, 200, "{\"status\":\"ready\"}");
}

/* Usage of other keys, and sums that include it, reveal how long their prompts are. Only operators see it. */
static bool sees_all(const td_conn *c)
{
  const td_key *key = c->server->tenants.keys[c->note.account].key;
  return c->server->keys.n < 2 || (key && key->is_operator);
}

void td_api_metrics(td_conn *c)
{
  td_server *s = c->server;
  td_engine_stats stats;
  td_engine_get_stats(s->engine, &stats);
  bool loaded = s->engine_state == TD_ENGINE_READY;
  const char *names = s->options->served_model_name;
  char name[sizeof(td_engine_info){0}.model_name] = "";
  td_list_item first;
  if (loaded)
    snprintf(name, sizeof name, "%s", td_engine_get_info(s->engine)->model_name);
  else if (td_list_next(&names, &first))
    snprintf(name, sizeof name, "%.*s", (int)first.n, first.s);
  td_metrics_view v = {
      .info = loaded ? td_engine_get_info(s->engine) : NULL,
      .stats = &stats,
      .model_name = name,
      .n_conns = s->n_conns,
      .queued_calls = s->n_reading,
      .n_watchers = s->n_watchers,
      .answer_memory_bytes = s->answer_memory_bytes,
      .accounts = s->keys.required ? s->tenants.keys : NULL,
      .only_account = sees_all(c) ? 0 : c->note.account,
  };
  td_engine_gpu gpu;
  if (loaded && td_engine_get_gpu(s->engine, &gpu))
    v.gpu = &gpu;
  td_kv_events_count kv_events;
  if (s->kv_events) {
    td_kv_events_get(s->kv_events, &kv_events);
    v.kv_events = &kv_events;
  }
  td_engine_step_errors(s->engine, &v.step_error_median, &v.step_error_p99);
  td_buf out;
  td_buf_init(&out, 0);
  td_metrics_render(&s->metrics, &v, &out);
  td_conn_respond_buf(c, 200, "text/plain; version=0.0.4; charset=utf-8", NULL, &out);
  td_buf_deinit(&out);
}
