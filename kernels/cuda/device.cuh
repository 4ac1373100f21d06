// The device of a backend: what it is, its stream, its memory, and how kernels are queued.
//
// Owner: the backend. Life: made first and closed last; memory that is not freed before goes then. There is
// nothing of a device outside of this: two backends of one process share nothing.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <vector>

extern "C" { // the C side's headers do not say so themselves
#include "kernels/kernels.h"
}

struct cuda_device {
  int id, n_sms, cc_major;
  bool has_wgmma;    // it runs code of this build that was compiled for sm_90a
  bool has_clusters; // or for any architecture that has clusters: older code also runs on newer GPUs
  cudaStream_t stream;
  cudaError_t fault; // first error of a launch or copy since the last wait
  std::vector<void *> allocations;
  char identity[256];       // as td_backend's
  double bytes_us, flop_us; // as td_backend's
};

// Takes the device, makes its stream, and finds out what it runs.
td_status td_cuda_device_open(cuda_device *d, uint32_t id, td_error *err);
void td_cuda_device_close(cuda_device *d); // frees all its memory; fine after an open that failed
void td_cuda_device_trap(cuda_device *d);  // makes it fail behind what is queued

static inline void note(cuda_device *d, cudaError_t e)
{
  if (e != cudaSuccess && d->fault == cudaSuccess)
    d->fault = e;
}
// What the last launch has become in the graph, while the stream is being captured; else null.
cudaGraphNode_t td_cuda_captured_node(cuda_device *d);
static inline void launched(cuda_device *d) { note(d, cudaGetLastError()); }

// Queues a kernel that begins with wait_for_input(): it may be launched while the kernel before it drains
// (programmatic dependent launch). A kernel must not end before those before it, or a later one could
// overtake them: every thread passes that wait, or all of a block that always does.
template <typename... P, typename... A>
static inline void queue_clusters(cuda_device *d, void (*kernel)(P...), dim3 grid, unsigned cluster,
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
  config.stream = d->stream;
  config.attrs = attributes;
  config.numAttrs = d->cc_major < 9 ? 0 : cluster == 1 ? 1 : 2;
  note(d, cudaLaunchKernelEx(&config, kernel, P(args)...));
}

template <typename... P, typename... A>
static inline void queue_kernel(cuda_device *d, void (*kernel)(P...), dim3 grid, unsigned threads,
                                size_t smem_bytes, A... args)
{
  queue_clusters(d, kernel, grid, 1, threads, smem_bytes, args...);
}

// Memory is zeroed and lives until the device is closed, or td_cuda_free.
td_status td_cuda_fail(td_error *err, cudaError_t e, const char *what);
td_status td_cuda_alloc_raw(cuda_device *d, size_t bytes, void **out, td_error *err); // not zeroed
td_status td_cuda_alloc_bytes(cuda_device *d, size_t bytes, void **out, td_error *err);
td_status td_cuda_alloc_empty(cuda_device *d, size_t n, float **out, td_error *err); // all bits set
template <typename T>
static inline td_status td_cuda_alloc_array(cuda_device *d, size_t n, T **out, td_error *err)
{
  return td_cuda_alloc_bytes(d, n * sizeof(T), (void **)out, err);
}
void td_cuda_free(cuda_device *d, void *memory); // or null; the stream must have ended what uses it
// To the device, done when it returns. cudaMemcpy alone is not: it may return while the last staged piece of
// pageable memory is still on its way, and the stream does not wait for the default stream.
cudaError_t td_cuda_copy_in(cuda_device *d, void *dst, const void *src, size_t bytes);
