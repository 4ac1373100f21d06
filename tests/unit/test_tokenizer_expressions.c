/* How text is split: regular expressions compared with hand-written splitters, what is refused, and how
 * long it takes. */
#include "test_tokenizer_util.h"

#define MODERN(letters, others, digits)                                                                      \
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?" letters "+|" digits "| ?[^\\s" others                \
  "\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* "\\xE4" becomes the byte, in place. */
static size_t unescape(char *text, size_t n)
{
  size_t k = 0;
  for (size_t i = 0; i < n; i++)
    if (text[i] == '\\' && i + 3 < n) {
      const char hex[] = {text[i + 2], text[i + 3], 0};
      text[k++] = (char)strtoul(hex, NULL, 16);
      i += 3;
    } else {
      text[k++] = text[i];
    }
  return k;
}

#define CASED(contractions)                                                                                  \
  "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" contractions   \
  "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" contractions  \
  "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static void cut_alike(const td_split *split, const char *expression, const char *text, size_t n)
{
  size_t pieces = 0, steps = SIZE_MAX;
  td_regex *r = td_regex_create(expression);
  assert_non_null(r);
  for (size_t at = 0, k; at < n; at += k, pieces++) {
    k = td_split_next(split, (const unsigned char *)text + at, n - at, &steps);
    assert_int_equal(td_regex_next(r, (const unsigned char *)text + at, n - at, &steps), k);
  }
  assert_true(pieces > 5);
  td_regex_destroy(r);
}

/* Letters of both cases and what may be next to them, in any order. */
static size_t random_words(char *text, size_t n, unsigned seed)
{
  static const char *const parts[] = {"a",   "b", "Z",  "s",        "T",        "'",           "'s", "'LL",
                                      "'ve", " ", "  ", "1",        ".",        "\n",          "\t", "/",
                                      "m",   "D", "Kt", "\xC3\xA9", "\xC5\xBF", "\xE4\xB8\xAD"};
  size_t k = 0;
  while (k + 4 < n) {
    const char *part = parts[(size_t)rand_r(&seed) % (sizeof parts / sizeof *parts)];
    memcpy(text + k, part, strlen(part));
    k += strlen(part);
  }
  return k;
}

static void regex_equals_hand_written(void **state)
{
  static const char *const expressions[] = {
      "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
      MODERN("\\p{L}", "\\p{L}", "\\p{N}{1,3}"),
      MODERN("\\p{L}", "\\p{L}", "\\p{N}"),
      MODERN("[\\p{L}\\p{M}]", "\\p{L}\\p{M}", "\\p{N}"),
      "\\p{N}{1,3}",
      "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
  };
  static char words[40000];
  size_t n = 0;
  char *text = util_read(GOLDEN_DIR "/texts.txt", &n);
  assert_non_null(text);
  n = unescape(text, n);
  for (size_t i = 0; i < sizeof expressions / sizeof *expressions; i++) {
    td_split split;
    bool total;
    assert_true(td_split_from_regex(expressions[i], &split, &total));
    assert_true(split.kind != TD_SPLIT_REGEX);
    cut_alike(&split, expressions[i], text, n);
    cut_alike(&split, expressions[i], words, random_words(words, sizeof words, (unsigned)i));
    td_regex_destroy(split.regex);
  }
  free(text);
}

/* With something that occurs in no text here and that no table supports: "\1" before two others. */
#define UNTABLED "|\1(?=\2\2)"

/* A table cuts as backtracking does. */
static void regex_table_equals_backtracking(void **state)
{
  static const char *const expressions[][2] = {
#define BOTH(e) {e, e UNTABLED}
      BOTH("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"),
      BOTH(MODERN("\\p{L}", "\\p{L}", "\\p{N}{1,3}")),
      BOTH(CASED("")),
      BOTH(CASED("(?i:'s|'t|'re|'ve|'m|'ll|'d)?")),
      BOTH("\\s+$"),
      BOTH("[\\r\\n]"),
      BOTH("\\s?\\p{L}+|\\s?\\p{P}+"),
      BOTH("(?:ab|a|b)[a-z]|(?:ab)+Z"),
      BOTH("[a-z]{2}Z|[a-z]{1,3}|Z(?=[a-z])|Z{2,}| *'"),
      BOTH("\\s+(?=[A-Z])| (?:as|a)?(?!T)b?'|[a-z]*m"),
  };
  static char words[40000];
  for (size_t i = 0; i < sizeof expressions / sizeof *expressions; i++) {
    const td_split table = {.kind = TD_SPLIT_REGEX, .regex = td_regex_create(expressions[i][0])};
    td_regex *plain = td_regex_create(expressions[i][1]);
    assert_true(table.regex && td_regex_is_tabled(table.regex));
    assert_true(plain && !td_regex_is_tabled(plain));
    for (unsigned seed = 0; seed < 8; seed++)
      cut_alike(&table, expressions[i][1], words, random_words(words, sizeof words, seed));
    td_regex_destroy(table.regex);
    td_regex_destroy(plain);
  }
}

/* A text that a splitter cannot split is returned whole. */
static void uncut(void **state)
{
  static const char *const expressions[] = {"\\s?\\p{P}+", "\\p{N}{1,3}", "\\s+$",
                                            "[\\r\\n]",    "(?:ab|a)b",   "[a-z]+'s?|T+1"};
  char text[6];
  unsigned seed = 1, n_whole[6] = {0};
  for (size_t i = 0; i < 6 * 20000; i++) {
    td_split split = {.kind = TD_SPLIT_REGEX};
    bool may = false, total;
    assert_true(td_split_from_regex(expressions[i % 6], &split, &total));
    for (size_t k = 0; k < sizeof text; k++) {
      text[k] = "ab'sT1 .\n"[rand_r(&seed) % 9];
      may |= td_split_may_cut(&split, (unsigned char)text[k]);
    }
    size_t steps = SIZE_MAX;
    n_whole[i % 6] += !may;
    if (!may && td_split_next(&split, (const unsigned char *)text, sizeof text, &steps) != sizeof text)
      fail_msg("\"%s\" cuts \"%.6s\"", expressions[i % 6], text);
    td_regex_destroy(split.regex);
  }
  for (size_t i = 0; i < 6; i++)
    assert_true(n_whole[i] > 100 || i == 4);
}

/* `tokenizers` 0.23.3 tells these apart in its pre_tokenizer Punctuation. */
static void punctuation_versions(void **state)
{
  static const uint32_t in[] = {'$', 0xA1, 0x61B, 0x61E, 0x2E42, 0x166D, 0x111C9, 0x3001},
                        out[] = {'a', 0xA2, 0x61D, 0x2E43, 0x2E52, 0x1B4E, 0x11F43, 0x1E95F};
  for (size_t i = 0; i < sizeof in / sizeof *in; i++)
    if (!td_unicode_is_punctuation(in[i]) || td_unicode_is_punctuation(out[i]))
      fail_msg("U+%04X, U+%04X", in[i], out[i]);
}

/* And its Digits knows Unicode 17, which its expressions do not. */
static void digits_versions(void **state)
{
  static const uint32_t newer[] = {0x11DE0, 0x11DE9, 0x16FF4, 0x16FF6};
  for (size_t i = 0; i < sizeof newer / sizeof *newer; i++) {
    const unsigned char text[] = {'x',
                                  0xF0,
                                  (unsigned char)(0x80 | newer[i] >> 12),
                                  (unsigned char)(0x80 | (newer[i] >> 6 & 63)),
                                  (unsigned char)(0x80 | (newer[i] & 63)),
                                  'y'};
    const td_split pre = {.kind = TD_SPLIT_DIGITS}, expression = {.kind = TD_SPLIT_NUMBERS};
    size_t steps = SIZE_MAX;
    assert_int_equal(td_split_next(&pre, text, sizeof text, &steps), 1);
    assert_int_equal(td_split_next(&pre, text + 1, sizeof text - 1, &steps), 4);
    assert_int_equal(td_split_next(&expression, text, sizeof text, &steps), sizeof text);
  }
  assert_false(td_unicode_is_numeric(0x11DDF) || td_unicode_is_numeric(0x11DEA) ||
               td_unicode_is_numeric(0x16FF3) || td_unicode_is_numeric(0x16FF7));
}

static void regex_refused(void **state)
{
  static const char *const bad[] = {"",           "a|",           "a*",        "(?!a)",       "[a",
                                    "a)",         "(a)",          "a{2",       "\\p{Greek}",  ".",
                                    "^a",         "a$b",          "[^\\S]",    "\\",          "a**",
                                    "a+?",        "\\p{N}{1,3}+", "[]",        "a{0}",        "[z-a]",
                                    "\\w+",       "(?:a|)",       "(?i:",      "(?<=a)b",     "[a&&b]+",
                                    "a{3,2}",     "\\ba",         "a\\b",      "(?=\\b)a",    "(?=a\\b)a",
                                    "\xFF",       "[\xFF]",       "a(?=\\bb)", "a(?=(?=b)b)", "a(?=b|c)",
                                    "a(?:bc|d)+", "a(?:b{5})",    "$"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    if (td_regex_create(bad[i]))
      fail_msg("\"%s\" is taken", bad[i]);
}

/* The limits of an expression for each kind of part: the maximum is accepted, one more is not. */
static void regex_bounds(void **state)
{
  static const struct {
    const char *before, *each, *behind;
    unsigned most;
  } cases[] = {
      {"[", "\xc3\xa9", "]", 1024},
      {"[", "\xc3\xa9", "]\xc3\xa9", 1023},
      {"[", "\xc3\xa9", "](?i:s)", 1023},
      {"[", "\xc3\xa9", "](?i:k)", 1023},
      {"a", "|a", "", 23},
      {"", "a", "", 64},
      {"", "a", "|b", 63},
      {"(?:a", "|a", ")", 11},
      {"(?:", "a", ")", 4},
      {"a(?=", "b", ")", 4},
      {"a{", "1", "}", 2},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (unsigned n = cases[i].most > 1 ? cases[i].most - 1 : 1; n <= cases[i].most + 1; n++) {
      td_buf text = {0};
      td_buf_append_str(&text, cases[i].before);
      for (unsigned k = 0; k < n; k++)
        td_buf_append_str(&text, cases[i].each);
      td_buf_append_str(&text, cases[i].behind);
      assert_false(text.failed);
      td_regex *r = td_regex_create(text.data);
      if ((r != NULL) != (n <= cases[i].most))
        fail_msg("case %zu with %u is %s", i, n, r ? "taken" : "refused");
      td_regex_destroy(r);
      td_buf_deinit(&text);
    }
}

/* An expression that looks to the end of the text for each character: refused after a number of steps,
 * instead of running for minutes. */
static void regex_steps(void **state)
{
  cJSON *small = util_read_json(GOLDEN_DIR, "small.json");
  const char *slow = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
                     "\"[a-z]+!|[a-z]\"},\"behavior\":\"Isolated\"},"
                     "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}";
  cJSON_ReplaceItemInObjectCaseSensitive(small, "pre_tokenizer", util_parse(slow, strlen(slow)));
  td_tokenizer *t = util_load(small);
  const size_t n = 1 << 20;
  char *text = malloc(n);
  memset(text, 'a', n);
  td_ids ids = {0};
  td_error err = {0};
  assert_int_equal(td_tokenizer_encode(t, text, n, NULL, 0, false, 0, &ids, &err), TD_ERR_REQUEST);
  assert_non_null(strstr(err.message, "too long to split"));
  text[n - 1] = '!';
  assert_int_equal(td_tokenizer_encode(t, text, n, NULL, 0, false, 0, &ids, &err), TD_OK);
  td_ids_deinit(&ids);
  free(text);
  td_tokenizer_destroy(t);
  cJSON_Delete(small);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(regex_equals_hand_written),
      cmocka_unit_test(regex_table_equals_backtracking),
      cmocka_unit_test(uncut),
      cmocka_unit_test(punctuation_versions),
      cmocka_unit_test(digits_versions),
      cmocka_unit_test(regex_refused),
      cmocka_unit_test(regex_bounds),
      cmocka_unit_test(regex_steps),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
