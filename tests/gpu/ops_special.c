/* Rows that are not plain, on the backend under test and on the CPU backend: tokens, flags and
 * log-probabilities have the same bits. They run in consecutive steps over the same logits, so that the
 * tokens of one step count in the next. There are more slots than sampler states, so that state is lost and
 * rebuilt.
 *
 * If the backend under test is the CPU itself, the portable loops are the reference. */
#include "ops_sample.h"
#include "ops_watch.h"
#include "sample_side.h"

enum { MAX_ROWS = 256, MAX_SLOTS = 2 * MAX_ROWS, MAX_TOKENS = 40, MAX_VOCAB = 152064 };

/* A request, updated with the tokens that the CPU chose. */
typedef struct request {
  td_sampling sampling;
  td_logit_bias bias[TD_LOGIT_BIAS_MAX];
  int32_t end_ids[TD_END_IDS_MAX];
  int32_t tokens[MAX_TOKENS];
  uint32_t n_prompt, n_tokens;
} request;

typedef struct tally {
  int rows, steps, special, masked, scored, logprobs, late, bad, wrong;
} tally;

static request requests[MAX_SLOTS];
static uint32_t *mask_bits; /* [MAX_ROWS][mask words] */

/* Different ids in ascending order. */
static uint32_t pick_ids(int32_t *ids, uint32_t n, uint32_t vocab)
{
  uint32_t made = 0, step = vocab / (n + 1) + 1;
  for (uint32_t at = below(step); at < vocab && made < n; at += 1 + below(step))
    ids[made++] = (int32_t)at;
  return made;
}

static void make_request(request *r, uint32_t vocab)
{
  int32_t ids[TD_LOGIT_BIAS_MAX];
  td_sampling *s = &r->sampling;
  *s = make_sampling(vocab);
  if (below(2)) { /* else a plain one */
    s->presence_penalty = below(2) ? 4 * uniform() - 2 : 0;
    s->frequency_penalty = below(2) ? 4 * uniform() - 2 : 0;
    s->repetition_penalty = below(2) ? 0.2f + 2 * uniform() : 1;
    s->n_bias = below(2) ? pick_ids(ids, 1 + below(TD_LOGIT_BIAS_MAX), vocab) : 0;
    for (uint32_t i = 0; i < s->n_bias; i++)
      r->bias[i] = (td_logit_bias){ids[i], below(4) ? normal() * 3 : below(2) ? 100 : -100};
    s->bias = r->bias;
    s->min_tokens = below(2) ? below(12) : 0;
    s->n_end_ids = s->min_tokens ? pick_ids(r->end_ids, 1 + below(TD_END_IDS_MAX), vocab) : 0;
    s->end_ids = r->end_ids;
  }
  s->wants_logprobs = below(3) == 0;
  s->n_top = (uint8_t)(below(2) ? below(TD_TOP_TOKENS_MAX + 1) : 0);
  r->n_prompt = r->n_tokens = 1 + below(MAX_TOKENS / 2);
  for (uint32_t i = 0; i < r->n_prompt; i++)
    r->tokens[i] = (int32_t)below(below(2) ? vocab : 1 + vocab / 8);
}

/* ---- a step ---- */

static void prepare(side *s, uint32_t slot, bool is_new)
{
  const request *r = &requests[slot];
  td_sample_history h = {r->tokens, r->n_prompt, r->n_tokens};
  if (is_new)
    s->be->ops->set_sampling(s->be, slot, &r->sampling);
  if (!td_sampling_is_plain(&r->sampling))
    s->be->ops->prepare_slot(s->be, slot, &r->sampling, &h);
}

static void add_row(side *s, uint32_t slot, int32_t target)
{
  td_plan *p = s->plan;
  uint32_t i = p->n_rows++, n_tokens = requests[slot].n_tokens;
  p->rows[i] = (td_plan_row){.slot = slot, .q_start = i, .q_len = 1, .kv_len = n_tokens};
  p->token_ids[i] = 0;
  p->positions[i] = (int32_t)n_tokens - 1;
  p->n_tokens++;
  p->n_decode_rows++;
  td_plan_add_logits(p, i, 0, target);
}

static void run(side *s, td_devptr logits, uint32_t vocab, const td_sample_input *input, td_outcome *out)
{
  td_error err;
  td_compiled *sampling = compile(s, logits, vocab, 1);
  s->plan->page_tokens = 16;
  td_backend_submit(s->be, NULL, s->plan);
  td_backend_sample(s->be, sampling, input);
  must(watch_wait(s->be, s->plan, out, &err), &err);
  s->be->ops->discard(s->be, sampling);
}

static bool same_bits(float a, float b) { return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b)); }

