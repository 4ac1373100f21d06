/* tandem-bench attention: decode attention alone, by policy, on the batches of attention_cells.h, each beside
 * the time that reading every key once takes.
 *
 * A figure is the median of a few rounds; a round is a step with the op OPS times over, once for each of
 * several layers in turn, so that no key is in the L2 cache from the time before; captured (a CUDA graph)
 * where the backend does that, less an empty step. The plan is made once a step as in the daemon: what it
 * takes the host stands beside. `--fake` takes the times that the plans predict instead of a device's: for
 * work on this file, and to see what plans would be worth. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "bench/attention_cells.h"
#include "bench/attention_policies.h"
#include "bench/attention_traces.h"
#include "bench/ceilings.h"
#include "bench/commands.h"
#include "bench/stage.h"
#include "bench/tool.h"
#include "common/log.h"
#include "kernels/attention/work_list.h"

enum {
  LAYERS = 4,
  OPS = 16,
  POLICIES_MAX = 8,
  MAX_CONTEXT = 69632,
  PLAN_RUNS = 5,
  EMPTY_ROUNDS = 20,
  PLANNED_DIM_MAX = 128, /* heads of more elements have no plans: every row is by itself */
  H200_RESIDENT = 396,
  TILE_ROWS = 64,
  TILES_REDUCED_FROM = 5,
  PREFILL_ROWS = 128,
  DECODE_ROWS = 16,
  WARP_ROWS_MIN = 17
};                                /* what an H200's planner is made with (kernels/cuda/attention_group.cu) */
static const double fixed_us = 5; /* of a launch, where nothing is measured */

typedef struct bench {
  const char *backend, *only, *heads, *policy_names, *name_wanted, *json, *cells_file;
  double device, gb, n_rounds, max_seconds, max_keys, trace_steps, gb_s, threads, head_dim;
  bool fake;
  td_attention_cells cells;
  uint32_t n_policies;
  const char *policies[POLICIES_MAX];
  double *us[POLICIES_MAX], *plan_us[POLICIES_MAX]; /* [cells.n]; NaN: not measured */
  uint32_t *n_short[POLICIES_MAX]; /* [cells.n]: what the policy wanted and partials did not suffice for */
  td_ceiling ceiling;
  char name[64]; /* of the backend that measured */
  /* the backend at work */
  td_stage stage;
  td_devptr qkv, out, inv_freq;
  const td_attention_cell *cell;
  td_compiled *attention; /* of n_ops ops */
  uint32_t n_ops;
  bool captured[TD_CELL_ROWS_MAX + 1];
} bench;

static void check(td_status st, const td_error *err)
{
  if (st != TD_OK)
    td_tool_die("%s", err->message);
}

static bool in_list(const char *list, const char *word)
{
  size_t n = strlen(word);
  for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
    if (strncmp(at, word, n) == 0 && (at[n] == ',' || !at[n]))
      return true;
  return !list;
}

/* ---- the backend ---- */

static td_op rope_op(const bench *b, uint32_t layer)
{
  const td_attention_cell *c = b->cell;
  td_rope_kv_params p = {.qkv = b->qkv,
                         .inv_freq = b->inv_freq,
                         .attn_factor = 1,
                         .norm_eps = 1e-5f,
                         .style = TD_ROPE_HALVES,
                         .kv = b->stage.kv,
                         .layer = layer,
                         .n_heads = c->n_heads,
                         .n_kv_heads = c->n_kv_heads,
                         .head_dim = c->head_dim,
                         .rotary_dim = c->head_dim};
  return (td_op){.kind = TD_OP_ROPE_KV, .rope_kv = p};
}

static td_op attention_op(const bench *b, uint32_t layer)
{
  const td_attention_cell *c = b->cell;
  td_attention_params p = {.qkv = b->qkv,
                           .out = b->out,
                           .kv = b->stage.kv,
                           .scale = 1 / sqrtf((float)c->head_dim),
                           .layer = layer,
                           .n_heads = c->n_heads,
                           .n_kv_heads = c->n_kv_heads,
                           .head_dim = c->head_dim};
  return (td_op){.kind = TD_OP_ATTENTION, .attention = p};
}

