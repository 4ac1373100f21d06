/* See ops_decoder.h. */
#include "ops_decoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops_harness.h"
#include "ops_watch.h"

enum { LAYERS = 2, ROWS = 16, LONGEST = 1000 };

/* Host values of a decoder, the same for all backends: weights point to them. */
typedef struct values {
  float *embed, *qkv[LAYERS], *bias[LAYERS], *o[LAYERS], *gate_up[LAYERS], *down[LAYERS], *head,
      *norms[2 * LAYERS + 1], *q_norm, *k_norm;
  float *past[ROWS]; /* q|k|v of every token except the last, the same for all layers */
  float inv_freq[128];
} values;

typedef struct decoder {
  const decoder_shape *s;
  bool alternates; /* every second layer has the window, and a separate KV group */
  bool shares;     /* long rows have their first pages in common */
  td_weight *embed, *qkv[LAYERS], *o[LAYERS], *gate_up[LAYERS], *down[LAYERS], *head;
  td_devptr norms[2 * LAYERS + 1], x, h, in_qkv, attn, in_gate_up, act, last_x, last_attn, logits;
  td_rope_kv_params rope;
  td_compiled *plain, *captured; /* the same program */
} decoder;

enum { LONGEST_ROW = 7 };
static const uint32_t lens[ROWS] = {1, 2, 16, 17, 64, 65, 300, LONGEST, 33, 129, 700, 5, 250, 999, 18, 400};

static uint32_t qkv_width(const decoder_shape *s) { return (s->n_heads + 2 * s->n_kv_heads) * s->head_dim; }

static float *matrix(uint32_t n_out, uint32_t n_in)
{
  return random_values((size_t)n_out * n_in, 1 / sqrt(n_in));
}

static float *norm_values(uint32_t n)
{
  float *v = random_values(n, 0.2);
  for (uint32_t i = 0; i < n; i++)
    v[i] += 1;
  return v;
}

static void make_values(values *v, const decoder_shape *s)
{
  v->embed = random_values((size_t)ROWS * s->width, 1);
  v->head = matrix(s->vocab, s->width);
  for (uint32_t i = 0; i < 2 * LAYERS + 1; i++)
    v->norms[i] = norm_values(s->width);
  for (uint32_t i = 0; i < LAYERS; i++) {
    v->qkv[i] = matrix(qkv_width(s), s->width);
    v->bias[i] = s->bias ? random_values(qkv_width(s), 1) : NULL;
    v->o[i] = matrix(s->width, s->n_heads * s->head_dim);
    v->gate_up[i] = matrix(2 * s->ffn_width, s->width);
    v->down[i] = matrix(s->width, s->ffn_width);
  }
  for (uint32_t r = 0; r < ROWS; r++)
    v->past[r] = random_values((size_t)lens[r] * qkv_width(s), 1);
  v->q_norm = s->norm ? norm_values(s->head_dim) : NULL;
  v->k_norm = s->norm ? norm_values(s->head_dim) : NULL;
  for (uint32_t i = 0; i < s->head_dim / 2; i++)
    v->inv_freq[i] = (float)pow(10000, -2.0 * i / s->head_dim);
}

static void free_values(values *v)
{
  free(v->embed), free(v->head), free(v->q_norm), free(v->k_norm);
  for (uint32_t i = 0; i < 2 * LAYERS + 1; i++)
    free(v->norms[i]);
  for (uint32_t i = 0; i < LAYERS; i++)
    free(v->qkv[i]), free(v->bias[i]), free(v->o[i]), free(v->gate_up[i]), free(v->down[i]);
  for (uint32_t r = 0; r < ROWS; r++)
    free(v->past[r]);
}

static td_op linear_op(td_linear_params p) { return (td_op){.kind = TD_OP_LINEAR, .linear = p}; }

static td_op norm_op(const decoder *d, td_devptr x, uint32_t which)
{
  td_rmsnorm_params p = {.x = x, .weight = d->norms[which], .out = d->h, .width = d->s->width, .eps = 1e-5f};
  return (td_op){.kind = TD_OP_RMSNORM, .rmsnorm = p};
}

static td_op rope_op(const decoder *d, uint32_t layer)
{
  td_op op = {.kind = TD_OP_ROPE_KV, .rope_kv = d->rope};
  op.rope_kv.kv_group = d->alternates ? layer % 2 : 0;
  op.rope_kv.layer = d->alternates ? layer / 2 : layer;
  return op;
}

