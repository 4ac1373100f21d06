/* The server: one loop thread that owns every connection and call; this header is what its files share.
 *
 *   listener -> conn (HTTP) -> router -> call (one API request) -> worker: read, render, tokenise
 *                                |         |                          |
 *                                |         +--- generation <----------+   submit to the engine, text back
 *                                +-> watch: the engine's steps, as they come
 *
 * All of it runs on the loop but td_call's `run` part, which a worker has for itself until it is done. */
#ifndef TD_SERVER_SERVER_H
#define TD_SERVER_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "config/options.h"
#include "answers/dialect.h"
#include "engine/engine.h"
#include "server/address.h"
#include "server/api_error.h"
#include "server/auth.h"
#include "server/kv_events.h"
#include "server/listener.h"
#include "server/log_gate.h"
#include "server/metrics.h"
#include "server/namespace.h"
#include "server/tenant.h"
#include "server/unknown.h"
#include "server/workers.h"

typedef struct td_conn td_conn;
typedef struct td_call td_call;
typedef struct td_watcher td_watcher;

enum { TD_READ_BUFFER_BYTES = 65536 };

typedef struct td_server {
  td_options *options;
  int argc; /* the command line, to read options again */
  char **argv;
  bool reload_asked; /* while the model was loading */
  td_engine *engine;
  td_engine_state engine_state; /* as the loop last saw it */
  uv_loop_t loop;
  uv_async_t engine_wake;
  uv_prepare_t flush;     /* sends what the turn of the loop has made */
  uv_timer_t sweep;       /* deadlines; runs while there are connections or a drain */
  uv_timer_t watchdog;    /* systemd's */
  uv_timer_t watch_timer; /* runs while there are watchers */
  uv_signal_t signals[3];
  td_workers *workers;
  td_kv_events *kv_events; /* NULL: none are published */
  td_listener *listener;
  td_keys keys;
  uint32_t n_keys_at_start;  /* the scheduler's, for good */
  td_ranges trusted_proxies; /* not counted by address */
  td_tenants tenants;
  td_namespace_secret namespace_secret; /* drawn at start, then read-only: workers use it */
  td_dialect dialect;         /* of the model, from when it is loaded on; read-only then: workers use it */
  int32_t mark_ids[TD_MARKS]; /* special tokens of it */
  uint32_t n_mark_ids;
  td_metrics metrics;
  td_log_gate cuts, request_lines, refusal_lines, engine_errors;
  td_unknown_log unknown_log; /* fields of requests */

  td_conn *conns; /* all, doubly linked */
  uint32_t n_conns, max_conns;
  td_conn *ip_buckets[TD_IP_BUCKETS];
  td_conn *dirty;      /* those with unsent output */
  uint64_t body_bytes; /* of requests being received, over all connections */
  uint64_t held_bytes; /* of answers, over all connections and calls (held.h) */
  td_call *calls;      /* all */
  td_call *graveyard;  /* ended while updates are being read */
  bool polling;
  uint32_t n_calls;
  uint32_t n_reading; /* calls that workers have */
  uint32_t n_choices; /* of calls that the engine has */

  td_watcher *watchers; /* all, doubly linked */
  uint32_t n_watchers;

  bool draining, stopping;
  bool handing_over; /* draining, and the next process has the socket: what has come is still served */
  uint64_t drain_end_ms;
  uint64_t answers_until_ms; /* after a failure of the engine: no end before */
  bool drain_is_over;        /* drain_timeout_ms is: errors have a moment to leave */
  int exit_code;
  uint64_t ids; /* counter for made ids */
  char read_buffer[TD_READ_BUFFER_BYTES];
} td_server;

/* Runs until told to stop; returns the exit code of common/status.h. */
int td_server_run(td_options *options, int argc, char **argv);
/* SIGHUP: reads options and keys again; all of what may change changes, or nothing does. The log says it. */
void td_server_reload(td_server *s);
/* What options name beside themselves: keys and ranges of proxies, read and checked. On failure nothing is
 * held. */
TD_MUST_CHECK td_status td_server_read_named(const td_options *o, td_keys *keys, td_ranges *proxies,
                                             td_error *err);
/* For --check-config: options and the files of keys, no model, no device. Exit codes as above. */
int td_server_check_options(const td_options *options);
/* For --check: loads the model too, but measures nothing and serves nothing. */
int td_server_check(const td_options *options);
/* For --calibrate: measures, keeps and prints; serves nothing. */
int td_server_calibrate(const td_options *options);

/* The last call or connection has gone: a drain may be over. */
void td_server_idle(td_server *s);
/* What does not work: the engine does not step, clients do not get in, a worker does not come back; NULL: all
 * does. */
const char *td_server_trouble(const td_server *s);
/* Whether an engine in that state takes work; false: *e says why not (503). */
bool td_server_takes_work(td_engine_state state, td_api_error *e);
/* Of a 429: when a request with such a prompt would find room, as far as that is known. */
void td_server_set_retry_after(td_server *s, td_api_error *e, uint32_t n_prompt);
/* Whether clients may call the model so: its name, or one of its aliases. [any thread; the model is loaded]
 */
bool td_server_has_model(const td_server *s, const char *name);

#endif
