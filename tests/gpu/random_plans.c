/* Attention on random batches, against float64: `random_plans [hybrid] [BACKEND [PLANS [SEED [FIRST]]]]`.
 *
 * A batch has 1 to 1024 rows of 1 to 100,000 keys. Rows are alone or belong to a tree of up to ten levels,
 * some of them to all but their last token, in any order. The batch's number determines its shape of heads,
 * and which policy of the engine its decodes follow (every row by itself, sharing at any cost, auto).
 * Batches of one kind follow each other on one backend, because what a step leaves behind must not affect
 * another. Each batch is one step, run twice, and once more captured if the backend captures: the bits must
 * be the same. Then comes the next step, in which rows are a token longer.
 *
 * `hybrid`: one to CHUNKS_MAX of a batch's rows are prefill chunks, ragged or thin, after as many keys as
 * any row, in the same tree. They run with each cut of prefill (pairs, KV splits, decodes beside it on
 * separate SMs or after it) and with the engine's choice. Such steps are not captured, and no step follows
 * them.
 *
 * The outputs of random heads and rows are compared, as many as PAIR_KEYS allows, or all of a small batch.
 * Afterwards the positions of the new tokens are NaN again, as are those after a row's end, and the next
 * page of its page table. So a key too many shows. To make a key too few show, one value in LOUD is much
 * larger: among 100,000 similar keys a lost page could not be seen in bf16 outputs. One query in KEEN is
 * much larger, so that its maximum grows far in the middle of its keys.
 *
 * Values come from a table of rows: embed fetches them, so a batch needs no upload, and the reference reads
 * what is in the cache. Rotation has no effect (frequencies of zero), so that stored keys equal the table's
 * bits; test_ops tests rotation. SEED and a batch's number determine it: with FIRST it can be run alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/attention_policies.h"
#include "ops_harness.h"
#include "ops_watch.h"
#include "random.h"

enum {
  PLANS = 3000,
  ROWS_MAX = 1024,
  STEP_TOKENS = 4096,
  STEP_TOKENS_CPU = 96, /* in a hybrid batch, which takes a CPU seconds */
  CHUNKS_MAX = 6,
  KEYS_MAX = 100000,
  LEVELS_MAX = 10,
  VALUES = 4095,         /* rows of the table; the row after them is NaN */
  ENTRIES_MAX = 1 << 20, /* of a step's page table */
  PAIR_KEYS = 300000,
  LOUD = 64,
  LOUD_TIMES = 32,
  KEEN = 8,
  KEEN_TIMES = 8,
};

typedef struct head_shape {
  uint32_t n_heads, n_kv_heads, head_dim, page_tokens, window, keys; /* keys: in the store */
} head_shape;

static const head_shape shapes[] = {
    {4, 1, 128, 16, 0, 220000},   {32, 8, 128, 16, 0, 40000},  {8, 1, 128, 32, 0, 150000},
    {14, 2, 64, 16, 0, 110000},   {6, 2, 96, 16, 0, 110000},   {16, 1, 128, 64, 0, 130000},
    {8, 2, 128, 16, 1000, 60000}, {4, 4, 64, 64, 0, 60000},    {8, 1, 256, 16, 0, 110000},
    {20, 2, 96, 32, 0, 60000},    {12, 1, 128, 16, 0, 130000}, {5, 5, 128, 32, 300, 60000},
};
static const char *const ways[] = {"none", "always", "auto"};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_KINDS = N_SHAPES * (sizeof ways / sizeof *ways) };
static const td_attention_policy serial = {.name = "serial", .never_beside = true};
static bool hybrid;
static uint32_t step_tokens = STEP_TOKENS;

/* ---- random numbers ---- */

static uint64_t random_state;

static void seed_with(uint64_t seed, uint64_t number)
{
  random_state = ((seed + 1) * 0x9e3779b97f4a7c15ull) ^ ((number + 1) * 0xbf58476d1ce4e5b9ull);
  random_state |= random_state == 0;
  for (int i = 0; i < 8; i++)
    random_next(&random_state);
}

