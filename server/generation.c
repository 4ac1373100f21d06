/* Generation: submits a call's choices to the engine, turns their tokens to text and sends it.
 *
 * The engine never waits for the loop: it appends to each choice's token array, and the loop follows. In a
 * stream the loop goes only as far as the client reads, so tokens that wait for a slow client stay in that
 * array, four bytes each. Tokens become text one at a time only with stop strings or a reader, which must
 * know at which token something ended. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "server/call.h"
#include "server/answer_memory.h"
#include "server/key_limits.h"

enum { POLL_BATCH = 64, CHUNK_TOKENS = 512 };

/* ---- submitting ---- */

static void drop_ticket(td_choice *ch)
{
  td_server *s = ch->call->server;
  if (ch->ticket.generation == 0)
    return;
  if (ch->engine_finish != TD_FINISH_NONE)
    td_engine_release(s->engine, ch->ticket);
  else if (ch->finish)
    td_engine_end(s->engine, ch->ticket);
  else
    td_engine_cancel(s->engine, ch->ticket);
  ch->ticket.generation = 0;
  ch->tokens = NULL;
  ch->engine_logprobs = NULL;
  ch->engine_top = NULL;
  ch->vector = NULL;
}

static void leave_queue(td_call *call)
{
  call->server->n_choices -= call->n_choices;
  call->tenant->n_choices -= call->n_choices;
  for (uint32_t i = 0; i < call->n_choices; i++)
    call->tenant->n_waiting -= !call->choices[i].first_token_counted;
  call->generating = false;
}

void td_generation_cancel(td_call *call, td_finished why)
{
  td_server *s = call->server;
  for (uint32_t i = 0; i < call->n_choices; i++) {
    if (!call->choices[i].slot_released)
      s->metrics.finished[why]++;
    call->choices[i].slot_released = true;
    drop_ticket(&call->choices[i]);
  }
  if (call->generating)
    leave_queue(call);
}

/* Frees the masks of a request that the engine has not taken. */
static void drop_masks(td_engine_request *r)
{
  if (r->mask.drop)
    r->mask.drop(r->mask.arg);
}

static bool forbid_words(const td_call *call, td_engine_request *r)
{
  td_mask_provider p = td_bad_words_provide(call->bad_words, r->mask, r->n_prompt);
  if (p.fill)
    r->mask = p;
  return p.fill != NULL;
}

/* Whether ch is not the first choice of its prompt. */
static bool is_further_choice(const td_choice *ch) { return ch->index % (uint32_t)ch->call->request.n > 0; }

static td_status submit_choice(td_choice *ch, td_sampling sampling, td_error *err)
{
  td_call *call = ch->call;
  const td_prompt *p = &call->prompts[ch->prompt];
  size_t rest = call->info->max_context_tokens - p->n;
  bool is_whole = call->max_new < rest || call->info->makes_embeddings; /* no token joins the context */
  uint32_t max_new = is_whole ? call->max_new : (uint32_t)rest;
  sampling.seed += ch->index % (uint32_t)call->request.n; /* differs for the choices of one prompt only */
  td_engine_request r = {
      .n_prompt = (uint32_t)p->n,
      .max_new = max_new,
      .sampling = sampling,
      .ignore_eos = call->request.ignore_eos,
      .n_stop_ids = call->request.n_stop_ids,
      .terms = call->terms,
      .user = ch,
  };
  r.terms.is_further_choice = is_further_choice(ch);
  if (call->request.scores_prompt && !r.terms.is_further_choice)
    r.n_prompt_logits = r.n_prompt - 1;
  ch->n_scored = r.n_prompt_logits;
  memcpy(r.stop_ids, call->request.stop_ids, r.n_stop_ids * sizeof r.stop_ids[0]);
  const bool begins = call->api->is_chat && !call->request.continue_final_message;
  ch->text = td_text_stream_create(call->engine, call->request.skip_special_tokens, begins);
  if (ch->text && call->reads_answers)
    td_text_stream_mark_tokens(ch->text, call->server->mark_ids, call->server->n_mark_ids);
  r.tokens = malloc((p->n + max_new) * sizeof *r.tokens);
  if (call->grammar)
    r.mask = td_engine_make_masks(call->grammar, r.n_prompt);
  bool masks_fail = (call->grammar && !r.mask.fill) || (call->bad_words && !forbid_words(call, &r));
  if (!ch->text || !r.tokens || masks_fail) {
    drop_masks(&r);
    free(r.tokens);
    return td_fail(err, TD_ERR_NOMEM, "no memory for the request");
  }
  memcpy(r.tokens, p->ids, p->n * sizeof *r.tokens);
  td_status st = td_engine_submit(call->server->engine, &r, &ch->ticket, err);
  if (st != TD_OK) {
    ch->ticket.generation = 0;
    drop_masks(&r);
    free(r.tokens);
  }
  return st;
}

