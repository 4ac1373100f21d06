/* Structured output: reads from a request what its answer must conform to. Supports OpenAI's
 * response_format, vLLM's structured_outputs, and the guided_* fields of older versions of vLLM. */
#include <stdio.h>
#include <string.h>

#include "config/limits.h"
#include "server/request.h"

/* Forms of a value: a text; an array of texts; a schema (an object, a boolean, or the text of one); a
 * boolean; a structural tag (an object or the text of one). */
typedef enum form { FORM_TEXT, FORM_LIST, FORM_SCHEMA, FORM_TRUE, FORM_TAGS } form;

typedef struct constraint {
  const char *name; /* its name in structured_outputs */
  const char *field;
  size_t at; /* offset of `field` in td_api_request; unused if field is NULL */
  form form;
  td_grammar_kind kind;
} constraint;

#define AT(f) #f, offsetof(td_api_request, f)
static const constraint constraints[] = {
    {"json", AT(guided_json), FORM_SCHEMA, TD_GRAMMAR_JSON_SCHEMA},
    {"regex", AT(guided_regex), FORM_TEXT, TD_GRAMMAR_REGEX},
    {"choice", AT(guided_choice), FORM_LIST, TD_GRAMMAR_CHOICE},
    {"grammar", AT(guided_grammar), FORM_TEXT, TD_GRAMMAR_GBNF},
    {"json_object", NULL, 0, FORM_TRUE, TD_GRAMMAR_JSON_OBJECT},
    {"structural_tag", NULL, 0, FORM_TAGS, TD_GRAMMAR_TAGS},
};

static bool invalid(td_api_error *e, const char *path, const char *name, const char *text)
{
  return td_fields_invalid(e, path, name, text);
}

static bool set(td_api_request *r, td_api_error *e, const char *field, td_grammar_source source)
{
  char text[160];
  if (r->grammar_field) {
    snprintf(text, sizeof text, "cannot go together with '%s'", r->grammar_field);
    return invalid(e, "", field, text);
  }
  r->grammar_field = field;
  r->grammar = source;
  return true;
}

/* Also accepts the value as text, because clients of vLLM send schemas in that way. */
static bool read_json(td_api_request *r, td_grammar_kind kind, const char *field, const char *path,
                      const char *name, const cJSON *v, td_api_error *e)
{
  const td_json_limits limits = {(size_t)td_limit_max(TD_LIMIT_JSON_DEPTH),
                                 (size_t)td_limit_default(TD_LIMIT_JSON_NODES), TD_ERR_REQUEST};
  td_error err;
  if (cJSON_IsString(v) && !r->grammar_json) {
    td_status st = td_json_parse(v->valuestring, strlen(v->valuestring), &limits, &r->grammar_json, &err);
    if (st == TD_ERR_NOMEM) {
      td_api_error_from(e, &err);
      return false;
    }
    if (st != TD_OK)
      return invalid(e, path, name, "is text, but not of JSON");
    v = r->grammar_json;
  }
  if (kind == TD_GRAMMAR_TAGS && !cJSON_IsObject(v))
    return invalid(e, path, name, "must be a structural tag: an object");
  if (!cJSON_IsObject(v) && !cJSON_IsBool(v))
    return invalid(e, path, name, "must be a JSON schema: an object");
  return set(r, e, field, (td_grammar_source){.kind = kind, .json = v});
}

static bool read_text(td_api_request *r, const constraint *c, const char *field, const char *path,
                      const char *name, const cJSON *v, td_api_error *e)
{
  if (!cJSON_IsString(v) || td_json_has_nul(v->valuestring))
    return invalid(e, path, name, "must be a string");
  if (*v->valuestring == '\0') /* means "off", as in other servers */
    return true;
  return set(r, e, field,
             (td_grammar_source){.kind = c->kind, .text = v->valuestring, .n_text = strlen(v->valuestring)});
}

