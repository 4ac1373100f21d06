/* SentencePiece's Unigram: of all ways to cut a text into pieces, take the one whose scores have the highest
 * sum (Viterbi's algorithm, from left to right).
 *
 * Cuts with almost equal sums are common, and rounding then decides between them. So the sums are made as the
 * reference makes them, from the start of the text on: in double for a tokenizer.json (`tokenizers`), in
 * float for a tokenizer.model (SentencePiece), which also begins anew where a sum has become too low. Of
 * equal sums the one whose last piece starts first is taken. For the same reason a text is not cut into words
 * that are encoded separately, as spm.c does it: the sum of what is before a word changes how the word's sums
 * are rounded.
 *
 * A character that is not a piece by itself is a candidate as well, with a score below all others. It becomes
 * the tokens of its bytes, or a run of such characters the unknown token. Special tokens are never
 * candidates, because they come from trusted text only. */
#include "models/tokenizer/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"

/* What a text's best cuts end with at a place, beside ids. */
enum { NOTHING = -1, UNKNOWN = -2 };

/* How much worse than the worst piece a character is that no piece has. The references use 10. */
static const double UNKNOWN_PENALTY = 10;
/* SentencePiece: once the best cut up to a place has a lower sum, all sums are counted from there. */
static const double LOWEST_FLOAT_SUM = -100000;

/* Longer texts need memory. */
enum { SHORT_TEXT_BYTES = 255, UTF8_MAX = 4 };

/* ---- the trie: the pieces by their bytes ---- */

/* Children are consecutive and in the order of their bytes. */
typedef struct td_unigram_node {
  uint32_t first_child;
  int32_t id; /* the piece that ends here, or NOTHING */
  uint16_t n_children;
  uint8_t byte;
} td_unigram_node;

/* While the trie is made: pieces[from, to), in the order of their texts, are equal up to a node of this
 * depth. */
typedef struct range {
  uint32_t from, to, depth;
} range;

typedef struct piece {
  const char *text;
  uint32_t n_bytes, id;
} piece;

static int by_text(const void *va, const void *vb)
{
  const piece *a = va, *b = vb;
  const uint32_t n = a->n_bytes < b->n_bytes ? a->n_bytes : b->n_bytes;
  const int order = memcmp(a->text, b->text, n);
  return order ? order : (a->n_bytes > b->n_bytes) - (a->n_bytes < b->n_bytes);
}

/* Pieces in the order of their texts share each node with the piece before them, as far as the texts are
 * equal. */
static size_t count_nodes(const piece *pieces, uint32_t n)
{
  size_t n_nodes = 1;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t same = 0;
    while (i > 0 && same < pieces[i].n_bytes && same < pieces[i - 1].n_bytes &&
           pieces[i].text[same] == pieces[i - 1].text[same])
      same++;
    n_nodes += pieces[i].n_bytes - same;
  }
  return n_nodes;
}

/* Makes all nodes, breadth first, so that the children of each are consecutive. */
static void make_nodes(td_unigram_node *nodes, range *ranges, const piece *pieces, uint32_t n)
{
  uint32_t n_nodes = 1;
  nodes[0] = (td_unigram_node){.id = NOTHING};
  ranges[0] = (range){0, n, 0};
  for (uint32_t at = 0; at < n_nodes; at++) {
    range r = ranges[at];
    if (r.from < r.to && pieces[r.from].n_bytes == r.depth)
      nodes[at].id = (int32_t)pieces[r.from++].id;
    nodes[at].first_child = n_nodes;
    for (uint32_t i = r.from, next; i < r.to; i = next) {
      const char byte = pieces[i].text[r.depth];
      for (next = i + 1; next < r.to && pieces[next].text[r.depth] == byte;)
        next++;
      ranges[n_nodes] = (range){i, next, r.depth + 1};
      nodes[n_nodes++] = (td_unigram_node){.id = NOTHING, .byte = (uint8_t)byte};
      nodes[at].n_children++;
    }
  }
}

static td_status make_trie(td_unigram *u, piece *pieces, uint32_t n, td_error *err)
{
  qsort(pieces, n, sizeof *pieces, by_text);
  const size_t n_nodes = count_nodes(pieces, n);
  range *ranges = malloc(n_nodes * sizeof *ranges);
  u->nodes = malloc(n_nodes * sizeof *u->nodes);
  if (!ranges || !u->nodes) {
    free(ranges);
    return td_fail(err, TD_ERR_NOMEM, "no memory for the texts of %u pieces", n);
  }
  make_nodes(u->nodes, ranges, pieces, n);
  free(ranges);
  for (uint32_t i = 0; i < u->nodes[0].n_children; i++)
    u->starts[u->nodes[u->nodes[0].first_child + i].byte] = u->nodes[0].first_child + i;
  return TD_OK;
}

