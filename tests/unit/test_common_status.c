/* Errors: the parameter that they name and their message, however long it is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/status.h"

enum { LONGEST = 3 * TD_ERROR_MESSAGE_BYTES };

static void fill(char *text, size_t n)
{
  for (size_t i = 0; i < n; i++)
    text[i] = (char)('a' + i % 26);
  text[n] = '\0';
}

static void assert_begins(const char *got, const char *of, size_t n, size_t room)
{
  size_t want = n < room ? n : room - 1;
  assert_int_equal(strlen(got), want);
  assert_memory_equal(got, of, want);
}

static void texts_of_every_length(void **state)
{
  static char text[LONGEST + 1];
  for (size_t n = 0; n <= LONGEST; n++) {
    td_error err;
    memset(&err, 'x', sizeof err);
    fill(text, n);
    assert_int_equal(td_fail_param(&err, TD_ERR_IO, text, "%s", text), TD_ERR_IO);
    assert_int_equal(err.code, TD_ERR_IO);
    assert_begins(err.param, text, n, sizeof err.param);
    assert_begins(err.message, text, n, sizeof err.message);
    assert_int_equal(td_fail(&err, TD_ERR_MODEL, "%s", text), TD_ERR_MODEL);
    assert_string_equal(err.param, "");
    assert_begins(err.message, text, n, sizeof err.message);
  }
}

/* An error may be quoted in the one that replaces it. */
static void an_error_may_quote_itself(void **state)
{
  td_error err;
  assert_int_equal(td_fail_param(&err, TD_ERR_IO, "file", "gone"), TD_ERR_IO);
  assert_int_equal(td_fail_param(&err, err.code, err.param, "cannot read: %s", err.message), TD_ERR_IO);
  assert_string_equal(err.param, "file");
  assert_string_equal(err.message, "cannot read: gone");
  assert_int_equal(td_error_prefix(&err, "%s", "folder"), TD_ERR_IO);
  assert_string_equal(err.message, "folder: cannot read: gone");
  assert_string_equal(err.param, "file");
}

/* Control characters, C1 too, and bytes that are no UTF-8 become '?'; other characters stay. */
static void messages_have_no_control_characters(void **state)
{
  static const char text[] = "a\x01\t\n\x7f\xc2\x80-\xc2\x9b\xc2\x9f-\xc2\xa0\xc3\xa9\xe2\x82\xac\xff";
  static const char clean[] = "a????\?\?-\?\?\?\?-\xc2\xa0\xc3\xa9\xe2\x82\xac?";
  td_error err;
  assert_int_equal(td_fail_param(&err, TD_ERR_IO, text, "%s", text), TD_ERR_IO);
  assert_string_equal(err.param, clean);
  assert_string_equal(err.message, clean);
  assert_int_equal(td_error_prefix(&err, "\xc2\x85"), TD_ERR_IO);
  assert_memory_equal(err.message, "\?\?: a", 5);
}

static void nobody_need_ask(void **state)
{
  assert_int_equal(td_fail(NULL, TD_ERR_NOMEM, "none"), TD_ERR_NOMEM);
  assert_int_equal(td_fail_param(NULL, TD_ERR_IO, "a", "none"), TD_ERR_IO);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(texts_of_every_length),
      cmocka_unit_test(an_error_may_quote_itself),
      cmocka_unit_test(messages_have_no_control_characters),
      cmocka_unit_test(nobody_need_ask),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
