/* Translates a body of OpenAI's /v1/responses into a chat's body. The server stores no conversations, so the
 * input must contain everything that was said before. */
#include <stdio.h>
#include <string.h>

#include "server/translate.h"

enum { PATH_BYTES = 64 };

/* Tools other than functions are run by OpenAI, or only its models know them. They are ignored, so that an
 * agent that offers them can go on without. */
static void read_tools(td_translation *t, const cJSON *tools)
{
  char path[PATH_BYTES];
  size_t i = 0;
  if (tools && !cJSON_IsNull(tools) && !cJSON_IsArray(tools))
    td_translation_invalid(t, "", "tools", "must be an array of tools");
  for (const cJSON *tool = cJSON_IsArray(tools) ? tools->child : NULL; tool && !t->failed;
       tool = tool->next) {
    const cJSON *name = td_json_get(tool, "name");
    snprintf(path, sizeof path, "tools[%zu].", i++);
    if (!td_translation_is(tool, "type", "function"))
      td_unknown_add(&t->call->request.unknown, "tools.", "type");
    else if (!cJSON_IsString(name))
      td_translation_invalid(t, path, "name", "is required and must be a string");
    else
      td_translation_add_tool(t, name, td_json_get(tool, "description"), td_json_get(tool, "parameters"),
                              td_json_get(tool, "strict"));
  }
}

/* Translates {"type": "function", "name": N} to {"type": "function", "function": {"name": N}}. */
static void put_function(td_translation *t, cJSON *list, const char *member, const cJSON *from)
{
  const cJSON *name = td_json_get(from, "name");
  cJSON *c = cJSON_CreateObject(), *f = c ? cJSON_AddObjectToObject(c, "function") : NULL;
  td_translation_put(t, list, member, c);
  if (!t->failed && !cJSON_IsString(name))
    td_translation_invalid(t, "tool_choice.", "name", "is required and must be a string");
  if (!t->failed)
    td_translation_put_text(t, f, "name", name->valuestring);
}

static void read_allowed(td_translation *t, const cJSON *choice)
{
  cJSON *c = cJSON_CreateObject(), *a = c ? cJSON_AddObjectToObject(c, "allowed_tools") : NULL;
  cJSON *list = a ? cJSON_AddArrayToObject(a, "tools") : NULL;
  const cJSON *mode = td_json_get(choice, "mode"), *tools = td_json_get(choice, "tools"), *one;
  td_translation_put(t, t->chat, "tool_choice", c);
  if (!t->failed && !list)
    td_translation_no_memory(t);
  if (!t->failed)
    td_translation_put_text(t, c, "type", "allowed_tools");
  if (!t->failed)
    td_translation_put_text(t, a, "mode", cJSON_IsString(mode) ? mode->valuestring : "");
  for (one = cJSON_IsArray(tools) ? tools->child : NULL; one && !t->failed; one = one->next)
    if (td_translation_is(one, "type", "function"))
      put_function(t, list, NULL, one);
}

/* If `tools` has no function left, the chat accepts only "auto" and "none". */
static void read_choice(td_translation *t, const cJSON *choice)
{
  if (!choice || cJSON_IsNull(choice) || t->failed)
    return;
  if (cJSON_IsObject(choice) && td_translation_is(choice, "type", "allowed_tools"))
    read_allowed(t, choice);
  else if (cJSON_IsObject(choice) && td_translation_is(choice, "type", "function"))
    put_function(t, t->chat, "tool_choice", choice);
  else if (cJSON_IsObject(choice))
    td_translation_unsupported(t, "tool_choice.", "type", "is served as 'function' and 'allowed_tools'");
  else
    td_translation_put(t, t->chat, "tool_choice", cJSON_Duplicate(choice, true));
}

/* ---- input ---- */

