// Linears of many rows by cuBLASLt. Descriptors and an algorithm are made once for each shape and row count.
//
// The algorithm is the one tuned for the smallest bucket of rows that holds n (cublaslt_cache.h), or the
// library's own first guess for that bucket, if the library says that it can run n rows. Otherwise it is the
// library's guess for exactly n. Buckets are prepared at start, and again after tuning. The order of a sum
// depends on n: on this path results differ in their last bits between batches. A linear that adds to out is
// the same linear with another factor (beta), because the library ignores beta when it chooses and checks.
// Tuning measures linears as steps run them.
#include "kernels/cuda/cublaslt.cuh"

#include <algorithm>
#include <cstring>
#include <new>

extern "C" {
#include "common/log.h"
}

static bool ok(cublasStatus_t s) { return s == CUBLAS_STATUS_SUCCESS; }

// Row-major out[n, n_out] is column-major D[n_out, n] = weight^T (n_in x n_out, transposed) * x (n_in x n).
static bool describe(lt_shape *s, td_dtype storage)
{
  if (storage != TD_BF16)
    return false;
  cublasOperation_t yes = CUBLAS_OP_T;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
  cudaDataType_t bias_type = CUDA_R_16BF;
  bool good = ok(cublasLtMatmulDescInit(&s->op, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
              ok(cublasLtMatmulDescSetAttribute(&s->op, CUBLASLT_MATMUL_DESC_TRANSA, &yes, sizeof yes)) &&
              ok(cublasLtMatrixLayoutInit(&s->weight, CUDA_R_16BF, s->n_in, s->n_out, s->n_in));
  if (good && s->bias)
    good = ok(cublasLtMatmulDescSetAttribute(&s->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                             sizeof epilogue)) &&
           ok(cublasLtMatmulDescSetAttribute(&s->op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type,
                                             sizeof bias_type));
  return good;
}

lt_shape *td_lt_shape(cuda_backend *b, const td_cuda_weight *w, bool f32)
{
  bool bias = w->bias != nullptr;
  for (auto &s : b->linears.lt_tables->shapes)
    if (s->n_out == w->n_out && s->n_in == w->n_in && s->f32 == f32 && s->bias == bias)
      return s.get();
  auto s = std::make_unique<lt_shape>();
  s->by_n.resize((size_t)b->config.max_tokens + 1);
  s->n_out = w->n_out;
  s->n_in = w->n_in;
  s->f32 = f32;
  s->bias = bias;
  if (!describe(s.get(), w->types[0].storage))
    return nullptr;
  b->linears.lt_tables->shapes.push_back(std::move(s));
  return b->linears.lt_tables->shapes.back().get();
}

bool td_lt_layouts(const lt_shape *s, uint32_t n, lt_linear *out)
{
  return ok(cublasLtMatrixLayoutInit(&out->x, CUDA_R_16BF, s->n_in, n, s->n_in)) &&
         ok(cublasLtMatrixLayoutInit(&out->out, s->f32 ? CUDA_R_32F : CUDA_R_16BF, s->n_out, n, s->n_out));
}

int td_lt_guess(cuda_backend *b, lt_shape *s, lt_linear *p, uint32_t reductions, int max,
                cublasLtMatmulHeuristicResult_t *out)
{
  cublasLtMatmulPreferenceOpaque_t pref;
  size_t ws = LT_WORKSPACE_BYTES;
  int n = 0;
  bool good = ok(cublasLtMatmulPreferenceInit(&pref)) &&
              ok(cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &ws,
                                                      sizeof ws)) &&
              ok(cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                      &reductions, sizeof reductions)) &&
              ok(cublasLtMatmulAlgoGetHeuristic(b->linears.lt, &s->op, &s->weight, &p->x, &p->out, &p->out,
                                                &pref, max, out, &n));
  return good ? n : 0;
}

// Whether p can run by an algorithm that was chosen for another row count. If so, p adopts it.
static bool adopt_algo(cuda_backend *b, lt_shape *s, lt_linear *p, const void *algo)
{
  cublasLtMatmulHeuristicResult_t result;
  static_assert(sizeof p->algo == sizeof(td_lt_entry::algo), "an algorithm is so many words");
  memcpy(&p->algo, algo, sizeof p->algo);
  return ok(cublasLtMatmulAlgoCheck(b->linears.lt, &s->op, &s->weight, &p->x, &p->out, &p->out, &p->algo,
                                    &result)) &&
         result.workspaceSize <= LT_WORKSPACE_BYTES;
}

static bool guess(cuda_backend *b, lt_shape *s, lt_linear *p)
{
  cublasLtMatmulHeuristicResult_t first;
  if (td_lt_guess(b, s, p, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 1, &first) == 0)
    return false;
  p->algo = first.algo;
  return true;
}

// batch_invariant: one algorithm for all row counts, which does not split k. So every element is summed in
// the same order, whatever n.
static bool adopt_fixed_algo(cuda_backend *b, lt_shape *s, lt_linear *p)
{
  cublasLtMatmulHeuristicResult_t first = {};
  lt_linear *f = &s->fixed;
  if (!f->made) {
    f->made = true;
    f->usable = td_lt_layouts(s, INVARIANT_ROWS, f) &&
                td_lt_guess(b, s, f, CUBLASLT_REDUCTION_SCHEME_NONE, 1, &first) > 0;
    f->algo = first.algo;
  }
  return f->usable && adopt_algo(b, s, p, &f->algo);
}

