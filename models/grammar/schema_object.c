/* Objects and arrays of a schema.
 *
 * Members come in the order in which `properties` names them, then those that it does not name. A member's
 * key has one spelling, so that none comes twice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/utf8.h"
#include "models/grammar/schema.h"

enum { KEYS_MAX = 6 };

typedef struct member {
  const char *key;
  uint64_t hash;
  const td_expr *quoted; /* the key, in its one spelling */
  const td_expr *expr;   /* key, colon, value */
  unsigned set;          /* bit k: the key fits pattern k */
  bool required;
} member;

typedef struct pattern {
  const td_expr *expr; /* of a key as it stands between quotes */
  const cJSON *schema;
  uint32_t part;
} pattern;

typedef struct object {
  td_schema *s;
  const td_all *all;
  member *members; /* in the arena */
  uint32_t n, cap;
  uint32_t *slots, n_slots; /* into members, + 1, by the hashes of their keys; in the arena */
  pattern patterns[KEYS_MAX];
  uint32_t n_patterns;
  const td_expr *extra; /* any other member; none: there may not be one */
  uint32_t least, most; /* members */
} object;

/* ---- members ---- */

static uint32_t slot_of(const object *o, const char *key, uint64_t hash)
{
  uint32_t k = (uint32_t)hash & (o->n_slots - 1);
  for (; o->slots[k]; k = (k + 1) & (o->n_slots - 1)) {
    const member *m = &o->members[o->slots[k] - 1];
    if (m->hash == hash && strcmp(m->key, key) == 0)
      break;
  }
  return k;
}

static bool grow(object *o)
{
  td_arena *a = &o->s->b->arena;
  uint32_t cap = o->cap ? o->cap * 2 : 16;
  member *members = td_arena_alloc_array(a, cap, sizeof *members);
  uint32_t *slots = td_arena_alloc_array(a, 2 * cap, sizeof *slots);
  if (!members || !slots) {
    o->s->b->failed = true;
    return false;
  }
  if (o->n > 0)
    memcpy(members, o->members, o->n * sizeof *members);
  o->members = members;
  o->cap = cap;
  o->slots = slots;
  o->n_slots = 2 * cap;
  for (uint32_t i = 0; i < o->n; i++)
    slots[slot_of(o, members[i].key, members[i].hash)] = i + 1;
  return true;
}

/* The member of this name, which may be there already; NULL: it failed. */
static member *add_member(object *o, const char *key, const char *keyword)
{
  uint64_t hash = td_hash_bytes(o->s->seed, key, strlen(key));
  if (!td_schema_work(o->s, o->all->parts[0].schema, keyword, 1) || (o->n == o->cap && !grow(o)))
    return NULL;
  uint32_t k = slot_of(o, key, hash);
  if (o->slots[k])
    return &o->members[o->slots[k] - 1];
  o->members[o->n] = (member){.key = key, .hash = hash, .quoted = td_schema_text(o->s, key)};
  o->slots[k] = ++o->n;
  return &o->members[o->n - 1];
}

/* A pattern over keys, as it stands between quotes. */
static const td_expr *key_pattern(td_schema *s, const cJSON *schema, const char *keyword, const char *text)
{
  td_error why, *err = s->b->err;
  const td_expr *e = &td_expr_none;
  char what[256];
  s->b->err = &why;
  td_status st = td_regex_compile_json(s->b, text, strlen(text), &e);
  s->b->err = err;
  if (st == TD_OK)
    return e;
  snprintf(what, sizeof what, "has %.200s", why.message);
  return td_schema_fail(s, st, schema, keyword, what);
}

/* Calls no other schema's compiler: no machine lives while another is made. */
static void try_keys(object *o, const td_expr *e, unsigned bit)
{
  td_schema *s = o->s;
  td_tester *t = td_tester_create(s->b, e);
  for (uint32_t i = 0; t && i < o->n && !s->b->failed; i++) {
    const td_expr *quoted = o->members[i].quoted;
    if (quoted->kind == TD_EXPR_TEXT && td_tester_fits(t, quoted->u.text + 1, quoted->n - 2))
      o->members[i].set |= bit;
  }
  td_tester_destroy(t);
}

static const cJSON *object_word(td_schema *s, const cJSON *schema, const char *keyword)
{
  const cJSON *m = td_schema_get(s, schema, keyword);
  if (m && !cJSON_IsObject(m))
    td_schema_fail(s, TD_ERR_REQUEST, schema, keyword, "must be an object");
  return cJSON_IsObject(m) ? m : NULL;
}

