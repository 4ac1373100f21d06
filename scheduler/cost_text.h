/* A cost model as text, so that a calibration can be kept on disk, read by people and given to tandem-plan.
 *
 * The format is in cost_text.c. Reading takes any bytes: what is not wholly valid, down to the last digit, is
 * refused. The checksum finds damage, not malice; a hostile file can at worst make steps of the wrong size,
 * within step_tokens. Pure: files are the caller's. */
#ifndef TD_SCHEDULER_COST_TEXT_H
#define TD_SCHEDULER_COST_TEXT_H

#include "common/buf.h"
#include "common/status.h"
#include "scheduler/cost_model.h"

enum { TD_COST_IDENTITY_BYTES = 1024, TD_COST_TEXT_BYTES = 16384 };

/* A factor that may be kept and believed (limits.def). */
bool td_cost_is_learnable(double factor);
/* Ascending tokens, everything positive, finite and within sane bounds: what the planner relies
 * on. */
bool td_cost_is_valid(const td_cost_model *m);

/* identity: what it was measured on, one printable line. */
void td_cost_print(const td_cost_model *m, const char *identity, td_buf *out);
/* TD_ERR_CONFIG: damaged, of another version, or not a valid model; *m is untouched then. identity receives
 * the file's. */
TD_MUST_CHECK td_status td_cost_parse(const char *text, size_t n_bytes, td_cost_model *m,
                                      char identity[TD_COST_IDENTITY_BYTES], td_error *err);

#endif
