/* tandem-bench kernels: every op of a backend alone, through kernels.h, beside the floor of the bytes it must
 * move or the operations it must do.
 *
 * A figure is the median of many rounds. A round is a step whose program is one op n times, less an empty
 * step, over n: so the host's work hides behind the device's, as it does in a whole step. The op goes round
 * several copies of its weights, inputs and KV that together are larger than the caches, since in a model it
 * finds none of them there. But a product's x, which in a model was just written, and what it adds to stay
 * where they are; and its step is captured where the backend captures decode steps of so many rows. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "bench/attention_policies.h"
#include "bench/attention_trees.h"
#include "bench/ceilings.h"
#include "bench/commands.h"
#include "bench/random.h"
#include "bench/stage.h"
#include "bench/tool.h"
#include "common/log.h"

enum { LIST_MAX = 32, PAGE_TOKENS = 16, COPIES_MAX = 64, QUEUE_MAX = 1000 };

typedef enum matrix { QKV, O, GATE_UP, DOWN, HEAD, MATRICES } matrix;
static const char *const matrix_names[MATRICES] = {"qkv", "o", "gate_up", "down", "lm_head"};

typedef struct bench {
  const char *shape, *backend, *rows, *dtype, *only, *json, *policy;
  double threads, device, gb_s, tflop_s, n_rounds, round_ms, warm_ms, max_seconds, cache_mb, attention_gb;
  td_model_desc d;
  td_stage stage;
  td_dtype weight_dtype;
  td_ceiling ceiling;
  double list[LIST_MAX];
  size_t n_list;
  uint32_t max_tokens, q_dim, qkv_dim, kv_layers;
  /* copies of what an op reads: weights[m][c]; activations at x + c * x_stride, f32 vectors once */
  td_weight *weights[MATRICES][COPIES_MAX];
  void *stored[MATRICES][COPIES_MAX]; /* quantised ones, which the backend may read where they are */
  uint32_t n_copies[MATRICES];
  double matrix_bytes[MATRICES]; /* of one copy */
  td_devptr x, out, logits, ones, inv_freq;
  size_t slab_bytes; /* of x and out: each holds at least two of the widest activations */
  td_devptr glu;     /* of swiglu_after: as large as out */
  /* the op under test: the i-th of a step; then, if there is a second, what follows each */
  td_op (*op)(const struct bench *b, uint32_t i);
  td_op (*second)(const struct bench *b, uint32_t i);
  matrix m;
  uint32_t n;
  double warm_s; /* how long it runs before it is timed: products bring a GPU to its power limit, and then its
                    clock falls */
  bool captures; /* whether the op's step is captured, where the backend does that */
  double empty_s;
  cJSON *ops;
} bench;

static void check(td_status st, const td_error *err)
{
  if (st != TD_OK)
    td_tool_die("%s", err->message);
}

/* ---- what ops read and write ---- */

static uint32_t rows_of(const bench *b, matrix m)
{
  const td_model_desc *d = &b->d;
  switch (m) {
  case QKV: return b->qkv_dim;
  case GATE_UP: return 2 * d->ffn_width;
  case HEAD: return d->vocab;
  default: return d->width;
  }
}

static uint32_t cols_of(const bench *b, matrix m)
{
  return m == O ? b->q_dim : m == DOWN ? b->d.ffn_width : b->d.width;
}

/* Random blocks with small scales: speed does not depend on the values as long as they stay finite. */
static void *random_blocks(td_dtype t, uint64_t bytes, td_random *r)
{
  uint8_t *p = td_tool_alloc(bytes, 1);
  for (uint64_t at = 0; at + 8 <= bytes; at += 8) {
    uint64_t v = td_random_next(r);
    memcpy(p + at, &v, 8);
  }
  uint32_t block = td_dtypes[t].block_bytes;
  for (uint64_t at = 0; at < bytes; at += block) {
    if (t == TD_F32)
      p[at + 3] = 0x3a;
    else if (t <= TD_BF16)
      p[at + 1] = 0x14;
    else if (t == TD_Q6_K)
      p[at + 209] = 0x14;
    else
      p[at + 1] = p[at + 3] = 0x14; /* the scale, and the second one or a quant */
  }
  return p;
}

