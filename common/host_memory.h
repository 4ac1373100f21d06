/* How much memory this process can still take, by /proc/meminfo (proc(5)) and the limits of its control
 * groups (cgroup.h). Any thread. */
#ifndef TD_COMMON_HOST_MEMORY_H
#define TD_COMMON_HOST_MEMORY_H

#include <stdint.h>

uint64_t td_host_available_bytes(void); /* 0: unknown */

#endif
