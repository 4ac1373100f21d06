/* Fault injection for tests. With TANDEM_FAULT=device:STEP in the environment the device fails in that step
 * (counted from 1). On CUDA a kernel really traps, so that everything queued after it meets a dead context.
 * The CPU backend only reports a failure. With stall:STEP, the step takes TD_FAULT_STALL_S longer; there,
 * only steps with requests are counted. */
#ifndef TD_KERNELS_FAULT_H
#define TD_KERNELS_FAULT_H

#include "kernels/kernels.h"

enum { TD_FAULT_STALL_S = 6 };

void td_fault_stall(void);

/* Reads TANDEM_FAULT. Does nothing if it is not set. TD_ERR_CONFIG: its value cannot be parsed. */
TD_MUST_CHECK td_status td_fault_arm(td_backend *be, td_error *err);

#endif