static void unserved_part(td_translation *t, const cJSON *part, const char *path, const char *name)
{
  const cJSON *type = td_json_get(part, "type");
  char text[PATH_BYTES + 80];
  snprintf(text, sizeof text, "has a part %s%.40s%s, which is not served; 'input_text' and 'output_text' are",
           cJSON_IsString(type) ? "of type '" : "without a type",
           cJSON_IsString(type) ? type->valuestring : "", cJSON_IsString(type) ? "'" : "");
  td_translation_unsupported(t, path, name, text);
}

/* Adds the text of `content`, a string or an array of parts, to message m. */
static void add_content(td_translation *t, cJSON *m, const cJSON *content, const char *path, const char *name)
{
  const cJSON *part;
  if (cJSON_IsString(content))
    td_translation_add_text(t, m, content->valuestring);
  else if (!cJSON_IsArray(content))
    td_translation_invalid(t, path, name, "must be a string or an array of text parts");
  for (part = cJSON_IsArray(content) ? content->child : NULL; part && !t->failed; part = part->next) {
    bool refusal = td_translation_is(part, "type", "refusal");
    const cJSON *text = td_json_get(part, refusal ? "refusal" : "text");
    if (!refusal && !td_translation_is(part, "type", "input_text") &&
        !td_translation_is(part, "type", "output_text") && !td_translation_is(part, "type", "text"))
      unserved_part(t, part, path, name);
    else if (!cJSON_IsString(text))
      td_translation_invalid(t, path, name, "has a part without its text");
    else
      td_translation_add_text(t, m, text->valuestring);
  }
}

/* The assistant's message that is being collected: templates expect thoughts, text and calls of one turn in
 * one message. */
static cJSON *turn(td_translation *t, cJSON **open)
{
  if (!*open)
    *open = td_translation_message(t, "assistant");
  return *open;
}

static void read_message(td_translation *t, const cJSON *item, const char *path, cJSON **open)
{
  const cJSON *role = td_json_get(item, "role");
  if (!cJSON_IsString(role)) {
    td_translation_invalid(t, path, "role", "is required and must be a string");
    return;
  }
  bool assistant = strcmp(role->valuestring, "assistant") == 0;
  if (*open && (!assistant || td_json_get(*open, "content") || td_json_get(*open, "tool_calls")))
    *open = NULL;
  cJSON *m = assistant ? turn(t, open) : td_translation_message(t, role->valuestring);
  if (!t->failed)
    add_content(t, m, td_json_get(item, "content"), path, "content");
}

static void read_call(td_translation *t, const cJSON *item, const char *path, cJSON **open)
{
  const cJSON *id = td_json_get(item, "call_id"), *name = td_json_get(item, "name"),
              *args = td_json_get(item, "arguments");
  if (!cJSON_IsString(id))
    td_translation_invalid(t, path, "call_id", "is required and must be a string");
  else if (!cJSON_IsString(name))
    td_translation_invalid(t, path, "name", "is required and must be a string");
  else if (!cJSON_IsString(args))
    td_translation_invalid(t, path, "arguments", "is required and must be a string");
  cJSON *m = t->failed ? NULL : turn(t, open);
  if (!t->failed)
    td_translation_add_call(t, m, id->valuestring, name->valuestring, args->valuestring);
}

static void read_output(td_translation *t, const cJSON *item, const char *path)
{
  const cJSON *id = td_json_get(item, "call_id");
  if (!cJSON_IsString(id))
    td_translation_invalid(t, path, "call_id", "is required and must be a string");
  cJSON *m = t->failed ? NULL : td_translation_message(t, "tool");
  if (!t->failed)
    td_translation_put_text(t, m, "tool_call_id", id->valuestring);
  if (!t->failed)
    add_content(t, m, td_json_get(item, "output"), path, "output");
}

/* Takes the text of the reasoning if there is any. Its encrypted form can be read by OpenAI only. */
static void read_reasoning(td_translation *t, const cJSON *item, cJSON **open)
{
  const cJSON *content = td_json_get(item, "content"), *text = NULL;
  if (cJSON_IsArray(content))
    text = td_json_get(content->child, "text");
  *open = NULL;
  if (!cJSON_IsString(text))
    return;
  cJSON *m = turn(t, open);
  if (!t->failed)
    td_translation_put_text(t, m, "reasoning_content", text->valuestring);
}

