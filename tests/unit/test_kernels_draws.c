/* Each sampler of the API, alone and all together: 100,000 draws agree with probabilities computed in
 * double by sorting (chi-square), none is outside the kept set, and greedy rows take the best token. Seeds
 * are fixed, so the outcome is too. scripts/fidelity reads the printed lines. */
#include "kernels_fixture.h"

enum {
  VOCAB = 67,
  MASK_WORDS = (VOCAB + 31) / 32,
  ROWS = 16,
  N_PROMPT = 14,
  N_TOKENS = 26,
  DRAWS = 100000,
  TABLES = 5,
  GREEDY = 200
};

/* The parameters of a request of each kind; history, and the ids of bias and ends, are made for each table.
 */
static const struct {
  const char *name;
  bool is_masked; /* as by bad_words or a grammar */
  td_sampling sampling;
} samplers[] = {
    {"temperature 1", false, {.temperature = 1, .top_p = 1}},
    {"temperature 0.4", false, {.temperature = 0.4f, .top_p = 1}},
    {"temperature 2", false, {.temperature = 2, .top_p = 1}},
    {"top_p", false, {.temperature = 1, .top_p = 0.8f}},
    {"top_k", false, {.temperature = 1, .top_p = 1, .top_k = 9}},
    {"min_p", false, {.temperature = 1, .top_p = 1, .min_p = 0.07f}},
    {"presence_penalty", false, {.temperature = 1, .top_p = 1, .presence_penalty = 1.2f}},
    {"frequency_penalty", false, {.temperature = 1, .top_p = 1, .frequency_penalty = 0.7f}},
    {"repetition_penalty", false, {.temperature = 1, .top_p = 1, .repetition_penalty = 1.6f}},
    {"logit_bias", false, {.temperature = 1, .top_p = 1, .n_bias = 6}},
    {"min_tokens", false, {.temperature = 1, .top_p = 1, .min_tokens = N_TOKENS, .n_end_ids = 5}},
    {"mask (bad_words, grammars)", true, {.temperature = 1, .top_p = 1}},
    {"all",
     true,
     {.temperature = 1.3f,
      .top_p = 0.95f,
      .top_k = 40,
      .min_p = 0.01f,
      .presence_penalty = -0.4f,
      .frequency_penalty = 0.3f,
      .repetition_penalty = 0.8f,
      .n_bias = 6,
      .min_tokens = N_TOKENS,
      .n_end_ids = 5}},
};

typedef struct table {
  td_sampling sampling;
  td_logit_bias bias[6];
  int32_t ends[5], tokens[N_TOKENS];
  uint32_t mask[MASK_WORDS];
  bool is_masked;
  float logits[VOCAB];
  double prob[VOCAB]; /* by the definition; 0: not kept */
  int32_t best;
} table;

static bool is_allowed(const table *t, int32_t id)
{
  return !t->is_masked || (t->mask[id / 32] >> id % 32 & 1);
}

/* In the order of docs/API.md: masks and min_tokens, bias, repetition, frequency and presence. */
static double adjusted(const table *t, int32_t id)
{
  const td_sampling *s = &t->sampling;
  double x = (double)t->logits[id];
  int in_prompt = 0, in_answer = 0;
  if (!is_allowed(t, id))
    return -INFINITY;
  for (int i = 0; i < N_TOKENS; i++)
    *(i < N_PROMPT ? &in_prompt : &in_answer) += t->tokens[i] == id;
  for (uint32_t i = 0; i < s->n_end_ids; i++)
    if (t->ends[i] == id && N_TOKENS - N_PROMPT < s->min_tokens)
      return -INFINITY;
  for (uint32_t i = 0; i < s->n_bias; i++)
    x += t->bias[i].id == id ? (double)t->bias[i].bias : 0;
  if (s->repetition_penalty != 0 && in_prompt + in_answer > 0)
    x = x > 0 ? x / (double)s->repetition_penalty : x * (double)s->repetition_penalty;
  x -= (double)s->frequency_penalty * in_answer;
  return in_answer > 0 ? x - (double)s->presence_penalty : x;
}

