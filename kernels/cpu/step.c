/* Programs and steps. Ops run one after another, each on all threads. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

/* What a td_compiled * points to. */
typedef struct cpu_program {
  uint32_t n_ops, n_unsampled;
  td_op ops[];
} cpu_program;

/* ---- programs ---- */

td_status td_cpu_compile(td_backend *b, const td_program *program, td_compiled **out, td_error *err)
{
  for (uint32_t i = 0; i < program->n_ops; i++)
    if (program->ops[i].kind == TD_OP_LINEAR_SWIGLU)
      return td_fail(err, TD_ERR_UNSUPPORTED, "the CPU backend has no op %s",
                     td_op_names[TD_OP_LINEAR_SWIGLU]);
  td_program_check(program);
  for (uint32_t i = 0; i < program->n_ops; i++)
    if (program->ops[i].kind == TD_OP_LINEAR)
      TD_TRY(td_cpu_pack_weight(cpu_self(b), program->ops[i].linear.weight, err));
  cpu_program *c = malloc(sizeof *c + program->n_ops * sizeof *c->ops);
  if (!c)
    return td_fail(err, TD_ERR_NOMEM, "no memory for a program of %u ops", program->n_ops);
  c->n_ops = program->n_ops;
  c->n_unsampled = program->n_unsampled;
  memcpy(c->ops, program->ops, program->n_ops * sizeof *c->ops);
  *out = (td_compiled *)c;
  return TD_OK;
}

void td_cpu_discard(td_backend *b, td_compiled *compiled)
{
  (void)b;
  free(compiled);
}

/* ---- steps ---- */

static void run_op(cpu_backend *be, const td_op *o)
{
  uint32_t n = td_extent_rows(o->extent, be->plan);
  if (n == 0)
    return;
  switch (o->kind) {
#define TD_OP(KIND, name)                                                                                    \
  case TD_OP_##KIND:                                                                                         \
    td_cpu_##name(be, &o->name, n);                                                                          \
    break;
#define TD_PASS_OP(KIND, name)                                                                               \
  case TD_OP_##KIND:                                                                                         \
    TD_BUG_ON(true);                                                                                         \
    break; /* td_cpu_compile refuses it */
#include "kernels/ops.def"
  case TD_OP_KINDS: TD_BUG_ON(true);
  }
}

static void clear_outcome(cpu_outcome *o, uint32_t n_logits)
{
  o->n_logits = n_logits;
  o->has_logprobs = false;
  o->top_stride = 0;
  memset(o->ids, 0, (size_t)n_logits * TD_STEP_IDS * sizeof *o->ids);
  memset(o->n_ids, 0, n_logits);
  memset(o->flags, 0, n_logits);
}

static void begin_step(cpu_backend *be, const td_plan *plan)
{
  const cpu_outcome *before = cpu_outcome_previous(be);
  TD_BUG_ON(plan->n_tokens > be->config.max_tokens || plan->n_rows > be->config.max_rows ||
            plan->n_logits > be->base.max_logits);
  td_thread_pool_wake(be->pool);
  be->plan = plan;
  clear_outcome(cpu_outcome_current(be), plan->n_logits);
  be->rope.inv_freq = 0;
  for (uint32_t i = 0; i < plan->n_tokens; i++) {
    int32_t id = plan->token_ids[i];
    be->token_ids[i] = id >= 0 ? id : before->ids[(size_t)(-1 - id) * TD_STEP_IDS];
  }
  for (uint32_t r = 0; r < plan->n_rows; r++)
    for (uint32_t i = 0; i < plan->rows[r].q_len; i++)
      be->token_row[plan->rows[r].q_start + i] = r;
}

void td_cpu_submit(td_backend *b, td_compiled *forward, const td_plan *plan)
{
  cpu_backend *be = cpu_self(b);
  const cpu_program *c = (const cpu_program *)forward;
  uint32_t n_ops = !c ? 0 : plan->n_logits > 0 ? c->n_ops : c->n_unsampled;
  begin_step(be, plan);
  for (uint32_t i = 0; i < n_ops; i++)
    run_op(be, &c->ops[i]);
}

/* Ops have run when the calls return, so the outcome is just kept until td_cpu_wait. */
void td_cpu_sample_step(td_backend *b, td_compiled *sampling, const td_sample_input *input)
{
  cpu_backend *be = cpu_self(b);
  const cpu_program *c = (const cpu_program *)sampling;
  be->input = input;
  for (uint32_t i = 0; c && i < c->n_ops; i++)
    run_op(be, &c->ops[i]);
  be->input = NULL;
  be->plan = NULL;
  be->n_sampled++;
}

td_status td_cpu_wait(td_backend *b, td_outcome *out, td_error *err)
{
  cpu_backend *be = cpu_self(b);
  const cpu_outcome *o = &be->outcomes[be->n_ended++ % 2];
  (void)err;
  *out = (td_outcome){.n_logits = o->n_logits,
                      .ids = o->ids,
                      .n_ids = o->n_ids,
                      .flags = o->flags,
                      .logprobs = o->has_logprobs ? o->logprobs : NULL,
                      .top = o->top_stride > 0 ? o->top : NULL,
                      .top_stride = o->top_stride};
  return TD_OK;
}
