/* The forward pass: the decoder as a program (kernels/program.h).
 *
 * The last product of a block adds its output to the residual stream x. In the last layer, K and V of every
 * token are still stored, but everything behind attention is only needed for tokens that want logits, so it
 * runs on those alone. */
#include <math.h>

#include "models/model_internal.h"

/* A program in the making. What ops work on: all tokens, or (at the end) those that want logits. */
typedef struct builder {
  const td_model *m;
  const td_model_desc *d;
  td_kv *kv;
  td_program *program;
  td_extent extent;
  uint32_t layer;
  td_devptr x, attn;
  uint32_t n_unsampled; /* ops up to the last write to the KV store */
} builder;

static td_devptr work(const builder *b, size_t offset) { return td_devptr_at(b->m->workspace, offset); }

static void add(builder *b, const char *role, td_op op)
{
  op.role = role;
  op.layer = b->layer;
  op.extent = b->extent;
  td_program_add(b->program, op);
}

static void embed(builder *b)
{
  td_embed_params p = {.weight = b->m->embed, .out = b->x, .width = b->d->width};
  add(b, "embed", (td_op){.kind = TD_OP_EMBED, .embed = p});
}

static void norm(builder *b, const char *role, td_devptr weight)
{
  td_rmsnorm_params p = {
      .x = b->x, .weight = weight, .out = work(b, b->m->at.h), .width = b->d->width, .eps = b->d->norm_eps};
  add(b, role, (td_op){.kind = TD_OP_RMSNORM, .rmsnorm = p});
}

static void linear(builder *b, const char *role, td_linear_params p)
{
  add(b, role, (td_op){.kind = TD_OP_LINEAR, .linear = p});
}

static uint32_t q_width(const builder *b) { return b->d->n_heads * b->d->head_dim; }
static uint32_t kv_width(const builder *b) { return b->d->n_kv_heads * b->d->head_dim; }

static void qkv(builder *b, const td_model_layer *w)
{
  linear(b, "qkv",
         (td_linear_params){.weight = w->qkv,
                            .x = work(b, b->m->at.h),
                            .out = work(b, b->m->at.qkv),
                            .n_in = b->d->width,
                            .n_out = q_width(b) + 2 * kv_width(b),
                            .bias = b->d->qkv_bias});
}

static void rope_kv(builder *b, const td_model_layer *w)
{
  const td_model_desc *d = b->d;
  td_rope_kv_params p = {.qkv = work(b, b->m->at.qkv),
                         .q_norm = w->q_norm,
                         .k_norm = w->k_norm,
                         .inv_freq = b->m->inv_freq,
                         .attn_factor = d->rope_attn_factor,
                         .norm_eps = d->norm_eps,
                         .style = d->rope_style,
                         .kv = b->kv,
                         .layer = b->layer,
                         .n_heads = d->n_heads,
                         .n_kv_heads = d->n_kv_heads,
                         .head_dim = d->head_dim,
                         .rotary_dim = d->rotary_dim};
  add(b, "rope", (td_op){.kind = TD_OP_ROPE_KV, .rope_kv = p});
}

static void attention(builder *b)
{
  const td_model_desc *d = b->d;
  td_attention_params p = {.qkv = work(b, b->m->at.qkv),
                           .out = b->attn,
                           .kv = b->kv,
                           .scale = 1 / sqrtf((float)d->head_dim),
                           .window_tokens = d->window_tokens,
                           .layer = b->layer,
                           .n_heads = d->n_heads,
                           .n_kv_heads = d->n_kv_heads,
                           .head_dim = d->head_dim};
  add(b, "attention", (td_op){.kind = TD_OP_ATTENTION, .attention = p});
}

static td_devptr gather(builder *b, td_devptr x, td_devptr out, uint32_t width)
{
  td_gather_params p = {.x = x, .out = out, .width = width};
  add(b, "last", (td_op){.kind = TD_OP_GATHER, .gather = p});
  return out;
}

/* From here on: x and the attention output of the tokens that want logits. */
static void keep_logits_tokens(builder *b)
{
  b->extent = TD_EXTENT_LOGITS;
  b->x = gather(b, b->x, work(b, b->m->at.last_x), b->d->width);
  b->attn = gather(b, b->attn, work(b, b->m->at.last_attn), q_width(b));
}

/* Output projection and MLP: what follows attention. */
static void finish_layer(builder *b, const td_model_layer *w)
{
  const td_model_desc *d = b->d;
  td_devptr h = work(b, b->m->at.h), gate_up = work(b, b->m->at.gate_up), act = work(b, b->m->at.act);
  linear(b, "o",
         (td_linear_params){.weight = w->o,
                            .x = b->attn,
                            .out = b->x,
                            .n_in = q_width(b),
                            .n_out = d->width,
                            .bias = d->o_bias,
                            .add = true});
  norm(b, "ffn_norm", w->ffn_norm);
  linear(b, "gate_up",
         (td_linear_params){.weight = w->gate_up,
                            .x = h,
                            .out = gate_up,
                            .n_in = d->width,
                            .n_out = 2 * d->ffn_width,
                            .bias = d->mlp_bias});
  add(b, "act",
      (td_op){.kind = TD_OP_SWIGLU, .swiglu = {.gate_up = gate_up, .out = act, .width = d->ffn_width}});
  linear(b, "down",
         (td_linear_params){.weight = w->down,
                            .x = act,
                            .out = b->x,
                            .n_in = d->ffn_width,
                            .n_out = d->width,
                            .bias = d->mlp_bias,
                            .add = true});
}

