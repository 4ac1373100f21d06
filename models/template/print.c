/* str() and repr() of values, as Python writes them. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/template/builtin.h"
#include "models/template/unicode.h"

/* Writes the shortest digits that read back as the same double; returns how many stand behind the point. If
 * up to 15 do, they are among the first 15 (DBL_DIG), so that three tries are enough, but for numbers below
 * the normal ones. */
static int shortest(double f, char digits[32])
{
  int precision = fabs(f) < DBL_MIN ? 0 : DBL_DIG - 1;
  do
    snprintf(digits, 32, "%.*e", precision, f);
  while (strtod(digits, NULL) != f && ++precision < 17);
  char *e = strchr(digits, 'e'), *end = e;
  while (precision > 0 && end[-1] == '0') {
    end--;
    precision--;
  }
  if (end[-1] == '.')
    end--;
  memmove(end, e, strlen(e) + 1);
  return precision;
}

/* Shortest digits that read back as the same double, in Python's layout. */
size_t td_float_repr(double f, char out[40])
{
  char digits[32];
  if (isnan(f))
    return (size_t)sprintf(out, "nan");
  if (isinf(f))
    return (size_t)sprintf(out, f < 0 ? "-inf" : "inf");
  int precision = shortest(f, digits);
  int exponent = atoi(strchr(digits, 'e') + 1);
  if (exponent >= -4 && exponent < 16) {
    int decimals = precision - exponent;
    size_t n = (size_t)snprintf(out, 40, "%.*f", decimals > 0 ? decimals : 0, f);
    if (decimals <= 0)
      n += (size_t)sprintf(out + n, ".0");
    return n;
  }
  char *e = strchr(digits, 'e');
  return (size_t)snprintf(out, 40, "%.*se%c%02d", (int)(e - digits), digits, exponent < 0 ? '-' : '+',
                          abs(exponent));
}

static void repr(rendering *r, text_out *o, value v, bool vouched);

