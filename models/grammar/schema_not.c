/* Denials: schemas for everything that a schema does not allow. They serve `not` and the keywords that need
 * it (`if`, `dependent*`, `oneOf`).
 *
 * The denial of a schema is a list of alternatives, one for each of its keywords: another type, a missing
 * member, a bound that is not kept. They are schemas with the same keywords, and a few keywords of our own
 * whose names begin with a byte that no text in a request contains. A denial that cannot be expressed in this
 * way is refused, because it must never allow more than it stands for. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "models/grammar/schema.h"

typedef struct deny {
  td_schema *s;
  cJSON *out;      /* array of alternatives */
  const char *why; /* the first keyword that cannot be denied */
  unsigned types;  /* the types of value that the schema allows */
  unsigned depth;
} deny;

/* ---- making schemas ---- */

static cJSON *checked(td_schema *s, cJSON *node)
{
  if (!node)
    s->b->failed = s->b->arena.no_memory = true;
  return node;
}

static cJSON *new_schema(td_schema *s) { return checked(s, cJSON_CreateObject()); }

static cJSON *new_list(td_schema *s) { return checked(s, cJSON_CreateArray()); }

/* Adds node to an object or, if name is NULL, to an array. Takes ownership of the node, so anything to be
 * added to it later must be added to the return value, which is NULL if the node was freed. */
static cJSON *put(td_schema *s, cJSON *into, const char *name, cJSON *node)
{
  if (++s->n_derived > td_limit_max(TD_LIMIT_SCHEMA_NOT_MADE))
    td_schema_fail(s, TD_ERR_REQUEST, s->root, "not", "or what it is said with is too much in all");
  if (node && into && (name ? cJSON_AddItemToObject(into, name, node) : cJSON_AddItemToArray(into, node)))
    return node;
  s->b->failed = true;
  cJSON_Delete(node);
  return NULL;
}

/* A reference to a node of the request. */
static cJSON *borrow(td_schema *s, const cJSON *node)
{
  cJSON *list = new_list(s), *copy = NULL;
  if (list && cJSON_AddItemReferenceToArray(list, (cJSON *)node))
    copy = cJSON_DetachItemFromArray(list, 0);
  cJSON_Delete(list);
  return checked(s, copy);
}

/* Adds {"type": type} as a new alternative. */
static cJSON *alternative(deny *d, const char *type)
{
  cJSON *a = put(d->s, d->out, NULL, new_schema(d->s));
  if (type)
    put(d->s, a, "type", cJSON_CreateString(type));
  return a;
}

static const cJSON *refuse(deny *d, const char *why)
{
  if (!d->why)
    d->why = why;
  return NULL;
}

/* Adds "properties": {name: schema}. */
static void put_member(td_schema *s, cJSON *into, const char *name, cJSON *schema)
{
  put(s, put(s, into, "properties", new_schema(s)), name, schema);
}

/* Adds "required": [name]; returns the array. */
static cJSON *put_required(td_schema *s, cJSON *into, const char *name)
{
  cJSON *names = put(s, into, "required", new_list(s));
  put(s, names, NULL, cJSON_CreateString(name));
  return names;
}

static cJSON *deny_schema(deny *d, const cJSON *schema);
static cJSON *deny_value(deny *d, const cJSON *value);

/* ---- keywords ---- */

static void deny_types(deny *d)
{
  static const struct {
    const char *name;
    unsigned bits;
  } names[] = {{"null", TYPE_NULL},       {"boolean", TYPE_BOOLEAN},
               {"integer", TYPE_INTEGER}, {TYPE_NAME_FRACTION, TYPE_FRACTION},
               {"string", TYPE_STRING},   {"array", TYPE_ARRAY},
               {"object", TYPE_OBJECT}};
  cJSON *list = NULL;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!(d->types & names[i].bits)) {
      if (!list)
        list = put(d->s, alternative(d, NULL), "type", new_list(d->s));
      put(d->s, list, NULL, cJSON_CreateString(names[i].name));
    }
}

static int compare_doubles(const void *x, const void *y)
{
  const double *a = x, *b = y;
  return (*a > *b) - (*a < *b);
}

/* Alternatives for the numbers between the listed ones. */
static void deny_numbers(deny *d, const double *v, size_t n)
{
  for (size_t i = 0; i <= n; i++) {
    cJSON *a = alternative(d, "number");
    if (i > 0)
      put(d->s, a, "exclusiveMinimum", cJSON_CreateNumber(v[i - 1]));
    if (i < n)
      put(d->s, a, "exclusiveMaximum", cJSON_CreateNumber(v[i]));
  }
}

