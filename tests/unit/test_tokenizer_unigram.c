/* Unigram: a small tokenizer.json compared with `tokenizers`, and a small tokenizer.model with SentencePiece
 * (the goldens of tests/golden_text/make_spm_goldens.py), sums by hand, long texts, and inconsistencies in
 * files. */
#include "test_tokenizer_util.h"

#define M "\xE2\x96\x81"
/* The forms that the goldens have ids for, in their order. */
enum { LEGACY, FIRST, WITHOUT_BYTES, N_FORMS };

static cJSON *golden;

static int read_golden(void **state)
{
  (void)state;
  golden = util_read_json(GOLDEN_DIR, "small_unigram_ids.json");
  assert_non_null(golden);
  return 0;
}

static int free_golden(void **state)
{
  (void)state;
  cJSON_Delete(golden);
  return 0;
}

static td_tokenizer *load_form(int form)
{
  cJSON *json =
      util_read_json(GOLDEN_DIR, form == WITHOUT_BYTES ? "small_unigram_unk.json" : "small_unigram.json");
  assert_non_null(json);
  const cJSON *change;
  cJSON_ArrayForEach(change, td_json_get(golden, "changes")) if (form == FIRST)
  {
    cJSON_DeleteItemFromObjectCaseSensitive(json, change->string);
    cJSON_AddItemToObject(json, change->string, cJSON_Duplicate(change, true));
  }
  td_tokenizer *t = util_load(json);
  cJSON_Delete(json);
  return t;
}

/* Whether the last ids are the wanted ones. */
static bool end_with(const td_ids *got, const cJSON *want)
{
  const size_t n = (size_t)cJSON_GetArraySize(want);
  bool same = got->n >= n;
  size_t k = got->n - n;
  const cJSON *id;
  cJSON_ArrayForEach(id, want)
  {
    same = same && got->ids[k] == id->valueint;
    k++;
  }
  return same;
}

/* Compares ids with those of column 1 + column of the cases with this name. */
static void check(const td_tokenizer *t, const char *name, int column, bool trusted, size_t at_least)
{
  size_t n = 0;
  const cJSON *item;
  cJSON_ArrayForEach(item, td_json_get(golden, name))
  {
    const char *text = item->child->valuestring;
    const cJSON *want = cJSON_GetArrayItem(item, 1 + column);
    td_ids got = util_encode(t, text, strlen(text), trusted);
    if (got.n != (size_t)cJSON_GetArraySize(want) || !end_with(&got, want))
      fail_msg("%s: column %d, text %zu differs", name, column, n);
    td_ids_deinit(&got);
    n++;
  }
  assert_true(n >= at_least);
}

static void check_forms(const char *name, size_t at_least)
{
  for (int form = 0; form < N_FORMS; form++) {
    td_tokenizer *t = load_form(form);
    check(t, name, form, true, at_least);
    td_tokenizer_destroy(t);
  }
}

static void texts(void **state) { check_forms("texts", 200); }

/* Here float sums would lead to different ids. */
static void ties(void **state) { check_forms("ties", 4); }

static td_tokenizer *load_model(const cJSON *config)
{
  size_t n = 0;
  td_error err = {0};
  char *bytes = util_read(GOLDEN_DIR "/small_unigram.model", &n);
  assert_non_null(bytes);
  td_tokenizer *t = td_tokenizer_new(&err);
  if (td_tokenizer_load_spm(t, bytes, n, config, NULL, &err) != TD_OK)
    fail_msg("%s", err.message);
  free(bytes);
  return t;
}

static void model_texts(void **state)
{
  td_tokenizer *t = load_model(NULL);
  check(t, "model", 0, false, 290);
  td_tokenizer_destroy(t);
}

/* A USER_DEFINED piece stays a piece of any text, even if the configuration calls it special. */
static void pieces_listed_again(void **state)
{
  td_tokenizer *plain = load_model(NULL);
  char json[200];
  snprintf(json, sizeof json, "{\"added_tokens_decoder\":{\"%d\":{\"content\":\"[U]\",\"special\":true}}}",
           td_vocab_find(&plain->vocab, "[U]", 3));
  cJSON *config = util_parse(json, strlen(json));
  td_tokenizer *t = load_model(config);
  check(t, "model", 0, false, 290);
  cJSON_Delete(config);
  td_tokenizer_destroy(plain);
  td_tokenizer_destroy(t);
}

/* Here the sums are so low that rounding changes ids, and that SentencePiece counts anew. */
static void model_low_sums(void **state)
{
  td_tokenizer *t = load_model(NULL);
  const cJSON *item;
  size_t n = 0;
  cJSON_ArrayForEach(item, td_json_get(golden, "long"))
  {
    const char *unit = cJSON_GetArrayItem(item, 0)->valuestring,
               *end = cJSON_GetArrayItem(item, 2)->valuestring;
    const int times = cJSON_GetArrayItem(item, 1)->valueint;
    td_buf text;
    td_buf_init(&text, 0);
    for (int i = 0; i < times; i++)
      td_buf_append(&text, unit, strlen(unit));
    td_buf_append(&text, end, strlen(end) + 1);
    assert_false(text.failed);
    td_ids got = util_encode(t, text.data, text.len_bytes - 1, false);
    if (!end_with(&got, cJSON_GetArrayItem(item, 3)))
      fail_msg("long: text %zu differs", n);
    td_ids_deinit(&got);
    td_buf_deinit(&text);
    n++;
  }
  assert_true(n >= 12);
  td_tokenizer_destroy(t);
}

