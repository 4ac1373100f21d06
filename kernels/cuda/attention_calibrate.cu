// What decode attention's plans cost on this very device (kernels/attention/fit.h): trials are run with the kernel that serves, over the KV
// memory that serves, before the first request. Layers take turns, so that a trial's keys are not what the trial before has left in the
// L2 cache.
#include <cmath>

#include "kernels/cuda/attention.cuh"

extern "C" {
#include "config/log.h"
#include "kernels/attention/fit.h"
}

enum { LAUNCHES = 8, TRIAL_ROWS = 256 };

// The engine's own step memory is not touched: a batch of the trials' own stands in for it while a trial runs.
struct trial_memory {
  cuda_backend *b;
  const td_kv *kv;
  bf16 *qkv, *out;
  int32_t *page_table;
  uint32_t *counts;
  uint32_t page_table_len, turn;
  cudaEvent_t begin, end;
};

static td_status queue_trial(trial_memory *m, const td_plan *plan, const td_attention_header *block, float *ms, td_error *err)
{
  cuda_backend *b = m->b;
  const td_kv_shape *s = &m->kv->shape;
  const td_plan_row *last = &plan->rows[plan->n_rows - 1];
  size_t n_pages = last->page_table_offset + (last->kv_len + s->page_tokens - 1) / s->page_tokens;
  uint32_t counts[N_COUNTS] = {};
  counts[COUNT_TOKENS] = plan->n_tokens;
  counts[COUNT_ROWS] = plan->n_rows;
  counts[COUNT_TASKS] = block->n_tasks;
  device_batch own = b->batch;
  own.page_table = m->page_table;
  own.page_tokens = s->page_tokens;
  own.counts = m->counts;
  cudaError_t e = cudaMemcpyAsync(b->device_plan, block, block->block_bytes, cudaMemcpyHostToDevice, b->stream);
  if (e == cudaSuccess)
    e = cudaMemcpyAsync(m->page_table, plan->page_table, n_pages * sizeof(int32_t), cudaMemcpyHostToDevice, b->stream);
  if (e == cudaSuccess)
    e = cudaMemcpyAsync(m->counts, counts, sizeof counts, cudaMemcpyHostToDevice, b->stream);
  if (e != cudaSuccess)
    return td_cuda_fail(err, e, "measuring attention");
  device_batch served = b->batch;
  b->batch = own;
  for (int i = -1; i < LAUNCHES; i++) { // the first is not timed
    if (i == 0)
      note(b, cudaEventRecord(m->begin, b->stream));
    size_t layer = (m->turn++) % s->n_layers * ((size_t)s->n_pages * s->n_kv_heads * 2 * s->page_tokens * s->head_dim);
    attention_args a = {m->qkv, m->out, m->kv->data + layer, b->partials,
                        (float)(1.4426950408889634 / sqrt((double)s->head_dim)), 0, s->n_heads, s->n_kv_heads, s->n_heads / s->n_kv_heads,
                        td_cuda_sure_places(b, s->n_kv_heads)};
    td_cuda_unified_attention(b, a, s->head_dim);
  }
  note(b, cudaEventRecord(m->end, b->stream));
  e = cudaStreamSynchronize(b->stream);
  b->batch = served;
  e = e == cudaSuccess ? b->fault : e;
  b->fault = cudaSuccess;
  if (e == cudaSuccess)
    e = cudaEventElapsedTime(ms, m->begin, m->end);
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "measuring attention");
}

static td_status run_trial(void *arg, const td_plan *plan, const td_attention_header *block, double *us, td_error *err)
{
  trial_memory *m = (trial_memory *)arg;
  float ms = 0;
  TD_TRY(queue_trial(m, plan, block, &ms, err));
  *us = ms * 1e3 / LAUNCHES;
  return TD_OK;
}

static td_status make_memory(trial_memory *m, td_error *err)
{
  const td_kv_shape *s = &m->kv->shape;
  size_t queries = (size_t)TRIAL_ROWS * s->n_heads * s->head_dim, all = queries + (size_t)TRIAL_ROWS * 2 * s->n_kv_heads * s->head_dim;
  cudaError_t e = cudaMalloc((void **)&m->qkv, all * sizeof(bf16));
  if (e == cudaSuccess)
    e = cudaMemset(m->qkv, 0, all * sizeof(bf16));
  if (e == cudaSuccess)
    e = cudaMalloc((void **)&m->out, queries * sizeof(bf16));
  if (e == cudaSuccess)
    e = cudaMalloc((void **)&m->page_table, m->page_table_len * sizeof(int32_t));
  if (e == cudaSuccess)
    e = cudaMalloc((void **)&m->counts, N_COUNTS * sizeof(uint32_t));
  if (e == cudaSuccess)
    e = cudaEventCreate(&m->begin);
  if (e == cudaSuccess)
    e = cudaEventCreate(&m->end);
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "measuring attention");
}

static void free_memory(trial_memory *m)
{
  for (void *p : {(void *)m->qkv, (void *)m->out, (void *)m->page_table, (void *)m->counts})
    cudaFree(p);
  if (m->begin)
    cudaEventDestroy(m->begin);
  if (m->end)
    cudaEventDestroy(m->end);
}

td_status td_cuda_calibrate_attention(cuda_backend *b, const char *cache_folder, bool measure, td_error *err)
{
  if (!b->planner)
    return TD_OK;
  trial_memory m = {};
  m.b = b;
  m.kv = b->kvs->back();
  const td_kv_shape *s = &m.kv->shape;
  td_attention_fit_request r = {};
  td_attention_fitted f = {};
  const td_attention_planner_config served = td_attention_planner_config_of(b->planner);
  r.config = served;
  if (served.shared_only) // trials have a launch of their own
    td_cuda_plan_in_one_launch(b, &r.config);
  r.config.max_rows = r.config.max_rows < TRIAL_ROWS ? r.config.max_rows : (uint32_t)TRIAL_ROWS;
  r.max_block_bytes = td_attention_planner_block_bytes(b->planner);
  r.n_pages = s->n_pages;
  r.page_table_entries = m.page_table_len = TD_ATTENTION_FIT_PAGES_MAX;
  r.run = run_trial;
  r.arg = &m;
  td_status st = make_memory(&m, err);
  if (st == TD_OK)
    st = td_attention_calibrate(&r, cache_folder, b->base.identity, measure, &f, err);
  free_memory(&m);
  if (st == TD_ERR_CAPACITY || st == TD_ERR_CONFIG) { // no reason not to serve
    td_warn("attention is planned by an H200's costs: %s", err->message);
    return TD_OK;
  }
  TD_TRY(st);
  if (served.shared_only) { // memory's rate alone is the same (kernels/attention/README.md)
    double memory_bytes_us = f.cost.memory_bytes_us * r.config.n_workers / served.n_workers;
    f.cost = served.cost;
    f.cost.memory_bytes_us = memory_bytes_us;
  }
  return td_attention_planner_set_cost(b->planner, &f.cost, err);
}
