/* Sampling beyond the plain kind, against float64: penalties, logit_bias, min_tokens, masks; their state
 * over steps, new requests in a slot and lost states; log-probabilities and the likeliest tokens. */
#include "kernels_fixture.h"

#include "kernels/cpu/cpu.h"
#include "kernels/logprob_math.h"
#include "kernels/sampler_cache.h"

enum { VOCAB_MAX = 3000, TOKENS_MAX = 400 };

/* A request as the engine stores it, and a naive copy of it. */
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
  uint32_t family = 1 + fx_below(vocab); /* few different ones, so that they repeat */
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

/* ---- one row, by the definition ---- */

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
    memset(words, 0xAA, sizeof words); /* left by the previous user of the slot */
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

/* No parameter that a client can send makes a row bad, and a row that is bad stays bad. */
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

/* ---- the cache ---- */

static void test_cache(void **state)
{
  enum { SLOTS = 50, STATES = 8 };
  td_sampler_cache c;
  uint32_t held[STATES], index, evicted_slot, n_new = 0, n_lost = 0;
  assert_int_equal(td_sampler_cache_init(&c, SLOTS, STATES, NULL), TD_OK);
  memset(held, 0xff, sizeof held);
  for (uint32_t step = 0; step < 5000; step++) {
    uint32_t slots[STATES], n = 1 + fx_below(STATES), indices[STATES], pool = step % 2 ? SLOTS : 10;
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
      if (c.state_of[leaver] != TD_NO_STATE)
        held[c.state_of[leaver]] = UINT32_MAX;
      td_sampler_cache_release(&c, leaver);
      assert_int_equal(c.state_of[leaver], TD_NO_STATE);
    }
    for (uint32_t i = 0; i < n; i++) {
      bool is_new = td_sampler_cache_acquire(&c, slots[i], &index, &evicted_slot);
      assert_true(index < STATES);
      assert_int_equal(is_new, held[index] != slots[i]); /* otherwise its contents belong to that slot */
      assert_int_equal(evicted_slot, is_new ? held[index] : UINT32_MAX);
      n_new += is_new;
      n_lost += evicted_slot != UINT32_MAX;
      held[index] = slots[i];
      indices[i] = index;
    }
    for (uint32_t i = 0; i < n; i++) /* all rows of the step have a state at the end of it */
      assert_true(c.state_of[slots[i]] == indices[i] && held[indices[i]] == slots[i]);
  }
  assert_true(n_new > 1000 && n_lost > 1000);
  td_sampler_cache_deinit(&c);
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
    float *x = fx_floats(vocab, round % 7 == 0 ? 30 : 3);
    td_token_logprob told[FX_ISAS];
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
      td_cpu_logprobs(cpu_self(bes[isa])->isa, x, vocab, id, n_top, &told[isa], top[isa]);
      assert_memory_equal(&told[isa], &told[0], sizeof *told); /* the same bits on each */
      double want = (double)x[id] - log_sum, got = (double)told[isa].logprob;
      if (isinf(want) ? got != want : !(fabs(got - want) <= 1e-6 * (1 + fabs(want))))
        fail_msg("log-probability %.9g of token %d of %u, should be %.9g", got, id, vocab, want);
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

/* Summands of every size: what is cut off does not show. */
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

/* ---- steps ---- */

enum { STEP_SLOTS = 10, STEP_ROWS = 4, STEP_VOCAB = 300 };

/* Few states for many slots: states are lost and rebuilt all the time. */
typedef struct steps {
  td_backend *be;
  td_plan *plan;
  td_compiled *sampling;
  float *logits; /* [STEP_ROWS][STEP_VOCAB], which the backend reads */
  td_outcome out;
} steps;

