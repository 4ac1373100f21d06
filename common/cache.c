/* See cache.h. */
#include "common/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/io.h"

static td_status read_all(int fd, td_buf *out, td_error *err)
{
  char chunk[16384];
  struct stat s;
  ssize_t n;
  if (fstat(fd, &s) < 0 || !S_ISREG(s.st_mode))
    return td_fail(err, TD_ERR_CONFIG, "not a regular file");
  while ((n = read(fd, chunk, sizeof chunk)) != 0) {
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return td_fail(err, TD_ERR_IO, "%s", strerror(errno));
    td_buf_append(out, chunk, (size_t)n);
    if (out->failed)
      return td_fail(err, TD_ERR_CONFIG, "too large");
  }
  return TD_OK;
}

td_status td_cache_read(const char *path, td_buf *out, bool *found, td_error *err)
{
  /* a FIFO of that name must not block the start */
  int fd = td_open_at(AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
  *found = fd >= 0 || errno != ENOENT;
  if (fd < 0)
    return *found ? td_fail(err, TD_ERR_IO, "%s", strerror(errno)) : TD_OK;
  td_status st = read_all(fd, out, err);
  close(fd);
  return st;
}

static bool write_all(int fd, const char *data, size_t n)
{
  while (n > 0) {
    ssize_t w = write(fd, data, n);
    if (w < 0 && errno == EINTR)
      continue;
    if (w < 0)
      return false;
    data += w;
    n -= (size_t)w;
  }
  return fsync(fd) == 0;
}

td_status td_cache_write(const char *path, const char *data, size_t n_bytes, td_error *err)
{
  char temporary[TD_CACHE_PATH_BYTES + 16];
  td_status st = TD_OK;
  snprintf(temporary, sizeof temporary, "%s.%ld", path, (long)getpid());
  int fd = td_open_at(AT_FDCWD, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0 || !write_all(fd, data, n_bytes) || rename(temporary, path) < 0) {
    st = td_fail(err, TD_ERR_IO, "%s: %s", path, strerror(errno));
    if (fd >= 0)
      unlink(temporary);
  }
  if (fd >= 0)
    close(fd);
  return st;
}

bool td_cache_folder(const char *option, char out[TD_CACHE_PATH_BYTES])
{
  const char *systemd = getenv("CACHE_DIRECTORY"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  int n;
  if (strcmp(option, "auto") != 0)
    n = snprintf(out, TD_CACHE_PATH_BYTES, "%s", option);
  else if (systemd && *systemd)
    n = snprintf(out, TD_CACHE_PATH_BYTES, "%.*s", (int)strcspn(systemd, ":"),
                 systemd); /* the first of several folders */
  else if (xdg && *xdg == '/')
    n = snprintf(out, TD_CACHE_PATH_BYTES, "%s/tandem", xdg);
  else if (home && *home == '/')
    n = snprintf(out, TD_CACHE_PATH_BYTES, "%s/.cache/tandem", home);
  else
    return false;
  if (n <= 0 || n >= TD_CACHE_PATH_BYTES)
    return false;
  char *slash = strrchr(out, '/');
  if (slash && slash > out) { /* ~/.cache may be missing; other failures show when the file is written */
    *slash = '\0';
    (void)mkdir(out, 0700);
    *slash = '/';
  }
  (void)mkdir(out, 0700);
  return true;
}

bool td_cache_path(const char *folder, const char *kind, const char *identity, char out[TD_CACHE_PATH_BYTES])
{
  int n = snprintf(out, TD_CACHE_PATH_BYTES, "%s/", folder);
  int m = n < 0 || n >= TD_CACHE_PATH_BYTES
              ? -1
              : snprintf(out + n, (size_t)(TD_CACHE_PATH_BYTES - n), "%s-%s.txt", kind, identity);
  if (m < 0 || n + m >= TD_CACHE_PATH_BYTES || m > 255)
    return false;
  for (char *c = out + n; *c; c++)
    if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || *c == '.'))
      *c = '-';
  return true;
}
