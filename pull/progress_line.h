/* Shows the progress on stderr: a line that is rewritten on a terminal, or else a new line every 10
 * seconds. */
#ifndef TD_PULL_PROGRESS_LINE_H
#define TD_PULL_PROGRESS_LINE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct td_progress_line {
  bool quiet;
  const char *what;
  uint64_t total, begun_at, begun_us, last_us; /* total UINT64_MAX: unknown */
  bool on_line;
} td_progress_line;

void td_progress_line_begin(td_progress_line *s, const char *what, uint64_t at, uint64_t total);
void td_progress_line_update(td_progress_line *s, uint64_t at);
/* Ends the rewritten line, so that other text can follow. */
void td_progress_line_end(td_progress_line *s);
/* Formats a number of bytes, like "1.2 GB". */
const char *td_progress_line_format_bytes(uint64_t n, char out[32]);

#endif
