/* Summaries of samples. Percentiles interpolate linearly between ranks like NumPy's default, so that they
 * can be compared with figures of other tools. */
#ifndef TD_LOADGEN_STATS_H
#define TD_LOADGEN_STATS_H

#include <cjson/cJSON.h>
#include <stddef.h>

typedef struct td_stats_list {
  double *v;
  size_t n, cap;
} td_stats_list;

typedef struct td_stats_summary {
  size_t n;
  double mean, min, p50, p90, p99, max; /* NaN if n is 0 */
} td_stats_summary;

void td_stats_add(td_stats_list *l, double v);
void td_stats_deinit(td_stats_list *l);
/* Sorts the list. */
td_stats_summary td_stats_summarise(td_stats_list *l);
double td_stats_median(double *v, size_t n); /* sorts v */

/* Add a number with four decimals (null if it is not finite), and a summary as an object of such numbers. */
void td_stats_add_number(cJSON *o, const char *key, double v);
void td_stats_add_summary(cJSON *o, const char *key, const td_stats_summary *s);

#endif
