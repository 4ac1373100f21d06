/* The tokenizer's rules one by one: trust, BOS, limits, long words, threads, and what is refused. */
#include "test_tokenizer_util.h"

#include <pthread.h>
#include <time.h>

static cJSON *small_json(void)
{
  cJSON *json = util_read_json(GOLDEN_DIR, "small.json");
  assert_non_null(json);
  return json;
}

static td_tokenizer *load_small(void)
{
  cJSON *json = small_json();
  td_tokenizer *t = util_load(json);
  cJSON_Delete(json);
  return t;
}

static int32_t added(const td_tokenizer *t, const char *text)
{
  int32_t id = td_tokenizer_added_token(t, text, strlen(text));
  assert_true(id >= 0);
  return id;
}

/* ---- the alphabet and the Unicode classes ---- */

static void alphabet_is_a_bijection(void **state)
{
  bool seen[256] = {false};
  for (unsigned b = 0; b < 256; b++) {
    unsigned char back[2];
    const td_byte_char *c = &td_byte_alphabet[b];
    assert_int_equal(td_alphabet_decode((const char *)c->utf8, c->n, back), 1);
    assert_int_equal(back[0], b);
    assert_false(seen[back[0]]);
    seen[back[0]] = true;
  }
  unsigned char out[8];
  assert_int_equal(td_alphabet_decode(" ", 1, out), -1);
  assert_int_equal(td_alphabet_decode("\xC4", 1, out), -1);
  assert_int_equal(td_alphabet_decode("\xC5\x84", 2, out), -1); /* U+0144 */
  assert_int_equal(td_alphabet_decode("a\xC4\xA0", 3, out), 2);
  assert_memory_equal(out, "a ", 2);
}

