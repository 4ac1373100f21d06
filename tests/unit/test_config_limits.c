/* The limits table: consistent as a whole, every row is used, and names are unique. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/checked.h"
#include "config/limits.h"
#include "config/options.h"

static void test_rows(void **state)
{
  for (int i = 0; i < TD_LIMIT_COUNT; i++) {
    const td_limit *l = &td_limits[i];
    assert_non_null(l->name);
    if (!(l->min <= l->max) || l->max > 9007199254740992.0)
      fail_msg("%s: min %g max %g", l->name, l->min, l->max);
    /* a default outside the bounds means absent: "to the end of the context", or no timeout */
    bool absent_is_none =
        i == TD_LIMIT_MAX_TOKENS || i == TD_LIMIT_TIMEOUT_MS || i == TD_LIMIT_TTFT_TIMEOUT_MS;
    if (!absent_is_none && !(l->min <= l->def && l->def <= l->max))
      fail_msg("%s: default %g is outside %g..%g", l->name, l->def, l->min, l->max);
    if (l->kind == TD_LIMIT_KIND_FIXED && (l->min != l->max || l->def != l->max || l->max <= 0))
      fail_msg("%s: a fixed limit has one value", l->name);
    if (l->kind == TD_LIMIT_KIND_OPTION &&
        (l->min != floor(l->min) || l->def != floor(l->def) || l->max != floor(l->max)))
      fail_msg("%s: an option is a whole number", l->name);
    if (l->kind != TD_LIMIT_KIND_REQUEST && (l->min < 0 || !*l->unit))
      fail_msg("%s: negative, or without a unit", l->name);
    assert_true(*l->help != '\0');
    for (const char *c = l->name; *c; c++)
      if (!strchr("abcdefghijklmnopqrstuvwxyz_", *c))
        fail_msg("%s: a name has small letters and '_'", l->name);
    for (int k = 0; k < i; k++)
      assert_string_not_equal(l->name, td_limits[k].name);
  }
}

/* Pairs of limits that would contradict each other. */
static void test_together(void **state)
{
  assert_true(td_limit_max(TD_LIMIT_HTTP_LINE_BYTES) <= td_limit_max(TD_LIMIT_HTTP_HEADERS_BYTES));
  assert_true(td_limits[TD_LIMIT_HTTP_BODY_BYTES].def <= td_limits[TD_LIMIT_HTTP_BODIES_BYTES].def);
  assert_true(td_limits[TD_LIMIT_RUNNING_REQUESTS].def <= td_limits[TD_LIMIT_STEP_TOKENS].def);
  assert_true(td_limits[TD_LIMIT_RUNNING_REQUESTS].def <= td_limits[TD_LIMIT_QUEUE_REQUESTS].def);
  assert_true(td_limits[TD_LIMIT_CONNECTIONS_PER_IP].def <= td_limits[TD_LIMIT_CONNECTIONS].def);
  assert_true(td_limits[TD_LIMIT_SSE_PING_MS].def < td_limits[TD_LIMIT_SSE_STALL_MS].def);
  assert_true(td_limit_max(TD_LIMIT_MAX_TOKENS) == td_limit_max(TD_LIMIT_CONTEXT_TOKENS));
  assert_true(td_limit_max(TD_LIMIT_OPTIONS_LINE_BYTES) > TD_OPTION_STRING_BYTES);
  assert_true(td_limit_max(TD_LIMIT_JSON_DEPTH) <= 256 && td_limit_max(TD_LIMIT_MODEL_JSON_DEPTH) <= 256);
}

static void test_checked(void **state)
{
  uint64_t v;
  size_t z;
  assert_true(td_mul_u64(UINT32_MAX, UINT32_MAX, &v) && v == (uint64_t)UINT32_MAX * UINT32_MAX);
  assert_false(td_mul_u64(UINT64_MAX / 2 + 1, 2, &v));
  assert_false(td_mul_size(SIZE_MAX, 2, &z));
  assert_true(td_range_inside(0, 0, 0));
  assert_true(td_range_inside(3, 7, 10));
  assert_false(td_range_inside(3, 8, 10));
  assert_false(td_range_inside(11, 0, 10));
  assert_false(td_range_inside(1, UINT64_MAX, 10));
  assert_false(td_range_inside(UINT64_MAX, 2, 10));
  assert_true(td_div_ceil_u64(0, 16) == 0 && td_div_ceil_u64(1, 16) == 1 && td_div_ceil_u64(16, 16) == 1);
  assert_true(td_div_ceil_u64(UINT64_MAX, 2) == UINT64_MAX / 2 + 1);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rows),
      cmocka_unit_test(test_together),
      cmocka_unit_test(test_checked),
  };
  return cmocka_run_group_tests_name("config limits", tests, NULL, NULL);
}
