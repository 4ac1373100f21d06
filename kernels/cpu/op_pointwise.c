/* Ops that work token by token: embedding, RMSNorm, SwiGLU, gather, and rotation with the write of k and
 * v. */
#include <string.h>

#include "kernels/cpu/cpu.h"

/* Fewer floats are not worth another thread. */
enum { FLOATS_PER_TASK = 8192 };

/* An op's parameters for the threads that share its tokens. */
typedef struct job {
  cpu_backend *be;
  const void *p;
} job;

static uint32_t tokens_per_task(uint32_t floats_per_token)
{
  uint32_t n = FLOATS_PER_TASK / (floats_per_token ? floats_per_token : 1);
  return n ? n : 1;
}

static void embed_tokens(void *arg, uint32_t begin, uint32_t end)
{
  const job *j = arg;
  const td_embed_params *p = j->p;
  const cpu_part *w = &cpu_weight(p->weight)->parts[0];
  for (uint32_t t = begin; t < end; t++) {
    int32_t id = j->be->token_ids[t];
    TD_BUG_ON(id < 0 || (uint32_t)id >= w->n_rows);
    float *out = cpu_floats(p->out) + (size_t)t * p->width;
    j->be->isa->widen(w->dtype, w->data + (size_t)id * w->row_bytes, p->width, out);
    for (uint32_t i = 0; p->scale != 0 && i < p->width; i++)
      out[i] *= p->scale;
  }
}

void td_cpu_embed(cpu_backend *be, const td_embed_params *p, uint32_t n_rows)
{
  job j = {be, p};
  TD_BUG_ON(p->weight->n_parts != 1 || p->weight->n_in != p->width);
  td_cpu_for(be, be->plan->n_tokens, tokens_per_task(p->width), embed_tokens, &j);
}

static void take_mean_off(const float *x, float *out, uint32_t width)
{
  double sum = 0;
  for (uint32_t i = 0; i < width; i++)
    sum += (double)x[i];
  for (uint32_t i = 0; i < width; i++)
    out[i] = x[i] - (float)(sum / width);
}

static void rmsnorm_tokens(void *arg, uint32_t begin, uint32_t end)
{
  const job *j = arg;
  const td_rmsnorm_params *p = j->p;
  for (uint32_t t = begin; t < end; t++) {
    size_t at = (size_t)t * (p->stride ? p->stride : p->width);
    float *x = cpu_floats(p->x) + at, *out = cpu_floats(p->out) + at, *y = p->add ? x : out;
    if (p->centred)
      take_mean_off(x, y, p->width);
    j->be->isa->rmsnorm(p->centred ? y : x, cpu_floats(p->weight), y, p->width, p->eps);
    for (uint32_t i = 0; p->add && i < p->width; i++)
      out[i] += y[i];
  }
}

void td_cpu_rmsnorm(cpu_backend *be, const td_rmsnorm_params *p, uint32_t n)
{
  job j = {be, p};
  td_cpu_for(be, n, tokens_per_task(2 * p->width), rmsnorm_tokens, &j);
}

static void swiglu_tokens(void *arg, uint32_t begin, uint32_t end)
{
  const job *j = arg;
  const td_swiglu_params *p = j->p;
  uint32_t width = p->width;
  for (uint32_t t = begin; t < end; t++) {
    const float *gate = cpu_floats(p->gate_up) + (size_t)t * 2 * width;
    j->be->isa->swiglu(gate, gate + width, cpu_floats(p->out) + (size_t)t * width, width);
  }
}

void td_cpu_swiglu(cpu_backend *be, const td_swiglu_params *p, uint32_t n)
{
  job j = {be, p};
  td_cpu_for(be, n, tokens_per_task(2 * p->width), swiglu_tokens, &j);
}

void td_cpu_gather(cpu_backend *be, const td_gather_params *p, uint32_t n_rows)
{
  const td_plan *plan = be->plan;
  for (uint32_t i = 0; i < plan->n_logits; i++) {
    const float *x = cpu_floats(p->x) + (size_t)plan->logits[i].token * p->width;
    memcpy(cpu_floats(p->out) + (size_t)i * p->width, x, p->width * sizeof(float));
  }
}

/* cos and sin of position * inv_freq, an angle that HF computes in float too. */
static void rope_table_tokens(void *arg, uint32_t begin, uint32_t end)
{
  const job *j = arg;
  const td_rope_kv_params *p = j->p;
  uint32_t n = p->rotary_dim / 2;
  const float *inv_freq = cpu_floats(p->inv_freq);
  for (uint32_t t = begin; t < end; t++) {
    float *c = j->be->rope.cos_sin + (size_t)t * 2 * n, *s = c + n;
    for (uint32_t i = 0; i < n; i++) {
      td_trig_sincos((float)j->be->plan->positions[t] * inv_freq[i], &s[i], &c[i]);
      c[i] *= p->attn_factor;
      s[i] *= p->attn_factor;
    }
  }
}

