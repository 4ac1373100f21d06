/* A file that is not whole yet: FOLDER/.NAME.part, and what is known of it in FOLDER/.NAME.part.txt, so that
 * a later run goes on where this one ended. */
#ifndef TD_PULL_PART_H
#define TD_PULL_PART_H

#include <stdbool.h>
#include <stdint.h>

#include "common/pulled.h"
#include "common/status.h"
#include "pull/http.h"
#include "pull/sha256.h"

typedef struct td_part {
  int fd;
  char path[TD_PULLED_PATH_BYTES + 32], note_path[TD_PULLED_PATH_BYTES + 32];
  char etag[TD_HTTP_HEADER_BYTES];  /* of the server's file that these bytes are of; "": not known */
  uint64_t at, total;               /* bytes so far; in all, or TD_HTTP_UNKNOWN */
  td_sha256 hash;                   /* of the bytes so far */
  char sha256[TD_SHA256_HEX_BYTES]; /* what the whole file must have; "": not known */
} td_part;

/* path: of the whole file. url and sha256 ("": not known) say which file it shall be: bytes of another are
 * dropped, and so are those that could not be told from another's. Where sha256 is not known, the one that an
 * earlier run noted for the same file is. Nobody else may have it open. */
TD_MUST_CHECK td_status td_part_open(td_part *p, const char *path, const char *url, const char *sha256,
                                     td_error *err);
/* Notes what server and file are, before the first byte. The URL may hold a password: only the owner can read
 * the note. */
TD_MUST_CHECK td_status td_part_note(td_part *p, const char *url, td_error *err);
/* All bytes are dropped, and what is known of the file. */
TD_MUST_CHECK td_status td_part_restart(td_part *p, td_error *err);
TD_MUST_CHECK td_status td_part_add(td_part *p, const void *bytes, size_t n, td_error *err);
/* Whether the disk has room for what is missing. */
TD_MUST_CHECK td_status td_part_room(const td_part *p, td_error *err);
/* Is on the disk and has its name. */
TD_MUST_CHECK td_status td_part_finish(td_part *p, const char *path, td_error *err);
/* keep: for a later run. */
void td_part_close(td_part *p, bool keep);

#endif
