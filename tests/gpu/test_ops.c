/* Every op of a backend against float64 references written here: `test_ops cpu` or `test_ops cuda`.
 *
 * All inputs are bf16 numbers, exact on every backend; tolerances are those of bf16 or f32 results. KV
 * pages beyond a row's length are filled with NaN. It uses no test framework, so that it runs on machines
 * that only have a compiler and the device. */
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/attention_policies.h"
#include "ops_attention.h"
#include "ops_cuts.h"
#include "ops_harness.h"
#include "ops_decoder.h"
#include "ops_glu.h"
#include "ops_linear.h"
#include "ops_pointwise.h"
#include "ops_sample.h"
#include "ops_step.h"
#include "ops_tune.h"
#include "ops_watch.h"

/* ---- sampling ---- */

/* One row of logits per plan row; the same logits for all rows, seeds and positions differ. */
static void sample_rows(const float *logits, uint32_t vocab, const td_sampling *s, uint32_t n, uint32_t round)
{
  static const int32_t pages[MAX_CONTEXT / 16];
  float *all = malloc((size_t)n * vocab * sizeof *all);
  plan_reset(16);
  for (uint32_t i = 0; i < n; i++) {
    td_sampling one = *s;
    one.seed += i * 7919;
    memcpy(all + (size_t)i * vocab, logits, vocab * sizeof *all);
    plan_add_row(1, 1 + round, pages);
    be->ops->set_sampling(be, i, &one);
  }
  td_devptr dl = device_f32(all, (size_t)n * vocab);
  run_ops(&(td_op){.kind = TD_OP_SAMPLE, .extent = TD_EXTENT_LOGITS, .sample = {dl, vocab}}, 1);
  free(all);
}

static void test_sampling(void)
{
  enum { V = 1000, ROUNDS = 100 };
  float *x = random_values(V, 2);
  td_sampling greedy = {.temperature = 0, .top_p = 1, .seed = 1};
  uint32_t best = 0;
  x[700] = x[300] = 9;
  for (uint32_t i = 0; i < V; i++)
    best = x[i] > x[best] ? i : best;
  sample_rows(x, V, &greedy, 5, 0);
  expect(sampled[0] == 300 && sampled[4] == 300 && best == 300, "greedy takes the lowest id among equals");
  x[10] = NAN;
  sample_rows(x, V, &greedy, 1, 0);
  expect(sampled[0] == SAMPLED_NAN, "NaN is told");
  x[10] = 0;
  x[700] = x[300] = 3;
  /* 6400 draws against the softmax: every bucket of mass 1/16 within 6 sigma */
  td_sampling t1 = {.temperature = 0.8f, .top_p = 1, .seed = 99};
  double total = 0, *p = malloc(V * sizeof *p);
  for (uint32_t i = 0; i < V; i++)
    total += p[i] = exp(x[i] / (double)t1.temperature);
  uint32_t hits[V] = {0};
  for (uint32_t r = 0; r < ROUNDS; r++) {
    sample_rows(x, V, &t1, MAX_ROWS, r);
    for (uint32_t i = 0; i < MAX_ROWS; i++)
      if (sampled[i] >= 0 && sampled[i] < V)
        hits[sampled[i]]++;
  }
  double mass = 0, n = ROUNDS * MAX_ROWS, worst = 0;
  uint32_t seen = 0;
  for (uint32_t i = 0; i < V; i++) {
    mass += p[i] / total;
    seen += hits[i];
    if (mass > 1.0 / 16 || i == V - 1) {
      worst = fmax(worst, fabs(seen - n * mass) / sqrt(n * mass * (1 - mass) + 1));
      mass = 0;
      seen = 0;
    }
  }
  expect(worst < 5, "draws follow the softmax");
  /* support of top-k, top-p and min-p */
  for (int mode = 0; mode < 3; mode++) {
    td_sampling s = {.temperature = 1,
                     .top_p = mode == 1 ? 0.3f : 1,
                     .top_k = mode == 0 ? 7 : 0,
                     .min_p = mode == 2 ? 0.3f : 0,
                     .seed = 5};
    total = 0;
    for (uint32_t i = 0; i < V; i++)
      total += p[i] = exp(x[i]);
    bool ok = true;
    uint32_t kept[V] = {0};
    for (uint32_t r = 0; r < 8; r++) {
      sample_rows(x, V, &s, MAX_ROWS, r);
      for (uint32_t i = 0; i < MAX_ROWS; i++) {
        double above = 0, max = 0;
        uint32_t better = 0, id = (uint32_t)sampled[i];
        for (uint32_t k = 0; k < V; k++) {
          max = fmax(max, p[k]);
          if (x[k] > x[id]) {
            above += p[k];
            better++;
          }
        }
        kept[id]++;
        ok &= mode == 0 ? better < 7 : mode == 1 ? above < 0.3 * total : p[id] >= 0.299 * max;
      }
    }
    uint32_t distinct = 0;
    for (uint32_t k = 0; k < V; k++)
      distinct += kept[k] > 0;
    expect(ok && distinct > 1, mode == 0 ? "top-k support" : mode == 1 ? "top-p support" : "min-p support");
  }
  free(x), free(p);
}

