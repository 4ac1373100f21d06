/* The limits table: see limits.def, which lists every numeric bound. */
#ifndef TD_CONFIG_LIMITS_H
#define TD_CONFIG_LIMITS_H

#include <stddef.h>
#include <stdint.h>

/* Limits that are also array sizes. */
enum {
  TD_DRAFT_MAX = 0, /* drafted tokens that a step may accept for a row, in addition to the one it samples */
  TD_STEP_IDS = 1 + TD_DRAFT_MAX,
  TD_TOP_TOKENS_MAX = 20,
  TD_LOGIT_BIAS_MAX = 300,
  TD_BAD_WORD_BYTES_MAX = 256,
  TD_STOP_STRINGS_MAX = 16,
  TD_STOP_IDS_MAX = 64,
  TD_EOS_IDS_MAX = 64,
  TD_LAYERS_MAX = 1024,
  TD_HEAD_DIM_MAX = 256,
  TD_TOKEN_TEXT_MAX = 4096,
  TD_CAPTURE_COUNTS_MAX = 160,
  TD_ACCOUNTS_MAX = 2048,
  TD_LISTEN_SOCKETS_MAX = 16,
  TD_AUTH_KEY_BYTES = 256,
  TD_KEY_NAME_BYTES = 64,
  TD_GBNF_RULES_MAX = 4096,
  TD_TAG_TEXTS_MAX = 256,
  TD_GRAMMAR_SIDES_MAX = 16,
  TD_SCHEMA_PARTS_MAX = 48,
  TD_SCHEMA_PATTERNS_MAX = 8,
  TD_SCHEMA_KEY_PATTERNS_MAX = 6,
  TD_SCHEMA_NOT_VALUES_MAX = 32,
  TD_SCHEMA_NOT_MULTIPLES_MAX = 8
};

typedef enum td_limit_id {
#define TD_LIMIT(id, name, kind, min, def, max, unit, help) TD_LIMIT_##id,
#include "config/limits.def"
#undef TD_LIMIT
  TD_LIMIT_COUNT
} td_limit_id;

typedef enum td_limit_kind { TD_LIMIT_KIND_OPTION, TD_LIMIT_KIND_REQUEST, TD_LIMIT_KIND_FIXED } td_limit_kind;

typedef struct td_limit {
  const char *name;
  td_limit_kind kind;
  double min, def, max;
  const char *unit;
  const char *help;
} td_limit;

extern const td_limit td_limits[TD_LIMIT_COUNT];

/* The largest permitted value, as an integer. For FIXED limits this is the limit. */
static inline uint64_t td_limit_max(td_limit_id id) { return (uint64_t)td_limits[id].max; }
static inline int64_t td_limit_default(td_limit_id id) { return (int64_t)td_limits[id].def; }

#endif