static void read_item(td_translation *t, const cJSON *item, size_t i, cJSON **open)
{
  char path[PATH_BYTES];
  const cJSON *type = td_json_get(item, "type");
  snprintf(path, sizeof path, "input[%zu].", i);
  if (!type || td_translation_is(item, "type", "message")) {
    read_message(t, item, path, open);
  } else if (td_translation_is(item, "type", "function_call")) {
    read_call(t, item, path, open);
  } else if (td_translation_is(item, "type", "reasoning")) {
    read_reasoning(t, item, open);
  } else if (td_translation_is(item, "type", "function_call_output")) {
    *open = NULL;
    read_output(t, item, path);
  } else {
    td_translation_unsupported(t, path, "type",
                               "is served as message, function_call, function_call_output and reasoning");
  }
}

static void read_input(td_translation *t, const cJSON *body)
{
  const cJSON *input = td_json_get(body, "input"), *instructions = td_json_get(body, "instructions");
  cJSON *open = NULL;
  size_t i = 0;
  if (cJSON_IsString(instructions) && *instructions->valuestring)
    td_translation_add_text(t, td_translation_message(t, "system"), instructions->valuestring);
  else if (instructions && !cJSON_IsNull(instructions) && !cJSON_IsString(instructions))
    td_translation_invalid(t, "", "instructions", "must be a string");
  if (cJSON_IsString(input) && !t->failed)
    td_translation_add_text(t, td_translation_message(t, "user"), input->valuestring);
  else if (!cJSON_IsArray(input) || !input->child)
    td_translation_invalid(t, "", "input", "is required: a string, or an array of items");
  for (const cJSON *item = cJSON_IsArray(input) ? input->child : NULL; item && !t->failed; item = item->next)
    read_item(t, item, i++, &open);
}

/* ---- the whole body ---- */

/* Translates text.format. A {"type": "json_schema", "schema": S} becomes a chat's {.., "json_schema":
 * {"schema": S}}. */
static void read_format(td_translation *t, const cJSON *format)
{
  if (!format || cJSON_IsNull(format) || t->failed)
    return;
  if (!td_translation_is(format, "type", "json_schema")) {
    td_translation_put(t, t->chat, "response_format", cJSON_Duplicate(format, true));
    return;
  }
  cJSON *rf = cJSON_CreateObject();
  td_translation_put(t, t->chat, "response_format", rf);
  if (!t->failed)
    td_translation_put_text(t, rf, "type", "json_schema");
  if (!t->failed)
    td_translation_put(t, rf, "json_schema", cJSON_Duplicate(format, true));
}

/* wanted: `include` asks for log-probabilities. */
static void read_logprobs(td_translation *t, const cJSON *top, bool wanted)
{
  bool none = !top || cJSON_IsNull(top) || (cJSON_IsNumber(top) && top->valuedouble == 0);
  if (!none && !wanted)
    td_translation_invalid(t, "", "top_logprobs", "goes with 'message.output_text.logprobs' in 'include'");
  if (wanted && !t->failed)
    td_translation_put(t, t->chat, "logprobs", cJSON_CreateTrue());
  if (!none && !t->failed)
    td_translation_put(t, t->chat, "top_logprobs", cJSON_Duplicate(top, true));
}

