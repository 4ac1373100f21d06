/* Fault injection: the backend's ops with another step_begin and step_end. See fault.h. */
#include "kernels/fault.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/log.h"
#ifdef TD_HAVE_CUDA
#include "kernels/cuda/cuda_backend.h"
#endif

static td_backend_ops armed_ops;
static const td_backend_ops *real_ops;
static uint64_t fault_step, stall_step, n_begun, n_ended;
static bool stalls;

static void begin_with_fault(td_backend *be, const td_plan *plan)
{
  n_begun++;
  stalls |= stall_step > 0 && plan->step == stall_step; /* 0: steps measured at start */
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
  if (stalls)
    nanosleep(&(struct timespec){.tv_sec = TD_FAULT_STALL_S}, NULL);
  stalls = false;
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
  else if (strncmp(text, "stall:", 6) == 0)
    stall_step = strtoull(text + 6, &end, 10);
  if (!end || *end != '\0' || fault_step + stall_step == 0 || real_ops)
    return td_fail(err, TD_ERR_CONFIG, "TANDEM_FAULT=%.80s: not device:STEP or stall:STEP", text);
  real_ops = be->ops;
  armed_ops = *real_ops;
  armed_ops.step_begin = begin_with_fault;
  armed_ops.step_end = end_with_fault;
  be->ops = &armed_ops;
  td_warn("TANDEM_FAULT: the device will %s in step %llu", fault_step ? "fail" : "stall",
          (unsigned long long)(fault_step ? fault_step : stall_step));
  return TD_OK;
}
