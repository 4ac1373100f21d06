/* Formatting: one field writer (sign, width, precision, fill) under both of Python's notations. */
#include "models/template/format.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/template/builtin.h"
#include "models/template/unicode.h"

typedef struct spec {
  const char *fill; /* one character, fill_n bytes */
  size_t fill_n;
  bool fill_untrusted;
  char align; /* '<' '>' '^' '=' or 0 */
  char sign;  /* '+' ' ' or 0 */
  bool alternate, zero, comma;
  int64_t width, precision; /* precision -1: none */
  char type;
} spec;

enum { MAX_PRECISION = 400, NUMBER_BYTES = 1024 };

static void pad(rendering *r, text_out *o, const spec *s, int64_t n)
{
  td_render_pay(r, n > 0 ? (size_t)n / 8 : 0);
  for (int64_t i = 0; i < n; i++)
    td_out_bytes(r, o, s->fill ? s->fill : " ", s->fill ? s->fill_n : 1, !s->fill_untrusted);
}

/* prefix (sign, 0x) and digits, aligned */
static void put_number(rendering *r, text_out *o, const spec *s, const char *prefix, const char *digits,
                       bool vouched)
{
  int64_t n = (int64_t)(strlen(prefix) + strlen(digits)), gap = s->width - n;
  char align = s->align ? s->align : s->zero ? '=' : '>';
  spec zeros = {.fill = "0", .fill_n = 1};
  const spec *with = s->zero && !s->fill ? &zeros : s;
  if (gap < 0)
    gap = 0;
  int64_t before = align == '>' ? gap : align == '^' ? gap / 2 : 0;
  pad(r, o, with, before);
  td_out_cstr(r, o, prefix, vouched);
  if (align == '=')
    pad(r, o, with, gap);
  td_out_cstr(r, o, digits, vouched);
  pad(r, o, with, align == '=' ? 0 : gap - before);
}

static void put_str(rendering *r, text_out *o, const spec *s, str *body)
{
  int64_t n = (int64_t)td_str_chars(body);
  if (s->precision >= 0 && s->precision < n) {
    body = td_str_slice(r, body, 0, td_str_char_offset(body, (size_t)s->precision));
    n = s->precision;
  }
  int64_t gap = s->width > n ? s->width - n : 0;
  int64_t before = s->align == '>' ? gap : s->align == '^' ? gap / 2 : 0;
  pad(r, o, s, before);
  td_out_str(r, o, body);
  pad(r, o, s, gap - before);
}

static void insert_commas(char *digits)
{
  char out[NUMBER_BYTES * 2];
  size_t whole = strspn(digits, "0123456789"), k = 0;
  for (size_t i = 0; i < whole; i++) {
    out[k++] = digits[i];
    if ((whole - i - 1) % 3 == 0 && i + 1 < whole)
      out[k++] = ',';
  }
  strcpy(out + k, digits + whole);
  strcpy(digits, out);
}

static void put_int(rendering *r, text_out *o, const spec *s, int64_t v, bool vouched)
{
  char digits[NUMBER_BYTES * 2], prefix[8] = "";
  uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
  int k = 0;
  if (v < 0)
    prefix[k++] = '-';
  else if (s->sign)
    prefix[k++] = s->sign;
  char type = s->type;
  if (s->alternate && (type == 'x' || type == 'X' || type == 'o' || type == 'b')) {
    prefix[k++] = '0';
    prefix[k++] = type;
  }
  prefix[k] = '\0';
  if (type == 'b') {
    char *p = digits;
    for (int bit = 63; bit >= 0; bit--)
      if (u >> bit || bit == 0)
        *p++ = (char)('0' + (u >> bit & 1));
    *p = '\0';
  } else {
    snprintf(digits, NUMBER_BYTES,
             type == 'x'   ? "%0*llx"
             : type == 'X' ? "%0*llX"
             : type == 'o' ? "%0*llo"
                           : "%0*llu",
             (int)(s->precision > 0 ? s->precision : 0), (unsigned long long)u);
  }
  if (s->comma)
    insert_commas(digits);
  put_number(r, o, s, prefix, digits, vouched);
}

