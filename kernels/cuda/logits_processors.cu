// Sampler state on the device, and the special entries of a step's sampling: see logits_processors.cuh.
#include "kernels/cuda/logits_processors.cuh"

#include <cstdlib>
#include <cstring>
#include <new>

// ---- state of slots ----

// The copies have ended when this returns, so the next state may be made in the same buffers. No step that
// reads a new state is under way.
void td_cuda_prepare_slot(td_backend *be, uint32_t slot, const td_sampling *sampling,
                          const td_sample_history *history)
{
  cuda_backend *b = self(be);
  logits_processors *e = b->sampling.processors;
  uint32_t index, evicted_slot, vocab = b->config.max_vocab;
  if (!td_sampler_cache_acquire(&e->cache, slot, &index, &evicted_slot))
    return;
  td_sample_state_make(sampling, history, vocab, e->state_host, e->words_host);
  record_error(&b->device,
               td_cuda_copy_in(&b->device, e->states + index, e->state_host, sizeof *e->state_host));
  record_error(&b->device, td_cuda_copy_in(&b->device, e->words + (size_t)index * vocab, e->words_host,
                                           vocab * sizeof *e->words_host));
}

// ---- a step ----

// The place in a buffer's pinned memory that is copied to `on_device`.
template <typename T> static T *staging(const logits_processors *e, uint32_t buffer, T *on_device)
{
  return (T *)(e->buffers[buffer].staging + ((unsigned char *)on_device - e->device));
}

static void request_logprobs(logits_processors *e, uint32_t buffer, uint32_t entry, const td_plan_logits *l,
                             const td_sampling *s, uint32_t vocab)
{
  uint32_t n_top = s->n_top < vocab ? s->n_top : vocab;
  if (l->target == TD_SAMPLE_HERE && !s->wants_logprobs)
    return;
  staging(e, buffer, e->logprob_requests)[e->n_logprob_requests++] = {entry, l->target, n_top};
  e->top_stride = n_top > e->top_stride ? n_top : e->top_stride;
}

static void add_special(logits_processors *e, uint32_t buffer, uint32_t entry, uint32_t index,
                        const uint32_t *mask, uint32_t *n_masks)
{
  special_entry special = {entry, index, mask ? (*n_masks)++ : NO_MASK};
  if (mask)
    memcpy(staging(e, buffer, e->masks) + (size_t)special.mask * e->mask_words, mask,
           e->mask_words * sizeof *mask);
  if (index == TD_NO_STATE)
    staging(e, buffer, e->masked)[e->n_masked++] = special;
  else
    staging(e, buffer, e->stateful)[e->n_stateful++] = special;
}

static void clear_entries(logits_processors *e)
{
  e->n_skipped = e->n_masked = e->n_stateful = e->n_logprob_requests = e->top_stride = 0;
}

// Lists the entries that are not plain. Returns the number of masks.
static uint32_t list_entries(cuda_backend *b, uint32_t buffer, const td_plan *plan,
                             const td_sample_input *input)
{
  logits_processors *e = b->sampling.processors;
  uint32_t n_masks = 0;
  uint8_t *skip = staging(e, buffer, e->skip);
  clear_entries(e);
  for (uint32_t i = 0; i < plan->n_logits; i++) {
    const td_plan_logits *l = &plan->logits[i];
    uint32_t slot = plan->rows[l->row].slot, index = e->cache.state_of[slot];
    bool is_scored = l->target != TD_SAMPLE_HERE;
    bool is_late = !is_scored && input && input->late && input->late[i];
    const uint32_t *mask = input && input->masks ? input->masks[i] : nullptr;
    bool is_special = !is_scored && !is_late && (mask || index != TD_NO_STATE);
    TD_BUG_ON(!is_scored && !is_late && index == TD_NO_STATE &&
              !td_sampling_is_plain(&b->sampling.host[slot]));
    if (is_special)
      add_special(e, buffer, i, index, mask, &n_masks);
    if (!is_late)
      request_logprobs(e, buffer, i, l, &b->sampling.host[slot], b->config.max_vocab);
    skip[i] = is_late || is_special;
    e->n_skipped += skip[i];
  }
  return n_masks;
}

