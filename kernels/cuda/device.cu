// Opens the device, checks what it can do, and manages its memory.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/wgmma.cuh"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

// ---- memory ----

td_status td_cuda_fail(td_error *err, cudaError_t e, const char *what)
{
  return td_fail(err, e == cudaErrorMemoryAllocation ? TD_ERR_NOMEM : TD_ERR_DEVICE, "CUDA: %s: %s", what,
                 cudaGetErrorString(e));
}

td_status td_cuda_alloc_raw(cuda_device *d, size_t bytes, void **out, td_error *err)
{
  cudaError_t e = cudaMalloc(out, bytes ? bytes : 1);
  if (e != cudaSuccess) {
    size_t free_bytes = 0, total = 0;
    (void)cudaGetLastError();
    cudaMemGetInfo(&free_bytes, &total);
    return td_fail(err, TD_ERR_NOMEM, "CUDA: no %.0f MiB of device memory (%.0f of %.0f MiB free)",
                   bytes / 1048576.0, free_bytes / 1048576.0, total / 1048576.0);
  }
  d->allocations.push_back(*out);
  return TD_OK;
}

void td_cuda_free(cuda_device *d, void *memory)
{
  auto at = std::find(d->allocations.begin(), d->allocations.end(), memory);
  if (!memory || at == d->allocations.end())
    return;
  d->allocations.erase(at);
  record_error(d, cudaFree(memory));
}

static td_status alloc_filled(cuda_device *d, size_t bytes, int byte, void **out, td_error *err)
{
  TD_TRY(td_cuda_alloc_raw(d, bytes, out, err));
  // on this stream, because it does not wait for the default stream and later copies must come after the fill
  cudaError_t e = cudaMemsetAsync(*out, byte, bytes ? bytes : 1, d->stream);
  if (e == cudaSuccess)
    e = cudaStreamSynchronize(d->stream);
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "memset");
}

td_status td_cuda_alloc_bytes(cuda_device *d, size_t bytes, void **out, td_error *err)
{
  return alloc_filled(d, bytes, 0, out, err);
}

td_status td_cuda_alloc_empty(cuda_device *d, size_t n, float **out, td_error *err)
{
  return alloc_filled(d, n * sizeof **out, 0xff, (void **)out, err);
}

cudaError_t td_cuda_copy_in(cuda_device *d, void *dst, const void *src, size_t bytes)
{
  cudaError_t e = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, d->stream);
  return e == cudaSuccess ? cudaStreamSynchronize(d->stream) : e;
}

// ---- what the device is ----

// Its launch shows whether the build has code for this device, and its result whether that is sm_90a code.
static __global__ void probe_kernel(uint32_t *has_wgmma)
{
#ifdef TD_HAS_WGMMA
  *has_wgmma = 1;
#endif
}

// 12080 becomes "12.8".
static void version_text(int v, char out[16]) { snprintf(out, 16, "%d.%d", v / 1000, v % 1000 / 10); }

static __global__ void trap_kernel() { __trap(); }

void td_cuda_device_trap(cuda_device *d)
{
  trap_kernel<<<1, 1, 0, d->stream>>>();
  record_launch_error(d);
}

static td_status count_devices(int *n, td_error *err)
{
  char has[16], needs[16];
  int driver = 0, runtime = 0;
  cudaError_t e = cudaGetDeviceCount(n);
  if (e == cudaSuccess && *n > 0)
    return TD_OK;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  version_text(driver, has);
  version_text(runtime, needs);
  if (driver == 0)
    return td_fail(err, TD_ERR_NO_DEVICE, "no NVIDIA driver is installed (no libcuda.so.1)");
  if (e == cudaErrorInsufficientDriver || e == cudaErrorCompatNotSupportedOnDevice)
    return td_fail(err, TD_ERR_NO_DEVICE,
                   "the NVIDIA driver is too old: it serves CUDA %s, this build needs %s; update the driver",
                   has, needs);
  if (e == cudaSuccess || e == cudaErrorNoDevice)
    return td_fail(err, TD_ERR_NO_DEVICE, "the NVIDIA driver (CUDA %s) sees no GPU%s", has,
                   getenv("CUDA_VISIBLE_DEVICES") ? "; CUDA_VISIBLE_DEVICES is set" : "");
  return td_fail(err, TD_ERR_NO_DEVICE, "the NVIDIA driver (CUDA %s) does not start: %s", has,
                 cudaGetErrorString(e));
}

