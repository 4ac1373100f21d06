/* What statements need of expressions, beyond td_eval. */
#ifndef TD_MODELS_TEMPLATE_EVAL_H
#define TD_MODELS_TEMPLATE_EVAL_H

#include "models/template/value.h"

/* The call node n with one more keyword: caller. */
value td_eval_call_with(rendering *r, const node *n, value caller);
/* A chain of filters whose innermost has no operand: it takes body. */
value td_eval_filter_chain(rendering *r, const node *n, value body);

#endif
