/* Splitters that are not written out by hand: a small matcher of the regular expressions that published
 * tokenizers use.
 *
 * An expression is a list of alternatives, an alternative a row of steps: a set of characters so many times,
 * one word of a group, or a look at the next character. The first alternative that matches wins; a greedy
 * step gives back character by character where the rest does not match (the reference, Oniguruma, does so
 * too). What the grammar here does not know is refused, as is what may match nothing. Work is counted: an
 * expression that backtracks without end is an error, not a hang. */
#include "models/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"

enum { RANGES_MAX = 8, WORD_MAX = 4, WORDS_MAX = 12, STEPS_MAX = 64, ALTERNATIVES_MAX = 24 };

typedef struct set {
  uint64_t ascii[2]; /* bit c: character c is in it (negation done) */
  uint8_t classes, letters;
  bool negated; /* of what is not ASCII */
  uint8_t n_ranges;
  uint32_t first[RANGES_MAX], last[RANGES_MAX];
} set;

typedef struct word {
  uint8_t n;
  set sets[WORD_MAX];
} word;

typedef enum step_kind { STEP_SET, STEP_GROUP, STEP_AHEAD, STEP_NOT_AHEAD } step_kind;

typedef struct step {
  step_kind kind;
  bool possessive;
  uint32_t min, max; /* 0: no bound. Of a group: 0 or 1 to 1 */
  set set;
  word *words; /* owned, of a group */
  uint32_t n_words;
} step;

struct td_regex {
  step steps[STEPS_MAX];
  uint32_t n_steps;
  uint32_t begin[ALTERNATIVES_MAX + 1]; /* alternative i is steps [begin[i], begin[i + 1]) */
  uint32_t n_alternatives;
  uint32_t begins[128]; /* bit i: alternative i may begin with this ASCII character */
};

void td_regex_destroy(td_regex *r)
{
  if (!r)
    return;
  for (uint32_t i = 0; i < r->n_steps; i++)
    free(r->steps[i].words);
  free(r);
}

/* ---- sets ---- */

static bool in_set(const set *s, uint32_t cp)
{
  if (cp < 128)
    return s->ascii[cp / 64] >> cp % 64 & 1;
  bool in = (s->classes && (td_unicode_class(cp) & s->classes)) ||
            (s->letters && (td_unicode_letter(cp) & s->letters));
  for (uint32_t i = 0; i < s->n_ranges && !in; i++)
    in = cp >= s->first[i] && cp <= s->last[i];
  return in != s->negated;
}

static void add_ascii(set *s, uint32_t c) { s->ascii[c / 64] |= (uint64_t)1 << c % 64; }

static bool add_range(set *s, uint32_t first, uint32_t last)
{
  for (uint32_t c = first; c <= last && c < 128; c++)
    add_ascii(s, c);
  if (last < 128)
    return true;
  if (s->n_ranges == RANGES_MAX)
    return false;
  s->first[s->n_ranges] = first;
  s->last[s->n_ranges++] = last;
  return true;
}

static void add_class(set *s, uint8_t classes, uint8_t letters)
{
  s->classes |= classes;
  s->letters |= letters;
  for (uint32_t c = 0; c < 128; c++)
    if ((td_ascii_class[c] & classes) || (letters && (td_unicode_letter(c) & letters)))
      add_ascii(s, c);
}

static void negate(set *s)
{
  s->negated = !s->negated;
  s->ascii[0] = ~s->ascii[0];
  s->ascii[1] = ~s->ascii[1];
}

/* Both cases of the ASCII letters in it; case folding makes U+017F, the long s, equal to s. Letters beyond
 * ASCII are refused: their folding is not known here. */
static bool fold(set *s)
{
  if (s->n_ranges > 0)
    return false;
  for (uint32_t c = 'a'; c <= 'z'; c++)
    if (in_set(s, c) || in_set(s, c - 32)) {
      add_ascii(s, c);
      add_ascii(s, c - 32);
      if (c == 's' && !add_range(s, 0x17F, 0x17F))
        return false;
      if (c == 'k' && !add_range(s, 0x212A, 0x212A))
        return false;
    }
  return true;
}

