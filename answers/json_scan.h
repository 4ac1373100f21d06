/* JSON as it comes: says where a value ends, or that it is none, byte by byte and in constant memory. What is
 * valid passes as it stands; a control character in a string, which models write and JSON forbids, passes as
 * its escape. Depth is bounded. */
#ifndef TD_ANSWERS_JSON_SCAN_H
#define TD_ANSWERS_JSON_SCAN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"

typedef struct td_json_scan {
  uint8_t state, depth, n_hex;
  bool in_key;         /* the string is a member's name */
  bool done, bad;      /* the value is complete; it is no JSON */
  uint64_t objects;    /* bit d: level d is an object */
  const char *letters; /* what is left of true, false or null */
} td_json_scan;

void td_json_scan_begin(td_json_scan *s);
/* Reads up to n bytes, and none behind the value's end or a byte that is wrong. Returns how many; out (NULL:
 * nowhere) gets them. A number's end is only known by what follows. */
size_t td_json_scan_push(td_json_scan *s, const char *in, size_t n, td_buf *out);
/* One byte of a string's text as JSON has it. */
void td_json_scan_char(unsigned char c, td_buf *out);

#endif
