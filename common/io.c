/* See io.h. */
#include "common/io.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int td_open_at(int dir, const char *path, int flags, mode_t mode)
{
  int fd;
  do
    fd = openat(dir, path, flags, mode);
  while (fd < 0 && errno == EINTR);
  return fd;
}

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