static td_reader *make_reader(const td_call *call)
{
  const td_api_request *r = &call->request;
  td_reader_rules rules = {.dialect = &call->server->dialect,
                           .tools = r->choice.mode != TD_TOOLS_NONE ? &call->tools : NULL,
                           .prompt = call->prompt_end,
                           .reasons = true,
                           .whole = !r->stream,
                           .shows_special = !r->skip_special_tokens};
  return td_reader_create(&rules);
}

static bool make_choices(td_call *call)
{
  uint32_t per_prompt = (uint32_t)call->request.n, n = call->n_prompts * per_prompt;
  call->choices = calloc(n, sizeof *call->choices);
  if (!call->choices)
    return false;
  call->n_choices = call->n_open = n;
  for (uint32_t i = 0; i < n; i++) {
    td_choice *ch = &call->choices[i];
    ch->call = call;
    ch->index = i;
    ch->prompt = i / per_prompt;
    ch->n_prompt = (uint32_t)call->prompts[ch->prompt].n;
    td_stop_filter_init(&ch->filter, &call->request.stops);
    ch->filter.keeps_stop = call->request.include_stop_str_in_output;
    td_buf_init(&ch->out, 0);
    td_buf_init(&ch->ids, 0);
    td_buf_init(&ch->logprobs, 0);
    td_parsed_answer_init(&ch->parsed);
    td_parsed_answer_init(&ch->sent_so_far);
    if (call->request.echo)
      td_buf_append(&ch->out, call->prompts[ch->prompt].text.data, call->prompts[ch->prompt].text.len_bytes);
    if (call->reads_answers && !(ch->reader = make_reader(call)))
      return false;
  }
  return true;
}

/* Submits every choice. The loop has checked that there is room, but the engine counts too and may refuse. */
static td_status submit_all(td_call *call, td_error *err)
{
  td_server *s = call->server;
  if (!make_choices(call))
    return td_fail(err, TD_ERR_NOMEM, "no memory for the request");
  s->n_choices += call->n_choices;
  call->tenant->n_choices += call->n_choices;
  call->tenant->n_waiting += call->n_choices;
  call->generating = true;
  td_sampling sampling = td_request_sampling(&call->request);
  if (!call->request.has_seed)
    sampling.seed = td_random_u64();
  for (uint32_t i = 0; i < call->n_choices; i++)
    TD_TRY(submit_choice(&call->choices[i], sampling, err));
  return TD_OK;
}

/* Frees the prompts' ids, of which the engine has copies. If the answer returns them, their JSON is written
 * now, while the first step runs, and not later, when it would delay the first token. */
static void drop_ids(td_call *call)
{
  for (uint32_t i = 0; i < call->n_prompts; i++) {
    td_prompt *p = &call->prompts[i];
    if (call->request.return_token_ids)
      td_buf_append_json_ints(&p->json, p->ids, p->n);
    free(p->ids);
    p->ids = NULL;
  }
}

static uint64_t prompt_tokens(const td_call *call)
{
  uint64_t n = 0;
  for (uint32_t i = 0; i < call->n_prompts; i++)
    n += call->prompts[i].n;
  return n;
}

/* Asks the key's own limits last: asking takes from them, and only a refusal by the engine gives back. */
static bool has_room(const td_call *call, td_api_error *e)
{
  const td_server *s = call->server;
  uint64_t n = (uint64_t)call->n_prompts * (uint64_t)call->request.n;
  uint64_t taken = (uint64_t)s->n_choices + (s->keys.n > 1 ? s->n_reading : 0); /* shares count both */
  uint64_t cap = (uint64_t)td_option(s->options, TD_LIMIT_QUEUE_REQUESTS);
  return td_tenant_may_queue(&s->tenants, call->tenant, cap, taken, n, e) &&
         td_key_limits_take(call->tenant, prompt_tokens(call), n, td_clock_us(), e);
}

