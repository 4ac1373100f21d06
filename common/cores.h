/* The number of cores that this process may use, by its affinity and its cgroup's quota. Any thread. */
#ifndef TD_COMMON_CORES_H
#define TD_COMMON_CORES_H

#include <stdint.h>

uint32_t td_usable_cores(void); /* at least 1 */

#endif
