/* The event loop of the simulator: it runs a load against one daemon or several replicas, in simulated time.
 *
 * Events are arrivals and ends of steps, in order of time. At the same moment, an arrival goes before the
 * end of a step, and replicas go by number. So the same load gives the same run to the last bit. */
#ifndef TD_CAPACITY_REPLAY_H
#define TD_CAPACITY_REPLAY_H

#include "capacity/sim_daemon.h"

extern const double td_replay_stall_ms[2];

enum { TD_REPLAY_REPLICAS_MAX = 64 };

/* What a rate must keep to be held; infinite: no bound. */
typedef struct td_slo {
  double tbt_p99_ms, ttft_p99_ms;
  double queue_p50_ms; /* from arrival to the first step: a rate with an endless queue is not held, however
                        * short the TBT. Sarathi-Serve's criterion, 2 s */
} td_slo;

typedef struct td_replay_config {
  td_sim_daemon_config daemon;
  uint32_t n_replicas; /* each request goes to the replica with the fewest requests */
  double speed;        /* factor on the load's arrival rate */
  uint32_t n_streams;  /* closed: this many requests at a time, and the next is sent when one has ended; 0:
                        * open, by due_s */
  uint32_t n_warm; /* first requests of closed streams: they are not counted, and all end before the others
                    * are sent */
  double window_s; /* throughput counts tokens until then; 0: until the last end */
  double drain_s;  /* requests that are not done this long after window_s (or the last arrival) are cut; 0:
                    * none is */
  double front_us; /* from a request's due time until the scheduler has it: HTTP, parsing, tokenising */
  double host_us;  /* the device's wait for the host, for every step that was not planned ahead */
  td_slo slo;
  bool stop_when_missed; /* the run ends as soon as the SLO cannot be kept any more */
} td_replay_config;

typedef struct td_replay_result {
  td_measures m; /* sent: the whole load; 429: the queue was full; 4xx: longer than the context or the
                  * pool; good: first token in time, and at most 1 % of its TBTs too long */
  td_stats_summary queue_ms;
  double end_s;      /* of the run */
  double busy_share; /* of the devices' time until end_s */
  uint64_t n_steps, n_hybrid_steps;
  double mean_decode_rows, mean_step_ms;
  double kv_mean_share, kv_most_share, kv_cached_share; /* of all pages: owned (mean over busy time, most),
                                                         * cached (mean) */
  double prefix_hit_share;                              /* of prompt tokens */
  uint64_t n_preemptions, n_evicted_pages;
  bool held, stopped; /* stopped: the run ended early, and the figures cover the part that ran */
} td_replay_result;

TD_MUST_CHECK td_status td_replay(const td_load *load, const td_replay_config *config, td_replay_result *out,
                                  td_error *err);
/* The same, with the result of each request. The caller frees *results. */
TD_MUST_CHECK td_status td_replay_with_results(const td_load *load, const td_replay_config *config,
                                               td_replay_result *out, td_sim_result **results, td_error *err);

#endif