static void classes(void **state)
{
  assert_int_equal(td_unicode_class(0x85), TD_CLASS_SPACE);
  assert_int_equal(td_unicode_class(0x200B), 0);
  assert_int_equal(td_unicode_class(0x180E), 0);
  assert_int_equal(td_unicode_class('\n'), TD_CLASS_SPACE | TD_CLASS_NEWLINE);
  assert_int_equal(td_unicode_class(0x2028), TD_CLASS_SPACE);
  assert_int_equal(td_unicode_class(0xBD), TD_CLASS_NUMBER);
  assert_int_equal(td_unicode_class(0x301), TD_CLASS_MARK);
  assert_int_equal(td_unicode_class(0x2EBF0), TD_CLASS_LETTER); /* Unicode 15.1 */
  assert_int_equal(td_unicode_class(0x1C89), TD_CLASS_LETTER);  /* 16 */
  assert_int_equal(td_unicode_class(0x10FFFF), 0);
  for (uint32_t cp = 0; cp < 128; cp++)
    assert_int_equal(td_unicode_class(cp), td_unicode_class_slow(cp) |
                                               (strchr("\t\n\v\f\r ", (int)cp) && cp ? TD_CLASS_SPACE : 0) |
                                               (cp == '\r' || cp == '\n' ? TD_CLASS_NEWLINE : 0));
  assert_true(td_unicode_is_word(0x24B6) && td_unicode_is_word('_') && td_unicode_is_word(0x301));
  assert_false(td_unicode_is_word(0xBD) || td_unicode_is_word('-'));
  static const uint32_t words[][2] = {
      {0x200C, 0x200D}, {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    assert_true(td_unicode_is_word(words[i][0]) && td_unicode_is_word(words[i][1]));
    assert_false(td_unicode_is_word(words[i][0] - 1) || td_unicode_is_word(words[i][1] + 1));
  }
}

/* Lengths of the first parts, for which merges of real vocabularies seldom show a wrong boundary. */
static void first_pieces(void **state)
{
  const td_split gpt2 = {.kind = TD_SPLIT_WORDS},
                 llama3 = {.kind = TD_SPLIT_WORDS, .modern = true, .fold = true, .max_digits = 3},
                 qwen35 = {
                     .kind = TD_SPLIT_WORDS, .modern = true, .fold = true, .marks = true, .max_digits = 1};
  const struct {
    const td_split *split;
    const char *text;
    size_t first;
  } cases[] = {
      {&llama3, "'\xC5\xBFx", 3},
      {&gpt2, "'\xC5\xBFx", 1},
      {&llama3, "'Sx", 2},
      {&gpt2, "'Sx", 1},
      {&llama3, "1234", 3},
      {&qwen35, "1234", 1},
      {&gpt2, "1234", 4},
      {&llama3, "e\xCC\x81x", 1},
      {&qwen35, "e\xCC\x81x", 4},
      {&llama3, "\xCC\x81x", 3},
      {&llama3, " \n x", 2},
      {&gpt2, " \n x", 2},
      {&llama3, "!\n\nx", 3},
      {&gpt2, "!\n\nx", 1},
      {&llama3, "\tx", 2},
      {&gpt2, "\tx", 1},
      {&gpt2, "\xE3\x80\x80\xE3\x80\x80x", 3},
  };
  size_t steps = SIZE_MAX;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    if (td_split_next(cases[i].split, (const unsigned char *)cases[i].text, strlen(cases[i].text), &steps) !=
        cases[i].first)
      fail_msg("case %zu", i);
}

/* ---- NFC ---- */

/* As by `tokenizers` 0.23.3, which knows Unicode 9. */
static void nfc_versions(void **state)
{
  static const struct {
    const char *text, *want;
  } cases[] = {
      {"\u110B\u1171\u11A7\u11A8", "\uC704\u11A7\u11A8"}, /* U+11A7 is no final consonant */
      {"\uC704\u11A7", "\uC704\u11A7"},
      {"\uAC00\u11A8", "\uAC01"},
      {"x\u1ACE\u05A5", "x\u1ACE\u05A5"}, /* a mark of Unicode 14 does not move */
      {"x\u0301\u0323", "x\u0323\u0301"},
      {"\u0301\u0323", "\u0323\u0301"},   /* with nothing before them */
      {"e\u1ACE\u0301", "e\u1ACE\u0301"}, /* nothing is joined across it */
      {"e\u0323\u0301", "\u1EB9\u0301"},
      {"\U00011935\U00011930", "\U00011935\U00011930"},
      {"\U00011938\u0334\u0301", "\U00011938\u0334\u0301"},
      {"\u1715\u0334", "\u1715\u0334"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    td_buf out;
    td_error err = {0};
    td_buf_init(&out, 0);
    assert_int_equal(
        td_nfc_append((const unsigned char *)cases[i].text, strlen(cases[i].text), &out, NULL, 0, &err),
        TD_OK);
    if (out.len_bytes != strlen(cases[i].want) || memcmp(out.data, cases[i].want, out.len_bytes) != 0)
      fail_msg("case %zu becomes %.*s", i, (int)out.len_bytes, out.data);
    td_buf_deinit(&out);
  }
}

/* A failed init frees what it allocated, and so does the tokenizer's end. */
static void a_vocabulary_ends_twice(void **state)
{
  td_vocab v = {0};
  td_error err;
  assert_int_equal(td_vocab_init(&v, 10, 100, &err), TD_OK);
  td_vocab_deinit(&v);
  td_vocab_deinit(&v);
  assert_null(v.tokens);
}

static void nfc_moves_spans(void **state)
{
  /* "ab" E U+0301 "cd" U+0301: E + acute becomes two bytes, d + acute stays two characters */
  const char *text = "abE\xCC\x81"
                     "cd\xCC\x81";
  td_span sets[2][3] = {{{0, 2}, {2, 5}, {6, 9}}, {{1, 1}, {3, 6}, {7, 8}}};
  const td_span want[2][3] = {{{0, 2}, {2, 4}, {5, 8}}, {{1, 1}, {4, 5}, {8, 8}}};
  for (size_t k = 0; k < 2; k++) {
    td_buf out;
    td_buf_init(&out, 0);
    td_error err = {0};
    assert_int_equal(td_nfc_append((const unsigned char *)text, strlen(text), &out, sets[k], 3, &err), TD_OK);
    assert_int_equal(out.len_bytes, 8);
    assert_memory_equal(out.data,
                        "ab\xC3\x89"
                        "cd\xCC\x81",
                        8);
    for (size_t i = 0; i < 3; i++) {
      assert_int_equal(sets[k][i].start, want[k][i].start);
      assert_int_equal(sets[k][i].end, want[k][i].end);
    }
    td_buf_deinit(&out);
  }
}

/* ---- trust ---- */

static void trust(void **state)
{
  td_tokenizer *t = load_small();
  const char *text = "x<|im_end|>y<|im_end|>z<think>";
  const int32_t end = added(t, "<|im_end|>"), think = added(t, "<think>");
  td_error err = {0};
  struct {
    td_span spans[2];
    size_t n, found;
  } cases[] = {
      {{{0, 0}}, 0, 0},
      {{{0, 30}}, 1, 2},
      {{{1, 11}}, 1, 1},
      {{{2, 11}}, 1, 0},
      {{{1, 10}}, 1, 0},
      {{{1, 6}, {6, 11}}, 2, 0},
      /* wholly inside ONE span */ {{{0, 11}, {12, 22}}, 2, 2},
      {{{12, 30}}, 1, 1},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    td_ids ids = {0};
    assert_int_equal(
        td_tokenizer_encode(t, text, strlen(text), cases[i].spans, cases[i].n, false, 0, &ids, &err), TD_OK);
    size_t found = 0;
    for (size_t k = 0; k < ids.n; k++)
      found += ids.ids[k] == end;
    assert_int_equal(found, cases[i].found);
    assert_true(has_id(&ids, think)); /* not special: everywhere */
    td_ids_deinit(&ids);
  }
  td_tokenizer_destroy(t);
}

/* Trust survives normalisation: a special token that is matched after it. */
static void trust_and_nfc(void **state)
{
  cJSON *json = small_json();
  cJSON_DeleteItemFromObject(json, "normalizer");
  cJSON_AddItemToObject(json, "normalizer", util_parse("{\"type\":\"NFC\"}", 14));
  td_tokenizer *t = util_load(json);
  const int32_t s = added(t, "[S]");
  const char *text = "e\xCC\x81[S]e\xCC\x81[S]"; /* bytes 3-6 and 9-12 */
  td_error err = {0};
  for (int which = 0; which < 4; which++) {
    td_span span = {which & 1 ? 3 : 4, which & 2 ? 12 : 11};
    td_ids ids = {0};
    assert_int_equal(td_tokenizer_encode(t, text, strlen(text), &span, 1, false, 0, &ids, &err), TD_OK);
    int found = 0;
    for (size_t k = 0; k < ids.n; k++)
      found += ids.ids[k] == s;
    assert_int_equal(found, (which & 1) + (which >> 1));
    td_ids_deinit(&ids);
  }
  for (size_t from = 0; from < 2; from++) { /* what begins the rewritten text */
    td_span span = {from, 3};
    td_ids ids = {0};
    assert_int_equal(td_tokenizer_encode(t, "[S]e\xCC\x81", 6, &span, 1, false, 0, &ids, &err), TD_OK);
    assert_int_equal(has_id(&ids, s), from == 0);
    td_ids_deinit(&ids);
  }
  td_tokenizer_destroy(t);
  cJSON_Delete(json);
}

/* Merges and whole words must not make a special token out of plain text. */
static void no_special_by_merges(void **state)
{
  const char *text = "{\"model\":{\"type\":\"BPE\",\"ignore_merges\":true,\"vocab\":{\"a\":0,\"b\":1,\"ab\":"
                     "2,\"c\":3,\"abc\":4},\"merges\":[\"a "
                     "b\",\"ab "
                     "c\"]},\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                     "\"add_prefix_space\":false},"
                     "\"added_tokens\":[{\"id\":2,\"content\":\"ab\",\"special\":true},{\"id\":4,\"content\":"
                     "\"abc\",\"special\":true}]}";
  cJSON *json = util_parse(text, strlen(text));
  td_tokenizer *t = util_load(json);
  td_ids ids = util_encode(t, "abc", 3, false);
  util_assert_ids(&ids, (int32_t[]){0, 1, 3}, 3);
  td_ids_deinit(&ids);
  ids = util_encode(t, "abab", 4, false);
  util_assert_ids(&ids, (int32_t[]){0, 1, 0, 1}, 4);
  td_ids_deinit(&ids);
  ids = util_encode(t, "abc", 3, true);
  util_assert_ids(&ids, (int32_t[]){4}, 1);
  td_ids_deinit(&ids);
  td_tokenizer_destroy(t);
  cJSON_Delete(json);
  const char *byte =
      "{\"model\":{\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]},\"decoder\":{\"type\":\"ByteLevel\"},"
      "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
      "\"added_tokens\":[{\"id\":0,\"content\":\"a\",\"special\":true}]}";
  json = util_parse(byte, strlen(byte));
  t = util_load(json);
  ids = util_encode(t, "ab", 2, false);
  util_assert_ids(&ids, (int32_t[]){1}, 1);
  td_ids_deinit(&ids);
  td_tokenizer_destroy(t);
  cJSON_Delete(json);
}

/* Whichever of them was added first. */
static void added_tokens_that_begin_alike(void **state)
{
  const char *text =
      "{\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"c\":2},\"merges\":[]},\"decoder\":{\"type\":\"ByteLevel\"},"
      "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"added_tokens\":["
      "{\"id\":5,\"content\":\"abcc\"},{\"id\":6,\"content\":\"ab\"},{\"id\":7,\"content\":\"abc\"}]}";
  cJSON *json = util_parse(text, strlen(text));
  td_tokenizer *t = util_load(json);
  td_ids ids = util_encode(t, "abccabcabab", 11, false);
  util_assert_ids(&ids, (int32_t[]){5, 7, 6, 6}, 4);
  td_ids_deinit(&ids);
  td_tokenizer_destroy(t);
  cJSON_Delete(json);
}

/* ---- BOS, limits ---- */

static void bos(void **state)
{
  cJSON *json = small_json();
  const char *template = "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":"
                         "\"TemplateProcessing\",\"single\":"
                         "[{\"SpecialToken\":{\"id\":\"<|im_start|>\",\"type_id\":0}},{\"Sequence\":{\"id\":"
                         "\"A\",\"type_id\":0}}]}]}";
  cJSON_DeleteItemFromObject(json, "post_processor");
  cJSON_AddItemToObject(json, "post_processor", util_parse(template, strlen(template)));
  cJSON *config =
      util_parse("{\"eos_token\":{\"content\":\"<|im_end|>\"},\"bos_token\":\"<|endoftext|>\"}", 66);
  td_error err = {0};
  td_tokenizer *t = NULL;
  assert_int_equal(td_tokenizer_load_json(json, config, &t, &err), TD_OK);
  const int32_t start = added(t, "<|im_start|>");
  assert_true(td_tokenizer_adds_bos(t));
  assert_int_equal(td_tokenizer_bos(t), start);
  assert_int_equal(td_tokenizer_eos(t), added(t, "<|im_end|>"));
  td_ids ids = {0};
  td_span all = {0, 100};
  const char *texts[] = {"", "a", "<|im_start|>a", "<|im_start|><|im_start|>"};
  const size_t counts[] = {1, 2, 2, 2};
  for (size_t i = 0; i < 4; i++) {
    ids.n = 1; /* existing contents stay */
    if (!ids.ids)
      ids = (td_ids){calloc(1, sizeof(int32_t)), 1, 1};
    assert_int_equal(td_tokenizer_encode(t, texts[i], strlen(texts[i]), &all, 1, true, 0, &ids, &err), TD_OK);
    assert_int_equal(ids.n, 1 + counts[i]);
    assert_int_equal(ids.ids[0], 0);
    assert_int_equal(ids.ids[1], start);
  }
  ids.n = 0;
  /* an untrusted look-alike is not a BOS */
  assert_int_equal(td_tokenizer_encode(t, texts[2], strlen(texts[2]), NULL, 0, true, 0, &ids, &err), TD_OK);
  assert_int_equal(ids.ids[0], start);
  assert_true(ids.n > 3);
  td_ids_deinit(&ids);
  td_tokenizer_destroy(t);
  cJSON_Delete(json);
  cJSON_Delete(config);
}

static void token_cap(void **state)
{
  td_tokenizer *t = load_small();
  td_ids all = util_encode(t, "one two three four", 18, false), ids = {0};
  td_error err = {0};
  assert_int_equal(td_tokenizer_encode(t, "one two three four", 18, NULL, 0, false, all.n, &ids, &err),
                   TD_OK);
  assert_int_equal(ids.n, all.n);
  td_ids before = {malloc(2 * sizeof(int32_t)), 1, 2};
  before.ids[0] = 77;
  assert_int_equal(td_tokenizer_encode(t, "one two three four", 18, NULL, 0, false, all.n - 1, &before, &err),
                   TD_ERR_REQUEST);
  assert_int_equal(before.n, 1); /* a refused text leaves nothing */
  assert_int_equal(before.ids[0], 77);
  td_ids_deinit(&before);
  td_ids_deinit(&all);
  td_ids_deinit(&ids);
  td_tokenizer_destroy(t);
}

static void text_limit(void **state)
{
  td_tokenizer *t = load_small();
  td_ids ids = {0};
  td_error err = {0};
  size_t n = td_limit_max(TD_LIMIT_TOKENIZE_TEXT_BYTES) + 1;
  assert_int_equal(td_tokenizer_encode(t, "", n, NULL, 0, false, 0, &ids, &err), TD_ERR_REQUEST);
  td_tokenizer_destroy(t);
}

/* ---- long words: the heap gives the same result as the short way, in n log n ---- */

/* BPE by its definition: repeatedly merge the leftmost pair of lowest rank. */
static size_t naive(const td_tokenizer *t, const unsigned char *word, size_t n, uint32_t *ids)
{
  size_t k = 0;
  for (size_t i = 0; i < n; i++)
    if (t->byte_id[word[i]] >= 0)
      ids[k++] = (uint32_t)t->byte_id[word[i]];
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

static void long_words_equal_naive(void **state)
{
  td_tokenizer *t = load_small();
  unsigned seed = 5;
  const char *letters = "etaoinshr dlu\x04!"; /* the last is token 0 */
  for (int round = 0; round < 400; round++) {
    unsigned char word[300];
    size_t n = 1 + (size_t)(rand_r(&seed) % 300);
    int kinds = 1 + rand_r(&seed) % 15;
    for (size_t i = 0; i < n; i++)
      word[i] = (unsigned char)letters[rand_r(&seed) % kinds];
    uint32_t want[300];
    size_t n_want = naive(t, word, n, want);
    td_ids ids = {0};
    td_error err;
    td_id_sink sink = {.ids = &ids, .err = &err};
    assert_int_equal(td_bpe_word(t, word, n, &sink), TD_OK);
    util_assert_ids(&ids, (const int32_t *)want, n_want);
    td_ids_deinit(&ids);
  }
  td_tokenizer_destroy(t);
}

/* Each byte of a word and its length tell it from others. */
static void word_keys_differ(void **state)
{
  unsigned char word[TD_WORD_BYTES + 1] = {0};
  for (size_t n = 1; n <= TD_WORD_BYTES; n++)
    for (size_t i = 0; i <= n; i++) {
      const td_word_key key = td_word_key_of(word, n);
      const td_word w = {.first = key.first, .last = key.last, .n_bytes = (uint16_t)n};
      word[i] = 1; /* after the word, so it is ignored */
      const td_word_key other = td_word_key_of(word, n),
                        longer = td_word_key_of(word, n + (n < TD_WORD_BYTES));
      assert_true(td_word_is(&w, &other) == (i == n));
      assert_true(n == TD_WORD_BYTES || !td_word_is(&w, &longer));
      word[i] = 0;
    }
}

/* Cached words of two tokenizers in turn on one thread. */
static void remembered_words_equal_naive(void **state)
{
  cJSON *json = small_json(), *merges = cJSON_GetObjectItem(cJSON_GetObjectItem(json, "model"), "merges");
  td_tokenizer *t[2] = {util_load(json), NULL};
  for (int i = cJSON_GetArraySize(merges) - 1; i >= 0; i -= 2)
    cJSON_DeleteItemFromArray(merges, i);
  t[1] = util_load(json);
  cJSON_Delete(json);
  unsigned seed = 11;
  int n_met = 0, n_differ = 0;
  for (int i = 0; i < 60000; i++) {
    unsigned char word[TD_WORD_BYTES + 2];
    size_t n = 1 + (size_t)(rand_r(&seed) % (int)sizeof word);
    for (size_t k = 0; k < n; k++)
      word[k] = (unsigned char)"the in"[rand_r(&seed) % (n < 6 ? 6 : 2)];
    uint32_t want[2][sizeof word];
    size_t n_want[2];
    for (int k = 0; k < 2; k++)
      n_want[k] = naive(t[k], word, n, want[k]);
    n_differ += n_want[0] != n_want[1];
    const int k = i / 10000 % 2;
    td_ids ids = {0};
    td_error err;
    td_id_sink sink = {.ids = &ids, .err = &err, .words = td_word_cache_of_thread(t[k])};
    bool hit;
    assert_int_equal(td_bpe_emit_cached(word, n, &sink, &hit), TD_OK);
    if (!hit)
      assert_int_equal(td_bpe_word(t[k], word, n, &sink), TD_OK);
    util_assert_ids(&ids, (const int32_t *)want[k], n_want[k]);
    n_met += hit;
    td_ids_deinit(&ids);
  }
  assert_true(n_met > 5000 && n_differ > 1000);
  td_tokenizer_destroy(t[0]);
  td_tokenizer_destroy(t[1]);
}

static double encode_seconds(const td_tokenizer *t, const char *unit, size_t n)
{
  size_t k = strlen(unit);
  char *text = malloc(n);
  assert_non_null(text);
  for (size_t i = 0; i < n; i++)
    text[i] = unit[i % k];
  struct timespec a, b;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
  td_ids ids = util_encode(t, text, n - n % k, true);
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
  td_ids_deinit(&ids);
  free(text);
  return (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) / 1e9;
}

/* A quadratic step would take minutes at this size, and hours with sanitizers. */
static void worst_cases_are_not_quadratic(void **state)
{
  cJSON *json = small_json();
  cJSON_DeleteItemFromObject(json, "normalizer");
  cJSON_AddItemToObject(json, "normalizer", util_parse("{\"type\":\"NFC\"}", 14));
  static const char *const spaces[] = {"{\"content\":\"\\f\",\"id\":9000,\"lstrip\":true,\"rstrip\":true}",
                                       "{\"content\":\"\\u000b\",\"id\":9001}"};
  for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
    cJSON_AddItemToArray(cJSON_GetObjectItem(json, "added_tokens"), util_parse(spaces[i], strlen(spaces[i])));
  td_tokenizer *t = util_load(json);
  const char *units[] = {"a",           " ",  "\n",   "ab",   "\xCC\x81\xCC\xA3", "\xFF", "<",
                         "<|im_start|", "[S", " [L]", "[R] ", "\xE4\xB8\x80",     "\n ",  "'",
                         "\x04",        "\f", "\f\v"};
  for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
    double s = encode_seconds(t, units[i], 1 << 20);
    if (s > 20)
      fail_msg("1 MiB of unit %zu took %.1f s", i, s);
  }
  td_tokenizer_destroy(t);
  cJSON_Delete(json);
}

/* A long word that cannot fit is refused before memory for it is allocated. */
static void long_word_over_cap(void **state)
{
  td_tokenizer *t = load_small();
  char *text = malloc(1 << 22);
  assert_non_null(text);
  memset(text, 'q', 1 << 22);
  td_ids ids = {0};
  td_error err = {0};
  assert_int_equal(td_tokenizer_encode(t, text, 1 << 22, NULL, 0, false, 100, &ids, &err), TD_ERR_REQUEST);
  td_ids_deinit(&ids);
  free(text);
  td_tokenizer_destroy(t);
}

/* ---- one tokenizer, several threads ---- */

typedef struct job {
  const td_tokenizer *t;
  const td_ids *want;
  bool same;
} job;

static const char thread_text[] =
    "The quick brown fox doesn't jump over 1234 lazy dogs; for (int i = 0; i < n; i++) x += 2;\n";

static void *encode_again(void *arg)
{
  job *j = arg;
  j->same = true;
  for (int i = 0; i < 200; i++) {
    td_ids ids = {0};
    td_error err = {0};
    td_status s =
        td_tokenizer_encode(j->t, thread_text, sizeof thread_text - 1, NULL, 0, false, 0, &ids, &err);
    j->same = j->same && s == TD_OK && ids.n == j->want->n &&
              memcmp(ids.ids, j->want->ids, ids.n * sizeof *ids.ids) == 0;
    td_ids_deinit(&ids);
  }
  return NULL;
}

static void threads(void **state)
{
  td_tokenizer *warm = load_small(), *t = load_small();
  td_ids want = util_encode(warm, thread_text, sizeof thread_text - 1, false);
  pthread_t id[4];
  job jobs[4];
  for (int i = 0; i < 4; i++) {
    jobs[i] = (job){t, &want, false};
    assert_int_equal(pthread_create(&id[i], NULL, encode_again, &jobs[i]), 0);
  }
  for (int i = 0; i < 4; i++) {
    pthread_join(id[i], NULL);
    assert_true(jobs[i].same);
  }
  td_ids_deinit(&want);
  td_tokenizer_destroy(t);
  td_tokenizer_destroy(warm);
}

/* U+0000 is an ordinary byte: it becomes its own token, or part of one with its neighbours, and is returned.
 */
static void nul_is_text(void **state)
{
  static const char text[] = "a\0b\0\0 c";
  td_tokenizer *t = load_small();
  td_ids ids = {0};
  td_error err;
  td_detok d;
  td_buf out;
  assert_int_equal(td_tokenizer_encode(t, text, sizeof text - 1, NULL, 0, false, 0, &ids, &err), TD_OK);
  td_buf_init(&out, 0);
  td_detok_init(&d, t, false, true);
  for (size_t i = 0; i < ids.n; i++)
    td_detok_push(&d, ids.ids[i], &out);
  td_detok_finish(&d, &out);
  assert_int_equal(out.len_bytes, sizeof text - 1);
  assert_memory_equal(out.data, text, sizeof text - 1);
  td_buf_deinit(&out);
  td_ids_deinit(&ids);
  td_tokenizer_destroy(t);
}

/* ---- pairs that were chosen to collide ---- */

enum { SIDE = 1024, CROWD = 512 };

static void init_merges(td_merges *m)
{
  td_error err;
  assert_int_equal(td_merges_init(m, 2 * CROWD, &err), TD_OK);
}

/* The total distance of pairs from their home slots in the table. */
static uint64_t displacement(const td_merges *m)
{
  uint64_t sum = 0;
  for (uint32_t i = 0; i < m->n_slots; i++)
    if (m->slots[i].left != UINT32_MAX)
      sum += (i - td_merges_hash(m, m->slots[i].left, m->slots[i].right)) & (m->n_slots - 1);
  return sum;
}

/* Knowing one table's slots tells nothing about another's: a file whose merges all collide in one process has
 * no long probe sequence in another. */
static void merges_cannot_be_chosen_to_collide(void **state)
{
  td_merges seen, other;
  td_vocab v;
  td_error err;
  uint32_t id = 0, n = 0;
  char left[16], right[16], whole[32];
  assert_int_equal(td_vocab_init(&v, 2 * SIDE + CROWD, 16 * (2 * SIDE + 2 * CROWD), &err), TD_OK);
  for (; id < 2 * SIDE; id++) {
    snprintf(left, sizeof left, "%c%u", id < SIDE ? 'l' : 'r', id);
    assert_int_equal(td_vocab_add(&v, id, left, strlen(left), TD_TOKEN_MODEL, &err), TD_OK);
  }
  init_merges(&seen);
  init_merges(&other);
  for (uint32_t l = 0; l < SIDE && n < CROWD; l++)
    for (uint32_t r = SIDE; r < 2 * SIDE && n < CROWD; r++) {
      if ((td_merges_hash(&seen, l, r) & (seen.n_slots - 1)) != 7)
        continue;
      snprintf(left, sizeof left, "l%u", l);
      snprintf(right, sizeof right, "r%u", r);
      snprintf(whole, sizeof whole, "%s%s", left, right);
      assert_int_equal(td_vocab_add(&v, id++, whole, strlen(whole), TD_TOKEN_MODEL, &err), TD_OK);
      assert_int_equal(td_merges_add(&seen, &v, left, strlen(left), right, strlen(right), &err), TD_OK);
      assert_int_equal(td_merges_add(&other, &v, left, strlen(left), right, strlen(right), &err), TD_OK);
      n++;
    }
  assert_true(n > CROWD / 2);
  assert_int_equal(displacement(&seen), (uint64_t)n * (n - 1) / 2);
  assert_true(displacement(&other) < 8 * (uint64_t)n);
  td_merges_deinit(&seen);
  td_merges_deinit(&other);
  td_vocab_deinit(&v);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(alphabet_is_a_bijection),
      cmocka_unit_test(classes),
      cmocka_unit_test(first_pieces),
      cmocka_unit_test(nfc_versions),
      cmocka_unit_test(nul_is_text),
      cmocka_unit_test(merges_cannot_be_chosen_to_collide),
      cmocka_unit_test(nfc_moves_spans),
      cmocka_unit_test(a_vocabulary_ends_twice),
      cmocka_unit_test(trust),
      cmocka_unit_test(trust_and_nfc),
      cmocka_unit_test(no_special_by_merges),
      cmocka_unit_test(added_tokens_that_begin_alike),
      cmocka_unit_test(bos),
      cmocka_unit_test(token_cap),
      cmocka_unit_test(text_limit),
      cmocka_unit_test(long_words_equal_naive),
      cmocka_unit_test(word_keys_differ),
      cmocka_unit_test(remembered_words_equal_naive),
      cmocka_unit_test(worst_cases_are_not_quadratic),
      cmocka_unit_test(long_word_over_cap),
      cmocka_unit_test(threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
