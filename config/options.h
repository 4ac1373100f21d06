/* What the operator sets: built-in defaults, then the options file, then the command line.
 *
 * The options file has one `key = value` a line; lines that begin with '#' or ';' are comments, and the value
 * is all up to the line's end. Keys are the string options below and every OPTION limit of limits.def. An
 * unknown key, a bad value and a repeated key are errors that name file, line and key. On the command line
 * `--key VALUE` and `--key=VALUE` mean the same;
 * '-' and '_' in keys are the same. */
#ifndef TD_CONFIG_OPTIONS_H
#define TD_CONFIG_OPTIONS_H

#include "config/limits.h"
#include "common/log.h"
#include "common/status.h"

enum { TD_OPTION_STRING_BYTES = 4096 };

typedef struct td_options {
  char model[TD_OPTION_STRING_BYTES];           /* GGUF file or model folder; required */
  char listen[256];                             /* HOST:PORT, [V6]:PORT or unix:PATH; "127.0.0.1:8080" */
  char served_model_name[256];                  /* "" = file or folder name without .gguf */
  char api_key_file[TD_OPTION_STRING_BYTES];    /* "" = no keys asked; one key a line */
  char allowed_hosts[TD_OPTION_STRING_BYTES];   /* "a, b:80", "*"; where no key is asked */
  char cors_origin[TD_OPTION_STRING_BYTES];     /* "https://a, null", "*"; "" = only our own page */
  char trusted_proxies[TD_OPTION_STRING_BYTES]; /* IP addresses and ranges; "" = none */
  char trace[TD_OPTION_STRING_BYTES];           /* Chrome trace of the steps; "" = none */
  char chat_template[TD_OPTION_STRING_BYTES];   /* file that replaces the model's own; "" = model's */
  char cache_dir[TD_OPTION_STRING_BYTES];       /* what starts faster next time; "auto", "" = none */
  char backend[16];                             /* "auto" | "cpu" | "cuda" */
  char load_format[16];                         /* "auto" | "dummy" */
  char policy[16]; /* "tandem" | "sarathi" | "prefill-first" | "decode-first" | "orca" */
  /* Sampling where a request says nothing; negative: as the model's files say, else as the API does. */
  double temperature, top_p, min_p, top_k;
  td_log_level log_level;       /* error | warn | info | debug */
  double limit[TD_LIMIT_COUNT]; /* every OPTION limit, validated; others: default */
} td_options;

static inline int64_t td_option(const td_options *o, td_limit_id id) { return (int64_t)o->limit[id]; }

void td_options_init(td_options *o);
/* Sets one key; `where` ("/etc/tandem.conf:12" or "command line") goes into messages. */
TD_MUST_CHECK td_status td_options_set(td_options *o, const char *key, const char *value, const char *where,
                                       td_error *err);
TD_MUST_CHECK td_status td_options_read_file(td_options *o, const char *path, td_error *err);
/* Reads argv: --config FILE is read first wherever it stands, then the others in order.
 * *action: what main should do. */
typedef enum td_options_action {
  TD_ACTION_RUN,
  TD_ACTION_HELP,
  TD_ACTION_VERSION,
  TD_ACTION_CHECK,
  TD_ACTION_CALIBRATE
} td_options_action;
TD_MUST_CHECK td_status td_options_read_args(td_options *o, int argc, char **argv, td_options_action *action,
                                             td_error *err);
/* The --help text, made from the tables. */
void td_options_print_help(void);

#endif
