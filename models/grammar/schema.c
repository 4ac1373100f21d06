/* JSON schema: conjunctions, references, branches, types. See schema.h. */
#include "models/grammar/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/progress.h"

/* ---- the path of a schema, for messages ---- */

static bool find_path(const cJSON *at, const cJSON *wanted, char *out, size_t n, size_t len)
{
  if (at == wanted)
    return true;
  if (!cJSON_IsObject(at) && !cJSON_IsArray(at))
    return false;
  unsigned index = 0;
  for (const cJSON *m = at->child; m; m = m->next, index++) {
    int k = m->string ? snprintf(out + len, n - len, "/%.60s", m->string)
                      : snprintf(out + len, n - len, "/%u", index);
    size_t to = k < 0 || (size_t)k >= n - len ? n - 1 : len + (size_t)k;
    if (find_path(m, wanted, out, n, to))
      return true;
    out[len] = '\0';
  }
  return false;
}

/* The schema in the request from which a derived schema comes. */
static const cJSON *find_derived_from(const td_schema *s, const cJSON *schema)
{
  char ignored[256];
  for (size_t i = 0; i < SCHEMA_BUCKETS; i++)
    for (const td_derived_schema *m = s->derived[i]; m; m = m->next)
      if (find_path(m->schema, schema, ignored, sizeof ignored, 0))
        return m->from;
  return NULL;
}

const td_expr *td_schema_fail(td_schema *s, td_status code, const cJSON *schema, const char *keyword,
                              const char *text)
{
  char path[256] = "";
  if (s->status == TD_OK) {
    if (!find_path(s->root, schema, path, sizeof path, 0))
      (void)find_path(s->root, find_derived_from(s, schema), path, sizeof path, 0);
    s->status =
        td_fail(s->b->err, code, "'%.60s' at '%s' of the schema %s", keyword, *path ? path : "/", text);
  }
  return &td_expr_none;
}

static const td_expr *too_large(td_schema *s, const cJSON *schema)
{
  return td_schema_fail(s, TD_ERR_REQUEST, schema, "$ref", "or its branches go too deep, or round in a loop");
}

bool td_schema_work(td_schema *s, const cJSON *schema, const char *keyword, uint32_t n)
{
  td_progress_add(n);
  s->work = n < td_limit_max(TD_LIMIT_SCHEMA_WORK) ? s->work + n : td_limit_max(TD_LIMIT_SCHEMA_WORK) + 1;
  if (s->work > td_limit_max(TD_LIMIT_SCHEMA_WORK))
    td_schema_fail(s, TD_ERR_REQUEST, schema, keyword, "is too much in all");
  return s->status == TD_OK && !s->b->failed;
}

/* ---- references ---- */

/* Reads one step of a JSON pointer, and decodes its escapes and percent signs. */
static size_t take_step(const char **at, char *out, size_t n)
{
  size_t k = 0;
  const char *p = *at;
  for (; *p && *p != '/'; p++) {
    unsigned c;
    char ch = *p;
    if (ch == '%' && sscanf(p + 1, "%2x", &c) == 1 && p[1] && p[2]) {
      ch = (char)c;
      p += 2;
    } else if (ch == '~' && (p[1] == '0' || p[1] == '1')) {
      ch = *++p == '0' ? '~' : '/';
    }
    if (k + 1 < n)
      out[k++] = ch;
  }
  out[k] = '\0';
  *at = p;
  return k;
}

/* The index in an array that a step names: digits without a leading zero (RFC 6901). -1: none. */
static long index_of_step(const char *step)
{
  size_t n = strspn(step, "0123456789");
  bool is_index = n > 0 && n < 10 && !step[n] && (n == 1 || *step != '0');
  return is_index ? strtol(step, NULL, 10) : -1;
}

static const cJSON *by_pointer(td_schema *s, const cJSON *at, const char *pointer, uint32_t *n_seen)
{
  char step[512];
  while (at && *pointer == '/') {
    pointer++;
    (void)take_step(&pointer, step, sizeof step);
    if (cJSON_IsArray(at)) {
      long i = index_of_step(step);
      at = i >= 0 ? at->child : NULL;
      for (; at && i > 0; i--, ++*n_seen)
        at = at->next;
    } else {
      at = td_schema_get(s, at, step);
    }
  }
  return at && *pointer == '\0' ? at : NULL;
}