/* ---- attention ---- */

static void open_backend(const char *name, const td_backend_config *config)
{
  td_error err;
  watch_policy(config->attention_policy ? config->attention_policy->name : "none");
  die(td_backend_create(name, config, &be, &err), &err, "backend");
  eps_out = be->activation_bytes == 2 ? 1.0 / 256 : 1e-5;
}

static bool is_cpu(void) { return strcmp(be->ops->name, "cpu") == 0; }

static const heads shapes[] = {
    {9, 3, 64, 16, 0, TD_ROPE_PAIRS, false, 0},      {32, 8, 128, 16, 0, TD_ROPE_HALVES, false, 0},
    {4, 4, 96, 32, 0, TD_ROPE_HALVES, false, 0},     {14, 2, 64, 64, 0, TD_ROPE_HALVES, false, 0},
    {16, 8, 128, 16, 0, TD_ROPE_HALVES, true, 0},    {8, 1, 256, 16, 0, TD_ROPE_HALVES, false, 0},
    {8, 2, 128, 16, 100, TD_ROPE_HALVES, false, 0},  {16, 1, 64, 16, 0, TD_ROPE_HALVES, false, 0},
    {32, 1, 64, 16, 33, TD_ROPE_PAIRS, false, 0},    {28, 4, 128, 32, 0, TD_ROPE_HALVES, false, 0},
    {4, 4, 128, 64, 300, TD_ROPE_HALVES, false, 0},  {16, 4, 256, 64, 0, TD_ROPE_HALVES, false, 0},
    {4, 4, 128, 16, 1500, TD_ROPE_HALVES, false, 0}, {5, 5, 96, 16, 0, TD_ROPE_HALVES, false, 0},
    {12, 2, 96, 16, 0, TD_ROPE_PAIRS, false, 0},     {6, 2, 96, 64, 0, TD_ROPE_HALVES, true, 0},
    {16, 1, 96, 32, 40, TD_ROPE_HALVES, false, 0},   {20, 1, 96, 16, 0, TD_ROPE_HALVES, false, 0},
    {12, 1, 128, 16, 0, TD_ROPE_HALVES, false, 0},   {20, 2, 96, 16, 0, TD_ROPE_HALVES, false, 0},
    {24, 8, 128, 16, 0, TD_ROPE_HALVES, false, 96},  {4, 2, 64, 16, 0, TD_ROPE_PAIRS, true, 32},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };
static uint32_t step_s = WATCH_STEP_S;
static uint32_t only_dim; /* of the heads that are tested; 0: all */
static bool is_wanted(uint32_t head_dim) { return only_dim == 0 || head_dim == only_dim; }

/* A small part of the tests of plans and captures. */
static bool is_in_small(size_t i) { return i == 1 || i == 6 || i == 8 || i == 14; }

static const uint32_t decodes[][2] = {{1, 1},  {1, 2},  {1, 15}, {1, 16},  {1, 17},
                                      {1, 63}, {1, 64}, {1, 65}, {1, 300}, {1, 777}};
static const uint32_t mixed[][2] = {{1, 500}, {1, 33}, {2, 90}, {100, 100}, {5, 700}, {60, 61}};
static const uint32_t split[][2] = {{1, 3500}, {1, 2000}, {1, 70}};

