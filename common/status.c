/* Error messages: formatting and cleaning; aborting on broken invariants. */
#include "common/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/utf8.h"

/* Messages end up in logs and in JSON: they must be printable UTF-8 whatever they quote. */
static void message_clean(char *s)
{
  size_t len = strlen(s), i = 0;
  while (i < len) {
    size_t n = td_utf8_sequence_length((const unsigned char *)s + i, len - i);
    if (n == 0 || td_utf8_is_control((const unsigned char *)s + i)) {
      s[i] = '?';
      n = 1;
    }
    i += n;
  }
}

static void error_fill(td_error *err, td_status code, const char *param, const char *fmt, va_list ap)
{
  /* formatted separately, because the arguments may quote *err itself */
  char message[TD_ERROR_MESSAGE_BYTES] = "";
  vsnprintf(message, sizeof message, fmt, ap);
  err->code = code;
  memmove(err->param, param, strnlen(param, sizeof err->param - 1) + 1);
  err->param[sizeof err->param - 1] = '\0';
  message_clean(err->param);
  strcpy(err->message, message);
  message_clean(err->message);
}

td_status td_fail(td_error *err, td_status code, const char *fmt, ...)
{
  if (err) {
    va_list ap;
    va_start(ap, fmt);
    error_fill(err, code, "", fmt, ap);
    va_end(ap);
  }
  return code;
}

td_status td_fail_param(td_error *err, td_status code, const char *param, const char *fmt, ...)
{
  if (err) {
    va_list ap;
    va_start(ap, fmt);
    error_fill(err, code, param, fmt, ap);
    va_end(ap);
  }
  return code;
}

td_status td_error_prefix(td_error *err, const char *fmt, ...)
{
  char old[TD_ERROR_MESSAGE_BYTES], prefix[TD_ERROR_MESSAGE_BYTES];
  va_list ap;
  memcpy(old, err->message, sizeof old);
  va_start(ap, fmt);
  vsnprintf(prefix, sizeof prefix, fmt, ap);
  va_end(ap);
  size_t room = sizeof err->message;
  int n = snprintf(err->message, room, "%s: ", prefix);
  if (n > 0 && (size_t)n < room)
    snprintf(err->message + n, room - (size_t)n, "%s", old);
  message_clean(err->message);
  return err->code;
}

void td_bug(const char *file, int line, const char *what)
{
  td_error_log("bug: %s:%d: %s", file, line, what); /* an unread pipe does not delay the abort: see log.h */
  abort();
}
