// Token choice on the device: greedy, or temperature, min-p, top-k, top-p and a draw (config/sampling.h).
//
// Probabilities are integers: weight(i) = floor(exp((logit - max) / temperature) * 2^32). Integer sums do not depend on
// the order in which threads add, so thresholds and the draw are exactly reproducible. No sorting: top-k and top-p
// thresholds are found digit by digit over the logits' ordered bit patterns. One block per row.
#include "kernels/cuda/internal.cuh"

enum { SAMPLE_THREADS = 1024, DIGITS = 256 };

struct sample_shared {
  float max_value[SAMPLE_THREADS / 32];
  uint32_t max_id[SAMPLE_THREADS / 32];
  unsigned long long count[DIGITS]; // weights or counts by digit
  unsigned long long scan[SAMPLE_THREADS / 32];
  uint32_t bad, found, prefix;
  unsigned long long rest;
};

// Bit patterns in the order of the values.
__device__ __forceinline__ uint32_t ordered(float f)
{
  uint32_t u = __float_as_uint(f);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}

// exp(x) for x <= 0, the same operations as the CPU's: range reduction and a polynomial of fused multiply-adds.
__device__ __forceinline__ unsigned long long weight_of(float logit, float max, float inv_temperature)
{
  return (unsigned long long)((double)expf((logit - max) * inv_temperature) * 4294967296.0);
}

// Philox4x32-10 (Salmon et al. 2011): 64 random bits for (seed, position).
__device__ unsigned long long random_bits(uint64_t seed, uint32_t position)
{
  uint32_t c[4] = {position, 0, 0, 0}, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int i = 0; i < 10; i++) {
    uint32_t h0 = __umulhi(0xD2511F53u, c[0]), l0 = 0xD2511F53u * c[0];
    uint32_t h1 = __umulhi(0xCD9E8D57u, c[2]), l1 = 0xCD9E8D57u * c[2];
    c[0] = h1 ^ c[1] ^ k0;
    c[1] = l1;
    c[2] = h0 ^ c[3] ^ k1;
    c[3] = l0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return (unsigned long long)c[1] << 32 | c[0];
}

// The highest logit, the lowest id among equals; found = ids with a finite value, bad = NaN seen.
__device__ void find_max(const float *x, uint32_t n, sample_shared *s, float *max, uint32_t *id)
{
  float m = -INFINITY;
  uint32_t at = UINT32_MAX, bad = 0;
  for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
    bad |= isnan(x[i]) || x[i] == INFINITY;
    if (x[i] > m) {
      m = x[i];
      at = i;
    }
  }
  for (int o = 16; o > 0; o >>= 1) {
    float om = __shfl_xor_sync(0xffffffffu, m, o);
    uint32_t oat = __shfl_xor_sync(0xffffffffu, at, o);
    if (om > m || (om == m && oat < at)) {
      m = om;
      at = oat;
    }
  }
  if (threadIdx.x % 32 == 0) {
    s->max_value[threadIdx.x / 32] = m;
    s->max_id[threadIdx.x / 32] = at;
  }
  bad = __syncthreads_or(bad);
  for (int w = 0; w < SAMPLE_THREADS / 32; w++)
    if (w == 0 || s->max_value[w] > m || (s->max_value[w] == m && s->max_id[w] < at)) {
      m = s->max_value[w];
      at = s->max_id[w];
    }
  *max = m;
  *id = bad || m == -INFINITY ? UINT32_MAX : at;
  __syncthreads();
}

// The highest key t such that the ids with ordered(x) >= t, and >= floor_key, together reach `want` (counts if
// by_count, else weights); the lowest key there is if they never do.
__device__ uint32_t find_threshold(const float *x, uint32_t n, float max, float inv_t, uint32_t floor_key, bool by_count,
                                   unsigned long long want, sample_shared *s)
{
  if (threadIdx.x == 0) {
    s->prefix = 0;
    s->rest = want;
  }
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (uint32_t i = threadIdx.x; i < DIGITS; i += SAMPLE_THREADS)
      s->count[i] = 0;
    __syncthreads();
    uint32_t prefix = s->prefix;
    for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
      uint32_t key = ordered(x[i]);
      if (key >= floor_key && (shift == 24 || key >> (shift + 8) == prefix))
        atomicAdd(&s->count[key >> shift & 255], by_count ? 1ull : weight_of(x[i], max, inv_t));
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned long long rest = s->rest;
      int d = DIGITS - 1;
      while (d > 0 && s->count[d] < rest)
        rest -= s->count[d--];
      s->prefix = prefix << 8 | (uint32_t)d;
      s->rest = rest;
    }
    __syncthreads();
  }
  return s->prefix;
}