static void head(builder *b)
{
  td_devptr logits = work(b, b->m->at.logits);
  norm(b, "out_norm", b->m->out_norm);
  linear(b, b->d->tied_embeddings ? "head=embed" : "head",
         (td_linear_params){.weight = b->m->head,
                            .x = work(b, b->m->at.h),
                            .out = logits,
                            .n_in = b->d->width,
                            .n_out = b->d->vocab,
                            .out_f32 = true});
}

/* Reads logits that a forward left. */
static void sampling(builder *b)
{
  td_sample_params p = {.logits = work(b, b->m->at.logits), .vocab = b->d->vocab};
  b->extent = TD_EXTENT_LOGITS;
  add(b, "sample", (td_op){.kind = TD_OP_SAMPLE, .sample = p});
}

/* A vector for each slot. */
static void pool(builder *b, td_pooling pooling, td_devptr sums, td_devptr vectors)
{
  norm(b, "out_norm", b->m->out_norm);
  td_pool_params p = {
      .x = work(b, b->m->at.h), .sums = sums, .out = vectors, .width = b->d->width, .pooling = pooling};
  b->extent = TD_EXTENT_ROWS;
  add(b, "pool", (td_op){.kind = TD_OP_POOL, .pool = p});
}

static void name_buffers(builder *b)
{
  const td_workspace *at = &b->m->at;
  const struct {
    const char *name;
    size_t offset;
  } buffers[] = {{"x", at->x},
                 {"h", at->h},
                 {"qkv", at->qkv},
                 {"attn", at->attn},
                 {"gate_up", at->gate_up},
                 {"act", at->act},
                 {"last_x", at->last_x},
                 {"last_attn", at->last_attn},
                 {"logits", at->logits}};
  for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
    td_program_name_buffer(b->program, buffers[i].name, work(b, buffers[i].offset));
}

/* All layers. Behind the last attention only tokens that want logits are computed on, or all. */
static void layers(builder *b, bool all_tokens)
{
  uint32_t n_layers = b->d->n_layers, n_unsampled = 0;
  embed(b);
  for (b->layer = 0; b->layer < n_layers; b->layer++) {
    const td_model_layer *w = &b->m->layers[b->layer];
    norm(b, "attn_norm", w->attn_norm);
    qkv(b, w);
    rope_kv(b, w);
    n_unsampled = b->program->n_ops;
    attention(b);
    if (b->layer + 1 == n_layers && !all_tokens)
      keep_logits_tokens(b);
    finish_layer(b, w);
  }
  b->layer = TD_NO_LAYER;
  b->n_unsampled = n_unsampled;
}

static td_status begin(const td_model *m, td_kv *kv, uint32_t max_ops, builder *b, td_error *err)
{
  *b = (builder){.m = m, .d = &m->desc, .kv = kv, .layer = TD_NO_LAYER};
  TD_BUG_ON(m->max_tokens < m->be->max_tokens || m->max_logits < m->be->max_logits);
  TD_TRY(td_program_create(max_ops, &b->program, err));
  b->x = work(b, m->at.x);
  b->attn = work(b, m->at.attn);
  name_buffers(b);
  return TD_OK;
}

enum { OPS_OF_A_LAYER = 9, OTHER_OPS = 5 };

td_status td_model_program(const td_model *m, td_kv *kv, td_program **out, td_error *err)
{
  builder b;
  TD_TRY(begin(m, kv, m->desc.n_layers * OPS_OF_A_LAYER + OTHER_OPS, &b, err));
  layers(&b, false);
  head(&b);
  b.program->n_unsampled = b.n_unsampled;
  *out = b.program;
  return TD_OK;
}

td_status td_model_embedding(const td_model *m, td_kv *kv, td_pooling pooling, uint32_t n_slots,
                             td_program **out, td_error *err)
{
  builder b;
  td_devptr sums = {0}, vectors;
  size_t n = (size_t)n_slots * m->desc.width;
  TD_TRY(m->be->ops->alloc(m->be, n * sizeof(float), &vectors, err));
  if (pooling == TD_POOL_MEAN)
    TD_TRY(m->be->ops->alloc(m->be, n * sizeof(double), &sums, err));
  TD_TRY(begin(m, kv, m->desc.n_layers * OPS_OF_A_LAYER + OTHER_OPS, &b, err));
  td_program_name_buffer(b.program, "vectors", vectors);
  layers(&b, true);
  pool(&b, pooling, sums, vectors);
  *out = b.program;
  return TD_OK;
}

td_status td_model_sampling(const td_model *m, td_program **out, td_error *err)
{
  enum { MAX_OPS = 1 };
  builder b;
  TD_TRY(begin(m, NULL, MAX_OPS, &b, err));
  sampling(&b);
  *out = b.program;
  return TD_OK;
}