static void put_float(rendering *r, text_out *o, const spec *s, double v, bool vouched)
{
  char digits[NUMBER_BYTES * 2], prefix[4] = "", layout[16];
  int64_t precision = s->precision < 0 ? 6 : s->precision;
  td_render_pay(r, FLOAT_STEPS + (size_t)precision / 8);
  bool percent = s->type == '%';
  if (signbit(v))
    prefix[0] = '-';
  else if (s->sign)
    prefix[0] = s->sign;
  v = fabs(percent ? v * 100 : v);
  if (s->type == 0 && s->precision < 0) {
    td_float_repr(v, digits);
  } else {
    char type = s->type == 0 ? 'g' : percent ? 'f' : s->type;
    snprintf(layout, sizeof layout, s->alternate ? "%%#.*%c" : "%%.*%c", type);
    snprintf(digits, NUMBER_BYTES, layout, (int)precision, v);
  }
  if (percent)
    strcat(digits, "%");
  if (s->comma)
    insert_commas(digits);
  put_number(r, o, s, prefix, digits, vouched);
}

static void check_sizes(rendering *r, const spec *s)
{
  if (s->width > 1 << 24 || s->precision > 1 << 24)
    td_render_fail(r, "format width is too large");
}

static void check_number(rendering *r, const spec *s)
{
  if (s->precision > MAX_PRECISION)
    td_render_fail(r, "format precision is too large");
}

/* ---- format % args ---- */

typedef struct percent {
  str *format;
  size_t at;
  value args;
  bool tuple;
  size_t next;
} percent;

static value next_arg(rendering *r, percent *p)
{
  if (!p->tuple) {
    if (p->next++ > 0)
      td_render_fail(r, "not enough arguments for format string");
    return p->args;
  }
  if (p->next >= p->args.l->n)
    td_render_fail(r, "not enough arguments for format string");
  return p->args.l->items[p->next++];
}

static char peek(const percent *p) { return p->at < p->format->n ? p->format->p[p->at] : '\0'; }

static int64_t read_number(rendering *r, percent *p)
{
  int64_t v = 0;
  if (peek(p) == '*') {
    p->at++;
    if (!p->tuple || !td_op_index(next_arg(r, p), &v))
      td_render_fail(r, "* wants int");
    return v;
  }
  for (; peek(p) >= '0' && peek(p) <= '9'; p->at++)
    if (v <= 1 << 24)
      v = v * 10 + (peek(p) - '0');
  return v;
}

static value read_key(rendering *r, percent *p)
{
  size_t start = ++p->at, depth = 1;
  for (; p->at < p->format->n; p->at++) {
    depth += p->format->p[p->at] == '(';
    depth -= p->format->p[p->at] == ')';
    if (depth == 0)
      break;
  }
  if (depth)
    td_render_fail(r, "incomplete format key");
  if (p->args.type != V_DICT)
    td_render_fail(r, "format requires a mapping");
  str *key = td_str_slice(r, p->format, start, p->at++);
  value v = td_dict_get(r, p->args.d, v_str(key));
  if (v.type == V_MISSING)
    td_render_fail(r, "%s", td_value_quoted(r, v_str(key)));
  return v;
}

static void percent_number(rendering *r, text_out *o, spec *s, value v)
{
  static const char *const kinds = "diuxXoeEfFgG";
  bool real = strchr(kinds + 6, s->type) != NULL, vouched = !td_value_is_tainted(r, v);
  check_number(r, s);
  if (v.type == V_UNDEFINED)
    td_value_fail_undefined(r, v);
  if (v.type != V_INT && v.type != V_BOOL && v.type != V_FLOAT) {
    if (v.type == V_BIGINT)
      td_render_fail(r, "integer does not fit in 64 bits");
    if (real)
      td_render_fail(r, "must be real number, not %s", td_value_type_name(v));
    td_render_fail(r, "%%%c format: a real number is required, not %s", s->type, td_value_type_name(v));
  }
  if (real) {
    if (s->align == '<')
      s->zero = false;
    put_float(r, o, s, as_double(v), vouched);
    return;
  }
  if (v.type == V_FLOAT && (s->type == 'x' || s->type == 'X' || s->type == 'o'))
    td_render_fail(r, "%%%c format: an integer is required, not float", s->type);
  if (v.type == V_FLOAT && !(fabs(v.f) < 9.2e18))
    td_render_fail(r, isnan(v.f) ? "cannot convert float NaN to integer"
                                 : "cannot convert float infinity to integer");
  if (s->type == 'i' || s->type == 'u')
    s->type = 'd';
  put_int(r, o, s, v.type == V_FLOAT ? (int64_t)v.f : as_int(v), vouched);
}

