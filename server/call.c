/* Calls: see call.h. */
#include "server/call.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/hash.h"
#include "common/progress.h"
#include "config/share.h"
#include "server/answer_memory.h"
#include "server/translate.h"

/* ---- for workers ---- */

/* COUNT_BEYOND: a prompt that is longer than the context is tokenised this far beyond it, so that the error
 * can say how long it is. COUNT_ONLY: the bound for routes that only count tokens, more than a body of the
 * default size can hold. */
enum { COUNT_BEYOND = 65536, COUNT_ONLY = 1 << 24 };

size_t td_call_token_limit(const td_call *call)
{
  return call->api->generates ? (size_t)call->info->max_context_tokens + COUNT_BEYOND : COUNT_ONLY;
}

/* Answer tokens that the request asks for. 0: it gives no number (or asks for none), -1: no limit. */
static int64_t requested_tokens(const td_api_request *r)
{
  return r->has_max_completion_tokens ? r->max_completion_tokens : r->max_tokens;
}

/* The message has OpenAI's wording, because libraries recognise the error by it. litellm does, to fall back
 * to a model with more context. */
bool td_call_fail_context(td_call *call, const char *param, uint64_t n_prompt, bool or_more)
{
  int64_t requested = requested_tokens(&call->request);
  uint64_t n_answer = requested > 0 ? (uint64_t)requested : 1;
  const char *more = or_more ? "more than " : "";
  const char *cut = call->info->context_is_cut
                        ? " The model could do more: this server's KV memory (kv_bytes) bounds it."
                        : "";
  if (!call->api->generates)
    td_api_error_set(&call->error, 400, "context_length_exceeded", param, "'%s' has more than %zu tokens",
                     param, td_call_token_limit(call));
  else if (call->info->makes_embeddings)
    td_api_error_set(&call->error, 400, "context_length_exceeded", param,
                     "This model's maximum context length is %u tokens. However, you requested %s%" PRIu64
                     " tokens in the %s. Please reduce the length of the %s.%s",
                     call->info->max_context_tokens, more, n_prompt, param, param, cut);
  else
    td_api_error_set(&call->error, 400, "context_length_exceeded", param,
                     "This model's maximum context length is %u tokens. However, you requested %s%" PRIu64
                     " tokens (%s%" PRIu64 " in the %s, %" PRIu64
                     " in the completion). Please reduce the length of the %s or completion.%s",
                     call->info->max_context_tokens, more, n_prompt + n_answer, more, n_prompt, param,
                     n_answer, param, cut);
  return false;
}

bool td_call_fail_tokens(td_call *call, const td_error *err, const char *param)
{
  /* The tokeniser fails only for texts that are too long and names no field but "prompt". The template names
   * other fields. */
  if (err->code == TD_ERR_REQUEST && (!*err->param || strcmp(err->param, "prompt") == 0))
    return td_call_fail_context(call, param, td_call_token_limit(call), true);
  td_api_error_from(&call->error, err);
  return false;
}

bool td_call_alloc_prompts(td_call *call, size_t n)
{
  call->prompts = calloc(n, sizeof *call->prompts);
  if (!call->prompts) {
    td_api_error_set(&call->error, 503, "out_of_memory", NULL, "no memory for prompts");
    return false;
  }
  call->n_prompts = (uint32_t)n;
  return true;
}

/* All choices of a request enter the queue together, so their sum must fit. A single choice is always
 * admitted, however long it is (engine/requests.c). */
static bool check_queue_tokens(td_call *call, const char *param)
{
  uint64_t per_prompt = (uint64_t)call->request.n, n_tokens = 0;
  for (uint32_t i = 0; i < call->n_prompts; i++)
    n_tokens += per_prompt * call->prompts[i].n;
  if (call->n_prompts * per_prompt == 1 || n_tokens <= call->max_prompt_tokens)
    return true;
  td_api_error_set(&call->error, 400, "invalid_value", per_prompt > 1 ? "n" : param,
                   "%u prompts with %" PRIu64 " choices each are %" PRIu64
                   " prompt tokens, more than the %" PRIu64 " that this server takes at once (queue_tokens)",
                   call->n_prompts, per_prompt, n_tokens, call->max_prompt_tokens);
  return false;
}

