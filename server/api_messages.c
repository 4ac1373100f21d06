/* POST /v1/messages and /v1/messages/count_tokens: answers are made as for a chat, in Anthropic's format. */
#include <stdlib.h>
#include <string.h>

#include "answers/json_scan.h"
#include "server/parts_json.h"
#include "server/translate.h"

/* ---- counting ---- */

static bool prepare_count(td_call *c)
{
  if (!td_call_alloc_prompts(c, 1) || !td_chat_tokens(c, NULL))
    return false;
  td_buf_printf(&c->answer, "{\"input_tokens\":%zu}", c->prompts[0].n);
  return true;
}

/* ---- shared by whole answers and streams ---- */

static void append_text(td_buf *out, const char *s) { td_buf_append_json_string(out, s, strlen(s)); }

static const char *stop_reason(const td_choice *ch)
{
  if (ch->parsed.n_calls > 0 && strcmp(ch->finish, "tool_calls") == 0)
    return "tool_use";
  return strcmp(ch->finish, "length") == 0 ? "max_tokens" : ch->filter.matched ? "stop_sequence" : "end_turn";
}

static void render_stop(const td_choice *ch, td_buf *out)
{
  const char *stop = ch->filter.matched && strcmp(stop_reason(ch), "stop_sequence") == 0
                         ? td_stop_filter_found(&ch->filter)
                         : NULL;
  td_buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", stop_reason(ch));
  if (stop)
    append_text(out, stop);
  else
    td_buf_append_str(out, "null");
}

/* input_tokens excludes tokens that were read from the cache. */
static void render_usage(const td_choice *ch, uint32_t n_output, td_buf *out)
{
  td_buf_printf(out,
                "{\"input_tokens\":%u,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%u,"
                "\"output_tokens\":%u}",
                ch->n_prompt - ch->n_cached, ch->n_cached, n_output);
}

static void render_head(const td_call *c, td_buf *out)
{
  td_buf_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", c->id);
  append_text(out, c->info->model_name);
}

/* ---- whole answers ---- */

/* Whether p holds the complete arguments of a call. `input` must be a whole object, so a call whose
 * arguments were cut off is left out. */
static bool is_input(const td_parsed_answer *a, const td_answer_part *p)
{
  td_json_scan scan;
  td_json_scan_begin(&scan);
  return p && p->kind == TD_PART_ARGUMENTS &&
         td_json_scan_push(&scan, td_answer_part_text(a, p), p->n, NULL) == p->n && scan.done && !scan.bad;
}

/* The code of a surrogate's \u escape at i, or 0 if there is none. */
static unsigned surrogate_at(const char *text, size_t n, size_t i)
{
  char hex[5] = "";
  if (n - i < 6 || text[i] != '\\' || text[i + 1] != 'u')
    return 0;
  memcpy(hex, text + i + 2, 4);
  unsigned code = (unsigned)strtoul(hex, NULL, 16);
  return code >= 0xD800 && code <= 0xDFFF ? code : 0;
}

/* Copies the model's JSON into the answer unchanged, except that an unpaired surrogate becomes U+FFFD. Many
 * clients' JSON parsers would refuse the whole answer because of one. */
static void append_input(const char *text, size_t n, td_buf *out)
{
  for (size_t i = 0, k; i < n; i += k) {
    unsigned code = surrogate_at(text, n, i), next = code ? surrogate_at(text, n, i + 6) : 0;
    bool pair = code && code < 0xDC00 && next >= 0xDC00;
    k = pair ? 12 : code ? 6 : text[i] == '\\' && i + 1 < n ? 2 : 1;
    td_buf_append(out, code && !pair ? "\\ufffd" : text + i, k);
  }
}

