/* Structural tags for calls: see structural_tag.h. */
#include "answers/structural_tag.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answers/tools.h"
#include "common/buf.h"

/* Trees are built bottom-up. Each function takes ownership of the trees it is given, and returns NULL if one
 * of them is NULL. A lack of memory is thus passed up to the root. */

static cJSON *format(const char *type)
{
  cJSON *f = cJSON_CreateObject();
  if (f && cJSON_AddStringToObject(f, "type", type))
    return f;
  cJSON_Delete(f);
  return NULL;
}

static cJSON *with(cJSON *f, const char *name, cJSON *item)
{
  if (f && item && cJSON_AddItemToObject(f, name, item))
    return f;
  cJSON_Delete(f);
  cJSON_Delete(item);
  return NULL;
}

static cJSON *refer(cJSON *object, const char *name, const cJSON *item)
{
  if (cJSON_AddItemReferenceToObject(object, name, (cJSON *)item))
    return object;
  cJSON_Delete(object);
  return NULL;
}

static cJSON *with_true(cJSON *f, const char *name, bool on)
{
  return on ? with(f, name, cJSON_CreateTrue()) : f;
}

static cJSON *add(cJSON *list, cJSON *item)
{
  if (list && item && cJSON_AddItemToArray(list, item))
    return list;
  cJSON_Delete(list);
  cJSON_Delete(item);
  return NULL;
}

static cJSON *text(const char *s) { return with(format("const_string"), "value", cJSON_CreateString(s)); }
static cJSON *regex(const char *s) { return with(format("regex"), "pattern", cJSON_CreateString(s)); }
static cJSON *optional(cJSON *content) { return with(format("optional"), "content", content); }
static cJSON *list_of(const char *type, cJSON *elements) { return with(format(type), "elements", elements); }
static cJSON *pair(cJSON *a, cJSON *b) { return list_of("sequence", add(add(cJSON_CreateArray(), a), b)); }
static cJSON *either(cJSON *a, cJSON *b) { return list_of("or", add(add(cJSON_CreateArray(), a), b)); }

static cJSON *tag(const char *begin, cJSON *content, const char *end)
{
  cJSON *t = with(with(format("tag"), "begin", cJSON_CreateString(begin)), "content", content);
  return with(t, "end", cJSON_CreateString(end));
}

static cJSON *separated(cJSON *tags, const char *separator, bool at_most_one)
{
  cJSON *f = with(format("tags_with_separator"), "tags", tags);
  f = with(f, "separator", cJSON_CreateString(separator));
  return with_true(with_true(f, "at_least_one", true), "stop_after_first", at_most_one);
}

/* ---- arguments ---- */

static bool is_strict(const cJSON *function) { return cJSON_IsTrue(td_json_get(function, "strict")); }

static cJSON *schema(const cJSON *s, bool strict, bool python)
{
  cJSON *f = format("json_schema");
  f = with(f, "json_schema",
           s ? cJSON_CreateObjectReference(s->child) : cJSON_Parse("{\"type\":\"object\"}"));
  if (!strict)
    f = with(f, "strict", cJSON_CreateFalse());
  return python ? with(f, "style", cJSON_CreateString("python")) : f;
}

/* Arguments are always an object, whatever type their schema names. */
static cJSON *arguments(const cJSON *function)
{
  const cJSON *parameters = td_json_get(function, "parameters");
  return schema(cJSON_IsObject(parameters) && parameters->child ? parameters : NULL, is_strict(function),
                false);
}

/* The schema of one property, with the definitions that it may refer to. */
static cJSON *property_schema(const cJSON *parameters, const cJSON *property, bool strict, bool python)
{
  static const char *const definitions[] = {"$defs", "definitions"};
  cJSON *f = format("json_schema"), *copy = cJSON_CreateObject();
  for (const cJSON *m = property->child; m && copy; m = m->next)
    copy = refer(copy, m->string, m);
  for (size_t i = 0; i < 2 && copy; i++) {
    const cJSON *d = td_json_get(parameters, definitions[i]);
    if (d && !td_json_get(copy, definitions[i]))
      copy = refer(copy, definitions[i], d);
  }
  f = with(f, "json_schema", copy);
  if (!strict)
    f = with(f, "strict", cJSON_CreateFalse());
  return python ? with(f, "style", cJSON_CreateString("python")) : f;
}