/* Reads the objects `text` and `reasoning`, names what is ignored of them, and reads `include`. */
static void read_wishes(td_translation *t, const cJSON *body)
{
  const cJSON *text = td_json_get(body, "text"), *reasoning = td_json_get(body, "reasoning"),
              *include = td_json_get(body, "include"), *m;
  if (text && !cJSON_IsNull(text) && !cJSON_IsObject(text))
    td_translation_invalid(t, "", "text", "must be an object");
  else if (reasoning && !cJSON_IsNull(reasoning) && !cJSON_IsObject(reasoning))
    td_translation_invalid(t, "", "reasoning", "must be an object");
  else if (include && !cJSON_IsNull(include) && !cJSON_IsArray(include))
    td_translation_invalid(t, "", "include", "must be an array of strings");
  for (m = t->failed || !text ? NULL : text->child; m; m = m->next)
    if (strcmp(m->string, "format") != 0 && strcmp(m->string, "verbosity") != 0 && !cJSON_IsNull(m))
      td_translation_ignore(t, "text.", m->string);
  for (m = t->failed || !reasoning ? NULL : reasoning->child; m; m = m->next)
    if (strcmp(m->string, "effort") != 0 && strcmp(m->string, "summary") != 0 &&
        strcmp(m->string, "generate_summary") != 0 && !cJSON_IsNull(m))
      td_translation_ignore(t, "reasoning.", m->string);
  if (!t->failed)
    td_translation_copy(t, reasoning, "effort", "reasoning_effort");
  bool logprobs = false;
  for (m = t->failed || !include ? NULL : include->child; m; m = m->next) {
    if (!cJSON_IsString(m))
      td_translation_invalid(t, "", "include", "must be an array of strings");
    else if (strcmp(m->valuestring, "message.output_text.logprobs") == 0)
      logprobs = true;
  }
  read_logprobs(t, td_json_get(body, "top_logprobs"), logprobs);
}

/* Keeps the members of the request that responses repeat. A stream sends several whole responses, and they
 * stay in memory until the client reads them. A member too long for that is therefore reported as if it were
 * absent. */
static void keep_echo(td_translation *t, const cJSON *body)
{
  static const struct {
    const char *name, *absent;
  } echoed[] = {{"instructions", "null"},
                {"max_output_tokens", "null"},
                {"metadata", "{}"},
                {"parallel_tool_calls", "true"},
                {"reasoning", "{\"effort\":null,\"summary\":null}"},
                {"temperature", "null"},
                {"text", "{\"format\":{\"type\":\"text\"}}"},
                {"tool_choice", "\"auto\""},
                {"tools", "[]"},
                {"top_logprobs", "0"},
                {"top_p", "null"},
                {"user", "null"}};
  td_buf *out = &t->call->echo;
  for (size_t i = 0; i < sizeof echoed / sizeof *echoed && !t->failed; i++) {
    const cJSON *m = td_json_get(body, echoed[i].name);
    td_buf member;
    td_buf_init(&member, 0);
    if (m && !cJSON_IsNull(m))
      td_json_print(m, &member);
    bool fits =
        member.len_bytes > 0 && out->len_bytes + member.len_bytes <= td_limit_max(TD_LIMIT_ECHO_BYTES);
    td_buf_printf(out, ",\"%s\":%s", echoed[i].name, fits ? member.data : echoed[i].absent);
    if (out->failed || member.failed)
      td_translation_no_memory(t);
    td_buf_deinit(&member);
  }
}

cJSON *td_responses_to_chat(td_call *call, const cJSON *body)
{
  td_translation t;
  td_translation_begin(&t, call, body);
  td_translation_copy_same(&t, body);
  static const char *const own[][2] = {
      {"parallel_tool_calls", "parallel_tool_calls"}, {"stop", "stop"}, {"max_output_tokens", "max_tokens"}};
  for (size_t k = 0; k < sizeof own / sizeof *own && !t.failed; k++)
    td_translation_copy(&t, body, own[k][0], own[k][1]);
  if (!t.failed)
    read_input(&t, body);
  if (!t.failed)
    read_tools(&t, td_json_get(body, "tools"));
  if (!t.failed)
    read_choice(&t, td_json_get(body, "tool_choice"));
  read_format(&t, td_json_get(td_json_get(body, "text"), "format"));
  read_wishes(&t, body);
  if (!t.failed)
    keep_echo(&t, body);
  return td_translation_end(&t);
}