static void decodings(void **state)
{
  td_tokenizer *t = load_form(LEGACY);
  const cJSON *item, *id;
  cJSON_ArrayForEach(item, td_json_get(golden, "decode"))
  {
    td_detok d;
    td_buf out;
    td_buf_init(&out, 0);
    td_detok_init(&d, t, true, true);
    cJSON_ArrayForEach(id, item->child) td_detok_push(&d, id->valueint, &out);
    td_detok_finish(&d, &out);
    td_buf_append(&out, "", 1);
    assert_string_equal(out.data, item->child->next->valuestring);
    td_buf_deinit(&out);
  }
  td_tokenizer_destroy(t);
}

/* ---- small vocabularies ---- */

#define JSON_FRONT                                                                                           \
  "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" M "\"},"             \
  "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"" M      \
  "\"},\"content\":\" \"},{\"type\":\"Fuse\"}]},\"model\":{\"type\":\"Unigram\","
#define JSON(model, more) JSON_FRONT model "}" more "}"
#define UNK                                                                                                  \
  ",\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true},"                                    \
  "{\"id\":1,\"content\":\"<s>\",\"special\":true}]"
#define VOCAB(more) "\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"<s>\",0]," more "]"

static td_tokenizer *load_json(const char *text)
{
  cJSON *json = util_parse(text, strlen(text));
  td_tokenizer *t = util_load(json);
  cJSON_Delete(json);
  return t;
}

#define CHECK_IDS(t, text, ...)                                                                              \
  do {                                                                                                       \
    const int32_t want_[] = {__VA_ARGS__};                                                                   \
    td_ids got_ = util_encode(t, text, strlen(text), false);                                                 \
    util_assert_ids(&got_, want_, sizeof want_ / sizeof *want_);                                             \
    td_ids_deinit(&got_);                                                                                    \
  } while (0)

static void best_sums(void **state)
{
  td_tokenizer *t = load_json(
      JSON(VOCAB("[\"a\",-1],[\"b\",-1],[\"c\",-1],[\"ab\",-2],[\"bc\",-1.5],[\"abc\",-2.5],[\"" M "\",-4],"
                 "[\"xyz\",-40]"),
           UNK));
  CHECK_IDS(t, "ab", 5);  /* equal sums: the piece that starts first */
  CHECK_IDS(t, "abc", 7); /* the same for three */
  CHECK_IDS(t, "bcc a", 6, 4, 8, 2);
  CHECK_IDS(t,
            "a\xC3\xA9\xE4\xBD\xA0"
            "b",
            2, 0, 3); /* a run of unknown characters is one token */
  CHECK_IDS(t, "xy", 0);
  CHECK_IDS(t, "xyz", 9); /* worse than all others, but better than three unknown characters */
  CHECK_IDS(t, "<s>", 0); /* a special token is no piece of a user's text */
  td_ids trusted = util_encode(t, "<s>a", 4, true);
  const int32_t want[] = {1, 2};
  util_assert_ids(&trusted, want, 2);
  td_ids_deinit(&trusted);
  td_tokenizer_destroy(t);
}

/* Two floats whose sum is not a float. A double keeps the difference between the sums, a float loses it. */
static void sums_are_doubles(void **state)
{
  td_tokenizer *t = load_json(JSON(
      VOCAB("[\"a\",-16777216],[\"b\",-1],[\"ab\",-16777216.5],[\"x\",-2],[\"y\",-3],[\"xy\",-5]"), UNK));
  CHECK_IDS(t, "ab", 4);
  CHECK_IDS(t, "xy", 7);
  td_tokenizer_destroy(t);
}

static void long_texts(void **state)
{
  const size_t n = 1000000;
  td_tokenizer *t = load_form(LEGACY), *unk = load_form(WITHOUT_BYTES);
  td_error err = {0};
  char *text = malloc(n);
  memset(text, 'a', n);
  td_ids ids = util_encode(t, text, n, false);
  assert_true(ids.n > n / 100 && ids.n <= n + 1);
  td_ids_deinit(&ids);
  ids = (td_ids){0};
  assert_int_equal(td_tokenizer_encode(t, text, n, NULL, 0, false, 1000, &ids, &err), TD_ERR_REQUEST);
  assert_int_equal(ids.n, 0);
  td_ids_deinit(&ids);
  for (size_t i = 0; i + 4 <= n; i += 4)
    memcpy(text + i, "\xF0\x9F\xA6\x80", 4); /* no piece */
  ids = (td_ids){0};
  assert_int_equal(td_tokenizer_encode(unk, text, n, NULL, 0, false, 3, &ids, &err), TD_OK);
  assert_true(ids.n <= 2);
  td_ids_deinit(&ids);
  free(text);
  td_tokenizer_destroy(t);
  td_tokenizer_destroy(unk);
}

