/* JSON when memory runs out: whichever allocation fails, the error says so, and nothing leaks. Also texts
 * that end where the guard looks ahead. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "allocations_fixture.h"
#include "common/arena.h"
#include "common/json.h"

enum { ALLOCATIONS_MAX = 1000 };

static const td_json_limits limits = {8, 1000, TD_ERR_REQUEST};

static td_status parse(const char *text, bool as_ids, cJSON **out, td_error *err)
{
  return td_json_parse_ids(text, strlen(text), &limits, as_ids ? "prompt" : NULL, out, err);
}

static void each_allocation_may_fail(void **state)
{
  static const char *const texts[] = {
      "{\"a\":[1,-2.5e3,12345678901234567890,{\"b\":9007199254740993}],\"c\":\"x\\u0000y\",\"d\":null}",
      "{\"prompt\":[1,2,3,4,5,6,7,8,9,10,11,12],\"max_tokens\":1,\"x\":{\"prompt\":[18446744073709551615]}}",
      "{\"prompt\":[[1,2],[3]],\"s\":\"\\u0000\",\"a\":1,\"b\":2,\"e\":3}",
  };
  for (size_t i = 0; i < 2 * sizeof texts / sizeof *texts; i++) {
    long k = 0;
    for (td_status st = TD_ERR_NOMEM; st != TD_OK; k++) {
      td_error err;
      cJSON *root = NULL;
      n_calls = n_alive = 0;
      fails_at = k;
      st = parse(texts[i / 2], i % 2, &root, &err);
      fails_at = -1;
      assert_true(k < ALLOCATIONS_MAX);
      if (st == TD_OK) {
        assert_true(n_calls <= k);
        assert_non_null(root);
      } else {
        assert_int_equal(st, TD_ERR_NOMEM);
        assert_null(root);
      }
      cJSON_Delete(root);
      assert_int_equal(n_alive, 0);
    }
    assert_true(k > 5);
  }
}

/* Where the guard looks ahead, every text is cut at every byte, in memory of its exact size, so that a
 * sanitizer detects reads beyond it. */
static void cut_texts_are_refused(void **state)
{
  static const char *const texts[] = {
      "{\"a\":\"\\ud83d\\ude00\",\"b\":[\"\\ud83dx23456789\"]}",
      "[\"\\ud83d\\u0041\"]",
      "[\"\\ud83d\\uffff\"]",
      "[\"\\ud83d\\x0000\",1]",
      "{\"prompt\":[1,2,-3.5e+7,40],\"promp\":[1],\"prompts\":[2],\"pr\":-}",
      "[\"\\u0000\\n\\u0001\\u000\",-0.0]",
  };
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    for (size_t n = 0; n <= strlen(texts[i]); n++) {
      td_error err;
      cJSON *root = NULL;
      char *copy = malloc(n + (n == 0));
      assert_non_null(copy);
      memcpy(copy, texts[i], n);
      td_status st = td_json_parse_ids(copy, n, &limits, "prompt", &root, &err);
      assert_int_equal(st, TD_ERR_REQUEST); /* complete ones too: a lone surrogate, a dash */
      assert_null(root);
      free(copy);
    }
  }
}

/* An arena distinguishes running out of memory from its own cap, and keeps working with what it has. */
static void arenas(void **state)
{
  td_arena a;
  n_alive = 0;
  td_arena_init(&a, 100000);
  n_calls = fails_at = 0;
  assert_null(td_arena_alloc(&a, 10));
  fails_at = -1;
  assert_true(a.no_memory && a.used_bytes == 0);
  td_arena_deinit(&a);
  td_arena_init(&a, 100000);
  char *first = td_arena_alloc(&a, 16384 - 32), *second = td_arena_alloc(&a, 16);
  assert_true(first && second && n_alive == 1); /* one block takes both */
  n_calls = fails_at = 0;
  assert_non_null(td_arena_alloc(&a, 16));
  assert_null(td_arena_alloc(&a, 16));
  n_calls = 0;
  assert_null(td_arena_strdup(&a, "x", 1));
  fails_at = -1;
  assert_true(a.no_memory && n_alive == 1);
  assert_non_null(td_arena_alloc(&a, 20000));
  assert_null(td_arena_alloc(&a, 70000)); /* the cap */
  assert_int_equal(n_alive, 2);
  td_arena_deinit(&a);
  assert_int_equal(n_alive, 0);
}

int main(void)
{
  cJSON_Hooks hooks = {__wrap_malloc, __wrap_free};
  cJSON_InitHooks(&hooks);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(arenas),
      cmocka_unit_test(each_allocation_may_fail),
      cmocka_unit_test(cut_texts_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
