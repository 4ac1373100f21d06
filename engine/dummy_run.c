/* Dummy runs: see dummy_run.h. */
#include "engine/dummy_run.h"

#include "common/clock.h"

td_status td_dummy_run_init(td_dummy_run *t, td_stepper stepper, uint32_t page_tokens, uint32_t n_pages,
                            uint32_t max_kv_tokens, td_error *err)
{
  static const td_sampling greedy = {.top_p = 1};
  const td_backend *be = stepper.backend;
  *t = (td_dummy_run){.stepper = stepper};
  TD_TRY(td_dummy_plan_init(&t->dummy,
                            &(td_dummy_plan_config){.max_rows = be->max_rows,
                                                    .max_tokens = be->max_tokens,
                                                    .max_logits = be->max_logits,
                                                    .page_tokens = page_tokens,
                                                    .n_pages = n_pages,
                                                    .n_ids = stepper.vocab,
                                                    .max_row_tokens = max_kv_tokens},
                            err));
  for (uint32_t i = 0; i < be->max_rows; i++) /* requests will set their own parameters */
    be->ops->set_sampling(stepper.backend, i, &greedy);
  return TD_OK;
}

void td_dummy_run_deinit(td_dummy_run *t) { td_dummy_plan_deinit(&t->dummy); }

void td_dummy_run_begin(td_dummy_run *t) { td_dummy_plan_clear(&t->dummy); }

bool td_dummy_run_add(td_dummy_run *t, uint32_t n_rows, uint32_t q_len, uint32_t kv_len)
{
  for (uint32_t i = 0; i < n_rows; i++)
    if (!td_dummy_plan_add(&t->dummy, q_len, kv_len, 0, true))
      return false;
  return true;
}

/* ---- steps ---- */

static void submit(td_dummy_run *t)
{
  td_backend_queue_step(t->stepper.backend, t->stepper.forward, t->stepper.sampling, t->dummy.plan);
  t->dummy.plan->n_page_updates = 0; /* the backend has applied them now */
}

static td_status wait(td_dummy_run *t, td_error *err)
{
  td_outcome ignored;
  return td_backend_wait(t->stepper.backend, &ignored, err);
}

td_status td_dummy_run_measure(td_dummy_run *t, double *us, td_error *err)
{
  td_plan *p = t->dummy.plan;
  uint64_t begin_us = td_clock_us();
  submit(t);
  if (t->stepper.backend->pipeline_depth > 1 && p->n_decode_rows == p->n_rows) {
    for (uint32_t i = 0; i < p->n_rows; i++)
      p->token_ids[p->rows[i].q_start] = -1 - (int32_t)i; /* the token that the step before sampled */
    submit(t);
    TD_TRY(wait(t, err));
    begin_us = td_clock_us();
    submit(t);
    TD_TRY(wait(t, err));
    *us = (double)(td_clock_us() - begin_us);
    td_status st = wait(t, err);
    for (uint32_t i = 0; i < p->n_rows; i++)
      p->token_ids[p->rows[i].q_start] = (int32_t)(i % t->stepper.vocab);
    return st;
  }
  TD_TRY(wait(t, err));
  *us = (double)(td_clock_us() - begin_us);
  return TD_OK;
}

/* ---- pages ---- */

static td_status write_pages(td_dummy_run *t, td_compiled *writes_kv, td_error *err)
{
  td_backend *be = t->stepper.backend;
  td_outcome ignored;
  for (uint32_t done = 0, n; (n = td_dummy_plan_write_pages(&t->dummy, done)) > 0; done += n) {
    td_backend_queue_step(be, writes_kv, NULL, t->dummy.plan);
    TD_TRY(td_backend_wait(be, &ignored, err));
  }
  return TD_OK;
}

td_status td_dummy_run_touch_pages(td_dummy_run *t, td_error *err)
{
  td_backend *be = t->stepper.backend;
  td_program *program;
  td_compiled *writes_kv = NULL;
  TD_TRY(td_program_keep(t->stepper.program, 1 << TD_OP_ROPE_KV, &program, err));
  td_status st = be->ops->compile(be, program, &writes_kv, err);
  td_program_destroy(program);
  if (st == TD_OK)
    st = write_pages(t, writes_kv, err);
  be->ops->discard(be, writes_kv);
  return st;
}
