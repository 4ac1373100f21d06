/* Golden texts that our own code wrote: compared line by line, or written again. For test_golden_programs.c
 * and tests/sim/sim_decisions.c. */
#ifndef TD_TESTS_GOLDEN_SAME_TEXT_H
#define TD_TESTS_GOLDEN_SAME_TEXT_H

#include <stdio.h>
#include <string.h>

#include "common/buf.h"

enum { SAME_TEXT_BYTES = 1 << 16 };

/* Reports the first line that differs. */
static inline bool same_text_is(const char *name, const char *got, const char *want)
{
  for (int line = 1; *got || *want; line++) {
    size_t n = strcspn(got, "\n"), m = strcspn(want, "\n");
    if (n != m || memcmp(got, want, n) != 0) {
      printf("%s, line %d: '%.*s', was '%.*s'\n", name, line, (int)n, got, (int)m, want);
      return false;
    }
    got += n + (got[n] == '\n');
    want += m + (want[m] == '\n');
  }
  return true;
}

static inline bool same_text_compare(const char *path, const char *name, const td_buf *got)
{
  static char want[SAME_TEXT_BYTES];
  FILE *f = fopen(path, "re");
  if (!f) {
    perror(path);
    return false;
  }
  want[fread(want, 1, sizeof want - 1, f)] = '\0';
  fclose(f);
  return same_text_is(name, got->data, want);
}

static inline bool same_text_write(const char *path, const td_buf *text)
{
  FILE *f = fopen(path, "we");
  if (!f || fwrite(text->data, 1, text->len_bytes, f) != text->len_bytes || fclose(f) != 0) {
    perror(path);
    return false;
  }
  return true;
}

#endif