/* n ops, of one layer after another. */
static td_compiled *compile(bench *b, td_op (*op)(const bench *b, uint32_t layer), uint32_t n)
{
  td_error err;
  td_program *p;
  check(td_program_create(n, &p, &err), &err);
  for (uint32_t i = 0; i < n; i++)
    td_program_add(p, op(b, i % LAYERS));
  td_compiled *compiled = td_stage_compile(&b->stage, p);
  td_program_destroy(p);
  return compiled;
}

/* Keys and values, through the op that writes them, from random activations. */
static void fill_kv(bench *b)
{
  td_compiled *writes_kv = compile(b, rope_op, LAYERS);
  td_stage_fill(&b->stage, writes_kv);
  td_stage_discard(&b->stage, writes_kv);
}

static void make_activations(bench *b, const td_attention_cell *c)
{
  td_backend *be = b->stage.be;
  td_error err;
  size_t n = (size_t)be->max_tokens * (c->n_heads + 2 * c->n_kv_heads) * c->head_dim * be->activation_bytes /
             sizeof(float);
  float *v = td_tool_alloc(n, sizeof *v), *frequencies = td_tool_alloc(c->head_dim / 2, sizeof *frequencies);
  uint64_t random = 11;
  for (size_t i = 0; i < n; i++) { /* signs and mantissas random, exponents of 1/4 to 1/2, in either width */
    random = random * 6364136223846793005u + 1442695040888963407u;
    uint32_t bits = (uint32_t)(random >> 32), word = be->activation_bytes == 2
                                                         ? (bits & 0x80ff80ffu) | 0x3e003e00u
                                                         : (bits & 0x80ffffffu) | 0x3e000000u;
    memcpy(&v[i], &word, sizeof word);
  }
  for (uint32_t i = 0; i < c->head_dim / 2; i++)
    frequencies[i] = powf(10000, -2.0f * (float)i / (float)c->head_dim);
  check(be->ops->upload_f32(be, v, n, &b->qkv, &err), &err);
  check(be->ops->upload_f32(be, frequencies, c->head_dim / 2, &b->inv_freq, &err), &err);
  check(be->ops->alloc(be, (size_t)be->max_tokens * c->n_heads * c->head_dim * be->activation_bytes, &b->out,
                       &err),
        &err);
  free(v), free(frequencies);
}

/* One for each policy and shape: both are chosen when a backend is made. false: it has not got this policy.
 */
static bool open_backend(bench *b, const td_attention_cell *c, const char *name)
{
  td_error err;
  td_backend *be;
  double keys = 0;
  const td_attention_policy *policy = NULL;
  td_attention_policy_of(name, &policy);
  for (size_t i = 0; i < b->cells.n; i++) {
    const td_attention_cell *k = &b->cells.cells[i];
    if (k->n_heads == c->n_heads && k->n_kv_heads == c->n_kv_heads)
      keys = fmax(keys, k->unique_keys + (double)k->n_rows * TD_CELL_PAGE_TOKENS);
  }
  td_backend_config config = {.n_threads = (uint32_t)b->threads,
                              .max_slots = TD_CELL_ROWS_MAX,
                              .max_rows = TD_CELL_ROWS_MAX,
                              .max_tokens = 2048,
                              .max_context_tokens = MAX_CONTEXT,
                              .max_vocab = 1024,
                              .device = (uint32_t)b->device,
                              .attention_policy = policy,
                              .gpu_memory_percent = 90};
  check(td_backend_create(b->backend, &config, &be, &err), &err);
  snprintf(b->name, sizeof b->name, "%s", be->ops->name);
  td_kv_spec kv = {.n_pages = 1,
                   .page_tokens = TD_CELL_PAGE_TOKENS,
                   .n_groups = 1,
                   .groups = {{.n_layers = LAYERS,
                               .dtype = be->kv_dtype,
                               .n_kv_heads = c->n_kv_heads,
                               .head_dim = c->head_dim,
                               .n_heads = c->n_heads}}};
  if (be->ops->kv_check(be, &kv, &err) != TD_OK) {
    fprintf(stderr, "%s, heads %u/%u: not measured: %s\n", name, c->n_heads, c->n_kv_heads, err.message);
    be->ops->destroy(be);
    return false;
  }
  b->cell = c;
  b->stage.be = be;
  memset(b->captured, 0, sizeof b->captured);
  make_activations(b, c);
  double pages = fmin(b->gb * 1e9 / (double)be->ops->kv_bytes_per_page(be, &kv), keys / TD_CELL_PAGE_TOKENS);
  td_stage_init(&b->stage, be, &kv, (uint32_t)pages, MAX_CONTEXT);
  fill_kv(b);
  b->n_ops = be->ops->capture ? OPS : LAYERS; /* a CPU's take long enough */
  b->attention = compile(b, attention_op, b->n_ops);
  return true;
}

