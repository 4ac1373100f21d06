/* Objects and arrays of a schema.
 *
 * Members come in the order in which `properties` names them, then those that it does not name. A member's
 * key has one spelling, so that none comes twice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "models/grammar/schema.h"

typedef struct member {
  const char *key;
  const td_expr *expr; /* key, colon, value */
  bool required;
} member;

typedef struct object {
  td_schema *s;
  const td_all *all;
  member *members; /* in the arena */
  uint32_t n, cap;
  const td_expr *extra; /* any other member; none: there may not be one */
  uint32_t least, most; /* members */
} object;

/* ---- members ---- */

static member *find_member(object *o, const char *key)
{
  for (uint32_t i = 0; i < o->n; i++)
    if (strcmp(o->members[i].key, key) == 0)
      return &o->members[i];
  return NULL;
}

static member *add_member(object *o, const char *key)
{
  member *m = find_member(o, key);
  if (m)
    return m;
  if (o->n == o->cap) {
    uint32_t cap = o->cap ? o->cap * 2 : 16;
    m = td_arena_alloc_array(&o->s->b->arena, cap, sizeof *m);
    if (!m) {
      o->s->b->failed = true;
      return NULL;
    }
    if (o->n > 0)
      memcpy(m, o->members, o->n * sizeof *m);
    o->members = m;
    o->cap = cap;
  }
  if (++o->s->work > 400000)
    td_schema_fail(o->s, TD_ERR_REQUEST, o->all->parts[0].schema, "properties", "are too many in all");
  o->members[o->n] = (member){.key = key};
  return &o->members[o->n++];
}

/* A pattern over keys, as it stands between quotes. */
static const td_expr *key_pattern(td_schema *s, const cJSON *schema, const char *keyword, const char *pattern)
{
  td_error why, *err = s->b->err;
  const td_expr *e = &td_expr_none;
  char text[256];
  s->b->err = &why;
  td_status st = td_regex_compile_json(s->b, pattern, strlen(pattern), &e);
  s->b->err = err;
  if (st == TD_OK)
    return e;
  snprintf(text, sizeof text, "has %.200s", why.message);
  return td_schema_fail(s, st, schema, keyword, text);
}

/* The key without its quotes. */
static const td_expr *bare_key(td_schema *s, const char *key)
{
  const td_expr *quoted = td_schema_text(s, key);
  return quoted->kind == TD_EXPR_TEXT ? td_expr_text(s->b, quoted->u.text + 1, quoted->n - 2) : &td_expr_none;
}

static bool key_fits(td_schema *s, const td_expr *pattern, const char *key)
{
  const td_expr *e = bare_key(s, key);
  return e->kind == TD_EXPR_EMPTY ? td_expr_fits(s->b, pattern, "", 0)
                                  : e->kind == TD_EXPR_TEXT && td_expr_fits(s->b, pattern, e->u.text, e->n);
}

static const cJSON *object_word(td_schema *s, const cJSON *schema, const char *keyword)
{
  const cJSON *m = td_json_get(schema, keyword);
  if (m && !cJSON_IsObject(m))
    td_schema_fail(s, TD_ERR_REQUEST, schema, keyword, "must be an object");
  return cJSON_IsObject(m) ? m : NULL;
}

/* What part i of the conjunction says of the value of this key. False: nothing. */
static bool gather_value(object *o, uint32_t i, const char *key, td_all *value)
{
  td_schema *s = o->s;
  const cJSON *p = o->all->parts[i].schema, *own = object_word(s, p, "properties");
  const cJSON *patterns = object_word(s, p, "patternProperties"), *m = own ? td_json_get(own, key) : NULL;
  bool said = m != NULL;
  if (m)
    td_schema_gather(s, value, m);
  for (m = patterns ? patterns->child : NULL; m && s->status == TD_OK; m = m->next)
    if (key_fits(s, key_pattern(s, p, "patternProperties", m->string), key)) {
      said = true;
      td_schema_gather(s, value, m);
    }
  const cJSON *rest = td_json_get(p, "additionalProperties");
  if (!said && rest)
    td_schema_gather(s, value, rest);
  return said || rest;
}

