/* POST /v1/chat/completions: messages through the model's template; OpenAI's chat shapes. */
#include "server/call.h"

static bool prepare(td_call *c)
{
  const td_api_request *r = &c->request;
  td_error err;
  td_chat_input in = {
      .messages = r->messages,
      .chat_template_kwargs = r->chat_template_kwargs,
      .add_generation_prompt = r->add_generation_prompt,
      .continue_final_message = r->continue_final_message,
      .max_tokens = td_call_count_to(c),
  };
  if (!td_call_alloc_prompts(c, 1))
    return false;
  if (td_engine_chat_tokens(c->engine, &in, NULL, &c->prompts[0].ids, &c->prompts[0].n, &err) != TD_OK)
    return td_call_fail_tokens(c, &err, "messages");
  return td_call_check_context(c, true);
}

/* One event: {"choices":[{"index":i,"delta":{...},"logprobs":...,"finish_reason":...}]}. tokens: it tells of
 * the piece's tokens, by ids and log-probabilities. */
static void render_chunk(const td_call *c, const td_delta *d, const char *delta, const char *finish,
                         bool tokens, td_buf *out)
{
  const td_choice *ch = d->choice;
  td_buf_append_str(out, "data: ");
  td_render_head(c, "chat.completion.chunk", out);
  td_buf_printf(out, ",\"choices\":[{\"index\":%u,\"delta\":{", ch->index);
  if (delta)
    td_buf_append_str(out, delta);
  else if (d->n_text > 0) {
    td_buf_append_str(out, "\"content\":");
    td_buf_append_json_string(out, d->text, d->n_text);
  }
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
  bool role = delta && *delta; /* the first chunk */
  if (role && c->request.return_token_ids)
    td_render_prompt_ids(&c->prompts[0], out);
  td_render_chunk_usage(ch, role ? 0 : ch->n_read, out);
  td_buf_append_str(out, "}\n\n");
}

static void render_delta(const td_call *c, const td_delta *d, td_buf *out)
{
  bool tokens = d->n_ids > 0 || d->choice->logprobs.len_bytes > 0, text = d->n_text > 0;
  if (d->first)
    render_chunk(c, d, "\"role\":\"assistant\",\"content\":\"\"", NULL, false, out);
  if (text || (tokens && !d->finish))
    render_chunk(c, d, NULL, NULL, tokens, out);
  if (d->finish)
    render_chunk(c, d, "", d->finish, tokens && !text, out);
}

static void render_answer(const td_call *c, td_buf *out)
{
  td_render_head(c, "chat.completion", out);
  td_buf_append_str(out, ",\"choices\":[");
  for (uint32_t i = 0; i < c->n_choices; i++) {
    const td_choice *ch = &c->choices[i];
    td_buf_printf(out, "%s{\"index\":%u,\"message\":{\"role\":\"assistant\",\"content\":", i ? "," : "",
                  ch->index);
    td_buf_append_json_string(out, ch->out.data ? ch->out.data : "", ch->out.len_bytes);
    td_buf_append_str(out, ",\"refusal\":null}");
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
    .id_prefix = "chatcmpl-",
    .prepare = prepare,
    .render_delta = render_delta,
    .chunk_object = "chat.completion.chunk",
    .render_answer = render_answer,
};
