/* Results as lines of a table, and as JSON. The JSON has the form that `tandem-bench serve --json` writes,
 * so that scripts/bench_report.py draws predicted and measured curves into one picture. */
#ifndef TD_CAPACITY_REPORT_H
#define TD_CAPACITY_REPORT_H

#include <cjson/cJSON.h>

#include "capacity/replay.h"

/* A head line; a row: first the columns that a benchmark has too, then those that only the simulator
 * knows. */
void td_result_head(const char *first_column);
void td_result_row(const char *name, double rate, const td_replay_result *r);
/* Prints what the row's figures leave out, if anything. */
void td_result_notes(const td_replay_result *r);

cJSON *td_result_json(const char *name, double rate, const td_replay_config *c, const td_replay_result *r);

#endif
