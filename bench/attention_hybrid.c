/* tandem-bench hybrid: attention of prefill chunks, alone and beside decodes, by the cut of the step's
 * prefill.
 *
 * The cuts of a cell take turns. Then each runs without a break for a while ("hot"), because a GPU at its
 * power limit is slower. The time of each hot run is recorded, so that clocks and power can be compared with
 * it. A figure is device time: of a step that runs the op OPS times, in turn on several layers, less an empty
 * step. The outputs of all cuts are compared. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cjson/cJSON.h>

#include "bench/attention_policies.h"
#include "bench/commands.h"
#include "bench/stage.h"
#include "common/log.h"

enum {
  LAYERS = 4,
  OPS = 16,
  ROWS_MAX = 256,
  PAGE_TOKENS = TD_STAGE_PAGE_TOKENS,
  VOCAB = 1024,
  CUTS_MAX = 64,
  CELLS_MAX = 256,
  TIMES_MAX = 4096,
  EMPTY_STEPS = 40
};

/* A chunk that ends at `context`, beside `rows` decodes with row_context tokens each. Every group_rows of
 * them share their first `shared` tokens. */
typedef struct cell {
  const char *kind;
  uint32_t n_heads, n_kv_heads, chunk, context, rows, row_context, group_rows, shared;
} cell;

static const uint32_t all_heads[][2] = {{32, 8}, {32, 32}, {16, 4}, {64, 8}};
/* Prefill of whole prompts, of chunks, and of small chunks. */
static const uint32_t chunks[][2] = {{128, 1024},  {512, 1024},  {128, 4096},  {512, 4096},   {1024, 4096},
                                     {128, 16384}, {256, 16384}, {512, 16384}, {1024, 16384}, {2048, 16384},
                                     {2048, 2048}, {4096, 4096}, {8192, 8192}, {16, 16384},   {32, 16384},
                                     {64, 16384},  {16, 4096},   {64, 4096},   {256, 4096}};
/* POD's Table 8, C0 and C2; its Figure 6 (a prompt in chunks of 512 beside 54 and 55 decodes); C1; and mixes
 * that are short of bandwidth or of compute (docs/lab/2026-11.md). Then decodes that share prefixes: a system
 * prompt of all, tools of a few agents each, and other combinations of few or many rows and short or long
 * prefixes. */
static const char listed[] =
    "32/8 512@16384 + 64x16384; 32/8 1024@12288 + 80x12288; 32/8 1024@8192 + 128x2048;"
    "32/8 2048@16384 + 32x8192; 32/8 1024@16384 + 16x16384; 32/8 4096@4096 + 128x4096;"
    "32/8 512@4096 + 128x8192; 32/32 1024@4096 + 64x4096; 32/4 512@16384 + 54x16384;"
    "16/4 16384@16384 + 250x12288; 32/8 128@8192 + 64x4096; 64/8 1024@8192 + 64x8192;"
    "32/4 512@4096 + 54x16384; 32/4 512@4096 + 55x16384; 32/4 512@8192 + 54x16384;"
    "32/4 512@8192 + 55x16384; 32/4 512@16384 + 55x16384; 32/8 12288@12288 + 220x12288;"
    "32/8 512@8192 + 32x8192, 2048 by 32; 32/8 512@8192 + 32x8192, 6144 by 4;"
    "32/8 1024@8192 + 64x8192, 4096 by 8; 32/8 1024@12288 + 80x12288, 8192 by 80;"
    "32/8 2048@4096 + 128x4096, 3072 by 16; 32/8 256@4096 + 128x4096, 2048 by 128;"
    "32/8 1024@16384 + 16x16384, 12288 by 16; 64/8 1024@8192 + 64x8192, 6144 by 16;"
    "16/4 1024@8192 + 128x8192, 4096 by 8; 32/8 512@2048 + 200x2048, 1536 by 25";

/* A way to cut: the planner's own; the planner's without decodes beside prefill, or without shared prefixes;
 * a fixed one; or one of another paper that depends on the cell. */
typedef struct cut {
  char name[24];
  bool is_fixed, is_serial, is_alone;
  td_hybrid_cut fixed, (*of_cell)(const cell *c);
  double us[TIMES_MAX], hot_us, hot_begin_s, hot_end_s, error;
  uint32_t n;
} cut;