static void percent_char(rendering *r, text_out *o, const spec *s, value v)
{
  char bytes[4];
  int64_t cp;
  if (v.type == V_STR && td_str_chars(v.s) == 1) {
    put_str(r, o, s, v.s);
    return;
  }
  if (!td_op_index(v, &cp))
    td_render_fail(r, "%%c requires int or char");
  if (cp < 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF))
    td_render_fail(r, "%%c arg not in range(0x110000)");
  size_t n = 0;
  if (cp < 0x80)
    bytes[n++] = (char)cp;
  else {
    if (cp < 0x800)
      bytes[n++] = (char)(0xC0 | cp >> 6);
    else {
      if (cp < 0x10000)
        bytes[n++] = (char)(0xE0 | cp >> 12);
      else {
        bytes[n++] = (char)(0xF0 | cp >> 18);
        bytes[n++] = (char)(0x80 | (cp >> 12 & 0x3F));
      }
      bytes[n++] = (char)(0x80 | (cp >> 6 & 0x3F));
    }
    bytes[n++] = (char)(0x80 | (cp & 0x3F));
  }
  put_str(r, o, s, td_str_copy(r, bytes, n, !v.tainted));
}

/* Behind the '%'. */
static void percent_field(rendering *r, text_out *o, percent *p)
{
  spec s = {.precision = -1};
  value keyed = v_missing();
  if (peek(p) == '(')
    keyed = read_key(r, p);
  for (char c; (c = peek(p)) && strchr("-+ #0", c); p->at++) {
    s.align = c == '-' ? '<' : s.align;
    s.sign = c == '+' ? '+' : c == ' ' && !s.sign ? ' ' : s.sign;
    s.alternate |= c == '#';
    s.zero |= c == '0';
  }
  s.width = read_number(r, p);
  if (s.width < 0) {
    s.align = '<';
    s.width = s.width < -(1 << 24) ? 1 << 25 : -s.width;
  }
  if (peek(p) == '.') {
    p->at++;
    s.precision = read_number(r, p);
    if (s.precision < 0)
      s.precision = 0;
  }
  if (peek(p) && strchr("hlL", peek(p)))
    p->at++;
  if (p->at >= p->format->n)
    td_render_fail(r, "incomplete format");
  s.type = p->format->p[p->at++];
  check_sizes(r, &s);
  if (!s.align)
    s.align = s.type == 's' || s.type == 'r' || s.type == 'a' || s.type == 'c' || !s.zero ? '>' : 0;
  if (s.align == '<')
    s.zero = false;
  if (s.type == '%') {
    td_out_bytes(r, o, "%", 1, true);
    return;
  }
  if (!s.type || !strchr("sracdiuxXoeEfFgG", s.type))
    td_render_fail(r, "unsupported format character '%c' (0x%x) at index %zu", s.type, s.type, p->at - 1);
  value v = keyed.type == V_MISSING ? next_arg(r, p) : keyed;
  if (s.type == 's')
    put_str(r, o, &s, td_value_str(r, v));
  else if (s.type == 'r' || s.type == 'a')
    put_str(r, o, &s, td_value_repr(r, v));
  else if (s.type == 'c')
    percent_char(r, o, &s, v);
  else
    percent_number(r, o, &s, v);
}

value td_format_percent(rendering *r, str *format, value args)
{
  percent p = {.format = format, .args = args, .tuple = args.type == V_TUPLE};
  text_out o;
  td_out_init(&o);
  while (p.at < format->n) {
    const char *hit = memchr(format->p + p.at, '%', format->n - p.at);
    size_t end = hit ? (size_t)(hit - format->p) : format->n;
    td_out_slice(r, &o, format, p.at, end);
    p.at = end;
    if (!hit)
      break;
    p.at++;
    percent_field(r, &o, &p);
  }
  bool mapping =
      args.type == V_DICT || args.type == V_LIST || args.type == V_RANGE || args.type == V_UNDEFINED;
  if (p.tuple ? p.next < args.l->n : p.next == 0 && !mapping)
    td_render_fail(r, "not all arguments converted during string formatting");
  str *s = td_out_finish(r, &o);
  s->markup = format->markup;
  return v_str(s);
}

