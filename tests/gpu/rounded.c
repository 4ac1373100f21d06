/* See rounded.h. On the CPU an activation's address is that of its floats, and an op has run when its function returns. */
#include "rounded.h"

#include <stdio.h>
#include <stdlib.h>

enum { WEIGHTS_MAX = 4096 };

static td_backend_ops armed_ops;
static const td_backend_ops *real_ops;
static const td_plan *current;

static struct {
  const td_weight *weight;
  uint32_t n_out;
} weights[WEIGHTS_MAX];
static void *stored[WEIGHTS_MAX * TD_WEIGHT_PARTS_MAX]; /* the CPU uses weights where they are */
static size_t n_weights, n_stored;

static void *allocate(size_t n_bytes)
{
  void *p = malloc(n_bytes);
  if (!p || n_stored == WEIGHTS_MAX * TD_WEIGHT_PARTS_MAX) {
    fprintf(stderr, "no memory for rounded weights\n");
    exit(1);
  }
  return stored[n_stored++] = p;
}

static void round_floats(td_devptr p, size_t n)
{
  float *x = (float *)p.addr;
  for (size_t i = 0; i < n; i++)
    x[i] = td_bf16_to_f32(td_f32_to_bf16(x[i]));
}

/* ---- weights ---- */

static void round_part(td_weight_part *part, uint64_t n_cols)
{
  uint64_t row_bytes = 0;
  uint16_t *narrow = allocate(part->n_rows * n_cols * sizeof *narrow);
  float *row = malloc(n_cols * sizeof *row), *bias;
  if (!row || !td_dtype_row_bytes(part->dtype, n_cols, &row_bytes)) {
    fprintf(stderr, "weights that cannot be rounded\n");
    exit(1);
  }
  for (uint64_t r = 0; r < part->n_rows; r++) {
    td_dtype_to_f32(part->dtype, (const char *)part->data + r * row_bytes, n_cols, row);
    for (uint64_t i = 0; i < n_cols; i++)
      narrow[r * n_cols + i] = td_f32_to_bf16(row[i]);
  }
  free(row);
  if (part->bias) {
    bias = allocate(part->n_rows * sizeof *bias);
    for (uint64_t r = 0; r < part->n_rows; r++)
      bias[r] = td_bf16_to_f32(td_f32_to_bf16(part->bias[r]));
    part->bias = bias;
  }
  part->dtype = TD_BF16;
  part->data = narrow;
  part->file = NULL;
}

static td_status import(td_backend *be, const td_weight_part *parts, uint32_t n_parts, uint64_t n_cols, td_weight **out, td_error *err)
{
  td_weight_part rounded[TD_WEIGHT_PARTS_MAX];
  uint32_t n_out = 0;
  for (uint32_t i = 0; i < n_parts; i++) {
    rounded[i] = parts[i];
    if (parts[i].data) /* made-up ones are bf16 as they are */
      round_part(&rounded[i], n_cols);
    n_out += (uint32_t)parts[i].n_rows;
  }
  TD_TRY(real_ops->weight_import(be, rounded, n_parts, n_cols, out, err));
  if (n_weights == WEIGHTS_MAX)
    return td_fail(err, TD_ERR_NOMEM, "more than %d weights", WEIGHTS_MAX);
  weights[n_weights].weight = *out;
  weights[n_weights++].n_out = n_out;
  return TD_OK;
}

static uint32_t outputs_of(const td_weight *w)
{
  for (size_t i = 0; i < n_weights; i++)
    if (weights[i].weight == w)
      return weights[i].n_out;
  return 0;
}

/* ---- ops ---- */

static void step_begin(td_backend *be, const td_plan *plan)
{
  current = plan;
  real_ops->step_begin(be, plan);
}

static void rmsnorm(td_backend *be, const td_rmsnorm_params *p)
{
  real_ops->rmsnorm(be, p);
  round_floats(p->out, (size_t)p->n * p->width);
}

static void linear(td_backend *be, const td_linear_params *p)
{
  real_ops->linear(be, p);
  if (!p->out_f32)
    round_floats(p->out, (size_t)p->n * outputs_of(p->weight));
}

static void rope_kv(td_backend *be, const td_rope_kv_params *p)
{
  real_ops->rope_kv(be, p);
  round_floats(p->qkv, (size_t)current->n_tokens * (p->n_heads + 2 * p->n_kv_heads) * p->head_dim);
}

static void attention(td_backend *be, const td_attention_params *p)
{
  real_ops->attention(be, p);
  round_floats(p->out, (size_t)current->n_tokens * p->n_heads * p->head_dim);
}

static void swiglu(td_backend *be, const td_swiglu_params *p)
{
  real_ops->swiglu(be, p);
  round_floats(p->out, (size_t)p->n * p->width);
}

void rounded_arm(td_backend *cpu)
{
  real_ops = cpu->ops;
  armed_ops = *real_ops;
  armed_ops.weight_import = import;
  armed_ops.step_begin = step_begin;
  armed_ops.rmsnorm = rmsnorm;
  armed_ops.linear = linear;
  armed_ops.rope_kv = rope_kv;
  armed_ops.attention = attention;
  armed_ops.swiglu = swiglu;
  cpu->ops = &armed_ops;
}

void rounded_free(void)
{
  while (n_stored > 0)
    free(stored[--n_stored]);
}
