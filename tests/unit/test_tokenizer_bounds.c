/* A tokenizer's limits take effect at the exact step and byte; and decoders whose steps are in another
 * order. */
#include "test_tokenizer_util.h"

/* For any number of steps: too few give no part and are used up; enough give the part and leave the rest. */
static void steps_are_counted_to_the_last(void **state)
{
  static const char *const expressions[] = {"[a-z]+!|[a-z]", "[a-z]+!|[a-z]|\1(?=\2\2)",
                                            "(?:ab|a|b)[a-z]|(?:ab)+Z|[a-z]|\1(?=\2\2)",
                                            "[a-z]{2}Z|[a-z]{1,3}b|[a-z]|\1(?=\2\2)"};
  static const char text[] = "aababaabaaaaabaab";
  for (size_t e = 0; e < sizeof expressions / sizeof *expressions; e++) {
    td_regex *r = td_regex_create(expressions[e]);
    assert_non_null(r);
    for (size_t at = 0; text[at]; at++) {
      const unsigned char *p = (const unsigned char *)text + at;
      size_t n = strlen(text) - at, plenty = 100000, left = plenty;
      size_t piece = td_regex_next(r, p, n, &left), used = plenty - left;
      assert_true(piece > 0);
      for (size_t given = 0; given <= used + 3; given++) {
        left = given;
        size_t got = td_regex_next(r, p, n, &left);
        if (got != (given > used ? piece : 0) && given != used)
          fail_msg("%s at %zu: %zu steps of %zu give %zu", expressions[e], at, given, used, got);
        assert_int_equal(left, given > used ? given - used : 0);
      }
    }
    td_regex_destroy(r);
  }
}

/* The sizes of a vocabulary, at their limits. The text is allocated but never touched. */
static void a_vocabulary_has_bounds(void **state)
{
  td_vocab v = {0};
  td_error err = {0};
  td_status st = td_vocab_init(&v, 0, UINT32_MAX / 2, &err);
  assert_true(st == TD_OK || st == TD_ERR_NOMEM);
  td_vocab_deinit(&v);
  assert_int_equal(td_vocab_init(&v, 1, UINT32_MAX / 2, &err), TD_ERR_MODEL);
  assert_string_equal(err.message, "tokenizer vocabulary has 2147483648 bytes of text");
  uint32_t most = (uint32_t)td_limit_max(TD_LIMIT_MODEL_VOCAB);
  assert_int_equal(td_vocab_init(&v, most, 100, &err), TD_OK);
  assert_int_equal(td_vocab_add(&v, most - 1, "a", 1, 0, &err), TD_OK);
  assert_int_equal(td_vocab_add(&v, most, "b", 1, 0, &err), TD_ERR_MODEL);
  assert_non_null(strstr(err.message, "\"b\" has id"));
  td_vocab_deinit(&v);
  assert_int_equal(td_vocab_init(&v, most + 1, 100, &err), TD_ERR_MODEL);
  char says[128];
  snprintf(says, sizeof says, "tokenizer has ids up to %u, at most %u tokens are served", most, most);
  assert_string_equal(err.message, says);
}

static void token_texts_have_a_longest(void **state)
{
  static char text[TD_TOKEN_TEXT_MAX + 2];
  uint64_t limit = td_limit_max(TD_LIMIT_TOKEN_BYTES);
  size_t most = limit < TD_TOKEN_TEXT_MAX ? limit : TD_TOKEN_TEXT_MAX;
  td_vocab v = {0};
  td_error err = {0};
  memset(text, 'y', sizeof text - 1);
  assert_int_equal(td_vocab_init(&v, 4, 10, &err), TD_OK);
  assert_int_equal(td_vocab_add(&v, 0, text, most, 0, &err), TD_OK);
  assert_int_equal(td_vocab_find(&v, text, most), 0);
  assert_int_equal(td_vocab_find(&v, text, most + 1), -1);
  assert_int_equal(td_vocab_find(&v, text, most - 1), -1);
  assert_int_equal(td_vocab_add(&v, 1, text, most + 1, 0, &err), TD_ERR_MODEL);
  assert_non_null(strstr(err.message, "bytes of text, at most"));
  td_vocab_deinit(&v);
}

/* Replace, ByteFallback, Fuse and Strip: in this order, each once, the first three at least. */
static void decoders_have_an_order(void **state)
{
  enum { STEPS = 4, LONGEST = 5 };
  cJSON *json = util_read_json(GOLDEN_DIR, "small_spm.json");
  assert_non_null(json);
  cJSON *decoder = cJSON_DetachItemFromObjectCaseSensitive(json, "decoder");
  const cJSON *steps = td_json_get(decoder, "decoders");
  assert_int_equal(cJSON_GetArraySize(steps), STEPS);
  int n_taken = 0;
  for (int n = 0; n <= LONGEST; n++)
    for (int i = 0, all = 1 << 3 * n; i < all; i += n == LONGEST ? 7 : 1) {
      bool in_order = n >= 3 && n <= STEPS, possible = true;
      cJSON *list = cJSON_CreateArray();
      for (int k = 0; k < n; k++) {
        int which = i >> 3 * k & 7; /* a step; an unknown step; otherwise none */
        possible = possible && which <= STEPS;
        cJSON_AddItemToArray(list, which < STEPS ? cJSON_Duplicate(cJSON_GetArrayItem(steps, which), true)
                                                 : util_parse("{\"type\":\"Lower\"}", 16));
        in_order = in_order && which == k;
      }
      cJSON *sequence = util_parse("{\"type\":\"Sequence\"}", 19);
      cJSON_AddItemToObject(sequence, "decoders", list);
      cJSON_DeleteItemFromObjectCaseSensitive(json, "decoder");
      cJSON_AddItemToObject(json, "decoder", sequence);
      td_error err = {0};
      td_tokenizer *t = NULL;
      if (possible && td_tokenizer_load_json(json, NULL, &t, &err) != (in_order ? TD_OK : TD_ERR_UNSUPPORTED))
        fail_msg("%d steps, %o: %s", n, i, err.message);
      n_taken += t != NULL;
      td_tokenizer_destroy(t);
    }
  assert_int_equal(n_taken, 2);
  cJSON_Delete(decoder);
  cJSON_Delete(json);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(steps_are_counted_to_the_last),
      cmocka_unit_test(a_vocabulary_has_bounds),
      cmocka_unit_test(token_texts_have_a_longest),
      cmocka_unit_test(decoders_have_an_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