value td_op_format(rendering *r, value format, value args)
{
  str *f = format.s;
  if (f->markup) { /* what goes into safe text is escaped */
    if (args.type == V_STR && !args.s->markup)
      args = v_str(td_text_escape(r, args.s));
    if (args.type == V_TUPLE) {
      value *items = td_render_alloc(r, args.l->n, sizeof *items);
      for (size_t i = 0; i < args.l->n; i++) {
        value v = args.l->items[i];
        items[i] = v.type == V_STR && !v.s->markup ? v_str(td_text_escape(r, v.s)) : v;
      }
      args = td_value_list(r, items, args.l->n, true);
    }
  }
  return td_format_percent(r, f, args);
}

/* ---- "{}".format() ---- */

typedef struct braces {
  const call_args *args;
  size_t next;
  bool numbered, automatic;
} braces;

static void parse_spec(rendering *r, const char *p, size_t n, spec *s)
{
  size_t i = 0;
  uint32_t cp;
  *s = (spec){.precision = -1};
  size_t len = n ? td_unicode_decode(p, n, &cp) : 0;
  if (len && len < n && strchr("<>=^", p[len]) && p[len]) {
    s->fill = p;
    s->fill_n = len;
    s->align = p[len];
    i = len + 1;
  } else if (n && p[0] && strchr("<>=^", p[0])) {
    s->align = p[i++];
  }
  if (i < n && (p[i] == '+' || p[i] == '-' || p[i] == ' ')) {
    s->sign = p[i] == '-' ? 0 : p[i];
    i++;
  }
  if (i < n && p[i] == '#') {
    s->alternate = true;
    i++;
  }
  if (i < n && p[i] == '0') {
    s->zero = true;
    i++;
  }
  for (; i < n && p[i] >= '0' && p[i] <= '9'; i++)
    if (s->width <= 1 << 24)
      s->width = s->width * 10 + (p[i] - '0');
  if (i < n && p[i] == ',') {
    s->comma = true;
    i++;
  }
  if (i < n && p[i] == '.') {
    s->precision = 0;
    size_t from = ++i;
    for (; i < n && p[i] >= '0' && p[i] <= '9'; i++)
      if (s->precision <= 1 << 24)
        s->precision = s->precision * 10 + (p[i] - '0');
    if (i == from)
      td_render_fail(r, "Format specifier missing precision");
  }
  if (i < n)
    s->type = p[i++];
  if (i != n || (s->type && !strchr("sdbxXoeEfFgGnc%", s->type)))
    td_render_fail(r, "Invalid format specifier");
  check_sizes(r, s);
}

static void format_value(rendering *r, text_out *o, value v, const char *p, size_t n, bool vouched_fill)
{
  spec s;
  if (n == 0) {
    td_value_print(r, o, v);
    return;
  }
  parse_spec(r, p, n, &s);
  s.fill_untrusted = !vouched_fill;
  bool vouched = !td_value_is_tainted(r, v);
  if (v.type == V_STR) {
    if ((s.type && s.type != 's') || s.sign || s.align == '=' || s.comma)
      td_render_fail(r, "Unknown format code '%c' for object of type 'str'", s.type ? s.type : '=');
    if (s.zero && !s.fill) {
      s.fill = "0";
      s.fill_n = 1;
    }
    put_str(r, o, &s, v.s);
  } else if (v.type == V_FLOAT ||
             ((v.type == V_INT || v.type == V_BOOL) && s.type && strchr("eEfFgG%", s.type))) {
    check_number(r, &s);
    if (s.type && !strchr("eEfFgG%", s.type))
      td_render_fail(r, "Unknown format code '%c' for object of type 'float'", s.type);
    put_float(r, o, &s, as_double(v), vouched);
  } else if (v.type == V_INT || (v.type == V_BOOL && s.type)) {
    if (s.precision >= 0)
      td_render_fail(r, "Precision not allowed in integer format specifier");
    if (s.type == 's' || s.type == 'c')
      td_render_fail(r, "Unknown format code '%c' for object of type 'int'", s.type);
    put_int(r, o, &s, as_int(v), vouched);
  } else if (v.type == V_BOOL) {
    put_int(r, o, &s, v.b, vouched);
  } else {
    td_render_fail(r, "unsupported format string passed to %s.__format__", td_value_type_name(v));
  }
}

