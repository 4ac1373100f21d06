/* Fault injection: see fault.h. td_backend_submit and td_backend_wait (backend.c) count the steps. */
#include "kernels/fault.h"

#include <stdlib.h>
#include <string.h>

#include "config/log.h"

td_status td_fault_arm(td_backend *be, td_error *err)
{
  const char *text = getenv("TANDEM_FAULT");
  char *end = NULL;
  if (!text || !*text)
    return TD_OK;
  if (strncmp(text, "device:", 7) == 0)
    be->fault.step = strtoull(text + 7, &end, 10);
  if (!end || *end != '\0' || be->fault.step == 0)
    return td_fail(err, TD_ERR_CONFIG, "TANDEM_FAULT=%.80s: not device:STEP", text);
  td_warn("TANDEM_FAULT: the device will fail in step %llu", (unsigned long long)be->fault.step);
  return TD_OK;
}
