/* POST /v1/responses: answers are made as for a chat, as OpenAI's items and events. Nothing is stored. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/said_json.h"
#include "server/translate.h"

enum { ITEM_ID_BYTES = TD_CALL_ID_BYTES + 8 };

static const td_said *all_of(const td_choice *ch) { return ch->call->request.stream ? &ch->told : &ch->said; }

/* ---- items: a run of reasoning, a run of content, a call ---- */

static void item_id(const td_choice *ch, uint32_t n, td_said_kind kind, char out[ITEM_ID_BYTES])
{
  static const char *const fronts[] = {"msg", "rs", "fc"};
  const char *id = ch->call->id; /* resp_.. */
  snprintf(out, ITEM_ID_BYTES, "%s_%.24s%04x", fronts[kind], id + strlen("resp_"), n & 0xFFFF);
}

/* Log-probabilities of the tokens of a piece of content. In a stream the deltas have them, and the final
 * events do not repeat them, because those of a whole answer may be too many to write on the loop. */
static void append_logprobs(const td_choice *ch, const td_said *s, const td_said_piece *p, td_buf *out)
{
  const td_api_request *r = &ch->call->request;
  td_logprob_view v = td_logprobs_view(&ch->logprobs, r, (uint32_t)r->top_logprobs);
  size_t end = v.end;
  td_buf_append_str(out, ",\"logprobs\":");
  if (!r->wants_logprobs || s != &ch->said || !p) {
    td_buf_append_str(out, "[]");
    return;
  }
  v.begin = td_said_token_begin(s, (size_t)(p - s->pieces)) - ch->n_logprobs_gone;
  v.end = p->token_end - ch->n_logprobs_gone;
  v.end = v.end < end ? v.end : end; /* a record is missing only if memory ran out; the answer fails then */
  td_logprobs_render_list(ch->call->engine, &v, out);
}

