// Recorded steps: CUDA graphs of decode steps, made at start, one for each of some row counts.
//
// A step runs on the smallest recording that holds it, so it may have fewer rows than that. Kernels that write beyond a row's own output (KV
// lines, sampled ids) look at the true counts on the device. Grids are as large as any step of so many rows needs; where that is much more
// than most need, attention for decodes, they are set anew before a replay: 2,400 blocks that find nothing to do take 2.5 us, in
// each layer.
#include "kernels/cuda/fused.cuh"

#include <algorithm>
#include <utility>

// The frame of a step that exists only to be queued: its grids are for n_rows, its counts say that there are none.
static void frame_empty_step(cuda_backend *b, td_plan *plan, uint32_t n_rows, attention_mode mode)
{
  TD_BUG_ON(n_rows == 0 || n_rows > b->config.max_rows || b->plan);
  plan->n_rows = plan->n_tokens = plan->n_logits = plan->n_decode_rows = n_rows;
  plan->page_tokens = b->groups->empty() ? 16 : b->groups->front()->kv->shape.page_tokens;
  b->batch.page_tokens = plan->page_tokens;
  b->plan = plan;
  b->mode = mode;
  note(b, cudaMemsetAsync(b->counts, 0, TD_KV_GROUPS_MAX * N_COUNTS * sizeof *b->counts, b->stream));
}

static cudaError_t end_empty_step(cuda_backend *b)
{
  b->plan = nullptr;
  b->mode = ATTENTION_PRIVATE;
  cudaError_t e = b->fault;
  b->fault = cudaSuccess;
  return e;
}

td_status td_cuda_queue_empty_step(cuda_backend *b, uint32_t n_rows, void (*queue)(void *arg, const td_plan *plan), void *arg,
                                   td_error *err)
{
  td_plan plan = {};
  frame_empty_step(b, &plan, n_rows, ATTENTION_CAPTURE_PRIVATE);
  queue(arg, &plan);
  note(b, cudaStreamSynchronize(b->stream));
  cudaError_t e = end_empty_step(b);
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "a step could not be tried");
}

// The group whose decodes the kernel does, or null.
static const attention_group *group_of_kernel(const cuda_backend *b, const cudaKernelNodeParams &params)
{
  for (const attention_group *g : *b->groups)
    if (params.func == g->decode_kernel && ((const decode_works *)params.kernelParams[DECODE_WORKS_ARGUMENT])->items == g->device_items)
      return g;
  return nullptr;
}

// Where the recording launches attention for decodes. Nodes of other libraries have parameters that this one's runtime does not know.
static cudaError_t find_decodes(const cuda_backend *b, recording *r)
{
  size_t n = 0;
  cudaError_t e = cudaGraphGetNodes(r->graph, nullptr, &n);
  std::vector<cudaGraphNode_t> nodes(n);
  if (e == cudaSuccess)
    e = cudaGraphGetNodes(r->graph, nodes.data(), &n);
  for (size_t i = 0; i < n && e == cudaSuccess; i++) {
    recorded_kernel k = {nodes[i]};
    cudaGraphNodeType type;
    e = cudaGraphNodeGetType(nodes[i], &type);
    if (e != cudaSuccess || type != cudaGraphNodeTypeKernel)
      continue;
    if (cudaGraphKernelNodeGetParams(nodes[i], &k.params) != cudaSuccess)
      cudaGetLastError();
    else if ((k.group = group_of_kernel(b, k.params)) != nullptr) {
      k.most_blocks = k.params.gridDim.x;
      r->decodes.push_back(k);
    }
  }
  return e;
}

static void free_recording(const recording &r)
{
  if (r.exec)
    cudaGraphExecDestroy(r.exec);
  if (r.graph)
    cudaGraphDestroy(r.graph);
}

// In the place of an earlier one for the same steps, if there is one.
static void keep_recording(cuda_backend *b, recording &&r)
{
  b->base.n_fused_steps += r.fused;
  b->base.n_fitted_steps += !r.decodes.empty();
  for (recording &old : *b->recordings)
    if (old.n_rows == r.n_rows && old.of_plan == r.of_plan) {
      b->base.n_fused_steps -= old.fused;
      b->base.n_fitted_steps -= !old.decodes.empty();
      free_recording(old);
      old = std::move(r);
      return;
    }
  b->recordings->push_back(std::move(r));
}

