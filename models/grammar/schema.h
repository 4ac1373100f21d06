/* What the files of the schema compiler share.
 *
 * A schema is compiled as a conjunction of schema objects ("all of these hold"): $ref and allOf add to it,
 * anyOf and oneOf make one of each branch. What is left are objects without such words, of which each type of
 * value is compiled by itself. A conjunction is a rule, kept by its parts, so that recursion ends. */
#ifndef TD_MODELS_GRAMMAR_SCHEMA_H
#define TD_MODELS_GRAMMAR_SCHEMA_H

#include "models/grammar/internal.h"

enum {
  TYPE_NULL = 1,
  TYPE_BOOLEAN = 2,
  TYPE_INTEGER = 4,
  TYPE_FRACTION = 8, /* numbers that are no integers */
  TYPE_STRING = 16,
  TYPE_ARRAY = 32,
  TYPE_OBJECT = 64,
  TYPE_ALL = 127,
};

enum { DONE_ANY = 1, DONE_ONE = 2 };

typedef struct td_schema_part {
  const cJSON *schema;
  unsigned done; /* anyOf, oneOf have been replaced by a branch */
} td_schema_part;

enum { PARTS_MAX_OF_ALL = 48 };

typedef struct td_all {
  td_schema_part parts[PARTS_MAX_OF_ALL];
  uint32_t n;
  bool never; /* no value fits */
} td_all;

typedef struct td_kept {
  const td_schema_part *parts;
  uint32_t n, rule;
  uint32_t next; /* of the same bucket, + 1 */
} td_kept;

enum { KEPT_BUCKETS = 1024 };

typedef struct td_schema {
  td_builder *b;
  const cJSON *root;
  td_kept *kept; /* in the arena */
  uint32_t n_kept, cap_kept;
  uint32_t buckets[KEPT_BUCKETS]; /* into kept, + 1 */
  uint32_t depth, work;
  td_status status; /* the first failure; what is returned then means nothing */
} td_schema;

/* The first failure counts: "'keyword' at /path text". Returns td_expr_none. */
const td_expr *td_schema_fail(td_schema *s, td_status code, const cJSON *schema, const char *keyword,
                              const char *text);
/* Adds a schema (an object, true or false) with all that $ref and allOf bring. */
void td_schema_gather(td_schema *s, td_all *all, const cJSON *schema);
/* A call of the rule of all these. */
const td_expr *td_schema_rule(td_schema *s, const td_all *all);

/* By type; parts have no anyOf, oneOf left. */
const td_expr *td_schema_object(td_schema *s, const td_all *all);
const td_expr *td_schema_array(td_schema *s, const td_all *all);
const td_expr *td_schema_string(td_schema *s, const td_all *all);
const td_expr *td_schema_number(td_schema *s, const td_all *all, unsigned types);
/* The string's text as a JSON string's inside: one spelling. */
const td_expr *td_schema_text(td_schema *s, const char *text);
/* A value as JSON text, in the spelling that json.dumps and others have. */
const td_expr *td_schema_value(td_schema *s, const cJSON *value);
/* The regular expression of a format; NULL: there is none of that name. */
const char *td_format_pattern(const char *name);

/* A member that is a number >= 0 without fraction; absent: *out stays. */
void td_schema_count(td_schema *s, const cJSON *schema, const char *keyword, uint32_t *least, uint32_t *most);

#endif
