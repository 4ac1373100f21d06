/* POST /v1/responses: answers are made as for a chat, as OpenAI's items and events. Nothing is stored. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/parts_json.h"
#include "server/translate.h"

enum { ITEM_ID_BYTES = TD_CALL_ID_BYTES + 8 };

static const td_parsed_answer *all_of(const td_choice *ch)
{
  return ch->call->request.stream ? &ch->sent_so_far : &ch->parsed;
}

/* ---- items: a run of reasoning, a run of content, a call ---- */

static void item_id(const td_choice *ch, uint32_t n, td_answer_part_kind kind, char out[ITEM_ID_BYTES])
{
  static const char *const fronts[] = {"msg", "rs", "fc"};
  const char *id = ch->call->id; /* resp_.. */
  snprintf(out, ITEM_ID_BYTES, "%s_%.24s%04x", fronts[kind], id + strlen("resp_"), n & 0xFFFF);
}

/* Log-probabilities of the tokens of a part of content. In a stream the deltas have them, and the final
 * events do not repeat them, because those of a whole answer may be too many to write on the loop. */
static void append_logprobs(const td_choice *ch, const td_parsed_answer *a, const td_answer_part *p,
                            td_buf *out)
{
  const td_api_request *r = &ch->call->request;
  td_logprob_view v = td_logprobs_view(&ch->logprobs, r, (uint32_t)r->top_logprobs);
  size_t end = v.end;
  td_buf_append_str(out, ",\"logprobs\":");
  if (!r->wants_logprobs || a != &ch->parsed || !p) {
    td_buf_append_str(out, "[]");
    return;
  }
  v.begin = td_parsed_answer_token_begin(a, (size_t)(p - a->parts)) - ch->n_logprobs_gone;
  v.end = p->token_end - ch->n_logprobs_gone;
  v.end = v.end < end ? v.end : end; /* a record is missing only if memory ran out; the answer fails then */
  td_logprobs_render_list(ch->call->engine, &v, out);
}