/* POD's ways to divide SMs between CTAs of prefill and of decodes, as far as a cut can express them: here no
 * SM holds both. */
enum { H200_SMS = 132, TILE_ROWS = 128, STREAMS_SMS = 2, SMS_MOST = 128 };

/* Half of the SMs for each. */
static td_hybrid_cut cut_in_halves(const cell *c)
{
  (void)c;
  return (td_hybrid_cut){.tiles = 1, .sms_beside = H200_SMS / 2};
}

/* SMs in proportion to the CTAs in the paper: one for each tile of queries and KV head, or each decode and KV
 * head. */
static td_hybrid_cut cut_by_ctas(const cell *c)
{
  uint32_t tiles = (c->chunk * (c->n_heads / c->n_kv_heads) + TILE_ROWS - 1) / TILE_ROWS;
  uint32_t sms = H200_SMS * c->rows / (c->rows + tiles) / 2 * 2;
  return (td_hybrid_cut){.tiles = 1,
                         .sms_beside = sms > SMS_MOST            ? SMS_MOST
                                       : sms > 0 || c->rows == 0 ? sms
                                                                 : 2};
}

/* Two streams: decodes begin immediately, but prefill has all SMs except the smallest number that can be left
 * out. So decodes get what prefill leaves. */
static td_hybrid_cut cut_as_streams(const cell *c)
{
  (void)c;
  return (td_hybrid_cut){.tiles = 1, .sms_beside = STREAMS_SMS};
}

static const struct {
  const char *name;
  td_hybrid_cut (*of_cell)(const cell *c);
} named_cuts[] = {{"halves", cut_in_halves}, {"proportional", cut_by_ctas}, {"streams", cut_as_streams}};

typedef struct bench {
  td_stage_options options;
  const char *only, *heads, *name_wanted, *mixes, *cut_names, *cells_file;
  double head_dim, seconds, hot_s;
  td_attention_policy policy;
  cell cells[CELLS_MAX];
  const cell *now;
  size_t n_cells;
  cut cuts[CUTS_MAX];
  size_t n_cuts;
  td_stage stage;
  td_devptr qkv, out;
  td_compiled *attention;
  double empty_us;
  cJSON *figures;
} bench;

static void name_of(const cell *c, char *out, size_t size)
{
  if (c->shared > 0)
    snprintf(out, size, "%u@%u + %ux%u, %u by %u", c->chunk, c->context, c->rows, c->row_context, c->shared,
             c->group_rows);
  else if (c->rows > 0)
    snprintf(out, size, "%u@%u + %ux%u", c->chunk, c->context, c->rows, c->row_context);
  else
    snprintf(out, size, "%u@%u", c->chunk, c->context);
}

/* ---- the backend ---- */

static td_op attention_op(const void *arg, uint32_t i)
{
  const bench *b = arg;
  return td_stage_attention_op(&b->stage, b->qkv, b->out, i % LAYERS);
}

static td_model_desc heads_of(const bench *b, const cell *c)
{
  uint32_t hd = (uint32_t)b->head_dim;
  td_model_desc d = {.n_heads = c->n_heads,
                     .vocab = VOCAB,
                     .n_kv_heads = c->n_kv_heads,
                     .head_dim = hd,
                     .rotary_dim = hd,
                     .rope_style = TD_ROPE_HALVES};
  for (uint32_t i = 0; i < hd / 2; i++)
    d.rope_inv_freq[i] = powf(10000, -2.0f * (float)i / (float)hd);
  return d;
}

static bool same_heads(const cell *a, const cell *b)
{
  return a->n_heads == b->n_heads && a->n_kv_heads == b->n_kv_heads;
}

