// Compiles a program, and runs it op by op where no captured step serves.
//
// Compiling has one pass: a linear followed by SwiGLU becomes one op. gemm_skinny_swiglu.cu and
// gemm_swiglu.cu compute it where they are faster than two kernels. fused_plan.cu and cublaslt_tune.cu read
// the compiled list: the one makes large kernels of a step's ops, the other finds the linears to tune.
#include "kernels/cuda/program.cuh"

#include <new>

// ---- compiling ----

static bool is_linear_swiglu(const td_op &linear, const td_op &swiglu)
{
  return linear.kind == TD_OP_LINEAR && swiglu.kind == TD_OP_SWIGLU && linear.extent == swiglu.extent &&
         linear.layer == swiglu.layer && linear.linear.out.addr == swiglu.swiglu.gate_up.addr &&
         linear.linear.n_out == 2 * swiglu.swiglu.width && !linear.linear.add && !linear.linear.out_f32;
}

static td_op linear_swiglu_of(const td_op &linear, const td_op &swiglu)
{
  const td_linear_params &l = linear.linear;
  td_op o = linear;
  o.kind = TD_OP_LINEAR_SWIGLU;
  o.linear_swiglu = {l.weight, l.x, l.out, swiglu.swiglu.out, l.n_in, swiglu.swiglu.width};
  return o;
}

static td_status check_op(const cuda_backend *b, const td_op &o, td_error *err)
{
  const td_linear_swiglu_params &g = o.linear_swiglu;
  if (o.kind == TD_OP_ROPE_KV && o.rope_kv.rotary_dim % 16 != 0)
    return td_fail(err, TD_ERR_UNSUPPORTED,
                   "%u of %u elements of a head are rotated: on a GPU a multiple of 16 is served",
                   o.rope_kv.rotary_dim, o.rope_kv.head_dim);
  if (o.kind != TD_OP_LINEAR_SWIGLU || g.gate_up.addr ||
      td_gemm_swiglu_serves(b, cuda_weight(g.weight), g.width))
    return TD_OK;
  return td_fail(err, TD_ERR_UNSUPPORTED, "no kernel for a product of %u by 2 x %u with SwiGLU", g.n_in,
                 g.width);
}

// If no op uses KV, the value does not matter.
static uint32_t page_tokens_of(const td_program *program)
{
  for (uint32_t i = 0; i < program->n_ops; i++)
    if (program->ops[i].kind == TD_OP_ROPE_KV)
      return program->ops[i].rope_kv.kv->spec.page_tokens;
    else if (program->ops[i].kind == TD_OP_ATTENTION)
      return program->ops[i].attention.kv->spec.page_tokens;
  return 16;
}

td_status td_cuda_compile(td_backend *be, const td_program *program, td_compiled **out, td_error *err)
{
  cuda_backend *b = self(be);
  td_program_check(program);
  for (uint32_t i = 0; i < program->n_ops; i++)
    TD_TRY(check_op(b, program->ops[i], err));
  cuda_program *p = new (std::nothrow) cuda_program();
  if (!p)
    return td_fail(err, TD_ERR_NOMEM, "no memory for a program");
  p->page_tokens = page_tokens_of(program);
  for (uint32_t i = 0; i < program->n_ops; i++) {
    bool fuses_swiglu = i + 1 < program->n_ops && is_linear_swiglu(program->ops[i], program->ops[i + 1]);
    p->ops.push_back(fuses_swiglu ? linear_swiglu_of(program->ops[i], program->ops[i + 1]) : program->ops[i]);
    p->n_unsampled += i < program->n_unsampled;
    i += fuses_swiglu;
  }
  *out = (td_compiled *)p;
  return TD_OK;
}

void td_cuda_discard(td_backend *be, td_compiled *compiled)
{
  cuda_program *p = program_of(compiled);
  if (!p)
    return;
  cudaStreamSynchronize(self(be)->device.stream);
  td_cuda_free_captured(p);
  td_cuda_free_tuner(p);
  delete p;
}

// ---- running ----

td_linear_params td_cuda_gate_up_linear(const td_linear_swiglu_params &g)
{
  td_linear_params l = {};
  l.weight = g.weight;
  l.x = g.x;
  l.out = g.gate_up;
  l.n_in = g.n_in;
  l.n_out = 2 * g.width;
  l.bias = g.weight->has_bias;
  return l;
}

void td_cuda_linear_swiglu(cuda_backend *b, const td_linear_swiglu_params *g, uint32_t n_rows)
{
  bool forced = !g->gate_up.addr;
  const params_with_rows<td_linear_swiglu_params> op = {*g, n_rows};
  if (td_skinny_swiglu_linear(b, &op, forced) || td_gemm_swiglu_linear(b, &op, forced))
    return;
  if (forced) {
    record_error(&b->device, cudaErrorNotSupported);
    return;
  }
  const td_linear_params first = td_cuda_gate_up_linear(*g);
  const td_swiglu_params second = {g->gate_up, g->out, g->width};
  td_cuda_linear(b, &first, n_rows);
  td_cuda_swiglu(b, &second, n_rows);
}

void td_cuda_run_op(cuda_backend *b, const td_op &o)
{
  uint32_t n = td_extent_rows(o.extent, b->frame.plan);
  if (n == 0)
    return;
  switch (o.kind) {
#define TD_OP(KIND, name)                                                                                    \
  case TD_OP_##KIND:                                                                                         \
    td_cuda_##name(b, &o.name, n);                                                                           \
    break;
#include "kernels/ops.def"
  case TD_OP_KINDS: TD_BUG_ON(true);
  }
}

void td_cuda_run(cuda_backend *b, const cuda_program &p)
{
  size_t n = b->frame.plan->n_logits > 0 ? p.ops.size() : p.n_unsampled;
  for (size_t i = 0; i < n; i++)
    td_cuda_run_op(b, p.ops[i]);
}
