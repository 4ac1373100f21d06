/* Formatting: Python's two notations use the same functions to write a field (sign, width, precision,
 * fill). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/utf8.h"
#include "config/limits.h"
#include "models/template/builtin.h"
#include "models/template/unicode.h"

typedef struct spec {
  text fill; /* one character; empty: a space */
  bool fill_untrusted;
  char align; /* '<' '>' '^' '=' or 0 */
  char sign;  /* '+' ' ' or 0 */
  bool alternate, zero, comma;
  int64_t width, precision; /* precision -1: not given */
  char type;
} spec;

enum { NUMBER_BYTES = 1024 };

/* If the character at *i is in the set, consumes and returns it; otherwise returns 0. */
static char take(text t, size_t *i, const char *set)
{
  return *i < t.n && t.p[*i] && strchr(set, t.p[*i]) ? t.p[(*i)++] : 0;
}

static int64_t most_width(void) { return (int64_t)td_limit_max(TD_LIMIT_TEMPLATE_WIDTH); }

static int64_t take_number(text t, size_t *i)
{
  int64_t v = 0;
  for (char c; (c = take(t, i, "0123456789")) != 0;)
    if (v <= most_width())
      v = v * 10 + (c - '0');
  return v;
}

static void pad(rendering *r, text_out *o, const spec *s, int64_t n)
{
  text fill = s->fill.n ? s->fill : s->zero ? (text){"0", 1} : (text){" ", 1};
  td_render_pay(r, n > 0 ? (size_t)n / 8 : 0);
  for (int64_t i = 0; i < n; i++)
    td_out_bytes(r, o, fill.p, fill.n, !s->fill_untrusted);
}

/* Writes prefix (sign, 0x; may be NULL) and body, aligned. `align` applies if the spec has no alignment. */
static void put(rendering *r, text_out *o, const spec *s, str *prefix, str *body, char align)
{
  int64_t n = (int64_t)td_str_chars(body) + (prefix ? (int64_t)prefix->n : 0);
  int64_t gap = s->width > n ? s->width - n : 0;
  align = s->align ? s->align : align;
  int64_t before = align == '>' ? gap : align == '^' ? gap / 2 : 0, inside = align == '=' ? gap : 0;
  pad(r, o, s, before);
  if (prefix)
    td_out_str(r, o, prefix);
  pad(r, o, s, inside);
  td_out_str(r, o, body);
  pad(r, o, s, gap - before - inside);
}

static void put_number(rendering *r, text_out *o, const spec *s, const char *prefix, const char *digits,
                       bool trusted)
{
  put(r, o, s, td_str_new(r, prefix, strlen(prefix), trusted), td_str_new(r, digits, strlen(digits), trusted),
      s->zero ? '=' : '>');
}

static void put_str(rendering *r, text_out *o, const spec *s, str *body)
{
  if (s->precision >= 0 && s->precision < (int64_t)td_str_chars(body))
    body = td_str_slice(r, body, 0, td_str_char_offset(body, (size_t)s->precision));
  put(r, o, s, NULL, body, '<');
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

static void put_int(rendering *r, text_out *o, const spec *s, int64_t v, bool trusted)
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
  put_number(r, o, s, prefix, digits, trusted);
}

static void put_float(rendering *r, text_out *o, const spec *s, double v, bool trusted)
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
  put_number(r, o, s, prefix, digits, trusted);
}

static void check_sizes(rendering *r, const spec *s)
{
  if (s->width > most_width() || s->precision > most_width())
    td_render_fail(r, "format width is too large");
}

static void check_number(rendering *r, const spec *s)
{
  if (s->precision > (int64_t)td_limit_max(TD_LIMIT_TEMPLATE_PRECISION))
    td_render_fail(r, "format precision is too large");
}

/* ---- format % args ---- */

typedef struct percent {
  str *format;
  text t; /* the text of format */
  size_t at;
  value args;
  bool tuple;
  size_t next;
} percent;

static value next_arg(rendering *r, percent *p)
{
  size_t n = p->tuple ? p->args.l->n : 1;
  if (p->next >= n)
    td_render_fail(r, "not enough arguments for format string");
  size_t i = p->next++;
  return p->tuple ? p->args.l->items[i] : p->args;
}

/* Reads digits or, for '*', the next argument. */
static int64_t read_number(rendering *r, percent *p)
{
  int64_t v;
  if (!take(p->t, &p->at, "*"))
    return take_number(p->t, &p->at);
  if (!p->tuple || !td_op_index(next_arg(r, p), &v))
    td_render_fail(r, "* wants int");
  return v;
}

