// Captured steps: one CUDA graph for each of some row counts. A step is captured again when tuning has
// changed the algorithms of its linears.
//
// A step is launched from the smallest captured step that holds its rows, so there may be padded rows.
// Kernels that write more than a row's own output (KV lines, sampled ids) read the true counts on the device.
// Grids are as large as any step of that many rows needs. For decode attention this is far more than most
// steps need, and 2,400 idle CTAs take 2.5 us a layer, so its grids are set again before a launch.
#include "kernels/cuda/fused.cuh"
#include "kernels/cuda/program.cuh"

#include <algorithm>
#include <utility>

// Prepares the frame of an empty step: grids are sized for n_rows, but the counts on the device are zero.
static void frame_empty_step(cuda_backend *b, td_plan *plan, const cuda_program &p, uint32_t n_rows,
                             attention_mode mode)
{
  TD_BUG_ON(n_rows == 0 || n_rows > b->config.max_rows || b->frame.plan);
  plan->n_rows = plan->n_tokens = plan->n_logits = plan->n_decode_rows = n_rows;
  plan->page_tokens = p.page_tokens;
  b->frame.batch.page_tokens = plan->page_tokens;
  b->frame.plan = plan;
  b->attention.mode = mode;
  record_error(&b->device,
               cudaMemsetAsync(b->frame.counts, 0, GROUP_SLOTS * N_COUNTS * sizeof *b->frame.counts,
                               b->device.stream));
}

static cudaError_t end_empty_step(cuda_backend *b)
{
  b->frame.plan = nullptr;
  b->attention.mode = ATTENTION_PRIVATE;
  cudaError_t e = b->device.fault;
  b->device.fault = cudaSuccess;
  return e;
}

td_status td_cuda_run_empty_step(cuda_backend *b, uint32_t n_rows, const cuda_program &p, td_error *err)
{
  td_plan plan = {};
  frame_empty_step(b, &plan, p, n_rows, ATTENTION_CAPTURE_PRIVATE);
  td_cuda_run(b, p);
  record_error(&b->device, cudaStreamSynchronize(b->device.stream));
  cudaError_t e = end_empty_step(b);
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "a step could not be tried");
}

// Finds the nodes of the captured graph that are decode attention.
static cudaError_t find_decodes(const cuda_backend *b, captured_step *r)
{
  for (const attention_group *g : groups_of{&b->attention})
    for (cudaGraphNode_t node : g->captured_decodes) {
      captured_kernel k = {node};
      cudaError_t e = cudaGraphKernelNodeGetParams(node, &k.params);
      if (e != cudaSuccess)
        return e;
      k.group = g;
      k.max_ctas = k.params.gridDim.x;
      r->decodes.push_back(k);
    }
  return cudaSuccess;
}

static void free_step(const captured_step &s)
{
  if (s.exec)
    cudaGraphExecDestroy(s.exec);
  if (s.graph)
    cudaGraphDestroy(s.graph);
}

// Replaces the captured step for the same row count and mode, if there is one.
static void store_step(cuda_program *p, captured_step &&s)
{
  for (captured_step &old : p->captured)
    if (old.n_rows == s.n_rows && old.has_shared_prefixes == s.has_shared_prefixes) {
      free_step(old);
      old = std::move(s);
      return;
    }
  p->captured.push_back(std::move(s));
}

