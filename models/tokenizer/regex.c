/* A small matcher for the regular expressions of published tokenizers that have no hand-written splitter.
 *
 * An expression is a list of alternatives. An alternative is a list of steps: a repeated set of characters, a
 * group of words of which one must match, or a look-ahead. The first alternative that matches wins. A greedy
 * step gives back one character at a time if the rest does not match, as in the reference, Oniguruma. Syntax
 * that this grammar does not know is refused, and so is an expression that may match nothing. Steps of work
 * are counted, so an expression that backtracks without end is an error, not a hang. */
#include "models/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"

enum {
  RANGES_MAX = 1024,
  WORD_MAX = 4,
  WORDS_MAX = 12,
  STEPS_MAX = 64,
  AHEAD_MAX = 4,
  ALTERNATIVES_MAX = 24
};

typedef struct set {
  uint64_t ascii[2]; /* bit c: the set contains character c, after negation */
  uint8_t classes, letters;
  bool negated; /* applies to characters beyond ASCII */
  uint16_t first_range, n_ranges;
} set;

typedef struct word {
  uint8_t n;
  set sets[WORD_MAX];
} word;

/* STEP_END is the end of a line ("$" in Ruby's syntax, which the reference uses). STEP_BORDER is a word
 * boundary. */
typedef enum step_kind { STEP_SET, STEP_GROUP, STEP_AHEAD, STEP_NOT_AHEAD, STEP_END, STEP_BORDER } step_kind;

typedef struct step {
  step_kind kind;
  bool possessive;
  uint32_t min, max; /* max 0: no bound. In a group of several words, min is 0 or 1 and max is 1 */
  set set;
  word *words; /* owned; for a group */
  uint32_t n_words;
  struct step *ahead; /* owned, for a look-ahead: what has to follow */
  uint32_t n_ahead;
} step;

struct td_regex {
  td_code_range *ranges; /* those of one set are contiguous */
  uint32_t n_ranges;
  step steps[STEPS_MAX];
  uint32_t n_steps;
  uint32_t begin[ALTERNATIVES_MAX + 1]; /* alternative i is steps [begin[i], begin[i + 1]) */
  uint32_t n_alternatives;
  uint32_t begins[128]; /* bit i: alternative i may begin with this ASCII character */
  uint64_t needs[2];    /* bit c, for ASCII: every match contains one of these, or one beyond ASCII */
  td_regex_table table;
};

static void destroy_steps(step *steps, uint32_t n)
{
  for (uint32_t i = 0; i < n; i++) {
    destroy_steps(steps[i].ahead, steps[i].n_ahead);
    free(steps[i].ahead);
    free(steps[i].words);
  }
}

void td_regex_destroy(td_regex *r)
{
  if (!r)
    return;
  destroy_steps(r->steps, r->n_steps);
  td_regex_table_deinit(&r->table);
  free(r->ranges);
  free(r);
}

/* ---- sets ---- */

static bool in_set(const td_regex *r, const set *s, uint32_t cp)
{
  if (cp < 128)
    return s->ascii[cp / 64] >> cp % 64 & 1;
  bool in = (s->classes && (td_unicode_class(cp) & s->classes)) ||
            (s->letters && (td_unicode_letter(cp) & s->letters)) ||
            td_code_range_find(r->ranges + s->first_range, s->n_ranges, cp);
  return in != s->negated;
}

static void add_ascii(set *s, uint32_t c) { s->ascii[c / 64] |= (uint64_t)1 << c % 64; }

static bool add_range(td_regex *r, set *s, uint32_t first, uint32_t last)
{
  for (uint32_t c = first; c <= last && c < 128; c++)
    add_ascii(s, c);
  if (last < 128)
    return true;
  if (r->n_ranges == RANGES_MAX)
    return false;
  if (s->n_ranges == 0)
    s->first_range = (uint16_t)r->n_ranges;
  r->ranges[r->n_ranges++] = (td_code_range){.first = first, .last = last};
  s->n_ranges++;
  return true;
}

static int compare_ranges(const void *a, const void *b)
{
  const td_code_range *x = a, *y = b;
  return (x->first > y->first) - (x->first < y->first);
}

