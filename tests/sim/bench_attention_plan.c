/* bench_attention_plan [--quick]: host time of the attention planner, of all or of shared spans alone with the items for the rest, made
 * from nothing and with only lengths grown, with and without shared prefixes; then, in predicted time, what it makes of PAT's trees (every row by itself, PAT's packing, ours, and
 * the floor, each key once from memory) and of PersistentKV's traces, by policy. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/attention_traces.h"
#include "bench/attention_trees.h"
#include "kernels/cuda/attention_items.h"

enum { ROWS_MAX = 1024, PAGE_TOKENS = 16, STRIPE = 512, N_WORKERS = 132 };

static const uint32_t heads[][2] = {{32, 8}, {32, 32}, {16, 8}, {64, 8}}; /* query, kv */

static td_plan_row rows[ROWS_MAX];
static int32_t page_table[ROWS_MAX * STRIPE];

static double now_us(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* extra: tokens of each row beyond the tree's, at most, by its number. */
static td_plan plan_of(const td_attention_tree *t, uint32_t extra)
{
  td_plan plan = {.rows = rows, .page_tokens = PAGE_TOKENS, .page_table = page_table, .page_table_len = ROWS_MAX * STRIPE};
  int32_t next_page = 0;
  uint32_t n = t->nodes[t->n - 1], total = 0;
  for (uint32_t l = 0; l < t->n; l++)
    total += t->tokens[l];
  for (uint32_t r = 0; r < n; r++) {
    uint32_t kv_len = total + (extra ? r * 2654435761u % extra : 0), shared = td_attention_tree_shared(t, r) / PAGE_TOKENS;
    rows[r] = (td_plan_row){.slot = r, .q_start = r, .q_len = 1, .kv_len = kv_len, .page_table_offset = r * STRIPE};
    for (uint32_t i = 0; i < (uint32_t)STRIPE; i++)
      page_table[r * STRIPE + i] = i < shared ? page_table[(r - 1) * STRIPE + i] : next_page++;
  }
  plan.n_rows = plan.n_tokens = n;
  return plan;
}

static td_attention_planner *planner_of(uint32_t n_heads, uint32_t n_kv_heads, td_attention_policy policy, bool shared_only)
{
  uint32_t n_workers = (shared_only ? 3 : 1) * N_WORKERS;
  td_attention_planner_config c = {.policy = policy, .max_rows = ROWS_MAX, .n_workers = n_workers, .n_kv_heads = n_kv_heads,
                                   .group = n_heads / n_kv_heads, .head_dim = 128, .page_tokens = PAGE_TOKENS,
                                   .tile_rows = shared_only ? 64 : 128, .max_slots = 1 << 24, .shared_only = shared_only,
                                   .cost = shared_only ? td_attention_cost_of_h200_apart(n_workers) : td_attention_cost_of_h200(n_workers)};
  td_attention_planner *p = NULL;
  td_error err;
  if (td_attention_planner_create(&c, &p, &err) != TD_OK) {
    fprintf(stderr, "%s\n", err.message);
    exit(2);
  }
  return p;
}

static void make(td_attention_planner *p, const td_plan *plan)
{
  td_error err;
  if (td_attention_planner_make(p, plan, &err) != TD_OK) {
    fprintf(stderr, "%s\n", err.message);
    exit(2);
  }
}

static int by_value(const void *x, const void *y)
{
  double a = *(const double *)x, b = *(const double *)y;
  return (a > b) - (a < b);
}

/* What is left by shared spans alone. */
static void make_items(const td_attention_planner *p, const td_plan *plan)
{
  static td_attention_item list[32 * ROWS_MAX];
  static td_attention_own own[ROWS_MAX];
  static uint32_t scratch[ROWS_MAX * TD_ITEMS_SCRATCH];
  static td_attention_items items = {.items = list, .max_items = sizeof list / sizeof *list, .scratch = scratch};
  if (td_attention_planner_has_grown(p) && td_attention_items_grow(&items, plan, td_attention_planner_block(p)))
    return;
  td_attention_cut cut = {4, 8, 3 * N_WORKERS, TD_PREFILL_ROWS_WGMMA, false, false, true, own,
                          td_attention_planner_block(p)};
  td_attention_planner_own(p, plan, own);
  td_attention_items_make(&items, plan, &cut);
}

/* Lengths grow by a token a step, as they do; every 16th the pages change with them. */
static void bench_times(const char *name, const td_attention_tree *t, uint32_t extra, uint32_t n_steps, bool shared_only)
{
  double *us = calloc(n_steps, sizeof *us);
  printf("%-18s %-11s %5u rows", name, shared_only ? "shared only" : "", t->nodes[t->n - 1]);
  for (int lazy = 0; us && lazy < 2; lazy++) {
    td_plan plan = plan_of(t, extra);
    td_attention_planner *p = planner_of(32, 8, TD_ATTENTION_UNIFIED, shared_only);
    for (uint32_t i = 0; i < n_steps; i++) {
      if (!lazy)
        td_attention_planner_forget(p);
      double begin = now_us();
      make(p, &plan);
      if (shared_only)
        make_items(p, &plan);
      us[i] = now_us() - begin;
      for (uint32_t r = 0; r < plan.n_rows && i < 2000; r++)
        rows[r].kv_len++;
    }
    qsort(us, n_steps, sizeof *us, by_value);
    const td_attention_header *h = td_attention_planner_block(p);
    printf("   %s least %5.1f p50 %5.1f p99 %5.1f us", lazy ? "lazy" : "full", us[0], us[n_steps / 2], us[n_steps * 99 / 100]);
    if (lazy)
      printf("   %u bytes, %u tasks, %u shared spans\n", h->block_bytes, h->n_tasks, h->n_shared_spans);
    td_attention_planner_destroy(p);
  }
  free(us);
}

/* Every row by itself, by the same costs: keys of a node from memory once, then from the L2 cache if they fit there. */
static double unpacked_us(const td_attention_tree *t, uint32_t n_kv_heads, double *floor_us)
{
  td_attention_cost c = td_attention_cost_of_h200(N_WORKERS);
  double us = t->nodes[t->n - 1] * c.start_us, head_bytes = 512;
  *floor_us = 0;
  for (uint32_t l = 0; l < t->n; l++) {
    double n_rows = t->nodes[t->n - 1] / t->nodes[l], keys = t->tokens[l];
    double again = keys * n_kv_heads * head_bytes <= c.l2_bytes ? c.l2_bytes_us : c.memory_bytes_us;
    us += t->nodes[l] * keys * head_bytes * (1 / c.memory_bytes_us + (n_rows - 1) / again);
    *floor_us += t->nodes[l] * keys * head_bytes / c.memory_bytes_us * n_kv_heads / N_WORKERS;
  }
  return us * n_kv_heads / N_WORKERS;
}

static double planned_us(const td_attention_tree *t, uint32_t n_heads, uint32_t n_kv_heads, td_attention_policy policy)
{
  td_plan plan = plan_of(t, 0);
  td_attention_planner *p = planner_of(n_heads, n_kv_heads, policy, false);
  make(p, &plan);
  double us = td_attention_planner_stats(p).longest_us;
  td_attention_planner_destroy(p);
  return us;
}

static void print_trees(void)
{
  printf("\npredicted us on %d workers: floor, every row by itself, PAT's packing, ours\n%-58s", N_WORKERS, "tree");
  for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
    printf("  %16u/%-2u            ", heads[i][0], heads[i][1]);
  printf("\n");
  for (size_t k = 0; k < sizeof td_pat_trees / sizeof *td_pat_trees; k++) {
    const td_attention_tree *t = &td_pat_trees[k];
    char name[TD_TREE_NAME_BYTES];
    td_attention_tree_name(t, name);
    printf("%-58s", name);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
      double floor_us, alone = unpacked_us(t, heads[i][1], &floor_us);
      printf("  %6.0f %7.0f %6.0f %6.0f", floor_us, alone, planned_us(t, heads[i][0], heads[i][1], TD_ATTENTION_PAT),
             planned_us(t, heads[i][0], heads[i][1], TD_ATTENTION_UNIFIED));
    }
    printf("\n");
  }
}