/* n: index in the output, from 0. An item "in_progress" has just begun and has no text yet. */
static void render_item(const td_choice *ch, uint32_t n, const td_said_piece *p,
                        const td_said_piece *arguments, const td_said *s, const char *status, td_buf *out)
{
  char id[ITEM_ID_BYTES], call_id[TD_CALL_ID_BYTES];
  bool begun = strcmp(status, "in_progress") == 0;
  item_id(ch, n, p->kind, id);
  td_buf_printf(out, "{\"id\":\"%s\",\"status\":\"%s\",", id, status);
  if (p->kind == TD_SAID_CALL) {
    td_said_json_id(ch, p->call, call_id);
    td_buf_printf(out, "\"type\":\"function_call\",\"call_id\":\"%s\",\"name\":", call_id);
    td_buf_append_json_string(out, td_said_text(s, p), p->n);
    td_buf_append_str(out, ",\"arguments\":");
    td_buf_append_json_string(out, arguments ? td_said_text(s, arguments) : "", arguments ? arguments->n : 0);
    td_buf_append_char(out, '}');
    return;
  }
  td_buf_append_str(out, p->kind == TD_SAID_REASONING
                             ? "\"type\":\"reasoning\",\"summary\":[],\"content\":["
                             : "\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
  if (!begun) {
    td_buf_append_str(out, p->kind == TD_SAID_REASONING
                               ? "{\"type\":\"reasoning_text\",\"text\":"
                               : "{\"type\":\"output_text\",\"annotations\":[],\"text\":");
    td_buf_append_json_string(out, td_said_text(s, p), p->n);
    if (p->kind == TD_SAID_CONTENT)
      append_logprobs(ch, s, p, out);
    td_buf_append_char(out, '}');
  }
  td_buf_append_str(out, "]}");
}

static const td_said_piece *arguments_of(const td_said *s, size_t i)
{
  return s->pieces[i].kind == TD_SAID_CALL && i + 1 < s->n && s->pieces[i + 1].kind == TD_SAID_ARGUMENTS
             ? &s->pieces[i + 1]
             : NULL;
}

static bool is_cut(const td_choice *ch) { return ch->finish && strcmp(ch->finish, "length") == 0; }

static void render_output(const td_choice *ch, td_buf *out)
{
  const td_said *s = all_of(ch);
  uint32_t n = 0;
  for (size_t i = 0; i < s->n; i++) {
    const td_said_piece *arguments = arguments_of(s, i);
    if (s->pieces[i].kind == TD_SAID_ARGUMENTS)
      continue;
    bool last = i + 1 + (arguments != NULL) == s->n;
    td_buf_append_str(out, n ? "," : "");
    render_item(ch, n++, &s->pieces[i], arguments, s, last && is_cut(ch) ? "incomplete" : "completed", out);
  }
}

/* ---- the response ---- */

static void render_usage(const td_choice *ch, td_buf *out)
{
  td_buf_printf(out,
                "{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u},\"output_tokens\":%u,"
                "\"output_tokens_details\":{\"reasoning_tokens\":%u},\"total_tokens\":%u}",
                ch->n_prompt, ch->n_cached, ch->n_read, ch->n_reasoning, ch->n_prompt + ch->n_read);
}

static void render_response(const td_call *c, const char *status, td_buf *out)
{
  const td_choice *ch = &c->choices[0];
  bool done = strcmp(status, "in_progress") != 0;
  td_buf_printf(
      out,
      "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%" PRId64 ",\"status\":\"%s\",\"model\":", c->id,
      c->created_s, status);
  td_buf_append_json_string(out, c->info->model_name, strlen(c->info->model_name));
  td_buf_append_str(out, ",\"error\":null,\"previous_response_id\":null,\"store\":false,\"background\":false,"
                         "\"truncation\":\"disabled\",\"incomplete_details\":");
  td_buf_append_str(out, done && is_cut(ch) ? "{\"reason\":\"max_output_tokens\"}" : "null");
  td_buf_append(out, c->echo.data, c->echo.len_bytes);
  td_buf_append_str(out, ",\"output\":[");
  if (done)
    render_output(ch, out);
  td_buf_append_str(out, "],\"usage\":");
  if (done)
    render_usage(ch, out);
  else
    td_buf_append_str(out, "null");
  td_buf_append_char(out, '}');
}

static const char *status_of(const td_choice *ch) { return is_cut(ch) ? "incomplete" : "completed"; }

static void render_answer(const td_call *c, td_buf *out)
{
  render_response(c, status_of(&c->choices[0]), out);
}

/* ---- events ---- */

static void event(td_choice *ch, const char *name, td_buf *out)
{
  td_buf_printf(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%u", name, name,
                ch->item.n_events++);
}

static void end_event(td_buf *out) { td_buf_append_str(out, "}\n\n"); }

/* Begins an event of the open item. */
static void item_event(td_choice *ch, const char *name, td_buf *out)
{
  char id[ITEM_ID_BYTES];
  item_id(ch, ch->item.n - 1, ch->item.kind, id);
  event(ch, name, out);
  td_buf_printf(out, ",\"item_id\":\"%s\",\"output_index\":%u", id, ch->item.n - 1);
}

static void response_event(td_choice *ch, const char *name, const char *status, td_buf *out)
{
  event(ch, name, out);
  td_buf_append_str(out, ",\"response\":");
  render_response(ch->call, status, out);
  end_event(out);
}

static void append_piece(const td_said *s, const td_said_piece *p, td_buf *out)
{
  td_buf_append_json_string(out, p ? td_said_text(s, p) : "", p ? p->n : 0);
}

static void part_event(td_choice *ch, const char *name, const td_said *s, const td_said_piece *p, td_buf *out)
{
  item_event(ch, name, out);
  td_buf_append_str(out, ch->item.kind == TD_SAID_REASONING
                             ? ",\"content_index\":0,\"part\":{\"type\":\"reasoning_text\",\"text\":"
                             : ",\"content_index\":0,\"part\":{\"type\":\"output_text\",\"annotations\":[],"
                               "\"logprobs\":[],\"text\":");
  append_piece(s, p, out);
  td_buf_append_char(out, '}');
  end_event(out);
}

static void text_event(td_choice *ch, bool done, const td_said *s, const td_said_piece *p, td_buf *out)
{
  static const char *const names[][2] = {
      {"response.output_text.delta", "response.output_text.done"},
      {"response.reasoning_text.delta", "response.reasoning_text.done"},
      {"response.function_call_arguments.delta", "response.function_call_arguments.done"}};
  bool call = ch->item.kind == TD_SAID_CALL;
  item_event(ch, names[ch->item.kind][done], out);
  if (!call)
    td_buf_append_str(out, ",\"content_index\":0");
  if (ch->item.kind == TD_SAID_CONTENT)
    append_logprobs(ch, s, p, out);
  td_buf_append_str(out, !done ? ",\"delta\":" : call ? ",\"arguments\":" : ",\"text\":");
  append_piece(s, p, out);
  end_event(out);
}

/* Index of the piece that began the open item: the last one that is not arguments. */
static size_t last_item(const td_said *s)
{
  size_t i = s->n - 1;
  return s->pieces[i].kind == TD_SAID_ARGUMENTS ? i - 1 : i;
}

static void end_item(td_choice *ch, td_buf *out)
{
  const td_said *s = &ch->told;
  if (!ch->item.open || s->failed) /* failed: memory ran out, and the stream will be cut */
    return;
  size_t i = last_item(s);
  const td_said_piece *p = &s->pieces[i], *arguments = arguments_of(s, i);
  text_event(ch, true, s, p->kind == TD_SAID_CALL ? arguments : p, out);
  if (p->kind != TD_SAID_CALL)
    part_event(ch, "response.content_part.done", s, p, out);
  event(ch, "response.output_item.done", out);
  td_buf_printf(out, ",\"output_index\":%u,\"item\":", ch->item.n - 1);
  render_item(ch, ch->item.n - 1, p, arguments, s, status_of(ch), out);
  end_event(out);
  ch->item.open = false;
}

static void begin_item(td_choice *ch, const td_said_piece *p, td_buf *out)
{
  end_item(ch, out);
  ch->item.n++;
  ch->item.open = true;
  ch->item.kind = p->kind;
  event(ch, "response.output_item.added", out);
  td_buf_printf(out, ",\"output_index\":%u,\"item\":", ch->item.n - 1);
  render_item(ch, ch->item.n - 1, p, NULL, &ch->said, "in_progress", out);
  end_event(out);
  if (p->kind != TD_SAID_CALL)
    part_event(ch, "response.content_part.added", &ch->said, NULL, out);
}

static void render_piece(td_choice *ch, const td_said_piece *p, td_buf *out)
{
  if (p->kind == TD_SAID_CALL ||
      (p->kind != TD_SAID_ARGUMENTS && (!ch->item.open || ch->item.kind != p->kind)))
    begin_item(ch, p, out);
  if (p->kind != TD_SAID_CALL)
    text_event(ch, false, &ch->said, p, out);
  td_said_add(&ch->told, p->kind, p->call, td_said_text(&ch->said, p), p->n);
  out->failed |= ch->told.failed;
}

static void render_delta(const td_call *c, const td_delta *d, td_buf *out)
{
  td_choice *ch = d->choice;
  if (d->first) {
    response_event(ch, "response.created", "in_progress", out);
    response_event(ch, "response.in_progress", "in_progress", out);
  }
  for (size_t i = 0; i < ch->said.n; i++)
    render_piece(ch, &ch->said.pieces[i], out);
  if (!d->finish)
    return;
  end_item(ch, out);
  response_event(ch, is_cut(ch) ? "response.incomplete" : "response.completed", status_of(ch), out);
}

static void render_end(const td_call *c, td_buf *out) {}

static void render_error_event(const td_call *c, const td_api_error *e, td_buf *out)
{
  td_buf_printf(out, "event: error\ndata: {\"type\":\"error\",\"sequence_number\":%u,\"code\":",
                c->choices[0].item.n_events);
  td_buf_append_json_string(out, e->code ? e->code : "", e->code ? strlen(e->code) : 0);
  td_buf_append_str(out, ",\"message\":");
  td_buf_append_json_string(out, e->message, strlen(e->message));
  td_buf_append_str(out, ",\"param\":null}\n\n");
}

const td_api td_api_responses = {
    .route = TD_ROUTE_RESPONSES,
    .is_chat = true,
    .id_prefix = "resp_",
    .translate = td_responses_to_chat,
    .prepare = td_chat_prepare,
    .render_delta = render_delta,
    .render_answer = render_answer,
    .render_end = render_end,
    .render_error_event = render_error_event,
};