static void sort_ranges(td_regex *r, set *s)
{
  td_code_range *v = r->ranges + s->first_range;
  uint16_t n = 0;
  if (s->n_ranges > 1)
    qsort(v, s->n_ranges, sizeof *v, compare_ranges);
  for (uint16_t i = 0; i < s->n_ranges; i++)
    if (n > 0 && v[i].first <= v[n - 1].last)
      v[n - 1].last = v[i].last > v[n - 1].last ? v[i].last : v[n - 1].last;
    else
      v[n++] = v[i];
  s->n_ranges = n;
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

/* Adds the other case of the ASCII letters in the set. Case folding also makes U+017F, the long s, equal to
 * s, and U+212A, the Kelvin sign, equal to k. Sets with letters beyond ASCII are refused, because we do not
 * know their folding. */
static bool fold(td_regex *r, set *s)
{
  if (s->n_ranges > 0)
    return false;
  for (uint32_t c = 'a'; c <= 'z'; c++)
    if (in_set(r, s, c) || in_set(r, s, c - 32)) {
      add_ascii(s, c);
      add_ascii(s, c - 32);
      if (c == 's' && !add_range(r, s, 0x17F, 0x17F))
        return false;
      if (c == 'k' && !add_range(r, s, 0x212A, 0x212A))
        return false;
    }
  return true;
}

/* ---- the grammar ---- */

typedef struct parser {
  const char *at; /* NUL-terminated */
  bool folds, looks_ahead;
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

/* After a backslash: adds a class to *s, or sets *cp to one character. */
static bool parse_escape(parser *p, set *s, uint32_t *cp)
{
  *cp = UINT32_MAX;
  switch (*p->at++) {
  case 'p': return parse_property(p, s);
  case 's': add_class(s, TD_CLASS_SPACE, 0); return true;
  case 'd': add_class(s, TD_CLASS_DIGIT, 0); return true;
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

/* Parses the rest of a class, after "[". */
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
    if (!add_range(p->r, s, first, last))
      return false;
  }
  if (p->folds && !fold(p->r, s))
    return false;
  sort_ranges(p->r, s);
  if (negated)
    negate(s);
  return any;
}

/* Parses one character or set of characters. */
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
  return (cp == UINT32_MAX || add_range(p->r, s, cp, cp)) && (!p->folds || fold(p->r, s));
}

/* Digits only, 99 at most. */
static bool parse_number(parser *p, uint32_t *out)
{
  size_t n = strspn(p->at, "0123456789");
  *out = (uint32_t)strtoul(p->at, NULL, 10);
  p->at += n;
  return n > 0 && n <= 2;
}

/* Parses a set, once or {n} times. */
static bool parse_word_sets(parser *p, word *w)
{
  uint32_t times = 1;
  set s;
  if (!parse_set(p, &s) || (take(p, "{") && (!parse_number(p, &times) || !take(p, "}"))))
    return false;
  for (; times > 0 && w->n < WORD_MAX; times--)
    w->sets[w->n++] = s;
  return times == 0 && w->n > 0;
}

/* Parses the rest of a group, after "(?:" or "(?i:": words made of sets. */
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
      if (!parse_word_sets(p, w))
        return false;
    if (w->n == 0)
      return false;
    if (take(p, ")"))
      return true;
    if (!take(p, "|"))
      return false;
  }
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
      st->max = 0; /* no upper bound */
      if (*p->at != '}' && (!parse_number(p, &st->max) || st->max < st->min || st->max == 0))
        return false;
    } else if (st->min == 0) {
      return false;
    }
    if (!take(p, "}"))
      return false;
    return st->kind == STEP_SET && *p->at != '+' && *p->at != '?'; /* in Ruby, {n}+ is not possessive */
  } else {
    return true;
  }
  st->possessive = take(p, "+");
  return *p->at != '?' && (st->kind == STEP_SET || st->max == 1 || st->n_words == 1);
}

static bool parse_step(parser *p, step *st);