static void open_backend(bench *b, const cell *c)
{
  td_stage *s = &b->stage;
  uint32_t pages = 0, tokens = 0, context = 0;
  for (size_t i = 0; i < b->n_cells; i++) {
    const cell *k = &b->cells[i];
    uint32_t n = k->context / PAGE_TOKENS + 1 + k->rows * (k->row_context / PAGE_TOKENS + 1);
    uint32_t longest = k->context > k->row_context ? k->context : k->row_context;
    if (!same_heads(k, c))
      continue;
    pages = n > pages ? n : pages;
    tokens = k->chunk + k->rows > tokens ? k->chunk + k->rows : tokens;
    context = longest > context ? longest : context;
  }
  td_model_desc d = heads_of(b, c);
  td_stage_open(s, &b->options, &d,
                (td_backend_config){.max_rows = ROWS_MAX,
                                    .max_tokens = tokens,
                                    .max_context_tokens = context,
                                    .max_vocab = VOCAB,
                                    .attention_policy = &b->policy});
  size_t element = (size_t)s->be->max_tokens * d.head_dim * s->be->activation_bytes;
  b->qkv = td_stage_random(s, element * (c->n_heads + 2 * c->n_kv_heads));
  b->out = td_stage_alloc(s, element * c->n_heads);
  td_stage_add_kv(s, LAYERS, pages, context);
  td_stage_fill_from(s, b->qkv);
  b->attention = td_stage_compile_ops(s, attention_op, b, OPS);
}

/* ---- times ---- */

static bool shares_nothing(uint32_t n_keys, uint32_t n_rows)
{
  (void)n_keys, (void)n_rows;
  return false;
}

static double step_us(bench *b, td_compiled *compiled)
{
  td_error err;
  td_outcome out;
  double begin = td_tool_now_s();
  td_stage_submit(&b->stage, compiled);
  td_tool_check(td_backend_wait(b->stage.be, &out, &err), &err);
  return out.busy_us > 0 ? out.busy_us : (td_tool_now_s() - begin) * 1e6;
}

/* Tokens that decode r shares with the decode before. */
static uint32_t shared_of(const cell *c, uint32_t r)
{
  return r < c->rows && c->group_rows > 0 && r % c->group_rows > 0 ? c->shared : 0;
}

static bool plan_cell(bench *b, const cell *c)
{
  bool fits = true;
  td_dummy_plan_clear(&b->stage.dummy);
  for (uint32_t r = 0; r < c->rows && fits; r++)
    fits = td_stage_add_decode(&b->stage, c->row_context, shared_of(c, r), true);
  return fits && td_dummy_plan_add(&b->stage.dummy, c->chunk, c->context, 0, true);
}

/* Makes the planner plan anew. It reuses its plan while the rows stay the same, so an empty step comes in
 * between. */
static void forget_plan(bench *b)
{
  td_dummy_plan_clear(&b->stage.dummy);
  step_us(b, NULL);
  plan_cell(b, b->now);
}

static void choose(bench *b, const cut *c)
{
  bool shares_before = !b->policy.shares;
  b->policy = (td_attention_policy){
      .name = c->name, .never_beside = c->is_serial, .shares = c->is_alone ? shares_nothing : NULL};
  if (c->is_fixed || c->of_cell)
    b->policy.hybrid = c->fixed;
  if (shares_before == c->is_alone)
    forget_plan(b);
}

static double op_us(bench *b, const cut *c)
{
  choose(b, c);
  return (step_us(b, b->attention) - b->empty_us) / OPS;
}

