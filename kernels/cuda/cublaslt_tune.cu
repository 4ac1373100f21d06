// Tuning: finds by measurement which of cuBLASLt's algorithms is fastest (README.md, "Linears").
//
// The program tells which linears there are and which buffers they use. First come the buckets of rows that
// decode steps are captured for and that cuBLASLt serves, most used first. In each bucket, the library's
// guesses for each linear are timed alone. Then, one linear after another, whole steps decide between its
// fastest algorithm and the first guess, because neighbouring kernels and the clock matter too. Buckets of
// steps with chunks follow, up to CHUNK_TOKENS. No captured step can decide there, so an algorithm is taken
// if it is clearly faster alone. (For 448 tokens the library's first guess for gate and up took half as long
// again as that for 512.)
//
// No request waits for tuning: a call does one thing, some launches of one guess or one step, and between two
// calls the daemon may serve. Steps in between change clocks and caches, which would distort the times. So
// after such steps, the current linear's guesses, or the compared steps, are measured from the beginning.
// Algorithms change only in adopt(), when one is decided. A later run continues where this one ended.
#include "kernels/cuda/cublaslt.cuh"
#include "kernels/cuda/program.cuh"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <new>

#include "kernels/dummy.h"

extern "C" {
#include "common/cache.h"
#include "common/log.h"
}

enum { WARM_LAUNCHES = 3, LAUNCHES_MAX = 100, ROUNDS = 2, ROUND_US = 300, STEP_RUNS = 3 };
// HOPELESS: a guess slower than this many times the best so far is dropped. WORTH_A_TRY: a step is tried only
// if the best takes less than this fraction of the first guess's time. FASTER_STEP: the best is kept only if
// the step takes less than this fraction of its time with the first guess.
const float HOPELESS = 1.25f, WORTH_A_TRY = 0.99f, FASTER_STEP = 0.998f;
// Fraction of the first guess's time, where no step is measured.
const float CLEARLY_FASTER = 0.95f;
enum { CHUNK_TOKENS = 1024 };

struct tune_shape {
  lt_shape *shape;
  std::vector<const td_cuda_weight *> weights; // used in turn, so that the next one is not in the cache
  void *x, *out;
  bool add;
  uint32_t min_n; // with fewer rows another kernel serves
  const td_op
      *swiglu_op; // the op, if only linears with SwiGLU have this shape: other kernels may serve these
};

// The measurement of one linear in one bucket: layouts, the library's guesses, and the fastest so far alone.
struct linear_measurement {
  const tune_shape *k;
  lt_linear layouts;
  cublasLtMatmulHeuristicResult_t guesses[LT_CANDIDATES];
  int n_guesses, n_tried; // n_guesses negative: not asked yet
  cublasLtMatmulAlgo_t best;
  float first_us, best_us; // negative: none ran
  bool in_step;
};

// Runs of the same step: how many, and the shortest; negative: the step does not run.
struct step_runs {
  int n;
  float us;
};

typedef cuda_tuner tuner;
struct cuda_tuner {
  cuda_backend *b;
  const cuda_program *program;
  cudaEvent_t begin, end;
  std::vector<tune_shape> shapes;
  char identity[512], path[TD_CACHE_PATH_BYTES];
  bool writes_cache; // results are written to that file
  bool has_unsaved;  // some results are not in the file yet
  td_tuning reported;

  std::vector<uint32_t> buckets; // most used first
  size_t at;                     // index of the bucket being measured
  bool has_begun;
  bool has_changed;                             // its steps use other algorithms now
  std::vector<linear_measurement> measurements; // the bucket's linears without a cached result
  size_t n_alone, n_decided;                    // how many of them have been measured alone, and decided
  step_runs chosen, tried; // the bucket's step as chosen so far, and with one linear's best
  bool is_warm;
  uint32_t n_steps; // the backend's step count at the last measurement
};

static __global__ void fill_kernel(bf16 *dst, uint64_t n)
{
  uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
  for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += stride)
    ((uint16_t *)dst)[i] = td_dummy_bf16(1, i);
}

