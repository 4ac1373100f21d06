/* Faults on request, for tests of what happens then: TANDEM_FAULT=device:STEP in the environment makes the
 * device fail in that step (counted from 1). On CUDA a kernel really traps, so that everything behind it
 * meets a dead context; the CPU has no such thing and only says that it failed. stall:STEP makes that step,
 * of those with requests, take TD_FAULT_STALL_S longer. */
#ifndef TD_KERNELS_FAULT_H
#define TD_KERNELS_FAULT_H

#include "kernels/kernels.h"

enum { TD_FAULT_STALL_S = 6 };

void td_fault_stall(void);

/* Does nothing without the variable. TD_ERR_CONFIG for one that cannot be read. */
TD_MUST_CHECK td_status td_fault_arm(td_backend *be, td_error *err);

#endif
