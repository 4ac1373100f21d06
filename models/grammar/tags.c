/* Structural tags in the form of vLLM and XGrammar: an answer made of free text, tags, and texts that fit
 * schemas, patterns and rules. {"type": "structural_tag", "format": F}, or the older form with "structures"
 * and "triggers".
 *
 * Free text contains no special tokens. A format that wants one names it by its text, as a "token". In the
 * vocabulary its bytes are TD_SPECIAL_BYTE and that text, so that no other text matches it. */
#include <stdio.h>
#include <string.h>

#include "common/progress.h"
#include "models/grammar/internal.h"

typedef struct reader {
  td_builder *b;
  td_status status;
  unsigned depth;
} reader;

static const td_expr *format_of(reader *p, const cJSON *f);

static const td_expr *refuse(reader *p, td_status code, const char *type, const char *what)
{
  if (p->status == TD_OK)
    p->status = td_fail(p->b->err, code, "the structural tag's '%.40s' %s", type, what);
  return &td_expr_none;
}

static const td_expr *wants(reader *p, const char *type, const char *what)
{
  return refuse(p, TD_ERR_REQUEST, type, what);
}

/* ---- members ---- */

static const char *text_of(reader *p, const cJSON *f, const char *type, const char *member)
{
  const cJSON *m = td_json_get(f, member);
  if (cJSON_IsString(m) && !td_json_has_nul(m->valuestring))
    return m->valuestring;
  char what[80];
  snprintf(what, sizeof what, "needs a '%s' that is a string", member);
  wants(p, type, what);
  return NULL;
}

static const cJSON *list_of(reader *p, const cJSON *f, const char *type, const char *member)
{
  const cJSON *m = td_json_get(f, member);
  if (cJSON_IsArray(m) && m->child)
    return m;
  char what[80];
  snprintf(what, sizeof what, "needs '%s', an array that is not empty", member);
  wants(p, type, what);
  return NULL;
}

static bool is_on(const cJSON *f, const char *member) { return cJSON_IsTrue(td_json_get(f, member)); }

typedef struct texts {
  const char *at[TD_TAG_TEXTS_MAX];
  uint32_t n;
} texts;

/* Adds a string, or an array of strings; an absent member adds none. */
static void add_texts(reader *p, const cJSON *m, const char *type, texts *out)
{
  for (const cJSON *i = cJSON_IsArray(m) ? m->child : m; i && !cJSON_IsNull(m);
       i = cJSON_IsArray(m) ? i->next : NULL) {
    if (!cJSON_IsString(i) || td_json_has_nul(i->valuestring))
      wants(p, type, "needs strings");
    else if (out->n == TD_TAG_TEXTS_MAX)
      wants(p, type, "has too many texts");
    else if (*i->valuestring)
      out->at[out->n++] = i->valuestring;
  }
}

/* ---- formats ---- */

static const td_expr *loose_schema(reader *p, const cJSON *schema)
{
  td_builder *b = p->b;
  td_error own, *err = b->err;
  const td_expr *e = &td_expr_none;
  b->err = &own;
  td_status st = td_schema_compile(b, schema, &e);
  b->err = err;
  return st == TD_OK ? e : td_expr_call(b, TD_RULE_OBJECT);
}

/* {"json_schema": S, "style": "json", "strict": true}. If not strict, a schema that cannot be compiled is
 * replaced by any object. */
static const td_expr *json_schema(reader *p, const cJSON *f)
{
  static const char type[] = "json_schema";
  const cJSON *schema = td_json_get(f, "json_schema"), *style = td_json_get(f, "style");
  const td_expr *e = &td_expr_none;
  if (!cJSON_IsObject(schema) && !cJSON_IsBool(schema))
    return wants(p, type, "needs a 'json_schema' that is an object");
  p->b->python = cJSON_IsString(style) && strcmp(style->valuestring, "python") == 0;
  if (cJSON_IsString(style) && !p->b->python && strcmp(style->valuestring, "json") != 0)
    return refuse(p, TD_ERR_UNSUPPORTED, type, "is served in the styles 'json' and 'python'");
  if (cJSON_IsFalse(td_json_get(f, "strict"))) {
    e = loose_schema(p, schema);
  } else {
    td_status st = td_schema_compile(p->b, schema, &e);
    p->status = p->status == TD_OK ? st : p->status;
  }
  p->b->python = false;
  return e;
}

static const td_expr *compiled(reader *p, const char *type, const char *text)
{
  const td_expr *e = &td_expr_none;
  if (!text)
    return e;
  td_status st = strcmp(type, "regex") == 0 ? td_regex_compile(p->b, text, strlen(text), &e)
                                            : td_gbnf_compile(p->b, text, strlen(text), &e);
  p->status = p->status == TD_OK ? st : p->status;
  return e;
}

