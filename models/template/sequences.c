/* Filters over whole sequences, and the methods of lists, tuples and dicts. */
#include <string.h>

#include "models/template/builtin.h"

/* ---- attribute paths ---- */

value td_attribute_default(rendering *r, value of, value path, value otherwise)
{
  bool has_default = otherwise.type != V_MISSING && otherwise.type != V_NONE;
  if (path.type == V_NONE || path.type == V_MISSING)
    return of;
  if (path.type != V_STR) {
    of = td_op_item(r, of, path);
    return has_default && of.type == V_UNDEFINED ? otherwise : of;
  }
  const str *s = path.s;
  pay_bytes(r, s->n);
  for (size_t from = 0; from <= s->n;) {
    const char *dot = from < s->n ? memchr(s->p + from, '.', s->n - from) : NULL;
    size_t to = dot ? (size_t)(dot - s->p) : s->n;
    int64_t number;
    bool digits = text_number((text){s->p + from, to - from}, &number);
    of = td_op_item(r, of, digits ? v_int(number) : v_str(td_str_slice(r, s, from, to)));
    if (has_default && of.type == V_UNDEFINED)
      of = otherwise;
    from = to + 1;
  }
  return of;
}

value td_attribute_path(rendering *r, value of, value path)
{
  return td_attribute_default(r, of, path, v_missing());
}

value td_attribute_key(rendering *r, value v, value path, bool case_sensitive)
{
  v = td_attribute_path(r, v, path);
  return v.type == V_STR && !case_sensitive ? v_str(td_text_case(r, v.s, 'l')) : v;
}

/* ---- whole sequences ---- */

static value length(rendering *r, bound *b)
{
  int64_t n;
  value v = b->self;
  if (v.type == V_LOOP)
    return td_loop_attribute(r, v.loop, (text){"length", 6});
  if (!td_value_length(r, v, &n))
    td_render_fail(r, "object of type '%s' has no len()", td_value_type_name(v));
  return v_int(n);
}

static value default_of(rendering *r, bound *b)
{
  if (b->self.type != V_UNDEFINED && (!b->arg[1].b || td_value_truth(r, b->self)))
    return b->self;
  return b->arg[0].type == V_MISSING ? v_str(td_str_literal(r, "")) : b->arg[0];
}

static value list(rendering *r, bound *b) { return v_list(td_iter_collect(r, b->self)); }

static value first(rendering *r, bound *b)
{
  value v = td_iter_next(r, td_iter_of(r, b->self));
  return v.type == V_MISSING ? td_value_undefined_hint(r, "No first item, sequence was empty.") : v;
}

static value last(rendering *r, bound *b)
{
  value v = b->self;
  iter *it = td_iter_reversed(r, v);
  if (v.type == V_STR)
    v = v.s->n > 0 ? td_op_item(r, v, v_int(-1)) : v_missing();
  else if (!it)
    td_render_fail(r, "'%s' object is not reversible", td_value_type_name(v));
  else
    v = td_iter_next(r, it);
  return v.type == V_MISSING ? td_value_undefined_hint(r, "No last item, sequence was empty.") : v;
}

static value reverse(rendering *r, bound *b)
{
  if (b->self.type == V_STR)
    return td_op_slice(r, b->self, v_none(), v_none(), v_int(-1));
  iter *it = td_iter_reversed(r, b->self);
  if (it)
    return (value){.type = V_ITER, .it = it};
  seq *l = td_iter_collect(r, b->self);
  td_seq_reverse(l);
  return v_list(l);
}

/* ---- sorting ---- */

typedef struct keyed {
  value key, item;
} keyed;

static int order_up(rendering *r, const void *a, const void *b)
{
  const keyed *x = a, *y = b;
  if (td_value_equal(r, x->key, y->key) && x->key.type != V_UNDEFINED && x->key.type != V_NONE &&
      x->key.type != V_DICT)
    return 0;
  return td_value_compare(r, x->key, y->key, T_LT);
}

static int order_down(rendering *r, const void *a, const void *b) { return -order_up(r, a, b); }

/* The items, sorted by their keys. */
static const keyed **sorted(rendering *r, const seq *items, const value *keys, bool reverse)
{
  keyed *all = td_render_alloc(r, items->n, sizeof *all);
  const keyed **order = td_render_alloc(r, items->n, sizeof *order);
  for (size_t i = 0; i < items->n; i++) {
    all[i] = (keyed){keys[i], items->items[i]};
    order[i] = &all[i];
  }
  td_render_sort(r, (const void **)order, items->n, reverse ? order_down : order_up);
  return order;
}

