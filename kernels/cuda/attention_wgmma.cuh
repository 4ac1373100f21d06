// A warpgroup's 64 query rows against one KV tile in shared memory, by wgmma: scores, masks, online softmax.
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/wgmma.cuh"

enum { WARPGROUP_THREADS = 128 };

template <int HD> struct kv_tile_shape {
  static constexpr int KEYS = prefill_keys(HD);
  static constexpr int GROUP_BYTES = 8 * HD * 2;   // of 8 lines
  static constexpr int TILE_BYTES = KEYS * HD * 2; // of K, or of V
  static constexpr int ATOM_LINE_BYTES = HD % 64 == 0 ? 128 : 64,
                       ATOM_BYTES = 8 * ATOM_LINE_BYTES; // atoms as in kv_chunk_at

  // Byte offset of elements [16k, 16k + 16) of each line of a K or Q tile.
  __host__ __device__ static constexpr uint32_t k_step(uint32_t k)
  {
    return k * 32 / ATOM_LINE_BYTES * ATOM_BYTES + k * 32 % ATOM_LINE_BYTES;
  }
};

#ifdef TD_HAS_WGMMA

// KEYS: keys of a KV tile.
template <int HD, int KEYS = kv_tile_shape<HD>::KEYS> struct consumer {
  using S = kv_tile_shape<HD>;
  float o[HD / 2], s[KEYS / 2], m[2], l[2];
  uint32_t p[KEYS / 4];

  __device__ __forceinline__ void clear()
  {
#pragma unroll
    for (int i = 0; i < HD / 2; i++)
      o[i] = 0;
    m[0] = m[1] = -INFINITY;
    l[0] = l[1] = 0;
  }

  // Queues Q*K^T; the caller waits before it touches s. q16, k16, v16: addresses in units of 16 bytes.
  __device__ __forceinline__ void multiply_qk(uint32_t q16, uint32_t k16)
  {
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < HD / 16; c++)
      wgmma_ss(s, wgmma_descriptor(q16 + S::k_step(c) / 16, 16, S::GROUP_BYTES, S::ATOM_LINE_BYTES),
               wgmma_descriptor(k16 + S::k_step(c) / 16, 16, S::GROUP_BYTES, S::ATOM_LINE_BYTES), c > 0);
    wgmma_commit();
  }

  __device__ __forceinline__ void multiply_pv(uint32_t v16)
  {
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < KEYS / 16; c++)
      wgmma_rs(o, p + 4 * c,
               wgmma_descriptor(v16 + c * 2 * S::GROUP_BYTES / 16, S::ATOM_BYTES, S::GROUP_BYTES,
                                S::ATOM_LINE_BYTES));
    wgmma_commit();
  }

  __device__ __forceinline__ void mask(uint32_t kv0, const int32_t pos[2], uint32_t window)
  {
    int32_t key0 = (int32_t)(kv0 + 2 * (threadIdx.x % 4));
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
      int32_t key = key0 + i / 4 * 8 + i % 2, at = pos[i / 2 % 2];
      if (key > at || (window > 0 && key <= at - (int32_t)window))
        s[i] = -INFINITY;
    }
  }

  // Hides keys outside [begin, end) from all rows. The tile begins at kv0.
  __device__ __forceinline__ void mask_outside(uint32_t kv0, uint32_t begin, uint32_t end)
  {
    uint32_t key0 = kv0 + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
      uint32_t key = key0 + i / 4 * 8 + i % 2;
      if (key >= end || key < begin)
        s[i] = -INFINITY;
    }
  }

  // Online softmax: turns the scores s into weights. corr: the factor for earlier sums.
  __device__ __forceinline__ void online_softmax(float scale_log2, float corr[2])
  {
    float mx[2] = {m[0], m[1]}, sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++)
      mx[i / 2 % 2] = fmaxf(mx[i / 2 % 2], s[i]);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      mx[h] = fmaxf(mx[h], __shfl_xor_sync(0xffffffffu, mx[h], 1));
      mx[h] = fmaxf(mx[h], __shfl_xor_sync(0xffffffffu, mx[h], 2));
      // the product is rounded by itself, without fma: if the maximum is unchanged, corr is exactly 1, and a
      // tile that a row does not see changes nothing
      float top = mx[h] == -INFINITY ? 0 : __fmul_rn(mx[h], scale_log2); // no key seen yet: all weights are 0
      corr[h] = exp2_fast(__fmul_rn(m[h], scale_log2) - top);
      m[h] = mx[h];
      mx[h] = top;
    }
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
      s[i] = exp2_fast(s[i] * scale_log2 - mx[i / 2 % 2]);
      sum[i / 2 % 2] += s[i];
    }
    l[0] = l[0] * corr[0] + sum[0];
    l[1] = l[1] * corr[1] + sum[1];
  }

  __device__ __forceinline__ void pack_weights()
  {
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++)
      p[i] = pack2(s[2 * i], s[2 * i + 1]);
  }

  __device__ __forceinline__ void rescale(const float corr[2])
  {
#pragma unroll
    for (int i = 0; i < HD / 2; i++)
      o[i] *= corr[i / 2 % 2];
  }
};
#endif
