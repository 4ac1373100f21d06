/* See rounded.h. A program is run op by op, each in a step of its own. On the CPU, the address of an
 * activation is that of its floats. */
#include "rounded.h"

#include <stdio.h>
#include <stdlib.h>

enum { PARTS_MAX = 16384 };

static td_backend_ops armed_ops;
static const td_backend_ops *real_ops;
static void *stored[PARTS_MAX]; /* the CPU uses weights where they are */
static size_t n_stored;

static void *allocate(size_t n_bytes)
{
  void *p = malloc(n_bytes);
  if (!p || n_stored == PARTS_MAX) {
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

static td_status import(td_backend *be, const td_weight_part *parts, uint32_t n_parts, uint64_t n_cols,
                        td_weight **out, td_error *err)
{
  td_weight_part rounded[TD_WEIGHT_PARTS_MAX];
  for (uint32_t i = 0; i < n_parts; i++) {
    rounded[i] = parts[i];
    if (parts[i].data) /* made-up ones are bf16 as they are */
      round_part(&rounded[i], n_cols);
  }
  return real_ops->weight_import(be, rounded, n_parts, n_cols, out, err);
}

/* ---- programs ---- */

typedef struct rounded_program {
  uint32_t n_ops, n_unsampled;
  td_op *ops;
  td_compiled **each; /* [n_ops] */
  td_outcome last;
} rounded_program;

static rounded_program *under_way; /* submitted and not waited for */

static void discard(td_backend *be, td_compiled *compiled)
{
  rounded_program *p = (rounded_program *)compiled;
  for (uint32_t i = 0; p && i < p->n_ops; i++)
    real_ops->discard(be, p->each[i]);
  if (p)
    free(p->ops), free(p->each);
  free(p);
}

static td_status compile(td_backend *be, const td_program *program, td_compiled **out, td_error *err)
{
  rounded_program *p = calloc(1, sizeof *p);
  td_op *ops = calloc(program->n_ops + 1, sizeof *ops);
  td_compiled **each = calloc(program->n_ops + 1, sizeof *each);
  if (!p || !ops || !each) {
    free(p), free(ops), free(each);
    return td_fail(err, TD_ERR_NOMEM, "no memory for a rounding program");
  }
  *p = (rounded_program){
      .n_ops = program->n_ops, .n_unsampled = program->n_unsampled, .ops = ops, .each = each};
  td_status st = TD_OK;
  for (uint32_t i = 0; i < program->n_ops && st == TD_OK; i++) {
    ops[i] = program->ops[i];
    st = real_ops->compile(be, &(td_program){.ops = &ops[i], .n_ops = 1, .n_unsampled = 1}, &each[i], err);
  }
  if (st != TD_OK)
    discard(be, (td_compiled *)p);
  else
    *out = (td_compiled *)p;
  return st;
}

/* The op's outputs that a device would store as bf16. */
static void round_output(const td_op *o, const td_plan *plan)
{
  size_t n = td_extent_rows(o->extent, plan);
  switch (o->kind) {
  case TD_OP_RMSNORM: round_floats(o->rmsnorm.out, n * o->rmsnorm.width); break;
  case TD_OP_LINEAR:
    if (!o->linear.out_f32)
      round_floats(o->linear.out, n * o->linear.n_out);
    break;
  case TD_OP_ROPE_KV:
    round_floats(o->rope_kv.qkv, n * (o->rope_kv.n_heads + 2 * o->rope_kv.n_kv_heads) * o->rope_kv.head_dim);
    break;
  case TD_OP_ATTENTION:
    round_floats(o->attention.out, n * o->attention.n_heads * o->attention.head_dim);
    break;
  case TD_OP_SWIGLU: round_floats(o->swiglu.out, n * o->swiglu.width); break;
  default: /* copies what is rounded */ break;
  }
}

static const td_plan *plan_under_way;

/* Each op is a step of its own. */
static void submit(td_backend *be, td_compiled *compiled, const td_plan *plan)
{
  rounded_program *p = (rounded_program *)compiled;
  uint32_t n_ops = plan->n_logits > 0 ? p->n_ops : p->n_unsampled;
  td_error err;
  plan_under_way = plan;
  for (uint32_t i = 0; i < n_ops; i++) {
    real_ops->submit(be, p->each[i], plan);
    real_ops->sample(be, NULL, NULL);
    if (real_ops->wait(be, &p->last, &err) != TD_OK) {
      fprintf(stderr, "%s\n", err.message);
      exit(1);
    }
    round_output(&p->ops[i], plan);
  }
  under_way = p;
}

static void sample(td_backend *be, td_compiled *sampling, const td_sample_input *input)
{
  (void)input;
  if (sampling)
    submit(be, sampling, plan_under_way);
}

static td_status wait_for(td_backend *be, td_outcome *out, td_error *err)
{
  (void)be, (void)err;
  *out = under_way->last;
  return TD_OK;
}

void rounded_arm(td_backend *cpu)
{
  real_ops = cpu->ops;
  armed_ops = *real_ops;
  armed_ops.weight_import = import;
  armed_ops.compile = compile;
  armed_ops.discard = discard;
  armed_ops.submit = submit;
  armed_ops.sample = sample;
  armed_ops.wait = wait_for;
  cpu->ops = &armed_ops;
}

void rounded_free(void)
{
  while (n_stored > 0)
    free(stored[--n_stored]);
}
