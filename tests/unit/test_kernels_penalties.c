/* What is not plain in sampling, against float64: penalties, logit_bias, min_tokens, masks; the state behind
 * them, over steps, tenants and lost places; log-probabilities and the likeliest tokens. */
#include "kernels_fixture.h"

#include "kernels/cpu/cpu.h"
#include "kernels/logprob_math.h"
#include "kernels/sample_places.h"

enum { VOCAB_MAX = 3000, TOKENS_MAX = 400 };

/* A request as the engine has it, and the same told naively. */
typedef struct request {
  td_sampling sampling;
  td_logit_bias bias[TD_LOGIT_BIAS_MAX];
  int32_t end_ids[TD_END_IDS_MAX];
  int32_t tokens[TOKENS_MAX];
  uint32_t n_prompt, n_tokens;
} request;

static bool one_in(uint32_t n) { return fx_below(n) == 0; }

/* n different ids in ascending order of a random walk. */
static uint32_t different_ids(int32_t *ids, uint32_t n, uint32_t vocab)
{
  uint32_t made = 0, step = vocab / (n + 1) + 1;
  for (uint32_t at = fx_below(step); at < vocab && made < n; at += 1 + fx_below(step))
    ids[made++] = (int32_t)at;
  return made;
}

static void make_request(request *r, uint32_t vocab, uint32_t kinds)
{
  td_sampling *s = &r->sampling;
  int32_t ids[TD_LOGIT_BIAS_MAX];
  *s = (td_sampling){.temperature = 0, .top_p = 1, .seed = fx_random()};
  if (kinds & 1)
    s->presence_penalty = 4 * (float)fx_uniform() - 2;
  if (kinds & 2)
    s->frequency_penalty = 4 * (float)fx_uniform() - 2;
  if (kinds & 4)
    s->repetition_penalty = 0.2f + 2 * (float)fx_uniform();
  if (kinds & 8) {
    s->n_bias = different_ids(ids, 1 + fx_below(TD_LOGIT_BIAS_MAX), vocab);
    for (uint32_t i = 0; i < s->n_bias; i++)
      r->bias[i] = (td_logit_bias){ids[s->n_bias - 1 - i], one_in(4)   ? 100
                                                           : one_in(3) ? -100
                                                                       : fx_normal() * 2};
    s->bias = r->bias;
  }
  if (kinds & 16) {
    s->min_tokens = 1 + fx_below(6);
    s->n_end_ids = different_ids(r->end_ids, 1 + fx_below(TD_END_IDS_MAX), vocab);
    s->end_ids = r->end_ids;
  }
  r->n_prompt = r->n_tokens = 1 + fx_below(40);
  uint32_t family = 1 + fx_below(vocab); /* few different ones: they come again */
  for (uint32_t i = 0; i < r->n_prompt; i++)
    r->tokens[i] = (int32_t)fx_below(family);
}

static uint32_t occurrences(const request *r, uint32_t from, uint32_t to, int32_t id)
{
  uint32_t n = 0;
  for (uint32_t i = from; i < to; i++)
    n += r->tokens[i] == id;
  return n;
}

/* The definition of step/sampling.h in double. */
static double naive_logit(const request *r, const uint32_t *mask, int32_t id, double x)
{
  const td_sampling *s = &r->sampling;
  uint32_t in_prompt = occurrences(r, 0, r->n_prompt, id),
           in_answer = occurrences(r, r->n_prompt, r->n_tokens, id);
  double repetition = s->repetition_penalty == 0 ? 1 : (double)s->repetition_penalty;
  if (mask && !(mask[id / 32] >> id % 32 & 1))
    return -INFINITY;
  for (uint32_t i = 0; i < s->n_end_ids; i++)
    if (s->end_ids[i] == id && r->n_tokens - r->n_prompt < s->min_tokens)
      return -INFINITY;
  for (uint32_t i = 0; i < s->n_bias; i++)
    x += s->bias[i].id == id ? (double)s->bias[i].bias : 0;
  if (in_prompt + in_answer > 0)
    x = x > 0 ? x / repetition : x * repetition;
  x -= (double)s->frequency_penalty * in_answer;
  return x - (in_answer > 0 ? (double)s->presence_penalty : 0);
}

/* ---- one row, as defined ---- */