static td_status record_one(cuda_backend *b, uint32_t n_rows, bool of_plan, void (*queue)(void *arg, const td_plan *plan), void *arg,
                            td_error *err)
{
  td_plan plan = {};
  fused_step fused;
  recording r = {n_rows, of_plan};
  frame_empty_step(b, &plan, n_rows, of_plan ? ATTENTION_CAPTURE_SHARED : ATTENTION_CAPTURE_PRIVATE);
  for (attention_group *g : *b->groups)
    g->decode_kernel = nullptr;
  bool is_fused = td_fused_make(b, &plan, queue, arg, &fused);
  // once for real: what libraries set up at first use must not happen while recording
  is_fused ? td_fused_queue(b, fused) : queue(arg, &plan);
  note(b, cudaStreamSynchronize(b->stream));
  note(b, cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal));
  is_fused ? td_fused_queue(b, fused) : queue(arg, &plan);
  note(b, cudaStreamEndCapture(b->stream, &r.graph));
  if (b->fault == cudaSuccess)
    note(b, find_decodes(b, &r));
  if (b->fault == cudaSuccess)
    note(b, cudaGraphInstantiate(&r.exec, r.graph, 0));
  cudaError_t e = end_empty_step(b);
  if (e != cudaSuccess) {
    free_recording(r);
    return td_cuda_fail(err, e, "a step could not be recorded");
  }
  r.fused = is_fused;
  keep_recording(b, std::move(r));
  return TD_OK;
}

// Twice where decodes may share prefixes: steps in which they do not have a kernel that knows nothing of it, and may be fused.
td_status td_cuda_record(td_backend *be, uint32_t n_rows, void (*queue)(void *arg, const td_plan *plan), void *arg,
                         td_error *err)
{
  cuda_backend *b = self(be);
  bool shares = false;
  for (const attention_group *g : *b->groups)
    shares |= g->planner != nullptr;
  if (shares)
    TD_TRY(record_one(b, n_rows, true, queue, arg, err));
  return record_one(b, n_rows, false, queue, arg, err);
}

// The smallest recording that holds the step, or null.
static recording *recording_for(const cuda_backend *b, const td_plan *plan)
{
  recording *best = nullptr;
  bool of_plan = shares_prefixes(b);
  if (plan->n_logits != plan->n_rows || plan->n_tokens != plan->n_rows)
    return nullptr;
  for (recording &r : *b->recordings)
    if (r.of_plan == of_plan && r.n_rows >= plan->n_rows && (!best || r.n_rows < best->n_rows))
      best = &r;
  return best;
}

// As many blocks for the decodes as this step's items need, or somewhat more, so that one step is seldom set otherwise than the one before.
static void fit_decodes(cuda_backend *b, recording *r)
{
  enum { SPARE_BLOCKS = 384, GRAIN_BLOCKS = 128 };
  for (recorded_kernel &k : r->decodes) {
    uint32_t n_kv_heads = k.group->kv->shape.n_kv_heads, now = k.params.gridDim.x;
    uint32_t need = std::max(1u, td_work_list_ctas(&k.group->work, WARPS_OF_DECODES)) * n_kv_heads;
    TD_BUG_ON(need > k.most_blocks);
    if (need <= now && now - need <= SPARE_BLOCKS)
      continue;
    k.params.gridDim.x = std::min((need + GRAIN_BLOCKS - 1) / GRAIN_BLOCKS * GRAIN_BLOCKS, k.most_blocks);
    note(b, cudaGraphExecKernelNodeSetParams(r->exec, k.node, &k.params));
  }
}

bool td_cuda_replay(td_backend *be)
{
  cuda_backend *b = self(be);
  recording *best = recording_for(b, b->plan);
  if (!best)
    return false;
  fit_decodes(b, best);
  note(b, cudaGraphLaunch(best->exec, b->stream));
  return true;
}

void td_cuda_free_recordings(cuda_backend *b)
{
  for (const recording &r : *b->recordings)
    free_recording(r);
}
