/* A histogram of values, in buckets of 1/1024 of a value's size. Hundreds of millions of values take half
 * a megabyte, and percentiles are accurate to 0.1 %. Least, greatest and mean are exact. */
#ifndef TD_CAPACITY_LOG_HISTOGRAM_H
#define TD_CAPACITY_LOG_HISTOGRAM_H

#include <stdint.h>

#include "loadgen/stats.h"

typedef struct td_log_histogram {
  uint64_t *counts; /* allocated at the first value */
  uint64_t n;
  double sum, min, max;
} td_log_histogram;

void td_log_histogram_deinit(td_log_histogram *s);
/* Adds v n times; v >= 0. Values below 1e-6 or above 1e12 count in the outermost buckets. */
void td_log_histogram_add(td_log_histogram *s, double v, uint64_t n);
/* The value at rank q (n - 1), q in [0, 1], interpolated linearly between ranks like td_stats_summarise;
 * NaN if there is no value. */
double td_log_histogram_quantile(const td_log_histogram *s, double q);
td_stats_summary td_log_histogram_summary(const td_log_histogram *s);

#endif