// ---- the linears of a step ----

// The linear of an op. n_rows: for a step of that many rows, where another kernel may do SwiGLU; 0: for any
// step. Returns false if cuBLASLt has no part in it.
static bool linear_of(const cuda_backend *b, const td_op &o, uint32_t n_rows, td_linear_params *out)
{
  if (o.kind == TD_OP_LINEAR)
    *out = o.linear;
  else if (o.kind == TD_OP_LINEAR_SWIGLU)
    *out = td_cuda_gate_up_linear(o.linear_swiglu);
  else
    return false;
  const params_with_rows<td_linear_swiglu_params> swiglu_op = {o.linear_swiglu, n_rows};
  return o.kind == TD_OP_LINEAR || n_rows == 0 ||
         !(td_skinny_swiglu_is_faster(b, &swiglu_op) || td_gemm_swiglu_is_faster(b, &swiglu_op));
}

// The output head (f32) is one linear of a hundred: it gets a shape, but is not measured.
static void add_linear(tuner *t, const td_op &o, const td_linear_params &p)
{
  const td_op *swiglu_op = o.kind == TD_OP_LINEAR ? nullptr : &o;
  lt_shape *s = td_lt_shape(t->b, cuda_weight(p.weight), p.out_f32);
  if (!s || p.out_f32)
    return;
  for (tune_shape &k : t->shapes)
    if (k.shape == s) {
      k.weights.push_back(cuda_weight(p.weight));
      k.swiglu_op = swiglu_op ? k.swiglu_op : nullptr;
      return;
    }
  t->shapes.push_back({s,
                       {cuda_weight(p.weight)},
                       at<void>(p.x),
                       at<void>(p.out),
                       p.add,
                       td_cuda_lt_rows_min(cuda_weight(p.weight)),
                       swiglu_op});
}

static void find_linears(tuner *t)
{
  td_linear_params p;
  for (const td_op &o : t->program->ops)
    if (linear_of(t->b, o, 0, &p))
      add_linear(t, o, p);
}

static bool is_multiplied(const tuner *t, const tune_shape *k, uint32_t n_rows)
{
  td_linear_params p;
  return n_rows >= k->min_n && (!k->swiglu_op || linear_of(t->b, *k->swiglu_op, n_rows, &p));
}

// Whether some steps of the bucket compute this linear by cuBLASLt. Not all of its row counts need to.
static bool is_served(const tuner *t, const tune_shape *k, uint32_t bucket)
{
  for (uint32_t n = bucket; n > 0 && td_lt_bucket(n) == bucket; n--)
    if (is_multiplied(t, k, n))
      return true;
  return false;
}

// ---- measuring ----

