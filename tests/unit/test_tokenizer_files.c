/* Tokenizer files that are inconsistent, or need something that is not served: refused by name, never a
 * crash. */
#include "test_tokenizer_util.h"

#include <unistd.h>

#include "models/tokenizer/load_json.h"

/* ---- tokenizer.json: one change to a good file, and the refusal that it must get ---- */

#define GOOD_MODEL                                                                                           \
  "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":\"\","      \
  "\"fuse_unk\":false,"                                                                                      \
  "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"
#define GOOD_PRE "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define GOOD_DECODER "\"decoder\":{\"type\":\"ByteLevel\"}"

typedef struct refusal {
  const char *json;
  td_status status;
  const char *says; /* part of the message */
} refusal;

#define MODEL(more) "{" GOOD_PRE "," GOOD_DECODER ",\"model\":{" more "}}"
#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]"
#define WITH(more) "{" GOOD_MODEL "," GOOD_PRE "," GOOD_DECODER "," more "}"
#define PRE(pre) "{" GOOD_MODEL "," GOOD_DECODER ",\"pre_tokenizer\":" pre "}"
#define SPLIT(pattern, behavior)                                                                             \
  PRE("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":" pattern                   \
      ",\"behavior\":\"" behavior                                                                            \
      "\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}")

static const refusal refusals[] = {
    {"[]", TD_ERR_MODEL, "no model"},
    {"{\"model\":3}", TD_ERR_MODEL, "no model"},
    {MODEL("\"type\":\"Unigram\"," VOCAB), TD_ERR_UNSUPPORTED, "ByteLevel, model type \"Unigram\""},
    {MODEL("\"type\":\"WordPiece\"," VOCAB), TD_ERR_UNSUPPORTED, "WordPiece"},
    {MODEL("\"type\":7," VOCAB), TD_ERR_UNSUPPORTED, "model type"},
    {MODEL("\"dropout\":0.1," VOCAB), TD_ERR_UNSUPPORTED, "dropout"},
    {MODEL("\"continuing_subword_prefix\":\"##\"," VOCAB), TD_ERR_UNSUPPORTED, "continuing_subword_prefix"},
    {MODEL("\"end_of_word_suffix\":\"</w>\"," VOCAB), TD_ERR_UNSUPPORTED, "end_of_word_suffix"},
    {MODEL("\"byte_fallback\":true," VOCAB), TD_ERR_UNSUPPORTED, "byte_fallback"},
    {MODEL("\"byte_fallback\":\"yes\"," VOCAB), TD_ERR_MODEL, "byte_fallback"},
    {MODEL("\"unk_token\":\"<unk>\"," VOCAB), TD_ERR_UNSUPPORTED, "unk_token"},
    {MODEL("\"ignore_merges\":1," VOCAB), TD_ERR_MODEL, "ignore_merges"},
    {MODEL("\"vocab\":[],\"merges\":[]"), TD_ERR_MODEL, "vocab"},
    {MODEL("\"vocab\":{},\"merges\":[]"), TD_ERR_MODEL, "no token for any single byte"},
    {MODEL("\"vocab\":{\"a\":-1},\"merges\":[]"), TD_ERR_MODEL, "\"a\""},
    {MODEL("\"vocab\":{\"a\":0.5},\"merges\":[]"), TD_ERR_MODEL, "\"a\""},
    {MODEL("\"vocab\":{\"a\":\"0\"},\"merges\":[]"), TD_ERR_MODEL, "\"a\""},
    {MODEL("\"vocab\":{\"a\":1048576},\"merges\":[]"), TD_ERR_MODEL, "\"a\""},
    {MODEL("\"vocab\":{\"a\":1e300},\"merges\":[]"), TD_ERR_MODEL, "\"a\""},
    {MODEL("\"vocab\":{\"a\":18446744073709551615},\"merges\":[]"), TD_ERR_MODEL, "\"a\""},
    {MODEL("\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]"), TD_ERR_MODEL, "same id 0"},
    {MODEL("\"vocab\":{\"a\":0}"), TD_ERR_MODEL, "merges"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[\"a b\"]"), TD_ERR_MODEL, "merge 1 needs \"b\""},
    {MODEL("\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]"), TD_ERR_MODEL, "merge 1 needs \"ab\""},
    {MODEL("\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\",\"a  b\"]"), TD_ERR_MODEL, "merge 2"},
    {MODEL("\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"ab\"]"), TD_ERR_MODEL, "merge 1"},
    {MODEL("\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[[\"a\"]]"), TD_ERR_MODEL, "merge 1"},
    {MODEL("\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[[\"a\",\"b\",\"c\"]]"), TD_ERR_MODEL, "merge 1"},
    {MODEL("\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[7]"), TD_ERR_MODEL, "merge 1"},
    {"{" GOOD_MODEL "," GOOD_DECODER "}", TD_ERR_UNSUPPORTED, "ByteLevel"},
    {PRE("{\"type\":\"Metaspace\"}"), TD_ERR_UNSUPPORTED, "Metaspace"},
    {PRE("{\"type\":\"Whitespace\"}"), TD_ERR_UNSUPPORTED, "Whitespace"},
    {PRE("{\"type\":\"Digits\"}"), TD_ERR_UNSUPPORTED, "ByteLevel"},
    {PRE("{\"type\":\"ByteLevel\",\"add_prefix_space\":true}"), TD_ERR_UNSUPPORTED, "add_prefix_space"},
    {PRE("{\"type\":\"ByteLevel\"}"), TD_ERR_UNSUPPORTED, "add_prefix_space"},
    {PRE("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\",\"add_prefix_space\":false},{"
         "\"type\":\"Punctuation\"}]}"),
     TD_ERR_UNSUPPORTED, "behind ByteLevel"},
    {PRE("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\",\"add_prefix_space\":false},{"
         "\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a-z]\"},\"behavior\":\"Isolated\"}]}"),
     TD_ERR_UNSUPPORTED, "behind ByteLevel"},
    {PRE("{\"type\":\"Punctuation\",\"behavior\":\"Removed\"}"), TD_ERR_UNSUPPORTED, "behavior"},
    {SPLIT("{\"Regex\":\"\\\\w+|foo\"}", "Isolated"), TD_ERR_UNSUPPORTED, "\\w+|foo"},
    {SPLIT("{\"String\":\" \"}", "Isolated"), TD_ERR_UNSUPPORTED, "plain string"},
    {SPLIT("{\"Regex\":\"\\\\p{N}\"}", "MergedWithPrevious"), TD_ERR_UNSUPPORTED, "MergedWithPrevious"},
    {WITH("\"normalizer\":{\"type\":\"NFKC\"}"), TD_ERR_UNSUPPORTED, "NFKC"},
    {WITH("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"}]}"),
     TD_ERR_UNSUPPORTED, "Lowercase"},
    {WITH("\"normalizer\":\"NFC\""), TD_ERR_UNSUPPORTED, "normalizer"},
    {"{" GOOD_MODEL "," GOOD_PRE ",\"decoder\":{\"type\":\"Metaspace\"}}", TD_ERR_UNSUPPORTED, "Metaspace"},
    {WITH("\"post_processor\":{\"type\":\"BertProcessing\"}"), TD_ERR_UNSUPPORTED, "BertProcessing"},
    {WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}},{"
          "\"SpecialToken\":{\"id\":\"</s>\"}}]}"),
     TD_ERR_MODEL, "</s>"},
    {WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}},{"
          "\"SpecialToken\":{\"id\":\"</s>\"}}],\"special_tokens\":{\"</s>\":{\"ids\":[4000]}}}"),
     TD_ERR_MODEL, "</s>"},
    {WITH(
         "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}},{"
         "\"SpecialToken\":{\"id\":\"</s>\"}}],\"special_tokens\":{\"</s>\":{\"ids\":[0,0,0,0,0,0,0,0,0]}}}"),
     TD_ERR_UNSUPPORTED, "more than 8"},
    {WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}"), TD_ERR_MODEL, "single"},
    {WITH("\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"TemplateProcessing\","
          "\"single\":"
          "[{\"Sequence\":{\"id\":\"A\"}}]},{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{"
          "\"id\":"
          "\"A\"}}]}]}"),
     TD_ERR_UNSUPPORTED, "several"},
    {WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<x>\"}"
          "},{\"Sequence\":{\"id\":\"A\"}}]}"),
     TD_ERR_MODEL, "<x>"},
    {WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":7}"), TD_ERR_MODEL, "single"},
    {WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}},{"
          "\"Sequence\":{\"id\":\"B\"}}]}"),
     TD_ERR_MODEL, "not one text"},
    {WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Other\":{\"id\":\"A\"}},{"
          "\"Sequence\":{\"id\":\"A\"}}]}"),
     TD_ERR_MODEL, "not one text"},
    {WITH("\"added_tokens\":7"), TD_ERR_MODEL, "added_tokens"},
    {WITH("\"added_tokens\":[7]"), TD_ERR_MODEL, "content"},
    {WITH("\"added_tokens\":[{\"content\":\"x\"}]"), TD_ERR_MODEL, "\"x\""},
    {WITH("\"added_tokens\":[{\"content\":\"x\",\"id\":1}]"), TD_ERR_MODEL, "same id 1"},
    {WITH("\"added_tokens\":[{\"content\":\"x\",\"id\":9,\"special\":\"no\"}]"), TD_ERR_MODEL, "special"},
    {WITH("\"added_tokens\":[{\"content\":\"x\",\"id\":9},{\"content\":\"x\",\"id\":9}]"), TD_ERR_MODEL,
     "twice"},
};

