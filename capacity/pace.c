/* See pace.h. */
#include "capacity/pace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "loadgen/tool.h"

enum { FIELDS = 3 };

static td_status add_point(td_pace *p, const double v[FIELDS], size_t cap[2], td_error *err)
{
  if (!(v[0] >= 0))
    return td_fail(err, TD_ERR_CONFIG, "the seconds are below 0");
  if (v[1] != 0 && v[1] != 1)
    return td_fail(err, TD_ERR_CONFIG, "the kind is neither 0 nor 1");
  if (!(v[2] > 0))
    return td_fail(err, TD_ERR_CONFIG, "the factor is not above 0");
  int kind = (int)v[1];
  size_t n = p->n_points[kind];
  if (n > 0 && p->points[kind][n - 1].at_us > v[0] * 1e6)
    return td_fail(err, TD_ERR_CONFIG, "the seconds go back");
  td_tool_grow((void **)&p->points[kind], &cap[kind], n + 1, sizeof(td_pace_point));
  p->points[kind][p->n_points[kind]++] = (td_pace_point){v[0] * 1e6, v[2]};
  return TD_OK;
}

static td_status add_given(td_pace *p, double us, size_t *cap, td_error *err)
{
  if (!(us >= 0))
    return td_fail(err, TD_ERR_CONFIG, "the microseconds are below 0");
  td_tool_grow((void **)&p->given_us, cap, p->n_given + 1, sizeof *p->given_us);
  p->given_us[p->n_given++] = us;
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

static td_status read_lines(const char *path, td_pace *p, bool given, td_error *err)
{
  FILE *f = fopen(path, "re");
  if (!f)
    return td_fail(err, TD_ERR_IO, "%s: %m", path);
  char *line = NULL;
  size_t line_cap = 0, cap[2] = {0};
  td_status st = TD_OK;
  for (unsigned long i = 1; st == TD_OK && getline(&line, &line_cap, f) > 0; i++) {
    double v[FIELDS];
    if (!read_numbers(line, v, given ? 1 : FIELDS))
      st = td_fail(err, TD_ERR_CONFIG,
                   given ? "not a number of microseconds" : "not three numbers: seconds, kind, factor");
    else
      st = given ? add_given(p, v[0], cap, err) : add_point(p, v, cap, err);
    if (st != TD_OK)
      st = td_error_prefix(err, "%s:%lu", path, i);
  }
  free(line);
  fclose(f);
  return st;
}

td_status td_pace_read(const char *path, td_pace *out, td_error *err)
{
  return read_lines(path, out, false, err);
}

td_status td_pace_read_given(const char *path, td_pace *out, td_error *err)
{
  return read_lines(path, out, true, err);
}

void td_pace_deinit(td_pace *p)
{
  free(p->points[0]);
  free(p->points[1]);
  free(p->given_us);
  *p = (td_pace){0};
}

double td_pace_at(const td_pace *p, double at_us, bool with_prompts)
{
  const td_pace_point *points = p->points[with_prompts];
  size_t low = 0, high = p->n_points[with_prompts];
  if (high == 0)
    return 1;
  while (high - low > 1) { /* finds the last point at or before at_us, or the first */
    size_t middle = low + (high - low) / 2;
    if (points[middle].at_us <= at_us)
      low = middle;
    else
      high = middle;
  }
  bool next =
      low + 1 < p->n_points[with_prompts] && points[low + 1].at_us - at_us < at_us - points[low].at_us;
  return points[low + next].factor;
}
