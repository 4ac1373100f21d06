/* JSON that chat and completions have in common. */
#include <string.h>

#include "server/call.h"

void td_render_prompt_ids(const td_prompt *p, td_buf *out)
{
  td_buf_append_str(out, ",\"prompt_token_ids\":");
  td_buf_append(out, p->json.data, p->json.len_bytes);
  out->failed |= p->json.failed;
}

void td_render_logprobs(const td_choice *ch, uint32_t echo_begin, uint32_t echo_end, td_buf *out)
{
  const td_call *c = ch->call;
  uint32_t n_top = (uint32_t)c->request.top_logprobs;
  td_logprob_view views[2] = {td_logprobs_view(&c->prompts[ch->prompt].logprobs, &c->request, n_top),
                              td_logprobs_view(&ch->logprobs, &c->request, n_top)};
  views[0].begin = echo_begin;
  views[0].end = echo_end;
  bool none = echo_begin == echo_end && ch->logprobs.len_bytes == 0;
  td_buf_append_str(out, ",\"logprobs\":");
  if (!c->request.wants_logprobs || (c->request.stream && none))
    td_buf_append_str(out, "null");
  else if (c->api->route == TD_ROUTE_CHAT)
    td_logprobs_render_chat(c->engine, &views[1], out);
  else
    td_logprobs_render_completion(c->engine, views, 2, out);
}

void td_render_prompt_logprobs(const td_call *c, const td_prompt *p, td_buf *out)
{
  if (!c->request.has_prompt_logprobs)
    return;
  td_logprob_view v = td_logprobs_view(&p->logprobs, &c->request, (uint32_t)c->request.prompt_logprobs);
  td_buf_append_str(out, ",\"prompt_logprobs\":");
  td_logprobs_render_prompt(c->engine, &v, out);
}

void td_render_head(const td_call *c, const char *object, td_buf *out)
{
  td_buf_append_str(out, "{\"id\":\"");
  td_buf_append_str(out, c->id);
  td_buf_append_str(out, "\",\"object\":\"");
  td_buf_append_str(out, object);
  td_buf_append_str(out, "\",\"created\":");
  td_buf_append_uint(out, (uint64_t)c->created_s);
  td_buf_append_str(out, ",\"model\":");
  td_buf_append_json_string(out, c->info->model_name, strlen(c->info->model_name));
}

static void render_usage(uint64_t prompt, uint64_t completion, uint64_t cached, td_buf *out)
{
  td_buf_append_str(out, "{\"prompt_tokens\":");
  td_buf_append_uint(out, prompt);
  td_buf_append_str(out, ",\"completion_tokens\":");
  td_buf_append_uint(out, completion);
  td_buf_append_str(out, ",\"total_tokens\":");
  td_buf_append_uint(out, prompt + completion);
  td_buf_append_str(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
  td_buf_append_uint(out, cached);
  td_buf_append_str(out, "}}");
}

/* Counts the prompt and its cached tokens once, however many choices it has. */
void td_render_usage(const td_call *c, td_buf *out)
{
  uint64_t prompt = 0, completion = 0, cached = 0;
  for (uint32_t i = 0; i < c->n_choices; i++) {
    const td_choice *ch = &c->choices[i];
    completion += ch->n_read;
    if (i > 0 && ch->prompt == c->choices[i - 1].prompt)
      continue;
    prompt += ch->n_prompt;
    cached += ch->n_cached;
  }
  render_usage(prompt, completion, cached, out);
}

void td_render_usage_event(const td_call *c, td_buf *out)
{
  td_buf_append_str(out, "data: ");
  td_render_head(c, c->api->chunk_object, out);
  td_buf_append_str(out, ",\"choices\":[],\"usage\":");
  td_render_usage(c, out);
  td_buf_append_str(out, "}\n\n");
}

void td_render_chunk_usage(const td_choice *ch, uint32_t n_answer, td_buf *out)
{
  const td_api_request *r = &ch->call->request;
  if (!r->include_usage)
    return;
  td_buf_append_str(out, ",\"usage\":");
  if (r->continuous_usage_stats)
    render_usage(ch->n_prompt, n_answer, ch->n_cached, out);
  else
    td_buf_append_str(out, "null");
}
