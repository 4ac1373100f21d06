/* A load against one daemon or several replicas of it, in simulated time: the event loop of the simulator.
 *
 * Events are arrivals and ends of steps, taken in order of time (an arrival before a step's end at the same
 * moment, replicas by number), so the same load gives the same run to the last bit. */
#ifndef TD_CAPACITY_REPLAY_H
#define TD_CAPACITY_REPLAY_H

#include "capacity/lane.h"

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
  double window_s;     /* throughput counts what came until then; 0: until the last end */
  double drain_s;  /* what is not done so long after window_s (or the last arrival) is cut; 0: all is waited
                      for */
  double front_us; /* from a request's due moment until the scheduler has it: HTTP, parsing, tokenising */
  double host_us;  /* of every step that was not planned ahead: what the device waits for the host */
  td_slo slo;
  bool stop_when_missed; /* ends as soon as the SLO cannot be kept any more */
} td_replay_config;

typedef struct td_replay_result {
  size_t n_requests, n_done, n_queue_full, n_too_large, n_unfinished, n_no_first;
  td_stats_summary ttft_ms, tbt_ms, tpot_ms, e2e_ms, queue_ms;
  size_t n_stalled[2];   /* requests with a gap over 200, 500 ms */
  size_t n_good;         /* done, first token in time, at most 1 % of its gaps too long */
  double end_s, seconds; /* of the run; what throughput is divided by */
  uint64_t tokens_in, tokens_out;
  double requests_per_s, tokens_out_per_s, tokens_in_and_out_per_s;
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
