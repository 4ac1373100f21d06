/* Finds stop strings in an answer, wherever token borders fall.
 *
 * Each stop string has an automaton (Knuth, Morris, Pratt 1977) that reads the answer byte by byte. The
 * bytes that the longest unfinished match covers are held back; everything before them can be sent. The work
 * per byte is bounded by the number of stop strings, whatever they contain, and the output does not depend
 * on how the text was cut into tokens. If several stop strings end at the same byte, the longest wins. */
#ifndef TD_SERVER_STOP_FILTER_H
#define TD_SERVER_STOP_FILTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "config/limits.h"

/* Complete after the last td_stop_set_add, then read-only and shared by all choices of a request. */
typedef struct td_stop_set {
  uint32_t n;
  uint16_t length[TD_STOP_STRINGS_MAX];
  unsigned char *text[TD_STOP_STRINGS_MAX]; /* owned */
  uint16_t *fail[TD_STOP_STRINGS_MAX]; /* owned; fail[k] is the length of the longest proper border of the
                                          first k bytes */
} td_stop_set;

/* n: 1 to stop_string_bytes of limits.def. Returns false if there is no memory, or the set is full. */
bool td_stop_set_add(td_stop_set *set, const char *text, size_t n);
void td_stop_set_deinit(td_stop_set *set);

typedef struct td_stop_filter {
  bool keeps_stop;        /* the answer includes the stop string that ended it */
  const td_stop_set *set; /* borrowed */
  uint16_t state[TD_STOP_STRINGS_MAX];
  td_buf unsent;
  bool matched;
  uint32_t found; /* index of the stop string, once matched */
} td_stop_filter;

void td_stop_filter_init(td_stop_filter *f, const td_stop_set *set);
void td_stop_filter_deinit(td_stop_filter *f);
/* Appends to out the text that certainly belongs to the answer. Returns true once a stop string is complete.
 * That string and all text after it are dropped, in this call and in later ones. */
bool td_stop_filter_push(td_stop_filter *f, const char *text, size_t n, td_buf *out);
/* The stop string that was found, terminated by NUL; NULL if none was. */
const char *td_stop_filter_found(const td_stop_filter *f);
/* Appends the bytes held back, when the answer has ended without a stop string. */
void td_stop_filter_finish(td_stop_filter *f, td_buf *out);

#endif
