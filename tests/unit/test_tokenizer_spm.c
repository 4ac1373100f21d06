/* SentencePiece's BPE: a small model in its three forms compared with SentencePiece and `tokenizers` (the
 * goldens of tests/golden_text/make_spm_goldens.py), and inconsistencies in its files. */
#include "test_tokenizer_util.h"

static char **texts;
static size_t *text_bytes, n_texts;
static cJSON *golden;

static int hex(char c) { return c <= '9' ? c - '0' : c - 'A' + 10; }

static int read_all(void **state)
{
  (void)state;
  size_t n, cap = 1024;
  char *all = util_read(GOLDEN_DIR "/texts.txt", &n);
  assert_non_null(all);
  texts = calloc(cap, sizeof *texts);
  text_bytes = calloc(cap, sizeof *text_bytes);
  for (char *line = all, *end; *line; line = end + 1) {
    end = strchr(line, '\n');
    assert_true(n_texts < cap);
    char *out = texts[n_texts] = malloc((size_t)(end - line) + 1);
    size_t k = 0;
    for (char *p = line; p < end; p++)
      if (*p == '\\') {
        out[k++] = (char)(hex(p[2]) * 16 + hex(p[3]));
        p += 3;
      } else {
        out[k++] = *p;
      }
    text_bytes[n_texts++] = k;
  }
  free(all);
  golden = util_read_json(GOLDEN_DIR, "small_spm_ids.json");
  assert_non_null(golden);
  return 0;
}

static int free_all(void **state)
{
  (void)state;
  for (size_t i = 0; i < n_texts; i++)
    free(texts[i]);
  free(texts);
  free(text_bytes);
  cJSON_Delete(golden);
  return 0;
}

static td_tokenizer *load_model_bytes(const void *bytes, size_t n, const cJSON *config, td_status want,
                                      const char *says)
{
  td_error err = {0};
  td_tokenizer *t = td_tokenizer_new(&err);
  assert_non_null(t);
  td_status st = td_tokenizer_load_spm(t, bytes, n, config, NULL, &err);
  if (st != want || (says && !strstr(err.message, says)))
    fail_msg("status %d, \"%s\"; wanted %d, \"%s\"", st, err.message, want, says ? says : "");
  if (st == TD_OK)
    return t;
  td_tokenizer_destroy(t);
  return NULL;
}

static td_tokenizer *load_model(const char *config)
{
  size_t n = 0;
  char *bytes = util_read(GOLDEN_DIR "/small_spm.model", &n);
  assert_non_null(bytes);
  cJSON *json = config ? util_parse(config, strlen(config)) : NULL;
  td_tokenizer *t = load_model_bytes(bytes, n, json, TD_OK, NULL);
  cJSON_Delete(json);
  free(bytes);
  return t;
}

static td_tokenizer *load_gguf(void)
{
  td_error err = {0};
  td_model_files *files = NULL;
  td_tokenizer *t = NULL;
  if (td_model_files_open(GOLDEN_DIR "/small_spm.gguf", &files, &err) != TD_OK ||
      td_tokenizer_load(files, &t, &err) != TD_OK)
    fail_msg("%s", err.message);
  td_model_files_close(files);
  return t;
}

/* small_spm.json, with a change of make_spm_goldens.py or none. */
static td_tokenizer *load_json(bool newer)
{
  cJSON *json = util_read_json(GOLDEN_DIR, "small_spm.json");
  assert_non_null(json);
  const cJSON *change;
  cJSON_ArrayForEach(change, td_json_get(golden, "changes")) if (newer)
  {
    cJSON_DeleteItemFromObjectCaseSensitive(json, change->string);
    cJSON_AddItemToObject(json, change->string, cJSON_Duplicate(change, true));
  }
  td_tokenizer *t = util_load(json);
  cJSON_Delete(json);
  return t;
}

