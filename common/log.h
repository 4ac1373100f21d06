/* Logging to stderr, one line a message: text with date and level, or a JSON object. Where stderr is the
 * journal, "<priority>" stands in front, and text has no date, since the journal has it.
 * Thread-safe; a line is one write(). A reader who is slow is waited for, all lines together 50 ms of a
 * second; what stderr does not take then is lost, and the next line says how many are. Never log prompts or
 * outputs. */
#ifndef TD_COMMON_LOG_H
#define TD_COMMON_LOG_H

#include <stdbool.h>
#include <stddef.h>

#include "common/status.h"

typedef enum td_log_level { TD_LOG_ERROR, TD_LOG_WARN, TD_LOG_INFO, TD_LOG_DEBUG } td_log_level;

/* Call once before threads start. */
void td_log_init(td_log_level level, bool json);
void td_log_set_level(td_log_level level);
bool td_log_wants(td_log_level level);
/* JSON: {"time":"2026-11-24T03:00:00.000Z","level":"info","message":".."}. */
void td_log(td_log_level level, const char *fmt, ...) TD_PRINTF(2, 3);

/* A line of fields: `event a=1 b="x y"`, or {"time":..,"level":..,"event":"event","a":1,"b":"x y"}. A field
 * that the line has no room for is left out whole. */
typedef struct td_log_field {
  const char *name; /* plain */
  const char *text; /* NULL: a number */
  double number;
  int digits; /* behind the point */
} td_log_field;
void td_log_event(td_log_level level, const char *event, const td_log_field *fields, size_t n);

#define td_error_log(...) td_log(TD_LOG_ERROR, __VA_ARGS__)
#define td_warn(...) td_log(TD_LOG_WARN, __VA_ARGS__)
#define td_info(...) td_log(TD_LOG_INFO, __VA_ARGS__)
#define td_debug(...) td_log(TD_LOG_DEBUG, __VA_ARGS__)

#endif
