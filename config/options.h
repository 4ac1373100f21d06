/* The options that the operator sets. The command line has priority, then the environment, then the options
 * file, then the default.
 *
 * - Command line: `--key VALUE` or `--key=VALUE`. If a key is repeated, the last value counts; but a list
 *   collects the values of all repetitions.
 * - Environment: TANDEM_KEY, in capitals. An empty variable counts as unset. Other TANDEM_* variables are no
 *   options.
 * - File (--config, TANDEM_CONFIG): one `key = value` a line. For the syntax of values see options_file.c.
 *
 * '-' and '_' in keys are equivalent. Keys are those of options.c and every OPTION limit of limits.def. An
 * unknown key, a bad value, and a key that a file repeats are errors that name the place and the key. */
#ifndef TD_CONFIG_OPTIONS_H
#define TD_CONFIG_OPTIONS_H

#include <stdio.h>

#include "config/limits.h"
#include "common/log.h"
#include "common/status.h"

enum { TD_OPTION_STRING_BYTES = 4096, TD_OPTION_ROWS_MAX = TD_LIMIT_COUNT + 48 };

/* Where a value comes from. n > 0: line n of the file. */
enum { TD_FROM_DEFAULT = 0, TD_FROM_ENVIRONMENT = -1, TD_FROM_COMMAND_LINE = -2 };

typedef struct td_options {
  char model[TD_OPTION_STRING_BYTES]; /* GGUF file or model folder; required */
  char listen[256];                   /* HOST:PORT, [V6]:PORT or unix:PATH; "127.0.0.1:8080" */
  /* "a, b": both names are accepted; "" = file or folder name without .gguf */
  char served_model_name[TD_OPTION_STRING_BYTES];
  char api_key_file[TD_OPTION_STRING_BYTES];    /* one key a line; "" = no keys are required */
  char allowed_hosts[TD_OPTION_STRING_BYTES];   /* "a, b:80", "*"; used without keys */
  char cors_origin[TD_OPTION_STRING_BYTES];     /* "https://a, null", "*"; "" = only our own page */
  char trusted_proxies[TD_OPTION_STRING_BYTES]; /* IP addresses and ranges; "" = none */
  char kv_events[256];                          /* ZeroMQ endpoint; "" = no events are published */
  char kv_events_replay[256];                   /* endpoint that replays missed events; "" = none */
  char kv_events_topic[256];
  char trace[TD_OPTION_STRING_BYTES];         /* Chrome trace of the steps; "" = none */
  char chat_template[TD_OPTION_STRING_BYTES]; /* file that replaces the model's own; "" = model's */
  char cache_dir[TD_OPTION_STRING_BYTES];     /* folder for measurements; "auto", "" = none */
  char backend[16];                           /* "auto" | "cpu" | "cuda" */
  char pooling[16];                           /* "none" | "last" | "mean" */
  char tool_format[16];                       /* "auto" | "hermes" | ... | "none" */
  char reasoning_format[16];                  /* "auto" | "think" | "none" */
  char load_format[16];                       /* "auto" | "dummy" */
  char log_format[16];                        /* "text" | "json" */
  char policy[16]; /* "tandem" | "sarathi" | "prefill-first" | "decode-first" | "orca" */
  /* Sampling defaults for requests. Negative: the default of the model's files, or else of the API. */
  double temperature, top_p, min_p, top_k;
  td_log_level log_level;              /* error | warn | info | debug */
  double limit[TD_LIMIT_COUNT];        /* every OPTION limit, validated; for others the default */
  int32_t from[TD_OPTION_ROWS_MAX];    /* [row of the table of options]: TD_FROM_*, or the file's line */
  char config[TD_OPTION_STRING_BYTES]; /* the options file; "" = none */
} td_options;

static inline int64_t td_option(const td_options *o, td_limit_id id) { return (int64_t)o->limit[id]; }

/* What the command line asks main to do. */
typedef enum td_options_action {
  TD_ACTION_RUN,
  TD_ACTION_HELP,
  TD_ACTION_VERSION,
  TD_ACTION_PRINT_CONFIG,
  TD_ACTION_CHECK_CONFIG,
  TD_ACTION_CHECK,
  TD_ACTION_CALIBRATE
} td_options_action;

void td_options_init(td_options *o);
/* Reads the file, then the environment, then the command line. */
TD_MUST_CHECK td_status td_options_read(td_options *o, int argc, char **argv, td_options_action *action,
                                        td_error *err);
TD_MUST_CHECK td_status td_options_read_file(td_options *o, const char *path, td_error *err);
enum { TD_OPTION_CHANGES_BYTES = 512 };
/* Names of options whose values differ, as "a, b": those that were updated, and those that need a restart. */
typedef struct td_options_changes {
  char updated[TD_OPTION_CHANGES_BYTES], needs_restart[TD_OPTION_CHANGES_BYTES];
} td_options_changes;
/* Copies from next, which has been read again, the options that may change while the daemon runs. Keeps the
 * rest. */
void td_options_reload(td_options *now, const td_options *next, td_options_changes *changes);
/* Logs a warning for each variable that looks like a misspelled option. */
void td_options_warn_of_variables(void);
/* The --help text, made from the tables. */
void td_options_print_help(void);
/* Prints all options in the file's syntax, each with its origin. Reading that file gives the same values. */
void td_options_print_config(const td_options *o, FILE *f);

#endif