static const td_expr *token(reader *p, const cJSON *f)
{
  const char *text = text_of(p, f, "token", "token");
  return text ? td_expr_cat2(p->b, td_expr_string(p->b, TD_SPECIAL_BYTE), td_expr_string(p->b, text))
              : &td_expr_none;
}

static const td_expr *any_text(reader *p, const cJSON *f, const texts *more)
{
  texts without = *more;
  add_texts(p, td_json_get(f, "excludes"), "any_text", &without);
  return p->status == TD_OK ? td_any_text(p->b, without.at, without.n) : &td_expr_none;
}

static void list_formats(reader *p, const cJSON *list, td_expr_list *out)
{
  for (const cJSON *i = list ? list->child : NULL; i && p->status == TD_OK; i = i->next)
    td_expr_add(p->b, out, format_of(p, i));
}

/* The begin or end of a tag: a text, one of several texts, or a format. */
static const td_expr *border(reader *p, const cJSON *m)
{
  texts t = {0};
  td_expr_list list = {0};
  if (!m || cJSON_IsNull(m))
    return &td_expr_empty;
  if (cJSON_IsObject(m))
    return format_of(p, m);
  add_texts(p, m, "tag", &t);
  for (uint32_t i = 0; i < t.n; i++)
    td_expr_add(p->b, &list, td_expr_string(p->b, t.at[i]));
  return list.n ? td_expr_alt(p->b, &list) : &td_expr_empty;
}

static bool is_type(const cJSON *f, const char *type)
{
  const cJSON *t = td_json_get(f, "type");
  return cJSON_IsString(t) && strcmp(t->valuestring, type) == 0;
}

/* Free text ends at the first of the tag's ends. */
static const td_expr *content_and_end(reader *p, const cJSON *tag)
{
  const cJSON *content = td_json_get(tag, "content"), *schema = td_json_get(tag, "schema"),
              *end = td_json_get(tag, "end");
  const td_expr *inside;
  texts ends = {0};
  if (!cJSON_IsObject(end))
    add_texts(p, end, "tag", &ends);
  if (schema && !content) { /* the older form */
    inside = &td_expr_none;
    td_status st = td_schema_compile(p->b, schema, &inside);
    p->status = p->status == TD_OK ? st : p->status;
  } else {
    inside = is_type(content, "any_text") ? any_text(p, content, &ends) : format_of(p, content);
  }
  return td_expr_cat2(p->b, inside, border(p, end));
}

static const td_expr *whole_tag(reader *p, const cJSON *f)
{
  const td_expr *begin = border(p, td_json_get(f, "begin"));
  return td_expr_cat2(p->b, begin, content_and_end(p, f));
}

/* A call of a new rule for e, which is used more than once. */
static const td_expr *as_rule(td_builder *b, const td_expr *e)
{
  uint32_t rule = td_builder_add_rule(b);
  if (b->failed)
    return &td_expr_none;
  b->rules[rule] = e;
  return td_expr_call(b, rule);
}

static const td_expr *tags_with_separator(reader *p, const cJSON *f)
{
  static const char type[] = "tags_with_separator";
  td_builder *b = p->b;
  td_expr_list alt = {0};
  const cJSON *separator = td_json_get(f, "separator");
  list_formats(p, list_of(p, f, type, "tags"), &alt);
  if (separator && !cJSON_IsString(separator))
    return wants(p, type, "needs a 'separator' that is a string");
  const td_expr *one = as_rule(b, td_expr_alt(b, &alt));
  const td_expr *more = td_expr_cat2(b, td_expr_string(b, separator ? separator->valuestring : ""), one);
  const td_expr *all =
      is_on(f, "stop_after_first") ? one : td_expr_cat2(b, one, td_expr_repeat(b, more, 0, TD_REPEAT_MANY));
  return is_on(f, "at_least_one") ? all : td_expr_repeat(b, all, 0, 1);
}

/* A trigger, followed by the rest of each tag that begins with it. */
static const td_expr *triggered(reader *p, const cJSON *tags, const char *trigger)
{
  td_expr_list alt = {0};
  size_t n = strlen(trigger);
  for (const cJSON *t = tags->child; t && p->status == TD_OK; t = t->next) {
    const cJSON *begin = td_json_get(t, "begin");
    if (!cJSON_IsString(begin))
      wants(p, "triggered_tags", "needs tags whose 'begin' is a string");
    else if (strncmp(begin->valuestring, trigger, n) == 0)
      td_expr_add(p->b, &alt,
                  td_expr_cat2(p->b, td_expr_string(p->b, begin->valuestring + n), content_and_end(p, t)));
  }
  if (alt.n == 0)
    wants(p, "triggered_tags", "has a trigger that begins no tag");
  return td_expr_cat2(p->b, td_expr_string(p->b, trigger), td_expr_alt(p->b, &alt));
}

