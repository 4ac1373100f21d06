/* Shared by the tests of grammars, cmocka's and the fuzzer's: a vocabulary of all bytes and some longer
 * tokens, compiling from text, and the comparison of a mask with the matcher's verdict on each token. */
#ifndef TD_TESTS_GRAMMAR_FIXTURE_H
#define TD_TESTS_GRAMMAR_FIXTURE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "common/json.h"
#include "models/grammar/grammar.h"

enum { GRAMMAR_FIXTURE_LONGER = 64 };

/* Id i is byte i, up to 255, which begins special tokens and is not a token by itself; then the longer ones,
 * then the id that ends an answer. NULL: it failed. */
static inline td_vocabulary *grammar_fixture_vocabulary(const char *const *longer, int n_longer)
{
  static char bytes[256];
  td_token_bytes tokens[256 + GRAMMAR_FIXTURE_LONGER + 1] = {{"", 0}};
  td_vocabulary *v;
  td_error err;
  int32_t end = 256 + n_longer;
  for (int i = 0; i < 256; i++) {
    bytes[i] = (char)i;
    tokens[i] = (td_token_bytes){&bytes[i], i < 255};
  }
  for (int i = 0; i < n_longer && i < GRAMMAR_FIXTURE_LONGER; i++)
    tokens[256 + i] = (td_token_bytes){longer[i], (uint32_t)strlen(longer[i])};
  if (n_longer > GRAMMAR_FIXTURE_LONGER ||
      td_vocabulary_create(tokens, (uint32_t)end + 1, &end, 1, 1u << 30, &v, &err) != TD_OK)
    return NULL;
  return v;
}

/* Compiles the source's text. TD_ERR_REQUEST also if it should be JSON but is not. */
static inline td_status grammar_fixture_compile(const td_vocabulary *v, td_grammar_kind kind,
                                                const char *text, size_t n, td_grammar **g, td_error *err)
{
  const td_json_limits limits = {64, 100000, TD_ERR_REQUEST};
  td_grammar_source s = {.kind = kind, .text = text, .n_text = n};
  cJSON *json = NULL;
  td_status st = TD_OK;
  *err = (td_error){0};
  if (kind == TD_GRAMMAR_JSON_SCHEMA || kind == TD_GRAMMAR_CHOICE || kind == TD_GRAMMAR_TAGS) {
    st = td_json_parse(text, n, &limits, &json, err);
    s = (td_grammar_source){.kind = kind, .json = json};
  }
  if (st == TD_OK)
    st = td_grammar_compile(v, &s, g, err);
  cJSON_Delete(json);
  return st;
}

static inline bool grammar_fixture_takes(td_grammar *g, const char *text)
{
  td_matcher *m = td_matcher_create(g);
  bool whole = td_matcher_read_bytes(m, text, strlen(text)) && td_matcher_is_whole(m);
  td_matcher_destroy(m);
  return whole;
}

static inline bool grammar_fixture_has(const uint32_t *mask, int32_t id)
{
  return mask[id / 32] >> id % 32 & 1;
}

/* A token for which mask and reader disagree; -1: none. *any: some token can be read. */
static inline int32_t grammar_fixture_disagrees(td_matcher *m, int32_t n_tokens, bool *any)
{
  uint32_t mask[(256 + GRAMMAR_FIXTURE_LONGER + 32) / 32], n = td_matcher_n_tokens(m);
  td_matcher_fill(m, mask);
  *any = false;
  for (int32_t id = 0; id < n_tokens; id++) {
    bool reads = td_matcher_read(m, id);
    if (reads)
      td_matcher_roll_back(m, n);
    if (reads != grammar_fixture_has(mask, id) || td_matcher_n_tokens(m) != n)
      return id;
    *any |= reads;
  }
  return -1;
}

#endif