static void check(const td_tokenizer *t, const char *name, bool trusted)
{
  size_t i = 0, bad = 0, n_checked = 0;
  const cJSON *want, *id;
  for (int again = 0; again < 2; again++, i = 0) /* the second time whole words are cached */
    cJSON_ArrayForEach(want, td_json_get(golden, name))
    {
      if (cJSON_IsArray(want)) {
        td_ids got = util_encode(t, texts[i], text_bytes[i], trusted);
        size_t k = 0;
        bool same = true;
        cJSON_ArrayForEach(id, want)
        {
          same = same && k < got.n && got.ids[k] == id->valueint;
          k++;
        }
        if (!same || k != got.n) {
          bad++;
          print_message("%s: text %zu (line %zu of texts.txt) differs\n", name, i, i + 1);
        }
        n_checked++;
        td_ids_deinit(&got);
      }
      i++;
    }
  assert_true(n_checked >= 1000);
  assert_int_equal(bad, 0);
}

static void model_ids(void **state)
{
  td_tokenizer *t = load_model(NULL);
  check(t, "plain", false);
  assert_int_equal(td_tokenizer_bos(t), 1);
  assert_int_equal(td_tokenizer_eos(t), 2);
  assert_true(td_tokenizer_adds_bos(t));
  td_tokenizer_destroy(t);
}

/* In GGUF, as in llama.cpp, user-defined pieces are cut out before spaces are marked, as in the conversion.
 */
static void gguf_ids(void **state)
{
  td_tokenizer *t = load_gguf();
  check(t, "legacy", true);
  assert_true(td_tokenizer_adds_bos(t));
  td_tokenizer_destroy(t);
}

static void json_ids(void **state)
{
  td_tokenizer *t = load_json(false);
  check(t, "legacy", true);
  td_tokenizer_destroy(t);
  t = load_json(true);
  check(t, "first", true);
  td_tokenizer_destroy(t);
}

/* All texts in one, twice, between special tokens: repeated words are cached. */
static void joined(void **state)
{
  td_tokenizer *t = load_json(false);
  const int32_t between = td_tokenizer_added_token(t, "[INST]", 6);
  td_buf text;
  td_ids want = {0};
  td_error err = {0};
  td_id_sink sink = {.ids = &want, .err = &err};
  const cJSON *ids, *id;
  td_buf_init(&text, 0);
  for (int again = 0; again < 2; again++) {
    size_t i = 0;
    cJSON_ArrayForEach(ids, td_json_get(golden, "legacy"))
    {
      if (cJSON_IsArray(ids) && text_bytes[i] > 0) {
        td_buf_append(&text, texts[i], text_bytes[i]);
        td_buf_append_str(&text, "[INST]");
        cJSON_ArrayForEach(id, ids) assert_int_equal(td_id_sink_push(&sink, id->valueint), TD_OK);
        assert_int_equal(td_id_sink_push(&sink, between), TD_OK);
      }
      i++;
    }
  }
  assert_true(text.len_bytes > 20000);
  td_ids got = util_encode(t, text.data, text.len_bytes, true);
  util_assert_ids(&got, want.ids, want.n);
  td_ids_deinit(&got);
  td_ids_deinit(&want);
  td_buf_deinit(&text);
  td_tokenizer_destroy(t);
}

/* ---- text around special tokens ---- */

static void assert_text(const td_tokenizer *t, const char *text, bool trusted, const char *want)
{
  td_ids ids = util_encode(t, text, strlen(text), trusted);
  td_buf got;
  td_buf_init(&got, 0);
  for (size_t i = 0; i < ids.n; i++)
    td_buf_printf(&got, "%s%s", i ? " " : "", td_tokenizer_token_text(t, ids.ids[i]));
  assert_string_equal(got.data, want);
  td_buf_deinit(&got);
  td_ids_deinit(&ids);
}

#define M "\xE2\x96\x81"