static steps open_steps(void)
{
  steps s;
  td_program *program;
  td_devptr logits;
  td_backend_config c = {.n_threads = 2,
                         .max_slots = STEP_SLOTS,
                         .max_rows = STEP_ROWS,
                         .max_tokens = STEP_ROWS,
                         .max_context_tokens = TOKENS_MAX,
                         .max_vocab = STEP_VOCAB};
  assert_int_equal(td_backend_create("cpu", &c, &s.be, NULL), TD_OK);
  assert_int_equal(td_plan_create(STEP_ROWS, STEP_ROWS, STEP_ROWS, 1, 16, &s.plan, NULL), TD_OK);
  assert_int_equal(td_program_create(1, &program, NULL), TD_OK);
  logits = fx_alloc(s.be, STEP_ROWS * STEP_VOCAB);
  s.logits = (float *)logits.addr;
  td_program_add(program, (td_op){.kind = TD_OP_SAMPLE,
                                  .extent = TD_EXTENT_LOGITS,
                                  .sample = {.logits = logits, .vocab = STEP_VOCAB}});
  assert_int_equal(s.be->ops->compile(s.be, program, &s.sampling, NULL), TD_OK);
  td_program_destroy(program);
  td_plan_clear(s.plan);
  return s;
}

static void close_steps(steps *s)
{
  s->be->ops->discard(s->be, s->sampling);
  td_plan_destroy(s->plan);
  s->be->ops->destroy(s->be);
}

/* A row of the next step. */
static void add_row(steps *s, uint32_t slot, uint32_t n_tokens, int32_t target)
{
  uint32_t i = s->plan->n_rows++;
  s->plan->rows[i] = (td_plan_row){.slot = slot, .q_start = i, .q_len = 1, .kv_len = n_tokens};
  s->plan->n_tokens++;
  td_plan_add_logits(s->plan, i, 0, target);
}

static void run_steps(steps *s, const td_sample_input *input)
{
  td_backend_submit(s->be, NULL, s->plan);
  td_backend_sample(s->be, s->sampling, input);
  assert_int_equal(td_backend_wait(s->be, &s->out, NULL), TD_OK);
  td_plan_clear(s->plan);
}

static void prepare(steps *s, uint32_t slot, const request *r)
{
  td_sample_history h = {r->tokens, r->n_prompt, r->n_tokens};
  if (!td_sampling_is_plain(&r->sampling))
    s->be->ops->prepare_slot(s->be, slot, &r->sampling, &h);
}

static void new_tenant(steps *s, uint32_t slot, request *r)
{
  make_request(r, STEP_VOCAB, fx_below(3) ? fx_below(32) : 0);
  r->sampling.temperature = one_in(2) ? 0 : 0.5f + (float)fx_uniform();
  r->sampling.wants_logprobs = one_in(2);
  r->sampling.n_top = (uint8_t)(r->sampling.wants_logprobs ? fx_below(6) : 0);
  s->be->ops->set_sampling(s->be, slot, &r->sampling);
}

/* The token of a plain row with the adjusted logits: a draw depends on these only. */
static int32_t choose_of_adjusted(steps *other, const request *r, const uint32_t *mask, const float *x)
{
  static td_sample_state made;
  static uint16_t words[STEP_VOCAB];
  td_sample_history h = {r->tokens, r->n_prompt, r->n_tokens};
  td_sampling plain = {.temperature = r->sampling.temperature, .top_p = 1, .seed = r->sampling.seed};
  td_sample_state_make(&r->sampling, &h, STEP_VOCAB, &made, words);
  for (uint32_t i = 0; i < STEP_VOCAB; i++)
    other->logits[i] = td_sample_adjust(&made, words[i], !mask || td_sample_is_allowed(mask, i), (int32_t)i,
                                        x[i], r->n_tokens);
  other->be->ops->set_sampling(other->be, 0, &plain);
  add_row(other, 0, r->n_tokens, TD_SAMPLE_HERE);
  run_steps(other, NULL);
  return other->out.flags[0] ? -1 : other->out.ids[0];
}

/* The best token by the definition in double, or -1 if another one is equally good within rounding. */
static int32_t naive_best(const request *r, const uint32_t *mask, const float *x)
{
  double best = -INFINITY, second = -INFINITY;
  int32_t id = -1;
  for (int32_t i = 0; i < STEP_VOCAB; i++) {
    double v = naive_logit(r, mask, i, (double)x[i]);
    second = v > best ? best : fmax(second, v);
    id = v > best ? i : id;
    best = fmax(best, v);
  }
  return best - second > 1e-3 ? id : -1;
}

