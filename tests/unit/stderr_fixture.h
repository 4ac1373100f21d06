/* Captures what this process writes to standard error, up to a pipe's size. */
#ifndef TD_TESTS_STDERR_FIXTURE_H
#define TD_TESTS_STDERR_FIXTURE_H

#include <unistd.h>

static char got[16384];
static int pipe_fds[2], real_stderr;

static void capture(void)
{
  assert_int_equal(pipe(pipe_fds), 0);
  real_stderr = dup(STDERR_FILENO);
  assert_true(real_stderr >= 0 && dup2(pipe_fds[1], STDERR_FILENO) == STDERR_FILENO);
}

/* Returns the text written since. */
static const char *captured(void)
{
  dup2(real_stderr, STDERR_FILENO);
  close(real_stderr);
  close(pipe_fds[1]);
  ssize_t n = read(pipe_fds[0], got, sizeof got - 1);
  close(pipe_fds[0]);
  got[n > 0 ? n : 0] = '\0';
  return got;
}

#endif
