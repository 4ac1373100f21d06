/* Values that a schema lists: enum, const, and the names of `required`.
 *
 * Each value is written as a text that is the same for equal values, and found by the hash of that text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/hash.h"
#include "models/grammar/schema.h"

typedef struct value_text {
  const char *text;
  uint32_t n;
  uint64_t hash;
} value_text;

struct td_listed_values {
  const cJSON *node;
  value_text *texts; /* [n], in the list's order */
  uint32_t n;
  uint32_t *slots, n_slots; /* index into texts, + 1 */
  bool strings;             /* all values are strings */
  td_listed_values *next;   /* in the same bucket */
};

/* ---- the text of a value ---- */

static int compare_members(const void *x, const void *y)
{
  const cJSON *const *a = x, *const *b = y;
  return strcmp((*a)->string, (*b)->string);
}

static void write_text(td_buf *out, char kind, const char *text)
{
  td_buf_printf(out, "%c%zu:", kind, strlen(text));
  td_buf_append_str(out, text);
}

static void write_value(td_buf *out, const cJSON *v);

/* Writes members sorted by their names, so that equal objects have the same text. */
static void write_object(td_buf *out, const cJSON *v)
{
  size_t n = 0;
  for (const cJSON *m = v->child; m; m = m->next)
    n++;
  const cJSON **members = calloc(n + 1, sizeof(const cJSON *));
  if (!members) {
    out->failed = true;
    return;
  }
  n = 0;
  for (const cJSON *m = v->child; m; m = m->next)
    members[n++] = m;
  qsort(members, n, sizeof(const cJSON *), compare_members);
  td_buf_append_char(out, '{');
  for (size_t i = 0; i < n; i++) {
    write_text(out, 'k', members[i]->string);
    write_value(out, members[i]);
  }
  td_buf_append_char(out, '}');
  free(members);
}

static void write_value(td_buf *out, const cJSON *v)
{
  if (cJSON_IsObject(v)) {
    write_object(out, v);
  } else if (cJSON_IsArray(v)) {
    td_buf_append_char(out, '[');
    for (const cJSON *m = v->child; m; m = m->next)
      write_value(out, m);
    td_buf_append_char(out, ']');
  } else if (cJSON_IsString(v)) {
    write_text(out, 's', v->valuestring);
  } else if (cJSON_IsRaw(v)) {
    write_text(out, 'r', v->valuestring);
  } else if (cJSON_IsNumber(v)) {
    td_buf_printf(out, "n%.17g;", v->valuedouble == 0 ? 0.0 : v->valuedouble);
  } else {
    td_buf_append_char(out, cJSON_IsTrue(v) ? 't' : cJSON_IsFalse(v) ? 'f' : 'z');
  }
}

/* ---- lists ---- */

static uint32_t slot_of(const td_listed_values *l, const value_text *t)
{
  uint32_t k = (uint32_t)t->hash & (l->n_slots - 1);
  for (; l->slots[k]; k = (k + 1) & (l->n_slots - 1)) {
    const value_text *at = &l->texts[l->slots[k] - 1];
    if (at->hash == t->hash && at->n == t->n && memcmp(at->text, t->text, t->n) == 0)
      break;
  }
  return k;
}

static bool add_value(td_schema *s, td_listed_values *l, td_buf *buf, const cJSON *v)
{
  td_buf_clear(buf);
  write_value(buf, v);
  if (!td_schema_work(s, l->node, "enum", 1 + (uint32_t)(buf->len_bytes / 64)))
    return false;
  const char *text = buf->failed ? NULL : td_arena_strdup(&s->b->arena, buf->data, buf->len_bytes);
  if (!text) {
    s->b->failed = true;
    return false;
  }
  value_text *t = &l->texts[l->n];
  *t = (value_text){text, (uint32_t)buf->len_bytes, td_hash_bytes(s->seed, text, buf->len_bytes)};
  l->strings = l->strings && cJSON_IsString(v);
  l->slots[slot_of(l, t)] = ++l->n;
  return true;
}

