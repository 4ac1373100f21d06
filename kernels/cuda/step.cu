// The step's frame: the plan goes up in one copy (packed into a pinned block at fixed offsets), the sampled ids come back in
// one. Faults are noted as they appear and told by step_end.
#include "kernels/cuda/internal.cuh"

#include <cstdlib>
#include <cstring>

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

void td_cuda_step_begin(td_backend *be, const td_plan *plan)
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

td_status td_cuda_step_end(td_backend *be, int32_t *token_ids, td_error *err)
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
    return td_cuda_fail(err, e, "the step failed");
  memcpy(token_ids, b->sampled_host, n * sizeof(int32_t));
  return TD_OK;
}

void td_cuda_set_sampling(td_backend *be, uint32_t slot, const td_sampling *sampling)
{
  cuda_backend *b = self(be);
  TD_BUG_ON(slot >= b->config.max_slots);
  // pageable source: the runtime stages it before the call returns
  note(b, cudaMemcpyAsync(b->sampling + slot, sampling, sizeof *sampling, cudaMemcpyHostToDevice, b->stream));
}

td_status td_cuda_make_step_memory(cuda_backend *b, td_error *err)
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
    return td_cuda_fail(err, e, "no pinned memory for the step");
  b->items.max_items = td_attention_items_max(c->max_rows, c->max_tokens);
  b->items.items = (td_attention_item *)calloc(b->items.max_items, sizeof *b->items.items);
  b->items.merges = (td_attention_merge *)calloc(TD_SPLITS_MAX, sizeof *b->items.merges);
  if (!b->items.items || !b->items.merges)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the attention plan");
  TD_TRY(td_cuda_alloc_array(b, b->staging_bytes, &b->staged, err));
  TD_TRY(td_cuda_alloc_array(b, b->page_table_entries, &b->batch.page_table, err));
  TD_TRY(td_cuda_alloc_array(b, c->max_slots, &b->sampling, err));
  TD_TRY(td_cuda_alloc_array(b, c->max_rows, &b->sampled, err));
  TD_TRY(td_cuda_alloc_array(b, b->items.max_items, &b->device_items, err));
  TD_TRY(td_cuda_alloc_array(b, TD_SPLITS_MAX, &b->device_merges, err));
  TD_TRY(td_cuda_alloc_array(b, (size_t)64 << 20, (unsigned char **)&b->lt_workspace, err));
  b->batch.token_ids = (const int32_t *)(b->staged + l.token_ids);
  b->batch.positions = (const int32_t *)(b->staged + l.positions);
  b->batch.token_row = (const uint32_t *)(b->staged + l.token_row);
  b->batch.rows = (const td_plan_row *)(b->staged + l.rows);
  b->batch.logits_rows = (const uint32_t *)(b->staged + l.logits_rows);
  return TD_OK;
}