static bool read_constraint(td_api_request *r, const constraint *c, const char *field, const char *path,
                            const char *name, const cJSON *v, td_api_error *e)
{
  switch (c->form) {
  case FORM_TAGS:
  case FORM_SCHEMA: return read_json(r, c->kind, field, path, name, v, e);
  case FORM_TEXT: return read_text(r, c, field, path, name, v, e);
  case FORM_LIST:
    if (!cJSON_IsArray(v))
      return invalid(e, path, name, "must be an array of strings");
    for (const cJSON *m = v->child; m; m = m->next)
      if (!cJSON_IsString(m) || *m->valuestring == '\0')
        return invalid(e, path, name, "must be an array of strings that are not empty");
    return !v->child || set(r, e, field, (td_grammar_source){.kind = c->kind, .json = v});
  case FORM_TRUE:
    if (!cJSON_IsBool(v))
      return invalid(e, path, name, "must be true or false");
    return cJSON_IsFalse(v) || set(r, e, field, (td_grammar_source){.kind = c->kind});
  }
  return true;
}

static bool read_structured_outputs(td_api_request *r, td_api_error *e)
{
  static const char field[] = "structured_outputs", path[] = "structured_outputs.";
  const td_field *f;
  if (!r->structured_outputs)
    return true;
  if (!cJSON_IsObject(r->structured_outputs))
    return invalid(e, "", field, "must be an object");
  for (const cJSON *m = r->structured_outputs->child; m; m = m->next) {
    if (!td_fields_check(m, TD_IN_STRUCTURED, path, &r->unknown, &f, e))
      return false;
    for (size_t i = 0; i < sizeof constraints / sizeof *constraints && f; i++)
      if (strcmp(f->name, constraints[i].name) == 0 &&
          !read_constraint(r, &constraints[i], field, path, m->string, m, e))
        return false;
  }
  return true;
}

/* json_schema is {"name", "schema", "strict"}. We always enforce the schema, even if strict is false. */
static bool read_json_schema(td_api_request *r, td_api_error *e)
{
  const cJSON *js = td_json_get(r->response_format, "json_schema");
  if (!cJSON_IsObject(js))
    return invalid(e, "response_format.", "json_schema", "must be an object with a 'schema'");
  const cJSON *schema = td_json_get(js, "schema");
  return read_json(r, TD_GRAMMAR_JSON_SCHEMA, "response_format", "response_format.json_schema.", "schema",
                   schema, e);
}

static bool read_response_format(td_api_request *r, td_api_error *e)
{
  static const char field[] = "response_format";
  const td_field *f;
  if (!r->response_format)
    return true;
  const cJSON *type = td_json_get(r->response_format, "type");
  for (const cJSON *m = r->response_format->child; m && cJSON_IsObject(r->response_format); m = m->next)
    if (!td_fields_check(m, TD_IN_RESPONSE_FORMAT, "response_format.", &r->unknown, &f, e))
      return false;
  if (!cJSON_IsString(type))
    return invalid(e, "", field, "must be an object with a 'type'");
  if (strcmp(type->valuestring, "json_schema") == 0)
    return read_json_schema(r, e);
  const cJSON *js = td_json_get(r->response_format, "json_schema");
  if (js && !cJSON_IsNull(js))
    return invalid(e, "response_format.", "json_schema", "goes with the type 'json_schema' only");
  if (strcmp(type->valuestring, "json_object") == 0)
    return set(r, e, field, (td_grammar_source){.kind = TD_GRAMMAR_JSON_OBJECT});
  if (strcmp(type->valuestring, "structural_tag") == 0)
    return read_json(r, TD_GRAMMAR_TAGS, field, "", field, r->response_format, e);
  return strcmp(type->valuestring, "text") == 0 ||
         td_fields_unsupported(
             e, "", field,
             "is served with the types 'text', 'json_object', 'json_schema' and 'structural_tag'");
}

bool td_structured_read(td_api_request *r, td_api_error *e)
{
  if (!read_response_format(r, e) || !read_structured_outputs(r, e))
    return false;
  for (size_t i = 0; i < sizeof constraints / sizeof *constraints; i++) {
    const cJSON *v = constraints[i].field ? *(const cJSON **)(void *)((char *)r + constraints[i].at) : NULL;
    if (v && !read_constraint(r, &constraints[i], constraints[i].field, "", constraints[i].field, v, e))
      return false;
  }
  if (!r->grammar_field)
    return true;
  if (r->min_tokens > 0) /* the answer ends where the grammar does */
    return invalid(e, "", "min_tokens", "cannot go together with structured output");
  return !r->ignore_eos || invalid(e, "", "ignore_eos", "cannot go together with structured output");
}
