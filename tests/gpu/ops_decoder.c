/* See ops_decoder.h. */
#include "ops_decoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops_harness.h"

enum { LAYERS = 2, ROWS = 16, LONGEST = 1000 };

/* Host values of a decoder, the same for all backends: weights borrow them. */
typedef struct values {
  float *embed, *qkv[LAYERS], *bias[LAYERS], *o[LAYERS], *gate_up[LAYERS], *down[LAYERS], *head, *norms[2 * LAYERS + 1];
  float *past[ROWS]; /* q|k|v of every token but the last, of all layers alike */
  float inv_freq[128];
} values;

typedef struct decoder {
  const decoder_shape *s;
  td_weight *embed, *qkv[LAYERS], *o[LAYERS], *gate_up[LAYERS], *down[LAYERS], *head;
  td_devptr norms[2 * LAYERS + 1], x, h, in_qkv, attn, in_gate_up, act, last_x, last_attn, logits;
  td_rope_kv_params rope;
} decoder;

static const uint32_t lens[ROWS] = {1, 2, 16, 17, 64, 65, 300, LONGEST, 33, 129, 700, 5, 250, 999, 18, 400};

static uint32_t qkv_width(const decoder_shape *s) { return (s->n_heads + 2 * s->n_kv_heads) * s->head_dim; }

static float *matrix(uint32_t n_out, uint32_t n_in) { return random_values((size_t)n_out * n_in, 1 / sqrt(n_in)); }

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
  for (uint32_t i = 0; i < s->head_dim / 2; i++)
    v->inv_freq[i] = (float)pow(10000, -2.0 * i / s->head_dim);
}