lt_linear *td_lt_linear_of(cuda_backend *b, lt_shape *s, uint32_t n)
{
  TD_BUG_ON(n >= s->by_n.size());
  lt_linear *p = &s->by_n[n];
  if (p->made)
    return p;
  if (b->config.batch_invariant) {
    p->usable = td_lt_layouts(s, n, p) && adopt_fixed_algo(b, s, p);
    p->made = true;
    return p;
  }
  uint32_t bucket = td_lt_bucket(n), bucket_rows = std::min(bucket, (uint32_t)s->by_n.size() - 1);
  const td_lt_entry *e =
      td_lt_cache_find(&b->linears.lt_tables->cache, s->n_out, s->n_in, s->f32, s->bias, bucket);
  const lt_linear *bucket_linear = n < bucket_rows ? td_lt_linear_of(b, s, bucket_rows) : nullptr;
  p->usable = td_lt_layouts(s, n, p) &&
              ((e && adopt_algo(b, s, p, e->algo)) ||
               (bucket_linear && bucket_linear->usable && adopt_algo(b, s, p, &bucket_linear->algo)) ||
               guess(b, s, p));
  p->made = true;
  return p;
}

td_status td_lt_prepare(cuda_backend *b, lt_shape *s, td_error *err)
{
  uint32_t most = (uint32_t)s->by_n.size() - 1;
  for (lt_linear &p : s->by_n) // what an empty step chose before anything was known
    p.made = false;
  if (b->config.batch_invariant) {
    for (uint32_t n = 1; n <= most; n++)
      if (!td_lt_linear_of(b, s, n)->usable)
        return td_fail_param(
            err, TD_ERR_UNSUPPORTED, "batch_invariant",
            "batch_invariant: cuBLASLt multiplies %u rows by a %u x %u matrix in no order that serves all", n,
            s->n_out, s->n_in);
    return TD_OK;
  }
  for (uint32_t n = 1; n <= most; n = td_lt_bucket(n) + 1)
    td_lt_linear_of(b, s, std::min(td_lt_bucket(n), most));
  return TD_OK;
}

void td_lt_reselect(cuda_backend *b, lt_shape *s, uint32_t bucket)
{
  uint32_t most = std::min(bucket, (uint32_t)s->by_n.size() - 1);
  for (uint32_t n = most; n > 0 && td_lt_bucket(n) == bucket; n--)
    s->by_n[n].made = false;
  td_lt_linear_of(b, s, most);
}

cublasStatus_t td_lt_queue(cuda_backend *b, lt_shape *s, lt_linear *p, const td_cuda_weight *w, const void *x,
                           void *out, bool add, const cublasLtMatmulAlgo_t *algo)
{
  float alpha = 1, beta = add;
  if (s->bias) {
    cublasStatus_t e =
        cublasLtMatmulDescSetAttribute(&s->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &w->bias, sizeof w->bias);
    if (!ok(e))
      return e;
  }
  return cublasLtMatmul(b->linears.lt, &s->op, &alpha, w->data, &s->weight, x, &p->x, &beta, out, &p->out,
                        out, &p->out, algo, b->linears.lt_workspace, LT_WORKSPACE_BYTES, b->device.stream);
}

void td_lt_linear(cuda_backend *b, const params_with_rows<td_linear_params> *p)
{
  const td_cuda_weight *w = cuda_weight(p->weight);
  lt_shape *s = td_lt_shape(b, w, p->out_f32);
  lt_linear *linear = s ? td_lt_linear_of(b, s, p->n) : nullptr;
  if (!linear || !linear->usable) {
    record_error(&b->device, cudaErrorNotSupported);
    return;
  }
  cublasStatus_t e = td_lt_queue(b, s, linear, w, at<void>(p->x), at<void>(p->out), p->add, &linear->algo);
  if (!ok(e)) {
    td_warn("cuBLASLt: %s", cublasLtGetStatusString(e));
    record_error(&b->device, cudaErrorUnknown);
  }
}

td_status td_lt_open(cuda_backend *b, td_error *err)
{
  b->linears.lt_tables = new (std::nothrow) lt_tables();
  if (!b->linears.lt_tables)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the linears' tables");
  td_lt_cache_init(&b->linears.lt_tables->cache);
  TD_TRY(td_cuda_alloc_bytes(&b->device, LT_WORKSPACE_BYTES, &b->linears.lt_workspace, err));
  return ok(cublasLtCreate(&b->linears.lt)) ? TD_OK
                                            : td_fail(err, TD_ERR_DEVICE, "CUDA: cuBLASLt does not start");
}

void td_lt_close(cuda_backend *b)
{
  if (b->linears.lt)
    cublasLtDestroy(b->linears.lt);
  if (b->linears.lt_tables)
    td_lt_cache_deinit(&b->linears.lt_tables->cache);
  delete b->linears.lt_tables;
}
