/* Truth, equality, order, hashes, dicts, and conversion of the client's JSON: see value.h. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "models/template/value.h"

/* ---- constructors ---- */

static value undefined(rendering *r, struct undefined u)
{
  struct undefined *p = td_render_alloc(r, 1, sizeof *p);
  *p = u;
  return (value){.type = V_UNDEFINED, .u = p};
}

value td_value_undefined_name(rendering *r, text name)
{
  return undefined(r, (struct undefined){.name = v_str(td_str_new(r, name.p, name.n, true))});
}

value td_value_undefined_hint(rendering *r, const char *fmt, ...)
{
  char hint[200];
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(hint, sizeof hint, fmt, ap);
  va_end(ap);
  size_t kept = (size_t)n < sizeof hint ? (size_t)n : sizeof hint - 1;
  return undefined(r, (struct undefined){.hint = td_str_copy(r, hint, kept, true)->p});
}

value td_value_undefined_of(rendering *r, value of, value name, bool security)
{
  return undefined(r, (struct undefined){.of = of, .name = name, .security = security});
}

void td_value_fail_undefined(rendering *r, value v)
{
  const struct undefined *u = v.u;
  if (u->hint)
    td_render_fail(r, "%s", u->hint);
  if (u->of.type == V_MISSING)
    td_render_fail(r, "%s is undefined", td_value_quoted(r, u->name));
  const char *type = td_value_type_name(u->of);
  if (u->security)
    td_render_fail(r, "access to attribute %s of '%s' object is unsafe.", td_value_quoted(r, u->name), type);
  const char *object = u->of.type == V_NONE ? "" : " object";
  if (u->of.type == V_NONE)
    type = "None";
  if (u->name.type != V_STR)
    td_render_fail(r, "%s%s has no element %s", type, object, td_value_quoted(r, u->name));
  td_render_fail(r, "'%s%s' has no attribute %s", type, object, td_value_quoted(r, u->name));
}

value td_value_list(rendering *r, value *items, size_t n, bool tuple)
{
  seq *l = td_render_alloc(r, 1, sizeof *l);
  l->items = items;
  l->n = n;
  return (value){.type = tuple ? V_TUPLE : V_LIST, .l = l};
}

value td_value_pair(rendering *r, value a, value b)
{
  value *items = td_render_alloc(r, 2, sizeof *items);
  items[0] = a;
  items[1] = b;
  return td_value_list(r, items, 2, true);
}

void td_seq_push(rendering *r, seq *l, value v)
{
  if (l->n == l->cap) {
    l->cap = l->cap ? 2 * l->cap : 4;
    value *grown = td_render_alloc(r, l->cap, sizeof *grown);
    if (l->n)
      memcpy(grown, l->items, l->n * sizeof *grown);
    l->items = grown;
  }
  l->items[l->n++] = v;
}

void td_seq_reverse(seq *l)
{
  for (size_t i = 0; i < l->n / 2; i++) {
    value swap = l->items[i];
    l->items[i] = l->items[l->n - 1 - i];
    l->items[l->n - 1 - i] = swap;
  }
}

static value json_number(rendering *r, const cJSON *item, bool trusted)
{
  value v;
  double d = item->valuedouble;
  if (cJSON_IsRaw(item)) { /* an integer that a double cannot hold */
    char *end;
    errno = 0;
    int64_t i = strtoll(item->valuestring, &end, 10);
    v = errno || *end != '\0'
            ? (value){.type = V_BIGINT,
                      .s = td_str_new(r, item->valuestring, strlen(item->valuestring), trusted)}
            : v_int(i);
  } else if (d == floor(d) && fabs(d) <= 9007199254740992.0 && !td_json_is_float(item)) {
    v = v_int((int64_t)d);
  } else {
    v = v_float(d);
  }
  v.untrusted = !trusted;
  return v;
}

static size_t json_count(const cJSON *item)
{
  size_t n = 0;
  for (const cJSON *child = item->child; child; child = child->next)
    n++;
  return n;
}

