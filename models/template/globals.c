/* The functions that every template can call by name, and the loop variable. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "config/limits.h"
#include "models/template/builtin.h"

static value range(rendering *r, bound *b)
{
  int64_t p[3] = {0, 0, 1};
  size_t n_args = b->raw->n_pos;
  if (n_args < 1 || n_args > 3 || b->raw->n_kw)
    td_render_fail(r, "range expected 1 to 3 arguments, got %zu", n_args);
  for (size_t i = 0; i < n_args; i++)
    if (!td_op_index(b->raw->pos[i], &p[n_args == 1 ? 1 : i]))
      td_render_fail(r, "'%s' object cannot be interpreted as an integer",
                     td_value_type_name(b->raw->pos[i]));
  if (p[2] == 0)
    td_render_fail(r, "range() arg 3 must not be zero");
  __int128 distance = p[2] > 0 ? (__int128)p[1] - p[0] : (__int128)p[0] - p[1];
  __int128 step = p[2] > 0 ? p[2] : -(__int128)p[2], n = distance > 0 ? (distance - 1) / step + 1 : 0;
  if (n > td_limit_max(TD_LIMIT_TEMPLATE_RANGE))
    td_render_fail(r, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
                   (int)td_limit_max(TD_LIMIT_TEMPLATE_RANGE));
  struct range *g = td_render_alloc(r, 1, sizeof *g);
  *g = (struct range){p[0], p[1], p[2], (int64_t)n};
  return (value){.type = V_RANGE, .r = g};
}

/* dict(mapping or pairs, k=v ...) */
static dict *make_dict(rendering *r, const call_args *args)
{
  dict *d = td_dict_new(r, args->n_kw, false);
  if (args->n_pos > 1)
    td_render_fail(r, "dict expected at most 1 argument, got %zu", args->n_pos);
  if (args->n_pos == 1 && args->pos[0].type == V_DICT) {
    const dict *from = args->pos[0].d;
    for (size_t i = 0; i < from->n; i++)
      td_dict_set(r, d, from->entries[i].key, from->entries[i].val);
    d->untrusted = from->untrusted;
  } else if (args->n_pos == 1) {
    iter *it = td_iter_of(r, args->pos[0]);
    for (value v; (v = td_iter_next(r, it)).type != V_MISSING;) {
      if (!td_iterable(v))
        td_render_fail(r, "cannot convert dictionary update sequence element to a sequence");
      seq *pair = td_iter_collect(r, v);
      if (pair->n != 2)
        td_render_fail(r, "dictionary update sequence element has length %zu; 2 is required", pair->n);
      td_dict_set(r, d, pair->items[0], pair->items[1]);
    }
    d->untrusted = td_value_is_untrusted(r, args->pos[0]);
  }
  td_dict_add_keywords(r, d, args);
  return d;
}

static value dict_of(rendering *r, bound *b) { return (value){.type = V_DICT, .d = make_dict(r, b->raw)}; }

static value namespace_of(rendering *r, bound *b)
{
  value ns = {.type = V_NAMESPACE, .d = make_dict(r, b->raw)};
  for (size_t i = 0; i < ns.d->n; i++) {
    value key = ns.d->entries[i].key;
    if (key.type == V_STR && key.s->n > 0 && key.s->p[0] == '_')
      td_render_fail(r,
                     "Chat templates cannot store underscore-prefixed attributes on a namespace, but got %s",
                     td_value_quoted(r, key));
  }
  return ns;
}

static value raise_exception(rendering *r, bound *b)
{
  str *s = td_value_str(r, b->arg[0]);
  size_t n = s->n < TD_ERROR_MESSAGE_BYTES - 1 ? s->n : TD_ERROR_MESSAGE_BYTES - 1;
  char message[TD_ERROR_MESSAGE_BYTES];
  memcpy(message, s->p, n);
  message[n] = '\0';
  if (b->arg[0].type == V_NONE)
    td_render_fail(r, "the chat template refuses this conversation");
  td_render_fail(r, "%s", message);
}

/* strftime of the local time. %z and %Z are empty, as for a naive datetime, and %f is 0. */
static value strftime_now(rendering *r, bound *b)
{
  char format[512], out[2048];
  struct tm tm;
  size_t k = 0;
  const str *s = b->arg[0].s;
  for (size_t i = 0; i < s->n; i++) {
    if (k + 8 > sizeof format)
      td_render_fail(r, "time format is too long");
    if (s->p[i] == '%' && i + 1 < s->n && strchr("zZf", s->p[i + 1]) && s->p[i + 1]) {
      if (s->p[++i] == 'f')
        k += (size_t)(stpcpy(format + k, "000000") - (format + k));
      continue;
    }
    format[k++] = s->p[i];
    if (s->p[i] == '%' && i + 1 < s->n)
      format[k++] = s->p[++i];
  }
  format[k] = '\0';
  if (!localtime_r(&r->in->now, &tm))
    td_render_fail(r, "time is out of range");
  out[0] = '\0';
  size_t n = k ? strftime(out, sizeof out, format, &tm) : 0;
  if (n == 0 && k > 0 && out[0] != '\0')
    td_render_fail(r, "time format is too long");
  return v_str(td_str_copy(r, out, n, !td_str_any_untrusted(r, s)));
}

