/* See host_memory.c. */
#ifndef TD_KERNELS_CPU_HOST_MEMORY_H
#define TD_KERNELS_CPU_HOST_MEMORY_H

#include <stdint.h>

uint64_t td_host_available_bytes(void); /* 0: unknown */

#endif
