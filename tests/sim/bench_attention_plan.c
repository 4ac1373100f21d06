/* bench_attention_plan [--quick]: host time of the attention planner and the work list, both from scratch
 * and when only lengths have grown, with and without shared prefixes. Then, in predicted time, how each
 * policy shares PAT's trees: every key once, every row by itself, ours. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/attention_trees.h"
#include "kernels/attention/work_list.h"

enum {
  ROWS_MAX = 1024,
  PAGE_TOKENS = 16,
  PREFILL_ROWS = 128,
  DECODE_ROWS = 16,
  WARP_ROWS_MIN = 17,
  STRIPE = 512,
  N_RESIDENT = 3 * 132
};

static const uint32_t heads[][2] = {{32, 8}, {32, 32}, {16, 8}, {64, 8}}; /* query, kv */

static td_plan_row rows[ROWS_MAX];
static int32_t page_table[ROWS_MAX * STRIPE];

static double now_us(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* extra: maximum of private tokens of each row, by its number. */
static td_plan plan_of(const td_attention_tree *t, uint32_t extra)
{
  td_plan plan = {.rows = rows,
                  .page_tokens = PAGE_TOKENS,
                  .page_table = page_table,
                  .page_table_len = ROWS_MAX * STRIPE};
  int32_t next_page = 0;
  uint32_t n = t->nodes[t->n - 1], total = 0;
  for (uint32_t l = 0; l < t->n; l++)
    total += t->tokens[l];
  for (uint32_t r = 0; r < n; r++) {
    uint32_t kv_len = total + (extra ? r * 2654435761u % extra : 0),
             shared = td_attention_tree_shared(t, r) / PAGE_TOKENS;
    rows[r] =
        (td_plan_row){.slot = r, .q_start = r, .q_len = 1, .kv_len = kv_len, .page_table_offset = r * STRIPE};
    for (uint32_t i = 0; i < (uint32_t)STRIPE; i++)
      page_table[r * STRIPE + i] = i < shared ? page_table[(r - 1) * STRIPE + i] : next_page++;
  }
  plan.n_rows = plan.n_tokens = n;
  return plan;
}

static td_attention_planner *planner_of(uint32_t n_heads, uint32_t n_kv_heads)
{
  td_attention_planner_config c = {.policy = &td_attention_always,
                                   .max_rows = ROWS_MAX,
                                   .n_resident = N_RESIDENT,
                                   .n_kv_heads = n_kv_heads,
                                   .gqa_group = n_heads / n_kv_heads,
                                   .head_dim = 128,
                                   .page_tokens = PAGE_TOKENS,
                                   .tile_rows = 64,
                                   .small_rows = 16,
                                   .cost = td_attention_cost_of_h200(N_RESIDENT)};
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

static void make_items(const td_attention_planner *p, const td_plan *plan)
{
  static td_attention_item list[32 * ROWS_MAX];
  static td_attention_private private_kv[ROWS_MAX];
  static uint32_t scratch[ROWS_MAX * TD_WORK_LIST_SCRATCH];
  static td_work_list items = {
      .items = list, .max_items = sizeof list / sizeof *list, .scratch = scratch, .private_kv = private_kv};
  td_work_list_config cut = {.gqa_group = 4,
                             .n_kv_heads = 8,
                             .n_resident = N_RESIDENT,
                             .decode_rows = DECODE_ROWS,
                             .prefill_rows = PREFILL_ROWS,
                             .warp_rows_min = WARP_ROWS_MIN};
  if (!td_attention_planner_has_grown(p) || !td_work_list_grow(&items, plan, p))
    td_work_list_make(&items, plan, &cut, p);
}

/* Lengths grow by a token per step, as in reality; every 16th step the pages change with them. */
static void bench_times(const char *name, const td_attention_tree *t, uint32_t extra, uint32_t n_steps)
{
  double *us = calloc(n_steps, sizeof *us);
  printf("%-18s %5u rows", name, t->nodes[t->n - 1]);
  for (int lazy = 0; us && lazy < 2; lazy++) {
    td_plan plan = plan_of(t, extra);
    td_attention_planner *p = planner_of(32, 8);
    for (uint32_t i = 0; i < n_steps; i++) {
      if (!lazy)
        td_attention_planner_reset(p);
      double begin = now_us();
      make(p, &plan);
      make_items(p, &plan);
      us[i] = now_us() - begin;
      for (uint32_t r = 0; r < plan.n_rows && i < 2000; r++)
        rows[r].kv_len++;
    }
    qsort(us, n_steps, sizeof *us, by_value);
    const td_attention_header *h = td_attention_planner_block(p);
    printf("   %s least %5.1f p50 %5.1f p99 %5.1f us", lazy ? "lazy" : "full", us[0], us[n_steps / 2],
           us[n_steps * 99 / 100]);
    if (lazy)
      printf("   %u bytes, %u prefix splits, %u groups\n", h->block_bytes, h->n_splits, h->n_groups);
    td_attention_planner_destroy(p);
  }
  free(us);
}

static void print_trees(void)
{
  printf("\npredicted us on an H200: every key once, every row by itself, ours\n%-58s", "tree");
  for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
    printf("  %9u/%-2u            ", heads[i][0], heads[i][1]);
  printf("\n");
  for (size_t k = 0; k < sizeof td_pat_trees / sizeof *td_pat_trees; k++) {
    const td_attention_tree *t = &td_pat_trees[k];
    char name[TD_TREE_NAME_BYTES];
    td_attention_tree_name(t, name);
    printf("%-58s", name);
    double once = 0, all = 0;
    for (uint32_t l = 0; l < t->n; l++) {
      once += (double)t->nodes[l] * t->tokens[l];
      all += (double)t->nodes[t->n - 1] * t->tokens[l];
    }
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
      td_attention_cost cost = td_attention_cost_of_h200(1);
      double key_us = 512.0 * heads[i][1] / cost.memory_bytes_us, own;
      td_plan plan = plan_of(t, 0);
      td_attention_planner *p = planner_of(heads[i][0], heads[i][1]);
      make(p, &plan);
      td_attention_stats s = td_attention_planner_stats(p);
      own = (double)s.private_keys * key_us;
      printf("  %6.0f %6.0f %6.0f", once * key_us,
             once * key_us + (all - once) * 512.0 * heads[i][1] / cost.alone_bytes_us,
             own + s.shared_us / N_RESIDENT);
      td_attention_planner_destroy(p);
    }
    printf("\n");
  }
}

int main(int argc, char **argv)
{
  uint32_t n_steps = argc > 1 && strcmp(argv[1], "--quick") == 0 ? 50 : 3000;
  static const uint32_t sizes[] = {64, 256, 1024};
  for (size_t i = 0; i < 3; i++) {
    uint32_t n = sizes[i];
    bench_times("alone, 1 to 4K", &(td_attention_tree){1, {n}, {1024}}, 3000, n_steps);
    bench_times("one system prompt", &(td_attention_tree){2, {1, n}, {2048, 32}}, 1000, n_steps);
    bench_times("four levels", &(td_attention_tree){4, {1, 4, 16, n}, {512, 256, 256, 32}}, 1000, n_steps);
    bench_times("seven levels",
                &(td_attention_tree){7, {1, 4, 8, 16, 32, 64, n}, {256, 128, 64, 64, 64, 64, 64}}, 500,
                n_steps);
  }
  print_trees();
  return 0;
}