/* The table of a step is the same for all layers that use the same rotation. */
static void rope_table(cpu_backend *be, job *j)
{
  const td_rope_kv_params *p = j->p;
  cpu_rope_table *r = &be->rope;
  if (r->inv_freq == p->inv_freq.addr && r->attn_factor == p->attn_factor && r->n_pairs == p->rotary_dim / 2)
    return;
  r->inv_freq = p->inv_freq.addr;
  r->attn_factor = p->attn_factor;
  r->n_pairs = p->rotary_dim / 2;
  td_cpu_for(be, be->plan->n_tokens, 16, rope_table_tokens, j);
}

static void rope_head(const job *j, float *x, td_devptr norm, const float *cos_sin)
{
  const td_rope_kv_params *p = j->p;
  if (norm.addr)
    j->be->isa->rmsnorm(x, cpu_floats(norm), x, p->head_dim, p->norm_eps);
  j->be->isa->rotate(x, cos_sin, p->rotary_dim / 2, p->style == TD_ROPE_PAIRS);
}

/* Writes k and v of a token to a page of one kv head. k_at and v_at: element offsets of their first
 * elements. */
static void put_floats(uint8_t *page, uint64_t k_at, uint64_t v_at, uint32_t dim, const float *k,
                       const float *v)
{
  float *out = (void *)page;
  for (uint32_t d = 0; d < dim; d++)
    out[k_at + (size_t)d * TD_KEY_LANES] = k[d];
  memcpy(out + v_at, v, dim * sizeof *v);
}

static void put_f16(const td_isa *isa, uint8_t *page, uint64_t k_at, uint64_t v_at, uint32_t dim,
                    const float *k, const float *v)
{
  uint16_t *out = (void *)page, k_f16[TD_HEAD_DIM_MAX];
  isa->to_f16(k, dim, k_f16);
  for (uint32_t d = 0; d < dim; d++)
    out[k_at + (size_t)d * TD_KEY_LANES] = k_f16[d];
  isa->to_f16(v, dim, out + v_at);
}

static void rope_tokens(void *arg, uint32_t begin, uint32_t end)
{
  const job *j = arg;
  const td_rope_kv_params *p = j->p;
  const td_plan *plan = j->be->plan;
  const cpu_kv_group *kv = cpu_kv_group_of(p->kv, p->kv_group);
  uint32_t dim = p->head_dim, tokens = p->kv->spec.page_tokens;
  for (uint32_t t = begin; t < end; t++) {
    const td_plan_row *row = &plan->rows[j->be->token_row[t]];
    uint32_t position = (uint32_t)plan->positions[t], line = position % tokens;
    int32_t page = plan->page_table[row->page_table_offset + position / tokens];
    TD_BUG_ON(page < 0 || (uint32_t)page >= p->kv->spec.n_pages);
    const float *cos_sin = j->be->rope.cos_sin + (size_t)t * p->rotary_dim;
    float *q = cpu_floats(p->qkv) + (size_t)t * (p->n_heads + 2 * p->n_kv_heads) * dim;
    float *k = q + (size_t)p->n_heads * dim, *v = k + (size_t)p->n_kv_heads * dim;
    uint64_t k_at = (uint64_t)(line / TD_KEY_LANES) * TD_KEY_LANES * dim + line % TD_KEY_LANES;
    uint64_t v_at = (uint64_t)tokens * dim + (uint64_t)line * kv->padded_dim;
    uint8_t *dst = kv->data + p->layer * kv->layer_bytes + (uint32_t)page * kv->page_bytes;
    for (uint32_t h = 0; h < p->n_heads; h++)
      rope_head(j, q + (size_t)h * dim, p->q_norm, cos_sin);
    for (uint32_t h = 0; h < p->n_kv_heads; h++, k += dim, v += dim, dst += kv->head_bytes) {
      rope_head(j, k, p->k_norm, cos_sin);
      if (kv->f16)
        put_f16(j->be->isa, dst, k_at, v_at, dim, k, v);
      else
        put_floats(dst, k_at, v_at, dim, k, v);
    }
  }
}

void td_cpu_rope_kv(cpu_backend *be, const td_rope_kv_params *p, uint32_t n_rows)
{
  job j = {be, p};
  TD_BUG_ON(p->rotary_dim > p->head_dim || be->plan->page_tokens != p->kv->spec.page_tokens);
  rope_table(be, &j);
  td_cpu_for(be, be->plan->n_tokens, tokens_per_task((p->n_heads + 2 * p->n_kv_heads) * p->head_dim),
             rope_tokens, &j);
}
