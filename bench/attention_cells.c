/* See attention_cells.h. */
#include "bench/attention_cells.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/attention_traces.h"
#include "bench/attention_trees.h"
#include "loadgen/tool.h"

const char *const td_cell_kinds[TD_CELL_KINDS] = {"decode", "tree", "trace"};

typedef struct heads {
  uint32_t query, kv;
} heads;

static const heads decode_heads[] = {{32, 8}, {32, 32}, {16, 4}, {64, 8}},
                   tree_heads[] = {{32, 8}, {32, 32}, {16, 8}, {64, 8}}, trace_heads[] = {{32, 8}};
/* batch, context. Head shapes other than 32/8 use only the first EVERYWHERE of them. */
static const uint32_t decodes[][2] = {{1, 16384}, {16, 4096}, {64, 4096}, {256, 2048}, {1, 65536}, {4, 16384},
                                      {8, 16384}, {32, 4096}, {64, 1024}, {64, 16384}, {128, 8192}};
enum { EVERYWHERE = 4 };
/* Rows of equal length for which equal splits would leave resident CTAs idle (found by a search over all row
 * counts, test_kernels_attention_work_list), and rows of lengths between two values. */
static const struct {
  uint32_t n_heads, n_kv_heads, n_rows, shortest, longest;
} searched[] = {{32, 8, 17, 16384, 16384}, {32, 8, 40, 12288, 12288}, {32, 8, 74, 4096, 4096},
                {16, 4, 34, 16384, 16384}, {16, 4, 80, 12288, 12288}, {32, 32, 10, 8192, 8192},
                {64, 8, 17, 16384, 16384}, {32, 8, 40, 1024, 24576},  {32, 8, 128, 1024, 8192}};

static bool wanted(const td_cells_request *r, heads h)
{
  return r->n_heads == 0 || (r->n_heads == h.query && r->n_kv_heads == h.kv);
}

static td_attention_cell *add(td_attention_cells *out, const td_cells_request *r, td_cell_kind kind, heads h,
                              uint32_t n_rows)
{
  td_tool_grow((void **)&out->cells, &out->cap, out->n + 1, sizeof *out->cells);
  td_attention_cell *c = &out->cells[out->n++];
  *c = (td_attention_cell){
      .kind = kind, .n_heads = h.query, .n_kv_heads = h.kv, .head_dim = r->head_dim, .n_rows = n_rows};
  c->kv_len = td_tool_alloc(n_rows, sizeof *c->kv_len);
  c->shared = td_tool_alloc(n_rows, sizeof *c->shared);
  return c;
}

/* Completes the last cell, or removes it if it is too large or has another name. */
static void settle(td_attention_cells *out, const td_cells_request *r)
{
  td_attention_cell *c = &out->cells[out->n - 1];
  double keys = 0;
  for (uint32_t i = 0; i < c->n_rows; i++) {
    keys += c->kv_len[i];
    c->unique_keys += c->kv_len[i] - c->shared[i];
  }
  if ((r->max_keys == 0 || keys <= r->max_keys) && (!r->name || strcmp(c->name, r->name) == 0))
    return;
  free(c->kv_len), free(c->shared);
  out->n--;
}

static void add_decodes(td_attention_cells *out, const td_cells_request *r)
{
  for (size_t h = 0; h < sizeof decode_heads / sizeof *decode_heads; h++)
    for (size_t i = 0; i < sizeof decodes / sizeof *decodes; i++) {
      if (!wanted(r, decode_heads[h]) || (h > 0 && i >= EVERYWHERE))
        continue;
      td_attention_cell *c = add(out, r, TD_CELL_DECODE, decode_heads[h], decodes[i][0]);
      snprintf(c->name, sizeof c->name, "%ux%u", decodes[i][0], decodes[i][1]);
      for (uint32_t k = 0; k < c->n_rows; k++)
        c->kv_len[k] = decodes[i][1];
      settle(out, r);
    }
}

/* Lengths evenly spread between shortest and longest, in shuffled order: each row's length is STEPS positions
 * from the last row's. STEPS and the number of rows have no common divisor, so every position occurs once. */
static void add_searched(td_attention_cells *out, const td_cells_request *r)
{
  enum { STEPS = 29 };
  for (size_t i = 0; i < sizeof searched / sizeof *searched; i++) {
    heads h = {searched[i].n_heads, searched[i].n_kv_heads};
    uint32_t n = searched[i].n_rows, shortest = searched[i].shortest, longest = searched[i].longest;
    if (!wanted(r, h))
      continue;
    td_attention_cell *c = add(out, r, TD_CELL_DECODE, h, n);
    snprintf(c->name, sizeof c->name, shortest < longest ? "%ux%u-%u" : "%ux%u", n, shortest, longest);
    for (uint32_t k = 0; k < n; k++)
      c->kv_len[k] = shortest + (longest - shortest) / (n - 1) * (k * STEPS % n);
    settle(out, r);
  }
}

