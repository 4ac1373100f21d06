/* JSON itself: the rules with which every grammar begins, so that facts about them hold for all grammars. */
#include "config/limits.h"
#include "models/grammar/internal.h"

/* White space between tokens of JSON: none, one blank, or a new line and its indentation. Bounded, so that no
 * answer can go on with blanks without end. */
enum { INDENT = 40 };

static const td_expr *space(td_builder *b)
{
  const td_expr *indent =
      td_expr_repeat(b, td_expr_alt2(b, td_expr_string(b, " "), td_expr_string(b, "\t")), 0, INDENT);
  const td_expr *line =
      td_expr_cat3(b, td_expr_repeat(b, td_expr_string(b, "\r"), 0, 1), td_expr_string(b, "\n"), indent);
  const td_expr *any = td_expr_alt2(b, td_expr_string(b, " "), line);
  return td_expr_repeat(b, any, 0, 1);
}

static const td_expr *hex(td_builder *b, const char *digits)
{
  td_byte_set s = {0};
  for (; *digits; digits++)
    td_byte_set_add(&s, (unsigned char)*digits);
  return td_expr_set(b, &s);
}

/* \uXXXX. Half of a surrogate pair alone is not allowed. */
static const td_expr *unicode_escape(td_builder *b)
{
  const td_expr *any = hex(b, "0123456789abcdefABCDEF"), *any2 = td_expr_repeat(b, any, 2, 2);
  const td_expr *plain =
      td_expr_alt2(b, td_expr_cat2(b, hex(b, "0123456789abcefABCEF"), td_expr_repeat(b, any, 3, 3)),
                   td_expr_cat3(b, hex(b, "dD"), hex(b, "01234567"), any2));
  const td_expr *high = td_expr_cat3(b, hex(b, "dD"), hex(b, "89abAB"), any2);
  const td_expr *low = td_expr_cat3(b, hex(b, "dD"), hex(b, "cdefCDEF"), any2);
  const td_expr *pair = td_expr_cat3(b, high, td_expr_string(b, "\\u"), low);
  return td_expr_cat2(b, td_expr_string(b, "u"), td_expr_alt2(b, plain, pair));
}

static const td_expr *string_char(td_builder *b)
{
  td_chars c = {0};
  td_chars_add(b, &c, 0x20, 0x21);
  td_chars_add(b, &c, 0x23, 0x5B);
  td_chars_add(b, &c, 0x5D, TD_CHAR_MAX);
  const td_expr *escape = td_expr_alt2(b, hex(b, "\"\\/bfnrt"), unicode_escape(b));
  return td_expr_alt2(b, td_chars_expr(b, &c), td_expr_cat2(b, td_expr_string(b, "\\"), escape));
}

static const td_expr *digits(td_builder *b, uint32_t min)
{
  return td_expr_repeat(b, td_expr_range(b, '0', '9'), min, TD_REPEAT_MANY);
}

static const td_expr *integer(td_builder *b)
{
  const td_expr *whole =
      td_expr_alt2(b, td_expr_string(b, "0"), td_expr_cat2(b, td_expr_range(b, '1', '9'), digits(b, 0)));
  return td_expr_cat2(b, td_expr_repeat(b, td_expr_string(b, "-"), 0, 1), whole);
}

static const td_expr *number(td_builder *b)
{
  const td_expr *fraction = td_expr_cat2(b, td_expr_string(b, "."), digits(b, 1));
  const td_expr *exponent = td_expr_cat3(b, hex(b, "eE"), td_expr_repeat(b, hex(b, "+-"), 0, 1),
                                         td_expr_repeat(b, td_expr_range(b, '0', '9'), 1, 2));
  return td_expr_cat3(b, td_expr_call(b, TD_RULE_INTEGER), td_expr_repeat(b, fraction, 0, 1),
                      td_expr_repeat(b, exponent, 0, 1));
}

