// A step's way to the device and back. The plan goes up as one packed copy. A kernel unpacks it to fixed
// addresses, so a captured step (a CUDA graph) finds every plan at the same place. The sampled ids come back
// as one copy.
//
// The forward and the sampling are queued by two calls (kernels.h). Usually the second follows the first
// immediately and the device does not idle in between. If the sampling may have to wait for the host, two
// events measure that wait.
//
// Two packed buffers alternate: the host packs step k + 1 while the device still runs step k. Both steps are
// in one stream, so step k + 1 reads the ids that step k sampled without a detour through the host. The first
// error of a step is kept, and td_cuda_wait returns it.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/program.cuh"
#include "kernels/cuda/logits_processors.cuh"
#include "kernels/sample_math.h"

#include <cstdlib>
#include <cstring>

enum { UNPACK_CTAS = 32, UNPACK_THREADS = 256, SECTION_ALIGN = 16 };

// ---- the packed plan ----

typedef struct sampling_update {
  uint64_t slot;
  td_sampling sampling;
} sampling_update;

// Two more sections for each KV group follow: its work items, and its attention plan.
enum section { TOKEN_IDS, POSITIONS, KV_LINES, ROWS, LOGITS, PAGE_UPDATES, SAMPLING, KV_GROUPS };
enum { N_SECTIONS = KV_GROUPS + 2 * GROUP_SLOTS };

typedef struct packed_header {
  uint32_t counts[GROUP_SLOTS][N_COUNTS];
  struct {
    uint32_t at, n_dwords; // offset in the buffer and length, both in units of 4 bytes
  } section[N_SECTIONS];
} packed_header;

typedef struct unpacked {
  uint32_t *section[LOGITS + 1]; // destinations of the sections before PAGE_UPDATES
  uint32_t *kv_groups[2 * GROUP_SLOTS];
  uint32_t n_counts, n_kv_groups;
  uint32_t *counts;
  int32_t *page_table;
  td_sampling *sampling;
  const int32_t *sampled; // ids sampled by the step before
} unpacked;

static size_t packed_bytes_max(const cuda_backend *b)
{
  const td_backend_config *c = &b->config;
  size_t bytes = sizeof(packed_header) + N_SECTIONS * SECTION_ALIGN + (size_t)c->max_tokens * 12 +
                 c->max_rows * sizeof(td_plan_row) + b->base.max_logits * sizeof(td_plan_logits) +
                 b->frame.max_page_updates * sizeof(td_plan_page_update) +
                 c->max_slots * sizeof(sampling_update);
  for (const attention_group *g : groups_of{&b->attention})
    bytes += td_cuda_group_packed_bytes(b, g->page_tokens, &g->spec);
  return bytes;
}

// Reserves n_bytes for a section in the buffer being packed.
static void *pack_section(cuda_backend *b, uint32_t id, size_t n_bytes)
{
  step_buffer *k = &b->frame.buffers[b->frame.packing];
  packed_header *h = (packed_header *)k->packed;
  void *at = k->packed + k->n_packed;
  h->section[id].at = (uint32_t)(k->n_packed / 4);
  h->section[id].n_dwords = (uint32_t)(n_bytes / 4);
  k->n_packed += (n_bytes + SECTION_ALIGN - 1) / SECTION_ALIGN * SECTION_ALIGN;
  TD_BUG_ON(k->n_packed > b->frame.packed_bytes);
  return at;
}

// Finds where the KV of a row's tokens goes. The device would need four dependent loads for it. Plans without
// pages have no KV to write.
static void find_kv_lines(const td_plan *plan, const td_plan_row *row, uint32_t *kv_lines)
{
  if (plan->page_table_len == 0)
    return;
  const int32_t *pages = plan->page_table + row->page_table_offset;
  for (uint32_t t = row->q_start; t < row->q_start + row->q_len; t++) {
    uint32_t pos = (uint32_t)plan->positions[t];
    kv_lines[t] = (uint32_t)pages[pos / plan->page_tokens] * plan->page_tokens + pos % plan->page_tokens;
  }
}