static void test_adjusted_logits(void **state)
{
  static request r;
  static td_sample_state made;
  static uint16_t words[VOCAB_MAX];
  static uint32_t mask[VOCAB_MAX / 32 + 1];
  uint32_t n_forbidden = 0, n_changed = 0;
  for (uint32_t round = 0; round < 400; round++) {
    uint32_t vocab = 1 + fx_below(round % 4 ? 200 : VOCAB_MAX);
    make_request(&r, vocab, round % 32);
    for (uint32_t n = fx_below(60); n > 0; n--)
      r.tokens[r.n_tokens++] = (int32_t)fx_below(1 + vocab / 4);
    for (uint32_t i = 0; i < td_sample_mask_words(vocab); i++)
      mask[i] = (uint32_t)fx_random();
    const uint32_t *given = round % 3 == 0 ? mask : NULL;
    td_sample_history h = {r.tokens, r.n_prompt, r.n_tokens};
    memset(words, 0xAA, sizeof words); /* what the tenant before left */
    memset(&made, 0xAA, sizeof made);
    td_sample_state_make(&r.sampling, &h, vocab, &made, words);
    for (uint32_t i = 0; i < vocab; i++) {
      float x = fx_normal() * 5,
            got = td_sample_adjust(&made, words[i], !given || td_sample_is_allowed(given, i), (int32_t)i, x,
                                   r.n_tokens);
      double want = naive_logit(&r, given, (int32_t)i, (double)x);
      n_forbidden += isinf(want) != 0;
      n_changed += want != (double)x;
      if (isinf(want) ? (double)got != want : !(fabs((double)got - want) <= 2e-5 * (1 + fabs(want))))
        fail_msg("round %u: logit %g of token %u of %u becomes %g, should be %g", round, (double)x, i, vocab,
                 (double)got, want);
    }
  }
  assert_true(n_forbidden > 1000 && n_changed > 10000);
}

/* Nothing that a client can ask for makes a row bad, and what was bad stays so. */
static void test_extremes_stay_numbers(void **state)
{
  td_sample_state s = {.presence = -2, .frequency = -2, .repetition = 1e-30f, .n_listed = 1};
  s.listed[0] = (td_sample_listed){7, 100, 0};
  static const float highest[] = {TD_SAMPLE_HIGHEST, 1e30f, 1, 1e-45f, 0, -1, -1e30f, -TD_SAMPLE_HIGHEST};
  for (int sign = 0; sign < 2; sign++, s.repetition = 1e30f)
    for (size_t i = 0; i < sizeof highest / sizeof *highest; i++) {
      float y = td_sample_adjust(&s, TD_WORD_LISTED | TD_WORD_PROMPT | TD_WORD_COUNT, true, 7, highest[i], 9);
      assert_true(isfinite(y));
    }
  assert_true(isnan(td_sample_adjust(&s, 0, false, 7, NAN, 9)));
  assert_true(td_sample_adjust(&s, 0, false, 7, INFINITY, 9) == INFINITY);
  assert_true(td_sample_adjust(&s, TD_WORD_PROMPT, true, 7, -INFINITY, 9) == -INFINITY);
}

static void test_counts_saturate(void **state)
{
  uint16_t word = TD_WORD_PROMPT | TD_WORD_LISTED;
  for (uint32_t i = 1; i < 20000; i++) {
    word = td_sample_count_once_more(word);
    assert_int_equal(word & TD_WORD_COUNT, i < TD_WORD_COUNT ? i : TD_WORD_COUNT);
    assert_int_equal(word & ~TD_WORD_COUNT, TD_WORD_PROMPT | TD_WORD_LISTED);
  }
}

/* ---- places ---- */

static void test_places(void **state)
{
  enum { SLOTS = 50, PLACES = 8 };
  td_sample_places p;
  uint32_t held[PLACES], place, loser, n_new = 0, n_lost = 0;
  assert_int_equal(td_sample_places_init(&p, SLOTS, PLACES, NULL), TD_OK);
  memset(held, 0xff, sizeof held);
  for (uint32_t step = 0; step < 5000; step++) {
    uint32_t slots[PLACES], n = 1 + fx_below(PLACES), places[PLACES], pool = step % 2 ? SLOTS : 10;
    for (uint32_t i = 0; i < n; i++) { /* different ones */
      bool again = true;
      while (again) {
        slots[i] = fx_below(pool);
        again = false;
        for (uint32_t j = 0; j < i; j++)
          again |= slots[j] == slots[i];
      }
    }
    if (one_in(3)) {
      uint32_t leaver = fx_below(SLOTS);
      if (p.place_of[leaver] != TD_NO_PLACE)
        held[p.place_of[leaver]] = UINT32_MAX;
      td_sample_places_leave(&p, leaver);
      assert_int_equal(p.place_of[leaver], TD_NO_PLACE);
    }
    for (uint32_t i = 0; i < n; i++) {
      bool is_new = td_sample_places_take(&p, slots[i], &place, &loser);
      assert_true(place < PLACES);
      assert_int_equal(is_new, held[place] != slots[i]); /* else what is in it is his */
      assert_int_equal(loser, is_new ? held[place] : UINT32_MAX);
      n_new += is_new;
      n_lost += loser != UINT32_MAX;
      held[place] = slots[i];
      places[i] = place;
    }
    for (uint32_t i = 0; i < n; i++) /* all of the step have one at the end of it */
      assert_true(p.place_of[slots[i]] == places[i] && held[places[i]] == slots[i]);
  }
  assert_true(n_new > 1000 && n_lost > 1000);
  td_sample_places_deinit(&p);
}