static void json_refusals(void **state)
{
  for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
    cJSON *json = util_parse(refusals[i].json, strlen(refusals[i].json));
    td_error err = {0};
    td_tokenizer *t = NULL;
    td_status status = td_tokenizer_load_json(json, NULL, &t, &err);
    if (status != refusals[i].status || !strstr(err.message, refusals[i].says))
      fail_msg("refusal %zu: %d \"%s\"", i, status, err.message);
    assert_null(t);
    cJSON_Delete(json);
  }
}

static void json_accepted(void **state)
{
  const char *good[] = {
      WITH("\"normalizer\":null,\"post_processor\":null,\"added_tokens\":null"),
      WITH("\"added_tokens\":[{\"content\":\"\",\"id\":9}]"),
      WITH("\"added_tokens\":[{\"content\":\"ab\",\"id\":77,\"special\":true}]"), /* the vocabulary's id
                                                                                     counts */
      MODEL("\"dropout\":0," VOCAB),
      MODEL("\"vocab\":{\"a\":5,\"b\":90,\"ab\":1},\"merges\":[[\"a\",\"b\"],\"#version: "
            "0.2\",[\"a\",\"b\"]]"), /* holes */
      "{" GOOD_MODEL "," GOOD_DECODER ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{"
      "\"type\":\"Split\",\"pattern\":{\"Regex\":"
      "\"'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+| "
      "?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Removed\",\"invert\":true},"
      "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}}",
  };
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    cJSON *json = util_parse(good[i], strlen(good[i]));
    td_tokenizer *t = util_load(json);
    td_ids ids = util_encode(t, "abz", 3, true);
    assert_int_equal(ids.n, 1); /* z has no token, and vanishes */
    assert_string_equal(td_tokenizer_token_text(t, ids.ids[0]), "ab");
    assert_null(td_tokenizer_token_text(t, 3));
    assert_null(td_tokenizer_token_text(t, -1));
    assert_null(td_tokenizer_token_text(t, 1 << 30));
    td_ids_deinit(&ids);
    td_tokenizer_destroy(t);
    cJSON_Delete(json);
  }
}

