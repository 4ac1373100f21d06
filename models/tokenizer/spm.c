/* SentencePiece's BPE: a text is one sequence of characters, in which U+2581 stands for a space.
 *
 * The reference merges the whole text at once. Here the text is cut between any two characters that no token
 * contains next to each other. No merge can cross such a place, so the parts are independent, and most are
 * words. A part that is a token, and whose merges are known to lead to just that token, needs no merging
 * (bpe.c). A character without a token becomes the tokens of its bytes, or the unknown token. */
#include "models/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"

enum { MARK = 0x2581, MARK_BYTES = 3, JOINS_BITS = 18 };
static const char mark[] = "\xE2\x96\x81";

/* ---- spaces ---- */

/* Moves the borders of spans by the growth of the text before them: two bytes per space, and the prefix,
 * which belongs to the span that begins the text. */
static void move_spans(const unsigned char *text, bool prefix, td_span *spans, size_t n_spans)
{
  size_t at = 0, spaces = 0;
  for (size_t i = 0; i < 2 * n_spans; i++) {
    size_t *border = i % 2 ? &spans[i / 2].end : &spans[i / 2].start;
    for (; at < *border; at++)
      spaces += text[at] == ' ';
    *border += 2 * spaces + (prefix && *border > 0 ? MARK_BYTES : 0);
  }
}

/* Removes spaces at the ends, and spaces that follow a space. */
static void append_squeezed(const unsigned char *text, size_t n, bool prefix, td_buf *out)
{
  const size_t base = out->len_bytes;
  size_t i = 0;
  while (i < n && text[i] == ' ')
    i++;
  if (i == n)
    return;
  if (prefix)
    td_buf_append(out, mark, MARK_BYTES);
  for (; i < n; i++)
    if (text[i] != ' ')
      td_buf_append(out, text + i, 1);
    else if (text[i - 1] != ' ')
      td_buf_append(out, mark, MARK_BYTES);
  while (out->len_bytes >= base + MARK_BYTES &&
         memcmp(out->data + out->len_bytes - MARK_BYTES, mark, MARK_BYTES) == 0)
    out->len_bytes -= MARK_BYTES;
}

static void append_marked(const unsigned char *text, size_t n, bool prefix, td_buf *out)
{
  if (prefix)
    td_buf_append(out, mark, MARK_BYTES);
  char some[1024 + MARK_BYTES];
  size_t n_some = 0;
  for (size_t i = 0; i < n; i++) {
    const bool space = text[i] == ' ';
    memcpy(some + n_some, mark, MARK_BYTES);
    some[n_some] = space ? mark[0] : (char)text[i];
    n_some += space ? MARK_BYTES : 1;
    if (n_some >= sizeof some - MARK_BYTES || i + 1 == n) {
      td_buf_append(out, some, n_some);
      n_some = 0;
    }
  }
}

td_status td_spm_mark(const td_tokenizer *t, const unsigned char *text, size_t n, bool prefix, td_buf *out,
                      td_span *spans, size_t n_spans, td_error *err)
{
  if (t->spm.squeezes) {
    append_squeezed(text, n, prefix, out);
  } else {
    append_marked(text, n, prefix, out);
    if (spans)
      move_spans(text, prefix, spans, n_spans);
  }
  return out->failed ? td_fail(err, TD_ERR_NOMEM, "no memory to normalise text") : TD_OK;
}

/* ---- places that no merge can cross ---- */

static inline uint32_t join_bit(uint32_t a, uint32_t b)
{
  return (a * 0x9E3779B1u ^ b * 0x85EBCA77u) >> (32 - JOINS_BITS);
}

static inline size_t look(const unsigned char *p, size_t n, uint32_t *cp)
{
  if (n >= MARK_BYTES && p[0] == 0xE2 && p[1] == 0x96 && p[2] == 0x81) {
    *cp = MARK;
    return MARK_BYTES;
  }
  if (*p < 0x80) {
    *cp = *p;
    return 1;
  }
  size_t len = td_utf8_sequence_length(p, n);
  *cp = len ? td_utf8_decode(p, len) : *p; /* vocabularies may hold invalid UTF-8; texts are valid */
  return len ? len : 1;
}

