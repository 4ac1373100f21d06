// Turns a program's ops into the kernels of fused.cuh.
//
// The list is read as a decoder: embedding, then layers of norm, q|k|v, rotation, attention, output, norm,
// gate|up with SwiGLU, down, then norm and head. If the list differs in an op or a buffer, or has a shape
// that the kernels do not serve, the step runs op by op, and the reason is reported.
#include "kernels/cuda/fused.cuh"
#include "kernels/cuda/program.cuh"

namespace
{

bool same(td_devptr a, td_devptr b) { return a.addr == b.addr; }

struct reader {
  cuda_backend *b;
  const std::vector<td_op> &ops;
  size_t n_read;
  uint32_t n; // rows
  float *sums;
  fused_step *out;
  const char *why;        // why the step cannot be fused
  uint32_t width, n_sums; // width: columns of x; n_sums: tiles of the GEMM that wrote h last
  float eps;              // of the norm that reads h
  td_devptr x, h, attn;   // the ops' current names; a gather of all rows only changes the name

  const td_op *next_op(td_op_kind kind)
  {
    if (n_read < ops.size() && ops[n_read].kind == kind)
      return &ops[n_read++];
    why = "not the ops of a Llama-like decoder, in its order";
    return nullptr;
  }
  bool refuse(const char *text)
  {
    why = text;
    return false;
  }
};

const char *const OTHER_BUFFERS = "ops pass each other buffers unlike a Llama-like decoder";

bool is_plain(const td_rmsnorm_params &p) { return p.stride == 0 && !p.centred && !p.add; }

bool add_gemm(reader &r, fused_gemm *out, const td_linear_params &p, uint32_t kind)
{
  *out = {};
  out->kind = kind;
  out->n = r.n;
  out->width = r.width;
  out->out = at<void>(p.out);
  out->h = r.out->embedding.h;
  out->sums = r.sums;
  return td_fused_plan_gemm(r.b, out, cuda_weight(p.weight), at<void>(p.x)) ||
         r.refuse("a product of a shape that has no such kernel");
}

// Reads a linear that adds to x and the norm after it: one GEMM writes x and h.
bool add_residual(reader &r, fused_gemm *out, const td_linear_params &p)
{
  const td_op *o = r.next_op(TD_OP_RMSNORM);
  if (!o || !add_gemm(r, out, p, FUSED_ADD_NORM))
    return false;
  const td_rmsnorm_params &norm = o->rmsnorm;
  out->out = r.out->embedding.x; // the same memory under any name
  out->residual = r.out->embedding.x;
  out->norm = at<float>(norm.weight);
  r.n_sums = out->n_tiles;
  r.eps = norm.eps;
  if (out->n_tiles > FUSED_TILES_MAX)
    return r.refuse("more tiles in a product before a norm than their sums have room for");
  return (p.add && is_plain(norm) && same(p.out, r.x) && same(norm.x, r.x) && same(norm.out, r.h) &&
          norm.width == r.width && out->n_out == r.width) ||
         r.refuse(OTHER_BUFFERS);
}

// A linear that reads h: its rows must be multiplied by 1 / rms.
bool add_scaled(reader &r, fused_gemm *out, const td_linear_params &p, uint32_t kind)
{
  if (p.add || !same(p.x, r.h))
    return r.refuse(OTHER_BUFFERS);
  if (!add_gemm(r, out, p, kind))
    return false;
  out->n_sums = r.n_sums;
  out->eps = r.eps;
  return true;
}

bool read_attention(reader &r, fused_attention *out, td_devptr qkv)
{
  const td_op *rope = r.next_op(TD_OP_ROPE_KV), *att = rope ? r.next_op(TD_OP_ATTENTION) : nullptr;
  if (!att)
    return false;
  const td_rope_kv_params &p = rope->rope_kv;
  const td_attention_params &q = att->attention;
  if (!same(p.qkv, qkv) || !same(q.qkv, qkv) || q.kv != p.kv || q.kv_group != p.kv_group ||
      q.layer != p.layer)
    return r.refuse(OTHER_BUFFERS);
  if (p.rotary_dim != p.head_dim)
    return r.refuse("heads of which a part is rotated");
  if ((p.q_norm.addr || p.k_norm.addr) && !td_cuda_decode_has_norms(p.head_dim))
    return r.refuse("q and k norms of heads of 96 elements");
  if (!cuda_kv_group(p.kv, p.kv_group)->wgmma || p.n_heads / p.n_kv_heads > TD_DECODE_ROWS)
    return r.refuse("more query heads for a KV head than attention that rotates serves");
  out->group = cuda_kv_group(q.kv, q.kv_group);
  out->args = td_cuda_attention_args(r.b, out->group, &q);
  out->rotation = {at<float>(p.inv_freq), p.attn_factor,       p.style == TD_ROPE_HALVES,
                   at<float>(p.q_norm),   at<float>(p.k_norm), p.norm_eps};
  r.attn = q.out;
  return true;
}

// Skips the gathers of the last layer: every row of such a step wants logits, so they change nothing.
bool skip_gathers(reader &r)
{
  if (r.n_read == r.ops.size() || r.ops[r.n_read].kind != TD_OP_GATHER)
    return true;
  const td_op *x = r.next_op(TD_OP_GATHER), *attn = r.next_op(TD_OP_GATHER);
  if (!attn)
    return false;
  if (!same(x->gather.x, r.x) || !same(attn->gather.x, r.attn))
    return r.refuse(OTHER_BUFFERS);
  r.x = x->gather.out;
  r.attn = attn->gather.out;
  return true;
}

bool read_mlp(reader &r, fused_layer &l)
{
  const td_op *glu = r.next_op(TD_OP_LINEAR_SWIGLU), *down = glu ? r.next_op(TD_OP_LINEAR) : nullptr;
  if (!down)
    return false;
  td_linear_params p = td_cuda_gate_up_linear(glu->linear_swiglu);
  p.out = glu->linear_swiglu.out;
  if (!same(down->linear.x, p.out))
    return r.refuse(OTHER_BUFFERS);
  return add_scaled(r, &l.gate_up, p, FUSED_SWIGLU) && add_residual(r, &l.down, down->linear);
}

// Reads a layer without its first norm, and the norm after it.
bool read_layer(reader &r)
{
  fused_layer &l = r.out->layers.emplace_back();
  const td_op *qkv = r.next_op(TD_OP_LINEAR);
  if (!qkv || !add_scaled(r, &l.qkv, qkv->linear, FUSED_STORE) ||
      !read_attention(r, &l.attention, qkv->linear.out))
    return false;
  td_devptr attn = r.attn; // the same memory under any name
  const td_op *o = skip_gathers(r) ? r.next_op(TD_OP_LINEAR) : nullptr;
  if (!o)
    return false;
  if (!same(o->linear.x, r.attn))
    return r.refuse(OTHER_BUFFERS);
  td_linear_params p = o->linear;
  p.x = attn;
  return add_residual(r, &l.o, p) && read_mlp(r, l);
}

bool read_embedding(reader &r)
{
  const td_op *embed = r.next_op(TD_OP_EMBED), *norm = embed ? r.next_op(TD_OP_RMSNORM) : nullptr;
  if (!norm)
    return false;
  if (!same(norm->rmsnorm.x, embed->embed.out) || norm->rmsnorm.width != embed->embed.width)
    return r.refuse(OTHER_BUFFERS);
  if (embed->embed.scale != 0 || !is_plain(norm->rmsnorm))
    return r.refuse("an embedding that is multiplied, or a norm that takes the mean off");
  r.eps = norm->rmsnorm.eps;
  r.x = embed->embed.out;
  r.h = norm->rmsnorm.out;
  r.width = norm->rmsnorm.width;
  r.n_sums = 1;
  r.out->embedding = {cuda_weight(embed->embed.weight)->data,
                      at<float>(norm->rmsnorm.weight),
                      at<bf16>(r.x),
                      at<bf16>(r.h),
                      r.sums,
                      r.n,
                      r.width};
  return true;
}

bool read_decoder(reader &r)
{
  if (!read_embedding(r))
    return false;
  while (r.n_read + 1 < r.ops.size() && r.ops[r.n_read + 1].kind == TD_OP_ROPE_KV)
    if (!read_layer(r))
      return false;
  const td_op *head = r.next_op(TD_OP_LINEAR);
  if (!head)
    return false;
  if (!head->linear.out_f32 || r.out->layers.empty())
    return r.refuse(OTHER_BUFFERS);
  return add_scaled(r, &r.out->head, head->linear, FUSED_STORE_F32);
}

} // namespace