/* inner, in n Sequences of which each holds the next. */
static cJSON *nested(unsigned n, const char *list, const char *inner)
{
  cJSON *o = util_parse(inner, strlen(inner));
  for (; n > 0; n--) {
    cJSON *outer = cJSON_CreateObject();
    cJSON_AddStringToObject(outer, "type", "Sequence");
    cJSON_AddItemToArray(cJSON_AddArrayToObject(outer, list), o);
    o = outer;
  }
  return o;
}

static void nested_sequences(void **state)
{
  static const char *const parts[][3] = {
      {"normalizer", "normalizers", "{\"type\":\"NFC\"}"},
      {"pre_tokenizer", "pretokenizers", "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"},
      {"post_processor", "processors", "{\"type\":\"ByteLevel\"}"},
  };
  const char *good = "{" GOOD_MODEL "," GOOD_PRE "," GOOD_DECODER "}";
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    for (unsigned more = 0; more < 2; more++) {
      cJSON *json = util_parse(good, strlen(good));
      cJSON_DeleteItemFromObject(json, parts[i][0]);
      cJSON_AddItemToObject(
          json, parts[i][0],
          nested((int)td_limit_max(TD_LIMIT_TOKENIZER_DEPTH) + more, parts[i][1], parts[i][2]));
      td_tokenizer *t = NULL;
      td_error err = {0};
      assert_int_equal(td_tokenizer_load_json(json, NULL, &t, &err), more ? TD_ERR_UNSUPPORTED : TD_OK);
      if (more && !strstr(err.message, parts[i][0]))
        fail_msg("%s: \"%s\"", parts[i][0], err.message);
      td_tokenizer_destroy(t);
      cJSON_Delete(json);
    }
}

/* ---- random damage to a good tree ---- */

static cJSON *random_value(unsigned *seed)
{
  switch (rand_r(seed) % 9) {
  case 0: return cJSON_CreateNull();
  case 1: return cJSON_CreateBool(rand_r(seed) & 1);
  case 2: return cJSON_CreateNumber(rand_r(seed) % 2000 - 3);
  case 3: return cJSON_CreateNumber(1e18);
  case 4: return cJSON_CreateString("");
  case 5: return cJSON_CreateString("a b");
  case 6: return cJSON_CreateArray();
  case 7: return cJSON_CreateObject();
  default: return cJSON_CreateString("ByteLevel");
  }
}