/* A piece longer than a short text's sums. */
static void long_pieces(void **state)
{
  char json[2000], text[900];
  memset(text, 'x', 300);
  text[300] = '\0';
  snprintf(json, sizeof json, JSON(VOCAB("[\"x\",-1],[\"%s\",-2],[\"y\",-1]"), UNK), text);
  td_tokenizer *t = load_json(json);
  CHECK_IDS(t, text, 3);
  strcat(text, "y");
  CHECK_IDS(t, text, 3, 4);
  td_tokenizer_destroy(t);
}

/* A vocabulary of long runs of one letter makes the search for pieces long. It is cut short. */
static void slow_texts(void **state)
{
  enum { LONGEST = 800 };
  const size_t n = 100000;
  char run[LONGEST + 1] = "";
  td_buf json;
  td_buf_init(&json, 0);
  td_buf_printf(&json, "%s", JSON_FRONT "\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"<s>\",0]");
  for (int i = 0; i < LONGEST; i++) {
    run[i] = 'x';
    td_buf_printf(&json, ",[\"%s\",-1]", run);
  }
  td_buf_printf(&json, "%s", "]}" UNK "}");
  td_tokenizer *t = load_json(json.data);
  td_buf_deinit(&json);
  char *text = malloc(n);
  memset(text, 'x', n);
  td_ids ids = {0};
  td_error err = {0};
  assert_int_equal(td_tokenizer_encode(t, text, n, NULL, 0, false, 0, &ids, &err), TD_ERR_REQUEST);
  assert_non_null(strstr(err.message, "too long"));
  assert_int_equal(ids.n, 0);
  text[200] = '\0';
  CHECK_IDS(t, text, 201);
  td_ids_deinit(&ids);
  free(text);
  td_tokenizer_destroy(t);
}

/* ---- files ---- */

static void refused(void **state)
{
  static const struct {
    const char *json;
    td_status status;
    const char *says;
  } cases[] = {
      {JSON("\"unk_id\":0,\"vocab\":{}", ""), TD_ERR_MODEL, "not an array"},
      {JSON("\"unk_id\":0,\"vocab\":[]", ""), TD_ERR_MODEL, "has 0 entries"},
      {JSON(VOCAB("[\"a\"]"), UNK), TD_ERR_MODEL, "entry 2 of model.vocab"},
      {JSON(VOCAB("[\"a\",\"b\"]"), UNK), TD_ERR_MODEL, "entry 2 of model.vocab"},
      {JSON(VOCAB("[\"a\",1,2]"), UNK), TD_ERR_MODEL, "entry 2 of model.vocab"},
      {JSON(VOCAB("3"), UNK), TD_ERR_MODEL, "entry 2 of model.vocab"},
      {JSON(VOCAB("[\"a\",-1],[\"a\",-2]"), UNK), TD_ERR_MODEL, "two ids"},
      {JSON("\"vocab\":[[\"a\",-1]]", ""), TD_ERR_UNSUPPORTED, "unk_id"},
      {JSON("\"unk_id\":1,\"vocab\":[[\"a\",-1]]", ""), TD_ERR_MODEL, "unk_id"},
      {JSON("\"unk_id\":-1,\"vocab\":[[\"a\",-1]]", ""), TD_ERR_MODEL, "unk_id"},
      {JSON("\"unk_id\":0.5,\"vocab\":[[\"a\",-1]]", ""), TD_ERR_MODEL, "unk_id"},
      {JSON("\"unk_id\":0,\"vocab\":[[\"a\",11]]", ""), TD_ERR_UNSUPPORTED, "above 10"},
      {JSON(VOCAB("[\"a\",-1]"), ""), TD_ERR_UNSUPPORTED, "outside added_tokens"},
      {JSON(VOCAB("[\"a\",1e999]"), UNK), TD_ERR_MODEL, "score of token 2"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    td_error err = {0};
    td_tokenizer *t = NULL;
    cJSON *json = util_parse(cases[i].json, strlen(cases[i].json));
    td_status st = td_tokenizer_load_json(json, NULL, &t, &err);
    if (st != cases[i].status || !strstr(err.message, cases[i].says))
      fail_msg("case %zu: status %d, \"%s\"", i, st, err.message);
    cJSON_Delete(json);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(texts),          cmocka_unit_test(ties),
      cmocka_unit_test(model_texts),    cmocka_unit_test(pieces_listed_again),
      cmocka_unit_test(model_low_sums), cmocka_unit_test(slow_texts),
      cmocka_unit_test(decodings),      cmocka_unit_test(best_sums),
      cmocka_unit_test(long_texts),     cmocka_unit_test(sums_are_doubles),
      cmocka_unit_test(long_pieces),    cmocka_unit_test(refused),
  };
  return cmocka_run_group_tests(tests, read_golden, free_golden);
}