static td_weight *make_weight(bench *b, matrix m, uint32_t copy)
{
  td_error err;
  td_weight *w;
  td_weight_part part = {.dtype = TD_BF16, .n_rows = rows_of(b, m), .seed = m * 100 + copy + 1};
  uint64_t row_bytes;
  uint32_t cols = cols_of(b, m);
  td_dtype t = b->weight_dtype;
  if (!td_dtype_row_bytes(t, cols, &row_bytes))
    td_tool_die("%s: rows of %u elements are no whole blocks of %s", matrix_names[m], cols,
                td_dtypes[t].name);
  if (t != TD_BF16) {
    td_random r;
    td_random_init(&r, part.seed);
    part.dtype = t;
    part.data = b->stored[m][copy] = random_blocks(t, row_bytes * part.n_rows, &r);
  }
  check(b->stage.be->ops->weight_import(b->stage.be, &part, 1, cols, &w, &err), &err);
  (void)td_dtype_row_bytes(w->types[0].storage, cols, &row_bytes); /* n_cols suits it: it was imported */
  b->matrix_bytes[m] = (double)row_bytes * part.n_rows;
  return w;
}

static void make_weights(bench *b)
{
  td_error err;
  for (matrix m = QKV; m < MATRICES; m++) {
    b->n_copies[m] = 1;
    b->weights[m][0] = make_weight(b, m, 0);
    double want = ceil(b->cache_mb * 1e6 / b->matrix_bytes[m]) + 1;
    while (b->n_copies[m] < want && b->n_copies[m] < COPIES_MAX) {
      b->weights[m][b->n_copies[m]] = make_weight(b, m, b->n_copies[m]);
      b->n_copies[m]++;
    }
    td_tool_progress((m + 1.0) / MATRICES, "weights: %s", matrix_names[m]);
  }
  check(b->stage.be->ops->weights_wait(b->stage.be, &err), &err);
  td_tool_progress(-1, " ");
}

static td_devptr allocate(bench *b, size_t bytes)
{
  td_error err;
  td_devptr p;
  check(b->stage.be->ops->alloc(b->stage.be, bytes, &p, &err), &err);
  return p;
}

static td_devptr upload(bench *b, const float *v, size_t n)
{
  td_error err;
  td_devptr p;
  check(b->stage.be->ops->upload_f32(b->stage.be, v, n, &p, &err), &err);
  return p;
}

/* Random activations of either width: zeros would cost a GPU less power than a model does. Bits are moved as
 * they are. */
static td_devptr random_slab(bench *b)
{
  td_random r;
  size_t n = b->slab_bytes / sizeof(float);
  float *v = td_tool_alloc(n, sizeof *v);
  td_random_init(&r, 11);
  for (size_t i = 0; i < n; i++) {
    uint64_t bits = td_random_next(&r); /* signs and mantissas random, exponents of 1/4 to 1/2 */
    uint32_t two_bf16 = (uint32_t)bits & 0x80ff80ffu, one_f32 = (uint32_t)bits & 0x80ffffffu;
    uint32_t word = b->stage.be->activation_bytes == 2 ? two_bf16 | 0x3e003e00u : one_f32 | 0x3e000000u;
    memcpy(&v[i], &word, sizeof word);
  }
  td_devptr p = upload(b, v, n);
  free(v);
  return p;
}