/* ---- times ---- */

static bool plan_cell(bench *b, const td_attention_cell *c)
{
  bool fits = true;
  td_stage_plan_begin(&b->stage);
  for (uint32_t r = 0; r < c->n_rows && fits; r++)
    fits = td_stage_plan_shared(&b->stage, c->kv_len[r], c->shared[r], true);
  return fits;
}

/* us of the op, or NaN: the cell does not fit, or is too short to be told from an empty step. */
static double measure(bench *b, const td_attention_cell *c)
{
  td_backend *be = b->stage.be;
  td_error err;
  td_capture ignored;
  if (be->ops->capture && !b->captured[c->n_rows]) {
    check(be->ops->capture(be, b->attention, c->n_rows, &ignored, &err), &err);
    b->captured[c->n_rows] = true;
  }
  if (!plan_cell(b, c))
    return NAN;
  double all = td_stage_step_s(&b->stage, b->attention, (uint32_t)b->n_rounds, b->max_seconds);
  double empty = td_stage_step_s(&b->stage, NULL, EMPTY_ROUNDS, b->max_seconds);
  return all > empty ? (all - empty) / b->n_ops * 1e6 : NAN;
}

/* ---- the planner's side ---- */

static td_attention_planner *planner_of(const td_attention_cell *c, const td_attention_policy *policy)
{
  uint32_t group = c->n_heads / c->n_kv_heads;
  td_attention_planner_config config = {.policy = policy,
                                        .max_rows = TD_CELL_ROWS_MAX,
                                        .n_resident = H200_RESIDENT,
                                        .n_kv_heads = c->n_kv_heads,
                                        .gqa_group = group,
                                        .head_dim = c->head_dim,
                                        .page_tokens = TD_CELL_PAGE_TOKENS,
                                        .tile_rows = TILE_ROWS,
                                        .reduces_in_tiles = group >= TILES_REDUCED_FROM,
                                        .cost = td_attention_cost_of_h200(H200_RESIDENT)};
  td_attention_planner *p;
  td_error err;
  check(td_attention_planner_create(&config, &p, &err), &err);
  return p;
}

/* As the backend makes them. */
static void make_items(td_work_list *items, const td_plan *plan, const td_attention_cell *c,
                       const td_attention_planner *p)
{
  const td_attention_planner_config planned = td_attention_planner_config_of(p);
  td_work_list_config cut = {.policy = planned.policy,
                             .gqa_group = c->n_heads / c->n_kv_heads,
                             .n_kv_heads = c->n_kv_heads,
                             .n_resident = H200_RESIDENT,
                             .decode_rows = DECODE_ROWS,
                             .prefill_rows = PREFILL_ROWS,
                             .warp_rows_min = WARP_ROWS_MIN};
  td_work_list_make(items, plan, &cut, p);
}

static td_work_list alloc_items(const td_attention_planner *p)
{
  td_attention_planner_config c = td_attention_planner_config_of(p);
  td_work_list items = {.max_items = td_work_list_items_max(c.max_rows, c.max_rows) +
                                     td_attention_prefix_splits_max(&c, c.max_rows)};
  items.items = td_tool_alloc(items.max_items, sizeof *items.items);
  items.scratch = td_tool_alloc((size_t)c.max_rows * TD_WORK_LIST_SCRATCH, sizeof *items.scratch);
  items.of_rows = td_tool_alloc(c.max_rows, sizeof *items.of_rows);
  return items;
}

