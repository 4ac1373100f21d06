/* Memory of answers: see answer_memory.h. */
#include "server/answer_memory.h"

#include <inttypes.h>

#include "config/share.h"

enum { LEAST_WAIT_MS = 1000 }; /* added to each wait, so that fresh output is ranked by its size */

static uint64_t budget_of(const td_server *s)
{
  return (uint64_t)td_option(s->options, TD_LIMIT_ANSWERS_BYTES);
}

static td_tenant *tenant_of(const td_conn *c) { return c->tenant ? c->tenant : &c->server->tenants.none; }

void td_answer_memory_add_conn(td_conn *c)
{
  td_tenant *t = tenant_of(c);
  c->tenant_prev = NULL;
  c->tenant_next = t->conns;
  if (t->conns)
    t->conns->tenant_prev = c;
  t->conns = c;
  td_answer_heap_update(&c->server->tenants.answer_heap, t);
}

void td_answer_memory_remove_conn(td_conn *c)
{
  td_tenant *t = tenant_of(c);
  *(c->tenant_prev ? &c->tenant_prev->tenant_next : &t->conns) = c->tenant_next;
  if (c->tenant_next)
    c->tenant_next->tenant_prev = c->tenant_prev;
  td_answer_heap_update(&c->server->tenants.answer_heap, t);
}

void td_answer_memory_set(td_server *s, td_tenant *t, uint64_t *counted, uint64_t bytes)
{
  uint64_t delta = bytes - *counted; /* modulo 2^64, because it may be negative */
  td_tenant *owner = t ? t : &s->tenants.none;
  s->answer_memory_bytes += delta;
  owner->answer_memory_bytes += delta;
  *counted = bytes;
  td_answer_heap_update(&s->tenants.answer_heap, owner);
}

/* ---- choices ---- */

/* What the engine keeps for one token's log-probabilities. */
static uint64_t logprob_bytes(const td_api_request *r)
{
  return r->wants_logprobs || r->scores_prompt ? sizeof(td_token_logprob) + r->n_top * sizeof(td_top_token)
                                               : 0;
}

/* The engine's arrays, which it frees with the ticket. */
static uint64_t engine_bytes(const td_choice *ch)
{
  uint64_t per_token = logprob_bytes(&ch->call->request);
  if (ch->ticket.generation == 0)
    return 0;
  return ch->n_generated * (sizeof(int32_t) + per_token) + ch->n_scored * per_token;
}

/* Estimates the JSON of an answer that is not streamed. */
static uint64_t text_bytes(const td_choice *ch)
{
  const td_call *call = ch->call;
  const td_api_request *r = &call->request;
  uint64_t per_record = td_logprob_record_bytes(r->n_top), n = 0;
  uint64_t n_prompt = call->prompts[ch->prompt].logprobs.len_bytes / per_record;
  if (r->stream)
    return 0;
  if (r->wants_logprobs)
    n = (ch->logprobs.len_bytes / per_record + (r->echo ? n_prompt : 0)) * (1 + (uint64_t)r->top_logprobs);
  if (r->has_prompt_logprobs)
    n += n_prompt * (1 + (uint64_t)r->prompt_logprobs);
  uint64_t json_factor =
      call->info->makes_embeddings ? 4 : 1; /* a float's digits take about 4 times its bytes */
  return n * TD_LOGPROB_TEXT_BYTES + ch->out.len_bytes * json_factor + ch->parsed.text.len_bytes +
         ch->ids.len_bytes;
}

void td_answer_memory_count(td_choice *ch)
{
  td_call *call = ch->call;
  const td_prompt *p = &call->prompts[ch->prompt];
  uint64_t bytes = engine_bytes(ch) + text_bytes(ch) + ch->out.cap_bytes + ch->ids.cap_bytes +
                   ch->logprobs.cap_bytes + ch->parsed.text.cap_bytes + ch->sent_so_far.text.cap_bytes;
  if (ch->index == 0 || ch[-1].prompt != ch->prompt) /* counted once, for the prompt's first choice */
    bytes += p->logprobs.cap_bytes + p->text.cap_bytes + p->json.cap_bytes;
  td_answer_memory_set(call->server, call->tenant, &call->answer_memory_bytes,
                       call->answer_memory_bytes + bytes - ch->answer_memory_bytes);
  ch->answer_memory_bytes = bytes;
}

