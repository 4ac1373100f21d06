/* Unknown fields of requests: the request is served without them. A header of the answer names them, and the
 * log names each once.
 *
 * Real clients send such fields, but a client that misspelt one must be able to see it. Names come from
 * clients, so they reach header and log only as [A-Za-z0-9_.-]; any other byte becomes '?'. The list has a
 * bounded length and ends in "..." if names were left out. */
#ifndef TD_SERVER_UNKNOWN_H
#define TD_SERVER_UNKNOWN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"

enum { TD_UNKNOWN_BYTES = 256, TD_UNKNOWN_NAME_BYTES = 64, TD_UNKNOWN_LOGGED = 64 };

/* The unknown fields of one request. */
typedef struct td_unknown {
  bool strict;                  /* --strict-fields: they are refused, so none are added */
  char names[TD_UNKNOWN_BYTES]; /* "a, messages[].b" */
} td_unknown;

/* path: the object that holds the field ("", "messages[3]."). Indices are dropped, so that a name is listed
 * once. */
void td_unknown_add(td_unknown *u, const char *path, const char *name);
/* Adds the names from another body, which was made from this one. */
void td_unknown_merge(td_unknown *u, const td_unknown *more);
/* Appends "x-tandem-ignored: a, b\r\n", or nothing. */
void td_unknown_render(const td_unknown *u, td_buf *out);

/* The names that this process has logged. Once it is full, no more are logged. */
typedef struct td_unknown_log {
  uint32_t n;
  char names[TD_UNKNOWN_LOGGED][TD_UNKNOWN_NAME_BYTES];
} td_unknown_log;

/* Logs the names of u that were not logged before. Returns how many it logged. */
uint32_t td_unknown_log_new(td_unknown_log *log, const td_unknown *u);

#endif
