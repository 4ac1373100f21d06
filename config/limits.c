/* The limits table: see limits.def. */
#include "config/limits.h"

#include "common/json.h"

const td_limit td_limits[TD_LIMIT_COUNT] = {
#define TD_LIMIT(id, name, kind, min, def, max, unit, help)                                                  \
  [TD_LIMIT_##id] = {name, TD_LIMIT_KIND_##kind, min, def, max, unit, help},
#include "config/limits.def"
#undef TD_LIMIT
};
