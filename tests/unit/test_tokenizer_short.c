/* Every short text: the hand-written splitters split exactly as the expressions that they replace, and
 * flags of added tokens are read or refused wherever a file may have them. */
#include "test_tokenizer_util.h"

/* ---- splitters ---- */

static const char *const parts[] = {"'", "s",  "L",        "e",        "v",        "1",           " ",
                                    "?", "\n", "\xC5\xBF", "\xCC\x81", "\xC2\xA0", "\xE4\xB8\xAD"};
enum { PARTS = sizeof parts / sizeof *parts, LONGEST = 4 };

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define WORD_TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const char *const expressions[] = {
    CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" WORD_TAIL,
    "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*"
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "\\s+$",
    "\\p{N}",
    "\\p{N}{1,3}",
    "\\p{N}+",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
     "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"),
};

/* Text number i among those of n parts. */
static size_t write_text(char *text, size_t i, int n)
{
  size_t k = 0;
  for (; n > 0; n--, i /= PARTS) {
    memcpy(text + k, parts[i % PARTS], strlen(parts[i % PARTS]));
    k += strlen(parts[i % PARTS]);
  }
  return k;
}

static void short_texts_are_cut_alike(void **state)
{
  for (size_t e = 0; e < sizeof expressions / sizeof *expressions; e++) {
    td_split split;
    bool total;
    assert_true(td_split_from_regex(expressions[e], &split, &total));
    assert_true(split.kind != TD_SPLIT_REGEX);
    td_regex *r = td_regex_create(expressions[e]);
    assert_non_null(r);
    size_t amount = PARTS, steps = SIZE_MAX;
    for (int n = 1; n <= LONGEST; n++, amount *= PARTS)
      for (size_t i = 0; i < amount; i++) {
        char room[32]; /* the bytes after the text would extend it */
        size_t bytes = write_text(room, i, n);
        memset(room + bytes, 's', sizeof room - bytes);
        for (size_t at = 0; at < bytes;) {
          size_t got = td_split_next(&split, (const unsigned char *)room + at, bytes - at, &steps),
                 want = td_regex_next(r, (const unsigned char *)room + at, bytes - at, &steps);
          if (got != want)
            fail_msg("'%.*s' by %s, from byte %zu: %zu, not %zu", (int)bytes, room, expressions[e], at, got,
                     want);
          at += got;
        }
      }
    td_regex_destroy(r);
  }
}

/* ---- flags ---- */

static const char *const flags[] = {"special", "single_word", "lstrip", "rstrip", "normalized"};
enum { FLAGS = sizeof flags / sizeof *flags };

/* A tokenizer.json, or a tokenizer_config.json next to a tokenizer.model, with one token that has the flag.
 */
static td_status load_flag(bool is_json, const char *flag, const char *value, td_tokenizer **t, td_error *err)
{
  char text[400];
  cJSON *json = NULL;
  td_status st;
  snprintf(text, sizeof text,
           is_json ? "[{\"content\":\"<zz>\",\"id\":9000,\"%s\":%s}]"
                   : "{\"added_tokens_decoder\":{\"900\":{\"content\":\"<zz>\",\"%s\":%s}}}",
           flag, value);
  cJSON *added = util_parse(text, strlen(text));
  if (is_json) {
    json = util_read_json(GOLDEN_DIR, "small.json");
    assert_non_null(json);
    cJSON_DeleteItemFromObject(json, "added_tokens");
    cJSON_AddItemToObject(json, "added_tokens", added);
    st = td_tokenizer_load_json(json, NULL, t, err);
    cJSON_Delete(json);
    return st;
  }
  size_t n = 0;
  char *bytes = util_read(GOLDEN_DIR "/small_spm.model", &n);
  assert_non_null(bytes);
  td_tokenizer *new = td_tokenizer_new(err);
  assert_non_null(new);
  st = td_tokenizer_load_spm(new, bytes, n, added, NULL, err);
  *t = st == TD_OK ? new : NULL;
  if (st != TD_OK)
    td_tokenizer_destroy(new);
  free(bytes);
  cJSON_Delete(added);
  return st;
}

/* The number of tokens of a text that contains the added one; -1 if it does not. */
static int count(const td_tokenizer *t, const char *text, bool trusted, int32_t id)
{
  td_ids ids = util_encode(t, text, strlen(text), trusted);
  int n = has_id(&ids, id) ? (int)ids.n : -1;
  td_ids_deinit(&ids);
  return n;
}