/* More decodes than CTAs that run at the same time on any device, for so many kv heads: on Hopper one warp
 * handles a short one (kernels/attention/work_list.h). The last case but one has so many that those of 320
 * tokens are short; the last has groups whose warps reduce what rows share. */
static const heads many_heads[] = {
    {32, 32, 128, 16, 0, TD_ROPE_HALVES, false, 0},  {64, 32, 64, 32, 0, TD_ROPE_PAIRS, false, 0},
    {32, 32, 96, 16, 0, TD_ROPE_HALVES, false, 0},   {48, 16, 256, 16, 0, TD_ROPE_HALVES, false, 0},
    {64, 32, 64, 64, 40, TD_ROPE_HALVES, false, 0},  {64, 64, 64, 16, 0, TD_ROPE_HALVES, false, 0},
    {160, 32, 128, 16, 0, TD_ROPE_HALVES, false, 0},
};
enum { N_MANY_HEADS = sizeof many_heads / sizeof *many_heads };

/* Long rows, with 67 KV splits each on an H200: more than a warp handles of a slice at a time. */
static const heads one_kv_head = {8, 1, 128, 16, 0, TD_ROPE_HALVES, false, 0};
/* Rows of two tokens: more than four slices for each CTA that is certain to be resident. */
static const heads many_slices = {64, 8, 128, 16, 0, TD_ROPE_HALVES, false, 0};

/* Prefixes in pieces of more pages than are looked up at once, one that all rows share, and five and pairs of
 * more pieces than blocks do at once (kernels/attention/work_list.c: of 64 kv heads an H200 does 6, of 32
 * 12), long and short ones in turn, some with a short tile at the end. */
static const struct {
  heads heads;
  uint32_t tokens[3];
} many_pieces[] = {
    {{32, 32, 128, 16, 0, TD_ROPE_HALVES, false, 0}, {7984, 240, 48}},
    {{64, 64, 96, 16, 0, TD_ROPE_HALVES, false, 0}, {48, 1536, 240}},
    {{64, 64, 64, 16, 0, TD_ROPE_PAIRS, false, 0}, {40, 1336, 640}},
    {{64, 64, 128, 16, 0, TD_ROPE_HALVES, false, 0}, {48, 1536, 240}},
    {{64, 32, 64, 64, 0, TD_ROPE_HALVES, false, 0}, {64, 1536, 640}},
};
/* Rows that share a prefix and have so many KV splits that several CTAs reduce them, with both ways to reduce
 * shared keys (groups to 4, and above). */
static const heads long_own[] = {{4, 1, 128, 16, 0, TD_ROPE_HALVES, false, 0},
                                 {8, 1, 128, 16, 0, TD_ROPE_HALVES, false, 0},
                                 {12, 1, 96, 32, 0, TD_ROPE_HALVES, false, 0}};
enum { N_LONG_OWN = sizeof long_own / sizeof *long_own };
/* More KV than the L2 cache holds, so that prefill processes groups of heads one after the other. */
static const heads many_kv_heads = {32, 32, 128, 16, 0, TD_ROPE_HALVES, false, 0};
static const heads many_captured = {64, 64, 128, 16, 0, TD_ROPE_HALVES, false, 0};

/* Two stores together; the layers of the second have a window, so that its rows share nothing where those of
 * the first do. */
static const heads store_pairs[][2] = {
    {{32, 8, 128, 16, 0, TD_ROPE_HALVES, false, 0}, {8, 2, 64, 16, 300, TD_ROPE_HALVES, false, 0}},
    {{8, 1, 128, 32, 0, TD_ROPE_HALVES, false, 0}, {8, 8, 256, 32, 0, TD_ROPE_HALVES, false, 0}},
    {{12, 4, 96, 16, 0, TD_ROPE_PAIRS, false, 0}, {12, 4, 96, 16, 0, TD_ROPE_PAIRS, false, 0}},
};