static td_status capture_one(cuda_backend *b, cuda_program *p, uint32_t least_rows, uint32_t n_rows,
                             bool has_shared_prefixes, td_capture *out, td_error *err)
{
  td_plan plan = {};
  fused_step fused;
  captured_step s = {least_rows, n_rows, has_shared_prefixes};
  frame_empty_step(b, &plan, *p, n_rows,
                   has_shared_prefixes ? ATTENTION_CAPTURE_SHARED : ATTENTION_CAPTURE_PRIVATE);
  for (attention_group *g : groups_of{&b->attention})
    g->captured_decodes.clear();
  const char *not_fused = td_fused_make(b, p->ops, n_rows, &fused);
  // a first run outside the capture: libraries may set up things at first use that must not be captured
  not_fused ? td_cuda_run(b, *p) : td_fused_queue(b, fused);
  record_error(&b->device, cudaStreamSynchronize(b->device.stream));
  record_error(&b->device, cudaStreamBeginCapture(b->device.stream, cudaStreamCaptureModeThreadLocal));
  not_fused ? td_cuda_run(b, *p) : td_fused_queue(b, fused);
  record_error(&b->device, cudaStreamEndCapture(b->device.stream, &s.graph));
  if (b->device.fault == cudaSuccess)
    record_error(&b->device, find_decodes(b, &s));
  if (b->device.fault == cudaSuccess)
    record_error(&b->device, cudaGraphInstantiate(&s.exec, s.graph, 0));
  cudaError_t e = end_empty_step(b);
  if (e != cudaSuccess) {
    free_step(s);
    return td_cuda_fail(err, e, "a step could not be captured");
  }
  out->n_fitted += !s.decodes.empty();
  out->not_fused[out->n_forms++] = not_fused;
  store_step(p, std::move(s));
  return TD_OK;
}

// Captures twice if decodes may share prefixes. Steps without shared prefixes use a simpler attention kernel.
td_status td_cuda_capture(td_backend *be, td_compiled *compiled, uint32_t least_rows, uint32_t n_rows,
                          td_capture *out, td_error *err)
{
  cuda_backend *b = self(be);
  cuda_program *p = program_of(compiled);
  bool shares = false;
  *out = {};
  for (const attention_group *g : groups_of{&b->attention})
    shares |= g->planner != nullptr;
  if (shares)
    TD_TRY(capture_one(b, p, least_rows, n_rows, true, out, err));
  return capture_one(b, p, least_rows, n_rows, false, out, err);
}

// The smallest captured step that serves the current plan, or null.
static captured_step *find_captured(const cuda_backend *b, cuda_program *p, const td_plan *plan)
{
  captured_step *best = nullptr;
  bool has_shared_prefixes = shares_prefixes(&b->attention);
  if (plan->n_logits != plan->n_rows || plan->n_tokens != plan->n_rows)
    return nullptr;
  for (captured_step &s : p->captured)
    if (s.has_shared_prefixes == has_shared_prefixes && s.least_rows <= plan->n_rows &&
        plan->n_rows <= s.n_rows && (!best || s.n_rows < best->n_rows))
      best = &s;
  return best;
}

// Sets the decode grids to what this step's work list needs. They may stay somewhat larger, so that few steps
// have to change them.
static void fit_decodes(cuda_backend *b, captured_step *r)
{
  enum { SPARE_CTAS = 384, GRAIN_CTAS = 128 };
  for (captured_kernel &k : r->decodes) {
    uint32_t n_kv_heads = k.group->spec.n_kv_heads, current = k.params.gridDim.x;
    uint32_t need = std::max(1u, td_work_list_ctas(&k.group->work, DECODE_WARPS)) * n_kv_heads;
    TD_BUG_ON(need > k.max_ctas);
    if (need <= current && current - need <= SPARE_CTAS)
      continue;
    k.params.gridDim.x = std::min((need + GRAIN_CTAS - 1) / GRAIN_CTAS * GRAIN_CTAS, k.max_ctas);
    record_error(&b->device, cudaGraphExecKernelNodeSetParams(r->exec, k.node, &k.params));
  }
}

bool td_cuda_launch_captured(cuda_backend *b, cuda_program *p)
{
  captured_step *best = find_captured(b, p, b->frame.plan);
  if (!best)
    return false;
  fit_decodes(b, best);
  record_error(&b->device, cudaGraphLaunch(best->exec, b->device.stream));
  return true;
}

void td_cuda_free_captured(cuda_program *p)
{
  for (const captured_step &s : p->captured)
    free_step(s);
  p->captured.clear();
}
