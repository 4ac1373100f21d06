/* The tokenizer compared with the reference: the ids of the hard texts in tests/golden_text.
 *
 * small.json and its variants run everywhere. Real tokenizers run if they are there: TANDEM_TEST_MODEL
 * names the SmolLM2 GGUF, TANDEM_TEST_TOKENIZERS the folder that tests/golden_text/fetch_tokenizers.py
 * made. */
#include "test_tokenizer_util.h"

typedef struct text {
  char *bytes;
  size_t n;
} text;

static text *texts;
static size_t n_texts;

static int hex(char c) { return c <= '9' ? c - '0' : c - 'A' + 10; }

static int read_texts(void **state)
{
  (void)state;
  size_t n;
  char *all = util_read(GOLDEN_DIR "/texts.txt", &n);
  assert_non_null(all);
  for (char *line = all; *line; n_texts++) {
    char *end = strchr(line, '\n');
    assert_non_null(end);
    texts = realloc(texts, (n_texts + 1) * sizeof *texts);
    text *t = &texts[n_texts];
    *t = (text){malloc((size_t)(end - line) + 1), 0};
    assert_non_null(t->bytes);
    for (char *p = line; p < end; p++)
      if (*p == '\\') {
        t->bytes[t->n++] = (char)(hex(p[2]) * 16 + hex(p[3]));
        p += 3;
      } else {
        t->bytes[t->n++] = *p;
      }
    line = end + 1;
  }
  free(all);
  assert_true(n_texts >= 400);
  return 0;
}

static int free_texts(void **state)
{
  (void)state;
  for (size_t i = 0; i < n_texts; i++)
    free(texts[i].bytes);
  free(texts);
  return 0;
}

static size_t check_text(const td_tokenizer *t, const char *name, size_t i, bool trusted, const cJSON *want)
{
  td_ids got = util_encode(t, texts[i].bytes, texts[i].n, trusted);
  size_t k = 0;
  bool same = true;
  const cJSON *id;
  cJSON_ArrayForEach(id, want)
  {
    same = same && k < got.n && got.ids[k] == id->valueint;
    k++;
  }
  same = same && k == got.n;
  if (!same) {
    print_message("%s, text %zu (line %zu of texts.txt), %s:", name, i, i + 1, trusted ? "trusted" : "plain");
    for (size_t j = 0; j < got.n; j++)
      print_message(" %d", got.ids[j]);
    print_message("\n");
  }
  td_ids_deinit(&got);
  return !same;
}

/* Every text, trusted and plain. */
static void check_golden(const td_tokenizer *t, const char *name, const cJSON *golden)
{
  const cJSON *trusted = td_json_get(golden, "trusted"), *plain = td_json_get(golden, "plain"), *ids;
  assert_int_equal(cJSON_GetArraySize(trusted), n_texts);
  const cJSON *other = plain->child;
  size_t i = 0, bad = 0;
  cJSON_ArrayForEach(ids, trusted)
  {
    bad += check_text(t, name, i, true, ids);
    bool differs = other && other->child->valueint == (int)i;
    bad += check_text(t, name, i, false, differs ? other->child->next : ids);
    if (differs)
      other = other->next;
    i++;
  }
  assert_null(other);
  if (bad)
    fail_msg("%s: %zu texts differ", name, bad);
}

/* Decoding returns the encoded text, if every byte has a token and nothing is normalised or stripped. */
static void check_round_trip(const td_tokenizer *t)
{
  for (size_t i = 0; i < n_texts; i++) {
    td_ids ids = util_encode(t, texts[i].bytes, texts[i].n, true);
    td_buf out, want;
    td_buf_init(&out, 0);
    td_buf_init(&want, 0);
    td_detok d;
    td_detok_init(&d, t, false, true);
    for (size_t k = 0; k < ids.n; k++)
      td_detok_push(&d, ids.ids[k], &out);
    td_detok_finish(&d, &out);
    bool valid = true;
    for (size_t k = 0, len; valid && k < texts[i].n; k += len) {
      len = td_utf8_sequence_length((const unsigned char *)texts[i].bytes + k, texts[i].n - k);
      valid = len > 0;
    }
    if (valid) {
      assert_int_equal(out.len_bytes, texts[i].n);
      if (texts[i].n)
        assert_memory_equal(out.data, texts[i].bytes, texts[i].n);
    }
    td_buf_deinit(&out);
    td_buf_deinit(&want);
    td_ids_deinit(&ids);
  }
}

/* ---- small.json ---- */

static void put(cJSON *object, const char *key, const cJSON *value)
{
  cJSON_DeleteItemFromObjectCaseSensitive(object, key);
  cJSON_AddItemToObject(object, key, value ? cJSON_Duplicate(value, true) : cJSON_CreateNull());
}

