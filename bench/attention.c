/* tandem-bench attention: decode attention alone, by policy, on the batches of attention_cells.h. Each figure
 * has its floor beside it: the time to read every key once.
 *
 * A figure is the median of several rounds, less an empty step. A round is a step that runs the op OPS times,
 * in turn on several layers, so that no key is in the L2 cache from the last time. The step is captured (a
 * CUDA graph) if the backend can. As in the daemon, the attention plan is made once a step; the host time
 * for it is reported beside the figure. With `--fake`, predicted times take the place of a device's: to work
 * on this file, and to see what plans would be worth. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/attention_cells.h"
#include "bench/attention_policies.h"
#include "bench/attention_traces.h"
#include "bench/commands.h"
#include "bench/stage.h"
#include "common/log.h"
#include "kernels/attention/work_list.h"

enum {
  LAYERS = 4,
  OPS = 16,
  POLICIES_MAX = 8,
  MAX_CONTEXT = 69632,
  VOCAB = 1024,
  PLAN_RUNS = 5,
  EMPTY_ROUNDS = 20,
  PLANNED_DIM_MAX = 128, /* larger heads have no attention plans: each row is computed alone */
  H200_RESIDENT = 396,
  TILE_ROWS = 64,
  TILES_REDUCED_FROM = 5,
  PREFILL_ROWS = 128,
  DECODE_ROWS = 16,
  WARP_ROWS_MIN = 17
}; /* the planner's configuration on an H200 (kernels/cuda/attention_group.cu) */
static const double fixed_us = 5; /* cost of a launch, for --fake */

typedef struct bench {
  td_stage_options options;
  const char *only, *heads, *policy_names, *name_wanted, *cells_file;
  double gb, n_rounds, max_seconds, max_keys, trace_steps, head_dim;
  bool fake;
  td_attention_cells cells;
  uint32_t n_policies;
  const char *policies[POLICIES_MAX];
  double *us[POLICIES_MAX], *plan_us[POLICIES_MAX]; /* [cells.n]; NaN: not measured */
  uint32_t *n_short[POLICIES_MAX]; /* [cells.n]: parts of the plan left out because partials ran out */
  td_ceiling ceiling;
  char name[64]; /* of the backend that was measured */
  /* the open backend */
  td_stage stage;
  td_devptr qkv, out;
  td_compiled *attention; /* of n_ops ops */
  uint32_t n_ops;
  bool captured[TD_CELL_ROWS_MAX + 1];
} bench;

/* ---- the backend ---- */

static td_op attention_op(const void *arg, uint32_t i)
{
  const bench *b = arg;
  return td_stage_attention_op(&b->stage, b->qkv, b->out, i % LAYERS);
}

static bool same_heads(const td_attention_cell *a, const td_attention_cell *b)
{
  return a->n_heads == b->n_heads && a->n_kv_heads == b->n_kv_heads;
}

static td_model_desc heads_of(const td_attention_cell *c)
{
  td_model_desc d = {.n_heads = c->n_heads,
                     .vocab = VOCAB,
                     .n_kv_heads = c->n_kv_heads,
                     .head_dim = c->head_dim,
                     .rotary_dim = c->head_dim,
                     .rope_style = TD_ROPE_HALVES};
  for (uint32_t i = 0; i < c->head_dim / 2; i++)
    d.rope_inv_freq[i] = powf(10000, -2.0f * (float)i / (float)c->head_dim);
  return d;
}

/* Opens a backend, one for each policy and head shape, because both are fixed at creation. Returns false if
 * the backend does not have this policy. */
static bool open_backend(bench *b, const td_attention_cell *c, const char *name)
{
  td_error err;
  td_stage *s = &b->stage;
  td_model_desc d = heads_of(c);
  double keys = 0;
  for (size_t i = 0; i < b->cells.n; i++) {
    const td_attention_cell *k = &b->cells.cells[i];
    if (same_heads(k, c))
      keys = fmax(keys, k->unique_keys + (double)k->n_rows * TD_CELL_PAGE_TOKENS);
  }
  b->options.policy = name;
  td_stage_open(s, &b->options, &d,
                (td_backend_config){.max_rows = TD_CELL_ROWS_MAX,
                                    .max_tokens = 2048,
                                    .max_context_tokens = MAX_CONTEXT,
                                    .max_vocab = VOCAB});
  td_backend *be = s->be;
  td_kv_spec kv = td_stage_kv_spec(s, LAYERS);
  snprintf(b->name, sizeof b->name, "%s", be->ops->name);
  if (be->ops->kv_check(be, &kv, &err) != TD_OK) {
    fprintf(stderr, "%s, heads %u/%u: not measured: %s\n", name, c->n_heads, c->n_kv_heads, err.message);
    be->ops->destroy(be);
    return false;
  }
  memset(b->captured, 0, sizeof b->captured);
  size_t element = (size_t)be->max_tokens * c->head_dim * be->activation_bytes;
  b->qkv = td_stage_random(s, element * (c->n_heads + 2 * c->n_kv_heads));
  b->out = td_stage_alloc(s, element * c->n_heads);
  double memory_tokens = b->gb * 1e9 / td_stage_kv_token_bytes(s, LAYERS);
  td_stage_add_kv(s, LAYERS, fmin(memory_tokens, keys) / TD_CELL_PAGE_TOKENS, MAX_CONTEXT);
  td_stage_fill_from(s, b->qkv);
  b->n_ops = be->ops->capture ? OPS : LAYERS; /* steps on a CPU are long enough */
  b->attention = td_stage_compile_ops(s, attention_op, b, b->n_ops);
  return true;
}

