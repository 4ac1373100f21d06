/* Shows the progress on stderr: a line that is rewritten on a terminal, or else a new line every 10
 * seconds. */
#ifndef TD_PULL_SHOWN_H
#define TD_PULL_SHOWN_H

#include <stdbool.h>
#include <stdint.h>

typedef struct td_shown {
  bool quiet;
  const char *what;
  uint64_t total, begun_at, begun_us, last_us; /* total UINT64_MAX: unknown */
  bool on_line;
} td_shown;

void td_shown_begin(td_shown *s, const char *what, uint64_t at, uint64_t total);
void td_shown_move(td_shown *s, uint64_t at);
/* Ends the rewritten line, so that other text can follow. */
void td_shown_end(td_shown *s);
/* Formats a number of bytes, like "1.2 GB". */
const char *td_shown_bytes(uint64_t n, char out[32]);

#endif
