/* A growable byte string with a hard cap: for rendered text, JSON output, detokenised text.
 *
 * An append past the cap or past available memory sets `failed` and is dropped. So callers may append many
 * times and check once. data is NUL-terminated unless it is NULL. Not thread-safe. */
#ifndef TD_COMMON_BUF_H
#define TD_COMMON_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

typedef struct td_buf {
  char *data; /* owned, malloc */
  size_t len_bytes;
  size_t cap_bytes;
  size_t max_bytes; /* hard cap on len_bytes; 0: none */
  bool failed;
  bool is_full; /* `failed` because of the cap */
} td_buf;

void td_buf_init(td_buf *b, size_t max_bytes);
void td_buf_deinit(td_buf *b);
void td_buf_clear(td_buf *b); /* len 0, failed false; keeps the memory */
void td_buf_append(td_buf *b, const void *bytes, size_t n);
void td_buf_append_str(td_buf *b, const char *s);
void td_buf_append_char(td_buf *b, char c);
void td_buf_printf(td_buf *b, const char *fmt, ...) TD_PRINTF(2, 3);
void td_buf_append_uint(td_buf *b, uint64_t v);
/* Appends v >= 0 with one digit after the point. Much faster than %.1f. */
void td_buf_append_tenths(td_buf *b, double v);
/* Appends "[1,2,3]". */
void td_buf_append_json_ints(td_buf *b, const int32_t *v, size_t n);
/* Appends s (n bytes, any bytes) as a JSON string with quotes; invalid UTF-8 becomes U+FFFD. */
void td_buf_append_json_string(td_buf *b, const char *s, size_t n);
/* Drops the first n bytes (n <= len). */
void td_buf_consume(td_buf *b, size_t n);
/* Gives the bytes to the caller, who must free() them; b is empty afterwards. NULL if failed. */
char *td_buf_detach(td_buf *b, size_t *len_bytes);

#endif