static value read_key(rendering *r, percent *p)
{
  size_t start = p->at, depth = 1;
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
  bool real = strchr(kinds + 6, s->type) != NULL, trusted = !td_value_is_untrusted(r, v);
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
    put_float(r, o, s, as_double(v), trusted);
    return;
  }
  if (v.type == V_FLOAT && (s->type == 'x' || s->type == 'X' || s->type == 'o'))
    td_render_fail(r, "%%%c format: an integer is required, not float", s->type);
  if (v.type == V_FLOAT && !(fabs(v.f) < 9.2e18))
    td_render_fail(r, isnan(v.f) ? "cannot convert float NaN to integer"
                                 : "cannot convert float infinity to integer");
  if (s->type == 'i' || s->type == 'u')
    s->type = 'd';
  put_int(r, o, s, v.type == V_FLOAT ? (int64_t)v.f : as_int(v), trusted);
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
  size_t n = td_utf8_encode((uint32_t)cp, (unsigned char *)bytes);
  put_str(r, o, s, td_str_copy(r, bytes, n, !v.untrusted));
}

/* Formats one field; the '%' was consumed. */
static void percent_field(rendering *r, text_out *o, percent *p)
{
  spec s = {.precision = -1};
  value v = take(p->t, &p->at, "(") ? read_key(r, p) : v_missing();
  for (char c; (c = take(p->t, &p->at, "-+ #0")) != 0;) {
    s.align = c == '-' ? '<' : s.align;
    s.sign = c == '+' ? '+' : c == ' ' && !s.sign ? ' ' : s.sign;
    s.alternate |= c == '#';
    s.zero |= c == '0';
  }
  s.width = read_number(r, p);
  if (s.width < 0) {
    s.align = '<';
    s.width = s.width < -most_width() ? most_width() + 1 : -s.width;
  }
  if (take(p->t, &p->at, ".")) {
    s.precision = read_number(r, p);
    if (s.precision < 0)
      s.precision = 0;
  }
  take(p->t, &p->at, "hlL");
  if (p->at >= p->t.n)
    td_render_fail(r, "incomplete format");
  s.type = p->t.p[p->at++];
  check_sizes(r, &s);
  if (s.type == '%') {
    td_out_bytes(r, o, "%", 1, true);
    return;
  }
  if (!s.type || !strchr("sracdiuxXoeEfFgG", s.type))
    td_render_fail(r, "unsupported format character '%c' (0x%x) at index %zu", s.type, s.type, p->at - 1);
  bool text_like = strchr("srac", s.type) != NULL;
  if (s.align == '<' || text_like)
    s.zero = false;
  if (!s.align && !s.zero)
    s.align = '>';
  if (v.type == V_MISSING)
    v = next_arg(r, p);
  if (s.type == 'c')
    percent_char(r, o, &s, v);
  else if (text_like)
    put_str(r, o, &s, s.type == 's' ? td_value_str(r, v) : td_value_repr(r, v));
  else
    percent_number(r, o, &s, v);
}

