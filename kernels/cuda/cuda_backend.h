/* The CUDA backend's entry point: plain C, so that kernels/backend.c and nothing else needs to know it exists. */
#ifndef TD_KERNELS_CUDA_BACKEND_H
#define TD_KERNELS_CUDA_BACKEND_H

#include "kernels/kernels.h"

/* TD_ERR_DEVICE: no usable device (no driver, none visible, compute capability below 8.0); the message says which. */
TD_MUST_CHECK td_status td_cuda_backend_create(const td_backend_config *config, td_backend **out, td_error *err);

#endif