static uint32_t below(uint32_t n) { return (uint32_t)((random_next(&random_state) >> 32) * n >> 32); }

/* 1..most, each power of two as likely. */
static uint32_t any_size(uint32_t most)
{
  double u = (double)(random_next(&random_state) >> 11) / 9007199254740992.0;
  uint32_t n = (uint32_t)exp(u * log((double)most + 1));
  return n < 1 ? 1 : n > most ? most : n;
}

/* ---- what does not change from batch to batch ---- */

static float *values; /* [VALUES, width]: q, k, v */
static uint32_t width;
static uint16_t *stored; /* [pages, page_tokens]: the table row whose k and v are stored there */
static uint32_t n_free, n_last, n_blank, nan_page,
    n_pages; /* pages: for whole pages, for rows' last pages, for what chunks write after these, and one with
                NaN only */
static int32_t *free_order, *last_order; /* permutations of the first two kinds, counted from 0 */
static td_kv *kv;
static td_weight *table;
static td_devptr qkv, out, no_rotation;
static td_compiled *writes, *plain,
    *captured; /* new tokens to their pages; and attention; the same, captured */

/* The number of tokens of a row's last page that exist before the step. */
static uint32_t filled(const head_shape *h, uint32_t last) { return last % h->page_tokens; }

static void compile(const head_shape *h)
{
  const td_op ops[] = {
      {.kind = TD_OP_EMBED, .embed = {table, qkv, width, 0}},
      {.kind = TD_OP_ROPE_KV,
       .rope_kv = {.qkv = qkv,
                   .inv_freq = no_rotation,
                   .attn_factor = 1,
                   .kv = kv,
                   .n_heads = h->n_heads,
                   .n_kv_heads = h->n_kv_heads,
                   .head_dim = h->head_dim,
                   .rotary_dim = h->head_dim}},
      {.kind = TD_OP_ATTENTION,
       .attention = {.qkv = qkv,
                     .out = out,
                     .kv = kv,
                     .scale = (float)(1 / sqrt(h->head_dim)),
                     .window_tokens = h->window,
                     .n_heads = h->n_heads,
                     .n_kv_heads = h->n_kv_heads,
                     .head_dim = h->head_dim}},
  };
  writes = compile_ops(ops, 2);
  plain = compile_ops(ops, 3);
  captured = compile_ops(ops, 3);
}

static void write_tokens(void) { run_step(writes); }

static void begin_plan(const head_shape *h)
{
  td_plan_clear(plan);
  plan->page_tokens = h->page_tokens;
  plan->page_table = page_table;
  plan->page_table_len = ENTRIES_MAX;
}

static void add_page(uint32_t entry, int32_t page)
{
  page_table[entry] = page;
  plan->page_updates[plan->n_page_updates++] = (td_plan_page_update){entry, page};
}

static void end_writing(const head_shape *h)
{
  if (plan->n_rows > 0) /* no device does a step of nothing */
    write_tokens();
  begin_plan(h);
}

/* Writes the first n tokens of a page: those in `stored`, or NaN. */
static void write_page(const head_shape *h, uint32_t page, uint32_t n, bool nan)
{
  uint32_t r = plan->n_rows++;
  plan->rows[r] =
      (td_plan_row){.slot = r, .q_start = plan->n_tokens, .q_len = n, .kv_len = n, .page_table_offset = r};
  add_page(r, (int32_t)page);
  for (uint32_t i = 0; i < n; i++) {
    plan->positions[plan->n_tokens] = (int32_t)i;
    plan->token_ids[plan->n_tokens++] = nan ? VALUES : stored[page * h->page_tokens + i];
  }
  if (plan->n_rows == ROWS_MAX || plan->n_tokens + h->page_tokens > STEP_TOKENS)
    end_writing(h);
}

