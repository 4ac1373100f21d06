/* Hand-written equivalents of the regular expressions that most byte-level tokenizers use.
 *
 * Each is a function from the remaining text to the length of its first piece. Alternatives are tried in the
 * order of the expression, and a greedy quantifier is a loop. Nothing backtracks further than one character
 * or one run of white space, so splitting takes linear time. The README says why we use no regex library. */
#include "models/tokenizer/internal.h"

#include <string.h>

#include "common/utf8.h"

/* ---- the expressions that we know ---- */

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define WORD_TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2 CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"

static const struct {
  const char *regex;
  td_split split;
  bool total;
} known[] = {
    {GPT2 "|\\s+", {.kind = TD_SPLIT_WORDS}, true},
    /* without the last alternative, the one character that it would match is a gap, which is also a piece */
    {GPT2, {.kind = TD_SPLIT_WORDS}, false},
    {"(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" WORD_TAIL,
     {.kind = TD_SPLIT_WORDS, .modern = true, .fold = true, .max_digits = 3},
     true},
    {"(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" WORD_TAIL,
     {.kind = TD_SPLIT_WORDS, .modern = true, .fold = true, .max_digits = 1},
     true},
    {"(?i:" CONTRACTIONS
     ")|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+"
     "|\\s+(?!\\S)|\\s+",
     {.kind = TD_SPLIT_WORDS, .modern = true, .fold = true, .marks = true, .max_digits = 1},
     true},
    {"\\s+$", {.kind = TD_SPLIT_LINE_ENDS}, false},
    {"\\p{N}", {.kind = TD_SPLIT_NUMBERS, .max_digits = 1}, false},
    {"\\p{N}{1,3}", {.kind = TD_SPLIT_NUMBERS, .max_digits = 3}, false},
    {"\\p{N}+", {.kind = TD_SPLIT_NUMBERS}, false},
    {"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", {.kind = TD_SPLIT_CJK}, false},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
     "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
     {.kind = TD_SPLIT_PUNCT_WORDS},
     false},
};

bool td_split_from_regex(const char *regex, td_split *out, bool *total)
{
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(regex, known[i].regex) == 0) {
      *out = known[i].split;
      *total = known[i].total;
      return true;
    }
  *out = (td_split){.kind = TD_SPLIT_REGEX, .regex = td_regex_create(regex)};
  *total = false;
  return out->regex != NULL;
}

/* ---- reading characters ---- */

/* The character at p < end: its length, code point and class. */
static inline size_t look(const unsigned char *p, const unsigned char *end, uint32_t *cp, uint8_t *class)
{
  size_t len = 1;
  *cp = *p;
  if (*p >= 0x80) {
    len = td_utf8_sequence_length(p, (size_t)(end - p));
    if (len == 0) { /* the caller promised valid text; stay inside the buffer even if it is not */
      *class = 0;
      return 1;
    }
    *cp = td_utf8_decode(p, len);
  }
  *class = td_unicode_class(*cp);
  return len;
}

/* Returns the end of the longest run from p of characters whose class has a bit of `of` (or, if inverted,
 * none). The run has at most max characters; 0: no bound. */
static inline const unsigned char *run(const unsigned char *p, const unsigned char *end, uint8_t of,
                                       bool inverted, uint32_t max)
{
  uint32_t cp, n = 0;
  uint8_t class;
  while (p < end && (max == 0 || n < max)) {
    size_t len = look(p, end, &cp, &class);
    if (((class & of) != 0) == inverted)
      break;
    p += len;
    n++;
  }
  return p;
}

/* Returns the end of the contraction ('s 't 're 've 'm 'll 'd) at p, or p. */
static const unsigned char *contraction(const unsigned char *p, const unsigned char *end, bool fold)
{
  if (end - p < 2 || p[0] != '\'')
    return p;
  /* case folding makes U+017F, the long s, equal to s */
  if (fold && end - p >= 3 && p[1] == 0xC5 && p[2] == 0xBF)
    return p + 3;
  unsigned a = p[1], b = end - p >= 3 ? p[2] : 0;
  if (fold) {
    a = a >= 'A' && a <= 'Z' ? a + 32 : a;
    b = b >= 'A' && b <= 'Z' ? b + 32 : b;
  }
  if (a == 's' || a == 't' || a == 'm' || a == 'd')
    return p + 2;
  if ((b == 'e' && (a == 'r' || a == 'v')) || (b == 'l' && a == 'l'))
    return p + 3;
  return p;
}

/* \s+(?!\S)|\s+ at white space: matches all of a run that ends the text, otherwise all but its last character
 * (but at least one character). */
static const unsigned char *white(const unsigned char *p, const unsigned char *end)
{
  const unsigned char *q = run(p, end, TD_CLASS_SPACE, false, 0);
  if (q == end)
    return q;
  const unsigned char *last = q - 1;
  while ((*last & 0xC0) == 0x80)
    last--;
  return last > p ? last : q;
}

