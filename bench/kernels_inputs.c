/* See kernels.h. */
#include "bench/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "loadgen/random.h"

const char *const td_kernels_matrix_names[TD_KERNELS_MATRICES] = {"qkv", "o", "gate_up", "down", "lm_head"};

uint32_t td_kernels_rows(const td_kernels *k, td_kernels_matrix m)
{
  const td_model_desc *d = &k->stage.desc;
  switch (m) {
  case TD_KERNELS_QKV: return k->qkv_dim;
  case TD_KERNELS_GATE_UP: return 2 * d->ffn_width;
  case TD_KERNELS_HEAD: return d->vocab;
  default: return d->width;
  }
}

uint32_t td_kernels_cols(const td_kernels *k, td_kernels_matrix m)
{
  const td_model_desc *d = &k->stage.desc;
  return m == TD_KERNELS_O ? k->q_dim : m == TD_KERNELS_DOWN ? d->ffn_width : d->width;
}

bool td_kernels_adds(td_kernels_matrix m) { return m == TD_KERNELS_O || m == TD_KERNELS_DOWN; }

/* Random blocks with small scales. Speed does not depend on the values if they are finite. */
static void *random_blocks(td_dtype t, uint64_t bytes, td_random *r)
{
  uint8_t *p = td_tool_alloc(bytes, 1);
  for (uint64_t at = 0; at + 8 <= bytes; at += 8) {
    uint64_t v = td_random_next(r);
    memcpy(p + at, &v, 8);
  }
  uint32_t block = td_dtypes[t].block_bytes;
  for (uint64_t at = 0; at < bytes; at += block) {
    if (t == TD_F32)
      p[at + 3] = 0x3a;
    else if (t <= TD_BF16)
      p[at + 1] = 0x14;
    else if (t == TD_Q6_K)
      p[at + 209] = 0x14;
    else
      p[at + 1] = p[at + 3] = 0x14; /* the scale, and a second scale or quants */
  }
  return p;
}

static void add_weight(td_kernels *k, td_kernels_matrix m)
{
  td_error err;
  td_backend *be = k->stage.be;
  uint32_t copy = k->n_copies[m]++, cols = td_kernels_cols(k, m);
  td_weight_part part = {
      .dtype = TD_BF16, .n_rows = td_kernels_rows(k, m), .seed = (uint64_t)m * 100 + copy + 1};
  td_dtype t = k->weight_dtype;
  uint64_t row_bytes;
  if (!td_dtype_row_bytes(t, cols, &row_bytes))
    td_tool_die("%s: rows of %u elements are no whole blocks of %s", td_kernels_matrix_names[m], cols,
                td_dtypes[t].name);
  if (t != TD_BF16) {
    td_random r;
    td_random_init(&r, part.seed);
    part.dtype = t;
    part.data = k->stored[m][copy] = random_blocks(t, row_bytes * part.n_rows, &r);
  }
  td_tool_check(be->ops->weight_import(be, &part, 1, cols, &k->weights[m][copy], &err), &err);
  /* n_cols fits: checked above */
  (void)td_dtype_row_bytes(k->weights[m][copy]->types[0].storage, cols, &row_bytes);
  k->matrix_bytes[m] = (double)row_bytes * (double)part.n_rows;
}

static void make_weights(td_kernels *k)
{
  td_error err;
  for (td_kernels_matrix m = 0; m < TD_KERNELS_MATRICES; m++) {
    add_weight(k, m);
    double want = ceil(k->cache_mb * 1e6 / k->matrix_bytes[m]) + 1;
    while (k->n_copies[m] < want && k->n_copies[m] < TD_KERNELS_COPIES_MAX)
      add_weight(k, m);
    td_tool_progress((m + 1.0) / TD_KERNELS_MATRICES, "weights: %s", td_kernels_matrix_names[m]);
  }
  td_tool_check(k->stage.be->ops->weights_wait(k->stage.be, &err), &err);
  td_tool_progress(-1, " ");
}

void td_kernels_make_inputs(td_kernels *k, bool with_glu)
{
  td_stage *s = &k->stage;
  const td_model_desc *d = &s->desc;
  k->q_dim = d->n_heads * d->head_dim;
  k->qkv_dim = (d->n_heads + 2 * d->n_kv_heads) * d->head_dim;
  make_weights(k);
  uint32_t widest = 2 * d->ffn_width > k->qkv_dim ? 2 * d->ffn_width : k->qkv_dim;
  size_t one = (size_t)s->be->max_tokens * widest * s->be->activation_bytes;
  size_t cache = (size_t)(k->cache_mb * 1e6);
  k->slab_bytes = 2 * one > cache ? 2 * one : cache;
  k->x = td_stage_random(s, k->slab_bytes);
  k->out = td_stage_alloc(s, k->slab_bytes);
  k->glu = with_glu ? td_stage_alloc(s, k->slab_bytes) : k->out;
  k->logits = td_stage_alloc(s, (size_t)s->be->max_rows * d->vocab * sizeof(float));
  float *ones = td_tool_alloc(d->width, sizeof *ones);
  for (uint32_t i = 0; i < d->width; i++)
    ones[i] = 1;
  k->ones = td_stage_upload(s, ones, d->width);
  free(ones);
}