static void test_two_stores(bool small)
{
  for (size_t i = 0; i < sizeof store_pairs / sizeof *store_pairs; i++)
    if (is_wanted(store_pairs[i][0].head_dim) && (!small || i == 0)) {
      test_attention_of_two_stores(&store_pairs[i][0], &store_pairs[i][1], false);
      test_attention_of_two_stores(&store_pairs[i][1], &store_pairs[i][0], true);
    }
}

static void test_many_short(const heads *h, bool small)
{
  static const uint32_t lens[] = {1, 2, 31, 32, 33, 63, 64, 65, 16, 17, 256, 320, 321, 48, 700, 100};
  uint32_t rows[MAX_ROWS][2], n = small ? 24 : 60;
  for (uint32_t r = 0; r < n; r++) {
    rows[r][1] = lens[r % 16];
    rows[r][0] = r == 40 ? 50 : r % 7 == 3 && rows[r][1] > 3 ? 1 + r % 3 : 1;
    rows[r][1] += r == 40 ? 50 : 0;
  }
  test_attention(h, (const uint32_t(*)[2])rows, n);
}

static void expect_no_plans(const heads *h)
{
  td_error err;
  td_kv_spec shape = {.n_pages = 1,
                      .page_tokens = h->page_tokens,
                      .n_groups = 1,
                      .groups = {{.dtype = be->kv_dtype,
                                  .n_layers = 1,
                                  .n_kv_heads = h->n_kv_heads,
                                  .head_dim = h->head_dim,
                                  .n_heads = h->n_heads,
                                  .window_tokens = h->window}}};
  expect(be->ops->kv_check(be, &shape, &err) == TD_ERR_UNSUPPORTED,
         "plans are refused where no kernel does them");
}

/* Policies for what decodes share, by name in the command line. */
enum { N_POLICIES = 5 };
static const td_attention_policy *policies[N_POLICIES];

static void find_policies(void)
{
  static const char *const names[N_POLICIES] = {"always", "tiles", "pat", "persistentkv", "flashdecode"};
  for (uint32_t i = 0; i < N_POLICIES; i++)
    if (!td_attention_policy_of(names[i], &policies[i]))
      exit(2);
}

/* Heads without plans run as in a daemon: by prefill tiles, or every row by itself. */
static bool has_plans(const heads *h) { return h->head_dim != 256 && h->n_heads / h->n_kv_heads <= 16; }

