/* Publishes which prefixes are cached, for routers in front of several daemons. The messages are vLLM's KV
 * events, so routers made for vLLM work with us.
 *
 * A separate thread reads the engine's KV events and sends them as messages on a ZeroMQ PUB socket: topic,
 * sequence number (8 bytes, big-endian, from 0), and a batch in MessagePack (kv_batch.h). Message 0 says that
 * nothing is cached. A PUB socket never waits: it drops messages for a slow subscriber, which then sees a gap
 * in the numbers. The subscriber may ask a second socket (ROUTER) for all messages from a number on, and gets
 * those still kept. */
#ifndef TD_SERVER_KV_EVENTS_H
#define TD_SERVER_KV_EVENTS_H

#include "config/options.h"
#include "engine/engine.h"

typedef struct td_kv_events td_kv_events;

/* Pages published as stored and as removed, and the number of messages. */
typedef struct td_kv_events_count {
  uint64_t stored, removed, messages;
} td_kv_events_count;

/* Opens the sockets and starts the thread. *out is NULL if no option asks for KV events. TD_ERR_CONFIG: an
 * endpoint is malformed, or this build has no KV events; TD_ERR_IO: an endpoint cannot be bound.
 * plain_namespace: this cache namespace is published like namespace 0, without extra keys. */
TD_MUST_CHECK td_status td_kv_events_start(const td_options *o, td_engine *e, uint64_t plain_namespace,
                                           td_kv_events **out, td_error *err);
/* Checks the options without opening sockets. */
TD_MUST_CHECK td_status td_kv_events_check_options(const td_options *o, td_error *err);
/* Sends remaining events and ends the thread. Call after the engine's thread has ended. NULL is allowed. */
void td_kv_events_stop(td_kv_events *k);
void td_kv_events_get(const td_kv_events *k, td_kv_events_count *out); /* [any] */

extern const bool td_kv_events_are_built_in;

#endif