/* \s*[\r\n]+ at white space: returns the end of the last line break in the run, or p if it has none. */
static const unsigned char *line_breaks(const unsigned char *p, const unsigned char *end)
{
  const unsigned char *q = run(p, end, TD_CLASS_SPACE, false, 0);
  while (q > p && q[-1] != '\r' && q[-1] != '\n')
    q--;
  return q;
}

/* ---- the family of GPT-2, Llama-3 and Qwen ---- */

static bool is_ascii_letter(unsigned c) { return (c | 32) - 'a' < 26u; }

/* Whether c may stand before a word of ASCII letters and belong to it. */
static inline bool leads(const td_split *s, unsigned c)
{
  if (!s->modern)
    return c == ' ';
  return c < 0x80 && c != '\'' &&
         !(td_ascii_class[c] & (TD_CLASS_LETTER | TD_CLASS_NUMBER | TD_CLASS_NEWLINE));
}

/* The fast path, because most pieces are words of ASCII letters. Returns the end of such a word, or p. */
static inline const unsigned char *ascii_word(const td_split *s, const unsigned char *p,
                                              const unsigned char *end)
{
  const unsigned char *begin = p + leads(s, *p), *q = begin;
  while (q < end && is_ascii_letter(*q))
    q++;
  return q > begin && (q == end || *q < 0x80) ? q : p;
}

static const unsigned char *next_gpt2(const td_split *s, const unsigned char *p, const unsigned char *end)
{
  const unsigned char *q = contraction(p, end, s->fold);
  if (q > p)
    return q;
  uint32_t cp;
  uint8_t class;
  const unsigned char *body = p + (*p == ' ' && p + 1 < end);
  look(body, end, &cp, &class);
  if (class & TD_CLASS_LETTER)
    return run(body, end, TD_CLASS_LETTER, false, 0);
  if (class & TD_CLASS_NUMBER)
    return run(body, end, TD_CLASS_NUMBER, false, 0);
  if (!(class & TD_CLASS_SPACE))
    return run(body, end, TD_CLASS_SPACE | TD_CLASS_LETTER | TD_CLASS_NUMBER, true, 0);
  return white(p, end);
}

static const unsigned char *next_modern(const td_split *s, const unsigned char *p, const unsigned char *end)
{
  const unsigned char *q = contraction(p, end, s->fold);
  if (q > p)
    return q;
  const uint8_t letters = TD_CLASS_LETTER | (s->marks ? TD_CLASS_MARK : 0);
  uint32_t cp;
  uint8_t class, second = 0;
  size_t len = look(p, end, &cp, &class);
  if (class & letters) /* the piece is the same whether the mark is the leading character or a letter */
    return run(p, end, letters, false, 0);
  if (class & TD_CLASS_NUMBER)
    return run(p, end, TD_CLASS_NUMBER, false, s->max_digits);
  if (p + len < end)
    look(p + len, end, &cp, &second);
  if (!(class & TD_CLASS_NEWLINE) && (second & letters))
    return run(p + len, end, letters, false, 0);
  const uint8_t not_other = TD_CLASS_SPACE | TD_CLASS_NUMBER | letters;
  const unsigned char *body = *p == ' ' && p + 1 < end && !(second & not_other) ? p + 1 : p;
  if (body > p || !(class & not_other)) {
    q = run(body, end, not_other, true, 0);
    while (q < end && (*q == '\r' || *q == '\n'))
      q++;
    return q;
  }
  q = line_breaks(p, end);
  return q > p ? q : white(p, end);
}

/* ---- the small splitters, for which the text between two matches is one piece ---- */

static bool is_cjk(uint32_t cp) { return (cp >= 0x4E00 && cp <= 0x9FA5) || (cp >= 0x3040 && cp <= 0x30FF); }

static const unsigned char *next_cjk(const unsigned char *p, const unsigned char *end)
{
  uint32_t cp;
  uint8_t class;
  const unsigned char *q = p + look(p, end, &cp, &class);
  bool inside = is_cjk(cp);
  while (q < end) {
    size_t len = look(q, end, &cp, &class);
    if (is_cjk(cp) != inside)
      break;
    q += len;
  }
  return q;
}

static const unsigned char *next_numbers(const td_split *s, const unsigned char *p, const unsigned char *end)
{
  const unsigned char *q = run(p, end, TD_CLASS_NUMBER, false, s->max_digits);
  return q > p ? q : run(p, end, TD_CLASS_NUMBER, true, 0);
}

/* White space up to the end of a line or of the text. */
static const unsigned char *next_line_ends(const unsigned char *p, const unsigned char *end)
{
  uint32_t cp;
  uint8_t class;
  for (const unsigned char *q = p; q < end;) {
    size_t len = look(q, end, &cp, &class);
    if (!(class & TD_CLASS_SPACE)) {
      q += len;
      continue;
    }
    const unsigned char *behind = run(q, end, TD_CLASS_SPACE, false, 0), *stop = behind;
    while (behind < end && stop > q && *stop != '\n')
      stop--;
    if (stop > q)
      return q > p ? q : stop;
    q = behind; /* no match begins inside it either */
  }
  return end;
}

/* A run of characters for which `is` is true, or with max_digits 1 a single one; or a run of other
 * characters. */