/* Bounds how many log-probabilities of prompt tokens the whole answer returns. */
static bool check_scores(td_call *call, const char *param)
{
  const td_api_request *r = &call->request;
  uint64_t n_tokens = 0, of_each = 0;
  for (uint32_t i = 0; i < call->n_prompts; i++)
    n_tokens += call->prompts[i].n;
  if (r->echo && r->wants_logprobs)
    of_each += 1 + (uint64_t)r->top_logprobs;
  if (r->has_prompt_logprobs)
    of_each += 1 + (uint64_t)r->prompt_logprobs;
  uint64_t n = n_tokens * of_each * (uint64_t)r->n;
  if (n <= call->max_prompt_scores)
    return true;
  td_api_error_set(&call->error, 400, "invalid_value", param,
                   "%" PRIu64 " prompt tokens with %" PRIu64
                   " log-probabilities each, for %d choices, are more "
                   "than the %" PRIu64 " that this server tells in an answer (prompt_scores)",
                   n_tokens, of_each, (int)r->n, call->max_prompt_scores);
  return false;
}

bool td_call_check_context(td_call *call, bool default_rest)
{
  const td_api_request *r = &call->request;
  const char *param = r->messages ? "messages" : r->input ? "input" : "prompt";
  int64_t requested = requested_tokens(r);
  /* the engine generates at least one token, also where the request wants none */
  uint64_t want = call->info->makes_embeddings ? 0 : requested > 0 ? (uint64_t)requested : 1;
  uint64_t longest_rest = 0;
  call->max_new = requested > 0                   ? (uint32_t)requested
                  : !r->has_answer                ? 1
                  : requested < 0 || default_rest ? UINT32_MAX
                                                  : 16;
  for (uint32_t i = 0; i < call->n_prompts; i++) {
    if (call->prompts[i].n == 0) {
      td_api_error_set(&call->error, 400, "invalid_value", param, "'%s' gives an empty prompt", param);
      return false;
    }
    if (call->prompts[i].n + want > call->info->max_context_tokens)
      return td_call_fail_context(call, param, call->prompts[i].n, false);
    uint64_t rest = call->info->max_context_tokens - call->prompts[i].n;
    longest_rest = rest > longest_rest ? rest : longest_rest;
  }
  if (call->info->makes_embeddings)
    call->max_new = 1;
  else if (call->max_new > longest_rest)
    call->max_new = (uint32_t)longest_rest;
  if ((uint64_t)call->n_prompts * (uint64_t)r->n > call->max_choices) {
    td_api_error_set(&call->error, 400, "invalid_value", r->input ? param : "n",
                     "%u prompts with %d choices each are more than the %u "
                     "that this server takes at once",
                     call->n_prompts, (int)r->n, call->max_choices);
    return false;
  }
  return check_scores(call, r->has_prompt_logprobs ? "prompt_logprobs" : "logprobs") &&
         check_queue_tokens(call, param);
}

/* ---- on a worker ---- */

/* A model without a tokenizer understands token ids only: stop strings are refused, and answers return ids
 * even if the request does not ask for them. */
static bool suit_tokenizer(td_call *call)
{
  td_api_request *r = &call->request;
  if (call->info->has_tokenizer)
    return true;
  if (r->stops.n > 0) {
    td_api_error_set(&call->error, 400, "unsupported_parameter", "stop",
                     "this model has no tokenizer (tokenizer.json or tokenizer.model): 'stop' cannot be "
                     "found in answers without text, "
                     "'stop_token_ids' can");
    return false;
  }
  r->return_token_ids = true;
  return true;
}

static uint64_t deadline_us(const td_call *call, int64_t timeout_ms)
{
  return timeout_ms > 0 ? call->arrival_us + 1000 * (uint64_t)timeout_ms : 0;
}

static td_terms terms_of(const td_call *call)
{
  const td_api_request *r = &call->request;
  uint32_t account = call->tenant->account;
  return (td_terms){
      .namespace_id = td_namespace_of(&call->server->namespace_secret, account, r->cache_salt),
      .account = account,
      .priority = (int32_t)r->priority,
      .ttft_deadline_us = deadline_us(call, r->ttft_timeout_ms),
      .deadline_us = deadline_us(call, r->timeout_ms),
  };
}

/* Replaces the body's tree by the chat that the route makes of it, on routes that translate. */
static bool translate(td_call *call)
{
  if (!call->api->translate)
    return true;
  cJSON *chat = call->api->translate(call, call->root);
  cJSON_Delete(call->root);
  call->root = chat;
  call->translated = chat != NULL; /* later errors name fields of the chat */
  return chat;
}