static double unix_s(void)
{
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void measure_empty(bench *b)
{
  double us[EMPTY_STEPS];
  for (int i = 0; i < EMPTY_STEPS; i++)
    us[i] = step_us(b, NULL);
  b->empty_us = td_stats_median(us, EMPTY_STEPS);
}

static void measure_hot(bench *b, cut *c)
{
  static double us[TIMES_MAX];
  size_t n = 0;
  double end = td_tool_now_s() + b->hot_s;
  c->hot_begin_s = unix_s();
  while (td_tool_now_s() < end && n < TIMES_MAX)
    us[n++] = op_us(b, c);
  c->hot_end_s = unix_s();
  /* only the second half, when the device is hot */
  c->hot_us = n > 0 ? td_stats_median(us + n / 2, n - n / 2) : NAN;
}

/* Runs one step and compares its output with the first cut's: the largest difference, relative to the largest
 * element. */
static double error_of(bench *b, const cut *c, float **first, size_t n)
{
  td_error err;
  td_backend *be = b->stage.be;
  float *got = td_tool_alloc(n, sizeof *got);
  uint16_t *raw = td_tool_alloc(n, be->activation_bytes);
  double worst = 0, top = 0;
  op_us(b, c);
  td_tool_check(be->ops->download(be, b->out, n * be->activation_bytes, raw, &err), &err);
  for (size_t i = 0; i < n; i++) {
    uint32_t bits = be->activation_bytes == 2 ? (uint32_t)raw[i] << 16 : ((uint32_t *)raw)[i];
    memcpy(&got[i], &bits, sizeof bits);
  }
  free(raw);
  if (!*first) {
    *first = got;
    return 0;
  }
  for (size_t i = 0; i < n; i++) {
    double d = fabs((double)got[i] - (*first)[i]);
    worst = d <= worst ? worst : d; /* keeps NaN */
    top = fmax(top, fabs((*first)[i]));
  }
  free(got);
  return worst / top;
}

static double flop_of(const bench *b, const cell *c)
{
  double pairs = (double)c->chunk * (c->context - c->chunk) + (double)c->chunk * (c->chunk + 1.0) / 2;
  return 4 * pairs * c->n_heads * b->head_dim;
}

static void add_result(bench *b, const cell *c, const char *name)
{
  uint32_t n_groups = c->group_rows > 0 ? (c->rows + c->group_rows - 1) / c->group_rows : c->rows;
  double keys = (double)c->rows * c->row_context - (double)(c->rows - n_groups) * c->shared;
  double bytes = keys * c->n_kv_heads * b->head_dim * 4;
  cJSON *o = cJSON_CreateObject(), *all = cJSON_CreateArray();
  cJSON_AddStringToObject(o, "kind", c->kind);
  cJSON_AddStringToObject(o, "name", name);
  cJSON_AddNumberToObject(o, "heads", c->n_heads);
  cJSON_AddNumberToObject(o, "kv_heads", c->n_kv_heads);
  cJSON_AddNumberToObject(o, "flop", flop_of(b, c));
  cJSON_AddNumberToObject(o, "decode_bytes", bytes);
  for (size_t i = 0; i < b->n_cuts; i++) {
    cut *k = &b->cuts[i];
    cJSON *one = cJSON_CreateObject();
    double us = td_stats_median(k->us, k->n);
    printf("%-7s %-32s %2u/%-2u %-10s %8.1f us  hot %8.1f  %5.0f TFLOP/s  error %.1e\n", c->kind, name,
           c->n_heads, c->n_kv_heads, k->name, us, k->hot_us, flop_of(b, c) / us * 1e-6, k->error);
    cJSON_AddStringToObject(one, "cut", k->name);
    if (k->of_cell)
      cJSON_AddNumberToObject(one, "sms_beside", k->fixed.sms_beside);
    td_stats_add_number(one, "us", us);
    td_stats_add_number(one, "hot_us", k->hot_us);
    td_stats_add_number(one, "hot_begin_s", k->hot_begin_s);
    td_stats_add_number(one, "hot_end_s", k->hot_end_s);
    cJSON_AddNumberToObject(one, "error", k->error);
    cJSON_AddItemToArray(all, one);
  }
  cJSON_AddItemToObject(o, "cuts", all);
  cJSON_AddItemToArray(b->figures, o);
}

static void measure_cell(bench *b, const cell *c)
{
  char name[64];
  float *first = NULL;
  name_of(c, name, sizeof name);
  b->now = c;
  if (!plan_cell(b, c)) {
    fprintf(stderr, "%s: does not fit\n", name);
    return;
  }
  measure_empty(b);
  size_t n = (size_t)(c->chunk + c->rows) * c->n_heads * (size_t)b->head_dim;
  for (size_t i = 0; i < b->n_cuts; i++) {
    cut *k = &b->cuts[i];
    k->n = 0;
    if (k->of_cell)
      k->fixed = k->of_cell(c);
    k->error = error_of(b, k, &first, n);
  }
  for (double end = td_tool_now_s() + b->seconds; b->cuts[0].n < 3 || td_tool_now_s() < end;)
    for (size_t i = 0; i < b->n_cuts; i++)
      if (b->cuts[i].n < TIMES_MAX)
        b->cuts[i].us[b->cuts[i].n++] = op_us(b, &b->cuts[i]);
  for (size_t i = 0; i < b->n_cuts; i++)
    measure_hot(b, &b->cuts[i]);
  add_result(b, c, name);
  free(first);
}

static void measure_all(bench *b)
{
  for (size_t i = 0; i < b->n_cells; i++) {
    bool first = true;
    for (size_t k = 0; k < i && first; k++)
      first = !same_heads(&b->cells[k], &b->cells[i]);
    if (!first)
      continue;
    open_backend(b, &b->cells[i]);
    for (size_t k = i; k < b->n_cells; k++)
      if (same_heads(&b->cells[k], &b->cells[i]))
        measure_cell(b, &b->cells[k]);
    td_stage_discard(&b->stage, b->attention);
    td_stage_close(&b->stage);
  }
}

/* ---- options ---- */

static void add_cell(bench *b, cell c)
{
  char name[64], heads[16];
  name_of(&c, name, sizeof name);
  snprintf(heads, sizeof heads, "%u/%u", c.n_heads, c.n_kv_heads);
  if ((b->heads && strcmp(b->heads, heads) != 0) || (b->only && strcmp(b->only, c.kind) != 0) ||
      (b->name_wanted && strcmp(b->name_wanted, name) != 0) || b->n_cells == CELLS_MAX)
    return;
  b->cells[b->n_cells++] = c;
}

/* "32/8 1024@8192 + 64x8192, 4096 by 8; ...": of 64 decodes, every 8 share 4,096 tokens. */
static void read_mixes(bench *b, const char *mixes)
{
  for (const char *at = mixes; at; at = strchr(at, ';') ? strchr(at, ';') + 1 : NULL) {
    cell c = {0};
    int n = sscanf(at, " %u/%u %u@%u + %ux%u, %u by %u", &c.n_heads, &c.n_kv_heads, &c.chunk, &c.context,
                   &c.rows, &c.row_context, &c.shared, &c.group_rows);
    c.kind = n == 8 ? "sharing" : n == 6 ? "hybrid" : "chunk";
    if ((n != 4 && n != 6 && n != 8) || c.n_kv_heads == 0 || c.n_heads % c.n_kv_heads != 0 || c.chunk == 0 ||
        c.context < c.chunk || c.rows >= ROWS_MAX || (n > 4 && (c.rows == 0 || c.row_context == 0)) ||
        (n == 8 && (c.group_rows == 0 || c.shared >= c.row_context)))
      td_tool_die("--mixes: '%.*s' is not like 32/8 1024@8192 + 64x8192, 4096 by 8", (int)strcspn(at, ";"),
                  at);
    add_cell(b, c);
  }
}

static void make_cells(bench *b)
{
  for (size_t h = 0; h < sizeof all_heads / sizeof *all_heads && !b->mixes; h++)
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++)
      add_cell(b, (cell){.kind = "chunk",
                         .n_heads = all_heads[h][0],
                         .n_kv_heads = all_heads[h][1],
                         .chunk = chunks[i][0],
                         .context = chunks[i][1]});
  read_mixes(b, b->mixes ? b->mixes : listed);
  if (b->n_cells == 0)
    td_tool_die("no cell is left to measure");
}