/* Writes every page: whole ones, last ones filled to different lengths, the rest NaN. */
static void fill_store(const head_shape *h)
{
  n_free = h->keys / h->page_tokens;
  n_last = ROWS_MAX + h->page_tokens;
  n_blank = STEP_TOKENS / h->page_tokens + CHUNKS_MAX;
  nan_page = n_free + n_last + n_blank;
  n_pages = nan_page + 1;
  stored = malloc((size_t)n_pages * h->page_tokens * sizeof *stored);
  for (size_t i = 0; i < (size_t)n_pages * h->page_tokens; i++)
    stored[i] = (uint16_t)below(VALUES);
  free_order = malloc(n_free * sizeof *free_order);
  last_order = malloc(n_last * sizeof *last_order);
  begin_plan(h);
  for (uint32_t p = 0; p < n_free; p++)
    write_page(h, p, h->page_tokens, false);
  for (uint32_t p = n_free; p < n_pages; p++)
    write_page(h, p, h->page_tokens, true);
  end_writing(h);
  for (uint32_t p = 0; p < n_last; p++)
    if (filled(h, p) > 0)
      write_page(h, n_free + p, filled(h, p), false);
  end_writing(h);
}

/* The table of all keys and values; the last row is NaN. */
static void make_values(const head_shape *h)
{
  values = random_values((size_t)(VALUES + 1) * width, 1.5);
  uint32_t keys = h->n_heads * h->head_dim, values_at = keys + h->n_kv_heads * h->head_dim;
  for (uint32_t r = 0; r < VALUES; r += LOUD)
    for (uint32_t i = values_at; i < width; i++)
      values[(size_t)r * width + i] *= LOUD_TIMES;
  for (uint32_t r = 0; r < VALUES; r += KEEN)
    for (uint32_t i = 0; i < keys; i++)
      values[(size_t)r * width + i] *= KEEN_TIMES;
  for (uint32_t i = 0; i < width; i++)
    values[(size_t)VALUES * width + i] = NAN;
}

static void capture_steps(void)
{
  static const uint32_t counts[] = {1, 8, 48, 200, ROWS_MAX};
  td_error err;
  td_capture ignored;
  for (size_t i = 0; i < sizeof counts / sizeof *counts && be->ops->capture && !hybrid; i++)
    die(watch_capture(be, captured, 1, counts[i], &ignored, &err), &err, "capture");
}

/* False: this device has no such way. */
static bool open_store(const char *backend, const head_shape *h, const td_attention_policy *policy)
{
  td_error err;
  td_backend_config config = {.max_slots = ROWS_MAX,
                              .max_rows = ROWS_MAX,
                              .max_tokens = STEP_TOKENS,
                              .max_context_tokens = KEYS_MAX + STEP_TOKENS + 2 * h->page_tokens,
                              .max_vocab = 16,
                              .attention_policy = policy,
                              .gpu_memory_percent = 90};
  die(td_backend_create(backend, &config, &be, &err), &err, "backend");
  eps_out = be->activation_bytes == 2 ? 1.0 / 256 : 1e-5;
  width = (h->n_heads + 2 * h->n_kv_heads) * h->head_dim;
  td_kv_spec shape = {.n_pages = h->keys / h->page_tokens + ROWS_MAX + h->page_tokens +
                                 STEP_TOKENS / h->page_tokens + CHUNKS_MAX + 1,
                      .page_tokens = h->page_tokens,
                      .n_groups = 1,
                      .groups = {{.dtype = be->kv_dtype,
                                  .n_layers = 1,
                                  .n_kv_heads = h->n_kv_heads,
                                  .head_dim = h->head_dim,
                                  .n_heads = h->n_heads,
                                  .window_tokens = h->window}}};
  if (be->ops->kv_check(be, &shape, &err) != TD_OK) {
    be->ops->destroy(be);
    return false;
  }
  die(be->ops->kv_create(be, &shape, &kv, &err), &err, "kv");
  rng_seed(random_next(&random_state));
  make_values(h);
  table = device_weight(&(td_weight_part){.dtype = TD_F32, .data = values, .n_rows = VALUES + 1}, 1, width);
  qkv = device_alloc((size_t)STEP_TOKENS * width * be->activation_bytes);
  out = device_alloc((size_t)STEP_TOKENS * h->n_heads * h->head_dim * be->activation_bytes);
  float *zeros = calloc(h->head_dim / 2, sizeof *zeros);
  no_rotation = device_f32(zeros, h->head_dim / 2);
  free(zeros);
  compile(h);
  fill_store(h);
  capture_steps();
  return true;
}

