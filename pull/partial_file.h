/* An incomplete file: FOLDER/.NAME.part holds its bytes, and FOLDER/.NAME.part.txt a note of what they are,
 * so that a later run can go on where this one ended. */
#ifndef TD_PULL_PARTIAL_FILE_H
#define TD_PULL_PARTIAL_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/pulled.h"
#include "common/status.h"
#include "pull/http.h"
#include "pull/sha256.h"

typedef struct td_partial_file {
  int fd;
  char path[TD_PULLED_PATH_BYTES + 32], note_path[TD_PULLED_PATH_BYTES + 32];
  char etag[TD_HTTP_HEADER_BYTES];  /* of the server's file that the bytes are of; "": unknown */
  uint64_t at, total;               /* bytes so far; size of the whole file, or TD_HTTP_UNKNOWN */
  td_sha256 hash;                   /* of the bytes so far */
  char sha256[TD_SHA256_HEX_BYTES]; /* hash that the whole file must have; "": unknown */
} td_partial_file;

/* Opens the incomplete file of `path`, and locks it against other processes. url and sha256 ("": unknown)
 * say which file is wanted. Bytes that are not certainly of that file are dropped. If sha256 is unknown, the
 * one that an earlier run noted for the same file is used. */
TD_MUST_CHECK td_status td_partial_file_open(td_partial_file *p, const char *path, const char *url,
                                             const char *sha256, td_error *err);
/* Writes the note, which must happen before the first byte is added. Only the owner can read it, because the
 * URL may hold a password. */
TD_MUST_CHECK td_status td_partial_file_write_note(td_partial_file *p, const char *url, td_error *err);
/* Drops all bytes, and what is known of the file. */
TD_MUST_CHECK td_status td_partial_file_restart(td_partial_file *p, td_error *err);
TD_MUST_CHECK td_status td_partial_file_append(td_partial_file *p, const void *bytes, size_t n,
                                               td_error *err);
/* Checks that the disk has room for the missing bytes. */
TD_MUST_CHECK td_status td_partial_file_check_space(const td_partial_file *p, td_error *err);
/* Syncs the file to the disk, gives it its name, and syncs the folder. */
TD_MUST_CHECK td_status td_partial_file_finish(td_partial_file *p, const char *path, td_error *err);
/* keep: leave the bytes for a later run. */
void td_partial_file_close(td_partial_file *p, bool keep);

#endif