static const td_expr *colon(td_builder *b)
{
  return td_expr_cat2(b, td_expr_string(b, ":"), td_expr_call(b, TD_RULE_SPACE));
}

static void make_members(object *o)
{
  td_schema *s = o->s;
  for (uint32_t i = 0; i < o->all->n; i++) {
    const cJSON *own = object_word(s, o->all->parts[i].schema, "properties");
    for (const cJSON *m = own ? own->child : NULL; m; m = m->next)
      (void)add_member(o, m->string);
  }
  for (uint32_t i = 0; i < o->all->n; i++) {
    const cJSON *list = td_json_get(o->all->parts[i].schema, "required");
    for (const cJSON *m = cJSON_IsArray(list) ? list->child : NULL; m; m = m->next) {
      member *at = cJSON_IsString(m) ? add_member(o, m->valuestring) : NULL;
      if (at)
        at->required = true;
    }
  }
  for (uint32_t k = 0; k < o->n && s->status == TD_OK; k++) {
    td_all value = {0};
    bool said = false;
    for (uint32_t i = 0; i < o->all->n; i++)
      said |= gather_value(o, i, o->members[k].key, &value);
    for (uint32_t i = 0; i < o->all->n && !said; i++)
      value.never |= cJSON_IsFalse(td_json_get(o->all->parts[i].schema, "unevaluatedProperties"));
    const td_expr *v = td_schema_rule(s, &value);
    o->members[k].expr = td_expr_cat3(s->b, td_schema_text(s, o->members[k].key), colon(s->b), v);
  }
}

/* ---- members that are not named ---- */

/* Any key, in the one spelling that patterns and names have too. */
static const td_expr *any_key(td_builder *b)
{
  td_chars all = {0};
  td_chars_add(b, &all, 0, TD_CHAR_MAX);
  return td_expr_repeat(b, td_chars_json_expr(b, &all), 0, TD_REPEAT_MANY);
}

enum { KEYS_MAX = 6 };

typedef struct pattern {
  const td_expr *expr;
  const cJSON *schema;
  uint32_t part;
} pattern;

/* Patterns of which a key fits exactly those in `set`. */
static const td_expr *keys_of_set(object *o, const pattern *list, uint32_t n, unsigned set,
                                  const td_expr *names, const td_expr *allowed)
{
  const td_expr *wanted[KEYS_MAX + 2], *unwanted[KEYS_MAX + 1];
  uint32_t n_wanted = 0, n_unwanted = 0;
  bool large;
  wanted[n_wanted++] = any_key(o->s->b);
  if (allowed)
    wanted[n_wanted++] = allowed;
  for (uint32_t i = 0; i < n; i++)
    if (set >> i & 1)
      wanted[n_wanted++] = list[i].expr;
    else
      unwanted[n_unwanted++] = list[i].expr;
  unwanted[n_unwanted++] = names;
  const td_expr *keys = td_expr_intersect(o->s->b, wanted, n_wanted, unwanted, n_unwanted, &large);
  return large ? td_schema_fail(o->s, TD_ERR_UNSUPPORTED, o->all->parts[0].schema, "patternProperties",
                                "or names are too large together")
               : keys;
}

static uint32_t collect_patterns(object *o, pattern *list)
{
  uint32_t n = 0;
  for (uint32_t i = 0; i < o->all->n; i++) {
    const cJSON *p = o->all->parts[i].schema, *patterns = object_word(o->s, p, "patternProperties");
    for (const cJSON *m = patterns ? patterns->child : NULL; m && o->s->status == TD_OK; m = m->next) {
      if (n == KEYS_MAX) {
        td_schema_fail(o->s, TD_ERR_UNSUPPORTED, p, "patternProperties", "has more than 6 patterns");
        return n;
      }
      list[n++] = (pattern){key_pattern(o->s, p, "patternProperties", m->string), m, i};
    }
  }
  return n;
}