static void pack_groups(cuda_backend *b, packed_header *h)
{
  for (uint32_t i = 0; i < GROUP_SLOTS; i++) {
    const attention_group *g = b->attention.groups[i];
    const td_attention_header *shared = g && g->is_planned ? td_attention_planner_block(g->planner) : nullptr;
    size_t item_bytes = g ? (g->work.n_items + g->work.n_next) * sizeof(td_attention_item) : 0;
    size_t shared_bytes = shared && shared->n_splits > 0 ? shared->block_bytes : 0;
    if (void *at = pack_section(b, KV_GROUPS + 2 * i, item_bytes); item_bytes > 0)
      memcpy(at, g->work.items, item_bytes);
    if (void *at = pack_section(b, KV_GROUPS + 2 * i + 1, shared_bytes); shared_bytes > 0)
      memcpy(at, shared, shared_bytes);
    memcpy(h->counts[i], h->counts[0], sizeof h->counts[i]);
    h->counts[i][COUNT_ITEMS] = g ? g->work.n_items : 0;
    h->counts[i][COUNT_WIDE_ITEMS] = g ? g->work.n_wide : 0;
  }
}

static void pack_plan(cuda_backend *b, const td_plan *plan)
{
  step_buffer *k = &b->frame.buffers[b->frame.packing];
  packed_header *h = (packed_header *)k->packed;
  k->n_packed = (sizeof *h + SECTION_ALIGN - 1) / SECTION_ALIGN * SECTION_ALIGN;
  memcpy(pack_section(b, TOKEN_IDS, plan->n_tokens * sizeof(int32_t)), plan->token_ids,
         plan->n_tokens * sizeof(int32_t));
  memcpy(pack_section(b, POSITIONS, plan->n_tokens * sizeof(int32_t)), plan->positions,
         plan->n_tokens * sizeof(int32_t));
  uint32_t *kv_lines = (uint32_t *)pack_section(b, KV_LINES, plan->n_tokens * sizeof(uint32_t));
  for (uint32_t r = 0; r < plan->n_rows; r++)
    find_kv_lines(plan, &plan->rows[r], kv_lines);
  memcpy(pack_section(b, ROWS, plan->n_rows * sizeof(td_plan_row)), plan->rows,
         plan->n_rows * sizeof(td_plan_row));
  memcpy(pack_section(b, LOGITS, plan->n_logits * sizeof(td_plan_logits)), plan->logits,
         plan->n_logits * sizeof(td_plan_logits));
  memcpy(pack_section(b, PAGE_UPDATES, plan->n_page_updates * sizeof(td_plan_page_update)),
         plan->page_updates, plan->n_page_updates * sizeof(td_plan_page_update));
  sampling_update *s =
      (sampling_update *)pack_section(b, SAMPLING, b->sampling.n_changed * sizeof(sampling_update));
  for (uint32_t i = 0; i < b->sampling.n_changed; i++)
    s[i] = {b->sampling.changed[i], b->sampling.host[b->sampling.changed[i]]};
  for (uint32_t i = 0; i < b->sampling.n_changed; i++)
    b->sampling.is_changed[b->sampling.changed[i]] = 0;
  b->sampling.n_changed = 0;
  h->counts[0][COUNT_TOKENS] = plan->n_tokens;
  h->counts[0][COUNT_ROWS] = plan->n_rows;
  h->counts[0][COUNT_LOGITS] = plan->n_logits;
  h->counts[0][COUNT_STEP] = ++b->frame.n_steps;
  td_cuda_plan_attention(b, plan);
  pack_groups(b, h);
}

static unpacked destinations_of(const cuda_backend *b)
{
  const device_batch &to = b->frame.batch;
  uint32_t n = 0; // slots, up to the last one in use
  unpacked u = {};
  u.section[TOKEN_IDS] = (uint32_t *)to.token_ids;
  u.section[POSITIONS] = (uint32_t *)to.positions;
  u.section[KV_LINES] = to.kv_lines;
  u.section[ROWS] = (uint32_t *)to.rows;
  u.section[LOGITS] = (uint32_t *)to.logits;
  for (const attention_group *g : groups_of{&b->attention}) {
    u.kv_groups[2 * g->slot] = (uint32_t *)g->device_items;
    u.kv_groups[2 * g->slot + 1] = (uint32_t *)g->device_plan;
    n = g->slot + 1;
  }
  u.n_counts = (n > 0 ? n : 1) * N_COUNTS;
  u.n_kv_groups = 2 * n;
  u.counts = b->frame.counts;
  u.page_table = to.page_table;
  u.sampling = b->sampling.slots;
  u.sampled = b->frame.sampled;
  return u;
}