/* Reads --cuts: "auto", "serial", "alone", a named cut, or
 * TILES:SPLIT_KEYS:SMS_BESIDE[:COLOCATED_KEYS[:BESIDE_KEYS]]. */
static void read_cuts(bench *b)
{
  for (const char *at = b->cut_names; at && b->n_cuts < CUTS_MAX;
       at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
    cut *c = &b->cuts[b->n_cuts++];
    snprintf(c->name, sizeof c->name, "%.*s", (int)strcspn(at, ","), at);
    c->is_serial = strcmp(c->name, "serial") == 0;
    for (size_t i = 0; i < sizeof named_cuts / sizeof *named_cuts; i++)
      if (strcmp(c->name, named_cuts[i].name) == 0)
        c->of_cell = named_cuts[i].of_cell;
    c->is_alone = strcmp(c->name, "alone") == 0;
    c->is_fixed = !c->is_serial && !c->is_alone && !c->of_cell && strcmp(c->name, "auto") != 0;
    if (c->is_fixed &&
        (sscanf(c->name, "%u:%u:%u:%u:%u", &c->fixed.tiles, &c->fixed.split_keys, &c->fixed.sms_beside,
                &c->fixed.colocated_keys, &c->fixed.beside_keys) < 3 ||
         c->fixed.tiles < 1 || c->fixed.tiles > 2 || c->fixed.split_keys % 128 != 0 ||
         c->fixed.sms_beside % 2 != 0 || c->fixed.sms_beside > 128 || c->fixed.colocated_keys % 128 != 0))
      td_tool_die("--cuts: '%s' is not like 2:0:32", c->name);
  }
}

