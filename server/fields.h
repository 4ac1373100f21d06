/* The fields of requests: one table of every field name of OpenAI, vLLM, llama.cpp, SGLang, Anthropic and
 * others.
 *
 * A known field is one of three kinds:
 *   - It is served.
 *   - No answer depends on it: it is accepted with any value and has no effect.
 *   - It would change the answer but is not served: it is accepted only with values that mean "off".
 *
 * A null field counts as absent. An unknown field is refused if it looks like a misspelt served field;
 * otherwise it is ignored, and its name is reported (unknown.h). To serve a field: add a row to `served`,
 * remove its name from `unserved`, and use it. */
#ifndef TD_SERVER_FIELDS_H
#define TD_SERVER_FIELDS_H

#include <stddef.h>

#include "common/json.h"
#include "config/limits.h"
#include "server/api_error.h"
#include "server/unknown.h"

/* Where a member occurs: in the body of a route, or in an object inside it. */
enum {
  TD_ROUTE_COMPLETIONS = 1,
  TD_ROUTE_CHAT = 2,
  TD_ROUTE_TOKENIZE = 4,
  TD_ROUTE_DETOKENIZE = 8,
  TD_IN_STREAM_OPTIONS = 16,
  TD_IN_RESPONSE_FORMAT = 32,
  TD_IN_MESSAGE = 64,
  TD_IN_PART = 128,
  TD_IN_STRUCTURED = 256,
  TD_ROUTE_EMBEDDINGS = 512,
  TD_ROUTE_MESSAGES = 1024,
  TD_ROUTE_RESPONSES = 2048,
};

typedef enum td_field_kind {
  TD_FIELD_DOUBLE,
  TD_FIELD_INT,
  TD_FIELD_BOOL,
  TD_FIELD_SEED,
  TD_FIELD_STRING,
  TD_FIELD_ITEM, /* const cJSON *: parsed by the code that uses it */
} td_field_kind;

typedef struct td_field {
  const char *name;
  unsigned in;
  td_field_kind kind;
  td_limit_id limit; /* bounds of INT and DOUBLE */
  size_t at;         /* offset in td_api_request; unused for members of other objects (MEMBER in fields.c) */
  ptrdiff_t has_at;  /* offset of a bool that says the field was given; -1: none */
} td_field;

/* Judges member m of an object. path: the object's path in error messages: "", "stream_options.",
 * "messages[3].". Returns true if m is accepted; then *served says how to read it, or is NULL if there is
 * nothing to read. Returns false if it is refused; *error says why. */
TD_MUST_CHECK bool td_fields_check(const cJSON *m, unsigned in, const char *path, td_unknown *unknown,
                                   const td_field **served, td_api_error *error);
/* Sets a 400 invalid_value "'path+name' text". Always returns false. */
bool td_fields_invalid(td_api_error *e, const char *path, const char *name, const char *text);
/* Sets a 400 unsupported_parameter "'path+name' text". Always returns false. */
bool td_fields_unsupported(td_api_error *e, const char *path, const char *name, const char *text);

#endif