static void prefixes(void **state)
{
  td_tokenizer *t = load_model(NULL);
  assert_text(t, "[INST]a[/INST]a", true, "[INST] " M "a [/INST] " M "a");
  assert_text(t, "[INST]", false, M " <0x5B> IN S T <0x5D>");
  assert_text(t,
              "a\xFF"
              "a",
              true, M "a <0xFF> a"); /* text after a broken byte is not the beginning of a text */
  td_tokenizer_destroy(t);
  td_tokenizer *plain = load_model("{\"add_prefix_space\":false,\"add_bos_token\":false}");
  assert_text(plain, "a a", true, "a " M "a");
  assert_false(td_tokenizer_adds_bos(plain));
  td_tokenizer_destroy(plain);
  td_tokenizer *zero = load_model("{\"bos_token\":\"<unk>\"}"); /* BOS may be token 0 */
  assert_int_equal(td_tokenizer_bos(zero), 0);
  assert_true(td_tokenizer_adds_bos(zero));
  td_tokenizer_destroy(zero);
  td_tokenizer *ends = load_model("{\"add_eos_token\":true}");
  td_ids ids = {0};
  td_error err;
  assert_int_equal(td_tokenizer_encode(ends, "a", 1, NULL, 0, true, 0, &ids, &err), TD_OK);
  assert_int_equal(ids.n, 3);
  assert_int_equal(ids.ids[0], td_tokenizer_bos(ends));
  assert_int_equal(ids.ids[2], td_tokenizer_eos(ends));
  td_ids_deinit(&ids);
  td_tokenizer_destroy(ends);
}

static void config_tokens(void **state)
{
  td_tokenizer *t =
      load_model("{\"added_tokens_decoder\":{\"900\":{\"content\":\"<|im_end|>\",\"special\":true},"
                 "\"2\":{\"content\":\"</s>\",\"special\":true}},\"eos_token\":\"<|im_end|>\"}");
  assert_int_equal(td_tokenizer_eos(t), 900);
  assert_int_equal(td_tokenizer_vocab(t), 901);
  assert_text(t, "a<|im_end|>", true, M "a <|im_end|>");
  td_tokenizer_destroy(t);
}

/* A token of added_tokens.json is special whatever key names it: user text never gives such a token. */
static void named_tokens_are_special(void **state)
{
  static const char *const keys[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                     "sep_token", "cls_token", "mask_token"};
  size_t n = 0;
  char *bytes = util_read(GOLDEN_DIR "/small_spm.model", &n), text[100];
  cJSON *added = util_parse("{\"<zz>\":900}", 12);
  td_error err = {0};
  assert_non_null(bytes);
  for (size_t i = 0; i <= sizeof keys / sizeof *keys; i++) {
    snprintf(text, sizeof text, "{\"%s\":{\"content\":\"<zz>\"}}",
             i < sizeof keys / sizeof *keys ? keys[i] : "another");
    cJSON *config = util_parse(text, strlen(text));
    td_tokenizer *t = td_tokenizer_new(&err);
    assert_int_equal(td_tokenizer_load_spm(t, bytes, n, config, added, &err), TD_OK);
    td_ids of_users = util_encode(t, "a<zz>", 5, false), ours = util_encode(t, "a<zz>", 5, true);
    assert_int_equal(ours.ids[ours.n - 1], 900);
    assert_int_equal(has_id(&of_users, 900), i == sizeof keys / sizeof *keys);
    td_ids_deinit(&of_users);
    td_ids_deinit(&ours);
    td_tokenizer_destroy(t);
    cJSON_Delete(config);
  }
  cJSON_Delete(added);
  free(bytes);
}

/* ---- spaces ---- */

static void assert_marked(const td_tokenizer *t, const char *text, const char *want, td_span *spans, size_t n)
{
  td_error err = {0};
  td_buf out;
  td_buf_init(&out, 0);
  assert_int_equal(td_spm_mark(t, (const unsigned char *)text, strlen(text), true, &out, spans, n, &err),
                   TD_OK);
  assert_int_equal(out.len_bytes, strlen(want));
  if (*want)
    assert_memory_equal(out.data, want, out.len_bytes);
  td_buf_deinit(&out);
}