/* What the host takes for plan and work list, made from nothing, and what the plan predicts. The pages are as
 * plan_cell deals them. *n_short: groups and KV splits that the policy wanted and that found no partials. */
static double plan_us(const td_attention_cell *c, const td_attention_policy *policy,
                      td_attention_stats *stats, uint32_t *n_short)
{
  uint32_t stripe = MAX_CONTEXT / TD_CELL_PAGE_TOKENS;
  td_plan_row *rows = td_tool_alloc(c->n_rows, sizeof *rows);
  int32_t *table = td_tool_alloc((size_t)c->n_rows * stripe, sizeof *table), next = 0;
  td_plan plan = {.n_rows = c->n_rows,
                  .rows = rows,
                  .n_tokens = c->n_rows,
                  .page_tokens = TD_CELL_PAGE_TOKENS,
                  .page_table_len = c->n_rows * stripe,
                  .page_table = table};
  for (uint32_t r = 0; r < c->n_rows; r++) {
    rows[r] = (td_plan_row){
        .slot = r, .q_start = r, .q_len = 1, .kv_len = c->kv_len[r], .page_table_offset = r * stripe};
    for (uint32_t i = 0; i * TD_CELL_PAGE_TOKENS < c->kv_len[r]; i++)
      table[r * stripe + i] = i < c->shared[r] / TD_CELL_PAGE_TOKENS ? table[(r - 1) * stripe + i] : next++;
  }
  td_attention_planner *p = planner_of(c, policy);
  td_work_list items = alloc_items(p);
  double us[PLAN_RUNS];
  td_error err;
  for (int i = 0; i < PLAN_RUNS; i++) {
    double begin = td_tool_now_s();
    check(td_attention_planner_make(p, &plan, &err), &err);
    make_items(&items, &plan, c, p);
    us[i] = (td_tool_now_s() - begin) * 1e6;
    td_attention_planner_reset(p);
  }
  *stats = td_attention_planner_stats(p);
  *n_short = (stats->n_unshared > 0) + items.n_unsplit;
  td_attention_planner_destroy(p);
  free(rows), free(table), free(items.items), free(items.scratch), free(items.of_rows);
  return td_stats_median(us, PLAN_RUNS);
}

/* Without a device: prefix splits as predicted, private keys at memory's rate, both evenly over the device.
 */
static double faked_us(const bench *b, const td_attention_cell *c, const td_attention_stats *stats)
{
  double bytes = (double)stats->private_keys * c->n_kv_heads * c->head_dim * 4;
  return fixed_us + stats->shared_us / H200_RESIDENT + bytes / b->ceiling.bytes_per_s * 1e6;
}

/* ---- all of it ---- */

static bool same_heads(const td_attention_cell *a, const td_attention_cell *b)
{
  return a->n_heads == b->n_heads && a->n_kv_heads == b->n_kv_heads;
}

static void measure_heads(bench *b, const td_attention_cell *first, uint32_t p)
{
  const td_attention_policy *policy = NULL;
  bool has_plans = b->head_dim <= PLANNED_DIM_MAX;
  td_attention_policy_of(has_plans ? b->policies[p] : "none", &policy);
  if (!b->fake && !open_backend(b, first, b->policies[p]))
    return;
  for (size_t i = 0; i < b->cells.n; i++) {
    const td_attention_cell *c = &b->cells.cells[i];
    td_attention_stats stats;
    if (!same_heads(c, first))
      continue;
    double host_us = plan_us(c, policy, &stats, &b->n_short[p][i]);
    b->plan_us[p][i] = has_plans ? host_us : NAN;
    b->us[p][i] = b->fake ? faked_us(b, c, &stats) : measure(b, c);
    td_tool_progress((double)i / (double)b->cells.n, "%s, heads %u/%u, %s", b->policies[p], c->n_heads,
                     c->n_kv_heads, c->name);
  }
  td_tool_progress(-1, " ");
  if (b->fake)
    return;
  td_stage_discard(&b->stage, b->attention);
  td_stage_deinit(&b->stage);
}

