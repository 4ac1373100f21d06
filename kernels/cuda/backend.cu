// The CUDA backend behind kernels.h: device, memory, weights, and the step's upload and end.
//
// A step makes one host-to-device copy (the plan, packed into a pinned block at fixed offsets), then launches, then
// one copy back of the sampled ids. Faults are noted as they appear and told by step_end.
#include "kernels/cuda/internal.cuh"

#include <cstdlib>
#include <cstring>
#include <new>

// ---- memory ----

static td_status cuda_fail(td_error *err, cudaError_t e, const char *what)
{
  return td_fail(err, e == cudaErrorMemoryAllocation ? TD_ERR_NOMEM : TD_ERR_DEVICE, "CUDA: %s: %s", what,
                 cudaGetErrorString(e));
}

static td_status alloc_bytes(cuda_backend *b, size_t bytes, void **out, td_error *err)
{
  cudaError_t e = cudaMalloc(out, bytes ? bytes : 1);
  if (e != cudaSuccess) {
    size_t free_bytes = 0, total = 0;
    (void)cudaGetLastError();
    cudaMemGetInfo(&free_bytes, &total);
    return td_fail(err, TD_ERR_NOMEM, "CUDA: no %.0f MiB of device memory (%.0f of %.0f MiB free)", bytes / 1048576.0,
                   free_bytes / 1048576.0, total / 1048576.0);
  }
  b->allocations->push_back(*out);
  // the stream does not wait for the default stream, so what other calls copy must come behind this
  e = cudaMemsetAsync(*out, 0, bytes ? bytes : 1, b->stream);
  if (e == cudaSuccess)
    e = cudaStreamSynchronize(b->stream);
  return e == cudaSuccess ? TD_OK : cuda_fail(err, e, "memset");
}

template <typename T> static td_status alloc_array(cuda_backend *b, size_t n, T **out, td_error *err)
{
  return alloc_bytes(b, n * sizeof(T), (void **)out, err);
}

// To the device, done when it returns. cudaMemcpy alone is not: it may return while the last staged piece of
// pageable memory is still on its way, and the stream does not wait for the default stream.
static cudaError_t copy_in(cuda_backend *b, void *dst, const void *src, size_t bytes)
{
  cudaError_t e = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, b->stream);
  return e == cudaSuccess ? cudaStreamSynchronize(b->stream) : e;
}

static td_status be_alloc(td_backend *be, size_t bytes, td_devptr *out, td_error *err)
{
  return alloc_bytes(self(be), bytes, (void **)&out->addr, err);
}

static td_status be_upload_f32(td_backend *be, const float *src, size_t n, td_devptr *out, td_error *err)
{
  TD_TRY(alloc_bytes(self(be), n * sizeof *src, (void **)&out->addr, err));
  cudaError_t e = copy_in(self(be), (void *)out->addr, src, n * sizeof *src);
  return e == cudaSuccess ? TD_OK : cuda_fail(err, e, "copy to the device");
}

static td_status be_download(td_backend *be, td_devptr src, size_t bytes, void *dst, td_error *err)
{
  cudaError_t e = cudaStreamSynchronize(self(be)->stream);
  if (e == cudaSuccess)
    e = cudaMemcpy(dst, (const void *)src.addr, bytes, cudaMemcpyDeviceToHost);
  return e == cudaSuccess ? TD_OK : cuda_fail(err, e, "copy from the device");
}

// ---- weights: widened or narrowed to bf16 on the way ----

static td_status upload_rows(cuda_backend *b, const td_weight_part *part, uint64_t n_cols, bf16 *dst, td_error *err)
{
  uint64_t row_bytes;
  if (!td_dtype_row_bytes(part->dtype, n_cols, &row_bytes))
    return td_fail(err, TD_ERR_MODEL, "rows of %llu elements do not fit %s blocks", (unsigned long long)n_cols,
                   td_dtypes[part->dtype].name);
  if (part->dtype == TD_BF16) {
    cudaError_t e = copy_in(b, dst, part->data, part->n_rows * row_bytes);
    return e == cudaSuccess ? TD_OK : cuda_fail(err, e, "copy of weights");
  }
  const uint64_t rows_at_once = 1 + (8u << 20) / (n_cols * 2);
  std::vector<float> wide(n_cols);
  std::vector<uint16_t> narrow(n_cols * rows_at_once);
  for (uint64_t r = 0; r < part->n_rows; r += rows_at_once) {
    uint64_t n = part->n_rows - r < rows_at_once ? part->n_rows - r : rows_at_once;
    for (uint64_t i = 0; i < n; i++) {
      td_dtype_to_f32(part->dtype, (const char *)part->data + (r + i) * row_bytes, n_cols, wide.data());
      for (uint64_t k = 0; k < n_cols; k++)
        narrow[i * n_cols + k] = td_f32_to_bf16(wide[k]);
    }
    cudaError_t e = copy_in(b, dst + r * n_cols, narrow.data(), n * n_cols * 2);
    if (e != cudaSuccess)
      return cuda_fail(err, e, "copy of weights");
  }
  return TD_OK;
}

