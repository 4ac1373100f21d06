/* Walking over values: one pull interface for lists, strings, dicts, ranges and the lazy filters. */
#include <string.h>

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
  td_render_deeper(r); /* iterators may stand on iterators on iterators */
  value v = it->next(r, it);
  shallower(r);
  return v;
}

static value next_item(rendering *r, iter *it)
{
  return it->i < it->n ? it->over.l->items[it->i++] : v_missing();
}

/* i: byte offset */
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

static value entry_as(rendering *r, const dict *d, int64_t i, char kind)
{
  if (kind == 'k')
    return d->entries[i].key;
  if (kind == 'v')
    return d->entries[i].val;
  value *pair = td_render_alloc(r, 2, sizeof *pair);
  pair[0] = d->entries[i].key;
  pair[1] = d->entries[i].val;
  value tuple = td_value_list(r, pair, 2, true);
  tuple.l->tainted = d->tainted;
  return tuple;
}

static value next_key(rendering *r, iter *it)
{
  return it->i < it->n ? entry_as(r, it->over.d, it->i++, 'k') : v_missing();
}

static value next_view(rendering *r, iter *it)
{
  return it->i < it->n ? entry_as(r, it->over.v->d, it->i++, it->over.v->kind) : v_missing();
}

static value next_range(rendering *r, iter *it)
{
  return it->i < it->n ? v_int(range_at(it->over.r, it->i++)) : v_missing();
}

static value next_nothing(rendering *r, iter *it) { return v_missing(); }

static value next_of_loop(rendering *r, iter *it)
{
  struct loop *loop = it->over.loop;
  value pair[2] = {td_iter_next(r, loop->it), it->over};
  if (pair[0].type == V_MISSING)
    return v_missing();
  value *items = td_render_alloc(r, 2, sizeof *items);
  memcpy(items, pair, sizeof pair);
  return td_value_list(r, items, 2, true);
}

static iter *counted(rendering *r, value v, iter_next next, const char *type_name)
{
  iter *it = td_iter_new(r, next, type_name);
  it->over = v;
  td_value_length(r, v, &it->n);
  return it;
}

iter *td_iter_of(rendering *r, value v)
{
  switch (v.type) {
  case V_UNDEFINED: return td_iter_new(r, next_nothing, "generator");
  case V_STR: {
    iter *it = td_iter_new(r, next_char, "str_iterator");
    it->over = v;
    return it;
  }
  case V_LIST: return counted(r, v, next_item, "list_iterator");
  case V_TUPLE: return counted(r, v, next_item, "tuple_iterator");
  case V_DICT: return counted(r, v, next_key, "dict_keyiterator");
  case V_VIEW: return counted(r, v, next_view, "dict_itemiterator");
  case V_RANGE: return counted(r, v, next_range, "range_iterator");
  case V_ITER: return v.it;
  case V_LOOP: {
    iter *it = td_iter_new(r, next_of_loop, "LoopContext");
    it->over = v;
    return it;
  }
  default: td_render_fail(r, "'%s' object is not iterable", td_value_type_name(v));
  }
}

/* ---- backwards ---- */

static value previous_item(rendering *r, iter *it)
{
  return it->i < it->n ? it->over.l->items[--it->n] : v_missing();
}

static value previous_key(rendering *r, iter *it)
{
  return it->i < it->n ? entry_as(r, it->over.d, --it->n, 'k') : v_missing();
}

static value previous_view(rendering *r, iter *it)
{
  return it->i < it->n ? entry_as(r, it->over.v->d, --it->n, it->over.v->kind) : v_missing();
}

static value previous_of_range(rendering *r, iter *it)
{
  return it->i < it->n ? v_int(range_at(it->over.r, --it->n)) : v_missing();
}

iter *td_iter_reversed(rendering *r, value v)
{
  switch (v.type) {
  case V_UNDEFINED: return td_iter_new(r, next_nothing, "reversed");
  case V_LIST: return counted(r, v, previous_item, "list_reverseiterator");
  case V_TUPLE: return counted(r, v, previous_item, "reversed");
  case V_DICT: return counted(r, v, previous_key, "dict_reversekeyiterator");
  case V_VIEW: return counted(r, v, previous_view, "dict_reverseitemiterator");
  case V_RANGE: return counted(r, v, previous_of_range, "range_iterator");
  default: return NULL;
  }
}

seq *td_iter_collect(rendering *r, value v)
{
  size_t cap = 0;
  int64_t n;
  iter *it = td_iter_of(r, v);
  seq *l = td_render_alloc(r, 1, sizeof *l);
  if (v.type != V_ITER && td_value_length(r, v, &n))
    cap = (size_t)n;
  l->items = td_render_alloc(r, cap, sizeof *l->items);
  l->tainted = v.type == V_STR ? false : td_value_is_tainted(r, v);
  for (value item; (item = td_iter_next(r, it)).type != V_MISSING;) {
    if (l->n == cap) {
      value *grown = td_render_alloc(r, cap = cap ? 2 * cap : 8, sizeof *grown);
      if (l->n)
        memcpy(grown, l->items, l->n * sizeof *grown);
      l->items = grown;
    }
    l->items[l->n++] = item;
  }
  return l;
}