/* NULL on failure, which s or the builder records. */
static const td_listed_values *make_values(td_schema *s, const cJSON *node, bool is_list,
                                           td_listed_values **bucket)
{
  td_arena *a = &s->b->arena;
  uint32_t n = is_list ? (uint32_t)cJSON_GetArraySize(node) : 1, n_slots = 4;
  while (n_slots < 2 * n)
    n_slots *= 2;
  td_listed_values *l = td_arena_alloc(a, sizeof *l);
  value_text *texts = td_arena_alloc_array(a, n + 1, sizeof *texts);
  uint32_t *slots = td_arena_alloc_array(a, n_slots, sizeof *slots);
  td_buf buf;
  bool ok = l && texts && slots;
  if (!ok) {
    s->b->failed = true;
    return NULL;
  }
  td_buf_init(&buf, 0);
  *l = (td_listed_values){.node = node, .texts = texts, .slots = slots, .n_slots = n_slots, .strings = true};
  for (const cJSON *v = is_list ? node->child : node; v && ok; v = is_list ? v->next : NULL)
    ok = add_value(s, l, &buf, v);
  td_buf_deinit(&buf);
  if (!ok)
    return NULL;
  l->next = *bucket;
  *bucket = l;
  return l;
}

static const td_listed_values *values_of(td_schema *s, const cJSON *node, bool is_list)
{
  td_listed_values **bucket = &s->values[td_hash_u64(s->seed, (uintptr_t)node) % SCHEMA_BUCKETS],
                   *l = *bucket;
  if (s->status != TD_OK || s->b->failed)
    return NULL;
  while (l && l->node != node)
    l = l->next;
  return l ? l : make_values(s, node, is_list, bucket);
}

static bool has_value(const td_listed_values *l, const value_text *t) { return l->slots[slot_of(l, t)] != 0; }

/* The values that a schema lists: const or, if there is none, enum. NULL: neither. */
static const td_listed_values *listed(td_schema *s, const cJSON *schema)
{
  const cJSON *one = td_schema_get(s, schema, "const"), *list = td_schema_get(s, schema, "enum");
  return one ? values_of(s, one, false) : cJSON_IsArray(list) ? values_of(s, list, true) : NULL;
}

bool td_schema_values_apart(td_schema *s, const cJSON *a, const cJSON *b)
{
  const td_listed_values *x = listed(s, a), *y = x ? listed(s, b) : NULL;
  if (!x || !y)
    return false;
  const td_listed_values *few = x->n < y->n ? x : y, *many = few == x ? y : x;
  for (uint32_t i = 0; i < few->n; i++)
    if (!td_schema_work(s, a, "enum", 1) || has_value(many, &few->texts[i]))
      return false;
  return true;
}

bool td_schema_requires(td_schema *s, const cJSON *schema, const cJSON *name)
{
  const cJSON *list = td_schema_get(s, schema, "required");
  const td_listed_values *names = cJSON_IsArray(list) ? values_of(s, list, true) : NULL;
  const td_listed_values *one = names ? values_of(s, name, false) : NULL;
  return one && has_value(names, one->texts);
}

void td_schema_check_required(td_schema *s, const cJSON *schema)
{
  const cJSON *list = td_schema_get(s, schema, "required");
  const td_listed_values *names = cJSON_IsArray(list) ? values_of(s, list, true) : NULL;
  if (list && s->status == TD_OK && !s->b->failed && !(names && names->strings))
    td_schema_fail(s, TD_ERR_REQUEST, schema, "required", "must be an array of strings");
}

/* ---- one of several values ---- */

typedef struct candidate {
  const cJSON *value;
  unsigned type;
  bool fits;
} candidate;

static bool has_constraint(td_schema *s, const td_schema_conjunction *conj)
{
  static const char *const constraints[] = {"properties",
                                            "patternProperties",
                                            "additionalProperties",
                                            "required",
                                            "minProperties",
                                            "maxProperties",
                                            "propertyNames",
                                            "items",
                                            "prefixItems",
                                            "minItems",
                                            "maxItems",
                                            "minLength",
                                            "maxLength",
                                            "pattern",
                                            "format",
                                            "minimum",
                                            "maximum",
                                            "exclusiveMinimum",
                                            "exclusiveMaximum",
                                            "multipleOf",
                                            "additionalItems",
                                            "unevaluatedProperties",
                                            "unevaluatedItems",
                                            "contains",
                                            KEYWORD_NO_PATTERN,
                                            KEYWORD_NO_MULTIPLE,
                                            KEYWORD_NONE_OF};
  for (uint32_t i = 0; i < conj->n; i++)
    for (size_t k = 0; k < sizeof constraints / sizeof *constraints; k++)
      if (td_schema_get(s, conj->parts[i].schema, constraints[k]))
        return true;
  return false;
}

bool td_schema_is_free(td_schema *s, const td_schema_conjunction *conj) { return !has_constraint(s, conj); }

