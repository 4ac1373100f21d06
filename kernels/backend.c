/* Backends by name. */
#include "kernels/kernels.h"

#include <string.h>

#include "config/log.h"
#include "kernels/cpu/cpu.h"
#ifdef TD_HAVE_CUDA
#include "kernels/cuda/cuda_backend.h"
#endif

void td_backend_choose_sizes(td_backend_config *config, uint32_t own_max_rows, uint32_t own_max_tokens)
{
  if (config->max_rows == 0)
    config->max_rows = own_max_rows < config->max_slots ? own_max_rows : config->max_slots;
  if (config->max_tokens == 0)
    config->max_tokens = own_max_tokens;
  if (config->max_tokens < config->max_rows) /* every decode goes in every step */
    config->max_tokens = config->max_rows;
}

td_status td_backend_create(const char *name, const td_backend_config *config, td_backend **out, td_error *err)
{
  bool any = strcmp(name, "auto") == 0;
#ifdef TD_HAVE_CUDA
  if (any || strcmp(name, "cuda") == 0) {
    td_status st = td_cuda_backend_create(config, out, err);
    if (st == TD_OK || !any)
      return st;
    td_info("serving from the CPU: %s", err->message);
  }
#endif
  if (any || strcmp(name, "cpu") == 0)
    return td_cpu_backend_create(config, out, err);
  return td_fail(err, TD_ERR_CONFIG, "no backend '%s' in this build", name);
}