static void close_store(void)
{
  be->ops->discard(be, writes), be->ops->discard(be, plain), be->ops->discard(be, captured);
  be->ops->destroy(be);
  free(values), free(stored), free(free_order), free(last_order);
}

/* ---- a batch ---- */

static uint32_t row_of_token[STEP_TOKENS];

static void count_up(int32_t *order, uint32_t n)
{
  for (uint32_t i = 0; i < n; i++)
    order[i] = (int32_t)i;
}

/* The next of a permutation's pages that no other row has, `used` of which are in use. */
static int32_t take(int32_t *order, uint32_t n, uint32_t *used)
{
  uint32_t j = *used + below(n - *used);
  int32_t page = order[j];
  order[j] = order[*used];
  return order[(*used)++] = page;
}

typedef struct run {
  uint32_t first, n; /* in free_order */
} run;

static run take_run(uint32_t n, uint32_t *used)
{
  run r = {*used, n < n_free - *used ? n : n_free - *used};
  for (uint32_t i = 0; i < r.n; i++)
    take(free_order, n_free, used);
  return r;
}

typedef struct batch_kind {
  uint32_t n_rows, n_levels, node_pages, own_pages; /* upper bound */
  uint32_t alike;                 /* how many of 4 rows have no private token except the last */
  uint32_t n_chunks, first_chunk; /* rows from number first_chunk on that are chunks */
} batch_kind;

/* Pages that are in use. */
typedef struct in_use {
  uint32_t n_free, n_last, n_blank;
} in_use;

/* For a row, next to its last page. */
static uint32_t most_pages(const head_shape *h) { return (KEYS_MAX - h->page_tokens) / h->page_tokens; }

static batch_kind any_kind(const head_shape *h)
{
  uint32_t most = most_pages(h), n_levels = below(5) < 2 ? 0 : 1 + below(LEVELS_MAX);
  batch_kind k = {any_size(ROWS_MAX),
                  n_levels,
                  any_size(most / (n_levels + 1)),
                  any_size(most),
                  below(3) == 0 ? 1 + below(3) : 0,
                  0,
                  0};
  if (!hybrid)
    return k;
  k.n_rows = any_size(step_tokens < 256 ? 8 : 256);
  k.n_chunks = 1 + below(k.n_rows < CHUNKS_MAX ? k.n_rows : CHUNKS_MAX);
  k.first_chunk = below(k.n_rows - k.n_chunks + 1);
  return k;
}

/* The chunk of row r, which leaves at least one token to each later row. */
static uint32_t any_chunk(const batch_kind *k, uint32_t r)
{
  uint32_t left = step_tokens - plan->n_tokens - (k->n_rows - r - 1);
  if (r < k->first_chunk || r >= k->first_chunk + k->n_chunks)
    return 1;
  return any_size(below(3) ? left / 2 + 1 : left);
}

/* A row for the plan, with its pages from `entry` of the table on. Rows that diverge at level l share the
 * nodes before it. Returns the number of entries used; 0: there is no room. */