/* 'text', with the quote that needs no escape if there is one. */
static void repr_str(rendering *r, text_out *o, const str *s, bool vouched)
{
  bool single = memchr(s->p, '\'', s->n), dbl = memchr(s->p, '"', s->n);
  char quote = single && !dbl ? '"' : '\'';
  td_out_bytes(r, o, &quote, 1, vouched);
  pay_chars(r, s->n);
  size_t done = 0;
  for (size_t i = 0; i < s->n;) {
    uint32_t cp;
    char esc[16];
    size_t len = td_unicode_decode(s->p + i, s->n - i, &cp);
    esc[0] = '\0';
    if (cp == (unsigned char)quote || cp == '\\')
      snprintf(esc, sizeof esc, "\\%c", (char)cp);
    else if (cp == '\n' || cp == '\r' || cp == '\t')
      snprintf(esc, sizeof esc, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
    else if (cp != ' ' && !td_unicode_is_printable(cp))
      snprintf(esc, sizeof esc, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
    if (esc[0]) {
      td_out_slice(r, o, s, done, i);
      td_out_cstr(r, o, esc, str_trusted_at(s, i));
      done = i + len;
    }
    i += len;
  }
  td_out_slice(r, o, s, done, s->n);
  td_out_bytes(r, o, &quote, 1, vouched);
}

static void repr_seq(rendering *r, text_out *o, const seq *l, const char *open, const char *close)
{
  bool vouched = !l->tainted;
  td_out_cstr(r, o, open, vouched);
  for (size_t i = 0; i < l->n; i++) {
    if (i)
      td_out_cstr(r, o, ", ", vouched);
    repr(r, o, l->items[i], vouched);
  }
  if (l->n == 1 && open[0] == '(')
    td_out_cstr(r, o, ",", vouched);
  td_out_cstr(r, o, close, vouched);
}

static void repr_dict(rendering *r, text_out *o, dict *d)
{
  bool vouched = !d->tainted;
  if (d->busy) {
    td_out_cstr(r, o, "{...}", vouched);
    return;
  }
  d->busy = true;
  td_out_cstr(r, o, "{", vouched);
  for (size_t i = 0; i < d->n; i++) {
    if (i)
      td_out_cstr(r, o, ", ", vouched);
    repr(r, o, d->entries[i].key, vouched);
    td_out_cstr(r, o, ": ", vouched);
    repr(r, o, d->entries[i].val, vouched);
  }
  td_out_cstr(r, o, "}", vouched);
  d->busy = false;
}

static void repr_view(rendering *r, text_out *o, value v)
{
  bool vouched = !v.v->d->tainted;
  td_out_cstr(r, o, td_value_type_name(v), vouched);
  td_out_cstr(r, o, "(", vouched);
  value items = {.type = V_LIST, .l = td_iter_collect(r, v)};
  repr(r, o, items, vouched);
  td_out_cstr(r, o, ")", vouched);
}

static void repr_range(rendering *r, text_out *o, const struct range *g)
{
  char buf[96];
  if (g->step == 1)
    snprintf(buf, sizeof buf, "range(%lld, %lld)", (long long)g->start, (long long)g->stop);
  else
    snprintf(buf, sizeof buf, "range(%lld, %lld, %lld)", (long long)g->start, (long long)g->stop,
             (long long)g->step);
  td_out_cstr(r, o, buf, true);
}

static void repr_other(rendering *r, text_out *o, value v)
{
  char buf[160];
  switch (v.type) {
  case V_MACRO:
    if (v.macro->fn->anonymous)
      snprintf(buf, sizeof buf, "<Macro anonymous>");
    else
      snprintf(buf, sizeof buf, "<Macro '%.*s'>",
               (int)(v.macro->fn->name.n < 100 ? v.macro->fn->name.n : 100), v.macro->fn->name.p);
    break;
  case V_LOOP: snprintf(buf, sizeof buf, "<LoopContext %lld>", (long long)v.loop->index0 + 1); break;
  case V_BUILTIN: snprintf(buf, sizeof buf, "<function %s>", v.fn->name); break;
  case V_METHOD:
    snprintf(buf, sizeof buf, "<built-in method %s of %s object>", v.m->fn->name,
             td_value_type_name(v.m->self));
    break;
  default: snprintf(buf, sizeof buf, "<%s object>", td_value_type_name(v)); break;
  }
  td_out_cstr(r, o, buf, true);
}

static void scalar(rendering *r, text_out *o, value v)
{
  char buf[40];
  bool vouched = !v.tainted;
  switch (v.type) {
  case V_NONE: td_out_cstr(r, o, "None", vouched); return;
  case V_BOOL: td_out_cstr(r, o, v.b ? "True" : "False", vouched); return;
  case V_INT: snprintf(buf, sizeof buf, "%lld", (long long)v.i); break;
  default:
    td_render_pay(r, FLOAT_STEPS);
    td_float_repr(v.f, buf);
    break;
  }
  td_out_cstr(r, o, buf, vouched);
}

static void repr_nested(rendering *r, text_out *o, value v)
{
  switch (v.type) {
  case V_LIST: repr_seq(r, o, v.l, "[", "]"); return;
  case V_TUPLE: repr_seq(r, o, v.l, "(", ")"); return;
  case V_DICT: repr_dict(r, o, v.d); return;
  case V_NAMESPACE:
    td_out_cstr(r, o, "<Namespace ", true);
    repr_dict(r, o, v.d);
    td_out_cstr(r, o, ">", true);
    return;
  default: repr_view(r, o, v);
  }
}

static void repr(rendering *r, text_out *o, value v, bool vouched)
{
  td_render_pay(r, 1);
  switch (v.type) {
  case V_MISSING:
  case V_UNDEFINED: td_out_cstr(r, o, "Undefined", true); return;
  case V_NONE:
  case V_BOOL:
  case V_INT:
  case V_FLOAT: scalar(r, o, v); return;
  case V_BIGINT: td_out_str(r, o, v.s); return;
  case V_STR:
    vouched = vouched && !td_str_any_untrusted(r, v.s);
    if (v.s->markup)
      td_out_cstr(r, o, "Markup(", vouched);
    repr_str(r, o, v.s, vouched);
    if (v.s->markup)
      td_out_cstr(r, o, ")", vouched);
    return;
  case V_LIST:
  case V_TUPLE:
  case V_DICT:
  case V_NAMESPACE:
  case V_VIEW:
    td_render_deeper(r);
    repr_nested(r, o, v);
    shallower(r);
    return;
  case V_RANGE: repr_range(r, o, v.r); return;
  default: repr_other(r, o, v);
  }
}

void td_value_print(rendering *r, text_out *o, value v)
{
  if (v.type == V_STR || v.type == V_BIGINT)
    td_out_str(r, o, v.s);
  else if (v.type != V_UNDEFINED)
    repr(r, o, v, true);
}

str *td_value_str(rendering *r, value v)
{
  text_out o;
  if (v.type == V_STR)
    return v.s;
  td_out_init(&o);
  td_value_print(r, &o, v);
  return td_out_finish(r, &o);
}

str *td_value_repr(rendering *r, value v)
{
  text_out o;
  td_out_init(&o);
  repr(r, &o, v, true);
  return td_out_finish(r, &o);
}

const char *td_value_quoted(rendering *r, value v)
{
  str *s = td_value_repr(r, v);
  size_t n = s->n < 200 ? s->n : 200;
  char *copy = td_render_alloc(r, n + 1, 1);
  memcpy(copy, s->p, n);
  return copy;
}