/* ---- times ---- */

static bool plan_cell(bench *b, const td_attention_cell *c)
{
  bool fits = true;
  td_dummy_plan_clear(&b->stage.dummy);
  for (uint32_t r = 0; r < c->n_rows && fits; r++)
    fits = td_stage_add_decode(&b->stage, c->kv_len[r], c->shared[r], true);
  return fits;
}

/* Microseconds of the op. NaN: the cell does not fit, or its time cannot be told from an empty step. */
static double measure(bench *b, const td_attention_cell *c)
{
  if (!b->captured[c->n_rows])
    td_stage_capture(&b->stage, b->attention, c->n_rows);
  b->captured[c->n_rows] = true;
  if (!plan_cell(b, c))
    return NAN;
  double all = td_stage_step_s(&b->stage, b->attention, (uint32_t)b->n_rounds, b->max_seconds);
  double empty = td_stage_step_s(&b->stage, NULL, EMPTY_ROUNDS, b->max_seconds);
  return all > empty ? (all - empty) / b->n_ops * 1e6 : NAN;
}

/* ---- the planner alone ---- */

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
                                        .small_rows = DECODE_ROWS,
                                        .reduces_in_tiles = group >= TILES_REDUCED_FROM,
                                        .cost = td_attention_cost_of_h200(H200_RESIDENT)};
  td_attention_planner *p;
  td_error err;
  td_tool_check(td_attention_planner_create(&config, &p, &err), &err);
  return p;
}

/* Makes the work list as the backend does. */
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
  items.private_kv = td_tool_alloc(c.max_rows, sizeof *items.private_kv);
  return items;
}

/* Measures the host time to make plan and work list from scratch, and returns the plan's statistics. Pages
 * are laid out as in plan_cell. *n_short: shared-prefix groups and KV splits that the policy wanted but that
 * got no partials. */
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
    td_tool_check(td_attention_planner_make(p, &plan, &err), &err);
    make_items(&items, &plan, c, p);
    us[i] = (td_tool_now_s() - begin) * 1e6;
    td_attention_planner_reset(p);
  }
  *stats = td_attention_planner_stats(p);
  *n_short = (stats->n_unshared > 0) + items.n_unsplit;
  td_attention_planner_destroy(p);
  free(rows), free(table), free(items.items), free(items.scratch), free(items.private_kv);
  return td_stats_median(us, PLAN_RUNS);
}

/* Without a device: prefix splits as predicted, private KV at memory bandwidth, both spread evenly over the
 * device. */
static double faked_us(const bench *b, const td_attention_cell *c, const td_attention_stats *stats)
{
  double bytes = (double)stats->private_keys * c->n_kv_heads * c->head_dim * 4;
  return fixed_us + stats->shared_us / H200_RESIDENT + bytes / b->ceiling.bytes_per_s * 1e6;
}

/* ---- all cells and policies ---- */

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
  td_stage_close(&b->stage);
}

static double floor_us(const bench *b, const td_attention_cell *c)
{
  return c->unique_keys * c->n_kv_heads * c->head_dim * 4 / b->ceiling.bytes_per_s * 1e6;
}

enum { BEFORE_POLICIES = 4 };