/* name, number or nothing, then .attribute and [index] */
static value field_value(rendering *r, braces *b, const char *p, size_t n)
{
  size_t i = 0;
  value v = v_missing();
  while (i < n && p[i] != '.' && p[i] != '[')
    i++;
  size_t number = 0;
  bool digits = i > 0 && i < 9;
  for (size_t k = 0; k < i && digits; k++) {
    digits = p[k] >= '0' && p[k] <= '9';
    number = number * 10 + (size_t)(p[k] - '0');
  }
  if (i == 0 || digits) {
    b->automatic |= i == 0;
    b->numbered |= i > 0;
    if (b->automatic && b->numbered)
      td_render_fail(r, "cannot switch between manual field specification and automatic field numbering");
    number = i == 0 ? b->next++ : number;
    if (number >= b->args->n_pos)
      td_render_fail(r, "Replacement index %zu out of range for positional args tuple", number);
    v = b->args->pos[number];
  } else {
    for (size_t k = 0; k < b->args->n_kw; k++)
      if (text_equal(b->args->kw_names[k], (text){p, i}))
        v = b->args->kw[k];
    if (v.type == V_MISSING)
      td_render_fail(r, "%s", td_value_quoted(r, v_str(td_str_new(r, p, i, false))));
  }
  while (i < n) {
    bool attribute = p[i++] == '.';
    size_t from = i;
    while (i < n && (attribute ? p[i] != '.' && p[i] != '[' : p[i] != ']'))
      i++;
    text part = {p + from, i - from};
    if (!attribute && i++ >= n)
      td_render_fail(r, "Missing ']' in format string");
    int64_t at = 0;
    bool whole = part.n > 0 && part.n < 18;
    for (size_t k = 0; k < part.n && whole; k++) {
      whole = part.p[k] >= '0' && part.p[k] <= '9';
      at = at * 10 + (part.p[k] - '0');
    }
    if (attribute)
      v = td_op_attribute(r, v, part, v_missing());
    else
      v = td_op_item(r, v, whole ? v_int(at) : v_str(td_str_new(r, part.p, part.n, false)));
  }
  return v;
}

value td_format_braces(rendering *r, str *format, const call_args *args)
{
  braces b = {.args = args};
  text_out o;
  td_out_init(&o);
  const char *p = format->p;
  for (size_t i = 0; i < format->n;) {
    size_t from = i;
    while (i < format->n && p[i] != '{' && p[i] != '}')
      i++;
    td_out_slice(r, &o, format, from, i);
    if (i >= format->n)
      break;
    if (i + 1 < format->n && p[i + 1] == p[i]) {
      td_out_slice(r, &o, format, i, i + 1);
      i += 2;
      continue;
    }
    if (p[i] == '}')
      td_render_fail(r, "Single '}' encountered in format string");
    size_t start = ++i, end = start, colon;
    while (end < format->n && p[end] != '}') {
      if (p[end] == '{')
        td_render_fail(r, "nested fields in format strings are not served");
      end++;
    }
    if (end >= format->n)
      td_render_fail(r, "expected '}' before end of string");
    for (colon = start; colon < end && p[colon] != ':' && p[colon] != '!';)
      colon++;
    value v = field_value(r, &b, p + start, colon - start);
    if (colon < end && p[colon] == '!') {
      if (colon + 1 >= end || !strchr("sra", p[colon + 1]))
        td_render_fail(r, "Unknown conversion specifier");
      v = v_str(p[colon + 1] == 's' ? td_value_str(r, v) : td_value_repr(r, v));
      colon += 2;
    }
    size_t spec_at = colon < end ? colon + 1 : end;
    format_value(r, &o, v, p + spec_at, end - spec_at, !td_str_any_untrusted(r, format));
    i = end + 1;
  }
  return v_str(td_out_finish(r, &o));
}