/* The child for a byte; 0 if there is none. */
static inline uint32_t child(const td_unigram *u, uint32_t node, uint8_t byte)
{
  uint32_t from = u->nodes[node].first_child, n = u->nodes[node].n_children;
  while (n > 1) {
    const uint32_t half = n / 2;
    if (u->nodes[from + half].byte <= byte)
      from += half;
    n -= half;
  }
  return n == 1 && u->nodes[from].byte == byte ? from : 0;
}

/* ---- loading ---- */

static inline double rounded(const td_unigram *u, double sum)
{
  return u->float_sums ? (double)(float)sum : sum;
}

td_status td_unigram_set_scores(td_tokenizer *t, double *scores, uint32_t n_scores, double least,
                                bool float_sums, td_error *err)
{
  td_unigram *u = &t->unigram;
  u->on = true;
  u->float_sums = float_sums;
  u->scores = scores;
  u->n_scores = n_scores;
  u->unknown_score = rounded(u, least - UNKNOWN_PENALTY);
  for (uint32_t i = 0; i < n_scores; i++)
    if (!isfinite(scores[i]))
      return td_fail(err, TD_ERR_MODEL, "the score of token %u is not a finite number", i);
  return TD_OK;
}

td_status td_unigram_finish(td_tokenizer *t, td_error *err)
{
  td_unigram *u = &t->unigram;
  piece *pieces = malloc(((size_t)u->n_scores + 1) * sizeof *pieces);
  if (!pieces)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the texts of %u pieces", u->n_scores);
  uint32_t n = 0;
  for (uint32_t i = 0; i < u->n_scores; i++) {
    const td_token *token = &t->vocab.tokens[i];
    /* "<0x0A>" in a text is a candidate for `tokenizers`, but not for SentencePiece. */
    const bool byte = u->float_sums && (token->flags & TD_TOKEN_BYTE);
    if (byte || (token->flags & TD_TOKEN_SPECIAL) || (int32_t)i == t->spm.unk || token->n_bytes == 0)
      continue;
    pieces[n++] = (piece){td_vocab_text(&t->vocab, i), token->n_bytes, i};
    if (token->n_bytes > u->longest_bytes)
      u->longest_bytes = token->n_bytes;
  }
  for (u->n_sums = SHORT_TEXT_BYTES + 1; u->n_sums <= u->longest_bytes;)
    u->n_sums *= 2;
  const td_status st = make_trie(u, pieces, n, err);
  free(pieces);
  return st;
}

void td_unigram_deinit(td_unigram *u)
{
  free(u->nodes);
  free(u->scores);
}

/* ---- encoding ---- */

static inline size_t character(const unsigned char *p, size_t n)
{
  const size_t len = *p < 0x80 ? 1 : td_utf8_sequence_length(p, n);
  return len ? len : 1;
}

/* Keeps the better of two ways to cut text[0, end). */
static inline void offer(double sum, int32_t id, double *best_sum, int32_t *best)
{
  if (*best == NOTHING || sum > *best_sum) {
    *best = id;
    *best_sum = sum;
  }
}

/* Subtracts the sum at a place from that sum and from all later ones that are reached. */
static void count_from(const td_unigram *u, size_t at, size_t n, const int32_t *last, double *sums)
{
  const size_t mask = u->n_sums - 1, ahead = n - at < u->longest_bytes ? n - at : u->longest_bytes;
  const double base = sums[at & mask];
  for (size_t end = at; end <= at + ahead; end++)
    if (last[end] != NOTHING)
      sums[end & mask] = rounded(u, sums[end & mask] - base);
}

/* Sets last[i], for each place i that is reached, to the piece with which the best cut of text[0, i) ends.
 * Sums are only needed as far back as the longest piece reaches, so sums is a ring of n_sums, a power of two.
 */
