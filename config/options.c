/* Options: one key table for the file and the command line. See options.h. */
#include "config/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"

typedef struct string_option {
  const char *name, *def, *value_name, *help;
  size_t offset, size;
  const char *const *words; /* the only values, NULL: any */
  const char *words_text;
} string_option;

static const char *const backends[] = {"auto", "cpu", "cuda", NULL}, *const load_formats[] = {"auto", "dummy",
                                                                                              NULL};
static const char *const policies[] = {"tandem", "sarathi", "prefill-first", "decode-first", "orca", NULL};

#define STRING(field, name, def, value, help)                                                                \
  {                                                                                                          \
    name, def, value, help, offsetof(td_options, field), sizeof(((td_options *)0)->field), NULL, NULL        \
  }
#define WORD(field, def, help, words, words_text)                                                            \
  {                                                                                                          \
#field, def, "NAME", help, offsetof(td_options, field), sizeof(((td_options *)0)->field), words,         \
        words_text                                                                                           \
  }
static const string_option string_options[] = {
    STRING(model, "model", "", "PATH", "GGUF file, or folder with config.json and safetensors"),
    STRING(listen, "listen", "127.0.0.1:8080", "ADDR", "HOST:PORT, [IPv6]:PORT or unix:PATH"),
    STRING(served_model_name, "served_model_name", "", "NAME",
           "model id in the API; default: the file's name"),
    STRING(api_key_file, "api_key_file", "", "PATH", "one API key a line; none: no key is asked"),
    STRING(allowed_hosts, "allowed_hosts", "", "LIST",
           "without keys: names that requests may have as Host, beside IP addresses, localhost and the "
           "listen address; *: any"),
    STRING(cors_origin, "cors_origin", "", "LIST",
           "origins whose web pages may use the API, such as https://chat.example.com; *: any; none: only "
           "the page at /"),
    STRING(trusted_proxies, "trusted_proxies", "", "LIST",
           "addresses and ADDRESS/BITS, with commas between, whose connections are not counted by address"),
    STRING(trace, "trace", "", "FILE", "write what host and device do in each step there, as a Chrome trace"),
    STRING(chat_template, "chat_template", "", "PATH", "Jinja file in place of the model's own template"),
    STRING(cache_dir, "cache_dir", "auto", "PATH",
           "folder for what was measured about the device; auto: $CACHE_DIRECTORY, $XDG_CACHE_HOME/tandem or "
           "~/.cache/tandem; empty: none"),
    WORD(backend, "auto", "auto, cpu or cuda", backends, "auto, cpu or cuda"),
    WORD(load_format, "auto", "auto, or dummy: weights are random, config.json is all that is needed",
         load_formats, "auto or dummy"),
    WORD(policy, "tandem", "what a step is made of: tandem; others for comparison", policies,
         "tandem, sarathi, prefill-first, decode-first or orca"),
};
#undef STRING
#undef WORD
enum { N_STRING_OPTIONS = sizeof string_options / sizeof string_options[0] };

/* What an earlier version had: refused, with what takes its place. */
static const struct {
  const char *name, *instead;
} removed_options[] = {
    {"tbt_target_ms",
     "tbt_slo_ms is the most that a step with prompts takes; how long it takes below that follows who "
     "waits"},
    {"ttft_target_ms",
     "a prompt waits for shorter ones by slack_percent; a request's ttft_timeout_ms lets it go first"},
    {"attention", "the daemon always chooses by predicted time; tandem-bench attention --policies compares"},
};

/* Bounds are those of the request's field of that name. */
typedef struct number_option {
  td_limit_id limit;
  size_t offset;
  const char *help;
} number_option;

static const number_option number_options[] = {
    {TD_LIMIT_TEMPERATURE, offsetof(td_options, temperature),
     "temperature of requests that name none, 0 to 2; 0: greedy"},
    {TD_LIMIT_TOP_P, offsetof(td_options, top_p), "top_p of requests that name none, above 0, to 1"},
    {TD_LIMIT_TOP_K, offsetof(td_options, top_k), "top_k of requests that name none, a whole number; 0: off"},
    {TD_LIMIT_MIN_P, offsetof(td_options, min_p), "min_p of requests that name none, 0 to 1; 0: off"},
};
enum { N_NUMBER_OPTIONS = sizeof number_options / sizeof number_options[0] };

static const char *const log_levels[] = {"error", "warn", "info", "debug"};

