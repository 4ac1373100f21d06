/* POST /v1/completions: prompts as text or token ids, one or many; OpenAI's text_completion shapes. */
#include <stdlib.h>
#include <string.h>

#include "server/call.h"

static bool bad_prompt(td_call *c, const char *text)
{
  td_api_error_set(&c->error, 400, "invalid_value", "prompt", "'prompt' %s", text);
  return false;
}

static bool read_text(td_call *c, const cJSON *item, td_prompt *p)
{
  td_error err;
  size_t n = td_json_text(item->valuestring, item->valuestring);
  td_status st = td_engine_tokenize(c->engine, item->valuestring, n, true, c->request.add_special_tokens,
                                    td_call_count_to(c), &p->ids, &p->n, &err);
  return st == TD_OK || td_call_fail_tokens(c, &err, "prompt");
}

bool td_call_read_ids(td_call *c, const cJSON *array, const char *param, td_prompt *p)
{
  td_json_ids ids = td_json_ids_begin(array);
  if (ids.n > (c->api->render_delta ? c->info->max_context_tokens : td_call_count_to(c)))
    return td_call_fail_context(c, param, ids.n, false);
  p->ids = malloc((ids.n + 1) * sizeof *p->ids);
  if (!p->ids) {
    td_api_error_set(&c->error, 503, "out_of_memory", NULL, "no memory for token ids");
    return false;
  }
  while (p->n < ids.n) {
    double v = td_json_ids_next(&ids);
    if (!(v >= 0 && v < c->info->vocab) || v != (int32_t)v) {
      td_api_error_set(&c->error, 400, "invalid_value", param, "'%s' must hold token ids from 0 to %u", param,
                       c->info->vocab - 1);
      return false;
    }
    p->ids[p->n++] = (int32_t)v;
  }
  return true;
}

static bool read_one(td_call *c, const cJSON *item, td_prompt *p)
{
  if (cJSON_IsString(item))
    return read_text(c, item, p);
  if (td_json_is_ids(item) || (cJSON_IsArray(item) && item->child))
    return td_call_read_ids(c, item, "prompt", p);
  return bad_prompt(c, "must be a string, an array of strings, or token ids");
}

static bool prepare(td_call *c)
{
  const cJSON *prompt = c->request.prompt;
  bool many = cJSON_IsArray(prompt) && prompt->child && !cJSON_IsNumber(prompt->child);
  size_t n = 1;
  if (cJSON_IsArray(prompt) && !prompt->child)
    return bad_prompt(c, "must not be empty");
  for (const cJSON *i = many ? prompt->child->next : NULL; i; i = i->next, n++)
    if (cJSON_IsString(i) != cJSON_IsString(prompt->child))
      return bad_prompt(c, "must hold either strings or arrays of token ids, not both");
  if (n > td_limit_max(TD_LIMIT_PROMPTS)) {
    td_api_error_set(&c->error, 400, "invalid_value", "prompt", "'prompt' may hold %d prompts at most",
                     (int)td_limit_max(TD_LIMIT_PROMPTS));
    return false;
  }
  if (!td_call_alloc_prompts(c, n))
    return false;
  const cJSON *item = many ? prompt->child : prompt;
  for (size_t i = 0; i < n; i++, item = item->next)
    if (atomic_load(&c->abandoned) || !read_one(c, item, &c->prompts[i]))
      return false;
  return td_call_check_context(c, false);
}

static void render_choice(const td_call *c, const td_choice *ch, const char *text, size_t n_text,
                          const int32_t *ids, size_t n_ids, const char *finish, bool prompt_ids, td_buf *out)
{
  td_buf_printf(out, "{\"index\":%u,\"text\":", ch->index);
  td_buf_append_json_string(out, text, n_text);
  td_render_logprobs(ch, out);
  td_buf_append_str(out, ",\"finish_reason\":");
  if (finish)
    td_buf_printf(out, "\"%s\"", finish);
  else
    td_buf_append_str(out, "null");
  if (c->request.return_token_ids) {
    if (prompt_ids)
      td_render_prompt_ids(&c->prompts[ch->prompt], out);
    td_buf_append_str(out, ",\"token_ids\":");
    td_buf_append_json_ints(out, ids, n_ids);
  }
  td_buf_append_char(out, '}');
}

static void render_delta(const td_call *c, const td_delta *d, td_buf *out)
{
  td_buf_append_str(out, "data: ");
  td_render_head(c, "text_completion", out);
  td_buf_append_str(out, ",\"choices\":[");
  render_choice(c, d->choice, d->text, d->n_text, d->ids, d->n_ids, d->finish, d->first, out);
  td_buf_append_char(out, ']');
  td_render_chunk_usage(d->choice, d->choice->n_read, out);
  td_buf_append_str(out, "}\n\n");
}

static void render_answer(const td_call *c, td_buf *out)
{
  td_render_head(c, "text_completion", out);
  td_buf_append_str(out, ",\"choices\":[");
  for (uint32_t i = 0; i < c->n_choices; i++) {
    const td_choice *ch = &c->choices[i];
    if (i > 0)
      td_buf_append_char(out, ',');
    render_choice(c, ch, ch->out.data ? ch->out.data : "", ch->out.len_bytes,
                  (const int32_t *)(const void *)ch->ids.data, ch->ids.len_bytes / sizeof(int32_t),
                  ch->finish, true, out);
  }
  td_buf_append_str(out, "],\"usage\":");
  td_render_usage(c, out);
  td_buf_append_char(out, '}');
}

const td_api td_api_completions = {
    .route = TD_ROUTE_COMPLETIONS,
    .id_prefix = "cmpl-",
    .ids_member = "prompt",
    .prepare = prepare,
    .render_delta = render_delta,
    .chunk_object = "text_completion",
    .render_answer = render_answer,
};