/* Decodes by plans of one policy (which a CPU ignores); with the first policy also heads without plans. */
static void test_plans(const char *name, const td_backend_config *with, const td_attention_policy *policy,
                       test_size size)
{
  bool first = policy == policies[0];
  static const uint32_t trees[][3] = {{1024, 256, 64}, {300, 40, 20}, {160, 160, 160}};
  td_backend_config config = *with;
  for (size_t i = 0; i < N_SHAPES; i++) {
    bool has = has_plans(&shapes[i]) || first;
    config.attention_policy = has_plans(&shapes[i]) ? policy : NULL;
    if ((size != TEST_ALL && !is_in_small(i)) || !has || !is_wanted(shapes[i].head_dim))
      continue;
    open_backend(name, &config);
    if (!is_cpu() && !is_hopper() && has_plans(&shapes[i])) {
      expect_no_plans(&shapes[i]);
      be->ops->destroy(be);
      return;
    }
    for (size_t k = size == TEST_TINY ? 2 : 0; k < (size == TEST_SMALL ? 2 : 3); k++)
      test_attention_shared(&shapes[i],
                            size == TEST_TINY    ? 6
                            : size == TEST_SMALL ? 12
                            : i == 1             ? 48
                                                 : 20,
                            trees[k]);
    test_attention_shared_values(&shapes[i], 6, trees[2]);
    if (shapes[i].window == 0)
      test_attention_shared_nan(&shapes[i]);
    if (!is_cpu()) {
      test_attention(&shapes[i], decodes, size == TEST_TINY ? 3 : 10);
      test_attention(&shapes[i], mixed, size == TEST_ALL ? 6 : 3);
      test_attention(&shapes[i], split, size == TEST_ALL ? 3 : 2);
      if (shapes[i].window == 0 && !shapes[i].norm && size != TEST_TINY)
        test_attention_passes_nan_on(&shapes[i]);
      if (!shapes[i].norm)
        test_attention_captured(&shapes[i]);
    }
    be->ops->destroy(be);
  }
  for (size_t i = 0; i < N_MANY_HEADS && first && size == TEST_ALL; i++) {
    if (!is_wanted(many_heads[i].head_dim))
      continue;
    config.attention_policy = has_plans(&many_heads[i]) ? policy : NULL;
    open_backend(name, &config);
    if (!is_cpu()) {
      test_attention_shared(&many_heads[i], 36, (const uint32_t[]){512, 256, 0});
      test_attention_captured_short(&many_heads[i]);
    }
    be->ops->destroy(be);
  }
  config.attention_policy = policy;
  for (size_t i = 0; i < sizeof many_pieces / sizeof *many_pieces && first && size == TEST_ALL; i++) {
    if (!is_wanted(many_pieces[i].heads.head_dim))
      continue;
    open_backend(name, &config);
    if (!is_cpu())
      test_attention_shared(&many_pieces[i].heads, 24, many_pieces[i].tokens);
    be->ops->destroy(be);
  }
  if (first && size == TEST_ALL) { /* with a policy no store may have heads without plans */
    open_backend(name, &config);
    if (!is_cpu() && is_wanted(store_pairs[0][0].head_dim)) {
      test_attention_of_two_stores(&store_pairs[0][0], &store_pairs[0][1], false);
      test_attention_of_two_stores(&store_pairs[2][0], &store_pairs[0][1], true);
    }
    be->ops->destroy(be);
  }
  for (size_t i = 0; i < N_LONG_OWN && first && size == TEST_ALL; i++)
    if (is_wanted(long_own[i].head_dim)) {
      open_backend(name, &config);
      test_attention_shared(&long_own[i], 3, (const uint32_t[]){2048, 3000, 3000});
      be->ops->destroy(be);
    }
  if (first && size == TEST_ALL && is_wanted(many_captured.head_dim)) {
    open_backend(name, &config);
    test_attention_captured_long(&many_captured);
    be->ops->destroy(be);
  }
}

/* ---- all of it ---- */

static void test_products(bool small, bool tiny)
{
  static const uint32_t widths[] = {64, 576, 1536, 4096, 8192},
                        ns[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 64, 130, 300};
  for (size_t i = 0; i < (tiny ? 1 : small ? 2 : 5); i++) {
    test_rmsnorm(1, widths[i]);
    for (uint32_t form = 0; form < 5; form++)
      test_rmsnorm_forms(37, widths[i], form & 1, form & 2, form == 0 || form == 4);
    test_rmsnorm(37, widths[i]);
    test_swiglu(5, widths[i]);
  }
  test_rmsnorm(300, 8192); /* more than there are blocks at once */
  test_rmsnorm(300, 9000);
  test_dummy(33, 64);
  test_embed(5, 40, 64);
  if (!tiny) {
    test_dummy(1000, 576);
    test_embed(1, 1000, 576);
    test_embed(small ? 300 : 1000, 700, 4096);
  }
  for (size_t i = 0; i < (small ? 9 : 13); i += tiny ? 4 : 1) {
    test_linear(ns[i], 576, (const uint32_t[]){576, 192, 192}, 3, false, false);
    test_linear(ns[i], 64, (const uint32_t[]){104, 24, 24}, 3, true, false);
    if (small)
      continue;
    test_linear(ns[i], 1536, (const uint32_t[]){576}, 1, false, false);
    test_linear(ns[i], 896, (const uint32_t[]){896, 128, 128}, 3, true, false);
    test_linear(ns[i], 2048, (const uint32_t[]){1000}, 1, false, true);
    test_linear(ns[i], 4096, (const uint32_t[]){512, 512}, 2, true, false);
  }
  test_linear(8, 7232, (const uint32_t[]){8}, 1, false,
              false); /* one tile of more parts than its CTA has slots */
  if (!tiny) {
    test_few_rows(small);
    test_tune(small);
  }
}

