/* How many cores this process may use: by its affinity and its cgroup's quota. Thread: any. */
#ifndef TD_COMMON_CORES_H
#define TD_COMMON_CORES_H

#include <stdint.h>

uint32_t td_usable_cores(void); /* 1 at least */

#endif
