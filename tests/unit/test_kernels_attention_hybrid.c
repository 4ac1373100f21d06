/* How a step's prefill is cut: every key that a query sees is in exactly one KV split, splits are whole KV
 * tiles, and partials fit their memory. Also the planner's choice where it is clear. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/attention/work_list.h"

enum { ROWS_MAX = 64, TOKENS_MAX = 2048, PREFILL_ROWS = 128, N_SMS = 132, KEYS_MAX = 20000 };

static uint64_t state = 88172645463325252ull;
static uint32_t below(uint32_t n)
{
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint32_t)(state >> 11) % n;
}

typedef struct fixture {
  td_plan plan;
  td_plan_row rows[ROWS_MAX];
  td_attention_policy policy;
  td_work_list_config config;
  td_work_list list;
} fixture;

static void make_list(fixture *f)
{
  uint32_t tokens = f->plan.n_tokens;
  f->plan.rows = f->rows;
  f->list = (td_work_list){.max_items = td_work_list_items_max(f->plan.n_rows, tokens)};
  f->list.items = calloc(f->list.max_items, sizeof *f->list.items);
  f->list.scratch = calloc((size_t)f->plan.n_rows * TD_WORK_LIST_SCRATCH, sizeof *f->list.scratch);
  f->list.private_kv = calloc(f->plan.n_rows, sizeof *f->list.private_kv);
  assert_true(f->list.items && f->list.scratch && f->list.private_kv);
  td_work_list_make(&f->list, &f->plan, &f->config, NULL);
}

static void free_list(fixture *f) { free(f->list.items), free(f->list.scratch), free(f->list.private_kv); }

static void add_row(fixture *f, uint32_t q_len, uint32_t kv_len)
{
  f->rows[f->plan.n_rows++] = (td_plan_row){.q_start = f->plan.n_tokens, .q_len = q_len, .kv_len = kv_len};
  f->plan.n_tokens += q_len;
}

static fixture device(uint32_t n_heads, uint32_t n_kv_heads)
{
  td_work_list_config c = {.gqa_group = n_heads / n_kv_heads,
                           .n_kv_heads = n_kv_heads,
                           .n_resident = 3 * N_SMS,
                           .prefill_rows = PREFILL_ROWS,
                           .decode_rows = 16,
                           .warp_rows_min = 17};
  c.hybrid = (td_hybrid_config){.n_sms = N_SMS,
                                .n_kv_heads = n_kv_heads,
                                .head_dim = 128,
                                .tile_keys = 128,
                                .has_pairs = true,
                                .colocated_rows = 8,
                                .memory_bytes_us = 4.47e6};
  return (fixture){.config = c};
}

static int by_query_and_key(const void *x, const void *y)
{
  const td_attention_item *a = x, *b = y;
  if (a->query != b->query)
    return a->query < b->query ? -1 : 1;
  return (a->kv_begin > b->kv_begin) - (a->kv_begin < b->kv_begin);
}

static bool is_decode(const fixture *f, const td_plan_row *row)
{
  return row->q_len * f->config.gqa_group <= f->config.decode_rows && row->q_len <= 12;
}

/* An item's KV splits are consecutive; returns how many there are. */
static uint32_t check_splits(const fixture *f, const td_attention_item *it, uint32_t n_left,
                             uint8_t taken[TD_PREFILL_PARTIALS_MAX])
{
  const td_hybrid_config *c = &f->config.hybrid;
  uint32_t n = it->n_partials > 1 ? it->n_partials : 1, end = it->position + it->n_tokens;
  uint32_t unseen =
      c->window_tokens > 0 && it->position + 1 > c->window_tokens ? it->position + 1 - c->window_tokens : 0;
  assert_in_range(n, 1, n_left);
  assert_true(it->kv_begin <= unseen && it->kv_begin + c->tile_keys > unseen);
  for (uint32_t i = 0; i < n; i++) {
    assert_int_equal(it[i].query, it->query);
    assert_int_equal(it[i].n_tokens, it->n_tokens);
    assert_int_equal(it[i].kv_begin % c->tile_keys, 0);
    assert_int_equal(it[i].kv_begin, i > 0 ? it[i - 1].kv_end : it->kv_begin);
    assert_true(it[i].kv_end > it[i].kv_begin);
    if (n > 1) {
      assert_int_equal(it[i].partial, it->first_partial + i);
      assert_in_range(it[i].partial, 0, f->list.n_prefill_partials - 1);
      assert_int_equal(taken[it[i].partial]++, 0);
    }
  }
  assert_int_equal(it[n - 1].kv_end, end);
  return n;
}