/* Applies temperature, min-p, top-k, top-p. Returns false if a cut is too close to call. */
static bool define(table *t)
{
  const td_sampling *s = &t->sampling;
  double x[VOCAB], total = 0, above = 0;
  uint32_t order[VOCAB];
  bool clear = true;
  for (uint32_t i = 0; i < VOCAB; i++) {
    uint32_t k = i;
    x[i] = adjusted(t, (int32_t)i);
    for (; k > 0 && x[order[k - 1]] < x[i]; k--)
      order[k] = order[k - 1];
    order[k] = i;
  }
  t->best = (int32_t)order[0];
  clear = x[order[0]] - x[order[1]] > 1e-3;
  for (uint32_t k = 0; k < VOCAB; k++) {
    double p = exp((x[order[k]] - x[order[0]]) / (double)s->temperature);
    clear = clear && (s->min_p == 0 || fabs(p - (double)s->min_p) > 1e-5);
    t->prob[order[k]] = p < (double)s->min_p || (s->top_k && k >= (uint32_t)s->top_k) ? 0 : p;
    total += t->prob[order[k]];
  }
  for (uint32_t k = 0; k < VOCAB; k++) {
    double share = above / total;
    clear = clear && (s->top_p == 1 || fabs(share - (double)s->top_p) > 1e-5);
    above += t->prob[order[k]];
    if (s->top_p < 1 && share >= (double)s->top_p)
      t->prob[order[k]] = 0;
  }
  total = 0;
  for (uint32_t i = 0; i < VOCAB; i++)
    total += t->prob[i];
  for (uint32_t i = 0; i < VOCAB; i++)
    t->prob[i] /= total;
  return clear;
}

static void make_table(table *t, size_t kind)
{
  const td_sampling *s = &samplers[kind].sampling;
  do {
    t->sampling = *s;
    t->is_masked = samplers[kind].is_masked;
    t->sampling.bias = t->bias;
    t->sampling.end_ids = t->ends;
    for (int i = 0; i < VOCAB; i++)
      t->logits[i] = fx_normal() * 2;
    for (int i = 0; i < N_TOKENS; i++)
      t->tokens[i] = (int32_t)fx_below(VOCAB / 2);
    for (int i = 0; i < 6; i++)
      t->bias[i] = (td_logit_bias){11 * i + (int32_t)fx_below(11), i ? fx_normal() * 2 : -100};
    for (int i = 0; i < 5; i++)
      t->ends[i] = 13 * i + (int32_t)fx_below(13);
    for (int i = 0; i < MASK_WORDS; i++)
      t->mask[i] = fx_below(1u << 16) << 16 | fx_below(1u << 16);
  } while (!define(t));
}

typedef struct bench {
  td_backend *be;
  td_plan *plan;
  td_compiled *sampling;
  float *logits;
  td_outcome out;
} bench;

static void open_bench(bench *b)
{
  td_program *program;
  td_backend_config c = {.n_threads = 1,
                         .max_slots = ROWS,
                         .max_rows = ROWS,
                         .max_tokens = ROWS,
                         .max_context_tokens = N_TOKENS + 1,
                         .max_vocab = VOCAB};
  assert_int_equal(td_backend_create("cpu", &c, &b->be, NULL), TD_OK);
  assert_int_equal(td_plan_create(ROWS, ROWS, ROWS, 1, 16, &b->plan, NULL), TD_OK);
  assert_int_equal(td_program_create(1, &program, NULL), TD_OK);
  td_devptr logits = fx_alloc(b->be, ROWS * VOCAB);
  b->logits = (float *)logits.addr;
  td_program_add(program, (td_op){.kind = TD_OP_SAMPLE,
                                  .extent = TD_EXTENT_LOGITS,
                                  .sample = {.logits = logits, .vocab = VOCAB}});
  assert_int_equal(b->be->ops->compile(b->be, program, &b->sampling, NULL), TD_OK);
  td_program_destroy(program);
}

