/* One file of a server, whole or not at all: resumed where it broke off, checked, then named. */
#ifndef TD_PULL_FETCH_H
#define TD_PULL_FETCH_H

#include "common/status.h"
#include "pull/http.h"
#include "pull/shown.h"

/* A file larger than this is none (16 TiB). */
#define TD_FETCH_BYTES_MAX (UINT64_C(1) << 44)

enum {
  TD_FETCH_RESTARTS = 3, /* the server's file was another one meanwhile */
  TD_FETCH_PAUSE_S = 30  /* the longest between two tries */
};

typedef struct td_fetch {
  const char *url, *token, *name; /* name: to a person */
  const char *sha256;             /* what it must be; "": what the hub's header says, else anything */
  uint64_t n_bytes;               /* what it must have; TD_HTTP_UNKNOWN: what the server says */
  uint32_t stall_s, retries;      /* tries that bring nothing new */
  td_shown *shown;
} td_fetch;

/* TD_ERR_MODEL: what the server sends is not what was wanted. TD_ERR_IO: the network or the disk. What came
 * is kept for another run, unless its SHA-256 is another one. */
TD_MUST_CHECK td_status td_fetch_file(const td_fetch *f, const char *path, td_error *err);

#endif