/* Replaces or deletes one random member on a random path down. */
static void damage(cJSON *node, unsigned *seed)
{
  for (int depth = 0; depth < 8; depth++) {
    int n = cJSON_GetArraySize(node);
    if (n == 0)
      return;
    int k = rand_r(seed) % (n < 40 ? n : 40);
    cJSON *child = cJSON_GetArrayItem(node, k);
    if (cJSON_GetArraySize(child) == 0 || rand_r(seed) % 3 == 0) {
      if (rand_r(seed) % 3 == 0) {
        cJSON_Delete(cJSON_DetachItemViaPointer(node, child));
        return;
      }
      cJSON *value = random_value(seed);
      if (child->string) { /* by hand, because cJSON's replacement by key would search for the key */
        value->string = strdup(child->string);
      }
      cJSON_ReplaceItemViaPointer(node, child, value);
      return;
    }
    node = child;
  }
}

#define AROUND                                                                                               \
  "\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":"            \
  "\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},{\"SpecialToken\":{\"id\":"        \
  "\"two\"}},"                                                                                               \
  "{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"</"                                             \
  "s>\"}}],\"special_tokens\":{\"two\":{\"ids\":[1,0]}}}"                                                    \
  "]},\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true},{\"id\":4,\"content\":\"</s>\","     \
  "\"special\":true}]"

/* Several tokens before a text and one after it, as in embedding models; all count for the cap. */
static void json_around(void **state)
{
  cJSON *json = util_parse(WITH(AROUND), strlen(WITH(AROUND)));
  td_tokenizer *t = util_load(json);
  td_error err;
  td_ids ids = {0};
  assert_int_equal(td_tokenizer_encode(t, "ab", 2, NULL, 0, true, 5, &ids, &err), TD_OK);
  util_assert_ids(&ids, (int32_t[]){3, 1, 0, 2, 4}, 5);
  ids.n = 0;
  assert_int_equal(td_tokenizer_encode(t, "", 0, NULL, 0, true, 0, &ids, &err), TD_OK);
  util_assert_ids(&ids, (int32_t[]){3, 1, 0, 4}, 4);
  ids.n = 0;
  assert_int_equal(td_tokenizer_encode(t, "ab", 2, NULL, 0, false, 0, &ids, &err), TD_OK);
  util_assert_ids(&ids, (int32_t[]){2}, 1);
  ids.n = 0;
  assert_int_equal(td_tokenizer_encode(t, "ab", 2, NULL, 0, true, 4, &ids, &err), TD_ERR_REQUEST);
  assert_int_equal(ids.n, 0);
  td_ids_deinit(&ids);
  td_tokenizer_destroy(t);
  cJSON_Delete(json);
}

/* U+11DE1 is a digit of the pre_tokenizer Digits, and no number of an expression. */
static void json_digits(void **state)
{
#define NUMBERS(step)                                                                                        \
  "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" step                                       \
  ",{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]}," GOOD_DECODER                                     \
  ",\"model\":{\"vocab\":{\"!\":0,\"\u00f0\":1,\"\u0133\":2,\"\u00b7\":3,\"\u00a1\":4,\"!\u00f0\":5},"       \
  "\"merges\":[\"! \u00f0\"]}}"
  static const char *const files[] = {NUMBERS("{\"type\":\"Digits\",\"individual_digits\":true}"),
                                      NUMBERS("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{N}\"},"
                                              "\"behavior\":\"Isolated\",\"invert\":false}")};
#undef NUMBERS
  for (int i = 0; i < 2; i++) {
    cJSON *json = util_parse(files[i], strlen(files[i]));
    td_tokenizer *t = util_load(json);
    td_ids ids = util_encode(t, "!\U00011DE1", 5, false);
    util_assert_ids(&ids, i == 0 ? (int32_t[]){0, 1, 2, 3, 4} : (int32_t[]){5, 2, 3, 4}, i == 0 ? 5 : 4);
    td_ids_deinit(&ids);
    td_tokenizer_destroy(t);
    cJSON_Delete(json);
  }
}

static void json_damaged(void **state)
{
  cJSON *small = util_read_json(GOLDEN_DIR, "small.json");
  unsigned seed = 3, loaded = 0;
  for (int round = 0; round < 600; round++) {
    cJSON *json = cJSON_Duplicate(small, true);
    for (int k = rand_r(&seed) % 3; k >= 0; k--)
      damage(json, &seed);
    td_error err = {0};
    td_tokenizer *t = NULL;
    td_status status = td_tokenizer_load_json(json, json, &t, &err);
    assert_true((status == TD_OK) == (t != NULL));
    if (t) {
      loaded++;
      td_ids ids = util_encode(t, "Hello [L] 12 \xff<|im_end|>", 25, true);
      td_ids_deinit(&ids);
      td_tokenizer_destroy(t);
    } else {
      assert_true(status == TD_ERR_MODEL || status == TD_ERR_UNSUPPORTED);
      assert_true(err.message[0] != '\0');
    }
    cJSON_Delete(json);
  }
  assert_true(loaded > 20 && loaded < 580);
  cJSON_Delete(small);
}

/* ---- GGUF, written here ---- */

enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9 };

