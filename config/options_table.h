/* The one table of options, for the files of config/ only. */
#ifndef TD_CONFIG_OPTIONS_TABLE_H
#define TD_CONFIG_OPTIONS_TABLE_H

#include "config/options.h"

typedef enum td_option_kind {
  TD_OPTION_SECTION, /* no option: a heading */
  TD_OPTION_TEXT,
  TD_OPTION_LEVEL,  /* of the log */
  TD_OPTION_NUMBER, /* with a point; negative while it is not set */
  TD_OPTION_LIMIT,  /* a whole number */
} td_option_kind;

typedef struct td_option_row {
  td_option_kind kind;
  const char *name; /* with '_'; of a section its heading */
  const char *value_name, *help;
  const char *def;
  size_t offset, size;      /* where in td_options */
  const char *const *words; /* the only values, NULL: any */
  bool is_list;             /* "a, b"; given several times on the command line, it has all of them */
  td_limit_id limit;        /* NUMBER and LIMIT: whose bounds */
} td_option_row;

extern const td_option_row td_option_rows[];
extern const int td_n_option_rows;

/* Keys are equal with '-' for '_'. */
bool td_option_key_equal(const char *a, const char *b);
/* The row of a key, -1 if there is none. */
int td_option_find(const char *key);
/* Whether it may change while the daemon runs (SIGHUP). */
bool td_option_renews(const td_option_row *r);
/* Whether K, M and G may follow. */
bool td_option_is_bytes(const td_option_row *r);
/* TEXT: its value in o. */
static inline const char *td_option_text(const td_options *o, const td_option_row *r)
{
  return (const char *)o + r->offset;
}
/* Position, from 1, of the first byte that is not text (UTF-8 without control characters but tabs); 0: none.
 */
size_t td_option_find_no_text(const char *s, size_t n);
/* Takes a value; `where` ("/etc/tandem.conf:12", "TANDEM_LISTEN", "command line") goes into messages. */
TD_MUST_CHECK td_status td_option_take(td_options *o, int row, const char *value, const char *where,
                                       int32_t from, td_error *err);

enum { TD_OPTION_KEY_BYTES = 64 };
/* A key as it is written there: `a_b` in a file, TANDEM_A_B, --a-b. */
const char *td_option_spelled(const char *name, int32_t from, char text[TD_OPTION_KEY_BYTES]);

/* What takes no value. */
typedef struct td_option_flag {
  const char *name, *letter, *help;
  td_options_action action;
} td_option_flag;
extern const td_option_flag td_option_flags[];
extern const int td_n_option_flags;

/* The error for a key that is not there. It says what may be meant: another program's option of that name, a
 * field of requests, or a name that is nearly the same. written: as the operator wrote it, with dashes. */
td_status td_option_unknown(const char *written, const char *where, int32_t from, td_error *err);
/* The option, or flag if those count, whose name is nearly this one; NULL: none is. */
const char *td_option_nearest(const char *key, bool flags);

#endif