value td_value_from_json(rendering *r, const cJSON *item, bool trusted)
{
  value v = v_none();
  td_render_pay(r, 1);
  if (cJSON_IsString(item) && td_json_has_nul(item->valuestring)) {
    char *own = td_render_alloc(r, strlen(item->valuestring) + 1, 1);
    return v_str(td_str_new(r, own, td_json_text(item->valuestring, own), trusted));
  }
  if (cJSON_IsString(item))
    return v_str(td_str_new(r, item->valuestring, strlen(item->valuestring), trusted));
  if (cJSON_IsNumber(item) || cJSON_IsRaw(item))
    return json_number(r, item, trusted);
  td_render_deeper(r);
  if (cJSON_IsBool(item)) {
    v = v_bool(cJSON_IsTrue(item));
  } else if (cJSON_IsArray(item)) {
    size_t n = json_count(item), i = 0;
    value *items = td_render_alloc(r, n, sizeof *items);
    for (const cJSON *child = item->child; child; child = child->next)
      items[i++] = td_value_from_json(r, child, trusted);
    v = td_value_list(r, items, n, false);
    v.l->untrusted = !trusted;
  } else if (cJSON_IsObject(item)) {
    v = (value){.type = V_DICT, .d = td_dict_new(r, json_count(item), !trusted)};
    for (const cJSON *child = item->child; child; child = child->next)
      td_dict_set(r, v.d, v_str(td_str_new(r, child->string, strlen(child->string), trusted)),
                  td_value_from_json(r, child, trusted));
  }
  shallower(r);
  v.untrusted = !trusted;
  return v;
}

/* ---- properties of values ---- */

const char *td_value_type_name(value v)
{
  switch ((value_type)v.type) {
  case V_MISSING:
  case V_UNDEFINED: return "Undefined";
  case V_NONE: return "NoneType";
  case V_BOOL: return "bool";
  case V_INT:
  case V_BIGINT: return "int";
  case V_FLOAT: return "float";
  case V_STR: return v.s->markup ? "Markup" : "str";
  case V_LIST: return "list";
  case V_TUPLE: return "tuple";
  case V_DICT: return "dict";
  case V_NAMESPACE: return "TemplateNamespace";
  case V_RANGE: return "range";
  case V_VIEW: return v.v->kind == 'k' ? "dict_keys" : v.v->kind == 'v' ? "dict_values" : "dict_items";
  case V_ITER: return v.it->type_name;
  case V_BUILTIN: return "function";
  case V_METHOD: return "builtin_function_or_method";
  case V_MACRO: return "Macro";
  case V_LOOP: return "LoopContext";
  }
  return "object";
}

bool td_value_is_untrusted(rendering *r, value v)
{
  switch (v.type) {
  case V_STR:
  case V_BIGINT: return td_str_any_untrusted(r, v.s);
  case V_LIST:
  case V_TUPLE: return v.l->untrusted;
  case V_DICT:
  case V_NAMESPACE: return v.d->untrusted;
  case V_VIEW: return v.v->d->untrusted;
  default: return v.untrusted;
  }
}

bool td_value_length(rendering *r, value v, int64_t *n)
{
  switch (v.type) {
  case V_UNDEFINED: *n = 0; return true;
  case V_STR:
    if (v.s->n_chars == SIZE_MAX)
      pay_bytes(r, v.s->n);
    *n = (int64_t)td_str_chars(v.s);
    return true;
  case V_LIST:
  case V_TUPLE: *n = (int64_t)v.l->n; return true;
  case V_DICT: *n = (int64_t)v.d->n; return true;
  case V_VIEW: *n = (int64_t)v.v->d->n; return true;
  case V_RANGE: *n = v.r->n; return true;
  default: return false;
  }
}

bool td_value_truth(rendering *r, value v)
{
  int64_t n;
  switch (v.type) {
  case V_MISSING:
  case V_UNDEFINED:
  case V_NONE: return false;
  case V_BOOL: return v.b;
  case V_INT: return v.i != 0;
  case V_FLOAT: return v.f != 0;
  case V_STR: return v.s->n > 0;
  default: return td_value_length(r, v, &n) ? n > 0 : true;
  }
}

/* ---- equality and order ---- */

/* Compares exactly, even where a double cannot hold the int64. *unordered: one of them is nan. */
static int compare_numbers(value a, value b, bool *unordered)
{
  *unordered = false;
  if (a.type != V_FLOAT && b.type != V_FLOAT)
    return as_int(a) < as_int(b) ? -1 : as_int(a) > as_int(b);
  double x = as_double(a), y = as_double(b);
  if (isnan(x) || isnan(y)) {
    *unordered = true;
    return 1;
  }
  if (x != y || (a.type == V_FLOAT && b.type == V_FLOAT))
    return x < y ? -1 : x > y;
  double f = a.type == V_FLOAT ? x : y;
  if (f >= 9223372036854775808.0 || f < -9223372036854775808.0)
    return a.type == V_FLOAT ? (f > 0 ? 1 : -1) : (f > 0 ? -1 : 1);
  int64_t i = a.type == V_FLOAT ? as_int(b) : as_int(a), k = (int64_t)f;
  int c = i < k ? -1 : i > k;
  return a.type == V_FLOAT ? -c : c;
}