// Microseconds of one linear; negative: it does not run.
static float time_launches(tuner *t, const tune_shape *k, lt_linear *p, const cublasLtMatmulAlgo_t *algo,
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

static float time_algo(tuner *t, const tune_shape *k, lt_linear *p, const cublasLtMatmulAlgo_t *algo,
                       float best)
{
  if (time_launches(t, k, p, algo, 1) < 0) // first use, which may set things up
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

// Times one more run of a whole empty step. Without true rows only ops that read KV do less.
static td_status time_step(tuner *t, uint32_t n_rows, step_runs *runs, td_error *err)
{
  float ms = 0;
  cudaEventRecord(t->begin, t->b->device.stream);
  TD_TRY(td_cuda_run_empty_step(t->b, n_rows, *t->program, err));
  cudaEventRecord(t->end, t->b->device.stream);
  cudaError_t e = cudaEventSynchronize(t->end);
  if (e == cudaSuccess)
    e = cudaEventElapsedTime(&ms, t->begin, t->end);
  if (e != cudaSuccess)
    return td_cuda_fail(err, e, "measuring linears");
  runs->us = runs->n++ == 0 ? ms * 1000 : std::min(runs->us, ms * 1000);
  return TD_OK;
}

// The most rows of any step that is tuned for.
static uint32_t tuned_rows_max(const tuner *t)
{
  const td_backend_config &c = t->b->config;
  return std::max(c.max_rows, std::min(c.max_tokens, (uint32_t)CHUNK_TOKENS));
}

static bool is_known(const tuner *t, const lt_shape *s, uint32_t bucket)
{
  return td_lt_cache_find(&t->b->linears.lt_tables->cache, s->n_out, s->n_in, s->f32, s->bias, bucket) !=
         nullptr;
}

static uint32_t rows_of(const tuner *t, uint32_t bucket) { return std::min(bucket, tuned_rows_max(t)); }

static bool is_decodes(const tuner *t, uint32_t n_rows) { return n_rows <= t->b->config.max_rows; }

// ---- a bucket ----

static void begin_bucket(tuner *t, uint32_t bucket)
{
  t->measurements.clear();
  for (const tune_shape &k : t->shapes)
    if (is_served(t, &k, bucket) && !is_known(t, k.shape, bucket)) {
      linear_measurement c = {&k};
      c.n_guesses = -1;
      c.in_step = is_multiplied(t, &k, rows_of(t, bucket));
      t->measurements.push_back(c);
    }
  t->n_alone = t->n_decided = 0;
  t->chosen = t->tried = {};
  t->has_begun = true;
  t->has_changed = false;
}

// Starts unfinished measurements again, at the beginning or after other steps have run. The GPU may have been
// idle, and its clock takes some milliseconds to rise, so it runs a step first.
static td_status restart_measurement(tuner *t, uint32_t n_rows, td_error *err)
{
  t->n_steps = t->b->frame.n_steps;
  t->is_warm = true;
  if (t->n_alone < t->measurements.size())
    t->measurements[t->n_alone].n_guesses = -1;
  t->chosen = t->tried = {};
  return td_cuda_run_empty_step(t->b, std::min(n_rows, t->b->config.max_rows), *t->program, err);
}

static void get_guesses(tuner *t, linear_measurement *c, uint32_t n_rows)
{
  lt_shape *s = c->k->shape;
  c->first_us = c->best_us = -1;
  c->n_tried = 0;
  c->n_guesses = td_lt_layouts(s, n_rows, &c->layouts)
                     ? td_lt_guess(t->b, s, &c->layouts, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
                                   LT_CANDIDATES, c->guesses)
                     : 0;
  // zeros would draw less power than real values
  fill_kernel<<<4 * t->b->device.n_sms, 256, 0, t->b->device.stream>>>((bf16 *)c->k->x,
                                                                       (uint64_t)n_rows * s->n_in);
}

static void try_guess(tuner *t, linear_measurement *c)
{
  const cublasLtMatmulHeuristicResult_t &guess = c->guesses[c->n_tried++];
  if (guess.state != CUBLAS_STATUS_SUCCESS || guess.workspaceSize > LT_WORKSPACE_BYTES)
    return;
  bool is_first = c->first_us < 0;
  float us = time_algo(t, c->k, &c->layouts, &guess.algo, is_first ? INFINITY : c->best_us);
  if (us < 0 || (!is_first && us >= c->best_us))
    return;
  c->best = guess.algo;
  c->best_us = us;
  if (is_first)
    c->first_us = us;
}

// Measures one guess of one linear.
static td_status measure_alone(tuner *t, linear_measurement *c, uint32_t n_rows, td_error *err)
{
  if (c->n_guesses < 0)
    get_guesses(t, c, n_rows);
  if (c->n_tried < c->n_guesses)
    try_guess(t, c);
  t->n_alone += c->n_tried == c->n_guesses;
  cudaError_t e = cudaStreamSynchronize(t->b->device.stream);
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "measuring linears");
}

static td_status adopt(tuner *t, const linear_measurement &c, uint32_t bucket, bool best, td_error *err)
{
  lt_shape *s = c.k->shape;
  const lt_linear *p = td_lt_linear_of(t->b, s, rows_of(t, bucket));
  const cublasLtMatmulAlgo_t before = p->algo, *now = best ? &c.best : &before;
  td_lt_entry e = {s->n_out, s->n_in, bucket, s->f32, s->bias, best ? c.best_us : c.first_us, {}};
  memcpy(e.algo, now, sizeof e.algo);
  t->n_decided++;
  t->tried = {};
  TD_TRY(td_lt_cache_put(&t->b->linears.lt_tables->cache, &e, err));
  td_lt_reselect(t->b, s, bucket);
  t->has_changed |= memcmp(&before, now, sizeof before) != 0;
  t->has_unsaved = true;
  t->reported.n_known++;
  t->reported.n_measured++;
  t->reported.n_not_first += best;
  return TD_OK;
}

// Runs a step once, with the algorithms chosen so far or with this linear's best. Decides when both have run
// often enough.
static td_status decide(tuner *t, const linear_measurement &c, uint32_t bucket, td_error *err)
{
  uint32_t n_rows = rows_of(t, bucket);
  lt_linear *p = td_lt_linear_of(t->b, c.k->shape, n_rows);
  if (c.first_us < 0 || !p->usable) { // no algorithm of the library runs
    t->n_decided++;
    return TD_OK;
  }
  if (!is_decodes(t, n_rows))
    return adopt(t, c, bucket, c.best_us < CLEARLY_FASTER * c.first_us, err);
  if (!c.in_step || c.best_us >= WORTH_A_TRY * c.first_us)
    return adopt(t, c, bucket, false, err);
  if (t->chosen.n < STEP_RUNS)
    return time_step(t, n_rows, &t->chosen, err);
  const cublasLtMatmulAlgo_t before = p->algo;
  td_error ignored;
  p->algo = c.best;
  if (time_step(t, n_rows, &t->tried, &ignored) != TD_OK)
    t->tried = {STEP_RUNS, -1};
  p->algo = before;
  if (t->tried.n < STEP_RUNS)
    return TD_OK;
  bool better = t->tried.us >= 0 && t->tried.us < FASTER_STEP * t->chosen.us;
  if (better)
    t->chosen = t->tried;
  return adopt(t, c, bucket, better, err);
}

static void write_cache(tuner *t)
{
  td_error why;
  if (t->has_unsaved && t->writes_cache &&
      td_lt_cache_write(&t->b->linears.lt_tables->cache, t->path, t->identity, &why) != TD_OK) {
    td_warn("what was measured is not kept (cache_dir): %s", why.message);
    t->writes_cache = false;
  }
  t->has_unsaved = false;
}

static void end_bucket(tuner *t, uint32_t bucket)
{
  if (t->has_changed) {
    t->reported.changed_least = t->reported.changed_most = rows_of(t, bucket);
    while (t->reported.changed_least > 1 && td_lt_bucket(t->reported.changed_least - 1) == bucket)
      t->reported.changed_least--;
  }
  write_cache(t);
  t->has_begun = false;
  t->reported.is_done = ++t->at == t->buckets.size();
}

// Ends with the results so far: all other linears keep the library's guesses.
static void end_early(tuner *t)
{
  if (t->has_begun)
    end_bucket(t, t->buckets[t->at]);
  t->reported.is_done = true;
}

static td_status measure_next(tuner *t, td_error *err)
{
  uint32_t bucket = t->buckets[t->at];
  if (!t->has_begun)
    begin_bucket(t, bucket);
  if (!t->is_warm || t->n_steps != t->b->frame.n_steps)
    return restart_measurement(t, rows_of(t, bucket), err);
  if (t->n_alone < t->measurements.size())
    return measure_alone(t, &t->measurements[t->n_alone], rows_of(t, bucket), err);
  if (t->n_decided < t->measurements.size())
    return decide(t, t->measurements[t->n_decided], bucket, err);
  end_bucket(t, bucket);
  return TD_OK;
}

// ---- which buckets ----

enum { TURNS = 3 };

static int turn_of(uint32_t bucket) { return bucket > 256 ? 2 : bucket % 32 != 0; }

static void find_buckets(tuner *t)
{
  uint32_t largest = td_lt_bucket(tuned_rows_max(t));
  for (int turn = 0; turn < TURNS; turn++)
    for (uint32_t m = 8; m <= largest; m = td_lt_bucket(m + 1)) {
      uint32_t n_all = 0, n_known = 0;
      for (const tune_shape &k : t->shapes)
        if (turn_of(m) == turn && is_served(t, &k, m)) {
          n_all++;
          n_known += is_known(t, k.shape, m);
        }
      t->reported.n_all += n_all;
      t->reported.n_known += n_known;
      if (n_known < n_all)
        t->buckets.push_back(m);
    }
  t->reported.is_done = t->buckets.empty();
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
  // "f32 steps": split-k reductions in f32, decided by steps; older programs had other rules
  snprintf(t->identity, sizeof t->identity, "%.100s cc%d.%d sm%d driver%d runtime%d cublaslt%zu f32 steps",
           prop.name, prop.major, prop.minor, prop.multiProcessorCount, driver, runtime,
           cublasLtGetVersion());
}

static void read_cache(tuner *t, const char *option)
{
  char folder[TD_CACHE_PATH_BYTES];
  td_error why;
  bool found = false;
  t->writes_cache = td_cache_folder(option, folder) && td_lt_cache_path(folder, t->identity, t->path);
  if (t->writes_cache &&
      td_lt_cache_read(&t->b->linears.lt_tables->cache, t->path, t->identity, &found, &why) != TD_OK)
    td_info("%s is not used: %s", t->path, why.message);
}

td_status td_cuda_tune_begin(td_backend *be, td_compiled *compiled, const char *cache_folder, td_tuning *out,
                             td_error *err)
{
  cuda_program *p = program_of(compiled);
  TD_BUG_ON(p->tuner);
  tuner *t = p->tuner = new (std::nothrow) tuner();
  if (!t)
    return td_fail(err, TD_ERR_NOMEM, "no memory for tuning");
  t->b = self(be);
  t->program = p;
  identify(t);
  read_cache(t, cache_folder);
  find_linears(t);
  if (!t->b->config.batch_invariant)
    find_buckets(t);
  else
    t->reported.is_done = true;
  for (auto &s : t->b->linears.lt_tables->shapes)
    TD_TRY(td_lt_prepare(t->b, s.get(), err));
  cudaError_t e = cudaEventCreate(&t->begin);
  if (e == cudaSuccess)
    e = cudaEventCreate(&t->end);
  *out = t->reported;
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "measuring linears");
}