static const cJSON *properties_of(const cJSON *function)
{
  const cJSON *p = td_json_get(td_json_get(function, "parameters"), "properties");
  return cJSON_IsObject(p) ? p : NULL;
}

static int by_text(const void *a, const void *b)
{
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* For each property, whether it is required. The names are sorted first, because both lists may be as long
 * as a request. NULL: no memory. */
static bool *make_required(const cJSON *function, const cJSON *properties)
{
  const cJSON *required = td_json_get(td_json_get(function, "parameters"), "required"), *m;
  size_t n = 0, i = 0;
  bool *flags = calloc((size_t)cJSON_GetArraySize(properties) + 1, sizeof *flags);
  const char **names = calloc((size_t)cJSON_GetArraySize(required) + 1, sizeof *names);
  cJSON_ArrayForEach(m, required) if (names && cJSON_IsString(m)) names[n++] = m->valuestring;
  if (names && n > 1)
    qsort(names, n, sizeof *names, by_text);
  for (m = properties ? properties->child : NULL; m && names && flags; m = m->next, i++) {
    const char *name = m->string;
    flags[i] = n > 0 && bsearch(&name, names, n, sizeof *names, by_text);
  }
  bool ok = names && flags;
  free(names);
  if (ok)
    return flags;
  free(flags);
  return NULL;
}

/* ---- pythonic ---- */

static bool is_identifier(const char *s)
{
  return *s && s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")] == '\0';
}

static cJSON *python_argument(const cJSON *function, const cJSON *p, bool comma)
{
  td_buf b;
  const cJSON *parameters = td_json_get(function, "parameters");
  td_buf_init(&b, 0);
  td_buf_printf(&b, "%s%s=", comma ? ", " : "", p->string);
  cJSON *f = b.failed ? NULL : pair(text(b.data), property_schema(parameters, p, is_strict(function), true));
  td_buf_deinit(&b);
  return f;
}

/* Appends the optional arguments from `after` on; required arguments come before all optional ones.
 * required: flags of the properties from `after` on. */
static cJSON *add_optional_arguments(const cJSON *function, const cJSON *after, const bool *required,
                                     cJSON *list)
{
  for (const cJSON *p = after; p && list; p = p->next, required++)
    if (is_identifier(p->string) && !*required)
      list = add(list, optional(python_argument(function, p, true)));
  return list;
}

/* If no property is required, the first one that is given has no comma. That needs an alternative for each
 * property that may be the first. This bounds their number. */
enum { FIRST_ARGUMENTS_MAX = 12 };

static cJSON *python_optional_arguments(const cJSON *function, const cJSON *properties, const bool *required)
{
  cJSON *alternatives = add(cJSON_CreateArray(), text(""));
  unsigned n = 0;
  size_t i = 0;
  for (const cJSON *p = properties ? properties->child : NULL; p && alternatives && n < FIRST_ARGUMENTS_MAX;
       p = p->next, i++) {
    if (!is_identifier(p->string))
      continue;
    cJSON *alternative = add(cJSON_CreateArray(), python_argument(function, p, false));
    alternatives =
        add(alternatives,
            list_of("sequence", add_optional_arguments(function, p->next, required + i + 1, alternative)));
    n++;
  }
  return list_of("or", alternatives);
}

static cJSON *python_arguments(const cJSON *function)
{
  const cJSON *properties = properties_of(function);
  bool *required = make_required(function, properties), comma = false;
  cJSON *list = required ? cJSON_CreateArray() : NULL;
  size_t i = 0;
  for (const cJSON *p = properties ? properties->child : NULL; p && list; p = p->next, i++)
    if (is_identifier(p->string) && required[i]) {
      list = add(list, python_argument(function, p, comma));
      comma = true;
    }
  if (list && comma) {
    list = list_of("sequence", add_optional_arguments(function, properties->child, required, list));
  } else if (list) {
    cJSON_Delete(list);
    list = python_optional_arguments(function, properties, required);
  }
  free(required);
  return list;
}

/* ---- Qwen3-Coder's XML ---- */

/* The listed values of a string. NULL: none are listed, or no memory. */
static cJSON *listed_texts(const cJSON *property)
{
  const cJSON *values = td_json_get(property, "enum"), *one = td_json_get(property, "const"), *v;
  cJSON *list = NULL;
  if (cJSON_IsString(one))
    return text(one->valuestring);
  cJSON_ArrayForEach(v, values) if (cJSON_IsString(v)) list =
      add(list ? list : cJSON_CreateArray(), text(v->valuestring));
  return list ? list_of("or", list) : NULL;
}

static cJSON *xml_value(const cJSON *function, const cJSON *p, unsigned types)
{
  if (types && !(types & TD_PARAM_STRING))
    return property_schema(td_json_get(function, "parameters"), p, is_strict(function), false);
  cJSON *listed = types == TD_PARAM_STRING ? listed_texts(p) : NULL;
  return listed ? listed : with(format("any_text"), "excludes", cJSON_CreateString("</parameter>"));
}

static cJSON *xml_arguments(const cJSON *function)
{
  const cJSON *properties = properties_of(function), *parameters = td_json_get(function, "parameters");
  bool *required = make_required(function, properties);
  cJSON *list = required ? add(cJSON_CreateArray(), text("")) : NULL;
  uint32_t budget = TD_TOOLS_LOOKUPS_MAX / 16;
  size_t i = 0;
  for (const cJSON *p = properties ? properties->child : NULL; p && list; p = p->next, i++) {
    td_buf begin;
    td_buf_init(&begin, 0);
    td_buf_printf(&begin, "<parameter=%s>\n", p->string);
    unsigned types = td_tools_types_of_schema(p, parameters, &budget);
    cJSON *t = begin.failed || strpbrk(p->string, "<>\"\n")
                   ? text("")
                   : tag(begin.data, xml_value(function, p, types), "\n</parameter>\n");
    td_buf_deinit(&begin);
    list = add(list, required[i] ? t : optional(t));
  }
  free(required);
  return list_of("sequence", list);
}

/* ---- calls ---- */

static cJSON *call_of(const td_dialect *d, const cJSON *function)
{
  enum { BYTES = 512 };
  char begin[BYTES], end[BYTES];
  const char *name = td_json_get(function, "name")->valuestring;
  const td_mark *m = d->marks;
  switch (d->calls) {
  case TD_CALLS_HERMES:
    snprintf(begin, BYTES, "%s\n{\"name\": \"%s\", \"arguments\": ", m[TD_MARK_CALL].text, name);
    snprintf(end, BYTES, "}\n%s", m[TD_MARK_CALL_END].text);
    return tag(begin, arguments(function), end);
  case TD_CALLS_LLAMA:
    snprintf(begin, BYTES, "{\"name\": \"%s\", \"parameters\": ", name);
    return tag(begin, arguments(function), "}");
  case TD_CALLS_PYTHONIC:
    snprintf(begin, BYTES, "%s(", name);
    return tag(begin, python_arguments(function), ")");
  case TD_CALLS_XML:
    snprintf(begin, BYTES, "%s\n<function=%s>\n", m[TD_MARK_CALL].text, name);
    snprintf(end, BYTES, "</function>\n%s", m[TD_MARK_CALL_END].text);
    return tag(begin, xml_arguments(function), end);
  default: break;
  }
  if (d->lists_calls) {
    snprintf(begin, BYTES, "{\"name\": \"%s\", \"arguments\": ", name);
    return tag(begin, arguments(function), "}");
  }
  snprintf(begin, BYTES, "%s%s%s", m[TD_MARK_CALL].text, name, m[TD_MARK_ARGS].text);
  return tag(begin, arguments(function), "");
}

static cJSON *all_calls(const td_structural_tag_rules *r)
{
  cJSON *list = cJSON_CreateArray();
  unsigned i = 0;
  for (const cJSON *t = r->tools->child; t && list; t = t->next, i++)
    if (!r->allowed || r->allowed[i])
      list = add(list, call_of(r->dialect, td_json_get(t, "function")));
  return list;
}

/* Mistral's older format: one mark before a list of all calls. */
static cJSON *list_tag(const td_structural_tag_rules *r)
{
  char begin[TD_MARK_BYTES + 2];
  snprintf(begin, sizeof begin, "%.*s[", TD_MARK_BYTES - 1, r->dialect->marks[TD_MARK_CALL].text);
  return tag(begin, separated(all_calls(r), ", ", r->at_most_one), "]");
}

/* At least one call, and nothing else. */
static cJSON *only_calls(const td_structural_tag_rules *r)
{
  const td_mark *mark = &r->dialect->marks[TD_MARK_CALL], *end = &r->dialect->marks[TD_MARK_CALL_END];
  switch (r->dialect->calls) {
  case TD_CALLS_HERMES:
  case TD_CALLS_XML: return separated(all_calls(r), "\n", r->at_most_one);
  case TD_CALLS_LLAMA: {
    cJSON *calls = separated(all_calls(r), "; ", r->at_most_one);
    return mark->n ? pair(optional(text(mark->text)), calls) : calls;
  }
  case TD_CALLS_PYTHONIC: {
    cJSON *calls = tag("[", separated(all_calls(r), ", ", r->at_most_one), "]");
    if (!mark->n || !end->n)
      return calls;
    char begin[TD_MARK_BYTES + 2], close[TD_MARK_BYTES + 2];
    snprintf(begin, sizeof begin, "%.*s[", TD_MARK_BYTES - 1, mark->text);
    snprintf(close, sizeof close, "]%.*s", TD_MARK_BYTES - 1, end->text);
    return either(calls, tag(begin, separated(all_calls(r), ", ", r->at_most_one), close));
  }
  default: return r->dialect->lists_calls ? list_tag(r) : separated(all_calls(r), "", r->at_most_one);
  }
}

/* Text, with calls after each mark. If the format has no mark, the first character of the answer decides
 * whether it is text or calls. */
static cJSON *text_or_calls(const td_structural_tag_rules *r)
{
  td_call_format f = r->dialect->calls;
  if (f == TD_CALLS_LLAMA || f == TD_CALLS_PYTHONIC) {
    const char *other = f == TD_CALLS_LLAMA ? "[^{ \\t\\r\\n]" : "[^\\[ \\t\\r\\n]";
    return either(only_calls(r), optional(pair(regex(other), format("any_text"))));
  }
  bool list = f == TD_CALLS_MISTRAL && r->dialect->lists_calls;
  cJSON *triggers = add(cJSON_CreateArray(), cJSON_CreateString(r->dialect->marks[TD_MARK_CALL].text));
  cJSON *t = with(format("triggered_tags"), "triggers", triggers);
  t = with(t, "tags", list ? add(cJSON_CreateArray(), list_tag(r)) : all_calls(r));
  return with_true(t, "stop_after_first", r->at_most_one || list);
}

static cJSON *content(const td_structural_tag_rules *r)
{
  return r->content ? cJSON_CreateObjectReference(r->content->child) : format("any_text");
}

static cJSON *body(const td_structural_tag_rules *r)
{
  if (!r->tools)
    return content(r);
  if (r->required)
    return only_calls(r);
  return r->content ? either(only_calls(r), content(r)) : text_or_calls(r);
}

/* A model that thinks may do so first. */
static cJSON *after_reasoning(const td_structural_tag_rules *r, cJSON *then)
{
  const td_mark *begin = &r->dialect->marks[TD_MARK_THINK], *end = &r->dialect->marks[TD_MARK_THINK_END];
  if (!r->dialect->thinks || r->prompt == TD_PROMPT_HAS_THOUGHT)
    return then;
  bool open = r->prompt == TD_PROMPT_THINKS;
  cJSON *thoughts = pair(tag(open ? "" : begin->text, format("any_text"), end->text), regex("\\n{0,2}"));
  return pair(open ? thoughts : optional(thoughts), then);
}

cJSON *td_structural_tag_make(const td_structural_tag_rules *r)
{
  return with(format("structural_tag"), "format", after_reasoning(r, body(r)));
}