/* ---- the grammar ---- */

typedef struct parser {
  const char *at; /* NUL-terminated */
  bool folds;
  td_regex *r;
} parser;

static bool take(parser *p, const char *text)
{
  size_t n = strlen(text);
  if (strncmp(p->at, text, n) != 0)
    return false;
  p->at += n;
  return true;
}

static bool parse_property(parser *p, set *s)
{
  static const struct {
    const char *name;
    uint8_t classes, letters;
  } known[] = {
      {"{L}", TD_CLASS_LETTER, 0},  {"{N}", TD_CLASS_NUMBER, 0},  {"{M}", TD_CLASS_MARK, 0},
      {"{P}", TD_CLASS_PUNCT, 0},   {"{S}", TD_CLASS_SYMBOL, 0},  {"{Lu}", 0, TD_LETTER_UPPER},
      {"{Ll}", 0, TD_LETTER_LOWER}, {"{Lt}", 0, TD_LETTER_TITLE}, {"{Lm}", 0, TD_LETTER_MODIFIER},
      {"{Lo}", 0, TD_LETTER_OTHER},
  };
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (take(p, known[i].name)) {
      add_class(s, known[i].classes, known[i].letters);
      return true;
    }
  return false;
}

/* Behind a backslash: a class into *s, or one character into *cp. */
static bool parse_escape(parser *p, set *s, uint32_t *cp)
{
  *cp = UINT32_MAX;
  switch (*p->at++) {
  case 'p': return parse_property(p, s);
  case 's': add_class(s, TD_CLASS_SPACE, 0); return true;
  case 'r': *cp = '\r'; return true;
  case 'n': *cp = '\n'; return true;
  case 't': *cp = '\t'; return true;
  default: break;
  }
  *cp = (unsigned char)p->at[-1];
  return *cp && *cp < 128 && !(td_ascii_class[*cp] & (TD_CLASS_LETTER | TD_CLASS_NUMBER));
}

static bool parse_char(parser *p, uint32_t *cp)
{
  size_t len = td_utf8_sequence_length((const unsigned char *)p->at, strlen(p->at));
  if (len == 0)
    return false;
  *cp = td_utf8_decode((const unsigned char *)p->at, len);
  p->at += len;
  return true;
}

/* Behind "[". */
static bool parse_class(parser *p, set *s)
{
  const bool negated = take(p, "^");
  bool any = false;
  while (!take(p, "]")) {
    uint32_t first, last;
    any = true;
    if (*p->at == '\0' || *p->at == '[' || strncmp(p->at, "&&", 2) == 0)
      return false;
    if (!(take(p, "\\") ? parse_escape(p, s, &first) : parse_char(p, &first)))
      return false;
    if (first == UINT32_MAX)
      continue;
    last = first;
    if (p->at[0] == '-' && p->at[1] != ']') {
      p->at++;
      if (!(take(p, "\\") ? parse_escape(p, s, &last) : parse_char(p, &last)) || last == UINT32_MAX ||
          last < first)
        return false;
    }
    if (!add_range(s, first, last))
      return false;
  }
  if (p->folds && !fold(s))
    return false;
  if (negated)
    negate(s);
  return any;
}

/* One character or set of them. */
static bool parse_set(parser *p, set *s)
{
  uint32_t cp = UINT32_MAX;
  memset(s, 0, sizeof *s);
  if (take(p, "["))
    return parse_class(p, s);
  if (take(p, "\\S")) {
    add_class(s, TD_CLASS_SPACE, 0);
    negate(s);
    return true;
  }
  if (*p->at == '\0' || strchr("|()?*+{}^$.", *p->at))
    return false;
  if (!(take(p, "\\") ? parse_escape(p, s, &cp) : parse_char(p, &cp)))
    return false;
  return (cp == UINT32_MAX || add_range(s, cp, cp)) && (!p->folds || fold(s));
}