typedef struct gguf {
  td_buf b;
  uint64_t n_keys;
} gguf;

static void u32(gguf *g, uint32_t v) { td_buf_append(&g->b, &v, 4); }
static void u64(gguf *g, uint64_t v) { td_buf_append(&g->b, &v, 8); }
static void str(gguf *g, const char *s)
{
  u64(g, strlen(s));
  td_buf_append_str(&g->b, s);
}
static void key(gguf *g, const char *k, uint32_t kind)
{
  str(g, k);
  u32(g, kind);
  g->n_keys++;
}
static void strings(gguf *g, const char *k, const char *const *v, size_t n)
{
  key(g, k, ARRAY);
  u32(g, STRING);
  u64(g, n);
  for (size_t i = 0; i < n; i++)
    str(g, v[i]);
}
static void ints(gguf *g, const char *k, const int32_t *v, size_t n)
{
  key(g, k, ARRAY);
  u32(g, I32);
  u64(g, n);
  td_buf_append(&g->b, v, n * 4);
}

static td_status load_gguf(const gguf *g, td_tokenizer **t, td_error *err)
{
  char path[] = "/tmp/test_tokenizer_XXXXXX";
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  const uint32_t version = 3;
  const uint64_t no_tensors = 0;
  assert_int_equal(write(fd, "GGUF", 4), 4);
  assert_int_equal(write(fd, &version, 4), 4);
  assert_int_equal(write(fd, &no_tensors, 8), 8);
  assert_int_equal(write(fd, &g->n_keys, 8), 8);
  assert_int_equal(write(fd, g->b.data, g->b.len_bytes), (ssize_t)g->b.len_bytes);
  close(fd);
  td_model_files *files = NULL;
  td_status status = td_model_files_open(path, &files, err);
  if (status == TD_OK)
    status = td_tokenizer_load(files, t, err);
  td_model_files_close(files);
  unlink(path);
  return status;
}

typedef struct gguf_case {
  const char *model, *pre, *tokens[6], *merges[3];
  int32_t types[6];
  size_t n_types;
  uint32_t eos;
  td_status status;
  const char *says;
} gguf_case;

static const gguf_case gguf_cases[] = {
    {"gpt2", "gpt-2", {"a", "b", "ab", "<s>", "[u]"}, {"a b"}, {1, 1, 1, 3, 4}, 5, 3, TD_OK, ""},
    {"gpt2", "llama-bpe", {"a", "b", "ab", "<s>", "[u]"}, {"a b"}, {1, 1, 1, 3, 4}, 5, 3, TD_OK, ""},
    {"gpt2", "qwen2", {"a", "b", "ab", "<s>", "[u]"}, {"a b"}, {1, 1, 1, 3, 4}, 5, 3, TD_OK, ""},
    {"gpt2", "gpt-2", {"a", "", "b"}, {NULL}, {1, 99, -7}, 3, 0, TD_OK, ""},
    {"t5", "gpt-2", {"a"}, {NULL}, {1}, 1, 0, TD_ERR_UNSUPPORTED, "\"t5\""},
    {"llama", "gpt-2", {"a"}, {NULL}, {1}, 1, 0, TD_ERR_MODEL, "tokenizer.ggml.scores"},
    {"gpt2", "default", {"a"}, {NULL}, {1}, 1, 0, TD_ERR_UNSUPPORTED, "\"default\""},
    {"gpt2", "gpt-", {"a"}, {NULL}, {1}, 1, 0, TD_ERR_UNSUPPORTED, "\"gpt-\""},
    {"gpt2", NULL, {"a"}, {NULL}, {1}, 1, 0, TD_ERR_UNSUPPORTED, "tokenizer.ggml.pre"},
    {"gpt2", "gpt-2", {"a", "a"}, {NULL}, {1, 1}, 2, 0, TD_ERR_MODEL, "two ids, 0 and 1"},
    {"gpt2", "gpt-2", {"a", "b"}, {NULL}, {1}, 1, 0, TD_ERR_MODEL, "token_type has 1 entries"},
    {"gpt2", "gpt-2", {"a", "b"}, {"a b"}, {1, 1}, 2, 0, TD_ERR_MODEL, "merge 1 needs \"ab\""},
    {"gpt2", "gpt-2", {"a", "b"}, {"ab"}, {1, 1}, 2, 0, TD_ERR_MODEL, "merge 1"},
    {"gpt2", "gpt-2", {"a", "b"}, {NULL}, {1, 1}, 2, 2, TD_ERR_MODEL, "eos_token_id is 2"},
    {"gpt2", "gpt-2", {"<s>"}, {NULL}, {3}, 1, 0, TD_ERR_MODEL, "single byte"},
};

