/* Fields that no table knows: the answer goes on without them, and names them in a header and once in the
 * log.
 *
 * Real clients send such fields; who misspelt one must be able to see it. What a client wrote as a name
 * reaches a header and the log only as [A-Za-z0-9_.-], all else becomes '?'. Bounded: a list that is full
 * ends in "...". */
#ifndef TD_SERVER_UNKNOWN_H
#define TD_SERVER_UNKNOWN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"

enum { TD_UNKNOWN_BYTES = 256, TD_UNKNOWN_NAME_BYTES = 64, TD_UNKNOWN_LOGGED = 64 };

/* Of one request. */
typedef struct td_unknown {
  bool strict;                  /* --strict-fields: they are refused, none gets here */
  char names[TD_UNKNOWN_BYTES]; /* "a, messages[].b" */
} td_unknown;

/* path: where the object stands ("", "messages[3]."); indices are left out, so that a name comes once. */
void td_unknown_add(td_unknown *u, const char *path, const char *name);
/* The names of another body that was made of this one. */
void td_unknown_merge(td_unknown *u, const td_unknown *more);
/* "x-tandem-ignored: a, b\r\n", or nothing. */
void td_unknown_render(const td_unknown *u, td_buf *out);

/* Of one process: the names that have been told. When it is full no more are told. */
typedef struct td_unknown_log {
  uint32_t n;
  char names[TD_UNKNOWN_LOGGED][TD_UNKNOWN_NAME_BYTES];
} td_unknown_log;

/* Logs the names of u that are new; returns how many were. */
uint32_t td_unknown_tell(td_unknown_log *log, const td_unknown *u);

#endif
