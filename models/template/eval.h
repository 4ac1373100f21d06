/* Functions that statements need from eval.c, in addition to td_eval. */
#ifndef TD_MODELS_TEMPLATE_EVAL_H
#define TD_MODELS_TEMPLATE_EVAL_H

#include "models/template/value.h"

/* Calls node n with one more keyword argument: caller. */
value td_eval_call_with(rendering *r, const node *n, value caller);
/* Applies a chain of filters to body, which is the operand of the innermost filter. */
value td_eval_filter_chain(rendering *r, const node *n, value body);

#endif