static value sorted_list(rendering *r, const seq *items, const value *keys, bool reverse)
{
  const keyed **order = sorted(r, items, keys, reverse);
  value *out = td_render_alloc(r, items->n, sizeof *out);
  for (size_t i = 0; i < items->n; i++)
    out[i] = order[i]->item;
  value v = td_value_list(r, out, items->n, false);
  v.l->untrusted = items->untrusted;
  return v;
}

/* A list of the values at the comma-separated paths. */
static value multi_key(rendering *r, value v, value paths, bool case_sensitive)
{
  value keys = td_value_list(r, NULL, 0, false);
  if (paths.type != V_STR) {
    td_seq_push(r, keys.l, td_attribute_key(r, v, paths, case_sensitive));
    return keys;
  }
  pay_chars(r, paths.s->n);
  for (size_t from = 0; from <= paths.s->n;) {
    const char *comma = from < paths.s->n ? memchr(paths.s->p + from, ',', paths.s->n - from) : NULL;
    size_t to = comma ? (size_t)(comma - paths.s->p) : paths.s->n;
    value path = v_str(td_str_slice(r, paths.s, from, to));
    td_seq_push(r, keys.l, td_attribute_key(r, v, path, case_sensitive));
    from = to + 1;
  }
  return keys;
}

static value sort(rendering *r, bound *b)
{
  seq *items = td_iter_collect(r, b->self);
  value *keys = td_render_alloc(r, items->n, sizeof *keys);
  for (size_t i = 0; i < items->n; i++)
    keys[i] = multi_key(r, items->items[i], b->arg[2], b->arg[1].b);
  return sorted_list(r, items, keys, b->arg[0].b);
}

static value dict_sort(rendering *r, bound *b)
{
  str *by = b->arg[1].s;
  bool by_value = by && td_str_equals(by, "value");
  if (by && !by_value && !td_str_equals(by, "key"))
    td_render_fail(r, "You can only sort by either \"key\" or \"value\"");
  if (b->self.type == V_UNDEFINED)
    td_value_fail_undefined(r, b->self);
  if (b->self.type != V_DICT)
    td_render_fail(r, "'%s' object has no attribute 'items'", td_value_type_name(b->self));
  seq *items = td_iter_collect(r, td_dict_view(r, b->self.d, 'i'));
  value *keys = td_render_alloc(r, items->n, sizeof *keys);
  for (size_t i = 0; i < items->n; i++)
    keys[i] = td_attribute_key(r, items->items[i].l->items[by_value], v_none(), b->arg[0].b);
  return sorted_list(r, items, keys, b->arg[2].b);
}

static value group_by(rendering *r, bound *b)
{
  seq *items = td_iter_collect(r, b->self);
  value *keys = td_render_alloc(r, items->n, sizeof *keys), groups = td_value_list(r, NULL, 0, false);
  for (size_t i = 0; i < items->n; i++) {
    value key = td_attribute_default(r, items->items[i], b->arg[0], b->arg[1]);
    keys[i] = td_attribute_key(r, key, v_none(), b->arg[2].b);
  }
  const keyed **order = sorted(r, items, keys, false);
  for (size_t i = 0; i < items->n;) {
    const keyed *of = order[i];
    value members = td_value_list(r, NULL, 0, false);
    do
      td_seq_push(r, members.l, order[i]->item);
    while (++i < items->n && td_value_equal(r, of->key, order[i]->key));
    td_seq_push(r, groups.l,
                td_value_pair(r, td_attribute_default(r, of->item, b->arg[0], b->arg[1]), members));
  }
  return groups;
}

static value min_max(rendering *r, bound *b)
{
  iter *it = td_iter_of(r, b->self);
  bool case_sensitive = b->arg[0].b;
  value best = td_iter_next(r, it), v;
  if (best.type == V_MISSING)
    return td_value_undefined_hint(r, "No aggregated item, sequence was empty.");
  value best_key = td_attribute_key(r, best, b->arg[1], case_sensitive);
  while ((v = td_iter_next(r, it)).type != V_MISSING) {
    value key = td_attribute_key(r, v, b->arg[1], case_sensitive);
    if (td_op_compare(r, (uint8_t)b->variant, key, best_key)) {
      best = v;
      best_key = key;
    }
  }
  return best;
}