/* A key in all its spellings. */
static const td_expr *spellings(td_builder *b, const char *key)
{
  td_expr_list list = {0};
  size_t n = strlen(key);
  for (size_t i = 0; i < n && !b->failed;) {
    const unsigned char *at = (const unsigned char *)key + i;
    size_t len = td_utf8_sequence_length(at, n - i);
    uint32_t cp = len ? td_utf8_decode(at, len) : 0; /* U+0000 stands as C0 80 (json.h) */
    td_chars one = {0};
    td_chars_add(b, &one, cp, cp);
    td_expr_add(b, &list, td_chars_json_expr(b, &one));
    i += len ? len : 2;
  }
  return td_expr_cat(b, &list);
}

static const td_expr *all_names(object *o)
{
  td_expr_list alt = {0};
  for (uint32_t i = 0; i < o->n; i++)
    td_expr_add(o->s->b, &alt, spellings(o->s->b, o->members[i].key));
  return td_expr_alt(o->s->b, &alt);
}

/* propertyNames of all parts: what a key may be; NULL: anything. */
static const td_expr *allowed_keys(object *o)
{
  const td_expr *allowed = NULL;
  for (uint32_t i = 0; i < o->all->n; i++) {
    const cJSON *names = td_json_get(o->all->parts[i].schema, "propertyNames");
    if (!names || cJSON_IsTrue(names) || (cJSON_IsObject(names) && !names->child))
      continue;
    const cJSON *only = cJSON_IsObject(names) ? td_json_get(names, "pattern") : NULL;
    for (const cJSON *m = names->child; m && only; m = m->next)
      if (m != only && strcmp(m->string, "type") != 0)
        only = NULL;
    if (!cJSON_IsString(only) || allowed)
      td_schema_fail(o->s, TD_ERR_UNSUPPORTED, o->all->parts[i].schema, "propertyNames",
                     "is served with one 'pattern' only");
    else
      allowed = key_pattern(o->s, names, "pattern", only->valuestring);
  }
  return allowed;
}

static void gather_rest(object *o, const pattern *list, uint32_t n, unsigned set, td_all *value)
{
  for (uint32_t i = 0; i < o->all->n; i++) {
    const cJSON *p = o->all->parts[i].schema, *rest = td_json_get(p, "additionalProperties");
    bool said = false;
    for (uint32_t k = 0; k < n; k++)
      if (list[k].part == i && (set >> k & 1)) {
        said = true;
        td_schema_gather(o->s, value, list[k].schema);
      }
    if (!said && rest)
      td_schema_gather(o->s, value, rest);
    value->never |= !said && !rest && cJSON_IsFalse(td_json_get(p, "unevaluatedProperties"));
  }
}

static void make_extra(object *o)
{
  td_schema *s = o->s;
  td_builder *b = s->b;
  pattern list[KEYS_MAX];
  td_expr_list alt = {0};
  const td_expr *allowed = allowed_keys(o), *names = all_names(o), *quote = td_expr_string(b, "\"");
  uint32_t n = collect_patterns(o, list);
  for (uint32_t i = 0; i < o->n && allowed; i++)
    if (!key_fits(s, allowed, o->members[i].key))
      o->members[i].expr = &td_expr_none;
  for (unsigned set = 0; set < 1u << n && s->status == TD_OK; set++) {
    td_all value = {0};
    gather_rest(o, list, n, set, &value);
    if (value.never)
      continue;
    const td_expr *v = td_schema_rule(s, &value);
    const td_expr *key = n == 0 && o->n == 0 && !allowed
                             ? td_expr_call(b, TD_RULE_STRING)
                             : td_expr_cat3(b, quote, keys_of_set(o, list, n, set, names, allowed), quote);
    td_expr_add(b, &alt, td_expr_cat3(b, key, colon(b), v));
  }
  o->extra = td_expr_alt(b, &alt);
}

/* ---- counts ---- */

static uint32_t n_required(const object *o)
{
  uint32_t n = 0;
  for (uint32_t i = 0; i < o->n; i++)
    n += o->members[i].required;
  return n;
}