void td_options_init(td_options *o)
{
  memset(o, 0, sizeof *o);
  for (size_t i = 0; i < N_STRING_OPTIONS; i++)
    snprintf((char *)o + string_options[i].offset, string_options[i].size, "%s", string_options[i].def);
  o->log_level = TD_LOG_INFO;
  for (size_t i = 0; i < N_NUMBER_OPTIONS; i++)
    *(double *)((char *)o + number_options[i].offset) = -1;
  for (int i = 0; i < TD_LIMIT_COUNT; i++)
    o->limit[i] = td_limits[i].def;
}

/* Keys are equal with '-' for '_'. */
static bool key_equal(const char *a, const char *b)
{
  for (; *a && *b; a++, b++)
    if (*a != *b && !((*a == '-' || *a == '_') && (*b == '-' || *b == '_')))
      return false;
  return *a == *b;
}

static bool is_one_of(const char *value, const char *const *words)
{
  for (; *words; words++)
    if (strcmp(value, *words) == 0)
      return true;
  return false;
}

static td_status set_limit(td_options *o, int id, const char *value, const char *where, td_error *err)
{
  const td_limit *l = &td_limits[id];
  size_t n = strspn(value, "0123456789");
  if (n == 0 || value[n] != '\0')
    return td_fail_param(err, TD_ERR_CONFIG, l->name, "%s: %s: '%s' is not a whole number", where, l->name,
                         value);
  double v = strtod(value, NULL); /* infinite if longer than any number */
  if (!(v >= l->min && v <= l->max))
    return td_fail_param(err, TD_ERR_CONFIG, l->name, "%s: %s: %s is outside %.0f..%.0f %s", where, l->name,
                         value, l->min, l->max, l->unit);
  if (id == TD_LIMIT_PAGE_TOKENS && v != 16 && v != 32 && v != 64)
    return td_fail_param(err, TD_ERR_CONFIG, l->name, "%s: %s: must be 16, 32 or 64", where, l->name);
  o->limit[id] = v;
  return TD_OK;
}

/* Digits with a point between them or none: no sign, exponent, hex or infinity. */
static td_status set_number(td_options *o, const number_option *no, const char *value, const char *where,
                            td_error *err)
{
  const td_limit *l = &td_limits[no->limit];
  bool whole = no->limit == TD_LIMIT_TOP_K;
  size_t n = strspn(value, "0123456789"), fraction = 0;
  if (n > 0 && value[n] == '.' && !whole)
    fraction = strspn(value + n + 1, "0123456789"), n += 1 + fraction;
  if (n == 0 || value[n] != '\0' || value[n - 1] == '.')
    return td_fail_param(err, TD_ERR_CONFIG, l->name, "%s: %s: '%s' is not a %s", where, l->name, value,
                         whole ? "whole number" : "number such as 0.7");
  double v = strtod(value, NULL);
  if (!(v <= l->max) || (no->limit == TD_LIMIT_TOP_P && v == 0))
    return td_fail_param(err, TD_ERR_CONFIG, l->name, "%s: %s: %s is outside %s0..%.0f", where, l->name,
                         value, no->limit == TD_LIMIT_TOP_P ? "above " : "", l->max);
  *(double *)((char *)o + no->offset) = v;
  return TD_OK;
}

td_status td_options_set(td_options *o, const char *key, const char *value, const char *where, td_error *err)
{
  for (size_t i = 0; i < N_STRING_OPTIONS; i++) {
    const string_option *so = &string_options[i];
    if (!key_equal(key, so->name))
      continue;
    if (strlen(value) >= so->size)
      return td_fail_param(err, TD_ERR_CONFIG, so->name, "%s: %s: longer than %zu bytes", where, so->name,
                           so->size - 1);
    if (so->words && !is_one_of(value, so->words))
      return td_fail_param(err, TD_ERR_CONFIG, so->name, "%s: %s: '%s' is not %s", where, so->name, value,
                           so->words_text);
    strcpy((char *)o + so->offset, value);
    return TD_OK;
  }
  if (key_equal(key, "log_level")) {
    for (int i = 0; i < 4; i++)
      if (strcmp(value, log_levels[i]) == 0) {
        o->log_level = (td_log_level)i;
        return TD_OK;
      }
    return td_fail_param(err, TD_ERR_CONFIG, "log_level",
                         "%s: log_level: '%s' is not error, warn, info or debug", where, value);
  }
  for (size_t i = 0; i < N_NUMBER_OPTIONS; i++)
    if (key_equal(key, td_limits[number_options[i].limit].name))
      return set_number(o, &number_options[i], value, where, err);
  for (int i = 0; i < TD_LIMIT_COUNT; i++)
    if (td_limits[i].kind == TD_LIMIT_KIND_OPTION && key_equal(key, td_limits[i].name))
      return set_limit(o, i, value, where, err);
  for (size_t i = 0; i < sizeof removed_options / sizeof *removed_options; i++)
    if (key_equal(key, removed_options[i].name))
      return td_fail_param(err, TD_ERR_CONFIG, key, "%s: %s: removed; %s", where, key,
                           removed_options[i].instead);
  return td_fail_param(err, TD_ERR_CONFIG, key, "%s: unknown option '%s'", where, key);
}

