/* A load against one daemon or several replicas of it, in simulated time: the event loop of the simulator.
 *
 * Events are arrivals and ends of steps, taken in order of time (an arrival before a step's end at the same
 * moment, replicas by number), so the same load gives the same run to the last bit. */
#ifndef TD_CAPACITY_REPLAY_H
#define TD_CAPACITY_REPLAY_H

#include "capacity/lane.h"

extern const double td_replay_stall_ms[2];

enum { TD_REPLAY_REPLICAS_MAX = 64 };

/* What a rate must keep to be held; infinite: not asked for. */
typedef struct td_slo {
  double tbt_p99_ms, ttft_p99_ms;
  double queue_p50_ms; /* from arrival to the first step: a queue that grows without end is not held, whatever
                        * the gaps. (Sarathi-Serve's criterion, 2 s) */
} td_slo;

typedef struct td_replay_config {
  td_lane_config lane;
  uint32_t n_replicas; /* each request goes to the one with the fewest requests in it */
  double speed;        /* arrivals come so much faster than the load says */
  uint32_t n_streams;  /* closed: so many requests at a time, the next is sent when one has ended; 0: open, by
                        * due_s */
  uint32_t
      n_warm; /* first requests of closed streams: not counted, and all ended before the others are sent */
  double window_s; /* throughput counts what came until then; 0: until the last end */
  double drain_s;  /* what is not done so long after window_s (or the last arrival) is cut; 0: all is waited
                      for */
  double front_us; /* from a request's due moment until the scheduler has it: HTTP, parsing, tokenising */
  double host_us;  /* of every step that was not planned ahead: what the device waits for the host */
  td_slo slo;
  bool stop_when_missed; /* ends as soon as the SLO cannot be kept any more */
} td_replay_config;

typedef struct td_replay_result {
  td_measures m; /* sent: the whole load; 429: the queue was full; 4xx: longer than the context or the pool;
                  * good: first token in time, at most 1 % of its gaps too long */
  td_stats_summary queue_ms;
  double end_s;      /* of the run */
  double busy_share; /* of the devices' time until end_s */
  uint64_t n_steps, n_hybrid_steps;
  double mean_decode_rows, mean_step_ms;
  double kv_mean_share, kv_most_share, kv_cached_share; /* owned (mean over busy time, most), cached */
  double prefix_hit_share;                              /* of prompt tokens */
  uint64_t n_preemptions, n_evicted_pages;
  bool held, stopped; /* stopped: ended early, figures are of the part that ran */
} td_replay_result;

TD_MUST_CHECK td_status td_replay(const td_load *load, const td_replay_config *config, td_replay_result *out,
                                  td_error *err);
/* The same, and what became of each request: *lives is the caller's to free. */
TD_MUST_CHECK td_status td_replay_lives(const td_load *load, const td_replay_config *config,
                                        td_replay_result *out, td_life **lives, td_error *err);

#endif
