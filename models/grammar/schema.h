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

enum { NO_PART = TD_SCHEMA_PARTS_MAX };

typedef struct td_schema_part {
  const cJSON *schema;
  uint8_t done;  /* anyOf, oneOf have been replaced by a branch */
  uint8_t from;  /* the part that says that this one holds; NO_PART: none */
  bool is_quiet; /* a denial, or of one: what it names does not count as evaluated */
} td_schema_part;

typedef struct td_all {
  td_schema_part parts[TD_SCHEMA_PARTS_MAX];
  uint32_t n;
  bool never; /* no value fits */
} td_all;

typedef struct td_kept {
  const td_schema_part *parts;
  uint32_t n, rule;
  uint32_t next; /* of the same bucket, + 1 */
} td_kept;

enum { SCHEMA_BUCKETS = 1024 };

typedef struct td_index td_index;   /* schema_index.c */
typedef struct td_same td_same;     /* schema_same.c */
typedef struct td_values td_values; /* schema_values.c */

/* A schema that stands for what a schema says with `not` and the like. */
typedef struct td_made {
  cJSON *schema;
  const cJSON *key, *from; /* what it was made of; where errors in it are */
  bool is_denial;
  struct td_made *next; /* of the same bucket */
} td_made;

/* Words and types of our own: no text of a request has this byte. */
#define WORD_NO_PATTERN "\xFFno pattern"
#define WORD_NONE_OF "\xFFnone of"
#define WORD_NO_MULTIPLE "\xFFno multiple"
#define WORD_DENIAL                                                                                          \
  "\xFF"                                                                                                     \
  "denial"
#define TYPE_NAME_FRACTION                                                                                   \
  "\xFF"                                                                                                     \
  "fraction"

typedef struct td_schema {
  td_builder *b;
  const cJSON *root;
  td_kept *kept; /* in the arena */
  uint32_t n_kept, cap_kept;
  uint32_t buckets[SCHEMA_BUCKETS]; /* into kept, + 1 */
  td_index *indices[SCHEMA_BUCKETS];
  td_same *same;
  td_values *values[SCHEMA_BUCKETS];
  td_made *made_of[SCHEMA_BUCKETS];
  uint32_t n_made; /* values in them */
  uint64_t seed;   /* of hashes of what the schema says */
  bool has_inner_id;
  uint32_t depth, work;
  td_status status; /* the first failure; what is returned then means nothing */
} td_schema;

/* The first failure counts: "'keyword' at /path text". Returns td_expr_none. */
const td_expr *td_schema_fail(td_schema *s, td_status code, const cJSON *schema, const char *keyword,
                              const char *text);
/* Counts n units of work, of at most a microsecond. False: it is too much, or something failed before. */
bool td_schema_work(td_schema *s, const cJSON *schema, const char *keyword, uint32_t n);
/* A member by its name; NULL: there is none, or it is no object. In constant time. */
const cJSON *td_schema_get(td_schema *s, const cJSON *object, const char *key);
/* Finds schemas that say the same; the first of those that say what this one does. */
void td_schema_find_same(td_schema *s);
const cJSON *td_schema_first(const td_schema *s, const cJSON *schema);
/* Adds a schema (an object, true or false) with all that $ref and allOf bring. The second: because that part
 * says so. */
void td_schema_gather(td_schema *s, td_all *all, const cJSON *schema);
void td_schema_gather_from(td_schema *s, td_all *all, const cJSON *schema, uint32_t part);
/* A member or element is evaluated by the part or by what it brought: says[i] tells whether part i names it.
 */
bool td_schema_is_evaluated(const td_all *all, uint32_t part, const bool *says);
/* The types that a schema's `type` names. */
unsigned td_schema_types(td_schema *s, const cJSON *schema);
/* What a $ref of the schema points at; NULL: it failed. */
const cJSON *td_schema_resolve(td_schema *s, const cJSON *schema, const cJSON *ref);
/* schema_not.c: what `not`, `if` and `dependent*` of the schema say, as schemas that are added. */
void td_schema_gather_said(td_schema *s, td_all *all, uint32_t part);
/* All that the schema does not allow, as a schema that s owns. NULL: it failed, or *why is a word that cannot
 * be denied. Errors in it are said to be in `from`. */
const cJSON *td_schema_deny(td_schema *s, const cJSON *schema, const cJSON *from, const char **why);
void td_schema_free_made(td_schema *s);
/* A call of the rule of all these. */
const td_expr *td_schema_rule(td_schema *s, const td_all *all);

/* What is said beside enum and const, of values of these types. */
const td_expr *td_schema_by_types(td_schema *s, const td_all *all, unsigned types);
unsigned td_schema_type_of(const cJSON *value);

/* schema_values.c. One of the listed values (a list, or one) that fits all else that is said. */
const td_expr *td_schema_one_of(td_schema *s, const td_all *all, unsigned types, const cJSON *source,
                                bool is_list);
/* Nothing is said of values beside their types, enum and const. */
bool td_schema_is_free(td_schema *s, const td_all *all);
/* Both list values, and none that the other lists. */
bool td_schema_values_apart(td_schema *s, const cJSON *a, const cJSON *b);
bool td_schema_requires(td_schema *s, const cJSON *schema, const cJSON *name);
/* `required` must be an array of strings. */
void td_schema_check_required(td_schema *s, const cJSON *schema);

/* By type; parts have no anyOf, oneOf left. */
const td_expr *td_schema_object(td_schema *s, const td_all *all);
const td_expr *td_schema_array(td_schema *s, const td_all *all);
const td_expr *td_schema_string(td_schema *s, const td_all *all);
const td_expr *td_schema_number(td_schema *s, const td_all *all, unsigned types);
/* The string's text as a JSON string's inside: one spelling. */
const td_expr *td_schema_text(td_schema *s, const char *text);
/* Any text between quotes, in the one spelling that names and patterns have; a given text in all its ways of
 * that. */
const td_expr *td_schema_plain_text(td_builder *b);
const td_expr *td_schema_spellings(td_builder *b, const char *text);
/* A value as JSON text, in the spelling that json.dumps and others have. */
const td_expr *td_schema_value(td_schema *s, const cJSON *value);
/* The regular expression of a format; NULL: there is none of that name. */
const char *td_format_pattern(const char *name);

/* A member that is a number >= 0 without fraction; absent: *out stays. */
void td_schema_count(td_schema *s, const cJSON *schema, const char *keyword, uint32_t *least, uint32_t *most);

#endif
