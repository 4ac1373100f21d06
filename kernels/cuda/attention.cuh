// What the attention kernels share: their arguments, and the layout of K and V in a page.
#pragma once

#include "kernels/cuda/internal.cuh"

enum {
  HEAD_DIM_MAX = 256,
  SPLIT_SLICE = 16, // elements of a query head that one reducer handles
  SPLIT_SLICE_FLOATS = SPLIT_SLICE + 4,
  TD_PREFILL_ROWS_MMA = 64,    // query rows (tokens x heads of a GQA group) of attention.cu's prefill tile
  TD_PREFILL_ROWS_WGMMA = 128, // the same for attention_prefill.cu
  TD_DECODE_ROWS = 16,         // the same for a decode's work item
  TD_GQA_GROUP_MAX = 64,       // maximum GQA group: a tile must hold all query rows of a token
  TD_WARP_ITEM_ROWS_MIN = 17,  // least number of decodes in a step with warp-level items
  DECODE_WARPS = 4,            // warps of a decode CTA; each may do one warp-level item
  TD_REDUCE_BY_HEAD_GQA_GROUP_MAX =
      4,                 // larger GQA groups reduce partials of prefix splits in tiles, others head by head
  PREFIX_TILE_ROWS = 64, // query rows of a shared-prefix group's tile (attention_prefix.cuh)
};

// Floats that a KV split publishes for each query head.
constexpr uint32_t kv_split_floats(uint32_t head_dim) { return head_dim / SPLIT_SLICE * SPLIT_SLICE_FLOATS; }

struct attention_args {
  const bf16 *qkv;
  bf16 *out;
  const bf16 *kv;  // this layer's pages
  float *partials; // partials of KV splits: [td_work_list_partials_max, n_kv_heads, TD_DECODE_ROWS,
                   // kv_split_floats] (attention_kv_splits.cuh)
  float scale_log2;
  uint32_t window, n_heads, n_kv_heads, gqa_group;
  uint32_t resident; // decode CTAs for each kv head that are sure to run at once
};

attention_args td_cuda_attention_args(const cuda_backend *b, const attention_group *g,
                                      const td_attention_params *p);

// Counts one CTA on each SM, which is always resident; docs/attention-progress.md relies on it.
static inline uint32_t td_cuda_guaranteed_resident(uint32_t n_sms, uint32_t n_kv_heads)
{
  uint32_t n = n_sms / n_kv_heads;
  return n < 1 ? 1 : n;
}

// Head sizes that attention_prefill.cu and attention_decode.cu serve, on GPUs with wgmma.
static inline bool td_cuda_has_wgmma_attention(uint32_t head_dim)
{
  return head_dim == 64 || head_dim == 96 || head_dim == 128 || head_dim == 256;
}
// attention_prefill.cu: the keys of a KV tile, and whether pairs exist (clusters of two CTAs with one tile
// each).
constexpr uint32_t prefill_keys(uint32_t head_dim) { return head_dim == 256 ? 64 : 128; }
constexpr bool has_prefill_pairs(uint32_t head_dim) { return head_dim <= 128; }
// The most query rows of a decode that may be colocated with prefill (attention_colocated.cuh). 0: none,
// because the head size must be a multiple of wgmma's 64 rows, and registers and shared memory must suffice.
constexpr uint32_t colocated_rows(uint32_t head_dim) { return head_dim == 64 || head_dim == 128 ? 8 : 0; }
// Clusters of two that run at once (some SMs may have no partner). 0: pairs do not exist.
uint32_t td_cuda_prefill_pairs(uint32_t head_dim);
// Queues prefill attention for work items [0, n_items) of the step.
void td_cuda_prefill_attention(cuda_backend *b, attention_group *g, const attention_args &a,
                               uint32_t n_items);