// Kernels of the step before may still read the last copy, so the copy waits for consumed. It waits for
// nothing else: it runs beside the step's forward.
static void upload(cuda_backend *b, uint32_t buffer, size_t bytes)
{
  logits_processors *e = b->sampling.processors;
  record_error(&b->device, cudaStreamWaitEvent(e->upload_stream, e->consumed));
  record_error(&b->device, cudaMemcpyAsync(e->device, e->buffers[buffer].staging, bytes,
                                           cudaMemcpyHostToDevice, e->upload_stream));
  record_error(&b->device, cudaEventRecord(e->uploaded, e->upload_stream));
  record_error(&b->device, cudaStreamWaitEvent(b->device.stream, e->uploaded));
}

void td_cuda_begin_sampling(cuda_backend *b, uint32_t buffer, const td_plan *plan,
                            const td_sample_input *input)
{
  logits_processors *e = b->sampling.processors;
  uint32_t n_masks = list_entries(b, buffer, plan, input);
  unsigned char *end = n_masks > 0 ? (unsigned char *)(e->masks + (size_t)n_masks * e->mask_words)
                                   : (unsigned char *)(e->logprob_requests + e->n_logprob_requests);
  e->buffers[buffer].n_logprob_requests = e->n_logprob_requests;
  e->buffers[buffer].top_stride = e->top_stride;
  if (e->n_skipped > 0 || e->n_logprob_requests > 0)
    upload(b, buffer, end - e->device);
}

void td_cuda_end_sampling(cuda_backend *b, uint32_t buffer, const td_plan *plan)
{
  logits_processors *e = b->sampling.processors;
  sampling_buffer *k = &e->buffers[buffer];
  if (e->n_logprob_requests > 0)
    record_error(&b->device,
                 cudaMemcpyAsync(k->logprobs, e->logprobs, plan->n_logits * TD_STEP_IDS * sizeof *k->logprobs,
                                 cudaMemcpyDeviceToHost, b->device.stream));
  if (e->top_stride > 0)
    record_error(&b->device,
                 cudaMemcpyAsync(k->top, e->top, (size_t)plan->n_logits * e->top_stride * sizeof *k->top,
                                 cudaMemcpyDeviceToHost, b->device.stream));
  if (e->n_skipped > 0 || e->n_logprob_requests > 0)
    record_error(&b->device, cudaEventRecord(e->consumed, b->device.stream));
  clear_entries(e);
}

void td_cuda_read_sampling(const cuda_backend *b, uint32_t buffer, td_outcome *out)
{
  const sampling_buffer *k = &b->sampling.processors->buffers[buffer];
  out->logprobs = k->n_logprob_requests > 0 ? k->logprobs : nullptr;
  out->top = k->top_stride > 0 ? k->top : nullptr;
  out->top_stride = k->top_stride;
}

// ---- memory ----

static td_status open_upload_stream(logits_processors *e, td_error *err)
{
  cudaError_t error = cudaStreamCreateWithFlags(&e->upload_stream, cudaStreamNonBlocking);
  if (error == cudaSuccess)
    error = cudaEventCreateWithFlags(&e->uploaded, cudaEventDisableTiming);
  if (error == cudaSuccess)
    error = cudaEventCreateWithFlags(&e->consumed, cudaEventDisableTiming);
  return error == cudaSuccess ? TD_OK : td_cuda_fail(err, error, "no stream for sampling");
}