const char *td_fused_make(cuda_backend *b, const std::vector<td_op> &ops, uint32_t n_rows, fused_step *out)
{
  if (n_rows > FUSED_ROWS_MAX)
    return "more than 16 rows";
  if (!b->linears.encode_map)
    return "no Hopper GPU, or a build without code for it";
  if (b->config.batch_invariant)
    return "batch_invariant";
  reader r = {b, ops, 0, n_rows, b->linears.fused_sums, out};
  if (!read_decoder(r))
    return r.why;
  out->tail_ops.assign(ops.begin() + (ptrdiff_t)r.n_read, ops.end());
  return nullptr;
}

void td_fused_queue(cuda_backend *b, const fused_step &s)
{
  td_fused_queue_embedding(b, s.embedding);
  for (const fused_layer &l : s.layers) {
    const fused_attention &at = l.attention;
    td_fused_queue_gemm(b, l.qkv);
    td_cuda_decode_rotated(b, at.group, at.args, at.rotation,
                           td_cuda_attention_grid(b, at.group).n_decode_ctas);
    td_fused_queue_gemm(b, l.o);
    td_fused_queue_gemm(b, l.gate_up);
    td_fused_queue_gemm(b, l.down);
  }
  td_fused_queue_gemm(b, s.head);
  for (const td_op &o : s.tail_ops)
    td_cuda_run_op(b, o);
}
