/* The modes of tandem-plan: the highest rate and the curves (curve.c), closed
 * streams (closed.c), policies beside each other (compare.c). Each prints and returns an exit code. */
#ifndef TD_CAPACITY_CURVE_H
#define TD_CAPACITY_CURVE_H

#include <cjson/cJSON.h>

#include "capacity/scene.h"

/* Prints the message as the program's last words. 64 for what the caller said wrong, else 1. */
int td_plan_failed(const td_error *err);

void td_plan_print_slo(const td_scene *s);
int td_plan_curve(const td_scene_options *o, const td_scene *s, cJSON *runs);
int td_plan_closed(const td_scene_options *o, const td_scene *s, cJSON *runs);
int td_plan_compare(const td_scene_options *o, const td_scene *s, cJSON *runs);

#endif
