/* See partial_file.h. */
#include "pull/partial_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/cache.h"
#include "common/io.h"
#include "pull/sync.h"

enum { NOTE_BYTES = 16384, CHUNK_BYTES = 1 << 20 };

static td_status name_paths(td_partial_file *p, const char *path, td_error *err)
{
  const char *slash = strrchr(path, '/');
  int folder = slash ? (int)(slash - path) + 1 : 0;
  int n = snprintf(p->path, sizeof p->path, "%.*s.%s.part", folder, path, path + folder);
  int m = snprintf(p->note_path, sizeof p->note_path, "%s.txt", p->path);
  if (n < 0 || (size_t)n >= sizeof p->path || m < 0 || (size_t)m >= sizeof p->note_path)
    return td_fail(err, TD_ERR_IO, "%s: the path is too long", path);
  return TD_OK;
}

/* The value of the note's line "KEY VALUE", or "". */
static void note_value(const char *note, const char *key, char *out, size_t size)
{
  size_t key_n = strlen(key);
  *out = '\0';
  for (const char *line = note; line && *line; line = strchr(line, '\n'), line += line != NULL)
    if (strncmp(line, key, key_n) == 0 && line[key_n] == ' ') {
      size_t n = strcspn(line + key_n + 1, "\n");
      snprintf(out, size, "%.*s", n < size ? (int)n : 0, line + key_n + 1);
      return;
    }
}

/* Whether the bytes are certainly of the wanted file, by what the note says. */
static bool read_note(td_partial_file *p, const char *url, const char *sha256)
{
  char value[NOTE_BYTES];
  td_buf note;
  bool found, same = false;
  td_buf_init(&note, NOTE_BYTES);
  if (td_cache_read(p->note_path, &note, &found, NULL) == TD_OK && note.data) {
    note_value(note.data, "bytes", value, sizeof value);
    p->total = *value ? strtoull(value, NULL, 10) : TD_HTTP_UNKNOWN;
    note_value(note.data, "etag", p->etag, sizeof p->etag);
    note_value(note.data, "sha256", p->sha256, sizeof p->sha256);
    note_value(note.data, "url", value, sizeof value);
    same = *sha256 ? strcasecmp(p->sha256, sha256) == 0 : p->etag[0] == '"' && strcmp(value, url) == 0;
  }
  td_buf_deinit(&note);
  return same;
}

td_status td_partial_file_write_note(td_partial_file *p, const char *url, td_error *err)
{
  td_buf note;
  mode_t mask = umask(077);
  td_buf_init(&note, NOTE_BYTES);
  if (p->total != TD_HTTP_UNKNOWN)
    td_buf_printf(&note, "bytes %" PRIu64 "\n", p->total);
  td_buf_printf(&note, "etag %s\nsha256 %s\nurl %s\n", p->etag, p->sha256, url);
  td_status st = note.failed ? td_fail(err, TD_ERR_IO, "%s: the URL is too long", p->path)
                             : td_cache_write(p->note_path, note.data, note.len_bytes, err);
  td_buf_deinit(&note);
  (void)umask(mask);
  return st;
}

/* Adds the bytes that an earlier run left to the hash. */
static td_status read_bytes(td_partial_file *p, uint64_t n_bytes, td_error *err)
{
  char *chunk = malloc(CHUNK_BYTES);
  if (!chunk)
    return td_fail(err, TD_ERR_NOMEM, "no memory");
  ssize_t n = 0;
  while (p->at < n_bytes && (n = td_read_at(p->fd, chunk, CHUNK_BYTES, p->at)) > 0) {
    td_sha256_add(&p->hash, chunk, (size_t)n);
    p->at += (uint64_t)n;
  }
  free(chunk);
  return n < 0 ? td_fail(err, TD_ERR_IO, "%s: %s", p->path, strerror(errno)) : TD_OK;
}

/* Takes the lock before it reads the note. */
static td_status open_bytes(td_partial_file *p, const char *url, const char *sha256, td_error *err)
{
  struct stat s, named;
  if (flock(p->fd, LOCK_EX | LOCK_NB) != 0)
    return td_fail(err, TD_ERR_IO, "%s: another tandem-pull is fetching it", p->path);
  if (fstat(p->fd, &s) != 0 || !S_ISREG(s.st_mode))
    return td_fail(err, TD_ERR_IO, "%s: not a regular file", p->path);
  if (lstat(p->path, &named) != 0 || named.st_ino != s.st_ino || named.st_dev != s.st_dev)
    return td_fail(err, TD_ERR_IO, "%s: another tandem-pull has just fetched it", p->path);
  if (!read_note(p, url, sha256) || (p->total != TD_HTTP_UNKNOWN && (uint64_t)s.st_size > p->total))
    return td_partial_file_restart(p, err);
  return read_bytes(p, (uint64_t)s.st_size, err);
}

td_status td_partial_file_open(td_partial_file *p, const char *path, const char *url, const char *sha256,
                               td_error *err)
{
  *p = (td_partial_file){.fd = -1, .total = TD_HTTP_UNKNOWN};
  td_sha256_begin(&p->hash);
  TD_TRY(name_paths(p, path, err));
  p->fd = open(p->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (p->fd < 0)
    return td_fail(err, TD_ERR_IO, "%s: %s", p->path, strerror(errno));
  td_status st = open_bytes(p, url, sha256, err);
  if (st != TD_OK)
    td_partial_file_close(p, true);
  return st;
}

td_status td_partial_file_restart(td_partial_file *p, td_error *err)
{
  p->at = 0;
  p->total = TD_HTTP_UNKNOWN;
  p->etag[0] = p->sha256[0] = '\0';
  td_sha256_begin(&p->hash);
  if (ftruncate(p->fd, 0) != 0)
    return td_fail(err, TD_ERR_IO, "%s: %s", p->path, strerror(errno));
  return TD_OK;
}

td_status td_partial_file_append(td_partial_file *p, const void *bytes, size_t n, td_error *err)
{
  const char *at = bytes;
  td_sha256_add(&p->hash, bytes, n);
  while (n > 0) {
    ssize_t w = pwrite(p->fd, at, n, (off_t)p->at);
    if (w < 0 && errno == EINTR)
      continue;
    if (w < 0)
      return td_fail(err, TD_ERR_IO, "%s: %s", p->path, strerror(errno));
    at += w, n -= (size_t)w, p->at += (uint64_t)w;
  }
  return TD_OK;
}

td_status td_partial_file_check_space(const td_partial_file *p, td_error *err)
{
  struct statvfs s;
  if (p->total == TD_HTTP_UNKNOWN || p->total <= p->at || fstatvfs(p->fd, &s) != 0)
    return TD_OK;
  double missing = (double)(p->total - p->at) - (double)s.f_bavail * (double)s.f_frsize;
  if (missing <= 0)
    return TD_OK;
  return td_fail(err, TD_ERR_IO, "%s: the disk has not enough room, %.0f MB are missing", p->path,
                 missing / 1e6 + 1);
}

td_status td_partial_file_finish(td_partial_file *p, const char *path, td_error *err)
{
  if (fsync(p->fd) != 0)
    return td_fail(err, TD_ERR_IO, "%s: %s", path, strerror(errno));
  TD_TRY(td_sync_rename(p->path, path, err));
  (void)unlink(p->note_path);
  return TD_OK;
}

void td_partial_file_close(td_partial_file *p, bool keep)
{
  if (p->fd < 0)
    return;
  if (!keep) {
    (void)unlink(p->path);
    (void)unlink(p->note_path);
  }
  close(p->fd);
  p->fd = -1;
}