/* Parses the body and checks each field by itself. Takes time linear in the body's length. */
static bool read_fields(td_call *call)
{
  td_error err;
  td_json_limits limits = {td_limit_max(TD_LIMIT_JSON_DEPTH), call->json_nodes, TD_ERR_REQUEST};
  if (td_json_parse_ids(call->body.data ? call->body.data : "", call->body.len_bytes, &limits,
                        call->api->ids_member, &call->root, &err) != TD_OK) {
    td_api_error_from(&call->error, &err);
    if (call->error.status == 400 && call->body.len_bytes == 0)
      td_api_error_set(&call->error, 400, "invalid_json", NULL,
                       "the body is empty: it must be a JSON object");
    else if (call->error.status == 400)
      call->error.code = "invalid_json";
    return false;
  }
  td_buf_deinit(&call->body);
  td_progress_touch(td_progress_here); /* parsing itself reports no progress: its time is linear */
  const td_engine_info *info = call->info;
  td_api_request *r = &call->request;
  td_request_rules rules = {info->default_sampling, info->vocab, call->strict_fields};
  if (!translate(call))
    return false;
  td_unknown unknown = r->unknown; /* fields of the route's own body, merged with the chat's below */
  bool ok = td_request_read(call->root, call->api->is_chat ? TD_ROUTE_CHAT : call->api->route, &rules, r,
                            &call->error);
  if (call->api->translate) {
    td_unknown_merge(&unknown, &r->unknown);
    r->unknown = unknown;
  }
  if (ok && r->model && !td_server_has_model(call->server, r->model)) {
    td_api_error_set(&call->error, 404, "model_not_found", "model",
                     "the model '%.200s' is not served here; '%.200s' is", r->model, info->model_name);
    ok = false;
  }
  ok = ok && suit_tokenizer(call);
  if (ok)
    call->terms = terms_of(call);
  const td_message_rules message_rules = {info->template_has_developer, call->json_nodes};
  if (ok && r->messages) /* the cast is safe: the call owns the tree */
    ok = td_messages_normalise((cJSON *)r->messages, &message_rules, &r->unknown, &call->error);
  td_progress_touch(td_progress_here);
  return ok;
}

/* Makes tokenised prompts and the grammar from the fields. */
static bool prepare(td_call *call)
{
  bool ok = td_bad_words_read(call->engine, call->request.bad_words, &call->bad_words, &call->error) &&
            call->api->prepare(call);
  cJSON_Delete(call->root);
  call->root = NULL;
  return ok;
}

static void run_call(td_job *job)
{
  td_call *call = (td_call *)job;
  if (atomic_load(&call->abandoned))
    return;
  call->failed = (!call->root && !read_fields(call)) || (!atomic_load(&call->abandoned) && !prepare(call));
  if (call->failed && call->translated)
    td_translation_name(call->api->route, &call->error);
}

/* ---- on the loop ---- */

static void uncount_body(td_call *call)
{
  call->server->body_bytes -= call->body_counted;
  call->tenant->body_bytes -= call->body_counted;
  call->body_counted = 0;
}

/* The key's limits stop counting the call as soon as its client is gone, even if a worker still has it. */
static void uncount_to_generate(td_call *call)
{
  call->tenant->n_to_generate -= call->is_to_generate;
  call->is_to_generate = false;
}

/* Also for a call that a worker still has: its memory will be freed soon. */
static void uncount_answer_memory(td_call *call)
{
  td_answer_memory_set(call->server, call->tenant, &call->answer_memory_bytes, 0);
}

static td_conn *detach(td_call *call)
{
  td_conn *c = call->conn;
  call->conn = NULL;
  if (c)
    c->call = NULL;
  return c;
}

void td_call_respond(td_call *call, td_buf *headers, td_buf *body)
{
  td_buf none = {.failed = true};
  td_unknown_render(&call->request.unknown, headers);
  td_conn_respond_buf(detach(call), 200, "application/json", headers->data, headers->failed ? &none : body);
  td_buf_deinit(headers);
}

static void call_done(td_job *job)
{
  td_call *call = (td_call *)job;
  td_server *s = call->server;
  call->with_worker = false;
  s->n_reading--;
  call->tenant->n_reading--;
  uncount_to_generate(call);
  uncount_body(call);
  if (!call->failed)
    td_unknown_log_new(&s->unknown_log, &call->request.unknown);
  if (!call->conn) {
    td_call_destroy(call);
  } else if (s->stopping) {
    td_api_error e;
    td_api_error_set(&e, 503, "shutting_down", NULL, "the server is shutting down");
    td_call_fail(call, &e);
  } else if (call->failed) {
    td_conn *c = detach(call);
    td_conn_respond_error(c, &call->error);
    td_call_destroy(call);
  } else if (!call->api->generates) {
    td_buf headers;
    td_buf_init(&headers, 0);
    td_call_respond(call, &headers, &call->answer);
    td_call_destroy(call);
  } else {
    td_generation_submit(call);
  }
}

