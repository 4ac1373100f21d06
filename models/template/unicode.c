/* Character classes and case: see unicode.h. */
#include "models/template/unicode.h"

#include <string.h>
#include <utf8proc.h>

#include "common/utf8.h"

size_t td_unicode_decode(const char *p, size_t n, uint32_t *cp)
{
  size_t len = td_utf8_sequence_length((const unsigned char *)p, n);
  if (len == 0) {
    *cp = 0xFFFD;
    return 1;
  }
  *cp = td_utf8_decode((const unsigned char *)p, len);
  return len;
}

bool td_unicode_is_space(uint32_t cp)
{
  if (cp < 0x80)
    return cp == ' ' || (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x1f);
  return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 ||
         cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

size_t td_unicode_space_at(const char *p, size_t n)
{
  uint32_t cp;
  if (n == 0)
    return 0;
  size_t len = td_unicode_decode(p, n, &cp);
  return td_unicode_is_space(cp) ? len : 0;
}

size_t td_unicode_length_before(const char *p, size_t n)
{
  for (size_t len = 1; len <= 4 && len <= n; len++)
    if (((unsigned char)p[n - len] & 0xC0) != 0x80)
      return td_utf8_sequence_length((const unsigned char *)p + n - len, len) == len ? len : 1;
  return 1;
}

size_t td_unicode_space_before(const char *p, size_t n)
{
  if (n == 0)
    return 0;
  size_t len = td_unicode_length_before(p, n);
  return td_unicode_space_at(p + n - len, len);
}

size_t td_unicode_line_end_at(const char *p, size_t n)
{
  uint32_t cp;
  if (n == 0)
    return 0;
  if (p[0] == '\r')
    return n > 1 && p[1] == '\n' ? 2 : 1;
  size_t len = td_unicode_decode(p, n, &cp);
  bool end =
      (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
  return end ? len : 0;
}

/* Sets of general categories. */
#define SET(name) (1u << UTF8PROC_CATEGORY_##name)
enum {
  LETTER = SET(LU) | SET(LL) | SET(LT) | SET(LM) | SET(LO),
  WORD = LETTER | SET(NL) | SET(ND) | SET(MN) | SET(MC),
  UNPRINTABLE = SET(CC) | SET(CF) | SET(CS) | SET(CO) | SET(CN) | SET(ZL) | SET(ZP) | SET(ZS),
};

static bool is_of(uint32_t cp, unsigned set) { return set >> utf8proc_category((utf8proc_int32_t)cp) & 1; }

size_t td_unicode_word_at(const char *p, size_t n)
{
  uint32_t cp;
  if (n == 0)
    return 0;
  unsigned char ch = (unsigned char)p[0];
  if (ch < 0x80)
    return ch == '_' || (ch >= '0' && ch <= '9') || ((ch | 32) >= 'a' && (ch | 32) <= 'z');
  size_t len = td_unicode_decode(p, n, &cp);
  return is_of(cp, WORD) ? len : 0;
}

size_t td_unicode_count(const char *p, size_t n)
{
  size_t count = 0;
  for (size_t i = 0; i < n; i++)
    count += ((unsigned char)p[i] & 0xC0) != 0x80;
  return count;
}

bool td_unicode_is_printable(uint32_t cp)
{
  if (cp < 0x80)
    return cp >= 0x20 && cp < 0x7f;
  return !is_of(cp, UNPRINTABLE);
}

bool td_unicode_is_alpha(uint32_t cp)
{
  if (cp < 0x80)
    return (cp | 32) >= 'a' && (cp | 32) <= 'z';
  return is_of(cp, LETTER);
}

bool td_unicode_is_digit(uint32_t cp)
{
  if (cp < 0x80)
    return cp >= '0' && cp <= '9';
  return is_of(cp, SET(ND));
}

bool td_unicode_is_upper(uint32_t cp) { return is_of(cp, SET(LU)); }
bool td_unicode_is_lower(uint32_t cp) { return is_of(cp, SET(LL)); }

static size_t put(utf8proc_int32_t cp, char *out)
{
  return td_utf8_encode((uint32_t)cp, (unsigned char *)out);
}

size_t td_unicode_upper(uint32_t cp, char *out)
{
  if (cp == 0xDF) { /* the only full mapping that is common in text */
    memcpy(out, "SS", 2);
    return 2;
  }
  return put(utf8proc_toupper((utf8proc_int32_t)cp), out);
}

size_t td_unicode_lower(uint32_t cp, char *out) { return put(utf8proc_tolower((utf8proc_int32_t)cp), out); }

size_t td_unicode_title(uint32_t cp, char *out)
{
  if (cp == 0xDF) {
    memcpy(out, "Ss", 2);
    return 2;
  }
  return put(utf8proc_totitle((utf8proc_int32_t)cp), out);
}
