/* Hands KV events from the engine thread to the one thread that publishes them.
 *
 * A bounded ring of events, with their tokens. Events that do not fit stay in the scheduler, where they take
 * no extra memory and cannot overflow (scheduler/page_events.h). When the reader has made room, it wakes the
 * engine. So a slow reader loses no events and does not slow the engine down. */
#ifndef TD_ENGINE_KV_FEED_H
#define TD_ENGINE_KV_FEED_H

#include <stdatomic.h>

#include "engine/engine.h"
#include "scheduler/scheduler.h"

enum { TD_KV_FEED_EVENTS = 4096 }; /* a power of two */

typedef struct td_kv_feed {
  td_engine_kv_event *events; /* [TD_KV_FEED_EVENTS]; NULL: option kv_events is not set */
  int32_t *tokens;            /* [TD_KV_FEED_EVENTS][page_tokens] */
  uint32_t page_tokens;
  int fd;                                   /* eventfd: the ring has new events */
  _Alignas(64) _Atomic uint64_t n_consumed; /* events that the reader has finished with */
  uint64_t n_read;                          /* reader: events returned by td_kv_feed_read */
  _Alignas(64) _Atomic uint64_t n_stored;   /* events that the engine has stored */
  _Atomic bool has_left_over;               /* the scheduler has events that did not fit */
} td_kv_feed;

TD_MUST_CHECK td_status td_kv_feed_init(td_kv_feed *f, uint32_t page_tokens, td_error *err);
void td_kv_feed_deinit(td_kv_feed *f); /* f may be zeroed */
/* Engine thread: moves events from the scheduler to the ring. */
void td_kv_feed_fill(td_kv_feed *f, td_sched *s);
/* Reader: see td_engine_read_kv_events. *must_wake_engine: the scheduler has more events; wake the engine. */
uint32_t td_kv_feed_read(td_kv_feed *f, const td_engine_kv_event **out, uint32_t max, bool *must_wake_engine);

#endif