/* Behind "(?:" or "(?i:": words of plain sets. */
static bool parse_group(parser *p, step *st)
{
  st->words = calloc(WORDS_MAX, sizeof *st->words);
  if (!st->words)
    return false;
  for (;;) {
    if (st->n_words == WORDS_MAX)
      return false;
    word *w = &st->words[st->n_words++];
    while (*p->at && *p->at != '|' && *p->at != ')')
      if (w->n == WORD_MAX || !parse_set(p, &w->sets[w->n++]))
        return false;
    if (w->n == 0)
      return false;
    if (take(p, ")"))
      return true;
    if (!take(p, "|"))
      return false;
  }
}

/* Digits only, 99 at most. */
static bool parse_number(parser *p, uint32_t *out)
{
  size_t n = strspn(p->at, "0123456789");
  *out = (uint32_t)strtoul(p->at, NULL, 10);
  p->at += n;
  return n > 0 && n <= 2;
}

static bool parse_count(parser *p, step *st)
{
  st->min = st->max = 1;
  if (take(p, "?")) {
    st->min = 0;
  } else if (take(p, "*")) {
    st->min = st->max = 0;
  } else if (take(p, "+")) {
    st->max = 0;
  } else if (take(p, "{")) {
    if (!parse_number(p, &st->min))
      return false;
    st->max = st->min;
    if (take(p, ",")) {
      st->max = 0; /* no end */
      if (*p->at != '}' && (!parse_number(p, &st->max) || st->max < st->min || st->max == 0))
        return false;
    } else if (st->min == 0) {
      return false;
    }
    if (!take(p, "}"))
      return false;
    return st->kind == STEP_SET && *p->at != '+' && *p->at != '?'; /* Ruby's {n}+ is not possessive */
  } else {
    return true;
  }
  st->possessive = take(p, "+");
  return *p->at != '?' && (st->kind == STEP_SET || (st->kind == STEP_GROUP && st->max == 1));
}

static bool parse_step(parser *p, step *st)
{
  bool ok = true;
  if (take(p, "(?!") || take(p, "(?=")) {
    st->kind = p->at[-1] == '!' ? STEP_NOT_AHEAD : STEP_AHEAD;
    return parse_set(p, &st->set) && take(p, ")");
  }
  if (take(p, "(?i:") || take(p, "(?:")) {
    st->kind = STEP_GROUP;
    p->folds = p->at[-2] == 'i';
    ok = parse_group(p, st);
    p->folds = false;
  } else {
    st->kind = STEP_SET;
    ok = parse_set(p, &st->set);
  }
  return ok && parse_count(p, st);
}

static bool parse(parser *p)
{
  td_regex *r = p->r;
  for (;;) {
    bool consumes = false; /* an alternative that may match nothing is refused */
    if (r->n_alternatives == ALTERNATIVES_MAX)
      return false;
    r->begin[r->n_alternatives++] = r->n_steps;
    while (*p->at && *p->at != '|') {
      if (r->n_steps == STEPS_MAX)
        return false;
      step *st = &r->steps[r->n_steps++];
      if (!parse_step(p, st))
        return false;
      consumes = consumes || ((st->kind == STEP_SET || st->kind == STEP_GROUP) && st->min > 0);
    }
    r->begin[r->n_alternatives] = r->n_steps;
    if (!consumes)
      return false;
    if (!take(p, "|"))
      return *p->at == '\0';
  }
}

/* Whether the steps from i on may match a text that begins with c. */
static bool may_begin(const td_regex *r, uint32_t i, uint32_t end, uint32_t c)
{
  for (; i < end; i++) {
    const step *st = &r->steps[i];
    bool here = st->kind == STEP_SET && in_set(&st->set, c);
    for (uint32_t k = 0; st->kind == STEP_GROUP && k < st->n_words && !here; k++)
      here = in_set(&st->words[k].sets[0], c);
    if (here || ((st->kind == STEP_SET || st->kind == STEP_GROUP) && st->min > 0))
      return here;
  }
  return true;
}

static void note_beginnings(td_regex *r)
{
  for (uint32_t c = 0; c < 128; c++)
    for (uint32_t i = 0; i < r->n_alternatives; i++)
      r->begins[c] |= (uint32_t)may_begin(r, r->begin[i], r->begin[i + 1], c) << i;
}