/* ---- PersistentKV's traces ---- */

enum { TRACE_STRIPE = TD_TRACE_TOKENS_MAX / PAGE_TOKENS };

/* Mean predicted us of a step; *floor_us: of its keys, evenly spread. */
static double trace_us(uint32_t trace, td_attention_policy policy, uint64_t seed, double *floor_us)
{
  uint32_t n_steps = 0;
  double us = 0, keys = 0;
  td_plan plan = {.rows = rows, .page_tokens = PAGE_TOKENS, .page_table = page_table, .page_table_len = TD_TRACE_ROWS_MAX * TRACE_STRIPE};
  td_attention_planner *p = planner_of(32, 8, policy, false);
  for (uint32_t i = 0; i < plan.page_table_len; i++)
    page_table[i] = (int32_t)i;
  for (td_trace_run run = td_trace_begin(trace, seed); td_trace_step(&run); n_steps++) {
    plan.n_rows = 0;
    for (uint32_t i = 0; i < TD_TRACE_ROWS_MAX; i++)
      if (run.left[i] > 0) {
        rows[plan.n_rows] = (td_plan_row){.slot = run.request[i], .q_start = plan.n_rows, .q_len = 1, .kv_len = run.kv_len[i],
                                          .page_table_offset = i * TRACE_STRIPE};
        keys += rows[plan.n_rows++].kv_len;
      }
    make(p, &plan);
    us += td_attention_planner_stats(p).longest_us;
  }
  td_attention_planner_destroy(p);
  *floor_us = keys * 8 * 512 / td_attention_cost_of_h200(1).memory_bytes_us / n_steps;
  return us / n_steps;
}

