/* The fields of requests: one table of all that OpenAI, vLLM, llama.cpp, SGLang, Anthropic and others give a
 * name to.
 *
 * A field is served; or no answer depends on it, and it is taken; or it would change the answer and is not
 * served, and it is taken only with a value that means "off". null is absent, always. What is in none of
 * these is refused if it looks like a served field misspelt, else ignored and named (unknown.h). To serve a
 * field: a row of `served`, its name out of `others`, and its use. */
#ifndef TD_SERVER_FIELDS_H
#define TD_SERVER_FIELDS_H

#include <stddef.h>

#include "common/json.h"
#include "config/limits.h"
#include "server/api_error.h"
#include "server/unknown.h"

/* Where a member stands: the body of a route, or an object in it. */
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
  TD_FIELD_ITEM, /* const cJSON *: read by who uses it */
} td_field_kind;

typedef struct td_field {
  const char *name;
  unsigned in;
  td_field_kind kind;
  td_limit_id limit; /* INT, DOUBLE: bounds */
  size_t at;         /* offset in td_api_request; not of messages' and parts' */
  ptrdiff_t has_at;  /* offset of a bool for "given"; -1: none */
} td_field;

/* What becomes of member m of an object. path: of that object in errors: "", "stream_options.",
 * "messages[3].". true: it is taken, and *served is what to read it as; NULL: there is nothing to read.
 * false: *error says why. */
TD_MUST_CHECK bool td_fields_judge(const cJSON *m, unsigned in, const char *path, td_unknown *unknown,
                                   const td_field **served, td_api_error *error);
/* 400 invalid_value "'path+name' text"; false. */
bool td_fields_invalid(td_api_error *e, const char *path, const char *name, const char *text);
/* 400 unsupported_parameter "'path+name' text"; false. */
bool td_fields_unsupported(td_api_error *e, const char *path, const char *name, const char *text);

#endif