/* The results of one entry on both sides. */
static const char *difference(const td_outcome *a, const td_outcome *b, uint32_t i, bool wants,
                              uint32_t n_top)
{
  if (a->n_ids[i] != b->n_ids[i])
    return "number of ids";
  if (a->flags[i] != b->flags[i])
    return "flags";
  if (a->n_ids[i] > 0 && a->ids[i * TD_STEP_IDS] != b->ids[i * TD_STEP_IDS])
    return "token";
  if (!wants)
    return NULL;
  if (!a->logprobs || !b->logprobs ||
      !same_bits(a->logprobs[i * TD_STEP_IDS].logprob, b->logprobs[i * TD_STEP_IDS].logprob))
    return "log-probability";
  if (n_top > 0 && (!a->top || !b->top || a->top_stride < n_top || b->top_stride < n_top))
    return "number of likeliest tokens";
  for (uint32_t k = 0; k < n_top; k++) {
    td_top_token x = a->top[(size_t)i * a->top_stride + k], y = b->top[(size_t)i * b->top_stride + k];
    if (x.id != y.id || !same_bits(x.logprob, y.logprob))
      return "a likeliest token";
  }
  return NULL;
}

static const uint32_t *make_mask(uint32_t i, uint32_t vocab)
{
  uint32_t n = (vocab + 31) / 32, *bits = mask_bits + (size_t)i * n, kind = below(4);
  for (uint32_t w = 0; w < n; w++)
    bits[w] = kind == 0 ? 0 : kind == 1 ? (uint32_t)(rng() & rng() & rng() & rng()) : (uint32_t)rng();
  if (kind == 0 && below(4)) /* all but one */
    bits[below(n)] = 1u << below(32);
  return bits;
}

static void compare(side *got, side *want, td_devptr a, td_devptr b, uint32_t vocab, uint32_t n, tally *t)
{
  uint8_t late[MAX_ROWS];
  const uint32_t *masks[MAX_ROWS];
  uint32_t first = below(MAX_SLOTS);
  td_outcome x, y;
  watch_case(rng_state, "special rows, vocab %u, step %d of %u rows", vocab, t->steps, n);
  td_plan_clear(got->plan);
  td_plan_clear(want->plan);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t slot = (first + 3 * i) % MAX_SLOTS; /* different ones: 512 is no multiple of 3 */
    request *r = &requests[slot];
    bool is_new = r->n_tokens == 0 || r->n_tokens == MAX_TOKENS || below(40) == 0;
    if (is_new)
      make_request(r, vocab);
    int32_t target = below(10) ? TD_SAMPLE_HERE : (int32_t)below(vocab);
    prepare(got, slot, is_new);
    prepare(want, slot, is_new);
    add_row(got, slot, target);
    add_row(want, slot, target);
    late[i] = below(12) == 0;
    masks[i] = below(5) ? NULL : make_mask(i, vocab);
    t->special += !td_sampling_is_plain(&r->sampling);
    t->masked += masks[i] != NULL;
    t->scored += target != TD_SAMPLE_HERE;
  }
  td_sample_input input = {below(3) ? late : NULL, below(3) ? masks : NULL};
  run(got, a, vocab, &input, &x);
  run(want, b, vocab, &input, &y);
  t->steps++;
  for (uint32_t i = 0; i < n; i++) {
    request *r = &requests[(first + 3 * i) % MAX_SLOTS];
    bool wants = want->plan->logits[i].target != TD_SAMPLE_HERE || r->sampling.wants_logprobs;
    bool is_late = y.flags[i] & TD_LOGITS_LATE;
    uint32_t n_top = r->sampling.n_top < vocab ? r->sampling.n_top : vocab;
    const char *what = difference(&x, &y, i, wants && !is_late, n_top);
    t->rows++;
    t->late += is_late;
    t->bad += y.flags[i] & TD_LOGITS_NAN;
    t->logprobs += wants && !is_late;
    if (what && t->wrong++ < 5)
      printf("  vocab %u, row %u of %u: %s differs (token %d, the CPU's is %d%s%s)\n", vocab, i, n, what,
             x.ids[i * TD_STEP_IDS], y.ids[i * TD_STEP_IDS], masks[i] ? ", masked" : "",
             td_sampling_is_plain(&r->sampling) ? "" : ", with state");
    if (y.n_ids[i] > 0)
      r->tokens[r->n_tokens++] = y.ids[i * TD_STEP_IDS];
  }
}

static bool compare_steps(const char *backend, uint32_t vocab, uint32_t n_steps, uint32_t rows)
{
  tally t = {0};
  side got = open_side(backend, NULL, vocab, MAX_ROWS, MAX_SLOTS),
       want = open_side("cpu", strcmp(backend, "cpu") ? NULL : "scalar", vocab, MAX_ROWS, MAX_SLOTS);
  float *x = malloc((size_t)rows * vocab * sizeof *x);
  mask_bits = malloc((size_t)MAX_ROWS * (vocab + 31) / 32 * sizeof *mask_bits + MAX_ROWS * sizeof *mask_bits);
  if (!x || !mask_bits) {
    printf("sampling: no memory for %u rows\n", rows);
    exit(1);
  }
  memset(requests, 0, sizeof requests);
  for (uint32_t i = 0; i < rows; i++)
    make_row(x + (size_t)i * vocab, vocab);
  td_devptr a = upload(&got, x, (size_t)rows * vocab), b = upload(&want, x, (size_t)rows * vocab);
  for (uint32_t i = 0; i < n_steps; i++)
    compare(&got, &want, a, b, vocab, i % 3 ? 1 + below(rows) : rows, &t);
  printf("special rows, vocab %u: %d in %d steps (%d with state, %d masked, %d scored, %d with "
         "log-probabilities, "
         "%d late, %d not a number): %d differ\n",
         vocab, t.rows, t.steps, t.special, t.masked, t.scored, t.logprobs, t.late, t.bad, t.wrong);
  free(x);
  free(mask_bits);
  close_side(&got);
  close_side(&want);
  return t.wrong == 0;
}

