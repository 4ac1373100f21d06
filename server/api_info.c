/* GET /version, and /tokenizer_info in vLLM's format, from which a client can render chats and count tokens
 * as this server does. */
#include <string.h>

#include "server/router.h"

void td_api_version(td_conn *c)
{
  static const char json[] = "{\"version\":\"" TD_VERSION "\"}";
  td_conn_respond(c, 200, "application/json", NULL, json, sizeof json - 1);
}

static void append_text(const char *name, const char *text, td_buf *out)
{
  td_buf_printf(out, ",\"%s\":", name);
  if (text)
    td_buf_append_json_string(out, text, strlen(text));
  else
    td_buf_append_str(out, "null");
}

void td_api_tokenizer_info(td_conn *c)
{
  const td_engine *e = c->server->engine;
  const td_engine_info *info = td_engine_get_info(e);
  td_buf out;
  if (!info->has_tokenizer) {
    td_api_error err;
    td_api_error_set(&err, 404, "not_served", NULL, "this model has no tokenizer");
    td_conn_respond_error(c, &err);
    return;
  }
  td_buf_init(&out, 0);
  td_buf_printf(&out,
                "{\"tokenizer_class\":\"PreTrainedTokenizerFast\",\"vocab_size\":%u,\"model_max_length\":%u",
                info->vocab, info->max_context_tokens);
  append_text("bos_token", td_engine_token_text(e, info->bos_id), &out);
  append_text("eos_token", td_engine_token_text(e, info->eos_id), &out);
  append_text("pad_token", NULL, &out);
  append_text("chat_template", td_engine_chat_template_text(e), &out);
  td_buf_append_char(&out, '}');
  td_conn_respond_buf(c, 200, "application/json", NULL, &out);
  td_buf_deinit(&out);
}