// attention_decode.cu: resident CTAs of an SM, limited by shared memory and registers. shares: for a step
// with shared prefixes.
constexpr uint32_t resident_on_sm(uint32_t head_dim, bool shares)
{
  return head_dim > 128 ? 1 : head_dim == 96 && !shares ? 4 : 3;
}
inline uint32_t td_cuda_resident_ctas(const cuda_backend *b, uint32_t head_dim, bool shares)
{
  return (uint32_t)b->device.n_sms * resident_on_sm(head_dim, shares);
}
// The step's work items. A launch computes those from `first` on; the array has room for `room` items.
struct decode_range {
  const td_attention_item *items;
  uint32_t first, room;
};
// When decode CTAs may start to read. AFTER: when the kernels before have ended. EARLY: they read KV of
// earlier steps while the kernels before still run. BESIDE: immediately, beside the prefill kernel that was
// queued just before; that kernel has already waited for all that decodes read.
enum decode_start { STARTS_AFTER, STARTS_EARLY, STARTS_BESIDE };
// Queues decode attention for the work items from `first` on, with n_ctas CTAs for each kv head.
void td_cuda_decode_attention(cuda_backend *b, attention_group *g, const attention_args &a, uint32_t first,
                              uint32_t n_ctas);

// Decode attention of a captured step whose qkv comes straight from the linear: the kernel also normalises
// and rotates, and writes k and v to the tokens' pages.
struct decode_rotation {
  const float *inv_freq; // [head_dim / 2]
  float attn_factor;
  uint32_t halves;              // as in TD_ROPE_HALVES
  const float *q_norm, *k_norm; // [head_dim] weights of the RMSNorm before the rotation, or null
  float eps;
};
// Whether that kernel can normalise heads of this size: a warp must hold whole heads.
static inline bool td_cuda_decode_has_norms(uint32_t head_dim) { return head_dim != 96; }
void td_cuda_decode_rotated(cuda_backend *b, attention_group *g, const attention_args &a,
                            const decode_rotation &rotation, uint32_t n_ctas);

// Whether the step's decodes are colocated with prefill; never in a captured step.
static inline bool is_colocated(const cuda_backend *b, const attention_group *g)
{
  return !is_capture(&b->attention) && g->work.prefill.colocated_keys > 0;
}
// Whether decodes begin while prefill runs, on its SMs or on others.
static inline bool has_decodes_beside(const cuda_backend *b, const attention_group *g)
{
  return !is_capture(&b->attention) && (g->work.prefill.sms_beside > 0 || g->work.prefill.colocated_keys > 0);
}
// attention_colocated.cu: computes the decodes that prefill's CTAs have left. Only where is_colocated.
void td_cuda_colocated_leftovers(cuda_backend *b, const attention_group *g, const attention_args &a,
                                 uint32_t first, uint32_t n_ctas);
cudaError_t td_cuda_colocated_allow_smem(uint32_t head_dim);

// Allows the kernels of a group's head size to use more than 48 KB of shared memory. This must be done on
// each device.
td_status td_cuda_attention_allow_smem(const attention_group *g, td_error *err);
cudaError_t td_cuda_prefill_allow_smem(uint32_t head_dim);
cudaError_t td_cuda_decode_allow_smem(uint32_t head_dim);

// The batch with this group's own counts.
static inline device_batch td_cuda_group_batch(const cuda_backend *b, const attention_group *g)
{
  device_batch batch = b->frame.batch;
  batch.counts = b->frame.counts + g->slot * N_COUNTS;
  return batch;
}

#ifdef __CUDACC__
__device__ __forceinline__ void wait_unless_beside(decode_start start)
{
  if (start != STARTS_BESIDE)
    pdl_wait();
}

// Offset of 16-byte chunk `chunk` of line `line`, in elements from the beginning of a page's K (or V). A line
// is one token's K (or V) of one kv head. Eight lines form a group. A group consists of atoms of 8 lines x
// 128 bytes, and inside an atom the chunk index is XORed with the line. This is wgmma's shared-memory layout
// (PTX ISA, "Shared Memory Matrix Layout", 128-byte swizzle), so whole pages are copied without a change. For
// head sizes that are no multiple of 64 elements (96), atoms have 8 lines x 64 bytes, in the layout of the
// 64-byte swizzle. In both layouts, the chunks at the same place of an atom's 8 lines are in different banks.
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

// v divided by a softmax's sum, or 0 if no key was seen. A NaN sum gives NaN.
__device__ __forceinline__ float divided(float v, float sum) { return sum == 0 ? 0.0f : v / sum; }

// at: a shared address.
__device__ __forceinline__ void store_shared_16(uint32_t at, uint4 v)
{
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ __forceinline__ uint32_t pack2(float lo, float hi)
{
  __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
  return *(uint32_t *)&v;
}
#endif
