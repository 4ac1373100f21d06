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
  uint8_t done;   /* DONE_*: anyOf or oneOf was replaced by one of its branches */
  uint8_t from;   /* the part that added this one; NO_PART: none */
  bool is_denial; /* belongs to a denial, so what it names does not count as evaluated */
} td_schema_part;

typedef struct td_schema_conjunction {
  td_schema_part parts[TD_SCHEMA_PARTS_MAX];
  uint32_t n;
  bool never; /* no value fits */
} td_schema_conjunction;

typedef struct td_cached_rule {
  const td_schema_part *parts;
  uint32_t n, rule;
  uint32_t next; /* in the same bucket, + 1 */
} td_cached_rule;

enum { SCHEMA_BUCKETS = 1024 };

typedef struct td_member_index td_member_index;           /* schema_index.c */
typedef struct td_schema_duplicates td_schema_duplicates; /* schema_duplicates.c */
typedef struct td_listed_values td_listed_values;         /* schema_values.c */

/* A schema that we made for a schema's `not` or a similar keyword. */
typedef struct td_derived_schema {
  cJSON *schema;
  const cJSON *key, *from; /* the schema that it was made from; the schema to name in errors */
  bool is_denial;
  struct td_derived_schema *next; /* in the same bucket */
} td_derived_schema;

/* Keywords and type names of our own. No text in a request contains the byte 0xFF. */
#define KEYWORD_NO_PATTERN "\xFFno pattern"
#define KEYWORD_NONE_OF "\xFFnone of"
#define KEYWORD_NO_MULTIPLE "\xFFno multiple"
#define KEYWORD_DENIAL                                                                                       \
  "\xFF"                                                                                                     \
  "denial"
#define TYPE_NAME_FRACTION                                                                                   \
  "\xFF"                                                                                                     \
  "fraction"

typedef struct td_schema {
  td_builder *b;
  const cJSON *root;
  td_cached_rule *cached_rules; /* in the arena */
  uint32_t n_cached_rules, cap_cached_rules;
  uint32_t buckets[SCHEMA_BUCKETS]; /* index into cached_rules, + 1 */
  td_member_index *indices[SCHEMA_BUCKETS];
  td_schema_duplicates *same;
  td_listed_values *values[SCHEMA_BUCKETS];
  td_derived_schema *derived[SCHEMA_BUCKETS];
  uint32_t n_derived; /* number of values in derived schemas */
  uint64_t seed;      /* for hashes of what the schema contains */
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
void td_schema_find_duplicates(td_schema *s);
const cJSON *td_schema_first(const td_schema *s, const cJSON *schema);
/* Adds a schema (an object, true or false) to a conjunction, with everything that $ref and allOf bring. The
 * second function records `part` as the part that added it. */
void td_schema_add(td_schema *s, td_schema_conjunction *conj, const cJSON *schema);
void td_schema_add_from(td_schema *s, td_schema_conjunction *conj, const cJSON *schema, uint32_t part);
/* Whether the part, or any part that it added, evaluates the member or element. covers[i] tells whether part
 * i has a schema for it. */
bool td_schema_is_evaluated(const td_schema_conjunction *conj, uint32_t part, const bool *covers);
/* The types that a schema's `type` names. */
unsigned td_schema_types(td_schema *s, const cJSON *schema);
/* The schema that a $ref points at; NULL on failure. */
const cJSON *td_schema_resolve(td_schema *s, const cJSON *schema, const cJSON *ref);
/* schema_not.c: adds schemas for the keywords `not`, `if` and `dependent*`. */
void td_schema_add_derived(td_schema *s, td_schema_conjunction *conj, uint32_t part);
/* A schema, owned by s, for everything that this schema does not allow. NULL on failure; *why is then a
 * keyword that cannot be denied, if that is the reason. Errors in the new schema are reported as errors in
 * `from`. */
const cJSON *td_schema_deny(td_schema *s, const cJSON *schema, const cJSON *from, const char **why);
void td_schema_free_derived(td_schema *s);
/* A call of the conjunction's rule. */
const td_expr *td_schema_rule(td_schema *s, const td_schema_conjunction *conj);

/* Compiles the conjunction for values of these types, ignoring enum and const. */
const td_expr *td_schema_by_types(td_schema *s, const td_schema_conjunction *conj, unsigned types);
unsigned td_schema_type_of(const cJSON *value);

/* schema_values.c: those of the listed values that fit the rest of the conjunction. source is a list or a
 * single value. */
const td_expr *td_schema_one_of(td_schema *s, const td_schema_conjunction *conj, unsigned types,
                                const cJSON *source, bool is_list);
/* Whether the conjunction constrains nothing but types, enum and const. */
bool td_schema_is_free(td_schema *s, const td_schema_conjunction *conj);
/* Whether both schemas list values and have none in common. */
bool td_schema_values_apart(td_schema *s, const cJSON *a, const cJSON *b);
bool td_schema_requires(td_schema *s, const cJSON *schema, const cJSON *name);
/* Fails unless `required` is an array of strings. */
void td_schema_check_required(td_schema *s, const cJSON *schema);

/* One function per type. No anyOf or oneOf may be left in the parts. */
const td_expr *td_schema_object(td_schema *s, const td_schema_conjunction *conj);
const td_expr *td_schema_array(td_schema *s, const td_schema_conjunction *conj);
const td_expr *td_schema_string(td_schema *s, const td_schema_conjunction *conj);
const td_expr *td_schema_number(td_schema *s, const td_schema_conjunction *conj, unsigned types);
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