static void render_block(const td_choice *ch, size_t i, bool first, td_buf *out)
{
  const td_parsed_answer *a = &ch->parsed;
  const td_answer_part *p = &a->parts[i], *next = i + 1 < a->n ? p + 1 : NULL;
  char id[TD_CALL_ID_BYTES];
  td_buf_append_str(out, first ? "" : ",");
  if (p->kind == TD_PART_CALL) {
    td_parts_json_call_id(ch, p->call, id);
    td_buf_printf(out, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", id);
    td_buf_append_json_string(out, td_answer_part_text(a, p), p->n);
    td_buf_append_str(out, ",\"input\":");
    append_input(td_answer_part_text(a, next), next->n, out);
    td_buf_append_char(out, '}');
    return;
  }
  td_buf_append_str(out, p->kind == TD_PART_REASONING
                             ? "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":"
                             : "{\"type\":\"text\",\"text\":");
  td_buf_append_json_string(out, td_answer_part_text(a, p), p->n);
  td_buf_append_char(out, '}');
}

static void render_answer(const td_call *c, td_buf *out)
{
  const td_choice *ch = &c->choices[0];
  const td_parsed_answer *a = &ch->parsed;
  bool first = true;
  render_head(c, out);
  td_buf_append_str(out, ",\"content\":[");
  for (size_t i = 0; i < a->n; i++) {
    const td_answer_part *p = &a->parts[i];
    if (p->kind == TD_PART_ARGUMENTS ||
        (p->kind == TD_PART_CALL && !is_input(a, i + 1 < a->n ? p + 1 : NULL)))
      continue;
    render_block(ch, i, first, out);
    first = false;
  }
  td_buf_append_str(out, "],");
  render_stop(ch, out);
  td_buf_append_str(out, ",\"usage\":");
  render_usage(ch, ch->n_read, out);
  td_buf_append_char(out, '}');
}

/* ---- streams ---- */

static void event(const char *name, td_buf *out)
{
  td_buf_printf(out, "event: %s\ndata: {\"type\":\"%s\"", name, name);
}

static void end_event(td_buf *out) { td_buf_append_str(out, "}\n\n"); }

static void begin_message(const td_call *c, const td_choice *ch, td_buf *out)
{
  event("message_start", out);
  td_buf_append_str(out, ",\"message\":");
  render_head(c, out);
  td_buf_append_str(out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
  render_usage(ch, 1, out);
  td_buf_append_char(out, '}');
  end_event(out);
}

static void end_block(td_choice *ch, td_buf *out)
{
  if (!ch->item.open)
    return;
  event("content_block_stop", out);
  td_buf_printf(out, ",\"index\":%u", ch->item.n - 1);
  end_event(out);
  ch->item.open = false;
}

static void begin_block(td_choice *ch, const td_answer_part *p, td_buf *out)
{
  char id[TD_CALL_ID_BYTES];
  end_block(ch, out);
  ch->item = (td_item){.n = ch->item.n + 1, .open = true, .kind = p->kind};
  event("content_block_start", out);
  td_buf_printf(out, ",\"index\":%u,\"content_block\":", ch->item.n - 1);
  if (p->kind == TD_PART_CALL) {
    td_parts_json_call_id(ch, p->call, id);
    td_buf_printf(out, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", id);
    td_buf_append_json_string(out, td_answer_part_text(&ch->parsed, p), p->n);
    td_buf_append_str(out, ",\"input\":{}}");
  } else {
    td_buf_append_str(out, p->kind == TD_PART_REASONING
                               ? "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}"
                               : "{\"type\":\"text\",\"text\":\"\"}");
  }
  end_event(out);
}

static void render_part(td_choice *ch, const td_answer_part *p, td_buf *out)
{
  static const char *const deltas[] = {"\"text_delta\",\"text\":", "\"thinking_delta\",\"thinking\":", NULL,
                                       "\"input_json_delta\",\"partial_json\":"};
  if (p->kind == TD_PART_CALL ||
      (p->kind != TD_PART_ARGUMENTS && (!ch->item.open || ch->item.kind != p->kind)))
    begin_block(ch, p, out);
  if (p->kind == TD_PART_CALL)
    return;
  event("content_block_delta", out);
  td_buf_printf(out, ",\"index\":%u,\"delta\":{\"type\":%s", ch->item.n - 1, deltas[p->kind]);
  td_buf_append_json_string(out, td_answer_part_text(&ch->parsed, p), p->n);
  td_buf_append_char(out, '}');
  end_event(out);
}

static void render_delta(const td_call *c, const td_delta *d, td_buf *out)
{
  td_choice *ch = d->choice;
  if (d->first)
    begin_message(c, ch, out);
  for (size_t i = 0; i < ch->parsed.n; i++)
    render_part(ch, &ch->parsed.parts[i], out);
  if (!d->finish)
    return;
  end_block(ch, out);
  event("message_delta", out);
  td_buf_append_str(out, ",\"delta\":{");
  render_stop(ch, out);
  td_buf_append_str(out, "},\"usage\":");
  render_usage(ch, ch->n_read, out);
  end_event(out);
}

static void render_end(const td_call *c, td_buf *out)
{
  event("message_stop", out);
  end_event(out);
}

static void render_error_event(const td_call *c, const td_api_error *e, td_buf *out)
{
  td_buf_append_str(out, "event: error\ndata: ");
  td_api_error_render_anthropic(e, out);
  td_buf_append_str(out, "\n\n");
}

const td_api td_api_messages = {
    .route = TD_ROUTE_MESSAGES,
    .is_chat = true,
    .id_prefix = "msg_",
    .generates = true,
    .translate = td_messages_to_chat,
    .prepare = td_chat_prepare,
    .render_delta = render_delta,
    .render_answer = render_answer,
    .render_end = render_end,
    .render_error_event = render_error_event,
};

const td_api td_api_count_tokens = {.route = TD_ROUTE_MESSAGES,
                                    .is_chat = true,
                                    .id_prefix = "msg_",
                                    .translate = td_messages_to_chat,
                                    .prepare = prepare_count};
