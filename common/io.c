/* See io.h. */
#include "common/io.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
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

static bool is_lasting(const struct stat *st)
{
  return S_ISREG(st->st_mode) || (S_ISCHR(st->st_mode) && st->st_rdev == makedev(1, 3)); /* /dev/null */
}

static bool is_unnamed_pipe(int fd, const struct stat *st)
{
  struct statfs fs;
  return S_ISFIFO(st->st_mode) && fstatfs(fd, &fs) == 0 && fs.f_type == PIPEFS_MAGIC;
}

/* Returns why the file is refused. NULL: it is accepted, and its reads now block. */
static const char *refuse(int fd)
{
  struct stat st;
  if (fstat(fd, &st) != 0)
    return strerror(errno);
  if (!is_lasting(&st) && !is_unnamed_pipe(fd, &st))
    return S_ISDIR(st.st_mode) ? strerror(EISDIR)
           : S_ISFIFO(st.st_mode)
               ? "it is a FIFO, whose writer may never come: give a regular file, or <(...)"
               : "it is no regular file";
  return fcntl(fd, F_SETFL, 0) == 0 ? NULL : strerror(errno);
}

FILE *td_file_open(const char *path, const char **why)
{
  int fd = td_open_at(AT_FDCWD, path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0);
  *why = fd < 0 ? strerror(errno) : refuse(fd);
  FILE *f = *why ? NULL : fdopen(fd, "r");
  if (f)
    return f;
  if (!*why)
    *why = strerror(errno);
  if (fd >= 0)
    close(fd);
  return NULL;
}

bool td_file_can_be_read_again(const char *path)
{
  struct stat st;
  return stat(path, &st) != 0 || is_lasting(&st);
}