static uint32_t add_row(const head_shape *h, const batch_kind *k, run *nodes, uint32_t entry, in_use *used)
{
  uint32_t r = plan->n_rows, parts_at = r == 0 ? 0 : below(k->n_levels + 1), n = 0, most = most_pages(h);
  for (uint32_t l = parts_at; l < k->n_levels; l++)
    nodes[l] = take_run(below(k->node_pages + 1), &used->n_free);
  run own = r > 0 && below(4) < k->alike ? (run){0, 0} : take_run(any_size(k->own_pages) - 1, &used->n_free);
  uint32_t q_len = any_chunk(k, r);
  for (uint32_t l = 0; l < k->n_levels; l++)
    n += nodes[l].n;
  if (entry + n + own.n + q_len / h->page_tokens + 3 > ENTRIES_MAX)
    return 0;
  own.n = own.n < most - n ? own.n : most - n;
  n = 0;
  for (uint32_t l = 0; l < k->n_levels; l++)
    for (uint32_t i = 0; i < nodes[l].n; i++)
      add_page(entry + n++, free_order[nodes[l].first + i]);
  for (uint32_t i = 0; i < own.n; i++)
    add_page(entry + n++, free_order[own.first + i]);
  int32_t last = take(last_order, n_last, &used->n_last);
  uint32_t n_new = filled(h, (uint32_t)last) + q_len, kv_len = n * h->page_tokens + n_new;
  add_page(entry + n++, (int32_t)n_free + last);
  for (uint32_t i = h->page_tokens; i < n_new; i += h->page_tokens)
    add_page(entry + n++, (int32_t)(n_free + n_last + used->n_blank++));
  add_page(entry + n++, (int32_t)nan_page);
  plan->rows[r] = (td_plan_row){.slot = r, .q_len = q_len, .kv_len = kv_len, .page_table_offset = entry};
  plan->n_tokens += q_len;
  plan->n_rows++;
  return n;
}

/* Decodes in random order, then chunks in random order. A slot is a row's number before that. */
static void shuffle_rows(void)
{
  td_plan_row *rows = plan->rows;
  for (uint32_t i = plan->n_rows; i > 1; i--) {
    uint32_t j = below(i);
    td_plan_row row = rows[i - 1];
    rows[i - 1] = rows[j];
    rows[j] = row;
  }
  for (uint32_t r = 0; r < plan->n_rows; r++)
    if (rows[r].q_len == 1) {
      td_plan_row row = rows[plan->n_decode_rows];
      rows[plan->n_decode_rows++] = rows[r];
      rows[r] = row;
    }
}

static void make_batch(const head_shape *h)
{
  batch_kind k = any_kind(h);
  run nodes[LEVELS_MAX] = {{0, 0}};
  in_use used = {0, 0, 0};
  uint32_t entry = 0, n;
  count_up(free_order, n_free);
  count_up(last_order, n_last);
  begin_plan(h);
  while (plan->n_rows < k.n_rows && (n = add_row(h, &k, nodes, entry, &used)) > 0)
    entry += n;
  shuffle_rows();
  n = 0;
  for (uint32_t r = 0; r < plan->n_rows; r++) {
    td_plan_row *row = &plan->rows[r];
    row->q_start = n;
    td_plan_add_sample(plan, r);
    for (uint32_t i = 0; i < row->q_len; i++, n++) {
      row_of_token[n] = r;
      plan->token_ids[n] = (int32_t)below(VALUES);
      plan->positions[n] = (int32_t)(row->kv_len - row->q_len + i);
    }
  }
  plan->n_prefill_tokens = n - plan->n_decode_rows;
}

static float *attend(const head_shape *h, td_compiled *compiled)
{
  bool launched = run_step(compiled);
  expect(launched == (compiled == captured && be->ops->capture), "a captured step is launched");
  return fetch(out, (size_t)plan->n_tokens * h->n_heads * h->head_dim, false);
}

/* The new tokens have been written. */
static void grow_rows(const head_shape *h, uint8_t grown[ROWS_MAX])
{
  for (uint32_t r = 0; r < plan->n_rows; r++) {
    td_plan_row *row = &plan->rows[r];
    uint32_t last = (uint32_t)page_table[row->page_table_offset + (row->kv_len - 1) / h->page_tokens];
    grown[r] = row->kv_len % h->page_tokens > 0;
    if (!grown[r])
      continue;
    stored[last * h->page_tokens + (row->kv_len - 1) % h->page_tokens] = (uint16_t)plan->token_ids[r];
    plan->token_ids[r] = (int32_t)below(VALUES);
    plan->positions[r] = (int32_t)row->kv_len++;
  }
}