static double floor_us(const bench *b, const td_attention_cell *c)
{
  return c->unique_keys * c->n_kv_heads * c->head_dim * 4 / b->ceiling.bytes_per_s * 1e6;
}

static void print_number(double v, int width)
{
  if (isfinite(v))
    printf(" %*.1f", width, v);
  else
    printf(" %*s", width, "-");
}

static void print_tables(const bench *b)
{
  bool any_short = false;
  printf("%s; us of one layer's decode attention, head dim %.0f, pages of %d; floor: each key once at %.0f "
         "GB/s\n",
         b->fake ? "predicted, no device" : b->name, b->head_dim, TD_CELL_PAGE_TOKENS,
         b->ceiling.bytes_per_s * 1e-9);
  printf("%-7s %-42s %-6s %8s", "", "", "heads", "floor");
  for (uint32_t p = 0; p < b->n_policies; p++)
    printf(" %12s", b->policies[p]);
  printf(" %12s\n", "plan us");
  for (size_t i = 0; i < b->cells.n; i++) {
    const td_attention_cell *c = &b->cells.cells[i];
    if (c->kind == TD_CELL_TRACE)
      continue;
    printf("%-7s %-42s %2u/%-3u", td_cell_kinds[c->kind], c->name, c->n_heads, c->n_kv_heads);
    print_number(floor_us(b, c), 8);
    for (uint32_t p = 0; p < b->n_policies; p++)
      print_number(b->us[p][i], 11), printf("%s", b->n_short[p][i] > 0 ? "*" : " "),
          any_short |= b->n_short[p][i] > 0;
    print_number(b->plan_us[0][i], 12);
    printf("\n");
  }
  if (any_short)
    printf(
        "*: partials did not suffice for what the policy wanted: rows read by themselves or whole instead\n");
  for (uint32_t t = 0; t < TD_ATTENTION_TRACES; t++) {
    bool any = false;
    for (uint32_t p = 0; p < b->n_policies; p++)
      any |= td_attention_trace_figures(&b->cells, b->us[p], t).n_seeds > 0;
    if (!any)
      continue;
    printf("%-7s %-42s %-6s %8s", "trace", td_attention_traces[t].name, "32/8", "");
    for (uint32_t p = 0; p < b->n_policies; p++) {
      td_trace_figures f = td_attention_trace_figures(&b->cells, b->us[p], t);
      char text[32] = "-";
      if (f.n_seeds > 0)
        snprintf(text, sizeof text, "%.1f+-%.1f", f.mean_us, f.sd_us);
      printf(" %12s", text);
    }
    printf("\n");
  }
}

static cJSON *figures_json(const bench *b, double *const values[POLICIES_MAX], size_t i)
{
  cJSON *o = cJSON_CreateObject();
  for (uint32_t p = 0; p < b->n_policies; p++)
    if (values[p] && isfinite(values[p][i]))
      td_stats_add_number(o, b->policies[p], values[p][i]);
  return o;
}

/* The policies of whose plan something was left out, and how much. */
static cJSON *short_json(const bench *b, size_t i)
{
  cJSON *o = cJSON_CreateObject();
  for (uint32_t p = 0; p < b->n_policies; p++)
    if (b->n_short[p][i] > 0)
      cJSON_AddNumberToObject(o, b->policies[p], b->n_short[p][i]);
  return o;
}

