/* Translates a body of Anthropic's /v1/messages into a chat's body. */
#include <stdio.h>
#include <string.h>

#include "server/translate.h"

enum { PATH_BYTES = 80 };

/* ---- system ---- */

/* Claude Code puts a line with a nonce before the system prompt. It would make each request's prefix a new
 * one. */
static const char billing[] = "x-anthropic-billing-header:";

static const char *without_billing(const td_call *call, const char *text)
{
  if (!call->drops_billing_line || strncmp(text, billing, strlen(billing)) != 0)
    return text;
  text += strcspn(text, "\n");
  return text + strspn(text, "\n");
}

static void read_system(td_translation *t, const cJSON *system)
{
  const cJSON *block;
  if (!system || cJSON_IsNull(system))
    return;
  cJSON *m = td_translation_message(t, "system");
  if (cJSON_IsString(system)) {
    td_translation_add_text(t, m, without_billing(t->call, system->valuestring));
    return;
  }
  cJSON_ArrayForEach(block, system)
  {
    const cJSON *text = td_json_get(block, "text");
    if (!td_translation_is(block, "type", "text") || !cJSON_IsString(text)) {
      td_translation_invalid(t, "", "system", "must be a string or an array of text blocks");
      return;
    }
    const char *rest = without_billing(t->call, text->valuestring);
    if (*rest || !*text->valuestring)
      td_translation_add_text(t, m, rest);
  }
  if (!cJSON_IsArray(system))
    td_translation_invalid(t, "", "system", "must be a string or an array of text blocks");
  else if (!t->failed && !td_json_get(m, "content"))
    cJSON_DeleteItemFromArray(t->messages, cJSON_GetArraySize(t->messages) - 1);
}

/* ---- blocks ---- */

static void add_result(td_translation *t, const cJSON *block, const char *path)
{
  const cJSON *id = td_json_get(block, "tool_use_id"), *content = td_json_get(block, "content"), *part;
  cJSON *m = td_translation_message(t, "tool");
  if (!cJSON_IsString(id)) {
    td_translation_invalid(t, path, "tool_use_id", "is required and must be a string");
    return;
  }
  td_translation_put_text(t, m, "tool_call_id", id->valuestring);
  if (!t->failed && (!content || cJSON_IsNull(content) || (cJSON_IsArray(content) && !content->child)))
    td_translation_add_text(t, m, "");
  if (cJSON_IsString(content))
    td_translation_add_text(t, m, content->valuestring);
  cJSON_ArrayForEach(part, content)
  {
    const cJSON *text = td_json_get(part, "text");
    if (!td_translation_is(part, "type", "text") || !cJSON_IsString(text))
      td_translation_unsupported(t, path, "content", "is served as text");
    if (t->failed)
      return;
    td_translation_add_text(t, m, text->valuestring);
  }
}

static void add_use(td_translation *t, const cJSON *block, const char *path, cJSON *m)
{
  const cJSON *id = td_json_get(block, "id"), *name = td_json_get(block, "name"),
              *input = td_json_get(block, "input");
  if (!cJSON_IsString(id))
    td_translation_invalid(t, path, "id", "is required and must be a string");
  else if (!cJSON_IsString(name))
    td_translation_invalid(t, path, "name", "is required and must be a string");
  else if (!cJSON_IsObject(input))
    td_translation_invalid(t, path, "input", "is required and must be an object");
  if (t->failed)
    return;
  td_buf text;
  td_buf_init(&text, 0);
  td_json_print(input, &text);
  if (!text.failed)
    td_translation_add_call(t, m, id->valuestring, name->valuestring, text.data);
  else
    td_translation_no_memory(t);
  td_buf_deinit(&text);
}

/* Earlier thoughts are given to the template, which decides whether to show them. */
static void add_thinking(td_translation *t, const cJSON *block, cJSON *m)
{
  const cJSON *text = td_json_get(block, "thinking");
  if (cJSON_IsString(text) && !td_json_get(m, "reasoning_content"))
    td_translation_put_text(t, m, "reasoning_content", text->valuestring);
}

/* *m: the message that text and calls are added to. A tool result becomes a message of its own, and what the
 * user says after it begins a new one. */