static inline const unsigned char *next_of(bool is(uint32_t), const td_split *s, const unsigned char *p,
                                           const unsigned char *end)
{
  uint32_t cp;
  uint8_t class;
  const unsigned char *q = p + look(p, end, &cp, &class);
  const bool inside = is(cp);
  while (q < end && !(inside && s->max_digits == 1)) {
    size_t len = look(q, end, &cp, &class);
    if (is(cp) != inside)
      break;
    q += len;
  }
  return q;
}

/* The text is in GPT-2's alphabet by then, where the bytes of superscript digits and fractions look like
 * numbers. So characters of several bytes may be cut. */
static bool is_byte_digit(unsigned c)
{
  return (c >= '0' && c <= '9') || c == 0xB2 || c == 0xB3 || c == 0xB9 || (c >= 0xBC && c <= 0xBE);
}

static const unsigned char *next_byte_digits(const td_split *s, const unsigned char *p,
                                             const unsigned char *end)
{
  const unsigned char *q = p + 1;
  const bool inside = is_byte_digit(*p);
  while (q < end && is_byte_digit(*q) == inside && !(inside && s->max_digits == 1))
    q++;
  return q;
}

/* Returns the end of the match at p, or p. */
static const unsigned char *match_punct_words(const unsigned char *p, const unsigned char *end)
{
  const uint8_t letters = TD_CLASS_LETTER | TD_CLASS_MARK, puncts = TD_CLASS_PUNCT | TD_CLASS_SYMBOL;
  uint32_t cp;
  uint8_t class, second = 0;
  size_t len = look(p, end, &cp, &class);
  if (*p < 0x80 && (class & puncts) && p + 1 < end && is_ascii_letter(p[1])) {
    const unsigned char *q = p + 2;
    while (q < end && is_ascii_letter(*q))
      q++;
    return q;
  }
  if (class & letters)
    return run(p, end, letters, false, 0);
  if (p + len < end)
    look(p + len, end, &cp, &second);
  if (!(class & (TD_CLASS_NEWLINE | puncts)) && (second & letters))
    return run(p + len, end, letters, false, 0);
  if ((class & puncts) || (*p == ' ' && (second & puncts))) {
    const unsigned char *q = run(class & puncts ? p : p + 1, end, puncts, false, 0);
    while (q < end && (*q == '\r' || *q == '\n'))
      q++;
    return q;
  }
  if (!(class & TD_CLASS_SPACE))
    return p;
  const unsigned char *q = line_breaks(p, end);
  return q > p ? q : white(p, end);
}

static const unsigned char *next_punct_words(const unsigned char *p, const unsigned char *end)
{
  const unsigned char *q = match_punct_words(p, end);
  if (q > p)
    return q;
  uint32_t cp;
  uint8_t class;
  while (q < end && match_punct_words(q, end) == q)
    q += look(q, end, &cp, &class);
  return q;
}

size_t td_split_next(const td_split *s, const unsigned char *text, size_t n, size_t *steps_left)
{
  const unsigned char *end = text + n, *q = end;
  switch (s->kind) {
  case TD_SPLIT_WORDS:
    if ((q = ascii_word(s, text, end)) == text)
      q = s->modern ? next_modern(s, text, end) : next_gpt2(s, text, end);
    break;
  case TD_SPLIT_NUMBERS: q = next_numbers(s, text, end); break;
  case TD_SPLIT_CJK: q = next_cjk(text, end); break;
  case TD_SPLIT_PUNCT_WORDS: q = next_punct_words(text, end); break;
  case TD_SPLIT_LINE_ENDS: q = next_line_ends(text, end); break;
  case TD_SPLIT_PUNCTUATION: q = next_of(td_unicode_is_punctuation, s, text, end); break;
  case TD_SPLIT_DIGITS: q = next_of(td_unicode_is_numeric, s, text, end); break;
  case TD_SPLIT_BYTE_DIGITS: q = next_byte_digits(s, text, end); break;
  case TD_SPLIT_REGEX: return td_regex_next(s->regex, text, n, steps_left);
  }
  TD_BUG_ON(q <= text || q > end);
  return (size_t)(q - text);
}

bool td_split_may_cut(const td_split *s, unsigned char c)
{
  const uint8_t class = c < 0x80 ? td_ascii_class[c] : 0;
  switch (s->kind) {
  case TD_SPLIT_WORDS:
  case TD_SPLIT_PUNCT_WORDS: break;
  case TD_SPLIT_NUMBERS:
  case TD_SPLIT_DIGITS: return c >= 0x80 || (class & TD_CLASS_NUMBER);
  case TD_SPLIT_CJK: return c >= 0x80;
  case TD_SPLIT_LINE_ENDS: return c >= 0x80 || (class & TD_CLASS_SPACE);
  case TD_SPLIT_PUNCTUATION: return c >= 0x80 || td_unicode_is_punctuation(c);
  case TD_SPLIT_BYTE_DIGITS: return is_byte_digit(c);
  case TD_SPLIT_REGEX: return td_regex_may_match(s->regex, c);
  }
  return true;
}
