/* See progress_line.h. */
#include "pull/progress_line.h"

#include <stdio.h>
#include <unistd.h>

#include "common/clock.h"

enum { TERMINAL_US = 200000, LINE_US = 10000000 };

const char *td_progress_line_format_bytes(uint64_t n, char out[32])
{
  static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB"};
  double v = (double)n;
  int u = 0;
  while (v >= 1000 && u < 4)
    v /= 1000, u++;
  snprintf(out, 32, u > 0 && v < 100 ? "%.1f %s" : "%.0f %s", v, units[u]);
  return out;
}

void td_progress_line_begin(td_progress_line *s, const char *what, uint64_t at, uint64_t total)
{
  s->what = what;
  s->total = total;
  s->begun_at = at;
  s->begun_us = s->last_us = td_clock_us();
}

void td_progress_line_update(td_progress_line *s, uint64_t at)
{
  char have[32], all[32], rate[32];
  bool terminal = isatty(STDERR_FILENO);
  uint64_t now = td_clock_us();
  if (s->quiet || (now - s->last_us < (terminal ? TERMINAL_US : LINE_US) && !(terminal && at == s->total)))
    return;
  s->last_us = now;
  double seconds = (double)(now - s->begun_us) * 1e-6;
  double per_s = seconds > 0 && at > s->begun_at ? (double)(at - s->begun_at) / seconds : 0;
  fprintf(stderr, "%s  %s: %s", terminal ? "\r\033[K" : "", s->what, td_progress_line_format_bytes(at, have));
  if (s->total != UINT64_MAX && s->total > 0)
    fprintf(stderr, " of %s, %.0f %%", td_progress_line_format_bytes(s->total, all),
            100.0 * (double)at / (double)s->total);
  fprintf(stderr, ", %s/s", td_progress_line_format_bytes((uint64_t)per_s, rate));
  if (s->total != UINT64_MAX && per_s > 0 && s->total >= at)
    fprintf(stderr, ", %.0f s left", (double)(s->total - at) / per_s);
  fputs(terminal ? "" : "\n", stderr);
  s->on_line = terminal;
}

void td_progress_line_end(td_progress_line *s)
{
  if (s->on_line)
    fputc('\n', stderr);
  s->on_line = false;
}