static void spaces(void **state)
{
  td_tokenizer *t = load_model(NULL);
  td_span spans[] = {{0, 1}, {2, 5}, {5, 5}};
  assert_marked(t, "a b c", M "a" M "b" M "c", spans, 3);
  const td_span want[] = {{0, 4}, {7, 12}, {12, 12}};
  assert_memory_equal(spans, want, sizeof want);
  t->spm.squeezes = true;
  assert_marked(t, "  a  b ", M "a" M "b", NULL, 0);
  assert_marked(t, "a   ", M "a", NULL, 0);
  assert_marked(t, "   ", "", NULL, 0);
  td_tokenizer_destroy(t);
}

/* ---- decoding ---- */

static void decode(const td_tokenizer *t, const cJSON *ids, bool skip, bool begins, td_buf *out)
{
  const cJSON *id;
  td_detok d;
  td_detok_init(&d, t, skip, begins);
  td_buf_init(out, 0);
  cJSON_ArrayForEach(id, ids)
  {
    size_t at = out->len_bytes;
    td_detok_push(&d, id->valueint, out);
    assert_true(d.n_held < 4);
    for (size_t len; at < out->len_bytes; at += len) {
      len = td_utf8_sequence_length((const unsigned char *)out->data + at, out->len_bytes - at);
      assert_true(len > 0);
    }
  }
  td_detok_finish(&d, out);
}

static void decodings(void **state)
{
  td_tokenizer *tokenizers[] = {load_model(NULL), load_json(false), load_gguf()};
  size_t n = 0;
  for (size_t k = 0; k < 3; k++) {
    const cJSON *item;
    cJSON_ArrayForEach(item, td_json_get(golden, "decode"))
    {
      const cJSON *plain = item->child->next, *full = plain->next;
      for (int skip = 0; skip < 2; skip++) {
        const cJSON *want = skip ? plain : full;
        td_buf out, all;
        if (!cJSON_IsString(want))
          continue;
        decode(tokenizers[k], item->child, skip, true, &out);
        assert_string_equal(out.data ? out.data : "", want->valuestring);
        /* text that continues another keeps its space */
        decode(tokenizers[k], item->child, skip, false, &all);
        assert_true(all.len_bytes == out.len_bytes ||
                    (all.len_bytes == out.len_bytes + 1 && *all.data == ' '));
        td_buf_deinit(&all);
        td_buf_deinit(&out);
        n++;
      }
    }
    td_tokenizer_destroy(tokenizers[k]);
  }
  assert_true(n >= 1200);
}

/* An added token that is matched in normalised text absorbs the space before it, and decoding returns that
 * space. */
static void added_tokens_keep_their_space(void **state)
{
  static const char *const round_trips[] = {"zap", "a zap b", " zap", "azap", "zap zap", "zapzap", "a  zap"};
  cJSON *json = util_read_json(GOLDEN_DIR, "small_spm.json");
  static const char added[] = "{\"id\":900,\"content\":\"zap\",\"special\":false,\"normalized\":true}";
  cJSON_AddItemToArray(cJSON_GetObjectItem(json, "added_tokens"), util_parse(added, strlen(added)));
  td_tokenizer *t = util_load(json);
  cJSON_Delete(json);
  assert_text(t, "a zap b", true, M "a zap " M " b");
  for (size_t i = 0; i < sizeof round_trips / sizeof *round_trips; i++) {
    td_ids ids = util_encode(t, round_trips[i], strlen(round_trips[i]), true);
    cJSON *list = cJSON_CreateIntArray(ids.ids, (int)ids.n);
    td_buf out;
    decode(t, list, false, true, &out);
    assert_string_equal(out.data, round_trips[i]); /* as in `tokenizers` 0.23 */
    td_buf_deinit(&out);
    cJSON_Delete(list);
    td_ids_deinit(&ids);
  }
  td_tokenizer_destroy(t);
}

/* ---- long texts: the same ids as merging the whole, in n log n ---- */

