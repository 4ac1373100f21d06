/* The modes of tandem-plan: the highest rate and the curves (curve.c), closed streams (closed.c),
 * comparison of policies (compare.c). Each prints its results and returns an exit code. */
#ifndef TD_CAPACITY_MODES_H
#define TD_CAPACITY_MODES_H

#include <cjson/cJSON.h>

#include "capacity/scenario.h"

/* Prints the message. Returns the exit code: 64 for wrong options or input, otherwise 1. */
int td_capacity_fail(const td_error *err);

void td_capacity_print_slo(const td_scenario *s);
int td_capacity_run_curve(const td_scenario_options *o, const td_scenario *s, cJSON *runs);
int td_capacity_run_streams(const td_scenario_options *o, const td_scenario *s, cJSON *runs);
int td_capacity_run_comparison(const td_scenario_options *o, const td_scenario *s, cJSON *runs);

#endif