void td_kernels_free_inputs(td_kernels *k)
{
  for (td_kernels_matrix m = 0; m < TD_KERNELS_MATRICES; m++)
    for (uint32_t i = 0; i < TD_KERNELS_COPIES_MAX; i++)
      free(k->stored[m][i]);
}

/* The i-th location in a slab for an activation; locations rotate over the slab. */
static td_devptr place(const td_kernels *k, td_devptr slab, uint32_t width, uint32_t i)
{
  size_t bytes = ((size_t)k->n_rows * width * k->stage.be->activation_bytes + 255) / 256 * 256;
  return td_devptr_at(slab, i % (k->slab_bytes / bytes) * bytes);
}

static td_weight *weight(const td_kernels *k, td_kernels_matrix m, uint32_t i)
{
  return k->weights[m][i % k->n_copies[m]];
}

/* ---- ops ---- */

td_op td_kernels_linear(const td_kernels *k, uint32_t i)
{
  bool head = k->m == TD_KERNELS_HEAD, adds = td_kernels_adds(k->m);
  uint32_t n_out = td_kernels_rows(k, k->m);
  td_linear_params p = {.weight = weight(k, k->m, i),
                        .x = k->x,
                        .out = head   ? k->logits
                               : adds ? k->out
                                      : place(k, k->out, n_out, i),
                        .n_in = td_kernels_cols(k, k->m),
                        .n_out = n_out,
                        .out_f32 = head,
                        .add = adds};
  return (td_op){.kind = TD_OP_LINEAR, .linear = p};
}

td_op td_kernels_glu(const td_kernels *k, uint32_t i)
{
  const td_model_desc *d = &k->stage.desc;
  td_linear_swiglu_params p = {.weight = weight(k, TD_KERNELS_GATE_UP, i),
                               .x = k->x,
                               .out = place(k, k->out, d->ffn_width, i),
                               .n_in = d->width,
                               .width = d->ffn_width};
  return (td_op){.kind = TD_OP_LINEAR_SWIGLU, .linear_swiglu = p};
}

/* The second op gets another layer, because a backend would fuse two ops of the same layer. */
td_op td_kernels_glu_by_two(const td_kernels *k, uint32_t i)
{
  const td_model_desc *d = &k->stage.desc;
  td_devptr between = place(k, k->out, 2 * d->ffn_width, i / 2);
  td_linear_params product = {.weight = weight(k, TD_KERNELS_GATE_UP, i / 2),
                              .x = k->x,
                              .out = between,
                              .n_in = d->width,
                              .n_out = 2 * d->ffn_width};
  td_swiglu_params p = {
      .gate_up = between, .out = place(k, k->glu, d->ffn_width, i / 2), .width = d->ffn_width};
  return i % 2 ? (td_op){.kind = TD_OP_SWIGLU, .layer = 1, .swiglu = p}
               : (td_op){.kind = TD_OP_LINEAR, .linear = product};
}

td_op td_kernels_norm(const td_kernels *k, uint32_t i)
{
  uint32_t width = k->stage.desc.width;
  td_rmsnorm_params p = {.x = place(k, k->x, width, i),
                         .weight = k->ones,
                         .out = place(k, k->out, width, i),
                         .width = width,
                         .eps = 1e-5f};
  return (td_op){.kind = TD_OP_RMSNORM, .rmsnorm = p};
}

td_op td_kernels_swiglu(const td_kernels *k, uint32_t i)
{
  uint32_t width = k->stage.desc.ffn_width;
  td_swiglu_params p = {
      .gate_up = place(k, k->x, 2 * width, i), .out = place(k, k->out, width, i), .width = width};
  return (td_op){.kind = TD_OP_SWIGLU, .swiglu = p};
}

td_op td_kernels_embed(const td_kernels *k, uint32_t i)
{
  uint32_t width = k->stage.desc.width;
  td_embed_params p = {
      .weight = weight(k, TD_KERNELS_HEAD, i), .out = place(k, k->out, width, i), .width = width};
  return (td_op){.kind = TD_OP_EMBED, .embed = p};
}

td_op td_kernels_rope(const td_kernels *k, uint32_t i)
{
  return td_stage_rope_op(&k->stage, place(k, k->x, k->qkv_dim, i), i % k->stage.n_layers);
}

td_op td_kernels_attention(const td_kernels *k, uint32_t i)
{
  return td_stage_attention_op(&k->stage, place(k, k->x, k->qkv_dim, i), place(k, k->out, k->q_dim, i),
                               i % k->stage.n_layers);
}

td_op td_kernels_sample(const td_kernels *k, uint32_t i)
{
  (void)i;
  td_sample_params p = {.logits = k->logits, .vocab = k->stage.desc.vocab};
  return (td_op){.kind = TD_OP_SAMPLE, .extent = TD_EXTENT_LOGITS, .sample = p};
}
