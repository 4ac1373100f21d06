/* Limits of a key: token buckets, which limit refuses and when to retry, and the headers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/key_limits.h"

enum { MINUTE_US = 60000000 };
static const uint64_t begin = 7 * (uint64_t)MINUTE_US;

static void test_bucket(void **state)
{
  td_rate r = {0};
  assert_true(td_rate_left(&r, 60, begin) == 60 && td_rate_wait_us(&r, 60, 60, begin) == 0);
  td_rate_charge(&r, 60, 60, begin);
  assert_true(td_rate_left(&r, 60, begin) == 0);
  uint64_t wait = td_rate_wait_us(&r, 60, 1, begin);
  assert_in_range(wait, 1000000, 1000001);
  assert_int_equal(td_rate_wait_us(&r, 60, 1, begin + wait), 0);
  assert_true(td_rate_left(&r, 60, begin + MINUTE_US / 2) == 30);
  assert_true(td_rate_left(&r, 60, begin + 5 * (uint64_t)MINUTE_US) ==
              60);                   /* no more than a minute's worth */
  td_rate_charge(&r, 60, 90, begin); /* overdrawn by 90 */
  assert_true(td_rate_left(&r, 60, begin) == -90);
  assert_in_range(td_rate_wait_us(&r, 60, 1, begin), 91000000, 91000001);
  assert_in_range(td_rate_wait_us(&r, 60, 1000, begin), 150000000,
                  150000001);                          /* more than the whole counts as the whole */
  assert_true(td_rate_left(&r, 60, begin - 5) == -90); /* a clock that does not advance */
}

/* A charge with an earlier time does not refill the bucket twice. */
static void test_no_interval_counts_twice(void **state)
{
  td_rate r = {0};
  td_rate_charge(&r, 60, 60, begin);
  td_rate_charge(&r, 60, 30, begin + MINUTE_US / 2);
  td_rate_charge(&r, 60, 1, begin);
  assert_true(td_rate_left(&r, 60, begin + MINUTE_US / 2) == -1);
}

static void test_time_text(void **state)
{
  static const struct {
    uint64_t us;
    const char *text;
  } cases[] = {{0, "0ms"},      {1, "1ms"},        {999000, "999ms"},  {999001, "1s"},
               {1000001, "2s"}, {59000000, "59s"}, {59000001, "1m0s"}, {360000000, "6m0s"}};
  char text[TD_RATE_TEXT_BYTES];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    assert_string_equal(td_rate_time_text(cases[i].us, text), cases[i].text);
}

static void test_limits(void **state)
{
  td_key key = {.name = "a",
                .limits = {.requests_per_minute = 2, .tokens_per_minute = 100, .requests = 3, .waiting = 2}};
  td_tenant t = {.key = &key};
  td_api_error e;
  td_buf out;
  assert_true(td_key_limits_admit(&t, true, begin, &e) && td_key_limits_admit(&t, false, begin, &e));
  assert_false(td_key_limits_admit(&t, true, begin, &e));
  assert_true(e.status == 429 && e.retry_after_s == 31); /* 30 s and a microsecond, rounded up */
  assert_string_equal(e.type, "requests");
  assert_string_equal(e.code, "rate_limit_exceeded");
  uint64_t later = begin + 2 * (uint64_t)MINUTE_US;

  assert_false(td_key_limits_take(&t, 101, 1, later, &e)); /* can never be allowed, so it is not a 429 */
  assert_int_equal(e.status, 400);
  assert_false(td_key_limits_take(&t, 1, 3, later, &e));
  assert_true(e.status == 400 && strcmp(e.param, "n") == 0);
  assert_true(td_key_limits_take(&t, 60, 1, later, &e));
  assert_false(td_key_limits_take(&t, 60, 1, later, &e));
  assert_true(e.status == 429 && e.retry_after_s == 13 && strcmp(e.type, "tokens") == 0);
  td_key_limits_charge(&t, 50, later);
  assert_false(td_key_limits_admit(&t, true, later, &e)); /* overdrawn by the tokens of its answer */
  assert_true(td_key_limits_admit(&t, false, later, &e)); /* a request that uses no tokens */

  td_buf_init(&out, 0);
  td_key_limits_append_headers(&t, later, &out);
  td_buf_append_char(&out, '\0');
  assert_string_equal(out.data, "x-ratelimit-limit-requests: 2\r\nx-ratelimit-remaining-requests: 1\r\n"
                                "x-ratelimit-reset-requests: 31s\r\nx-ratelimit-limit-tokens: 100\r\n"
                                "x-ratelimit-remaining-tokens: 0\r\nx-ratelimit-reset-tokens: 1m7s\r\n");
  td_buf_deinit(&out);

  later += 5 * (uint64_t)MINUTE_US;
  t.n_choices = 3; /* all run */
  assert_false(td_key_limits_admit(&t, true, later, &e));
  assert_non_null(strstr(e.message, "has 3 requests under way, and may have 3"));
  t.n_choices = 2;
  assert_true(td_key_limits_admit(&t, true, later, &e));
  t.n_waiting = 1;
  t.n_to_generate = 1;
  t.n_reading = 2; /* one has a limit for tokens only */
  t.n_choices = 1;
  assert_false(td_key_limits_admit(&t, true, later, &e));
  assert_non_null(strstr(e.message, "has 2 requests that wait for their first token, and may have 2"));
  assert_true(t.usage.requests == 4 && t.usage.refused == 7);

  td_tenant nobody = {0};
  assert_true(td_key_limits_admit(&nobody, true, later, &e) &&
              td_key_limits_take(&nobody, 1 << 30, 100, later, &e));
}

/* If the key file changes a limit, the debt is at most the new limit; an unchanged limit keeps its debt. */
static void test_changed_limits(void **state)
{
  td_key old = {.account = 1, .limits = {.requests_per_minute = 600, .tokens_per_minute = 100}};
  td_key new = {.account = 1, .limits = {.requests_per_minute = 6, .tokens_per_minute = 100}};
  td_tenants all;
  td_error err;
  assert_int_equal(td_tenants_init(&all, &(td_keys){.keys = &old, .n = 1, .required = true}, &err), TD_OK);
  td_tenant *t = &all.keys[1];
  td_rate_charge(&t->requests, 600, 500, begin);
  td_rate_charge(&t->tokens, 100, 250, begin);
  td_tenants_set_keys(&all, &(td_keys){.keys = &new, .n = 1, .required = true});
  assert_in_range(td_rate_wait_us(&t->requests, 6, 1, begin), 10000000, 10000001);
  assert_true(td_rate_left(&t->tokens, 100, begin) == -150);
  td_tenants_deinit(&all);
}

/* Tokens of a request that is then refused. */
static void test_given_back(void **state)
{
  td_key key = {.limits = {.tokens_per_minute = 100}};
  td_tenant t = {.key = &key}, nobody = {0};
  td_api_error e;
  assert_true(td_key_limits_take(&t, 90, 1, begin, &e));
  td_key_limits_give_back(&t, 90);
  assert_true(td_rate_left(&t.tokens, 100, begin) == 100);
  td_key_limits_give_back(&t, 90);
  assert_true(td_rate_left(&t.tokens, 100, begin) == 100);
  td_key_limits_give_back(&nobody, 90);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bucket),         cmocka_unit_test(test_no_interval_counts_twice),
      cmocka_unit_test(test_time_text),      cmocka_unit_test(test_limits),
      cmocka_unit_test(test_changed_limits), cmocka_unit_test(test_given_back)};
  return cmocka_run_group_tests_name("rate", tests, NULL, NULL);
}
