/* Watching the steps: GET /v1/steps is an event stream of what the engine does, for the page at / and for
 * curl.
 *
 * The engine writes its ring of step records in any case. While there are watchers, a timer of the loop
 * reads the ring and sends each watcher all steps since the last time. A watcher that does not keep up
 * misses steps, and is told how many. A watcher therefore costs the loop some rendering, and the engine
 * nothing. */
#ifndef TD_SERVER_WATCH_H
#define TD_SERVER_WATCH_H

#include "server/conn.h"

/* Handles c's complete request: it begins to watch, or gets an error. */
void td_watch_begin(td_conn *c);
/* Frees the watcher of a connection that is being closed. */
void td_watch_forget(td_conn *c);
/* Sends every watcher a last event and ends its stream, because the server stops. */
void td_watch_end_all(td_server *s);

#endif