static void write_json(const bench *b)
{
  char machine[256];
  cJSON *o = cJSON_CreateObject(), *cells = td_attention_cells_json(&b->cells), *traces, *cell;
  td_tool_machine(machine, sizeof machine);
  cJSON_AddStringToObject(o, "tool", "tandem-bench attention " TD_VERSION);
  cJSON_AddStringToObject(o, "machine", machine);
  cJSON_AddStringToObject(o, "backend", b->fake ? "none" : b->name);
  cJSON_AddNumberToObject(o, "ceiling_gb_s", b->ceiling.bytes_per_s * 1e-9);
  cJSON_AddItemToObject(o, "cells", cells);
  size_t i = 0;
  cJSON_ArrayForEach(cell, cells)
  {
    td_stats_add_number(cell, "floor_us", floor_us(b, &b->cells.cells[i]));
    cJSON_AddItemToObject(cell, "us", figures_json(b, b->us, i));
    cJSON_AddItemToObject(cell, "plan_us", figures_json(b, b->plan_us, i));
    cJSON_AddItemToObject(cell, "short", short_json(b, i));
    i++;
  }
  traces = cJSON_AddArrayToObject(o, "traces");
  for (uint32_t t = 0; t < TD_ATTENTION_TRACES; t++) {
    cJSON *trace = cJSON_CreateObject();
    cJSON_AddStringToObject(trace, "name", td_attention_traces[t].name);
    for (uint32_t p = 0; p < b->n_policies; p++) {
      td_trace_figures f = td_attention_trace_figures(&b->cells, b->us[p], t);
      if (f.n_seeds == 0)
        continue;
      cJSON *of_policy = cJSON_AddObjectToObject(trace, b->policies[p]);
      td_stats_add_number(of_policy, "mean_us", f.mean_us);
      td_stats_add_number(of_policy, "sd_us", f.sd_us);
      td_stats_add_number(of_policy, "calibration_seed_us", f.calibration_us);
      td_stats_add_number(of_policy, "seeds", f.n_seeds);
    }
    cJSON_AddItemToArray(traces, trace);
  }
  td_tool_write_json(b->json, o);
}

/* The daemon's own way first, whose plan's host time stands in the table; of heads without plans that one
 * alone. */
static void take_policies(bench *b)
{
  const td_attention_policy *policy;
  const char *const given = b->policy_names;
  for (const char *at = given; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ","), at);
    if (!td_attention_policy_of(name, &policy))
      td_tool_die("--policies: no '%s'", name);
  }
  if (b->head_dim > PLANNED_DIM_MAX && !in_list(given, TD_ATTENTION_AUTO_NAME))
    td_tool_die("--head-dim %.0f: such heads have no plans, only %s is measured", b->head_dim,
                TD_ATTENTION_AUTO_NAME);
  if (in_list(given, TD_ATTENTION_AUTO_NAME))
    b->policies[b->n_policies++] = TD_ATTENTION_AUTO_NAME;
  for (uint32_t i = 0; td_attention_policies[i] && b->head_dim <= PLANNED_DIM_MAX; i++)
    if (in_list(given, td_attention_policies[i]->name))
      b->policies[b->n_policies++] = td_attention_policies[i]->name;
}

static void read_options(bench *b)
{
  if (b->head_dim != 64 && b->head_dim != 96 && b->head_dim != 128 && b->head_dim != 256)
    td_tool_die("--head-dim: 64, 96, 128 or 256");
  take_policies(b);
  td_cells_request r = {.head_dim = (uint32_t)b->head_dim,
                        .steps_of_a_trace = (uint32_t)b->trace_steps,
                        .max_keys = (uint32_t)b->max_keys,
                        .name = b->name_wanted};
  for (td_cell_kind k = 0; k < TD_CELL_KINDS; k++)
    r.kinds[k] = in_list(b->only, td_cell_kinds[k]);
  if (b->heads && sscanf(b->heads, "%u/%u", &r.n_heads, &r.n_kv_heads) != 2)
    td_tool_die("--heads: '%s' is not like 32/8", b->heads);
  if (b->trace_steps < 1 || b->trace_steps > 2000 || b->n_rounds < 1 || b->gb <= 0 || b->max_keys < 0)
    td_tool_die("a number is out of range");
  td_attention_cells_make(&b->cells, &r);
  if (b->cells.n == 0)
    td_tool_die("no cell is left to measure");
  for (uint32_t p = 0; p < b->n_policies; p++) {
    b->us[p] = td_tool_alloc(b->cells.n, sizeof(double));
    b->plan_us[p] = td_tool_alloc(b->cells.n, sizeof(double));
    b->n_short[p] = td_tool_alloc(b->cells.n, sizeof(uint32_t));
    for (size_t i = 0; i < b->cells.n; i++)
      b->us[p][i] = b->plan_us[p][i] = NAN;
  }
}

