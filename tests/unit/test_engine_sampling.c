/* Sampler state through the engine: the real step loop, scheduler and CPU backend, with a model whose
 * logits are a random row for each token, so that greedy answers are known beforehand. There are fewer
 * pages and sampler states than requests need, so answers are preempted, and their counts are lost and
 * rebuilt. With one step under way, and with two, where a step is sampled before the host knows the tokens
 * of the step before. */
#include "engine_fixture.h"

#include <math.h>
#include <sched.h>
#include <unistd.h>

#include "kernels/logprob_math.h"
#include "kernels/sampler_cache.h"

enum {
  N_SLOTS = 20,
  MAX_ROWS = 6,
  MAX_TOKENS = 64,
  N_REQUESTS = 500,
  MAX_PROMPT = 30,
  MAX_NEW = 70,
  N_CONTEXT = MAX_PROMPT + MAX_NEW,
  N_VOCAB = 96,
  EOS = 7
};

static uint32_t seed;
static float model[N_VOCAB][N_VOCAB];

static uint32_t below(uint32_t n)
{
  seed = seed * 1664525 + 1013904223;
  return (uint32_t)((uint64_t)(seed >> 8) * n >> 24);
}
static float uniform(void) { return (float)below(1 << 20) * 0x1p-20f; }

/* ---- the engine ---- */

static td_compiled *compile(td_backend *be, const td_op *ops, uint32_t n)
{
  td_program *p;
  td_compiled *compiled;
  assert_int_equal(td_program_create(n, &p, NULL), TD_OK);
  for (uint32_t i = 0; i < n; i++)
    td_program_add(p, ops[i]);
  p->n_unsampled = 0;
  assert_int_equal(be->ops->compile(be, p, &compiled, NULL), TD_OK);
  td_program_destroy(p);
  return compiled;
}

/* Logits of a token: its row of the embedding. */
static void make_model(td_engine *e)
{
  td_backend *be = e->backend;
  td_weight *weight;
  td_devptr x, logits;
  td_weight_part part = {.dtype = TD_F32, .data = model, .n_rows = N_VOCAB};
  for (uint32_t i = 0; i < N_VOCAB * N_VOCAB; i++)
    model[i / N_VOCAB][i % N_VOCAB] = 6 * (uniform() + uniform() + uniform() - 1.5f);
  assert_int_equal(be->ops->weight_import(be, &part, 1, N_VOCAB, &weight, NULL), TD_OK);
  assert_int_equal(be->ops->alloc(be, MAX_TOKENS * N_VOCAB * sizeof(float), &x, NULL), TD_OK);
  assert_int_equal(be->ops->alloc(be, MAX_ROWS * N_VOCAB * sizeof(float), &logits, NULL), TD_OK);
  const td_op forward[] = {
      {.kind = TD_OP_EMBED, .extent = TD_EXTENT_TOKENS, .embed = {weight, x, N_VOCAB, 0}},
      {.kind = TD_OP_GATHER, .extent = TD_EXTENT_LOGITS, .gather = {x, logits, N_VOCAB}},
  };
  const td_op sample = {.kind = TD_OP_SAMPLE, .extent = TD_EXTENT_LOGITS, .sample = {logits, N_VOCAB}};
  e->forward = compile(be, forward, 2);
  e->sampling = compile(be, &sample, 1);
}

static td_engine *make_engine(const char *depth)
{
  td_options o = fx_options(N_SLOTS);
  td_error err;
  td_backend *be;
  td_backend_config b = {.n_threads = 1,
                         .max_slots = N_SLOTS,
                         .max_rows = MAX_ROWS,
                         .max_tokens = MAX_TOKENS,
                         .max_context_tokens = N_CONTEXT,
                         .max_vocab = N_VOCAB};
  td_sched_config c = {.n_slots = N_SLOTS,
                       .max_running = MAX_ROWS,
                       .step_tokens = MAX_TOKENS,
                       .page_tokens = 16,
                       .n_pages = 7,
                       .max_context_tokens = N_CONTEXT};
  setenv("TANDEM_PIPELINE", depth, 1);
  assert_int_equal(td_backend_create("cpu", &b, &be, &err), TD_OK);
  unsetenv("TANDEM_PIPELINE");
  td_engine *e = fx_create(&o, be, N_CONTEXT);
  e->info.vocab = N_VOCAB;
  e->desc.eos_ids[0] = EOS;
  e->desc.n_eos_ids = 1;
  make_model(e);
  assert_int_equal(td_masks_create(N_SLOTS, 1, e->wake_fd, &e->masks, &err), TD_OK);
  fx_get_ready(e, &c);
  fx_start_thread(e);
  return e;
}

/* ---- the clients ---- */

typedef struct client {
  td_ticket ticket;
  int32_t answer[MAX_NEW];
  td_token_logprob logprobs[MAX_NEW];
  uint32_t n_answer, seen;
  td_finish finish;
  bool live, wants_logprobs;
} client;

static float logprob_of(const float *x, int32_t id)
{
  uint64_t sum = 0;
  float max = x[0];
  for (uint32_t i = 0; i < N_VOCAB; i++)
    max = x[i] > max ? x[i] : max;
  for (uint32_t i = 0; i < N_VOCAB; i++)
    sum += td_logprob_weight(x[i], max);
  return td_logprob(x[id], max, td_logprob_of_sum(sum));
}

/* The whole answer. The state for each token is rebuilt from all tokens before it (test_kernels_penalties
 * checks that definition against float64). */
