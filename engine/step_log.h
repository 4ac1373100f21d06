/* Records of the last steps. The engine thread writes them; the loop reads them when a client asks.
 *
 * A ring that is overwritten, whether it is read or not. `begun` moves before a record's words are stored,
 * and `done` after. A reader copies records up to `done`, then discards those that `begun` says may have been
 * overwritten meanwhile. So a reader costs the engine nothing, and a step without readers costs one cache
 * line of stores. Words are stored with release and read with acquire: a reader that has read a word of a
 * later record also sees that record's `begun`. No fence is needed. */
#ifndef TD_ENGINE_STEP_LOG_H
#define TD_ENGINE_STEP_LOG_H

#include <stdatomic.h>

#include "engine/engine.h"

enum { TD_STEP_LOG_RECORDS = TD_ENGINE_STEPS_KEPT, TD_STEP_LOG_WORDS = sizeof(td_engine_step) / 8 };

typedef struct td_step_log {
  _Alignas(64) _Atomic uint64_t begun; /* records begun since start */
  _Atomic uint64_t done;               /* records completely stored */
  _Alignas(64) _Atomic uint64_t words[TD_STEP_LOG_RECORDS][TD_STEP_LOG_WORDS];
} td_step_log;

void td_step_log_write(td_step_log *log, const td_engine_step *s);
/* See td_engine_read_steps. */
uint32_t td_step_log_read(const td_step_log *log, uint64_t *cursor, td_engine_step *out, uint32_t max,
                          uint64_t *n_missed);

#endif
