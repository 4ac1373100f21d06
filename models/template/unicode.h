/* Properties of characters, as Python's str defines them: white space, line ends, letters, case. Input is
 * valid UTF-8. A stray byte counts as one character, so that nothing here can run past the end. */
#ifndef TD_MODELS_TEMPLATE_UNICODE_H
#define TD_MODELS_TEMPLATE_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes the character at p (n > 0 bytes) and returns its length. For a stray byte, returns 1 and sets *cp
 * to 0xFFFD. */
size_t td_unicode_decode(const char *p, size_t n, uint32_t *cp);
/* Length of the white-space character at p, or 0. */
size_t td_unicode_space_at(const char *p, size_t n);
/* Length of the white-space character that ends p[0, n), or 0. */
size_t td_unicode_space_before(const char *p, size_t n);
/* Length of the last character of p[0, n), n > 0. */
size_t td_unicode_length_before(const char *p, size_t n);
/* Length of the line end at p (\r\n counts as one), or 0. */
size_t td_unicode_line_end_at(const char *p, size_t n);
/* Length of the identifier character at p, or 0. */
size_t td_unicode_word_at(const char *p, size_t n);
size_t td_unicode_count(const char *p, size_t n);

bool td_unicode_is_space(uint32_t cp);
bool td_unicode_is_printable(uint32_t cp);
bool td_unicode_is_alpha(uint32_t cp);
bool td_unicode_is_digit(uint32_t cp);
bool td_unicode_is_upper(uint32_t cp);
bool td_unicode_is_lower(uint32_t cp);
/* Writes the mapped character(s) to out (at least 12 bytes); returns the bytes written. */
size_t td_unicode_upper(uint32_t cp, char *out);
size_t td_unicode_lower(uint32_t cp, char *out);
size_t td_unicode_title(uint32_t cp, char *out);

#endif
