/* Watching the steps: GET /v1/steps, an event stream of what the engine does, for the page at / and for curl.
 *
 * The engine writes its ring of step records whether anybody watches or not. While somebody does, a timer of
 * the loop reads it and sends each watcher what is new, with all steps in between; a watcher that does not
 * keep up misses steps and is told how many. So a watcher costs the loop some rendering, and the engine
 * nothing. */
#ifndef TD_SERVER_WATCH_H
#define TD_SERVER_WATCH_H

#include "server/conn.h"

/* Takes c's complete request: it watches from now on, or is told why not. */
void td_watch_begin(td_conn *c);
/* The connection goes. */
void td_watch_forget(td_conn *c);
/* The server stops: every watcher gets a last event and the end of its stream. */
void td_watch_end_all(td_server *s);

#endif
