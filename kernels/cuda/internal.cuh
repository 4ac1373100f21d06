// What the files of kernels/cuda/ share: the backend's struct, the batch on the device, and small device
// helpers.
//
//   backend.cu    C ABI: create, device, memory, KV store
//   weights.cu    weights to the device
//   step.cu       the plan's way up, the sampled ids' way back
//   program.cu    programs: compiled, run op by op; capture.cu captures decode steps as CUDA graphs
//   linear.cu     products: which way they go, and a kernel for few rows; on Hopper fused_product.cu (up to
//   8), stream_product.cu (up to 32) lt_product.cu products of many rows by cuBLASLt; lt_tune.cu measures its
//   algorithms, lt_cache.c keeps what was measured glu_product.cu products of many rows with SwiGLU behind
//   them, for Hopper pointwise.cu  embedding, RMSNorm, SwiGLU, gather rope_kv.cu    q/k norm, rotation, KV
//   write attention.cu  paged attention for hybrid batches; on Hopper attention_prefill.cu takes prompt
//   chunks, attention_decode.cu decodes fused_product.cu products of up to 16 rows with norms, additions,
//   SwiGLU, of up to 8 alone; fused_plan.cu makes captured steps of these attention_spans.cuh what rows
//   share, in attention_decode.cu's launch; attention_shared_sums.cuh who adds it to each row's
//   attention_group.cu KV groups, each with a plan and a work list of kernels/attention;
//   attention_partials.cuh where partials lie; attention_wgmma.cuh what prefix splits share with prompts
//   attention_tile.cuh, attention_strips.cuh, attention_finish.cuh, attention_shares.cuh, rope.cuh what
//   kernels share; mbarrier.cuh, tma.cuh, wgmma.cuh Hopper's instructions sample.cu     token choice
//
// Activations are bf16, sums are f32. One stream; ops are queued, td_cuda_wait waits.
#pragma once

#include <cublasLt.h>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

extern "C" { // the C side's headers do not say so themselves
#include "kernels/attention/work_list.h"
#include "kernels/cuda/cuda_backend.h"
}

typedef __nv_bfloat16 bf16;

// The plan as kernels see it. Pointers into device memory at fixed addresses.
struct device_batch {
  int32_t *token_ids;    // [n_tokens]
  int32_t *positions;    // [n_tokens]
  uint32_t *kv_lines;    // [n_tokens] where its KV goes: page * page_tokens + line in the page
  td_plan_row *rows;     // [n_rows]
  uint32_t *logits_rows; // [n_logits]
  int32_t *page_table;
  uint32_t page_tokens;
  const uint32_t *counts;   // [N_COUNTS] of the step; grids of recorded steps are larger
  const uint32_t *n_logits; // one of them
};

// Of a page's tokens, which are a power of two: kernels shift where a division would take as long as the
// rest.
__device__ __forceinline__ uint32_t log2_of(uint32_t n) { return 31 - __clz(n); }

// COUNT_WIDE_ITEMS: of the items, those before the warp-level ones. COUNT_STEP: the step's number. Each KV
// group has a copy with its own items.
enum { COUNT_TOKENS, COUNT_ROWS, COUNT_LOGITS, COUNT_ITEMS, COUNT_WIDE_ITEMS, COUNT_STEP, N_COUNTS };

// A packed plan on its way up, and what comes back of its step.
struct step_block {
  unsigned char *packed; // pinned
  size_t n_packed;
  int32_t *sampled; // pinned, [max_rows]
  uint32_t n_logits;
  bool captured; // launched from a captured step
  cudaEvent_t begin[2],
      end[2]; // taking turns: the step before last, which had this block too, may still be asked for its end
  uint32_t turn;
  bool under_way;
};

struct attention_group;

// How products of few rows walk over a weight (stream_product.cu). tile_rows 0: they go another way.
struct td_stream_plan {
  CUtensorMap map;
  uint32_t tile_rows, slices;
};

