/* See log_histogram.h. A bucket is the exponent and the first ten bits of the mantissa of a double, so
 * buckets are in the order of their values. */
#include "capacity/log_histogram.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "loadgen/tool.h"

enum { MANTISSA_BITS = 10, LOW_EXPONENT = -20, HIGH_EXPONENT = 40 };
enum { N_BUCKETS = (HIGH_EXPONENT - LOW_EXPONENT) << MANTISSA_BITS };

static uint64_t bits_of(double v)
{
  uint64_t bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}

static uint32_t bucket_of(double v)
{
  const uint64_t first = (uint64_t)(1023 + LOW_EXPONENT) << MANTISSA_BITS;
  uint64_t at = bits_of(v) >> (52 - MANTISSA_BITS);
  if (!(v > 0) || at < first)
    return 0;
  return at - first < N_BUCKETS ? (uint32_t)(at - first) : N_BUCKETS - 1;
}

/* The value in the middle of a bucket. */
static double value_of(uint32_t bucket)
{
  const uint64_t first = (uint64_t)(1023 + LOW_EXPONENT) << MANTISSA_BITS;
  uint64_t bits = (first + bucket) << (52 - MANTISSA_BITS) | (uint64_t)1 << (51 - MANTISSA_BITS);
  double v;
  memcpy(&v, &bits, sizeof v);
  return v;
}

void td_log_histogram_deinit(td_log_histogram *s)
{
  free(s->counts);
  *s = (td_log_histogram){0};
}

void td_log_histogram_add(td_log_histogram *s, double v, uint64_t n)
{
  if (n == 0)
    return;
  if (!s->counts)
    s->counts = td_tool_alloc(N_BUCKETS, sizeof *s->counts);
  if (s->n == 0 || v < s->min)
    s->min = v;
  if (s->n == 0 || v > s->max)
    s->max = v;
  s->n += n;
  s->sum += v * (double)n;
  s->counts[bucket_of(v)] += n;
}

/* The value at that rank, counted from 0. */
static double at_rank(const td_log_histogram *s, uint64_t rank)
{
  uint64_t seen = 0;
  uint32_t i = 0;
  if (rank == 0 || rank >= s->n - 1)
    return rank == 0 ? s->min : s->max;
  while (i + 1 < N_BUCKETS && (seen += s->counts[i]) <= rank)
    i++;
  return fmin(fmax(value_of(i), s->min), s->max);
}

double td_log_histogram_quantile(const td_log_histogram *s, double q)
{
  if (s->n == 0)
    return NAN;
  double at = q * (double)(s->n - 1);
  uint64_t rank = (uint64_t)at;
  double low = at_rank(s, rank), part = at - (double)rank;
  return part > 0 ? low + part * (at_rank(s, rank + 1) - low) : low;
}

td_stats_summary td_log_histogram_summary(const td_log_histogram *s)
{
  return (td_stats_summary){.n = s->n,
                            .mean = s->n > 0 ? s->sum / (double)s->n : NAN,
                            .min = s->n > 0 ? s->min : NAN,
                            .p50 = td_log_histogram_quantile(s, 0.5),
                            .p90 = td_log_histogram_quantile(s, 0.9),
                            .p99 = td_log_histogram_quantile(s, 0.99),
                            .max = s->n > 0 ? s->max : NAN};
}
