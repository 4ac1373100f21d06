/* Unknown fields: see unknown.h. */
#include "server/unknown.h"

#include <ctype.h>
#include <string.h>

#include "common/log.h"

#define BETWEEN ", "
#define MORE "..."

static bool is_plain(char c)
{
  return (isascii((unsigned char)c) && isalnum((unsigned char)c)) || strchr("_.-", c);
}

/* out has TD_UNKNOWN_NAME_BYTES. */
static void write_name(const char *path, const char *name, char *out)
{
  size_t n = 0, max = TD_UNKNOWN_NAME_BYTES - 1;
  for (const char *p = path; *p && n < max; p++) /* written by us: "messages[3].content[0]." */
    if (!isdigit((unsigned char)*p))
      out[n++] = *p;
  for (const char *p = name; *p && n < max; p++)
    out[n++] = is_plain(*p) ? *p : '?';
  out[n] = '\0';
}

/* The next name, of *n bytes at *at. Returns false at the end. */
static bool next_name(const char **at, size_t *n)
{
  if (**at == ',')
    *at += strlen(BETWEEN);
  *n = strcspn(*at, ",");
  return *n > 0;
}

/* text has TD_UNKNOWN_NAME_BYTES, because it may be overwritten by "...". */
static void add_text(td_unknown *u, char *text)
{
  size_t used = strlen(u->names), n;
  for (const char *at = u->names; next_name(&at, &n); at += n)
    if ((n == strlen(text) && memcmp(at, text, n) == 0) || strcmp(at, MORE) == 0)
      return;
  if (used + strlen(BETWEEN) + strlen(text) + strlen(BETWEEN MORE) >= sizeof u->names)
    strcpy(text, MORE);
  strcpy(u->names + used, used > 0 ? BETWEEN : "");
  strcat(u->names + used, text);
}

void td_unknown_add(td_unknown *u, const char *path, const char *name)
{
  char text[TD_UNKNOWN_NAME_BYTES];
  write_name(path, name, text);
  add_text(u, text);
}

void td_unknown_merge(td_unknown *u, const td_unknown *more)
{
  char text[TD_UNKNOWN_NAME_BYTES];
  size_t n;
  for (const char *at = more->names; next_name(&at, &n); at += n) {
    memcpy(text, at, n);
    text[n] = '\0';
    add_text(u, text);
  }
}

void td_unknown_render(const td_unknown *u, td_buf *out)
{
  if (*u->names)
    td_buf_printf(out, "x-tandem-ignored: %s\r\n", u->names);
}

static bool is_logged(const td_unknown_log *log, const char *name, size_t n)
{
  for (uint32_t i = 0; i < log->n; i++)
    if (strlen(log->names[i]) == n && memcmp(log->names[i], name, n) == 0)
      return true;
  return false;
}

uint32_t td_unknown_log_new(td_unknown_log *log, const td_unknown *u)
{
  uint32_t before = log->n;
  size_t n;
  for (const char *at = u->names; log->n < TD_UNKNOWN_LOGGED && next_name(&at, &n); at += n) {
    if (strcmp(at, MORE) == 0 || is_logged(log, at, n))
      continue;
    memcpy(log->names[log->n], at, n);
    log->names[log->n][n] = '\0';
    td_info(
        "a request has a field '%s', which is not known and is ignored (strict_fields = 1 refuses such)%s",
        log->names[log->n], log->n + 1 == TD_UNKNOWN_LOGGED ? "; no more of them are told" : "");
    log->n++;
  }
  return log->n - before;
}
