/* For test_kernels_attention_*: batches whose rows share pages, planners, and plans with their work lists
 * as the backend makes them. */
#ifndef TD_TESTS_ATTENTION_PLAN_FIXTURE_H
#define TD_TESTS_ATTENTION_PLAN_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/attention/plan.h"
#include "kernels/attention/work_list.h"

enum { PREFILL_ROWS = 128, DECODE_ROWS = 16, WARPS = 4, WARP_ROWS_MIN = 17 }; /* as the CUDA backend has it */
enum { ROWS_MAX = 1024, STRIPE = 6400, PAGES = ROWS_MAX * STRIPE };

static uint64_t state = 88172645463325252ull;
static uint32_t below(uint32_t n)
{
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint32_t)(state >> 11) % n;
}

/* ---- batches ---- */

static td_plan_row rows[ROWS_MAX];
static int32_t *page_table; /* [PAGES] */
static int32_t next_page;
static bool right_tables = true; /* rows with a common page have all pages before it in common */

static td_plan begin_plan(uint32_t page_tokens)
{
  next_page = 0;
  return (td_plan){
      .rows = rows, .page_tokens = page_tokens, .page_table_len = PAGES, .page_table = page_table};
}

/* A row that shares its first n_shared pages with row `like`, or none. */
static void add_row(td_plan *plan, uint32_t kv_len, uint32_t like, uint32_t n_shared)
{
  uint32_t r = plan->n_rows++, n = (kv_len + plan->page_tokens - 1) / plan->page_tokens;
  assert_true(r < ROWS_MAX && n <= STRIPE && n_shared <= n);
  rows[r] =
      (td_plan_row){.slot = r, .q_start = r, .q_len = 1, .kv_len = kv_len, .page_table_offset = r * STRIPE};
  for (uint32_t i = 0; i < n; i++)
    page_table[r * STRIPE + i] = i < n_shared ? page_table[like * STRIPE + i] : next_page++;
  plan->n_tokens = plan->n_rows;
}

/* Each row after the first shares a random part of a random earlier one: trees of any depth. */
static td_plan random_plan(uint32_t n, uint32_t page_tokens, uint32_t longest)
{
  td_plan plan = begin_plan(page_tokens);
  for (uint32_t r = 0; r < n; r++) {
    uint32_t kv_len = 1 + (below(4) ? below(longest / 8 + 1) : below(longest)), like = r ? below(r) : 0,
             shared = 0;
    if (r > 0 && below(8)) {
      uint32_t pages = rows[like].kv_len / page_tokens;
      shared = below(4) ? below(pages + 1) : pages;
      if (kv_len < shared * page_tokens)
        kv_len = shared * page_tokens + below(3 * page_tokens) + !shared;
      if (below(10) == 0) { /* a duplicate */
        kv_len = rows[like].kv_len;
        shared = (kv_len + page_tokens - 1) / page_tokens;
      }
    }
    add_row(&plan, kv_len, like, shared);
  }
  return plan;
}

/* A tree in PAT's notation: nodes of each level, tokens of each. */
static td_plan tree_plan(uint32_t n_levels, const uint32_t *nodes, const uint32_t *tokens,
                         uint32_t page_tokens)
{
  td_plan plan = begin_plan(page_tokens);
  uint32_t n = nodes[n_levels - 1], total = 0;
  for (uint32_t l = 0; l < n_levels; l++)
    total += tokens[l];
  for (uint32_t r = 0; r < n; r++) {
    uint32_t shared = 0;
    for (uint32_t l = 0; l < n_levels && r > 0; l++) {
      if ((uint64_t)r * nodes[l] / n != (uint64_t)(r - 1) * nodes[l] / n)
        break;
      shared += tokens[l] / page_tokens;
    }
    add_row(&plan, total, r - (r > 0), shared);
  }
  return plan;
}

/* An H200's, Llama-3-8B's heads: three CTAs on each of 132 multiprocessors. */
static td_attention_planner_config config_of(uint32_t page_tokens)
{
  return (td_attention_planner_config){.max_rows = ROWS_MAX,
                                       .n_resident = 396,
                                       .n_kv_heads = 8,
                                       .gqa_group = 4,
                                       .head_dim = 128,
                                       .page_tokens = page_tokens,
                                       .tile_rows = 64,
                                       .small_rows = 16,
                                       .cost = td_attention_cost_of_h200(396)};
}

static bool half_the_time(uint32_t n_keys, uint32_t n_rows) { return (n_keys / 16 + n_rows) % 2 == 0; }
static bool never(uint32_t n_keys, uint32_t n_rows) { return n_keys + n_rows == 0; }
static uint32_t odd_splits(uint32_t n_decodes, uint32_t n_resident)
{
  return 1 + (n_decodes + n_resident) % 9;
}
static const td_attention_policy odd_policy = {
    .name = "odd", .shares = half_the_time, .kv_splits = odd_splits};
static const td_attention_policy no_policy = {.name = "no", .shares = never};

/* Some follow a policy. Costs are so low that small batches have groups too, some of which are not worth it.
 */
