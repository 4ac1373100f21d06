/* Tokenizers when memory runs out: whichever allocation fails while one is loaded or encodes, there is an
 * error, or the ids are the same without it; and nothing leaks. */
#include <errno.h>
#include <pthread.h>

#include "allocations_fixture.h"
#include "test_tokenizer_util.h"

enum { ALLOCATIONS_MAX = 100000 };

static bool no_thread_data;

int __real_pthread_setspecific(pthread_key_t key, const void *value);
int __wrap_pthread_setspecific(pthread_key_t key, const void *value);
int __wrap_pthread_setspecific(pthread_key_t key, const void *value)
{
  return no_thread_data ? ENOMEM : __real_pthread_setspecific(key, value);
}

/* ---- tokenizers of each kind ---- */

static void put(cJSON *object, const char *key, const cJSON *value)
{
  cJSON_DeleteItemFromObjectCaseSensitive(object, key);
  cJSON_AddItemToObject(object, key, value ? cJSON_Duplicate(value, true) : cJSON_CreateNull());
}

/* small.json as one of its variants changes it. */
static cJSON *variant(const char *file)
{
  cJSON *small = util_read_json(GOLDEN_DIR, "small.json"), *golden = util_read_json(GOLDEN_DIR, file);
  assert_true(small && golden);
  const cJSON *change = td_json_get(golden, "change");
  put(small, "pre_tokenizer", td_json_get(change, "pre_tokenizer"));
  put(small, "normalizer", td_json_get(change, "normalizer"));
  cJSON_Delete(golden);
  return small;
}

typedef struct source {
  cJSON *json;   /* tokenizer.json; NULL: model */
  char *model;   /* tokenizer.model */
  cJSON *config; /* of it */
  size_t n;
} source;

static td_status load(const source *s, td_tokenizer **t, td_error *err)
{
  if (s->json)
    return td_tokenizer_load_json(s->json, NULL, t, err);
  td_tokenizer *new = td_tokenizer_new(err);
  if (!new)
    return TD_ERR_NOMEM;
  td_status st = td_tokenizer_load_spm(new, s->model, s->n, s->config, NULL, err);
  *t = st == TD_OK ? new : NULL;
  if (st != TD_OK)
    td_tokenizer_destroy(new);
  return st;
}

/* ---- loading ---- */

/* There are many allocations, and those for the vocabulary are alike, so only some of them fail. */
static void load_without(const source *s)
{
  td_error err;
  td_tokenizer *t = NULL;
  n_calls = n_alive = 0;
  assert_int_equal(load(s, &t, &err), TD_OK);
  td_tokenizer_destroy(t);
  assert_int_equal(n_alive, 0);
  long all = n_calls;
  assert_true(all > 10 && all < ALLOCATIONS_MAX);
  for (long k = 0; k<all; k += k> 60 && k < all - 60 ? 1 + all / 100 : 1) {
    t = NULL;
    n_calls = n_alive = 0;
    fails_at = k;
    td_status st = load(s, &t, &err);
    fails_at = -1;
    if (st == TD_OK) { /* only a table that makes it faster was missing */
      td_tokenizer_destroy(t);
    } else {
      if (st != TD_ERR_NOMEM && st != TD_ERR_UNSUPPORTED) /* an expression without memory counts as unknown */
        fail_msg("allocation %ld of %ld: %s", k, all, err.message);
      assert_null(t);
    }
    if (n_alive != 0)
      fail_msg("allocation %ld of %ld fails, and %ld are left", k, all, n_alive);
  }
}

/* ---- encoding ---- */

typedef struct work {
  const td_tokenizer *t;
  const char *text;
  td_ids ids;
  td_status st;
  td_error err;
} work;

/* In a separate thread, because a thread keeps a table of words. */
static void *encode(void *arg)
{
  work *w = arg;
  td_span all = {0, strlen(w->text)};
  w->ids = (td_ids){0};
  w->st = td_tokenizer_encode(w->t, w->text, all.end, &all, 1, true, 0, &w->ids, &w->err);
  return NULL;
}

static void encode_apart(work *w)
{
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, encode, w), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
}

static void encode_without(const td_tokenizer *t, const char *text)
{
  work w = {.t = t, .text = text};
  fails_at = -1;
  encode_apart(&w);
  assert_int_equal(w.st, TD_OK);
  td_ids want = w.ids;
  no_thread_data = true;
  n_alive = 0;
  encode_apart(&w);
  no_thread_data = false;
  assert_int_equal(w.st, TD_OK);
  util_assert_ids(&w.ids, want.ids, want.n);
  td_ids_deinit(&w.ids);
  assert_int_equal(n_alive, 0);
  long k = 0;
  for (bool whole = false; !whole; k++) {
    n_calls = n_alive = 0;
    fails_at = k;
    encode_apart(&w);
    fails_at = -1;
    whole = n_calls <= k;
    if (w.st == TD_OK)
      util_assert_ids(&w.ids, want.ids, want.n);
    else
      assert_int_equal(w.st, TD_ERR_NOMEM);
    td_ids_deinit(&w.ids);
    if (n_alive != 0)
      fail_msg("allocation %ld of %ld fails, and %ld are left", k, n_calls, n_alive);
  }
  assert_true(k > 2);
  td_ids_deinit(&want);
}

