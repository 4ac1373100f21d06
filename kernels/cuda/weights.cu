// Weights to the device, as bf16 whatever the file holds; parts of one product side by side.
#include "kernels/cuda/internal.cuh"

#include <new>

#include "kernels/dummy.h"

// Two elements a thread at a time: what a 4-byte store holds.
static __global__ void dummy_kernel(uint32_t *dst, uint64_t n_pairs, uint64_t seed)
{
  uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
  for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n_pairs; i += stride)
    dst[i] = td_dummy_bf16(seed, 2 * i) | (uint32_t)td_dummy_bf16(seed, 2 * i + 1) << 16;
}

// n_cols is a multiple of 8, so the pairs are whole.
static td_status make_up(cuda_backend *b, const td_weight_part *part, uint64_t n_cols, bf16 *dst, td_error *err)
{
  dummy_kernel<<<16 * b->n_sms, 256, 0, b->stream>>>((uint32_t *)dst, part->n_rows * n_cols / 2, part->seed);
  cudaError_t e = cudaGetLastError();
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "making up weights");
}

static td_status upload_rows(cuda_backend *b, const td_weight_part *part, uint64_t n_cols, bf16 *dst, td_error *err)
{
  uint64_t row_bytes;
  if (!td_dtype_row_bytes(part->dtype, n_cols, &row_bytes))
    return td_fail(err, TD_ERR_MODEL, "rows of %llu elements do not fit %s blocks", (unsigned long long)n_cols,
                   td_dtypes[part->dtype].name);
  if (!part->data)
    return make_up(b, part, n_cols, dst, err);
  if (part->dtype == TD_BF16) {
    cudaError_t e = td_cuda_copy_in(b, dst, part->data, part->n_rows * row_bytes);
    return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "copy of weights");
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
    cudaError_t e = td_cuda_copy_in(b, dst + r * n_cols, narrow.data(), n * n_cols * 2);
    if (e != cudaSuccess)
      return td_cuda_fail(err, e, "copy of weights");
  }
  return TD_OK;
}

td_status td_cuda_weight_import(td_backend *be, const td_weight_part *parts, uint32_t n_parts, uint64_t n_cols,
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
  TD_TRY(td_cuda_alloc_array(b, n_rows * n_cols, &w->data, err));
  if (any_bias)
    TD_TRY(td_cuda_alloc_array(b, n_rows, &w->bias, err));
  uint64_t row = 0;
  for (uint32_t i = 0; i < n_parts; i++) {
    TD_TRY(upload_rows(b, &parts[i], n_cols, w->data + row * n_cols, err));
    if (parts[i].bias) {
      td_weight_part bias = {};
      bias.dtype = TD_F32;
      bias.data = parts[i].bias;
      bias.n_rows = 1;
      TD_TRY(upload_rows(b, &bias, parts[i].n_rows, w->bias + row, err));
    }
    row += parts[i].n_rows;
  }
  *out = w;
  return TD_OK;
}

td_status td_cuda_weights_wait(td_backend *be, td_error *err)
{
  cudaError_t e = cudaStreamSynchronize(self(be)->stream);
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "weights");
}
