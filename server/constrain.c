/* The grammar that constrains an answer. It is made of the grammar that the request gives, the format of the
 * model's tool calls and, if the model thinks, the reasoning in front. */
#include <stdio.h>
#include <string.h>

#include "answers/structural_tag.h"
#include "common/progress.h"
#include "server/call.h"
#include "server/tool_choice.h"

bool td_call_compile_grammar(td_call *call, const td_grammar_source *source, const char *field)
{
  td_error err = {0};
  if (source->kind == TD_GRAMMAR_NONE)
    return true;
  if (td_engine_compile_grammar(call->engine, source, &call->grammar, &err) == TD_OK) {
    call->grammar_field = field;
    td_progress_touch(td_progress_here);
    return true;
  }
  snprintf(err.param, sizeof err.param, "%s", field);
  td_api_error_from(&call->error, &err);
  snprintf(call->error.message, sizeof call->error.message, "'%s': %.*s", field,
           (int)(sizeof err.message - 64), err.message);
  return false;
}

static cJSON *const_string(const cJSON *s)
{
  cJSON *f = cJSON_CreateObject();
  if (f && cJSON_AddStringToObject(f, "type", "const_string") &&
      cJSON_AddStringToObject(f, "value", s->valuestring))
    return f;
  cJSON_Delete(f);
  return NULL;
}

static cJSON *choice(const cJSON *texts)
{
  cJSON *f = cJSON_CreateObject(), *list = f ? cJSON_AddArrayToObject(f, "elements") : NULL;
  bool ok = list && cJSON_AddStringToObject(f, "type", "or");
  for (const cJSON *t = texts->child; t && ok; t = t->next) {
    cJSON *one = const_string(t);
    ok = one && cJSON_AddItemToArray(list, one);
  }
  if (ok)
    return f;
  cJSON_Delete(f);
  return NULL;
}

static bool add_text(cJSON *f, const char *type, const char *member, const char *text)
{
  return f && cJSON_AddStringToObject(f, "type", type) && cJSON_AddStringToObject(f, member, text);
}

static bool add_schema(cJSON *f, const cJSON *schema)
{
  if (!f || !cJSON_AddStringToObject(f, "type", "json_schema"))
    return false;
  if (schema)
    return cJSON_AddItemReferenceToObject(f, "json_schema", (cJSON *)schema);
  cJSON *any = cJSON_AddObjectToObject(f, "json_schema");
  return any && cJSON_AddStringToObject(any, "type", "object");
}

/* The format inside a structural tag: `format` of the newer form, or one made of the older form's members. */
static cJSON *format_of_tag(const cJSON *tag)
{
  const cJSON *old = td_json_get(tag, "structures"), *triggers = td_json_get(tag, "triggers"),
              *f = td_json_get(tag, "format");
  if (!old)
    return cJSON_CreateObjectReference(f ? f->child : NULL);
  cJSON *made = cJSON_CreateObject();
  bool ok = made && cJSON_AddStringToObject(made, "type", "triggered_tags") &&
            cJSON_AddItemReferenceToObject(made, "tags", (cJSON *)old) &&
            (!triggers || cJSON_AddItemReferenceToObject(made, "triggers", (cJSON *)triggers));
  if (ok)
    return made;
  cJSON_Delete(made);
  return NULL;
}

/* The request's grammar as the format of a structural tag. NULL: no memory. */
static cJSON *format_of(const td_grammar_source *s)
{
  if (s->kind == TD_GRAMMAR_TAGS)
    return format_of_tag(s->json);
  if (s->kind == TD_GRAMMAR_CHOICE)
    return choice(s->json);
  cJSON *f = cJSON_CreateObject();
  bool ok = s->kind == TD_GRAMMAR_REGEX  ? add_text(f, "regex", "pattern", s->text)
            : s->kind == TD_GRAMMAR_GBNF ? add_text(f, "grammar", "grammar", s->text)
                                         : add_schema(f, s->json);
  if (ok)
    return f;
  cJSON_Delete(f);
  return NULL;
}

