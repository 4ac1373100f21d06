/* See program.h. */
#include "kernels/program.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const td_op_names[TD_OP_KINDS] = {
#define TD_OP(KIND, name) [TD_OP_##KIND] = #name,
#include "kernels/ops.def"
};

/* ---- building ---- */

td_status td_program_create(uint32_t max_ops, td_program **out, td_error *err)
{
  td_program *p = calloc(1, sizeof *p);
  td_op *ops = calloc(max_ops + 1, sizeof *ops);
  if (!p || !ops) {
    free(p);
    free(ops);
    return td_fail(err, TD_ERR_NOMEM, "no memory for a program of %u ops", max_ops);
  }
  *p = (td_program){.ops = ops, .max_ops = max_ops};
  *out = p;
  return TD_OK;
}

void td_program_destroy(td_program *p)
{
  if (!p)
    return;
  free(p->ops);
  free(p);
}

void td_program_add(td_program *p, td_op op)
{
  TD_BUG_ON(p->n_ops == p->max_ops);
  p->ops[p->n_ops++] = op;
  p->n_unsampled = p->n_ops;
}

void td_program_name_buffer(td_program *p, const char *name, td_devptr at)
{
  TD_BUG_ON(p->n_buffers == TD_PROGRAM_BUFFERS_MAX);
  p->buffers[p->n_buffers++] = (td_program_buffer){name, at};
}

td_devptr td_program_buffer_at(const td_program *p, const char *name)
{
  for (uint32_t i = 0; i < p->n_buffers; i++)
    if (strcmp(p->buffers[i].name, name) == 0)
      return p->buffers[i].at;
  return (td_devptr){0};
}

td_status td_program_keep(const td_program *p, uint32_t kinds, td_program **out, td_error *err)
{
  td_program *kept = NULL;
  uint32_t n_unsampled = 0;
  TD_TRY(td_program_create(p->n_ops, &kept, err));
  for (uint32_t i = 0; i < p->n_ops; i++)
    if (kinds >> p->ops[i].kind & 1) {
      td_program_add(kept, p->ops[i]);
      n_unsampled += i < p->n_unsampled;
    }
  kept->n_unsampled = n_unsampled;
  memcpy(kept->buffers, p->buffers, sizeof kept->buffers);
  kept->n_buffers = p->n_buffers;
  *out = kept;
  return TD_OK;
}

static void check_kv(const td_kv *kv, uint32_t group, uint32_t layer, uint32_t n_kv_heads, uint32_t head_dim)
{
  TD_BUG_ON(group >= kv->spec.n_groups);
  const td_kv_group *g = &kv->spec.groups[group];
  TD_BUG_ON(layer >= g->n_layers || n_kv_heads != g->n_kv_heads || head_dim != g->head_dim);
}

void td_program_check(const td_program *p)
{
  for (uint32_t i = 0; i < p->n_ops; i++) {
    const td_linear_params *l = &p->ops[i].linear;
    const td_linear_swiglu_params *s = &p->ops[i].linear_swiglu;
    const td_rope_kv_params *r = &p->ops[i].rope_kv;
    const td_attention_params *a = &p->ops[i].attention;
    switch (p->ops[i].kind) {
    case TD_OP_LINEAR:
      TD_BUG_ON(l->n_out != l->weight->n_out || l->n_in != l->weight->n_in || l->bias != l->weight->has_bias);
      break;
    case TD_OP_LINEAR_SWIGLU:
      TD_BUG_ON(2 * s->width != s->weight->n_out || s->n_in != s->weight->n_in);
      break;
    case TD_OP_ROPE_KV: check_kv(r->kv, r->kv_group, r->layer, r->n_kv_heads, r->head_dim); break;
    case TD_OP_ATTENTION:
      check_kv(a->kv, a->kv_group, a->layer, a->n_kv_heads, a->head_dim);
      TD_BUG_ON(a->n_heads % a->n_kv_heads ||
                a->window_tokens != a->kv->spec.groups[a->kv_group].window_tokens);
      break;
    default: break;
    }
  }
}

/* ---- printing ---- */

static const char *name_of(const td_program *p, td_devptr at)
{
  for (uint32_t i = 0; i < p->n_buffers; i++)
    if (p->buffers[i].at.addr == at.addr)
      return p->buffers[i].name;
  return "?";
}

/* The buffer that contains the address `at`: of those that begin at or before it, the last. */
static td_devptr buffer_below(const td_program *p, td_devptr at)
{
  td_devptr best = {0};
  for (uint32_t i = 0; i < p->n_buffers; i++)
    if (p->buffers[i].at.addr <= at.addr && p->buffers[i].at.addr > best.addr)
      best = p->buffers[i].at;
  return best;
}

static void print_linear(const td_program *p, const td_linear_params *l, td_buf *out)
{
  td_buf_printf(out, "%s %s %s  [%u x %u%s%s]", name_of(p, l->x), l->add ? "+>" : "->", name_of(p, l->out),
                l->n_out, l->n_in, l->bias ? ", bias" : "", l->out_f32 ? ", f32" : "");
}