static void read_counts(object *o)
{
  o->most = TD_REPEAT_MANY;
  for (uint32_t i = 0; i < o->all->n; i++) {
    td_schema_count(o->s, o->all->parts[i].schema, "minProperties", &o->least, NULL);
    td_schema_count(o->s, o->all->parts[i].schema, "maxProperties", NULL, &o->most);
  }
  if (o->least <= n_required(o))
    o->least = 0;
  if (o->most >= o->n && o->extra->kind == TD_EXPR_NONE)
    o->most = TD_REPEAT_MANY;
  /* an unnamed key may come twice, and is one member then */
  if (o->least > 1 && o->extra->kind != TD_EXPR_NONE)
    td_schema_fail(o->s, TD_ERR_UNSUPPORTED, o->all->parts[0].schema, "minProperties",
                   "above 1 is served only where all properties are named");
}

/* ---- the members in their order ---- */

enum { CELLS_MAX = 200000 };

/* Behind all named members, of which there were `count` (no more is counted than matters). */
static const td_expr *ending(object *o, uint32_t count)
{
  td_builder *b = o->s->b;
  const td_expr *comma = td_expr_cat2(b, td_expr_string(b, ","), td_expr_call(b, TD_RULE_SPACE));
  uint32_t most = o->most == TD_REPEAT_MANY ? TD_REPEAT_MANY : o->most - count;
  uint32_t least = count < o->least ? o->least - count : 0;
  if (o->extra->kind == TD_EXPR_NONE || most == 0)
    return least > 0 ? &td_expr_none : &td_expr_empty;
  const td_expr *more = td_expr_cat2(b, comma, o->extra);
  if (count > 0)
    return td_expr_repeat(b, more, least, most);
  const td_expr *some =
      td_expr_cat2(b, o->extra, td_expr_repeat(b, more, 0, most == TD_REPEAT_MANY ? most : most - 1));
  return least > 0 ? some : td_expr_alt2(b, some, &td_expr_empty);
}

static const td_expr *cell(object *o, uint32_t i, const td_expr *with, const td_expr *without, bool first)
{
  td_builder *b = o->s->b;
  const member *m = &o->members[i];
  const td_expr *own =
      first ? m->expr : td_expr_cat3(b, td_expr_string(b, ","), td_expr_call(b, TD_RULE_SPACE), m->expr);
  const td_expr *taken = td_expr_cat2(b, own, with);
  return m->required ? taken : td_expr_alt2(b, taken, without);
}

/* A rule for each named member and count of members before it; counts end where they do not matter any more.
 */
static const td_expr *in_order(object *o)
{
  td_builder *b = o->s->b;
  uint32_t counts = 1;
  if (o->least > counts)
    counts = o->least;
  if (o->most != TD_REPEAT_MANY && o->most > counts)
    counts = o->most < o->n ? o->most : o->n > 1 ? o->n : 1;
  if ((uint64_t)(counts + 1) * (o->n + 1) > CELLS_MAX)
    return td_schema_fail(o->s, TD_ERR_UNSUPPORTED, o->all->parts[0].schema, "maxProperties",
                          "with so many properties is not served");
  const td_expr **row = td_arena_alloc_array(&b->arena, counts + 2, sizeof *row);
  if (!row) {
    b->failed = true;
    return &td_expr_none;
  }
  bool full = o->most != TD_REPEAT_MANY;
  for (uint32_t k = 0; k <= counts; k++)
    row[k] = full && k > o->most ? &td_expr_none : ending(o, k);
  for (uint32_t i = o->n; i-- > 0 && !b->failed;)
    for (uint32_t k = 0; k <= counts && k <= i; k++) {
      const td_expr *with = k < counts ? row[k + 1] : full && k == o->most ? &td_expr_none : row[k];
      uint32_t rule = td_builder_add_rule(b);
      if (b->failed)
        return &td_expr_none;
      b->rules[rule] = cell(o, i, with, row[k], k == 0);
      row[k] = td_expr_call(b, rule);
    }
  return row[0];
}

/* It asks what all schemas around have looked at: clear only where there is one. */
static void check_unevaluated(td_schema *s, const td_all *all)
{
  for (uint32_t i = 0; i < all->n; i++) {
    const cJSON *m = td_json_get(all->parts[i].schema, "unevaluatedProperties");
    if (m && !cJSON_IsTrue(m) && !(cJSON_IsFalse(m) && all->n == 1))
      td_schema_fail(s, TD_ERR_UNSUPPORTED, all->parts[i].schema, "unevaluatedProperties",
                     "is only served as false, in a schema that is joined with no other");
  }
}