/* Parses the rest of a look-ahead, after "(?=" or "(?!". It may end with a word boundary. */
static bool parse_ahead(parser *p, step *st)
{
  if (p->looks_ahead)
    return false;
  st->ahead = calloc(AHEAD_MAX, sizeof *st->ahead);
  p->looks_ahead = true;
  bool ok = st->ahead != NULL;
  while (ok && st->n_ahead < AHEAD_MAX && *p->at && *p->at != ')' && *p->at != '|') {
    step *inner = &st->ahead[st->n_ahead++];
    if (take(p, "\\b"))
      inner->kind = STEP_BORDER;
    else
      ok = parse_step(p, inner);
    ok = ok && (inner->kind != STEP_BORDER || *p->at == ')');
  }
  p->looks_ahead = false;
  return ok && st->n_ahead > 0 && take(p, ")");
}

static bool parse_step(parser *p, step *st)
{
  bool ok = true;
  if (take(p, "(?!") || take(p, "(?=")) {
    st->kind = p->at[-1] == '!' ? STEP_NOT_AHEAD : STEP_AHEAD;
    return parse_ahead(p, st);
  }
  if (p->at[0] == '$' && (p->at[1] == '|' || p->at[1] == '\0')) {
    p->at++;
    st->kind = STEP_END;
    return true;
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
      if (st->n_ahead > 0 && st->ahead[st->n_ahead - 1].kind == STEP_BORDER && !consumes)
        return false; /* the character before the match is not known */
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
    bool here = st->kind == STEP_SET && in_set(r, &st->set, c);
    for (uint32_t k = 0; st->kind == STEP_GROUP && k < st->n_words && !here; k++)
      here = in_set(r, &st->words[k].sets[0], c);
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

/* For each alternative, adds the smallest set of which a match needs a character. */
static void note_needs(td_regex *r)
{
  for (uint32_t i = 0; i < r->n_alternatives; i++) {
    uint64_t least[2] = {UINT64_MAX, UINT64_MAX};
    for (uint32_t k = r->begin[i]; k < r->begin[i + 1]; k++) {
      const step *st = &r->steps[k];
      if (st->kind == STEP_SET && st->min > 0 &&
          __builtin_popcountll(st->set.ascii[0]) + __builtin_popcountll(st->set.ascii[1]) <
              __builtin_popcountll(least[0]) + __builtin_popcountll(least[1]))
        memcpy(least, st->set.ascii, sizeof least);
    }
    r->needs[0] |= least[0];
    r->needs[1] |= least[1];
  }
}

/* ---- translation to ops, for the table ---- */

typedef struct writer {
  td_regex_op ops[TD_REGEX_OPS_MAX];
  uint32_t n;
  bool fails; /* too many ops, or a step that no op can express */
} writer;

/* Returns the op's index. After a failure it returns 0, which is safe to write to. */
static uint32_t write_op(writer *w, td_regex_op_kind kind, const set *s)
{
  if (w->n == TD_REGEX_OPS_MAX) {
    w->fails = true;
    return 0;
  }
  w->ops[w->n] = (td_regex_op){.kind = kind};
  if (s)
    memcpy(w->ops[w->n].ascii, s->ascii, sizeof s->ascii);
  return w->n++;
}

static void point_here(writer *w, uint32_t op) { w->ops[op].to = (uint16_t)w->n; }

/* Writes a set, or the words of a group, which are tried in order. */
static void write_once(writer *w, const step *st)
{
  uint32_t jumps[WORDS_MAX];
  if (st->kind == STEP_SET) {
    write_op(w, TD_REGEX_OP_TAKE, &st->set);
    return;
  }
  for (uint32_t k = 0; k < st->n_words; k++) {
    const bool last = k + 1 == st->n_words;
    const uint32_t both = last ? 0 : write_op(w, TD_REGEX_OP_BOTH, NULL);
    for (uint32_t j = 0; j < st->words[k].n; j++)
      write_op(w, TD_REGEX_OP_TAKE, &st->words[k].sets[j]);
    if (last)
      break;
    jumps[k] = write_op(w, TD_REGEX_OP_JUMP, NULL);
    point_here(w, both);
  }
  for (uint32_t k = 0; k + 1 < st->n_words; k++)
    point_here(w, jumps[k]);
}

static void write_repeated(writer *w, const step *st)
{
  uint32_t outs[100], n_outs = 0; /* at most the 99 that parse_number allows */
  for (uint32_t i = 0; i < st->min; i++)
    write_once(w, st);
  if (st->max == 0) {
    const uint32_t both = write_op(w, TD_REGEX_OP_BOTH, NULL);
    write_once(w, st);
    w->ops[write_op(w, TD_REGEX_OP_JUMP, NULL)].to = (uint16_t)both;
    point_here(w, both);
  }
  for (uint32_t i = st->min; i < st->max; i++) {
    outs[n_outs++] = write_op(w, TD_REGEX_OP_BOTH, NULL);
    write_once(w, st);
  }
  while (n_outs > 0)
    point_here(w, outs[--n_outs]);
}

static void write_step(writer *w, const step *st)
{
  switch (st->kind) {
  case STEP_SET:
  case STEP_GROUP:
    w->fails |= st->possessive;
    write_repeated(w, st);
    break;
  case STEP_AHEAD:
  case STEP_NOT_AHEAD:
    w->fails |= st->n_ahead != 1 || st->ahead[0].kind != STEP_SET || st->ahead[0].min != 1;
    write_op(w, st->kind == STEP_AHEAD ? TD_REGEX_OP_NEXT_IN : TD_REGEX_OP_NEXT_NOT_IN, &st->ahead[0].set);
    break;
  case STEP_END: write_op(w, TD_REGEX_OP_LINE_END, NULL); break;
  case STEP_BORDER: w->fails = true; break;
  }
}

/* An expression that has no table is matched by backtracking. */
static void make_table(td_regex *r)
{
  writer w = {.n = 0};
  for (uint32_t i = 0; i < r->n_alternatives && !w.fails; i++) {
    const bool last = i + 1 == r->n_alternatives;
    const uint32_t both = last ? 0 : write_op(&w, TD_REGEX_OP_BOTH, NULL);
    for (uint32_t k = r->begin[i]; k < r->begin[i + 1] && !w.fails; k++)
      write_step(&w, &r->steps[k]);
    write_op(&w, TD_REGEX_OP_MATCH, NULL);
    if (!last)
      point_here(&w, both);
  }
  if (!w.fails)
    td_regex_table_init(&r->table, w.ops, w.n);
}

td_regex *td_regex_create(const char *text)
{
  td_regex *r = calloc(1, sizeof *r);
  parser p = {text, false, false, r};
  if (r)
    r->ranges = calloc(RANGES_MAX, sizeof *r->ranges);
  if (r && r->ranges && parse(&p)) {
    note_beginnings(r);
    note_needs(r);
    make_table(r);
    return r;
  }
  td_regex_destroy(r);
  return NULL;
}

/* ---- matching ---- */

typedef struct matcher {
  const td_regex *r;
  const unsigned char *begin, *end; /* begin: where the current match starts */
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
  return in_set(m->r, s, cp) ? p + len : NULL;
}

static const unsigned char *match(matcher *m, const step *st, const step *end, const unsigned char *p);

static const unsigned char *match_word(matcher *m, const word *w, const unsigned char *p)
{
  for (uint32_t j = 0; j < w->n && p; j++)
    p = match_set(m, &w->sets[j], p);
  return p;
}

static const unsigned char *match_group(matcher *m, const step *st, const step *end, const unsigned char *p)
{
  for (uint32_t k = 0; k < st->n_words; k++) {
    const unsigned char *q = match_word(m, &st->words[k], p);
    const unsigned char *done = q ? match(m, st + 1, end, q) : NULL;
    if (done || (q && st->possessive))
      return done;
  }
  return st->min == 0 ? match(m, st + 1, end, p) : NULL;
}

/* Moves p back by n characters, in text that starts at `begin`. */
static const unsigned char *back(const unsigned char *begin, const unsigned char *p, uint32_t n)
{
  for (; n > 0; n--)
    do
      p--;
    while (p > begin && (*p & 0xC0) == 0x80);
  return p;
}

/* Returns the end of a run of at most max (0: no bound) characters in a set. */
static inline const unsigned char *match_run(matcher *m, const set *s, uint32_t max, const unsigned char *p,
                                             uint32_t *n)
{
  uint32_t k = 0;
  for (const unsigned char *next; max == 0 || k < max; k++, p = next)
    if (p < m->end && *p < 0x80) {
      if (!(s->ascii[*p / 64] >> *p % 64 & 1))
        break;
      next = p + 1;
    } else if (!(next = match_set(m, s, p)))
      break;
  *m->steps_left -= *m->steps_left > k ? k + 1 : *m->steps_left;
  *n = k;
  return p;
}

/* Matches a repeated set, or a repeated group of one word. */
static const unsigned char *match_repeated(matcher *m, const step *st, const step *end,
                                           const unsigned char *p)
{
  const bool group = st->kind == STEP_GROUP;
  const unsigned char *q = p, *next;
  uint32_t n = 0;
  if (!group)
    q = match_run(m, &st->set, st->max, p, &n);
  while (group && (st->max == 0 || n < st->max) && (next = match_word(m, st->words, q)) != NULL) {
    q = next;
    n++;
  }
  if (n < st->min)
    return NULL;
  if (st + 1 == end)
    return q;
  for (;;) {
    const unsigned char *done = match(m, st + 1, end, q);
    if (done || n == st->min || st->possessive || *m->steps_left == 0)
      return done;
    n--;
    q = back(p, q, group ? st->words->n : 1);
  }
}

/* Whether there is a word boundary at p. The match has at least one character before p. */
static bool is_border(const matcher *m, const unsigned char *p)
{
  const unsigned char *before = back(m->begin, p, 1);
  uint32_t left, right = 0;
  look(before, m->end, &left);
  if (p < m->end)
    look(p, m->end, &right);
  return td_unicode_is_word(left) != (p < m->end && td_unicode_is_word(right));
}

/* Returns the end of the match of steps [st, end) at p, or NULL. */
static const unsigned char *match(matcher *m, const step *st, const step *end, const unsigned char *p)
{
  if (st == end)
    return p;
  bool ok = false;
  switch (st->kind) {
  case STEP_SET: return match_repeated(m, st, end, p);
  case STEP_GROUP:
    return st->n_words == 1 && st->max != 1 ? match_repeated(m, st, end, p) : match_group(m, st, end, p);
  case STEP_AHEAD: ok = match(m, st->ahead, st->ahead + st->n_ahead, p) != NULL; break;
  case STEP_NOT_AHEAD: ok = match(m, st->ahead, st->ahead + st->n_ahead, p) == NULL; break;
  case STEP_END: ok = p == m->end || *p == '\n'; break;
  case STEP_BORDER: ok = is_border(m, p); break;
  }
  return ok ? match(m, st + 1, end, p) : NULL;
}

static const unsigned char *match_any(matcher *m, const unsigned char *p)
{
  const unsigned char *q = NULL;
  const uint32_t may = *p < 0x80 ? m->r->begins[*p] : UINT32_MAX;
  if (may == 0 ||
      (td_regex_is_tabled(m->r) && td_regex_table_match(&m->r->table, p, m->end, m->steps_left, &q)))
    return q;
  m->begin = p;
  q = NULL;
  for (uint32_t i = 0; i < m->r->n_alternatives && !q; i++)
    if (may >> i & 1)
      q = match(m, m->r->steps + m->r->begin[i], m->r->steps + m->r->begin[i + 1], p);
  return q;
}

size_t td_regex_next(const td_regex *r, const unsigned char *text, size_t n, size_t *steps_left)
{
  matcher m = {r, text, text + n, steps_left};
  const unsigned char *q = match_any(&m, text);
  uint32_t cp;
  if (!q) /* the text between two matches is one piece */
    for (q = text + look(text, m.end, &cp); q<m.end && * steps_left> 0 && !match_any(&m, q);)
      q += look(q, m.end, &cp);
  return *steps_left == 0 ? 0 : (size_t)(q - text);
}

bool td_regex_is_tabled(const td_regex *r) { return r->table.n_kinds > 0; }

bool td_regex_may_match(const td_regex *r, unsigned char c)
{
  return c >= 0x80 || (r->needs[c / 64] >> c % 64 & 1);
}