/* ---- which answer is ended ---- */

/* Time since the peer last took output. */
static uint64_t waited_ms(const td_conn *c) { return uv_now(&c->server->loop) - c->progress_ms; }

static uint64_t conn_bytes(const td_conn *c)
{
  return c->answer_memory_bytes + (c->call ? c->call->answer_memory_bytes : 0);
}

/* Bytes held, times how long the peer has taken nothing. */
static double cost(const td_conn *c)
{
  return (double)conn_bytes(c) * (double)(LEAST_WAIT_MS + waited_ms(c));
}

/* The most that the call's answer may come to. */
static uint64_t max_answer_bytes(const td_call *call)
{
  const td_api_request *r = &call->request;
  uint64_t per_token = sizeof(int32_t) + logprob_bytes(r);
  if (r->wants_logprobs && !r->stream)
    per_token += (1 + (uint64_t)r->top_logprobs) * TD_LOGPROB_TEXT_BYTES;
  return call->n_choices * per_token * call->max_new;
}

/* Whether a is ended before b. Their tenants hold the same. */
static bool is_ended_before(const td_conn *a, const td_conn *b)
{
  bool is_unread = a->answer_memory_bytes > 0;
  if (is_unread != (b->answer_memory_bytes > 0))
    return is_unread;
  if (is_unread)
    return cost(a) > cost(b);
  uint64_t max_a = max_answer_bytes(a->call), max_b = max_answer_bytes(b->call);
  return max_a != max_b ? max_a > max_b : a->call->arrival_us > b->call->arrival_us;
}

/* The connection to end among the tenants that hold most: looks at this place of the heap, and at those below
 * as long as they hold as much. found: the best so far. */
static td_conn *find_victim(const td_answer_heap *h, uint32_t at, td_conn *found)
{
  if (at > h->n || h->heap[at]->answer_memory_bytes < td_answer_heap_max_bytes(h))
    return found;
  for (td_conn *c = h->heap[at]->conns; c; c = c->tenant_next)
    if (conn_bytes(c) > 0 && (!found || is_ended_before(c, found)))
      found = c;
  return find_victim(h, 2 * at + 1, find_victim(h, 2 * at, found));
}

void td_answer_memory_trim(td_server *s)
{
  td_conn *c;
  td_api_error e;
  while (s->answer_memory_bytes > budget_of(s) && (c = find_victim(&s->tenants.answer_heap, 1, NULL))) {
    if (c->answer_memory_bytes > 0) {
      td_conn_cut(c, TD_CUT_ANSWER_MEMORY);
      continue;
    }
    td_api_error_set(
        &e, 503, "answers_full", NULL,
        "there is no room to hold this answer beside others until it is read (answers_bytes is %" PRIu64
        "): ask for fewer choices or log-probabilities, or come again",
        budget_of(s));
    td_call_fail(c->call, &e);
  }
}

/* ---- admission ---- */

/* There is always room if another tenant holds more, because td_answer_memory_trim would end that tenant's
 * answers. */
static bool has_room(const td_conn *c)
{
  const td_server *s = c->server;
  bool several = td_tenants_are_several(&s->tenants);
  if (several ? td_share_allows(budget_of(s), s->answer_memory_bytes, c->tenant->answer_memory_bytes, 1)
              : s->answer_memory_bytes < budget_of(s))
    return true;
  return td_answer_heap_max_bytes(&s->tenants.answer_heap) > tenant_of(c)->answer_memory_bytes;
}

bool td_answer_memory_admit(const td_conn *c, td_api_error *e)
{
  if (has_room(c))
    return true;
  td_api_error_set(e, 429, "answers_full", NULL,
                   "your answers that are not read yet take %" PRIu64 " of %" PRIu64
                   " bytes (answers_bytes): read them, or close their connections",
                   c->tenant->answer_memory_bytes, budget_of(c->server));
  return false;
}

void td_answer_memory_too_long(uint64_t most, td_api_error *e)
{
  td_api_error_set(e, 400, "answer_too_long", NULL,
                   "the answer takes more than the %" PRIu64 " bytes that one may take until it is read "
                   "(answer_bytes): ask for fewer choices, tokens or log-probabilities",
                   most);
}