/* us: one for each policy. plan_us NaN: not shown. */
static void print_row(const bench *b, bool *has_head, const char *kind, const char *name, const char *heads,
                      double floor, char us[POLICIES_MAX][32], double plan_us)
{
  td_report_field fields[BEFORE_POLICIES + POLICIES_MAX + 1] = {{NULL, "", -7, 0, 0, kind},
                                                                {NULL, "", -42, 0, 0, name},
                                                                {NULL, "heads", -6, 0, 0, heads},
                                                                {NULL, "floor", 8, 1, floor, NULL}};
  size_t n = BEFORE_POLICIES;
  for (uint32_t p = 0; p < b->n_policies; p++)
    fields[n++] = (td_report_field){NULL, b->policies[p], 12, 0, 0, us[p]};
  fields[n++] = (td_report_field){NULL, "plan us", 12, 1, plan_us, NULL};
  td_report_print(has_head, fields, n);
}

static void print_cells(const bench *b, bool *has_head)
{
  bool any_short = false;
  for (size_t i = 0; i < b->cells.n; i++) {
    const td_attention_cell *c = &b->cells.cells[i];
    char heads[16], us[POLICIES_MAX][32];
    if (c->kind == TD_CELL_TRACE)
      continue;
    for (uint32_t p = 0; p < b->n_policies; p++) {
      bool is_short = b->n_short[p][i] > 0;
      snprintf(us[p], sizeof us[p], "- ");
      if (isfinite(b->us[p][i]))
        snprintf(us[p], sizeof us[p], "%.1f%c", b->us[p][i], is_short ? '*' : ' ');
      any_short |= is_short;
    }
    snprintf(heads, sizeof heads, "%u/%u", c->n_heads, c->n_kv_heads);
    print_row(b, has_head, td_cell_kinds[c->kind], c->name, heads, floor_us(b, c), us, b->plan_us[0][i]);
  }
  if (any_short)
    printf(
        "*: partials did not suffice for what the policy wanted: rows read by themselves or whole instead\n");
}

static void print_traces(const bench *b, bool *has_head)
{
  for (uint32_t t = 0; t < TD_ATTENTION_TRACES; t++) {
    char us[POLICIES_MAX][32];
    bool any = false;
    for (uint32_t p = 0; p < b->n_policies; p++) {
      td_trace_figures f = td_attention_trace_figures(&b->cells, b->us[p], t);
      snprintf(us[p], sizeof us[p], "-");
      if (f.n_seeds > 0)
        snprintf(us[p], sizeof us[p], "%.1f+-%.1f", f.mean_us, f.sd_us);
      any |= f.n_seeds > 0;
    }
    if (any)
      print_row(b, has_head, "trace", td_attention_traces[t].name, "32/8", NAN, us, NAN);
  }
}

static void add_figures(cJSON *cell, const char *key, const bench *b, double *const values[POLICIES_MAX],
                        size_t i)
{
  cJSON *o = cJSON_AddObjectToObject(cell, key);
  for (uint32_t p = 0; p < b->n_policies; p++)
    if (isfinite(values[p][i]))
      td_stats_add_number(o, b->policies[p], values[p][i]);
}

static void add_cells(cJSON *json, const bench *b)
{
  cJSON *cells = td_attention_cells_json(&b->cells), *cell;
  size_t i = 0;
  cJSON_ReplaceItemInObject(json, "cells", cells);
  cJSON_ArrayForEach(cell, cells)
  {
    td_stats_add_number(cell, "floor_us", floor_us(b, &b->cells.cells[i]));
    add_figures(cell, "us", b, b->us, i);
    add_figures(cell, "plan_us", b, b->plan_us, i);
    /* by policy: how many parts of the plan were left out */
    cJSON *left_out = cJSON_AddObjectToObject(cell, "short");
    for (uint32_t p = 0; p < b->n_policies; p++)
      if (b->n_short[p][i] > 0)
        cJSON_AddNumberToObject(left_out, b->policies[p], b->n_short[p][i]);
    i++;
  }
}

static void add_traces(cJSON *json, const bench *b)
{
  cJSON *traces = cJSON_AddArrayToObject(json, "traces");
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
}

static void report(const bench *b)
{
  td_report r;
  td_report_begin(&r, "tandem-bench attention", "cells");
  printf("%s; us of one layer's decode attention, head dim %.0f, pages of %d; floor: each key once at %.0f "
         "GB/s\n",
         b->fake ? "predicted, no device" : b->name, b->head_dim, TD_CELL_PAGE_TOKENS,
         b->ceiling.bytes_per_s * 1e-9);
  print_cells(b, &r.has_head);
  print_traces(b, &r.has_head);
  cJSON_AddStringToObject(r.json, "backend", b->fake ? "none" : b->name);
  cJSON_AddNumberToObject(r.json, "ceiling_gb_s", b->ceiling.bytes_per_s * 1e-9);
  add_cells(r.json, b);
  add_traces(r.json, b);
  td_report_end(&r, b->options.json);
}