static void collect_patterns(object *o)
{
  td_schema *s = o->s;
  for (uint32_t i = 0; i < o->all->n; i++) {
    const cJSON *p = o->all->parts[i].schema, *list = object_word(s, p, "patternProperties");
    for (const cJSON *m = list ? list->child : NULL; m && s->status == TD_OK; m = m->next) {
      if (o->n_patterns == KEYS_MAX) {
        td_schema_fail(s, TD_ERR_UNSUPPORTED, p, "patternProperties", "has more than 6 patterns");
        return;
      }
      o->patterns[o->n_patterns++] = (pattern){key_pattern(s, p, "patternProperties", m->string), m, i};
    }
  }
  for (uint32_t k = 0; k < o->n_patterns && s->status == TD_OK; k++)
    try_keys(o, o->patterns[k].expr, 1u << k);
}

/* What part i of the conjunction says of the value of a key that fits the patterns of this set, as `own` or
 * not. False: nothing. */
static bool gather_value(object *o, uint32_t i, const cJSON *own, unsigned set, td_all *value)
{
  td_schema *s = o->s;
  bool said = own != NULL;
  if (own)
    td_schema_gather(s, value, own);
  for (uint32_t k = 0; k < o->n_patterns; k++)
    if (o->patterns[k].part == i && (set >> k & 1)) {
      said = true;
      td_schema_gather(s, value, o->patterns[k].schema);
    }
  const cJSON *rest = said ? NULL : td_schema_get(s, o->all->parts[i].schema, "additionalProperties");
  if (rest)
    td_schema_gather(s, value, rest);
  return said || rest;
}

static const td_expr *colon(td_builder *b)
{
  return td_expr_cat2(b, td_expr_string(b, ":"), td_expr_call(b, TD_RULE_SPACE));
}

static void name_members(object *o)
{
  td_schema *s = o->s;
  for (uint32_t i = 0; i < o->all->n; i++) {
    const cJSON *own = object_word(s, o->all->parts[i].schema, "properties");
    for (const cJSON *m = own ? own->child : NULL; m; m = m->next)
      if (!add_member(o, m->string, "properties"))
        return;
  }
  for (uint32_t i = 0; i < o->all->n; i++) {
    const cJSON *list = td_schema_get(s, o->all->parts[i].schema, "required");
    for (const cJSON *m = cJSON_IsArray(list) ? list->child : NULL; m; m = m->next) {
      member *at = cJSON_IsString(m) ? add_member(o, m->valuestring, "required") : NULL;
      if (!at)
        return;
      at->required = true;
    }
  }
}

