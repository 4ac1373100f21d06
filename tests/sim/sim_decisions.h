/* The parts of sim_decisions.c: each prints one kind of decision as text. */
#ifndef TD_TESTS_SIM_DECISIONS_H
#define TD_TESTS_SIM_DECISIONS_H

#include "common/buf.h"

/* Random worlds, a line each: a hash of what was planned, of what the scheduler says of itself, of the times
 * that it foresees. */
void sim_print_worlds(td_buf *out);
/* How long steps are, and what chunks they take: budgets of several cost models, a line each. */
void sim_print_lengths(td_buf *out);
/* Cost models that are fitted to noisy steps, made stairs, guessed for other devices, learned from what is
 * served. */
void sim_print_fits(td_buf *out);
void sim_print_guesses(td_buf *out);
/* Chances of answers' lengths. */
void sim_print_chances(td_buf *out);

#endif