/* Writes sixteen digits; returns the byte after them. */
static char *put_hex(char *at, uint64_t v)
{
  for (int shift = 60; shift >= 0; shift -= 4)
    *at++ = "0123456789abcdef"[v >> shift & 15];
  return at;
}

static void make_id(td_call *call)
{
  size_t n = strlen(call->api->id_prefix);
  TD_BUG_ON(n + 33 > sizeof call->id);
  memcpy(call->id, call->api->id_prefix, n);
  char *end = put_hex(put_hex(call->id + n, td_random_u64()), td_random_u64());
  *end = '\0';
}

static void link_call(td_call *call)
{
  td_server *s = call->server;
  call->next = s->calls;
  if (call->next)
    call->next->prev = call;
  s->calls = call;
  s->n_calls++;
}

static void no_room(td_conn *c, const char *text)
{
  td_api_error e;
  td_api_error_set(&e, 429, "queue_full", NULL, "%s", text);
  td_conn_respond_error(c, &e);
}

/* Whether the prompt is token ids and the request needs no further computation: no grammar, no echo, no bad
 * words. Arrays of numbers that are not ids count too, because preparing them only means refusing them. */
static bool is_plain(const td_call *call)
{
  const td_api_request *r = &call->request;
  bool ids = td_json_is_ids(r->prompt) || (cJSON_IsArray(r->prompt) && cJSON_IsNumber(r->prompt->child));
  return call->api == &td_api_completions && ids && !r->echo && !r->bad_words &&
         r->grammar.kind == TD_GRAMMAR_NONE;
}

/* Reads a short body on the loop thread, because a hand-over to a worker would cost more. Returns true if the
 * call is prepared or has failed, false if a worker must do the rest. */
static bool read_at_once(td_call *call)
{
  if (call->api != &td_api_completions || call->body.len_bytes > td_limit_max(TD_LIMIT_LOOP_BODY_BYTES) ||
      call->server->polling) /* true if a sent answer has let the connection's next request begin */
    return false;
  call->failed = !read_fields(call);
  if (!call->failed && is_plain(call))
    call->failed = !prepare(call);
  else if (!call->failed)
    return false;
  return true;
}

static void enter_reading(td_call *call)
{
  td_conn *c = call->conn;
  call->server->n_reading++;
  call->tenant->n_reading++;
  call->is_to_generate = call->api->generates;
  call->tenant->n_to_generate += call->is_to_generate;
  c->state = TD_CONN_ANSWERING;
  c->since_ms = uv_now(&call->server->loop);
  c->call = call;
}

/* The most that one key may have of a queue's capacity, when no other key has any. */
static uint64_t most_of(const td_server *s, td_limit_id id)
{
  uint64_t all = (uint64_t)td_option(s->options, id);
  return s->keys.n > 1 ? td_share_most(all) : all;
}

void td_call_begin(td_conn *c, const td_api *api)
{
  td_server *s = c->server;
  td_error err;
  td_api_error e;
  if (!td_server_accepts_requests(s->engine_state, &e)) { /* it may have failed since the head */
    td_conn_respond_error(c, &e);
    return;
  }
  td_call *call = calloc(1, sizeof *call);
  if (!call) {
    td_api_error_set(&e, 503, "out_of_memory", NULL, "no memory for the request");
    td_conn_respond_error(c, &e);
    return;
  }
  call->job.run = run_call;
  call->job.done = call_done;
  call->server = s;
  call->conn = c;
  call->api = api;
  call->engine = s->engine;
  call->info = td_engine_get_info(s->engine);
  call->json_nodes = (size_t)td_option(s->options, TD_LIMIT_JSON_NODES);
  call->strict_fields = td_option(s->options, TD_LIMIT_STRICT_FIELDS);
  call->drops_billing_line = td_option(s->options, TD_LIMIT_DROP_BILLING_LINE);
  call->max_choices = (uint32_t)most_of(s, TD_LIMIT_QUEUE_REQUESTS);
  call->max_prompt_scores = (uint64_t)td_option(s->options, TD_LIMIT_PROMPT_SCORES);
  call->max_prompt_tokens = most_of(s, TD_LIMIT_QUEUE_TOKENS);
  call->arrival_us = c->arrival_us;
  call->created_s = (int64_t)time(NULL);
  call->tenant = td_tenant_ref(c->tenant);
  atomic_init(&call->abandoned, false);
  td_buf_init(&call->answer, (size_t)td_option(s->options, TD_LIMIT_ANSWER_BYTES));
  make_id(call);
  call->body = c->http.body;
  td_buf_init(&c->http.body, 0);
  call->body_counted = c->body_counted;
  c->body_counted = 0;
  call->job.work = &call->tenant->work;
  call->job.n_bytes = call->body.len_bytes;
  link_call(call);
  if (read_at_once(call)) {
    enter_reading(call);
    call_done(&call->job);
    return;
  }
  if (td_workers_submit(s->workers, &call->job, td_tenants_are_several(&s->tenants), &err) != TD_OK) {
    uncount_body(call);
    call->conn = NULL;
    td_call_destroy(call);
    no_room(c, err.message);
    return;
  }
  call->with_worker = true;
  enter_reading(call);
}