/* open item (, item)* close, or nothing between open and close. */
static const td_expr *listed(td_builder *b, const char *open, const td_expr *item, const char *close)
{
  const td_expr *space = td_expr_call(b, TD_RULE_SPACE);
  const td_expr *more =
      td_expr_repeat(b, td_expr_cat3(b, td_expr_string(b, ","), space, item), 0, TD_REPEAT_MANY);
  const td_expr *items = td_expr_repeat(b, td_expr_cat3(b, item, more, space), 0, 1);
  return td_expr_cat3(b, td_expr_cat2(b, td_expr_string(b, open), space), items, td_expr_string(b, close));
}

/* Characters of keys are escaped only if JSON requires it. The slash is an exception: it has both
 * spellings. */
static void add_key_rules(td_builder *b)
{
  td_chars odd = {0};
  td_byte_set plain = {0};
  td_chars_add(b, &odd, 0, 0x1F);
  td_chars_add(b, &odd, '"', '"');
  td_chars_add(b, &odd, '\\', '\\');
  td_chars_add(b, &odd, 0x7F, TD_CHAR_MAX);
  for (unsigned c = 0x20; c < 0x7F; c++)
    if (c != '"' && c != '\\')
      td_byte_set_add(&plain, c);
  b->rules[TD_RULE_KEY_ODD] = td_expr_alt2(b, td_chars_json_expr(b, &odd), td_expr_string(b, "\\/"));
  const td_expr *one = td_expr_alt2(b, td_expr_set(b, &plain), b->rules[TD_RULE_KEY_ODD]);
  b->rules[TD_RULE_KEY_REST] =
      td_expr_cat2(b, td_expr_repeat(b, one, 0, TD_REPEAT_MANY), td_expr_string(b, "\""));
}

void td_builder_begin(td_builder *b, td_error *err)
{
  *b = (td_builder){.err = err};
  td_arena_init(&b->arena, (size_t)td_limit_max(TD_LIMIT_GRAMMAR_COMPILE_BYTES));
  for (unsigned i = 0; i < TD_SHARED_RULES; i++)
    (void)td_builder_add_rule(b);
  if (b->failed)
    return;
  const td_expr *space_call = td_expr_call(b, TD_RULE_SPACE), *value = td_expr_call(b, TD_RULE_VALUE);
  const td_expr *string = td_expr_call(b, TD_RULE_STRING);
  const td_expr *member = td_expr_cat3(b, string, td_expr_cat2(b, td_expr_string(b, ":"), space_call), value);
  b->rules[TD_RULE_SPACE] = space(b);
  b->rules[TD_RULE_CHAR] = string_char(b);
  b->rules[TD_RULE_STRING] =
      td_expr_cat3(b, td_expr_string(b, "\""), td_expr_repeat(b, b->rules[TD_RULE_CHAR], 0, TD_REPEAT_MANY),
                   td_expr_string(b, "\""));
  b->rules[TD_RULE_INTEGER] = integer(b);
  b->rules[TD_RULE_NUMBER] = number(b);
  add_key_rules(b);
  b->rules[TD_RULE_ARRAY] = listed(b, "[", value, "]");
  b->rules[TD_RULE_OBJECT] = listed(b, "{", member, "}");
  td_expr_list any = {0};
  static const unsigned kinds[] = {TD_RULE_OBJECT, TD_RULE_ARRAY, TD_RULE_STRING, TD_RULE_NUMBER};
  for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++)
    td_expr_add(b, &any, td_expr_call(b, kinds[i]));
  td_expr_add(b, &any, td_expr_string(b, "true"));
  td_expr_add(b, &any, td_expr_string(b, "false"));
  td_expr_add(b, &any, td_expr_string(b, "null"));
  b->rules[TD_RULE_VALUE] = td_expr_alt(b, &any);
}

void td_builder_end(td_builder *b) { td_arena_deinit(&b->arena); }
