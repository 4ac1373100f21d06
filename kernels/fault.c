/* Fault injection: the backend's ops with another step_begin and step_end. See fault.h. */
#include "kernels/fault.h"

#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#ifdef TD_HAVE_CUDA
#include "kernels/cuda/cuda_backend.h"
#endif

static td_backend_ops armed_ops;
static const td_backend_ops *real_ops;
static uint64_t fault_step, n_begun, n_ended;

static void begin_with_fault(td_backend *be, const td_plan *plan)
{
  n_begun++;
#ifdef TD_HAVE_CUDA
  if (n_begun == fault_step && strcmp(be->ops->name, "cuda") == 0)
    td_cuda_trap(be);
#endif
  real_ops->step_begin(be, plan);
}

static td_status end_with_fault(td_backend *be, int32_t *token_ids, td_error *err)
{
  td_status st = real_ops->step_end(be, token_ids, err);
  n_ended++;
  if (st == TD_OK && n_ended == fault_step)
    return td_fail(err, TD_ERR_DEVICE, "device fault in step %llu (TANDEM_FAULT)", (unsigned long long)n_ended);
  return st;
}

td_status td_fault_arm(td_backend *be, td_error *err)
{
  const char *text = getenv("TANDEM_FAULT");
  char *end = NULL;
  if (!text || !*text)
    return TD_OK;
  if (strncmp(text, "device:", 7) == 0)
    fault_step = strtoull(text + 7, &end, 10);
  if (!end || *end != '\0' || fault_step == 0 || real_ops)
    return td_fail(err, TD_ERR_CONFIG, "TANDEM_FAULT=%.80s: not device:STEP", text);
  real_ops = be->ops;
  armed_ops = *real_ops;
  armed_ops.step_begin = begin_with_fault;
  armed_ops.step_end = end_with_fault;
  be->ops = &armed_ops;
  td_warn("TANDEM_FAULT: the device will fail in step %llu", (unsigned long long)fault_step);
  return TD_OK;
}