typedef struct amount {
  uint32_t vocab, steps, rows;
} amount;

void test_special_tokens(const char *backend, test_size size, int *n_passed, int *n_failed)
{
  static const amount all[] = {{1, 3, 16},           {3, 6, 30},
                               {33, 12, 60},         {1000, 40, MAX_ROWS},
                               {5003, 40, 200},      {32001, 12, 100},
                               {49152, 8, MAX_ROWS}, {128256, 6, MAX_ROWS},
                               {151937, 4, 64},      {0}},
                      few[] = {{1, 3, 16},     {33, 12, 60},   {1000, 20, 100},
                               {5003, 10, 40}, {49152, 4, 12}, {0}},
                      tiny[] = {{3, 2, 5}, {1031, 3, 20}, {0}};
  const amount *a = size == TEST_TINY ? tiny : size == TEST_SMALL || strcmp(backend, "cpu") == 0 ? few : all;
  for (; a->vocab > 0; a++) {
    bool ok = compare_steps(backend, a->vocab, a->steps, a->rows);
    *n_passed += ok;
    *n_failed += !ok;
  }
}

/* ---- time ---- */

static float time_rows(side *s, td_devptr logits, uint32_t vocab, uint32_t n, const td_sampling *sampling,
                       bool masked)
{
  td_outcome out;
  const uint32_t *masks[MAX_ROWS];
  float best = INFINITY;
  for (uint32_t i = 0; i < n; i++) {
    request *r = &requests[i];
    r->sampling = *sampling;
    r->sampling.seed = i;
    r->n_prompt = r->n_tokens = 10;
    prepare(s, i, true);
    masks[i] = mask_bits;
  }
  for (int round = 0; round < 10; round++) {
    td_sample_input input = {NULL, masks};
    td_plan_clear(s->plan);
    for (uint32_t i = 0; i < n; i++)
      add_row(s, i, TD_SAMPLE_HERE);
    run(s, logits, vocab, masked ? &input : NULL, &out);
    best = out.busy_us > 0 && out.busy_us < best ? out.busy_us : best;
  }
  return best;
}

void time_special_rows(const char *backend)
{
  enum { VOCAB = 128256, CASES = 6 };
  static const uint32_t sizes[] = {1, 4, 16, 64, MAX_ROWS};
  static const struct {
    const char *name;
    td_sampling sampling;
    bool masked;
  } cases[CASES] = {
      {"plain", {.temperature = 0.7f, .top_p = 0.95f}, false},
      {"penalties",
       {.temperature = 0.7f, .top_p = 0.95f, .presence_penalty = 1, .repetition_penalty = 1.1f},
       false},
      {"mask", {.temperature = 0.7f, .top_p = 0.95f}, true},
      {"greedy, mask", {.top_p = 1}, true},
      {"logprobs", {.temperature = 0.7f, .top_p = 0.95f, .wants_logprobs = true}, false},
      {"logprobs, 20", {.temperature = 0.7f, .top_p = 0.95f, .wants_logprobs = true, .n_top = 20}, false},
  };
  if (strcmp(backend, "cpu") == 0)
    return;
  side s = open_side(backend, NULL, VOCAB, MAX_ROWS, MAX_SLOTS);
  float *x = malloc((size_t)MAX_ROWS * VOCAB * sizeof *x);
  mask_bits = malloc((VOCAB + 31) / 32 * sizeof *mask_bits);
  for (size_t i = 0; x && i < (size_t)MAX_ROWS * VOCAB; i++)
    x[i] = normal() * 4;
  if (x && mask_bits) {
    memset(mask_bits, 0x77, (VOCAB + 31) / 32 * sizeof *mask_bits);
    memset(requests, 0, sizeof requests);
    td_devptr logits = upload(&s, x, (size_t)MAX_ROWS * VOCAB);
    printf("special rows, us of a step that samples only (its copies included), vocab %d\n%8s", (int)VOCAB,
           "rows");
    for (int c = 0; c < CASES; c++)
      printf("%15s", cases[c].name);
    printf("\n");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
      printf("%8u", sizes[i]);
      for (int c = 0; c < CASES; c++)
        printf("%15.1f", (double)time_rows(&s, logits, VOCAB, sizes[i], &cases[c].sampling, cases[c].masked));
      printf("\n");
    }
  }
  free(x);
  free(mask_bits);
  close_side(&s);
}
