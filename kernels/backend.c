/* Backends by name. */
#include "kernels/kernels.h"

#include <string.h>

#include "kernels/cpu/cpu.h"

td_status td_backend_create(const char *name, const td_backend_config *config, td_backend **out, td_error *err)
{
  if (strcmp(name, "cpu") == 0 || strcmp(name, "auto") == 0)
    return td_cpu_backend_create(config, out, err);
  return td_fail(err, TD_ERR_CONFIG, "no backend '%s' in this build; there are cpu and auto", name);
}
