/* Fetches one file of a server, resuming where an earlier try ended. The file gets its name only when it is
 * complete and checked. */
#ifndef TD_PULL_FETCH_H
#define TD_PULL_FETCH_H

#include "common/status.h"
#include "pull/http.h"
#include "pull/progress_line.h"

/* Larger files are refused (16 TiB). */
#define TD_FETCH_BYTES_MAX (UINT64_C(1) << 44)

enum {
  TD_FETCH_RESTARTS = 3, /* how often to begin anew if the server's file changes */
  TD_FETCH_PAUSE_S = 30  /* the longest pause between two tries */
};

typedef struct td_fetch {
  const char *url, *token, *name; /* name: for messages */
  const char *sha256;        /* the hash it must have; "": the one in the hub's header, if there is one */
  uint64_t n_bytes;          /* the size it must have; TD_HTTP_UNKNOWN: the one that the server says */
  uint32_t stall_s, retries; /* retries: how many tries in a row may bring no bytes */
  td_progress_line *progress;
} td_fetch;

/* Returns TD_ERR_MODEL if the server sends something other than the wanted file, and TD_ERR_IO for errors of
 * network or disk. The bytes received are kept for another run, unless their SHA-256 is wrong. */
TD_MUST_CHECK td_status td_fetch_file(const td_fetch *f, const char *path, td_error *err);

#endif
