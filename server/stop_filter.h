/* Stop strings, found wherever token borders fall.
 *
 * One automaton per stop string (Knuth, Morris, Pratt 1977) reads the answer byte by byte. The bytes that the
 * longest unfinished match covers are held back; all before them can go out. So the work per byte is bounded
 * by the number of stop strings whatever they are, and what comes out does not depend on how the text was
 * cut. Where several stop strings end at the same byte the longest wins. */
#ifndef TD_SERVER_STOP_FILTER_H
#define TD_SERVER_STOP_FILTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "config/limits.h"

/* Read-only after td_stop_set_add: shared by all choices of a request. */
typedef struct td_stop_set {
  uint32_t n;
  uint16_t length[TD_STOP_STRINGS_MAX];
  unsigned char *text[TD_STOP_STRINGS_MAX]; /* owned */
  uint16_t *fail[TD_STOP_STRINGS_MAX];      /* owned: fail[k] = longest proper border of the first k bytes */
} td_stop_set;

/* n bytes, 1 .. stop_string_bytes of limits.def. false: no memory or no room. */
bool td_stop_set_add(td_stop_set *set, const char *text, size_t n);
void td_stop_set_deinit(td_stop_set *set);

typedef struct td_stop_filter {
  bool keeps_stop;        /* the stop string that ends an answer stays in it */
  const td_stop_set *set; /* borrowed */
  uint16_t state[TD_STOP_STRINGS_MAX];
  td_buf held;
  bool matched;
  uint32_t found; /* which, once one is */
} td_stop_filter;

void td_stop_filter_init(td_stop_filter *f, const td_stop_set *set);
void td_stop_filter_deinit(td_stop_filter *f);
/* Appends to out what is certainly answer. Returns true once a stop string is complete: it and all behind it
 * are dropped, then and in later calls. */
bool td_stop_filter_push(td_stop_filter *f, const char *text, size_t n, td_buf *out);
/* The stop string that was found, with a NUL behind it; NULL: none was. */
const char *td_stop_filter_found(const td_stop_filter *f);
/* The answer has ended without a stop string: what is held goes out. */
void td_stop_filter_finish(td_stop_filter *f, td_buf *out);

#endif