static void shrink_rows(const uint8_t grown[ROWS_MAX])
{
  for (uint32_t r = 0; r < plan->n_rows; r++)
    plan->positions[r] = (int32_t)(plan->rows[r].kv_len -= grown[r]) - 1;
}

/* Removes the step's new tokens. */
static void forget_new_tokens(void)
{
  for (uint32_t i = 0; i < plan->n_tokens; i++)
    plan->token_ids[i] = VALUES;
  write_tokens();
}

/* ---- float64 ---- */

typedef struct pair {
  uint32_t token, head;
} pair;

static uint32_t keys_of(const head_shape *h, uint32_t token)
{
  uint32_t n = (uint32_t)plan->positions[token] + 1;
  return h->window && n > h->window ? h->window : n;
}

/* The pairs to compare: all of a small batch, otherwise random rows and heads. The caller frees. */
static pair *choose_pairs(const head_shape *h, uint32_t *n)
{
  uint64_t all = 0, taken = 0;
  uint32_t most = plan->n_tokens * h->n_heads;
  pair *pairs = malloc(most * sizeof *pairs);
  for (uint32_t i = 0; i < most; i++) {
    pairs[i] = (pair){i / h->n_heads, i % h->n_heads};
    all += keys_of(h, pairs[i].token);
  }
  for (*n = 0; *n < most && (*n == 0 || taken + keys_of(h, pairs[*n].token) <= PAIR_KEYS);
       taken += keys_of(h, pairs[(*n)++].token))
    if (all > PAIR_KEYS) {
      uint32_t j = *n + below(most - *n);
      pair p = pairs[j];
      pairs[j] = pairs[*n];
      pairs[*n] = p;
    }
  return pairs;
}

static const float *value_of_key(const head_shape *h, const td_plan_row *row, uint32_t key)
{
  uint32_t page = (uint32_t)page_table[row->page_table_offset + key / h->page_tokens],
           n_old = row->kv_len - row->q_len;
  return values + (size_t)(key >= n_old ? (uint32_t)plan->token_ids[row->q_start + key - n_old]
                                        : stored[page * h->page_tokens + key % h->page_tokens]) *
                      width;
}

/* weights: room for one a key. */
static void attend_pair(const head_shape *h, pair p, double *weights, double *to)
{
  const td_plan_row *row = &plan->rows[row_of_token[p.token]];
  uint32_t hd = h->head_dim, kv_head = p.head / (h->n_heads / h->n_kv_heads),
           end = (uint32_t)plan->positions[p.token] + 1, first = end - keys_of(h, p.token);
  size_t k_at = (size_t)(h->n_heads + kv_head) * hd, v_at = k_at + (size_t)h->n_kv_heads * hd;
  const float *q = values + (size_t)plan->token_ids[p.token] * width + (size_t)p.head * hd;
  double max = -INFINITY, sum = 0;
  for (uint32_t i = first; i < end; i++) {
    const float *k = value_of_key(h, row, i) + k_at;
    double dot = 0;
#pragma omp simd reduction(+ : dot)
    for (uint32_t d = 0; d < hd; d++)
      dot += (double)q[d] * (double)k[d];
    weights[i - first] = dot / sqrt(hd);
    max = fmax(max, weights[i - first]);
  }
  memset(to, 0, hd * sizeof *to);
  for (uint32_t i = first; i < end; i++) {
    const float *v = value_of_key(h, row, i) + v_at;
    double w = exp(weights[i - first] - max);
    sum += w;
#pragma omp simd
    for (uint32_t d = 0; d < hd; d++)
      to[d] += w * (double)v[d];
  }
  for (uint32_t d = 0; d < hd; d++)
    to[d] /= sum;
}

