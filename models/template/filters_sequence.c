/* Filters over sequences. Those that the reference makes lazy are lazy here: they are iterators, are always
 * true, have no length, can be walked once, and fail only when walked. */
#include <string.h>

#include "models/template/builtin.h"

/* ---- attribute paths ---- */

static value path_part(rendering *r, value of, const str *path, size_t from, size_t to)
{
  int64_t number = 0;
  bool digits = to > from && to - from < 18;
  for (size_t i = from; i < to && digits; i++) {
    digits = path->p[i] >= '0' && path->p[i] <= '9';
    number = number * 10 + (path->p[i] - '0');
  }
  return td_op_item(r, of, digits ? v_int(number) : v_str(td_str_slice(r, path, from, to)));
}

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
    of = path_part(r, of, s, from, to);
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

/* ---- lazy filters ---- */

typedef struct lazy {
  value over;
  bool started, attribute, negate;
  value path, otherwise;
  uint32_t index; /* filter or test; NO_SLOT: truth, or the path alone */
  call_args *args;
  dict *seen;
  int64_t n, k, extra;
  value fill;
  seq *all;
} lazy;

static value lazy_value(rendering *r, iter_next next, const lazy *state)
{
  lazy *l = td_render_alloc(r, 1, sizeof *l);
  *l = *state;
  iter *it = td_iter_new(r, next, "generator");
  it->state = l;
  return (value){.type = V_ITER, .it = it};
}

/* Opens what is iterated, when the first item is asked for. An untrue value counts as empty where the
 * reference asks `if value`. */
static bool open_source(rendering *r, iter *it, bool only_if_true)
{
  lazy *l = it->state;
  if (!l->started) {
    l->started = true;
    if (!only_if_true || td_value_truth(r, l->over))
      it->source = td_iter_of(r, l->over);
  }
  return it->source != NULL;
}

static call_args *args_without(rendering *r, const call_args *from, size_t skip)
{
  call_args *args = td_render_alloc(r, 1, sizeof *args);
  *args = *from;
  args->pos += skip;
  args->n_pos -= skip;
  return args;
}

static uint32_t find_named(rendering *r, value name, bool filter)
{
  uint32_t index = NO_SLOT;
  if (name.type == V_STR)
    index = filter ? td_filter_find(name.s->p, name.s->n) : td_test_find(name.s->p, name.s->n);
  if (index == NO_SLOT)
    td_render_fail(r, "No %s named %s.", filter ? "filter" : "test", td_value_quoted(r, name));
  return index;
}

static value next_mapped(rendering *r, iter *it)
{
  lazy *l = it->state;
  if (!open_source(r, it, true))
    return v_missing();
  if (l->attribute) {
    for (size_t i = 0; i < l->args->n_kw; i++)
      if (!text_is(l->args->kw_names[i], "attribute") && !text_is(l->args->kw_names[i], "default"))
        td_render_fail(r, "Unexpected keyword argument '%.*s'", (int)l->args->kw_names[i].n,
                       l->args->kw_names[i].p);
  } else if (l->args->n_pos == 0) {
    td_render_fail(r, "map requires a filter argument");
  }
  value v = td_iter_next(r, it->source);
  if (v.type == V_MISSING)
    return v;
  if (l->attribute)
    return td_attribute_default(r, v, l->path, l->otherwise);
  if (l->index == NO_SLOT)
    l->index = find_named(r, l->args->pos[0], true);
  return td_call_filter(r, l->index, v, args_without(r, l->args, 1));
}

static value f_map(rendering *r, bound *b)
{
  lazy l = {.over = b->self, .index = NO_SLOT};
  l.args = args_without(r, b->raw, 0);
  for (size_t i = 0; i < b->raw->n_kw && b->raw->n_pos == 0; i++) {
    if (text_is(b->raw->kw_names[i], "attribute")) {
      l.attribute = true;
      l.path = b->raw->kw[i];
    } else if (text_is(b->raw->kw_names[i], "default")) {
      l.otherwise = b->raw->kw[i];
    }
  }
  return lazy_value(r, next_mapped, &l);
}

