/* How far it is, on stderr: one line that is rewritten on a terminal, a line now and then elsewhere. */
#ifndef TD_PULL_SHOWN_H
#define TD_PULL_SHOWN_H

#include <stdbool.h>
#include <stdint.h>

typedef struct td_shown {
  bool quiet;
  const char *what;
  uint64_t total, begun_at, begun_us, last_us; /* total UINT64_MAX: not known */
  bool on_line;
} td_shown;

void td_shown_begin(td_shown *s, const char *what, uint64_t at, uint64_t total);
void td_shown_move(td_shown *s, uint64_t at);
/* Ends the rewritten line, so that other text may come. */
void td_shown_end(td_shown *s);
/* "1.2 GB" */
const char *td_shown_bytes(uint64_t n, char out[32]);

#endif