__global__ void __launch_bounds__(UNPACK_THREADS) unpack_kernel(const uint32_t *packed, unpacked to)
{
  const packed_header *h = (const packed_header *)packed;
  uint32_t first = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
  if (first < to.n_counts)
    to.counts[first] = h->counts[first / N_COUNTS][first % N_COUNTS];
  for (uint32_t i = first; i < h->section[TOKEN_IDS].n_dwords; i += stride) {
    int32_t id = (int32_t)packed[h->section[TOKEN_IDS].at + i];
    to.section[TOKEN_IDS][i] =
        (uint32_t)(id >= 0 ? id : max(to.sampled[-1 - id], 0)); // a row of NaN logits sampled no id; its
                                                                // token is never reported, so any id will do
  }
#pragma unroll
  for (int s = POSITIONS; s <= LOGITS; s++)
    for (uint32_t i = first; i < h->section[s].n_dwords; i += stride)
      to.section[s][i] = packed[h->section[s].at + i];
  for (uint32_t s = 0; s < to.n_kv_groups; s++)
    for (uint32_t i = first; i < h->section[KV_GROUPS + s].n_dwords; i += stride)
      to.kv_groups[s][i] = packed[h->section[KV_GROUPS + s].at + i];
  const td_plan_page_update *pages = (const td_plan_page_update *)(packed + h->section[PAGE_UPDATES].at);
  for (uint32_t i = first; i < h->section[PAGE_UPDATES].n_dwords / 2; i += stride)
    to.page_table[pages[i].index] = pages[i].page_id;
  const sampling_update *sampling = (const sampling_update *)(packed + h->section[SAMPLING].at);
  for (uint32_t i = first; i < h->section[SAMPLING].n_dwords * 4 / sizeof(sampling_update); i += stride)
    to.sampling[sampling[i].slot] = sampling[i].sampling;
}

// ---- submit, wait ----

static void begin_step(cuda_backend *b, const td_plan *plan)
{
  step_buffer *k = &b->frame.buffers[b->frame.packing];
  TD_BUG_ON(plan->n_tokens > b->config.max_tokens || plan->n_rows > b->config.max_rows || k->under_way);
  TD_BUG_ON(plan->n_logits > b->base.max_logits);
  TD_BUG_ON(plan->n_page_updates > b->frame.max_page_updates ||
            plan->page_table_len > b->frame.page_table_entries);
  b->frame.plan = plan;
  b->frame.batch.page_tokens = plan->page_tokens;
  k->plan = plan;
  k->is_late = k->may_wait = false;
  k->under_way = true;
  k->phase ^= 1;
  pack_plan(b, plan);
  record_error(&b->device, cudaEventRecord(k->begin[k->phase], b->device.stream));
  record_error(&b->device, cudaMemcpyAsync(b->frame.packed, k->packed, k->n_packed, cudaMemcpyHostToDevice,
                                           b->device.stream));
  unpack_kernel<<<UNPACK_CTAS, UNPACK_THREADS, 0, b->device.stream>>>((const uint32_t *)b->frame.packed,
                                                                      destinations_of(b));
  record_launch_error(&b->device);
}

void td_cuda_submit(td_backend *be, td_compiled *forward, const td_plan *plan)
{
  cuda_backend *b = self(be);
  cuda_program *p = program_of(forward);
  begin_step(b, plan);
  bool captured = b->frame.buffers[b->frame.packing].captured = p && td_cuda_launch_captured(b, p);
  if (p && !captured)
    td_cuda_run(b, *p);
  b->frame.packing ^= 1;
}

// The buffer of the step whose sampling has not been queued yet.
static step_buffer *buffer_to_sample(cuda_backend *b) { return &b->frame.buffers[b->frame.packing ^ 1]; }

bool td_cuda_forward_ended(td_backend *be)
{
  cuda_backend *b = self(be);
  step_buffer *k = buffer_to_sample(b);
  if (!k->may_wait)
    record_error(&b->device, cudaEventRecord(k->forward_end, b->device.stream));
  k->may_wait = true;
  cudaError_t e = cudaEventQuery(k->forward_end);
  if (e == cudaErrorNotReady) {
    (void)cudaGetLastError(); // clears the error, or the next launch would report it
    return false;
  }
  record_error(&b->device, e);
  return true;
}

void td_cuda_sample_step(td_backend *be, td_compiled *sampling, const td_sample_input *input)
{
  cuda_backend *b = self(be);
  step_buffer *k = buffer_to_sample(b);
  if (k->may_wait)
    record_error(&b->device, cudaEventRecord(k->sampling_begin, b->device.stream));
  k->is_late = input && input->late;
  if (k->is_late)
    memcpy(k->late, input->late, k->plan->n_logits);
  td_cuda_begin_sampling(b, (uint32_t)(k - b->frame.buffers), k->plan, input);
  if (sampling)
    td_cuda_run(b, *program_of(sampling));
  td_cuda_end_sampling(b, (uint32_t)(k - b->frame.buffers), k->plan);
  if (k->plan->n_logits > 0)
    record_error(&b->device,
                 cudaMemcpyAsync(k->sampled, b->frame.sampled, k->plan->n_logits * sizeof(int32_t),
                                 cudaMemcpyDeviceToHost, b->device.stream));
  record_error(&b->device, cudaEventRecord(k->end[k->phase], b->device.stream));
  b->frame.plan = nullptr;
}

