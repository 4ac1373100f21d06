/* Finds the end of a JSON value, or that it is invalid, in text that comes in parts: byte by byte and in
 * constant memory. Valid text is copied unchanged. A control character in a string is copied as its escape,
 * because JSON forbids such characters but models write them. Depth is bounded. */
#ifndef TD_ANSWERS_JSON_SCAN_H
#define TD_ANSWERS_JSON_SCAN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"

typedef struct td_json_scan {
  uint8_t state, depth, n_hex;
  bool in_key;         /* the string is the name of a member */
  bool done, bad;      /* done: the value is complete; bad: it is invalid */
  uint64_t objects;    /* bit d: level d is an object */
  const char *letters; /* the rest of true, false or null */
} td_json_scan;

void td_json_scan_begin(td_json_scan *s);
/* Reads up to n bytes, but stops after the end of the value and at an invalid byte. Returns how many it
 * read, and appends them to out (may be NULL). The end of a number is found only at the byte after it. */
size_t td_json_scan_push(td_json_scan *s, const char *in, size_t n, td_buf *out);
/* Appends one byte of text as it is written within a JSON string. */
void td_json_scan_char(unsigned char c, td_buf *out);

#endif
