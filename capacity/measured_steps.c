/* See measured_steps.h. */
#include "capacity/measured_steps.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "loadgen/tool.h"

enum { FIELDS = 3 };

static td_status add_slowdown(td_measured_steps *p, const double v[FIELDS], size_t cap[2], td_error *err)
{
  if (!(v[0] >= 0))
    return td_fail(err, TD_ERR_CONFIG, "the seconds are below 0");
  if (v[1] != 0 && v[1] != 1)
    return td_fail(err, TD_ERR_CONFIG, "the kind is neither 0 nor 1");
  if (!(v[2] > 0))
    return td_fail(err, TD_ERR_CONFIG, "the factor is not above 0");
  int kind = (int)v[1];
  size_t n = p->n_slowdowns[kind];
  if (n > 0 && p->slowdowns[kind][n - 1].at_us > v[0] * 1e6)
    return td_fail(err, TD_ERR_CONFIG, "the seconds go back");
  td_tool_grow((void **)&p->slowdowns[kind], &cap[kind], n + 1, sizeof(td_slowdown));
  p->slowdowns[kind][p->n_slowdowns[kind]++] = (td_slowdown){v[0] * 1e6, v[2]};
  return TD_OK;
}

static td_status add_time(td_measured_steps *p, double us, size_t *cap, td_error *err)
{
  if (!(us >= 0))
    return td_fail(err, TD_ERR_CONFIG, "the microseconds are below 0");
  td_tool_grow((void **)&p->times_us, cap, p->n_times + 1, sizeof *p->times_us);
  p->times_us[p->n_times++] = us;
  return TD_OK;
}

/* Reads n numbers. Returns false if the line has anything else. */
static bool read_numbers(const char *line, double *v, int n)
{
  char *end = NULL;
  for (int i = 0; i < n; i++, line = end) {
    v[i] = strtod(line, &end);
    if (end == line || !isfinite(v[i]))
      return false;
  }
  while (*end == ' ' || *end == '\t' || *end == '\n' || *end == '\r')
    end++;
  return *end == '\0';
}

static td_status read_lines(const char *path, td_measured_steps *p, bool times, td_error *err)
{
  FILE *f = fopen(path, "re");
  if (!f)
    return td_fail(err, TD_ERR_IO, "%s: %m", path);
  char *line = NULL;
  size_t line_cap = 0, cap[2] = {0};
  td_status st = TD_OK;
  for (unsigned long i = 1; st == TD_OK && getline(&line, &line_cap, f) > 0; i++) {
    double v[FIELDS];
    if (!read_numbers(line, v, times ? 1 : FIELDS))
      st = td_fail(err, TD_ERR_CONFIG,
                   times ? "not a number of microseconds" : "not three numbers: seconds, kind, factor");
    else
      st = times ? add_time(p, v[0], cap, err) : add_slowdown(p, v, cap, err);
    if (st != TD_OK)
      st = td_error_prefix(err, "%s:%lu", path, i);
  }
  free(line);
  fclose(f);
  return st;
}

td_status td_measured_steps_read_slowdowns(const char *path, td_measured_steps *out, td_error *err)
{
  return read_lines(path, out, false, err);
}

td_status td_measured_steps_read_times(const char *path, td_measured_steps *out, td_error *err)
{
  return read_lines(path, out, true, err);
}

void td_measured_steps_deinit(td_measured_steps *p)
{
  free(p->slowdowns[0]);
  free(p->slowdowns[1]);
  free(p->times_us);
  *p = (td_measured_steps){0};
}

double td_measured_steps_slowdown_at(const td_measured_steps *p, double at_us, bool with_prompts)
{
  const td_slowdown *slowdowns = p->slowdowns[with_prompts];
  size_t low = 0, high = p->n_slowdowns[with_prompts];
  if (high == 0)
    return 1;
  while (high - low > 1) { /* finds the last point at or before at_us, or the first */
    size_t middle = low + (high - low) / 2;
    if (slowdowns[middle].at_us <= at_us)
      low = middle;
    else
      high = middle;
  }
  bool next = low + 1 < p->n_slowdowns[with_prompts] &&
              slowdowns[low + 1].at_us - at_us < at_us - slowdowns[low].at_us;
  return slowdowns[low + next].factor;
}