static void free_values(values *v)
{
  free(v->embed), free(v->head);
  for (uint32_t i = 0; i < 2 * LAYERS + 1; i++)
    free(v->norms[i]);
  for (uint32_t i = 0; i < LAYERS; i++)
    free(v->qkv[i]), free(v->bias[i]), free(v->o[i]), free(v->gate_up[i]), free(v->down[i]);
  for (uint32_t r = 0; r < ROWS; r++)
    free(v->past[r]);
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

static decoder load(const values *v, const decoder_shape *s)
{
  td_error err;
  uint32_t heads = s->n_heads * s->head_dim, n_pages = ROWS * (LONGEST / 16 + 1);
  decoder d = {.s = s, .embed = weight(v->embed, NULL, ROWS, s->width), .head = weight(v->head, NULL, s->vocab, s->width)};
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
  d.in_gate_up = room(2 * s->ffn_width), d.act = room(s->ffn_width), d.last_x = room(s->width), d.last_attn = room(heads);
  d.logits = device_alloc((size_t)ROWS * s->vocab * sizeof(float));
  td_kv_shape shape = {.n_layers = LAYERS, .n_pages = n_pages, .page_tokens = s->page_tokens,
                       .n_kv_heads = s->n_kv_heads, .head_dim = s->head_dim, .n_heads = s->n_heads,
                       .window_tokens = s->window};
  d.rope = (td_rope_kv_params){.qkv = d.in_qkv, .inv_freq = device_f32(v->inv_freq, s->head_dim / 2), .attn_factor = 1, .style = s->style,
                               .n_heads = s->n_heads, .n_kv_heads = s->n_kv_heads, .head_dim = s->head_dim, .rotary_dim = s->head_dim};
  die(be->ops->kv_create(be, &shape, &d.rope.kv, &err), &err, "kv");
  return d;
}

static const int32_t *pages_of(uint32_t row)
{
  static int32_t pages[MAX_CONTEXT / 16];
  for (int32_t i = 0; i < MAX_CONTEXT / 16; i++)
    pages[i] = i * ROWS + (int32_t)row;
  return pages;
}

static void write_past(const decoder *d, const values *v)
{
  for (uint32_t r = 0; r < ROWS; r++)
    for (uint32_t i = 0; i < LAYERS && lens[r] > 1; i++) {
      td_rope_kv_params p = d->rope;
      plan_reset(d->s->page_tokens);
      plan_add_row(lens[r] - 1, lens[r] - 1, pages_of(r));
      be->ops->step_begin(be, plan);
      p.qkv = activations(v->past[r], lens[r] - 1, qkv_width(d->s));
      p.layer = i;
      be->ops->rope_kv(be, &p);
      step_end();
    }
}

static void norm(const decoder *d, td_devptr x, uint32_t which, uint32_t n)
{
  be->ops->rmsnorm(be, &(td_rmsnorm_params){x, d->norms[which], d->h, n, d->s->width, 1e-5f});
}

static void linear(const td_weight *w, td_devptr x, td_devptr out, uint32_t n, bool add)
{
  be->ops->linear(be, &(td_linear_params){.weight = w, .x = x, .out = out, .n = n, .add = add});
}

/* As models/forward.c has it. */
static void queue_decoder(void *arg, const td_plan *p)
{
  const decoder *d = arg;
  const decoder_shape *s = d->s;
  uint32_t n = p->n_tokens;
  td_devptr x = d->x, attn = d->attn;
  be->ops->embed(be, &(td_embed_params){d->embed, d->x, s->width});
  for (uint32_t i = 0; i < LAYERS; i++) {
    td_rope_kv_params rope = d->rope;
    rope.layer = i;
    norm(d, x, 2 * i, n);
    linear(d->qkv[i], d->h, d->in_qkv, n, false);
    be->ops->rope_kv(be, &rope);
    be->ops->attention(be, &(td_attention_params){.qkv = d->in_qkv, .out = d->attn, .kv = rope.kv, .scale = (float)(1 / sqrt(s->head_dim)),
                                                  .window_tokens = s->window, .layer = i, .n_heads = s->n_heads,
                                                  .n_kv_heads = s->n_kv_heads, .head_dim = s->head_dim});
    if (i + 1 == LAYERS) {
      be->ops->gather(be, &(td_gather_params){x, d->last_x, s->width});
      be->ops->gather(be, &(td_gather_params){attn, d->last_attn, s->n_heads * s->head_dim});
      x = d->last_x;
      attn = d->last_attn;
    }
    linear(d->o[i], attn, x, n, true);
    norm(d, x, 2 * i + 1, n);
    linear(d->gate_up[i], d->h, d->in_gate_up, n, false);
    be->ops->swiglu(be, &(td_swiglu_params){d->in_gate_up, d->act, n, s->ffn_width});
    linear(d->down[i], d->act, x, n, true);
  }
  norm(d, x, 2 * LAYERS, n);
  be->ops->linear(be, &(td_linear_params){.weight = d->head, .x = d->h, .out = d->logits, .n = n, .out_f32 = true});
}

/* The logits of rows [0, n) of lens. */
static float *run(const decoder *d, uint32_t n, bool replay)
{
  plan_reset(d->s->page_tokens);
  for (uint32_t r = 0; r < n; r++)
    plan_add_row(1, lens[r], pages_of(r));
  be->ops->step_begin(be, plan);
  if (!replay)
    queue_decoder((void *)d, plan);
  else
    expect(be->ops->replay(be), "a recorded decoder is replayed");
  step_end();
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

/* NaN where a step itself writes: what it reads there must be its own. */
static void spoil(const decoder *d)
{
  uint32_t width = qkv_width(d->s);
  float *nan_values = malloc((size_t)ROWS * width * sizeof *nan_values);
  for (size_t i = 0; i < (size_t)ROWS * width; i++)
    nan_values[i] = NAN;
  td_rope_kv_params p = d->rope;
  p.qkv = activations(nan_values, ROWS, width);
  plan_reset(d->s->page_tokens);
  for (uint32_t r = 0; r < ROWS; r++)
    plan_add_row(1, lens[r], pages_of(r));
  for (p.layer = 0; p.layer < LAYERS; p.layer++) {
    be->ops->step_begin(be, plan);
    be->ops->rope_kv(be, &p);
    step_end();
  }
  free(nan_values);
}

/* Rounding makes both differ from f32; the recorded step may not differ by more, and not from run to run. */
static void compare(const decoder *d, const float *want, uint32_t n)
{
  char what[200];
  size_t n_all = (size_t)n * d->s->vocab;
  spoil(d);
  float *once = run(d, n, true), *again = run(d, n, true), *queued = run(d, n, false);
  double q = distance(queued, want, n_all), r = distance(once, want, n_all);
  snprintf(what, sizeof what, "decoder %u wide, heads %u/%u of %u, %u rows: error recorded %.2e, queued %.2e", d->s->width,
           d->s->n_heads, d->s->n_kv_heads, d->s->head_dim, n, r, q);
  expect(r < 1.3 * q + 1e-4 && q < 0.05, what);
  expect(memcmp(once, again, n_all * sizeof *once) == 0, "a recorded decoder gives the same bits again");
  free(queued), free(once), free(again);
}

void test_decoder(const char *backend, const td_backend_config *config, const decoder_shape *s)
{
  static const uint32_t recorded[] = {16, 13, 8, 4, 2, 1}, rows[] = {1, 2, 4, 7, 8, 11, 13, 15, 16};
  enum { FUSED = sizeof recorded / sizeof *recorded }; /* up to 16: kernels/cuda/fused.cuh */
  td_error err;
  td_backend *cpu, *device;
  values v = {0};
  die(td_backend_create("cpu", config, &cpu, &err), &err, "cpu");
  die(td_backend_create(backend, config, &device, &err), &err, "backend");
  if (device->ops->record) {
    make_values(&v, s);
    be = cpu;
    decoder reference = load(&v, s);
    write_past(&reference, &v);
    float *want = run(&reference, ROWS, false);
    be = device;
    decoder d = load(&v, s);
    for (size_t i = 0; i < sizeof recorded / sizeof *recorded; i++)
      die(be->ops->record(be, recorded[i], queue_decoder, &d, &err), &err, "record");
    write_past(&d, &v);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
      compare(&d, want, rows[i]);
    expect(!is_hopper() || be->n_fused_steps == FUSED, "recorded decoders of few rows are fused");
    expect(!is_hopper() || be->n_fitted_steps >= sizeof recorded / sizeof *recorded, "all recorded decoders' attention is fitted");
    free(want);
    free_values(&v);
  }
  device->ops->destroy(device);
  cpu->ops->destroy(cpu);
  be = NULL;
}
