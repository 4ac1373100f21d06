/* See sync.h. */
#include "pull/sync.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/io.h"
#include "common/pulled.h"

td_status td_sync_parent(const char *path, td_error *err)
{
  char folder[TD_PULLED_PATH_BYTES];
  const char *slash = strrchr(path, '/');
  size_t n = slash ? (size_t)(slash - path) + 1 : 0; /* with the slash, so that / remains */
  if (n >= sizeof folder)
    return td_fail(err, TD_ERR_IO, "%s: the path is too long", path);
  snprintf(folder, sizeof folder, "%.*s", n ? (int)n : 1, n ? path : ".");
  int fd = td_open_at(AT_FDCWD, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  bool ok = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL); /* EINVAL: this file system syncs no folders */
  td_status st = ok ? TD_OK : td_fail(err, TD_ERR_IO, "%s: %s", folder, strerror(errno));
  if (fd >= 0)
    close(fd);
  return st;
}

td_status td_sync_rename(const char *from, const char *to, td_error *err)
{
  if (rename(from, to) != 0)
    return td_fail(err, TD_ERR_IO, "%s: %s", to, strerror(errno));
  return td_sync_parent(to, err);
}