/* SentencePiece by its definition: repeatedly merge the leftmost pair of lowest rank, over the whole text. */
static size_t naive(const td_tokenizer *t, const char *text, size_t n, uint32_t *ids)
{
  size_t k = 0;
  for (size_t i = 0; i < n; i++) {
    int32_t id = td_vocab_find(&t->vocab, text[i] == ' ' ? M : text + i, text[i] == ' ' ? 3 : 1);
    ids[k++] = (uint32_t)(id >= 0 ? id : t->byte_id[(unsigned char)text[i]]);
  }
  for (;;) {
    uint32_t best = TD_NO_RANK;
    size_t at = 0;
    for (size_t i = 0; i + 1 < k; i++) {
      uint32_t rank = td_merges_rank(&t->merges, ids[i], ids[i + 1]);
      if (rank < best) {
        best = rank;
        at = i;
      }
    }
    if (best == TD_NO_RANK)
      return k;
    ids[at] = td_merges_find(&t->merges, ids[at], ids[at + 1])->whole;
    memmove(ids + at + 1, ids + at + 2, (k - at - 2) * sizeof *ids);
    k--;
  }
}

static void equal_naive(void **state)
{
  td_tokenizer *t = load_model("{\"add_prefix_space\":false}");
  const char letters[] = "etaoinshr dlu,.3\x01";
  unsigned seed = 11;
  for (int round = 0; round < 400; round++) {
    char text[300];
    uint32_t want[300];
    size_t n = 1 + (size_t)(rand_r(&seed) % 300);
    int kinds = 1 + rand_r(&seed) % (int)(sizeof letters - 1);
    for (size_t i = 0; i < n; i++)
      text[i] = letters[rand_r(&seed) % kinds];
    size_t n_want = naive(t, text, n, want);
    td_ids ids = util_encode(t, text, n, false);
    util_assert_ids(&ids, (const int32_t *)want, n_want);
    td_ids_deinit(&ids);
  }
  td_tokenizer_destroy(t);
}

/* ---- files that lie ---- */

static void damaged(void **state)
{
  size_t n = 0;
  char *bytes = util_read(GOLDEN_DIR "/small_spm.model", &n);
  unsigned seed = 5, loaded = 0;
  for (int round = 0; round < 400; round++) {
    char *copy = malloc(n);
    memcpy(copy, bytes, n);
    size_t len = round % 4 ? n : (size_t)rand_r(&seed) % n;
    for (int k = round % 4; k > 0; k--)
      copy[(size_t)rand_r(&seed) % n] = (char)rand_r(&seed);
    td_error err = {0};
    td_tokenizer *t = td_tokenizer_new(&err);
    td_status st = td_tokenizer_load_spm(t, copy, len, NULL, NULL, &err);
    assert_true(st == TD_OK || ((st == TD_ERR_MODEL || st == TD_ERR_UNSUPPORTED) && *err.message));
    if (st == TD_OK) {
      td_ids ids = util_encode(t, "a [U] b\n", 8, true);
      td_ids_deinit(&ids);
      loaded++;
    }
    td_tokenizer_destroy(t);
    free(copy);
  }
  assert_true(loaded > 20 && loaded < 380);
  free(bytes);
}

/* A model of one piece "a", token 0, and more fields. */
#define ONE                                                                                                  \
  "\x0A\x08\x0A\x01"                                                                                         \
  "a\x15\0\0\0\0"
#define CHECK_REFUSED(more, status, says)                                                                    \
  assert_null(load_model_bytes(ONE more, sizeof(ONE more) - 1, NULL, status, says))