static void make_members(object *o)
{
  td_schema *s = o->s;
  for (uint32_t k = 0; k < o->n && td_schema_work(s, o->all->parts[0].schema, "properties", o->all->n); k++) {
    member *m = &o->members[k];
    td_all value = {0};
    bool said = false;
    for (uint32_t i = 0; i < o->all->n; i++) {
      const cJSON *own = object_word(s, o->all->parts[i].schema, "properties");
      said |= gather_value(o, i, td_schema_get(s, own, m->key), m->set, &value);
    }
    for (uint32_t i = 0; i < o->all->n && !said; i++)
      value.never |= cJSON_IsFalse(td_schema_get(s, o->all->parts[i].schema, "unevaluatedProperties"));
    const td_expr *v = td_schema_rule(s, &value);
    m->expr = td_expr_cat3(s->b, m->quoted, colon(s->b), v);
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

/* Patterns of which a key fits exactly those in `set`. */
static const td_expr *keys_of_set(object *o, unsigned set, const td_expr *names, const td_expr *allowed)
{
  const td_expr *wanted[KEYS_MAX + 2], *unwanted[KEYS_MAX + 1];
  uint32_t n_wanted = 0, n_unwanted = 0;
  bool large;
  wanted[n_wanted++] = any_key(o->s->b);
  if (allowed)
    wanted[n_wanted++] = allowed;
  for (uint32_t i = 0; i < o->n_patterns; i++)
    if (set >> i & 1)
      wanted[n_wanted++] = o->patterns[i].expr;
    else
      unwanted[n_unwanted++] = o->patterns[i].expr;
  unwanted[n_unwanted++] = names;
  const td_expr *keys = td_expr_intersect(o->s->b, wanted, n_wanted, unwanted, n_unwanted, &large);
  return large ? td_schema_fail(o->s, TD_ERR_UNSUPPORTED, o->all->parts[0].schema, "patternProperties",
                                "or names are too large together")
               : keys;
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
    const cJSON *names = td_schema_get(o->s, o->all->parts[i].schema, "propertyNames");
    if (!names || cJSON_IsTrue(names) || (cJSON_IsObject(names) && !names->child))
      continue;
    const cJSON *only = cJSON_IsObject(names) ? td_schema_get(o->s, names, "pattern") : NULL;
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

enum { ALLOWED = 1u << KEYS_MAX }; /* in a member's set: propertyNames allows it */

static void make_extra(object *o)
{
  td_schema *s = o->s;
  td_builder *b = s->b;
  td_expr_list alt = {0};
  const td_expr *allowed = allowed_keys(o), *names = all_names(o), *quote = td_expr_string(b, "\"");
  if (allowed)
    try_keys(o, allowed, ALLOWED);
  for (uint32_t i = 0; i < o->n && allowed; i++)
    if (!(o->members[i].set & ALLOWED))
      o->members[i].expr = &td_expr_none;
  for (unsigned set = 0; set < 1u << o->n_patterns && s->status == TD_OK; set++) {
    td_all value = {0};
    for (uint32_t i = 0; i < o->all->n; i++)
      value.never |= !gather_value(o, i, NULL, set, &value) &&
                     cJSON_IsFalse(td_schema_get(s, o->all->parts[i].schema, "unevaluatedProperties"));
    if (value.never)
      continue;
    const td_expr *v = td_schema_rule(s, &value);
    const td_expr *key = o->n_patterns == 0 && o->n == 0 && !allowed
                             ? td_expr_call(b, TD_RULE_STRING)
                             : td_expr_cat3(b, quote, keys_of_set(o, set, names, allowed), quote);
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
    const cJSON *m = td_schema_get(s, all->parts[i].schema, "unevaluatedProperties");
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
  name_members(&o);
  if (s->status == TD_OK)
    collect_patterns(&o);
  if (s->status == TD_OK)
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

static const cJSON *prefix_of(td_schema *s, const cJSON *schema)
{
  const cJSON *prefix = td_schema_get(s, schema, "prefixItems"), *items = td_schema_get(s, schema, "items");
  return cJSON_IsArray(prefix) ? prefix : cJSON_IsArray(items) ? items : NULL;
}

/* Of an element, for which each part has its own word, or none: it is one of the rest. */
static const td_expr *element(td_schema *s, const td_all *all, const cJSON *const *own)
{
  td_all value = {0};
  for (uint32_t k = 0; k < all->n; k++) {
    const cJSON *p = all->parts[k].schema, *items = td_schema_get(s, p, "items"), *said = own[k];
    if (!said)
      said = cJSON_IsArray(items) ? td_schema_get(s, p, "additionalItems") : items;
    if (said)
      td_schema_gather(s, &value, said);
  }
  return td_schema_rule(s, &value);
}

/* [n][all->n] in the arena: what each part's prefix says of elements 0 to n - 1; NULL: it has no such one. */
static const cJSON **prefixes(td_schema *s, const td_all *all, uint32_t n)
{
  const cJSON **own = td_arena_alloc_array(&s->b->arena, (size_t)n + 1, all->n * sizeof(const cJSON *));
  s->b->failed |= !own;
  if (!own || !td_schema_work(s, all->parts[0].schema, "prefixItems", n))
    return NULL;
  for (uint32_t k = 0; k < all->n; k++) {
    const cJSON *prefix = prefix_of(s, all->parts[k].schema), *m = prefix ? prefix->child : NULL;
    for (uint32_t i = 0; i < n && m; i++, m = m->next)
      own[(size_t)i * all->n + k] = m;
  }
  return own;
}

const td_expr *td_schema_array(td_schema *s, const td_all *all)
{
  td_builder *b = s->b;
  uint32_t least = 0, most = TD_REPEAT_MANY, n_prefix = 0;
  const td_expr *space = td_expr_call(b, TD_RULE_SPACE),
                *comma = td_expr_cat2(b, td_expr_string(b, ","), space);
  for (uint32_t i = 0; i < all->n; i++) {
    const cJSON *prefix = prefix_of(s, all->parts[i].schema);
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
  const cJSON **own_words = prefixes(s, all, n_prefix);
  if (!own_words)
    return &td_expr_none;
  const td_expr *rest = element(s, all, own_words + (size_t)n_prefix * all->n);
  uint32_t floor = least > n_prefix ? least - n_prefix : 0;
  uint32_t ceiling = most == TD_REPEAT_MANY ? most : most - n_prefix;
  const td_expr *tail = td_expr_repeat(b, td_expr_cat2(b, comma, rest), floor, ceiling);
  for (uint32_t i = n_prefix; i-- > 0 && s->status == TD_OK;) {
    const td_expr *own = element(s, all, own_words + (size_t)i * all->n);
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
