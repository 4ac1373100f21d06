/* See stats.h. */
#include "loadgen/stats.h"

#include <math.h>
#include <stdlib.h>

#include "loadgen/tool.h"

void td_stats_add(td_stats_list *l, double v)
{
  td_tool_grow((void **)&l->v, &l->cap, l->n + 1, sizeof *l->v);
  l->v[l->n++] = v;
}

void td_stats_deinit(td_stats_list *l)
{
  free(l->v);
  *l = (td_stats_list){0};
}

static int compare(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* sorted: ascending. q in [0, 1]. Returns NaN if n is 0. */
static double percentile(const double *sorted, size_t n, double q)
{
  if (n == 0)
    return NAN;
  double at = q * (double)(n - 1);
  size_t low = (size_t)at;
  if (low + 1 >= n)
    return sorted[n - 1];
  return sorted[low] + (at - (double)low) * (sorted[low + 1] - sorted[low]);
}

td_stats_summary td_stats_summarise(td_stats_list *l)
{
  td_stats_summary s = {l->n, NAN, NAN, NAN, NAN, NAN, NAN};
  if (l->n == 0)
    return s;
  qsort(l->v, l->n, sizeof *l->v, compare);
  double sum = 0;
  for (size_t i = 0; i < l->n; i++)
    sum += l->v[i];
  s.mean = sum / (double)l->n;
  s.min = l->v[0];
  s.p50 = percentile(l->v, l->n, 0.5);
  s.p90 = percentile(l->v, l->n, 0.9);
  s.p99 = percentile(l->v, l->n, 0.99);
  s.max = l->v[l->n - 1];
  return s;
}

double td_stats_median(double *v, size_t n)
{
  qsort(v, n, sizeof *v, compare);
  return percentile(v, n, 0.5);
}

/* ---- as JSON ---- */

void td_stats_add_number(cJSON *o, const char *key, double v)
{
  if (isfinite(v))
    cJSON_AddNumberToObject(o, key, round(v * 1e4) / 1e4);
  else
    cJSON_AddNullToObject(o, key);
}

void td_stats_add_summary(cJSON *o, const char *key, const td_stats_summary *s)
{
  cJSON *v = cJSON_AddObjectToObject(o, key);
  td_stats_add_number(v, "n", (double)s->n);
  td_stats_add_number(v, "mean", s->mean);
  td_stats_add_number(v, "min", s->min);
  td_stats_add_number(v, "p50", s->p50);
  td_stats_add_number(v, "p90", s->p90);
  td_stats_add_number(v, "p99", s->p99);
  td_stats_add_number(v, "max", s->max);
}