static void gguf_files(void **state)
{
  for (size_t i = 0; i < sizeof gguf_cases / sizeof *gguf_cases; i++) {
    const gguf_case *c = &gguf_cases[i];
    gguf g = {0};
    td_buf_init(&g.b, 0);
    size_t n_tokens = 0, n_merges = 0;
    while (n_tokens < 6 && c->tokens[n_tokens])
      n_tokens++;
    while (n_merges < 3 && c->merges[n_merges])
      n_merges++;
    key(&g, "tokenizer.ggml.model", STRING);
    str(&g, c->model);
    if (c->pre) {
      key(&g, "tokenizer.ggml.pre", STRING);
      str(&g, c->pre);
    }
    strings(&g, "tokenizer.ggml.tokens", c->tokens, n_tokens);
    ints(&g, "tokenizer.ggml.token_type", c->types, c->n_types);
    strings(&g, "tokenizer.ggml.merges", c->merges, n_merges);
    key(&g, "tokenizer.ggml.bos_token_id", U32);
    u32(&g, 0);
    key(&g, "tokenizer.ggml.eos_token_id", U32);
    u32(&g, c->eos);
    const char ends = i % 2 == 1;
    key(&g, "tokenizer.ggml.add_eos_token", BOOL);
    td_buf_append(&g.b, &ends, 1);
    td_error err = {0};
    td_tokenizer *t = NULL;
    td_status status = load_gguf(&g, &t, &err);
    if (status != c->status || !strstr(err.message, c->says))
      fail_msg("case %zu: %d \"%s\"", i, status, err.message);
    if (n_tokens == 5) {
      td_ids ids = util_encode(t, "ab<s>[u]", 8, true), plain = util_encode(t, "[u]<s>ab", 8, false);
      util_assert_ids(&ids, (int32_t[]){2, 3, 4}, 3);
      util_assert_ids(&plain, (int32_t[]){4, 2}, 2); /* < s > have no tokens */
      assert_int_equal(td_tokenizer_adds_bos(t), strcmp(c->pre, "llama-bpe") == 0);
      ids.n = 0;
      assert_int_equal(td_tokenizer_encode(t, "ab", 2, NULL, 0, true, 0, &ids, &err), TD_OK);
      assert_int_equal(ids.ids[ids.n - 1], ends ? 3 : 2);
      td_ids_deinit(&ids);
      td_ids_deinit(&plain);
    }
    td_tokenizer_destroy(t);
    td_buf_deinit(&g.b);
  }
}

/* Every name of a splitter, identified by how it splits four digits. */
static void gguf_names(void **state)
{
  enum { ONE, THREES, FROM_THE_RIGHT, ALL };
  static const int32_t want[][4] = {{0, 0, 0, 0}, {2, 0}, {0, 2}, {1, 1}};
  static const size_t n_want[] = {4, 2, 2, 2};
  static const struct {
    int digits;
    const char *names;
  } kinds[] = {
      {ONE,
       "smollm starcoder refact command-r qwen2 deepseek-r1-qwen qwen35 deepseek-llm deepseek-coder tekken "
       "seed-coder bailingmoe bailingmoe2 stablelm2 hunyuan megrez grok-2 solar-open codeshell exaone "
       "minerva-7b"},
      {THREES,
       "llama-bpe llama3 llama-v3 smaug-bpe dbrx chatglm-bpe glm4 glm5 deepseek-v3 falcon gpt-4o llama4 "
       "minicpm5 hunyuan-dense kanana2"},
      {FROM_THE_RIGHT, "tiny_aya"},
      {ALL, "gpt-2 mpt phi-2 trillion granite-docling mellum gigachat exaone4"},
  };
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    char names[400], *rest = NULL;
    snprintf(names, sizeof names, "%s", kinds[k].names);
    for (char *name = strtok_r(names, " ", &rest); name; name = strtok_r(NULL, " ", &rest)) {
      gguf g = {0};
      td_buf_init(&g.b, 0);
      key(&g, "tokenizer.ggml.model", STRING);
      str(&g, "gpt2");
      key(&g, "tokenizer.ggml.pre", STRING);
      str(&g, name);
      strings(&g, "tokenizer.ggml.tokens", (const char *const[]){"1", "11", "111", "a"}, 4);
      strings(&g, "tokenizer.ggml.merges", (const char *const[]){"1 1", "11 1"}, 2);
      td_error err = {0};
      td_tokenizer *t = NULL;
      if (load_gguf(&g, &t, &err) != TD_OK)
        fail_msg("%s: %s", name, err.message);
      td_ids ids = util_encode(t, "1111", 4, false);
      const int d = kinds[k].digits;
      if (ids.n != n_want[d] || memcmp(ids.ids, want[d], ids.n * sizeof *ids.ids) != 0)
        fail_msg("%s cuts 1111 into %zu", name, ids.n);
      td_ids_deinit(&ids);
      td_tokenizer_destroy(t);
      td_buf_deinit(&g.b);
    }
  }
}

