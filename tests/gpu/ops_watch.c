/* See ops_watch.h. */
#include "ops_watch.h"

#include <execinfo.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CASE_MAX = 400, STEP_MAX = 6000, FRAMES_MAX = 64, ENDED = 124 };

/* Allocated beforehand, because a signal handler may only write. */
static char of_case[CASE_MAX] = "none", of_step[STEP_MAX];
static const char *of_backend = "none";
static unsigned limit_s;

static void say(const char *text)
{
  if (write(STDOUT_FILENO, text, strlen(text)) < 0)
    _exit(ENDED);
}

static void tell_where(int signal_number)
{
  void *frames[FRAMES_MAX];
  say(signal_number == SIGALRM ? "\na step did not end; case: " : "\nended from outside; case: ");
  say(of_case);
  say("; policy ");
  say(of_backend);
  say(of_step[0] ? "\nwaited for: " : "\nno step was waited for");
  say(of_step);
  say("\n");
  backtrace_symbols_fd(frames, backtrace(frames, FRAMES_MAX), STDOUT_FILENO);
  _exit(ENDED);
}

void watch_steps(uint32_t seconds)
{
  backtrace((void *[1]){NULL}, 1); /* its first call allocates, which a signal handler may not */
  signal(SIGTERM, tell_where);
  signal(SIGALRM, tell_where);
  limit_s = seconds;
}

void watch_policy(const char *name) { of_backend = name; }

void watch_case(uint64_t seed, const char *format, ...)
{
  va_list args;
  int n = snprintf(of_case, sizeof of_case, "seed %llu, ", (unsigned long long)seed);
  va_start(args, format);
  vsnprintf(of_case + n, sizeof of_case - (size_t)n, format, args);
  va_end(args);
}

/* Rows as {query tokens@keys}; those that do not fit are left out. */
static void describe(const char *what, const td_plan *plan, uint32_t n_rows)
{
  int n = snprintf(of_step, sizeof of_step, "%s, %u rows", what, n_rows);
  for (uint32_t i = 0; plan && i < plan->n_rows && n < STEP_MAX - 32; i++)
    n += snprintf(of_step + n, sizeof of_step - (size_t)n, " %u@%u", plan->rows[i].q_len,
                  plan->rows[i].kv_len);
}

static td_status ended(td_status st)
{
  alarm(0);
  of_step[0] = '\0';
  return st;
}

td_status watch_wait(td_backend *be, const td_plan *plan, td_outcome *out, td_error *err)
{
  describe("a step", plan, plan->n_rows);
  alarm(limit_s);
  return ended(td_backend_wait(be, out, err));
}

td_status watch_capture(td_backend *be, td_compiled *compiled, uint32_t least_rows, uint32_t n_rows,
                        td_capture *out, td_error *err)
{
  describe("a capture", NULL, n_rows);
  alarm(limit_s);
  return ended(be->ops->capture(be, compiled, least_rows, n_rows, out, err));
}
