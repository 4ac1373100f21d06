// Loads weights to the device, as bf16 whatever type the file has. The parts of one weight lie one after
// another.
//
// Reader threads (kernels/weight_reader.h) fill pinned buffers. Each thread has a stream and two buffers, so
// it reads the next piece while the last one crosses the bus. Imports return immediately; weights_wait waits
// for all copies.
#include "kernels/cuda/internal.cuh"

#include <new>

#include "kernels/dummy.h"

extern "C" {
#include "common/cores.h"
#include "kernels/weight_reader.h"
}

td_weight_type td_cuda_weight_type(const td_backend *be, td_dtype stored)
{
  (void)be;
  (void)stored; // all types are widened or rounded to bf16
  return {TD_BF16, TD_BF16, TD_SCALES_NONE};
}

// Made-up weights, two elements a thread and store. Element numbers are those of the whole matrix, whose rows
// are `stride` elements apart (n_cols unless this is a slice of columns).
static __global__ void dummy_kernel(uint32_t *dst, uint64_t n_pairs, uint64_t seed, uint64_t first,
                                    uint64_t n_cols, uint64_t stride)
{
  uint64_t n_threads = (uint64_t)gridDim.x * blockDim.x;
  for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n_pairs; i += n_threads) {
    uint64_t at = first + (stride == n_cols ? 2 * i : 2 * i / n_cols * stride + 2 * i % n_cols);
    dst[i] = td_dummy_bf16(seed, at) | (uint32_t)td_dummy_bf16(seed, at + 1) << 16;
  }
}

// n_cols is a multiple of 8, so pairs never cross a row.
static td_status fill_dummy(cuda_backend *b, const td_weight_part *part, uint64_t n_cols, bf16 *dst,
                            td_error *err)
{
  dummy_kernel<<<16 * b->device.n_sms, 256, 0, b->device.stream>>>(
      (uint32_t *)dst, part->n_rows * n_cols / 2, part->seed, part->first_element, n_cols,
      part->row_elements ? part->row_elements : n_cols);
  cudaError_t e = cudaGetLastError();
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "making up weights");
}

// ---- from memory or a file ----

struct uploader { // one for each reader thread
  cudaStream_t stream;
  unsigned char *buffers[2]; // pinned
  cudaEvent_t sent[2];       // the last copy from this buffer has arrived
  uint32_t next;
};

struct weight_uploaders {
  int device;
  td_weight_reader *reader;
  uploader uploaders[TD_READERS_MAX];
};

static td_status open_uploader(weight_uploaders *w, uploader *l, td_error *err)
{
  cudaError_t e = cudaSetDevice(w->device); // the current device is per thread
  if (e == cudaSuccess)
    e = cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking);
  for (int i = 0; i < 2 && e == cudaSuccess; i++) {
    e = cudaHostAlloc((void **)&l->buffers[i], TD_PIECE_BYTES, cudaHostAllocDefault);
    if (e == cudaSuccess)
      e = cudaEventCreateWithFlags(&l->sent[i], cudaEventDisableTiming);
  }
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "pinned memory to load weights");
}

static void close_uploader(uploader *l)
{
  for (int i = 0; i < 2; i++) {
    if (l->sent[i])
      cudaEventDestroy(l->sent[i]);
    if (l->buffers[i])
      cudaFreeHost(l->buffers[i]);
  }
  if (l->stream)
    cudaStreamDestroy(l->stream);
}

static td_status uploader_buffer(void *arg, uint32_t thread, void **out, td_error *err)
{
  weight_uploaders *w = (weight_uploaders *)arg;
  uploader *l = &w->uploaders[thread];
  if (!l->sent[1])
    TD_TRY(open_uploader(w, l, err));
  cudaError_t e = cudaEventSynchronize(l->sent[l->next]); // returns immediately if nothing has been sent yet
  *out = l->buffers[l->next];
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "copy of weights");
}

static td_status uploader_send(void *arg, uint32_t thread, void *dst, size_t bytes, td_error *err)
{
  uploader *l = &((weight_uploaders *)arg)->uploaders[thread];
  cudaError_t e = cudaMemcpyAsync(dst, l->buffers[l->next], bytes, cudaMemcpyHostToDevice, l->stream);
  if (e == cudaSuccess)
    e = cudaEventRecord(l->sent[l->next], l->stream);
  l->next ^= 1;
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "copy of weights");
}

static td_status uploader_flush(void *arg, uint32_t thread, td_error *err)
{
  uploader *l = &((weight_uploaders *)arg)->uploaders[thread];
  cudaError_t e = l->stream ? cudaStreamSynchronize(l->stream) : cudaSuccess;
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "copy of weights");
}

