// Programs: compiled once, run op by op where no captured step serves.
//
// The one pass over the list here: a product and the SwiGLU behind it become one op, which glu_product.cu
// does in steps where it is faster. Others read the list: fused_plan.cu makes large kernels of a step's ops,
// lt_tune.cu finds its products.
#include "kernels/cuda/program.cuh"

#include <new>

// ---- compiling ----

static bool are_glu(const td_op &linear, const td_op &swiglu)
{
  return linear.kind == TD_OP_LINEAR && swiglu.kind == TD_OP_SWIGLU && linear.extent == swiglu.extent &&
         linear.layer == swiglu.layer && linear.linear.out.addr == swiglu.swiglu.gate_up.addr &&
         linear.linear.n_out == 2 * swiglu.swiglu.width && !linear.linear.add && !linear.linear.out_f32;
}

static td_op glu_of(const td_op &linear, const td_op &swiglu)
{
  const td_linear_params &l = linear.linear;
  td_op o = linear;
  o.kind = TD_OP_LINEAR_SWIGLU;
  o.linear_swiglu = {l.weight, l.x, l.out, swiglu.swiglu.out, l.n_in, swiglu.swiglu.width};
  return o;
}

static td_status check_op(const cuda_backend *b, const td_op &o, td_error *err)
{
  const td_linear_params &l = o.linear;
  const td_linear_swiglu_params &g = o.linear_swiglu;
  if (o.kind == TD_OP_LINEAR)
    TD_BUG_ON(l.n_out != l.weight->n_out || l.n_in != l.weight->n_in ||
              l.bias != (l.weight->bias != nullptr));
  if (o.kind != TD_OP_LINEAR_SWIGLU)
    return TD_OK;
  TD_BUG_ON(2 * g.width != g.weight->n_out || g.n_in != g.weight->n_in);
  if (g.gate_up.addr || td_glu_serves(b, g.weight, g.width))
    return TD_OK;
  return td_fail(err, TD_ERR_UNSUPPORTED, "no kernel for a product of %u by 2 x %u with SwiGLU", g.n_in,
                 g.width);
}

td_status td_cuda_compile(td_backend *be, const td_program *program, td_compiled **out, td_error *err)
{
  cuda_backend *b = self(be);
  for (uint32_t i = 0; i < program->n_ops; i++)
    TD_TRY(check_op(b, program->ops[i], err));
  cuda_program *p = new (std::nothrow) cuda_program();
  if (!p)
    return td_fail(err, TD_ERR_NOMEM, "no memory for a program");
  for (uint32_t i = 0; i < program->n_ops; i++) {
    bool glu = i + 1 < program->n_ops && are_glu(program->ops[i], program->ops[i + 1]);
    p->ops.push_back(glu ? glu_of(program->ops[i], program->ops[i + 1]) : program->ops[i]);
    p->n_unsampled += i < program->n_unsampled;
    i += glu;
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
  delete p;
}

// ---- running ----

td_linear_params td_cuda_glu_product(const td_linear_swiglu_params &g)
{
  td_linear_params l = {};
  l.weight = g.weight;
  l.x = g.x;
  l.out = g.gate_up;
  l.n_in = g.n_in;
  l.n_out = 2 * g.width;
  l.bias = g.weight->bias != nullptr;
  return l;
}

static void run_glu(cuda_backend *b, const td_linear_swiglu_params &g, uint32_t n)
{
  bool must = !g.gate_up.addr;
  const of_rows<td_linear_swiglu_params> one = {g, n};
  const of_rows<td_linear_params> first = {td_cuda_glu_product(g), n};
  const of_rows<td_swiglu_params> second = {{g.gate_up, g.out, g.width}, n};
  if (td_glu_linear(b, &one, must))
    return;
  if (must) {
    note(&b->device, cudaErrorNotSupported);
    return;
  }
  td_cuda_linear(b, &first);
  td_cuda_swiglu(b, &second);
}

void td_cuda_run_op(cuda_backend *b, const td_op &o)
{
  td_backend *be = &b->base;
  uint32_t n = td_extent_rows(o.extent, b->frame.plan);
  if (n == 0)
    return;
  const of_rows<td_rmsnorm_params> norm = {o.rmsnorm, n};
  const of_rows<td_linear_params> linear = {o.linear, n};
  const of_rows<td_swiglu_params> swiglu = {o.swiglu, n};
  switch (o.kind) {
  case TD_OP_EMBED: td_cuda_embed(be, &o.embed); break;
  case TD_OP_RMSNORM: td_cuda_rmsnorm(b, &norm); break;
  case TD_OP_LINEAR: td_cuda_linear(b, &linear); break;
  case TD_OP_ROPE_KV: td_cuda_rope_kv(be, &o.rope_kv); break;
  case TD_OP_ATTENTION: td_cuda_attention(be, &o.attention); break;
  case TD_OP_SWIGLU: td_cuda_swiglu(b, &swiglu); break;
  case TD_OP_LINEAR_SWIGLU: run_glu(b, o.linear_swiglu, n); break;
  case TD_OP_GATHER: td_cuda_gather(be, &o.gather); break;
  case TD_OP_SAMPLE: td_cuda_sample(be, &o.sample); break;
  case TD_OP_POOL: td_cuda_pool(be, &o.pool); break;
  case TD_OP_KINDS: TD_BUG_ON(true);
  }
}

void td_cuda_run(cuda_backend *b, const cuda_program &p)
{
  size_t n = b->frame.plan->n_logits > 0 ? p.ops.size() : p.n_unsampled;
  for (size_t i = 0; i < n; i++)
    td_cuda_run_op(b, p.ops[i]);
}
