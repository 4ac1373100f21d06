/* Logging: see log.h. Lines are built on the stack, because some of them report that there is no memory. */
#include "common/log.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/utf8.h"

enum {
  MESSAGE_BYTES = 1024,
  LINE_BYTES = 4096,
  TAIL_BYTES = 4, /* room for the end of a line */
  WAIT_US = 50000 /* waiting per second, all lines together */
};

static atomic_int log_level = TD_LOG_INFO; /* td_log_level */
static bool log_journal, log_json;

void td_log_set_level(td_log_level level) { atomic_store(&log_level, (int)level); }

bool td_log_wants(td_log_level level)
{
  return (int)level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

void td_log_init(td_log_level level, bool json)
{
  td_log_set_level(level);
  log_json = json;
  /* sd-daemon(3): with stderr on the journal, "<N>" gives the priority and the time is known */
  const char *stream = getenv("JOURNAL_STREAM"); /* device:inode of the journal's socket */
  unsigned long long dev, ino;
  struct stat st;
  log_journal = stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 && fstat(STDERR_FILENO, &st) == 0 &&
                st.st_dev == dev && st.st_ino == ino;
}

/* ---- a line ---- */

typedef struct line {
  char text[LINE_BYTES];
  size_t n;
  bool full; /* something did not fit; nothing more is added */
  bool is_error;
} line;

static void put(line *l, const char *s, size_t n)
{
  if (n > sizeof l->text - TAIL_BYTES - l->n)
    l->full = true;
  if (l->full)
    return;
  memcpy(l->text + l->n, s, n);
  l->n += n;
}

static void put_text(line *l, const char *s) { put(l, s, strlen(s)); }

static void put_format(line *l, const char *fmt, ...) TD_PRINTF(2, 3);
static void put_format(line *l, const char *fmt, ...)
{
  char text[128];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  put_text(l, text);
}

/* Appends s so that the line stays one line of valid text. quoted: '"' and '\' are escaped, as in JSON. */
static void put_clean(line *l, const char *s, bool quoted)
{
  size_t n = strlen(s);
  for (size_t i = 0, len; i < n; i += len) {
    const unsigned char *at = (const unsigned char *)s + i;
    len = td_utf8_sequence_length(at, n - i);
    bool bad = len == 0 || td_utf8_is_control(at);
    if (len == 0)
      len = 1;
    if (quoted && (s[i] == '"' || s[i] == '\\'))
      put(l, "\\", 1);
    put(l, bad ? "?" : s + i, bad ? 1 : len);
  }
}

/* Appends the end of the line, for which TAIL_BYTES are reserved. */
static void put_end(line *l)
{
  size_t n = log_json ? 2 : 1;
  memcpy(l->text + l->n, log_json ? "}\n" : "\n", n);
  l->n += n;
}

static void put_time(line *l)
{
  struct timespec ts;
  struct tm tm;
  clock_gettime(CLOCK_REALTIME, &ts);
  gmtime_r(&ts.tv_sec, &tm);
  put_format(l, "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ", tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday,
             tm.tm_hour, tm.tm_min, tm.tm_sec, ts.tv_nsec / 1000000);
}

static void begin(line *l, td_log_level level)
{
  static const int priority[] = {3, 4, 6, 7}; /* syslog: err, warning, info, debug */
  static const char *const name[] = {"error", "warn", "info", "debug"};
  l->n = 0;
  l->full = false;
  l->is_error = level == TD_LOG_ERROR;
  if (log_journal)
    put_format(l, "<%d>", priority[level]);
  if (log_json) {
    put_text(l, "{\"time\":\"");
    put_time(l);
    put_format(l, "\",\"level\":\"%s\"", name[level]);
  } else if (!log_journal) {
    put_time(l);
    put_format(l, " %-5s ", name[level]);
  }
}

/* Whether a write to stderr will not block. If the reader (of a pipe, or the journal) has stopped reading, a
 * write would block the calling thread, perhaps the loop. A reader that is only slow gets some time: all
 * lines together wait at most WAIT_US in each second. */
static bool is_ready(bool may_wait)
{
  static uint64_t second_us, waited_us;
  struct pollfd f = {.fd = STDERR_FILENO, .events = POLLOUT};
  if (poll(&f, 1, 0) == 1)
    return true;
  uint64_t begin_us = td_clock_us();
  if (begin_us - second_us >= 1000000) {
    second_us = begin_us;
    waited_us = 0;
  }
  if (!may_wait || waited_us >= WAIT_US)
    return false;
  bool ready = poll(&f, 1, (int)((WAIT_US - waited_us + 999) / 1000)) == 1;
  waited_us += td_clock_us() - begin_us;
  return ready;
}

/* Writes a line if stderr is ready. A ready pipe has room for PIPE_BUF bytes and a ready socket for more, so
 * both take a whole line. A terminal may have less room, and its write blocks. */
static bool take(const line *l, bool may_wait)
{
  _Static_assert(LINE_BYTES <= PIPE_BUF, "a ready pipe takes a line");
  return is_ready(may_wait) && write(STDERR_FILENO, l->text, l->n) == (ssize_t)l->n;
}

/* After lines have been lost, only errors wait for the reader: an error may be the last line, and give the
 * reason. */
static void end(line *l)
{
  /* between poll and write, no other thread may use up the room */
  static pthread_mutex_t one_writes = PTHREAD_MUTEX_INITIALIZER;
  static unsigned long n_lost;
  put_end(l);
  pthread_mutex_lock(&one_writes);
  bool may_wait = n_lost == 0 || l->is_error;
  if (n_lost > 0) {
    line lost;
    begin(&lost, TD_LOG_WARN);
    put_format(&lost,
               log_json ? ",\"message\":\"%lu lines before are lost: stderr took none\""
                        : "%lu lines before are lost: stderr took none",
               n_lost);
    put_end(&lost);
    n_lost = take(&lost, may_wait) ? 0 : n_lost;
  }
  n_lost += n_lost > 0 || !take(l, may_wait);
  pthread_mutex_unlock(&one_writes);
}

void td_log(td_log_level level, const char *fmt, ...)
{
  char message[MESSAGE_BYTES];
  line l;
  va_list ap;
  if (!td_log_wants(level))
    return;
  va_start(ap, fmt);
  int n = vsnprintf(message, sizeof message, fmt, ap);
  va_end(ap);
  if (n < 0)
    return;
  begin(&l, level);
  if (log_json)
    put_text(&l, ",\"message\":\"");
  put_clean(&l, message, log_json);
  if (log_json)
    put_text(&l, "\"");
  end(&l);
}

/* ---- fields ---- */

static bool is_word(const char *s) { return *s && s[strcspn(s, " =\"\\")] == '\0'; }

static void put_field(line *l, const td_log_field *f)
{
  size_t before = l->n;
  put_format(l, log_json ? ",\"%s\":" : " %s=", f->name);
  if (!f->text) {
    put_format(l, "%.*f", f->digits, f->number);
  } else {
    bool quoted = log_json || !is_word(f->text);
    put_text(l, quoted ? "\"" : "");
    put_clean(l, f->text, quoted);
    put_text(l, quoted ? "\"" : "");
  }
  if (l->full)
    l->n = before;
  l->full = false;
}

void td_log_event(td_log_level level, const char *event, const td_log_field *fields, size_t n)
{
  line l;
  if (!td_log_wants(level))
    return;
  begin(&l, level);
  put_format(&l, log_json ? ",\"event\":\"%s\"" : "%s", event);
  for (size_t i = 0; i < n; i++)
    put_field(&l, &fields[i]);
  end(&l);
}