/* On false, *e is the error. If the engine has stopped since the loop last looked, the error says so, and not
 * that there is no room. */
static bool submit(td_call *call, td_api_error *e)
{
  td_server *s = call->server;
  td_error err;
  if (!td_server_accepts_requests(s->engine_state, e) || !has_room(call, e))
    return false;
  if (submit_all(call, &err) == TD_OK)
    return true;
  td_key_limits_give_back(call->tenant, prompt_tokens(call));
  if (td_server_accepts_requests(td_engine_get_state(s->engine), e))
    td_api_error_from(e, &err);
  return false;
}

static void begin_stream(td_call *call)
{
  td_buf headers;
  td_buf_init(&headers, 0);
  td_buf_append_str(&headers, "cache-control: no-cache\r\nx-accel-buffering: no\r\n");
  td_unknown_render(&call->request.unknown, &headers);
  td_conn_stream_begin(call->conn, "text/event-stream; charset=utf-8", headers.data);
  call->conn->out.failed |= headers.failed; /* cuts the connection, because the head is incomplete */
  td_buf_deinit(&headers);
}

void td_generation_submit(td_call *call)
{
  td_api_error e;
  if (!submit(call, &e)) {
    if (e.code && strcmp(e.code, "rate_limit_exceeded") != 0) /* key limits have set Retry-After */
      td_server_set_retry_after(call->server, &e, call->n_prompts > 0 ? (uint32_t)call->prompts[0].n : 1);
    td_call_fail(call, &e);
    return;
  }
  if (call->request.stream)
    begin_stream(call);
  drop_ids(call);
}

/* ---- tokens to text ---- */

static void finish_text(td_choice *ch, const char *why)
{
  td_buf tail;
  td_buf_init(&tail, 0);
  td_text_stream_finish(ch->text, &tail);
  if (tail.failed)
    ch->out.failed = true;
  bool matched = td_stop_filter_push(&ch->filter, tail.data ? tail.data : "", tail.len_bytes, &ch->out);
  td_stop_filter_finish(&ch->filter, &ch->out);
  td_buf_deinit(&tail);
  ch->finish = matched ? "stop" : why;
}

/* Keeps entry i of the engine's log-probabilities. The scored tokens of the prompt come first. */
static void keep_logprob(td_choice *ch, size_t i, uint32_t *text_offset, td_buf *records)
{
  uint32_t n_top = ch->call->request.n_top;
  td_logprobs_keep(ch->call->engine, ch->tokens[ch->n_prompt - ch->n_scored + i], &ch->engine_logprobs[i],
                   ch->engine_top ? ch->engine_top + i * n_top : NULL, n_top, text_offset, records);
}

/* Keeps the log-probabilities of the n tokens that are being read, if the answer returns them. */
static void keep_logprobs(td_choice *ch, size_t n)
{
  bool wanted = ch->call->request.wants_logprobs && ch->engine_logprobs;
  for (size_t i = ch->n_read; wanted && i < ch->n_read + n; i++)
    keep_logprob(ch, ch->n_scored + i, &ch->text_offset, &ch->logprobs);
}

/* Keeps the log-probabilities of the choice's prompt, which was scored with it, for all choices of the
 * prompt. */
static void keep_prompt(td_choice *ch)
{
  td_call *call = ch->call;
  td_prompt *p = &call->prompts[ch->prompt];
  uint32_t offset = 0, *text_offset = call->request.echo ? &offset : NULL;
  td_logprobs_keep(call->engine, ch->tokens[0], NULL, NULL, call->request.n_top, text_offset, &p->logprobs);
  for (size_t i = 0; i < ch->n_scored; i++)
    keep_logprob(ch, i, text_offset, &p->logprobs);
  p->is_scored = true;
  for (uint32_t i = 0; i < call->n_choices; i++)
    if (call->choices[i].prompt == ch->prompt)
      call->choices[i].text_offset = offset;
}