static void compute_expected(client *c, const td_engine_request *r)
{
  static td_sample_state made;
  static uint16_t words[N_VOCAB];
  int32_t tokens[N_CONTEXT], ends[] = {EOS, r->n_stop_ids ? r->stop_ids[0] : 0};
  td_sampling s = r->sampling;
  s.end_ids = ends;
  s.n_end_ids = s.min_tokens ? 1 + r->n_stop_ids : 0;
  memcpy(tokens, r->tokens, r->n_prompt * sizeof *tokens);
  c->finish = TD_FINISH_NONE;
  for (c->n_answer = 0; c->finish == TD_FINISH_NONE;) {
    uint32_t n = r->n_prompt + c->n_answer;
    td_sample_history h = {tokens, r->n_prompt, n};
    const float *x = model[tokens[n - 1]];
    float best = -INFINITY;
    int32_t id = -1;
    td_sample_state_make(&s, &h, N_VOCAB, &made, words);
    for (int32_t i = 0; i < N_VOCAB; i++) {
      float v = td_sample_adjust(&made, words[i], true, i, x[i], n);
      id = v > best ? i : id;
      best = v > best ? v : best;
    }
    tokens[n] = c->answer[c->n_answer] = id;
    c->logprobs[c->n_answer++].logprob = logprob_of(x, id);
    if ((id == EOS && !r->ignore_eos) || (r->n_stop_ids > 0 && id == r->stop_ids[0]))
      c->finish = TD_FINISH_STOP;
    else if (c->n_answer == r->max_new)
      c->finish = TD_FINISH_LENGTH;
  }
}

static bool submit(td_engine *e, client *c)
{
  td_error err;
  td_logit_bias bias[3]; /* freed before the engine samples, so the engine must have a copy */
  td_engine_request r = {.n_prompt = 1 + below(MAX_PROMPT), .max_new = 1 + below(MAX_NEW), .user = c};
  r.sampling.top_p = 1;
  if (below(3)) {
    r.sampling.presence_penalty = below(2) ? 3 * uniform() - 1 : 0;
    r.sampling.frequency_penalty = below(2) ? 2 * uniform() : 0;
    r.sampling.repetition_penalty = below(2) ? 0.8f + uniform() : 1;
    r.sampling.min_tokens = below(2) ? below(r.max_new) : 0;
    r.sampling.n_bias = below(4);
    for (uint32_t i = 0; i < 3; i++)
      bias[i] = (td_logit_bias){(int32_t)(i * 32 + below(32)), 10 * uniform() - 5};
    r.sampling.bias = bias;
  }
  r.sampling.wants_logprobs = c->wants_logprobs = below(2);
  r.n_stop_ids = below(2);
  r.stop_ids[0] = (int32_t)below(N_VOCAB);
  r.tokens = calloc(r.n_prompt + r.max_new, sizeof *r.tokens);
  assert_non_null(r.tokens);
  for (uint32_t i = 0; i < r.n_prompt; i++)
    r.tokens[i] = (int32_t)below(N_VOCAB);
  compute_expected(c, &r);
  c->seen = 0;
  c->live = td_engine_submit(e, &r, &c->ticket, &err) == TD_OK;
  memset(bias, 0xAA, sizeof bias);
  if (!c->live)
    free(r.tokens);
  return c->live;
}

static void take_update(td_engine *e, const td_engine_update *u)
{
  client *c = u->user;
  assert_true(u->n_generated >= c->seen && u->n_generated <= c->n_answer);
  assert_memory_equal(u->tokens + u->n_prompt, c->answer, u->n_generated * sizeof(int32_t));
  if (c->wants_logprobs)
    assert_memory_equal(u->logprobs, c->logprobs, u->n_generated * sizeof *c->logprobs);
  c->seen = u->n_generated;
  if (u->finish == TD_FINISH_NONE)
    return;
  assert_int_equal(u->finish, c->finish);
  assert_int_equal(u->n_generated, c->n_answer);
  c->live = false;
  td_engine_release(e, u->ticket);
}

static void serve(const char *depth)
{
  static client clients[N_SLOTS];
  td_engine_update updates[5];
  td_engine_stats stats;
  uint32_t n_started = 0, n_live = 0;
  memset(clients, 0, sizeof clients);
  seed = 17;
  td_engine *e = make_engine(depth);
  uint32_t n_wanted = N_REQUESTS;
  while (n_started < n_wanted || n_live > 0) {
    if (n_live < N_SLOTS / 2 || below(50) == 0)
      for (uint32_t i = 0; i < N_SLOTS && n_started < n_wanted; i++)
        n_started += !clients[i].live && submit(e, &clients[i]);
    uint32_t n = td_engine_poll(e, updates, 5);
    for (uint32_t i = 0; i < n; i++)
      take_update(e, &updates[i]);
    if (n == 0)
      sched_yield();
    n_live = 0;
    for (uint32_t i = 0; i < N_SLOTS; i++)
      n_live += clients[i].live;
    /* How many run at the same time depends on the threads, so the test repeats, within limits, until enough
     * did. */
    if (n_started == n_wanted && n_wanted < 10 * N_REQUESTS) {
      td_engine_get_stats(e, &stats);
      n_wanted += stats.preemptions > 20 ? 0 : N_SLOTS;
    }
  }
  td_engine_get_stats(e, &stats);
  td_engine_stop(e);
  print_message("%u requests, %llu steps, %llu preemptions\n", n_started, (unsigned long long)stats.steps,
                (unsigned long long)stats.preemptions);
  assert_true(stats.preemptions > 20);
  td_engine_destroy(e);
}

static void test_one_step_under_way(void **state) { serve("1"); }
static void test_two_steps_under_way(void **state) { serve("2"); }

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_step_under_way),
                                     cmocka_unit_test(test_two_steps_under_way)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