/* Whether some token may contain b right after a. */
static inline bool may_join(const td_spm *spm, uint32_t a, uint32_t b)
{
  if ((a | b) < 128)
    return spm->ascii_joins[a][b / 8] >> b % 8 & 1;
  uint32_t bit = join_bit(a, b);
  return spm->joins[bit / 8] >> bit % 8 & 1;
}

static void note_joins(td_spm *spm, const unsigned char *p, size_t n)
{
  uint32_t last, cp;
  for (size_t i = look(p, n, &last); i < n; last = cp) {
    i += look(p + i, n - i, &cp);
    uint32_t bit = join_bit(last, cp);
    if ((last | cp) < 128)
      spm->ascii_joins[last][cp / 8] |= (uint8_t)(1u << cp % 8);
    else
      spm->joins[bit / 8] |= (uint8_t)(1u << bit % 8);
  }
}

/* Length of the first part of text that can be merged separately. */
static size_t part(const td_spm *spm, const unsigned char *p, size_t n)
{
  uint32_t last, cp;
  size_t i = look(p, n, &last);
  while (i < n) {
    size_t len = look(p + i, n - i, &cp);
    if (!may_join(spm, last, cp) || (spm->splits_spaces && cp == MARK))
      break;
    last = cp;
    i += len;
  }
  return i;
}

/* ---- characters to symbols ---- */

static int32_t model_token(const td_vocab *v, const unsigned char *p, size_t n)
{
  int32_t id = td_vocab_find(v, (const char *)p, n);
  return id >= 0 && (v->tokens[id].flags & (TD_TOKEN_MODEL | TD_TOKEN_SPECIAL)) == TD_TOKEN_MODEL ? id : -1;
}

/* Symbols of one character: at most as many as it has bytes. */
static uint32_t char_symbols(const td_tokenizer *t, const unsigned char *p, size_t len, uint32_t out[4])
{
  int32_t id = len == 1 ? t->spm.ascii_id[*p & 0x7F] : model_token(&t->vocab, p, len);
  if (id < 0 && !t->spm.byte_fallback)
    id = t->spm.unk;
  if (id >= 0) {
    out[0] = (uint32_t)id;
    return 1;
  }
  for (size_t i = 0; i < len; i++)
    out[i] = (uint32_t)t->byte_id[p[i]];
  return (uint32_t)len;
}

static td_status encode_long(const td_tokenizer *t, const unsigned char *p, size_t n, td_id_sink *sink)
{
  uint32_t four[4], n_symbols = 0, cp;
  td_symbol *s = malloc(n * sizeof *s);
  if (!s)
    return td_fail(sink->err, TD_ERR_NOMEM, "no memory to tokenise a word of %zu bytes", n);
  for (size_t i = 0, len; i < n; i += len) {
    len = look(p + i, n - i, &cp);
    uint32_t k = char_symbols(t, p + i, len, four);
    for (uint32_t j = 0; j < k; j++)
      s[n_symbols++].id = four[j];
  }
  td_status st = td_bpe_long(t, s, n_symbols, sink);
  free(s);
  return st;
}

static td_status encode_part(const td_tokenizer *t, const unsigned char *p, size_t n, td_id_sink *sink)
{
  int32_t known = n <= t->longest_bytes ? model_token(&t->vocab, p, n) : -1;
  uint8_t whole = known < 0 ? TD_WHOLE_NO : __atomic_load_n(&t->vocab.tokens[known].whole, __ATOMIC_RELAXED);
  const uint32_t one = (uint32_t)known;
  if (whole == TD_WHOLE_YES)
    return td_bpe_emit_word(t, p, n, &one, 1, sink);
  if (n > TD_SHORT_WORD_BYTES)
    return encode_long(t, p, n, sink);
  uint32_t ids[TD_SHORT_WORD_BYTES + 4], rank[TD_SHORT_WORD_BYTES + 4], n_ids = 0, cp;
  for (size_t i = 0, len; i < n; i += len) {
    len = look(p + i, n - i, &cp);
    n_ids += char_symbols(t, p + i, len, ids + n_ids);
  }
  for (uint32_t i = 0; i + 1 < n_ids; i++)
    rank[i] = td_merges_rank(&t->merges, ids[i], ids[i + 1]);
  n_ids = td_bpe_short(&t->merges, ids, rank, n_ids);
  if (whole == TD_WHOLE_UNKNOWN)
    __atomic_store_n(&t->vocab.tokens[known].whole,
                     n_ids == 1 && ids[0] == (uint32_t)known ? TD_WHOLE_YES : TD_WHOLE_NO, __ATOMIC_RELAXED);
  return td_bpe_emit_word(t, p, n, ids, n_ids, sink);
}