static void print_traces(void)
{
  static const td_attention_policy policies[] = {TD_ATTENTION_FLASHDECODE, TD_ATTENTION_PERSISTENTKV, TD_ATTENTION_PAT,
                                                 TD_ATTENTION_UNIFIED};
  printf("\npredicted us a step, heads 32/8, mean and sd of %d seeds: floor, flashdecode, persistentkv, pat, unified\n", TD_TRACE_SEEDS);
  for (uint32_t t = 0; t < TD_ATTENTION_TRACES; t++) {
    double floor_us = 0;
    printf("%-14s", td_attention_traces[t].name);
    for (size_t k = 0; k < sizeof policies / sizeof *policies; k++) {
      double sum = 0, squares = 0, floors = 0;
      for (uint64_t seed = 1; seed <= TD_TRACE_SEEDS; seed++) {
        double us = trace_us(t, policies[k], seed, &floor_us);
        sum += us, squares += us * us, floors += floor_us;
      }
      if (k == 0)
        printf(" %7.1f", floors / TD_TRACE_SEEDS);
      printf("  %7.1f +- %4.1f", sum / TD_TRACE_SEEDS, sqrt(fmax(squares / TD_TRACE_SEEDS - sum / TD_TRACE_SEEDS * sum / TD_TRACE_SEEDS, 0)));
    }
    printf("\n");
  }
}

int main(int argc, char **argv)
{
  uint32_t n_steps = argc > 1 && strcmp(argv[1], "--quick") == 0 ? 50 : 3000;
  static const uint32_t sizes[] = {64, 256, 1024};
  for (size_t i = 0; i < 6; i++) {
    uint32_t n = sizes[i / 2];
    bool shared_only = i % 2 > 0;
    bench_times("alone, 1 to 4K", &(td_attention_tree){1, {n}, {1024}}, 3000, n_steps, shared_only);
    bench_times("one system prompt", &(td_attention_tree){2, {1, n}, {2048, 32}}, 1000, n_steps, shared_only);
    bench_times("four levels", &(td_attention_tree){4, {1, 4, 16, n}, {512, 256, 256, 32}}, 1000, n_steps, shared_only);
    bench_times("seven levels", &(td_attention_tree){7, {1, 4, 8, 16, 32, 64, n}, {256, 128, 64, 64, 64, 64, 64}}, 500, n_steps, shared_only);
  }
  print_trees();
  print_traces();
  return 0;
}