// Sets busy_us, the step's device time without the wait for its sampling, and idle_us. idle_us is that wait
// plus the idle time since the end of the step before. Long idle times do not count, because then there was
// no work. If the other buffer is already under way again, it holds the step after this one, and the end of
// the step before is in its other phase.
static void measure_times(cuda_backend *b, const step_buffer *k, td_outcome *out)
{
  enum { WORKING_GAP_MS = 5 };
  float busy_ms = 0, idle_ms = 0, waited_ms = 0;
  const step_buffer *before = &b->frame.buffers[k == &b->frame.buffers[0]];
  cudaEvent_t end_before = before->end[before->under_way ? before->phase ^ 1 : before->phase];
  record_error(&b->device, cudaEventElapsedTime(&busy_ms, k->begin[k->phase], k->end[k->phase]));
  if (b->frame.has_run)
    record_error(&b->device, cudaEventElapsedTime(&idle_ms, end_before, k->begin[k->phase]));
  if (idle_ms > WORKING_GAP_MS)
    idle_ms = 0;
  if (k->may_wait)
    record_error(&b->device, cudaEventElapsedTime(&waited_ms, k->forward_end, k->sampling_begin));
  b->frame.has_run = true;
  out->busy_us = (busy_ms - waited_ms) * 1000;
  out->idle_us = ((idle_ms > 0 ? idle_ms : 0) + waited_ms) * 1000;
}

// Sets n_ids and flags of the outcome from the sampled ids.
static void read_sampled(step_buffer *k)
{
  const td_plan *plan = k->plan;
  for (uint32_t i = 0; i < plan->n_logits; i++) {
    bool scored = plan->logits[i].target != TD_SAMPLE_HERE, late = !scored && k->is_late && k->late[i];
    bool nan = !scored && !late && k->sampled[i] == TD_SAMPLED_NAN;
    k->n_ids[i] = !scored && !late && !nan;
    k->flags[i] = nan ? TD_LOGITS_NAN : late ? TD_LOGITS_LATE : 0;
  }
}

td_status td_cuda_wait(td_backend *be, td_outcome *out, td_error *err)
{
  cuda_backend *b = self(be);
  step_buffer *k =
      &b->frame
           .buffers[b->frame.buffers[b->frame.packing].under_way ? b->frame.packing
                                                                 : b->frame.packing ^ 1]; // the older of two
  TD_BUG_ON(!k->under_way);
  k->under_way = false;
  record_error(&b->device, cudaEventSynchronize(k->end[k->phase]));
  cudaError_t e = b->device.fault;
  b->device.fault = cudaSuccess;
  if (e != cudaSuccess)
    return td_cuda_fail(err, e, "the step failed");
  *out = {};
  read_sampled(k);
  out->n_logits = k->plan->n_logits;
  out->ids = k->sampled;
  out->n_ids = k->n_ids;
  out->flags = k->flags;
  td_cuda_read_sampling(b, (uint32_t)(k - b->frame.buffers), out);
  out->captured = k->captured;
  measure_times(b, k, out);
  return TD_OK;
}

void td_cuda_set_sampling(td_backend *be, uint32_t slot, const td_sampling *sampling)
{
  cuda_backend *b = self(be);
  TD_BUG_ON(slot >= b->config.max_slots);
  td_sampler_cache_release(&b->sampling.processors->cache, slot);
  b->sampling.host[slot] = *sampling; // goes up with the next plan
  if (!b->sampling.is_changed[slot]) {
    b->sampling.is_changed[slot] = 1;
    b->sampling.changed[b->sampling.n_changed++] = slot;
  }
}

// ---- memory ----

td_status td_cuda_fit_packed(cuda_backend *b, td_error *err)
{
  size_t need = packed_bytes_max(b);
  if (need <= b->frame.packed_bytes)
    return TD_OK;
  TD_BUG_ON(b->frame.buffers[0].under_way || b->frame.buffers[1].under_way);
  for (step_buffer &k : b->frame.buffers) {
    cudaError_t e = k.packed ? cudaFreeHost(k.packed) : cudaSuccess;
    k.packed = nullptr;
    if (e == cudaSuccess)
      e = cudaMallocHost((void **)&k.packed, need);
    if (e != cudaSuccess)
      return td_cuda_fail(err, e, "no pinned memory for the step");
  }
  td_cuda_free(&b->device, b->frame.packed);
  b->frame.packed = nullptr;
  TD_TRY(td_cuda_alloc_array(&b->device, need, &b->frame.packed, err));
  b->frame.packed_bytes = need;
  return TD_OK;
}