static td_status be_weight_import(td_backend *be, const td_weight_part *parts, uint32_t n_parts, uint64_t n_cols,
                                  td_weight **out, td_error *err)
{
  cuda_backend *b = self(be);
  uint64_t n_rows = 0;
  bool any_bias = false;
  for (uint32_t i = 0; i < n_parts; i++) {
    n_rows += parts[i].n_rows;
    any_bias |= parts[i].bias != nullptr;
  }
  if (n_cols % 8 != 0) // 16-byte loads
    return td_fail(err, TD_ERR_UNSUPPORTED, "the CUDA backend needs rows in multiples of 8, not %llu x %llu",
                   (unsigned long long)n_rows, (unsigned long long)n_cols);
  td_weight *w = new (std::nothrow) td_weight();
  if (!w)
    return td_fail(err, TD_ERR_NOMEM, "no memory for a weight");
  b->weights->push_back(w);
  w->n_out = (uint32_t)n_rows;
  w->n_in = (uint32_t)n_cols;
  TD_TRY(alloc_array(b, n_rows * n_cols, &w->data, err));
  if (any_bias)
    TD_TRY(alloc_array(b, n_rows, &w->bias, err));
  uint64_t row = 0;
  for (uint32_t i = 0; i < n_parts; i++) {
    TD_TRY(upload_rows(b, &parts[i], n_cols, w->data + row * n_cols, err));
    if (parts[i].bias) {
      td_weight_part bias = {TD_F32, parts[i].bias, 1, nullptr};
      TD_TRY(upload_rows(b, &bias, parts[i].n_rows, w->bias + row, err));
    }
    row += parts[i].n_rows;
  }
  *out = w;
  return TD_OK;
}

// ---- KV ----

static size_t be_kv_bytes_per_page(const td_backend *be, const td_kv_shape *s)
{
  (void)be;
  return (size_t)s->n_layers * s->n_kv_heads * 2 * s->page_tokens * s->head_dim * sizeof(bf16);
}

static td_status be_kv_create(td_backend *be, const td_kv_shape *shape, td_kv **out, td_error *err)
{
  cuda_backend *b = self(be);
  if (shape->head_dim != 64 && shape->head_dim != 96 && shape->head_dim != 128 && shape->head_dim != 256)
    return td_fail(err, TD_ERR_UNSUPPORTED, "no CUDA attention kernel for head dim %u (there are 64, 96, 128 and 256)",
                   shape->head_dim);
  td_kv *kv = new (std::nothrow) td_kv();
  if (!kv)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the KV store");
  b->kvs->push_back(kv);
  kv->shape = *shape;
  TD_TRY(alloc_bytes(b, be_kv_bytes_per_page(be, shape) * shape->n_pages, (void **)&kv->data, err));
  TD_TRY(alloc_array(b, (size_t)TD_SPLITS_MAX * shape->n_kv_heads * TD_DECODE_ROWS * (shape->head_dim + 2), &b->partials,
                     err));
  *out = kv;
  return TD_OK;
}

// ---- the step ----

struct staging_layout {
  size_t token_ids, positions, token_row, rows, logits_rows, updates;
};

static staging_layout staging_layout_of(const td_backend_config *c)
{
  staging_layout l;
  l.token_ids = 0;
  l.positions = l.token_ids + c->max_tokens * sizeof(int32_t);
  l.token_row = l.positions + c->max_tokens * sizeof(int32_t);
  l.rows = l.token_row + c->max_tokens * sizeof(uint32_t);
  l.logits_rows = l.rows + c->max_rows * sizeof(td_plan_row);
  l.updates = l.logits_rows + c->max_rows * sizeof(uint32_t);
  return l;
}