void td_call_abandon(td_call *call)
{
  call->conn = NULL;
  atomic_store(&call->abandoned, true);
  uncount_to_generate(call);
  uncount_answer_memory(call);
  if (call->generating)
    td_generation_cancel(call, TD_FINISHED_ABORT);
  if (!call->with_worker)
    td_call_destroy(call);
}

void td_call_writable(td_call *call)
{
  if (call->generating)
    td_generation_pump(call);
}

void td_call_fail(td_call *call, const td_api_error *e)
{
  bool streaming = call->conn && call->conn->in_stream;
  if (call->conn) {
    td_request_log_note(&call->conn->note, call, "error");
    call->conn->note.code = e->code;
  }
  if (call->generating)
    td_generation_cancel(call, TD_FINISHED_ERROR);
  td_conn *c = detach(call);
  if (c && streaming) {
    td_buf event;
    td_buf_init(&event, 0);
    if (call->api->render_error_event) {
      call->api->render_error_event(call, e, &event);
    } else {
      td_buf_append_str(&event, "data: ");
      td_api_error_render(e, &event);
      td_buf_append_str(&event, "\n\n");
    }
    if (event.failed)
      c->out.failed = true; /* cuts the connection, so that half an event does not look whole */
    td_conn_stream_send(c, event.data ? event.data : "", event.len_bytes);
    td_buf_deinit(&event);
    td_conn_stream_end(c);
  } else if (c) {
    td_conn_respond_error(c, e);
  }
  uncount_to_generate(call);
  uncount_answer_memory(call);
  if (call->with_worker)
    atomic_store(&call->abandoned, true);
  else
    td_call_destroy(call);
}

static void free_call(td_call *call)
{
  for (uint32_t i = 0; i < call->n_choices; i++) {
    td_text_stream_destroy(call->choices[i].text);
    td_stop_filter_deinit(&call->choices[i].filter);
    td_buf_deinit(&call->choices[i].out);
    td_buf_deinit(&call->choices[i].ids);
    td_buf_deinit(&call->choices[i].logprobs);
    td_reader_destroy(call->choices[i].reader);
    td_parsed_answer_deinit(&call->choices[i].parsed);
    td_parsed_answer_deinit(&call->choices[i].sent_so_far);
  }
  free(call->choices);
  for (uint32_t i = 0; i < call->n_prompts; i++) {
    free(call->prompts[i].ids);
    td_buf_deinit(&call->prompts[i].json);
    td_buf_deinit(&call->prompts[i].text);
    td_buf_deinit(&call->prompts[i].logprobs);
  }
  free(call->prompts);
  td_engine_drop_grammar(call->grammar);
  td_bad_words_drop(call->bad_words);
  td_tools_deinit(&call->tools);
  td_request_deinit(&call->request);
  cJSON_Delete(call->root);
  td_buf_deinit(&call->body);
  td_buf_deinit(&call->answer);
  td_buf_deinit(&call->echo);
  free(call);
}

void td_call_free_ended(td_server *s)
{
  while (s->ended_during_poll) {
    td_call *call = s->ended_during_poll;
    s->ended_during_poll = call->next;
    free_call(call);
  }
}

void td_call_destroy(td_call *call)
{
  td_server *s = call->server;
  *(call->prev ? &call->prev->next : &s->calls) = call->next;
  if (call->next)
    call->next->prev = call->prev;
  s->n_calls--;
  uncount_answer_memory(call);
  td_tenant_drop(&s->tenants, call->tenant);
  call->tenant = NULL;
  if (s->polling) { /* later updates of the current batch may still refer to it */
    call->next = s->ended_during_poll;
    s->ended_during_poll = call;
  } else {
    free_call(call);
  }
  td_server_stop_if_drained(s);
}
