// Which of cuBLASLt's algorithms is fastest, by measurement: see README.md, "Products".
//
// One empty step of the model tells which products it has and where they read and write. Each (shape, bucket) that the cache
// lacks is then timed, most used buckets first, until the budget is over; a later start goes on where this one ended.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/lt.cuh"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "kernels/dummy.h"

extern "C" {
#include "config/cache.h"
#include "config/log.h"
}

enum { WARM_LAUNCHES = 3, LAUNCHES_MAX = 200, ROUNDS = 2, ROUND_US = 1000, HOPELESS = 2 };

struct tune_shape {
  lt_shape *shape;
  std::vector<const td_weight *> weights; // in turn, so that the cache does not hold the next one
  void *x, *out;
  bool add;
  uint32_t max_n;
};

struct tuner {
  cuda_backend *b;
  cudaEvent_t begin, end;
  std::vector<tune_shape> shapes;
  char identity[512], path[TD_CACHE_PATH_BYTES];
  bool keeps;
};

static double now_s()
{
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static __global__ void fill_kernel(bf16 *dst, uint64_t n)
{
  uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
  for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += stride)
    ((uint16_t *)dst)[i] = td_dummy_bf16(1, i);
}

// ---- what a step multiplies ----

static void sort_in(tuner *t, const lt_noted &n)
{
  const td_backend_config *c = &t->b->config;
  lt_shape *s = td_lt_shape(t->b, n.weight, n.f32);
  if (!s)
    return;
  for (tune_shape &k : t->shapes)
    if (k.shape == s) {
      k.weights.push_back(n.weight);
      return;
    }
  t->shapes.push_back({s, {n.weight}, at<void>(n.x), at<void>(n.out), n.add, n.f32 ? c->max_rows : c->max_tokens});
}

static td_status note_products(tuner *t, const td_tune_params *p, td_error *err)
{
  cuda_backend *b = t->b;
  std::vector<lt_noted> noted;
  b->lt_tables->noting = &noted;
  td_status st = td_cuda_queue_empty_step(b, std::min(b->config.max_rows, 16u), p->queue, p->arg, err);
  b->lt_tables->noting = nullptr;
  for (const lt_noted &n : noted)
    sort_in(t, n);
  return st;
}

// ---- measuring ----

// Microseconds of one product; negative: it does not run.
static float time_launches(tuner *t, const tune_shape *k, lt_product *p, const cublasLtMatmulAlgo_t *algo, uint32_t n_launches)
{
  cuda_backend *b = t->b;
  float ms = 0;
  cudaEventRecord(t->begin, b->stream);
  for (uint32_t i = 0; i < n_launches; i++)
    if (td_lt_queue(b, k->shape, p, k->weights[i % k->weights.size()], k->x, k->out, k->add, algo) != CUBLAS_STATUS_SUCCESS)
      return -1;
  cudaEventRecord(t->end, b->stream);
  cudaError_t e = cudaEventSynchronize(t->end);
  if (e == cudaSuccess)
    e = cudaEventElapsedTime(&ms, t->begin, t->end);
  return e == cudaSuccess ? ms * 1000 / (float)n_launches : -1;
}

static float time_algo(tuner *t, const tune_shape *k, lt_product *p, const cublasLtMatmulAlgo_t *algo, float best)
{
  if (time_launches(t, k, p, algo, 1) < 0) // what is set up at first use
    return -1;
  float us = time_launches(t, k, p, algo, WARM_LAUNCHES);
  if (us < 0 || us > HOPELESS * best)
    return us;
  uint32_t n = (uint32_t)std::clamp(ROUND_US / std::max(us, 1.0f), (float)WARM_LAUNCHES, (float)LAUNCHES_MAX);
  us = -1;
  for (int i = 0; i < ROUNDS; i++) {
    float round = time_launches(t, k, p, algo, n);
    if (round < 0)
      return -1;
    us = us < 0 ? round : std::min(us, round);
  }
  return us;
}

static td_status measure(tuner *t, const tune_shape *k, uint32_t bucket, uint32_t *n_measured, td_error *err)
{
  cublasLtMatmulHeuristicResult_t guesses[LT_CANDIDATES];
  lt_product p;
  lt_shape *s = k->shape;
  float best = 1e30f;
  td_lt_entry e = {s->n_out, s->n_in, bucket, s->f32, s->bias, 0, {}};
  if (!td_lt_layouts(s, std::min(bucket, k->max_n), &p))
    return TD_OK;
  int n = td_lt_guess(t->b, s, &p, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, LT_CANDIDATES, guesses);
  for (int i = 0; i < n; i++) {
    if (guesses[i].state != CUBLAS_STATUS_SUCCESS || guesses[i].workspaceSize > LT_WORKSPACE_BYTES)
      continue;
    float us = time_algo(t, k, &p, &guesses[i].algo, best);
    if (us < 0 || us >= best)
      continue;
    best = us;
    memcpy(e.algo, &guesses[i].algo, sizeof e.algo);
  }
  cudaError_t fault = cudaStreamSynchronize(t->b->stream);
  if (fault != cudaSuccess)
    return td_cuda_fail(err, fault, "measuring products");
  if (best == 1e30f)
    return TD_OK;
  e.us = best;
  ++*n_measured;
  return td_lt_cache_put(&t->b->lt_tables->cache, &e, err);
}