__global__ void page_update_kernel(int32_t *page_table, const td_plan_page_update *updates, uint32_t n)
{
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    page_table[updates[i].index] = updates[i].page_id;
}

static void be_step_begin(td_backend *be, const td_plan *plan)
{
  cuda_backend *b = self(be);
  staging_layout l = staging_layout_of(&b->config);
  unsigned char *s = b->staging;
  TD_BUG_ON(plan->n_tokens > b->config.max_tokens || plan->n_rows > b->config.max_rows);
  TD_BUG_ON(plan->n_page_updates > b->max_page_updates || plan->page_table_len > b->page_table_entries);
  b->plan = plan;
  b->items_ready = false;
  b->batch.page_tokens = plan->page_tokens;
  memcpy(s + l.token_ids, plan->token_ids, plan->n_tokens * sizeof(int32_t));
  memcpy(s + l.positions, plan->positions, plan->n_tokens * sizeof(int32_t));
  uint32_t *token_row = (uint32_t *)(s + l.token_row);
  for (uint32_t r = 0; r < plan->n_rows; r++)
    for (uint32_t i = 0; i < plan->rows[r].q_len; i++)
      token_row[plan->rows[r].q_start + i] = r;
  memcpy(s + l.rows, plan->rows, plan->n_rows * sizeof(td_plan_row));
  memcpy(s + l.logits_rows, plan->logits_rows, plan->n_logits * sizeof(uint32_t));
  memcpy(s + l.updates, plan->page_updates, plan->n_page_updates * sizeof(td_plan_page_update));
  size_t used = l.updates + plan->n_page_updates * sizeof(td_plan_page_update);
  note(b, cudaMemcpyAsync(b->staged, s, used, cudaMemcpyHostToDevice, b->stream));
  if (plan->n_page_updates > 0) {
    page_update_kernel<<<(plan->n_page_updates + 255) / 256, 256, 0, b->stream>>>(
        b->batch.page_table, (const td_plan_page_update *)(b->staged + l.updates), plan->n_page_updates);
    launched(b);
  }
}

static td_status be_step_end(td_backend *be, int32_t *token_ids, td_error *err)
{
  cuda_backend *b = self(be);
  uint32_t n = b->plan->n_logits;
  if (n > 0)
    note(b, cudaMemcpyAsync(b->sampled_host, b->sampled, n * sizeof(int32_t), cudaMemcpyDeviceToHost, b->stream));
  note(b, cudaStreamSynchronize(b->stream));
  cudaError_t e = b->fault;
  b->fault = cudaSuccess;
  b->plan = nullptr;
  if (e != cudaSuccess)
    return cuda_fail(err, e, "the step failed");
  memcpy(token_ids, b->sampled_host, n * sizeof(int32_t));
  return TD_OK;
}

static void be_set_sampling(td_backend *be, uint32_t slot, const td_sampling *sampling)
{
  cuda_backend *b = self(be);
  TD_BUG_ON(slot >= b->config.max_slots);
  // pageable source: the runtime stages it before the call returns
  note(b, cudaMemcpyAsync(b->sampling + slot, sampling, sizeof *sampling, cudaMemcpyHostToDevice, b->stream));
}

// ---- life ----

static void be_destroy(td_backend *be)
{
  cuda_backend *b = self(be);
  if (b->stream)
    cudaStreamSynchronize(b->stream);
  for (void *p : *b->allocations)
    cudaFree(p);
  for (td_weight *w : *b->weights)
    delete w;
  for (td_kv *kv : *b->kvs)
    delete kv;
  if (b->lt)
    cublasLtDestroy(b->lt);
  if (b->staging)
    cudaFreeHost(b->staging);
  if (b->sampled_host)
    cudaFreeHost(b->sampled_host);
  free(b->items.items);
  free(b->items.merges);
  if (b->stream)
    cudaStreamDestroy(b->stream);
  delete b->algos;
  delete b->allocations;
  delete b->weights;
  delete b->kvs;
  delete b;
}

static const td_backend_ops cuda_ops = {
    "cuda",          be_destroy,     be_alloc,        be_upload_f32,  be_download,
    be_weight_import, be_kv_bytes_per_page, be_kv_create, be_set_sampling, be_step_begin,
    td_cuda_embed,   td_cuda_rmsnorm, td_cuda_linear, td_cuda_rope_kv, td_cuda_attention,
    td_cuda_swiglu,  td_cuda_gather, td_cuda_sample,  be_step_end,
};

