/* Closed streams: each sends its next request when the last one has ended. So there is no rate to find,
 * and a row shows the resulting throughput. With as many streams as requests all come together, which is
 * an offline load. */
#include <stdio.h>

#include "capacity/modes.h"
#include "capacity/report.h"

static td_status run_cell(const td_scenario *s, const td_cell *cell, cJSON *runs, td_error *err)
{
  td_replay_result r;
  td_replay_config c = s->replay;
  c.n_streams = cell->streams;
  c.n_warm = cell->n_warm;
  TD_TRY(td_replay(&cell->load, &c, &r, err));
  td_result_row(cell->name, r.m.requests_per_s, &r);
  td_result_notes(&r);
  if (runs)
    cJSON_AddItemToArray(runs, td_result_json(cell->name, 0, &c, &r));
  return TD_OK;
}

int td_capacity_run_streams(const td_scenario_options *o, const td_scenario *s, cJSON *json)
{
  td_error err;
  cJSON *runs = json ? cJSON_GetObjectItem(json, "runs") : NULL;
  printf("\n");
  td_capacity_print_slo(s);
  td_result_head(o->preset ? o->preset : "closed streams");
  for (size_t i = 0; i < s->n_closed; i++)
    if (run_cell(s, &s->closed[i], runs, &err) != TD_OK)
      return td_capacity_fail(&err);
  return 0;
}
