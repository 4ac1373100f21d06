// What the attention kernels share: their arguments, and where a token's K and V lie in a page.
#pragma once

#include "kernels/cuda/internal.cuh"

enum {
  HEAD_DIM_MAX = 256,
  SPLIT_SLICE = 16, // elements of a query head that are added up by themselves
  SPLIT_SLICE_FLOATS = SPLIT_SLICE + 4,
  TD_PREFILL_ROWS_MMA = 64,    // query rows (tokens x heads of a GQA group) of a prefill tile of attention.cu
  TD_PREFILL_ROWS_WGMMA = 128, // and of attention_prefill.cu
  TD_DECODE_ROWS = 16,         // of a decode's item
  TD_GROUP_MAX = 64,           // query heads of a kv head: no tile holds a token of more
  TD_WARP_ITEM_ROWS_MIN = 17,  // decodes of a step that has warp-level items
  WARPS_OF_DECODES = 4,        // of a CTA, each of which may do one such item
  TD_ATTENTION_BY_ROW_GROUP =
      4, // GQA groups of up to so many heads add partials of prefix splits head by head, larger ones in tiles
  PREFIX_TILE_ROWS = 64, // query rows of a shared-prefix group's tile: attention_prefix.cuh
};

// What a KV split publishes of a query head.
constexpr uint32_t kv_split_floats(uint32_t head_dim) { return head_dim / SPLIT_SLICE * SPLIT_SLICE_FLOATS; }

struct attention_args {
  const bf16 *qkv;
  bf16 *out;
  const bf16 *kv;  // this layer's pages
  float *partials; // [td_work_list_partials_max, n_kv_heads, TD_DECODE_ROWS, kv_split_floats]:
                   // attention_kv_splits.cuh
  float scale_log2;
  uint32_t window, n_heads, n_kv_heads, group;
  uint32_t resident; // CTAs that run at once on any device, for each kv head
};

attention_args td_cuda_attention_args(const cuda_backend *b, const attention_group *g,
                                      const td_attention_params *p);

// One on each SM is sure: what docs/attention-progress.md rests on.
static inline uint32_t td_cuda_sure_resident(const cuda_backend *b, uint32_t n_kv_heads)
{
  uint32_t n = (uint32_t)b->device.n_sms / n_kv_heads;
  return n < 1 ? 1 : n;
}

// attention_prefill.cu: chunks of prompts on Hopper, where cuda_backend.has_wgmma and for these heads;
// attention_decode.cu too.
static inline bool td_cuda_has_wgmma_attention(uint32_t head_dim)
{
  return head_dim == 64 || head_dim == 96 || head_dim == 128 || head_dim == 256;
}
// Items [0, n_items) of the step.
void td_cuda_prefill_attention(cuda_backend *b, const attention_group *g, const attention_args &a,
                               uint32_t n_items);

// attention_decode.cu: decodes on Hopper, under the same conditions. CTAs of it that an SM holds, by their
// shared memory and registers; shares: in a step in which rows share something.
constexpr uint32_t resident_on_sm(uint32_t head_dim, bool shares)
{
  return head_dim > 128 ? 1 : head_dim == 96 && !shares ? 4 : 3;
}
inline uint32_t td_cuda_resident_ctas(const cuda_backend *b, uint32_t head_dim, bool shares)
{
  return (uint32_t)b->device.n_sms * resident_on_sm(head_dim, shares);
}
// Items of the step, of which a launch does those from `first` on; there is memory for `room`. An argument of
// the kernel.
struct decode_works {
  const td_attention_item *items;
  uint32_t first, room;
};
enum { DECODE_WORKS_ARGUMENT = 4 };
// Items of the step from `first` on, by so many CTAs for each kv head.
void td_cuda_decode_attention(cuda_backend *b, attention_group *g, const attention_args &a, uint32_t first,
                              uint32_t n_works);

// The same of a captured step whose qkv is as the product left it: normalises, rotates, and writes k and v to
// the tokens' pages.
struct decode_rotation {
  const float *inv_freq; // [head_dim / 2]
  float attn_factor;
  uint32_t halves;              // as TD_ROPE_HALVES
  const float *q_norm, *k_norm; // [head_dim]: RMSNorm before the rotation, or null
  float eps;
};
// Whether it has norms for heads of so many elements: a warp must hold whole heads.
static inline bool td_cuda_decode_has_norms(uint32_t head_dim) { return head_dim != 96; }
void td_cuda_decode_rotated(cuda_backend *b, attention_group *g, const attention_args &a,
                            const decode_rotation &by, uint32_t n_works);

// Shared memory above 48 KB must be asked for, on each device: for the kernels of a group's heads.
td_status td_cuda_size_attention(const attention_group *g, td_error *err);
cudaError_t td_cuda_size_prefill(uint32_t head_dim);
cudaError_t td_cuda_size_decode(uint32_t head_dim);

// The batch as the group's kernels see it.
static inline device_batch td_cuda_batch_of(const cuda_backend *b, const attention_group *g)
{
  device_batch batch = b->frame.batch;
  batch.counts = b->frame.counts + g->slot * N_COUNTS;
  return batch;
}

#ifdef __CUDACC__
// Elements from the beginning of a page's K (or V) to 16-byte chunk `chunk` of line `line`: groups of 8
// lines; in a group, atoms of 8 lines x 128 bytes; in an atom, chunks XORed by the line. That is the order in
// which wgmma wants shared memory (PTX ISA, "Shared Memory Matrix Layout", 128-byte swizzle), so that whole
// pages are copied there as they lie. Heads that are no multiple of 64 elements (96) have atoms of 8 lines x
// 64 bytes instead, in the order of the 64-byte swizzle. In both, 8 lines' chunks at one place of an atom are
// in different banks.
__host__ __device__ constexpr uint32_t kv_chunk_at(uint32_t head_dim, uint32_t line, uint32_t chunk)
{
  return head_dim % 64 == 0
             ? line / 8 * 8 * head_dim + chunk / 8 * 512 + line % 8 * 64 + ((chunk ^ line) & 7) * 8
             : line / 8 * 8 * head_dim + chunk / 4 * 256 + line % 8 * 32 + ((chunk ^ line / 2) & 3) * 8;
}

__device__ __forceinline__ float exp2_fast(float x)
{
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// By a softmax's sum: 0 where nothing was seen; a sum that is not a number must be seen by all after.
__device__ __forceinline__ float divided(float v, float sum) { return sum == 0 ? 0.0f : v / sum; }

__device__ __forceinline__ uint32_t pack2(float lo, float hi)
{
  __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
  return *(uint32_t *)&v;
}
#endif