/* Reads n tokens. Returns true if they complete a stop string. The text of the first min_tokens tokens
 * bypasses the filter, because stop strings must not end an answer within them. */
static bool push_tokens(td_choice *ch, const int32_t *ids, size_t n)
{
  td_buf piece;
  keep_logprobs(ch, n);
  if (ch->n_read < (uint64_t)ch->call->request.min_tokens && ch->filter.set->n > 0) {
    td_text_stream_push(ch->text, ids, n, &ch->out);
    if (ch->call->request.return_token_ids)
      td_buf_append(&ch->ids, ids, n * sizeof *ids);
    return false;
  }
  td_buf_init(&piece, 0);
  td_text_stream_push(ch->text, ids, n, &piece);
  if (piece.failed)
    ch->out.failed = true;
  bool matched = td_stop_filter_push(&ch->filter, piece.data ? piece.data : "", piece.len_bytes, &ch->out);
  td_buf_deinit(&piece);
  if (ch->call->request.return_token_ids)
    td_buf_append(&ch->ids, ids, n * sizeof *ids);
  return matched;
}

/* Passes new text through the reader into ch->parsed. An answer with calls finishes as "tool_calls". */
static void parse_new_text(td_choice *ch)
{
  if (!ch->reader || ch->parse_done)
    return;
  td_reader_push(ch->reader, ch->out.data ? ch->out.data : "", ch->out.len_bytes, &ch->parsed);
  ch->parsed.failed |= ch->out.failed;
  td_buf_clear(&ch->out);
  if (!ch->finish)
    return;
  ch->parse_done = true;
  td_reader_finish(ch->reader, strcmp(ch->finish, "length") == 0, &ch->parsed);
  if (ch->parsed.n_calls > 0 && strcmp(ch->finish, "stop") == 0)
    ch->finish = "tool_calls";
}

/* Turns at most max new tokens to text. A token that ended the answer (end of sequence, stop id) has none. */
static void read_tokens(td_choice *ch, uint32_t max)
{
  const int32_t *ids = ch->tokens + ch->n_prompt;
  if (ch->vector) {
    td_buf_append(&ch->out, ch->vector, ch->call->info->width * sizeof *ch->vector);
    ch->finish = "stop";
    return;
  }
  if (!ch->call->request.has_answer) {
    finish_text(ch, "length");
    parse_new_text(ch);
    return;
  }
  bool ends = ch->engine_finish == TD_FINISH_STOP && !ch->call->request.include_stop_str_in_output;
  uint32_t end = ch->n_generated, stop = ends && end > 0 ? end - 1 : end;
  if (end - ch->n_read > max)
    end = ch->n_read + max;
  uint32_t step = ch->filter.set->n > 0 || ch->reader ? 1 : max;
  while (ch->n_read < end && ch->n_read < stop) {
    uint32_t to = stop < end ? stop : end, n = to - ch->n_read < step ? to - ch->n_read : step;
    bool matched = push_tokens(ch, ids + ch->n_read, n);
    ch->parsed.n_tokens = ch->n_read + n;
    if (ch->reader && td_reader_is_thinking(ch->reader))
      ch->n_reasoning += n;
    ch->n_read += n;
    parse_new_text(ch);
    if (matched) {
      ch->finish = "stop";
      break;
    }
  }
  if (!ch->finish && ch->n_read == stop && stop < end) {
    if (ch->call->request.return_token_ids)
      td_buf_append(&ch->ids, ids + stop, sizeof *ids);
    if (ch->call->api == &td_api_completions)
      keep_logprobs(ch, 1);
    ch->n_read++;
  }
  if (!ch->finish && ch->engine_finish != TD_FINISH_NONE && ch->n_read == ch->n_generated)
    finish_text(ch, ch->engine_finish == TD_FINISH_LENGTH ? "length" : "stop");
  parse_new_text(ch);
}

/* ---- sending ---- */

/* How many prompt tokens' log-probabilities this choice has yet to send. */
static uint32_t left_to_echo(const td_choice *ch)
{
  const td_api_request *r = &ch->call->request;
  return r->echo && r->wants_logprobs ? ch->n_prompt - ch->n_echoed : 0;
}

