/* Objects of a schema.
 *
 * Members come in the order of `properties`, followed by those that it does not name. A member's key has only
 * one spelling, so that no member occurs twice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/utf8.h"
#include "models/grammar/schema.h"

typedef struct member {
  const char *key;
  uint64_t hash;
  const td_expr *quoted; /* the key with its quotes, in its only spelling */
  const td_expr *expr;   /* key, colon, value */
  unsigned set;          /* bit k: the key fits pattern k; see also ALLOWED */
  bool required;
} member;

typedef struct pattern {
  const td_expr *expr; /* matches a key between its quotes */
  const td_expr *wide; /* the same, for keys that must be kept out */
  const cJSON *schema;
  uint32_t part;
} pattern;

typedef struct object {
  td_schema *s;
  const td_schema_conjunction *conj;
  member *members; /* in the arena */
  uint32_t n, cap;
  uint32_t *slots, n_slots; /* index into members, + 1, by the hashes of their keys; in the arena */
  pattern patterns[TD_SCHEMA_KEY_PATTERNS_MAX];
  uint32_t n_patterns;
  const td_expr *extra; /* any other member; td_expr_none if there may not be one */
  uint32_t least, most; /* bounds on the number of members */
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

/* Finds or adds the member with this name. NULL on failure. */
static member *add_member(object *o, const char *key, const char *keyword)
{
  uint64_t hash = td_hash_bytes(o->s->seed, key, strlen(key));
  if (!td_schema_work(o->s, o->conj->parts[0].schema, keyword, 1) || (o->n == o->cap && !grow(o)))
    return NULL;
  uint32_t k = slot_of(o, key, hash);
  if (o->slots[k])
    return &o->members[o->slots[k] - 1];
  o->members[o->n] = (member){.key = key, .hash = hash, .quoted = td_schema_text(o->s, key)};
  o->slots[k] = ++o->n;
  return &o->members[o->n - 1];
}

/* A pattern over keys, which matches a key between its quotes. */
static const td_expr *key_pattern(td_schema *s, const cJSON *schema, const char *keyword, const char *text,
                                  bool wide)
{
  td_error why, *err = s->b->err;
  const td_expr *e = &td_expr_none;
  char what[256];
  s->b->err = &why;
  td_status st = td_regex_compile_json(s->b, text, strlen(text), wide, &e, NULL);
  s->b->err = err;
  if (st == TD_OK)
    return e;
  snprintf(what, sizeof what, "has %.200s", why.message);
  return td_schema_fail(s, st, schema, keyword, what);
}

/* Sets `bit` for members whose key fits e. This compiles no other schema, so no two machines exist at the
 * same time. */
static void try_keys(object *o, const td_expr *e, bool with_quotes, unsigned bit)
{
  td_schema *s = o->s;
  td_tester *t = td_tester_create(s->b, e);
  for (uint32_t i = 0; t && i < o->n && !s->b->failed; i++) {
    const td_expr *key = o->members[i].quoted;
    if (key->kind == TD_EXPR_TEXT &&
        td_tester_fits(t, key->u.text + !with_quotes, key->n - (with_quotes ? 0 : 2)))
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
  for (uint32_t i = 0; i < o->conj->n; i++) {
    const cJSON *p = o->conj->parts[i].schema, *list = object_word(s, p, "patternProperties");
    for (const cJSON *m = list ? list->child : NULL; m && s->status == TD_OK; m = m->next) {
      if (o->n_patterns == TD_SCHEMA_KEY_PATTERNS_MAX) {
        td_schema_fail(s, TD_ERR_UNSUPPORTED, p, "patternProperties", "has more than 6 patterns");
        return;
      }
      const td_expr *e = key_pattern(s, p, "patternProperties", m->string, false);
      bool same = !strstr(m->string, "\\s") && !strstr(m->string, "\\S");
      const td_expr *wide = same ? e : key_pattern(s, p, "patternProperties", m->string, true);
      o->patterns[o->n_patterns++] = (pattern){e, wide, m, i};
    }
  }
  for (uint32_t k = 0; k < o->n_patterns && s->status == TD_OK; k++)
    try_keys(o, o->patterns[k].expr, false, 1u << k);
}

/* Adds the schemas that part i of the conjunction has for the value of a key. `own` is the part's schema for
 * that name, or NULL; `set` has the patterns that the key fits. Returns false if the part has none. */
static bool add_value_schemas(object *o, uint32_t i, const cJSON *own, unsigned set,
                              td_schema_conjunction *value)
{
  td_schema *s = o->s;
  bool found = own != NULL;
  if (own)
    td_schema_add(s, value, own);
  for (uint32_t k = 0; k < o->n_patterns; k++)
    if (o->patterns[k].part == i && (set >> k & 1)) {
      found = true;
      td_schema_add(s, value, o->patterns[k].schema);
    }
  const cJSON *rest = found ? NULL : td_schema_get(s, o->conj->parts[i].schema, "additionalProperties");
  if (rest)
    td_schema_add(s, value, rest);
  return found || rest;
}

/* Adds each part's unevaluatedProperties, unless that part, or one that it added, evaluates the member. */
static void add_unevaluated(object *o, bool *covers, td_schema_conjunction *value)
{
  td_schema *s = o->s;
  for (uint32_t i = 0; i < o->conj->n; i++) {
    const cJSON *m = td_schema_get(s, o->conj->parts[i].schema, "unevaluatedProperties");
    if (!m || td_schema_is_evaluated(o->conj, i, covers))
      continue;
    td_schema_add(s, value, m);
  }
}

static const td_expr *colon(td_builder *b)
{
  return td_expr_cat2(b, td_expr_string(b, ":"), td_expr_call(b, TD_RULE_SPACE));
}

static void name_members(object *o)
{
  td_schema *s = o->s;
  for (uint32_t i = 0; i < o->conj->n; i++) {
    const cJSON *own = object_word(s, o->conj->parts[i].schema, "properties");
    for (const cJSON *m = own ? own->child : NULL; m; m = m->next)
      if (!add_member(o, m->string, "properties"))
        return;
  }
  for (uint32_t i = 0; i < o->conj->n; i++) {
    const cJSON *list = td_schema_get(s, o->conj->parts[i].schema, "required");
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
  for (uint32_t k = 0; k < o->n && td_schema_work(s, o->conj->parts[0].schema, "properties", o->conj->n);
       k++) {
    member *m = &o->members[k];
    td_schema_conjunction value = {0};
    bool covers[TD_SCHEMA_PARTS_MAX];
    for (uint32_t i = 0; i < o->conj->n; i++) {
      const cJSON *own = object_word(s, o->conj->parts[i].schema, "properties");
      covers[i] = add_value_schemas(o, i, td_schema_get(s, own, m->key), m->set, &value);
    }
    add_unevaluated(o, covers, &value);
    const td_expr *v = td_schema_rule(s, &value);
    m->expr = td_expr_cat3(s->b, m->quoted, colon(s->b), v);
  }
}

/* ---- members that are not named ---- */

/* Any key, in the only spelling that patterns and names have. */
const td_expr *td_schema_plain_text(td_builder *b)
{
  td_chars all = {0};
  td_chars_add(b, &all, 0, TD_CHAR_MAX);
  return td_expr_repeat(b, td_chars_json_expr(b, &all), 0, TD_REPEAT_MANY);
}

static const td_expr *in_quotes(td_builder *b, const td_expr *text)
{
  const td_expr *quote = td_expr_string(b, "\"");
  return td_expr_cat3(b, quote, text, quote);
}

/* Keys with their quotes that fit exactly the patterns in `set`, and are not among the names. */
static const td_expr *keys_of_set(object *o, unsigned set, const td_expr *names, const td_expr *allowed)
{
  const td_expr *wanted[TD_SCHEMA_KEY_PATTERNS_MAX + 2], *unwanted[TD_SCHEMA_KEY_PATTERNS_MAX + 1];
  uint32_t n_wanted = 0, n_unwanted = 0;
  bool large;
  td_builder *b = o->s->b;
  wanted[n_wanted++] = in_quotes(b, td_schema_plain_text(b));
  if (allowed)
    wanted[n_wanted++] = allowed;
  for (uint32_t i = 0; i < o->n_patterns; i++)
    if (set >> i & 1)
      wanted[n_wanted++] = in_quotes(b, o->patterns[i].expr);
    else
      unwanted[n_unwanted++] = in_quotes(b, o->patterns[i].wide);
  unwanted[n_unwanted++] = in_quotes(b, names);
  const td_expr *keys = td_expr_intersect(o->s->b, wanted, n_wanted, unwanted, n_unwanted, &large);
  return large ? td_schema_fail(o->s, TD_ERR_UNSUPPORTED, o->conj->parts[0].schema, "patternProperties",
                                "or names are too large together")
               : keys;
}

typedef struct key_text {
  const char *text; /* without its quotes */
  size_t n;
} key_text;

enum { KEY_PLAIN = 128 };

static bool is_plain_key(const td_expr *quoted)
{
  if (quoted->kind != TD_EXPR_TEXT || quoted->n > KEY_PLAIN)
    return false;
  for (uint32_t i = 1; i + 1 < quoted->n; i++)
    if (quoted->u.text[i] < 0x20 || quoted->u.text[i] > 0x7E || strchr("\\/", quoted->u.text[i]))
      return false;
  return true;
}

static int compare_keys(const void *x, const void *y)
{
  const key_text *a = x, *b = y;
  return strcmp(a->text, b->text);
}

/* Shared by all branches of keys that are not names. */
typedef struct no_names {
  td_schema *s;
  const cJSON *at;
  const td_expr *rest, *odd;  /* rest: the rest of a key; odd: an odd character, then the rest */
  const td_expr *odd_or_ends; /* odd, or the end of the key */
  td_byte_set plain;
} no_names;

static void begin_no_names(no_names *k, object *o)
{
  td_builder *b = o->s->b;
  *k = (no_names){.s = o->s, .at = o->conj->parts[0].schema};
  k->rest = td_expr_share(b, td_expr_call(b, TD_RULE_KEY_REST));
  k->odd = td_expr_share(b, td_expr_cat2(b, td_expr_call(b, TD_RULE_KEY_ODD), k->rest));
  k->odd_or_ends = td_expr_share(b, td_expr_alt2(b, k->odd, td_expr_string(b, "\"")));
  for (unsigned c = 0x20; c < 0x7F; c++)
    if (c != '"' && c != '\\')
      td_byte_set_add(&k->plain, c);
}

/* The rest of a key, with its quote, after the first `from` bytes, which all texts have in common: anything
 * that does not complete one of the texts. Texts are sorted, distinct and plain ASCII. */
static const td_expr *rest_of_key(const no_names *m, const key_text *t, size_t n, size_t from)
{
  td_builder *b = m->s->b;
  td_expr_list alt = {0};
  td_byte_set others = m->plain;
  if (n == 0)
    return m->rest;
  bool is_name = t[0].n == from;
  for (size_t i = is_name, k; i < n && td_schema_work(m->s, m->at, "properties", 1); i = k) {
    unsigned c = (unsigned char)t[i].text[from];
    for (k = i + 1; k < n && (unsigned char)t[k].text[from] == c;)
      k++;
    others.bits[c / 64] &= ~(1ull << c % 64);
    td_expr_add(b, &alt, td_expr_cat2(b, td_expr_range(b, c, c), rest_of_key(m, t + i, k - i, from + 1)));
  }
  td_expr_add(b, &alt, td_expr_cat2(b, td_expr_set(b, &others), m->rest));
  td_expr_add(b, &alt, is_name ? m->odd : m->odd_or_ends);
  return td_expr_alt(b, &alt);
}

/* Any key but the names, if all names are plain; otherwise NULL. */
static const td_expr *no_name(object *o)
{
  key_text *t = td_arena_alloc_array(&o->s->b->arena, o->n + 1, sizeof *t);
  if (!t) {
    o->s->b->failed = true;
    return &td_expr_none;
  }
  for (uint32_t i = 0; i < o->n; i++) {
    const td_expr *quoted = o->members[i].quoted;
    if (!is_plain_key(quoted))
      return NULL;
    t[i] = (key_text){o->members[i].key, quoted->n - 2};
  }
  qsort(t, o->n, sizeof *t, compare_keys);
  no_names all;
  begin_no_names(&all, o);
  return td_expr_cat2(o->s->b, td_expr_string(o->s->b, "\""), rest_of_key(&all, t, o->n, 0));
}

/* A key in each of its spellings. */
const td_expr *td_schema_spellings(td_builder *b, const char *key)
{
  td_expr_list list = {0};
  size_t n = strlen(key);
  for (size_t i = 0; i < n && !b->failed;) {
    const unsigned char *at = (const unsigned char *)key + i;
    size_t len = td_utf8_sequence_length(at, n - i);
    uint32_t cp = len ? td_utf8_decode(at, len) : 0; /* U+0000 is encoded as C0 80 (json.h) */
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
    td_expr_add(o->s->b, &alt, td_schema_spellings(o->s->b, o->members[i].key));
  return td_expr_alt(o->s->b, &alt);
}

/* Keys, with quotes, that propertyNames of all parts allows. NULL: any key. */
static const td_expr *allowed_keys(object *o)
{
  td_schema_conjunction names = {0};
  bool any = false;
  for (uint32_t i = 0; i < o->conj->n; i++) {
    const cJSON *m = td_schema_get(o->s, o->conj->parts[i].schema, "propertyNames");
    if (!m || cJSON_IsTrue(m) || (cJSON_IsObject(m) && !m->child))
      continue;
    td_schema_add(o->s, &names, m);
    any = true;
  }
  return any ? td_schema_rule(o->s, &names) : NULL;
}

enum { ALLOWED = 1u << TD_SCHEMA_KEY_PATTERNS_MAX }; /* a bit in member.set: propertyNames allows the key */

static void make_extra(object *o)
{
  td_schema *s = o->s;
  td_builder *b = s->b;
  td_expr_list alt = {0};
  const td_expr *allowed = allowed_keys(o);
  const td_expr *plain = o->n_patterns == 0 && !allowed ? no_name(o) : NULL,
                *names = plain ? NULL : all_names(o);
  if (allowed)
    try_keys(o, allowed, true, ALLOWED);
  for (uint32_t i = 0; i < o->n && allowed; i++)
    if (!(o->members[i].set & ALLOWED))
      o->members[i].expr = &td_expr_none;
  for (unsigned set = 0; set < 1u << o->n_patterns && s->status == TD_OK; set++) {
    td_schema_conjunction value = {0};
    bool covers[TD_SCHEMA_PARTS_MAX];
    for (uint32_t i = 0; i < o->conj->n; i++)
      covers[i] = add_value_schemas(o, i, NULL, set, &value);
    add_unevaluated(o, covers, &value);
    if (value.never)
      continue;
    const td_expr *v = td_schema_rule(s, &value);
    const td_expr *key = plain && o->n == 0 ? td_expr_call(b, TD_RULE_STRING)
                         : plain            ? plain
                                            : keys_of_set(o, set, names, allowed);
    td_expr_add(b, &alt, td_expr_cat3(b, key, colon(b), v));
  }
  o->extra = td_expr_alt(b, &alt);
  uint32_t rule = o->extra->kind == TD_EXPR_NONE ? 0 : td_builder_add_rule(b);
  if (rule == 0 || b->failed)
    return;
  b->rules[rule] = o->extra; /* because it is used at several places */
  o->extra = td_expr_call(b, rule);
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
  for (uint32_t i = 0; i < o->conj->n; i++) {
    td_schema_count(o->s, o->conj->parts[i].schema, "minProperties", &o->least, NULL);
    td_schema_count(o->s, o->conj->parts[i].schema, "maxProperties", NULL, &o->most);
  }
  if (o->least <= n_required(o))
    o->least = 0;
  if (o->most >= o->n && o->extra->kind == TD_EXPR_NONE)
    o->most = TD_REPEAT_MANY;
  /* an unnamed key may occur twice, and then counts as one member */
  if (o->least > 1 && o->extra->kind != TD_EXPR_NONE)
    td_schema_fail(o->s, TD_ERR_UNSUPPORTED, o->conj->parts[0].schema, "minProperties",
                   "above 1 is served only where all properties are named");
}

/* ---- the members in order ---- */

/* The other members, after all named members, `count` of which occurred (or more, if higher counts make no
 * difference). */
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

/* Makes a rule for each named member and number of members before it. Counts stop where higher ones make no
 * difference. */
static const td_expr *in_order(object *o)
{
  td_builder *b = o->s->b;
  uint32_t counts = 1;
  if (o->least > counts)
    counts = o->least;
  if (o->most != TD_REPEAT_MANY && o->most > counts)
    counts = o->most < o->n ? o->most : o->n > 1 ? o->n : 1;
  if ((uint64_t)(counts + 1) * (o->n + 1) > td_limit_max(TD_LIMIT_SCHEMA_OBJECT_RULES))
    return td_schema_fail(o->s, TD_ERR_UNSUPPORTED, o->conj->parts[0].schema, "maxProperties",
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

const td_expr *td_schema_object(td_schema *s, const td_schema_conjunction *conj)
{
  object o = {.s = s, .conj = conj};
  td_builder *b = s->b;
  const td_expr *space = td_expr_call(b, TD_RULE_SPACE);
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
