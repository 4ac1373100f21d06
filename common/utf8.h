/* The one UTF-8 validity rule (RFC 3629 section 4: no overlongs, no surrogates, <= U+10FFFF). */
#ifndef TD_COMMON_UTF8_H
#define TD_COMMON_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length (1..4) of the valid sequence at p, or 0 if the bytes there (n of them) start none. */
static inline size_t td_utf8_sequence_length(const unsigned char *p, size_t n)
{
  if (n == 0)
    return 0;
  unsigned c = p[0];
  if (c < 0x80)
    return 1;
  if (c < 0xC2 || c > 0xF4)
    return 0;
  size_t len = c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
  if (n < len || (p[1] & 0xC0) != 0x80)
    return 0;
  if ((c == 0xE0 && p[1] < 0xA0) || (c == 0xED && p[1] > 0x9F) || (c == 0xF0 && p[1] < 0x90) ||
      (c == 0xF4 && p[1] > 0x8F))
    return 0;
  for (size_t i = 2; i < len; i++)
    if ((p[i] & 0xC0) != 0x80)
      return 0;
  return len;
}

/* Decodes the valid sequence of length len at p. */
static inline uint32_t td_utf8_decode(const unsigned char *p, size_t len)
{
  switch (len) {
  case 1: return p[0];
  case 2: return (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
  case 3: return (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
  default: return (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
  }
}

/* Whether the valid sequence at p is a control character: C0, DEL, or C1, which terminals obey too. */
static inline bool td_utf8_is_control(const unsigned char *p)
{
  return p[0] < 0x20 || p[0] == 0x7F || (p[0] == 0xC2 && p[1] < 0xA0);
}

/* Writes code point cp (<= U+10FFFF) to out[4]; returns the length. */
static inline size_t td_utf8_encode(uint32_t cp, unsigned char *out)
{
  if (cp < 0x80) {
    out[0] = (unsigned char)cp;
    return 1;
  }
  if (cp < 0x800) {
    out[0] = (unsigned char)(0xC0 | cp >> 6);
    out[1] = (unsigned char)(0x80 | (cp & 0x3F));
    return 2;
  }
  if (cp < 0x10000) {
    out[0] = (unsigned char)(0xE0 | cp >> 12);
    out[1] = (unsigned char)(0x80 | (cp >> 6 & 0x3F));
    out[2] = (unsigned char)(0x80 | (cp & 0x3F));
    return 3;
  }
  out[0] = (unsigned char)(0xF0 | cp >> 18);
  out[1] = (unsigned char)(0x80 | (cp >> 12 & 0x3F));
  out[2] = (unsigned char)(0x80 | (cp >> 6 & 0x3F));
  out[3] = (unsigned char)(0x80 | (cp & 0x3F));
  return 4;
}

#endif
