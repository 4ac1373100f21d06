/* See fault.h. td_backend_submit and td_backend_wait (backend.c) count the steps. */
#include "kernels/fault.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/log.h"

void td_fault_stall(void) { nanosleep(&(struct timespec){.tv_sec = TD_FAULT_STALL_S}, NULL); }

td_status td_fault_arm(td_backend *be, td_error *err)
{
  const char *text = getenv("TANDEM_FAULT");
  char *end = NULL;
  if (!text || !*text)
    return TD_OK;
  if (strncmp(text, "device:", 7) == 0)
    be->fault.step = strtoull(text + 7, &end, 10);
  else if (strncmp(text, "stall:", 6) == 0)
    be->fault.stall_step = strtoull(text + 6, &end, 10);
  if (!end || *end != '\0' || be->fault.step + be->fault.stall_step == 0)
    return td_fail(err, TD_ERR_CONFIG, "TANDEM_FAULT=%.80s: not device:STEP or stall:STEP", text);
  td_warn("TANDEM_FAULT: the device will %s in step %llu", be->fault.step ? "fail" : "stall",
          (unsigned long long)(be->fault.step + be->fault.stall_step));
  return TD_OK;
}
