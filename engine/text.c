/* Text functions for the server: tokenise, render chats, detokenise. They only read the loaded model: any
 * thread. */
#include "engine/internal.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static td_status refuse_text(const char *param, td_error *err)
{
  return td_fail_param(err, TD_ERR_UNSUPPORTED, param,
                       "this model has no tokenizer (tokenizer.json or tokenizer.model): give "
                       "'/v1/completions' a 'prompt' of token ids");
}

td_status td_engine_tokenize(const td_engine *e, const char *text, size_t n_bytes, bool parse_special,
                             bool add_bos, size_t max_tokens, int32_t **ids, size_t *n_ids, td_error *err)
{
  td_ids out = {0};
  td_span all = {0, n_bytes};
  if (!e->tokenizer)
    return refuse_text("prompt", err);
  td_status st = td_tokenizer_encode(e->tokenizer, text, n_bytes, &all, parse_special ? 1 : 0, add_bos,
                                     max_tokens, &out, err);
  if (st != TD_OK) {
    td_ids_deinit(&out);
    return st;
  }
  *ids = out.ids;
  *n_ids = out.n;
  return TD_OK;
}

const char *td_engine_token_text(const td_engine *e, int32_t id)
{
  return e->tokenizer ? td_tokenizer_token_text(e->tokenizer, id) : NULL;
}

const char *td_engine_chat_template_text(const td_engine *e) { return e->chat_template_text; }

void td_engine_token_bytes(const td_engine *e, int32_t id, td_buf *out)
{
  if (e->tokenizer)
    td_tokenizer_token_bytes(e->tokenizer, id, out);
}

int32_t td_engine_find_token(const td_engine *e, const char *text, bool *special)
{
  int32_t id = e->tokenizer ? td_tokenizer_added_token(e->tokenizer, text, strlen(text)) : -1;
  *special = id >= 0 && td_tokenizer_is_special(e->tokenizer, id);
  return id;
}

const char *td_engine_template_text(const td_engine *e, size_t *n)
{
  *n = e->template_text.len_bytes;
  return e->template_text.data;
}

/* ---- chat ---- */

static bool add_token_text(cJSON *vars, const char *name, const td_engine *e, int32_t id)
{
  const char *text = id >= 0 ? td_tokenizer_token_text(e->tokenizer, id) : NULL;
  return !text || cJSON_AddStringToObject(vars, name, text);
}

/* Template variables that clients cannot set. */
static cJSON *trusted_variables(const td_engine *e, const td_chat_input *in)
{
  cJSON *vars = cJSON_CreateObject();
  if (vars && add_token_text(vars, "bos_token", e, td_tokenizer_bos(e->tokenizer)) &&
      add_token_text(vars, "eos_token", e, td_tokenizer_eos(e->tokenizer)) &&
      cJSON_AddBoolToObject(vars, "add_generation_prompt", in->add_generation_prompt))
    return vars;
  cJSON_Delete(vars);
  return NULL;
}

/* Template variables from the client, by reference: messages, and tools (null if there are none). */
static cJSON *input_variables(const td_chat_input *in)
{
  cJSON *vars = cJSON_CreateObject();
  if (!vars)
    return NULL;
  bool ok = cJSON_AddItemReferenceToObject(vars, "messages", (cJSON *)in->messages);
  ok = ok && (in->tools ? cJSON_AddItemReferenceToObject(vars, "tools", (cJSON *)in->tools)
                        : cJSON_AddNullToObject(vars, "tools") != NULL);
  ok = ok && cJSON_AddNullToObject(vars, "documents");
  if (ok)
    return vars;
  cJSON_Delete(vars);
  return NULL;
}

static td_status check_kwargs(const cJSON *kwargs, td_error *err)
{
  static const char *const reserved[] = {"messages", "tools", "add_generation_prompt", "bos_token",
                                         "eos_token"};
  for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
    if (td_json_get(kwargs, reserved[i]))
      return td_fail_param(err, TD_ERR_REQUEST, "chat_template_kwargs",
                           "chat_template_kwargs may not set '%s'", reserved[i]);
  return TD_OK;
}

