/* Converts a Python literal that comes in parts to JSON: None, True, False, numbers, strings, lists and
 * dicts. Needs constant memory; the depth is bounded. Literals that JSON cannot express are invalid (sets,
 * bytes, keys that are not strings). */
#ifndef TD_ANSWERS_PYTHON_SCAN_H
#define TD_ANSWERS_PYTHON_SCAN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"

enum { TD_PYTHON_WORD = 64 };

typedef struct td_python_scan {
  uint8_t state, depth, quote, n_escape, escape_digits, n_word;
  bool done, bad;
  bool in_key, comma;  /* comma: must be written before the next item */
  uint64_t dicts;      /* bit d: level d is a dict */
  uint32_t code, high; /* code: of the escape being read; high: first half of a surrogate pair */
  char word[TD_PYTHON_WORD];
} td_python_scan;

void td_python_scan_begin(td_python_scan *s);
/* Reads up to n bytes, but stops after the end of the value and at an invalid byte. Returns how many it
 * read. The end of a word is found only at the byte after it. */
size_t td_python_scan_push(td_python_scan *s, const char *in, size_t n, td_buf *out);

#endif