/* ---- loop ---- */

value td_loop_new(rendering *r, value over, iter *it)
{
  struct loop *loop = td_render_alloc(r, 1, sizeof *loop);
  loop->it = it;
  loop->over = over;
  loop->index0 = -1;
  loop->length = -1;
  return (value){.type = V_LOOP, .loop = loop};
}

static value peek(rendering *r, struct loop *loop)
{
  if (loop->after.type == V_MISSING)
    loop->after = td_iter_next(r, loop->it);
  return loop->after;
}

bool td_loop_advance(rendering *r, struct loop *loop)
{
  value v = peek(r, loop);
  loop->after = v_missing();
  if (v.type == V_MISSING)
    return false;
  loop->index0++;
  loop->before = loop->current;
  loop->current = v;
  return true;
}

static int64_t loop_length(rendering *r, struct loop *loop)
{
  if (loop->length < 0 && !td_value_length(r, loop->over, &loop->length)) {
    seq *rest = td_iter_collect(r, (value){.type = V_ITER, .it = loop->it});
    value list = {.type = V_LIST, .l = rest};
    loop->it = td_iter_of(r, list);
    loop->length = (int64_t)rest->n + loop->index0 + 1 + (loop->after.type != V_MISSING);
  }
  return loop->length;
}

value td_loop_attribute(rendering *r, struct loop *loop, text name)
{
  static const char *const names[] = {"index0",   "index",  "first", "last",     "length",  "revindex0",
                                      "revindex", "depth0", "depth", "previtem", "nextitem"};
  enum { INDEX0, INDEX, FIRST, LAST, LENGTH, REVINDEX0, REVINDEX, DEPTH0, DEPTH, PREVITEM, NEXTITEM };
  value v;
  int i = 0;
  while (i <= NEXTITEM && !text_is(name, names[i]))
    i++;
  switch (i) {
  case INDEX0:
  case INDEX: return v_int(loop->index0 + (i == INDEX));
  case FIRST: return v_bool(loop->index0 == 0);
  case LAST: return v_bool(peek(r, loop).type == V_MISSING);
  case LENGTH: return v_int(loop_length(r, loop));
  case REVINDEX0:
  case REVINDEX: return v_int(loop_length(r, loop) - loop->index0 - (i == REVINDEX0));
  case DEPTH0:
  case DEPTH: return v_int(i == DEPTH);
  case PREVITEM:
    return loop->index0 == 0 ? td_value_undefined_hint(r, "there is no previous item") : loop->before;
  case NEXTITEM:
    v = peek(r, loop);
    return v.type == V_MISSING ? td_value_undefined_hint(r, "there is no next item") : v;
  default: return v_missing();
  }
}

static value loop_cycle(rendering *r, bound *b)
{
  if (b->raw->n_kw > 0)
    td_render_fail(r, "cycle() got an unexpected keyword argument");
  if (b->raw->n_pos == 0)
    td_render_fail(r, "no items for cycling given");
  return b->raw->pos[b->self.loop->index0 % (int64_t)b->raw->n_pos];
}

static value loop_changed(rendering *r, bound *b)
{
  struct loop *loop = b->self.loop;
  value now = td_value_list(r, b->raw->pos, b->raw->n_pos, true);
  bool changed = loop->changed.type == V_MISSING || !td_value_equal(r, loop->changed, now);
  loop->changed = now;
  return v_bool(changed);
}

const builtin td_rows_globals[] = {
    {OF_GLOBAL, "range", range, "*", 0},
    {OF_GLOBAL, "dict", dict_of, "*", 0},
    {OF_GLOBAL, "namespace", namespace_of, "*", 0},
    {OF_GLOBAL, "raise_exception", raise_exception, "message", 0},
    {OF_GLOBAL, "strftime_now", strftime_now, "format:s", 0},
    {0},
};

const builtin td_rows_loop[] = {
    {OF_LOOP, "cycle", loop_cycle, "*", 0},
    {OF_LOOP, "changed", loop_changed, "*", 0},
    {0},
};
