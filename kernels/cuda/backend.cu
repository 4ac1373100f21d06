// The CUDA backend behind kernels.h: device, memory, KV store, life.
#include "kernels/cuda/fused.cuh"
#include "kernels/cuda/program.cuh"
#include "kernels/cuda/sampling.cuh"
#include "kernels/cuda/wgmma.cuh"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

// ---- memory ----

td_status td_cuda_fail(td_error *err, cudaError_t e, const char *what)
{
  return td_fail(err, e == cudaErrorMemoryAllocation ? TD_ERR_NOMEM : TD_ERR_DEVICE, "CUDA: %s: %s", what,
                 cudaGetErrorString(e));
}

td_status td_cuda_alloc_raw(cuda_backend *b, size_t bytes, void **out, td_error *err)
{
  cudaError_t e = cudaMalloc(out, bytes ? bytes : 1);
  if (e != cudaSuccess) {
    size_t free_bytes = 0, total = 0;
    (void)cudaGetLastError();
    cudaMemGetInfo(&free_bytes, &total);
    return td_fail(err, TD_ERR_NOMEM, "CUDA: no %.0f MiB of device memory (%.0f of %.0f MiB free)",
                   bytes / 1048576.0, free_bytes / 1048576.0, total / 1048576.0);
  }
  b->allocations->push_back(*out);
  return TD_OK;
}

void td_cuda_free(cuda_backend *b, void *memory)
{
  auto at = std::find(b->allocations->begin(), b->allocations->end(), memory);
  if (!memory || at == b->allocations->end())
    return;
  b->allocations->erase(at);
  note(b, cudaFree(memory));
}

static td_status alloc_filled(cuda_backend *b, size_t bytes, int byte, void **out, td_error *err)
{
  TD_TRY(td_cuda_alloc_raw(b, bytes, out, err));
  // the stream does not wait for the default stream, so what other calls copy must come behind this
  cudaError_t e = cudaMemsetAsync(*out, byte, bytes ? bytes : 1, b->stream);
  if (e == cudaSuccess)
    e = cudaStreamSynchronize(b->stream);
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "memset");
}

td_status td_cuda_alloc_bytes(cuda_backend *b, size_t bytes, void **out, td_error *err)
{
  return alloc_filled(b, bytes, 0, out, err);
}

td_status td_cuda_alloc_absent(cuda_backend *b, size_t n, float **out, td_error *err)
{
  return alloc_filled(b, n * sizeof **out, 0xff, (void **)out, err);
}

cudaError_t td_cuda_copy_in(cuda_backend *b, void *dst, const void *src, size_t bytes)
{
  cudaError_t e = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, b->stream);
  return e == cudaSuccess ? cudaStreamSynchronize(b->stream) : e;
}

static td_status be_alloc(td_backend *be, size_t bytes, td_devptr *out, td_error *err)
{
  return td_cuda_alloc_bytes(self(be), bytes, (void **)&out->addr, err);
}

static td_status be_upload_f32(td_backend *be, const float *src, size_t n, td_devptr *out, td_error *err)
{
  TD_TRY(td_cuda_alloc_bytes(self(be), n * sizeof *src, (void **)&out->addr, err));
  cudaError_t e = td_cuda_copy_in(self(be), (void *)out->addr, src, n * sizeof *src);
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "copy to the device");
}

static td_status be_download(td_backend *be, td_devptr src, size_t bytes, void *dst, td_error *err)
{
  cudaError_t e = cudaStreamSynchronize(self(be)->stream);
  if (e == cudaSuccess)
    e = cudaMemcpy(dst, (const void *)src.addr, bytes, cudaMemcpyDeviceToHost);
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "copy from the device");
}

// ---- KV ----

static size_t be_kv_bytes_per_page(const td_backend *be, const td_kv_shape *s)
{
  (void)be;
  return (size_t)s->n_layers * s->n_kv_heads * 2 * s->page_tokens * s->head_dim * sizeof(bf16);
}

static size_t be_kv_fixed_bytes(const td_backend *be, const td_kv_shape *s)
{
  return td_cuda_group_bytes((const cuda_backend *)be, s);
}

// What gpu_memory_percent leaves after weights, workspace and what other programs hold.
static uint64_t be_kv_budget_bytes(const td_backend *be)
{
  const cuda_backend *b = (const cuda_backend *)be;
  size_t free_bytes = 0, total = 0;
  cudaMemGetInfo(&free_bytes, &total);
  uint64_t kept = (uint64_t)total / 100 * (100 - b->config.gpu_memory_percent);
  return free_bytes > kept ? free_bytes - kept : 0;
}