/* Alternatives: integers that are not multiples of m, and all numbers that are not integers. */
static void deny_multiples(deny *d, const cJSON *m)
{
  double v = cJSON_IsNumber(m) ? m->valuedouble : 0;
  if (!(v >= 1 && v <= td_limit_max(TD_LIMIT_SCHEMA_NOT_MULTIPLE) && v == floor(v))) {
    refuse(d, "multipleOf");
    return;
  }
  if (v > 1)
    put(d->s, alternative(d, "integer"), KEYWORD_NO_MULTIPLE, cJSON_CreateNumber(v));
  (void)alternative(d, TYPE_NAME_FRACTION);
}

/* Alternative: arrays whose item n fits this schema. */
static void deny_item(deny *d, int n, cJSON *schema)
{
  td_schema *s = d->s;
  cJSON *a = alternative(d, "array"), *list = put(s, a, "prefixItems", new_list(s));
  put(s, a, "minItems", cJSON_CreateNumber(n + 1));
  for (int k = 0; k < n; k++)
    put(s, list, NULL, cJSON_CreateTrue());
  put(s, list, NULL, schema);
}

/* Alternatives: arrays that differ from this one in length or in one element. */
static void deny_array(deny *d, const cJSON *v)
{
  td_schema *s = d->s;
  int n = cJSON_GetArraySize(v), i = 0;
  if (n > TD_SCHEMA_NOT_VALUES_MAX) {
    refuse(d, "enum");
    return;
  }
  if (n > 0)
    put(s, alternative(d, "array"), "maxItems", cJSON_CreateNumber(n - 1));
  put(s, alternative(d, "array"), "minItems", cJSON_CreateNumber(n + 1));
  for (const cJSON *x = v->child; x; x = x->next, i++)
    deny_item(d, i, deny_value(d, x));
}

/* Alternatives: objects that lack one of these members or have another value for it. Objects that only have
 * additional members are left out (except for the empty object), because counting members that are not named
 * is not served. */
static void deny_object(deny *d, const cJSON *v)
{
  td_schema *s = d->s;
  if (!v->child)
    put(s, alternative(d, "object"), "minProperties", cJSON_CreateNumber(1));
  for (const cJSON *x = v->child; x; x = x->next) {
    put_member(s, alternative(d, "object"), x->string, cJSON_CreateFalse());
    cJSON *a = alternative(d, "object");
    put_required(s, a, x->string);
    put_member(s, a, x->string, deny_value(d, x));
  }
}

/* Alternative: arrays, or objects, that equal none of the listed ones. */
static void deny_containers(deny *d, const cJSON *list, bool is_list, unsigned type)
{
  cJSON *a = alternative(d, type == TYPE_ARRAY ? "array" : "object"),
        *all = put(d->s, a, "allOf", new_list(d->s));
  for (const cJSON *v = is_list ? list->child : list; v && !d->s->b->failed && d->s->status == TD_OK;
       v = is_list ? v->next : NULL) {
    if (td_schema_type_of(v) != type)
      continue;
    deny in = {.s = d->s, .out = new_list(d->s), .types = TYPE_ALL, .depth = d->depth};
    type == TYPE_ARRAY ? deny_array(&in, v) : deny_object(&in, v);
    d->why = d->why ? d->why : in.why;
    cJSON *any = new_schema(d->s);
    put(d->s, any, "anyOf", in.out);
    put(d->s, all, NULL, any);
  }
}

