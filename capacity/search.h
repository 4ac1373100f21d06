/* Finds the highest rate that a daemon holds, by bisection over runs of one load at different speeds. */
#ifndef TD_CAPACITY_SEARCH_H
#define TD_CAPACITY_SEARCH_H

#include "capacity/replay.h"

/* A load and the rate at which it was made. A run at rate R is the load at speed R / rate. */
typedef struct td_source {
  td_load load;
  double rate; /* requests/s */
} td_source;

/* Sets the speed and window_s for a run at that rate. */
void td_source_set_rate(const td_source *s, double rate, td_replay_config *c);

/* Requests per second of the whole load: n - 1 intervals between the first and the last arrival. */
double td_source_rate(const td_load *load);

typedef struct td_search_result {
  double rate;             /* 0: not even one request at a time keeps the SLO; or all_at_once */
  td_replay_result at;     /* a whole run at that rate */
  td_replay_result lowest; /* if no rate is held: the run at the lowest rate that was tried, where no request
                            * waits for another */
  bool all_at_once; /* the load is so short that it is held even if all requests come together: it shows no
                     * rate */
} td_search_result;

/* The rate found is within `tolerance` (0.01: 1 %) below a rate that is missed. The search ignores
 * c->speed. It assumes that a rate is held if a higher one is. This is not proven: with few requests, one
 * long prompt in a bad place can break it. */
TD_MUST_CHECK td_status td_search(const td_source *s, const td_replay_config *c, double tolerance,
                                  td_search_result *out, td_error *err);

#endif