static td_status be_kv_check(const td_backend *be, const td_kv_shape *shape, td_error *err)
{
  const cuda_backend *b = (const cuda_backend *)be;
  if (shape->head_dim != 64 && shape->head_dim != 96 && shape->head_dim != 128 && shape->head_dim != 256)
    return td_fail(
        err, TD_ERR_UNSUPPORTED,
        "the CUDA backend has no attention kernel for heads of %u elements, only for 64, 96, 128 and 256; "
        "backend = cpu serves this model",
        shape->head_dim);
  if (shape->page_tokens != 16 && shape->page_tokens != 32 && shape->page_tokens != 64)
    return td_fail(err, TD_ERR_UNSUPPORTED, "the CUDA backend has pages of 16, 32 or 64 tokens, not %u",
                   shape->page_tokens);
  if (shape->n_heads / shape->n_kv_heads > TD_GROUP_MAX)
    return td_fail(err, TD_ERR_UNSUPPORTED,
                   "the CUDA backend has no attention kernel for %u heads over %u kv heads, only for up to "
                   "%d a kv head; "
                   "backend = cpu serves this model",
                   shape->n_heads, shape->n_kv_heads, (int)TD_GROUP_MAX);
  td_attention_planner_config plans;
  if (b->config.attention_policy && !td_cuda_planner_config(b, shape, &plans))
    return td_fail(err, TD_ERR_UNSUPPORTED,
                   "policy %s: decodes are planned on a Hopper GPU, for heads of 64, 96 or 128 and up to %d "
                   "of them a kv head, without "
                   "batch_invariant; not for %u heads of %u over %u kv heads",
                   b->config.attention_policy->name, (int)TD_DECODE_ROWS, shape->n_heads, shape->head_dim,
                   shape->n_kv_heads);
  return TD_OK;
}

static td_status be_kv_create(td_backend *be, const td_kv_shape *shape, td_kv **out, td_error *err)
{
  cuda_backend *b = self(be);
  TD_TRY(be_kv_check(be, shape, err));
  td_kv *kv = new (std::nothrow) td_kv();
  if (!kv)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the KV store");
  b->kvs->push_back(kv);
  kv->shape = *shape;
  kv->wgmma = b->has_wgmma && td_cuda_has_wgmma_attention(shape->head_dim);
  TD_TRY(td_cuda_alloc_bytes(b, be_kv_bytes_per_page(be, shape) * shape->n_pages, (void **)&kv->data, err));
  TD_TRY(td_cuda_add_group(b, kv, err));
  *out = kv;
  return TD_OK;
}

static void be_kv_destroy(td_backend *be, td_kv *kv)
{
  cuda_backend *b = self(be);
  note(b, cudaStreamSynchronize(b->stream));
  td_cuda_remove_groups(b, kv);
  td_cuda_free(b, kv->data);
  b->kvs->erase(std::find(b->kvs->begin(), b->kvs->end(), kv));
  delete kv;
}

// ---- life ----

static void be_destroy(td_backend *be)
{
  cuda_backend *b = self(be);
  td_cuda_weights_abandon(b);
  if (b->stream)
    cudaStreamSynchronize(b->stream);
  for (td_kv *kv : *b->kvs)
    td_cuda_remove_groups(b, kv);
  for (void *p : *b->allocations)
    cudaFree(p);
  for (td_weight *w : *b->weights)
    delete w;
  for (td_kv *kv : *b->kvs)
    delete kv;
  td_lt_close(b);
  td_cuda_free_step_memory(b);
  if (b->stream)
    cudaStreamDestroy(b->stream);
  delete b->allocations;
  delete b->weights;
  delete b->kvs;
  delete b->groups;
  delete b;
}

// ---- the device ----

// Whether the build has code for this device, and whether that is sm_90a's.
static __global__ void probe_kernel(uint32_t *has_wgmma)
{
#ifdef TD_HAS_WGMMA
  *has_wgmma = 1;
#endif
}

// "12.8" of 12080.
static void version_text(int v, char out[16]) { snprintf(out, 16, "%d.%d", v / 1000, v % 1000 / 10); }

static __global__ void trap_kernel() { __trap(); }