typedef struct verdict {
  double ratio, worst_ratio; /* norm of the error relative to that of the reference: over all together, and of
                                the worst pair */
  uint32_t worst_token, worst_head;
} verdict;

static verdict compare(const head_shape *h, const float *got, const pair *pairs, uint32_t n)
{
  verdict v = {0};
  double diff2 = 0, want2 = 0;
#pragma omp parallel
  {
    double *weights = malloc((KEYS_MAX + STEP_TOKENS) * sizeof *weights), want[256];
#pragma omp for schedule(dynamic, 1) reduction(+ : diff2, want2)
    for (uint32_t i = 0; i < n; i++) {
      double d2 = 0, w2 = 0;
      attend_pair(h, pairs[i], weights, want);
      for (uint32_t d = 0; d < h->head_dim; d++) {
        double diff =
            (double)got[((size_t)pairs[i].token * h->n_heads + pairs[i].head) * h->head_dim + d] - want[d];
        d2 += diff * diff;
        w2 += want[d] * want[d];
      }
      d2 = d2 < 1e30 ? d2 : 1e30; /* NaN too */
      diff2 += d2, want2 += w2;
#pragma omp critical
      if (sqrt(d2 / w2) > v.worst_ratio)
        v = (verdict){0, sqrt(d2 / w2), pairs[i].token, pairs[i].head};
    }
    free(weights);
  }
  v.ratio = sqrt(diff2 / want2);
  return v;
}

/* ---- all of it ---- */

/* Which cases occurred, so that a reader knows what the result means. */
typedef struct tally {
  uint32_t n_plans, n_rows_most, n_keys_most, n_compared_whole;
  uint64_t n_rows, n_pairs, n_prefill_tokens;
} tally;

static uint32_t most_keys(void)
{
  uint32_t most = 0;
  for (uint32_t r = 0; r < plan->n_rows; r++)
    most = plan->rows[r].kv_len > most ? plan->rows[r].kv_len : most;
  return most;
}

static void test_step(const head_shape *h, const char *which, tally *t)
{
  char what[300];
  uint32_t n_pairs;
  pair *pairs = choose_pairs(h, &n_pairs);
  float *got = attend(h, plain), *again = attend(h, plain), *launched = hybrid ? NULL : attend(h, captured);
  size_t n_bytes = (size_t)plan->n_tokens * h->n_heads * h->head_dim * sizeof *got;
  const char *other_bits = memcmp(got, again, n_bytes)                  ? ", and other bits the second time"
                           : launched && memcmp(got, launched, n_bytes) ? ", and other bits captured"
                                                                        : "";
  verdict v = compare(h, got, pairs, n_pairs);
  double tolerance = be->activation_bytes == 2 ? 1.5 * eps_out : 2e-5;
  snprintf(
      what, sizeof what,
      "%s, heads=%u/%u dim=%u page=%u window=%u, %u decodes and %u chunks of %u tokens, up to %u keys: error "
      "%.2e, of row %u token %u head %u %.2e (tolerance %.1e, 4 of it)%s",
      which, h->n_heads, h->n_kv_heads, h->head_dim, h->page_tokens, h->window, plan->n_decode_rows,
      plan->n_rows - plan->n_decode_rows, plan->n_prefill_tokens, most_keys(), v.ratio,
      row_of_token[v.worst_token], v.worst_token, v.worst_head, v.worst_ratio, tolerance, other_bits);
  expect(v.ratio <= tolerance && v.worst_ratio <= 4 * tolerance && other_bits[0] == '\0', what);
  t->n_pairs += n_pairs;
  t->n_compared_whole += n_pairs == plan->n_tokens * h->n_heads;
  free(pairs), free(got), free(again), free(launched);
}

/* Runs the batch; then, for decodes, the step after it, in which each row whose last page has room is a token
 * longer. */