static value format_percent(rendering *r, str *format, value args)
{
  percent p = {.format = format, .t = {format->p, format->n}, .args = args, .tuple = args.type == V_TUPLE};
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

/* Text that is inserted into safe text is escaped. */
static value escaped(rendering *r, value v)
{
  return v.type == V_STR && !v.s->markup ? v_str(td_text_escape(r, v.s)) : v;
}

value td_op_format(rendering *r, value format, value args)
{
  if (!format.s->markup)
    return format_percent(r, format.s, args);
  if (args.type != V_TUPLE)
    return format_percent(r, format.s, escaped(r, args));
  value safe = td_value_list(r, NULL, 0, true);
  for (size_t i = 0; i < args.l->n; i++)
    td_seq_push(r, safe.l, escaped(r, args.l->items[i]));
  return format_percent(r, format.s, safe);
}

/* ---- "{}".format() ---- */

typedef struct braces {
  const call_args *args;
  size_t next;
  bool numbered, automatic;
} braces;

static spec parse_spec(rendering *r, text t)
{
  spec s = {.precision = -1};
  size_t i = 0, len;
  uint32_t cp;
  if (t.n && (len = td_unicode_decode(t.p, t.n, &cp)) < t.n && t.p[len] && strchr("<>=^", t.p[len])) {
    s.fill = (text){t.p, len};
    i = len;
  }
  s.align = take(t, &i, "<>=^");
  s.sign = take(t, &i, "+- ");
  s.sign = s.sign == '-' ? 0 : s.sign;
  s.alternate = take(t, &i, "#");
  s.zero = take(t, &i, "0");
  s.width = take_number(t, &i);
  s.comma = take(t, &i, ",");
  if (take(t, &i, ".")) {
    size_t from = i;
    s.precision = take_number(t, &i);
    if (i == from)
      td_render_fail(r, "Format specifier missing precision");
  }
  s.type = take(t, &i, "sdbxXoeEfFgGnc%");
  if (i != t.n)
    td_render_fail(r, "Invalid format specifier");
  check_sizes(r, &s);
  return s;
}

static void format_value(rendering *r, text_out *o, value v, text as, bool vouched_fill)
{
  if (as.n == 0) {
    td_value_print(r, o, v);
    return;
  }
  spec s = parse_spec(r, as);
  s.fill_untrusted = !vouched_fill;
  bool trusted = !td_value_is_untrusted(r, v), real = s.type && strchr("eEfFgG%", s.type);
  if (v.type == V_STR) {
    if ((s.type && s.type != 's') || s.sign || s.align == '=' || s.comma)
      td_render_fail(r, "Unknown format code '%c' for object of type 'str'", s.type ? s.type : '=');
    put_str(r, o, &s, v.s);
  } else if (v.type == V_FLOAT || (is_number(v) && real)) {
    check_number(r, &s);
    if (s.type && !real)
      td_render_fail(r, "Unknown format code '%c' for object of type 'float'", s.type);
    put_float(r, o, &s, as_double(v), trusted);
  } else if (is_number(v)) {
    if (s.precision >= 0 && (v.type == V_INT || s.type))
      td_render_fail(r, "Precision not allowed in integer format specifier");
    if (s.type == 's' || s.type == 'c')
      td_render_fail(r, "Unknown format code '%c' for object of type 'int'", s.type);
    put_int(r, o, &s, as_int(v), trusted);
  } else {
    td_render_fail(r, "unsupported format string passed to %s.__format__", td_value_type_name(v));
  }
}

/* Finds the argument by number, by name or, if the name is empty, as the next one. */
static value field_argument(rendering *r, braces *b, text name)
{
  int64_t number;
  if (name.n == 0 || text_number(name, &number)) {
    b->automatic |= name.n == 0;
    b->numbered |= name.n > 0;
    if (b->automatic && b->numbered)
      td_render_fail(r, "cannot switch between manual field specification and automatic field numbering");
    size_t i = name.n == 0 ? b->next++ : (size_t)number;
    if (i >= b->args->n_pos)
      td_render_fail(r, "Replacement index %zu out of range for positional args tuple", i);
    return b->args->pos[i];
  }
  for (size_t k = 0; k < b->args->n_kw; k++)
    if (text_equal(b->args->kw_names[k], name))
      return b->args->kw[k];
  td_render_fail(r, "%s", td_value_quoted(r, v_str(td_str_new(r, name.p, name.n, false))));
}

/* Evaluates a field: an argument, then .attribute and [index]. */
static value field_value(rendering *r, braces *b, text field)
{
  const char *p = field.p;
  size_t n = field.n, i = 0;
  while (i < n && p[i] != '.' && p[i] != '[')
    i++;
  value v = field_argument(r, b, (text){p, i});
  while (i < n) {
    bool attribute = p[i++] == '.';
    size_t from = i;
    while (i < n && (attribute ? p[i] != '.' && p[i] != '[' : p[i] != ']'))
      i++;
    text part = {p + from, i - from};
    int64_t at;
    if (!attribute && i++ >= n)
      td_render_fail(r, "Missing ']' in format string");
    if (attribute)
      v = td_op_attribute(r, v, part, v_missing(), true);
    else
      v = td_op_item(r, v, text_number(part, &at) ? v_int(at) : v_str(td_str_new(r, part.p, part.n, false)));
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
    value v = field_value(r, &b, (text){p + start, colon - start});
    if (colon < end && p[colon] == '!') {
      if (colon + 1 >= end || !strchr("sra", p[colon + 1]))
        td_render_fail(r, "Unknown conversion specifier");
      v = v_str(p[colon + 1] == 's' ? td_value_str(r, v) : td_value_repr(r, v));
      colon += 2;
    }
    size_t spec_at = colon < end ? colon + 1 : end;
    format_value(r, &o, v, (text){p + spec_at, end - spec_at}, !td_str_any_untrusted(r, format));
    i = end + 1;
  }
  return v_str(td_out_finish(r, &o));
}