static td_status render(const td_engine *e, const td_chat_input *in, td_rendered *r, td_error *err)
{
  td_status st;
  cJSON *trusted = trusted_variables(e, in), *input = input_variables(in);
  if (!trusted || !input) {
    st = td_fail(err, TD_ERR_NOMEM, "no memory for the chat");
  } else {
    td_render_input ri = {.trusted = trusted,
                          .input = input,
                          .kwargs = in->chat_template_kwargs,
                          .continue_final_message = in->continue_final_message,
                          .now = time(NULL),
                          .max_ops = (size_t)td_option(&e->options, TD_LIMIT_TEMPLATE_OPS),
                          .max_memory_bytes = (size_t)td_option(&e->options, TD_LIMIT_TEMPLATE_MEMORY_BYTES)};
    /* the same choice among named templates as transformers makes */
    bool tools = in->tools && e->tool_template;
    st = td_chat_template_render(tools ? e->tool_template : e->chat_template, &ri, r, err);
  }
  cJSON_Delete(trusted);
  cJSON_Delete(input);
  if (st == TD_ERR_REQUEST && *err->param == '\0')
    snprintf(err->param, sizeof err->param, "messages");
  return st;
}

_Static_assert(sizeof(td_span) == sizeof(td_render_span), "spans are handed on as they are");

td_status td_engine_chat_tokens(const td_engine *e, const td_chat_input *in, td_buf *rendered, int32_t **ids,
                                size_t *n_ids, td_error *err)
{
  if (!e->tokenizer)
    return refuse_text("messages", err);
  if (!e->chat_template)
    return td_fail_param(err, TD_ERR_UNSUPPORTED, "messages", "chat is not served: %s",
                         e->chat_template_error.message);
  TD_TRY(check_kwargs(in->chat_template_kwargs, err));
  td_rendered r = {0};
  td_ids out = {0};
  td_status st = render(e, in, &r, err);
  if (st == TD_OK) /* no BOS is added: the template writes it if the model needs one */
    st = td_tokenizer_encode(e->tokenizer, r.text.data ? r.text.data : "", r.text.len_bytes,
                             (const td_span *)r.trusted, r.n_trusted, false, in->max_tokens, &out, err);
  if (st == TD_OK && rendered)
    td_buf_append(rendered, r.text.data ? r.text.data : "", r.text.len_bytes);
  td_rendered_deinit(&r);
  if (st != TD_OK) {
    td_ids_deinit(&out);
    return st;
  }
  *ids = out.ids;
  *n_ids = out.n;
  return TD_OK;
}

/* ---- detokenising ---- */

struct td_text_stream {
  bool mute; /* no tokenizer: no text */
  td_detok detok;
  const int32_t *marked; /* [n_marked] special tokens to mark in the text; borrowed */
  uint32_t n_marked;
};

td_text_stream *td_text_stream_create(const td_engine *e, bool skip_special, bool begins)
{
  td_text_stream *s = calloc(1, sizeof *s);
  if (s && !e->tokenizer)
    s->mute = true;
  else if (s)
    td_detok_init(&s->detok, e->tokenizer, skip_special, begins);
  return s;
}

void td_text_stream_destroy(td_text_stream *s) { free(s); }

void td_text_stream_mark_tokens(td_text_stream *s, const int32_t *ids, uint32_t n)
{
  s->marked = ids;
  s->n_marked = n;
}

static bool is_marked(const td_text_stream *s, int32_t id)
{
  for (uint32_t i = 0; i < s->n_marked; i++)
    if (s->marked[i] == id)
      return true;
  return false;
}

void td_text_stream_push(td_text_stream *s, const int32_t *ids, size_t n, td_buf *out)
{
  for (size_t i = 0; i < n && !s->mute; i++) {
    if (!is_marked(s, ids[i])) {
      td_detok_push(&s->detok, ids[i], out);
      continue;
    }
    /* a character that is incomplete here does not continue after the mark */
    td_detok_finish(&s->detok, out);
    td_buf_append_str(out, TD_STREAM_MARK);
    td_buf_append_str(out, td_tokenizer_token_text(s->detok.t, ids[i]));
  }
}

void td_text_stream_finish(td_text_stream *s, td_buf *out)
{
  if (!s->mute)
    td_detok_finish(&s->detok, out);
}