static void test_batch(const head_shape *h, const td_attention_policy *policy, uint64_t seed, uint32_t number,
                       tally *t)
{
  char which[60];
  uint8_t grown[ROWS_MAX] = {0};
  seed_with(seed, number);
  make_batch(h);
  snprintf(which, sizeof which, "plan %u policy=%s", number, policy ? policy->name : "auto");
  test_step(h, which, t);
  t->n_plans++;
  t->n_rows += plan->n_rows;
  t->n_prefill_tokens += plan->n_prefill_tokens;
  t->n_rows_most = plan->n_rows > t->n_rows_most ? plan->n_rows : t->n_rows_most;
  t->n_keys_most = most_keys() > t->n_keys_most ? most_keys() : t->n_keys_most;
  if (!hybrid) {
    grow_rows(h, grown);
    strcat(which, ", grown");
    test_step(h, which, t);
    forget_new_tokens();
    shrink_rows(grown);
  }
  forget_new_tokens();
}

/* How batches of a kind are planned. Larger heads have no attention plans. */
static const td_attention_policy *way_of(uint32_t kind, const head_shape *h)
{
  const td_attention_policy *hybrid_ways[16] = {NULL, &serial}, *way = NULL;
  uint32_t n = 2;
  for (uint32_t i = 0; td_attention_cuts[i]; i++)
    hybrid_ways[n++] = td_attention_cuts[i];
  if (hybrid)
    return h->head_dim <= 128 ? hybrid_ways[(kind / N_SHAPES + kind) % n] : NULL;
  if (h->head_dim <= 128 && !td_attention_policy_of(ways[kind / N_SHAPES], &way))
    TD_BUG_ON(true);
  return way;
}

static uint32_t number_of(const char *text, uint32_t otherwise)
{
  return text ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

int main(int argc, char **argv)
{
  hybrid = argc > 1 && strcmp(argv[1], "hybrid") == 0;
  argc -= hybrid, argv += hybrid;
  const char *backend = argc > 1 ? argv[1] : "cpu";
  uint32_t n = number_of(argc > 2 ? argv[2] : NULL, PLANS), seed = number_of(argc > 3 ? argv[3] : NULL, 1),
           first = number_of(argc > 4 ? argv[4] : NULL, 0);
  tally t = {0};
  td_error err;
  if (argc > 5 || n == 0) {
    fputs("usage: random_plans [hybrid] [BACKEND [PLANS [SEED [FIRST]]]]\n", stderr);
    return 2;
  }
  step_tokens = strcmp(backend, "cpu") == 0 ? STEP_TOKENS_CPU : STEP_TOKENS;
  setvbuf(stdout, NULL, _IOLBF, 0);
  watch_steps(WATCH_STEP_S);
  die(td_plan_create(ROWS_MAX, STEP_TOKENS, ROWS_MAX, ENTRIES_MAX, 16, &plan, &err), &err, "plan");
  page_table = calloc(ENTRIES_MAX, sizeof *page_table);
  for (uint32_t kind = 0; kind < N_KINDS; kind++) {
    const head_shape *h = &shapes[kind % N_SHAPES];
    const td_attention_policy *way = way_of(kind, h);
    uint32_t number = first + (kind + N_KINDS - first % N_KINDS) % N_KINDS;
    seed_with(seed, UINT64_MAX - kind);
    if (number >= first + n || !open_store(backend, h, way))
      continue;
    for (; number < first + n; number += N_KINDS)
      test_batch(h, way, seed, number, &t);
    close_store();
  }
  td_plan_destroy(plan);
  free(page_table);
  printf("random_plans %s: %d passed, %d failed; %u plans of %llu rows, up to %u in one and %u keys in one, "
         "chunks "
         "of %llu tokens; %llu tokens' heads compared, in %u steps all\n",
         backend, n_passed, n_failed, t.n_plans, (unsigned long long)t.n_rows, t.n_rows_most, t.n_keys_most,
         (unsigned long long)t.n_prefill_tokens, (unsigned long long)t.n_pairs, t.n_compared_whole);
  return n_failed > 0 || n_passed == 0;
}