static td_status find_best(const td_unigram *u, const unsigned char *text, size_t n, int32_t *last,
                           double *sums, td_error *err)
{
  const size_t mask = u->n_sums - 1;
  size_t steps_left = td_limit_max(TD_LIMIT_SPLIT_STEPS) + td_limit_max(TD_LIMIT_SPLIT_STEPS_PER_BYTE) * n;
  memset(last, 0xFF, (n + 1) * sizeof *last);
  sums[0] = 0;
  for (size_t at = 0, len; at < n; at += len) {
    len = character(text + at, n - at);
    if (u->float_sums && sums[at & mask] < LOWEST_FLOAT_SUM)
      count_from(u, at, n, last, sums);
    const double until_here = sums[at & mask];
    bool known = false;
    size_t end = at + 1;
    for (uint32_t node = u->starts[text[at]]; node; node = end < n ? child(u, node, text[end]) : 0, end++) {
      const int32_t id = u->nodes[node].id;
      if (id < 0)
        continue;
      offer(rounded(u, until_here + u->scores[id]), id, &sums[end & mask], &last[end]);
      known = known || end == at + len;
    }
    if (end - at > steps_left)
      return td_fail(err, TD_ERR_REQUEST, "text takes too long to tokenise");
    steps_left -= end - at;
    td_progress_add(1 + (end - at) / 64);
    end = at + len;
    if (!known)
      offer(rounded(u, until_here + u->unknown_score), UNKNOWN, &sums[end & mask], &last[end]);
  }
  return TD_OK;
}

static td_status emit_unknown(const td_tokenizer *t, const unsigned char *p, size_t n, td_id_sink *sink)
{
  if (t->spm.byte_fallback) {
    for (size_t i = 0; i < n; i++)
      TD_TRY(td_id_sink_push(sink, t->byte_id[p[i]]));
    return TD_OK;
  }
  const bool fused = sink->after_unk;
  sink->after_unk = true;
  return fused ? TD_OK : td_id_sink_push(sink, t->spm.unk);
}

/* Turns the best cut's last pieces, found backwards, into first pieces in place, and emits them. */
static td_status emit_best(const td_tokenizer *t, const unsigned char *text, size_t n, int32_t *last,
                           td_id_sink *sink)
{
  int32_t id = last[n];
  for (size_t at = n; at > 0;) {
    size_t start = at - 1;
    if (id >= 0)
      start = at - t->vocab.tokens[id].n_bytes;
    else
      while (start > 0 && (text[start] & 0xC0) == 0x80)
        start--;
    const int32_t before = last[start];
    last[start] = id;
    id = before;
    at = start;
  }
  sink->after_unk = false;
  for (size_t at = 0, len; at < n; at += len) {
    if (last[at] < 0) {
      len = character(text + at, n - at);
      TD_TRY(emit_unknown(t, text + at, len, sink));
      continue;
    }
    len = t->vocab.tokens[last[at]].n_bytes;
    sink->after_unk = false;
    TD_TRY(td_id_sink_push(sink, last[at]));
  }
  return TD_OK;
}

static td_status encode_long(const td_tokenizer *t, const unsigned char *text, size_t n, td_id_sink *sink)
{
  const td_unigram *u = &t->unigram;
  const size_t longest = u->longest_bytes > UTF8_MAX ? u->longest_bytes : UTF8_MAX;
  /* Refuse before the work if even the longest pieces would be too many. A run of unknown characters may be a
   * single token, so this holds only with tokens for bytes. */
  if (t->spm.byte_fallback && sink->max_tokens && n / longest > sink->max_tokens)
    return td_fail(sink->err, TD_ERR_REQUEST, "text is longer than %zu tokens", sink->max_tokens);
  int32_t *last = malloc((n + 1) * sizeof *last);
  double *sums = malloc(u->n_sums * sizeof *sums);
  td_status st;
  if (last && sums)
    st = find_best(u, text, n, last, sums, sink->err);
  else
    st = td_fail(sink->err, TD_ERR_NOMEM, "no memory to tokenise a text of %zu bytes", n);
  if (st == TD_OK)
    st = emit_best(t, text, n, last, sink);
  free(last);
  free(sums);
  return st;
}

static td_status encode_short(const td_tokenizer *t, const unsigned char *text, size_t n, td_id_sink *sink)
{
  int32_t last[SHORT_TEXT_BYTES + 1];
  double sums[SHORT_TEXT_BYTES + 1]; /* a ring is at least as large, so it does not wrap here */
  TD_TRY(find_best(&t->unigram, text, n, last, sums, sink->err));
  return emit_best(t, text, n, last, sink);
}

td_status td_unigram_encode(const td_tokenizer *t, const unsigned char *text, size_t n, td_id_sink *sink)
{
  while (n > 0) {
    size_t len = n;
    if (t->spm.splits_spaces) { /* up to the next U+2581 */
      const unsigned char *mark = n > 1 ? memmem(text + 1, n - 1, "\xE2\x96\x81", 3) : NULL;
      len = mark ? (size_t)(mark - text) : n;
    }
    TD_TRY(len > SHORT_TEXT_BYTES ? encode_long(t, text, len, sink) : encode_short(t, text, len, sink));
    text += len;
    n -= len;
  }
  return TD_OK;
}