static void check_logprobs(const td_outcome *out, uint32_t entry, const float *x, int32_t id, uint32_t n_top)
{
  double log_sum = naive_log_sum(x, STEP_VOCAB), last = INFINITY;
  assert_true(fabs((double)out->logprobs[entry].logprob - ((double)x[id] - log_sum)) < 1e-4);
  for (uint32_t k = 0; k < n_top; k++) {
    td_top_token t = out->top[(size_t)entry * out->top_stride + k];
    assert_true(fabs((double)t.logprob - ((double)x[t.id] - log_sum)) < 1e-4 && (double)t.logprob <= last);
    last = (double)t.logprob;
  }
}

/* A step of random rows of random slots, compared with the definition. */
static void random_step(steps *s, steps *other, request *all, uint32_t *n_checked, uint32_t *n_late)
{
  static float x[STEP_ROWS][STEP_VOCAB];
  static uint32_t bits[STEP_ROWS][STEP_VOCAB / 32 + 1];
  const uint32_t *masks[STEP_ROWS];
  uint8_t late[STEP_ROWS];
  uint32_t slots[STEP_ROWS], n = 1 + fx_below(STEP_ROWS), first = fx_below(STEP_SLOTS);
  for (uint32_t i = 0; i < n; i++) {
    slots[i] = (first + i * 3) % STEP_SLOTS; /* different slots, because 3 and 10 have no common divisor */
    request *r = &all[slots[i]];
    if (r->n_tokens == 0 || r->n_tokens > TOKENS_MAX - 2 || one_in(25))
      new_tenant(s, slots[i], r);
    prepare(s, slots[i], r);
    for (uint32_t v = 0; v < STEP_VOCAB; v++)
      s->logits[i * STEP_VOCAB + v] = x[i][v] = fx_normal() * 3;
    for (uint32_t w = 0; w < STEP_VOCAB / 32 + 1; w++)
      bits[i][w] = (uint32_t)fx_random();
    masks[i] = one_in(4) ? bits[i] : NULL;
    late[i] = one_in(10);
    add_row(s, slots[i], r->n_tokens, one_in(12) ? (int32_t)fx_below(STEP_VOCAB) : TD_SAMPLE_HERE);
  }
  int32_t targets[STEP_ROWS];
  for (uint32_t i = 0; i < n; i++)
    targets[i] = s->plan->logits[i].target;
  td_sample_input input = {late, masks};
  run_steps(s, &input);
  for (uint32_t i = 0; i < n; i++) {
    request *r = &all[slots[i]];
    bool is_scored = targets[i] != TD_SAMPLE_HERE;
    assert_int_equal(s->out.n_ids[i], !is_scored && !late[i]);
    assert_int_equal(s->out.flags[i], !is_scored && late[i] ? TD_LOGITS_LATE : 0);
    *n_late += s->out.flags[i] != 0;
    if (is_scored)
      check_logprobs(&s->out, i, x[i], targets[i], r->sampling.n_top);
    if (s->out.n_ids[i] == 0)
      continue;
    int32_t id = s->out.ids[i * TD_STEP_IDS], best = naive_best(r, masks[i], x[i]);
    assert_int_equal(id, choose_of_adjusted(other, r, masks[i], x[i]));
    if (r->sampling.temperature == 0 && best >= 0)
      assert_int_equal(id, best);
    *n_checked += r->sampling.temperature == 0 && best >= 0;
    if (r->sampling.wants_logprobs)
      check_logprobs(&s->out, i, x[i], id, r->sampling.n_top);
    r->tokens[r->n_tokens++] = id;
  }
}

/* Counts continue over steps, a slot's new user does not see the old one's, and a slot that lost its state
 * continues as if it had kept it. */
static void test_steps(void **state)
{
  static request all[STEP_SLOTS];
  uint32_t n_checked = 0, n_late = 0;
  memset(all, 0, sizeof all);
  steps s = open_steps(), other = open_steps();
  for (uint32_t step = 0; step < 4000; step++)
    random_step(&s, &other, all, &n_checked, &n_late);
  assert_true(n_checked > 1500 && n_late > 100);
  close_steps(&s);
  close_steps(&other);
}

