/* The one table of options, for the files of config/ only. */
#ifndef TD_CONFIG_OPTIONS_TABLE_H
#define TD_CONFIG_OPTIONS_TABLE_H

#include "config/options.h"

typedef enum td_option_kind {
  TD_OPTION_SECTION, /* a heading, no option */
  TD_OPTION_TEXT,
  TD_OPTION_LEVEL,  /* a log level */
  TD_OPTION_NUMBER, /* may have a decimal point; negative if not set */
  TD_OPTION_LIMIT,  /* a whole number */
} td_option_kind;

typedef struct td_option_row {
  td_option_kind kind;
  const char *name; /* with '_'; for a section, its heading */
  const char *value_name, *help;
  const char *def;
  size_t offset, size;      /* of its field in td_options */
  const char *const *words; /* the permitted values; NULL: any */
  bool is_list;             /* "a, b"; repetitions on the command line append */
  td_limit_id limit;        /* NUMBER and LIMIT: the limit with its bounds */
} td_option_row;

extern const td_option_row td_option_rows[];
extern const int td_n_option_rows;

/* Compares keys; '-' and '_' are equal. */
bool td_option_key_equal(const char *a, const char *b);
/* Returns the row of a key, or -1. */
int td_option_find(const char *key);
/* Whether the option may change while the daemon runs (SIGHUP). */
bool td_option_is_reloadable(const td_option_row *r);
/* Whether K, M or G may follow the number. */
bool td_option_is_bytes(const td_option_row *r);
/* The value of a TEXT option in o. */
static inline const char *td_option_text(const td_options *o, const td_option_row *r)
{
  return (const char *)o + r->offset;
}
/* The position, from 1, of the first byte that is not text. Text is UTF-8 without control characters except
 * tabs. 0: all bytes are. */
size_t td_option_find_invalid_text(const char *s, size_t n);
/* Parses and stores a value. `where` ("/etc/tandem.conf:12", "TANDEM_LISTEN", "command line") is used in
 * messages. */
TD_MUST_CHECK td_status td_option_set(td_options *o, int row, const char *value, const char *where,
                                      int32_t from, td_error *err);

enum { TD_OPTION_KEY_BYTES = 64 };
/* Spells a key for its place: `a_b` in a file, TANDEM_A_B in the environment, --a-b on the command line. */
const char *td_option_spelled(const char *name, int32_t from, char text[TD_OPTION_KEY_BYTES]);

/* An argument that is no option: a command, or --config. */
typedef struct td_option_flag {
  const char *name, *letter, *help;
  td_options_action action;
} td_option_flag;
extern const td_option_flag td_option_flags[];
extern const int td_n_option_flags;

/* Returns the error for an unknown key. The message gives a hint: our equivalent of another server's option,
 * a request field of that name, or a similar name. written: the key as the operator wrote it, with dashes. */
td_status td_option_unknown(const char *written, const char *where, int32_t from, td_error *err);
/* Returns the option (or flag, if `flags`) with the most similar name. NULL: none is similar enough. */
const char *td_option_nearest(const char *key, bool flags);

#endif