static void add_trees(td_attention_cells *out, const td_cells_request *r)
{
  for (size_t h = 0; h < sizeof tree_heads / sizeof *tree_heads; h++)
    for (size_t i = 0; i < sizeof td_pat_trees / sizeof *td_pat_trees && wanted(r, tree_heads[h]); i++) {
      const td_attention_tree *t = &td_pat_trees[i];
      td_attention_cell *c = add(out, r, TD_CELL_TREE, tree_heads[h], t->nodes[t->n - 1]);
      uint32_t total = 0;
      td_attention_tree_name(t, c->name);
      for (uint32_t l = 0; l < t->n; l++)
        total += t->tokens[l];
      for (uint32_t k = 0; k < c->n_rows; k++) {
        c->kv_len[k] = total;
        c->shared[k] = td_attention_tree_shared(t, k);
      }
      settle(out, r);
    }
}

static void add_step(td_attention_cells *out, const td_cells_request *r, heads h, const td_trace_run *t,
                     uint32_t seed, uint32_t step)
{
  uint32_t n = 0;
  for (uint32_t i = 0; i < TD_TRACE_ROWS_MAX; i++)
    n += t->left[i] > 0;
  td_attention_cell *c = add(out, r, TD_CELL_TRACE, h, n);
  snprintf(c->name, sizeof c->name, "%s seed %u step %u", td_attention_traces[t->trace].name, seed, step);
  c->trace = t->trace;
  c->seed = seed;
  n = 0;
  for (uint32_t i = 0; i < TD_TRACE_ROWS_MAX; i++)
    if (t->left[i] > 0)
      c->kv_len[n++] = t->kv_len[i];
  settle(out, r);
}

static void add_trace(td_attention_cells *out, const td_cells_request *r, heads h, uint32_t trace,
                      uint32_t seed)
{
  td_trace_run run = td_trace_begin(trace, seed);
  uint32_t n_steps = 0, n_taken = 0;
  while (td_trace_run_step(&run))
    n_steps++;
  run = td_trace_begin(trace, seed);
  for (uint32_t step = 0; td_trace_run_step(&run); step++)
    if ((uint64_t)step * r->steps_of_a_trace / n_steps >= n_taken) {
      add_step(out, r, h, &run, seed, step);
      n_taken++;
    }
}

void td_attention_cells_make(td_attention_cells *out, const td_cells_request *r)
{
  *out = (td_attention_cells){0};
  if (r->kinds[TD_CELL_DECODE]) {
    add_decodes(out, r);
    add_searched(out, r);
  }
  if (r->kinds[TD_CELL_TREE])
    add_trees(out, r);
  for (size_t h = 0; h < sizeof trace_heads / sizeof *trace_heads && r->kinds[TD_CELL_TRACE]; h++)
    for (uint32_t trace = 0; trace < TD_ATTENTION_TRACES && wanted(r, trace_heads[h]); trace++)
      for (uint32_t seed = 0; seed <= TD_TRACE_SEEDS; seed++)
        add_trace(out, r, trace_heads[h], trace, seed);
}

void td_attention_cells_deinit(td_attention_cells *c)
{
  for (size_t i = 0; i < c->n; i++)
    free(c->cells[i].kv_len), free(c->cells[i].shared);
  free(c->cells);
  *c = (td_attention_cells){0};
}

td_trace_figures td_attention_trace_figures(const td_attention_cells *c, const double *us, uint32_t trace)
{
  td_trace_figures f = {.calibration_us = NAN};
  double sum = 0, squares = 0;
  for (uint32_t seed = 0; seed <= TD_TRACE_SEEDS; seed++) {
    double total = 0;
    uint32_t n = 0;
    for (size_t i = 0; i < c->n; i++)
      if (c->cells[i].kind == TD_CELL_TRACE && c->cells[i].trace == trace && c->cells[i].seed == seed &&
          isfinite(us[i])) {
        total += us[i];
        n++;
      }
    if (n > 0 && seed == TD_TRACE_CALIBRATION_SEED) {
      f.calibration_us = total / n;
    } else if (n > 0) {
      sum += total / n;
      squares += total / n * (total / n);
      f.n_seeds++;
    }
  }
  f.mean_us = f.n_seeds > 0 ? sum / f.n_seeds : NAN;
  f.sd_us = f.n_seeds > 1 ? sqrt(fmax(0, squares - sum * sum / f.n_seeds) / (f.n_seeds - 1)) : NAN;
  return f;
}

cJSON *td_attention_cells_json(const td_attention_cells *c)
{
  cJSON *list = cJSON_CreateArray();
  for (size_t i = 0; i < c->n; i++) {
    const td_attention_cell *k = &c->cells[i];
    cJSON *o = cJSON_CreateObject(), *lens = cJSON_AddArrayToObject(o, "kv_len"),
          *shared = cJSON_AddArrayToObject(o, "shared");
    cJSON_AddStringToObject(o, "kind", td_cell_kinds[k->kind]);
    cJSON_AddStringToObject(o, "name", k->name);
    cJSON_AddNumberToObject(o, "heads", k->n_heads);
    cJSON_AddNumberToObject(o, "kv_heads", k->n_kv_heads);
    cJSON_AddNumberToObject(o, "head_dim", k->head_dim);
    for (uint32_t r = 0; r < k->n_rows; r++) {
      cJSON_AddItemToArray(lens, cJSON_CreateNumber(k->kv_len[r]));
      cJSON_AddItemToArray(shared, cJSON_CreateNumber(k->shared[r]));
    }
    cJSON_AddItemToArray(list, o);
  }
  return list;
}