static void check_prefill(fixture *f)
{
  uint8_t taken[TD_PREFILL_PARTIALS_MAX] = {0};
  uint32_t at = 0, n = f->list.n_prefill, n_partials = 0;
  uint32_t most = PREFILL_ROWS / f->config.gqa_group * f->list.prefill.tiles;
  assert_true(f->list.n_prefill_partials * f->config.n_kv_heads * f->list.prefill.tiles <=
              TD_PREFILL_PARTIALS_MAX);
  qsort(f->list.items, n, sizeof *f->list.items, by_query_and_key);
  for (uint32_t r = 0; r < f->plan.n_rows; r++) {
    const td_plan_row *row = &f->rows[r];
    if (is_decode(f, row))
      continue;
    for (uint32_t token = 0; token < row->q_len;) {
      const td_attention_item *it = &f->list.items[at];
      assert_true(at < n);
      assert_int_equal(it->query, row->q_start + token);
      assert_int_equal(it->position, row->kv_len - row->q_len + token);
      assert_in_range(it->n_tokens, 1, most);
      uint32_t n_splits = check_splits(f, it, n - at, taken);
      n_partials += n_splits > 1 ? n_splits : 0;
      token += it->n_tokens;
      at += n_splits;
    }
  }
  assert_int_equal(at, n);
  assert_int_equal(n_partials, f->list.n_prefill_partials);
}

static const td_plan_row *row_of(const fixture *f, uint32_t query)
{
  uint32_t r = 0;
  while (f->rows[r].q_start != query)
    r++;
  return &f->rows[r];
}

/* A warpgroup with a ticket computes a colocated decode alone, in up to TD_COLOCATED_SPLITS_MAX splits, and
 * no warp-level items. */
static void check_colocated(const fixture *f)
{
  const td_work_list *list = &f->list;
  assert_int_equal(list->n_wide, list->n_items);
  assert_true(list->n_partials <= td_work_list_partials_max(&f->config));
  uint32_t n_decodes = 0, n_first = 0, n_last = 0; /* no decode is missing */
  for (uint32_t r = 0; r < f->plan.n_rows; r++) {
    n_decodes += is_decode(f, &f->rows[r]);
    assert_true(!is_decode(f, &f->rows[r]) ||
                f->rows[r].q_len * f->config.gqa_group <= f->config.hybrid.colocated_rows);
  }
  for (uint32_t i = list->n_prefill; i < list->n_items; i++) {
    const td_attention_item *it = &list->items[i], *before = it - 1;
    assert_in_range(it->n_partials, 1, TD_COLOCATED_SPLITS_MAX);
    assert_true(it->kv_begin < it->kv_end);
    const td_plan_row *row = row_of(f, it->query);
    uint32_t window = f->config.hybrid.window_tokens, seen = row->kv_len - row->q_len + 1;
    bool first = it->n_partials == 1 || it->partial == it->first_partial,
         last = it->n_partials == 1 || it->partial + 1 == it->first_partial + it->n_partials;
    n_first += first;
    n_last += last;
    assert_true(!first || it->kv_begin <= (window > 0 && seen > window ? seen - window : 0));
    assert_true(!last || it->kv_end == row->kv_len);
    if (!first) {
      assert_int_equal(it->query, before->query);
      assert_int_equal(it->kv_begin, before->kv_end);
      assert_int_equal(it->partial, before->partial + 1);
    }
  }
  assert_true(n_first == n_decodes && n_last == n_decodes);
}

static void test_every_key_is_in_one_split(void **ignored)
{
  (void)ignored;
  uint32_t n_split = 0, n_beside = 0, n_pairs = 0, n_colocated = 0;
  for (int i = 0; i < 4000; i++) {
    static const uint32_t heads[][2] = {{32, 8}, {32, 32}, {16, 4}, {64, 8}, {9, 3}, {4, 1}, {20, 1}};
    const uint32_t *h = heads[below(7)];
    fixture f = device(h[0], h[1]);
    f.config.hybrid.has_pairs = below(4) > 0;
    f.config.hybrid.tile_keys = below(4) ? 128 : 64;
    f.config.hybrid.window_tokens = below(3) ? 0 : 1 + below(5000);
    if (below(2)) {
      f.policy.hybrid = (td_hybrid_cut){.tiles = 1 + below(2),
                                        .split_keys = below(2) * (1 + below(20)) * 128,
                                        .sms_beside = below(40) * 2,
                                        .colocated_keys = below(2) * (1 + below(30)) * 128,
                                        .beside_keys = below(2) * (1 + below(30)) * 128};
      f.config.policy = f.config.hybrid.policy = &f.policy;
    }
    uint32_t n = 1 + below(ROWS_MAX);
    for (uint32_t r = 0; r < n; r++) {
      uint32_t q = r % 3 > 0 || below(2) ? 1 : 1 + below(below(2) ? 40 : 600);
      q = f.plan.n_tokens + q > TOKENS_MAX - n ? 1 : q;
      add_row(&f, q, q + below(below(2) ? 200 : KEYS_MAX));
    }
    make_list(&f);
    if (f.list.prefill.colocated_keys > 0)
      check_colocated(&f);
    check_prefill(&f);
    n_colocated += f.list.prefill.colocated_keys > 0;
    n_split += f.list.n_prefill_partials > 0;
    n_beside += f.list.prefill.sms_beside > 0;
    n_pairs += f.list.prefill.tiles == 2;
    free_list(&f);
  }
  assert_true(n_split > 100 && n_beside > 100 && n_pairs > 100 &&
              n_colocated > 100); /* it has seen all of it */
}

