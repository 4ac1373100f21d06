/* Traces in Mooncake's format (see load.h). An invalid line is an error that names it, because a part of a
 * trace would be another load. */
#include "loadgen/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "kernels/dummy.h"

enum { TOKENS_MAX = 16777216, LINE_NODES = 1 << 20, PRIVATE_SEED = 0x70726976 };

static td_status take_blocks(td_load *l, const cJSON *ids, uint32_t n_in, uint64_t index, td_error *err)
{
  const cJSON *id;
  uint32_t left = n_in, n_ids = 0;
  cJSON_ArrayForEach(id, ids)
  {
    if (!cJSON_IsNumber(id))
      return td_fail_param(err, TD_ERR_CONFIG, "hash_ids", "'hash_ids'[%u] is no number", n_ids);
    if (left == 0)
      return td_fail_param(err, TD_ERR_CONFIG, "hash_ids",
                           "more 'hash_ids' than 'input_length' has blocks of %d tokens",
                           TD_LOAD_TRACE_BLOCK);
    n_ids++;
    uint32_t n = left < TD_LOAD_TRACE_BLOCK ? left : TD_LOAD_TRACE_BLOCK;
    td_load_add_segment(l, (uint64_t)(int64_t)id->valuedouble, n);
    left -= n;
  }
  if (left > 0) /* the rest is this request's own */
    td_load_add_segment(l, td_dummy_hash(PRIVATE_SEED, index), left);
  return TD_OK;
}

static td_status read_line(td_load *l, const char *line, size_t n, uint64_t index, double speed,
                           td_error *err)
{
  const td_json_limits limits = {.max_depth = 8, .max_nodes = LINE_NODES, .error = TD_ERR_CONFIG};
  cJSON *o = NULL;
  double at_ms = 0;
  int64_t n_in = 0, n_out = 0;
  bool has[3];
  TD_TRY(td_json_parse(line, n, &limits, &o, err));
  td_status st = td_json_get_double(o, "timestamp", 0, 1e12, &at_ms, &has[0], err);
  if (st == TD_OK)
    st = td_json_get_int64(o, "input_length", 1, TOKENS_MAX, &n_in, &has[1], err);
  if (st == TD_OK)
    st = td_json_get_int64(o, "output_length", 1, TOKENS_MAX, &n_out, &has[2], err);
  static const char *const needed[3] = {"timestamp", "input_length", "output_length"};
  for (int i = 0; i < 3 && st == TD_OK; i++)
    if (!has[i])
      st = td_fail_param(err, TD_ERR_CONFIG, needed[i], "'%s' is missing", needed[i]);
  const cJSON *ids = td_json_get(o, "hash_ids");
  if (st == TD_OK && ids && !cJSON_IsArray(ids) && !cJSON_IsNull(ids))
    st = td_fail_param(err, TD_ERR_CONFIG, "hash_ids", "'hash_ids' is no array");
  if (st == TD_OK) {
    td_load_add_request(l, at_ms / 1e3 / speed, (uint32_t)n_out);
    st = take_blocks(l, cJSON_IsArray(ids) ? ids : NULL, (uint32_t)n_in, index, err);
  }
  cJSON_Delete(o);
  return st;
}

static int by_due(const void *a, const void *b)
{
  const td_load_request *x = a, *y = b;
  return x->due_s != y->due_s ? (x->due_s > y->due_s) - (x->due_s < y->due_s)
                              : (x->first_segment > y->first_segment) - (x->first_segment < y->first_segment);
}

static td_status read_lines(td_load *l, FILE *f, const char *path, double speed, size_t max_requests,
                            td_error *err)
{
  char *line = NULL;
  size_t cap = 0;
  ssize_t n;
  td_status st = TD_OK;
  for (uint64_t i = 1;
       st == TD_OK && (max_requests == 0 || l->n < max_requests) && (n = getline(&line, &cap, f)) > 0; i++) {
    while (n > 0 && strchr(" \t\r\n", line[n - 1]))
      n--;
    if (n == 0)
      continue;
    st = read_line(l, line, (size_t)n, i, speed, err);
    if (st != TD_OK)
      td_error_prefix(err, "%s:%llu", path, (unsigned long long)i);
  }
  if (st == TD_OK && ferror(f))
    st = td_fail(err, TD_ERR_IO, "%s: %m", path);
  if (st == TD_OK && l->n == 0)
    st = td_fail(err, TD_ERR_CONFIG, "%s: no requests", path);
  free(line);
  return st;
}

td_status td_load_read_trace(td_load *l, const char *path, double speed, size_t max_requests, td_error *err)
{
  FILE *f = fopen(path, "re");
  if (!f)
    return td_fail(err, TD_ERR_IO, "%s: %m", path);
  td_status st = read_lines(l, f, path, speed, max_requests, err);
  fclose(f);
  TD_TRY(st);
  qsort(l->requests, l->n, sizeof *l->requests, by_due);
  double begin_s = l->requests[0].due_s; /* a part of a longer trace begins at time 0 */
  for (size_t i = 0; i < l->n; i++)
    l->requests[i].due_s -= begin_s;
  return TD_OK;
}
