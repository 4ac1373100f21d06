/* Logging to stderr, in the form journald reads: "<priority>" prefix when under systemd.
 * Thread-safe; a line is one write(). Never log prompts or outputs. */
#ifndef TD_COMMON_LOG_H
#define TD_COMMON_LOG_H

#include "common/status.h"

typedef enum td_log_level { TD_LOG_ERROR, TD_LOG_WARN, TD_LOG_INFO, TD_LOG_DEBUG } td_log_level;

/* Call once before threads start. */
void td_log_init(td_log_level level);
void td_log_set_level(td_log_level level);
void td_log(td_log_level level, const char *fmt, ...) TD_PRINTF(2, 3);

#define td_error_log(...) td_log(TD_LOG_ERROR, __VA_ARGS__)
#define td_warn(...) td_log(TD_LOG_WARN, __VA_ARGS__)
#define td_info(...) td_log(TD_LOG_INFO, __VA_ARGS__)
#define td_debug(...) td_log(TD_LOG_DEBUG, __VA_ARGS__)

#endif