static void check_variant(const char *file)
{
  cJSON *small = util_read_json(GOLDEN_DIR, "small.json"), *golden = util_read_json(GOLDEN_DIR, file);
  assert_non_null(small);
  assert_non_null(golden);
  const cJSON *change = td_json_get(golden, "change"), *ignore = td_json_get(change, "ignore_merges");
  put(small, "pre_tokenizer", td_json_get(change, "pre_tokenizer"));
  put(small, "normalizer", td_json_get(change, "normalizer"));
  if (ignore)
    put(cJSON_GetObjectItemCaseSensitive(small, "model"), "ignore_merges", ignore);
  td_tokenizer *t = util_load(small);
  check_golden(t, file, golden);
  check_golden(t, file, golden); /* again, because the second time whole words are cached */
  td_tokenizer_destroy(t);
  cJSON_Delete(small);
  cJSON_Delete(golden);
}

/* All texts in one, twice, between special tokens: repeated words are cached. */
static void small_joined(void **state)
{
  cJSON *small = util_read_json(GOLDEN_DIR, "small.json");
  cJSON *golden = util_read_json(GOLDEN_DIR, "small_gpt2.json");
  td_tokenizer *t = util_load(small);
  const int32_t between = td_tokenizer_added_token(t, "<|im_end|>", 10);
  td_buf all;
  td_ids want = {0};
  td_error err = {0};
  td_id_sink sink = {.ids = &want, .err = &err};
  const cJSON *ids, *id;
  td_buf_init(&all, 0);
  for (int again = 0; again < 2; again++) {
    size_t i = 0;
    cJSON_ArrayForEach(ids, td_json_get(golden, "trusted"))
    {
      bool strips = texts[i].n >= 3 && memmem(texts[i].bytes, texts[i].n, "]", 1); /* looks beyond its text */
      if (!strips) {
        td_buf_append(&all, texts[i].bytes, texts[i].n);
        td_buf_append_str(&all, "<|im_end|>");
        cJSON_ArrayForEach(id, ids) assert_int_equal(td_id_sink_push(&sink, id->valueint), TD_OK);
        assert_int_equal(td_id_sink_push(&sink, between), TD_OK);
      }
      i++;
    }
  }
  assert_true(all.len_bytes > 20000);
  td_ids got = util_encode(t, all.data, all.len_bytes, true);
  util_assert_ids(&got, want.ids, want.n);
  td_ids_deinit(&got);
  td_ids_deinit(&want);
  td_buf_deinit(&all);
  td_tokenizer_destroy(t);
  cJSON_Delete(small);
  cJSON_Delete(golden);
}

static void small_gpt2(void **state) { check_variant("small_gpt2.json"); }
static void small_smollm(void **state) { check_variant("small_smollm.json"); }
static void small_llama3(void **state) { check_variant("small_llama3.json"); }
static void small_qwen2(void **state) { check_variant("small_qwen2.json"); }
static void small_qwen35(void **state) { check_variant("small_qwen35.json"); }
static void small_tekken(void **state) { check_variant("small_tekken.json"); }
static void small_o200k(void **state) { check_variant("small_o200k.json"); }
static void small_possessive(void **state) { check_variant("small_possessive.json"); }
static void small_deepseek(void **state) { check_variant("small_deepseek.json"); }
static void small_deepseek_llm(void **state) { check_variant("small_deepseek_llm.json"); }
static void small_deepseek_coder(void **state) { check_variant("small_deepseek_coder.json"); }
static void small_falcon(void **state) { check_variant("small_falcon.json"); }
static void small_thousands(void **state) { check_variant("small_thousands.json"); }
static void small_punctuation(void **state) { check_variant("small_punctuation.json"); }

static void small_decode(void **state)
{
  cJSON *small = util_read_json(GOLDEN_DIR, "small.json"),
        *golden = util_read_json(GOLDEN_DIR, "small_decode.json");
  td_tokenizer *t = util_load(small);
  const cJSON *item, *id;
  size_t n = 0;
  cJSON_ArrayForEach(item, golden)
  {
    for (int skip = 0; skip < 2; skip++) {
      const char *want = (skip ? item->child->next->next : item->child->next)->valuestring;
      td_detok d;
      td_buf out;
      td_detok_init(&d, t, skip, true);
      td_buf_init(&out, 0);
      cJSON_ArrayForEach(id, item->child)
      {
        size_t before = out.len_bytes;
        td_detok_push(&d, id->valueint, &out);
        assert_true(d.n_held < 4);
        /* the output is whole characters at every step, and is never taken back */
        for (size_t k = before, len; k < out.len_bytes; k += len) {
          len = td_utf8_sequence_length((const unsigned char *)out.data + k, out.len_bytes - k);
          assert_true(len > 0);
        }
      }
      td_detok_finish(&d, &out);
      assert_int_equal(out.len_bytes, strlen(want));
      if (out.len_bytes)
        assert_memory_equal(out.data, want, out.len_bytes);
      td_buf_deinit(&out);
      n++;
    }
  }
  assert_int_equal(n, 800);
  td_tokenizer_destroy(t);
  cJSON_Delete(small);
  cJSON_Delete(golden);
}

/* ---- real tokenizers ---- */