/* Alternatives for listed values: other values of the same types, and other types. */
static void deny_values(deny *d, const cJSON *list, bool is_list)
{
  double numbers[TD_SCHEMA_NOT_VALUES_MAX];
  size_t n = 0;
  unsigned listed = 0, bools = 0;
  cJSON *texts = NULL;
  for (const cJSON *v = is_list ? list->child : list; v; v = is_list ? v->next : NULL) {
    unsigned type = td_schema_type_of(v);
    listed |= type & (TYPE_INTEGER | TYPE_FRACTION) ? TYPE_INTEGER | TYPE_FRACTION : type;
    if (cJSON_IsNumber(v) && n < TD_SCHEMA_NOT_VALUES_MAX && fabs(v->valuedouble) < 1e15)
      numbers[n++] = v->valuedouble;
    else if (type & (TYPE_INTEGER | TYPE_FRACTION))
      refuse(d, "enum");
    if (type == TYPE_BOOLEAN)
      bools |= cJSON_IsTrue(v) ? 2 : 1;
    if (type == TYPE_STRING) {
      texts = texts ? texts : new_list(d->s);
      put(d->s, texts, NULL, borrow(d->s, v));
    }
  }
  unsigned types = d->types;
  d->types = listed;
  deny_types(d);
  d->types = types;
  if (n > 0) {
    qsort(numbers, n, sizeof *numbers, compare_doubles);
    deny_numbers(d, numbers, n);
  }
  if (listed & TYPE_ARRAY)
    deny_containers(d, list, is_list, TYPE_ARRAY);
  if (listed & TYPE_OBJECT)
    deny_containers(d, list, is_list, TYPE_OBJECT);
  if (bools == 1 || bools == 2)
    put(d->s, alternative(d, NULL), "const", cJSON_CreateBool(bools == 1));
  if (texts)
    put(d->s, alternative(d, "string"), KEYWORD_NONE_OF, texts);
}

/* Alternative: objects that lack the member or, if value is not NULL, have it with a value that does not
 * fit. */
static void deny_member(deny *d, const char *name, const cJSON *value)
{
  cJSON *a = alternative(d, "object");
  if (value)
    put_required(d->s, a, name);
  put_member(d->s, a, name, value ? deny_schema(d, value) : cJSON_CreateFalse());
}

static bool is_any(const cJSON *schema)
{
  return cJSON_IsTrue(schema) || (cJSON_IsObject(schema) && !schema->child);
}

static void deny_object_keyword(deny *d, const cJSON *schema, const cJSON *m)
{
  const char *k = m->string;
  if (strcmp(k, "required") == 0)
    for (const cJSON *n = cJSON_IsArray(m) ? m->child : NULL; n; n = n->next)
      cJSON_IsString(n) ? deny_member(d, n->valuestring, NULL) : (void)refuse(d, k);
  else if (strcmp(k, "properties") == 0 && cJSON_IsObject(m))
    for (const cJSON *p = m->child; p; p = p->next) {
      if (!is_any(p))
        deny_member(d, p->string, p);
    }
  else if (!is_any(m))
    refuse(d, k);
}

/* Alternative for a count or bound: the opposite one. */
static void deny_bound(deny *d, const cJSON *schema, const cJSON *m)
{
  static const struct {
    const char *name, *other, *type;
    int more;
  } bounds[] = {{"minItems", "maxItems", "array", -1},
                {"maxItems", "minItems", "array", 1},
                {"minLength", "maxLength", "string", -1},
                {"maxLength", "minLength", "string", 1},
                {"minProperties", "maxProperties", "object", -1},
                {"maxProperties", "minProperties", "object", 1},
                {"minimum", "exclusiveMaximum", "number", 0},
                {"maximum", "exclusiveMinimum", "number", 0},
                {"exclusiveMinimum", "maximum", "number", 0},
                {"exclusiveMaximum", "minimum", "number", 0}};
  if (!cJSON_IsNumber(m)) { /* true and false have a meaning in older drafts */
    refuse(d, m->string);
    return;
  }
  for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
    if (strcmp(bounds[i].name, m->string) == 0 &&
        m->valuedouble + bounds[i].more >= (bounds[i].more ? 0 : -INFINITY))
      put(d->s, alternative(d, bounds[i].type), bounds[i].other,
          cJSON_CreateNumber(m->valuedouble + bounds[i].more));
}

/* Alternatives: an element that does not fit, or no element that fits `contains`. */
static void deny_elements(deny *d, const cJSON *schema, const cJSON *m)
{
  td_schema *s = d->s;
  const cJSON *prefix = td_schema_get(s, schema, "prefixItems");
  if (strcmp(m->string, "items") == 0 && !cJSON_IsArray(m) && !prefix) {
    put(s, alternative(d, "array"), "contains", deny_schema(d, m));
    return;
  }
  if (strcmp(m->string, "contains") == 0 && !td_schema_get(s, schema, "minContains") &&
      !td_schema_get(s, schema, "maxContains")) {
    put(s, alternative(d, "array"), "items", deny_schema(d, m));
    return;
  }
  if (!cJSON_IsArray(m) || cJSON_GetArraySize(m) > TD_SCHEMA_NOT_VALUES_MAX) {
    refuse(d, m->string);
    return;
  }
  int n = 0; /* prefixItems, or items in older drafts */
  for (const cJSON *x = m->child; x; x = x->next, n++) {
    if (!is_any(x))
      deny_item(d, n, deny_schema(d, x));
  }
}

