/* Byte strings, arenas, UTF-8 and error messages, at their edge cases. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/arena.h"
#include "common/buf.h"
#include "common/json.h"
#include "common/status.h"
#include "common/utf8.h"

/* ---- buf ---- */

static void test_buf_grows(void **state)
{
  td_buf b;
  td_buf_init(&b, 0);
  for (unsigned i = 0; i < 10000; i++)
    td_buf_printf(&b, "%u,", i % 10);
  assert_false(b.failed);
  assert_int_equal(b.len_bytes, 20000);
  assert_int_equal(strlen(b.data), 20000);
  td_buf_consume(&b, 0);
  td_buf_consume(&b, 19998);
  assert_string_equal(b.data, "9,");
  td_buf_consume(&b, 2);
  assert_string_equal(b.data, "");
  td_buf_append(&b, "a\0b", 3);
  td_buf_clear(&b);
  assert_string_equal(b.data, "");
  td_buf_append(&b, "a\0b", 3);
  size_t n;
  char *taken = td_buf_detach(&b, &n);
  assert_int_equal(n, 3);
  assert_memory_equal(taken, "a\0b", 4);
  free(taken);
  assert_null(b.data);
  taken = td_buf_detach(&b, &n); /* nothing is an empty string, not NULL */
  assert_string_equal(taken, "");
  free(taken);
  td_buf_deinit(&b);
}

static void test_buf_cap(void **state)
{
  td_buf b;
  td_buf_init(&b, 100);
  char text[101];
  memset(text, 'x', 100);
  text[100] = '\0';
  td_buf_append(&b, text, 100);
  assert_false(b.failed);
  assert_true(b.cap_bytes <= 101); /* memory is capped too */
  td_buf_append(&b, NULL, 0);
  assert_false(b.failed);
  td_buf_append_char(&b, 'y');
  assert_true(b.failed);
  assert_int_equal(b.len_bytes, 100);
  td_buf_consume(&b, 100);
  td_buf_append_char(&b, 'y'); /* failures are sticky, so that one check at the end is enough */
  assert_int_equal(b.len_bytes, 0);
  assert_null(td_buf_detach(&b, NULL));
  td_buf_clear(&b);
  td_buf_append_str(&b, "again");
  assert_false(b.failed);
  assert_string_equal(b.data, "again");
  td_buf_clear(&b);
  td_buf_append_str(&b, "before");
  td_buf_printf(&b, "%.*s", 95, text); /* one too many */
  assert_true(b.failed);
  assert_string_equal(b.data, "before");
  td_buf_deinit(&b);
  td_buf_init(&b, 3);
  td_buf_append_str(&b, "four");
  td_buf_printf(&b, "%s", ""); /* there is not even a terminator */
  assert_true(b.failed && !b.data);
  td_buf_clear(&b);
  for (int n = 0; n <= 100; n++) { /* whatever room exists already */
    td_buf_deinit(&b);
    td_buf_init(&b, 100);
    if (n > 50)
      td_buf_append_str(&b, "12345");
    td_buf_printf(&b, "%.*s", n > 50 ? n - 5 : n, text);
    assert_int_equal(b.len_bytes, n);
    assert_int_equal(b.data[n] | (n > 0 && b.data[n - 1] != 'x'), 0);
  }
  td_buf_deinit(&b);
  td_buf_init(&b, SIZE_MAX); /* no size wraps around */
  td_buf_append_char(&b, 'z');
  td_buf_append(&b, "", SIZE_MAX - 1);
  assert_true(b.failed);
  assert_int_equal(b.len_bytes, 1);
  td_buf_deinit(&b);
}

/* Any bytes become JSON that our own parser reads back; valid UTF-8 unchanged. */
static void test_buf_json_ints(void **state)
{
  static int32_t v[1000];
  td_buf b, want;
  td_buf_init(&b, 0);
  td_buf_init(&want, 0);
  for (uint32_t i = 0; i < 1000; i++) /* all lengths, both signs, the extremes */
    v[i] = (int32_t)(i * 2654435761u) >> i % 32;
  v[63] = INT32_MIN, v[64] = INT32_MAX, v[65] = -1, v[127] = 0, v[128] = 10;
  for (size_t n = 0; n <= 1000; n += n < 200 ? 1 : 80) {
    td_buf_clear(&b);
    td_buf_clear(&want);
    td_buf_append_json_ints(&b, v, n);
    td_buf_append_char(&want, '[');
    for (size_t i = 0; i < n; i++)
      td_buf_printf(&want, i ? ",%d" : "%d", (int)v[i]);
    td_buf_append_char(&want, ']');
    assert_string_equal(b.data, want.data);
  }
  td_buf_deinit(&b);
  td_buf_deinit(&want);
}

