/* Grammars. Input: a letter for the kind, the source, and after a NUL an answer's bytes. Properties: a
 * source compiles, or an error says why not; a text is read the same by bytes and by tokens; a token is in
 * a mask if and only if it can be read; if the text is not complete, some byte continues it (no path is a
 * dead end). All that holds until the matcher is stuck and says why: its work and memory are bounded. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "../grammar_fixture.h"
#include "config/limits.h"

static td_vocabulary *vocab;
static const char *const longer[] = {"\", \"", "\": ", "ab", "\"}", "\xE2\x98"};
enum { N_LONGER = sizeof longer / sizeof *longer, N_TOKENS = 256 + N_LONGER + 1, READ_MAX = 64 };

static td_status compile(char kind, const char *text, size_t n, td_grammar **g, td_error *err)
{
  td_grammar_kind k = kind == 'r'               ? TD_GRAMMAR_REGEX
                      : kind == 'g'             ? TD_GRAMMAR_GBNF
                      : n > 0 && text[0] == '[' ? TD_GRAMMAR_CHOICE
                                                : TD_GRAMMAR_JSON_SCHEMA;
  return grammar_fixture_compile(vocab, k, text, n, g, err);
}

/* Returns whether the answer may go on. Its states are checked token by token until that would take more than
 * *work: the matcher's own bounds are an answer's, in which one token follows each state. */
static bool check_state(td_matcher *m, uint64_t *work)
{
  uint32_t mask[(N_TOKENS + 31) / 32];
  const uint64_t before = td_matcher_work_left(m);
  td_matcher_fill(m, mask);
  const uint64_t cost = N_TOKENS * (before - td_matcher_work_left(m));
  if (cost <= *work && !td_matcher_stuck(m)) {
    bool any;
    const int32_t differs = grammar_fixture_disagrees(m, N_TOKENS, &any);
    FUZZ_CHECK(td_matcher_stuck(m) || (differs < 0 && any));
    *work -= cost;
  }
  return !td_matcher_stuck(m);
}

static void read_answer(td_grammar *g, const uint8_t *at, size_t n)
{
  td_matcher *m = td_matcher_create(g), *same = td_matcher_create(g);
  FUZZ_CHECK(m && same);
  size_t k = 0;
  uint64_t work = (uint64_t)td_limit_max(TD_LIMIT_GRAMMAR_WORK);
  bool goes_on = check_state(m, &work);
  while (goes_on && k < n && k < READ_MAX && td_matcher_read(m, at[k])) {
    k++;
    goes_on = check_state(m, &work);
  }
  const bool read = k == 0 || td_matcher_read_bytes(same, (const char *)at, k);
  if (goes_on && !td_matcher_stuck(m) && !td_matcher_stuck(same))
    FUZZ_CHECK(read && td_matcher_is_whole(m) == td_matcher_is_whole(same));
  td_matcher_destroy(m);
  td_matcher_destroy(same);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  td_error err = {0};
  td_grammar *g;
  if (!vocab)
    vocab = grammar_fixture_vocabulary(longer, N_LONGER);
  FUZZ_CHECK(vocab);
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