static void close_bench(bench *b)
{
  b->be->ops->discard(b->be, b->sampling);
  td_plan_destroy(b->plan);
  b->be->ops->destroy(b->be);
}

/* ROWS draws of a table, with seeds from `seed` on. */
static void draw(bench *b, const table *t, float temperature, uint64_t seed, int32_t *ids)
{
  const uint32_t *masks[ROWS];
  td_plan_clear(b->plan);
  for (uint32_t i = 0; i < ROWS; i++) {
    masks[i] = t->mask;
    td_sampling s = t->sampling;
    s.temperature = temperature;
    s.seed = seed + i;
    td_sample_history h = {t->tokens, N_PROMPT, N_TOKENS};
    memcpy(b->logits + (size_t)i * VOCAB, t->logits, sizeof t->logits);
    b->be->ops->set_sampling(b->be, i, &s);
    if (!td_sampling_is_plain(&s))
      b->be->ops->prepare_slot(b->be, i, &s, &h);
    b->plan->rows[i] = (td_plan_row){.slot = i, .q_start = i, .q_len = 1, .kv_len = N_TOKENS};
    td_plan_add_sample(b->plan, i);
  }
  b->plan->n_rows = b->plan->n_tokens = ROWS;
  td_backend_submit(b->be, NULL, b->plan);
  td_backend_sample(b->be, b->sampling, t->is_masked ? &(td_sample_input){.masks = masks} : NULL);
  assert_int_equal(td_backend_wait(b->be, &b->out, NULL), TD_OK);
  for (uint32_t i = 0; i < ROWS; i++)
    ids[i] = b->out.ids[i * TD_STEP_IDS];
}

/* Chi-square over cells of at least 5, with small ones pooled; counts draws outside the kept set in *outside.
 */
static bool agrees(bench *b, const table *t, uint32_t draws, uint64_t seed, uint32_t *outside)
{
  uint32_t seen[VOCAB] = {0}, freedom = 0;
  double chi2 = 0, pool = 0, pool_seen = 0;
  int32_t ids[ROWS];
  for (uint32_t d = 0; d < draws; d += ROWS) {
    draw(b, t, t->sampling.temperature, seed + d, ids);
    for (uint32_t i = 0; i < ROWS; i++) {
      assert_true(ids[i] >= 0 && ids[i] < VOCAB);
      seen[ids[i]]++;
      *outside += t->prob[ids[i]] == 0;
    }
  }
  for (int i = 0; i < VOCAB; i++) {
    double expected = t->prob[i] * draws;
    if (expected < 5) {
      pool += expected;
      pool_seen += seen[i];
      continue;
    }
    chi2 += (seen[i] - expected) * (seen[i] - expected) / expected;
    freedom++;
  }
  if (pool >= 5) {
    chi2 += (pool_seen - pool) * (pool_seen - pool) / pool;
    freedom++;
  }
  return chi2 < freedom - 1 + 5 * sqrt(2.0 * (freedom - 1)) + 12; /* exceeded about once in a million */
}

static void test_draws(void **state)
{
  static table t;
  bench b = {0};
  uint32_t all_bad = 0;
  int32_t ids[ROWS];
  open_bench(&b);
  for (size_t k = 0; k < sizeof samplers / sizeof *samplers; k++) {
    uint32_t bad = 0, cases = 0;
    for (uint32_t n = 0; n < TABLES; n++) {
      make_table(&t, k);
      bad += !agrees(&b, &t, DRAWS / TABLES, (uint64_t)n * DRAWS + 1, &bad);
      cases += DRAWS / TABLES;
    }
    for (uint32_t n = 0; n < GREEDY; n++, cases++) {
      make_table(&t, k);
      draw(&b, &t, 0, n, ids);
      bad += ids[0] != t.best;
    }
    print_message("fidelity sampling | %s | %u | %u\n", samplers[k].name, cases, bad);
    all_bad += bad;
  }
  close_bench(&b);
  assert_int_equal(all_bad, 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_draws)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