static const cJSON *by_anchor(const cJSON *at, const char *name, uint32_t *n_seen)
{
  for (const cJSON *m = at->child; m && cJSON_IsObject(at); m = m->next)
    if (strcmp(m->string, "$anchor") == 0 && cJSON_IsString(m) && strcmp(m->valuestring, name) == 0)
      return at;
  for (const cJSON *m = at->child; m; m = m->next, ++*n_seen) {
    const cJSON *found = cJSON_IsObject(m) || cJSON_IsArray(m) ? by_anchor(m, name, n_seen) : NULL;
    if (found)
      return found;
  }
  return NULL;
}

/* Whether there is an $id below the root, which would change what references are relative to. */
static bool has_inner_id(const cJSON *at, bool inner)
{
  for (const cJSON *m = at->child; m && inner && cJSON_IsObject(at); m = m->next)
    if (strcmp(m->string, "$id") == 0 && cJSON_IsString(m) && *m->valuestring != '#')
      return true;
  for (const cJSON *m = at->child; m; m = m->next)
    if (!(m->string && (strcmp(m->string, "enum") == 0 || strcmp(m->string, "const") == 0)) &&
        (cJSON_IsObject(m) || cJSON_IsArray(m)) && has_inner_id(m, true))
      return true;
  return false;
}

const cJSON *td_schema_resolve(td_schema *s, const cJSON *schema, const cJSON *to_resolve)
{
  const char *ref = cJSON_IsString(to_resolve) ? to_resolve->valuestring : "";
  const cJSON *id = cJSON_IsObject(s->root) ? td_schema_get(s, s->root, "$id") : NULL;
  size_t n = cJSON_IsString(id) ? strcspn(id->valuestring, "#") : 0;
  if (n > 0 && strncmp(ref, id->valuestring, n) == 0 && (ref[n] == '#' || !ref[n]))
    ref = ref[n] ? ref + n : "#";
  if (*ref != '#') {
    td_schema_fail(s, TD_ERR_UNSUPPORTED, schema, "$ref", "points out of the schema, which is not served");
    return NULL;
  }
  if (s->has_inner_id) {
    td_schema_fail(s, TD_ERR_UNSUPPORTED, schema, "$ref", "beside an inner '$id' is not served");
    return NULL;
  }
  uint32_t n_seen = 0;
  const cJSON *to = ref[1] == '/' || !ref[1] ? by_pointer(s, s->root, ref + 1, &n_seen)
                                             : by_anchor(s->root, ref + 1, &n_seen);
  if (!td_schema_work(s, schema, "$ref", n_seen / 16))
    return NULL;
  if (!to)
    td_schema_fail(s, TD_ERR_REQUEST, schema, "$ref", "points nowhere");
  return to;
}

/* ---- conjunctions ---- */

/* Keywords that would be ignored if their values had the wrong type. */
static void check_forms(td_schema *s, const cJSON *schema)
{
  static const char *const strings[] = {"$ref", "format"};
  for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
    const cJSON *m = td_schema_get(s, schema, strings[i]);
    if (m && !cJSON_IsString(m))
      td_schema_fail(s, TD_ERR_REQUEST, schema, strings[i], "must be a string");
  }
  td_schema_check_required(s, schema);
}

/* Whether `part` is, through a branch, the reason why `from` adds it again: an endless loop. */
static bool is_loop(const td_schema_conjunction *conj, uint32_t part, uint32_t from)
{
  bool branched = conj->parts[part].done;
  for (uint32_t i = from; i != NO_PART; i = conj->parts[i].from) {
    branched |= conj->parts[i].done;
    if (i == part)
      return branched;
  }
  return false;
}