/* ---- log-probabilities ---- */

static const float *rank_by;
static int by_rank(const void *a, const void *b)
{
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  if (rank_by[x] != rank_by[y])
    return rank_by[x] < rank_by[y] ? 1 : -1;
  return x < y ? -1 : 1;
}

static double naive_log_sum(const float *x, uint32_t n)
{
  double max = -INFINITY, sum = 0;
  for (uint32_t i = 0; i < n; i++)
    max = fmax(max, (double)x[i]);
  for (uint32_t i = 0; i < n; i++)
    sum += exp((double)x[i] - max);
  return max + log(sum);
}

static void test_logprobs(void **state)
{
  static uint32_t order[152000];
  td_backend *bes[FX_ISAS];
  for (int isa = 0; isa < FX_ISAS; isa++)
    bes[isa] = fx_backend(fx_isas[isa], 1);
  for (uint32_t round = 0; round < 120; round++) {
    uint32_t vocab = 1 + fx_below(round % 20 == 0 ? 152000 : 2000), n_top = fx_below(TD_TOP_TOKENS_MAX + 1);
    int32_t id = (int32_t)fx_below(vocab);
    float *x = fx_floats(vocab, round % 7 == 0 ? 30 : 3), logprob[FX_ISAS];
    td_top_token top[FX_ISAS][TD_TOP_TOKENS_MAX];
    for (uint32_t i = 0; i < vocab; i++) {
      x[i] = round % 3 ? x[i] : roundf(x[i]); /* ties */
      x[i] = i > 0 && one_in(50) ? -INFINITY : x[i];
      order[i] = i;
    }
    rank_by = x;
    qsort(order, vocab, sizeof *order, by_rank);
    double log_sum = naive_log_sum(x, vocab);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < vocab; i++)
      sum += td_logprob_weight(x[i], x[order[0]]);
    for (int isa = 0; isa < FX_ISAS; isa++) {
      if (!bes[isa])
        continue;
      assert_true(cpu_self(bes[isa])->isa->exp_sum(x, vocab, x[order[0]]) == sum);
      td_cpu_logprobs(cpu_self(bes[isa])->isa, x, vocab, id, n_top, &logprob[isa], top[isa]);
      assert_memory_equal(&logprob[isa], &logprob[0], sizeof *logprob); /* the same bits on each */
      double want = (double)x[id] - log_sum;
      if (isinf(want) ? (double)logprob[isa] != want
                      : !(fabs((double)logprob[isa] - want) <= 1e-6 * (1 + fabs(want))))
        fail_msg("log-probability %.9g of token %d of %u, should be %.9g", (double)logprob[isa], id, vocab,
                 want);
      for (uint32_t i = 0; i < n_top && i < vocab; i++) {
        assert_int_equal(top[isa][i].id, order[i]);
        want = (double)x[order[i]] - log_sum;
        assert_true(isinf(want) || fabs((double)top[isa][i].logprob - want) <= 1e-6 * (1 + fabs(want)));
      }
    }
    free(x);
  }
  for (int isa = 0; isa < FX_ISAS; isa++)
    if (bes[isa])
      bes[isa]->ops->destroy(bes[isa]);
}

/* Summands of every size: what is cut off shows nowhere. */
static void test_log_sums(void **state)
{
  for (int i = 0; i < 2000000; i++) {
    float u = -32 * (float)fx_uniform();
    double want = exp((double)u) * 0x1p44, got = (double)td_logprob_weight(u, 0);
    if (fabs(got - want) > 1 + want * 2e-7)
      fail_msg("weight of %a: %.0f, exp says %.3f", (double)u, got, want);
  }
  for (int i = 0; i < 200000; i++) {
    uint64_t sum = (1 + (fx_random() >> 1)) >> fx_below(62);
    double want = logl((long double)sum) - 44 * logl(2), got = td_logprob_of_sum(sum > 0 ? sum : 1);
    if (sum > 0 && fabs(got - want) > 4e-15 * (1 + fabs(want)))
      fail_msg("ln of %llu / 2^44: %.17g, should be %.17g", (unsigned long long)sum, got, want);
  }
  assert_true(td_logprob_of_sum(1ull << 44) == 0);
  assert_true(td_logprob_weight(3, 3) == 1ull << 44 && td_logprob_weight(-INFINITY, 3) == 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_adjusted_logits), cmocka_unit_test(test_extremes_stay_numbers),
      cmocka_unit_test(test_counts_saturate), cmocka_unit_test(test_places),
      cmocka_unit_test(test_logprobs),        cmocka_unit_test(test_log_sums),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
