/* The tojson filter: Python's json.dumps, byte for byte, with the arguments that chat templates give it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/template/unicode.h"
#include "models/template/value.h"

typedef struct writer {
  rendering *r;
  text_out out;
  bool ascii, sort_keys;
  str *indent; /* NULL: all in one line */
  str *item_separator, *key_separator;
} writer;

static void write_value(writer *w, value v, size_t level, bool vouched);

static void write_text(writer *w, const char *s, bool vouched) { td_out_cstr(w->r, &w->out, s, vouched); }

static void escape_of(uint32_t cp, bool ascii, char out[16])
{
  static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
  const char *hit = cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;
  out[0] = '\0';
  if (hit)
    snprintf(out, 16, "\\%c", to[hit - from]);
  else if (cp < 0x20 || (ascii && cp > 0x7e && cp < 0x10000))
    snprintf(out, 16, "\\u%04x", cp);
  else if (ascii && cp >= 0x10000)
    snprintf(out, 16, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10), 0xDC00 + ((cp - 0x10000) & 0x3FF));
}

static void write_str(writer *w, const str *s, bool vouched)
{
  vouched = vouched && !td_str_any_untrusted(w->r, s);
  write_text(w, "\"", vouched);
  pay_chars(w->r, s->n);
  size_t done = 0;
  for (size_t i = 0; i < s->n;) {
    uint32_t cp = (unsigned char)s->p[i];
    char esc[16];
    size_t len = cp < 0x80 ? 1 : td_unicode_decode(s->p + i, s->n - i, &cp);
    escape_of(cp, w->ascii, esc);
    if (esc[0]) {
      td_out_slice(w->r, &w->out, s, done, i);
      td_out_cstr(w->r, &w->out, esc, str_trusted_at(s, i));
      done = i + len;
    }
    i += len;
  }
  td_out_slice(w->r, &w->out, s, done, s->n);
  write_text(w, "\"", vouched);
}

static void new_line(writer *w, size_t level, bool vouched)
{
  if (!w->indent)
    return;
  write_text(w, "\n", vouched);
  for (size_t i = 0; i < level; i++)
    td_out_bytes(w->r, &w->out, w->indent->p, w->indent->n,
                 vouched && !td_str_any_untrusted(w->r, w->indent));
}

static void separator(writer *w, const str *s, bool vouched)
{
  td_out_bytes(w->r, &w->out, s->p, s->n, vouched && !td_str_any_untrusted(w->r, s));
}

static void write_seq(writer *w, const seq *l, size_t level)
{
  bool vouched = !l->tainted;
  write_text(w, "[", vouched);
  for (size_t i = 0; i < l->n; i++) {
    if (i)
      separator(w, w->item_separator, vouched);
    new_line(w, level + 1, vouched);
    write_value(w, l->items[i], level + 1, vouched);
  }
  if (l->n)
    new_line(w, level, vouched);
  write_text(w, "]", vouched);
}

static void write_number(writer *w, value v)
{
  char buf[40];
  td_render_pay(w->r, v.type == V_FLOAT ? FLOAT_STEPS : 0);
  if (v.type == V_INT)
    snprintf(buf, sizeof buf, "%lld", (long long)v.i);
  else if (isfinite(v.f))
    td_float_repr(v.f, buf);
  else
    snprintf(buf, sizeof buf, "%s", isnan(v.f) ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity");
  write_text(w, buf, !v.tainted);
}

static void write_key(writer *w, value key, bool vouched)
{
  if (key.type == V_STR) {
    write_str(w, key.s, vouched);
    return;
  }
  if (key.type != V_NONE && key.type != V_BOOL && key.type != V_INT && key.type != V_FLOAT &&
      key.type != V_BIGINT)
    td_render_fail(w->r, "keys must be str, int, float, bool or None, not %s", td_value_type_name(key));
  write_text(w, "\"", vouched);
  write_value(w, key, 0, vouched);
  write_text(w, "\"", vouched);
}

static int compare_entries(rendering *r, const void *a, const void *b)
{
  return td_value_compare(r, ((const dict_entry *)a)->key, ((const dict_entry *)b)->key, T_LT);
}

static void write_dict(writer *w, const dict *d, size_t level)
{
  bool vouched = !d->tainted;
  const void **order = td_render_alloc(w->r, d->n, sizeof *order);
  for (size_t i = 0; i < d->n; i++)
    order[i] = &d->entries[i];
  if (w->sort_keys)
    td_render_sort(w->r, order, d->n, compare_entries);
  write_text(w, "{", vouched);
  for (size_t i = 0; i < d->n; i++) {
    if (i)
      separator(w, w->item_separator, vouched);
    const dict_entry *e = order[i];
    new_line(w, level + 1, vouched);
    write_key(w, e->key, vouched);
    separator(w, w->key_separator, vouched);
    write_value(w, e->val, level + 1, vouched);
  }
  if (d->n)
    new_line(w, level, vouched);
  write_text(w, "}", vouched);
}

static void write_value(writer *w, value v, size_t level, bool vouched)
{
  td_render_pay(w->r, 1);
  switch (v.type) {
  case V_NONE: write_text(w, "null", !v.tainted); return;
  case V_BOOL: write_text(w, v.b ? "true" : "false", !v.tainted); return;
  case V_INT:
  case V_FLOAT: write_number(w, v); return;
  case V_BIGINT: td_out_str(w->r, &w->out, v.s); return;
  case V_STR: write_str(w, v.s, vouched); return;
  case V_LIST:
  case V_TUPLE:
  case V_DICT:
    td_render_deeper(w->r);
    if (v.type == V_DICT)
      write_dict(w, v.d, level);
    else
      write_seq(w, v.l, level);
    shallower(w->r);
    return;
  default: td_render_fail(w->r, "Object of type %s is not JSON serializable", td_value_type_name(v));
  }
}

value td_value_tojson(rendering *r, value v, bool ascii, str *indent, value separators, bool sort_keys)
{
  writer w = {.r = r, .ascii = ascii, .sort_keys = sort_keys, .indent = indent};
  td_out_init(&w.out);
  w.item_separator = td_str_literal(r, indent ? "," : ", ");
  w.key_separator = td_str_literal(r, ": ");
  if (separators.type != V_NONE && separators.type != V_MISSING) {
    seq *pair = td_iter_collect(r, separators);
    if (pair->n != 2 || pair->items[0].type != V_STR || pair->items[1].type != V_STR)
      td_render_fail(r, "separators must be a pair of strings");
    w.item_separator = pair->items[0].s;
    w.key_separator = pair->items[1].s;
  }
  write_value(&w, v, 0, true);
  return v_str(td_out_finish(r, &w.out));
}