static void test_attentions(bool small, bool tiny)
{
  static const uint32_t chunks[][2] = {{1, 1}, {17, 17}, {64, 64}, {65, 65}, {50, 333}, {128, 400}};
  static const uint32_t long_chunks[][2] = {{40, 3300}, {33, 1025}, {7, 1290}};
  for (size_t i = 0; i < N_SHAPES; i++) {
    if ((small && i % 3) || !is_wanted(shapes[i].head_dim))
      continue;
    test_attention(&shapes[i], decodes, tiny ? 3 : small ? 6 : 10);
    if (!tiny)
      test_attention(&shapes[i], chunks, small ? 3 : 6);
    test_attention(&shapes[i], mixed, small ? 3 : 6);
    if (shapes[i].window == 0 && !shapes[i].norm && !tiny)
      test_attention_passes_nan_on(&shapes[i]);
    if (!tiny)
      test_attention_again(&shapes[i], 12, 2, 4 * 3 * 128 + 1);
    if (!small) {
      test_attention(&shapes[i], split, 3);
      if (be->activation_bytes == 2) /* those of a GPU have borders there */
        test_attention(&shapes[i], long_chunks, 3);
    }
  }
  if (!tiny)
    test_two_stores(small);
  if (is_wanted(one_kv_head.head_dim) && !tiny)
    test_attention_again(&one_kv_head, 2, 1, 66 * 128 + 1);
  if (is_wanted(many_kv_heads.head_dim) && !small && !is_cpu())
    test_attention(&many_kv_heads, (const uint32_t[][2]){{200, 8600}, {40, 300}}, 2);
  if (is_wanted(many_slices.head_dim) && !small)
    test_attention(&many_slices, (const uint32_t[][2]){{2, 8600}}, 1);
  for (size_t i = 0; i < (small ? 1 : N_MANY_HEADS) && !is_cpu(); i++) /* a CPU does not know short ones */
    if (is_wanted(many_heads[i].head_dim))
      test_many_short(&many_heads[i], small);
}

/* One backend each, so that nothing is left over from another. */
static void test_recordings(const char *name, const td_backend_config *config, bool small, bool tiny)
{
  static const decoder_shape decoders[] = {
      {256, 4, 2, 64, 512, 2300, 16, 0, TD_ROPE_HALVES, false, false},
      {576, 6, 6, 96, 1536, 1031, 16, 0, TD_ROPE_HALVES, false, false},
      {576, 9, 3, 64, 1536, 1031, 16, 0, TD_ROPE_PAIRS, false, false},
      {1024, 8, 2, 128, 2816, 5000, 32, 0, TD_ROPE_HALVES, true, false},
      {1024, 32, 8, 128, 8448, 2000, 16, 200, TD_ROPE_HALVES, false, false},
      {512, 16, 1, 128, 1344, 8500, 64, 0, TD_ROPE_HALVES, true, false},
      {512, 16, 1, 96, 1344, 3000, 64, 150, TD_ROPE_PAIRS, true, false},
      {768, 20, 4, 96, 2048, 1000, 32, 0, TD_ROPE_HALVES, false, false},
      {1536, 16, 16, 96, 4480, 4700, 16, 0, TD_ROPE_HALVES, false,
       false}, /* several tiles of 16 and of 24 rows per CTA, of more parts than slots */
      {1024, 16, 8, 128, 3072, 2000, 16, 0, TD_ROPE_HALVES, false, true},
      {512, 8, 2, 64, 1536, 1200, 32, 100, TD_ROPE_PAIRS, true, true},
      {512, 80, 16, 64, 1344, 1000, 16, 0, TD_ROPE_HALVES, false, false},
  };
  for (size_t i = 0; i < N_SHAPES; i++) {
    if (shapes[i].norm || (small && !is_in_small(i)) || !is_wanted(shapes[i].head_dim))
      continue;
    open_backend(name, config);
    test_attention_captured(&shapes[i]);
    be->ops->destroy(be);
  }
  for (size_t i = 0; i < N_MANY_HEADS && !small; i++)
    if (is_wanted(many_heads[i].head_dim)) {
      open_backend(name, config);
      test_attention_captured_short(&many_heads[i]);
      be->ops->destroy(be);
    }
  int n = 0, n_most = tiny ? 1 : small ? 5 : 12;
  for (size_t i = 0; i < sizeof decoders / sizeof *decoders && n < n_most; i++)
    if (is_wanted(decoders[i].head_dim)) {
      /* shared not at all; in small groups, if rows are few; in tiles, or, with a window, by PAT's rule,
         because predicted time shares nothing there */
      const td_attention_policy *ways[] = {NULL, policies[0], policies[decoders[i].window > 0 ? 2 : 1]};
      for (int shares = 0; shares < 3; shares++) {
        td_backend_config with = *config;
        with.attention_policy = ways[shares];
        test_decoder(name, &with, &decoders[i], false, shares > 0);
        if (decoders[i].window > 0)
          test_decoder(name, &with, &decoders[i], true, shares > 0);
      }
      n++;
    }
}