td_status td_cuda_make_step_memory(cuda_backend *b, td_error *err)
{
  const td_backend_config *c = &b->config;
  uint32_t n_logits = b->base.max_logits;
  b->frame.page_table_entries = c->max_rows * ((c->max_context_tokens + 15) / 16);
  // the scheduler's limit of page updates in a plan (scheduler/README.md), from the same sizes
  b->frame.max_page_updates = b->frame.page_table_entries + 4096 + 2 * (c->max_tokens / 16 + c->max_rows);
  b->sampling.host = (td_sampling *)calloc(c->max_slots, sizeof *b->sampling.host);
  b->sampling.changed = (uint32_t *)calloc(c->max_slots, sizeof *b->sampling.changed);
  b->sampling.is_changed = (uint8_t *)calloc(c->max_slots, sizeof *b->sampling.is_changed);
  if (!b->sampling.host || !b->sampling.changed || !b->sampling.is_changed)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the step's frame");
  for (step_buffer &k : b->frame.buffers) {
    k.n_ids = (uint8_t *)calloc(n_logits, 1);
    k.flags = (uint8_t *)calloc(n_logits, 1);
    k.late = (uint8_t *)calloc(n_logits, 1);
    if (!k.n_ids || !k.flags || !k.late)
      return td_fail(err, TD_ERR_NOMEM, "no memory for the step's frame");
    cudaError_t e = cudaMallocHost((void **)&k.sampled, n_logits * sizeof(int32_t));
    if (e == cudaSuccess)
      e = cudaEventCreate(&k.forward_end);
    if (e == cudaSuccess)
      e = cudaEventCreate(&k.sampling_begin);
    for (int i = 0; i < 2 && e == cudaSuccess; i++) {
      e = cudaEventCreate(&k.begin[i]);
      if (e == cudaSuccess)
        e = cudaEventCreate(&k.end[i]);
    }
    if (e != cudaSuccess)
      return td_cuda_fail(err, e, "no pinned memory for the step");
  }
  TD_TRY(td_cuda_fit_packed(b, err));
  TD_TRY(td_cuda_alloc_array(&b->device, b->frame.page_table_entries, &b->frame.batch.page_table, err));
  TD_TRY(td_cuda_alloc_array(&b->device, c->max_slots, &b->sampling.slots, err));
  TD_TRY(td_cuda_alloc_array(&b->device, n_logits, &b->frame.sampled, err));
  TD_TRY(td_cuda_make_sampling(b, err));
  TD_TRY(td_cuda_alloc_array(&b->device, (size_t)GROUP_SLOTS * N_COUNTS, &b->frame.counts, err));
  TD_TRY(td_cuda_alloc_array(&b->device, c->max_tokens, &b->frame.batch.token_ids, err));
  TD_TRY(td_cuda_alloc_array(&b->device, c->max_tokens, &b->frame.batch.positions, err));
  TD_TRY(td_cuda_alloc_array(&b->device, c->max_tokens, &b->frame.batch.kv_lines, err));
  TD_TRY(td_cuda_alloc_array(&b->device, c->max_rows, &b->frame.batch.rows, err));
  TD_TRY(td_cuda_alloc_array(&b->device, n_logits, &b->frame.batch.logits, err));
  b->frame.batch.counts = b->frame.counts;
  b->frame.batch.n_logits = b->frame.counts + COUNT_LOGITS;
  return TD_OK;
}

void td_cuda_free_step_memory(cuda_backend *b)
{
  for (step_buffer &k : b->frame.buffers) {
    if (k.packed)
      cudaFreeHost(k.packed);
    if (k.sampled)
      cudaFreeHost(k.sampled);
    if (k.forward_end)
      cudaEventDestroy(k.forward_end);
    if (k.sampling_begin)
      cudaEventDestroy(k.sampling_begin);
    free(k.n_ids);
    free(k.flags);
    free(k.late);
    for (int i = 0; i < 2; i++) {
      if (k.begin[i])
        cudaEventDestroy(k.begin[i]);
      if (k.end[i])
        cudaEventDestroy(k.end[i]);
    }
  }
  td_cuda_free_sampling(b);
  free(b->sampling.host);
  free(b->sampling.changed);
  free(b->sampling.is_changed);
}