static td_hybrid_cut cut_of(fixture *f)
{
  make_list(f);
  free_list(f);
  return f->list.prefill;
}

static fixture chunk(uint32_t tokens, uint32_t keys, uint32_t n_decodes, uint32_t decode_keys)
{
  fixture f = device(32, 8);
  for (uint32_t i = 0; i < n_decodes; i++)
    add_row(&f, 1, decode_keys);
  add_row(&f, tokens, keys);
  return f;
}

static void test_few_tiles_of_many_keys_are_split(void **ignored)
{
  (void)ignored;
  fixture thin = chunk(16, 16384, 0, 0), full = chunk(2048, 2048, 0, 0), tiny = chunk(40, 40, 0, 0);
  td_hybrid_cut c = cut_of(&thin);
  assert_in_range(c.split_keys, 128, 2048);
  assert_int_equal(thin.list.n_prefill, TD_PREFILL_SPLITS_OF_TILE_MAX);
  assert_int_equal(cut_of(&full).split_keys, 0);
  assert_int_equal(cut_of(&tiny).split_keys, 0);
}

static void test_decodes_go_beside_where_that_pays(void **ignored)
{
  (void)ignored;
  fixture balanced = chunk(1024, 12288, 20, 49152), alone = chunk(1024, 12288, 0, 0),
          one = chunk(1024, 12288, 1, 16);
  td_hybrid_cut c = cut_of(&balanced);
  assert_in_range(c.sms_beside, 16, N_SMS * 3 / 8);
  assert_int_equal(c.sms_beside % 2, 0);
  assert_int_equal(cut_of(&alone).sms_beside, 0);
  assert_int_equal(cut_of(&one).sms_beside, 0);
  balanced = chunk(1024, 12288, 20, 49152);
  balanced.policy.never_beside = true;
  balanced.config.hybrid.policy = &balanced.policy;
  assert_int_equal(cut_of(&balanced).sms_beside, 0);
}

static uint32_t two_splits(uint32_t n_decodes, uint32_t n_resident)
{
  (void)n_decodes, (void)n_resident;
  return 2;
}

/* Decodes are colocated if prefill outlasts them, the kernel supports it, and no policy says how decodes are
 * cut. */
static void test_decodes_are_colocated_where_that_pays(void **ignored)
{
  (void)ignored;
  fixture long_prefill = chunk(2048, 16384, 32, 8192), even = chunk(1024, 16384, 16, 16384),
          long_decodes = chunk(512, 4096, 60, 16384), alone = chunk(2048, 16384, 0, 0),
          many_rows = chunk(2048, 16384, 32, 8192), no_kernel = chunk(2048, 16384, 32, 8192),
          short_decodes = chunk(2048, 16384, 58, 4096), splits = chunk(2048, 16384, 32, 8192),
          policy = chunk(2048, 16384, 4, 100000);
  add_row(&many_rows, 4, 8192); /* 16 query rows */
  add_row(&short_decodes, 1, 20);
  no_kernel.config.hybrid.colocated_rows = 0;
  policy.policy.hybrid = (td_hybrid_cut){.tiles = 1, .colocated_keys = 512};
  policy.config.hybrid.policy = &policy.policy;
  td_hybrid_cut c = cut_of(&long_prefill);
  assert_true(c.colocated_keys > 0 && c.sms_beside == 0);
  assert_true(cut_of(&even).colocated_keys > 0);
  assert_int_equal(cut_of(&long_decodes).colocated_keys, 0);
  assert_int_equal(cut_of(&alone).colocated_keys, 0);
  assert_int_equal(cut_of(&many_rows).colocated_keys, 0);
  assert_int_equal(cut_of(&no_kernel).colocated_keys, 0);
  c = cut_of(&short_decodes); /* the long ones are worth it; none is a warp-level item */
  assert_true(c.colocated_keys > 0);
  splits.policy.kv_splits = two_splits;
  splits.config.policy = splits.config.hybrid.policy = &splits.policy;
  assert_int_equal(cut_of(&splits).colocated_keys, 0);
  make_list(&policy);
  check_colocated(&policy);
  assert_int_equal(policy.list.items[policy.list.n_prefill].n_partials, TD_COLOCATED_SPLITS_MAX);
  free_list(&policy);
}