td_status td_spm_encode(const td_tokenizer *t, const unsigned char *text, size_t n, td_id_sink *sink)
{
  if (t->unigram.on)
    return td_unigram_encode(t, text, n, sink);
  sink->after_unk = false;
  while (n > 0) {
    size_t k = part(&t->spm, text, n);
    bool hit;
    TD_TRY(td_bpe_emit_cached(text, k, sink, &hit));
    if (!hit)
      TD_TRY(encode_part(t, text, k, sink));
    text += k;
    n -= k;
  }
  return TD_OK;
}

/* ---- loading ---- */

/* The byte that "<0x0A>" stands for, or -1. */
static int byte_of(const char *text, size_t n)
{
  static const char digits[] = "0123456789ABCDEF";
  if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
    return -1;
  const char *hi = memchr(digits, text[3], 16), *lo = memchr(digits, text[4], 16);
  return hi && lo ? (int)((hi - digits) * 16 + (lo - digits)) : -1;
}

void td_spm_find_bytes(td_tokenizer *t)
{
  for (uint32_t i = 0; i < t->vocab.n_tokens; i++) {
    td_token *token = &t->vocab.tokens[i];
    if ((token->flags & TD_TOKEN_MODEL) && byte_of(td_vocab_text(&t->vocab, i), token->n_bytes) >= 0)
      token->flags = (uint8_t)((token->flags & ~TD_TOKEN_MODEL) | TD_TOKEN_BYTE);
  }
}

td_status td_spm_finish(td_tokenizer *t, td_error *err)
{
  t->spm.joins = calloc(1u << JOINS_BITS >> 3, 1);
  if (!t->spm.joins)
    return td_fail(err, TD_ERR_NOMEM, "no memory for a tokenizer");
  memset(t->byte_id, 0xFF, sizeof t->byte_id);
  uint32_t n_bytes = 0;
  for (uint32_t i = 0; i < t->vocab.n_tokens; i++) {
    const td_token *token = &t->vocab.tokens[i];
    const char *text = td_vocab_text(&t->vocab, i);
    int b = token->flags & TD_TOKEN_BYTE ? byte_of(text, token->n_bytes) : -1;
    if ((token->flags & TD_TOKEN_BYTE) && b < 0)
      return td_fail(err, TD_ERR_MODEL, "token %u stands for a byte, but is not written <0x00> to <0xFF>", i);
    if (b >= 0) {
      n_bytes += t->byte_id[b] < 0;
      t->byte_id[b] = (int32_t)i;
    }
    if (!(token->flags & TD_TOKEN_MODEL) || token->n_bytes == 0)
      continue;
    note_joins(&t->spm, (const unsigned char *)text, token->n_bytes);
    if (token->n_bytes > t->longest_bytes)
      t->longest_bytes = token->n_bytes;
  }
  for (unsigned c = 0; c < 128; c++) {
    const unsigned char one = (unsigned char)c;
    t->spm.ascii_id[c] = model_token(&t->vocab, &one, 1);
  }
  if (t->spm.byte_fallback && n_bytes < 256) {
    if (n_bytes > 0)
      return td_fail(err, TD_ERR_UNSUPPORTED, "tokenizer has tokens for %u of the 256 bytes", n_bytes);
    t->spm.byte_fallback = false;
  }
  if (!t->spm.byte_fallback && t->spm.unk < 0)
    return td_fail(err, TD_ERR_UNSUPPORTED, "tokenizer has neither tokens for bytes nor an unknown token");
  return TD_OK;
}