/* Writes the format that peers read. */
static void write_cells(const bench *b)
{
  cJSON *all = cJSON_CreateArray();
  for (size_t i = 0; i < b->n_cells; i++) {
    const cell *c = &b->cells[i];
    char name[64];
    cJSON *o = cJSON_CreateObject(), *q = cJSON_CreateArray(), *kv = cJSON_CreateArray(),
          *shared = cJSON_CreateArray();
    name_of(c, name, sizeof name);
    cJSON_AddStringToObject(o, "kind", c->kind);
    cJSON_AddStringToObject(o, "name", name);
    cJSON_AddNumberToObject(o, "heads", c->n_heads);
    cJSON_AddNumberToObject(o, "kv_heads", c->n_kv_heads);
    cJSON_AddNumberToObject(o, "head_dim", b->head_dim);
    for (uint32_t r = 0; r <= c->rows; r++) {
      cJSON_AddItemToArray(q, cJSON_CreateNumber(r < c->rows ? 1 : c->chunk));
      cJSON_AddItemToArray(kv, cJSON_CreateNumber(r < c->rows ? c->row_context : c->context));
      cJSON_AddItemToArray(shared, cJSON_CreateNumber(shared_of(c, r)));
    }
    cJSON_AddItemToObject(o, "q_len", q);
    cJSON_AddItemToObject(o, "kv_len", kv);
    cJSON_AddItemToObject(o, "shared", shared);
    cJSON_AddItemToArray(all, o);
  }
  td_tool_write_json(b->cells_file, all);
}

int td_bench_hybrid(int argc, char **argv)
{
  static bench b = {.options = TD_STAGE_OPTIONS,
                    .head_dim = 128,
                    .seconds = 0.3,
                    .hot_s = 0.4,
                    .cut_names = "auto,serial,1:0:0"};
  const td_arg args[] = {
      TD_STAGE_ARGS(b.options),
      {"--only", "KIND", "chunk, hybrid or sharing", TD_ARG_TEXT, &b.only},
      {"--heads", "Q/KV", "only cells with so many heads", TD_ARG_TEXT, &b.heads},
      {"--head-dim", "N", "elements of a head: 64, 96, 128 or 256 (128)", TD_ARG_NUMBER, &b.head_dim},
      {"--name", "NAME", "only the cell of this name: 1024@12288 + 80x12288", TD_ARG_TEXT, &b.name_wanted},
      {"--mixes", "MIX;...", "these cells only: 32/8 1024@8192 + 64x8192, 4096 by 8; 16/4 512@4096",
       TD_ARG_TEXT, &b.mixes},
      {"--cuts", "CUT,...",
       "auto, serial (no decodes beside), alone (nothing shared), halves, proportional, streams (POD's), or "
       "TILES:SPLIT_KEYS:SMS[:COLOCATED_KEYS[:BESIDE_KEYS]] (auto,serial,1:0:0)",
       TD_ARG_TEXT, &b.cut_names},
      {"--seconds", "S", "of all cuts of a cell in turns (0.3)", TD_ARG_NUMBER, &b.seconds},
      {"--hot-seconds", "S", "of each cut on end (0.4)", TD_ARG_NUMBER, &b.hot_s},
      {"--cells", "FILE", "writes the cells as JSON, for peers to measure, and ends", TD_ARG_TEXT,
       &b.cells_file},
  };
  td_tool_args("tandem-bench hybrid", "Times attention of prefill chunks, alone and beside decodes.", args,
               sizeof args / sizeof *args, argc, argv);
  td_log_init(TD_LOG_WARN, false);
  setvbuf(stdout, NULL, _IOLBF, 0);
  make_cells(&b);
  if (b.cells_file) {
    write_cells(&b);
    return 0;
  }
  read_cuts(&b);
  b.figures = cJSON_CreateArray();
  measure_all(&b);
  if (b.options.json)
    td_tool_write_json(b.options.json, b.figures);
  else
    cJSON_Delete(b.figures);
  return 0;
}