static void add_part(td_schema *s, td_schema_conjunction *conj, const cJSON *schema, uint32_t from,
                     unsigned depth)
{
  if (s->status != TD_OK || cJSON_IsTrue(schema))
    return;
  if (cJSON_IsFalse(schema)) {
    conj->never = true;
    return;
  }
  if (!cJSON_IsObject(schema)) {
    td_schema_fail(s, TD_ERR_REQUEST, schema, "schema", "must be an object, true or false");
    return;
  }
  if (depth > td_limit_max(TD_LIMIT_SCHEMA_REFERRED))
    too_large(s, schema);
  if (!td_schema_work(s, schema, "$ref", 1))
    return;
  schema = td_schema_first(s, schema);
  for (uint32_t i = 0; i < conj->n; i++)
    if (conj->parts[i].schema == schema) { /* already there; fine, unless a branch of itself adds it */
      if (is_loop(conj, i, from))
        too_large(s, schema);
      return;
    }
  if (conj->n == TD_SCHEMA_PARTS_MAX) {
    td_schema_fail(s, TD_ERR_UNSUPPORTED, schema, "allOf", "joins too many schemas");
    return;
  }
  uint32_t part = conj->n++;
  bool is_denial =
      (from != NO_PART && conj->parts[from].is_denial) || td_schema_get(s, schema, KEYWORD_DENIAL);
  conj->parts[part] = (td_schema_part){schema, 0, (uint8_t)from, is_denial};
  check_forms(s, schema);
  const cJSON *ref = td_schema_get(s, schema, "$ref"), *list = td_schema_get(s, schema, "allOf");
  if (cJSON_IsString(ref)) {
    const cJSON *to = td_schema_resolve(s, schema, ref);
    if (to)
      add_part(s, conj, to, part, depth + 1);
  }
  if (list && !cJSON_IsArray(list))
    td_schema_fail(s, TD_ERR_REQUEST, schema, "allOf", "must be an array");
  for (const cJSON *m = cJSON_IsArray(list) ? list->child : NULL; m; m = m->next)
    add_part(s, conj, m, part, depth + 1);
  if (s->status == TD_OK)
    td_schema_add_derived(s, conj, part);
}

void td_schema_add(td_schema *s, td_schema_conjunction *conj, const cJSON *schema)
{
  add_part(s, conj, schema, NO_PART, 0);
}

void td_schema_add_from(td_schema *s, td_schema_conjunction *conj, const cJSON *schema, uint32_t part)
{
  add_part(s, conj, schema, part, 0);
}

bool td_schema_is_evaluated(const td_schema_conjunction *conj, uint32_t part, const bool *covers)
{
  for (uint32_t i = 0; i < conj->n; i++)
    if (covers[i] && !conj->parts[i].is_denial)
      for (uint32_t k = i; k != NO_PART; k = conj->parts[k].from)
        if (k == part)
          return true;
  return false;
}

/* ---- types ---- */

static unsigned type_bit(const char *name)
{
  static const struct {
    const char *name;
    unsigned bits;
  } types[] = {{"null", TYPE_NULL},
               {"boolean", TYPE_BOOLEAN},
               {"integer", TYPE_INTEGER},
               {"number", TYPE_INTEGER | TYPE_FRACTION},
               {TYPE_NAME_FRACTION, TYPE_FRACTION},
               {"string", TYPE_STRING},
               {"array", TYPE_ARRAY},
               {"object", TYPE_OBJECT}};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (strcmp(types[i].name, name) == 0)
      return types[i].bits;
  return 0;
}

enum { TYPES_MAX = 7 };

unsigned td_schema_types(td_schema *s, const cJSON *schema)
{
  const cJSON *type = td_schema_get(s, schema, "type");
  unsigned bits = 0, one, n = 0;
  if (!type)
    return TYPE_ALL;
  for (const cJSON *t = cJSON_IsArray(type) ? type->child : type; t;
       t = cJSON_IsArray(type) ? t->next : NULL) {
    one = cJSON_IsString(t) ? type_bit(t->valuestring) : 0;
    if (!one)
      td_schema_fail(s, TD_ERR_REQUEST, schema, "type", "names no type");
    bits |= one;
    if (++n > TYPES_MAX) /* there are seven names */
      td_schema_fail(s, TD_ERR_REQUEST, schema, "type", "names a type twice");
    if (s->status != TD_OK)
      break;
  }
  return bits;
}

static unsigned types_of_conjunction(td_schema *s, const td_schema_conjunction *conj)
{
  unsigned bits = conj->never ? 0 : TYPE_ALL;
  for (uint32_t i = 0; i < conj->n; i++)
    bits &= td_schema_types(s, conj->parts[i].schema);
  return bits;
}

unsigned td_schema_type_of(const cJSON *v)
{
  if (cJSON_IsNumber(v)) {
    double d = v->valuedouble;
    return d < 9e15 && d > -9e15 && d == (double)(int64_t)d ? TYPE_INTEGER : TYPE_FRACTION;
  }
  return cJSON_IsNull(v)     ? TYPE_NULL
         : cJSON_IsBool(v)   ? TYPE_BOOLEAN
         : cJSON_IsString(v) ? TYPE_STRING
         : cJSON_IsArray(v)  ? TYPE_ARRAY
         : cJSON_IsObject(v) ? TYPE_OBJECT
                             : TYPE_INTEGER; /* a number that a double cannot hold, which is kept as text */
}

