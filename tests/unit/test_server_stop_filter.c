/* Stop strings against a naive search of the whole text, for random texts, stop strings and cuts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "config/limits.h"
#include "server/stop_filter.h"

static uint64_t rng_state = 7;
static uint32_t rnd(uint32_t n)
{
  rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)((rng_state >> 33) % n);
}

/* Where the answer ends: the earliest end of any stop string, and of those ending there the longest.
 * SIZE_MAX: nowhere. */
static size_t naive_cut(const char *text, size_t n, char stops[][8], const size_t *len, size_t n_stops)
{
  for (size_t end = 1; end <= n; end++) {
    size_t longest = 0;
    for (size_t i = 0; i < n_stops; i++)
      if (len[i] <= end && memcmp(text + end - len[i], stops[i], len[i]) == 0 && len[i] > longest)
        longest = len[i];
    if (longest)
      return end - longest;
  }
  return SIZE_MAX;
}

/* The most that may be sent after n bytes without a match: all but the longest suffix that begins a stop
 * string. */
static size_t naive_certain(const char *text, size_t n, char stops[][8], const size_t *len, size_t n_stops)
{
  for (size_t start = 0; start < n; start++)
    for (size_t i = 0; i < n_stops; i++)
      if (n - start < len[i] && memcmp(text + start, stops[i], n - start) == 0)
        return start;
  return n;
}

static void test_random(void **state)
{
  unsigned matches = 0, misses = 0;
  for (int round = 0; round < 40000; round++) {
    char text[64], stops[4][8];
    size_t len[4], n = rnd(sizeof text), n_stops = 1 + rnd(4);
    for (size_t i = 0; i < n; i++)
      text[i] = (char)('a' + rnd(2 + (uint32_t)round % 2));
    td_stop_set set = {0};
    for (size_t i = 0; i < n_stops; i++) {
      len[i] = 1 + rnd(7);
      for (size_t k = 0; k < len[i]; k++)
        stops[i][k] = (char)('a' + rnd(3));
      assert_true(td_stop_set_add(&set, stops[i], len[i]));
    }
    size_t cut = naive_cut(text, n, stops, len, n_stops);
    td_stop_filter f;
    td_buf out;
    td_stop_filter_init(&f, &set);
    td_buf_init(&out, 0);
    size_t at = 0;
    bool matched = false;
    while (at < n) {
      size_t piece = 1 + rnd(5);
      piece = piece < n - at ? piece : n - at;
      matched = td_stop_filter_push(&f, text + at, piece, &out);
      at += piece;
      if (!matched) /* neither too much nor too little has gone out */
        assert_int_equal(out.len_bytes, naive_certain(text, at, stops, len, n_stops));
    }
    td_stop_filter_finish(&f, &out);
    assert_int_equal(matched, cut != SIZE_MAX);
    assert_int_equal(out.len_bytes, matched ? cut : n);
    assert_memory_equal(out.data ? out.data : "", text, out.len_bytes);
    matches += matched;
    misses += !matched;
    td_stop_filter_deinit(&f);
    td_buf_deinit(&out);
    td_stop_set_deinit(&set);
  }
  assert_true(matches > 1000 && misses > 1000);
}

static void test_bounds(void **state)
{
  td_stop_set set = {0};
  char *big = calloc(1, td_limit_max(TD_LIMIT_STOP_STRING_BYTES) + 1);
  memset(big, 'a', td_limit_max(TD_LIMIT_STOP_STRING_BYTES) + 1);
  assert_false(td_stop_set_add(&set, "", 0));
  assert_false(td_stop_set_add(&set, big, td_limit_max(TD_LIMIT_STOP_STRING_BYTES) + 1));
  for (uint64_t i = 0; i < td_limit_max(TD_LIMIT_STOP_STRINGS); i++)
    assert_true(td_stop_set_add(&set, big, td_limit_max(TD_LIMIT_STOP_STRING_BYTES)));
  assert_false(td_stop_set_add(&set, "a", 1));
  td_stop_set_deinit(&set);
  free(big);
}

/* The worst text for the worst stop strings must stay linear: a naive matcher would need about 10^10 steps.
 */
static void test_hostile(void **state)
{
  td_stop_set set = {0};
  char stop[1024];
  memset(stop, 'a', sizeof stop);
  for (int i = 0; i < 16; i++) {
    stop[sizeof stop - 1] = (char)('b' + i);
    assert_true(td_stop_set_add(&set, stop, sizeof stop));
  }
  td_stop_filter f;
  td_buf out;
  td_stop_filter_init(&f, &set);
  td_buf_init(&out, 0);
  for (int i = 0; i < 200000; i++)
    assert_false(td_stop_filter_push(&f, "aaaa", 4, &out));
  assert_int_equal(out.len_bytes, 800000 - 1023);
  assert_true(td_stop_filter_push(&f, "e", 1, &out));
  assert_int_equal(out.len_bytes, 800000 - 1023);
  assert_true(td_stop_filter_push(&f, "xyz", 3, &out)); /* the rest is dropped */
  assert_int_equal(out.len_bytes, 800000 - 1023);
  td_stop_filter_deinit(&f);
  td_buf_deinit(&out);
  td_stop_set_deinit(&set);
}

static void test_a_stop_string_that_stays(void **state)
{
  td_stop_set set = {0};
  td_stop_filter f;
  td_buf out;
  assert_true(td_stop_set_add(&set, "end", 3));
  td_stop_filter_init(&f, &set);
  f.keeps_stop = true;
  td_buf_init(&out, 0);
  assert_false(td_stop_filter_push(&f, "the e", 5, &out));
  assert_true(td_stop_filter_push(&f, "nd of it", 8, &out));
  td_stop_filter_finish(&f, &out);
  assert_string_equal(out.data, "the end");
  td_stop_filter_deinit(&f);
  td_buf_deinit(&out);
  td_stop_set_deinit(&set);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random),
      cmocka_unit_test(test_bounds),
      cmocka_unit_test(test_hostile),
      cmocka_unit_test(test_a_stop_string_that_stays),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
