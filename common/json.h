/* JSON input: a strict one-pass guard before cJSON, typed getters after it. For request bodies and model
 * files. Stateless: any thread.
 *
 * cJSON alone accepts trailing garbage, control bytes, invalid UTF-8 and duplicate keys, loses integers above
 * 2^53, and cuts strings at \u0000. td_json_parse refuses what RFC 8259 refuses, and bounds depth and node
 * count before anything is allocated. It also refuses lone surrogates, numbers of more than 63 characters,
 * and \u0000 (except in bodies, see td_json_text). An integer that a double cannot hold becomes an item of
 * type cJSON_Raw, whose valuestring is its text. A number with a fraction or exponent is read as strtod reads
 * it: 1e999 is infinite, which no getter accepts. */
#ifndef TD_COMMON_JSON_H
#define TD_COMMON_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/status.h"

/* How many numbers inside arrays count as 1/16 value each (in config/limits.def: json_cheap_numbers). */
enum { TD_JSON_CHEAP_NUMBERS = 1 << 20 };

typedef struct td_json_limits {
  size_t max_depth;
  size_t max_nodes; /* values of any kind; the first json_cheap_numbers numbers inside arrays count 1/16 */
  td_status error;  /* code for failures: TD_ERR_REQUEST for bodies, TD_ERR_MODEL for files */
} td_json_limits;

/* Checks text without building a tree. text has n bytes and need not be terminated. */
TD_MUST_CHECK td_status td_json_check(const char *text, size_t n, const td_json_limits *limits,
                                      td_error *err);

/* Checks, then parses. *out is owned by the caller (cJSON_Delete). Errors give the byte offset and what
 * was expected. A duplicate key in any object is an error naming the key. */
TD_MUST_CHECK td_status td_json_parse(const char *text, size_t n, const td_json_limits *limits, cJSON **out,
                                      td_error *err);

/* Like td_json_parse, for bodies. Two differences:
 * - Values may contain \u0000 (td_json_text).
 * - If the root's member ids_key is an array of integers from 0 to 999999999 and nothing else, it stays text:
 *   an item of type cJSON_Raw with the array in its valuestring. Building a tree of a long prompt's token ids
 *   would take longer than all other work on a request.
 *
 * ids_key must contain no quotes or backslashes. NULL: no member. */
TD_MUST_CHECK td_status td_json_parse_ids(const char *text, size_t n, const td_json_limits *limits,
                                          const char *ids_key, cJSON **out, td_error *err);

/* In a body's tree, strings hold U+0000 as the bytes C0 80, because a NUL would end them. Valid UTF-8 never
 * has these bytes, so they are unambiguous, and a string with them equals no ordinary string.
 *
 * td_json_text decodes such a string to out, which has room for strlen(string) + 1 bytes, and returns the
 * length without the terminator. out may be the string itself, but a string must not be decoded twice. */
size_t td_json_text(const char *string, char *out);
bool td_json_has_nul(const char *string);
/* Appends the tree as JSON to out, with U+0000 as an escape again. */
void td_json_print(const cJSON *item, td_buf *out);

/* Whether Python's json would read this number as a float: it is written with a point or an exponent (1.0,
 * 1e2). The getters treat 1.0 as the integer 1. */
bool td_json_is_float(const cJSON *number);

/* Whether the item is an array that stayed text. */
bool td_json_is_ids(const cJSON *item);

/* Iterates over the elements of an array, whether it is text or a tree. */
typedef struct td_json_ids {
  const cJSON *item;
  const char *text;
  size_t n; /* number of elements */
} td_json_ids;
td_json_ids td_json_ids_begin(const cJSON *array);
/* The next element; call at most n times. -1: it is no number. */
double td_json_ids_next(td_json_ids *ids);

/* Case-sensitive member lookup; NULL if absent. */
const cJSON *td_json_get(const cJSON *object, const char *key);

/* Typed getters. If the member is absent or null, they leave *out unchanged and return TD_OK with *present =
 * false (present may be NULL). TD_ERR_REQUEST with err->param = key: a wrong type, a fraction instead of an
 * integer (1.0 and 1e2 are integers), or a value outside [min, max]. */
TD_MUST_CHECK td_status td_json_get_int64(const cJSON *object, const char *key, int64_t min, int64_t max,
                                          int64_t *out, bool *present, td_error *err);
/* Accepts -2^63 .. 2^64-1 and stores the bits in two's complement (seeds). */
TD_MUST_CHECK td_status td_json_get_seed(const cJSON *object, const char *key, uint64_t *out, bool *present,
                                         td_error *err);
TD_MUST_CHECK td_status td_json_get_double(const cJSON *object, const char *key, double min, double max,
                                           double *out, bool *present, td_error *err);
TD_MUST_CHECK td_status td_json_get_bool(const cJSON *object, const char *key, bool *out, bool *present,
                                         td_error *err);
/* *out borrows from the tree. A string with U+0000 counts as a wrong type. */
TD_MUST_CHECK td_status td_json_get_string(const cJSON *object, const char *key, const char **out,
                                           td_error *err);

#endif
