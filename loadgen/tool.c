/* See tool.h. */
#include "loadgen/tool.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"

enum { BAR_CELLS = 24, QUIET_EVERY_S = 15 };

double td_tool_now_s(void) { return 1e-9 * (double)td_clock_ns(); }

double td_tool_cpu_s(void)
{
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void td_tool_die(const char *fmt, ...)
{
  va_list args;
  va_start(args, fmt);
  fprintf(stderr, "%s: ", program_invocation_short_name); /* it is not always tandem-bench */
  vfprintf(stderr, fmt, args);
  fprintf(stderr, "\n");
  va_end(args);
  exit(1);
}

void td_tool_check(td_status st, const td_error *err)
{
  if (st != TD_OK)
    td_tool_die("%s", err->message);
}

void *td_tool_alloc(size_t n, size_t size)
{
  void *p = calloc(n > 0 ? n : 1, size);
  if (!p)
    td_tool_die("no memory for %zu x %zu bytes", n, size);
  return p;
}

void td_tool_grow(void **p, size_t *cap, size_t need, size_t size)
{
  if (need <= *cap)
    return;
  size_t want = *cap < 16 ? 16 : *cap * 2;
  if (want < need)
    want = need;
  *p = realloc(*p, want * size);
  if (!*p)
    td_tool_die("no memory for %zu x %zu bytes", want, size);
  *cap = want;
}

/* ---- options ---- */

static td_status set_arg(const td_arg *a, const char *value, td_error *err)
{
  char *end;
  if (a->kind == TD_ARG_TEXT) {
    *(const char **)a->to = value;
    return TD_OK;
  }
  double v = strtod(value, &end);
  if (end == value || *end || !isfinite(v))
    return td_fail(err, TD_ERR_CONFIG, "%s: '%s' is not a number", a->name, value);
  *(double *)a->to = v;
  return TD_OK;
}

static const td_arg *find_arg(const td_arg *args, size_t n_args, const char *word, size_t len)
{
  for (size_t i = 0; i < n_args; i++)
    if (strlen(args[i].name) == len && memcmp(args[i].name, word, len) == 0)
      return &args[i];
  return NULL;
}

td_status td_tool_read_args(const td_arg *args, size_t n_args, int argc, char **argv, td_error *err)
{
  for (int i = 1; i < argc; i++) {
    size_t len = strcspn(argv[i], "=");
    const char *inline_value = argv[i][len] ? argv[i] + len + 1 : NULL;
    const td_arg *a = find_arg(args, n_args, argv[i], len);
    if (!a)
      return td_fail(err, TD_ERR_CONFIG, "no option '%s'", argv[i]);
    if (a->kind == TD_ARG_FLAG) {
      if (inline_value)
        return td_fail(err, TD_ERR_CONFIG, "%s takes no value", a->name);
      *(bool *)a->to = true;
      continue;
    }
    if (!inline_value && i + 1 >= argc)
      return td_fail(err, TD_ERR_CONFIG, "%s needs a value", a->name);
    TD_TRY(set_arg(a, inline_value ? inline_value : argv[++i], err));
  }
  return TD_OK;
}

void td_tool_args(const char *program, const char *about, const td_arg *args, size_t n_args, int argc,
                  char **argv)
{
  td_error err;
  for (int i = 1; i < argc; i++)
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      printf("usage: %s [options]\n\n%s\n\n", program, about);
      for (size_t k = 0; k < n_args; k++)
        printf("  %s %-*s %s\n", args[k].name, 24 - (int)strlen(args[k].name),
               args[k].value ? args[k].value : "", args[k].help);
      exit(0);
    }
  if (td_tool_read_args(args, n_args, argc, argv, &err) != TD_OK) {
    fprintf(stderr, "%s: %s; --help lists the options\n", program, err.message);
    exit(64);
  }
}

td_status td_tool_read_list(const char *text, double *out, size_t max, size_t *n, td_error *err)
{
  const char *at = text;
  *n = 0;
  do {
    char *end;
    double v = strtod(at, &end);
    if (end == at || (*end && *end != ',') || !isfinite(v))
      return td_fail(err, TD_ERR_CONFIG, "'%s' is not a list of numbers", text);
    if (*n == max)
      return td_fail(err, TD_ERR_CONFIG, "'%s' has more than %zu numbers", text, max);
    out[(*n)++] = v;
    at = *end ? end + 1 : NULL;
  } while (at);
  return TD_OK;
}

bool td_tool_in_list(const char *list, const char *word)
{
  size_t n = strlen(word);
  for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
    if (strncmp(at, word, n) == 0 && (at[n] == ',' || !at[n]))
      return true;
  return !list;
}

/* ---- progress ---- */

void td_tool_progress(double share, const char *fmt, ...)
{
  static double last_s;
  static bool open_line;
  bool tty = isatty(STDERR_FILENO);
  double now = td_tool_now_s();
  char text[256];
  if (share < 0) {
    if (open_line)
      fprintf(stderr, "\r\033[K");
    open_line = false;
    last_s = 0;
    return;
  }
  if (!tty && last_s == 0)
    last_s = now;
  if (now - last_s < (tty ? 0.1 : QUIET_EVERY_S))
    return;
  last_s = now;
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  share = share > 1 ? 1 : share;
  if (tty) {
    int full = (int)(share * BAR_CELLS);
    fprintf(stderr, "\r\033[K  [%.*s%.*s] %3.0f%%  %s", full, "########################", BAR_CELLS - full,
            "........................", share * 100, text);
    open_line = true;
  } else {
    fprintf(stderr, "  %3.0f%%  %s\n", share * 100, text);
  }
  fflush(stderr);
}

void td_tool_machine(char *out, size_t size)
{
  char line[256], cpu[160] = "unknown CPU";
  FILE *f = fopen("/proc/cpuinfo", "re");
  while (f && fgets(line, sizeof line, f)) {
    char *colon = strchr(line, ':');
    if (strncmp(line, "model name", 10) == 0 && colon) {
      size_t n = strcspn(colon + 2, "\n");
      snprintf(cpu, sizeof cpu, "%.*s", n < sizeof cpu ? (int)n : (int)sizeof cpu - 1, colon + 2);
      break;
    }
  }
  if (f)
    fclose(f);
  snprintf(out, size, "%s, %ld cores", cpu, sysconf(_SC_NPROCESSORS_ONLN));
}

void td_tool_add_command(cJSON *o, int argc, char **argv)
{
  cJSON *command = cJSON_AddArrayToObject(o, "command");
  for (int i = 1; i < argc; i++)
    cJSON_AddItemToArray(command, cJSON_CreateString(argv[i]));
}

void td_tool_write_json(const char *path, const cJSON *o)
{
  char *text = cJSON_Print(o);
  FILE *f = text ? fopen(path, "we") : NULL;
  if (!f || fprintf(f, "%s\n", text) < 0 || fclose(f) != 0)
    td_tool_die("%s: %m", path);
  cJSON_free(text);
}