/* Drops candidates that are not in another list of the conjunction. */
static void try_list(td_schema *s, candidate *c, uint32_t n, const td_listed_values *own,
                     const td_listed_values *other)
{
  for (uint32_t i = 0; own && other && i < n && td_schema_work(s, other->node, "enum", 1); i++)
    c[i].fits = c[i].fits && has_value(other, &own->texts[i]);
}

static void try_lists(td_schema *s, const td_schema_conjunction *conj, candidate *c, uint32_t n,
                      const cJSON *source, bool is_list)
{
  for (uint32_t i = 0; i < conj->n && s->status == TD_OK; i++) {
    const cJSON *list = td_schema_get(s, conj->parts[i].schema, "enum");
    const cJSON *one = td_schema_get(s, conj->parts[i].schema, "const");
    if (list && !cJSON_IsArray(list))
      td_schema_fail(s, TD_ERR_REQUEST, conj->parts[i].schema, "enum", "must be an array");
    else if (list && list != source)
      try_list(s, c, n, values_of(s, source, is_list), values_of(s, list, true));
    if (one && one != source)
      try_list(s, c, n, values_of(s, source, is_list), values_of(s, one, false));
  }
}

/* Drops candidates of one type that do not fit the other keywords. The schema is compiled before its machine
 * is made, so no two machines exist at the same time. */
static void try_rest(td_schema *s, const td_schema_conjunction *conj, candidate *c, uint32_t n, unsigned type)
{
  bool any = false;
  for (uint32_t i = 0; i < n; i++)
    any |= c[i].fits && c[i].type == type;
  if (!any)
    return;
  bool python = s->b->python;
  s->b->python = false; /* because candidates are printed as JSON here */
  const td_expr *rest = td_schema_by_types(s, conj, type);
  s->b->python = python;
  td_tester *tester = s->status == TD_OK ? td_tester_create(s->b, rest) : NULL;
  for (uint32_t i = 0; tester && i < n; i++)
    if (c[i].fits && c[i].type == type) {
      char *text = cJSON_PrintUnformatted(c[i].value);
      c[i].fits = text && td_tester_fits(tester, text, strlen(text));
      s->b->failed |= !text;
      cJSON_free(text);
    }
  td_tester_destroy(tester);
}

static const td_expr *write_all(td_schema *s, const candidate *c, uint32_t n)
{
  td_expr_list alt = {0};
  const char **texts = td_arena_alloc_array(&s->b->arena, n + 1, sizeof *texts);
  size_t *lengths = td_arena_alloc_array(&s->b->arena, n + 1, sizeof *lengths), k = 0;
  s->b->failed |= !texts || !lengths;
  for (uint32_t i = 0; i < n && !s->b->failed; i++) {
    if (!c[i].fits)
      continue;
    const td_expr *e = td_schema_value(s, c[i].value);
    if (e->kind == TD_EXPR_TEXT) {
      texts[k] = e->u.text;
      lengths[k++] = e->n;
    } else {
      td_expr_add(s->b, &alt, e);
    }
  }
  if (s->b->failed)
    return &td_expr_none;
  if (k > 0)
    td_expr_add(s->b, &alt, td_expr_texts(s->b, texts, lengths, k));
  return td_expr_alt(s->b, &alt);
}

const td_expr *td_schema_one_of(td_schema *s, const td_schema_conjunction *conj, unsigned types,
                                const cJSON *source, bool is_list)
{
  uint32_t n = is_list ? (uint32_t)cJSON_GetArraySize(source) : 1, k = 0;
  candidate *c = td_arena_alloc_array(&s->b->arena, n + 1, sizeof *c);
  if (!c) {
    s->b->failed = true;
    return &td_expr_none;
  }
  if (!td_schema_work(s, source, "enum", n))
    return &td_expr_none;
  for (const cJSON *v = is_list ? source->child : source; v; v = is_list ? v->next : NULL, k++) {
    unsigned type = td_schema_type_of(v);
    c[k] = (candidate){v, type, (types & type) != 0};
  }
  try_lists(s, conj, c, n, source, is_list);
  if (!td_schema_is_free(s, conj))
    for (unsigned type = 1; type <= TYPE_OBJECT && s->status == TD_OK && !s->b->failed; type *= 2)
      try_rest(s, conj, c, n, type);
  return s->status == TD_OK ? write_all(s, c, n) : &td_expr_none;
}