static bool equal_seqs(rendering *r, const seq *a, const seq *b)
{
  if (a->n != b->n)
    return false;
  for (size_t i = 0; i < a->n; i++)
    if (!td_value_equal(r, a->items[i], b->items[i]))
      return false;
  return true;
}

static bool equal_dicts(rendering *r, const dict *a, const dict *b)
{
  if (a->n != b->n)
    return false;
  for (size_t i = 0; i < a->n; i++) {
    value other = td_dict_get(r, b, a->entries[i].key);
    if (other.type == V_MISSING || !td_value_equal(r, a->entries[i].val, other))
      return false;
  }
  return true;
}

bool td_value_equal(rendering *r, value a, value b)
{
  bool unordered, equal;
  td_render_pay(r, 1);
  if (is_number(a) && is_number(b))
    return compare_numbers(a, b, &unordered) == 0 && !unordered;
  if (a.type != b.type)
    return false;
  switch (a.type) {
  case V_UNDEFINED:
  case V_NONE: return true;
  case V_STR:
  case V_BIGINT:
    if (a.s->n != b.s->n)
      return false;
    pay_bytes(r, a.s->n);
    return a.s->n == 0 || memcmp(a.s->p, b.s->p, a.s->n) == 0;
  case V_LIST:
  case V_TUPLE:
  case V_DICT:
    td_render_deeper(r);
    equal = a.type == V_DICT ? equal_dicts(r, a.d, b.d) : equal_seqs(r, a.l, b.l);
    shallower(r);
    return equal;
  case V_RANGE:
    return a.r->n == b.r->n &&
           (a.r->n == 0 || (a.r->start == b.r->start && (a.r->n == 1 || a.r->step == b.r->step)));
  case V_METHOD: return false;
  default: return a.l == b.l; /* identity */
  }
}

static int compare_seqs(rendering *r, const seq *a, const seq *b, token_type op)
{
  for (size_t i = 0; i < a->n && i < b->n; i++)
    if (!td_value_equal(r, a->items[i], b->items[i]))
      return td_value_compare(r, a->items[i], b->items[i], op);
  return a->n < b->n ? -1 : a->n > b->n;
}

int td_value_compare(rendering *r, value a, value b, token_type op)
{
  bool unordered;
  if (is_number(a) && is_number(b)) {
    int c = compare_numbers(a, b, &unordered);
    if (unordered) /* nan: every comparison is false */
      return op == T_LT || op == T_LE ? 1 : -1;
    return c;
  }
  if (a.type == V_UNDEFINED)
    td_value_fail_undefined(r, a);
  if (b.type == V_UNDEFINED)
    td_value_fail_undefined(r, b);
  if (a.type == V_STR && b.type == V_STR) {
    pay_bytes(r, a.s->n < b.s->n ? a.s->n : b.s->n);
    return td_str_compare(a.s, b.s);
  }
  if (a.type == b.type && (a.type == V_LIST || a.type == V_TUPLE)) {
    td_render_deeper(r);
    int c = compare_seqs(r, a.l, b.l, op);
    shallower(r);
    return c;
  }
  if (a.type == V_BIGINT || b.type == V_BIGINT)
    td_render_fail(r, "integers beyond 64 bits cannot be compared");
  td_render_fail(r, "'%s' not supported between instances of '%s' and '%s'", td_lexer_type_name(op),
                 td_value_type_name(a), td_value_type_name(b));
}

/* ---- hashes and dicts ---- */

uint64_t td_value_hash(rendering *r, value v)
{
  uint64_t h = 7;
  switch (v.type) {
  case V_STR:
  case V_BIGINT: pay_bytes(r, v.s->n); return td_hash_bytes(r->seed, v.s->p, v.s->n);
  case V_BOOL: return td_hash_u64(r->seed, v.b);
  case V_INT: return td_hash_u64(r->seed, (uint64_t)v.i);
  case V_FLOAT: /* equal numbers must have equal hashes */
    if (v.f == floor(v.f) && fabs(v.f) < 9223372036854775808.0)
      return td_hash_u64(r->seed, (uint64_t)(int64_t)v.f);
    return td_hash_bytes(r->seed, &v.f, sizeof v.f);
  case V_TUPLE:
    td_render_deeper(r);
    for (size_t i = 0; i < v.l->n; i++)
      h = td_hash_u64(r->seed, h + td_value_hash(r, v.l->items[i]));
    shallower(r);
    return h;
  case V_LIST:
  case V_DICT:
  case V_VIEW: td_render_fail(r, "unhashable type: '%s'", td_value_type_name(v));
  case V_NONE:
  case V_UNDEFINED: return v.type;
  default: return td_hash_u64(r->seed, (uint64_t)(uintptr_t)v.l);
  }
}

