/* Methods of str that only look at characters, pad or cut affixes; and loop's methods. */
#include <string.h>

#include "models/template/builtin.h"
#include "models/template/format.h"
#include "models/template/unicode.h"

/* isupper, islower: all cased characters so, and at least one; istitle: words begin with upper case */
static value is_cased(rendering *r, bound *b)
{
  str *s = b->self.s;
  bool any = false, in_word = false;
  pay_chars(r, s->n);
  for (size_t i = 0; i < s->n;) {
    uint32_t cp;
    i += td_unicode_decode(s->p + i, s->n - i, &cp);
    bool up = td_unicode_is_upper(cp), low = td_unicode_is_lower(cp);
    if (b->variant == 't' ? (up && in_word) || (low && !in_word) : b->variant == 'u' ? low : up)
      return v_bool(false);
    any |= up || low;
    in_word = up || low;
  }
  return v_bool(any);
}

static bool char_is(uint32_t cp, int kind)
{
  switch (kind) {
  case 'd': return td_unicode_is_digit(cp);
  case 'a': return td_unicode_is_alpha(cp);
  case 'n': return td_unicode_is_alpha(cp) || td_unicode_is_digit(cp);
  case 's': return td_unicode_is_space(cp);
  default: return cp < 0x80;
  }
}

static value is_all(rendering *r, bound *b)
{
  str *s = b->self.s;
  pay_chars(r, s->n);
  for (size_t i = 0; i < s->n;) {
    uint32_t cp;
    i += td_unicode_decode(s->p + i, s->n - i, &cp);
    if (!char_is(cp, b->variant))
      return v_bool(false);
  }
  return v_bool(s->n > 0 || b->variant == '7');
}

static value is_identifier(rendering *r, bound *b)
{
  str *s = b->self.s;
  size_t i = 0;
  pay_chars(r, s->n);
  if (s->n == 0 || (s->p[0] >= '0' && s->p[0] <= '9'))
    return v_bool(false);
  for (size_t len; i < s->n && (len = td_unicode_word_at(s->p + i, s->n - i)) > 0;)
    i += len;
  return v_bool(i == s->n);
}

static value justify(rendering *r, bound *b)
{
  return v_str(td_text_center(r, b->self.s, td_arg_int(r, b, 0, 0), td_arg_str(r, b, 1), (char)b->variant));
}

static value zero_fill(rendering *r, bound *b)
{
  str *s = b->self.s, *zero = td_str_literal(r, "0");
  int64_t width = td_arg_int(r, b, 0, 0);
  bool sign = s->n > 0 && (s->p[0] == '-' || s->p[0] == '+');
  if (!sign)
    return v_str(td_text_center(r, s, width, zero, 'r'));
  str *digits = td_text_center(r, td_str_slice(r, s, 1, s->n), width > 0 ? width - 1 : 0, zero, 'r');
  return v_str(td_str_concat(r, td_str_slice(r, s, 0, 1), digits));
}

static value remove_affix(rendering *r, bound *b)
{
  str *s = b->self.s;
  if (b->arg[0].type != V_STR)
    td_render_fail(r, "%s() argument must be str, not %s", b->name, td_value_type_name(b->arg[0]));
  str *affix = b->arg[0].s;
  bool prefix = b->variant == 'p';
  if (affix->n == 0 || !td_text_has_affix(r, s, 0, s->n, affix, prefix))
    return b->self;
  return v_str(prefix ? td_str_slice(r, s, affix->n, s->n) : td_str_slice(r, s, 0, s->n - affix->n));
}

static value expand_tabs(rendering *r, bound *b)
{
  str *s = b->self.s;
  int64_t size = td_arg_int(r, b, 0, 8), column = 0;
  text_out o;
  td_out_init(&o);
  for (size_t i = 0; i < s->n; i++) {
    if (s->p[i] == '\t') {
      int64_t pad = size > 0 ? size - column % size : 0;
      td_render_pay(r, (size_t)pad);
      for (int64_t k = 0; k < pad; k++)
        td_out_bytes(r, &o, " ", 1, str_trusted_at(s, i));
      column += pad;
      continue;
    }
    td_out_slice(r, &o, s, i, i + 1);
    column = s->p[i] == '\n' || s->p[i] == '\r' ? 0 : column + (((unsigned char)s->p[i] & 0xC0) != 0x80);
  }
  return v_str(td_out_finish(r, &o));
}

static value str_format(rendering *r, bound *b) { return td_format_braces(r, b->self.s, b->raw); }

const builtin td_str_methods_more[] = {
    {"isdigit", is_all, "/", 0, 'd'},
    {"isdecimal", is_all, "/", 0, 'd'},
    {"isnumeric", is_all, "/", 0, 'd'},
    {"isalpha", is_all, "/", 0, 'a'},
    {"isalnum", is_all, "/", 0, 'n'},
    {"isspace", is_all, "/", 0, 's'},
    {"isascii", is_all, "/", 0, '7'},
    {"isupper", is_cased, "/", 0, 'u'},
    {"islower", is_cased, "/", 0, 'l'},
    {"istitle", is_cased, "/", 0, 't'},
    {"isidentifier", is_identifier, "/", 0, 0},
    {"ljust", justify, "/width fillchar", 1, 'l'},
    {"rjust", justify, "/width fillchar", 1, 'r'},
    {"center", justify, "/width fillchar", 1, 'c'},
    {"zfill", zero_fill, "/width", 1, 0},
    {"removeprefix", remove_affix, "/prefix", 1, 'p'},
    {"removesuffix", remove_affix, "/suffix", 1, 's'},
    {"expandtabs", expand_tabs, "tabsize", 0, 0},
    {"format", str_format, "*", 0, 0},
    {0},
};

/* ---- loop.cycle, loop.changed ---- */

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

const builtin td_loop_methods[] = {
    {"cycle", loop_cycle, "*", 0, 0},
    {"changed", loop_changed, "*", 0, 0},
    {0},
};
