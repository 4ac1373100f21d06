/* Python's two ways to format: format % args, and "{}".format(). */
#ifndef TD_MODELS_TEMPLATE_FORMAT_H
#define TD_MODELS_TEMPLATE_FORMAT_H

#include "models/template/value.h"

value td_format_percent(rendering *r, str *format, value args);
value td_format_braces(rendering *r, str *format, const call_args *args);

#endif
