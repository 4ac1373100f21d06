/* From ids back to text, as a stream. A token may end inside a character, so bytes wait until the character
 * is complete.
 *
 * Bytes that cannot become a character are replaced by one U+FFFD per longest valid prefix, as Unicode
 * recommends (section 3.9, "Substitution of Maximal Subparts") and Python does. */
#include "models/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"

enum { DECODED_BYTES = 1 + TD_TOKEN_TEXT_MAX }; /* of one token, with a space before it */

void td_detok_init(td_detok *d, const td_tokenizer *t, bool skip_special, bool begins)
{
  memset(d, 0, sizeof *d);
  d->t = t;
  d->skip_special = skip_special;
  d->strips = begins && t->spm.decodes_strip;
}

/* Length of the longest prefix of p (n > 0 bytes) that begins a valid sequence; 0 if p[0] begins none.
 * *whole: the sequence is complete. Otherwise the next byte breaks it or, if the result is n, the bytes
 * end. */
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
  /* Complete the held character byte by byte; it needs at most three more. */
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
    } else { /* *p does not continue it, and is looked at again */
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

/* For SentencePiece: U+2581 is a space, and "<0x0A>" a byte. */
static size_t spm_bytes(const char *text, const td_token *token, unsigned char decoded[DECODED_BYTES])
{
  size_t n = 0;
  if (token->flags & TD_TOKEN_BYTE) {
    decoded[0] = (unsigned char)strtoul(text + 1, NULL, 16);
    return 1;
  }
  if (token->flags & TD_TOKEN_SPACED)
    decoded[n++] = ' ';
  for (size_t i = 0; i < token->n_bytes; i++)
    if (i + 3 <= token->n_bytes && memcmp(text + i, "\xE2\x96\x81", 3) == 0) {
      decoded[n++] = ' ';
      i += 2;
    } else {
      decoded[n++] = (unsigned char)text[i];
    }
  return n;
}

/* The bytes that a token adds to a text: its own text, or *decoded. */
static const unsigned char *token_bytes(const td_tokenizer *t, int32_t id,
                                        unsigned char decoded[DECODED_BYTES], size_t *n_bytes)
{
  const td_token *token = &t->vocab.tokens[id];
  const char *text = td_vocab_text(&t->vocab, (uint32_t)id);
  if (t->spm.on) {
    *n_bytes = spm_bytes(text, token, decoded);
    return decoded;
  }
  long n = token->flags & TD_TOKEN_MODEL ? td_alphabet_decode(text, token->n_bytes, decoded) : -1;
  *n_bytes = n < 0 ? token->n_bytes : (size_t)n;
  return n < 0 ? (const unsigned char *)text : decoded;
}

/* Handles one of SentencePiece's byte tokens. Each byte that belongs to no character is replaced
 * separately. */
static void push_byte(td_detok *d, unsigned char byte, td_buf *out)
{
  bool whole;
  d->held[d->n_held++] = byte;
  while (d->n_held > 0) {
    size_t k = beginning(d->held, d->n_held, &whole);
    if (whole)
      td_buf_append(out, d->held, k);
    else if (k == d->n_held)
      return;
    else
      td_buf_append(out, "\xEF\xBF\xBD", 3);
    k = whole ? k : 1;
    d->n_held -= (uint32_t)k;
    memmove(d->held, d->held + k, d->n_held);
  }
}

void td_detok_push(td_detok *d, int32_t id, td_buf *out)
{
  const td_vocab *v = &d->t->vocab;
  if (!td_vocab_has(v, id))
    return;
  const td_token *token = &v->tokens[id];
  if ((token->flags & TD_TOKEN_SPECIAL) && d->skip_special)
    return;
  unsigned char decoded[DECODED_BYTES];
  size_t n;
  const unsigned char *bytes = token_bytes(d->t, id, decoded, &n);
  const bool strip = d->strips && n > 0 && bytes[0] == ' ';
  d->strips = d->strips && n == 0;
  if (!d->t->spm.on) {
    push_bytes(d, bytes, n, out);
  } else if (token->flags & TD_TOKEN_BYTE) {
    if (!strip)
      push_byte(d, bytes[0], out);
  } else {
    td_detok_finish(d, out); /* text does not continue a character of byte tokens */
    push_bytes(d, bytes + strip, n - strip, out);
    td_detok_finish(d, out);
  }
}

void td_tokenizer_token_bytes(const td_tokenizer *t, int32_t id, td_buf *out)
{
  unsigned char decoded[DECODED_BYTES];
  size_t n;
  if (!td_vocab_has(&t->vocab, id))
    return;
  const unsigned char *bytes = token_bytes(t, id, decoded, &n);
  td_buf_append(out, bytes, n);
}

void td_detok_finish(td_detok *d, td_buf *out)
{
  for (uint32_t i = 0; i < (d->t->spm.on ? d->n_held : d->n_held > 0); i++)
    td_buf_append(out, "\xEF\xBF\xBD", 3);
  d->n_held = 0;
}
