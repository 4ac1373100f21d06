/* Maps files read-only.
 *
 * Only regular files are accepted, because a FIFO or device would block or report a wrong size. A file that
 * is truncated while it is mapped still faults (SIGBUS): replace a model by writing a new file and renaming
 * it. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/io.h"
#include "models/weights/internal.h"

/* On success *out owns fd, or fd is closed if the file is empty. */
static td_status map_descriptor(int fd, const char *shown, td_mapping *out, td_error *err)
{
  struct stat st;
  if (fstat(fd, &st) != 0)
    return td_fail(err, TD_ERR_IO, "%s: %s", shown, strerror(errno));
  if (!S_ISREG(st.st_mode))
    return td_fail(err, TD_ERR_MODEL, "%s: not a regular file", shown);
  *out = (td_mapping){(const unsigned char *)"", 0, -1};
  if (st.st_size == 0) {
    close(fd);
    return TD_OK;
  }
  void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED)
    return td_fail(err, TD_ERR_IO, "%s: cannot map %lld bytes: %s", shown, (long long)st.st_size,
                   strerror(errno));
  *out = (td_mapping){p, (uint64_t)st.st_size, fd};
  /* Hints, which may fail: start reading now, in the background, and use larger pages if the file system
   * can. */
  (void)madvise(p, (size_t)st.st_size, MADV_WILLNEED);
  (void)madvise(p, (size_t)st.st_size, MADV_HUGEPAGE);
  return TD_OK;
}

td_status td_mapping_open(int dir, const char *name, const char *shown, bool *absent, td_mapping *out,
                          td_error *err)
{
  if (absent)
    *absent = false;
  /* O_NONBLOCK: opening a FIFO must not wait for its other end. */
  int fd = td_open_at(dir, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0);
  if (fd < 0) {
    if (errno == ENOENT && absent) {
      *absent = true;
      return TD_OK;
    }
    return td_fail(err, TD_ERR_IO, "%s: %s", shown, strerror(errno));
  }
  td_status st = map_descriptor(fd, shown, out, err);
  if (st != TD_OK)
    close(fd);
  return st;
}

void td_mapping_close_descriptor(td_mapping *m)
{
  if (m->bytes > 0 && m->fd >= 0)
    close(m->fd);
  m->fd = -1;
}

void td_mapping_close(td_mapping *m)
{
  td_mapping_close_descriptor(m);
  if (m->bytes > 0)
    munmap((void *)(uintptr_t)m->data, m->bytes);
  *m = (td_mapping){.fd = -1};
}
