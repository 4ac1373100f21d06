/* Records of the last steps: see step_log.h. */
#include "engine/step_log.h"

#include <string.h>

_Static_assert(sizeof(td_engine_step) == 64, "a record is one cache line");

void td_step_log_write(td_step_log *log, const td_engine_step *s)
{
  uint64_t words[TD_STEP_LOG_WORDS], n = atomic_load_explicit(&log->done, memory_order_relaxed);
  memcpy(words, s, sizeof words);
  atomic_store_explicit(&log->begun, n + 1, memory_order_relaxed);
  for (int i = 0; i < TD_STEP_LOG_WORDS; i++)
    atomic_store_explicit(&log->words[n % TD_STEP_LOG_RECORDS][i], words[i], memory_order_release);
  atomic_store_explicit(&log->done, n + 1, memory_order_release);
}

uint32_t td_step_log_read(const td_step_log *log, uint64_t *cursor, td_engine_step *out, uint32_t max,
                          uint64_t *n_missed)
{
  uint64_t done = atomic_load_explicit(&log->done, memory_order_acquire);
  uint64_t first = *cursor, oldest = done > TD_STEP_LOG_RECORDS ? done - TD_STEP_LOG_RECORDS : 0;
  uint32_t n = 0, n_torn = 0;
  if (first > done) /* not a cursor of this log */
    first = done;
  if (first < oldest) {
    *n_missed += oldest - first;
    first = oldest;
  }
  for (; n < max && first + n < done; n++) {
    uint64_t words[TD_STEP_LOG_WORDS];
    for (int i = 0; i < TD_STEP_LOG_WORDS; i++)
      words[i] =
          atomic_load_explicit(&log->words[(first + n) % TD_STEP_LOG_RECORDS][i], memory_order_acquire);
    memcpy(&out[n], words, sizeof words);
  }
  *cursor = first + n;
  uint64_t begun = atomic_load_explicit(&log->begun, memory_order_relaxed);
  while (n_torn < n && first + n_torn + TD_STEP_LOG_RECORDS < begun)
    n_torn++;
  *n_missed += n_torn;
  memmove(out, out + n_torn, (n - n_torn) * sizeof *out);
  return n - n_torn;
}
