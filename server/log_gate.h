/* Limits log lines of one kind per second, so that clients cannot fill the log. Counts the lines left out. */
#ifndef TD_SERVER_LOG_GATE_H
#define TD_SERVER_LOG_GATE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { TD_LOG_GATE_BYTES = 64 };

typedef struct td_log_gate {
  uint64_t begin_ms; /* start of the current second */
  uint32_t n_written, n_suppressed;
} td_log_gate;

/* Whether a line may be written now. If so, *n_suppressed is the number of lines left out before it. */
static inline bool td_log_gate_allow(td_log_gate *g, uint64_t now_ms, uint32_t lines_per_s,
                                     uint32_t *n_suppressed)
{
  if (g->n_written == 0 || now_ms - g->begin_ms >= 1000) {
    g->begin_ms = now_ms;
    g->n_written = 0;
  }
  if (g->n_written >= lines_per_s) {
    g->n_suppressed++;
    return false;
  }
  g->n_written++;
  *n_suppressed = g->n_suppressed;
  g->n_suppressed = 0;
  return true;
}

/* The same. more: text to append to the line; it says how many lines were left out before it. */
static inline bool td_log_gate_pass(td_log_gate *g, uint64_t now_ms, uint32_t lines_per_s,
                                    char more[TD_LOG_GATE_BYTES])
{
  uint32_t n_suppressed;
  if (!td_log_gate_allow(g, now_ms, lines_per_s, &n_suppressed))
    return false;
  more[0] = '\0';
  if (n_suppressed > 0)
    snprintf(more, TD_LOG_GATE_BYTES, "; %u lines like this were left out before it", n_suppressed);
  return true;
}

#endif
