// The CUDA backend behind kernels.h: memory, KV stores, create and destroy.
#include "kernels/cuda/fused.cuh"
#include "kernels/cuda/program.cuh"
#include "kernels/cuda/logits_processors.cuh"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

// ---- memory ----

static td_status be_alloc(td_backend *be, size_t bytes, td_devptr *out, td_error *err)
{
  return td_cuda_alloc_bytes(&self(be)->device, bytes, (void **)&out->addr, err);
}

static td_status be_upload_f32(td_backend *be, const float *src, size_t n, td_devptr *out, td_error *err)
{
  TD_TRY(td_cuda_alloc_bytes(&self(be)->device, n * sizeof *src, (void **)&out->addr, err));
  cudaError_t e = td_cuda_copy_in(&self(be)->device, (void *)out->addr, src, n * sizeof *src);
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "copy to the device");
}

static td_status be_download(td_backend *be, td_devptr src, size_t bytes, void *dst, td_error *err)
{
  cudaError_t e = cudaStreamSynchronize(self(be)->device.stream);
  if (e == cudaSuccess)
    e = cudaMemcpy(dst, (const void *)src.addr, bytes, cudaMemcpyDeviceToHost);
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "copy from the device");
}

// ---- KV ----

static size_t be_kv_bytes_per_page(const td_backend *be, const td_kv_spec *s)
{
  (void)be;
  size_t bytes = 0;
  for (uint32_t i = 0; i < s->n_groups; i++)
    bytes += s->groups[i].n_layers * kv_page_elements(s->page_tokens, &s->groups[i]) *
             kv_element_bytes(&s->groups[i]);
  return bytes;
}

static size_t be_kv_fixed_bytes(const td_backend *be, const td_kv_spec *s)
{
  size_t bytes = 0;
  for (uint32_t i = 0; i < s->n_groups; i++)
    bytes += td_cuda_group_bytes((const cuda_backend *)be, s->page_tokens, &s->groups[i]);
  return bytes;
}

// What gpu_memory_percent leaves after weights, workspace and other programs.
static uint64_t be_kv_budget_bytes(const td_backend *be)
{
  const cuda_backend *b = (const cuda_backend *)be;
  size_t free_bytes = 0, total = 0;
  cudaMemGetInfo(&free_bytes, &total);
  uint64_t kept = (uint64_t)total / 100 * (100 - b->config.gpu_memory_percent);
  return free_bytes > kept ? free_bytes - kept : 0;
}

static td_status check_group(const cuda_backend *b, uint32_t page_tokens, const td_kv_group *g, td_error *err)
{
  if (g->dtype != b->base.kv_dtype)
    return td_fail(err, TD_ERR_UNSUPPORTED, "the CUDA backend keeps KV as %s, not %s",
                   td_dtypes[b->base.kv_dtype].name, td_dtypes[g->dtype].name);
  if (g->head_dim != 64 && g->head_dim != 96 && g->head_dim != 128 && g->head_dim != 256)
    return td_fail(
        err, TD_ERR_UNSUPPORTED,
        "the CUDA backend has no attention kernel for heads of %u elements, only for 64, 96, 128 and 256; "
        "backend = cpu serves this model",
        g->head_dim);
  if (g->n_heads / g->n_kv_heads > TD_GQA_GROUP_MAX)
    return td_fail(err, TD_ERR_UNSUPPORTED,
                   "the CUDA backend has no attention kernel for %u heads over %u kv heads, only for up to "
                   "%d a kv head; "
                   "backend = cpu serves this model",
                   g->n_heads, g->n_kv_heads, (int)TD_GQA_GROUP_MAX);
  td_attention_planner_config plans;
  if (b->config.attention_policy && !td_cuda_planner_config(b, page_tokens, g, &plans))
    return td_fail(err, TD_ERR_UNSUPPORTED,
                   "policy %s: decodes are planned on a Hopper GPU, for heads of 64, 96 or 128 and up to %d "
                   "of them a kv head, without "
                   "batch_invariant; not for %u heads of %u over %u kv heads",
                   b->config.attention_policy->name, (int)TD_DECODE_ROWS, g->n_heads, g->head_dim,
                   g->n_kv_heads);
  return TD_OK;
}

static td_status be_kv_check(const td_backend *be, const td_kv_spec *s, td_error *err)
{
  if (s->page_tokens != 16 && s->page_tokens != 32 && s->page_tokens != 64)
    return td_fail(err, TD_ERR_UNSUPPORTED, "the CUDA backend has pages of 16, 32 or 64 tokens, not %u",
                   s->page_tokens);
  for (uint32_t i = 0; i < s->n_groups; i++)
    TD_TRY(check_group((const cuda_backend *)be, s->page_tokens, &s->groups[i], err));
  return TD_OK;
}