/* The most tokens that one chunk renders. Fewer with log-probabilities, where each token takes many bytes and
 * much time: chunks would exceed the bound of a connection's unsent bytes and block the loop. */
static uint32_t chunk_tokens(const td_choice *ch)
{
  const td_api_request *r = &ch->call->request;
  return r->wants_logprobs ? CHUNK_TOKENS / (8 + 2 * r->n_top) : CHUNK_TOKENS;
}

/* Clears what a delta has sent. by_parts: log-probabilities are sent with parts of the parsed answer, so
 * those of tokens that have not become a part yet are kept. */
static void clear_sent(td_choice *ch, bool by_parts)
{
  td_buf *b = &ch->logprobs;
  td_parsed_answer_clear(&ch->parsed);
  td_buf_clear(&ch->out);
  td_buf_clear(&ch->ids);
  if (!by_parts) {
    td_buf_clear(b);
    return;
  }
  size_t n_bytes_sent =
      (ch->parsed.tokens_before - ch->n_logprobs_gone) * td_logprob_record_bytes(ch->call->request.n_top);
  if (n_bytes_sent == 0 || n_bytes_sent > b->len_bytes)
    return;
  memmove(b->data, b->data + n_bytes_sent, b->len_bytes - n_bytes_sent);
  b->len_bytes -= n_bytes_sent;
  ch->n_logprobs_gone = ch->parsed.tokens_before;
}

static void send_delta(td_choice *ch)
{
  td_call *call = ch->call;
  bool ids = call->request.return_token_ids, by_parts = call->api == &td_api_responses;
  uint32_t n_echo = left_to_echo(ch) < chunk_tokens(ch) ? left_to_echo(ch) : chunk_tokens(ch);
  td_delta d = {
      .choice = ch,
      .first = !ch->first_chunk_sent,
      .text = ch->out.data ? ch->out.data : "",
      .n_text = ch->out.len_bytes,
      .ids = ids ? (const int32_t *)(const void *)ch->ids.data : NULL,
      .n_ids = ch->ids.len_bytes / sizeof(int32_t),
      .echo_begin = ch->n_echoed,
      .echo_end = ch->n_echoed + n_echo,
      .finish = ch->finish,
  };
  ch->n_echoed += n_echo;
  if (d.n_text == 0 && ch->parsed.n == 0 && n_echo == 0 && d.n_ids == 0 &&
      (by_parts || ch->logprobs.len_bytes == 0) && !d.finish && !d.first)
    return;
  td_buf events;
  td_buf_init(&events, 0);
  call->api->render_delta(call, &d, &events);
  if (events.failed || ch->parsed.failed || ch->out.failed || ch->ids.failed || ch->logprobs.failed ||
      call->prompts[ch->prompt].logprobs.failed)
    call->conn->out.failed = true; /* cuts the connection, so that a gap does not go unnoticed */
  td_conn_stream_send(call->conn, events.data ? events.data : "", events.len_bytes);
  td_buf_deinit(&events);
  clear_sent(ch, by_parts);
  ch->first_chunk_sent = true;
}

static void end_stream(td_call *call)
{
  td_conn *c = call->conn;
  td_buf end;
  td_buf_init(&end, 0);
  if (call->api->render_end) {
    call->api->render_end(call, &end);
  } else {
    if (call->request.include_usage)
      td_render_usage_event(call, &end);
    td_buf_append_str(&end, "data: [DONE]\n\n");
  }
  if (end.failed)
    c->out.failed = true;
  td_conn_stream_send(c, end.data ? end.data : "", end.len_bytes);
  td_buf_deinit(&end);
  c->call = NULL;
  td_conn_stream_end(c);
}

static void end_call(td_call *call)
{
  leave_queue(call);
  td_request_log_note(&call->conn->note, call, NULL);
  if (!call->request.stream) {
    td_answer_send(call);
    return;
  }
  end_stream(call);
  call->conn = NULL;
  td_call_destroy(call);
}

/* A choice's text is complete: gives its engine slot back. */
static void close_choice(td_choice *ch)
{
  td_server *s = ch->call->server;
  drop_ticket(ch);
  ch->slot_released = true;
  ch->call->n_open--;
  s->metrics.finished[strcmp(ch->finish, "length") == 0 ? TD_FINISHED_LENGTH : TD_FINISHED_STOP]++;
  td_histogram_observe(&s->metrics.e2e, (double)(ch->last_token_us - ch->call->arrival_us) / 1e6, 1);
}

