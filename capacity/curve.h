/* The modes of tandem-plan: the highest rate and the curves (curve.c), closed streams (closed.c),
 * comparison of policies (compare.c). Each prints its results and returns an exit code. */
#ifndef TD_CAPACITY_CURVE_H
#define TD_CAPACITY_CURVE_H

#include <cjson/cJSON.h>

#include "capacity/scene.h"

/* Prints the message. Returns the exit code: 64 for wrong options or input, otherwise 1. */
int td_plan_failed(const td_error *err);

void td_plan_print_slo(const td_scene *s);
int td_plan_curve(const td_scene_options *o, const td_scene *s, cJSON *runs);
int td_plan_closed(const td_scene_options *o, const td_scene *s, cJSON *runs);
int td_plan_compare(const td_scene_options *o, const td_scene *s, cJSON *runs);

#endif