struct td_weight {
  bf16 *data; // [n_out, n_in], parts one after another
  bf16 *bias; // [n_out] or null
  uint32_t n_out, n_in;
  td_stream_plan stream;
};

// Page layout: [layer][page][kv head]{ K, V }, each page_tokens x head_dim in the order of kv_chunk_at
// (attention.cuh).
struct td_kv {
  bf16 *data;
  td_kv_shape shape;
  bool wgmma; // attention_prefill.cu and attention_decode.cu serve it
};

// cuTensorMapEncodeTiled, found at run time: the program does not link the driver.
typedef CUresult (*stream_encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                           const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                           const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// Which kernels and grids a step's attention uses: chosen once a step, by td_cuda_plan_attention, or before
// ops are queued that exist only to be captured or timed. A capture's grids are for any step of so many rows.
enum attention_mode {
  ATTENTION_PRIVATE,         // every row's keys by itself
  ATTENTION_SHARED,          // prefix splits, and private KV of rows that wait for them, in one launch
  ATTENTION_CAPTURE_PRIVATE, // the same two, captured
  ATTENTION_CAPTURE_SHARED,
};

enum { TD_KV_GROUPS_MAX = 4 };

// attention_group.cu
struct attention_group {
  const td_kv *kv;
  uint32_t window;
  td_attention_planner *planner; // null: every row by itself
  bool is_planned;               // this step is
  attention_mode made_for;       // of the step for which the work list was made
  td_work_list work;             // of the step
  const void *decode_kernel;     // attention for decodes as it was launched last
  // on the device
  td_attention_item *device_items;
  float *split_partials;   // of KV splits, none there between launches (attention_shares.cuh)
  float *prefill_partials; // of KV splits of prefill tiles (attention_prefill_sums.cuh), and their flags
  uint64_t *prefill_flags;
  unsigned char *device_plan; // the plan's block
  unsigned char *slots;       // partials of prefix splits: [slots, GQA group] of TD_ATTENTION_PARTIAL_BYTES
  uint64_t
      *prefix_flags; // [prefix splits, n_kv_heads]: in which launch of which step last (attention_spans.cuh)
  bool has_prefill_pairs; // as many run at once as there are SMs for
};

struct cuda_backend {
  td_backend base; // first: the C side sees this
  td_backend_config config;
  int device, n_sms, cc_major;
  bool has_wgmma; // this device runs code of this build that was compiled for sm_90a
  cudaStream_t stream;
  cudaError_t fault; // first error of a launch or copy since the last wait

  cublasLtHandle_t lt;
  void *lt_workspace;
  struct lt_tables *lt_tables; // lt.cuh

  stream_encode_function
      stream_encode;     // null: neither fused_product.cu nor stream_product.cu serves anything here
  uint32_t glu_clusters; // that run at once; 0: glu_product.cu serves nothing here

  std::vector<void *> *allocations;
  std::vector<td_weight *> *weights;
  std::vector<td_kv *> *kvs;
  std::vector<attention_group *> *groups; // at most TD_KV_GROUPS_MAX
  struct weight_lanes *loading; // weights.cu: weights on their way, between the first import and weights_wait

  // the step (step.cu)
  step_block blocks[2];
  uint32_t packing;      // the block of the current or next step
  unsigned char *packed; // device
  size_t packed_bytes;
  uint32_t *counts; // device, [TD_KV_GROUPS_MAX][N_COUNTS]
  const td_plan *plan;
  bool has_run; // a step has ended
  attention_mode mode;
  float *fused_sums; // fused.cuh; null: not served here
  device_batch batch;
  uint32_t page_table_entries, max_page_updates;

  td_sampling *sampling;      // device, [max_slots]
  td_sampling *sampling_host; // [max_slots]
  uint32_t *resampled;        // [max_slots] slots whose sampling changed since the last plan
  uint8_t *is_resampled;      // [max_slots]
  uint32_t n_resampled;
  int32_t *sampled; // device, [max_rows]

  uint32_t n_steps, n_shared_launches; // so far
};

static inline bool is_capture(const cuda_backend *b) { return b->mode >= ATTENTION_CAPTURE_PRIVATE; }
static inline bool shares_prefixes(const cuda_backend *b)
{
  return b->mode == ATTENTION_SHARED || b->mode == ATTENTION_CAPTURE_SHARED;
}

static inline cuda_backend *self(td_backend *be) { return (cuda_backend *)be; }
template <typename T> static inline T *at(td_devptr p) { return (T *)p.addr; }

static inline void note(cuda_backend *b, cudaError_t e)
{
  if (e != cudaSuccess && b->fault == cudaSuccess)
    b->fault = e;
}
static inline void launched(cuda_backend *b) { note(b, cudaGetLastError()); }

// Queues a kernel that begins with wait_for_input(): it may be launched while the kernel before it drains
// (programmatic dependent launch). A kernel must not end before those before it, or a later one could
// overtake them: every thread passes that wait, or all of a block that always does.
template <typename... P, typename... A>
static inline void queue_clusters(cuda_backend *b, void (*kernel)(P...), dim3 grid, unsigned cluster,
                                  unsigned threads, size_t smem_bytes, A... args)
{
  cudaLaunchAttribute attributes[2] = {}; // the second is taken where blocks go in clusters
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = smem_bytes;
  config.stream = b->stream;
  config.attrs = attributes;
  config.numAttrs = b->cc_major < 9 ? 0 : cluster == 1 ? 1 : 2;
  note(b, cudaLaunchKernelEx(&config, kernel, P(args)...));
}

template <typename... P, typename... A>
static inline void queue_kernel(cuda_backend *b, void (*kernel)(P...), dim3 grid, unsigned threads,
                                size_t smem_bytes, A... args)
{
  queue_clusters(b, kernel, grid, 1, threads, smem_bytes, args...);
}

// backend.cu. Memory is zeroed and lives until destroy.
td_status td_cuda_fail(td_error *err, cudaError_t e, const char *what);
td_status td_cuda_alloc_raw(cuda_backend *b, size_t bytes, void **out, td_error *err); // not zeroed
td_status td_cuda_alloc_bytes(cuda_backend *b, size_t bytes, void **out, td_error *err);
td_status td_cuda_alloc_absent(cuda_backend *b, size_t n, float **out, td_error *err); // all bits set
template <typename T>
static inline td_status td_cuda_alloc_array(cuda_backend *b, size_t n, T **out, td_error *err)
{
  return td_cuda_alloc_bytes(b, n * sizeof(T), (void **)out, err);
}
void td_cuda_free(cuda_backend *b, void *memory); // or null; the stream must have ended what uses it
// To the device, done when it returns. cudaMemcpy alone is not: it may return while the last staged piece of
// pageable memory is still on its way, and the stream does not wait for the default stream.
cudaError_t td_cuda_copy_in(cuda_backend *b, void *dst, const void *src, size_t bytes);

// weights.cu
td_status td_cuda_weight_import(td_backend *be, const td_weight_part *parts, uint32_t n_parts,
                                uint64_t n_cols, td_weight **out, td_error *err);
td_status td_cuda_weights_wait(td_backend *be, td_error *err);
void td_cuda_weights_abandon(cuda_backend *b); // the end of a start that failed

// step.cu
td_status td_cuda_make_step_memory(cuda_backend *b, td_error *err);
td_status td_cuda_fit_packed(cuda_backend *b, td_error *err); // room for a plan and items of each KV group
void td_cuda_free_step_memory(cuda_backend *b);
void td_cuda_submit(td_backend *be, td_compiled *compiled, const td_plan *plan);
td_status td_cuda_wait(td_backend *be, td_outcome *out, td_error *err);
void td_cuda_set_sampling(td_backend *be, uint32_t slot, const td_sampling *sampling);

// An op's params, and the rows that it has in the current step.
template <typename P> struct of_rows : P {
  uint32_t n;
};

// lt_product.cu
td_status td_lt_open(cuda_backend *b, td_error *err);
void td_lt_close(cuda_backend *b);
void td_lt_linear(cuda_backend *b, const of_rows<td_linear_params> *p);

// stream_product.cu
td_status td_stream_open(cuda_backend *b, td_error *err);
// Of a matrix whose rows are `strides` apart; boxes of 64 columns, swizzled. Promotion to 256 bytes would
// make memory give 6 % less.
bool td_stream_encode(cuda_backend *b, CUtensorMap *map, uint32_t rank, const void *data,
                      const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box);
void td_stream_plan_weight(cuda_backend *b, td_weight *w);
bool td_stream_linear(cuda_backend *b,
                      const of_rows<td_linear_params> *p); // false: another way must be taken
uint32_t td_stream_rows_max(const td_weight *w);           // 0: it serves none
// Weight rows of a tile, a multiple of unit up to `most`, with which the busiest multiprocessor has the least
// to do; a tile costs a little itself.
uint32_t td_stream_tile_rows(uint32_t n_out, uint32_t n_sms, uint32_t unit, uint32_t most);

// fused_product.cu
bool td_fused_linear(cuda_backend *b, const of_rows<td_linear_params> *p); // false: another way must be taken

// glu_product.cu
td_status td_glu_open(cuda_backend *b, td_error *err);
bool td_glu_serves(const cuda_backend *b, const td_weight *w, uint32_t width); // in some steps at least
bool td_glu_is_faster(const cuda_backend *b, const of_rows<td_linear_swiglu_params> *p); // than two ops
// False: not done. must: for as many rows as the kernel can do, also where two ops are faster.
bool td_glu_linear(cuda_backend *b, const of_rows<td_linear_swiglu_params> *p, bool must);

void td_cuda_linear(cuda_backend *b, const of_rows<td_linear_params> *p);
uint32_t
td_cuda_lt_rows_min(const td_weight *w); // from so many rows on products by themselves go to cuBLASLt
void td_cuda_embed(td_backend *be, const td_embed_params *p);
void td_cuda_rmsnorm(cuda_backend *b, const of_rows<td_rmsnorm_params> *p);
void td_cuda_swiglu(cuda_backend *b, const of_rows<td_swiglu_params> *p);
void td_cuda_gather(td_backend *be, const td_gather_params *p);
void td_cuda_rope_kv(td_backend *be, const td_rope_kv_params *p);
void td_cuda_attention(td_backend *be, const td_attention_params *p);
void td_cuda_sample(td_backend *be, const td_sample_params *p);

#ifdef __CUDACC__
// Lets the next kernel be launched while this one runs.
__device__ __forceinline__ void let_next_start()
{
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Until the kernels before are done and their writes can be seen.
__device__ __forceinline__ void wait_for_input()
{
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ float warp_sum(float v)
{
  for (int o = 16; o > 0; o >>= 1)
    v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

__device__ __forceinline__ float warp_max(float v)
{
  for (int o = 16; o > 0; o >>= 1)
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}

// Eight bf16 at once: the 16-byte unit of every load and store here. A struct of bf16 would be copied member
// by member, in loads and stores of 4 bytes.
struct bf16x8 {
  uint4 pairs;
};

__device__ __forceinline__ void unpack(const bf16x8 &v, float f[8])
{
  const uint32_t pairs[4] = {v.pairs.x, v.pairs.y, v.pairs.z, v.pairs.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    f[2 * i] = __uint_as_float(pairs[i] << 16);
    f[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
  }
}

__device__ __forceinline__ bf16x8 pack(const float f[8])
{
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(f[2 * i], f[2 * i + 1]);
    memcpy(&pairs[i], &pair, sizeof pair);
  }
  return {make_uint4(pairs[0], pairs[1], pairs[2], pairs[3])};
}
#endif