static td_status open_reader(cuda_backend *b, td_error *err)
{
  if (b->weights.loading)
    return TD_OK;
  weight_uploaders *w = new (std::nothrow) weight_uploaders();
  if (!w)
    return td_fail(err, TD_ERR_NOMEM, "no memory to load weights");
  w->device = b->device.id;
  uint32_t cores = td_usable_cores();
  td_weight_sink sink = {w, uploader_buffer, uploader_send, uploader_flush};
  td_status st = td_weight_reader_create(cores < 2 ? 2 : cores, &sink, &w->reader, err);
  if (st != TD_OK)
    delete w;
  else
    b->weights.loading = w;
  return st;
}

static void close_uploaders(cuda_weights *w)
{
  for (uploader &l : w->loading->uploaders)
    close_uploader(&l);
  delete w->loading;
  w->loading = nullptr;
}

td_status td_cuda_weights_wait(td_backend *be, td_error *err)
{
  cuda_backend *b = self(be);
  td_status st = TD_OK;
  if (b->weights.loading) {
    st = td_weight_reader_finish(b->weights.loading->reader, err);
    close_uploaders(&b->weights);
  }
  cudaError_t e = cudaStreamSynchronize(b->device.stream); // made-up weights and biases
  return st != TD_OK || e == cudaSuccess ? st : td_cuda_fail(err, e, "weights");
}

void td_cuda_weights_abandon(cuda_weights *w)
{
  if (!w->loading)
    return;
  td_weight_reader_destroy(w->loading->reader);
  close_uploaders(w);
}

// ---- a weight ----

static td_status import_bias(cuda_backend *b, const td_weight_part *part, bf16 *dst, td_error *err)
{
  std::vector<uint16_t> narrow(part->n_rows);
  for (uint64_t i = 0; i < part->n_rows; i++)
    narrow[i] = td_f32_to_bf16(part->bias[i]);
  cudaError_t e = td_cuda_copy_in(&b->device, dst, narrow.data(), part->n_rows * sizeof narrow[0]);
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "copy of a bias");
}

static td_status import_part(cuda_backend *b, const td_weight_part *part, uint64_t n_cols, bf16 *dst,
                             td_error *err)
{
  if (!part->data)
    return fill_dummy(b, part, n_cols, dst, err);
  TD_TRY(open_reader(b, err));
  return td_weight_reader_push(b->weights.loading->reader, part, n_cols, dst, err);
}

td_status td_cuda_weight_import(td_backend *be, const td_weight_part *parts, uint32_t n_parts,
                                uint64_t n_cols, td_weight **out, td_error *err)
{
  cuda_backend *b = self(be);
  uint64_t n_rows = 0;
  bool any_bias = false;
  for (uint32_t i = 0; i < n_parts; i++) {
    n_rows += parts[i].n_rows;
    any_bias |= parts[i].bias != nullptr;
  }
  if (n_cols % 8 != 0) // kernels load 16 bytes at a time
    return td_fail(err, TD_ERR_UNSUPPORTED, "the CUDA backend needs rows in multiples of 8, not %llu x %llu",
                   (unsigned long long)n_rows, (unsigned long long)n_cols);
  td_cuda_weight *w = new (std::nothrow) td_cuda_weight();
  if (!w)
    return td_fail(err, TD_ERR_NOMEM, "no memory for a weight");
  b->weights.all.push_back(w);
  w->n_out = (uint32_t)n_rows;
  w->n_in = (uint32_t)n_cols;
  w->n_parts = n_parts;
  w->shard = parts[0].shard;
  w->has_bias = any_bias;
  for (uint32_t i = 0; i < n_parts; i++)
    w->types[i] = td_cuda_weight_type(be, parts[i].dtype);
  TD_TRY(td_cuda_alloc_raw(&b->device, n_rows * n_cols * sizeof(bf16), (void **)&w->data,
                           err)); // not zeroed: all of it will be written
  if (any_bias)
    TD_TRY(td_cuda_alloc_array(&b->device, n_rows, &w->bias, err));
  td_skinny_plan_weight(b, w);
  for (uint64_t i = 0, row = 0; i < n_parts; row += parts[i++].n_rows) {
    TD_TRY(import_part(b, &parts[i], n_cols, w->data + row * n_cols, err));
    if (parts[i].bias)
      TD_TRY(import_bias(b, &parts[i], w->bias + row, err));
  }
  *out = w;
  return TD_OK;
}