/* ---- keywords that are not served ---- */

typedef struct refused_keyword {
  const char *name;
  unsigned types; /* the types of value that the keyword constrains */
} refused_keyword;

static const refused_keyword refused[] = {
    {"$dynamicRef", TYPE_ALL},
    {"$recursiveRef", TYPE_ALL},
    {"uniqueItems", TYPE_ARRAY},
};

static bool check_refused_keywords(td_schema *s, const td_schema_conjunction *conj, unsigned types)
{
  for (uint32_t i = 0; i < conj->n; i++)
    for (size_t k = 0; k < sizeof refused / sizeof *refused; k++) {
      const cJSON *m =
          (refused[k].types & types) ? td_schema_get(s, conj->parts[i].schema, refused[k].name) : NULL;
      const cJSON *most = td_schema_get(s, conj->parts[i].schema, "maxItems");
      if (!m || (strcmp(m->string, "uniqueItems") == 0 &&
                 (cJSON_IsFalse(m) || (cJSON_IsNumber(most) && most->valuedouble <= 1))))
        continue;
      td_schema_fail(s, TD_ERR_UNSUPPORTED, conj->parts[i].schema, refused[k].name, "is not served");
      return false;
    }
  return true;
}

/* ---- a conjunction without branches ---- */

const td_expr *td_schema_by_types(td_schema *s, const td_schema_conjunction *conj, unsigned types)
{
  td_builder *b = s->b;
  td_expr_list alt = {0};
  if (!check_refused_keywords(s, conj, types))
    return &td_expr_none;
  if (types == TYPE_ALL && td_schema_is_free(s, conj))
    return td_expr_call(b, TD_RULE_VALUE);
  if (types & TYPE_OBJECT)
    td_expr_add(b, &alt, td_schema_object(s, conj));
  if (types & TYPE_ARRAY)
    td_expr_add(b, &alt, td_schema_array(s, conj));
  if (types & TYPE_STRING)
    td_expr_add(b, &alt, td_schema_string(s, conj));
  if (types & (TYPE_INTEGER | TYPE_FRACTION))
    td_expr_add(b, &alt, td_schema_number(s, conj, types));
  if (types & TYPE_BOOLEAN) {
    td_expr_add(b, &alt, td_expr_string(b, b->python ? "True" : "true"));
    td_expr_add(b, &alt, td_expr_string(b, b->python ? "False" : "false"));
  }
  if (types & TYPE_NULL)
    td_expr_add(b, &alt, td_expr_string(b, b->python ? "None" : "null"));
  return td_expr_alt(b, &alt);
}

static const td_expr *without_branches(td_schema *s, const td_schema_conjunction *conj)
{
  unsigned types = types_of_conjunction(s, conj);
  if (s->status != TD_OK || types == 0)
    return &td_expr_none;
  for (uint32_t i = 0; i < conj->n; i++) {
    const cJSON *list = td_schema_get(s, conj->parts[i].schema, "enum");
    const cJSON *one = td_schema_get(s, conj->parts[i].schema, "const");
    if (list && !cJSON_IsArray(list))
      return td_schema_fail(s, TD_ERR_REQUEST, conj->parts[i].schema, "enum", "must be an array");
    if (one || list)
      return check_refused_keywords(s, conj, types) ? td_schema_one_of(s, conj, types, one ? one : list, !one)
                                                    : &td_expr_none;
  }
  return td_schema_by_types(s, conj, types);
}

/* ---- branches ---- */

static bool requires(td_schema *s, const td_schema_conjunction *conj, const cJSON *name)
{
  for (uint32_t i = 0; i < conj->n; i++)
    if (td_schema_requires(s, conj->parts[i].schema, name))
      return true;
  return false;
}

static bool forbids(td_schema *s, const td_schema_conjunction *conj, const char *name)
{
  for (uint32_t i = 0; i < conj->n; i++) {
    const cJSON *p = conj->parts[i].schema, *own = td_schema_get(s, p, "properties");
    const cJSON *value = cJSON_IsObject(own) ? td_schema_get(s, own, name) : NULL;
    if (cJSON_IsFalse(value) || (!value && cJSON_IsFalse(td_schema_get(s, p, "additionalProperties")) &&
                                 !td_schema_get(s, p, "patternProperties")))
      return true;
  }
  return false;
}