static td_op attention_op(const decoder *d, uint32_t layer)
{
  const decoder_shape *s = d->s;
  td_attention_params p = {.qkv = d->in_qkv,
                           .out = d->attn,
                           .kv = d->rope.kv,
                           .scale = (float)(1 / sqrt(s->head_dim)),
                           .window_tokens = d->alternates && layer % 2 == 0 ? 0 : s->window,
                           .kv_group = d->alternates ? layer % 2 : 0,
                           .layer = d->alternates ? layer / 2 : layer,
                           .n_heads = s->n_heads,
                           .n_kv_heads = s->n_kv_heads,
                           .head_dim = s->head_dim};
  return (td_op){.kind = TD_OP_ATTENTION, .attention = p};
}

enum { OPS_MAX = 9 * LAYERS + 5 };

/* As models/forward.c has it. */
static uint32_t decoder_ops(const decoder *d, td_op ops[OPS_MAX])
{
  const decoder_shape *s = d->s;
  uint32_t n = 0, heads = s->n_heads * s->head_dim;
  td_devptr x = d->x, attn = d->attn;
  td_extent extent = TD_EXTENT_TOKENS;
  ops[n++] = (td_op){.kind = TD_OP_EMBED, .embed = {d->embed, d->x, s->width, 0}};
  for (uint32_t i = 0; i < LAYERS; i++) {
    ops[n++] = norm_op(d, x, 2 * i);
    ops[n++] = linear_op(
        (td_linear_params){d->qkv[i], d->h, d->in_qkv, s->width, qkv_width(s), s->bias, false, false});
    ops[n++] = rope_op(d, i);
    ops[n++] = attention_op(d, i);
    if (i + 1 == LAYERS) {
      extent = TD_EXTENT_LOGITS;
      ops[n++] = (td_op){.kind = TD_OP_GATHER, .extent = extent, .gather = {x, d->last_x, s->width}};
      ops[n++] = (td_op){.kind = TD_OP_GATHER, .extent = extent, .gather = {attn, d->last_attn, heads}};
      x = d->last_x;
      attn = d->last_attn;
    }
    uint32_t behind = n;
    ops[n++] = linear_op((td_linear_params){d->o[i], attn, x, heads, s->width, false, false, true});
    ops[n++] = norm_op(d, x, 2 * i + 1);
    ops[n++] = linear_op((td_linear_params){d->gate_up[i], d->h, d->in_gate_up, s->width, 2 * s->ffn_width,
                                            false, false, false});
    ops[n++] = (td_op){.kind = TD_OP_SWIGLU, .swiglu = {d->in_gate_up, d->act, s->ffn_width}};
    ops[n++] =
        linear_op((td_linear_params){d->down[i], d->act, x, s->ffn_width, s->width, false, false, true});
    while (behind < n)
      ops[behind++].extent = extent;
  }
  ops[n++] = norm_op(d, x, 2 * LAYERS);
  ops[n++] = linear_op((td_linear_params){d->head, d->h, d->logits, s->width, s->vocab, false, true, false});
  ops[n - 2].extent = ops[n - 1].extent = extent;
  return n;
}

static void compile(decoder *d)
{
  td_op ops[OPS_MAX];
  uint32_t n = decoder_ops(d, ops);
  d->plain = compile_ops(ops, n);
  d->captured = compile_ops(ops, n);
}

static void unload(decoder *d)
{
  be->ops->discard(be, d->plain);
  be->ops->discard(be, d->captured);
}

/* Not waited for. */
static td_weight *weight(const float *data, const float *bias, uint32_t n_out, uint32_t n_in)
{
  td_error err;
  td_weight *w = NULL;
  td_weight_part part = {.dtype = TD_F32, .data = data, .n_rows = n_out, .bias = bias};
  die(be->ops->weight_import(be, &part, 1, n_in, &w, &err), &err, "weight");
  return w;
}

static td_devptr room(uint32_t width) { return device_alloc((size_t)ROWS * width * be->activation_bytes); }

