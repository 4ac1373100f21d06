/* --help and --print-config, made from the tables. */
#include "config/options_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- --help ---- */

static void print_line(const char *name, const char *value_name, const char *help, const char *extra)
{
  char left[TD_OPTION_KEY_BYTES], spelled[TD_OPTION_KEY_BYTES];
  snprintf(left, sizeof left, "%s %s", td_option_spelled(name, TD_FROM_COMMAND_LINE, spelled), value_name);
  printf("  %-34s %s%s\n", left, help, extra);
}

void td_options_print_help(void)
{
  char extra[160];
  printf("tandemd %s: an LLM serving daemon. Clients speak the OpenAI API to it.\n\n"
         "usage: tandemd --model PATH [--listen HOST:PORT] [--config FILE] [options]\n\n"
         "Options can be set on the command line, in the environment (TANDEM_LISTEN=HOST:PORT) and in the "
         "options\n"
         "file (listen = HOST:PORT). The first of these wins. Numbers of bytes may end in K, M or G.\n",
         TD_VERSION);
  printf("\nCommands:\n");
  for (int i = 0; i < td_n_option_flags; i++)
    print_line(td_option_flags[i].name, i == 0 ? "FILE" : "", td_option_flags[i].help, "");
  for (const td_option_row *r = td_option_rows; r < td_option_rows + td_n_option_rows; r++) {
    const td_limit *l = &td_limits[r->limit];
    extra[0] = '\0';
    switch (r->kind) {
    case TD_OPTION_SECTION: printf("\n%s:\n", r->name); continue;
    case TD_OPTION_NUMBER: snprintf(extra, sizeof extra, " (default as the model says)"); break;
    case TD_OPTION_LIMIT:
      snprintf(extra, sizeof extra, " [%.0f, %.0f..%.0f %s]", l->def, l->min, l->max, l->unit);
      break;
    default:
      if (*r->def)
        snprintf(extra, sizeof extra, " (default %s)", r->def);
    }
    print_line(r->name, r->value_name, r->help, extra);
  }
}

/* ---- --print-config ---- */

/* Prints a value in the file's syntax (options_file.c), quoted if necessary. */
static void print_text(FILE *f, const char *s)
{
  size_t n = strlen(s), n_double = 0, n_single = 0;
  for (const char *c = s; *c; c++)
    n_double += *c == '"', n_single += *c == '\'';
  bool bare = n == 0 || (strcspn(s, "\"'#; \t") == n);
  char quote =
      n_double <= n_single ? '"' : '\''; /* the quote that occurs less often, because it must be doubled */
  if (bare) {
    fputs(s, f);
    return;
  }
  fputc(quote, f);
  for (; *s; s++) {
    if (*s == quote)
      fputc(quote, f);
    fputc(*s, f);
  }
  fputc(quote, f);
}

/* As few digits as reproduce the value, and no exponent. */
static void print_number(FILE *f, double v)
{
  char text[400];
  int digits = 0;
  do
    snprintf(text, sizeof text, "%.*f", digits, v);
  while (strtod(text, NULL) != v && ++digits < 390);
  fputs(text, f);
}

static void print_limit(FILE *f, const td_option_row *r, double v)
{
  static const char letters[] = "KMG";
  int k = -1;
  while (td_option_is_bytes(r) && v > 0 && k < 2 && fmod(v, 1024) == 0) {
    v /= 1024;
    k++;
  }
  fprintf(f, "%.0f", v);
  if (k >= 0)
    fputc(letters[k], f);
}

static void print_origin(FILE *f, const char *name, int32_t from)
{
  char spelled[TD_OPTION_KEY_BYTES];
  switch (from) {
  case TD_FROM_DEFAULT: fputs("default", f); break;
  case TD_FROM_COMMAND_LINE: fputs("command line", f); break;
  case TD_FROM_ENVIRONMENT: fputs(td_option_spelled(name, from, spelled), f); break;
  default: fprintf(f, "file, line %d", from);
  }
}

void td_options_print_config(const td_options *o, FILE *f)
{
  fprintf(
      f,
      "# Options of tandemd %s, and where each value comes from: command line, environment, file, default\n",
      TD_VERSION);
  if (*o->config)
    fprintf(f, "# file: %s\n", o->config);
  for (int i = 0; i < td_n_option_rows; i++) {
    const td_option_row *r = &td_option_rows[i];
    double v = 0;
    if (r->kind == TD_OPTION_NUMBER || r->kind == TD_OPTION_LIMIT)
      v = *(const double *)(const void *)td_option_text(o, r);
    if (r->kind == TD_OPTION_SECTION) {
      fprintf(f, "\n# %s\n", r->name);
      continue;
    }
    fprintf(f, "%s%s = ", v < 0 ? "# " : "", r->name);
    switch (r->kind) {
    case TD_OPTION_TEXT: print_text(f, td_option_text(o, r)); break;
    case TD_OPTION_LEVEL: fputs(r->words[o->log_level], f); break;
    case TD_OPTION_LIMIT: print_limit(f, r, v); break;
    default:
      if (v >= 0)
        print_number(f, v);
    }
    fputs("  # ", f);
    print_origin(f, r->name, o->from[i]);
    fputs(v < 0 ? ": as the model says\n" : "\n", f);
  }
}