td_status td_cuda_tune(td_backend *be, td_compiled *compiled, td_tuning *out, td_error *err)
{
  tuner *t = program_of(compiled)->tuner;
  TD_BUG_ON(be->n_under_way > 0);
  t->reported.changed_least = t->reported.changed_most = 0;
  td_error why;
  td_status st = t->reported.is_done ? TD_OK : measure_next(t, &why);
  (void)cudaGetLastError(); // clears errors of candidates that would not launch
  if (st == TD_ERR_CAPACITY) {
    td_warn("%s: the library's guesses are taken for what is not in it", why.message);
    end_early(t);
    st = TD_OK;
  }
  if (st != TD_OK && err)
    *err = why;
  *out = t->reported;
  return st;
}

void td_cuda_tune_end(td_backend *be, td_compiled *compiled, td_tuning *out)
{
  tuner *t = program_of(compiled)->tuner;
  TD_BUG_ON(be->n_under_way > 0);
  end_early(t);
  *out = t->reported;
}

void td_cuda_free_tuner(cuda_program *p)
{
  tuner *t = p->tuner;
  if (!t)
    return;
  write_cache(t);
  if (t->begin)
    cudaEventDestroy(t->begin);
  if (t->end)
    cudaEventDestroy(t->end);
  delete t;
  p->tuner = nullptr;
}