static decoder load(const values *v, const decoder_shape *s, bool alternates, bool shares)
{
  td_error err;
  uint32_t heads = s->n_heads * s->head_dim, n_pages = ROWS * (LONGEST / 16 + 1);
  decoder d = {.s = s,
               .alternates = alternates,
               .shares = shares,
               .embed = weight(v->embed, NULL, ROWS, s->width),
               .head = weight(v->head, NULL, s->vocab, s->width)};
  for (uint32_t i = 0; i < 2 * LAYERS + 1; i++)
    d.norms[i] = device_f32(v->norms[i], s->width);
  for (uint32_t i = 0; i < LAYERS; i++) {
    d.qkv[i] = weight(v->qkv[i], v->bias[i], qkv_width(s), s->width);
    d.o[i] = weight(v->o[i], NULL, s->width, heads);
    d.gate_up[i] = weight(v->gate_up[i], NULL, 2 * s->ffn_width, s->width);
    d.down[i] = weight(v->down[i], NULL, s->width, s->ffn_width);
  }
  die(be->ops->weights_wait(be, &err), &err, "weights");
  d.x = room(s->width), d.h = room(s->width), d.in_qkv = room(qkv_width(s)), d.attn = room(heads);
  d.in_gate_up = room(2 * s->ffn_width), d.act = room(s->ffn_width), d.last_x = room(s->width),
  d.last_attn = room(heads);
  d.logits = device_alloc((size_t)ROWS * s->vocab * sizeof(float));
  td_kv_spec shape = {.n_pages = n_pages,
                      .page_tokens = s->page_tokens,
                      .n_groups = 1,
                      .groups = {{.dtype = be->kv_dtype,
                                  .n_layers = LAYERS,
                                  .n_kv_heads = s->n_kv_heads,
                                  .head_dim = s->head_dim,
                                  .n_heads = s->n_heads,
                                  .window_tokens = s->window}}};
  if (alternates) {
    shape.n_groups = 2;
    shape.groups[0].n_layers = LAYERS / 2;
    shape.groups[1] = shape.groups[0];
    shape.groups[0].window_tokens = 0;
  }
  d.rope = (td_rope_kv_params){.qkv = d.in_qkv,
                               .inv_freq = device_f32(v->inv_freq, s->head_dim / 2),
                               .attn_factor = 1,
                               .norm_eps = 1e-6f,
                               .style = s->style,
                               .q_norm = s->norm ? device_f32(v->q_norm, s->head_dim) : (td_devptr){0},
                               .k_norm = s->norm ? device_f32(v->k_norm, s->head_dim) : (td_devptr){0},
                               .n_heads = s->n_heads,
                               .n_kv_heads = s->n_kv_heads,
                               .head_dim = s->head_dim,
                               .rotary_dim = s->head_dim};
  die(be->ops->kv_create(be, &shape, &d.rope.kv, &err), &err, "kv");
  compile(&d);
  return d;
}

/* If rows share, then those of more than 64 tokens the first 64, those of more than 256 the first 256, and
 * those of more than 640 the first 640. */
static const int32_t *pages_of(const decoder *d, uint32_t row)
{
  static const uint32_t shared[] = {64, 256, 640};
  static int32_t pages[MAX_CONTEXT / 16];
  uint32_t n_shared = 0;
  for (uint32_t i = 0; i < 3 && d->shares; i++)
    n_shared = lens[row] > shared[i] ? shared[i] / d->s->page_tokens : n_shared;
  for (uint32_t i = 0; i < MAX_CONTEXT / 16; i++)
    pages[i] = (int32_t)(i * ROWS + (i < n_shared ? LONGEST_ROW : row));
  return pages;
}

static void write_past(const decoder *d, const values *v)
{
  for (uint32_t r = 0; r < ROWS; r++)
    for (uint32_t i = 0; i < LAYERS && lens[r] > 1; i++) {
      plan_reset(d->s->page_tokens);
      plan_add_row(lens[r] - 1, lens[r] - 1, pages_of(d, r));
      td_op op = rope_op(d, i);
      op.rope_kv.qkv = activations(v->past[r], lens[r] - 1, qkv_width(d->s));
      run_ops(&op, 1);
    }
}

/* The logits of rows [0, n) of lens. */
static float *run(const decoder *d, uint32_t n, bool captured)
{
  plan_reset(d->s->page_tokens);
  for (uint32_t r = 0; r < n; r++)
    plan_add_row(1, lens[r], pages_of(d, r));
  expect(run_step(captured ? d->captured : d->plain) == captured, "a captured decoder is launched");
  return fetch(d->logits, (size_t)n * d->s->vocab, true);
}

static double distance(const float *a, const float *b, size_t n)
{
  double d2 = 0, b2 = 0;
  for (size_t i = 0; i < n; i++) {
    d2 += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    b2 += (double)b[i] * b[i];
  }
  return sqrt(d2 / b2);
}