static void read_block(td_translation *t, const cJSON *block, const char *path, const char *role, cJSON **m)
{
  const cJSON *text = td_json_get(block, "text");
  bool assistant = strcmp(role, "assistant") == 0;
  if (td_translation_is(block, "type", "tool_result") && !assistant) {
    add_result(t, block, path);
    *m = NULL;
    return;
  }
  if (!*m)
    *m = td_translation_message(t, role);
  if (t->failed)
    return;
  if (td_translation_is(block, "type", "text") && cJSON_IsString(text))
    td_translation_add_text(t, *m, text->valuestring);
  else if (td_translation_is(block, "type", "text"))
    td_translation_invalid(t, path, "text", "is required and must be a string");
  else if (td_translation_is(block, "type", "tool_use") && assistant)
    add_use(t, block, path, *m);
  else if (td_translation_is(block, "type", "thinking") && assistant)
    add_thinking(t, block, *m);
  else if (!td_translation_is(block, "type", "redacted_thinking") || !assistant)
    td_translation_unsupported(t, path, "type",
                               "is served as text, tool_use, tool_result and thinking, each in its role");
}

static void read_message(td_translation *t, const cJSON *message, size_t i)
{
  char path[PATH_BYTES];
  const cJSON *role = td_json_get(message, "role"), *content = td_json_get(message, "content"), *block;
  snprintf(path, sizeof path, "messages[%zu].", i);
  if (!td_translation_is(message, "role", "user") && !td_translation_is(message, "role", "assistant") &&
      !td_translation_is(message, "role", "system")) {
    td_translation_invalid(t, path, "role", "must be user or assistant");
    return;
  }
  cJSON *m = NULL;
  size_t k = 0;
  if (cJSON_IsString(content)) {
    m = td_translation_message(t, role->valuestring);
    td_translation_add_text(t, m, content->valuestring);
  } else if (!cJSON_IsArray(content)) {
    td_translation_invalid(t, path, "content", "must be a string or an array of blocks");
  }
  for (block = cJSON_IsArray(content) ? content->child : NULL; block && !t->failed; block = block->next) {
    snprintf(path, sizeof path, "messages[%zu].content[%zu].", i, k++);
    read_block(t, block, path, role->valuestring, &m);
  }
}

/* ---- tools ---- */

static void read_tools(td_translation *t, const cJSON *tools)
{
  const cJSON *tool;
  char path[PATH_BYTES];
  size_t i = 0;
  if (tools && !cJSON_IsNull(tools) && !cJSON_IsArray(tools))
    td_translation_invalid(t, "", "tools", "must be an array of tools");
  for (tool = cJSON_IsArray(tools) ? tools->child : NULL; tool && !t->failed; tool = tool->next) {
    const cJSON *type = td_json_get(tool, "type"), *name = td_json_get(tool, "name");
    snprintf(path, sizeof path, "tools[%zu].", i++);
    if (type && !cJSON_IsNull(type) && !td_translation_is(tool, "type", "custom"))
      td_translation_unsupported(t, path, "type", "is served as 'custom'");
    else if (!cJSON_IsString(name))
      td_translation_invalid(t, path, "name", "is required and must be a string");
    else
      td_translation_add_tool(t, name, td_json_get(tool, "description"), td_json_get(tool, "input_schema"),
                              td_json_get(tool, "strict"));
  }
}

