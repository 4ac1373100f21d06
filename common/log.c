/* Logging: see log.h. */
#include "common/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static atomic_int log_level = TD_LOG_INFO; /* td_log_level */
static bool log_journal;

void td_log_set_level(td_log_level level) { atomic_store(&log_level, (int)level); }

void td_log_init(td_log_level level)
{
  td_log_set_level(level);
  /* sd-daemon(3): with stderr on the journal, "<N>" gives the priority and the time is known */
  const char *stream = getenv("JOURNAL_STREAM"); /* device:inode of the journal's socket */
  unsigned long long dev, ino;
  struct stat st;
  log_journal = stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 && fstat(STDERR_FILENO, &st) == 0 &&
                st.st_dev == dev && st.st_ino == ino;
}

void td_log(td_log_level level, const char *fmt, ...)
{
  static const int priority[] = {3, 4, 6, 7}; /* syslog: err, warning, info, debug */
  static const char *const name[] = {"error", "warn", "info", "debug"};
  char line[1024];
  if ((int)level > atomic_load_explicit(&log_level, memory_order_relaxed))
    return;
  int n;
  if (log_journal) {
    n = snprintf(line, sizeof line, "<%d>", priority[level]);
  } else {
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    n = snprintf(line, sizeof line, "%02d:%02d:%02d.%03ld %-5s ", tm.tm_hour, tm.tm_min, tm.tm_sec,
                 ts.tv_nsec / 1000000, name[level]);
  }
  va_list ap;
  va_start(ap, fmt);
  int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
  va_end(ap);
  if (m < 0)
    return;
  size_t len = (size_t)n + (size_t)m;
  if (len > sizeof line - 2)
    len = sizeof line - 2;
  for (size_t i = (size_t)n; i < len; i++) /* a line is one line, whatever is quoted in it */
    if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
      line[i] = '?';
  line[len++] = '\n';
  if (write(STDERR_FILENO, line, len) < 0) {
    /* nowhere to say it */
  }
}