/* ---- the options file ---- */

/* Position of a key in the table of all keys; N_KEYS for one that is not there. */
enum { N_KEYS = N_STRING_OPTIONS + 1 + TD_LIMIT_COUNT };

static size_t key_index(const char *key)
{
  size_t n = 0;
  for (size_t i = 0; i < N_STRING_OPTIONS; i++, n++)
    if (key_equal(key, string_options[i].name))
      return n;
  if (key_equal(key, "log_level"))
    return n;
  n++;
  for (int i = 0; i < TD_LIMIT_COUNT; i++, n++)
    if (key_equal(key, td_limits[i].name))
      return n;
  return n;
}

typedef struct options_file {
  td_options *o;
  FILE *file;
  const char *path;
  unsigned line;
  bool seen[N_KEYS + 1]; /* to refuse repeats */
  char where[TD_OPTION_STRING_BYTES + 32];
} options_file;

/* Reads a line without its newline. False at the end of the file, at a read error, and at a line that is not
 * text or too long, of which *st then tells. */
static bool read_line(options_file *f, char *line, size_t size, td_status *st, td_error *err)
{
  size_t n = 0;
  int c;
  snprintf(f->where, sizeof f->where, "%s:%u", f->path, ++f->line);
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
  for (size_t i = 0, len; i < n; i += len) {
    unsigned char b = (unsigned char)line[i];
    len = td_utf8_sequence_length((unsigned char *)line + i, n - i);
    if (len == 0 || (b < 0x20 && b != '\t') || b == 0x7f) {
      *st = td_fail(err, TD_ERR_CONFIG, "%s: byte %zu of the line is not text", f->where, i + 1);
      return false;
    }
  }
  return n > 0 || c != EOF;
}

static char *trim(char *s)
{
  s += strspn(s, " \t");
  size_t n = strlen(s);
  while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '\t'))
    n--;
  s[n] = '\0';
  return s;
}

static td_status take_line(options_file *f, char *line, td_error *err)
{
  char *key = trim(line), *equals = strchr(key, '=');
  if (*key == '\0' || *key == '#' || *key == ';')
    return TD_OK;
  if (*key == '[')
    return td_fail(err, TD_ERR_CONFIG, "%s: sections are not used: %s", f->where, key);
  if (!equals)
    return td_fail(err, TD_ERR_CONFIG, "%s: '%s' is not of the form key = value", f->where, key);
  *equals = '\0';
  key = trim(key);
  size_t k = key_index(key);
  if (k < N_KEYS && f->seen[k])
    return td_fail_param(err, TD_ERR_CONFIG, key, "%s: '%s' is set twice", f->where, key);
  f->seen[k] = true;
  return td_options_set(f->o, key, trim(equals + 1), f->where, err);
}

td_status td_options_read_file(td_options *o, const char *path, td_error *err)
{
  static const char bom[] = "\xEF\xBB\xBF";
  options_file f = {.o = o, .path = path};
  size_t size = td_limit_max(TD_LIMIT_OPTIONS_LINE_BYTES) + 1;
  char *line = malloc(size);
  if (!line)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the options file");
  f.file = fopen(path, "re");
  if (!f.file) {
    free(line);
    return td_fail_param(err, TD_ERR_CONFIG, "config", "%s: %s", path, strerror(errno));
  }
  td_status st = TD_OK;
  errno = 0;
  while (st == TD_OK && read_line(&f, line, size, &st, err))
    st = take_line(&f, f.line == 1 && strncmp(line, bom, 3) == 0 ? line + 3 : line, err);
  if (st == TD_OK && ferror(f.file))
    st = td_fail_param(err, TD_ERR_CONFIG, "config", "%s: %s", path, strerror(errno));
  fclose(f.file);
  free(line);
  return st;
}

