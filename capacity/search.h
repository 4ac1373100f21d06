/* The highest rate that a daemon holds, by bisection over runs of one and the same load at different speeds.
 */
#ifndef TD_CAPACITY_SEARCH_H
#define TD_CAPACITY_SEARCH_H

#include "capacity/replay.h"

/* A load with the rate at which it was made: a run at rate R is the load at speed R / rate. */
typedef struct td_source {
  td_load load;
  double rate; /* requests/s */
} td_source;

/* The run of that rate: its speed, and what throughput is counted over. */
void td_source_set_rate(const td_source *s, double rate, td_replay_config *c);

/* Requests per second of the whole load: n - 1 gaps between the first and the last. */
double td_source_rate(const td_load *load);

typedef struct td_search_result {
  double rate;         /* 0: not even a single request at a time keeps the SLO; or all_at_once */
  td_replay_result at; /* a whole run at that rate */
  td_replay_result
      lowest; /* if no rate is held: the run at the lowest that was tried, with nobody waiting for another */
  bool all_at_once; /* the load is so short that all of it at once is held: it says nothing of a rate */
} td_search_result;

/* To within `tolerance` (0.01: 1 %) below the rate that is missed. c->speed is set by the search. That a rate
 * is held if a higher one is, is assumed, not proven: with few requests, one long prompt in a bad place can
 * make an island. */
TD_MUST_CHECK td_status td_search(const td_source *s, const td_replay_config *c, double tolerance,
                                  td_search_result *out, td_error *err);

#endif
