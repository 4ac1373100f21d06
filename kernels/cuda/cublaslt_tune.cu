// Which of cuBLASLt's algorithms is fastest, by measurement: see README.md, "Linears".
//
// The program tells which products it has and where they read and write. For each bucket of rows that decode
// steps are captured for and cuBLASLt serves, most used first, until the budget is over: the library's
// guesses for each product by itself; then, one product after another, whether a step is faster with the
// fastest than with the first guess, which its neighbours and the clock have a say in. Then the buckets of
// steps with chunks, up to CHUNK_TOKENS: there the fastest by itself is taken where it is clearly faster, as
// no captured step says more. (Of 448 tokens the library's first guess for gate and up took half as long
// again as that for 512.) A later start goes on where this one ended.
#include "kernels/cuda/cublaslt.cuh"
#include "kernels/cuda/program.cuh"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "kernels/dummy.h"

extern "C" {
#include "common/cache.h"
#include "common/log.h"
}

enum { WARM_LAUNCHES = 3, LAUNCHES_MAX = 100, ROUNDS = 2, ROUND_US = 300, STEP_RUNS = 3 };
// Of the time of the best so far; of the first guess's, where it is worth a try in a step; of a step's with
// the first guess.
const float HOPELESS = 1.25f, WORTH_A_TRY = 0.99f, FASTER_STEP = 0.998f;
// Of the first guess's time, where no step is measured.
const float CLEARLY_FASTER = 0.95f;
enum { CHUNK_TOKENS = 1024 };

struct tune_shape {
  lt_shape *shape;
  std::vector<const td_cuda_weight *> weights; // in turn, so that the cache does not hold the next one
  void *x, *out;
  bool add;
  uint32_t min_n;   // of fewer rows another way serves
  const td_op *glu; // its op, where only products with SwiGLU have this shape: these may go another way
};