static void test_alone(const char *name, td_backend_config config, bool small, bool tiny)
{
  config.batch_invariant = true;
  open_backend(name, &config);
  if (only_dim == 0) {
    test_linear_alone(576, 960, false, false);
    test_linear_alone(576, 960, false, true);
    if (!tiny)
      test_linear_alone(1536, 1000, true, false);
    if (!small)
      test_linear_alone(4096, 6144, false, true);
    test_no_tuning();
    test_no_glu();
  }
  for (size_t i = tiny ? 1 : 0; i < N_SHAPES; i++)
    if (!shapes[i].norm && (!small || i < 3) && is_wanted(shapes[i].head_dim))
      test_attention_alone(&shapes[i], small ? 300 : 700);
  be->ops->destroy(be);
}

static void test_cuts_of(const char *name, td_backend_config config, const heads *h, test_size size)
{
  double *kept[CUTS_BATCHES] = {NULL};
  for (size_t k = 0; k == 0 || td_attention_cuts[k - 1]; k++) {
    config.attention_policy = k > 0 ? td_attention_cuts[k - 1] : NULL;
    open_backend(name, &config);
    bool serves = is_cpu() || is_hopper();
    if (serves && (!is_cpu() || k == 0))
      test_cuts(h, config.attention_policy, size == TEST_TINY || is_cpu(), kept);
    be->ops->destroy(be);
  }
  for (uint32_t i = 0; i < CUTS_BATCHES; i++)
    free(kept[i]);
}

/* The cut of prefill is fixed, or the planner's; a CPU cuts nothing. The small version includes heads of 64
 * elements, which are colocated. */
static void test_all_cuts(const char *name, const td_backend_config *config, test_size size)
{
  for (size_t i = 0; i < N_SHAPES; i++)
    if (has_plans(&shapes[i]) && is_wanted(shapes[i].head_dim) &&
        (size == TEST_ALL || is_in_small(i) || i == 0))
      test_cuts_of(name, *config, &shapes[i], size);
}

/* ---- sections ---- */

enum { PRODUCTS, ATTENTION, CUTS, PLANS, CAPTURES, ALONE, STEPS, SAMPLING, TIMES, N_SECTIONS };
static const char *const sections[N_SECTIONS] = {"products", "attention", "cuts",     "plans", "captures",
                                                 "alone",    "steps",     "sampling", "times"};

static void run_section(int section, const char *name, const td_backend_config *config, test_size size,
                        const td_attention_policy *only_policy)
{
  bool small = size != TEST_ALL, tiny = size == TEST_TINY;
  watch_case(rng_now(), "none yet of %s", sections[section]);
  if (section == PLANS) {
    for (uint32_t i = 0; i < (strcmp(name, "cpu") == 0 ? 1 : N_POLICIES); i++)
      if (!only_policy || policies[i] == only_policy)
        test_plans(name, config, policies[i], size);
  } else if (section == CUTS) {
    test_all_cuts(name, config, size);
  } else if (section == CAPTURES) {
    test_recordings(name, config, small, tiny);
  } else if (section == ALONE) {
    test_alone(name, *config, small, tiny);
  } else if (section == ATTENTION) {
    open_backend(name, config);
    test_attentions(small, tiny);
    be->ops->destroy(be);
  } else if (only_dim != 0) { /* the others have no heads */
    return;
  } else if (section == PRODUCTS) {
    open_backend(name, config);
    test_products(small, tiny);
    test_glus(size);
    be->ops->destroy(be);
    forget_products();
  } else if (section == STEPS) {
    open_backend(name, config);
    test_steps();
    be->ops->destroy(be);
  } else if (section == SAMPLING) {
    open_backend(name, config);
    if (!tiny)
      test_sampling();
    be->ops->destroy(be);
    test_sampled_tokens(name, size, &n_passed, &n_failed);
    test_special_tokens(name, size, &n_passed, &n_failed);
  } else if (!small) {
    time_sampling(name);
    time_special_rows(name);
  }
}

