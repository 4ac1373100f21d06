/* A cost model as text, so that a calibration can be kept on disk, read by people and given to tandem-plan.
 *
 * cost_text.c describes the format. td_cost_parse accepts any bytes as input and refuses all that is not
 * wholly valid, down to the last digit. The checksum finds damage, not malice. A hostile file can at worst
 * make steps of the wrong size, within step_tokens. Pure: the caller reads and writes files. */
#ifndef TD_SCHEDULER_COST_TEXT_H
#define TD_SCHEDULER_COST_TEXT_H

#include "common/buf.h"
#include "common/status.h"
#include "scheduler/cost_model.h"

enum { TD_COST_IDENTITY_BYTES = 1024, TD_COST_TEXT_BYTES = 16384 };

/* Whether a learned factor is within the bounds of limits.def. */
bool td_cost_is_learnable(double factor);
/* Whether the planner can rely on the model: tokens ascend, and all times are finite, not negative and
 * within bounds. */
bool td_cost_is_valid(const td_cost_model *m);

/* identity: the device and model that were measured, one printable line. */
void td_cost_print(const td_cost_model *m, const char *identity, td_buf *out);
/* identity receives the file's. TD_ERR_CONFIG: damaged, of another version, or not a valid model; *m is
 * then unchanged. */
TD_MUST_CHECK td_status td_cost_parse(const char *text, size_t n_bytes, td_cost_model *m,
                                      char identity[TD_COST_IDENTITY_BYTES], td_error *err);

#endif
