/* Logging to stderr, one line for each message: text with date and level, or a JSON object. If stderr is the
 * journal, each line begins with "<priority>", and text lines have no date, because the journal adds one.
 *
 * Thread-safe; a line is one write(). If the reader of stderr is slow, lines wait for at most 50 ms of each
 * second. After that, lines are lost, and the next line says how many. Never log prompts or outputs. */
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

/* Writes a line of fields: `event a=1 b="x y"`, or {"time":..,"level":..,"event":"event","a":1,"b":"x y"}. A
 * field that does not fit into the line is left out. */
typedef struct td_log_field {
  const char *name; /* needs no escaping */
  const char *text; /* NULL: a number */
  double number;
  int digits; /* after the point */
} td_log_field;
void td_log_event(td_log_level level, const char *event, const td_log_field *fields, size_t n);

#define td_error_log(...) td_log(TD_LOG_ERROR, __VA_ARGS__)
#define td_warn(...) td_log(TD_LOG_WARN, __VA_ARGS__)
#define td_info(...) td_log(TD_LOG_INFO, __VA_ARGS__)
#define td_debug(...) td_log(TD_LOG_DEBUG, __VA_ARGS__)

#endif