static void read_choice(td_translation *t, const cJSON *c)
{
  static const char *const words[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
  const cJSON *one = td_json_get(c, "disable_parallel_tool_use"), *name = td_json_get(c, "name");
  if (!c || cJSON_IsNull(c) || t->failed)
    return;
  if (cJSON_IsTrue(one))
    td_translation_put(t, t->chat, "parallel_tool_calls", cJSON_CreateFalse());
  for (size_t i = 0; i < 3; i++)
    if (td_translation_is(c, "type", words[i][0])) {
      td_translation_put_text(t, t->chat, "tool_choice", words[i][1]);
      return;
    }
  if (!td_translation_is(c, "type", "tool") || !cJSON_IsString(name)) {
    td_translation_invalid(t, "", "tool_choice", "must have the type auto, any, none, or tool with a 'name'");
    return;
  }
  cJSON *choice = cJSON_CreateObject(),
        *function = choice ? cJSON_AddObjectToObject(choice, "function") : NULL;
  td_translation_put(t, t->chat, "tool_choice", choice);
  if (!t->failed)
    td_translation_put_text(t, function, "name", name->valuestring);
}

/* ---- the whole body ---- */

/* Switches thinking on or off in templates that have such a variable. */
static void read_thinking(td_translation *t, const cJSON *thinking)
{
  bool off = td_translation_is(thinking, "type", "disabled");
  if (!thinking || cJSON_IsNull(thinking) || t->failed)
    return;
  if (!off && !td_translation_is(thinking, "type", "enabled") &&
      !td_translation_is(thinking, "type", "adaptive")) {
    td_translation_invalid(t, "", "thinking", "must have the type enabled, adaptive or disabled");
    return;
  }
  cJSON *kwargs = cJSON_GetObjectItemCaseSensitive(t->chat, "chat_template_kwargs");
  const cJSON *budget = td_json_get(thinking, "budget_tokens");
  if (budget && !cJSON_IsNull(budget))
    td_translation_ignore(t, "thinking.", "budget_tokens");
  if (!kwargs && !t->failed) {
    kwargs = cJSON_CreateObject();
    td_translation_put(t, t->chat, "chat_template_kwargs", kwargs);
  }
  if (!t->failed && cJSON_IsObject(kwargs) && !td_json_get(kwargs, "enable_thinking"))
    td_translation_put(t, kwargs, "enable_thinking", cJSON_CreateBool(!off));
}

/* format: {"type": "json_schema", "schema": S} */
static void read_format(td_translation *t, const cJSON *format)
{
  const cJSON *schema = td_json_get(format, "schema");
  if (!format || cJSON_IsNull(format) || t->failed)
    return;
  if (!td_translation_is(format, "type", "json_schema") || !cJSON_IsObject(schema)) {
    td_translation_invalid(t, "", "output_format", "must have the type json_schema and a 'schema'");
    return;
  }
  cJSON *rf = cJSON_CreateObject(), *js = rf ? cJSON_AddObjectToObject(rf, "json_schema") : NULL;
  td_translation_put(t, t->chat, "response_format", rf);
  if (!t->failed)
    td_translation_put_text(t, rf, "type", "json_schema");
  if (!t->failed)
    td_translation_put(t, js, "schema", cJSON_Duplicate(schema, true));
}

static void read_output(td_translation *t, const cJSON *body)
{
  const cJSON *config = td_json_get(body, "output_config"), *m;
  if (config && !cJSON_IsNull(config) && !cJSON_IsObject(config))
    td_translation_invalid(t, "", "output_config", "must be an object");
  cJSON_ArrayForEach(m, config)
  {
    if (m->string && strcmp(m->string, "format") != 0 && strcmp(m->string, "effort") != 0 && !cJSON_IsNull(m))
      td_translation_ignore(t, "output_config.", m->string);
  }
  if (!t->failed)
    td_translation_copy(t, config, "effort", "reasoning_effort");
  const cJSON *format = td_json_get(config, "format");
  read_format(t, format ? format : td_json_get(body, "output_format"));
}

/* If the last message is the assistant's, the model continues it. */
static void continue_last(td_translation *t)
{
  const cJSON *last = cJSON_GetArrayItem(t->messages, cJSON_GetArraySize(t->messages) - 1);
  if (td_translation_is(last, "role", "assistant") && !td_json_get(last, "tool_calls"))
    td_translation_put(t, t->chat, "continue_final_message", cJSON_CreateTrue());
}

cJSON *td_messages_to_chat(td_call *call, const cJSON *body)
{
  td_translation t;
  td_translation_begin(&t, call, body);
  const cJSON *messages = td_json_get(body, "messages"), *m;
  size_t i = 0;
  if (!t.failed && (!cJSON_IsArray(messages) || !messages->child))
    td_translation_invalid(&t, "", "messages", "must be an array of at least one message");
  if (!t.failed && call->api->generates && !cJSON_IsNumber(td_json_get(body, "max_tokens")))
    td_translation_invalid(&t, "", "max_tokens", "is required and must be a number");
  td_translation_copy_same(&t, body);
  if (!t.failed)
    td_translation_copy(&t, body, "max_tokens", "max_tokens");
  if (!t.failed)
    td_translation_copy(&t, body, "stop_sequences", "stop");
  if (!t.failed)
    read_system(&t, td_json_get(body, "system"));
  for (m = t.failed ? NULL : messages->child; m && !t.failed; m = m->next)
    read_message(&t, m, i++);
  if (!t.failed)
    read_tools(&t, td_json_get(body, "tools"));
  read_choice(&t, td_json_get(body, "tool_choice"));
  read_thinking(&t, td_json_get(body, "thinking"));
  read_output(&t, body);
  if (!t.failed)
    continue_last(&t);
  return td_translation_end(&t);
}
