/* Grammars. Input: a letter for the kind, the source, and behind a NUL an answer's bytes. Properties: a
 * source compiles, or an error says why; a text is read the same by bytes and by tokens; a mask has a token
 * if, and only if, it can be read; where the text is not whole, some byte goes on (no way is a dead end). */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "models/grammar/grammar.h"

enum { END = 256 + 5, N_TOKENS = END + 1, READ_MAX = 64 };

static td_vocabulary *vocab;
static const char *const longer[] = {"\", \"", "\": ", "ab", "\"}", "\xE2\x98"};

static void make_vocab(void)
{
  static char bytes[256];
  td_token_bytes tokens[N_TOKENS] = {{"", 0}};
  td_error err;
  int32_t end = END;
  for (int i = 0; i < 256; i++) {
    bytes[i] = (char)i;
    tokens[i] = (td_token_bytes){&bytes[i], 1};
  }
  for (int i = 256; i < END; i++)
    tokens[i] = (td_token_bytes){longer[i - 256], (uint32_t)strlen(longer[i - 256])};
  FUZZ_CHECK(td_vocabulary_create(tokens, N_TOKENS, &end, 1, 1u << 30, &vocab, &err) == TD_OK);
}

static td_status compile(char kind, const char *text, size_t n, td_grammar **g, td_error *err)
{
  const td_json_limits limits = {64, 2000, TD_ERR_REQUEST};
  td_grammar_source s = {.kind = TD_GRAMMAR_JSON_SCHEMA};
  cJSON *json = NULL;
  td_status st;
  if (kind == 'r' || kind == 'g') {
    s = (td_grammar_source){
        .kind = kind == 'r' ? TD_GRAMMAR_REGEX : TD_GRAMMAR_GBNF, .text = text, .n_text = n};
  } else {
    if (td_json_parse(text, n, &limits, &json, err) != TD_OK)
      return TD_ERR_REQUEST;
    s.json = json;
    if (cJSON_IsArray(json))
      s.kind = TD_GRAMMAR_CHOICE;
  }
  st = td_grammar_compile(vocab, &s, g, err);
  cJSON_Delete(json);
  return st;
}

static bool has(const uint32_t *mask, int id) { return mask[id / 32] >> id % 32 & 1; }

static void check_state(td_matcher *m)
{
  uint32_t mask[(N_TOKENS + 31) / 32], n = td_matcher_n_tokens(m);
  bool any = false;
  td_matcher_fill(m, mask);
  for (int id = 0; id < N_TOKENS; id++) {
    bool reads = td_matcher_read(m, id);
    td_matcher_roll_back(m, n);
    FUZZ_CHECK(reads == has(mask, id));
    any |= reads;
  }
  FUZZ_CHECK(any && has(mask, END) == td_matcher_is_whole(m));
}

static void read_answer(td_grammar *g, const uint8_t *at, size_t n)
{
  td_matcher *m = td_matcher_create(g), *same = td_matcher_create(g);
  FUZZ_CHECK(m && same);
  size_t k = 0;
  check_state(m);
  while (k < n && k < READ_MAX && td_matcher_read(m, at[k])) {
    k++;
    check_state(m);
  }
  FUZZ_CHECK(k == 0 || td_matcher_read_bytes(same, (const char *)at, k));
  FUZZ_CHECK(td_matcher_is_whole(m) == td_matcher_is_whole(same));
  td_matcher_destroy(m);
  td_matcher_destroy(same);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  td_error err = {0};
  td_grammar *g;
  if (!vocab)
    make_vocab();
  if (size == 0)
    return 0;
  const uint8_t *nul = memchr(data + 1, '\0', size - 1);
  size_t n = nul ? (size_t)(nul - data) - 1 : size - 1;
  td_status st = compile((char)data[0], (const char *)data + 1, n, &g, &err);
  if (st != TD_OK) {
    FUZZ_CHECK((st == TD_ERR_REQUEST || st == TD_ERR_UNSUPPORTED) && *err.message);
    return 0;
  }
  read_answer(g, nul ? nul + 1 : data, nul ? size - n - 2 : 0);
  td_grammar_drop(g);
  return 0;
}