// Peak rates from clocks and widths. bf16 tensor operations per SM and cycle: 2,048 for compute capability
// 8.0, 4,096 for 9 and 10, a quarter of that for desktop GPUs.
static void set_peak_rates(cuda_device *d, const cudaDeviceProp *prop)
{
  int memory_khz = 0, bus_bits = 0, khz = 0;
  cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, d->id);
  cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, d->id);
  cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, d->id);
  double flop = prop->major == 9 || prop->major == 10  ? 4096
                : prop->major == 8 && prop->minor == 0 ? 2048
                                                       : 1024;
  d->bytes_us = 2e-3 * memory_khz * bus_bits / 8; // two transfers a cycle
  d->flop_us = 1e-3 * khz * flop * prop->multiProcessorCount;
}

static td_status check_device(cuda_device *d, td_error *err)
{
  cudaDeviceProp prop;
  cudaFuncAttributes attributes;
  cudaError_t e = cudaGetDeviceProperties(&prop, d->id);
  if (e != cudaSuccess)
    return td_cuda_fail(err, e, "the device does not say what it is");
  if (prop.major < 8)
    return td_fail(err, TD_ERR_NO_DEVICE,
                   "GPU %d, %s, is too old: it has compute capability %d.%d, 8.0 is the least that is served",
                   d->id, prop.name, prop.major, prop.minor);
  e = cudaFuncGetAttributes(&attributes, probe_kernel);
  if (e == cudaErrorNoKernelImageForDevice || e == cudaErrorInvalidDeviceFunction ||
      e == cudaErrorUnsupportedPtxVersion || e == cudaErrorInvalidKernelImage)
    return td_fail(
        err, TD_ERR_NO_DEVICE,
        "this build has no kernels for GPU %d, %s (compute capability %d.%d), only for %s; build with "
        "-DTD_CUDA_ARCHITECTURES=%d%d%s",
        d->id, prop.name, prop.major, prop.minor, TD_CUDA_ARCHS, prop.major, prop.minor,
        prop.major == 9 ? "a" : "");
  if (e != cudaSuccess)
    return td_cuda_fail(err, e, "the device cannot be used");
  d->has_clusters = attributes.ptxVersion >= 90;
  d->cc_major = prop.major;
  d->n_sms = prop.multiProcessorCount;
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  snprintf(d->identity, sizeof d->identity, "%.100s cc%d.%d sm%d driver%d runtime%d", prop.name, prop.major,
           prop.minor, prop.multiProcessorCount, driver, runtime);
  set_peak_rates(d, &prop);
  return TD_OK;
}

static td_status pick_device(cuda_device *d, td_error *err)
{
  int n = 0;
  TD_TRY(count_devices(&n, err));
  if (d->id >= n)
    return td_fail_param(err, TD_ERR_CONFIG, "device",
                         "device = %d, but there is no such GPU: %d is the highest", d->id, n - 1);
  cudaError_t e = cudaSetDevice(d->id);
  if (e != cudaSuccess)
    return td_cuda_fail(err, e, "the device cannot be used");
  return check_device(d, err);
}

static td_status run_probe(cuda_device *d, td_error *err)
{
  uint32_t *has_wgmma, found = 0;
  TD_TRY(td_cuda_alloc_array(d, 1, &has_wgmma, err));
  probe_kernel<<<1, 1, 0, d->stream>>>(has_wgmma);
  cudaError_t e = cudaGetLastError();
  if (e == cudaSuccess)
    e = cudaMemcpyAsync(&found, has_wgmma, sizeof found, cudaMemcpyDeviceToHost, d->stream);
  if (e == cudaSuccess)
    e = cudaStreamSynchronize(d->stream);
  d->has_wgmma = found == 1;
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "the device cannot be used");
}

// ---- open, close ----

td_status td_cuda_device_open(cuda_device *d, uint32_t id, td_error *err)
{
  d->id = (int)id;
  TD_TRY(pick_device(d, err));
  cudaError_t e = cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking);
  if (e != cudaSuccess)
    return td_cuda_fail(err, e, "no stream");
  return run_probe(d, err);
}

void td_cuda_device_close(cuda_device *d)
{
  for (void *p : d->allocations)
    cudaFree(p);
  d->allocations.clear();
  if (d->stream)
    cudaStreamDestroy(d->stream);
  d->stream = nullptr;
}

cudaGraphNode_t td_cuda_captured_node(cuda_device *d)
{
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t *last = nullptr;
  size_t n = 0;
#if CUDART_VERSION >= 13000
  record_error(d, cudaStreamGetCaptureInfo(d->stream, &status, nullptr, nullptr, &last, nullptr, &n));
#else
  record_error(d, cudaStreamGetCaptureInfo_v2(d->stream, &status, nullptr, nullptr, &last, &n));
#endif
  return status == cudaStreamCaptureStatusActive && n == 1 ? last[0] : nullptr;
}