static td_attention_planner_config random_config(void)
{
  static const uint32_t dims[] = {64, 96, 128, 256};
  static const td_attention_policy *const policies[] = {&td_attention_always, &odd_policy, &no_policy};
  uint32_t resident = below(3) ? 396 : 1 + below(1800);
  td_attention_planner_config c = {.policy = below(3) ? NULL : policies[below(3)],
                                   .max_rows = ROWS_MAX,
                                   .n_resident = resident,
                                   .n_kv_heads = 1 + below(below(4) ? 9 : 33),
                                   .gqa_group = 1 + below(16),
                                   .head_dim = dims[below(4)],
                                   .page_tokens = 16u << below(3),
                                   .window_tokens = below(4) ? 0 : 1 + below(5000),
                                   .reduces_in_tiles = below(2),
                                   .tile_rows = below(3) ? 128 : 64,
                                   .small_rows = below(3) ? 16 : below(65),
                                   .cost = td_attention_cost_of_h200(resident)};
  c.cost.start_us *= below(3);
  c.cost.partial_us *= below(3);
  c.cost.sharing_us = below(4) ? 0 : below(20);
  c.cost.small_sharing_us = below(4) ? 0 : below(20);
  c.cost.small_group_us = below(2) * 0.4;
  return c;
}

static td_attention_planner *planner_of(const td_attention_planner_config *c)
{
  td_attention_planner *p = NULL;
  td_error err;
  if (td_attention_planner_create(c, &p, &err) != TD_OK)
    fail_msg("%s", err.message);
  return p;
}

static void make(td_attention_planner *p, const td_plan *plan)
{
  td_error err;
  if (td_attention_planner_make(p, plan, &err) != TD_OK)
    fail_msg("%s", err.message);
}

/* ---- a plan and its work list ---- */

typedef struct view {
  const td_attention_header *h;
  const td_attention_member *members;
  const td_attention_membership *memberships;
  const td_attention_group *groups;
} view;

static view view_of(const td_attention_planner *p)
{
  const td_attention_header *h = td_attention_planner_block(p);
  return (view){h, td_attention_at(h, h->members_at), td_attention_at(h, h->memberships_at),
                td_attention_planner_groups(p)};
}

typedef struct steps {
  td_attention_planner *p;
  const td_attention_planner_config *c;
  td_work_list items;
  uint32_t n_partials, n_sharing, n_split, n_unshared,
      n_grown; /* n_grown: steps with sharing whose work list only grew */
} steps;

static td_work_list_config list_config(const td_attention_planner_config *c)
{
  return (td_work_list_config){.policy = c->policy,
                               .gqa_group = c->gqa_group,
                               .n_kv_heads = c->n_kv_heads,
                               .n_resident = c->n_resident,
                               .decode_rows = DECODE_ROWS,
                               .prefill_rows = PREFILL_ROWS,
                               .warp_rows_min = WARP_ROWS_MIN};
}

/* Plans as the CUDA backend does. */
static void make_step(steps *run, const td_plan *plan)
{
  td_work_list_config cut = list_config(run->c);
  make(run->p, plan);
  if (td_attention_planner_has_grown(run->p) && td_work_list_grow(&run->items, plan, run->p)) {
    td_attention_private private_kv[ROWS_MAX];
    td_attention_planner_private(run->p, plan, private_kv);
    assert_memory_equal(private_kv, run->items.private_kv, plan->n_rows * sizeof *private_kv);
    run->n_grown += td_attention_planner_block(run->p)->n_splits > 0;
    return;
  }
  td_work_list_make(&run->items, plan, &cut, run->p);
}

static void open_run(steps *r, const td_attention_planner_config *c)
{
  r->c = c;
  r->p = planner_of(c);
  r->items.max_items =
      td_work_list_items_max(ROWS_MAX, ROWS_MAX * 40) + td_attention_prefix_splits_max(c, c->max_rows);
  r->items.items = calloc(r->items.max_items, sizeof *r->items.items);
  r->items.scratch = calloc(ROWS_MAX * TD_WORK_LIST_SCRATCH, sizeof *r->items.scratch);
  r->items.private_kv = calloc(ROWS_MAX, sizeof *r->items.private_kv);
  assert_true(r->items.items && r->items.scratch && r->items.private_kv);
}

static void close_run(steps *r)
{
  td_attention_planner_destroy(r->p);
  free(r->items.items);
  free(r->items.scratch);
  free(r->items.private_kv);
}

/* CTAs that begin with a prefix split, for each head. */
static uint32_t n_prefix_ctas(const steps *r)
{
  uint32_t n = 0;
  while (r->items.items[r->items.n_prefill + n].n_tokens == 0)
    n++;
  return n;
}

/* A row's tokens grow by one. */
static void grow_rows(const td_plan *plan)
{
  for (uint32_t r = 0; r < plan->n_rows; r++) {
    rows[r].kv_len++;
    page_table[rows[r].page_table_offset + (rows[r].kv_len - 1) / plan->page_tokens] = next_page++;
  }
}

/* ---- set up ---- */

static int make_table(void **unused)
{
  (void)unused;
  page_table = calloc(PAGES, sizeof *page_table);
  return page_table ? 0 : -1;
}

static int free_table(void **unused)
{
  (void)unused;
  free(page_table);
  return 0;
}

/* Functions that some of these programs do not use. */
static inline void use_all(void)
{
  (void)tree_plan, (void)random_config, (void)right_tables, (void)view_of, (void)make_step, (void)open_run,
      (void)close_run, (void)n_prefix_ctas;
  (void)grow_rows, (void)random_plan, (void)config_of;
}

#endif