static bool no_memory(td_call *call)
{
  td_api_error_set(&call->error, 503, "out_of_memory", NULL, "no memory for a grammar");
  return false;
}

/* For call formats that write parameters one by one: the first JSON Schema keyword of a strict tool's
 * parameters that the grammar cannot enforce. NULL: it can enforce all of them. */
static const char *unheld_word(const cJSON *parameters, const td_dialect *d)
{
  static const char words[] =
      " type properties required additionalProperties $defs definitions title description "
      "$schema ",
                    of_strings[] = " pattern format minLength maxLength ";
  char word[64];
  for (const cJSON *m = cJSON_IsObject(parameters) ? parameters->child : NULL; m; m = m->next)
    if (snprintf(word, sizeof word, " %s ", m->string) >= (int)sizeof word || !strstr(words, word))
      return m->string;
  const cJSON *p, *properties = td_json_get(parameters, "properties");
  cJSON_ArrayForEach(p, properties)
  {
    const cJSON *type = td_json_get(p, "type");
    bool is_string =
        !type || cJSON_IsArray(type) || (cJSON_IsString(type) && strcmp(type->valuestring, "string") == 0);
    for (const cJSON *m = cJSON_IsObject(p) ? p->child : NULL; m && is_string && d->calls == TD_CALLS_XML;
         m = m->next)
      if (snprintf(word, sizeof word, " %s ", m->string) < (int)sizeof word && strstr(of_strings, word))
        return m->string;
  }
  return NULL;
}

static bool check_strict(td_call *call)
{
  const td_dialect *d = &call->server->dialect;
  const cJSON *tool;
  if (d->calls != TD_CALLS_XML && d->calls != TD_CALLS_PYTHONIC)
    return true;
  cJSON_ArrayForEach(tool, call->request.tools)
  {
    const cJSON *f = td_json_get(tool, "function");
    const char *word =
        cJSON_IsTrue(td_json_get(f, "strict")) ? unheld_word(td_json_get(f, "parameters"), d) : NULL;
    if (!word)
      continue;
    td_api_error_set(&call->error, 400, "unsupported_parameter", "tools",
                     "'%.60s' of the strict tool '%.128s' is not served in the model's form of calls (%s)",
                     word, td_json_get(f, "name")->valuestring, td_dialect_calls_name(d->calls));
    return false;
  }
  return true;
}

bool td_call_constrain_chat(td_call *call)
{
  const td_api_request *r = &call->request;
  const td_dialect *d = &call->server->dialect;
  bool calls = r->choice.mode != TD_TOOLS_NONE, constrained = td_tool_choice_is_constrained(r),
       given = r->grammar.kind != TD_GRAMMAR_NONE && r->choice.mode != TD_TOOLS_REQUIRED;
  if (!constrained && (!given || (!calls && (!d->thinks || call->prompt_end == TD_PROMPT_HAS_THOUGHT))))
    return !given || td_call_compile_grammar(call, &r->grammar, r->grammar_field);
  if (calls && !check_strict(call))
    return false;
  cJSON *content = given ? format_of(&r->grammar) : NULL;
  td_structural_tag_rules rules = {.dialect = d,
                                   .prompt = call->prompt_end,
                                   .tools = calls ? r->tools : NULL,
                                   .allowed = r->choice.allowed,
                                   .required = r->choice.mode == TD_TOOLS_REQUIRED,
                                   .at_most_one = !r->parallel_tool_calls,
                                   .content = content};
  cJSON *tag = given && !content ? NULL : td_structural_tag_make(&rules);
  td_grammar_source source = {.kind = TD_GRAMMAR_TAGS, .json = tag};
  bool ok =
      tag ? td_call_compile_grammar(call, &source, given ? r->grammar_field : "tools") : no_memory(call);
  cJSON_Delete(tag);
  cJSON_Delete(content);
  return ok;
}