static void be_trap(td_backend *be)
{
  cuda_backend *b = self(be);
  trap_kernel<<<1, 1, 0, b->stream>>>();
  launched(b);
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

static td_status check_device(cuda_backend *b, td_error *err)
{
  cudaDeviceProp prop;
  cudaFuncAttributes attributes;
  cudaError_t e = cudaGetDeviceProperties(&prop, b->device);
  if (e != cudaSuccess)
    return td_cuda_fail(err, e, "the device does not say what it is");
  if (prop.major < 8)
    return td_fail(err, TD_ERR_NO_DEVICE,
                   "GPU %d, %s, is too old: it has compute capability %d.%d, 8.0 is the least that is served",
                   b->device, prop.name, prop.major, prop.minor);
  e = cudaFuncGetAttributes(&attributes, probe_kernel);
  if (e == cudaErrorNoKernelImageForDevice || e == cudaErrorInvalidDeviceFunction ||
      e == cudaErrorUnsupportedPtxVersion || e == cudaErrorInvalidKernelImage)
    return td_fail(
        err, TD_ERR_NO_DEVICE,
        "this build has no kernels for GPU %d, %s (compute capability %d.%d), only for %s; build with "
        "-DTD_CUDA_ARCHITECTURES=%d%d%s",
        b->device, prop.name, prop.major, prop.minor, TD_CUDA_ARCHS, prop.major, prop.minor,
        prop.major == 9 ? "a" : "");
  if (e != cudaSuccess)
    return td_cuda_fail(err, e, "the device cannot be used");
  b->cc_major = prop.major;
  b->n_sms = prop.multiProcessorCount;
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  snprintf(b->base.identity, sizeof b->base.identity, "%.100s cc%d.%d sm%d driver%d runtime%d", prop.name,
           prop.major, prop.minor, prop.multiProcessorCount, driver, runtime);
  return TD_OK;
}

static td_status pick_device(cuda_backend *b, td_error *err)
{
  int n = 0;
  TD_TRY(count_devices(&n, err));
  if (b->device >= n)
    return td_fail_param(err, TD_ERR_CONFIG, "device",
                         "device = %d, but there is no such GPU: %d is the highest", b->device, n - 1);
  cudaError_t e = cudaSetDevice(b->device);
  if (e != cudaSuccess)
    return td_cuda_fail(err, e, "the device cannot be used");
  return check_device(b, err);
}

static td_status run_probe(cuda_backend *b, td_error *err)
{
  uint32_t *has_wgmma, found = 0;
  TD_TRY(td_cuda_alloc_array(b, 1, &has_wgmma, err));
  probe_kernel<<<1, 1, 0, b->stream>>>(has_wgmma);
  cudaError_t e = cudaGetLastError();
  if (e == cudaSuccess)
    e = cudaMemcpyAsync(&found, has_wgmma, sizeof found, cudaMemcpyDeviceToHost, b->stream);
  if (e == cudaSuccess)
    e = cudaStreamSynchronize(b->stream);
  b->has_wgmma = found == 1;
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "the device cannot be used");
}

static const td_backend_ops cuda_ops = {
    .name = "cuda",
    .destroy = be_destroy,
    .alloc = be_alloc,
    .upload_f32 = be_upload_f32,
    .download = be_download,
    .weight_import = td_cuda_weight_import,
    .weights_wait = td_cuda_weights_wait,
    .kv_check = be_kv_check,
    .kv_bytes_per_page = be_kv_bytes_per_page,
    .kv_fixed_bytes = be_kv_fixed_bytes,
    .kv_budget_bytes = be_kv_budget_bytes,
    .kv_create = be_kv_create,
    .kv_destroy = be_kv_destroy,
    .set_sampling = td_cuda_set_sampling,
    .prepare_slot = td_cuda_prepare_slot,
    .compile = td_cuda_compile,
    .discard = td_cuda_discard,
    .submit = td_cuda_submit,
    .sample = td_cuda_sample_step,
    .forward_ended = td_cuda_forward_ended,
    .wait = td_cuda_wait,
    .tune = td_cuda_tune,
    .capture = td_cuda_capture,
    .trap = be_trap,
};

td_status td_cuda_backend_create(const td_backend_config *config, td_backend **out, td_error *err)
{
  cuda_backend *b = new (std::nothrow) cuda_backend();
  if (!b)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the CUDA backend");
  b->base.ops = &cuda_ops;
  b->base.activation_bytes = sizeof(bf16);
  b->base.weight_bytes = sizeof(bf16);
  b->config = *config;
  td_backend_choose_sizes(&b->config, 256, 4096);
  const char *share = getenv("TANDEM_SHARE"); // for tests of a whole daemon: a small model's decodes would
                                              // share nothing by predicted time
  if (share && strcmp(share, td_attention_always.name) == 0 && !b->config.attention_policy)
    b->config.attention_policy = &td_attention_always;
  b->base.pipeline_depth = 2;
  b->base.max_rows = b->config.max_rows;
  b->base.max_tokens = b->config.max_tokens;
  b->base.max_logits = b->config.max_rows + b->config.prompt_logits;
  b->device = (int)config->device;
  b->allocations = new std::vector<void *>();
  b->weights = new std::vector<td_weight *>();
  b->kvs = new std::vector<td_kv *>();
  b->groups = new std::vector<attention_group *>();
  td_status st = pick_device(b, err);
  if (st == TD_OK) {
    cudaError_t e = cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking);
    if (e != cudaSuccess)
      st = td_cuda_fail(err, e, "no stream");
    else
      st = td_lt_open(b, err);
  }
  if (st == TD_OK)
    st = run_probe(b, err);
  if (st == TD_OK)
    st = td_stream_open(b, err);
  if (st == TD_OK)
    st = td_glu_open(b, err);
  if (st == TD_OK)
    st = td_fused_open(b, err);
  if (st == TD_OK)
    st = td_cuda_make_step_memory(b, err);
  if (st != TD_OK) {
    be_destroy(&b->base);
    return st;
  }
  *out = &b->base;
  return TD_OK;
}