// The layout of what goes up, the same in device memory and in each buffer. Masks are last, so that a step
// without masks copies little.
static td_status allocate_lists(cuda_backend *b, logits_processors *e, td_error *err)
{
  enum { ALIGN = 16 };
  size_t n_logits = b->base.max_logits, n_rows = b->config.max_rows, at[5], bytes = 0;
  const size_t sizes[5] = {n_logits, n_rows * sizeof(special_entry), n_rows * sizeof(special_entry),
                           n_logits * sizeof(logprob_request), n_rows * e->mask_words * sizeof(uint32_t)};
  for (int i = 0; i < 5; i++) {
    at[i] = bytes;
    bytes += (sizes[i] + ALIGN - 1) / ALIGN * ALIGN;
  }
  TD_TRY(td_cuda_alloc_array(&b->device, bytes, &e->device, err));
  e->device_bytes = bytes;
  e->skip = e->device + at[0];
  e->masked = (special_entry *)(e->device + at[1]);
  e->stateful = (special_entry *)(e->device + at[2]);
  e->logprob_requests = (logprob_request *)(e->device + at[3]);
  e->masks = (uint32_t *)(e->device + at[4]);
  return TD_OK;
}

td_status td_cuda_make_sampling(cuda_backend *b, td_error *err)
{
  const td_backend_config *c = &b->config;
  size_t n_logits = b->base.max_logits, vocab = c->max_vocab;
  logits_processors *e = b->sampling.processors = new (std::nothrow) logits_processors();
  if (!e)
    return td_fail(err, TD_ERR_NOMEM, "no memory for sampler state");
  TD_TRY(td_sampler_cache_init(&e->cache, c->max_slots, c->max_rows, err));
  e->mask_words = td_sample_mask_words(c->max_vocab);
  e->state_host = (td_sample_state *)malloc(sizeof *e->state_host);
  e->words_host = (uint16_t *)malloc((vocab + 1) * sizeof *e->words_host);
  if (!e->state_host || !e->words_host)
    return td_fail(err, TD_ERR_NOMEM, "no memory for sampler state");
  TD_TRY(td_cuda_alloc_array(&b->device, c->max_rows, &e->states, err));
  TD_TRY(td_cuda_alloc_array(&b->device, c->max_rows * vocab, &e->words, err));
  TD_TRY(open_upload_stream(e, err));
  TD_TRY(allocate_lists(b, e, err));
  TD_TRY(td_cuda_alloc_array(&b->device, n_logits * TD_STEP_IDS, &e->logprobs, err));
  TD_TRY(td_cuda_alloc_array(&b->device, n_logits * TD_TOP_TOKENS_MAX, &e->top, err));
  for (sampling_buffer &k : e->buffers) {
    cudaError_t error = cudaMallocHost((void **)&k.staging, e->device_bytes);
    if (error == cudaSuccess)
      error = cudaMallocHost((void **)&k.logprobs, n_logits * TD_STEP_IDS * sizeof *k.logprobs);
    if (error == cudaSuccess)
      error = cudaMallocHost((void **)&k.top, n_logits * TD_TOP_TOKENS_MAX * sizeof *k.top);
    if (error != cudaSuccess)
      return td_cuda_fail(err, error, "no pinned memory for sampling");
  }
  b->base.sampling_bytes =
      c->max_rows * td_sampler_state_bytes(c->max_vocab) + e->device_bytes +
      n_logits * (TD_STEP_IDS * sizeof(td_token_logprob) + TD_TOP_TOKENS_MAX * sizeof(td_top_token));
  return TD_OK;
}

void td_cuda_free_sampling(cuda_backend *b)
{
  logits_processors *e = b->sampling.processors;
  if (!e)
    return;
  if (e->upload_stream)
    cudaStreamDestroy(e->upload_stream);
  if (e->uploaded)
    cudaEventDestroy(e->uploaded);
  if (e->consumed)
    cudaEventDestroy(e->consumed);
  for (sampling_buffer &k : e->buffers) {
    if (k.staging)
      cudaFreeHost(k.staging);
    if (k.logprobs)
      cudaFreeHost(k.logprobs);
    if (k.top)
      cudaFreeHost(k.top);
  }
  free(e->state_host);
  free(e->words_host);
  td_sampler_cache_deinit(&e->cache);
  delete e;
  b->sampling.processors = nullptr;
}
