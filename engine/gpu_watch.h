/* What the GPU is doing beside our steps: clocks, watts, temperature, why it is slower than it could be.
 *
 * The driver's libnvidia-ml.so.1 is opened at run time; where it is missing, nothing is told. A thread of its
 * own asks once a second, because a call may take milliseconds, and on a lost device does not come back: what
 * is older than some seconds is not told. */
#ifndef TD_ENGINE_GPU_WATCH_H
#define TD_ENGINE_GPU_WATCH_H

#include "engine/engine.h"

typedef struct td_gpu_watch td_gpu_watch;

/* NULL, with a line in the log that says why, where the GPU at that PCI address cannot be watched. */
td_gpu_watch *td_gpu_watch_start(const char *library, const char *pci_bus_id);
/* Does not wait for a call to the driver that does not come back. NULL: does nothing. */
void td_gpu_watch_stop(td_gpu_watch *w);
/* [any] False: nothing is known. */
bool td_gpu_watch_get(td_gpu_watch *w, td_engine_gpu *out);

#endif