/* Sixteen query rows make an item of a decode, but not of as many tokens, unless no tile can be cut. */
static void test_some_short_chunks_are_prefill(void **ignored)
{
  (void)ignored;
  static const struct {
    uint32_t n_heads, n_tokens, tile_keys, n_prefill;
  } cases[] = {{8, 12, 128, 0}, {8, 13, 128, 1}, {8, 16, 128, 1},
               {8, 16, 0, 0},   {32, 4, 128, 0}, {32, 5, 128, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fixture f = device(cases[i].n_heads, 8);
    f.config.hybrid.tile_keys = cases[i].tile_keys;
    add_row(&f, cases[i].n_tokens, 40); /* too few keys for KV splits */
    make_list(&f);
    assert_int_equal(f.list.n_prefill, cases[i].n_prefill);
    free_list(&f);
  }
}

/* If decodes take about as long as prefill, none of their items is long; if they take much longer, they fill
 * all SMs. A policy that says how they are cut is obeyed. */
static void test_long_decodes_are_cut_beside_prefill(void **ignored)
{
  (void)ignored;
  fixture even = chunk(512, 8192, 32, 8192), outlast = chunk(256, 2048, 32, 8192),
          by_policy = chunk(512, 8192, 32, 8192);
  even.config.hybrid.colocated_rows = 0;
  make_list(&even);
  assert_true(even.list.prefill.sms_beside > 0 && even.list.prefill.beside_keys > 0);
  for (uint32_t i = even.list.n_prefill; i < even.list.n_items; i++) {
    const td_attention_item *it = &even.list.items[i];
    assert_in_range(it->kv_end - it->kv_begin, 1, even.list.prefill.beside_keys);
    assert_in_range(it->n_partials, 2, TD_COLOCATED_SPLITS_MAX);
  }
  free_list(&even);
  td_hybrid_cut c = cut_of(&outlast);
  assert_true(c.sms_beside > 0 && c.beside_keys == 0);
  by_policy.policy.kv_splits = two_splits;
  by_policy.config.policy = by_policy.config.hybrid.policy = &by_policy.policy;
  make_list(&by_policy);
  assert_true(by_policy.list.prefill.sms_beside > 0 && by_policy.list.prefill.beside_keys > 0);
  for (uint32_t i = by_policy.list.n_prefill; i < by_policy.list.n_items; i++)
    assert_int_equal(by_policy.list.items[i].n_partials, 2);
  free_list(&by_policy);
}

/* The same step on a GPU with slower memory: decodes outlast prefill there, so they get separate SMs. */
static void test_memory_decides_where_decodes_run(void **ignored)
{
  (void)ignored;
  fixture fast = chunk(1024, 16384, 30, 12288), slow = chunk(1024, 16384, 30, 12288);
  slow.config.hybrid.memory_bytes_us = 2e6;
  assert_true(cut_of(&fast).colocated_keys > 0);
  td_hybrid_cut c = cut_of(&slow);
  assert_true(c.colocated_keys == 0 && c.sms_beside > 0);
}

/* Three exceptions: if a row's result must not depend on the batch, if the step may be captured, and if the
 * kernel has no such modes. */
static void test_nothing_is_cut_where_it_must_not_be(void **ignored)
{
  (void)ignored;
  fixture invariant = chunk(16, 16384, 20, 8192), old = chunk(16, 16384, 20, 8192), captured = device(20, 1);
  invariant.config.tiles_only = true;
  old.config.hybrid.tile_keys = 0;
  for (int i = 0; i < 3; i++)
    add_row(&captured, 1, 16384);
  fixture *all[] = {&invariant, &old, &captured};
  for (int i = 0; i < 3; i++) {
    td_hybrid_cut c = cut_of(all[i]);
    assert_true(c.tiles == 1 && c.split_keys == 0 && c.sms_beside == 0 && c.colocated_keys == 0);
    assert_int_equal(all[i]->list.n_prefill_partials, 0);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_key_is_in_one_split),
      cmocka_unit_test(test_few_tiles_of_many_keys_are_split),
      cmocka_unit_test(test_decodes_go_beside_where_that_pays),
      cmocka_unit_test(test_decodes_are_colocated_where_that_pays),
      cmocka_unit_test(test_some_short_chunks_are_prefill),
      cmocka_unit_test(test_long_decodes_are_cut_beside_prefill),
      cmocka_unit_test(test_memory_decides_where_decodes_run),
      cmocka_unit_test(test_nothing_is_cut_where_it_must_not_be),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