static value next_selected(rendering *r, iter *it)
{
  lazy *l = it->state;
  size_t at = l->attribute ? 1 : 0;
  if (!open_source(r, it, true))
    return v_missing();
  if (l->attribute && l->args->n_pos == 0)
    td_render_fail(r, "Missing parameter for attribute name");
  value v;
  while ((v = td_iter_next(r, it->source)).type != V_MISSING) {
    bool pass;
    value subject = l->attribute ? td_attribute_path(r, v, l->args->pos[0]) : v;
    if (l->args->n_pos > at) {
      if (l->index == NO_SLOT)
        l->index = find_named(r, l->args->pos[at], false);
      pass = td_call_test(r, l->index, subject, args_without(r, l->args, at + 1));
    } else {
      pass = td_value_truth(r, subject);
    }
    if (pass != l->negate)
      break;
  }
  return v;
}

/* select 's', reject 'r', selectattr 'S', rejectattr 'R' */
static value f_select(rendering *r, bound *b)
{
  lazy l = {.over = b->self, .index = NO_SLOT, .attribute = b->variant == 'S' || b->variant == 'R'};
  l.negate = b->variant == 'r' || b->variant == 'R';
  l.args = args_without(r, b->raw, 0);
  return lazy_value(r, next_selected, &l);
}

static value key_of(rendering *r, value v, value path, bool case_sensitive)
{
  v = td_attribute_path(r, v, path);
  return v.type == V_STR && !case_sensitive ? v_str(td_text_case(r, v.s, 'l')) : v;
}

static value next_unique(rendering *r, iter *it)
{
  lazy *l = it->state;
  value v;
  open_source(r, it, false);
  while ((v = td_iter_next(r, it->source)).type != V_MISSING) {
    value key = key_of(r, v, l->path, l->negate);
    if (td_dict_get(r, l->seen, key).type == V_MISSING) {
      td_dict_set(r, l->seen, key, v_none());
      break;
    }
  }
  return v;
}

static value f_unique(rendering *r, bound *b)
{
  lazy l = {.over = b->self, .negate = td_arg_truth(r, b, 0, false), .path = b->arg[1]};
  l.seen = td_dict_new(r, 0, false);
  return lazy_value(r, next_unique, &l);
}

static value next_pair(rendering *r, iter *it)
{
  lazy *l = it->state;
  if (l->over.type == V_UNDEFINED)
    return v_missing();
  if (l->over.type != V_DICT)
    td_render_fail(r, "Can only get item pairs from a mapping.");
  if (!it->source) {
    struct view *v = td_render_alloc(r, 1, sizeof *v);
    *v = (struct view){l->over.d, 'i'};
    it->source = td_iter_of(r, (value){.type = V_VIEW, .v = v});
  }
  return td_iter_next(r, it->source);
}

static value f_items(rendering *r, bound *b) { return lazy_value(r, next_pair, &(lazy){.over = b->self}); }

static value next_batch(rendering *r, iter *it)
{
  lazy *l = it->state;
  value *items = NULL;
  int64_t n = 0, cap = 0;
  open_source(r, it, false);
  while (n == 0 || n != l->n) {
    value v = td_iter_next(r, it->source);
    if (v.type == V_MISSING)
      break;
    if (n == cap) {
      cap = cap ? 2 * cap : 4;
      value *grown = td_render_alloc(r, (size_t)cap, sizeof *grown);
      if (n)
        memcpy(grown, items, (size_t)n * sizeof *grown);
      items = grown;
    }
    items[n++] = v;
  }
  if (n == 0)
    return v_missing();
  if (n < l->n && l->fill.type != V_NONE && l->fill.type != V_MISSING) {
    td_render_pay(r, (size_t)l->n);
    value *grown = td_render_alloc(r, (size_t)l->n, sizeof *grown);
    memcpy(grown, items, (size_t)n * sizeof *grown);
    for (; n < l->n; n++)
      grown[n] = l->fill;
    items = grown;
  }
  return td_value_list(r, items, (size_t)n, false);
}

static value f_batch(rendering *r, bound *b)
{
  return lazy_value(r, next_batch, &(lazy){.over = b->self, .n = td_arg_int(r, b, 0, 0), .fill = b->arg[1]});
}

