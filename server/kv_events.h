/* Publishes which prefixes are cached, for routers in front of several daemons: vLLM's KV events, so that
 * what routes for vLLM routes for us.
 *
 * A thread of its own reads the engine's KV events, makes messages of them and sends them on a ZeroMQ PUB
 * socket: topic, sequence number (8 bytes, big-endian, from 0), and a batch in MessagePack (kv_batch.h).
 * Message 0 says that nothing is cached. A PUB socket never waits: what a slow subscriber has no room for is
 * lost to it, and it sees a gap in the numbers. It may ask a second socket (ROUTER) for what came from a
 * number on; so long as that is kept, it gets it. */
#ifndef TD_SERVER_KV_EVENTS_H
#define TD_SERVER_KV_EVENTS_H

#include "config/options.h"
#include "engine/engine.h"

typedef struct td_kv_events td_kv_events;

/* So many pages were told as stored and removed, in so many messages. */
typedef struct td_kv_events_count {
  uint64_t stored, removed, messages;
} td_kv_events_count;

/* Opens the sockets and starts the thread; *out is NULL where no option asks for it. TD_ERR_CONFIG: an
 * endpoint is none, or this build has no KV events; TD_ERR_IO: it cannot be bound. plain_namespace: the cache
 * namespace that is told as if it were none, beside 0. */
TD_MUST_CHECK td_status td_kv_events_start(const td_options *o, td_engine *e, uint64_t plain_namespace,
                                           td_kv_events **out, td_error *err);
/* What the options ask for can be had; sockets are not opened. */
TD_MUST_CHECK td_status td_kv_events_check_options(const td_options *o, td_error *err);
/* Sends what is left, and ends the thread; after the engine's has ended. NULL: does nothing. */
void td_kv_events_stop(td_kv_events *k);
void td_kv_events_get(const td_kv_events *k, td_kv_events_count *out); /* [any] */

extern const bool td_kv_events_are_built_in;

#endif