static void each(const source *s)
{
  static char text[20000] = "A word, 12345 words; <|a|>[INST] e\xCC\x81 \xE4\xB8\xAD\xE6\x96\x87\n\n  x </s>";
  td_tokenizer *t = NULL;
  td_error err;
  load_without(s);
  size_t n = strlen(text); /* a word too long for the stack, and a repeated one */
  memset(text + n, 'x', 9000);
  text[n + 9000] = '\0';
  assert_int_equal(load(s, &t, &err), TD_OK);
  encode_without(t, text);
  text[n] = '\0';
  encode_without(t, text);
  td_tokenizer_destroy(t);
}

static void json(void **state)
{
  static const char *const files[] = {
      "small_gpt2.json",     "small_llama3.json",         "small_qwen35.json", "small_tekken.json",
      "small_deepseek.json", "small_deepseek_coder.json", "small_o200k.json",  "small_punctuation.json"};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    source s = {.json = variant(files[i])};
    each(&s);
    cJSON_Delete(s.json);
  }
}

/* So many combining marks that they are sorted by counting; spans move with them. */
static void many_marks(void **state)
{
  char text[200] = "e\xCC\x81 <|im_end|> a";
  source s = {.json = variant("small_gpt2.json")};
  cJSON *nfc = util_parse("{\"type\":\"NFC\"}", 14);
  td_tokenizer *t = NULL;
  td_error err;
  put(s.json, "normalizer", nfc);
  cJSON_Delete(nfc);
  load_without(&s);
  assert_int_equal(load(&s, &t, &err), TD_OK);
  for (int i = 0; i < 20; i++)
    strcat(text, i % 2 ? "\xCC\x81" : "\xCC\xA3");
  encode_without(t, text);
  td_tokenizer_destroy(t);
  cJSON_Delete(s.json);
}

/* As a daemon loads it: of a folder with either of the two files, and of a GGUF file. */
static void from_files(void **state)
{
  static const char *const names[] = {"tokenizer.json", "tokenizer.model"}, *const of[] = {"small.json",
                                                                                           "small_spm.model"};
  for (int kind = 0; kind < 3; kind++) {
    char folder[64] = "/tmp/td_tokenizer_XXXXXX", command[512];
    td_model_files *files;
    td_tokenizer *t = NULL;
    td_error err;
    if (kind < 2) {
      assert_non_null(mkdtemp(folder));
      snprintf(command, sizeof command, "echo {} > %s/config.json && cp '%s/%s' %s/%s", folder, GOLDEN_DIR,
               of[kind], folder, names[kind]);
      assert_int_equal(system(command), 0);
    }
    fails_at = -1;
    assert_int_equal(
        td_model_files_open_described(kind < 2 ? folder : GOLDEN_DIR "/small_spm.gguf", &files, &err), TD_OK);
    bool whole = false;
    for (long k = 0; !whole; k += k > 60 ? 37 : 1) {
      n_calls = n_alive = 0;
      fails_at = k;
      td_status st = td_tokenizer_load(files, &t, &err);
      fails_at = -1;
      whole = n_calls <= k;
      if (st == TD_OK)
        td_tokenizer_destroy(t);
      else
        assert_true(st == TD_ERR_NOMEM && t == NULL);
      assert_int_equal(n_alive, 0);
    }
    td_model_files_close(files);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_true(kind == 2 || system(command) == 0);
  }
}

static void sentencepiece(void **state)
{
  static const char config[] = "{\"added_tokens_decoder\":{\"3\":{\"content\":\"<x>\",\"special\":true}}}";
  source s = {.json = util_read_json(GOLDEN_DIR, "small_spm.json")};
  each(&s);
  cJSON_Delete(s.json);
  s.json = NULL;
  s.model = util_read(GOLDEN_DIR "/small_spm.model", &s.n);
  assert_non_null(s.model);
  each(&s);
  s.config = util_parse(config, strlen(config));
  td_tokenizer *t;
  td_error err;
  if (load(&s, &t, &err) == TD_OK) {
    td_tokenizer_destroy(t);
    load_without(&s);
  }
  cJSON_Delete(s.config);
  free(s.model);
}

static void unigram(void **state)
{
  source s = {.json = util_read_json(GOLDEN_DIR, "small_unigram.json")};
  each(&s);
  cJSON_Delete(s.json);
}

int main(void)
{
  cJSON_Hooks hooks = {__wrap_malloc, __wrap_free};
  cJSON_InitHooks(&hooks);
  const struct CMUnitTest tests[] = {cmocka_unit_test(json), cmocka_unit_test(many_marks),
                                     cmocka_unit_test(from_files), cmocka_unit_test(sentencepiece),
                                     cmocka_unit_test(unigram)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