/* Names for the pre_tokenizer Digits, which knows Unicode 17: U+11DE1 is split from the text before it. */
static void gguf_digits(void **state)
{
  static const char *const names[] = {"smollm", "starcoder", "refact", "command-r", "gpt-2"};
  for (size_t i = 0; i < 5; i++) {
    gguf g = {0};
    td_buf_init(&g.b, 0);
    key(&g, "tokenizer.ggml.model", STRING);
    str(&g, "gpt2");
    key(&g, "tokenizer.ggml.pre", STRING);
    str(&g, names[i]);
    strings(&g, "tokenizer.ggml.tokens",
            (const char *const[]){"!", "\u00f0", "\u0133", "\u00b7", "\u00a1", "!\u00f0"}, 6);
    strings(&g, "tokenizer.ggml.merges", (const char *const[]){"! \u00f0"}, 1);
    td_error err = {0};
    td_tokenizer *t = NULL;
    if (load_gguf(&g, &t, &err) != TD_OK)
      fail_msg("%s: %s", names[i], err.message);
    td_ids ids = util_encode(t, "!\U00011DE1", 5, false);
    util_assert_ids(&ids, i < 4 ? (int32_t[]){0, 1, 2, 3, 4} : (int32_t[]){5, 2, 3, 4}, i < 4 ? 5 : 4);
    td_ids_deinit(&ids);
    td_tokenizer_destroy(t);
    td_buf_deinit(&g.b);
  }
}

/* A file of SentencePiece's kind, no score above another. */
static td_tokenizer *load_spm_gguf(const char *architecture, const char *const *tokens, const int32_t *types,
                                   uint32_t n, bool prefix)
{
  gguf g = {0};
  td_buf_init(&g.b, 0);
  key(&g, "general.architecture", STRING);
  str(&g, architecture);
  key(&g, "tokenizer.ggml.model", STRING);
  str(&g, "llama");
  strings(&g, "tokenizer.ggml.tokens", tokens, n);
  ints(&g, "tokenizer.ggml.token_type", types, n);
  key(&g, "tokenizer.ggml.scores", ARRAY);
  u32(&g, F32);
  u64(&g, n);
  for (uint32_t i = 0; i < n; i++)
    u32(&g, 0);
  key(&g, "tokenizer.ggml.unknown_token_id", U32);
  u32(&g, 0);
  key(&g, "tokenizer.ggml.add_space_prefix", BOOL);
  td_buf_append(&g.b, &prefix, 1);
  td_error err = {0};
  td_tokenizer *t = NULL;
  if (load_gguf(&g, &t, &err) != TD_OK)
    fail_msg("%s", err.message);
  td_buf_deinit(&g.b);
  return t;
}

/* Phi-3's own tokens absorb the white space after them; <s> does not, nor do those of other architectures. */
static void gguf_phi3(void **state)
{
  const char *const tokens[] = {"<unk>", "<s>", "<|user|>", "\xE2\x96\x81", "a", "\n", "<pad>"};
  const int32_t types[] = {3, 3, 3, 1, 1, 1, 2};
  for (int phi3 = 0; phi3 < 2; phi3++) {
    td_tokenizer *t = load_spm_gguf(phi3 ? "phi3" : "llama", tokens, types, 7, true);
    td_ids ids = util_encode(t, "<|user|>\n a<s>\n!", 17, true);
    util_assert_ids(&ids, phi3 ? (int32_t[]){2, 3, 4, 1, 3, 5, 0} : (int32_t[]){2, 3, 5, 3, 4, 1, 3, 5, 0},
                    phi3 ? 7 : 9);
    td_ids_deinit(&ids);
    td_tokenizer_destroy(t);
  }
}

/* Gemma's runs of spaces are user-defined tokens, written as spaces. As in SentencePiece, U+2581 counts as a
 * space. */