static bool begins_with_one(const texts *t, const char *text)
{
  for (uint32_t i = 0; i < t->n; i++)
    if (strncmp(text, t->at[i], strlen(t->at[i])) == 0)
      return true;
  return false;
}

static const td_expr *triggered_tags(reader *p, const cJSON *f, const char *tags_member)
{
  static const char type[] = "triggered_tags";
  td_builder *b = p->b;
  texts triggers = {0}, without;
  td_expr_list alt = {0};
  const cJSON *tags = list_of(p, f, type, tags_member);
  add_texts(p, list_of(p, f, type, "triggers"), type, &triggers);
  for (const cJSON *t = tags ? tags->child : NULL; t; t = t->next) {
    const cJSON *begin = td_json_get(t, "begin");
    if (cJSON_IsString(begin) && !begins_with_one(&triggers, begin->valuestring))
      wants(p, type, "has a tag that no trigger begins");
  }
  for (uint32_t i = 0; i < triggers.n && p->status == TD_OK; i++)
    td_expr_add(b, &alt, triggered(p, tags, triggers.at[i]));
  without = triggers;
  add_texts(p, td_json_get(f, "excludes"), type, &without);
  if (p->status != TD_OK)
    return &td_expr_none;
  const td_expr *text = td_any_text(b, without.at, without.n);
  const td_expr *one = as_rule(b, td_expr_cat2(b, text, td_expr_alt(b, &alt)));
  if (is_on(f, "stop_after_first"))
    return is_on(f, "at_least_one") ? one : td_expr_alt2(b, text, one);
  const td_expr *tags_then_text =
      td_expr_cat2(b, td_expr_repeat(b, one, is_on(f, "at_least_one"), TD_REPEAT_MANY), text);
  return tags_then_text;
}

static const td_expr *repeated(reader *p, const cJSON *f, uint32_t min, uint32_t max)
{
  return td_expr_repeat(p->b, as_rule(p->b, format_of(p, td_json_get(f, "content"))), min, max);
}

static const td_expr *one_format(reader *p, const cJSON *f)
{
  td_expr_list list = {0};
  const texts none = {0};
  const char *text;
  if (is_type(f, "const_string"))
    return (text = text_of(p, f, "const_string", "value")) ? td_expr_string(p->b, text) : &td_expr_none;
  if (is_type(f, "json_schema"))
    return json_schema(p, f);
  if (is_type(f, "regex"))
    return compiled(p, "regex", text_of(p, f, "regex", "pattern"));
  if (is_type(f, "grammar"))
    return compiled(p, "grammar", text_of(p, f, "grammar", "grammar"));
  if (is_type(f, "token"))
    return token(p, f);
  if (is_type(f, "any_text"))
    return any_text(p, f, &none);
  if (is_type(f, "tag"))
    return whole_tag(p, f);
  if (is_type(f, "triggered_tags"))
    return triggered_tags(p, f, "tags");
  if (is_type(f, "tags_with_separator"))
    return tags_with_separator(p, f);
  if (is_type(f, "sequence") || is_type(f, "or")) {
    bool sequence = is_type(f, "sequence");
    list_formats(p, list_of(p, f, sequence ? "sequence" : "or", "elements"), &list);
    return sequence ? td_expr_cat(p->b, &list) : td_expr_alt(p->b, &list);
  }
  if (is_type(f, "optional"))
    return repeated(p, f, 0, 1);
  if (is_type(f, "star") || is_type(f, "plus"))
    return repeated(p, f, is_type(f, "plus"), TD_REPEAT_MANY);
  const cJSON *type = td_json_get(f, "type");
  return refuse(p, TD_ERR_UNSUPPORTED, cJSON_IsString(type) ? type->valuestring : "format",
                cJSON_IsString(type) ? "is not a format that is served" : "must be an object with a 'type'");
}

static const td_expr *format_of(reader *p, const cJSON *f)
{
  const td_expr *e = &td_expr_none;
  td_progress_add(1);
  if (p->status != TD_OK || p->b->failed)
    return e;
  if (++p->depth > td_limit_max(TD_LIMIT_TAG_DEPTH))
    wants(p, "format", "is nested too deeply");
  else
    e = one_format(p, f);
  p->depth--;
  return e;
}

td_status td_tags_compile(td_builder *b, const cJSON *root, const td_expr **out)
{
  reader p = {.b = b};
  if (td_json_get(root, "structures"))
    *out = triggered_tags(&p, root, "structures");
  else
    *out = format_of(&p, td_json_get(root, "format"));
  return p.status;
}
