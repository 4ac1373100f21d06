/* Iteration over values: one pull interface for lists, strings, dicts, ranges and the lazy filters. */

#include "models/template/value.h"

iter *td_iter_new(rendering *r, iter_next next, const char *type_name)
{
  iter *it = td_render_alloc(r, 1, sizeof *it);
  it->next = next;
  it->type_name = type_name;
  return it;
}

value td_iter_next(rendering *r, iter *it)
{
  td_render_pay(r, 1);
  td_render_deeper(r); /* iterators may be nested */
  value v = it->next(r, it);
  shallower(r);
  return v;
}

/* it->i is a byte offset. */
static value next_char(rendering *r, iter *it)
{
  str *s = it->over.s;
  size_t from = (size_t)it->i, to = from + 1;
  if (from >= s->n)
    return v_missing();
  while (to < s->n && ((unsigned char)s->p[to] & 0xC0) == 0x80)
    to++;
  it->i = (int64_t)to;
  return v_str(td_str_slice(r, s, from, to));
}

value td_item_at(rendering *r, value of, int64_t i)
{
  if (of.type == V_RANGE)
    return v_int(range_at(of.r, i));
  if (of.type == V_LIST || of.type == V_TUPLE)
    return of.l->items[i];
  const dict *d = of.type == V_DICT ? of.d : of.v->d;
  const dict_entry *e = &d->entries[i];
  char kind = of.type == V_DICT ? 'k' : of.v->kind;
  if (kind != 'i')
    return kind == 'k' ? e->key : e->val;
  value pair = td_value_pair(r, e->key, e->val);
  pair.l->untrusted = d->untrusted;
  return pair;
}

static value next_item(rendering *r, iter *it)
{
  return it->i < it->n ? td_item_at(r, it->over, it->i++) : v_missing();
}

static value previous_item(rendering *r, iter *it)
{
  return it->i < it->n ? td_item_at(r, it->over, --it->n) : v_missing();
}

static value next_nothing(rendering *r, iter *it) { return v_missing(); }

static value next_of_loop(rendering *r, iter *it)
{
  value v = td_iter_next(r, it->over.loop->it);
  return v.type == V_MISSING ? v : td_value_pair(r, v, it->over);
}

static const struct {
  iter_next next;
  const char *name, *reversed; /* NULL: cannot be iterated backwards */
} kinds[V_LOOP + 1] = {
    [V_UNDEFINED] = {next_nothing, "generator", "reversed"},
    [V_STR] = {next_char, "str_iterator", NULL},
    [V_LIST] = {next_item, "list_iterator", "list_reverseiterator"},
    [V_TUPLE] = {next_item, "tuple_iterator", "reversed"},
    [V_DICT] = {next_item, "dict_keyiterator", "dict_reversekeyiterator"},
    [V_VIEW] = {next_item, "dict_itemiterator", "dict_reverseitemiterator"},
    [V_RANGE] = {next_item, "range_iterator", "range_iterator"},
    [V_LOOP] = {next_of_loop, "LoopContext", NULL},
};

static iter *over(rendering *r, value v, iter_next next, const char *type_name)
{
  iter *it = td_iter_new(r, next, type_name);
  it->over = v;
  if (kinds[v.type].next == next_item)
    td_value_length(r, v, &it->n);
  return it;
}

iter *td_iter_of(rendering *r, value v)
{
  if (v.type == V_ITER)
    return v.it;
  if (!kinds[v.type].next)
    td_render_fail(r, "'%s' object is not iterable", td_value_type_name(v));
  return over(r, v, kinds[v.type].next, kinds[v.type].name);
}

iter *td_iter_reversed(rendering *r, value v)
{
  const char *name = kinds[v.type].reversed;
  return name ? over(r, v, v.type == V_UNDEFINED ? next_nothing : previous_item, name) : NULL;
}

seq *td_iter_collect(rendering *r, value v)
{
  int64_t n;
  iter *it = td_iter_of(r, v);
  seq *l = td_render_alloc(r, 1, sizeof *l);
  if (v.type != V_ITER && td_value_length(r, v, &n))
    l->cap = (size_t)n;
  l->items = td_render_alloc(r, l->cap, sizeof *l->items);
  l->untrusted = v.type == V_STR ? false : td_value_is_untrusted(r, v);
  for (value item; (item = td_iter_next(r, it)).type != V_MISSING;)
    td_seq_push(r, l, item);
  return l;
}