static value next_slice(rendering *r, iter *it)
{
  lazy *l = it->state;
  if (!l->all) {
    l->all = td_iter_collect(r, l->over);
    if (l->n == 0)
      td_render_fail(r, "integer division or modulo by zero");
  }
  if (l->k >= l->n)
    return v_missing();
  int64_t each = (int64_t)l->all->n / l->n, more = (int64_t)l->all->n % l->n;
  int64_t start = l->extra + l->k * each;
  bool filled = l->k >= more;
  if (!filled)
    l->extra++;
  int64_t end = l->extra + (l->k + 1) * each, n = end - start;
  bool fill = filled && l->fill.type != V_NONE && l->fill.type != V_MISSING;
  value *items = td_render_alloc(r, (size_t)(n + fill), sizeof *items);
  if (n)
    memcpy(items, l->all->items + start, (size_t)n * sizeof *items);
  if (fill)
    items[n++] = l->fill;
  l->k++;
  return td_value_list(r, items, (size_t)n, false);
}

static value f_slice(rendering *r, bound *b)
{
  return lazy_value(r, next_slice, &(lazy){.over = b->self, .n = td_arg_int(r, b, 0, 0), .fill = b->arg[1]});
}

/* ---- whole sequences ---- */

static value f_length(rendering *r, bound *b)
{
  int64_t n;
  value v = b->self;
  if (v.type == V_LOOP)
    return td_loop_attribute(r, v.loop, &(str){.p = "length", .n = 6});
  if (!td_value_length(r, v, &n))
    td_render_fail(r, "object of type '%s' has no len()", td_value_type_name(v));
  return v_int(n);
}

static value f_default(rendering *r, bound *b)
{
  bool use = b->self.type == V_UNDEFINED || (td_arg_truth(r, b, 1, false) && !td_value_truth(r, b->self));
  if (!use)
    return b->self;
  return b->arg[0].type == V_MISSING ? v_str(td_str_literal(r, "")) : b->arg[0];
}

static value f_list(rendering *r, bound *b)
{
  return (value){.type = V_LIST, .l = td_iter_collect(r, b->self)};
}

static value f_first(rendering *r, bound *b)
{
  value v = td_iter_next(r, td_iter_of(r, b->self));
  return v.type == V_MISSING ? td_value_undefined_hint(r, "No first item, sequence was empty.") : v;
}

static value f_last(rendering *r, bound *b)
{
  value v = b->self;
  if (v.type == V_STR) {
    int64_t n;
    td_value_length(r, v, &n);
    if (n > 0)
      return td_op_item(r, v, v_int(n - 1));
    return td_value_undefined_hint(r, "No last item, sequence was empty.");
  }
  iter *it = td_iter_reversed(r, v);
  if (!it)
    td_render_fail(r, "'%s' object is not reversible", td_value_type_name(v));
  v = td_iter_next(r, it);
  return v.type == V_MISSING ? td_value_undefined_hint(r, "No last item, sequence was empty.") : v;
}

static value f_reverse(rendering *r, bound *b)
{
  if (b->self.type == V_STR)
    return td_op_slice(r, b->self, v_none(), v_none(), v_int(-1));
  iter *it = td_iter_reversed(r, b->self);
  if (it)
    return (value){.type = V_ITER, .it = it};
  if (!td_iterable(b->self))
    td_render_fail(r, "argument must be iterable");
  seq *l = td_iter_collect(r, b->self);
  for (size_t i = 0; i < l->n / 2; i++) {
    value swap = l->items[i];
    l->items[i] = l->items[l->n - 1 - i];
    l->items[l->n - 1 - i] = swap;
  }
  return (value){.type = V_LIST, .l = l};
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
  return td_value_compare(r, x->key, y->key, "<");
}

static int order_down(rendering *r, const void *a, const void *b) { return -order_up(r, a, b); }

static const void **sorted(rendering *r, const seq *items, const value *keys, bool reverse)
{
  keyed *all = td_render_alloc(r, items->n, sizeof *all);
  const void **order = td_render_alloc(r, items->n, sizeof *order);
  for (size_t i = 0; i < items->n; i++) {
    all[i] = (keyed){keys[i], items->items[i]};
    order[i] = &all[i];
  }
  td_render_sort(r, order, items->n, reverse ? order_down : order_up);
  return order;
}

