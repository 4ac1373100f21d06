/* KV events on their way from the engine thread to the one thread that publishes them.
 *
 * A bounded ring of pages stored and removed, with their tokens. What does not fit stays with the scheduler,
 * where it takes no memory and cannot overflow (scheduler/page_events.h); the reader, who has made room then,
 * wakes the engine. So a slow reader costs the engine nothing, and loses nothing. */
#ifndef TD_ENGINE_KV_FEED_H
#define TD_ENGINE_KV_FEED_H

#include <stdatomic.h>

#include "engine/engine.h"
#include "scheduler/scheduler.h"

enum { TD_KV_FEED_EVENTS = 4096 }; /* a power of two */

typedef struct td_kv_feed {
  td_engine_kv_event *events; /* [TD_KV_FEED_EVENTS]; NULL: nobody asked */
  int32_t *tokens;            /* [TD_KV_FEED_EVENTS][page_tokens] */
  uint32_t page_tokens;
  int fd;                                /* eventfd: there is news */
  _Alignas(64) _Atomic uint64_t n_taken; /* by the reader, who is done with them */
  uint64_t n_read;                       /* reader: handed out */
  _Alignas(64) _Atomic uint64_t n_put;   /* by the engine */
  _Atomic bool has_left_over;            /* the engine had more than there was room for */
} td_kv_feed;

TD_MUST_CHECK td_status td_kv_feed_init(td_kv_feed *f, uint32_t page_tokens, td_error *err);
void td_kv_feed_deinit(td_kv_feed *f); /* of zeros too */
/* Engine thread: moves what the scheduler has to tell. */
void td_kv_feed_fill(td_kv_feed *f, td_sched *s);
/* Reader: as td_engine_read_kv_events. *wants_engine: the engine has more, and may be asleep. */
uint32_t td_kv_feed_read(td_kv_feed *f, const td_engine_kv_event **out, uint32_t max, bool *wants_engine);

#endif
