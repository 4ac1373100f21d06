/* The server: one loop thread owns every connection and call. The files of server/ share this header.
 *
 *   listener -> conn (HTTP) -> router -> call (one API request) -> worker: read, render, tokenise
 *                                |         |                          |
 *                                |         +--- generation <----------+   submit to the engine, text back
 *                                +-> watch: the engine's steps, live
 *
 * Everything here runs on the loop thread, except a call's `run`: while it runs, the worker alone owns the
 * call. */
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
  int argc; /* the command line, read again on SIGHUP */
  char **argv;
  bool reload_pending; /* SIGHUP arrived while the model was loading */
  td_engine *engine;
  td_engine_state engine_state; /* as last seen by the loop */
  uv_loop_t loop;
  uv_async_t engine_wake;
  uv_prepare_t flush;     /* sends the output of this turn of the loop */
  uv_timer_t sweep;       /* checks deadlines, always running */
  uv_timer_t watchdog;    /* pings systemd's watchdog */
  uv_timer_t watch_timer; /* runs while there are watchers */
  uv_signal_t signals[3];
  td_workers *workers;
  td_kv_events *kv_events; /* NULL: KV events are not published */
  td_listener *listener;
  td_keys keys;
  uint32_t n_keys_at_start;  /* not changed by a reload: the scheduler's places depend on it */
  td_ranges trusted_proxies; /* connections_per_ip does not apply to them */
  td_tenants tenants;
  td_namespace_secret namespace_secret; /* random, drawn at start; read-only afterwards, workers use it */
  td_dialect dialect;         /* the model's; set when it is loaded, read-only afterwards, workers use it */
  int32_t mark_ids[TD_MARKS]; /* the dialect's special tokens */
  uint32_t n_mark_ids;
  td_metrics metrics;
  td_log_gate cuts, request_lines, refusal_lines, engine_errors;
  td_unknown_log unknown_log; /* ignored request fields that were logged */

  td_conn *conns; /* all, doubly linked */
  uint32_t n_conns, max_conns;
  td_conn *ip_buckets[TD_IP_BUCKETS];
  td_conn *dirty;               /* connections with unsent output */
  uint64_t body_bytes;          /* request bodies, of all connections and of calls that workers have */
  uint64_t answer_memory_bytes; /* memory of answers, over all connections and calls (answer_memory.h) */
  td_call *calls;               /* all */
  td_call *ended_during_poll;   /* calls that ended during a poll, freed after it */
  bool polling;                 /* engine updates are being read */
  uint32_t n_calls;
  uint32_t n_reading; /* calls that workers are preparing */
  uint32_t n_choices; /* choices of calls that were submitted to the engine */

  td_watcher *watchers; /* all, doubly linked */
  uint32_t n_watchers;

  bool draining, stopping;
  bool handing_over; /* draining; the next process accepts new clients, we serve those that have connected */
  uint64_t drain_end_ms;
  uint64_t answers_until_ms; /* after an engine failure the process runs at least until then */
  bool drain_timed_out;      /* drain_timeout_ms has passed: only error answers are still being sent */
  int exit_code;
  uint64_t last_request_id; /* number in the last request id that we generated */
  char read_buffer[TD_READ_BUFFER_BYTES];
} td_server;

/* Runs until told to stop; returns the exit code of common/status.h. */
int td_server_run(td_options *options, int argc, char **argv);
/* SIGHUP: reads options and keys again and applies all changes, or none if anything is wrong. Logs which. */
void td_server_reload(td_server *s);
/* Reads and checks what options refer to: the key file and the ranges of trusted proxies. On failure the
 * caller owns nothing. */
TD_MUST_CHECK td_status td_server_read_keys_and_proxies(const td_options *o, td_keys *keys,
                                                        td_ranges *proxies, td_error *err);
/* For --check-config: checks options and the key file, without model or device. Exit codes as above. */
int td_server_check_options(const td_options *options);
/* For --check: loads the model too, but measures nothing and serves nothing. */
int td_server_check(const td_options *options);
/* For --calibrate: measures step times, stores and prints them; serves nothing. */
int td_server_calibrate(const td_options *options);

/* Call when a call or connection has ended: stops the server if that was the last one a drain waits for. */
void td_server_stop_if_drained(td_server *s);
/* Says why the daemon is unhealthy: the engine does not step, clients are not accepted, or a worker is stuck.
 * NULL: healthy. Static text. */
const char *td_server_unhealthy_reason(const td_server *s);
/* Whether an engine in that state accepts requests. On false, *e is the 503. */
bool td_server_accepts_requests(td_engine_state state, td_api_error *e);
/* Sets Retry-After of a 429 to when a prompt of n_prompt tokens should find room, if that is known. */
void td_server_set_retry_after(td_server *s, td_api_error *e, uint32_t n_prompt);
/* Whether name is the model's name or one of its aliases. [any thread, once the model is loaded] */
bool td_server_has_model(const td_server *s, const char *name);

#endif
