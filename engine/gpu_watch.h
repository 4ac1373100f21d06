/* Watches the GPU through NVML: clocks, power, temperature, and why it is throttled.
 *
 * Opens the driver's libnvidia-ml.so.1 at run time; without it, there are no values. A separate thread
 * queries NVML once a second, because a call may take milliseconds, or never return if the device is lost.
 * Values more than some seconds old are not reported. */
#ifndef TD_ENGINE_GPU_WATCH_H
#define TD_ENGINE_GPU_WATCH_H

#include "engine/engine.h"

typedef struct td_gpu_watch td_gpu_watch;

/* Returns NULL, and logs why, if the GPU at that PCI address cannot be watched. */
td_gpu_watch *td_gpu_watch_start(const char *library, const char *pci_bus_id);
/* Waits only briefly for a call to the driver that does not return. w may be NULL. */
void td_gpu_watch_stop(td_gpu_watch *w);
/* [any] Returns false if there are no recent values. */
bool td_gpu_watch_get(td_gpu_watch *w, td_engine_gpu *out);

#endif