td_regex *td_regex_create(const char *text)
{
  td_regex *r = calloc(1, sizeof *r);
  parser p = {text, false, r};
  if (r && parse(&p)) {
    note_beginnings(r);
    return r;
  }
  td_regex_destroy(r);
  return NULL;
}

/* ---- matching ---- */

typedef struct matcher {
  const td_regex *r;
  const unsigned char *end;
  size_t *steps_left;
} matcher;

static size_t look(const unsigned char *p, const unsigned char *end, uint32_t *cp)
{
  size_t len = td_utf8_sequence_length(p, (size_t)(end - p));
  *cp = len ? td_utf8_decode(p, len) : 0xFFFD;
  return len ? len : 1;
}

static const unsigned char *match_set(matcher *m, const set *s, const unsigned char *p)
{
  uint32_t cp;
  if (p == m->end)
    return NULL;
  *m->steps_left -= *m->steps_left > 0;
  if (*p < 0x80)
    return s->ascii[*p / 64] >> *p % 64 & 1 ? p + 1 : NULL;
  size_t len = look(p, m->end, &cp);
  return in_set(s, cp) ? p + len : NULL;
}

static const unsigned char *match(matcher *m, uint32_t i, uint32_t end, const unsigned char *p);

static const unsigned char *match_group(matcher *m, uint32_t i, uint32_t end, const unsigned char *p)
{
  const step *st = &m->r->steps[i];
  for (uint32_t k = 0; k < st->n_words; k++) {
    const word *w = &st->words[k];
    const unsigned char *q = p;
    for (uint32_t j = 0; j < w->n && q; j++)
      q = match_set(m, &w->sets[j], q);
    const unsigned char *done = q ? match(m, i + 1, end, q) : NULL;
    if (done || (q && st->possessive))
      return done;
  }
  return st->min == 0 ? match(m, i + 1, end, p) : NULL;
}

static const unsigned char *match_repeated(matcher *m, uint32_t i, uint32_t end, const unsigned char *p)
{
  const step *st = &m->r->steps[i];
  const unsigned char *q = p, *next;
  uint32_t n = 0;
  while ((st->max == 0 || n < st->max) && (next = match_set(m, &st->set, q)) != NULL) {
    q = next;
    n++;
  }
  if (n < st->min)
    return NULL;
  if (i + 1 == end)
    return q;
  for (;;) {
    const unsigned char *done = match(m, i + 1, end, q);
    if (done || n == st->min || st->possessive || *m->steps_left == 0)
      return done;
    n--;
    do
      q--;
    while (q > p && (*q & 0xC0) == 0x80);
  }
}

/* Behind steps [i, end) at p, or NULL. */
static const unsigned char *match(matcher *m, uint32_t i, uint32_t end, const unsigned char *p)
{
  if (i == end)
    return p;
  const step *st = &m->r->steps[i];
  switch (st->kind) {
  case STEP_SET: return match_repeated(m, i, end, p);
  case STEP_GROUP: return match_group(m, i, end, p);
  case STEP_AHEAD: return match_set(m, &st->set, p) ? match(m, i + 1, end, p) : NULL;
  case STEP_NOT_AHEAD: return match_set(m, &st->set, p) ? NULL : match(m, i + 1, end, p);
  }
  return NULL;
}

static const unsigned char *match_any(matcher *m, const unsigned char *p)
{
  const unsigned char *q = NULL;
  const uint32_t may = *p < 0x80 ? m->r->begins[*p] : UINT32_MAX;
  for (uint32_t i = 0; i < m->r->n_alternatives && !q; i++)
    if (may >> i & 1)
      q = match(m, m->r->begin[i], m->r->begin[i + 1], p);
  return q;
}

size_t td_regex_next(const td_regex *r, const unsigned char *text, size_t n, size_t *steps_left)
{
  matcher m = {r, text + n, steps_left};
  const unsigned char *q = match_any(&m, text);
  uint32_t cp;
  if (!q) /* what lies between two matches is one piece */
    for (q = text + look(text, m.end, &cp); q<m.end && * steps_left> 0 && !match_any(&m, q);)
      q += look(q, m.end, &cp);
  return *steps_left == 0 ? 0 : (size_t)(q - text);
}
