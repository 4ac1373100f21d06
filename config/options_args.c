/* Reads the environment and the command line; the order of all sources. */
#include "config/options_table.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VARIABLE "TANDEM_"

const td_option_flag td_option_flags[] = {
    {"config", NULL, "options file; the environment and the command line win over it",
     TD_ACTION_RUN}, /* the only flag with a value */
    {"print_config", NULL, "print all options as an options file, with the source of each value, and exit",
     TD_ACTION_PRINT_CONFIG},
    {"check_config", NULL, "check the options only, without model and device, and exit",
     TD_ACTION_CHECK_CONFIG},
    {"check", NULL, "check options and model, without measuring, and exit", TD_ACTION_CHECK},
    {"calibrate", NULL,
     "measure which algorithms are fastest and how long steps take, keep both in cache_dir, print the step "
     "times, and exit",
     TD_ACTION_CALIBRATE},
    {"help", "-h", "print this text (-h)", TD_ACTION_HELP},
    {"version", "-V", "print the version (-V)", TD_ACTION_VERSION},
};
const int td_n_option_flags = sizeof td_option_flags / sizeof td_option_flags[0];

/* ---- the environment ---- */

/* Returns NULL for an empty variable too: scripts clear variables that way, and must not override an option
 * by accident. */
static const char *variable(const char *name)
{
  char spelled[TD_OPTION_KEY_BYTES];
  const char *value = getenv(td_option_spelled(name, TD_FROM_ENVIRONMENT, spelled));
  return value && *value ? value : NULL;
}

static td_status read_environment(td_options *o, td_error *err)
{
  char where[TD_OPTION_KEY_BYTES];
  for (int i = 0; i < td_n_option_rows; i++) {
    const td_option_row *r = &td_option_rows[i];
    const char *value = r->kind != TD_OPTION_SECTION ? variable(r->name) : NULL;
    if (value)
      TD_TRY(td_option_set(o, i, value, td_option_spelled(r->name, TD_FROM_ENVIRONMENT, where),
                           TD_FROM_ENVIRONMENT, err));
  }
  return TD_OK;
}

void td_options_warn_of_variables(void)
{
  char key[TD_OPTION_KEY_BYTES], meant[TD_OPTION_KEY_BYTES];
  for (char **v = environ; v && *v; v++) {
    const char *name = *v + strlen(VARIABLE);
    size_t n = strncmp(*v, VARIABLE, strlen(VARIABLE)) == 0 ? strcspn(name, "=") : 0;
    if (n == 0 || n >= sizeof key)
      continue;
    for (size_t i = 0; i < n; i++)
      key[i] = (char)tolower((unsigned char)name[i]);
    key[n] = '\0';
    const char *nearest =
        strcmp(key, "config") != 0 && td_option_find(key) < 0 ? td_option_nearest(key, false) : NULL;
    if (nearest)
      td_warn(VARIABLE "%.*s is no option; did you mean %s?", (int)n, name,
              td_option_spelled(nearest, TD_FROM_ENVIRONMENT, meant));
  }
}

/* ---- the command line ---- */

/* One argument of the command line: a row with its value, or a flag. */
typedef struct argument {
  int row;                    /* -1: a flag */
  const td_option_flag *flag; /* the first flag has a value */
  const char *value;
} argument;

static const td_option_flag *flag_of(const char *arg, const char *key)
{
  for (const td_option_flag *f = td_option_flags; f < td_option_flags + td_n_option_flags; f++)
    if (*key != '\0' ? td_option_key_equal(key, f->name) : f->letter && strcmp(arg, f->letter) == 0)
      return f;
  return NULL;
}

/* Reads argv[*i], and the next argument if that is its value. */
static td_status read_argument(int argc, char **argv, int *i, argument *a, td_error *err)
{
  char written[TD_OPTION_KEY_BYTES + 20]; /* without "=value"; if truncated, still longer than any name */
  const char *arg = argv[*i], *equals = strchr(arg, '=');
  if (arg[0] != '-' || arg[1] == '\0' || strcmp(arg, "--") == 0)
    return td_fail(
        err, TD_ERR_CONFIG,
        "unexpected argument '%s'; options are --NAME VALUE, the model is --model PATH (see --help)", arg);
  snprintf(written, sizeof written, "%.*s", equals ? (int)(equals - arg) : (int)sizeof written, arg);
  const char *key = strncmp(written, "--", 2) == 0 ? written + 2 : "";
  a->row = td_option_find(key);
  a->flag = flag_of(written, key);
  if (a->row < 0 && !a->flag)
    return td_option_unknown(written, "command line", TD_FROM_COMMAND_LINE, err);
  bool needs_value = a->row >= 0 || a->flag == td_option_flags;
  if (!needs_value && equals)
    return td_fail_param(err, TD_ERR_CONFIG, key, "%s takes no value", written);
  if (needs_value && !equals && *i + 1 >= argc)
    return td_fail_param(err, TD_ERR_CONFIG, key, "%s needs a value", written);
  a->value = !needs_value ? NULL : equals ? equals + 1 : argv[++*i];
  return TD_OK;
}

/* Finds the requested action, and the options file if the command line names one. */
static td_status read_actions(int argc, char **argv, td_options_action *action, const char **config,
                              td_error *err)
{
  argument a;
  *action = TD_ACTION_RUN;
  for (int i = 1; i < argc && *action != TD_ACTION_HELP && *action != TD_ACTION_VERSION; i++) {
    TD_TRY(read_argument(argc, argv, &i, &a, err));
    if (a.flag && a.value)
      *config = a.value;
    else if (a.flag)
      *action = a.flag->action;
  }
  return TD_OK;
}

td_status td_options_read(td_options *o, int argc, char **argv, td_options_action *action, td_error *err)
{
  const char *config = variable("config");
  argument a;
  TD_TRY(read_actions(argc, argv, action, &config, err));
  if (*action == TD_ACTION_HELP || *action == TD_ACTION_VERSION)
    return TD_OK;
  if (config)
    TD_TRY(td_options_read_file(o, config, err));
  TD_TRY(read_environment(o, err));
  for (int i = 1; i < argc; i++) {
    TD_TRY(read_argument(argc, argv, &i, &a, err));
    if (a.row >= 0)
      TD_TRY(td_option_set(o, a.row, a.value, "command line", TD_FROM_COMMAND_LINE, err));
  }
  if (o->model[0] == '\0' && *action != TD_ACTION_PRINT_CONFIG)
    return td_fail_param(err, TD_ERR_CONFIG, "model", "no model given: --model PATH (see --help)");
  return TD_OK;
}