/* NaN where a step itself writes, so that it must read its own values there. */
static void spoil(const decoder *d)
{
  uint32_t width = qkv_width(d->s);
  float *nan_values = malloc((size_t)ROWS * width * sizeof *nan_values);
  for (size_t i = 0; i < (size_t)ROWS * width; i++)
    nan_values[i] = NAN;
  td_devptr nan_qkv = activations(nan_values, ROWS, width);
  plan_reset(d->s->page_tokens);
  for (uint32_t r = 0; r < ROWS; r++)
    plan_add_row(1, lens[r], pages_of(d, r));
  for (uint32_t layer = 0; layer < LAYERS; layer++) {
    td_op op = rope_op(d, layer);
    op.rope_kv.qkv = nan_qkv;
    run_ops(&op, 1);
  }
  free(nan_values);
}

/* Both differ from f32 by rounding; the captured step may not differ more, nor from run to run. */
static void compare(const decoder *d, const float *want, uint32_t n)
{
  char what[200];
  size_t n_all = (size_t)n * d->s->vocab;
  spoil(d);
  float *once = run(d, n, true), *again = run(d, n, true), *queued = run(d, n, false);
  double q = distance(queued, want, n_all), r = distance(once, want, n_all);
  snprintf(what, sizeof what,
           "decoder %u wide, heads %u/%u of %u, %u rows%s: error captured %.2e, op by op %.2e", d->s->width,
           d->s->n_heads, d->s->n_kv_heads, d->s->head_dim, n, d->shares ? " that share" : "", r, q);
  expect(r < 1.3 * q + 1e-4 && q < 0.05, what);
  expect(memcmp(once, again, n_all * sizeof *once) == 0, "a captured decoder gives the same bits again");
  free(queued), free(once), free(again);
}

/* A store that existed before and is destroyed again, with other pages. */
static td_kv *other_store(const decoder_shape *s)
{
  td_error err;
  td_kv *kv;
  td_kv_spec spec = {.n_pages = 4,
                     .page_tokens = s->page_tokens == 16 ? 32 : 16,
                     .n_groups = 1,
                     .groups = {{.dtype = be->kv_dtype,
                                 .n_layers = 1,
                                 .n_kv_heads = s->n_kv_heads,
                                 .head_dim = s->head_dim,
                                 .n_heads = s->n_heads}}};
  die(be->ops->kv_create(be, &spec, &kv, &err), &err, "another kv");
  return kv;
}

/* Steps of up to 16 rows are fused on Hopper, whether or not rows share prefixes (kernels/cuda/fused.cuh). */
static void capture(const decoder *d, uint32_t n_rows)
{
  td_error err;
  td_capture c;
  die(watch_capture(be, d->captured, 1, n_rows, &c, &err), &err, "capture");
  for (uint32_t i = 0; i < c.n_forms; i++)
    expect(!is_hopper() || !c.not_fused[i],
           c.not_fused[i] ? c.not_fused[i] : "captured decoders of few rows are fused");
  expect(!is_hopper() || c.n_fitted == c.n_forms, "all captured decoders' attention is fitted");
}

void test_decoder(const char *backend, const td_backend_config *config, const decoder_shape *s,
                  bool alternates, bool shares)
{
  static const uint32_t sizes[] = {16, 13, 8, 4, 2, 1}, rows[] = {1, 2, 4, 7, 8, 11, 13, 15, 16};
  td_error err;
  td_backend *cpu, *device;
  values v = {0};
  watch_case(rng_now(), "decoder %u wide, heads %u/%u of %u, page %u, window %u%s%s", s->width, s->n_heads,
             s->n_kv_heads, s->head_dim, s->page_tokens, s->window, alternates ? ", alternating" : "",
             shares ? ", shared" : "");
  die(td_backend_create("cpu", config, &cpu, &err), &err, "cpu");
  die(td_backend_create(backend, config, &device, &err), &err, "backend");
  if (device->ops->capture) {
    make_values(&v, s);
    be = cpu;
    decoder reference = load(&v, s, alternates, shares);
    write_past(&reference, &v);
    float *want = run(&reference, ROWS, false);
    unload(&reference);
    be = device;
    td_kv *other = other_store(s);
    decoder d = load(&v, s, alternates, shares);
    for (int again = 0; again < 2; again++) { /* between steps, as in an idle moment; nothing may be lost */
      for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        capture(&d, sizes[i]);
      if (!again) {
        be->ops->kv_destroy(be, other); /* the captured steps must not see it go */
        write_past(&d, &v);
      }
      for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        compare(&d, want, rows[i]);
    }
    unload(&d);
    free(want);
    free_values(&v);
  }
  device->ops->destroy(device);
  cpu->ops->destroy(cpu);
  be = NULL;
}