static void print_rope(const td_program *p, const td_rope_kv_params *r, td_buf *out)
{
  td_buf_printf(out, "%s -> %s, kv  [%u/%u heads of %u, %s", name_of(p, r->qkv), name_of(p, r->qkv),
                r->n_heads, r->n_kv_heads, r->head_dim, r->style == TD_ROPE_HALVES ? "halves" : "pairs");
  if (r->rotary_dim != r->head_dim)
    td_buf_printf(out, " of %u", r->rotary_dim);
  if (strcmp(name_of(p, r->inv_freq), "?") != 0) /* only rotations other than most layers' are named */
    td_buf_printf(out, ", rotation %s", name_of(p, r->inv_freq));
  td_buf_printf(out, "%s%s]", r->q_norm.addr ? ", q norm" : "", r->k_norm.addr ? ", k norm" : "");
}

static void print_attention(const td_program *p, const td_attention_params *a, td_buf *out)
{
  td_buf_printf(out, "%s, kv -> %s  [%u/%u heads of %u", name_of(p, a->qkv), name_of(p, a->out), a->n_heads,
                a->n_kv_heads, a->head_dim);
  if (a->window_tokens > 0)
    td_buf_printf(out, ", window %u", a->window_tokens);
  if (a->scale != 1 / sqrtf((float)a->head_dim))
    td_buf_printf(out, ", scale %.6g", (double)a->scale);
  td_buf_append_char(out, ']');
}

static void print_in_out(const td_program *p, td_devptr from, td_devptr to, uint32_t width, td_buf *out)
{
  td_buf_printf(out, "%s -> %s  [%u]", name_of(p, from), name_of(p, to), width);
}

static void print_embed(const td_program *p, const td_embed_params *e, td_buf *out)
{
  td_buf_printf(out, "ids -> %s  [%u", name_of(p, e->out), e->width);
  if (e->scale != 0)
    td_buf_printf(out, ", times %.6g", (double)e->scale);
  td_buf_append_char(out, ']');
}

/* A row that is part of a buffer's row is printed with the buffer's name. */
static void print_rmsnorm(const td_program *p, const td_rmsnorm_params *n, td_buf *out)
{
  td_devptr from = n->x, to = n->out;
  if (n->stride > 0)
    from = to = buffer_below(p, n->x);
  td_buf_printf(out, "%s %s %s  [%u%s", name_of(p, from), n->add ? "+>" : "->", name_of(p, to), n->width,
                n->centred ? ", centred" : "");
  if (n->stride > 0)
    td_buf_printf(out, " of %u", n->stride);
  td_buf_append_char(out, ']');
}

static void print_params(const td_program *p, const td_op *o, td_buf *out)
{
  switch (o->kind) {
  case TD_OP_EMBED: print_embed(p, &o->embed, out); break;
  case TD_OP_RMSNORM: print_rmsnorm(p, &o->rmsnorm, out); break;
  case TD_OP_LINEAR: print_linear(p, &o->linear, out); break;
  case TD_OP_ROPE_KV: print_rope(p, &o->rope_kv, out); break;
  case TD_OP_ATTENTION: print_attention(p, &o->attention, out); break;
  case TD_OP_SWIGLU: print_in_out(p, o->swiglu.gate_up, o->swiglu.out, o->swiglu.width, out); break;
  case TD_OP_LINEAR_SWIGLU:
    td_buf_printf(out, "%s -> %s  [2x%u x %u]", name_of(p, o->linear_swiglu.x),
                  name_of(p, o->linear_swiglu.out), o->linear_swiglu.width, o->linear_swiglu.n_in);
    break;
  case TD_OP_GATHER: print_in_out(p, o->gather.x, o->gather.out, o->gather.width, out); break;
  case TD_OP_SAMPLE:
    td_buf_printf(out, "%s -> ids  [%u]", name_of(p, o->sample.logits), o->sample.vocab);
    break;
  case TD_OP_POOL:
    td_buf_printf(out, "%s -> %s  [%u, %s]", name_of(p, o->pool.x), name_of(p, o->pool.out), o->pool.width,
                  o->pool.pooling == TD_POOL_MEAN ? "mean" : "last");
    break;
  case TD_OP_KINDS: TD_BUG_ON(true);
  }
}

void td_program_print(const td_program *p, td_buf *out)
{
  static const char *const extents[] = {
      [TD_EXTENT_TOKENS] = "tokens", [TD_EXTENT_LOGITS] = "logits", [TD_EXTENT_ROWS] = "rows"};
  for (uint32_t i = 0; i < p->n_ops; i++) {
    const td_op *o = &p->ops[i];
    char layer[24] = "";
    if (o->layer != TD_NO_LAYER)
      snprintf(layer, sizeof layer, "layer %u", o->layer);
    td_buf_printf(out, "%-9s %-9s %-10s %-7s  ", layer, td_op_names[o->kind], o->role ? o->role : "",
                  extents[o->extent]);
    print_params(p, o, out);
    td_buf_append_char(out, '\n');
    if (i + 1 == p->n_unsampled && i + 1 < p->n_ops)
      td_buf_append_str(out, "---- a step that wants no logits ends here\n");
  }
}
