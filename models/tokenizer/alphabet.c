/* GPT-2's byte alphabet, which writes every byte as one printable character, so that vocabularies can be
 * text.
 *
 * Bytes 21-7E, A1-AC and AE-FF are the character with the same number; the other 68 are, in order, U+0100 ..
 * U+0143. Source: openai/gpt-2, src/encoder.py, bytes_to_unicode. */
#include "models/tokenizer/internal.h"

#include "common/utf8.h"

/* clang-format off */
#define ONE(b) {1, {(b), 0}}
#define TWO(cp) {2, {0xC0 | (cp) >> 6, 0x80 | ((cp) & 0x3F)}}
#define ROW8(M, x) M((x)), M((x) + 1), M((x) + 2), M((x) + 3), M((x) + 4), M((x) + 5), M((x) + 6), M((x) + 7)
const td_byte_char td_byte_alphabet[256] = {
  ROW8(TWO, 0x100), ROW8(TWO, 0x108), ROW8(TWO, 0x110), ROW8(TWO, 0x118), /* 00-1F */
  TWO(0x120), ONE(0x21), ONE(0x22), ONE(0x23), ONE(0x24), ONE(0x25), ONE(0x26), ONE(0x27),
  ROW8(ONE, 0x28), ROW8(ONE, 0x30), ROW8(ONE, 0x38), ROW8(ONE, 0x40), ROW8(ONE, 0x48), ROW8(ONE, 0x50),
  ROW8(ONE, 0x58), ROW8(ONE, 0x60), ROW8(ONE, 0x68), ROW8(ONE, 0x70),
  ONE(0x78), ONE(0x79), ONE(0x7A), ONE(0x7B), ONE(0x7C), ONE(0x7D), ONE(0x7E), TWO(0x121), /* 7F */
  ROW8(TWO, 0x122), ROW8(TWO, 0x12A), ROW8(TWO, 0x132), ROW8(TWO, 0x13A), /* 80-9F */
  TWO(0x142), TWO(0xA1), TWO(0xA2), TWO(0xA3), TWO(0xA4), TWO(0xA5), TWO(0xA6), TWO(0xA7),
  TWO(0xA8), TWO(0xA9), TWO(0xAA), TWO(0xAB), TWO(0xAC), TWO(0x143), TWO(0xAE), TWO(0xAF), /* AD */
  ROW8(TWO, 0xB0), ROW8(TWO, 0xB8), ROW8(TWO, 0xC0), ROW8(TWO, 0xC8), ROW8(TWO, 0xD0), ROW8(TWO, 0xD8),
  ROW8(TWO, 0xE0), ROW8(TWO, 0xE8), ROW8(TWO, 0xF0), ROW8(TWO, 0xF8),
};
/* clang-format on */

/* The byte for which character cp stands, or -1. */
static int byte_of(uint32_t cp)
{
  if ((cp >= 0x21 && cp <= 0x7E) || (cp >= 0xA1 && cp <= 0xFF && cp != 0xAD))
    return (int)cp;
  if (cp < 0x100 || cp > 0x143)
    return -1;
  uint32_t k = cp - 0x100;
  return k <= 0x20 ? (int)k : k <= 0x42 ? (int)(k - 0x21 + 0x7F) : 0xAD;
}

long td_alphabet_decode(const char *text, size_t n, unsigned char *out)
{
  const unsigned char *p = (const unsigned char *)text;
  size_t n_out = 0;
  for (size_t i = 0; i < n;) {
    size_t len = td_utf8_sequence_length(p + i, n - i);
    int b = len == 0 ? -1 : byte_of(td_utf8_decode(p + i, len));
    if (b < 0)
      return -1;
    out[n_out++] = (unsigned char)b;
    i += len;
  }
  return (long)n_out;
}
