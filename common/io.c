/* See io.h. */
#include "common/io.h"

#include <errno.h>
#include <unistd.h>

ssize_t td_read_at(int fd, void *dst, size_t n, uint64_t at)
{
  size_t done = 0;
  while (done < n) {
    ssize_t got = pread(fd, (char *)dst + done, n - done, (off_t)(at + done));
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return -1;
    if (got == 0)
      break;
    done += (size_t)got;
  }
  return (ssize_t)done;
}