/* Alternative: all branches are denied. */
static void deny_all(deny *d, const cJSON *list)
{
  cJSON *all = put(d->s, alternative(d, NULL), "allOf", new_list(d->s));
  for (const cJSON *m = list->child; m; m = m->next)
    put(d->s, all, NULL, deny_schema(d, m));
}

/* Alternatives: no branch holds, or two hold together. */
static void deny_one(deny *d, const cJSON *list)
{
  if ((uint64_t)cJSON_GetArraySize(list) > td_limit_max(TD_LIMIT_SCHEMA_NOT_BRANCHES)) {
    refuse(d, "oneOf");
    return;
  }
  deny_all(d, list);
  for (const cJSON *x = list->child; x; x = x->next)
    for (const cJSON *y = x->next; y; y = y->next) {
      cJSON *both = put(d->s, alternative(d, NULL), "allOf", new_list(d->s));
      put(d->s, both, NULL, borrow(d->s, x));
      put(d->s, both, NULL, borrow(d->s, y));
    }
}

static void deny_branches(deny *d, const cJSON *m)
{
  if (!cJSON_IsArray(m) || !m->child)
    refuse(d, m->string);
  else if (strcmp(m->string, "anyOf") == 0)
    deny_all(d, m);
  else if (strcmp(m->string, "oneOf") == 0)
    deny_one(d, m);
  else
    for (const cJSON *x = m->child; x; x = x->next)
      put(d->s, d->out, NULL, deny_schema(d, x));
}

static bool is_one_of(const char *keyword, const char *const *list)
{
  while (*list && strcmp(*list, keyword) != 0)
    list++;
  return *list != NULL;
}

/* Denies one keyword. Keywords that constrain nothing are ignored. */
static void deny_keyword(deny *d, const cJSON *schema, const cJSON *m)
{
  static const char *const object_keywords[] = {"required",
                                                "properties",
                                                "patternProperties",
                                                "additionalProperties",
                                                "propertyNames",
                                                "unevaluatedProperties",
                                                NULL};
  static const char *const bounds[] = {"minItems",         "maxItems",         "minLength", "maxLength",
                                       "minProperties",    "maxProperties",    "minimum",   "maximum",
                                       "exclusiveMinimum", "exclusiveMaximum", NULL};
  static const char *const elements[] = {"items", "prefixItems", "contains", NULL};
  static const char *const branches[] = {"allOf", "anyOf", "oneOf", NULL};
  static const char *const never[] = {
      "unevaluatedItems",  KEYWORD_NO_MULTIPLE, "if",          "then",          "dependentSchemas",
      "dependentRequired", "dependencies",      "$dynamicRef", "$recursiveRef", "additionalItems",
      KEYWORD_NO_PATTERN,  KEYWORD_NONE_OF,     NULL};
  const char *k = m->string;
  if (is_one_of(k, object_keywords)) {
    if (d->types & TYPE_OBJECT)
      deny_object_keyword(d, schema, m);
  } else if (is_one_of(k, bounds)) {
    deny_bound(d, schema, m);
  } else if (is_one_of(k, branches)) {
    deny_branches(d, m);
  } else if (is_one_of(k, elements)) {
    if ((d->types & TYPE_ARRAY) && (*k == 'c' || !is_any(m)))
      deny_elements(d, schema, m);
  } else if (strcmp(k, "enum") == 0 || strcmp(k, "const") == 0) {
    if (*k == 'e' && !cJSON_IsArray(m))
      refuse(d, k);
    else
      deny_values(d, m, *k == 'e');
  } else if (strcmp(k, "pattern") == 0 && cJSON_IsString(m)) {
    put(d->s, alternative(d, "string"), KEYWORD_NO_PATTERN, borrow(d->s, m));
  } else if (strcmp(k, "multipleOf") == 0) {
    deny_multiples(d, m);
  } else if (strcmp(k, "not") == 0) {
    put(d->s, d->out, NULL, borrow(d->s, m));
  } else if (strcmp(k, "$ref") == 0) {
    const cJSON *to = td_schema_resolve(d->s, schema, m);
    put(d->s, d->out, NULL, to ? deny_schema(d, to) : cJSON_CreateTrue());
  } else if ((strcmp(k, "uniqueItems") == 0 ? !cJSON_IsFalse(m) : is_one_of(k, never) && !is_any(m)) ||
             (strcmp(k, "format") == 0 && cJSON_IsString(m) && td_format_pattern(m->valuestring))) {
    refuse(d, k);
  }
}