static td_status pick_device(cuda_backend *b, td_error *err)
{
  int n = 0, major = 0, minor = 0;
  cudaError_t e = cudaGetDeviceCount(&n);
  if (e != cudaSuccess || n == 0)
    return td_fail(err, TD_ERR_DEVICE, "no usable CUDA device: %s",
                   e == cudaSuccess ? "none is visible" : cudaGetErrorString(e));
  e = cudaSetDevice(b->device);
  if (e != cudaSuccess)
    return cuda_fail(err, e, "cannot use device 0");
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, b->device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, b->device);
  if (major < 8)
    return td_fail(err, TD_ERR_DEVICE, "the CUDA device has compute capability %d.%d; 8.0 is the least that is served",
                   major, minor);
  b->cc_major = major;
  cudaDeviceGetAttribute(&b->n_sms, cudaDevAttrMultiProcessorCount, b->device);
  return TD_OK;
}

static td_status make_step_memory(cuda_backend *b, td_error *err)
{
  const td_backend_config *c = &b->config;
  staging_layout l = staging_layout_of(c);
  b->page_table_entries = c->max_rows * ((c->max_context_tokens + 15) / 16);
  // the scheduler's bound on the updates of one plan (scheduler/README.md), from the same sizes
  b->max_page_updates = b->page_table_entries + 4096 + 2 * (c->max_tokens / 16 + c->max_rows);
  b->staging_bytes = l.updates + (size_t)b->max_page_updates * sizeof(td_plan_page_update);
  cudaError_t e = cudaMallocHost((void **)&b->staging, b->staging_bytes);
  if (e == cudaSuccess)
    e = cudaMallocHost((void **)&b->sampled_host, c->max_rows * sizeof(int32_t));
  if (e != cudaSuccess)
    return cuda_fail(err, e, "no pinned memory for the step");
  b->items.max_items = td_attention_items_max(c->max_rows, c->max_tokens);
  b->items.items = (td_attention_item *)calloc(b->items.max_items, sizeof *b->items.items);
  b->items.merges = (td_attention_merge *)calloc(TD_SPLITS_MAX, sizeof *b->items.merges);
  if (!b->items.items || !b->items.merges)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the attention plan");
  TD_TRY(alloc_array(b, b->staging_bytes, &b->staged, err));
  TD_TRY(alloc_array(b, b->page_table_entries, &b->batch.page_table, err));
  TD_TRY(alloc_array(b, c->max_slots, &b->sampling, err));
  TD_TRY(alloc_array(b, c->max_rows, &b->sampled, err));
  TD_TRY(alloc_array(b, b->items.max_items, &b->device_items, err));
  TD_TRY(alloc_array(b, TD_SPLITS_MAX, &b->device_merges, err));
  TD_TRY(alloc_array(b, (size_t)64 << 20, (unsigned char **)&b->lt_workspace, err));
  b->batch.token_ids = (const int32_t *)(b->staged + l.token_ids);
  b->batch.positions = (const int32_t *)(b->staged + l.positions);
  b->batch.token_row = (const uint32_t *)(b->staged + l.token_row);
  b->batch.rows = (const td_plan_row *)(b->staged + l.rows);
  b->batch.logits_rows = (const uint32_t *)(b->staged + l.logits_rows);
  return TD_OK;
}

td_status td_cuda_backend_create(const td_backend_config *config, td_backend **out, td_error *err)
{
  cuda_backend *b = new (std::nothrow) cuda_backend();
  if (!b)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the CUDA backend");
  b->base.ops = &cuda_ops;
  b->base.activation_bytes = sizeof(bf16);
  b->config = *config;
  b->algos = new std::unordered_map<linear_key, linear_algo, linear_key_hash>();
  b->allocations = new std::vector<void *>();
  b->weights = new std::vector<td_weight *>();
  b->kvs = new std::vector<td_kv *>();
  td_status st = pick_device(b, err);
  if (st == TD_OK) {
    cudaError_t e = cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking);
    if (e != cudaSuccess)
      st = cuda_fail(err, e, "no stream");
    else if (cublasLtCreate(&b->lt) != CUBLAS_STATUS_SUCCESS)
      st = td_fail(err, TD_ERR_DEVICE, "CUDA: cuBLASLt does not start");
  }
  if (st == TD_OK)
    st = make_step_memory(b, err);
  if (st != TD_OK) {
    be_destroy(&b->base);
    return st;
  }
  *out = &b->base;
  return TD_OK;
}