static void refused(void **state)
{
  CHECK_REFUSED("\x12\x02\x18\x03", TD_ERR_UNSUPPORTED, "other than UNIGRAM and BPE");
  CHECK_REFUSED("\x12\x05\x18\x02\xC0\x01\x01", TD_ERR_UNSUPPORTED, "treat_whitespace_as_suffix");
  CHECK_REFUSED("\x12\x02\x18\x02\x1A\x02\x28\x00", TD_ERR_UNSUPPORTED, "escape_whitespaces");
  CHECK_REFUSED("\x12\x02\x18\x02\x1A\x04\x12\x02xx", TD_ERR_UNSUPPORTED, "rules");
  CHECK_REFUSED("\x12\x02\x18\x02", TD_ERR_UNSUPPORTED, "neither tokens for bytes");
  CHECK_REFUSED("\x12\x02\x18\x02\x0A\x05\x0A\x01"
                "b\x18\x05",
                TD_ERR_UNSUPPORTED, "UNUSED");
  CHECK_REFUSED("\x12\x02\x18\x02" ONE, TD_ERR_MODEL, "two ids");
#define NAN_PIECE                                                                                            \
  "\x0A\x08\x0A\x01"                                                                                         \
  "b\x15\0\0\xC0\x7F"
  CHECK_REFUSED(NAN_PIECE, TD_ERR_MODEL, "score of token 1"); /* without a model type it is UNIGRAM */
  CHECK_REFUSED("\x12\x02\x18\x02" NAN_PIECE, TD_ERR_UNSUPPORTED, "neither tokens for bytes");
  CHECK_REFUSED("\x12\x03\x1A\x01\x02" NAN_PIECE, TD_ERR_MODEL, "score");   /* the model type as a text, */
  CHECK_REFUSED("\x12\x05\x1D\x02\0\0\0" NAN_PIECE, TD_ERR_MODEL, "score"); /* as 32 bits, */
  CHECK_REFUSED("\x10\x02" NAN_PIECE, TD_ERR_MODEL, "score");               /* and the trainer as a number */
  CHECK_REFUSED("\x12\xFF\x01", TD_ERR_MODEL, "not a SentencePiece model");
  CHECK_REFUSED("\x0B", TD_ERR_MODEL, "not a SentencePiece model");
  assert_null(load_model_bytes("", 0, NULL, TD_ERR_MODEL, "not a SentencePiece model"));
  assert_null(load_model_bytes("IQ== 0\nIg== 1\n", 14, NULL, TD_ERR_MODEL, "not a SentencePiece model"));
}

/* The space before the first word does not belong to the text, if the text is complete. */
static void texts_that_go_on(void **state)
{
  (void)state;
  td_tokenizer *t = load_model(NULL);
  td_ids ids = util_encode(t, "a", 1, false);
  for (int begins = 0; begins < 2; begins++) {
    td_buf out;
    td_detok d;
    td_buf_init(&out, 0);
    td_detok_init(&d, t, false, begins);
    for (size_t i = 0; i < ids.n; i++)
      td_detok_push(&d, ids.ids[i], &out);
    td_detok_finish(&d, &out);
    assert_string_equal(out.data, begins ? "a" : " a");
    td_buf_clear(&out);
    for (size_t i = 0; i < ids.n; i++)
      td_tokenizer_token_bytes(t, ids.ids[i], &out); /* a single token always has it */
    assert_string_equal(out.data, " a");
    size_t n = out.len_bytes;
    td_tokenizer_token_bytes(t, -1, &out);
    td_tokenizer_token_bytes(t, INT32_MAX, &out);
    assert_int_equal(out.len_bytes, n);
    td_buf_deinit(&out);
  }
  td_ids_deinit(&ids);
  td_tokenizer_destroy(t);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(model_ids),
      cmocka_unit_test(gguf_ids),
      cmocka_unit_test(json_ids),
      cmocka_unit_test(joined),
      cmocka_unit_test(prefixes),
      cmocka_unit_test(decodings),
      cmocka_unit_test(added_tokens_keep_their_space),
      cmocka_unit_test(equal_naive),
      cmocka_unit_test(config_tokens),
      cmocka_unit_test(damaged),
      cmocka_unit_test(refused),
      cmocka_unit_test(spaces),
      cmocka_unit_test(texts_that_go_on),
      cmocka_unit_test(named_tokens_are_special),
  };
  return cmocka_run_group_tests(tests, read_all, free_all);
}