/* A schema for everything that this one does not allow, including values of other types. */
static cJSON *deny_schema(deny *d, const cJSON *schema)
{
  td_schema *s = d->s;
  if (cJSON_IsBool(schema))
    return checked(s, cJSON_CreateBool(cJSON_IsFalse(schema)));
  if (!cJSON_IsObject(schema) || d->depth == td_limit_max(TD_LIMIT_SCHEMA_NOT_DEPTH) ||
      !td_schema_work(s, schema, "not", 4)) {
    refuse(d, "$ref");
    return checked(s, cJSON_CreateFalse());
  }
  deny in = {.s = s, .out = new_list(s), .types = td_schema_types(s, schema), .depth = d->depth + 1};
  deny_types(&in);
  for (const cJSON *m = schema->child; m && !in.why && s->status == TD_OK && !s->b->failed; m = m->next)
    deny_keyword(&in, schema, m);
  d->why = d->why ? d->why : in.why;
  if (in.out && !in.out->child) {
    cJSON_Delete(in.out);
    return checked(s, cJSON_CreateFalse());
  }
  cJSON *result = new_schema(s);
  put(s, result, "anyOf", in.out);
  put(s, result, KEYWORD_DENIAL, cJSON_CreateTrue());
  return result;
}

/* A schema for any value but this one. */
static cJSON *deny_value(deny *d, const cJSON *value)
{
  td_schema *s = d->s;
  deny in = {.s = s, .out = new_list(s), .types = TYPE_ALL, .depth = d->depth + 1};
  if (d->depth == td_limit_max(TD_LIMIT_SCHEMA_NOT_DEPTH) || !td_schema_work(s, s->root, "not", 4))
    refuse(d, "enum");
  else
    deny_values(&in, value, false);
  d->why = d->why ? d->why : in.why;
  cJSON *result = new_schema(s);
  put(s, result, "anyOf", in.out);
  put(s, result, KEYWORD_DENIAL, cJSON_CreateTrue());
  return result;
}

/* ---- keeping derived schemas ---- */

static td_derived_schema **bucket_of(td_schema *s, const cJSON *key)
{
  return &s->derived[td_hash_u64(s->seed, (uintptr_t)key) % SCHEMA_BUCKETS];
}

static const cJSON *find_derived(td_schema *s, const cJSON *key, bool is_denial)
{
  for (const td_derived_schema *m = *bucket_of(s, key); m; m = m->next)
    if (m->key == key && m->is_denial == is_denial)
      return m->schema;
  return NULL;
}

/* Gives the derived schema to s. Each is made only once, so that recursion reaches the same rules again.
 * Errors in it are reported as errors in `from`. */
static const cJSON *keep_derived(td_schema *s, cJSON *derived, const cJSON *key, bool is_denial,
                                 const cJSON *from)
{
  td_derived_schema *m = derived ? td_arena_alloc(&s->b->arena, sizeof *m) : NULL,
                    **bucket = bucket_of(s, key);
  if (!m) {
    s->b->failed = true;
    cJSON_Delete(derived);
    return NULL;
  }
  *m = (td_derived_schema){derived, key, from, is_denial, *bucket};
  *bucket = m;
  return s->status == TD_OK && !s->b->failed ? derived : NULL;
}

void td_schema_free_derived(td_schema *s)
{
  for (size_t i = 0; i < SCHEMA_BUCKETS; i++)
    for (td_derived_schema *m = s->derived[i]; m; m = m->next)
      cJSON_Delete(m->schema);
}

const cJSON *td_schema_deny(td_schema *s, const cJSON *schema, const cJSON *from, const char **why)
{
  const cJSON *known = find_derived(s, schema, true);
  if (known)
    return known;
  deny d = {.s = s};
  cJSON *derived = deny_schema(&d, schema);
  *why = d.why;
  if (!d.why)
    return keep_derived(s, derived, schema, true, from);
  cJSON_Delete(derived);
  return NULL;
}