/* n: index in the output, from 0. An item "in_progress" has just begun and has no text yet. */
static void render_item(const td_choice *ch, uint32_t n, const td_answer_part *p,
                        const td_answer_part *arguments, const td_parsed_answer *a, const char *status,
                        td_buf *out)
{
  char id[ITEM_ID_BYTES], call_id[TD_CALL_ID_BYTES];
  bool begun = strcmp(status, "in_progress") == 0;
  item_id(ch, n, p->kind, id);
  td_buf_printf(out, "{\"id\":\"%s\",\"status\":\"%s\",", id, status);
  if (p->kind == TD_PART_CALL) {
    td_parts_json_call_id(ch, p->call, call_id);
    td_buf_printf(out, "\"type\":\"function_call\",\"call_id\":\"%s\",\"name\":", call_id);
    td_buf_append_json_string(out, td_answer_part_text(a, p), p->n);
    td_buf_append_str(out, ",\"arguments\":");
    td_buf_append_json_string(out, arguments ? td_answer_part_text(a, arguments) : "",
                              arguments ? arguments->n : 0);
    td_buf_append_char(out, '}');
    return;
  }
  td_buf_append_str(out, p->kind == TD_PART_REASONING
                             ? "\"type\":\"reasoning\",\"summary\":[],\"content\":["
                             : "\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
  if (!begun) {
    td_buf_append_str(out, p->kind == TD_PART_REASONING
                               ? "{\"type\":\"reasoning_text\",\"text\":"
                               : "{\"type\":\"output_text\",\"annotations\":[],\"text\":");
    td_buf_append_json_string(out, td_answer_part_text(a, p), p->n);
    if (p->kind == TD_PART_CONTENT)
      append_logprobs(ch, a, p, out);
    td_buf_append_char(out, '}');
  }
  td_buf_append_str(out, "]}");
}

static const td_answer_part *arguments_of(const td_parsed_answer *a, size_t i)
{
  return a->parts[i].kind == TD_PART_CALL && i + 1 < a->n && a->parts[i + 1].kind == TD_PART_ARGUMENTS
             ? &a->parts[i + 1]
             : NULL;
}

static bool is_cut(const td_choice *ch) { return ch->finish && strcmp(ch->finish, "length") == 0; }

static void render_output(const td_choice *ch, td_buf *out)
{
  const td_parsed_answer *a = all_of(ch);
  uint32_t n = 0;
  for (size_t i = 0; i < a->n; i++) {
    const td_answer_part *arguments = arguments_of(a, i);
    if (a->parts[i].kind == TD_PART_ARGUMENTS)
      continue;
    bool last = i + 1 + (arguments != NULL) == a->n;
    td_buf_append_str(out, n ? "," : "");
    render_item(ch, n++, &a->parts[i], arguments, a, last && is_cut(ch) ? "incomplete" : "completed", out);
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

static void append_part_text(const td_parsed_answer *a, const td_answer_part *p, td_buf *out)
{
  td_buf_append_json_string(out, p ? td_answer_part_text(a, p) : "", p ? p->n : 0);
}

static void part_event(td_choice *ch, const char *name, const td_parsed_answer *a, const td_answer_part *p,
                       td_buf *out)
{
  item_event(ch, name, out);
  td_buf_append_str(out, ch->item.kind == TD_PART_REASONING
                             ? ",\"content_index\":0,\"part\":{\"type\":\"reasoning_text\",\"text\":"
                             : ",\"content_index\":0,\"part\":{\"type\":\"output_text\",\"annotations\":[],"
                               "\"logprobs\":[],\"text\":");
  append_part_text(a, p, out);
  td_buf_append_char(out, '}');
  end_event(out);
}

static void text_event(td_choice *ch, bool done, const td_parsed_answer *a, const td_answer_part *p,
                       td_buf *out)
{
  static const char *const names[][2] = {
      {"response.output_text.delta", "response.output_text.done"},
      {"response.reasoning_text.delta", "response.reasoning_text.done"},
      {"response.function_call_arguments.delta", "response.function_call_arguments.done"}};
  bool call = ch->item.kind == TD_PART_CALL;
  item_event(ch, names[ch->item.kind][done], out);
  if (!call)
    td_buf_append_str(out, ",\"content_index\":0");
  if (ch->item.kind == TD_PART_CONTENT)
    append_logprobs(ch, a, p, out);
  td_buf_append_str(out, !done ? ",\"delta\":" : call ? ",\"arguments\":" : ",\"text\":");
  append_part_text(a, p, out);
  end_event(out);
}

/* Index of the part that began the open item: the last one that is not arguments. */
static size_t last_item(const td_parsed_answer *a)
{
  size_t i = a->n - 1;
  return a->parts[i].kind == TD_PART_ARGUMENTS ? i - 1 : i;
}

static void end_item(td_choice *ch, td_buf *out)
{
  const td_parsed_answer *a = &ch->sent_so_far;
  if (!ch->item.open || a->failed) /* failed: memory ran out, and the stream will be cut */
    return;
  size_t i = last_item(a);
  const td_answer_part *p = &a->parts[i], *arguments = arguments_of(a, i);
  text_event(ch, true, a, p->kind == TD_PART_CALL ? arguments : p, out);
  if (p->kind != TD_PART_CALL)
    part_event(ch, "response.content_part.done", a, p, out);
  event(ch, "response.output_item.done", out);
  td_buf_printf(out, ",\"output_index\":%u,\"item\":", ch->item.n - 1);
  render_item(ch, ch->item.n - 1, p, arguments, a, status_of(ch), out);
  end_event(out);
  ch->item.open = false;
}

static void begin_item(td_choice *ch, const td_answer_part *p, td_buf *out)
{
  end_item(ch, out);
  ch->item.n++;
  ch->item.open = true;
  ch->item.kind = p->kind;
  event(ch, "response.output_item.added", out);
  td_buf_printf(out, ",\"output_index\":%u,\"item\":", ch->item.n - 1);
  render_item(ch, ch->item.n - 1, p, NULL, &ch->parsed, "in_progress", out);
  end_event(out);
  if (p->kind != TD_PART_CALL)
    part_event(ch, "response.content_part.added", &ch->parsed, NULL, out);
}

static void render_part(td_choice *ch, const td_answer_part *p, td_buf *out)
{
  if (p->kind == TD_PART_CALL ||
      (p->kind != TD_PART_ARGUMENTS && (!ch->item.open || ch->item.kind != p->kind)))
    begin_item(ch, p, out);
  if (p->kind != TD_PART_CALL)
    text_event(ch, false, &ch->parsed, p, out);
  td_parsed_answer_add(&ch->sent_so_far, p->kind, p->call, td_answer_part_text(&ch->parsed, p), p->n);
  out->failed |= ch->sent_so_far.failed;
}

static void render_delta(const td_call *c, const td_delta *d, td_buf *out)
{
  td_choice *ch = d->choice;
  if (d->first) {
    response_event(ch, "response.created", "in_progress", out);
    response_event(ch, "response.in_progress", "in_progress", out);
  }
  for (size_t i = 0; i < ch->parsed.n; i++)
    render_part(ch, &ch->parsed.parts[i], out);
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
    .generates = true,
    .translate = td_responses_to_chat,
    .prepare = td_chat_prepare,
    .render_delta = render_delta,
    .render_answer = render_answer,
    .render_end = render_end,
    .render_error_event = render_error_event,
};
