/* Creates a backend by its name, and drives the steps of any backend. */
#include "kernels/kernels.h"

#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "kernels/cpu/cpu.h"
#include "kernels/fault.h"
#ifdef TD_HAVE_CUDA
#include "kernels/cuda/cuda_backend.h"
#endif

void td_backend_choose_sizes(td_backend_config *config, uint32_t own_max_rows, uint32_t own_max_tokens)
{
  if (config->max_rows == 0)
    config->max_rows = own_max_rows < config->max_slots ? own_max_rows : config->max_slots;
  if (config->max_tokens == 0)
    config->max_tokens = own_max_tokens;
  if (config->n_ranks == 0)
    config->n_ranks = 1;
  TD_BUG_ON(config->rank >= config->n_ranks);
  if (config->max_tokens < config->max_rows) /* every step holds every decode */
    config->max_tokens = config->max_rows;
}

static td_status create_by_name(const char *name, const td_backend_config *config, td_backend **out,
                                td_error *err)
{
  bool any = strcmp(name, "auto") == 0;
#ifdef TD_HAVE_CUDA
  if (any || strcmp(name, "cuda") == 0) {
    td_error why = {0};
    td_status st = td_cuda_backend_create(config, out, &why);
    if (err)
      *err = why;
    /* No silent fallback: if the device is there but is full or fails, the operator must know. */
    if (st != TD_ERR_NO_DEVICE || !any)
      return st;
    td_info("backend = auto: serving from the CPU, because %s", why.message);
  }
#endif
  if (any || strcmp(name, "cpu") == 0)
    return td_cpu_backend_create(config, out, err);
  return td_fail_param(err, TD_ERR_CONFIG, "backend", "this build has no backend '%s'%s", name,
                       strcmp(name, "cuda") == 0 ? ": it was built without CUDA (cmake -DTD_CUDA=ON)" : "");
}

td_status td_backend_create(const char *name, const td_backend_config *config, td_backend **out,
                            td_error *err)
{
  td_backend *be;
  TD_TRY(create_by_name(name, config, &be, err));
  td_status st = td_fault_arm(be, err);
  if (st != TD_OK)
    be->ops->destroy(be);
  else
    *out = be;
  return st;
}

void td_backend_submit(td_backend *be, td_compiled *forward, const td_plan *plan)
{
  td_fault *f = &be->fault;
  TD_BUG_ON(be->awaits_sample || be->n_under_way == be->pipeline_depth);
  be->awaits_sample = true;
  be->n_under_way++;
  f->n_submitted++;
  if (f->stall_step > 0 && plan->step == f->stall_step) /* plan->step is 0 in steps that are only measured */
    f->stalls_at = f->n_submitted;
  if (f->n_submitted == f->step && be->ops->trap)
    be->ops->trap(be);
  be->ops->submit(be, forward, plan);
}

void td_backend_sample(td_backend *be, td_compiled *sampling, const td_sample_input *input)
{
  TD_BUG_ON(!be->awaits_sample);
  be->awaits_sample = false;
  be->ops->sample(be, sampling, input);
}

bool td_backend_forward_ended(td_backend *be)
{
  TD_BUG_ON(!be->awaits_sample);
  return !be->ops->forward_ended || be->ops->forward_ended(be);
}

void td_backend_queue_step(td_backend *be, td_compiled *forward, td_compiled *sampling, const td_plan *plan)
{
  td_backend_submit(be, forward, plan);
  td_backend_sample(be, sampling, NULL);
}

td_status td_backend_wait(td_backend *be, td_outcome *out, td_error *err)
{
  TD_BUG_ON(be->n_under_way <= be->awaits_sample);
  be->n_under_way--;
  TD_TRY(be->ops->wait(be, out, err));
  if (++be->fault.n_ended == be->fault.stalls_at)
    td_fault_stall();
  if (be->fault.n_ended == be->fault.step)
    return td_fail(err, TD_ERR_DEVICE, "device fault in step %llu (TANDEM_FAULT)",
                   (unsigned long long)be->fault.step);
  return TD_OK;
}

td_status td_backend_tune(td_backend *be, td_compiled *compiled, const char *cache_folder, uint32_t budget_ms,
                          td_tuning *out, td_error *err)
{
  uint64_t begin_us = td_clock_us();
  *out = (td_tuning){.is_done = true};
  if (!be->ops->tune)
    return TD_OK;
  TD_TRY(be->ops->tune_begin(be, compiled, cache_folder, out, err));
  td_status st = TD_OK;
  while (st == TD_OK && !out->is_done && td_clock_us() - begin_us < (uint64_t)budget_ms * 1000)
    st = be->ops->tune(be, compiled, out, err);
  if (!out->is_done)
    be->ops->tune_end(be, compiled, out);
  return st;
}
