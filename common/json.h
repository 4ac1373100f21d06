/* JSON in: a strict one-pass guard before cJSON, typed getters after it.
 *
 * cJSON alone takes trailing garbage, control bytes, invalid UTF-8 and duplicate keys, loses integers
 * above 2^53 and cuts strings at \u0000. td_json_parse refuses what RFC 8259 refuses, bounds depth and node
 * count before anything is allocated, refuses \u0000 (but in bodies, see td_json_text) and lone surrogates,
 * and keeps integers that a double cannot hold: such a number becomes an item of type cJSON_Raw whose
 * valuestring is its text. A number of more than 63 characters is refused. A fraction or exponent is read as
 * strtod reads it: 1e999 is infinite, which no getter takes. Used for request bodies and for model files
 * alike. Stateless: any thread. */
#ifndef TD_COMMON_JSON_H
#define TD_COMMON_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/status.h"

/* Numbers inside arrays that count 1/16 value each (config/limits.def lists it). */
enum { TD_JSON_CHEAP_NUMBERS = 1 << 20 };

typedef struct td_json_limits {
  size_t max_depth;
  size_t max_nodes; /* values of any kind; the first json_cheap_numbers numbers inside arrays count 1/16 */
  td_status error;  /* code given to failures: TD_ERR_REQUEST for bodies, TD_ERR_MODEL for files */
} td_json_limits;

/* Checks text (n bytes, need not be terminated) without building anything. */
TD_MUST_CHECK td_status td_json_check(const char *text, size_t n, const td_json_limits *limits,
                                      td_error *err);

/* Checks, then parses. *out is owned by the caller (cJSON_Delete). Errors give the byte offset and what
 * was expected. A duplicate key in any object is an error naming the key. */
TD_MUST_CHECK td_status td_json_parse(const char *text, size_t n, const td_json_limits *limits, cJSON **out,
                                      td_error *err);

/* As td_json_parse, for bodies: values may hold \u0000 (td_json_text), and a member ids_key of the root that
 * is an array of integers from 0 to 999999999, and of nothing else, stays text: an item of type cJSON_Raw,
 * the array in its valuestring. The tree of a long prompt's token ids would take longer than all else that is
 * done to a request. ids_key NULL: none; it has no quotes and backslashes. */
TD_MUST_CHECK td_status td_json_parse_ids(const char *text, size_t n, const td_json_limits *limits,
                                          const char *ids_key, cJSON **out, td_error *err);

/* U+0000 of a body stands in the tree's strings, which it would end, as the bytes C0 80: UTF-8 never has
 * them, so nothing else looks so. Who wants a string as text decodes it: out gets it, with room for
 * strlen(string) + 1 bytes, and may be string itself, once; its length without the terminator is returned. To
 * others it is a string that equals none of theirs. */
size_t td_json_text(const char *string, char *out);
bool td_json_has_nul(const char *string);
/* The tree as JSON behind what out has, U+0000 as an escape again. */
void td_json_print(const cJSON *item, td_buf *out);

/* Is this number a float, as Python's json reads it: written with a point or an exponent (1.0, 1e2)? To the
 * getters 1.0 is the integer 1. */
bool td_json_is_float(const cJSON *number);

/* Is this an array that stayed text? */
bool td_json_is_ids(const cJSON *item);

/* Goes through the elements of an array, be it text or a tree. */
typedef struct td_json_ids {
  const cJSON *item;
  const char *text;
  size_t n; /* elements in all */
} td_json_ids;
td_json_ids td_json_ids_begin(const cJSON *array);
/* The next element, n times at most; -1: it is no number. */
double td_json_ids_next(td_json_ids *ids);

/* Case-sensitive member lookup; NULL if absent. */
const cJSON *td_json_get(const cJSON *object, const char *key);

/* Typed getters: absent or null leaves *out as it is and returns TD_OK with *present = false (present may be
 * NULL). A wrong type, a fraction where an integer is asked (1.0 and 1e2 are integers), or a value outside
 * [min, max] is TD_ERR_REQUEST with err->param = key. */
TD_MUST_CHECK td_status td_json_get_int64(const cJSON *object, const char *key, int64_t min, int64_t max,
                                          int64_t *out, bool *present, td_error *err);
/* Accepts -2^63 .. 2^64-1 and stores the two's complement bits (seeds). */
TD_MUST_CHECK td_status td_json_get_seed(const cJSON *object, const char *key, uint64_t *out, bool *present,
                                         td_error *err);
TD_MUST_CHECK td_status td_json_get_double(const cJSON *object, const char *key, double min, double max,
                                           double *out, bool *present, td_error *err);
TD_MUST_CHECK td_status td_json_get_bool(const cJSON *object, const char *key, bool *out, bool *present,
                                         td_error *err);
/* *out borrows from the tree, and has no U+0000: such a string is of the wrong type. */
TD_MUST_CHECK td_status td_json_get_string(const cJSON *object, const char *key, const char **out,
                                           td_error *err);

#endif
