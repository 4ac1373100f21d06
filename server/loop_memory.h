/* libuv aborts the process if one of its tables cannot grow. So these tables get their full size at start; if
 * memory runs out then, the process ends with a proper exit code. */
#ifndef TD_SERVER_LOOP_MEMORY_H
#define TD_SERVER_LOOP_MEMORY_H

#include <uv.h>

#include "common/status.h"

/* Call before any libuv function. Until td_loop_memory_widen has run, a failed allocation in libuv ends the
 * process with TD_EXIT_NOMEM. */
void td_loop_memory_begin(void);
/* Grows the loop's table of descriptors so that n descriptors fit from now on. */
TD_MUST_CHECK td_status td_loop_memory_widen(uv_loop_t *loop, int n, td_error *err);

#endif
