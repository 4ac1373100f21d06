/* Filters that are lazy in the reference. They return iterators, which are always true, have no length, can
 * be consumed only once, and fail only when consumed. */

#include "models/template/builtin.h"

typedef struct lazy {
  value over;
  bool started, attribute, negate;
  value path, otherwise;
  const builtin *row; /* the filter or test, after its name was looked up */
  call_args args;
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

/* Opens the source when the first item is requested. With only_if_true, as where the reference tests `if
 * value`, an untrue value counts as empty. */
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

/* Applies the filter or test that argument `at` names, with the arguments after it. */
static value call_named(rendering *r, lazy *l, unsigned of, size_t at, value v)
{
  value name = l->args.pos[at];
  if (!l->row && name.type == V_STR)
    l->row = td_builtin_find(of, (text){name.s->p, name.s->n});
  if (!l->row)
    td_render_fail(r, "No %s named %s.", of == OF_FILTER ? "filter" : "test", td_value_quoted(r, name));
  call_args *args = td_render_alloc(r, 1, sizeof *args);
  *args = l->args;
  args->pos += at + 1;
  args->n_pos -= at + 1;
  return td_call_row(r, l->row, v, args);
}

static value next_mapped(rendering *r, iter *it)
{
  lazy *l = it->state;
  if (!open_source(r, it, true))
    return v_missing();
  if (!l->attribute && l->args.n_pos == 0)
    td_render_fail(r, "map requires a filter argument");
  for (size_t i = 0; l->attribute && i < l->args.n_kw; i++) {
    text name = l->args.kw_names[i];
    if (!text_is(name, "attribute") && !text_is(name, "default"))
      td_render_fail(r, "Unexpected keyword argument '%.*s'", text_shown(name), name.p);
  }
  value v = td_iter_next(r, it->source);
  if (v.type == V_MISSING)
    return v;
  return l->attribute ? td_attribute_default(r, v, l->path, l->otherwise) : call_named(r, l, OF_FILTER, 0, v);
}

static value map(rendering *r, bound *b)
{
  lazy l = {.over = b->self, .args = *b->raw};
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
  if (l->args.n_pos < at)
    td_render_fail(r, "Missing parameter for attribute name");
  value v;
  while ((v = td_iter_next(r, it->source)).type != V_MISSING) {
    value subject = l->attribute ? td_attribute_path(r, v, l->args.pos[0]) : v;
    bool pass = l->args.n_pos > at ? call_named(r, l, OF_TEST, at, subject).b : td_value_truth(r, subject);
    if (pass != l->negate)
      break;
  }
  return v;
}

/* select 's', reject 'r', selectattr 'S', rejectattr 'R' */
static value select(rendering *r, bound *b)
{
  lazy l = {.over = b->self, .args = *b->raw, .attribute = b->variant == 'S' || b->variant == 'R'};
  l.negate = b->variant == 'r' || b->variant == 'R';
  return lazy_value(r, next_selected, &l);
}

static value next_unique(rendering *r, iter *it)
{
  lazy *l = it->state;
  value v;
  open_source(r, it, false);
  while ((v = td_iter_next(r, it->source)).type != V_MISSING) {
    value key = td_attribute_key(r, v, l->path, l->negate);
    if (td_dict_get(r, l->seen, key).type == V_MISSING) {
      td_dict_set(r, l->seen, key, v_none());
      break;
    }
  }
  return v;
}

static value unique(rendering *r, bound *b)
{
  lazy l = {.over = b->self, .negate = b->arg[0].b, .path = b->arg[1], .seen = td_dict_new(r, 0, false)};
  return lazy_value(r, next_unique, &l);
}

static value next_pair(rendering *r, iter *it)
{
  lazy *l = it->state;
  if (l->over.type == V_UNDEFINED)
    return v_missing();
  if (l->over.type != V_DICT)
    td_render_fail(r, "Can only get item pairs from a mapping.");
  if (!it->source)
    it->source = td_iter_of(r, td_dict_view(r, l->over.d, 'i'));
  return td_iter_next(r, it->source);
}

static value items(rendering *r, bound *b) { return lazy_value(r, next_pair, &(lazy){.over = b->self}); }

static bool fills(const lazy *l) { return l->fill.type != V_NONE && l->fill.type != V_MISSING; }

static value next_batch(rendering *r, iter *it)
{
  lazy *l = it->state;
  value batch = td_value_list(r, NULL, 0, false), v;
  open_source(r, it, false);
  while (batch.l->n == 0 || (int64_t)batch.l->n != l->n) {
    if ((v = td_iter_next(r, it->source)).type == V_MISSING)
      break;
    td_seq_push(r, batch.l, v);
  }
  if (batch.l->n == 0)
    return v_missing();
  if ((int64_t)batch.l->n < l->n && fills(l)) {
    td_render_pay(r, (size_t)l->n);
    while ((int64_t)batch.l->n < l->n)
      td_seq_push(r, batch.l, l->fill);
  }
  return batch;
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
  int64_t end = l->extra + (l->k + 1) * each;
  value slice = td_value_list(r, NULL, 0, false);
  for (int64_t i = start; i < end; i++)
    td_seq_push(r, slice.l, l->all->items[i]);
  if (filled && fills(l))
    td_seq_push(r, slice.l, l->fill);
  l->k++;
  return slice;
}

/* 'b'atch, 's'lice */
static value groups(rendering *r, bound *b)
{
  return lazy_value(r, b->variant == 'b' ? next_batch : next_slice,
                    &(lazy){.over = b->self, .n = b->arg[0].i, .fill = b->arg[1]});
}

const builtin td_rows_lazy[] = {
    {OF_FILTER, "map", map, "*", 0},
    {OF_FILTER, "select", select, "*", 's'},
    {OF_FILTER, "reject", select, "*", 'r'},
    {OF_FILTER, "selectattr", select, "*", 'S'},
    {OF_FILTER, "rejectattr", select, "*", 'R'},
    {OF_FILTER, "unique", unique, "case_sensitive:b= attribute=", 0},
    {OF_FILTER, "items", items, "", 0},
    {OF_FILTER, "batch", groups, "linecount:i fill_with=", 'b'},
    {OF_FILTER, "slice", groups, "slices:i fill_with=", 's'},
    {0},
};
