/* Random regular expressions compared with the reference: how `tokenizers` splits texts by them
 * (tests/golden_text/make_split_cases.py), with the table and by backtracking. */
#include "test_tokenizer_util.h"

static size_t cut(const td_regex *r, const char *text, size_t n, const cJSON *want)
{
  size_t at = 0, steps_left = 1000000;
  const cJSON *length;
  cJSON_ArrayForEach(length, want)
  {
    size_t k = at < n ? td_regex_next(r, (const unsigned char *)text + at, n - at, &steps_left) : 0;
    if (k != (size_t)length->valueint)
      return at + 1;
    at += k;
  }
  return at == n ? 0 : at + 1;
}

static void as_the_reference_cuts(void **state)
{
  cJSON *all = util_read_json(GOLDEN_DIR, "split_cases.json");
  assert_non_null(all);
  const cJSON *texts = td_json_get(all, "texts"), *c, *want;
  size_t n_tabled = 0, n = 0, n_bad = 0;
  cJSON_ArrayForEach(c, td_json_get(all, "cases"))
  {
    const char *expression = c->child->valuestring;
    td_regex *r = td_regex_create(expression);
    if (!r) {
      print_error("%s is refused\n", expression);
      n_bad++;
      continue;
    }
    n_tabled += td_regex_is_tabled(r);
    n++;
    const cJSON *text = texts->child;
    cJSON_ArrayForEach(want, c->child->next)
    {
      size_t at = cut(r, text->valuestring, strlen(text->valuestring), want);
      if (at > 0) {
        print_error("%s cuts '%s' in another way at %zu\n", expression, text->valuestring, at - 1);
        n_bad++;
      }
      /* if it says that no match has a character, none has */
      text = text->next;
    }
    td_regex_destroy(r);
  }
  cJSON_Delete(all);
  assert_int_equal(n_bad, 0);
  assert_true(n >= 200 && n_tabled > 20 && n - n_tabled > 20);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(as_the_reference_cuts)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