/* Puts the daemon's own policy first, because the table shows its plan's host time. Heads without plans have
 * only that policy. */
static void read_policies(bench *b)
{
  const td_attention_policy *policy;
  const char *const given = b->policy_names;
  for (const char *at = given; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ","), at);
    if (!td_attention_policy_of(name, &policy))
      td_tool_die("--policies: no '%s'", name);
  }
  if (b->head_dim > PLANNED_DIM_MAX && !td_tool_in_list(given, TD_ATTENTION_AUTO_NAME))
    td_tool_die("--head-dim %.0f: such heads have no plans, only %s is measured", b->head_dim,
                TD_ATTENTION_AUTO_NAME);
  if (td_tool_in_list(given, TD_ATTENTION_AUTO_NAME))
    b->policies[b->n_policies++] = TD_ATTENTION_AUTO_NAME;
  for (uint32_t i = 0; td_attention_policies[i] && b->head_dim <= PLANNED_DIM_MAX; i++)
    if (td_tool_in_list(given, td_attention_policies[i]->name))
      b->policies[b->n_policies++] = td_attention_policies[i]->name;
}

static void read_options(bench *b)
{
  if (b->head_dim != 64 && b->head_dim != 96 && b->head_dim != 128 && b->head_dim != 256)
    td_tool_die("--head-dim: 64, 96, 128 or 256");
  read_policies(b);
  td_cells_request r = {.head_dim = (uint32_t)b->head_dim,
                        .steps_of_a_trace = (uint32_t)b->trace_steps,
                        .max_keys = (uint32_t)b->max_keys,
                        .name = b->name_wanted};
  for (td_cell_kind k = 0; k < TD_CELL_KINDS; k++)
    r.kinds[k] = td_tool_in_list(b->only, td_cell_kinds[k]);
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
  static bench b = {.options = TD_STAGE_OPTIONS,
                    .gb = 40,
                    .n_rounds = 9,
                    .max_seconds = 1,
                    .trace_steps = 16,
                    .head_dim = 128};
  const td_arg args[] = {
      TD_STAGE_ARGS(b.options),
      {"--only", "KIND,...", "decode tree trace", TD_ARG_TEXT, &b.only},
      {"--heads", "Q/KV", "only cells with so many heads: 32/8, 32/32, 16/4, 16/8, 64/8", TD_ARG_TEXT,
       &b.heads},
      {"--head-dim", "N", "elements of a head: 64, 96, 128 or 256, which has no plans, so auto only (128)",
       TD_ARG_NUMBER, &b.head_dim},
      {"--name", "NAME", "only the cell of this name, as the table has it: 32x4096", TD_ARG_TEXT,
       &b.name_wanted},
      {"--policies", "NAME,...", "auto none always tiles pat persistentkv flashdecode (all of them)",
       TD_ARG_TEXT, &b.policy_names},
      {"--trace-steps", "N", "steps of each trace and seed, evenly out of all (16)", TD_ARG_NUMBER,
       &b.trace_steps},
      {"--max-keys", "N", "only cells with at most so many keys in all; 0: all", TD_ARG_NUMBER, &b.max_keys},
      {"--rounds", "N", "a figure is their median (9)", TD_ARG_NUMBER, &b.n_rounds},
      {"--max-seconds", "S", "but no figure takes much longer than this (1)", TD_ARG_NUMBER, &b.max_seconds},
      {"--gb", "GB", "memory for KV; what does not fit is not measured (40)", TD_ARG_NUMBER, &b.gb},
      {"--fake", NULL, "no device: the times that the plans predict", TD_ARG_FLAG, &b.fake},
      {"--cells", "FILE", "writes the cells as JSON, for other programs to measure, and ends", TD_ARG_TEXT,
       &b.cells_file},
  };
  td_tool_args("tandem-bench attention",
               "Times decode attention by policy: batches of one length, PAT's trees of shared prefixes, "
               "PersistentKV's traces.",
               args, sizeof args / sizeof *args, argc, argv);
  td_log_init(TD_LOG_WARN, false);
  read_options(&b);
  if (b.cells_file) {
    cJSON *cells = td_attention_cells_json(&b.cells);
    td_tool_write_json(b.cells_file, cells);
    cJSON_Delete(cells);
    return 0;
  }
  b.ceiling = td_ceilings_of(b.fake || strcmp(b.options.backend, "cpu") != 0 ? "cuda" : "cpu", b.options.gb_s,
                             1, (uint32_t)b.options.threads);
  measure_all(&b);
  report(&b);
  td_attention_cells_deinit(&b.cells);
  return 0;
}