/* Sends the echoed prompt, which precedes the answer. Returns false if it is not scored yet, or if the client
 * does not read fast enough to send all of it. */
static bool echo_prompt(td_choice *ch)
{
  const td_call *call = ch->call;
  if (call->request.scores_prompt && !call->prompts[ch->prompt].is_scored)
    return false;
  while (call->request.stream && left_to_echo(ch) > 0) {
    if (!td_conn_writable(call->conn))
      return false;
    send_delta(ch);
  }
  return true;
}

/* Goes as far as there are tokens and, in a stream, as the client reads. */
static void read_and_send(td_choice *ch)
{
  td_call *call = ch->call;
  bool stream = call->request.stream;
  if (!ch->slot_released && !echo_prompt(ch))
    return;
  while (!ch->slot_released && ch->tokens &&
         (ch->n_read < ch->n_generated || ch->engine_finish != TD_FINISH_NONE)) {
    if (stream && !td_conn_writable(call->conn))
      return;
    read_tokens(ch, stream ? chunk_tokens(ch) : CHUNK_TOKENS);
    if (stream)
      send_delta(ch);
    if (ch->finish)
      close_choice(ch);
  }
}

static void pump_choice(td_choice *ch)
{
  read_and_send(ch);
  td_answer_memory_count(ch);
}

/* After choices were pumped: ends the call if all are complete; fails it if they hold over answer_bytes. */
static void end_if_complete(td_call *call)
{
  td_api_error e;
  if (call->n_open == 0) {
    end_call(call);
  } else if (call->answer_memory_bytes > call->answer.max_bytes) {
    td_answer_memory_too_long(call->answer.max_bytes, &e);
    td_call_fail(call, &e);
  }
}

void td_generation_pump(td_call *call)
{
  for (uint32_t i = 0; i < call->n_choices; i++)
    pump_choice(&call->choices[i]);
  end_if_complete(call);
}

/* ---- updates from the engine ---- */

static void observe(td_choice *ch, const td_engine_update *u)
{
  td_metrics *m = &ch->call->server->metrics;
  td_tenant *t = ch->call->tenant;
  uint32_t fresh = u->vector ? 0 : u->n_generated - ch->n_generated;
  if (!ch->first_token_counted && u->n_generated > 0) {
    ch->first_token_counted = true;
    m->prompt_tokens += u->n_prompt;
    t->n_waiting--;
    t->usage.prompt_tokens += u->n_prompt;
    t->usage.cached_tokens += u->n_cached_prompt;
    td_histogram_observe(&m->ttft, (double)(u->first_token_us - ch->call->arrival_us) / 1e6, 1);
    td_histogram_observe(&m->queue, (double)(u->first_run_us - u->submit_us) / 1e6, 1);
    if (u->predicted_queue_us != UINT64_MAX)
      td_histogram_observe(&m->queue_predicted, (double)u->predicted_queue_us / 1e6, 1);
    if (u->n_generated > 1)
      td_histogram_observe(&m->inter_token,
                           (double)(u->last_token_us - u->first_token_us) / 1e6 / (u->n_generated - 1),
                           u->n_generated - 1);
  } else if (fresh > 0) {
    td_histogram_observe(&m->inter_token, (double)(u->last_token_us - ch->last_token_us) / 1e6 / fresh,
                         fresh);
  }
  m->generation_tokens += fresh;
  t->usage.generation_tokens += fresh;
  td_key_limits_charge(t, fresh, td_clock_us());
}

static void fail(td_call *call, int status, const char *code, const char *message)
{
  td_api_error e;
  td_api_error_set(&e, status, code, NULL, "%s", message);
  td_call_fail(call, &e);
}

/* Official clients retry a 408 or 504 by themselves, which would repeat all the work. So no_retry is set. */
static void fail_late(td_call *call, int status, const char *code, const char *message)
{
  td_api_error e;
  td_api_error_set(&e, status, code, NULL, "%s", message);
  e.no_retry = true;
  td_call_fail(call, &e);
}

