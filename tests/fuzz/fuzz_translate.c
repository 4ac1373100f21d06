/* Bodies of /v1/messages and /v1/responses, translated to a chat and read as one. Properties: no body
 * causes a server error; the result is a chat that a template accepts, or a refusal in the route's own
 * words; what an answer repeats of a request is JSON. */
#include <stdio.h>
#include <string.h>

#include "config/limits.h"
#include "fuzz.h"
#include "server/translate.h"

enum { VOCAB = 1000, NODES = 65536 };

static void check_json(const td_buf *text)
{
  const td_json_limits limits = {80, 8 * NODES, TD_ERR_REQUEST};
  cJSON *tree;
  td_error err;
  FUZZ_CHECK(!text->failed && td_json_parse(text->data, text->len_bytes, &limits, &tree, &err) == TD_OK);
  cJSON_Delete(tree);
}

/* In both shapes that clients know. */
static void check_error(const td_api_error *e)
{
  td_buf out;
  FUZZ_CHECK(e->status >= 400 && e->status < 500);
  FUZZ_CHECK(memchr(e->param, '\0', sizeof e->param) && memchr(e->message, '\0', sizeof e->message));
  td_buf_init(&out, 0);
  td_api_error_render(e, &out);
  check_json(&out);
  td_buf_clear(&out);
  td_api_error_render_anthropic(e, &out);
  check_json(&out);
  td_buf_deinit(&out);
}

static void check_echo(const td_buf *echo)
{
  td_buf out;
  td_buf_init(&out, 0);
  td_buf_append_str(&out, "{\"id\":0");
  td_buf_append(&out, echo->data ? echo->data : "", echo->len_bytes);
  td_buf_append_char(&out, '}');
  check_json(&out);
  td_buf_deinit(&out);
}

static bool is_of(const cJSON *m, const char *const *names)
{
  for (; *names; names++)
    if (strcmp(m->string, *names) == 0)
      return true;
  return false;
}

/* What the translations may produce for a message. The chat's own code checks what it means. */
static void check_chat(const cJSON *chat)
{
  static const char *const members[] = {"role",         "content",           "tool_calls",
                                        "tool_call_id", "reasoning_content", NULL};
  const cJSON *messages = td_json_get(chat, "messages"), *m, *member;
  FUZZ_CHECK(cJSON_IsObject(chat) && cJSON_IsArray(messages));
  cJSON_ArrayForEach(m, messages)
  {
    FUZZ_CHECK(cJSON_IsObject(m) && cJSON_IsString(td_json_get(m, "role")));
    cJSON_ArrayForEach(member, m) FUZZ_CHECK(is_of(member, members));
  }
}

static void read_chat(cJSON *chat, td_call *call)
{
  const td_request_rules rules = {{.temperature = 1, .top_p = 1}, VOCAB, call->strict_fields};
  td_api_error error = {0};
  td_api_request r;
  const cJSON *m;
  bool ok = td_request_read(chat, TD_ROUTE_CHAT, &rules, &r, &error) &&
            (!r.messages || td_messages_normalise((cJSON *)r.messages, &(td_message_rules){false, 1000},
                                                  &r.unknown, &error));
  if (ok)
    cJSON_ArrayForEach(m, r.messages)
    {
      const cJSON *content = td_json_get(m, "content");
      FUZZ_CHECK(!content || cJSON_IsString(content));
    }
  td_unknown_merge(&call->request.unknown, &r.unknown);
  td_request_deinit(&r);
  if (ok)
    return;
  td_translation_name(call->api->route, &error);
  check_error(&error);
}

static void check_route(const td_api *api, fuzz_input in, unsigned flags)
{
  const td_json_limits limits = {64, NODES, TD_ERR_REQUEST};
  cJSON *root;
  td_error err;
  if (td_json_parse((const char *)in.data, in.size, &limits, &root, &err) != TD_OK)
    return;
  td_call call = {.api = api, .strict_fields = flags & 1, .drops_billing_line = flags & 2};
  td_buf_init(&call.echo, 0);
  char *before = cJSON_PrintUnformatted(root);
  cJSON *chat = api->translate(&call, root);
  char *after = cJSON_PrintUnformatted(root);
  FUZZ_CHECK(before && after && strcmp(before, after) == 0); /* the body stays the caller's */
  cJSON_free(before);
  cJSON_free(after);
  cJSON_Delete(root); /* nothing of the chat lies in it */
  if (chat) {
    check_chat(chat);
    check_echo(&call.echo);
    read_chat(chat, &call);
  } else {
    check_error(&call.error);
  }
  FUZZ_CHECK(memchr(call.request.unknown.names, '\0', sizeof call.request.unknown.names));
  cJSON_Delete(chat);
  td_buf_deinit(&call.echo);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  fuzz_input in = {data, size};
  unsigned flags = fuzz_take(&in);
  check_route(&td_api_messages, in, flags);
  check_route(&td_api_count_tokens, in, flags);
  check_route(&td_api_responses, in, flags);
  return 0;
}
