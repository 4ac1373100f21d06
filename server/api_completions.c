/* POST /v1/completions: one or many prompts, as text or token ids; answers as OpenAI's text_completion. */
#include <stdlib.h>

#include "server/call.h"

static bool bad_prompt(td_call *c, const char *param, const char *text)
{
  td_api_error_set(&c->error, 400, "invalid_value", param, "'%s' %s", param, text);
  return false;
}

static bool read_text(td_call *c, const cJSON *item, const char *param, td_prompt *p)
{
  td_error err;
  size_t n = td_json_text(item->valuestring, item->valuestring);
  if (c->request.echo)
    td_buf_append(&p->text, item->valuestring, n);
  td_status st = td_engine_tokenize(c->engine, item->valuestring, n, true, c->request.add_special_tokens,
                                    td_call_token_limit(c), &p->ids, &p->n, &err);
  return st == TD_OK || td_call_fail_tokens(c, &err, param);
}

bool td_call_read_ids(td_call *c, const cJSON *array, const char *param, td_prompt *p)
{
  td_json_ids ids = td_json_ids_begin(array);
  if (ids.n > (c->api->generates ? c->info->max_context_tokens : td_call_token_limit(c)))
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

/* The echoed text of a prompt that came as ids. Special tokens are written out, as they are in the tokens of
 * its log-probabilities. */
static bool echo_ids(td_call *c, td_prompt *p)
{
  td_text_stream *s = c->request.echo ? td_text_stream_create(c->engine, false, true) : NULL;
  if (s) {
    td_text_stream_push(s, p->ids, p->n, &p->text);
    td_text_stream_finish(s, &p->text);
    td_text_stream_destroy(s);
  }
  if (!p->text.failed && (s || !c->request.echo))
    return true;
  td_api_error_set(&c->error, 503, "out_of_memory", NULL, "no memory for the text of 'prompt'");
  return false;
}

static bool read_one(td_call *c, const cJSON *item, const char *param, td_prompt *p)
{
  if (cJSON_IsString(item))
    return read_text(c, item, param, p);
  if (td_json_is_ids(item) || (cJSON_IsArray(item) && item->child))
    return td_call_read_ids(c, item, param, p) && echo_ids(c, p);
  return bad_prompt(c, param, "must be a string, an array of strings, or token ids");
}

bool td_call_read_prompts(td_call *c, const cJSON *prompt, const char *param, size_t most)
{
  bool many = cJSON_IsArray(prompt) && prompt->child && !cJSON_IsNumber(prompt->child);
  size_t n = 1;
  if (cJSON_IsArray(prompt) && !prompt->child)
    return bad_prompt(c, param, "must not be empty");
  for (const cJSON *i = many ? prompt->child->next : NULL; i; i = i->next, n++)
    if (cJSON_IsString(i) != cJSON_IsString(prompt->child))
      return bad_prompt(c, param, "must hold either strings or arrays of token ids, not both");
  if (n > most) {
    td_api_error_set(&c->error, 400, "invalid_value", param, "'%s' may hold %zu prompts at most", param,
                     most);
    return false;
  }
  if (!td_call_alloc_prompts(c, n))
    return false;
  const cJSON *item = many ? prompt->child : prompt;
  for (size_t i = 0; i < n; i++, item = item->next)
    if (atomic_load(&c->abandoned) || !read_one(c, item, param, &c->prompts[i]))
      return false;
  return true;
}

static bool prepare(td_call *c)
{
  return td_call_compile_grammar(c, &c->request.grammar, c->request.grammar_field) &&
         td_call_read_prompts(c, c->request.prompt, "prompt", (size_t)td_limit_max(TD_LIMIT_PROMPTS)) &&
         td_call_check_context(c, false);
}

static void render_choice(const td_call *c, const td_delta *d, bool prompt_ids, td_buf *out)
{
  const td_choice *ch = d->choice;
  td_buf_append_str(out, "{\"index\":");
  td_buf_append_uint(out, ch->index);
  td_buf_append_str(out, ",\"text\":");
  td_buf_append_json_string(out, d->text, d->n_text);
  td_render_logprobs(ch, d->echo_begin, d->echo_end, out);
  td_buf_append_str(out, ",\"finish_reason\":");
  td_buf_append_str(out, d->finish ? "\"" : "null");
  if (d->finish) {
    td_buf_append_str(out, d->finish);
    td_buf_append_char(out, '"');
  }
  td_render_prompt_logprobs(c, &c->prompts[ch->prompt], out);
  if (c->request.return_token_ids) {
    if (prompt_ids)
      td_render_prompt_ids(&c->prompts[ch->prompt], out);
    td_buf_append_str(out, ",\"token_ids\":");
    td_buf_append_json_ints(out, d->ids, d->n_ids);
  }
  td_buf_append_char(out, '}');
}

static void render_delta(const td_call *c, const td_delta *d, td_buf *out)
{
  td_buf_append_str(out, "data: ");
  td_render_head(c, "text_completion", out);
  td_buf_append_str(out, ",\"choices\":[");
  render_choice(c, d, d->first, out);
  td_buf_append_char(out, ']');
  td_render_chunk_usage(d->choice, d->choice->n_read, out);
  td_buf_append_str(out, "}\n\n");
}

static void render_answer(const td_call *c, td_buf *out)
{
  td_render_head(c, "text_completion", out);
  td_buf_append_str(out, ",\"choices\":[");
  for (uint32_t i = 0; i < c->n_choices; i++) {
    td_choice *ch = &c->choices[i];
    const td_delta whole = {.choice = ch,
                            .text = ch->out.data ? ch->out.data : "",
                            .n_text = ch->out.len_bytes,
                            .ids = (const int32_t *)(const void *)ch->ids.data,
                            .n_ids = ch->ids.len_bytes / sizeof(int32_t),
                            .echo_end = c->request.echo && c->request.wants_logprobs ? ch->n_prompt : 0,
                            .finish = ch->finish};
    if (i > 0)
      td_buf_append_char(out, ',');
    render_choice(c, &whole, true, out);
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
    .generates = true,
    .render_delta = render_delta,
    .chunk_object = "text_completion",
    .render_answer = render_answer,
};