static value sorted_list(rendering *r, const seq *items, const value *keys, bool reverse)
{
  const void **order = sorted(r, items, keys, reverse);
  value *out = td_render_alloc(r, items->n, sizeof *out);
  for (size_t i = 0; i < items->n; i++)
    out[i] = ((const keyed *)order[i])->item;
  value v = td_value_list(r, out, items->n, false);
  v.l->tainted = items->tainted;
  return v;
}

/* A list of the values at the comma-separated paths. */
static value multi_key(rendering *r, value v, value paths, bool case_sensitive)
{
  if (paths.type != V_STR)
    return td_value_list(r,
                         memcpy(td_render_alloc(r, 1, sizeof(value)),
                                &(value[1]){key_of(r, v, paths, case_sensitive)}, sizeof(value)),
                         1, false);
  size_t n = 1;
  pay_chars(r, paths.s->n);
  for (size_t i = 0; i < paths.s->n; i++)
    n += paths.s->p[i] == ',';
  value *keys = td_render_alloc(r, n, sizeof *keys);
  n = 0;
  for (size_t from = 0; from <= paths.s->n;) {
    const char *comma = from < paths.s->n ? memchr(paths.s->p + from, ',', paths.s->n - from) : NULL;
    size_t to = comma ? (size_t)(comma - paths.s->p) : paths.s->n;
    keys[n++] = key_of(r, v, v_str(td_str_slice(r, paths.s, from, to)), case_sensitive);
    from = to + 1;
  }
  return td_value_list(r, keys, n, false);
}

static value f_sort(rendering *r, bound *b)
{
  seq *items = td_iter_collect(r, b->self);
  value *keys = td_render_alloc(r, items->n, sizeof *keys);
  for (size_t i = 0; i < items->n; i++)
    keys[i] = multi_key(r, items->items[i], b->arg[2], td_arg_truth(r, b, 1, false));
  return sorted_list(r, items, keys, td_arg_truth(r, b, 0, false));
}

static value f_dictsort(rendering *r, bound *b)
{
  str *by = td_arg_str(r, b, 1);
  if (by && !td_str_equals(by, "key") && !td_str_equals(by, "value"))
    td_render_fail(r, "You can only sort by either \"key\" or \"value\"");
  if (b->self.type == V_UNDEFINED)
    td_value_fail_undefined(r, b->self);
  if (b->self.type != V_DICT)
    td_render_fail(r, "'%s' object has no attribute 'items'", td_value_type_name(b->self));
  struct view view = {b->self.d, 'i'};
  seq *items = td_iter_collect(r, (value){.type = V_VIEW, .v = &view});
  value *keys = td_render_alloc(r, items->n, sizeof *keys);
  for (size_t i = 0; i < items->n; i++)
    keys[i] = key_of(r, items->items[i].l->items[by && td_str_equals(by, "value")], v_none(),
                     td_arg_truth(r, b, 0, false));
  return sorted_list(r, items, keys, td_arg_truth(r, b, 2, false));
}

static value f_groupby(rendering *r, bound *b)
{
  bool case_sensitive = td_arg_truth(r, b, 2, false);
  seq *items = td_iter_collect(r, b->self);
  value *keys = td_render_alloc(r, items->n, sizeof *keys),
        *groups = td_render_alloc(r, items->n, sizeof *groups);
  for (size_t i = 0; i < items->n; i++)
    keys[i] =
        key_of(r, td_attribute_default(r, items->items[i], b->arg[0], b->arg[1]), v_none(), case_sensitive);
  const void **order = sorted(r, items, keys, false);
  size_t n_groups = 0;
  for (size_t i = 0, end; i < items->n; i = end) {
    const keyed *first = order[i];
    for (end = i + 1; end < items->n && td_value_equal(r, first->key, ((const keyed *)order[end])->key);)
      end++;
    value *members = td_render_alloc(r, end - i, sizeof *members),
          *pair = td_render_alloc(r, 2, sizeof *pair);
    for (size_t k = i; k < end; k++)
      members[k - i] = ((const keyed *)order[k])->item;
    pair[0] = td_attribute_default(r, first->item, b->arg[0], b->arg[1]);
    pair[1] = td_value_list(r, members, end - i, false);
    groups[n_groups++] = td_value_list(r, pair, 2, true);
  }
  return td_value_list(r, groups, n_groups, false);
}