static void gguf_gemma(void **state)
{
  const char *const tokens[] = {"<unk>", "<bos>", "  ", "   ", "\xE2\x96\x81", "a", "\n\n"};
  const int32_t types[] = {2, 3, 4, 4, 1, 1, 4};
  td_tokenizer *t = load_spm_gguf("gemma3", tokens, types, 7, false);
  static const struct {
    const char *text;
    int32_t ids[4];
    size_t n;
  } cases[] = {{"a  a", {5, 2, 5}, 3},
               {"a \xE2\x96\x81", {5, 2}, 2},
               {"\xE2\x96\x81\xE2\x96\x81\xE2\x96\x81"
                "a",
                {3, 5},
                2},
               {"     a", {3, 2, 5}, 3},
               {" \n\n a", {4, 6, 4, 5}, 4}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    td_ids ids = util_encode(t, cases[i].text, strlen(cases[i].text), false);
    util_assert_ids(&ids, cases[i].ids, cases[i].n);
    td_ids_deinit(&ids);
  }
  td_tokenizer_destroy(t);
}

/* Keys of the wrong kind, or missing. */
static void gguf_kinds(void **state)
{
  const char *keys[] = {"tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens",
                        "tokenizer.ggml.merges"};
  const char *tokens[] = {"a"};
  for (int wrong = 0; wrong < 4; wrong++)
    for (int how = 0; how < 3; how++) {
      gguf g = {0};
      td_buf_init(&g.b, 0);
      for (int k = 0; k < 4; k++) {
        if (k == wrong && how == 0)
          continue;
        if (k == wrong && how == 1) {
          key(&g, keys[k], U32);
          u32(&g, 7);
        } else if (k == wrong) {
          ints(&g, keys[k], (int32_t[]){1}, 1);
        } else if (k < 2) {
          key(&g, keys[k], STRING);
          str(&g, k ? "gpt-2" : "gpt2");
        } else {
          strings(&g, keys[k], tokens, k == 2);
        }
      }
      td_error err = {0};
      td_tokenizer *t = NULL;
      td_status status = load_gguf(&g, &t, &err);
      assert_true(status == TD_ERR_MODEL || status == TD_ERR_UNSUPPORTED);
      assert_non_null(strstr(err.message, keys[wrong]));
      assert_null(t);
      td_buf_deinit(&g.b);
    }
}

/* Words with the same length as known ones, and what a name means for composed characters. */
static void gguf_words(void **state)
{
  static const struct {
    const char *model, *pre;
    int n; /* tokens of e and an accent: 1 if they are composed; 0: refused */
  } cases[] = {{"gpt2", "gpt-2", 2},       {"gptx", "gpt-2", 0},
               {"gpt2", "gpt-x", 0},       {"gpt2", "qwen2", 1},
               {"gpt2", "command-r", 1},   {"gpt2", "qwen35", 1},
               {"gpt2", "mpt", 1},         {"gpt2", "deepseek-r1-qwen", 1},
               {"gpt2", "llama-bpe", 2},   {"gpt2", "smollm", 2},
               {"gpt2", "deepseek-v3", 2}, {"gpt2", "gpt-4o", 2}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    gguf g = {0};
    td_buf_init(&g.b, 0);
    key(&g, "tokenizer.ggml.model", STRING);
    str(&g, cases[i].model);
    key(&g, "tokenizer.ggml.pre", STRING);
    str(&g, cases[i].pre);
    /* bytes of U+00E9, of e, and of U+0301, and both characters whole */
    strings(
        &g, "tokenizer.ggml.tokens",
        (const char *const[]){"\u00c3", "\u00a9", "\u00c3\u00a9", "e", "\u00cc", "\u0123", "\u00cc\u0123"},
        7);
    strings(&g, "tokenizer.ggml.merges", (const char *const[]){"\u00c3 \u00a9", "\u00cc \u0123"}, 2);
    td_error err = {0};
    td_tokenizer *t = NULL;
    td_status st = load_gguf(&g, &t, &err);
    assert_int_equal(st == TD_OK, cases[i].n > 0);
    if (t) {
      td_ids ids = util_encode(t, "e\u0301", 3, false);
      if (ids.n != (size_t)cases[i].n)
        fail_msg("%s makes %zu tokens", cases[i].pre, ids.n);
      td_ids_deinit(&ids);
    }
    td_tokenizer_destroy(t);
    td_buf_deinit(&g.b);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(json_refusals), cmocka_unit_test(json_accepted), cmocka_unit_test(nested_sequences),
      cmocka_unit_test(json_damaged),  cmocka_unit_test(json_digits),   cmocka_unit_test(json_around),
      cmocka_unit_test(gguf_files),    cmocka_unit_test(gguf_kinds),    cmocka_unit_test(gguf_names),
      cmocka_unit_test(gguf_phi3),     cmocka_unit_test(gguf_gemma),    cmocka_unit_test(gguf_digits),
      cmocka_unit_test(gguf_words),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