/* ---- the command line ---- */

/* Splits "--key=value" or takes the next argument; key points into a copy. */
static td_status next_pair(int argc, char **argv, int *i, char key[64], const char **value, td_error *err)
{
  const char *arg = argv[*i];
  if (arg[0] != '-' || arg[1] != '-' || arg[2] == '\0')
    return td_fail(err, TD_ERR_CONFIG, "unexpected argument '%s' (see --help)", arg);
  const char *eq = strchr(arg + 2, '=');
  size_t n = eq ? (size_t)(eq - arg - 2) : strlen(arg + 2);
  if (n >= 64)
    return td_fail(err, TD_ERR_CONFIG, "unknown option '%.80s' (see --help)", arg);
  memcpy(key, arg + 2, n);
  key[n] = '\0';
  if (eq) {
    *value = eq + 1;
    return TD_OK;
  }
  if (*i + 1 >= argc)
    return td_fail_param(err, TD_ERR_CONFIG, key, "--%s needs a value", key);
  *value = argv[++*i];
  return TD_OK;
}

td_status td_options_read_args(td_options *o, int argc, char **argv, td_options_action *action, td_error *err)
{
  char key[64];
  const char *value = NULL;
  *action = TD_ACTION_RUN;
  for (int pass = 0; pass < 2; pass++) /* pass 0: --config only, so that the command line wins */
    for (int i = 1; i < argc; i++) {
      if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
        *action = TD_ACTION_HELP;
        return TD_OK;
      }
      if (strcmp(argv[i], "--version") == 0) {
        *action = TD_ACTION_VERSION;
        return TD_OK;
      }
      if (strcmp(argv[i], "--check") == 0) {
        *action = TD_ACTION_CHECK;
        continue;
      }
      if (strcmp(argv[i], "--calibrate") == 0) {
        *action = TD_ACTION_CALIBRATE;
        continue;
      }
      TD_TRY(next_pair(argc, argv, &i, key, &value, err));
      bool config = strcmp(key, "config") == 0;
      if (config && pass == 0)
        TD_TRY(td_options_read_file(o, value, err));
      if (!config && pass == 1)
        TD_TRY(td_options_set(o, key, value, "command line", err));
    }
  if (o->model[0] == '\0')
    return td_fail_param(err, TD_ERR_CONFIG, "model", "no model given: --model PATH (see --help)");
  return TD_OK;
}

static void print_option(const char *name, const char *value_name, const char *help, const char *extra)
{
  char left[64];
  snprintf(left, sizeof left, "--%s %s", name, value_name);
  for (char *c = left; *c; c++)
    if (*c == '_')
      *c = '-';
  printf("  %-34s %s%s\n", left, help, extra);
}

void td_options_print_help(void)
{
  char extra[160];
  printf("tandemd %s: an LLM serving daemon. Clients speak the OpenAI API to it.\n\n"
         "usage: tandemd --model PATH [--listen HOST:PORT] [--config FILE] [options]\n\n"
         "Every option may also stand in the options file as `name = value`.\n\n",
         TD_VERSION);
  for (size_t i = 0; i < N_STRING_OPTIONS; i++) {
    const string_option *so = &string_options[i];
    if (*so->def)
      snprintf(extra, sizeof extra, " (default %s)", so->def);
    else
      extra[0] = '\0';
    print_option(so->name, so->value_name, so->help, extra);
  }
  for (size_t i = 0; i < N_NUMBER_OPTIONS; i++) {
    const number_option *no = &number_options[i];
    print_option(td_limits[no->limit].name, "X", no->help, " (default as the model says)");
  }
  print_option("log_level", "LEVEL", "error, warn, info or debug", " (default info)");
  print_option("config", "FILE", "options file, read before the command line", "");
  print_option("check", "", "check options and model, then exit", "");
  print_option("calibrate", "",
               "measure what steps take and which algorithms are fastest, keep both in "
               "cache_dir, print the step times, then exit",
               "");
  print_option("version", "", "print the version", "");
  printf("\nLimits:\n");
  for (int i = 0; i < TD_LIMIT_COUNT; i++) {
    const td_limit *l = &td_limits[i];
    if (l->kind != TD_LIMIT_KIND_OPTION)
      continue;
    snprintf(extra, sizeof extra, " [%.0f, %.0f..%.0f %s]", l->def, l->min, l->max, l->unit);
    print_option(l->name, "N", l->help, extra);
  }
}