static value sum(rendering *r, bound *b)
{
  iter *it = td_iter_of(r, b->self);
  value total = b->arg[1].type == V_MISSING ? v_int(0) : b->arg[1], v;
  if (total.type == V_STR)
    td_render_fail(r, "sum() can't sum strings [use ''.join(seq) instead]");
  while ((v = td_iter_next(r, it)).type != V_MISSING)
    total = td_op_math(r, T_ADD, total, td_attribute_path(r, v, b->arg[0]));
  return total;
}

static value attribute(rendering *r, bound *b)
{
  value of = b->self;
  if (of.type == V_UNDEFINED)
    td_value_fail_undefined(r, of);
  if (of.type == V_DICT) /* an empty dict has the same attributes, and no items that could be found instead */
    of.d = td_dict_new(r, 0, of.d->untrusted);
  value v = td_op_attribute(r, of, (text){b->arg[0].s->p, b->arg[0].s->n}, b->arg[0], true);
  if (v.type == V_METHOD)
    v.m->self = b->self;
  return v;
}

/* ---- methods ---- */

/* 'i'ndex, 'n' count */
static value index_of(rendering *r, bound *b)
{
  seq *l = b->self.type == V_RANGE ? td_iter_collect(r, b->self) : b->self.l;
  int64_t n = 0;
  for (size_t i = 0; i < l->n; i++) {
    if (!td_value_equal(r, l->items[i], b->arg[0]))
      continue;
    if (b->variant == 'i')
      return v_int((int64_t)i);
    n++;
  }
  if (b->variant == 'i')
    td_render_fail(r, "%s is not in list", td_value_quoted(r, b->arg[0]));
  return v_int(n);
}

static value copy(rendering *r, bound *b) { return b->self; } /* immutable values need no copy */

static value dict_get(rendering *r, bound *b)
{
  value v = td_dict_get(r, b->self.d, b->arg[0]);
  if (v.type != V_MISSING)
    return v;
  return b->arg[1].type == V_MISSING ? v_none() : b->arg[1];
}

static value dict_view(rendering *r, bound *b) { return td_dict_view(r, b->self.d, (char)b->variant); }

const builtin td_rows_sequences[] = {
    {OF_FILTER, "length", length, "", 0},
    {OF_FILTER, "count", length, "", 0},
    {OF_FILTER, "default", default_of, "default_value= boolean:b=", 0},
    {OF_FILTER, "d", default_of, "default_value= boolean:b=", 0},
    {OF_FILTER, "list", list, "", 0},
    {OF_FILTER, "first", first, "", 0},
    {OF_FILTER, "last", last, "", 0},
    {OF_FILTER, "reverse", reverse, "", 0},
    {OF_FILTER, "sort", sort, "reverse:b= case_sensitive:b= attribute=", 0},
    {OF_FILTER, "dictsort", dict_sort, "case_sensitive:b= by:s= reverse:b=", 0},
    {OF_FILTER, "groupby", group_by, "attribute default= case_sensitive:b=", 0},
    {OF_FILTER, "min", min_max, "case_sensitive:b= attribute=", T_LT},
    {OF_FILTER, "max", min_max, "case_sensitive:b= attribute=", T_GT},
    {OF_FILTER, "sum", sum, "attribute= start=", 0},
    {OF_FILTER, "attr", attribute, "name:s", 0},
    {0},
};

const builtin td_rows_containers[] = {
    {OF_LIST | OF_FIXED_LIST, "index", index_of, "/value", 'i'},
    {OF_LIST | OF_FIXED_LIST, "count", index_of, "/value", 'n'},
    {OF_LIST | OF_DICT, "copy", copy, "", 0},
    {OF_DICT, "get", dict_get, "/key default=", 0},
    {OF_DICT, "items", dict_view, "", 'i'},
    {OF_DICT, "keys", dict_view, "", 'k'},
    {OF_DICT, "values", dict_view, "", 'v'},
    /* methods that would change the container, which the sandbox calls unsafe */
    {OF_LIST | OF_DICT, "clear", NULL, "", 0},
    {OF_LIST | OF_DICT, "pop", NULL, "", 0},
    {OF_DICT, "popitem", NULL, "", 0},
    {OF_DICT, "setdefault", NULL, "", 0},
    {OF_DICT, "update", NULL, "", 0},
    {OF_LIST, "append", NULL, "", 0},
    {OF_LIST, "extend", NULL, "", 0},
    {OF_LIST, "insert", NULL, "", 0},
    {OF_LIST, "remove", NULL, "", 0},
    {OF_LIST, "reverse", NULL, "", 0},
    {OF_LIST, "sort", NULL, "", 0},
    {0},
};