static void test_buf_numbers(void **state)
{
  static const uint64_t whole[] = {0, 9, 10, 99, 100, 12345678901234567890u, UINT64_MAX};
  td_buf b, want;
  td_buf_init(&b, 0);
  td_buf_init(&want, 0);
  for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
    td_buf_append_uint(&b, whole[i]);
    td_buf_printf(&want, "%llu", (unsigned long long)whole[i]);
  }
  for (uint32_t i = 0; i < 3000; i++) { /* no halves, whose rounding is ambiguous */
    double v = i < 2000 ? i / 1000.0 + 0.0001 : (i - 2000) * 12345.6 + 0.01;
    td_buf_append_tenths(&b, v);
    td_buf_printf(&want, "%.1f", v);
  }
  assert_string_equal(b.data, want.data);
  td_buf_clear(&b);
  td_buf_append_tenths(&b, 0.96); /* carries */
  td_buf_append_tenths(&b, -1);
  td_buf_append_tenths(&b, 0.0 / 0.0);
  td_buf_append_tenths(&b, 1.0 / 0.0); /* the longest possible message */
  assert_string_equal(b.data, "1.00.00.01000000000000000000.0");
  td_buf_deinit(&b);
  td_buf_deinit(&want);
}

static void test_buf_json_string(void **state)
{
  static const struct {
    const char *in, *want;
  } cases[] = {
      {"", "\"\""},
      {"plain", "\"plain\""},
      {"a\"b\\c/", "\"a\\\"b\\\\c/\""},
      {"\n\t\x01\x1f\x7f", "\"\\n\\u0009\\u0001\\u001f\\u007f\""},
      {"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\""},
      {"a\xFF", "\"a\xEF\xBF\xBD\""},
      {"\xE2\x82", "\"\xEF\xBF\xBD\xEF\xBF\xBD\""},
      {"\xED\xA0\x80x", "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDx\""},
  };
  td_buf b;
  td_buf_init(&b, 0);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    td_buf_clear(&b);
    td_buf_append_json_string(&b, cases[i].in, strlen(cases[i].in));
    assert_string_equal(b.data, cases[i].want);
  }
  td_buf_clear(&b);
  td_buf_append_json_string(&b, NULL, 0);
  td_buf_append_json_string(&b, "\0", 1);
  assert_string_equal(b.data, "\"\"\"\\u0000\"");
  srand(1);
  for (int round = 0; round < 20000; round++) {
    char in[16];
    size_t n = (size_t)rand() % sizeof in;
    bool valid = true;
    for (size_t i = 0; i < n; i++)
      in[i] = (char)(1 + rand() % 255);
    for (size_t i = 0, len; i < n && valid; i += len) {
      len = td_utf8_sequence_length((unsigned char *)in + i, n - i);
      valid = len > 0;
    }
    td_buf_clear(&b);
    td_buf_append_json_string(&b, in, n);
    cJSON *root;
    td_error err;
    const td_json_limits limits = {1, 1, TD_ERR_REQUEST};
    if (td_json_parse(b.data, b.len_bytes, &limits, &root, &err) != TD_OK)
      fail_msg("%s: %s", b.data, err.message);
    if (valid) {
      assert_int_equal(strlen(root->valuestring), n);
      assert_memory_equal(root->valuestring, in, n);
    }
    cJSON_Delete(root);
  }
  td_buf_deinit(&b);
}

/* ---- arena ---- */

static void test_arena(void **state)
{
  td_arena a;
  td_arena_init(&a, 1 << 20);
  void *before = NULL;
  for (size_t n = 1; n < 5000; n += 37) {
    unsigned char *p = td_arena_alloc(&a, n);
    assert_non_null(p);
    assert_true(((uintptr_t)p & 15) == 0);
    assert_true(p != before);
    for (size_t i = 0; i < n; i++)
      assert_true(p[i] == 0);
    memset(p, 0xAA, n);
    before = p;
  }
  char *s = td_arena_strdup(&a, "abc", 2);
  assert_string_equal(s, "ab");
  assert_string_equal(td_arena_strdup(&a, NULL, 0), "");
  unsigned char *big = td_arena_alloc(&a, 100000);
  memset(big, 0xBB, 100000);
  unsigned char *small = td_arena_alloc(&a, 16);
  assert_true(small > (unsigned char *)s - 16384 &&
              small < (unsigned char *)s + 16384); /* big ones do not end a block */
  td_arena_deinit(&a);
  assert_int_equal(a.used_bytes, 0);
  td_arena_deinit(&a); /* twice is no harm */
}

static void test_arena_cap(void **state)
{
  td_arena a;
  td_arena_init(&a, 64);
  assert_non_null(td_arena_alloc(&a, 48));
  assert_null(td_arena_alloc(&a, 17));
  assert_non_null(td_arena_alloc(&a, 16));
  assert_null(td_arena_alloc(&a, 1));
  assert_non_null(td_arena_alloc(&a, 0));
  assert_int_equal(a.used_bytes, 64);
  td_arena_deinit(&a);
  td_arena_init(&a, SIZE_MAX);
  assert_null(td_arena_alloc(&a, SIZE_MAX));
  assert_null(td_arena_alloc(&a, SIZE_MAX - 15));
  assert_null(td_arena_alloc_array(&a, SIZE_MAX / 2, 3));
  assert_null(td_arena_strdup(&a, "x", SIZE_MAX));
  assert_non_null(td_arena_alloc_array(&a, 3, 5));
  assert_int_equal(a.used_bytes, 16);
  td_arena_deinit(&a);
}