/* A slot that keeps its state and one that is forced to lose it before every step give the same results. */
static void test_preempted(void **state)
{
  steps kept = open_steps(), lost = open_steps();
  static request r, others[STEP_ROWS];
  make_request(&r, STEP_VOCAB, 1 | 2 | 4);
  r.sampling.temperature = 0.8f;
  kept.be->ops->set_sampling(kept.be, 7, &r.sampling);
  lost.be->ops->set_sampling(lost.be, 7, &r.sampling);
  for (uint32_t i = 0; i < STEP_ROWS; i++) {
    make_request(&others[i], STEP_VOCAB, 2);
    lost.be->ops->set_sampling(lost.be, i, &others[i].sampling);
  }
  while (r.n_tokens < TOKENS_MAX) {
    for (uint32_t i = 0; i < STEP_ROWS; i++)
      prepare(&lost, i, &others[i]);
    assert_int_equal(cpu_self(lost.be)->cache.state_of[7], TD_NO_STATE);
    prepare(&kept, 7, &r);
    prepare(&lost, 7, &r);
    for (uint32_t v = 0; v < STEP_VOCAB; v++)
      kept.logits[v] = lost.logits[v] = fx_normal();
    add_row(&kept, 7, r.n_tokens, TD_SAMPLE_HERE);
    add_row(&lost, 7, r.n_tokens, TD_SAMPLE_HERE);
    run_steps(&kept, NULL);
    run_steps(&lost, NULL);
    assert_int_equal(kept.out.ids[0], lost.out.ids[0]);
    r.tokens[r.n_tokens++] = kept.out.ids[0];
  }
  close_steps(&kept);
  close_steps(&lost);
}

static void test_masks_biases_and_bad_rows(void **state)
{
  steps s = open_steps();
  static request r;
  static uint32_t mask[STEP_VOCAB / 32 + 1];
  const uint32_t *masks[STEP_ROWS] = {mask};
  td_sample_input input = {NULL, masks};
  for (uint32_t round = 0; round < 200; round++) {
    uint32_t only = fx_below(STEP_VOCAB);
    bool is_bad = round % 5 == 4;
    make_request(&r, STEP_VOCAB, round % 3 ? 1 | 2 | 4 : 0);
    r.sampling.wants_logprobs = true;
    s.be->ops->set_sampling(s.be, 3, &r.sampling);
    prepare(&s, 3, &r);
    memset(mask, 0, sizeof mask);
    if (round % 7)
      mask[only / 32] |= 1u << only % 32;
    for (uint32_t v = 0; v < STEP_VOCAB; v++)
      s.logits[v] = fx_normal() * 4;
    s.logits[is_bad ? fx_below(STEP_VOCAB) : 0] = is_bad ? NAN : 1;
    add_row(&s, 3, r.n_tokens, TD_SAMPLE_HERE);
    run_steps(&s, &input);
    assert_int_equal(s.out.flags[0], is_bad || round % 7 == 0 ? TD_LOGITS_NAN : 0);
    if (s.out.flags[0] == 0)
      assert_int_equal(s.out.ids[0], only);
    td_sampling biased = {.top_p = 1, .n_bias = 2, .bias = r.bias}; /* without a mask, by a strong bias */
    r.bias[0] = (td_logit_bias){(int32_t)only, 100};
    r.bias[1] = (td_logit_bias){(int32_t)((only + 1) % STEP_VOCAB), -100};
    r.sampling = biased;
    for (int sign = 0; sign < 2 && !is_bad; sign++) {
      s.be->ops->set_sampling(s.be, 3, &r.sampling);
      prepare(&s, 3, &r);
      add_row(&s, 3, r.n_tokens, TD_SAMPLE_HERE);
      run_steps(&s, NULL);
      assert_int_equal(s.out.ids[0] == (int32_t)only, sign == 0);
      r.bias[0].bias = -100;
      for (uint32_t v = 0; v < STEP_VOCAB; v++) /* now the best by far, except for the bias */
        s.logits[v] = v == only ? 90 : fx_normal();
    }
  }
  close_steps(&s);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_adjusted_logits),
      cmocka_unit_test(test_extremes_stay_numbers),
      cmocka_unit_test(test_counts_saturate),
      cmocka_unit_test(test_cache),
      cmocka_unit_test(test_logprobs),
      cmocka_unit_test(test_log_sums),
      cmocka_unit_test(test_steps),
      cmocka_unit_test(test_preempted),
      cmocka_unit_test(test_masks_biases_and_bad_rows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
