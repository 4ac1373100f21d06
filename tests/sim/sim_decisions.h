/* The parts of sim_decisions.c: each prints one kind of decision as text. */
#ifndef TD_TESTS_SIM_DECISIONS_H
#define TD_TESTS_SIM_DECISIONS_H

#include "common/buf.h"

/* Random worlds, one line each: hashes of the plans, of the scheduler's counters, and of its predictions. */
void sim_print_worlds(td_buf *out);
/* The length of steps, and their chunks: budgets of several cost models, one line each. */
void sim_print_lengths(td_buf *out);
/* Cost models fitted to noisy steps, made into stairs, guessed for other devices, learned from served steps.
 */
void sim_print_fits(td_buf *out);
void sim_print_guesses(td_buf *out);
/* Chances of answers' lengths. */
void sim_print_chances(td_buf *out);

#endif