const td_expr *td_schema_object(td_schema *s, const td_all *all)
{
  object o = {.s = s, .all = all};
  td_builder *b = s->b;
  const td_expr *space = td_expr_call(b, TD_RULE_SPACE);
  check_unevaluated(s, all);
  make_members(&o);
  if (s->status == TD_OK)
    make_extra(&o);
  if (s->status == TD_OK)
    read_counts(&o);
  if (s->status != TD_OK)
    return &td_expr_none;
  const td_expr *members = in_order(&o);
  return td_expr_cat3(b, td_expr_cat2(b, td_expr_string(b, "{"), space), td_expr_cat2(b, members, space),
                      td_expr_string(b, "}"));
}

/* ---- arrays ---- */

static const cJSON *prefix_of(const cJSON *schema)
{
  const cJSON *prefix = td_json_get(schema, "prefixItems"), *items = td_json_get(schema, "items");
  return cJSON_IsArray(prefix) ? prefix : cJSON_IsArray(items) ? items : NULL;
}

/* Of element i, or (beyond all prefixes) of the rest. */
static const td_expr *element(td_schema *s, const td_all *all, uint32_t i)
{
  td_all value = {0};
  for (uint32_t k = 0; k < all->n; k++) {
    const cJSON *p = all->parts[k].schema, *prefix = prefix_of(p), *items = td_json_get(p, "items");
    const cJSON *own = prefix ? cJSON_GetArrayItem(prefix, (int)i) : NULL;
    if (!own)
      own = cJSON_IsArray(items) ? td_json_get(p, "additionalItems") : items;
    if (own)
      td_schema_gather(s, &value, own);
  }
  return td_schema_rule(s, &value);
}

const td_expr *td_schema_array(td_schema *s, const td_all *all)
{
  td_builder *b = s->b;
  uint32_t least = 0, most = TD_REPEAT_MANY, n_prefix = 0;
  const td_expr *space = td_expr_call(b, TD_RULE_SPACE),
                *comma = td_expr_cat2(b, td_expr_string(b, ","), space);
  for (uint32_t i = 0; i < all->n; i++) {
    const cJSON *prefix = prefix_of(all->parts[i].schema);
    uint32_t n = prefix ? (uint32_t)cJSON_GetArraySize(prefix) : 0;
    td_schema_count(s, all->parts[i].schema, "minItems", &least, NULL);
    td_schema_count(s, all->parts[i].schema, "maxItems", NULL, &most);
    n_prefix = n > n_prefix ? n : n_prefix;
  }
  if (n_prefix == 0) /* so that the first element has no comma before it */
    n_prefix = 1;
  if (n_prefix > most)
    n_prefix = most;
  if (s->status != TD_OK || least > most)
    return &td_expr_none;
  const td_expr *rest = element(s, all, UINT32_MAX >> 1);
  uint32_t floor = least > n_prefix ? least - n_prefix : 0;
  uint32_t ceiling = most == TD_REPEAT_MANY ? most : most - n_prefix;
  const td_expr *tail = td_expr_repeat(b, td_expr_cat2(b, comma, rest), floor, ceiling);
  for (uint32_t i = n_prefix; i-- > 0 && s->status == TD_OK;) {
    const td_expr *own = element(s, all, i);
    const td_expr *taken = td_expr_cat3(b, i > 0 ? comma : &td_expr_empty, own, tail);
    uint32_t rule = td_builder_add_rule(b);
    if (b->failed)
      return &td_expr_none;
    b->rules[rule] = i >= least ? td_expr_alt2(b, taken, &td_expr_empty) : taken;
    tail = td_expr_call(b, rule);
  }
  return td_expr_cat3(b, td_expr_cat2(b, td_expr_string(b, "["), space), td_expr_cat2(b, tail, space),
                      td_expr_string(b, "]"));
}