// Decode steps first, the usual chunks next: 0 is measured first. Few rows mostly go another way (linear.cu, stream_product.cu).
static int turn_of(uint32_t bucket)
{
  if (bucket <= 32)
    return 4;
  if (bucket <= 256)
    return bucket % 32 == 0 ? 0 : 1;
  return bucket == 512 || bucket == 1024 || bucket == 2048 ? 2 : 3;
}

static bool is_known(const tuner *t, const lt_shape *s, uint32_t bucket)
{
  return td_lt_cache_find(&t->b->lt_tables->cache, s->n_out, s->n_in, s->f32, s->bias, bucket) != nullptr;
}

static uint32_t count(const tuner *t, bool known_only)
{
  uint32_t n = 0;
  for (const tune_shape &k : t->shapes)
    for (uint32_t m = 8; m <= td_lt_bucket(k.max_n); m = td_lt_bucket(m + 1))
      n += !known_only || is_known(t, k.shape, m);
  return n;
}

static td_status measure_all(tuner *t, double until_s, uint32_t *n_measured, td_error *err)
{
  uint32_t largest = 0;
  for (const tune_shape &k : t->shapes)
    largest = std::max(largest, td_lt_bucket(k.max_n));
  for (int turn = 0; turn < 5; turn++)
    for (uint32_t m = 8; m <= largest; m = td_lt_bucket(m + 1)) {
      if (turn_of(m) != turn)
        continue;
      for (const tune_shape &k : t->shapes) {
        if (m > td_lt_bucket(k.max_n) || is_known(t, k.shape, m))
          continue;
        if (now_s() >= until_s)
          return TD_OK;
        TD_TRY(measure(t, &k, m, n_measured, err));
      }
    }
  return TD_OK;
}

static td_status measure_missing(tuner *t, uint32_t budget_ms, td_error *err)
{
  double begin = now_s();
  uint32_t n_measured = 0, n_all = count(t, false);
  if (budget_ms > 0 && count(t, true) < n_all) {
    for (const tune_shape &k : t->shapes) // zeros would draw less power than numbers do
      fill_kernel<<<4 * t->b->n_sms, 256, 0, t->b->stream>>>((bf16 *)k.x, (uint64_t)k.max_n * k.shape->n_in);
    TD_TRY(measure_all(t, begin + budget_ms / 1000.0, &n_measured, err));
  }
  td_info("products: measured %u algorithms in %.2f s (%u of %u known)", n_measured, now_s() - begin, count(t, true), n_all);
  td_error ignored;
  if (n_measured > 0 && t->keeps &&
      td_lt_cache_write(&t->b->lt_tables->cache, t->path, t->identity, &ignored) != TD_OK)
    td_warn("what was measured is not kept (cache_dir): %s", ignored.message);
  return TD_OK;
}

// ---- the cache ----

static void identify(tuner *t)
{
  cudaDeviceProp prop;
  int driver = 0, runtime = 0;
  memset(&prop, 0, sizeof prop);
  cudaGetDeviceProperties(&prop, t->b->device);
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  // f32: how parts of a split k are added up; what an earlier program kept may add them up as bf16
  snprintf(t->identity, sizeof t->identity, "%.100s cc%d.%d sm%d driver%d runtime%d cublaslt%zu f32", prop.name, prop.major,
           prop.minor, prop.multiProcessorCount, driver, runtime, cublasLtGetVersion());
}

static void read_cache(tuner *t, const char *option)
{
  char folder[TD_CACHE_PATH_BYTES];
  td_error why;
  bool found = false;
  t->keeps = td_cache_folder(option, folder) && td_cache_path(folder, "products", t->identity, t->path);
  if (t->keeps && td_lt_cache_read(&t->b->lt_tables->cache, t->path, t->identity, &found, &why) != TD_OK)
    td_info("%s is not used: %s", t->path, why.message);
}

td_status td_cuda_tune(td_backend *be, const td_tune_params *p, td_error *err)
{
  tuner t = {};
  t.b = self(be);
  identify(&t);
  read_cache(&t, p->cache_folder);
  td_status st = note_products(&t, p, err);
  cudaError_t e = st == TD_OK ? cudaEventCreate(&t.begin) : cudaSuccess;
  if (st == TD_OK && e == cudaSuccess)
    e = cudaEventCreate(&t.end);
  if (e != cudaSuccess)
    st = td_cuda_fail(err, e, "measuring products");
  if (st == TD_OK)
    st = measure_missing(&t, t.b->config.batch_invariant ? 0 : p->budget_ms, err);
  if (t.begin)
    cudaEventDestroy(t.begin);
  if (t.end)
    cudaEventDestroy(t.end);
  for (auto &s : t.b->lt_tables->shapes)
    if (st == TD_OK)
      st = td_lt_prepare(t.b, s.get(), err);
  (void)cudaGetLastError(); // of candidates that would not launch
  return st == TD_OK ? td_cuda_calibrate_attention(t.b, p->cache_folder, p->budget_ms > 0, err) : st;
}