/* Shows where the time goes. */
static void tell(int section, const struct timespec *begin)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  printf("%s: %d passed, %d failed by now, %.1f s\n", sections[section], n_passed, n_failed,
         difftime(now.tv_sec, begin->tv_sec) + (double)(now.tv_nsec - begin->tv_nsec) * 1e-9);
}

static const char usage[] =
    "usage: test_ops [BACKEND [all | small | tiny [WORD...]]]\n"
    "  WORD: a section (products attention cuts plans captures alone steps sampling times), "
    "all of them where none is named;\n"
    "        always, tiles, pat, persistentkv, flashdecode: plans, of this policy only; "
    "dim=N: only heads of so many elements;\n"
    "        step_s=N: a step of more seconds (120) is told and ends all, with exit code 124\n";

/* Returns whether it is a word. */
static bool take_word(const char *word, bool wanted[N_SECTIONS], const td_attention_policy **only_policy)
{
  if (strncmp(word, "dim=", 4) == 0)
    return (only_dim = (uint32_t)atoi(word + 4)) > 0;
  if (strncmp(word, "step_s=", 7) == 0)
    return (step_s = (uint32_t)atoi(word + 7)) > 0;
  for (uint32_t i = 0; i < N_POLICIES; i++)
    if (strcmp(word, policies[i]->name) == 0) {
      *only_policy = policies[i];
      return wanted[PLANS] = true;
    }
  for (int i = 0; i < N_SECTIONS; i++)
    if (strcmp(word, sections[i]) == 0)
      return wanted[i] = true;
  return false;
}

int main(int argc, char **argv)
{
  td_error err;
  struct timespec begin;
  bool wanted[N_SECTIONS] = {false}, any = false;
  const td_attention_policy *only_policy = NULL;
  setvbuf(stdout, NULL, _IOLBF, 0);
  mallopt(M_MMAP_THRESHOLD,
          1 << 30); /* freed memory is kept, otherwise a third of the time goes into clearing pages */
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  find_policies();
  const char *name = argc > 1 ? argv[1] : "cpu";
  const char *amount = argc > 2 ? argv[2] : "all"; /* the others are for compute-sanitizer */
  test_size size = strcmp(amount, "tiny") == 0    ? TEST_TINY
                   : strcmp(amount, "small") == 0 ? TEST_SMALL
                                                  : TEST_ALL;
  bool known = size != TEST_ALL || strcmp(amount, "all") == 0;
  for (int i = 3; i < argc; i++)
    known &= take_word(argv[i], wanted, &only_policy);
  if (!known) {
    fputs(usage, stderr);
    return 2;
  }
  watch_steps(step_s);
  for (int i = 0; i < N_SECTIONS; i++)
    any |= wanted[i];
  td_backend_config config = {.max_slots = MAX_SLOTS,
                              .max_rows = MAX_ROWS,
                              .max_tokens = MAX_TOKENS,
                              .max_context_tokens = MAX_CONTEXT,
                              .max_vocab = VOCAB_MAX};
  die(td_plan_create(MAX_ROWS, MAX_TOKENS, MAX_ROWS, MAX_ROWS * (MAX_CONTEXT / 16), 16, &plan, &err), &err,
      "plan");
  page_table = calloc(MAX_ROWS * (MAX_CONTEXT / 16), sizeof *page_table);
  for (int i = 0; i < N_SECTIONS; i++) {
    if (any && !wanted[i])
      continue;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    run_section(i, name, &config, size, only_policy);
    tell(i, &begin);
  }
  td_plan_destroy(plan);
  free(page_table);
  printf("test_ops %s: %d passed, %d failed\n", name, n_passed, n_failed);
  return n_failed > 0;
}
