// For each token: RMSNorm of q and k heads (if the model has it), rotation by the position, and the write of
// k and v to the token's line in its page. q is rotated in place.
//
// A lane has two 16-byte chunks of a head that hold whole rotation pairs, so head_dim / 16 lanes have a head.
// The sines of a token are computed once for all of its heads.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/rope.cuh"

enum { ROPE_THREADS = 128, ROPE_CTAS_PER_SM = 8 };

struct rope_args {
  bf16 *qkv;
  const float *q_norm, *k_norm, *inv_freq;
  bf16 *kv; // this layer's pages
  float attn_factor, eps;
  int style;
  uint32_t n_heads, n_kv_heads, head_dim, rotary_dim,
      lanes; // lanes of a segment: a power of two, at least head_dim / 16
};

// A lane's part of a head.
struct head_fragment {
  bf16x8 chunks[2];
};

__device__ __forceinline__ head_fragment load_fragment(const bf16 *head, const uint32_t chunk[2], bool active)
{
  head_fragment p = {};
#pragma unroll
  for (int c = 0; c < 2; c++)
    if (active)
      p.chunks[c] = *(const bf16x8 *)(head + chunk[c] * 8);
  return p;
}

// captured: the plan was unpacked before the step's first kernel began, so this kernel may read it before
// pdl_wait().
template <bool HALVES>
__global__ void __launch_bounds__(ROPE_THREADS) rope_kv_kernel(rope_args a, device_batch batch, bool captured)
{
  __shared__ float2 rotations[HEAD_DIM_MAX / 2]; // cosine and sine, times the attention factor
  uint32_t token = blockIdx.x, lane = threadIdx.x % a.lanes, segment = threadIdx.x / a.lanes;
  uint32_t n_qk = a.n_heads + a.n_kv_heads, n_all = n_qk + a.n_kv_heads,
           heads_at_once = ROPE_THREADS / a.lanes;
  // a lane's two chunks are neighbours in the part of a head that is not rotated, as they are without HALVES
  bool mine = lane < a.head_dim / 16, rotates = lane < a.rotary_dim / 16;
  uint32_t chunk[2] = {first_chunk(lane, HALVES && rotates),
                       second_chunk(lane, a.rotary_dim, HALVES && rotates)};
  bf16 *heads = a.qkv + (size_t)token * n_all * a.head_dim;
  pdl_launch_dependents();
  if (!captured)
    pdl_wait();
  bool is_real = token < batch.counts[COUNT_TOKENS];
  int32_t pos = batch.positions[token];
  uint32_t kv_line = batch.kv_lines[token];
  if (captured)
    pdl_wait();
  uint32_t h0 = blockIdx.y * heads_at_once;
  head_fragment next =
      load_fragment(heads + (size_t)(h0 + segment) * a.head_dim, chunk, mine && h0 + segment < n_all);
  if (!is_real)
    return;
  size_t page = kv_line >> log2_of(batch.page_tokens), half_page = (size_t)batch.page_tokens * a.head_dim;
  uint32_t line = kv_line & (batch.page_tokens - 1);
  for (uint32_t i = threadIdx.x; i < a.rotary_dim / 2; i += ROPE_THREADS)
    rotations[i] = rotation_of(pos, a.inv_freq[i], a.attn_factor);
  __syncthreads();
  // warps loop together: segments past the last head only take part in the sums
  for (; h0 < n_all; h0 += gridDim.y * heads_at_once) {
    uint32_t h = h0 + segment, h_next = h + gridDim.y * heads_at_once;
    bool active = mine && h < n_all, is_v = h >= n_qk;
    const float *norm = is_v ? nullptr : h < a.n_heads ? a.q_norm : a.k_norm;
    head_fragment raw = next;
    next = load_fragment(heads + (size_t)h_next * a.head_dim, chunk, mine && h_next < n_all);
    float x[2][8];
    unpack(raw.chunks[0], x[0]);
    unpack(raw.chunks[1], x[1]);
    if (a.q_norm || a.k_norm) {
      float sum = segment_sum(sum_of_squares(x), a.lanes, 0xffffffffu);
      if (norm && active)
        normalise(x, norm, chunk, rsqrtf(sum / (float)a.head_dim + a.eps));
    }
    if (!active)
      continue;
    if (!is_v && rotates)
      rotate(x, rotations + first_pair(chunk[0], HALVES), HALVES);
    bf16 *page_kv = a.kv + (page * a.n_kv_heads + (h < a.n_heads ? 0
                                                   : is_v        ? h - n_qk
                                                                 : h - a.n_heads)) *
                               2 * half_page;
#pragma unroll
    for (int c = 0; c < 2; c++) {
      bf16 *dst = h < a.n_heads ? heads + (size_t)h * a.head_dim + chunk[c] * 8
                                : page_kv + (is_v ? half_page : 0) + kv_chunk_at(a.head_dim, line, chunk[c]);
      *(bf16x8 *)dst = is_v ? raw.chunks[c] : pack(x[c]);
    }
  }
}

void td_cuda_rope_kv(cuda_backend *b, const td_rope_kv_params *p, uint32_t n_rows)
{
  TD_BUG_ON(p->rotary_dim > p->head_dim || p->rotary_dim % 16 != 0 || p->head_dim % 16 != 0 ||
            p->head_dim > HEAD_DIM_MAX); // rejected when the model was loaded
  uint32_t lanes = 4;
  while (lanes < p->head_dim / 16)
    lanes *= 2;
  rope_args a = {at<bf16>(p->qkv),
                 at<float>(p->q_norm),
                 at<float>(p->k_norm),
                 at<float>(p->inv_freq),
                 kv_layer(cuda_kv_group(p->kv, p->kv_group), p->layer),
                 p->attn_factor,
                 p->norm_eps,
                 p->style,
                 p->n_heads,
                 p->n_kv_heads,
                 p->head_dim,
                 p->rotary_dim,
                 lanes};
  // A token's heads are divided over several CTAs if all of these run at once. Otherwise a token has one CTA,
  // so that its sines are computed only once.
  uint32_t n_all = p->n_heads + 2 * p->n_kv_heads, n = b->frame.plan->n_tokens,
           rounds = (n_all * lanes + ROPE_THREADS - 1) / ROPE_THREADS;
  dim3 grid(n, n * rounds <= ROPE_CTAS_PER_SM * (uint32_t)b->device.n_sms ? rounds : 1);
  queue_kernel(&b->device, p->style == TD_ROPE_PAIRS ? rope_kv_kernel<false> : rope_kv_kernel<true>, grid,
               ROPE_THREADS, 0, a, b->frame.batch, is_capture(&b->attention));
}
