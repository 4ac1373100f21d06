/* libuv aborts where a table of its own cannot grow. What it needs is taken at start, and a start without
 * memory ends with its exit code. */
#ifndef TD_SERVER_LOOP_MEMORY_H
#define TD_SERVER_LOOP_MEMORY_H

#include <uv.h>

#include "common/status.h"

/* Before anything of libuv is called. Until td_loop_memory_widen, want of memory ends the process
 * (TD_EXIT_NOMEM). */
void td_loop_memory_begin(void);
/* The loop's table of descriptors takes n of them from now on without growing. */
TD_MUST_CHECK td_status td_loop_memory_widen(uv_loop_t *loop, int n, td_error *err);

#endif
