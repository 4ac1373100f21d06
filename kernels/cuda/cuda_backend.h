/* The CUDA backend's entry point, in plain C. Outside this folder only kernels/backend.c includes it. */
#ifndef TD_KERNELS_CUDA_BACKEND_H
#define TD_KERNELS_CUDA_BACKEND_H

#include "kernels/kernels.h"

/* TD_ERR_NO_DEVICE: no usable GPU; the message says why (no driver, a driver or GPU that is too old, no
 * visible GPU, no kernels for it in this build). TD_ERR_CONFIG: there are GPUs, but not number
 * config->device. */
TD_MUST_CHECK td_status td_cuda_backend_create(const td_backend_config *config, td_backend **out,
                                               td_error *err);

#endif