/* Texts that show each flag: user text, an adjacent word, spaces before and after. */
static void each_flag_is_read(void **state)
{
  static const char *const texts[] = {"<zz>", "b<zz>b", "  <zz>.", ".<zz>  "};
  for (int is_json = 0; is_json < 2; is_json++)
    for (int f = 0; f < 4; f++) {
      int n[2];
      for (int on = 0; on < 2; on++) {
        td_error err = {0};
        td_tokenizer *t = NULL;
        int32_t id;
        if (load_flag(is_json, flags[f], on ? "true" : "false", &t, &err) != TD_OK)
          fail_msg("%s", err.message);
        id = td_tokenizer_added_token(t, "<zz>", 4);
        assert_true(id >= 0);
        n[on] = count(t, texts[f], f > 0, id);
        td_tokenizer_destroy(t);
      }
      if (f < 2) { /* special, single_word: there it is no token */
        assert_true(n[0] > 0);
        assert_int_equal(n[1], -1);
      } else if (!(n[1] > 0 && n[1] < n[0])) { /* spaces are eaten */
        fail_msg("%s of %s: %d and %d tokens", flags[f], is_json ? "JSON" : "a configuration", n[0], n[1]);
      }
    }
}

static void flags_are_true_or_false(void **state)
{
  static const char *const others[] = {"1", "\"true\"", "[]", "{}"};
  for (int is_json = 0; is_json < 2; is_json++)
    for (int f = 0; f < FLAGS - !is_json; f++) /* SentencePiece's are never normalised */
      for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        td_error err = {0};
        td_tokenizer *t = NULL;
        if (load_flag(is_json, flags[f], others[i], &t, &err) != TD_ERR_MODEL || t)
          fail_msg("%s %s was taken", flags[f], others[i]);
        assert_non_null(strstr(err.message, flags[f]));
      }
}

/* Also for tokens of one byte, before or after normalisation. */
static void the_shortest_added_tokens(void **state)
{
  static const char *const values[] = {"true", "false"};
  for (int i = 0; i < 2; i++) {
    char text[200];
    td_tokenizer *t;
    cJSON *json = util_read_json(GOLDEN_DIR, "small.json");
    assert_non_null(json);
    snprintf(text, sizeof text, "[{\"content\":\"~\",\"id\":9000,\"normalized\":%s}]", values[i]);
    cJSON_DeleteItemFromObject(json, "added_tokens");
    cJSON_AddItemToObject(json, "added_tokens", util_parse(text, strlen(text)));
    t = util_load(json);
    int32_t id = td_tokenizer_added_token(t, "~", 1);
    assert_true(id >= 0);
    assert_true(count(t, "a~a", true, id) == 3 && count(t, "~", true, id) == 1);
    td_tokenizer_destroy(t);
    cJSON_Delete(json);
  }
}

/* White space absorbed by a token is not a token itself, even if a later one would absorb more before it; and
 * what is before a text is ignored. The ids are those of `tokenizers` 0.23. */
static void swallowed_white_space(void **state)
{
  static const char added[] = "[{\"content\":\"<zz>\",\"id\":9000,\"rstrip\":true},"
                              "{\"content\":\"\\t\",\"id\":9001,\"lstrip\":true,\"rstrip\":true},"
                              "{\"content\":\"\\n\",\"id\":9002}]";
  static const struct {
    const char *text; /* behind spaces */
    int32_t ids[4];
    size_t n;
  } cases[] = {{"    \t\t", {9001}, 1},
               {"    \t  \t<zz>", {9001, 9000}, 2},
               {"    <zz>\t<zz>", {9000, 9000}, 2},
               {"    <zz>\n\t", {9000, 9002, 9001}, 3},
               {"    \t<zz> \t\t", {9001, 9000}, 2}};
  cJSON *json = util_read_json(GOLDEN_DIR, "small.json");
  cJSON_DeleteItemFromObject(json, "added_tokens");
  cJSON_AddItemToObject(json, "added_tokens", util_parse(added, strlen(added)));
  td_tokenizer *t = util_load(json);
  cJSON_Delete(json);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    td_ids ids = util_encode(t, cases[i].text + 4, strlen(cases[i].text) - 4, true);
    util_assert_ids(&ids, cases[i].ids, cases[i].n);
    td_ids_deinit(&ids);
  }
  td_tokenizer_destroy(t);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(short_texts_are_cut_alike), cmocka_unit_test(each_flag_is_read),
      cmocka_unit_test(flags_are_true_or_false),   cmocka_unit_test(the_shortest_added_tokens),
      cmocka_unit_test(swallowed_white_space),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