/* The choice ends with an error. First reads the tokens before the error: a stop string in them completes the
 * answer, and a stream's client gets them before the error event. Returns false if they ended the choice. */
static bool ends_by_error(td_choice *ch, td_finish why)
{
  pump_choice(ch);
  if (ch->call->n_open == 0) {
    end_call(ch->call);
    return false;
  }
  if (ch->slot_released)
    return false;
  ch->engine_finish = why;
  return true;
}

/* The mask provider gave up: the grammar allows no next token (a 400, the request's fault), or memory ran
 * out. An unfinished answer is not returned, except that a stream's client has the text so far. */
static void end_refused(td_choice *ch, const char *why)
{
  td_call *call = ch->call;
  td_api_error e;
  if (!ends_by_error(ch, TD_FINISH_REFUSED))
    return;
  if (why == td_mask_no_memory)
    td_api_error_set(&e, 503, "out_of_memory", NULL, "%s", why);
  else
    td_api_error_set(&e, 400, "grammar_stuck", why == td_bad_words_stuck ? "bad_words" : call->grammar_field,
                     "%s", why);
  td_call_fail(call, &e);
}

/* The choice missed a deadline. */
static void end_late(td_choice *ch, td_finish why)
{
  td_call *call = ch->call;
  if (!ends_by_error(ch, why))
    return;
  call->server->metrics.timeouts[why == TD_FINISH_CUT]++;
  if (why == TD_FINISH_UNSTARTED)
    fail_late(
        call, 408, "deadline_unreachable",
        "timeout_ms or ttft_timeout_ms passed, or could not be met any more, before this request began");
  else if (ch->n_generated == 0)
    fail_late(call, 504, "deadline_exceeded",
              "the first token could not be there within timeout_ms or ttft_timeout_ms");
  else
    fail_late(call, 504, "deadline_exceeded", "timeout_ms passed before the answer was complete");
}

static void apply(const td_engine_update *u)
{
  td_choice *ch = u->user;
  if (ch->ticket.generation != u->ticket.generation || ch->ticket.slot != u->ticket.slot)
    return; /* the choice was ended by an earlier update of this batch */
  td_call *call = ch->call;
  observe(ch, u);
  ch->tokens = u->tokens;
  ch->engine_logprobs = u->logprobs;
  ch->engine_top = u->top;
  ch->vector = u->vector;
  ch->n_generated = u->n_generated;
  ch->n_cached = u->n_cached_prompt;
  bool late = u->finish == TD_FINISH_UNSTARTED || u->finish == TD_FINISH_CUT;
  ch->engine_finish = late || u->finish == TD_FINISH_REFUSED ? TD_FINISH_NONE : u->finish;
  ch->submit_us = u->submit_us;
  ch->first_run_us = u->first_run_us;
  ch->first_token_us = u->first_token_us;
  ch->last_token_us = u->last_token_us;
  if (late) {
    end_late(ch, u->finish);
    return;
  }
  if (u->finish == TD_FINISH_REFUSED) {
    end_refused(ch, u->error);
    return;
  }
  if (u->finish == TD_FINISH_ERROR) {
    const char *why = u->error ? u->error : "the engine ended the request";
    char more[TD_LOG_GATE_BYTES];
    if (td_log_gate_pass(&call->server->engine_errors, uv_now(&call->server->loop),
                         td_limit_max(TD_LIMIT_LOG_ERRORS), more))
      td_error_log("request %s: %s%s", call->id, why, more);
    fail(call, 500, "engine_error", why);
    return;
  }
  bool scored = ch->n_generated > 0 && call->request.scores_prompt && !call->prompts[ch->prompt].is_scored &&
                !is_further_choice(ch);
  if (scored) { /* other choices of the prompt may have waited for this */
    keep_prompt(ch);
    td_generation_pump(call);
    return;
  }
  pump_choice(ch);
  end_if_complete(call);
}

void td_generation_poll(td_server *s)
{
  td_engine_update updates[POLL_BATCH];
  uint32_t n;
  s->polling = true;
  do {
    n = td_engine_poll(s->engine, updates, POLL_BATCH);
    for (uint32_t i = 0; i < n; i++)
      apply(&updates[i]);
  } while (n == POLL_BATCH);
  s->polling = false;
  td_call_free_ended(s);
}
