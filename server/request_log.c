/* The log of requests: see request_log.h. */
#include "server/request_log.h"

#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "server/call.h"

static double max_ms(double a, uint64_t from, uint64_t to)
{
  double ms = to > from && from > 0 ? (double)(to - from) / 1e3 : 0;
  return ms > a ? ms : a;
}

/* "length" if any choice ended by its token limit. */
static const char *finish_of(const td_call *call)
{
  const char *finish = "stop";
  for (uint32_t i = 0; i < call->n_choices; i++)
    if (call->choices[i].finish && strcmp(call->choices[i].finish, "length") == 0)
      finish = "length";
  return finish;
}

void td_request_log_note(td_request_note *n, const td_call *call, const char *finish)
{
  n->finish = finish ? finish : finish_of(call);
  n->has_tokens = call->n_choices > 0;
  for (uint32_t i = 0; i < call->n_choices; i++) {
    const td_choice *ch = &call->choices[i];
    n->queue_ms = max_ms(n->queue_ms, ch->submit_us, ch->first_run_us);
    n->prefill_ms = max_ms(n->prefill_ms, ch->first_run_us, ch->first_token_us);
    n->decode_ms = max_ms(n->decode_ms, ch->first_token_us, ch->last_token_us);
    n->prompt_tokens += ch->n_prompt;
    n->cached_tokens += ch->n_cached;
    n->output_tokens += ch->n_generated;
  }
}

enum { FIELDS_MAX = 20 };

typedef struct fields {
  td_log_field all[FIELDS_MAX];
  size_t n;
} fields;

static void text(fields *f, const char *name, const char *value)
{
  if (value && *value)
    f->all[f->n++] = (td_log_field){name, value, 0, 0};
}

static void number(fields *f, const char *name, double value, int digits)
{
  f->all[f->n++] = (td_log_field){name, NULL, value, digits};
}

static const char *name_of_key(const td_conn *c)
{
  const td_key *key = c->note.account > 0 ? c->server->tenants.keys[c->note.account].key : NULL;
  return key ? key->name : NULL;
}

static void fill(fields *f, const td_conn *c, const char *client, int status)
{
  const td_request_note *n = &c->note;
  const td_engine *engine = c->server->engine;
  text(f, "id", c->request_id);
  text(f, "key", name_of_key(c));
  text(f, "client", client);
  text(f, "method", c->http.head.method_name);
  text(f, "path", c->http.head.path);
  if (n->is_call && c->server->engine_state == TD_ENGINE_READY)
    text(f, "model", td_engine_get_info(engine)->model_name);
  number(f, "status", status, 0);
  if (n->has_tokens) {
    number(f, "prompt_tokens", (double)n->prompt_tokens, 0);
    number(f, "cached_tokens", (double)n->cached_tokens, 0);
    number(f, "output_tokens", (double)n->output_tokens, 0);
    number(f, "queue_ms", n->queue_ms, 1);
    number(f, "prefill_ms", n->prefill_ms, 1);
    number(f, "decode_ms", n->decode_ms, 1);
  }
  number(f, "total_ms", c->arrival_us > 0 ? (double)(td_clock_us() - c->arrival_us) / 1e3 : 0, 1);
  text(f, "finish", n->finish);
  text(f, "code", n->code);
  text(f, "param", n->param);
}

void td_request_log_write(td_conn *c, int status)
{
  td_server *s = c->server;
  bool at_info = c->note.is_call || status >= 400;
  uint32_t n_suppressed = 0, lines_per_s = (uint32_t)td_option(s->options, TD_LIMIT_LOG_REQUESTS);
  uint32_t refusals_per_s = (uint32_t)td_limit_max(TD_LIMIT_LOG_REFUSALS);
  char client[TD_ADDRESS_TEXT_BYTES];
  fields f = {.n = 0};
  if (!td_log_wants(at_info ? TD_LOG_INFO : TD_LOG_DEBUG))
    return;
  if (at_info &&
      !td_log_gate_allow(status < 400 ? &s->request_lines : &s->refusal_lines, uv_now(&s->loop),
                         status < 400 || lines_per_s < refusals_per_s ? lines_per_s : refusals_per_s,
                         &n_suppressed))
    return;
  td_client_text(&c->client, client);
  fill(&f, c, client, status);
  if (n_suppressed > 0)
    number(&f, "left_out", n_suppressed, 0);
  td_log_event(at_info ? TD_LOG_INFO : TD_LOG_DEBUG, "request", f.all, f.n);
}
