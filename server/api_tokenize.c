/* POST /tokenize and /detokenize, in vLLM's format. The worker makes the whole answer. */
#include <string.h>

#include "server/answer_memory.h"

static bool append_text(td_call *c, const int32_t *ids, size_t n, td_buf *out)
{
  td_text_stream *s = td_text_stream_create(c->engine, false, true);
  if (!s) {
    td_api_error_set(&c->error, 503, "out_of_memory", NULL, "no memory for text");
    return false;
  }
  td_text_stream_push(s, ids, n, out);
  td_text_stream_finish(s, out);
  td_text_stream_destroy(s);
  return true;
}

static void render_token_strs(const td_call *c, const td_prompt *p, td_buf *out)
{
  td_buf_append_char(out, '[');
  for (size_t i = 0; i < p->n; i++) {
    const char *text = td_engine_token_text(c->engine, p->ids[i]);
    if (i > 0)
      td_buf_append_char(out, ',');
    td_buf_append_json_string(out, text ? text : "", text ? strlen(text) : 0);
  }
  td_buf_append_char(out, ']');
}

static bool finish_answer(td_call *c)
{
  if (!c->answer.failed)
    return true;
  if (c->answer.is_full) {
    td_answer_memory_too_long(c->answer.max_bytes, &c->error);
    return false;
  }
  td_api_error_set(&c->error, 503, "out_of_memory", NULL, "no memory for the answer");
  return false;
}

static bool tokenize_prompt(td_call *c, td_prompt *p)
{
  const td_api_request *r = &c->request;
  td_error err;
  if (r->tools && !td_tools_check(r->tools, &c->error))
    return false;
  if (r->messages)
    return td_chat_tokens(c, NULL);
  if (!cJSON_IsString(r->prompt)) {
    td_api_error_set(&c->error, 400, "invalid_value", "prompt", "'prompt' must be a string");
    return false;
  }
  size_t n = td_json_text(r->prompt->valuestring, r->prompt->valuestring);
  return td_engine_tokenize(c->engine, r->prompt->valuestring, n, true, r->add_special_tokens,
                            td_call_token_limit(c), &p->ids, &p->n, &err) == TD_OK ||
         td_call_fail_tokens(c, &err, "prompt");
}

static bool prepare_tokenize(td_call *c)
{
  if (!td_call_alloc_prompts(c, 1))
    return false;
  td_prompt *p = &c->prompts[0];
  if (!tokenize_prompt(c, p))
    return false;
  td_buf_printf(&c->answer, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":", p->n,
                c->info->max_context_tokens);
  td_buf_append_json_ints(&c->answer, p->ids, p->n);
  td_buf_append_str(&c->answer, ",\"token_strs\":");
  if (!c->request.return_token_strs)
    td_buf_append_str(&c->answer, "null");
  else
    render_token_strs(c, p, &c->answer);
  td_buf_append_char(&c->answer, '}');
  return finish_answer(c);
}

static bool prepare_detokenize(td_call *c)
{
  if (!c->info->has_tokenizer) {
    td_api_error_set(
        &c->error, 400, "unsupported_parameter", "tokens",
        "this model has no tokenizer (tokenizer.json or tokenizer.model): 'tokens' have no text");
    return false;
  }
  if (!cJSON_IsArray(c->request.tokens) && !td_json_is_ids(c->request.tokens)) {
    td_api_error_set(&c->error, 400, "invalid_value", "tokens", "'tokens' must be an array of token ids");
    return false;
  }
  if (!td_call_alloc_prompts(c, 1) || !td_call_read_ids(c, c->request.tokens, "tokens", &c->prompts[0]))
    return false;
  td_buf text;
  td_buf_init(&text, c->answer.max_bytes);
  bool ok = append_text(c, c->prompts[0].ids, c->prompts[0].n, &text);
  td_buf_append_str(&c->answer, "{\"prompt\":");
  td_buf_append_json_string(&c->answer, text.data ? text.data : "", text.len_bytes);
  td_buf_append_char(&c->answer, '}');
  c->answer.failed |= text.failed;
  c->answer.is_full |= text.is_full;
  td_buf_deinit(&text);
  return ok && finish_answer(c);
}

const td_api td_api_tokenize = {.route = TD_ROUTE_TOKENIZE, .id_prefix = "tok-", .prepare = prepare_tokenize};
const td_api td_api_detokenize = {
    .route = TD_ROUTE_DETOKENIZE, .id_prefix = "tok-", .ids_member = "tokens", .prepare = prepare_detokenize};
