// From the ops of a recorded step to the kernels of fused.cuh.
//
// The forward queues its ops into a list instead of the device. The list is read as a decoder: embedding, then layers of norm, q|k|v,
// rotation, attention, output, norm, gate|up, SwiGLU, down, then norm and head. What does not read so, op by op and buffer
// by buffer, or has a shape that they do not serve, is queued as it would have been.
#include "kernels/cuda/fused.cuh"

namespace {

// ---- noting ----

std::vector<noted_op> *noted; // of the one recording that runs: by the engine thread, before the first step

template <typename P> void note_op(op_kind kind, P noted_op::*member, const P *p)
{
  noted_op o = {};
  o.kind = kind;
  o.*member = *p;
  noted->push_back(o);
}

void note_embed(td_backend *, const td_embed_params *p) { note_op(OP_EMBED, &noted_op::embed, p); }
void note_rmsnorm(td_backend *, const td_rmsnorm_params *p) { note_op(OP_RMSNORM, &noted_op::rmsnorm, p); }
void note_linear(td_backend *, const td_linear_params *p) { note_op(OP_LINEAR, &noted_op::linear, p); }
void note_rope_kv(td_backend *, const td_rope_kv_params *p) { note_op(OP_ROPE_KV, &noted_op::rope_kv, p); }
void note_attention(td_backend *, const td_attention_params *p) { note_op(OP_ATTENTION, &noted_op::attention, p); }
void note_swiglu(td_backend *, const td_swiglu_params *p) { note_op(OP_SWIGLU, &noted_op::swiglu, p); }
void note_gather(td_backend *, const td_gather_params *p) { note_op(OP_GATHER, &noted_op::gather, p); }
void note_sample(td_backend *, const td_sample_params *p) { note_op(OP_SAMPLE, &noted_op::sample, p); }

void note_ops(cuda_backend *b, const td_plan *plan, void (*queue)(void *arg, const td_plan *plan), void *arg,
              std::vector<noted_op> *out)
{
  const td_backend_ops *real = b->base.ops;
  td_backend_ops noting = *real;
  noting.embed = note_embed;
  noting.rmsnorm = note_rmsnorm;
  noting.linear = note_linear;
  noting.rope_kv = note_rope_kv;
  noting.attention = note_attention;
  noting.swiglu = note_swiglu;
  noting.linear_swiglu = nullptr; // few rows: two ops
  noting.gather = note_gather;
  noting.sample = note_sample;
  noted = out;
  b->base.ops = &noting;
  queue(arg, plan);
  b->base.ops = real;
  noted = nullptr;
}

void queue_op(cuda_backend *b, const noted_op &o)
{
  td_backend *be = &b->base;
  switch (o.kind) {
  case OP_EMBED: td_cuda_embed(be, &o.embed); break;
  case OP_RMSNORM: td_cuda_rmsnorm(be, &o.rmsnorm); break;
  case OP_LINEAR: td_cuda_linear(be, &o.linear); break;
  case OP_ROPE_KV: td_cuda_rope_kv(be, &o.rope_kv); break;
  case OP_ATTENTION: td_cuda_attention(be, &o.attention); break;
  case OP_SWIGLU: td_cuda_swiglu(be, &o.swiglu); break;
  case OP_GATHER: td_cuda_gather(be, &o.gather); break;
  case OP_SAMPLE: td_cuda_sample(be, &o.sample); break;
  }
}

// ---- reading the list ----

bool same(td_devptr a, td_devptr b) { return a.addr == b.addr; }

struct reader {
  cuda_backend *b;
  const std::vector<noted_op> &ops;
  size_t n_read;
  uint32_t n; // rows
  float *sums;
  fused_step *out;
  uint32_t width, n_sums; // of x; of what wrote h last
  float eps;              // of the norm that reads h
  td_devptr x, h, attn;   // as the ops name them: a gather of all rows is another name