dict *td_dict_new(rendering *r, size_t cap, bool untrusted)
{
  dict *d = td_render_alloc(r, 1, sizeof *d);
  d->entries = td_render_alloc(r, cap, sizeof *d->entries);
  d->cap = cap;
  d->untrusted = untrusted;
  return d;
}

static bool key_is(rendering *r, const dict_entry *e, value key, uint64_t hash)
{
  return e->hash == hash && td_value_equal(r, e->key, key);
}

enum { SMALL_DICT = 8 };

/* The key's entry, or NULL. *place is set to the slot for its index. */
static dict_entry *dict_find(rendering *r, const dict *d, value key, uint64_t hash, size_t *place)
{
  if (!d->index) {
    for (size_t i = 0; i < d->n; i++)
      if (key_is(r, &d->entries[i], key, hash))
        return &d->entries[i];
    return NULL;
  }
  size_t i = hash & (d->index_cap - 1);
  for (; d->index[i]; i = (i + 1) & (d->index_cap - 1)) {
    dict_entry *e = &d->entries[d->index[i] - 1];
    if (key_is(r, e, key, hash))
      return e;
  }
  *place = i;
  return NULL;
}

static void dict_reindex(rendering *r, dict *d)
{
  d->index_cap = d->index_cap ? 2 * d->index_cap : 64;
  d->index = td_render_alloc(r, d->index_cap, sizeof *d->index);
  td_render_pay(r, d->n); /* not per probe: the seed keeps probes few; the price must not depend on chance */
  for (size_t k = 0; k < d->n; k++) {
    size_t i = d->entries[k].hash & (d->index_cap - 1);
    while (d->index[i])
      i = (i + 1) & (d->index_cap - 1);
    d->index[i] = (uint32_t)(k + 1);
  }
}

void td_dict_set(rendering *r, dict *d, value key, value val)
{
  uint64_t hash = td_value_hash(r, key);
  size_t place = 0;
  dict_entry *e = dict_find(r, d, key, hash, &place);
  if (e) {
    e->val = val;
    return;
  }
  if (d->n >= UINT32_MAX / 4)
    td_render_fail(r, "dict is too large");
  if (d->n == d->cap) {
    size_t cap = d->cap ? 2 * d->cap : 4;
    dict_entry *grown = td_render_alloc(r, cap, sizeof *grown);
    if (d->n)
      memcpy(grown, d->entries, d->n * sizeof *grown);
    d->entries = grown;
    d->cap = cap;
  }
  d->entries[d->n++] = (dict_entry){key, val, hash};
  if (d->n > SMALL_DICT && 2 * d->n > d->index_cap)
    dict_reindex(r, d);
  else if (d->index)
    d->index[place] = (uint32_t)d->n;
}

value td_dict_get(rendering *r, const dict *d, value key)
{
  size_t place;
  dict_entry *e = dict_find(r, d, key, td_value_hash(r, key), &place);
  return e ? e->val : v_missing();
}

value td_dict_get_text(rendering *r, const dict *d, text key)
{
  str s = {.p = key.p, .n = key.n, .n_chars = SIZE_MAX, .trusted = true};
  return td_dict_get(r, d, v_str(&s));
}

void td_dict_set_text(rendering *r, dict *d, text key, value val)
{
  td_dict_set(r, d, v_str(td_str_new(r, key.p, key.n, true)), val);
}

void td_dict_add_keywords(rendering *r, dict *d, const call_args *args)
{
  for (size_t i = 0; i < args->n_kw; i++)
    td_dict_set_text(r, d, args->kw_names[i], args->kw[i]);
}

value td_dict_view(rendering *r, dict *d, char kind)
{
  struct view *v = td_render_alloc(r, 1, sizeof *v);
  *v = (struct view){d, kind};
  return (value){.type = V_VIEW, .v = v};
}

/* ---- in ---- */

bool td_value_contains(rendering *r, value container, value item)
{
  if (container.type == V_STR) {
    if (item.type != V_STR)
      td_render_fail(r, "'in <string>' requires string as left operand, not %s", td_value_type_name(item));
    return td_str_find(r, container.s, item.s, 0, container.s->n) != SIZE_MAX;
  }
  if (container.type == V_DICT || (container.type == V_VIEW && container.v->kind == 'k'))
    return td_dict_get(r, container.type == V_DICT ? container.d : container.v->d, item).type != V_MISSING;
  if (!td_iterable(container))
    td_render_fail(r, "argument of type '%s' is not iterable", td_value_type_name(container));
  iter *it = td_iter_of(r, container);
  for (value v; (v = td_iter_next(r, it)).type != V_MISSING;)
    if (td_value_equal(r, v, item))
      return true;
  return false;
}