/* Whether this required member distinguishes a, which requires it, from b. */
static bool members_apart(td_schema *s, const td_schema_conjunction *a, const td_schema_conjunction *b,
                          const cJSON *required)
{
  td_schema_conjunction x = {0}, y = {0};
  const char *name = required->valuestring;
  if (!td_schema_work(s, required, "required", 1))
    return false;
  if (forbids(s, b, name))
    return true;
  if (!requires(s, b, required))
    return false;
  for (unsigned k = 0; k < 2; k++)
    for (uint32_t i = 0; i < (k ? b : a)->n; i++) {
      const cJSON *own = td_schema_get(s, (k ? b : a)->parts[i].schema, "properties");
      const cJSON *v = cJSON_IsObject(own) ? td_schema_get(s, own, name) : NULL;
      if (v)
        td_schema_add(s, k ? &y : &x, v);
    }
  if (s->status == TD_OK && (types_of_conjunction(s, &x) & types_of_conjunction(s, &y)) == 0)
    return true;
  for (uint32_t i = 0; i < x.n; i++)
    for (uint32_t k = 0; k < y.n; k++)
      if (td_schema_values_apart(s, x.parts[i].schema, y.parts[k].schema))
        return true;
  return false;
}

/* Whether no value fits both, for an obvious reason. */
static bool are_apart(td_schema *s, const td_schema_conjunction *a, const td_schema_conjunction *b)
{
  unsigned both = types_of_conjunction(s, a) & types_of_conjunction(s, b);
  if (both == 0 || a->never || b->never)
    return true;
  for (uint32_t i = 0; i < a->n; i++)
    for (uint32_t k = 0; k < b->n; k++)
      if (td_schema_values_apart(s, a->parts[i].schema, b->parts[k].schema))
        return true;
  if (both != TYPE_OBJECT)
    return false;
  for (unsigned side = 0; side < 2; side++) {
    const td_schema_conjunction *x = side ? b : a, *y = side ? a : b;
    for (uint32_t i = 0; i < x->n; i++) {
      const cJSON *list = td_schema_get(s, x->parts[i].schema, "required");
      for (const cJSON *m = cJSON_IsArray(list) ? list->child : NULL; m; m = m->next)
        if (members_apart(s, x, y, m))
          return true;
    }
  }
  return false;
}

/* For oneOf: adds denials of the other branches to *one, as far as they could hold together with it. */
static void deny_others(td_schema *s, const td_schema_conjunction *rest, td_schema_conjunction *one,
                        uint32_t part, const cJSON *list, const cJSON *branch)
{
  const cJSON *schema = rest->parts[part].schema;
  td_schema_conjunction own = *one;
  for (const cJSON *m = list->child; m && td_schema_work(s, schema, "oneOf", 1); m = m->next) {
    td_schema_conjunction other = *rest;
    const char *why = NULL;
    char text[160];
    if (m == branch)
      continue;
    td_schema_add_from(s, &other, m, part);
    if (s->status != TD_OK || are_apart(s, &own, &other))
      continue;
    const cJSON *denial = td_schema_deny(s, m, schema, &why);
    if (denial) {
      td_schema_add_from(s, one, denial, part);
    } else if (s->status == TD_OK) {
      snprintf(text, sizeof text,
               "has branches that may hold at once, and '%.40s' in one is not served there ('anyOf' is)",
               why ? why : "$ref");
      td_schema_fail(s, TD_ERR_UNSUPPORTED, schema, "oneOf", text);
    }
  }
}

static const td_expr *branches(td_schema *s, const td_schema_conjunction *conj, uint32_t part,
                               const char *keyword, unsigned done)
{
  const cJSON *schema = conj->parts[part].schema, *list = td_schema_get(s, schema, keyword);
  td_expr_list alt = {0};
  td_schema_conjunction rest = *conj;
  rest.parts[part].done |= (uint8_t)done;
  if (!cJSON_IsArray(list) || !list->child)
    return td_schema_fail(s, TD_ERR_REQUEST, schema, keyword, "must be an array with branches");
  for (const cJSON *m = list->child; m && s->status == TD_OK; m = m->next) {
    td_schema_conjunction one = rest;
    td_schema_add_from(s, &one, m, part);
    if (done == DONE_ONE && !one.never)
      deny_others(s, &rest, &one, part, list, m);
    if (!one.never)
      td_expr_add(s->b, &alt, td_schema_rule(s, &one));
  }
  return td_expr_alt(s->b, &alt);
}

