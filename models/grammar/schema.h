/* Shared by the files of the schema compiler.
 *
 * A schema is compiled as a conjunction of schema objects, all of which must hold. $ref and allOf add objects
 * to it; anyOf and oneOf make one conjunction for each branch. In the end no object has such keywords left,
 * and each type of value is compiled separately. A conjunction becomes a rule, found again by its parts, so
 * recursion ends. */
#ifndef TD_MODELS_GRAMMAR_SCHEMA_H
#define TD_MODELS_GRAMMAR_SCHEMA_H

#include "models/grammar/internal.h"

enum {
  TYPE_NULL = 1,
  TYPE_BOOLEAN = 2,
  TYPE_INTEGER = 4,
  TYPE_FRACTION = 8, /* numbers that are not integers */
  TYPE_STRING = 16,
  TYPE_ARRAY = 32,
  TYPE_OBJECT = 64,
  TYPE_ALL = 127,
};

enum { DONE_ANY = 1, DONE_ONE = 2 };

enum { NO_PART = TD_SCHEMA_PARTS_MAX };

typedef struct td_schema_part {
  const cJSON *schema;
  uint8_t done;  /* DONE_*: anyOf or oneOf was replaced by one of its branches */
  uint8_t from;  /* the part that added this one; NO_PART: none */
  bool is_quiet; /* belongs to a denial, so what it names does not count as evaluated */
} td_schema_part;

typedef struct td_all {
  td_schema_part parts[TD_SCHEMA_PARTS_MAX];
  uint32_t n;
  bool never; /* no value fits */
} td_all;

typedef struct td_kept {
  const td_schema_part *parts;
  uint32_t n, rule;
  uint32_t next; /* in the same bucket, + 1 */
} td_kept;

enum { SCHEMA_BUCKETS = 1024 };

typedef struct td_index td_index;   /* schema_index.c */
typedef struct td_same td_same;     /* schema_same.c */
typedef struct td_values td_values; /* schema_values.c */

/* A schema that we made for a schema's `not` or a similar keyword. */
typedef struct td_made {
  cJSON *schema;
  const cJSON *key, *from; /* the schema that it was made from; the schema to name in errors */
  bool is_denial;
  struct td_made *next; /* in the same bucket */
} td_made;

/* Keywords and type names of our own. No text in a request contains the byte 0xFF. */
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
  uint32_t buckets[SCHEMA_BUCKETS]; /* index into kept, + 1 */
  td_index *indices[SCHEMA_BUCKETS];
  td_same *same;
  td_values *values[SCHEMA_BUCKETS];
  td_made *made_of[SCHEMA_BUCKETS];
  uint32_t n_made; /* number of values in made schemas */
  uint64_t seed;   /* for hashes of what the schema contains */
  bool has_inner_id;
  uint32_t depth, work;
  td_status status; /* the first failure; results after it are invalid */
} td_schema;

/* Records a failure: "'keyword' at /path text". Only the first one counts. Returns td_expr_none. */
const td_expr *td_schema_fail(td_schema *s, td_status code, const cJSON *schema, const char *keyword,
                              const char *text);
/* Counts n units of work; a unit takes at most a microsecond. False if the budget is used up or the compile
 * has failed. */
bool td_schema_work(td_schema *s, const cJSON *schema, const char *keyword, uint32_t n);
/* Finds a member by its name in constant time. NULL if there is none or object is not an object. */
const cJSON *td_schema_get(td_schema *s, const cJSON *object, const char *key);
/* Finds schemas with equal content. td_schema_first returns the first schema that equals this one. */
void td_schema_find_same(td_schema *s);
const cJSON *td_schema_first(const td_schema *s, const cJSON *schema);
/* Adds a schema (an object, true or false) to a conjunction, with everything that $ref and allOf bring. The
 * second function records `part` as the part that added it. */
void td_schema_gather(td_schema *s, td_all *all, const cJSON *schema);
void td_schema_gather_from(td_schema *s, td_all *all, const cJSON *schema, uint32_t part);
/* Whether the part, or any part that it added, evaluates the member or element. says[i] tells whether part i
 * names it. */
bool td_schema_is_evaluated(const td_all *all, uint32_t part, const bool *says);
/* The types that a schema's `type` names. */
unsigned td_schema_types(td_schema *s, const cJSON *schema);
/* The schema that a $ref points at; NULL on failure. */
const cJSON *td_schema_resolve(td_schema *s, const cJSON *schema, const cJSON *ref);
/* schema_not.c: adds schemas for the keywords `not`, `if` and `dependent*`. */
void td_schema_gather_said(td_schema *s, td_all *all, uint32_t part);
/* A schema, owned by s, for everything that this schema does not allow. NULL on failure; *why is then a
 * keyword that cannot be denied, if that is the reason. Errors in the new schema are reported as errors in
 * `from`. */
const cJSON *td_schema_deny(td_schema *s, const cJSON *schema, const cJSON *from, const char **why);
void td_schema_free_made(td_schema *s);
/* A call of the conjunction's rule. */
const td_expr *td_schema_rule(td_schema *s, const td_all *all);

/* Compiles the conjunction for values of these types, ignoring enum and const. */
const td_expr *td_schema_by_types(td_schema *s, const td_all *all, unsigned types);
unsigned td_schema_type_of(const cJSON *value);

/* schema_values.c: those of the listed values that fit the rest of the conjunction. source is a list or a
 * single value. */
const td_expr *td_schema_one_of(td_schema *s, const td_all *all, unsigned types, const cJSON *source,
                                bool is_list);
/* Whether the conjunction constrains nothing but types, enum and const. */
bool td_schema_is_free(td_schema *s, const td_all *all);
/* Whether both schemas list values and have none in common. */
bool td_schema_values_apart(td_schema *s, const cJSON *a, const cJSON *b);
bool td_schema_requires(td_schema *s, const cJSON *schema, const cJSON *name);
/* Fails unless `required` is an array of strings. */
void td_schema_check_required(td_schema *s, const cJSON *schema);

/* One function per type. No anyOf or oneOf may be left in the parts. */
const td_expr *td_schema_object(td_schema *s, const td_all *all);
const td_expr *td_schema_array(td_schema *s, const td_all *all);
const td_expr *td_schema_string(td_schema *s, const td_all *all);
const td_expr *td_schema_number(td_schema *s, const td_all *all, unsigned types);
/* The text as a JSON string with its quotes, in one spelling. */
const td_expr *td_schema_text(td_schema *s, const char *text);
/* Insides of JSON strings, without quotes: any text in the only spelling that names and patterns have; and a
 * given text in each of its spellings. */
const td_expr *td_schema_plain_text(td_builder *b);
const td_expr *td_schema_spellings(td_builder *b, const char *text);
/* A value as JSON text, spelt as by json.dumps and similar functions. */
const td_expr *td_schema_value(td_schema *s, const cJSON *value);
/* The regular expression of a format; NULL if there is no such format. */
const char *td_format_pattern(const char *name);

/* Reads a member that must be a whole number >= 0. *least is only raised and *most only lowered; either may
 * be NULL. */
void td_schema_count(td_schema *s, const cJSON *schema, const char *keyword, uint32_t *least, uint32_t *most);

#endif
