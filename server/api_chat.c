/* POST /v1/chat/completions: renders messages by the model's chat template; answers in OpenAI's format. */
#include "server/call.h"

#include <stdio.h>

#include "server/parts_json.h"
#include "server/tool_choice.h"

static bool no_memory(td_call *c)
{
  td_api_error_set(&c->error, 503, "out_of_memory", NULL, "no memory for the request");
  return false;
}

/* Decides whether answers need a reader: for calls if tools are allowed, for reasoning if the model thinks */
static bool prepare_reading(td_call *c)
{
  const td_api_request *r = &c->request;
  const td_dialect *d = &c->server->dialect;
  bool calls = r->choice.mode != TD_TOOLS_NONE;
  if (calls && d->calls == TD_CALLS_NONE) {
    td_api_error_set(&c->error, 400, "unsupported_parameter", "tools",
                     "the model's chat template knows no tools (--tool-format says how a model writes calls, "
                     "--chat-template gives another template)");
    return false;
  }
  c->reads_answers = calls || d->thinks || c->api != &td_api_chat; /* other routes render only ch->parsed */
  return !calls || td_tools_make(r->tools, &c->tools) || no_memory(c);
}

bool td_chat_tokens(td_call *c, td_buf *text)
{
  const td_api_request *r = &c->request;
  td_error err;
  td_chat_input in = {
      .messages = r->messages,
      .tools = td_tool_choice_shown(r),
      .chat_template_kwargs = r->chat_template_kwargs,
      .add_generation_prompt = r->add_generation_prompt,
      .continue_final_message = r->continue_final_message,
      .max_tokens = td_call_token_limit(c),
  };
  return td_engine_chat_tokens(c->engine, &in, text, &c->prompts[0].ids, &c->prompts[0].n, &err) == TD_OK ||
         td_call_fail_tokens(c, &err, "messages");
}

bool td_chat_prepare(td_call *c)
{
  td_buf text;
  if (!td_call_alloc_prompts(c, 1) || !prepare_reading(c))
    return false;
  td_buf_init(&text, 0);
  bool made = td_chat_tokens(c, c->reads_answers ? &text : NULL), lost = text.failed;
  c->prompt_end = td_dialect_prompt_end(&c->server->dialect, text.data ? text.data : "", text.len_bytes);
  td_buf_deinit(&text);
  if (!made)
    return false;
  if (lost)
    return no_memory(c);
  return td_call_check_context(c, true) && td_call_constrain_chat(c);
}

/* One event: {"choices":[{"index":i,"delta":{...},"logprobs":...,"finish_reason":...}]}. tokens: the event
 * includes the ids and log-probabilities of the delta's tokens. */
static void render_chunk(const td_call *c, const td_delta *d, const char *delta, const char *finish,
                         bool tokens, td_buf *out)
{
  const td_choice *ch = d->choice;
  td_buf_append_str(out, "data: ");
  td_render_head(c, "chat.completion.chunk", out);
  td_buf_printf(out, ",\"choices\":[{\"index\":%u,\"delta\":{", ch->index);
  td_buf_append_str(out, delta);
  td_buf_append_char(out, '}');
  if (tokens)
    td_render_logprobs(ch, 0, 0, out);
  else
    td_buf_append_str(out, ",\"logprobs\":null");
  td_buf_append_str(out, ",\"finish_reason\":");
  if (finish)
    td_buf_printf(out, "\"%s\"", finish);
  else
    td_buf_append_str(out, "null");
  if (tokens && d->n_ids > 0) {
    td_buf_append_str(out, ",\"token_ids\":");
    td_buf_append_json_ints(out, d->ids, d->n_ids);
  }
  td_buf_append_str(out, "}]");
  if (d->first && c->request.return_token_ids)
    td_render_prompt_ids(&c->prompts[0], out);
  td_render_chunk_usage(ch, d->first ? 0 : ch->n_read, out);
  td_buf_append_str(out, "}\n\n");
}