static void measure_all(bench *b)
{
  for (uint32_t p = 0; p < b->n_policies; p++)
    for (size_t i = 0; i < b->cells.n; i++) {
      bool first = true;
      for (size_t k = 0; k < i && first; k++)
        first = !same_heads(&b->cells.cells[k], &b->cells.cells[i]);
      if (first)
        measure_heads(b, &b->cells.cells[i], p);
    }
}

int td_bench_attention(int argc, char **argv)
{
  static bench b = {
      .backend = "auto", .gb = 40, .n_rounds = 9, .max_seconds = 1, .trace_steps = 16, .head_dim = 128};
  const td_arg args[] = {
      {"--backend", "NAME", "auto, cpu or cuda (auto)", TD_ARG_TEXT, &b.backend},
      {"--only", "KIND,...", "decode tree trace", TD_ARG_TEXT, &b.only},
      {"--heads", "Q/KV", "only cells with so many heads: 32/8, 32/32, 16/4, 16/8, 64/8", TD_ARG_TEXT,
       &b.heads},
      {"--head-dim", "N", "elements of a head: 64, 96, 128 or 256, which has no plans, so auto only (128)",
       TD_ARG_NUMBER, &b.head_dim},
      {"--name", "NAME", "only the cell of this name, as the table has it: 32x4096", TD_ARG_TEXT,
       &b.name_wanted},
      {"--policies", "NAME,...", "auto none always pat persistentkv flashdecode (all of them)", TD_ARG_TEXT,
       &b.policy_names},
      {"--trace-steps", "N", "steps of each trace and seed, evenly out of all (16)", TD_ARG_NUMBER,
       &b.trace_steps},
      {"--max-keys", "N", "only cells with at most so many keys in all; 0: all", TD_ARG_NUMBER, &b.max_keys},
      {"--rounds", "N", "a figure is their median (9)", TD_ARG_NUMBER, &b.n_rounds},
      {"--max-seconds", "S", "but no figure takes much longer than this (1)", TD_ARG_NUMBER, &b.max_seconds},
      {"--gb", "GB", "memory for KV; what does not fit is not measured (40)", TD_ARG_NUMBER, &b.gb},
      {"--gb-s", "X", "memory ceiling; 0: an H200's, or measured on a CPU", TD_ARG_NUMBER, &b.gb_s},
      {"--threads", "N", "of the CPU backend; 0: one per core", TD_ARG_NUMBER, &b.threads},
      {"--device", "N", "which GPU (0)", TD_ARG_NUMBER, &b.device},
      {"--fake", NULL, "no device: the times that the plans predict", TD_ARG_FLAG, &b.fake},
      {"--cells", "FILE", "writes the cells as JSON, for other programs to measure, and ends", TD_ARG_TEXT,
       &b.cells_file},
      {"--json", "FILE", "where all figures go", TD_ARG_TEXT, &b.json},
  };
  td_tool_args("Times decode attention by policy: batches of one length, PAT's trees of shared prefixes, "
               "PersistentKV's traces.",
               args, sizeof args / sizeof *args, argc, argv);
  td_log_init(TD_LOG_WARN);
  read_options(&b);
  if (b.cells_file) {
    td_tool_write_json(b.cells_file, td_attention_cells_json(&b.cells));
    return 0;
  }
  b.ceiling = td_ceilings_of(b.fake || strcmp(b.backend, "cpu") != 0 ? "cuda" : "cpu", b.gb_s, 1,
                             (uint32_t)b.threads);
  measure_all(&b);
  print_tables(&b);
  if (b.json)
    write_json(&b);
  td_attention_cells_deinit(&b.cells);
  return 0;
}
