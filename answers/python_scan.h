/* A Python literal as it comes, made into JSON: None, True, False, numbers, strings, lists, dicts. In
 * constant memory but for its depth, which is bounded. What JSON cannot say (sets, bytes, other keys than
 * strings) is none of it. */
#ifndef TD_ANSWERS_PYTHON_SCAN_H
#define TD_ANSWERS_PYTHON_SCAN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"

enum { TD_PYTHON_WORD = 64 };

typedef struct td_python_scan {
  uint8_t state, depth, quote, n_escape, escape_digits, n_word;
  bool done, bad;
  bool in_key, comma;  /* comma: one is due before the next item */
  uint64_t dicts;      /* bit d: level d is a dict */
  uint32_t code, high; /* of an escape; high: the first half of a surrogate pair */
  char word[TD_PYTHON_WORD];
} td_python_scan;

void td_python_scan_begin(td_python_scan *s);
/* Reads up to n bytes, none behind the value's end or one that is wrong; returns how many. A word's end is
 * only known by what follows. */
size_t td_python_scan_push(td_python_scan *s, const char *in, size_t n, td_buf *out);

#endif