/* ---- keywords that are expressed by others ---- */

/* {"anyOf": [x, y]}. Takes ownership of both. */
static cJSON *either(td_schema *s, cJSON *x, cJSON *y)
{
  cJSON *any = new_schema(s), *list = put(s, any, "anyOf", new_list(s));
  put(s, list, NULL, x);
  put(s, list, NULL, y);
  return any;
}

static cJSON *both(td_schema *s, cJSON *x, cJSON *y)
{
  cJSON *all = new_schema(s), *list = put(s, all, "allOf", new_list(s));
  put(s, list, NULL, x);
  put(s, list, NULL, y);
  return all;
}

static cJSON *without_member(td_schema *s, const char *name)
{
  cJSON *a = new_schema(s);
  put_member(s, a, name, cJSON_CreateFalse());
  return a;
}

/* One member of dependent*: either the property is absent, or it is present and the schema holds or the other
 * names are present too. */
static cJSON *depend(td_schema *s, const cJSON *m)
{
  cJSON *there = new_schema(s);
  put(s, there, "type", cJSON_CreateString("object")); /* other types count as if it were absent */
  cJSON *names = put_required(s, there, m->string);
  for (const cJSON *n = cJSON_IsArray(m) ? m->child : NULL; n; n = n->next)
    put(s, names, NULL, borrow(s, n));
  return either(s, without_member(s, m->string), cJSON_IsArray(m) ? there : both(s, there, borrow(s, m)));
}

static const cJSON *denied(td_schema *s, const cJSON *schema, const cJSON *word)
{
  const char *why = NULL;
  char text[128];
  const cJSON *derived = td_schema_deny(s, word, schema, &why);
  if (!derived && s->status == TD_OK && !s->b->failed) {
    snprintf(text, sizeof text, "is not served, because '%.40s' in it is not", why ? why : "$ref");
    td_schema_fail(s, TD_ERR_UNSUPPORTED, schema, word->string, text);
  }
  return derived;
}

static void add(td_schema *s, td_schema_conjunction *conj, uint32_t part, const cJSON *schema)
{
  if (schema && s->status == TD_OK && !s->b->failed)
    td_schema_add_from(s, conj, schema, part);
}

static void add_condition(td_schema *s, td_schema_conjunction *conj, uint32_t part, const cJSON *when)
{
  const cJSON *schema = conj->parts[part].schema;
  const cJSON *then = td_schema_get(s, schema, "then"), *other = td_schema_get(s, schema, "else");
  const cJSON *known = find_derived(s, when, false);
  if (known || (!then && !other)) {
    add(s, conj, part, known);
    return;
  }
  const cJSON *no = denied(s, schema, when);
  if (!no)
    return;
  cJSON *yes = then ? both(s, borrow(s, when), borrow(s, then)) : borrow(s, when);
  cJSON *derived = either(s, yes, other ? both(s, borrow(s, no), borrow(s, other)) : borrow(s, no));
  add(s, conj, part, keep_derived(s, derived, when, false, schema));
}

void td_schema_add_derived(td_schema *s, td_schema_conjunction *conj, uint32_t part)
{
  const cJSON *schema = conj->parts[part].schema;
  static const char *const depends[] = {"dependentRequired", "dependentSchemas", "dependencies"};
  const cJSON *no = td_schema_get(s, schema, "not"), *when = td_schema_get(s, schema, "if");
  if (no)
    add(s, conj, part, denied(s, schema, no));
  if (when)
    add_condition(s, conj, part, when);
  for (size_t i = 0; i < sizeof depends / sizeof *depends; i++) {
    const cJSON *list = td_schema_get(s, schema, depends[i]);
    for (const cJSON *m = cJSON_IsObject(list) ? list->child : NULL; m && s->status == TD_OK; m = m->next) {
      bool names = cJSON_IsArray(m) && i != 1, schemas = i != 0 && (cJSON_IsObject(m) || cJSON_IsBool(m));
      const cJSON *known = find_derived(s, m, false);
      if (!names && !schemas)
        td_schema_fail(s, TD_ERR_REQUEST, schema, depends[i], "must name schemas, or arrays of names");
      else if (names ? !m->child : is_any(m))
        continue;
      else if (known)
        add(s, conj, part, known);
      else
        add(s, conj, part, keep_derived(s, depend(s, m), m, false, schema));
    }
  }
}
