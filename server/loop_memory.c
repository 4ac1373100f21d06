/* See loop_memory.h. */
#include "server/loop_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/log.h"

static bool starting;

static void *or_end(void *p)
{
  if (!p && starting) {
    td_error_log("no memory for the event loop");
    _exit(TD_EXIT_NOMEM);
  }
  return p;
}

static void *take(size_t n) { return or_end(malloc(n)); }
static void *take_array(size_t n, size_t size) { return or_end(calloc(n, size)); }
static void *resize(void *p, size_t n) { return or_end(realloc(p, n)); }

void td_loop_memory_begin(void)
{
  starting = true;
  TD_BUG_ON(uv_replace_allocator(take, resize, take_array, free) != 0);
}

static void never(uv_poll_t *poll, int status, int events) {}

/* libuv's table is as long as the highest descriptor ever watched, so we watch a high one for a moment. */
td_status td_loop_memory_widen(uv_loop_t *loop, int n, td_error *err)
{
  uv_poll_t poll;
  struct rlimit r;
  if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < (rlim_t)n)
    n = (int)r.rlim_cur;
  int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, n - 1);
  if (fd >= 0)
    close(fd);
  if (high < 0)
    return td_fail(err, TD_ERR_NOMEM, "connections: no descriptor %d: %s", n - 1, strerror(errno));
  int rc = uv_poll_init(loop, &poll, high);
  if (rc == 0) {
    rc = uv_poll_start(&poll, UV_READABLE, never);
    uv_close((uv_handle_t *)&poll, NULL);
    uv_run(loop, UV_RUN_NOWAIT); /* completes the close while poll is still in scope */
  }
  close(high);
  starting = false;
  return rc == 0 ? TD_OK : td_fail(err, TD_ERR_NOMEM, "event loop: %s", uv_strerror(rc));
}