__device__ unsigned long long block_sum(unsigned long long v, sample_shared *s)
{
  for (int o = 16; o > 0; o >>= 1)
    v += __shfl_xor_sync(0xffffffffu, v, o);
  __syncthreads();
  if (threadIdx.x % 32 == 0)
    s->scan[threadIdx.x / 32] = v;
  __syncthreads();
  v = 0;
  for (int w = 0; w < SAMPLE_THREADS / 32; w++)
    v += s->scan[w];
  return v;
}

__global__ void __launch_bounds__(SAMPLE_THREADS)
    sample_kernel(const float *logits, uint32_t n, device_batch batch, const td_sampling *sampling, int32_t *out)
{
  __shared__ sample_shared s;
  const float *x = logits + (size_t)blockIdx.x * n;
  td_plan_row row = batch.rows[batch.logits_rows[blockIdx.x]];
  td_sampling p = sampling[row.slot];
  float max;
  uint32_t best;
  find_max(x, n, &s, &max, &best);
  if (best == UINT32_MAX || p.temperature <= 0) {
    if (threadIdx.x == 0)
      out[blockIdx.x] = best == UINT32_MAX ? TD_SAMPLED_NAN : (int32_t)best;
    return;
  }
  float inv_t = 1.0f / p.temperature;
  uint32_t key = 0; // ids with ordered(x) >= key are kept
  if (p.min_p > 0)
    key = ordered(max + p.temperature * logf(p.min_p));
  if (p.top_k > 0 && (uint32_t)p.top_k < n) {
    uint32_t k = find_threshold(x, n, max, inv_t, key, true, (unsigned long long)p.top_k, &s);
    key = k > key ? k : key;
  }
  unsigned long long mine = 0;
  for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS)
    if (ordered(x[i]) >= key)
      mine += weight_of(x[i], max, inv_t);
  unsigned long long total = block_sum(mine, &s);
  if (p.top_p < 1) {
    unsigned long long want = (unsigned long long)((double)total * (double)p.top_p);
    uint32_t k = find_threshold(x, n, max, inv_t, key, false, want > 0 ? want : 1, &s);
    key = k > key ? k : key;
    mine = 0;
    for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS)
      if (ordered(x[i]) >= key)
        mine += weight_of(x[i], max, inv_t);
    total = block_sum(mine, &s);
  }
  unsigned long long u = __umul64hi(random_bits(p.seed, row.kv_len), total); // in [0, total)
  // each thread owns a contiguous range of ids; the one whose running sum passes u has the token
  uint32_t per = (n + SAMPLE_THREADS - 1) / SAMPLE_THREADS, begin = min(threadIdx.x * per, n), end = min(begin + per, n);
  mine = 0;
  for (uint32_t i = begin; i < end; i++)
    if (ordered(x[i]) >= key)
      mine += weight_of(x[i], max, inv_t);
  unsigned long long before = mine;
  for (int o = 1; o < 32; o <<= 1) {
    unsigned long long v = __shfl_up_sync(0xffffffffu, before, o);
    if (threadIdx.x % 32 >= o)
      before += v;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 31)
    s.scan[threadIdx.x / 32] = before;
  __syncthreads();
  for (uint32_t w = 0; w < threadIdx.x / 32; w++)
    before += s.scan[w];
  before -= mine; // exclusive
  if (u >= before && u - before < mine)
    for (uint32_t i = begin; i < end; i++)
      if (ordered(x[i]) >= key) {
        unsigned long long w = weight_of(x[i], max, inv_t);
        if (u - before < w) {
          out[blockIdx.x] = (int32_t)i;
          return;
        }
        before += w;
      }
}

void td_cuda_sample(td_backend *be, const td_sample_params *p)
{
  cuda_backend *b = self(be);
  sample_kernel<<<b->plan->n_logits, SAMPLE_THREADS, 0, b->stream>>>(at<float>(p->logits), p->vocab, b->batch,
                                                                     b->sampling, b->sampled);
  launched(b);
}
