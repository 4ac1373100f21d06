// Computes the colocated decodes that prefill's CTAs leave over (attention_colocated.cuh). A CTA here is one
// such warpgroup and its producer warp; several fit on an SM.
//
// These CTAs begin beside prefill where it leaves SMs free, and on every other SM when prefill's CTA there
// has ended. They take tickets until no work item is left.
#include "kernels/cuda/attention_colocated.cuh"

#include <algorithm>

enum { LEFTOVER_THREADS = WARPGROUP_THREADS + 32, LEFTOVER_CTAS_PER_SM = 3 };

template <int HD> constexpr int leftover_smem_bytes()
{
  return 1024 + colocated_shape<HD>::BYTES;
} // 1024 bytes to align

template <int HD>
__global__ void __launch_bounds__(LEFTOVER_THREADS, LEFTOVER_CTAS_PER_SM)
    leftover_decodes_kernel(attention_args a, device_batch batch, colocated_range range)
{
#ifdef TD_HAS_WGMMA
  extern __shared__ unsigned char smem_raw[];
  __shared__ colocated_state<HD> state;
  unsigned char *smem = smem_raw + (1024 - shared_address(smem_raw) % 1024) % 1024;
  const colocated_rings<HD> rings(smem, state);
  pdl_launch_dependents();
  if (blockIdx.x + 1 == gridDim.x) {
    pdl_wait(); // this kernel must not end before prefill does
    return;
  }
  if (threadIdx.x == 0) {
    state.clear();
    rings.init_barriers();
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x >= WARPGROUP_THREADS)
    produce_decodes<HD>(a, batch, range, rings, state);
  else
    colocated_consumer<HD>{a, rings, state, smem + colocated_shape<HD>::RING_BYTES}.run();
#endif
}

template <int HD>
static void launch(cuda_backend *b, const attention_group *g, const attention_args &a, uint32_t first,
                   uint32_t n_ctas)
{
  uint32_t n = std::min(n_ctas * a.n_kv_heads, (uint32_t)b->device.n_sms * LEFTOVER_CTAS_PER_SM);
  queue_kernel(&b->device, leftover_decodes_kernel<HD>, dim3(n + 1), LEFTOVER_THREADS,
               leftover_smem_bytes<HD>(), a, td_cuda_group_batch(b, g), colocated_range_of(g, first));
}

void td_cuda_colocated_leftovers(cuda_backend *b, const attention_group *g, const attention_args &a,
                                 uint32_t first, uint32_t n_ctas)
{
  switch (g->spec.head_dim) { // other head sizes have no colocated_rows
  case 64: launch<64>(b, g, a, first, n_ctas); break;
  case 128: launch<128>(b, g, a, first, n_ctas); break;
  default: TD_BUG_ON(true);
  }
}

template <int HD> static cudaError_t allow_smem()
{
  return cudaFuncSetAttribute(leftover_decodes_kernel<HD>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              leftover_smem_bytes<HD>());
}

cudaError_t td_cuda_colocated_allow_smem(uint32_t head_dim)
{
  return head_dim == 64 ? allow_smem<64>() : allow_smem<128>();
}