/* Writes a chunk for each part of the parsed answer. The first one includes the ids and log-probabilities.
 * Returns whether there was a chunk. */
static bool render_parts(const td_call *c, const td_delta *d, bool tokens, td_buf *out)
{
  const td_choice *ch = d->choice;
  td_buf delta;
  bool any_rendered = false;
  td_buf_init(&delta, 0);
  for (size_t i = 0; i < ch->parsed.n; i++) {
    if (ch->parsed.parts[i].kind == TD_PART_REASONING && !c->request.include_reasoning)
      continue;
    td_buf_clear(&delta);
    td_parts_json_delta(ch, &ch->parsed.parts[i], &delta);
    render_chunk(c, d, delta.data ? delta.data : "", NULL, tokens && !any_rendered, out);
    any_rendered = true;
    out->failed |= delta.failed;
  }
  if (d->n_text > 0) {
    td_buf_clear(&delta);
    td_buf_append_str(&delta, "\"content\":");
    td_buf_append_json_string(&delta, d->text, d->n_text);
    render_chunk(c, d, delta.data ? delta.data : "", NULL, tokens, out);
    any_rendered = true;
    out->failed |= delta.failed;
  }
  td_buf_deinit(&delta);
  return any_rendered;
}

static void render_delta(const td_call *c, const td_delta *d, td_buf *out)
{
  bool tokens = d->n_ids > 0 || d->choice->logprobs.len_bytes > 0;
  td_delta rest = *d;
  rest.first = false;
  if (d->first)
    render_chunk(c, d, "\"role\":\"assistant\",\"content\":\"\"", NULL, false, out);
  bool any_rendered = render_parts(c, &rest, tokens, out);
  if (!any_rendered && tokens && !d->finish)
    render_chunk(c, &rest, "", NULL, tokens, out);
  if (d->finish)
    render_chunk(c, &rest, "", d->finish, tokens && !any_rendered, out);
}

static void render_message(const td_choice *ch, td_buf *out)
{
  td_buf_append_str(out, "{\"role\":\"assistant\"");
  if (ch->reader) {
    td_parts_json_message(ch, out);
  } else {
    td_buf_append_str(out, ",\"content\":");
    td_buf_append_json_string(out, ch->out.data ? ch->out.data : "", ch->out.len_bytes);
  }
  td_buf_append_str(out, ",\"refusal\":null}");
}

static void render_answer(const td_call *c, td_buf *out)
{
  td_render_head(c, "chat.completion", out);
  td_buf_append_str(out, ",\"choices\":[");
  for (uint32_t i = 0; i < c->n_choices; i++) {
    const td_choice *ch = &c->choices[i];
    td_buf_printf(out, "%s{\"index\":%u,\"message\":", i ? "," : "", ch->index);
    render_message(ch, out);
    td_render_logprobs(ch, 0, 0, out);
    td_buf_printf(out, ",\"finish_reason\":\"%s\"", ch->finish);
    if (c->request.return_token_ids) {
      td_buf_append_str(out, ",\"token_ids\":");
      td_buf_append_json_ints(out, (const int32_t *)(const void *)ch->ids.data,
                              ch->ids.len_bytes / sizeof(int32_t));
    }
    td_buf_append_char(out, '}');
  }
  td_buf_append_str(out, "],\"usage\":");
  td_render_usage(c, out);
  if (c->request.return_token_ids)
    td_render_prompt_ids(&c->prompts[0], out);
  td_render_prompt_logprobs(c, &c->prompts[0], out);
  td_buf_append_char(out, '}');
}

const td_api td_api_chat = {
    .route = TD_ROUTE_CHAT,
    .is_chat = true,
    .id_prefix = "chatcmpl-",
    .prepare = td_chat_prepare,
    .generates = true,
    .render_delta = render_delta,
    .chunk_object = "chat.completion.chunk",
    .render_answer = render_answer,
};
