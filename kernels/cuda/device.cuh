// A backend's device: its properties, its stream, its memory, and how kernels are queued.
//
// Owner: the backend. Lifetime: opened first and closed last; closing frees all memory that is left. No state
// of a device exists outside this struct, so two backends in one process share nothing.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <vector>

extern "C" { // the headers of the C side do not declare this themselves
#include "kernels/kernels.h"
}

struct cuda_device {
  int id, n_sms, cc_major;
  bool has_wgmma;    // this build has sm_90a code, and the device runs it
  bool has_clusters; // the running code was compiled for sm_90 or newer; older code runs on newer GPUs too
  cudaStream_t stream;
  cudaError_t fault; // the first error of a launch or copy since the last td_cuda_wait
  std::vector<void *> allocations;
  char identity[256];       // as in td_backend
  double bytes_us, flop_us; // as in td_backend
};

// Selects the GPU, creates the stream, and finds out which code the GPU runs.
td_status td_cuda_device_open(cuda_device *d, uint32_t id, td_error *err);
void td_cuda_device_close(cuda_device *d); // frees all of its memory; may be called after a failed open
void td_cuda_device_trap(cuda_device *d);  // makes the device fail after the work queued so far

static inline void record_error(cuda_device *d, cudaError_t e)
{
  if (e != cudaSuccess && d->fault == cudaSuccess)
    d->fault = e;
}
// The graph node of the last launch while the stream is being captured, else null.
cudaGraphNode_t td_cuda_captured_node(cuda_device *d);
static inline void record_launch_error(cuda_device *d) { record_error(d, cudaGetLastError()); }

// Queues a kernel that begins with pdl_wait(), so it may start while the kernel before drains
// (programmatic dependent launch). A kernel must not end before its predecessors, or a later kernel could
// overtake them. So all threads pass that wait, or all threads of one CTA that always does.
template <typename... P, typename... A>
static inline void queue_cluster_kernel(cuda_device *d, void (*kernel)(P...), dim3 grid, unsigned cluster,
                                        unsigned threads, size_t smem_bytes, A... args)
{
  cudaLaunchAttribute attributes[2] = {}; // the second is used only for clusters
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = smem_bytes;
  config.stream = d->stream;
  config.attrs = attributes;
  config.numAttrs = d->cc_major < 9 ? 0 : cluster == 1 ? 1 : 2;
  record_error(d, cudaLaunchKernelEx(&config, kernel, P(args)...));
}

template <typename... P, typename... A>
static inline void queue_kernel(cuda_device *d, void (*kernel)(P...), dim3 grid, unsigned threads,
                                size_t smem_bytes, A... args)
{
  queue_cluster_kernel(d, kernel, grid, 1, threads, smem_bytes, args...);
}

// Allocated memory is zeroed. It lives until td_cuda_free or until the device is closed.
td_status td_cuda_fail(td_error *err, cudaError_t e, const char *what);
td_status td_cuda_alloc_raw(cuda_device *d, size_t bytes, void **out, td_error *err); // not zeroed
td_status td_cuda_alloc_bytes(cuda_device *d, size_t bytes, void **out, td_error *err);
td_status td_cuda_alloc_empty(cuda_device *d, size_t n, float **out, td_error *err); // all bits set
template <typename T>
static inline td_status td_cuda_alloc_array(cuda_device *d, size_t n, T **out, td_error *err)
{
  return td_cuda_alloc_bytes(d, n * sizeof(T), (void **)out, err);
}
void td_cuda_free(cuda_device *d, void *memory); // null is allowed; work in the stream that uses the memory
                                                 // must have ended
// Copies to the device and waits for the copy. cudaMemcpy would not do: it may return while the last staged
// part of pageable memory is still on its way, and this stream does not wait for the default stream.
cudaError_t td_cuda_copy_in(cuda_device *d, void *dst, const void *src, size_t bytes);