struct tuner {
  cuda_backend *b;
  const cuda_program *program;
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

// The op's product; n_rows: of a step of so many, in which SwiGLU may go another way; 0: of any.
static bool product_of(const cuda_backend *b, const td_op &o, uint32_t n_rows, td_linear_params *out)
{
  if (o.kind == TD_OP_LINEAR)
    *out = o.linear;
  else if (o.kind == TD_OP_LINEAR_SWIGLU)
    *out = td_cuda_glu_product(o.linear_swiglu);
  else
    return false;
  const of_rows<td_linear_swiglu_params> glu = {o.linear_swiglu, n_rows};
  return o.kind == TD_OP_LINEAR || n_rows == 0 || !(td_tall_is_faster(b, &glu) || td_glu_is_faster(b, &glu));
}

// The output head (f32) is one product of a hundred: it has a shape, but is not measured.
static void sort_in(tuner *t, const td_op &o, const td_linear_params &p)
{
  const td_op *glu = o.kind == TD_OP_LINEAR ? nullptr : &o;
  lt_shape *s = td_lt_shape(t->b, cuda_weight(p.weight), p.out_f32);
  if (!s || p.out_f32)
    return;
  for (tune_shape &k : t->shapes)
    if (k.shape == s) {
      k.weights.push_back(cuda_weight(p.weight));
      k.glu = glu ? k.glu : nullptr;
      return;
    }
  t->shapes.push_back({s,
                       {cuda_weight(p.weight)},
                       at<void>(p.x),
                       at<void>(p.out),
                       p.add,
                       td_cuda_lt_rows_min(cuda_weight(p.weight)),
                       glu});
}

static void find_products(tuner *t)
{
  td_linear_params p;
  for (const td_op &o : t->program->ops)
    if (product_of(t->b, o, 0, &p))
      sort_in(t, o, p);
}

static bool is_multiplied(const tuner *t, const tune_shape *k, uint32_t n_rows)
{
  td_linear_params p;
  return n_rows >= k->min_n && (!k->glu || product_of(t->b, *k->glu, n_rows, &p));
}

// Whether a step of the bucket multiplies it by cuBLASLt: some of its numbers of rows may, and others not.
static bool is_served(const tuner *t, const tune_shape *k, uint32_t bucket)
{
  for (uint32_t n = bucket; n > 0 && td_lt_bucket(n) == bucket; n--)
    if (is_multiplied(t, k, n))
      return true;
  return false;
}

// ---- measuring ----

// Microseconds of one product; negative: it does not run.
static float time_launches(tuner *t, const tune_shape *k, lt_product *p, const cublasLtMatmulAlgo_t *algo,
                           uint32_t n_launches)
{
  cuda_backend *b = t->b;
  float ms = 0;
  cudaEventRecord(t->begin, b->device.stream);
  for (uint32_t i = 0; i < n_launches; i++)
    if (td_lt_queue(b, k->shape, p, k->weights[i % k->weights.size()], k->x, k->out, k->add, algo) !=
        CUBLAS_STATUS_SUCCESS)
      return -1;
  cudaEventRecord(t->end, b->device.stream);
  cudaError_t e = cudaEventSynchronize(t->end);
  if (e == cudaSuccess)
    e = cudaEventElapsedTime(&ms, t->begin, t->end);
  return e == cudaSuccess ? ms * 1000 / (float)n_launches : -1;
}

static float time_algo(tuner *t, const tune_shape *k, lt_product *p, const cublasLtMatmulAlgo_t *algo,
                       float best)
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

// A product of a bucket's rows: its layouts, the library's first guess and the fastest by itself.
struct contest {
  const tune_shape *k;
  lt_product first;
  cublasLtMatmulAlgo_t best;
  float first_us, best_us;
  bool in_step;
};

// false: the library knows no way that runs.
static bool measure_alone(tuner *t, const tune_shape *k, uint32_t n_rows, contest *c)
{
  cublasLtMatmulHeuristicResult_t guesses[LT_CANDIDATES];
  lt_product *p = &c->first;
  *c = {k};
  if (!td_lt_layouts(k->shape, n_rows, p))
    return false;
  int n = td_lt_guess(t->b, k->shape, p, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, LT_CANDIDATES, guesses);
  for (int i = 0; i < n; i++) {
    if (guesses[i].state != CUBLAS_STATUS_SUCCESS || guesses[i].workspaceSize > LT_WORKSPACE_BYTES)
      continue;
    float us = time_algo(t, k, p, &guesses[i].algo, p->made ? c->best_us : INFINITY);
    if (us < 0 || (p->made && us >= c->best_us))
      continue;
    c->best = guesses[i].algo;
    c->best_us = us;
    if (!p->made) {
      p->algo = c->best;
      p->made = p->usable = true;
      c->first_us = us;
    }
  }
  return p->made;
}

// Microseconds of a whole step without rows, but for what reads KV; negative: it does not run.
static float time_step(tuner *t, uint32_t n_rows, td_error *err)
{
  float us = -1;
  for (int i = 0; i < STEP_RUNS; i++) {
    float ms = 0;
    cudaEventRecord(t->begin, t->b->device.stream);
    if (td_cuda_run_empty_step(t->b, n_rows, *t->program, err) != TD_OK)
      return -1;
    cudaEventRecord(t->end, t->b->device.stream);
    cudaError_t e = cudaEventSynchronize(t->end);
    if (e == cudaSuccess)
      e = cudaEventElapsedTime(&ms, t->begin, t->end);
    if (e != cudaSuccess) {
      td_cuda_fail(err, e, "measuring products");
      return -1;
    }
    us = us < 0 ? ms * 1000 : std::min(us, ms * 1000);
  }
  return us;
}

// Of a step that is tuned for.
static uint32_t most_rows(const tuner *t)
{
  const td_backend_config &c = t->b->config;
  return std::max(c.max_rows, std::min(c.max_tokens, (uint32_t)CHUNK_TOKENS));
}

static bool is_known(const tuner *t, const lt_shape *s, uint32_t bucket)
{
  return td_lt_cache_find(&t->b->linears.lt_tables->cache, s->n_out, s->n_in, s->f32, s->bias, bucket) !=
         nullptr;
}

struct tune_counts {
  uint32_t measured, not_first;
};

static td_status keep(tuner *t, const contest &c, uint32_t n_rows, uint32_t bucket, bool best,
                      tune_counts *counts, td_error *err)
{
  lt_shape *s = c.k->shape;
  lt_product *p = &s->by_n[n_rows];
  p->algo = best ? c.best : c.first.algo;
  td_lt_entry e = {s->n_out, s->n_in, bucket, s->f32, s->bias, best ? c.best_us : c.first_us, {}};
  memcpy(e.algo, &p->algo, sizeof e.algo);
  counts->measured++;
  counts->not_first += best;
  return td_lt_cache_put(&t->b->linears.lt_tables->cache, &e, err);
}

// What is not decided when the time is over keeps the first guess, and is measured by a later start.
static td_status measure_bucket(tuner *t, uint32_t bucket, double until_s, tune_counts *counts, td_error *err)
{
  uint32_t n_rows = std::min(bucket, most_rows(t));
  std::vector<contest> contests;
  contest c;
  for (const tune_shape &k : t->shapes)
    if (is_served(t, &k, bucket) && !is_known(t, k.shape, bucket) && now_s() < until_s &&
        measure_alone(t, &k, n_rows, &c)) {
      c.in_step = is_multiplied(t, &k, n_rows);
      k.shape->by_n[n_rows] = c.first;
      contests.push_back(c);
    }
  cudaError_t fault = cudaStreamSynchronize(t->b->device.stream);
  if (fault != cudaSuccess)
    return td_cuda_fail(err, fault, "measuring products");
  if (n_rows > t->b->config.max_rows) {
    for (const contest &now : contests)
      TD_TRY(keep(t, now, n_rows, bucket, now.best_us < CLEARLY_FASTER * now.first_us, counts, err));
    return TD_OK;
  }
  if (contests.empty())
    return TD_OK;
  float step_us = time_step(t, n_rows, err);
  if (step_us < 0)
    return TD_ERR_DEVICE;
  for (const contest &now : contests) {
    lt_product *p = &now.k->shape->by_n[n_rows];
    float us = -1;
    if (now_s() >= until_s)
      return TD_OK;
    if (now.in_step && now.best_us < WORTH_A_TRY * now.first_us) {
      td_error ignored;
      p->algo = now.best;
      us = time_step(t, n_rows, &ignored);
    }
    bool better = us >= 0 && us < FASTER_STEP * step_us;
    step_us = better ? us : step_us;
    TD_TRY(keep(t, now, n_rows, bucket, better, counts, err));
  }
  return TD_OK;
}

enum { TURNS = 3 };

static int turn_of(uint32_t bucket) { return bucket > 256 ? 2 : bucket % 32 != 0; }

static uint32_t largest_bucket(const tuner *t) { return td_lt_bucket(most_rows(t)); }

static uint32_t count(const tuner *t, bool known_only)
{
  uint32_t n = 0;
  for (const tune_shape &k : t->shapes)
    for (uint32_t m = 8; m <= largest_bucket(t); m = td_lt_bucket(m + 1))
      n += is_served(t, &k, m) && (!known_only || is_known(t, k.shape, m));
  return n;
}

static td_status measure_all(tuner *t, double until_s, tune_counts *counts, td_error *err)
{
  for (int turn = 0; turn < TURNS; turn++)
    for (uint32_t m = 8; m <= largest_bucket(t); m = td_lt_bucket(m + 1)) {
      if (turn_of(m) != turn)
        continue;
      if (now_s() >= until_s)
        return TD_OK;
      TD_TRY(measure_bucket(t, m, until_s, counts, err));
    }
  return TD_OK;
}

static td_status measure_missing(tuner *t, uint32_t budget_ms, td_error *err)
{
  double begin = now_s();
  uint32_t n_all = count(t, false);
  tune_counts counts = {};
  td_status st = TD_OK;
  if (budget_ms > 0 && count(t, true) < n_all) {
    for (const tune_shape &k : t->shapes) // zeros would draw less power than numbers do
      fill_kernel<<<4 * t->b->device.n_sms, 256, 0, t->b->device.stream>>>(
          (bf16 *)k.x, (uint64_t)most_rows(t) * k.shape->n_in);
    st = measure_all(t, begin + budget_ms / 1000.0, &counts, err);
  }
  td_info("products: measured %u algorithms in %.2f s (%u of %u known); %u are not the library's first guess",
          counts.measured, now_s() - begin, count(t, true), n_all, counts.not_first);
  td_error ignored;
  if (counts.measured > 0 && t->keeps &&
      td_lt_cache_write(&t->b->linears.lt_tables->cache, t->path, t->identity, &ignored) != TD_OK)
    td_warn("what was measured is not kept (cache_dir): %s", ignored.message);
  if (st == TD_ERR_CAPACITY) {
    td_warn("%s: the library's guesses are taken for what is not in it", err->message);
    return TD_OK;
  }
  return st;
}

// ---- the cache ----

static void identify(tuner *t)
{
  cudaDeviceProp prop;
  int driver = 0, runtime = 0;
  memset(&prop, 0, sizeof prop);
  cudaGetDeviceProperties(&prop, t->b->device.id);
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  // f32, steps: how parts of a split k are added up, and what decided; an earlier program kept others
  snprintf(t->identity, sizeof t->identity, "%.100s cc%d.%d sm%d driver%d runtime%d cublaslt%zu f32 steps",
           prop.name, prop.major, prop.minor, prop.multiProcessorCount, driver, runtime,
           cublasLtGetVersion());
}

static void read_cache(tuner *t, const char *option)
{
  char folder[TD_CACHE_PATH_BYTES];
  td_error why;
  bool found = false;
  t->keeps = td_cache_folder(option, folder) && td_cache_path(folder, "products", t->identity, t->path);
  if (t->keeps &&
      td_lt_cache_read(&t->b->linears.lt_tables->cache, t->path, t->identity, &found, &why) != TD_OK)
    td_info("%s is not used: %s", t->path, why.message);
}

td_status td_cuda_tune(td_backend *be, td_compiled *compiled, const td_tune_params *p, td_error *err)
{
  tuner t = {};
  t.b = self(be);
  t.program = program_of(compiled);
  identify(&t);
  read_cache(&t, p->cache_folder);
  find_products(&t);
  td_status st = TD_OK;
  cudaError_t e = cudaEventCreate(&t.begin);
  if (e == cudaSuccess)
    e = cudaEventCreate(&t.end);
  if (e != cudaSuccess)
    st = td_cuda_fail(err, e, "measuring products");
  if (st == TD_OK)
    st = measure_missing(&t, t.b->config.batch_invariant ? 0 : p->budget_ms, err);
  if (t.begin)
    cudaEventDestroy(t.begin);
  if (t.end)
    cudaEventDestroy(t.end);
  for (auto &s : t.b->linears.lt_tables->shapes)
    if (st == TD_OK)
      st = td_lt_prepare(t.b, s.get(), err);
  (void)cudaGetLastError(); // of candidates that would not launch
  return st;
}
