/* The options file: UTF-8 text of `key = value` lines.
 *
 * A comment begins with '#' or ';' at the start of a value or after a blank, and ends the value. So a path
 * may contain both characters. A value that begins with a quote (" or ') ends at the next quote of that kind;
 * a doubled quote stands for one. Quotes elsewhere are refused, because their meaning would be ambiguous. */
#include "config/options_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/io.h"

typedef struct options_file {
  td_options *o;
  FILE *file;
  const char *path;
  int32_t line;
  bool seen[TD_OPTION_ROWS_MAX]; /* to refuse repeats */
  char where[TD_OPTION_STRING_BYTES + 32];
} options_file;

/* Reads a line without its newline. Returns false at the end of the file or on a read error. Also returns
 * false, and sets *st, if the line is too long or is not text. */
static bool read_line(options_file *f, char *line, size_t size, td_status *st, td_error *err)
{
  size_t n = 0;
  int c;
  snprintf(f->where, sizeof f->where, "%s:%d", f->path, ++f->line);
  while ((c = getc(f->file)) != EOF && c != '\n') {
    if (n + 1 == size) {
      *st = td_fail(err, TD_ERR_CONFIG, "%s: line longer than %zu bytes", f->where, size - 1);
      return false;
    }
    line[n++] = (char)c;
  }
  if (n > 0 && line[n - 1] == '\r')
    n--;
  line[n] = '\0';
  size_t bad = td_option_find_invalid_text(line, n);
  if (bad > 0) {
    *st = td_fail(err, TD_ERR_CONFIG, "%s: byte %zu of the line is not text", f->where, bad);
    return false;
  }
  return n > 0 || c != EOF;
}

static bool is_blank(char c) { return c == ' ' || c == '\t'; }
static bool is_quote(char c) { return c == '"' || c == '\''; }
static bool is_comment(char c) { return c == '#' || c == ';'; }

static char *trim(char *s)
{
  while (is_blank(*s))
    s++;
  size_t n = strlen(s);
  while (n > 0 && is_blank(s[n - 1]))
    n--;
  s[n] = '\0';
  return s;
}

/* s begins with a quote. Moves the text between the quotes to the front of s. */
static td_status read_quoted(options_file *f, const char *key, char *s, td_error *err)
{
  char quote = *s, *to = s, *c = s + 1;
  for (; *c != '\0' && (*c != quote || c[1] == quote); c++) {
    c += *c == quote;
    *to++ = *c;
  }
  if (*c == '\0')
    return td_fail_param(err, TD_ERR_CONFIG, key, "%s: %s: the value has no closing %c", f->where, key,
                         quote);
  const char *rest = trim(c + 1);
  if (*rest != '\0' && !is_comment(*rest))
    return td_fail_param(err, TD_ERR_CONFIG, key,
                         "%s: %s: '%s' behind the closing %c (within the value, write %c%c for %c)", f->where,
                         key, rest, quote, quote, quote, quote);
  *to = '\0';
  return TD_OK;
}

static td_status read_bare(options_file *f, const char *key, char *s, td_error *err)
{
  char *c = s;
  for (; *c != '\0' && !(is_comment(*c) && (c == s || is_blank(c[-1]))); c++)
    if (is_quote(*c))
      return td_fail_param(
          err, TD_ERR_CONFIG, key,
          "%s: %s: a quote within the value: put the whole value between quotes, and write a "
          "quote of that kind twice",
          f->where, key);
  *c = '\0';
  trim(s);
  return TD_OK;
}

static td_status parse_line(options_file *f, char *line, td_error *err)
{
  char *key = trim(line), *equals = strchr(key, '=');
  if (*key == '\0' || is_comment(*key))
    return TD_OK;
  if (*key == '[')
    return td_fail(err, TD_ERR_CONFIG, "%s: sections are not used: %s", f->where, key);
  if (!equals)
    return td_fail(err, TD_ERR_CONFIG, "%s: '%s' is not of the form key = value", f->where, key);
  *equals = '\0';
  key = trim(key);
  int row = td_option_find(key);
  if (row < 0)
    return td_option_unknown(key, f->where, f->line, err);
  if (f->seen[row])
    return td_fail_param(err, TD_ERR_CONFIG, key, "%s: '%s' is set twice", f->where, key);
  f->seen[row] = true;
  char *value = trim(equals + 1);
  TD_TRY(is_quote(*value) ? read_quoted(f, key, value, err) : read_bare(f, key, value, err));
  return td_option_set(f->o, row, value, f->where, f->line, err);
}

td_status td_options_read_file(td_options *o, const char *path, td_error *err)
{
  static const char bom[] = "\xEF\xBB\xBF";
  options_file f = {.o = o, .path = path};
  size_t size = td_limit_max(TD_LIMIT_OPTIONS_LINE_BYTES) + 1;
  if (strlen(path) >= sizeof o->config || td_option_find_invalid_text(path, strlen(path)) > 0)
    return td_fail_param(err, TD_ERR_CONFIG, "config", "%s: not text, or longer than %zu bytes", path,
                         sizeof o->config - 1);
  snprintf(o->config, sizeof o->config, "%s", path);
  char *line = malloc(size);
  if (!line)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the options file");
  const char *why;
  f.file = td_file_open(path, &why);
  if (!f.file) {
    free(line);
    return td_fail_param(err, TD_ERR_CONFIG, "config", "%s: %s", path, why);
  }
  td_status st = TD_OK;
  errno = 0;
  while (st == TD_OK && read_line(&f, line, size, &st, err))
    st = parse_line(&f, f.line == 1 && strncmp(line, bom, 3) == 0 ? line + 3 : line, err);
  if (st == TD_OK && ferror(f.file))
    st = td_fail_param(err, TD_ERR_CONFIG, "config", "%s: %s", path, strerror(errno));
  fclose(f.file);
  free(line);
  return st;
}
