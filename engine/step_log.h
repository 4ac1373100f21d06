/* The last steps, one record each: the engine thread writes, the loop reads when somebody watches.
 *
 * A ring that is written over, whether anybody reads or not. `begun` moves before a record's words are stored
 * and `done` after; a reader copies up to `done` and then drops what `begun` says may have been overwritten
 * while it copied. So a reader costs the engine nothing, and no reader costs it the stores: a cache line a
 * step. Words are stored with release and read with acquire, which makes "a word of a later record was read"
 * imply "`begun` of that record is seen" without fences. */
#ifndef TD_ENGINE_STEP_LOG_H
#define TD_ENGINE_STEP_LOG_H

#include <stdatomic.h>

#include "engine/engine.h"

enum { TD_STEP_LOG_RECORDS = TD_ENGINE_STEPS_KEPT, TD_STEP_LOG_WORDS = sizeof(td_engine_step) / 8 };

typedef struct td_step_log {
  _Alignas(64) _Atomic uint64_t begun; /* records begun since start */
  _Atomic uint64_t done;               /* records that are whole */
  _Alignas(64) _Atomic uint64_t words[TD_STEP_LOG_RECORDS][TD_STEP_LOG_WORDS];
} td_step_log;

void td_step_log_write(td_step_log *log, const td_engine_step *s);
/* As td_engine_read_steps. */
uint32_t td_step_log_read(const td_step_log *log, uint64_t *cursor, td_engine_step *out, uint32_t max,
                          uint64_t *n_missed);

#endif
