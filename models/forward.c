/* The forward pass: the decoder as a program (kernels/program.h).
 *
 * The last linear of each part of a layer adds its output to the residual stream x. In the last layer, K and
 * V of every token are still stored, but everything after attention is needed only for tokens that want
 * logits, so it runs on those alone.
 *
 * If a family multiplies what is added to x (residual_scale r), our x is the model's x divided by r. Then
 * only the embedding is multiplied, by embed_scale / r, and the norms' eps is divided by the square of r. */
#include <math.h>

#include "models/model_internal.h"

/* A program under construction. extent says what ops work on: all tokens or, at the end, those that want
 * logits. */
typedef struct builder {
  const td_model *m;
  const td_model_desc *d;
  td_kv *kv;
  td_program *program;
  td_extent extent;
  uint32_t layer;
  uint32_t kv_group, kv_layer;           /* where the KV store keeps this layer */
  uint32_t n_in_group[TD_KV_GROUPS_MAX]; /* layers of each KV group so far */
  td_devptr x, attn;
  uint32_t n_unsampled; /* ops up to and including the last write to the KV store */
} builder;

static td_devptr work(const builder *b, size_t offset) { return td_devptr_at(b->m->workspace, offset); }

static void add(builder *b, const char *role, td_op op)
{
  op.role = role;
  op.layer = b->layer;
  op.extent = b->extent;
  td_program_add(b->program, op);
}

static float or_one(float scale) { return scale == 0 ? 1 : scale; }

static void embed(builder *b)
{
  float scale = or_one(b->d->embed_scale) / or_one(b->d->residual_scale);
  td_embed_params p = {
      .weight = b->m->embed, .out = b->x, .width = b->d->width, .scale = scale == 1 ? 0 : scale};
  add(b, "embed", (td_op){.kind = TD_OP_EMBED, .embed = p});
}

/* Normalises x into h. */
static void norm(builder *b, const char *role, td_devptr weight)
{
  const td_model_desc *d = b->d;
  float r = or_one(d->residual_scale);
  td_rmsnorm_params p = {.x = b->x,
                         .weight = weight,
                         .out = work(b, b->m->at.h),
                         .width = d->width,
                         .eps = d->norm_eps / (r * r),
                         .centred = d->layer_norm};
  add(b, role, (td_op){.kind = TD_OP_RMSNORM, .rmsnorm = p});
}

/* Normalises what a part of the layer left in h, and adds the result to x. */
static void add_norm(builder *b, const char *role, td_devptr weight)
{
  td_rmsnorm_params p = {.x = work(b, b->m->at.h),
                         .weight = weight,
                         .out = b->x,
                         .width = b->d->width,
                         .eps = b->d->norm_eps,
                         .centred = b->d->layer_norm,
                         .add = true};
  add(b, role, (td_op){.kind = TD_OP_RMSNORM, .rmsnorm = p});
}

static void linear(builder *b, const char *role, td_linear_params p)
{
  add(b, role, (td_op){.kind = TD_OP_LINEAR, .linear = p});
}

static uint32_t q_width(const builder *b) { return b->d->n_heads * b->d->head_dim; }
static uint32_t kv_width(const builder *b) { return b->d->n_kv_heads * b->d->head_dim; }

static uint32_t qkv_width(const builder *b) { return q_width(b) + 2 * kv_width(b); }

/* Normalises `width` elements from `first` on in each row of q|k|v, in place. */
static void wide_norm(builder *b, const char *role, td_devptr weight, uint32_t first, uint32_t width)
{
  td_devptr at = work(b, b->m->at.qkv + (size_t)first * b->m->be->activation_bytes);
  td_rmsnorm_params p = {
      .x = at, .weight = weight, .out = at, .width = width, .stride = qkv_width(b), .eps = b->d->norm_eps};
  add(b, role, (td_op){.kind = TD_OP_RMSNORM, .rmsnorm = p});
}

