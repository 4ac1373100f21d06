// Per token: RMSNorm of q and k heads (where the model has it), rotation by the position, and the write of k and v
// to the token's line in its page. One warp per head; q is rotated in place.
#include "kernels/cuda/attention.cuh"

enum { ROPE_PAIRS_MAX = 4 }; // pairs per lane: head_dim <= 256

struct rope_args {
  bf16 *qkv;
  const float *q_norm, *k_norm, *inv_freq;
  bf16 *kv; // this layer's pages
  float attn_factor, eps;
  int style;
  uint32_t n_heads, n_kv_heads, head_dim, rotary_dim;
};

__device__ __forceinline__ uint32_t pair_low(const rope_args &a, uint32_t i)
{
  return a.style == TD_ROPE_PAIRS ? 2 * i : i;
}

__device__ __forceinline__ uint32_t pair_high(const rope_args &a, uint32_t i)
{
  return a.style == TD_ROPE_PAIRS ? 2 * i + 1 : i + a.rotary_dim / 2;
}

// Elements past rotary_dim are only normalised; they are paired too, so that a lane holds two per index.
__device__ __forceinline__ void element_pair(const rope_args &a, uint32_t i, uint32_t *lo, uint32_t *hi)
{
  uint32_t half = a.rotary_dim / 2;
  if (i < half) {
    *lo = pair_low(a, i);
    *hi = pair_high(a, i);
  } else {
    *lo = a.rotary_dim + 2 * (i - half);
    *hi = *lo + 1;
  }
}

// Element e of a line, from the beginning of the page's K or V.
__device__ __forceinline__ uint32_t kv_at(uint32_t head_dim, uint32_t line, uint32_t e)
{
  return kv_chunk_at(head_dim, line, e / 8) + e % 8;
}

__global__ void rope_kv_kernel(rope_args a, device_batch batch)
{
  uint32_t token = blockIdx.x, lane = threadIdx.x % 32;
  uint32_t n_qk = a.n_heads + a.n_kv_heads, n_all = n_qk + a.n_kv_heads;
  let_next_start();
  wait_for_input();
  if (token >= batch.counts[COUNT_TOKENS])
    return;
  int32_t pos = batch.positions[token];
  const td_plan_row *row = &batch.rows[batch.token_row[token]];
  int32_t page = batch.page_table[row->page_table_offset + (uint32_t)pos / batch.page_tokens];
  uint32_t line = (uint32_t)pos % batch.page_tokens;
  size_t half_page = (size_t)batch.page_tokens * a.head_dim;
  for (uint32_t h = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32; h < n_all; h += gridDim.y * (blockDim.x / 32)) {
    bf16 *src = a.qkv + ((size_t)token * n_all + h) * a.head_dim;
    if (h >= n_qk) { // v: copied as it is
      bf16 *dst = a.kv + ((size_t)page * a.n_kv_heads + (h - n_qk)) * 2 * half_page + half_page;
      for (uint32_t i = 2 * lane; i < a.head_dim; i += 64)
        *(__nv_bfloat162 *)(dst + kv_at(a.head_dim, line, i)) = *(const __nv_bfloat162 *)(src + i);
      continue;
    }
    bool is_q = h < a.n_heads;
    bf16 *dst = is_q ? src : a.kv + ((size_t)page * a.n_kv_heads + (h - a.n_heads)) * 2 * half_page;
    const float *norm = is_q ? a.q_norm : a.k_norm;
    float x[ROPE_PAIRS_MAX][2], sum = 0;
#pragma unroll
    for (int c = 0; c < ROPE_PAIRS_MAX; c++) {
      uint32_t i = lane + 32 * c, lo, hi;
      if (i < a.head_dim / 2) {
        element_pair(a, i, &lo, &hi);
        x[c][0] = __bfloat162float(src[lo]);
        x[c][1] = __bfloat162float(src[hi]);
        sum += x[c][0] * x[c][0] + x[c][1] * x[c][1];
      }
    }
    float scale = 1;
    if (norm)
      scale = rsqrtf(warp_sum(sum) / (float)a.head_dim + a.eps);
    __syncwarp(); // all lanes have read before any writes q in place
#pragma unroll
    for (int c = 0; c < ROPE_PAIRS_MAX; c++) {
      uint32_t i = lane + 32 * c, lo, hi;
      if (i < a.head_dim / 2) {
        element_pair(a, i, &lo, &hi);
        float u = x[c][0], v = x[c][1];
        if (norm) {
          u *= scale * norm[lo];
          v *= scale * norm[hi];
        }
        if (i < a.rotary_dim / 2) {
          float sn, cs;
          sincosf((float)pos * a.inv_freq[i], &sn, &cs);
          sn *= a.attn_factor;
          cs *= a.attn_factor;
          float r = u * cs - v * sn;
          v = v * cs + u * sn;
          u = r;
        }
        dst[is_q ? lo : kv_at(a.head_dim, line, lo)] = __float2bfloat16(u);
        dst[is_q ? hi : kv_at(a.head_dim, line, hi)] = __float2bfloat16(v);
      }
    }
  }
}

void td_cuda_rope_kv(td_backend *be, const td_rope_kv_params *p)
{
  cuda_backend *b = self(be);
  const td_kv_shape *s = &p->kv->shape;
  size_t layer_elements = (size_t)s->n_pages * s->n_kv_heads * 2 * s->page_tokens * s->head_dim;
  rope_args a = {at<bf16>(p->qkv),   at<float>(p->q_norm), at<float>(p->k_norm), at<float>(p->inv_freq),
                 p->kv->data + p->layer * layer_elements, p->attn_factor, p->norm_eps, p->style,
                 p->n_heads,         p->n_kv_heads,        p->head_dim,          p->rotary_dim};
  uint32_t n_all = p->n_heads + 2 * p->n_kv_heads;
  dim3 grid(b->plan->n_tokens, b->plan->n_tokens < 256 ? (n_all + 7) / 8 : 1);
  queue_kernel(b, rope_kv_kernel, grid, 256, 0, a, b->batch);
}