  const noted_op *take(op_kind kind) { return n_read < ops.size() && ops[n_read].kind == kind ? &ops[n_read++] : nullptr; }
};

bool add_product(const reader &r, fused_product *out, const td_linear_params &p, uint32_t kind)
{
  *out = {};
  out->kind = kind;
  out->n = r.n;
  out->width = r.width;
  out->out = at<void>(p.out);
  out->h = r.out->begin.h;
  out->sums = r.sums;
  return p.n == r.n && td_fused_lay_out(r.b, out, p.weight, at<void>(p.x));
}

// x += product, and h by it too; the norm's op says how.
bool add_residual(reader &r, fused_product *out, const td_linear_params &p)
{
  const noted_op *o = r.take(OP_RMSNORM);
  if (!o || !add_product(r, out, p, FUSED_ADD))
    return false;
  const td_rmsnorm_params &norm = o->rmsnorm;
  out->out = r.out->begin.x; // where it is, whatever its name
  out->held = r.out->begin.x;
  out->norm = at<float>(norm.weight);
  r.n_sums = out->n_tiles;
  r.eps = norm.eps;
  return p.add && same(p.out, r.x) && same(norm.x, r.x) && same(norm.out, r.h) && norm.n == r.n && norm.width == r.width &&
         out->n_out == r.width && out->n_tiles <= FUSED_TILES_MAX;
}

// A product of h, whose rows are still to be divided by their root mean square.
bool add_scaled(const reader &r, fused_product *out, const td_linear_params &p, uint32_t kind)
{
  if (p.add || !same(p.x, r.h) || !add_product(r, out, p, kind))
    return false;
  out->n_sums = r.n_sums;
  out->eps = r.eps;
  return true;
}

bool read_attention(reader &r, fused_attention *out, td_devptr qkv)
{
  const noted_op *rope = r.take(OP_ROPE_KV), *att = r.take(OP_ATTENTION);
  if (!rope || !att)
    return false;
  const td_rope_kv_params &p = rope->rope_kv;
  const td_attention_params &q = att->attention;
  if (!same(p.qkv, qkv) || !same(q.qkv, qkv) || q.kv != p.kv || q.layer != p.layer || p.q_norm.addr || p.k_norm.addr || !p.kv->wgmma ||
      p.n_heads / p.n_kv_heads > TD_DECODE_ROWS || p.rotary_dim != p.head_dim)
    return false;
  out->group = td_cuda_group_of(r.b, q.kv, q.window_tokens);
  out->args = td_cuda_attention_args(r.b, out->group, &q);
  out->rotation = {at<float>(p.inv_freq), p.attn_factor, p.style == TD_ROPE_HALVES};
  r.attn = q.out;
  return true;
}

// Of the last layer: every row of such a step wants logits, so what is gathered is what there was.
bool skip_gathers(reader &r)
{
  const noted_op *x = r.take(OP_GATHER);
  if (!x)
    return true;
  const noted_op *attn = r.take(OP_GATHER);
  if (!attn || !same(x->gather.x, r.x) || !same(attn->gather.x, r.attn))
    return false;
  r.x = x->gather.out;
  r.attn = attn->gather.out;
  return true;
}

// A layer behind its first norm, and the norm after it.
bool read_layer(reader &r)
{
  fused_layer &l = r.out->layers.emplace_back();
  const noted_op *qkv = r.take(OP_LINEAR);
  if (!qkv || !add_scaled(r, &l.qkv, qkv->linear, FUSED_STORE) || !read_attention(r, &l.attention, qkv->linear.out))
    return false;
  td_devptr attn = r.attn; // where it is, whatever its name
  const noted_op *o = skip_gathers(r) ? r.take(OP_LINEAR) : nullptr;
  if (!o || !same(o->linear.x, r.attn))
    return false;
  td_linear_params p = o->linear;
  p.x = attn;
  if (!add_residual(r, &l.o, p))
    return false;
  const noted_op *gate_up = r.take(OP_LINEAR), *act = r.take(OP_SWIGLU), *down = r.take(OP_LINEAR);
  if (!gate_up || !act || !down || !same(act->swiglu.gate_up, gate_up->linear.out) || !same(down->linear.x, act->swiglu.out) ||
      act->swiglu.width * 2 != gate_up->linear.weight->n_out || act->swiglu.n != r.n)
    return false;
  p = gate_up->linear;
  p.out = act->swiglu.out;
  return add_scaled(r, &l.gate_up, p, FUSED_SWIGLU) && add_residual(r, &l.down, down->linear);
}

bool read_decoder(reader &r)
{
  const noted_op *embed = r.take(OP_EMBED), *norm = r.take(OP_RMSNORM);
  if (!embed || !norm || !same(norm->rmsnorm.x, embed->embed.out) || norm->rmsnorm.n != r.n ||
      norm->rmsnorm.width != embed->embed.width)
    return false;
  r.eps = norm->rmsnorm.eps;
  r.x = embed->embed.out;
  r.h = norm->rmsnorm.out;
  r.width = norm->rmsnorm.width;
  r.n_sums = 1;
  r.out->begin = {embed->embed.weight->data, at<float>(norm->rmsnorm.weight), at<bf16>(r.x), at<bf16>(r.h), r.sums, r.n, r.width};
  while (r.n_read + 1 < r.ops.size() && r.ops[r.n_read + 1].kind == OP_ROPE_KV)
    if (!read_layer(r))
      return false;
  const noted_op *head = r.take(OP_LINEAR);
  return head && head->linear.out_f32 && !r.out->layers.empty() && add_scaled(r, &r.out->head, head->linear, FUSED_STORE_F32);
}

} // namespace

bool td_fused_make(cuda_backend *b, const td_plan *plan, void (*queue)(void *arg, const td_plan *plan), void *arg, fused_step *out)
{
  if (!b->stream_encode || b->config.batch_invariant || shares_prefixes(b) || plan->n_rows > FUSED_ROWS_MAX)
    return false;
  std::vector<noted_op> ops;
  note_ops(b, plan, queue, arg, &ops);
  reader r = {b, ops, 0, plan->n_rows, b->fused_sums, out};
  if (!read_decoder(r))
    return false;
  out->rest.assign(ops.begin() + (ptrdiff_t)r.n_read, ops.end());
  return true;
}

void td_fused_queue(cuda_backend *b, const fused_step &s)
{
  td_fused_queue_begin(b, s.begin);
  for (const fused_layer &l : s.layers) {
    const fused_attention &at = l.attention;
    td_fused_queue_product(b, l.qkv);
    td_cuda_decode_rotated(b, at.group, at.args, at.rotation, td_cuda_attention_grid(b, at.group).n_decode);
    td_fused_queue_product(b, l.o);
    td_fused_queue_product(b, l.gate_up);
    td_fused_queue_product(b, l.down);
  }
  td_fused_queue_product(b, s.head);
  for (const noted_op &o : s.rest)
    queue_op(b, o);
}