/* ---- UTF-8 ---- */

/* A second implementation of RFC 3629's table: by decoding, not by ranges of second bytes. */
static size_t reference_length(const unsigned char *p, size_t n)
{
  size_t len = p[0] < 0x80             ? 1
               : (p[0] & 0xE0) == 0xC0 ? 2
               : (p[0] & 0xF0) == 0xE0 ? 3
               : (p[0] & 0xF8) == 0xF0 ? 4
                                       : 0;
  if (len == 0 || len > n)
    return 0;
  uint32_t cp = len == 1 ? p[0] : p[0] & (0x7Fu >> len);
  for (size_t i = 1; i < len; i++) {
    if ((p[i] & 0xC0) != 0x80)
      return 0;
    cp = cp << 6 | (p[i] & 0x3Fu);
  }
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  return cp < least[len] || cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF) ? 0 : len;
}

static void test_utf8_every_code_point(void **state)
{
  for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
    unsigned char out[4] = {0};
    size_t len = td_utf8_encode(cp, out);
    bool surrogate = cp >= 0xD800 && cp <= 0xDFFF;
    assert_true(td_utf8_sequence_length(out, len) == (surrogate ? 0 : len));
    assert_true(td_utf8_sequence_length(out, len - 1) == 0);
    if (!surrogate)
      assert_true(td_utf8_decode(out, len) == cp);
  }
}

static void test_utf8_every_beginning(void **state)
{
  static const unsigned char tails[] = {0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF};
  unsigned char p[4];
  for (unsigned a = 0; a < 256; a++)
    for (unsigned b = 0; b < 256; b++)
      for (size_t c = 0; c < sizeof tails; c++)
        for (size_t d = 0; d < sizeof tails; d++) {
          p[0] = (unsigned char)a, p[1] = (unsigned char)b, p[2] = tails[c], p[3] = tails[d];
          for (size_t n = 1; n <= 4; n++)
            if (td_utf8_sequence_length(p, n) != reference_length(p, n))
              fail_msg("%02x %02x %02x %02x of %zu", a, b, p[2], p[3], n);
        }
  assert_int_equal(td_utf8_sequence_length(p, 0), 0);
}

/* ---- error messages ---- */

static void test_errors_are_text(void **state)
{
  td_error err;
  assert_int_equal(td_fail(NULL, TD_ERR_IO, "no one listens"), TD_ERR_IO);
  assert_int_equal(td_fail_param(&err, TD_ERR_MODEL, "k\x01\xFFy", "bad %s", "a\nb\xC3\xA9\xC3"),
                   TD_ERR_MODEL);
  assert_string_equal(err.param, "k??y");
  assert_string_equal(err.message, "bad a?b\xC3\xA9?");
  assert_int_equal(td_error_prefix(&err, "file %d", 7), TD_ERR_MODEL);
  assert_string_equal(err.message, "file 7: bad a?b\xC3\xA9?");
  assert_int_equal(td_fail_param(&err, TD_ERR_REQUEST, err.param, "again: %s", err.message), TD_ERR_REQUEST);
  assert_string_equal(err.message, "again: file 7: bad a?b\xC3\xA9?");
  assert_string_equal(err.param, "k??y");

  char longer[2000];
  memset(longer, 0, sizeof longer);
  for (int i = 0; i < 600; i++)
    strcat(longer, "\xE2\x82\xAC");
  assert_int_equal(td_fail_param(&err, TD_ERR_REQUEST, longer, "%s", longer),
                   TD_ERR_REQUEST); /* cut within a character */
  assert_int_equal(strlen(err.message), TD_ERROR_MESSAGE_BYTES - 1);
  assert_int_equal(strlen(err.param), TD_ERROR_PARAM_BYTES - 1);
  for (size_t i = 0, len; i < strlen(err.message); i += len) {
    len = td_utf8_sequence_length((unsigned char *)err.message + i, strlen(err.message) - i);
    assert_true(len > 0);
  }
  assert_int_equal(td_error_prefix(&err, "%s", longer), TD_ERR_REQUEST);
  assert_int_equal(strlen(err.message), TD_ERROR_MESSAGE_BYTES - 1);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_buf_grows),
      cmocka_unit_test(test_buf_cap),
      cmocka_unit_test(test_buf_json_ints),
      cmocka_unit_test(test_buf_numbers),
      cmocka_unit_test(test_buf_json_string),
      cmocka_unit_test(test_arena),
      cmocka_unit_test(test_arena_cap),
      cmocka_unit_test(test_utf8_every_code_point),
      cmocka_unit_test(test_utf8_every_beginning),
      cmocka_unit_test(test_errors_are_text),
  };
  return cmocka_run_group_tests_name("config buf", tests, NULL, NULL);
}