static const td_expr *compile_all(td_schema *s, const td_schema_conjunction *conj)
{
  for (uint32_t i = 0; i < conj->n; i++) {
    if (!(conj->parts[i].done & DONE_ANY) && td_schema_get(s, conj->parts[i].schema, "anyOf"))
      return branches(s, conj, i, "anyOf", DONE_ANY);
    if (!(conj->parts[i].done & DONE_ONE) && td_schema_get(s, conj->parts[i].schema, "oneOf"))
      return branches(s, conj, i, "oneOf", DONE_ONE);
  }
  return without_branches(s, conj);
}

/* ---- rules ---- */

static bool is_cached(const td_cached_rule *k, const td_schema_conjunction *conj)
{
  for (uint32_t i = 0; i < conj->n && k->n == conj->n; i++)
    if (k->parts[i].schema != conj->parts[i].schema || k->parts[i].done != conj->parts[i].done ||
        k->parts[i].from != conj->parts[i].from)
      return false;
  return k->n == conj->n;
}

static uint32_t bucket_of(const td_schema_conjunction *conj)
{
  uint64_t h = conj->n;
  for (uint32_t i = 0; i < conj->n; i++)
    h = td_hash_u64(h, (uint64_t)(uintptr_t)conj->parts[i].schema ^ conj->parts[i].done);
  return (uint32_t)h % SCHEMA_BUCKETS;
}

static bool keep(td_schema *s, const td_schema_conjunction *conj, uint32_t bucket, uint32_t rule)
{
  td_arena *a = &s->b->arena;
  td_schema_part *parts = td_arena_alloc_array(a, conj->n, sizeof *parts);
  if (s->n_cached_rules == s->cap_cached_rules) {
    uint32_t cap = s->cap_cached_rules ? s->cap_cached_rules * 2 : 64;
    td_cached_rule *cached_rules = td_arena_alloc_array(a, cap, sizeof *cached_rules);
    if (cached_rules && s->n_cached_rules > 0)
      memcpy(cached_rules, s->cached_rules, s->n_cached_rules * sizeof *cached_rules);
    s->cached_rules = cached_rules;
    s->cap_cached_rules = cached_rules ? cap : 0;
  }
  if (!parts || !s->cached_rules) {
    s->b->failed = true;
    return false;
  }
  memcpy(parts, conj->parts, conj->n * sizeof *parts);
  s->cached_rules[s->n_cached_rules] = (td_cached_rule){parts, conj->n, rule, s->buckets[bucket]};
  s->buckets[bucket] = ++s->n_cached_rules;
  return true;
}

const td_expr *td_schema_rule(td_schema *s, const td_schema_conjunction *conj)
{
  if (conj->never || s->status != TD_OK || s->b->failed)
    return &td_expr_none;
  if (conj->n == 0)
    return td_expr_call(s->b, TD_RULE_VALUE);
  uint32_t bucket = bucket_of(conj);
  for (uint32_t i = s->buckets[bucket]; i != 0; i = s->cached_rules[i - 1].next)
    if (is_cached(&s->cached_rules[i - 1], conj))
      return td_expr_call(s->b, s->cached_rules[i - 1].rule);
  if (s->depth == td_limit_max(TD_LIMIT_SCHEMA_DEPTH))
    return too_large(s, conj->parts[0].schema);
  if (!td_schema_work(s, conj->parts[0].schema, "$ref", 1))
    return &td_expr_none;
  uint32_t rule = td_builder_add_rule(s->b);
  if (s->b->failed || !keep(s, conj, bucket, rule))
    return &td_expr_none;
  s->depth++;
  const td_expr *body = compile_all(s, conj);
  s->depth--;
  s->b->rules[rule] = body;
  return td_expr_call(s->b, rule);
}

td_status td_schema_compile(td_builder *b, const cJSON *schema, const td_expr **out)
{
  td_schema *s = calloc(1, sizeof *s);
  td_schema_conjunction conj = {0};
  if (!s)
    return td_fail(b->err, TD_ERR_NOMEM, "no memory for a schema");
  s->b = b;
  s->root = schema;
  s->seed = td_random_u64();
  s->has_inner_id = has_inner_id(schema, false);
  td_schema_find_duplicates(s);
  td_schema_add(s, &conj, schema);
  *out = td_schema_rule(s, &conj);
  td_status st = s->status;
  td_schema_free_derived(s);
  free(s);
  return st;
}
