/* From ids back to text, as a stream: a token may end inside a character, so bytes wait until the character
 * is whole.
 *
 * What can not become a character is replaced by U+FFFD once per longest valid beginning, as Unicode
 * recommends (section 3.9, "Substitution of Maximal Subparts") and Python does. */
#include "models/tokenizer/internal.h"

#include <string.h>

#include "common/utf8.h"

void td_detok_init(td_detok *d, const td_tokenizer *t, bool skip_special)
{
  memset(d, 0, sizeof *d);
  d->t = t;
  d->skip_special = skip_special;
}

/* Length of the longest beginning of a valid sequence at p (n > 0 bytes): 0 if p[0] begins none. *whole: it
 * is a complete sequence; otherwise it is broken by what follows, or (length n) by the end of the bytes. */
static size_t beginning(const unsigned char *p, size_t n, bool *whole)
{
  *whole = true;
  size_t len = td_utf8_sequence_length(p, n);
  if (len)
    return len;
  *whole = false;
  unsigned c = p[0];
  if (c < 0xC2 || c > 0xF4)
    return 0;
  size_t want = c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
  unsigned lo = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80, hi = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
  size_t k = 1;
  if (k < n && p[k] >= lo && p[k] <= hi)
    for (k = 2; k < n && k < want && (p[k] & 0xC0) == 0x80;)
      k++;
  return k;
}

static void push_bytes(td_detok *d, const unsigned char *p, size_t n, td_buf *out)
{
  unsigned char joined[8];
  /* finish the held character byte by byte: it needs at most three more */
  while (d->n_held > 0 && n > 0) {
    memcpy(joined, d->held, d->n_held);
    joined[d->n_held] = *p;
    bool whole;
    size_t total = d->n_held + 1, k = beginning(joined, total, &whole);
    if (k == total) {
      p++;
      n--;
      memcpy(d->held, joined, total);
      d->n_held = whole ? 0 : (uint32_t)total;
      if (whole)
        td_buf_append(out, joined, total);
    } else { /* *p does not continue it, and is looked at afresh */
      td_buf_append(out, "\xEF\xBF\xBD", 3);
      d->n_held = 0;
    }
  }
  size_t from = 0, i = 0;
  while (i < n) {
    bool whole;
    size_t k = p[i] < 0x80 ? (whole = true, 1) : beginning(p + i, n - i, &whole);
    if (whole) {
      i += k;
      continue;
    }
    td_buf_append(out, p + from, i - from);
    if (k > 0 && i + k == n) {
      memcpy(d->held, p + i, k);
      d->n_held = (uint32_t)k;
    } else {
      td_buf_append(out, "\xEF\xBF\xBD", 3);
    }
    i += k ? k : 1;
    from = i;
  }
  td_buf_append(out, p + from, n - from);
}

/* What a token adds to the text's bytes: itself, or decoded. */
static const unsigned char *token_bytes(const td_vocab *v, int32_t id,
                                        unsigned char decoded[TD_TOKEN_TEXT_MAX], size_t *n_bytes)
{
  const td_token *token = &v->tokens[id];
  const char *text = td_vocab_text(v, (uint32_t)id);
  long n = token->flags & TD_TOKEN_MODEL ? td_alphabet_decode(text, token->n_bytes, decoded) : -1;
  *n_bytes = n < 0 ? token->n_bytes : (size_t)n;
  return n < 0 ? (const unsigned char *)text : decoded;
}

void td_detok_push(td_detok *d, int32_t id, td_buf *out)
{
  const td_vocab *v = &d->t->vocab;
  if (!td_vocab_has(v, id))
    return;
  const td_token *token = &v->tokens[id];
  if ((token->flags & TD_TOKEN_SPECIAL) && d->skip_special)
    return;
  unsigned char decoded[TD_TOKEN_TEXT_MAX];
  size_t n;
  const unsigned char *bytes = token_bytes(v, id, decoded, &n);
  push_bytes(d, bytes, n, out);
}

void td_tokenizer_token_bytes(const td_tokenizer *t, int32_t id, td_buf *out)
{
  unsigned char decoded[TD_TOKEN_TEXT_MAX];
  size_t n;
  if (!td_vocab_has(&t->vocab, id))
    return;
  const unsigned char *bytes = token_bytes(&t->vocab, id, decoded, &n);
  td_buf_append(out, bytes, n);
}

void td_detok_finish(td_detok *d, td_buf *out)
{
  if (d->n_held > 0)
    td_buf_append(out, "\xEF\xBF\xBD", 3);
  d->n_held = 0;
}