static void check_real(const char *name, const td_tokenizer *t, bool round_trip)
{
  char file[64];
  snprintf(file, sizeof file, "%s.json", name);
  cJSON *golden = util_read_json(GOLDEN_DIR, file);
  assert_non_null(golden);
  check_golden(t, name, golden);
  if (round_trip)
    check_round_trip(t);
  cJSON_Delete(golden);
}

static void check_folder(const char *name, bool round_trip)
{
  const char *folder = getenv("TANDEM_TEST_TOKENIZERS");
  char file[64];
  snprintf(file, sizeof file, "%s.json", name);
  cJSON *json = folder ? util_read_json(folder, file) : NULL;
  if (!json) {
    print_message("skipped: TANDEM_TEST_TOKENIZERS has no %s\n", file);
    skip();
  }
  td_tokenizer *t = util_load(json);
  check_real(name, t, round_trip);
  td_tokenizer_destroy(t);
  cJSON_Delete(json);
}

static void real_llama3(void **state) { check_folder("llama3", true); }
static void real_llama32(void **state) { check_folder("llama3.2", true); }
static void real_qwen2(void **state) { check_folder("qwen2", false); }
static void real_qwen35(void **state) { check_folder("qwen35", false); }
static void real_gpt2(void **state) { check_folder("gpt-2", true); }
static void real_deepseek(void **state) { check_folder("deepseek-v3", true); }
static void real_smollm2_json(void **state) { check_folder("smollm2", false); }

static td_tokenizer *load_gguf(const char *path)
{
  td_error err = {0};
  td_model_files *files = NULL;
  td_tokenizer *t = NULL;
  if (td_model_files_open(path, &files, &err) != TD_OK)
    return NULL;
  if (td_tokenizer_load(files, &t, &err) != TD_OK)
    fail_msg("%s", err.message);
  td_model_files_close(files);
  return t;
}

static void real_smollm2_gguf(void **state)
{
  const char *path = getenv("TANDEM_TEST_MODEL");
  td_tokenizer *t = path ? load_gguf(path) : NULL;
  if (!t) {
    print_message("skipped: TANDEM_TEST_MODEL names no model\n");
    skip();
  }
  check_real("smollm2", t, false);
  assert_int_equal(td_tokenizer_vocab(t), 49152);
  assert_int_equal(td_tokenizer_bos(t), 1);
  assert_int_equal(td_tokenizer_eos(t), 2);
  assert_false(td_tokenizer_adds_bos(t));
  assert_string_equal(td_tokenizer_token_text(t, 2), "<|im_end|>");
  assert_int_equal(td_tokenizer_added_token(t, "<|im_start|>", 12), 1);
  assert_true(td_tokenizer_is_special(t, 1));
  assert_false(td_tokenizer_is_special(t, 100));
  td_tokenizer_destroy(t);
}

static void check_gguf(const char *file, const char *name)
{
  const char *folder = getenv("TANDEM_TEST_TOKENIZERS");
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder ? folder : "", file);
  td_tokenizer *t = folder ? load_gguf(path) : NULL;
  if (!t) {
    print_message("skipped: TANDEM_TEST_TOKENIZERS has no %s\n", file);
    skip();
  }
  check_real(name, t, false);
  td_tokenizer_destroy(t);
}

static void real_llama3_gguf(void **state) { check_gguf("ggml-vocab-llama-bpe.gguf", "llama3"); }
static void real_qwen2_gguf(void **state) { check_gguf("ggml-vocab-qwen2.gguf", "qwen2"); }
static void real_gpt2_gguf(void **state) { check_gguf("ggml-vocab-gpt-2.gguf", "gpt-2"); }

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(small_joined),       cmocka_unit_test(small_tekken),
      cmocka_unit_test(small_deepseek_llm), cmocka_unit_test(small_deepseek_coder),
      cmocka_unit_test(small_falcon),       cmocka_unit_test(small_thousands),
      cmocka_unit_test(small_punctuation),  cmocka_unit_test(small_o200k),
      cmocka_unit_test(small_possessive),   cmocka_unit_test(small_gpt2),
      cmocka_unit_test(small_smollm),       cmocka_unit_test(small_llama3),
      cmocka_unit_test(small_qwen2),        cmocka_unit_test(small_qwen35),
      cmocka_unit_test(small_deepseek),     cmocka_unit_test(small_decode),
      cmocka_unit_test(real_smollm2_json),  cmocka_unit_test(real_smollm2_gguf),
      cmocka_unit_test(real_llama3),        cmocka_unit_test(real_llama32),
      cmocka_unit_test(real_qwen2),         cmocka_unit_test(real_qwen35),
      cmocka_unit_test(real_gpt2),          cmocka_unit_test(real_deepseek),
      cmocka_unit_test(real_llama3_gguf),   cmocka_unit_test(real_qwen2_gguf),
      cmocka_unit_test(real_gpt2_gguf),
  };
  return cmocka_run_group_tests(tests, read_texts, free_texts);
}