static void qkv(builder *b, const td_model_layer *w)
{
  linear(b, "qkv",
         (td_linear_params){.weight = w->qkv,
                            .x = b->d->block_form == TD_BLOCK_POST_NORM ? b->x : work(b, b->m->at.h),
                            .out = work(b, b->m->at.qkv),
                            .n_in = b->d->width,
                            .n_out = qkv_width(b),
                            .bias = b->d->qkv_bias});
  if (!b->d->wide_qk_norm)
    return;
  wide_norm(b, "q_norm", w->q_norm, 0, q_width(b));
  wide_norm(b, "k_norm", w->k_norm, q_width(b), kv_width(b));
}

static void rope_kv(builder *b, const td_model_layer *w)
{
  const td_model_desc *d = b->d;
  const td_devptr none = {0};
  bool alt = td_model_layer_has_alt_rope(d, b->layer);
  td_rope_kv_params p = {.qkv = work(b, b->m->at.qkv),
                         .q_norm = d->wide_qk_norm ? none : w->q_norm,
                         .k_norm = d->wide_qk_norm ? none : w->k_norm,
                         .inv_freq = alt ? b->m->alt_inv_freq : b->m->inv_freq,
                         .attn_factor = alt ? 1 : d->rope_attn_factor,
                         .norm_eps = d->norm_eps,
                         .style = d->rope_style,
                         .kv = b->kv,
                         .kv_group = b->kv_group,
                         .layer = b->kv_layer,
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
                           .scale = d->attn_scale != 0 ? d->attn_scale : 1 / sqrtf((float)d->head_dim),
                           .window_tokens = td_model_layer_window(d, b->layer),
                           .kv_group = b->kv_group,
                           .layer = b->kv_layer,
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

/* From here on, x and attn hold only the tokens that want logits. */
static void keep_logits_tokens(builder *b)
{
  b->extent = TD_EXTENT_LOGITS;
  b->x = gather(b, b->x, work(b, b->m->at.last_x), b->d->width);
  b->attn = gather(b, b->attn, work(b, b->m->at.last_attn), q_width(b));
}

/* The projection that adds the output of attention or the MLP to x: directly, or through h if a norm
 * follows. */
static void project(builder *b, const char *role, td_weight *weight, td_devptr in, uint32_t n_in, bool bias)
{
  bool adds = b->d->block_form != TD_BLOCK_POST_NORM;
  linear(b, role,
         (td_linear_params){.weight = weight,
                            .x = in,
                            .out = adds ? b->x : work(b, b->m->at.h),
                            .n_in = n_in,
                            .n_out = b->d->width,
                            .bias = bias,
                            .add = adds});
}

static void mlp(builder *b, const td_model_layer *w)
{
  const td_model_desc *d = b->d;
  td_devptr h = work(b, b->m->at.h), gate_up = work(b, b->m->at.gate_up), act = work(b, b->m->at.act);
  linear(b, "gate_up",
         (td_linear_params){.weight = w->gate_up,
                            .x = d->block_form == TD_BLOCK_POST_NORM ? b->x : h,
                            .out = gate_up,
                            .n_in = d->width,
                            .n_out = 2 * d->ffn_width,
                            .bias = d->mlp_bias});
  add(b, "act",
      (td_op){.kind = TD_OP_SWIGLU, .swiglu = {.gate_up = gate_up, .out = act, .width = d->ffn_width}});
  project(b, "down", w->down, act, d->ffn_width, d->mlp_bias);
}

/* Everything after attention: output projection and MLP. keeps: x and attn now hold only tokens that want
 * logits. */
static void finish_layer(builder *b, const td_model_layer *w, bool keeps)
{
  td_block_form form = b->d->block_form;
  if (form == TD_BLOCK_PARALLEL && keeps)
    norm(b, "attn_norm", w->attn_norm); /* for the kept tokens, before x changes */
  project(b, "o", w->o, b->attn, q_width(b), b->d->o_bias);
  if (form == TD_BLOCK_POST_NORM)
    add_norm(b, "o_norm", w->attn_out_norm);
  if (form == TD_BLOCK_PRE_NORM)
    norm(b, "ffn_norm", w->ffn_norm);
  mlp(b, w);
  if (form == TD_BLOCK_POST_NORM)
    add_norm(b, "down_norm", w->ffn_out_norm);
}

static void head(builder *b)
{
  td_devptr logits = work(b, b->m->at.logits);
  norm(b, "out_norm", b->m->head_norm);
  linear(b, b->d->tied_embeddings ? "head=embed" : "head",
         (td_linear_params){.weight = b->m->head,
                            .x = work(b, b->m->at.h),
                            .out = logits,
                            .n_in = b->d->width,
                            .n_out = b->d->vocab,
                            .out_f32 = true});
}

/* Works on the logits that a forward pass left. */
static void sampling(builder *b)
{
  td_sample_params p = {.logits = work(b, b->m->at.logits), .vocab = b->d->vocab};
  b->extent = TD_EXTENT_LOGITS;
  add(b, "sample", (td_op){.kind = TD_OP_SAMPLE, .sample = p});
}

/* Pools x into one vector for each slot. */
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
  if (td_model_has_alt_rope(b->d))
    td_program_name_buffer(b->program, b->d->alt_inv_freq[0] == 0 ? "none" : "other", b->m->alt_inv_freq);
}

/* Finds the layer's place in the KV store, in the order of td_model_kv_spec. */
static void find_kv(builder *b)
{
  const td_kv_spec *s = &b->kv->spec;
  uint32_t window = td_model_layer_window(b->d, b->layer);
  for (b->kv_group = 0; b->kv_group < s->n_groups; b->kv_group++)
    if (s->groups[b->kv_group].window_tokens == window) {
      b->kv_layer = b->n_in_group[b->kv_group]++;
      return;
    }
  TD_BUG_ON(true); /* the store belongs to another model */
}

/* Adds all layers. After the last attention, ops compute only tokens that want logits, unless all_tokens is
 * set. */
static void layers(builder *b, bool all_tokens)
{
  uint32_t n_layers = b->d->n_layers, n_unsampled = 0;
  embed(b);
  for (b->layer = 0; b->layer < n_layers; b->layer++) {
    const td_model_layer *w = &b->m->layers[b->layer];
    find_kv(b);
    if (b->d->block_form != TD_BLOCK_POST_NORM)
      norm(b, "attn_norm", w->attn_norm);
    qkv(b, w);
    rope_kv(b, w);
    n_unsampled = b->program->n_ops;
    attention(b);
    bool keeps = b->layer + 1 == n_layers && !all_tokens;
    if (keeps)
      keep_logits_tokens(b);
    finish_layer(b, w, keeps);
  }
  b->layer = TD_NO_LAYER;
  b->n_unsampled = n_unsampled;
}

static td_status begin(const td_model *m, td_kv *kv, uint32_t max_ops, builder *b, td_error *err)
{
  *b = (builder){.m = m, .d = &m->desc, .kv = kv, .layer = TD_NO_LAYER};
  if (m->be->n_ranks > 1)
    return td_fail(err, TD_ERR_UNSUPPORTED, "a step of %u ranks needs an all-reduce, which no backend has",
                   m->be->n_ranks);
  TD_BUG_ON(m->max_tokens < m->be->max_tokens || m->max_logits < m->be->max_logits);
  TD_TRY(td_program_create(max_ops, &b->program, err));
  b->x = work(b, m->at.x);
  b->attn = work(b, m->at.attn);
  name_buffers(b);
  return TD_OK;
}

enum { OPS_OF_A_LAYER = 11, OTHER_OPS = 6 };

td_status td_model_program(const td_model *m, td_kv *kv, td_program **out, td_error *err)
{
  builder b;
  TD_BUG_ON(m->desc.headless);
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
