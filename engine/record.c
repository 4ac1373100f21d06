/* Before the first request, where the backend can: choosing algorithms (kernels.h: tune), then recording decode steps (record).
 *
 * Row counts between two recordings run on the next larger one, so counts lie close where decode steps are short and far
 * apart where a few rows more cost nothing. Largest first: a start that runs out of its time has what serves everything. */
#include "engine/internal.h"

#include "config/log.h"

static void queue_step(void *arg, const td_plan *plan)
{
  td_engine *e = arg;
  td_devptr logits = td_model_forward(e->model, e->kv, plan);
  e->backend->ops->sample(e->backend, &(td_sample_params){.logits = logits, .vocab = e->desc.vocab});
}

td_status td_engine_tune(td_engine *e, td_error *err)
{
  if (!e->backend->ops->tune)
    return TD_OK;
  td_tune_params p = {.budget_ms = (uint32_t)td_option(&e->options, TD_LIMIT_TUNE_MS),
                      .cache_folder = e->options.cache_dir,
                      .queue = queue_step,
                      .arg = e};
  return e->backend->ops->tune(e->backend, &p, err);
}

/* 1, 2, 4, 8, then multiples of 8, from 256 on of 32. */
static uint32_t next_smaller(uint32_t n_rows)
{
  if (n_rows > 256)
    return (n_rows - 1) / 32 * 32;
  return n_rows > 8 ? (n_rows - 1) / 8 * 8 : n_rows / 2;
}

td_status td_engine_record_steps(td_engine *e, td_error *err)
{
  uint64_t begin_us = td_engine_now_us(), budget_us = (uint64_t)td_option(&e->options, TD_LIMIT_RECORD_MS) * 1000;
  uint32_t n_recorded = 0, n_rows = e->backend->max_rows;
  if (!e->backend->ops->record || budget_us == 0)
    return TD_OK;
  for (; n_rows > 0 && td_engine_now_us() - begin_us < budget_us; n_rows = next_smaller(n_rows), n_recorded++)
    TD_TRY(e->backend->ops->record(e->backend, n_rows, queue_step, e, err));
  if (n_rows > 0)
    td_warn("record_ms is over: steps of fewer than %u requests run padded", n_rows);
  td_info("recorded %u decode steps in %.2f s, %u of them fused", n_recorded,
          (double)(td_engine_now_us() - begin_us) / 1e6, e->backend->n_fused_steps);
  return TD_OK;
}
