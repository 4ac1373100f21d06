/* The CUDA backend's entry point: plain C, so that kernels/backend.c and nothing else needs to know it
 * exists. */
#ifndef TD_KERNELS_CUDA_BACKEND_H
#define TD_KERNELS_CUDA_BACKEND_H

#include "kernels/kernels.h"

/* TD_ERR_NO_DEVICE: no usable device (no driver, an old one, none visible, an old GPU, one that this build
 * has no kernels for); the message says which. TD_ERR_CONFIG: there are devices, but not the one that was
 * asked for. */
TD_MUST_CHECK td_status td_cuda_backend_create(const td_backend_config *config, td_backend **out,
                                               td_error *err);

#endif