static bool wanted(const bench *b, const char *op)
{
  size_t n = strlen(op);
  for (const char *at = b->only; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
    if (strncmp(at, op, n) == 0 && (at[n] == ',' || !at[n]))
      return true;
  return !b->only;
}

static void make_memory(bench *b)
{
  uint32_t widest = 2 * b->d.ffn_width > b->qkv_dim ? 2 * b->d.ffn_width : b->qkv_dim;
  size_t one = (size_t)b->max_tokens * widest * b->stage.be->activation_bytes;
  size_t cache = (size_t)(b->cache_mb * 1e6);
  float *ones = td_tool_alloc(b->d.width, sizeof *ones);
  b->slab_bytes = 2 * one > cache ? 2 * one : cache;
  b->x = random_slab(b);
  b->out = allocate(b, b->slab_bytes);
  b->glu = wanted(b, "glu") ? allocate(b, b->slab_bytes) : b->out;
  b->logits = allocate(b, (size_t)b->stage.be->max_rows * b->d.vocab * sizeof(float));
  for (uint32_t i = 0; i < b->d.width; i++)
    ones[i] = 1;
  b->ones = upload(b, ones, b->d.width);
  b->inv_freq = upload(b, b->d.rope_inv_freq, b->d.rotary_dim / 2);
  free(ones);
}

/* The i-th place for an activation of n rows in a slab: places go round all of it. */
static td_devptr place(const bench *b, td_devptr slab, uint32_t n, uint32_t width, uint32_t i)
{
  size_t bytes = ((size_t)n * width * b->stage.be->activation_bytes + 255) / 256 * 256;
  return td_devptr_at(slab, i % (b->slab_bytes / bytes) * bytes);
}

static td_op rope_op(const bench *b, uint32_t i);

/* ---- programs ---- */

/* n of the op under test. */
static td_compiled *compile(bench *b, uint32_t n)
{
  td_error err;
  td_program *p;
  check(td_program_create(2 * n, &p, &err), &err);
  for (uint32_t i = 0; i < n; i++) {
    td_program_add(p, b->op(b, i));
    if (b->second)
      td_program_add(p, b->second(b, i));
  }
  td_compiled *compiled = td_stage_compile(&b->stage, p);
  td_program_destroy(p);
  return compiled;
}

/* Keys and values, through the op that writes them, in each layer. */
static void fill_kv(bench *b)
{
  b->op = rope_op;
  b->n = b->max_tokens;
  td_compiled *writes_kv = compile(b, b->kv_layers);
  td_stage_fill(&b->stage, writes_kv);
  td_stage_discard(&b->stage, writes_kv);
}

static void setup(bench *b)
{
  td_error err;
  td_backend *be;
  uint32_t largest = 0;
  for (size_t i = 0; i < b->n_list; i++)
    largest = b->list[i] > largest ? (uint32_t)b->list[i] : largest;
  bool gpu_asked = strcmp(b->backend, "cpu") != 0;
  uint32_t max_rows = gpu_asked ? (b->only && wanted(b, "trees") ? 1024 : 256) : 64,
           max_context = gpu_asked ? 65536 : 4096;
  td_backend_config c = {.n_threads = (uint32_t)b->threads,
                         .max_slots = max_rows,
                         .max_rows = max_rows,
                         .max_tokens = largest > 512 ? largest : 512,
                         .max_context_tokens = max_context,
                         .max_vocab = b->d.vocab,
                         .device = (uint32_t)b->device,
                         .attention_policy = td_stage_policy(b->policy),
                         .gpu_memory_percent = 90};
  check(td_backend_create(b->backend, &c, &be, &err), &err);
  b->stage.be = be;
  b->q_dim = b->d.n_heads * b->d.head_dim;
  b->qkv_dim = (b->d.n_heads + 2 * b->d.n_kv_heads) * b->d.head_dim;
  b->max_tokens = be->max_tokens;
  make_weights(b);
  make_memory(b);
  /* one layer's KV for each layer: layers are the copies that attention goes round */
  b->kv_layers = b->d.n_layers < 4 ? b->d.n_layers : 4;
  td_kv_spec kv = {.n_pages = 1,
                   .page_tokens = PAGE_TOKENS,
                   .n_groups = 1,
                   .groups = {{.n_layers = b->kv_layers,
                               .dtype = be->kv_dtype,
                               .n_kv_heads = b->d.n_kv_heads,
                               .head_dim = b->d.head_dim,
                               .n_heads = b->d.n_heads,
                               .window_tokens = b->d.window_tokens}}};
  check(be->ops->kv_check(be, &kv, &err), &err);
  double pages = b->attention_gb * 1e9 / (double)be->ops->kv_bytes_per_page(be, &kv);
  td_stage_init(&b->stage, be, &kv, (uint32_t)pages, max_context);
  fill_kv(b);
  b->ceiling = td_ceilings_of(be->ops->name, b->gb_s, b->tflop_s, (uint32_t)b->threads);
}

/* ---- timing ---- */

/* n_ops 0: of an empty step. */
static double median_step(bench *b, uint32_t n_ops, int n_rounds)
{
  td_compiled *c = n_ops > 0 ? compile(b, n_ops) : NULL;
  double s = td_stage_step_s(&b->stage, c, (uint32_t)n_rounds, b->max_seconds);
  td_stage_discard(&b->stage, c);
  return s;
}

/* n tokens in rows of at most the context's length, each row's last token wanting logits. */
static bool plan_tokens(bench *b, uint32_t n, bool logits)
{
  uint32_t left = n, most = b->stage.stripe_pages * PAGE_TOKENS;
  bool fits = true;
  td_stage_plan_begin(&b->stage);
  while (left > 0 && fits) {
    uint32_t q = n <= b->stage.plan->max_rows ? 1 : left < most ? left : most;
    fits = td_stage_plan_row(&b->stage, q, q, logits);
    left -= q;
  }
  return fits;
}

/* Captured, as decode steps are, if there can be such a step. */
static void capture(bench *b, td_compiled *compiled)
{
  td_error err;
  td_capture ignored;
  const td_backend *be = b->stage.be;
  const td_plan *p = b->stage.plan;
  if (b->captures && be->ops->capture && p->n_logits == p->n_tokens)
    check(be->ops->capture(b->stage.be, compiled, p->n_rows, &ignored, &err), &err);
}

/* After warm_s of them. */
static double median_warm(bench *b, uint32_t n_ops)
{
  td_compiled *c = compile(b, n_ops);
  capture(b, c);
  td_stage_warm(&b->stage, c, fmin(b->warm_s, b->max_seconds));
  double s = td_stage_step_s(&b->stage, c, (uint32_t)b->n_rounds, b->max_seconds);
  td_stage_discard(&b->stage, c);
  return s;
}

/* Bytes and operations that the op cannot do without: its floor. */
typedef struct work {
  double bytes, flop;
} work;

static void report(bench *b, const char *op, const char *size, const work *w, double s)
{
  double by_bytes = w->bytes / b->ceiling.bytes_per_s, by_flop = w->flop / b->ceiling.flop_per_s;
  double floor_s = fmax(by_bytes, by_flop);
  cJSON *o = cJSON_CreateObject();
  printf("%-10s %-22s %11.2f %10.1f %9.2f %11.2f %6.0f%%\n", op, size, s * 1e6, w->bytes / s * 1e-9,
         w->flop / s * 1e-12, floor_s * 1e6, 100 * floor_s / s);
  fflush(stdout);
  cJSON_AddStringToObject(o, "op", op);
  cJSON_AddStringToObject(o, "size", size);
  cJSON_AddNumberToObject(o, "us", s * 1e6);
  cJSON_AddNumberToObject(o, "gb_s", w->bytes / s * 1e-9);
  cJSON_AddNumberToObject(o, "tflop_s", w->flop / s * 1e-12);
  cJSON_AddNumberToObject(o, "floor_us", floor_s * 1e6);
  cJSON_AddNumberToObject(o, "share", floor_s / s);
  cJSON_AddItemToArray(b->ops, o);
}

/* As many in a round as fill round_ms, so that an empty step and a clock's tick weigh little. */
static void measure(bench *b, const char *op, const char *size, const work *w)
{
  double guess = median_step(b, 1, 3), n;
  b->empty_s = median_step(b, 0, (int)b->n_rounds);
  guess = fmax(guess - b->empty_s, 0.5e-6);
  n = b->round_ms * 1e-3 / guess;
  n = n < 2 ? 2 : n > QUEUE_MAX ? QUEUE_MAX : floor(n);
  double all = median_warm(b, (uint32_t)n);
  double s = (all - b->empty_s) / n;
  if (s > 0)
    report(b, op, size, w, s);
  else
    printf("%-10s %-22s too short to tell from an empty step\n", op, size);
}

/* ---- ops ---- */

/* As in a model: to the residual stream. */
static bool adds(matrix m) { return m == O || m == DOWN; }

static td_op linear_op(const bench *b, uint32_t i)
{
  bool head = b->m == HEAD;
  td_linear_params p = {.weight = b->weights[b->m][i % b->n_copies[b->m]],
                        .x = b->x,
                        .out = head         ? b->logits
                               : adds(b->m) ? b->out
                                            : place(b, b->out, b->n, rows_of(b, b->m), i),
                        .n_in = cols_of(b, b->m),
                        .n_out = rows_of(b, b->m),
                        .out_f32 = head,
                        .add = adds(b->m)};
  return (td_op){.kind = TD_OP_LINEAR, .linear = p};
}

/* gate_up and swiglu in one, where the backend has that for so many rows; after gate_up_op: the same by two
 * ops. */
static td_op glu_op(const bench *b, uint32_t i)
{
  td_linear_swiglu_params p = {.weight = b->weights[GATE_UP][i % b->n_copies[GATE_UP]],
                               .x = b->x,
                               .out = place(b, b->out, b->n, b->d.ffn_width, i),
                               .n_in = b->d.width,
                               .width = b->d.ffn_width};
  return (td_op){.kind = TD_OP_LINEAR_SWIGLU, .linear_swiglu = p};
}

static td_op gate_up_op(const bench *b, uint32_t i)
{
  td_linear_params p = {.weight = b->weights[GATE_UP][i % b->n_copies[GATE_UP]],
                        .x = b->x,
                        .out = place(b, b->out, b->n, 2 * b->d.ffn_width, i),
                        .n_in = b->d.width,
                        .n_out = 2 * b->d.ffn_width};
  return (td_op){.kind = TD_OP_LINEAR, .linear = p};
}

/* Of another layer: a backend would make one op of the two. */
static td_op swiglu_after(const bench *b, uint32_t i)
{
  td_swiglu_params p = {.gate_up = place(b, b->out, b->n, 2 * b->d.ffn_width, i),
                        .out = place(b, b->glu, b->n, b->d.ffn_width, i),
                        .width = b->d.ffn_width};
  return (td_op){.kind = TD_OP_SWIGLU, .layer = 1, .swiglu = p};
}

static td_op norm_op(const bench *b, uint32_t i)
{
  td_rmsnorm_params p = {.x = place(b, b->x, b->n, b->d.width, i),
                         .weight = b->ones,
                         .out = place(b, b->out, b->n, b->d.width, i),
                         .width = b->d.width,
                         .eps = 1e-5f};
  return (td_op){.kind = TD_OP_RMSNORM, .rmsnorm = p};
}

static td_op swiglu_op(const bench *b, uint32_t i)
{
  td_swiglu_params p = {.gate_up = place(b, b->x, b->n, 2 * b->d.ffn_width, i),
                        .out = place(b, b->out, b->n, b->d.ffn_width, i),
                        .width = b->d.ffn_width};
  return (td_op){.kind = TD_OP_SWIGLU, .swiglu = p};
}

static td_op embed_op(const bench *b, uint32_t i)
{
  td_embed_params p = {.weight = b->weights[HEAD][i % b->n_copies[HEAD]],
                       .out = place(b, b->out, b->n, b->d.width, i),
                       .width = b->d.width};
  return (td_op){.kind = TD_OP_EMBED, .embed = p};
}

static td_op rope_op(const bench *b, uint32_t i)
{
  td_rope_kv_params p = {.qkv = place(b, b->x, b->n, b->qkv_dim, i),
                         .inv_freq = b->inv_freq,
                         .attn_factor = 1,
                         .norm_eps = 1e-5f,
                         .style = b->d.rope_style,
                         .kv = b->stage.kv,
                         .layer = i % b->kv_layers,
                         .n_heads = b->d.n_heads,
                         .n_kv_heads = b->d.n_kv_heads,
                         .head_dim = b->d.head_dim,
                         .rotary_dim = b->d.rotary_dim};
  return (td_op){.kind = TD_OP_ROPE_KV, .rope_kv = p};
}

static td_op attention_op(const bench *b, uint32_t i)
{
  td_attention_params p = {.qkv = place(b, b->x, b->n, b->qkv_dim, i),
                           .out = place(b, b->out, b->n, b->q_dim, i),
                           .kv = b->stage.kv,
                           .scale = 1 / sqrtf((float)b->d.head_dim),
                           .layer = i % b->kv_layers,
                           .n_heads = b->d.n_heads,
                           .n_kv_heads = b->d.n_kv_heads,
                           .head_dim = b->d.head_dim};
  return (td_op){.kind = TD_OP_ATTENTION, .attention = p};
}

static td_op sample_op(const bench *b, uint32_t i)
{
  (void)i;
  td_sample_params p = {.logits = b->logits, .vocab = b->d.vocab};
  return (td_op){.kind = TD_OP_SAMPLE, .extent = TD_EXTENT_SAMPLED, .sample = p};
}

/* ---- the list of figures ---- */

static double warm_s_of(const bench *b)
{
  return b->warm_ms >= 0 ? b->warm_ms * 1e-3 : strcmp(b->stage.be->ops->name, "cpu") == 0 ? 0 : 0.2;
}

static void measure_linears(bench *b)
{
  char size[64];
  b->op = linear_op;
  b->captures = true;
  b->warm_s = warm_s_of(b);
  for (matrix m = QKV; m < MATRICES; m++)
    for (size_t i = 0; i < b->n_list && wanted(b, matrix_names[m]); i++) {
      uint32_t n = (uint32_t)b->list[i], rows = rows_of(b, m), cols = cols_of(b, m);
      if ((m == HEAD && n > b->stage.be->max_rows) || !plan_tokens(b, n, true))
        continue;
      double a = b->stage.be->activation_bytes;
      work w = {b->matrix_bytes[m] + n * (cols * a + rows * (m == HEAD ? 4
                                                             : adds(m) ? 2 * a
                                                                       : a)),
                2.0 * n * rows * cols};
      b->m = m;
      b->n = n;
      snprintf(size, sizeof size, "%u x %u->%u", n, cols, rows);
      measure(b, matrix_names[m], size, &w);
    }
  b->captures = false;
  b->warm_s = 0;
}

/* Whether the backend has the op, for so many rows. */
static bool has_glu(bench *b)
{
  td_error err;
  td_outcome ignored;
  td_compiled *compiled;
  td_backend *be = b->stage.be;
  td_op op = glu_op(b, 0);
  if (be->ops->compile(be, &(td_program){.ops = &op, .n_ops = 1, .n_unsampled = 1}, &compiled, &err) != TD_OK)
    return false;
  td_backend_submit(be, compiled, b->stage.plan);
  bool has = td_backend_wait(be, &ignored, &err) == TD_OK;
  be->ops->discard(be, compiled);
  return has;
}

static void measure_glu(bench *b)
{
  char size[64];
  b->warm_s = warm_s_of(b);
  for (size_t i = 0; i < b->n_list && wanted(b, "glu"); i++) {
    uint32_t n = (uint32_t)b->list[i], rows = rows_of(b, GATE_UP), cols = cols_of(b, GATE_UP);
    double a = b->stage.be->activation_bytes;
    work w = {b->matrix_bytes[GATE_UP] + n * a * (cols + rows / 2), 2.0 * n * rows * cols};
    if (!plan_tokens(b, n, true))
      continue;
    b->n = n;
    snprintf(size, sizeof size, "%u x %u->2x%u", n, cols, rows / 2);
    b->op = gate_up_op;
    b->second = swiglu_after;
    measure(b, "glu by two", size, &w);
    b->op = glu_op;
    b->second = NULL;
    if (has_glu(b))
      measure(b, "glu", size, &w);
  }
  b->warm_s = 0;
}

typedef struct simple_op {
  const char *name;
  td_op (*op)(const bench *b, uint32_t i);
  double bytes_per_token;
  bool of_logits;
} simple_op;

static void measure_simple(bench *b)
{
  const td_model_desc *d = &b->d;
  double a = b->stage.be->activation_bytes, kv = 2.0 * d->n_kv_heads * d->head_dim;
  const simple_op ops[] = {
      {"embed", embed_op, b->matrix_bytes[HEAD] / d->vocab + d->width * a, false},
      {"rmsnorm", norm_op, 2 * d->width * a, false},
      {"rope_kv", rope_op, (b->q_dim * 2 + kv) * a + kv * a, false},
      {"swiglu", swiglu_op, 3 * d->ffn_width * a, false},
      {"sample", sample_op, d->vocab * 4.0, true},
  };
  char size[64];
  for (size_t k = 0; k < sizeof ops / sizeof *ops; k++)
    for (size_t i = 0; i < b->n_list && wanted(b, ops[k].name); i++) {
      b->n = (uint32_t)b->list[i];
      b->op = ops[k].op;
      if ((ops[k].of_logits && b->n > b->stage.be->max_rows) || !plan_tokens(b, b->n, ops[k].of_logits))
        continue;
      work w = {b->n * ops[k].bytes_per_token, 0};
      snprintf(size, sizeof size, "%u", b->n);
      measure(b, ops[k].name, size, &w);
    }
}

typedef struct attention_case {
  uint32_t batch, context, chunk, chunk_context;
} attention_case;

static void measure_attention(bench *b, const attention_case *c)
{
  char size[64];
  bool fits = true;
  td_stage_plan_begin(&b->stage);
  for (uint32_t i = 0; i < c->batch && fits; i++)
    fits = td_stage_plan_row(&b->stage, 1, c->context, false);
  if (c->chunk > 0)
    fits = fits && td_stage_plan_row(&b->stage, c->chunk, c->chunk_context, false);
  if (!fits)
    return;
  td_kv_spec one = b->stage.kv->spec;
  one.groups[0].n_layers = 1;
  double token_bytes = (double)b->stage.be->ops->kv_bytes_per_page(b->stage.be, &one) / PAGE_TOKENS;
  double pairs = (double)c->chunk * (c->chunk_context - c->chunk) + (double)c->chunk * c->chunk / 2 +
                 (double)c->batch * c->context;
  work w = {token_bytes * ((double)c->batch * c->context + c->chunk_context) +
                2.0 * b->q_dim * b->stage.be->activation_bytes * (c->batch + c->chunk),
            4.0 * b->q_dim * pairs};
  b->n = c->batch + c->chunk;
  b->op = attention_op;
  if (c->chunk == 0)
    snprintf(size, sizeof size, "%ux%u", c->batch, c->context);
  else if (c->batch == 0)
    snprintf(size, sizeof size, "%u@%u", c->chunk, c->chunk_context);
  else
    snprintf(size, sizeof size, "%u@%u + %ux%u", c->chunk, c->chunk_context, c->batch, c->context);
  measure(b, "attention", size, &w);
}

static void measure_attentions(bench *b)
{
  static const attention_case gpu[] = {
      {1, 1024, 0, 0},         {1, 16384, 0, 0},         {1, 65536, 0, 0},        {8, 16384, 0, 0},
      {16, 4096, 0, 0},        {64, 1024, 0, 0},         {32, 4096, 0, 0},        {64, 4096, 0, 0},
      {256, 1024, 0, 0},       {256, 2048, 0, 0},        {64, 16384, 0, 0},       {0, 0, 512, 4096},
      {0, 0, 512, 16384},      {0, 0, 1024, 16384},      {0, 0, 2048, 16384},     {0, 0, 2048, 2048},
      {64, 16384, 512, 16384}, {80, 12288, 1024, 12288}, {128, 2048, 1024, 8192}, {32, 8192, 2048, 16384},
      {16, 16384, 1024, 16384}};
  static const attention_case cpu[] = {{1, 256, 0, 0},    {1, 1024, 0, 0},  {1, 4096, 0, 0},
                                       {8, 1024, 0, 0},   {32, 1024, 0, 0}, {0, 0, 128, 128},
                                       {0, 0, 128, 1024}, {0, 0, 512, 512}, {8, 1024, 128, 1024}};
  bool on_gpu = strcmp(b->stage.be->ops->name, "cpu") != 0;
  const attention_case *list = on_gpu ? gpu : cpu;
  size_t n = on_gpu ? sizeof gpu / sizeof *gpu : sizeof cpu / sizeof *cpu;
  for (size_t i = 0; i < n && wanted(b, "attention"); i++)
    measure_attention(b, &list[i]);
}

/* PAT's trees; bytes: every key once. */
static void measure_trees(bench *b)
{
  double token_bytes = 2.0 * b->d.n_kv_heads * b->d.head_dim * b->stage.be->activation_bytes;
  for (size_t k = 0; k < sizeof td_pat_trees / sizeof *td_pat_trees && wanted(b, "trees"); k++) {
    const td_attention_tree *t = &td_pat_trees[k];
    char name[TD_TREE_NAME_BYTES];
    uint32_t n_rows = t->nodes[t->n - 1], total = 0;
    bool fits = true;
    work w = {0, 0};
    for (uint32_t l = 0; l < t->n; l++) {
      total += t->tokens[l];
      w.bytes += token_bytes * t->nodes[l] * t->tokens[l];
    }
    td_stage_plan_begin(&b->stage);
    for (uint32_t r = 0; r < n_rows && fits; r++)
      fits = td_stage_plan_shared(&b->stage, total, td_attention_tree_shared(t, r), false);
    if (!fits)
      continue;
    w.flop = 4.0 * b->q_dim * n_rows * total;
    b->n = n_rows;
    b->op = attention_op;
    td_attention_tree_name(t, name);
    measure(b, "trees", name, &w);
  }
}

static void print_head(const bench *b)
{
  const td_backend *be = b->stage.be;
  printf("%s, backend %s, weights %s; floors: %.0f GB/s, %.2f TFLOP/s. Attention: BxC decodes at context C, "
         "K@C a chunk of K tokens\n"
         "that ends at C; KV is random. Weights, and other ops' inputs, go round %.0f MB. Medians of %.0f "
         "rounds.\n",
         b->shape, be->ops->name, td_dtypes[be->ops->weight_type(be, b->weight_dtype).storage].name,
         b->ceiling.bytes_per_s * 1e-9, b->ceiling.flop_per_s * 1e-12, b->cache_mb, b->n_rounds);
  printf("%-10s %-22s %11s %10s %9s %11s %7s\n", "op", "size", "us", "GB/s", "TFLOP/s", "floor us", "share");
}

static void write_json(bench *b)
{
  char machine[256];
  cJSON *o = cJSON_CreateObject();
  td_tool_machine(machine, sizeof machine);
  cJSON_AddStringToObject(o, "tool", "tandem-bench kernels " TD_VERSION);
  cJSON_AddStringToObject(o, "machine", machine);
  cJSON_AddStringToObject(o, "backend", b->stage.be->ops->name);
  cJSON_AddStringToObject(o, "shape", b->shape);
  cJSON_AddNumberToObject(o, "ceiling_gb_s", b->ceiling.bytes_per_s * 1e-9);
  cJSON_AddNumberToObject(o, "ceiling_tflop_s", b->ceiling.flop_per_s * 1e-12);
  cJSON_AddItemReferenceToObject(o, "ops", b->ops);
  td_tool_write_json(b->json, o);
}

static void read_options(bench *b)
{
  td_error err;
  check(td_shapes_find(b->shape, &b->d, &err), &err);
  check(td_tool_read_list(b->rows, b->list, LIST_MAX, &b->n_list, &err), &err);
  for (size_t i = 0; i < b->n_list; i++)
    if (b->list[i] < 1 || b->list[i] > 65536)
      td_tool_die("--rows: from 1 to 65536");
  b->weight_dtype = TD_DTYPE_COUNT;
  for (td_dtype t = 0; t < TD_DTYPE_COUNT; t++)
    if (strcmp(td_dtypes[t].name, b->dtype) == 0)
      b->weight_dtype = t;
  if (b->weight_dtype == TD_DTYPE_COUNT)
    td_tool_die("--dtype: no type '%s'", b->dtype);
  if (b->n_rounds < 1 || b->cache_mb < 1 || b->attention_gb <= 0 || b->round_ms <= 0 ||
      (b->warm_ms < 0 && b->warm_ms != -1))
    td_tool_die("a number is out of range");
}

int td_bench_kernels(int argc, char **argv)
{
  static bench b = {.shape = "llama3-8b",
                    .backend = "auto",
                    .rows = "1,2,4,8,16,32,64,128,256,512,1024,2048",
                    .dtype = "BF16",
                    .policy = TD_ATTENTION_AUTO_NAME,
                    .n_rounds = 20,
                    .round_ms = 4,
                    .max_seconds = 3,
                    .cache_mb = 128,
                    .warm_ms = -1,
                    .attention_gb = 0};
  const td_arg args[] = {
      {"--shape", "NAME", "see below (llama3-8b)", TD_ARG_TEXT, &b.shape},
      {"--backend", "NAME", "auto, cpu or cuda (auto)", TD_ARG_TEXT, &b.backend},
      {"--rows", "N,...", "tokens of linears and of ops on tokens (1,2,4,...,2048)", TD_ARG_TEXT, &b.rows},
      {"--only", "OP,...",
       "qkv o gate_up down lm_head glu embed rmsnorm rope_kv swiglu sample attention trees", TD_ARG_TEXT,
       &b.only},
      {"--dtype", "TYPE", "of weights on the CPU: BF16, Q8_0, Q4_1, ... (BF16)", TD_ARG_TEXT, &b.dtype},
      {"--threads", "N", "of the CPU backend; 0: one per core", TD_ARG_NUMBER, &b.threads},
      {"--device", "N", "which GPU (0)", TD_ARG_NUMBER, &b.device},
      {"--rounds", "N", "a figure is their median (20)", TD_ARG_NUMBER, &b.n_rounds},
      {"--round-ms", "MS", "an op is there so often that a round takes about this long (4)", TD_ARG_NUMBER,
       &b.round_ms},
      {"--max-seconds", "S", "but no figure takes longer than about three times this (3)", TD_ARG_NUMBER,
       &b.max_seconds},
      {"--warm-ms", "MS", "a product runs for so long before it is timed; -1: 200 on a GPU, 0 on a CPU",
       TD_ARG_NUMBER, &b.warm_ms},
      {"--cache-mb", "MB", "copies of inputs are larger together than this (128)", TD_ARG_NUMBER,
       &b.cache_mb},
      {"--attention-gb", "GB", "memory for KV; 0: 20 on a GPU, 0.5 on a CPU", TD_ARG_NUMBER, &b.attention_gb},
      {"--gb-s", "X", "memory ceiling; 0: an H200's, or measured on a CPU", TD_ARG_NUMBER, &b.gb_s},
      {"--tflop-s", "X", "compute ceiling; likewise", TD_ARG_NUMBER, &b.tflop_s},
      {"--policy", "NAME",
       "what decodes share: auto, as the daemon has it, or another of `attention --policies` (auto)",
       TD_ARG_TEXT, &b.policy},
      {"--json", "FILE", "where all figures go", TD_ARG_TEXT, &b.json},
  };
  char text[1024];
  snprintf(text, sizeof text, "Times every op of a backend alone, beside its floor.\nShapes: %s.",
           td_shapes_names());
  td_tool_args(text, args, sizeof args / sizeof *args, argc, argv);
  td_log_init(TD_LOG_WARN);
  if (b.attention_gb == 0)
    b.attention_gb = strcmp(b.backend, "cpu") == 0 ? 0.5 : 20;
  read_options(&b);
  b.ops = cJSON_CreateArray();
  setup(&b);
  print_head(&b);
  measure_linears(&b);
  measure_glu(&b);
  measure_simple(&b);
  measure_attentions(&b);
  measure_trees(&b);
  if (b.json)
    write_json(&b);
  cJSON_Delete(b.ops);
  td_stage_deinit(&b.stage);
  for (matrix m = QKV; m < MATRICES; m++)
    for (uint32_t i = 0; i < COPIES_MAX; i++)
      free(b.stored[m][i]);
  return 0;
}
