/* The forward pass: the decoder as a list of ops.
 *
 * The residual stream x is written by rmsnorm only: a block leaves what it adds in delta, and the next norm
 * adds it while it reads x anyway. In the last layer, K and V of every token are still stored, but everything
 * behind attention is only needed where logits are wanted, so it runs on those rows alone. */
#include <math.h>

#include "models/model_internal.h"

/* The rows that ops work on: all tokens of the plan, or (at the end) the rows that want logits. */
typedef struct stream {
  td_devptr x, attn;
  uint32_t n;
} stream;

static td_devptr work(const td_model *m, size_t offset) { return td_devptr_at(m->workspace, offset); }

static void norm(const td_model *m, const stream *s, td_devptr delta, td_devptr weight)
{
  td_rmsnorm_params p = {.x = s->x,
                         .delta = delta,
                         .weight = weight,
                         .out = work(m, m->at.h),
                         .n = s->n,
                         .width = m->desc.width,
                         .eps = m->desc.norm_eps};
  m->be->ops->rmsnorm(m->be, &p);
}

static void linear(const td_model *m, const td_weight *weight, td_devptr x, td_devptr out, uint32_t n)
{
  td_linear_params p = {.weight = weight, .x = x, .out = out, .n = n};
  m->be->ops->linear(m->be, &p);
}

static void rope_kv(const td_model *m, uint32_t layer, td_kv *kv)
{
  const td_model_desc *d = &m->desc;
  td_rope_kv_params p = {.qkv = work(m, m->at.qkv),
                         .q_norm = m->layers[layer].q_norm,
                         .k_norm = m->layers[layer].k_norm,
                         .inv_freq = m->inv_freq,
                         .attn_factor = d->rope_attn_factor,
                         .norm_eps = d->norm_eps,
                         .style = d->rope_style,
                         .kv = kv,
                         .layer = layer,
                         .n_heads = d->n_heads,
                         .n_kv_heads = d->n_kv_heads,
                         .head_dim = d->head_dim,
                         .rotary_dim = d->rotary_dim};
  m->be->ops->rope_kv(m->be, &p);
}

static void attention(const td_model *m, uint32_t layer, const td_kv *kv)
{
  const td_model_desc *d = &m->desc;
  td_attention_params p = {.qkv = work(m, m->at.qkv),
                           .out = work(m, m->at.attn),
                           .kv = kv,
                           .scale = 1 / sqrtf((float)d->head_dim),
                           .window_tokens = d->window_tokens,
                           .layer = layer,
                           .n_heads = d->n_heads,
                           .n_kv_heads = d->n_kv_heads,
                           .head_dim = d->head_dim};
  m->be->ops->attention(m->be, &p);
}

static void gather(const td_model *m, td_devptr x, td_devptr out, uint32_t width)
{
  td_gather_params p = {.x = x, .out = out, .width = width};
  m->be->ops->gather(m->be, &p);
}

/* x and the attention output of the rows that want logits. */
static stream keep_logits_rows(const td_model *m, const stream *s, const td_plan *plan)
{
  stream last = {work(m, m->at.last_x), work(m, m->at.last_attn), plan->n_logits};
  gather(m, s->x, last.x, m->desc.width);
  gather(m, s->attn, last.attn, m->desc.n_heads * m->desc.head_dim);
  return last;
}

/* The activation of h, in one op where the backend has one. */
static void gate_and_up(const td_model *m, const td_weight *weight, uint32_t n)
{
  const td_backend_ops *ops = m->be->ops;
  td_linear_swiglu_params both = {
      .weight = weight, .x = work(m, m->at.h), .out = work(m, m->at.act), .n = n, .width = m->desc.ffn_width};
  td_swiglu_params second = {.gate_up = work(m, m->at.gate_up), .out = both.out, .n = n, .width = both.width};
  if (ops->linear_swiglu && ops->linear_swiglu(m->be, &both))
    return;
  linear(m, weight, both.x, second.gate_up, n);
  ops->swiglu(m->be, &second);
}

/* Output projection and MLP: what follows attention. Leaves the MLP's share in delta. */
static void finish_layer(const td_model *m, const td_model_layer *w, const stream *s)
{
  td_devptr delta = work(m, m->at.delta);
  linear(m, w->o, s->attn, delta, s->n);
  norm(m, s, delta, w->ffn_norm);
  gate_and_up(m, w->gate_up, s->n);
  linear(m, w->down, work(m, m->at.act), delta, s->n);
}

static td_devptr head(const td_model *m, const stream *s)
{
  norm(m, s, work(m, m->at.delta), m->out_norm);
  td_linear_params p = {
      .weight = m->head, .x = work(m, m->at.h), .out = work(m, m->at.logits), .n = s->n, .out_f32 = true};
  m->be->ops->linear(m->be, &p);
  return p.out;
}

td_devptr td_model_forward(td_model *m, td_kv *kv, const td_plan *plan)
{
  TD_BUG_ON(plan->n_tokens > m->max_tokens || plan->n_logits > m->max_logits);
  stream s = {work(m, m->at.x), work(m, m->at.attn), plan->n_tokens};
  td_embed_params embed = {.weight = m->embed, .out = s.x, .width = m->desc.width};
  const td_devptr none = {0};
  m->be->ops->embed(m->be, &embed);
  for (uint32_t i = 0; i < m->desc.n_layers; i++) {
    const td_model_layer *w = &m->layers[i];
    norm(m, &s, i > 0 ? work(m, m->at.delta) : none, w->attn_norm);
    linear(m, w->qkv, work(m, m->at.h), work(m, m->at.qkv), s.n);
    rope_kv(m, i, kv);
    if (i + 1 == m->desc.n_layers && plan->n_logits == 0)
      return work(m, m->at.logits);
    attention(m, i, kv);
    if (i + 1 == m->desc.n_layers)
      s = keep_logits_rows(m, &s, plan);
    finish_layer(m, w, &s);
  }
  return head(m, &s);
}