static void free_kv(cuda_backend *b, td_cuda_kv *kv)
{
  for (attention_group *g : kv->groups)
    td_cuda_remove_group(b, g);
  delete kv;
}

static td_status be_kv_create(td_backend *be, const td_kv_spec *spec, td_kv **out, td_error *err)
{
  cuda_backend *b = self(be);
  TD_BUG_ON(spec->n_groups == 0 || spec->n_groups > TD_KV_GROUPS_MAX);
  TD_TRY(be_kv_check(be, spec, err));
  td_cuda_kv *kv = new (std::nothrow) td_cuda_kv();
  if (!kv)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the KV store");
  kv->spec = *spec;
  td_status st = TD_OK;
  for (uint32_t i = 0; i < spec->n_groups && st == TD_OK; i++)
    st = td_cuda_add_group(b, spec, &spec->groups[i], &kv->groups[i], err);
  if (st != TD_OK) {
    free_kv(b, kv);
    return st;
  }
  b->attention.stores.push_back(kv);
  *out = kv;
  return TD_OK;
}

static void be_kv_destroy(td_backend *be, td_kv *store)
{
  cuda_backend *b = self(be);
  td_cuda_kv *kv = (td_cuda_kv *)store;
  record_error(&b->device, cudaStreamSynchronize(b->device.stream));
  b->attention.stores.erase(std::find(b->attention.stores.begin(), b->attention.stores.end(), kv));
  free_kv(b, kv);
}

// ---- create, destroy ----

static void be_destroy(td_backend *be)
{
  cuda_backend *b = self(be);
  td_cuda_weights_abandon(&b->weights);
  if (b->device.stream)
    cudaStreamSynchronize(b->device.stream);
  for (td_cuda_kv *kv : b->attention.stores)
    free_kv(b, kv);
  for (td_cuda_weight *w : b->weights.all)
    delete w;
  td_lt_close(b);
  td_cuda_free_step_memory(b);
  td_cuda_device_close(&b->device);
  delete b;
}

static void be_trap(td_backend *be) { td_cuda_device_trap(&self(be)->device); }

static const td_backend_ops cuda_ops = {
    .name = "cuda",
    .destroy = be_destroy,
    .alloc = be_alloc,
    .upload_f32 = be_upload_f32,
    .download = be_download,
    .weight_type = td_cuda_weight_type,
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
    .tune_begin = td_cuda_tune_begin,
    .tune = td_cuda_tune,
    .tune_end = td_cuda_tune_end,
    .capture = td_cuda_capture,
    .trap = be_trap,
};

static td_status open_parts(cuda_backend *b, td_error *err)
{
  TD_TRY(td_cuda_device_open(&b->device, b->config.device, err));
  memcpy(b->base.identity, b->device.identity, sizeof b->base.identity);
  if (cudaDeviceGetPCIBusId(b->base.pci_bus_id, sizeof b->base.pci_bus_id, b->device.id) != cudaSuccess)
    b->base.pci_bus_id[0] = 0;
  b->base.attends_beside = b->device.has_wgmma && !b->config.batch_invariant;
  b->base.bytes_us = b->device.bytes_us;
  b->base.flop_us = b->device.flop_us;
  TD_TRY(td_lt_open(b, err));
  TD_TRY(td_skinny_open(b, err));
  TD_TRY(td_skinny_swiglu_open(b, err));
  TD_TRY(td_gemm_swiglu_open(b, err));
  TD_TRY(td_fused_open(b, err));
  return td_cuda_make_step_memory(b, err);
}

td_status td_cuda_backend_create(const td_backend_config *config, td_backend **out, td_error *err)
{
  cuda_backend *b = new (std::nothrow) cuda_backend();
  if (!b)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the CUDA backend");
  b->base.ops = &cuda_ops;
  b->base.activation_bytes = sizeof(bf16);
  b->base.on_device = true;
  b->base.kv_dtype = TD_BF16;
  b->config = *config;
  td_backend_choose_sizes(&b->config, 256, 4096);
  const char *share = getenv("TANDEM_SHARE"); // lets tests of a whole daemon force sharing, which a small
                                              // model's predicted times would never choose
  if (share && strcmp(share, td_attention_always.name) == 0 && !b->config.attention_policy)
    b->config.attention_policy = &td_attention_always;
  b->base.pipeline_depth = 2;
  b->base.max_rows = b->config.max_rows;
  b->base.max_tokens = b->config.max_tokens;
  b->base.max_logits = b->config.max_rows + b->config.prompt_logits;
  b->base.rank = b->config.rank;
  b->base.n_ranks = b->config.n_ranks;
  td_status st = open_parts(b, err);
  if (st != TD_OK) {
    be_destroy(&b->base);
    return st;
  }
  *out = &b->base;
  return TD_OK;
}