static value f_min_max(rendering *r, bound *b)
{
  iter *it = td_iter_of(r, b->self);
  bool case_sensitive = td_arg_truth(r, b, 0, false), min = b->variant == '<';
  value best = td_iter_next(r, it), v;
  if (best.type == V_MISSING)
    return td_value_undefined_hint(r, "No aggregated item, sequence was empty.");
  value best_key = key_of(r, best, b->arg[1], case_sensitive);
  while ((v = td_iter_next(r, it)).type != V_MISSING) {
    value key = key_of(r, v, b->arg[1], case_sensitive);
    int c = td_value_compare(r, key, best_key, min ? "<" : ">");
    if (min ? c < 0 : c > 0) {
      best = v;
      best_key = key;
    }
  }
  return best;
}

static value f_sum(rendering *r, bound *b)
{
  iter *it = td_iter_of(r, b->self);
  value total = b->arg[1].type == V_MISSING ? v_int(0) : b->arg[1], v;
  if (total.type == V_STR)
    td_render_fail(r, "sum() can't sum strings [use ''.join(seq) instead]");
  while ((v = td_iter_next(r, it)).type != V_MISSING)
    total = td_op_math(r, T_ADD, total, td_attribute_path(r, v, b->arg[0]));
  return total;
}

static value f_attr(rendering *r, bound *b)
{
  if (b->arg[0].type != V_STR)
    td_render_fail(r, "attribute name must be string, not '%s'", td_value_type_name(b->arg[0]));
  if (b->self.type == V_UNDEFINED)
    td_value_fail_undefined(r, b->self);
  value of = b->self;
  if (of.type == V_DICT) /* attributes only: an empty dict has the same ones and no items */
    of.d = td_dict_new(r, 0, of.d->tainted);
  value v = td_op_attribute(r, of, (text){b->arg[0].s->p, b->arg[0].s->n}, b->arg[0]);
  if (v.type == V_METHOD)
    v.m->self = b->self;
  return v;
}

const builtin td_filters_sequence[] = {
    {"length", f_length, "", 0, 0},
    {"count", f_length, "", 0, 0},
    {"default", f_default, "default_value boolean", 0, 0},
    {"d", f_default, "default_value boolean", 0, 0},
    {"list", f_list, "", 0, 0},
    {"first", f_first, "", 0, 0},
    {"last", f_last, "", 0, 0},
    {"reverse", f_reverse, "", 0, 0},
    {"map", f_map, "*", 0, 0},
    {"select", f_select, "*", 0, 's'},
    {"reject", f_select, "*", 0, 'r'},
    {"selectattr", f_select, "*", 0, 'S'},
    {"rejectattr", f_select, "*", 0, 'R'},
    {"unique", f_unique, "case_sensitive attribute", 0, 0},
    {"items", f_items, "", 0, 0},
    {"batch", f_batch, "linecount fill_with", 1, 0},
    {"slice", f_slice, "slices fill_with", 1, 0},
    {"sort", f_sort, "reverse case_sensitive attribute", 0, 0},
    {"dictsort", f_dictsort, "case_sensitive by reverse", 0, 0},
    {"groupby", f_groupby, "attribute default case_sensitive", 1, 0},
    {"min", f_min_max, "case_sensitive attribute", 0, '<'},
    {"max", f_min_max, "case_sensitive attribute", 0, '>'},
    {"sum", f_sum, "attribute start", 0, 0},
    {"attr", f_attr, "name", 1, 0},
    {0},
};

/* ---- by name ---- */

enum { SECOND_TABLE = 1000 };

uint32_t td_filter_find(const char *p, size_t n)
{
  const builtin *row = td_builtin_find(td_filters_text, p, n);
  if (row)
    return (uint32_t)(row - td_filters_text);
  row = td_builtin_find(td_filters_sequence, p, n);
  return row ? SECOND_TABLE + (uint32_t)(row - td_filters_sequence) : NO_SLOT;
}

value td_call_filter(rendering *r, uint32_t index, value of, call_args *args)
{
  td_render_deeper(r);
  const builtin *row =
      index < SECOND_TABLE ? &td_filters_text[index] : &td_filters_sequence[index - SECOND_TABLE];
  value v = td_builtin_call(r, row, of, args);
  shallower(r);
  return v;
}
