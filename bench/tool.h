/* What every subcommand needs: a clock, a way to end, options, a progress line, the machine's name. */
#ifndef TD_BENCH_TOOL_H
#define TD_BENCH_TOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "common/status.h"

double td_tool_now_s(void); /* CLOCK_MONOTONIC */
double td_tool_cpu_s(void); /* processor time of this process, all threads */
_Noreturn void td_tool_die(const char *fmt, ...) TD_PRINTF(1, 2);
void *td_tool_alloc(size_t n, size_t size); /* zeroed; ends the program where there is no memory */
void td_tool_grow(void **p, size_t *cap, size_t need, size_t size); /* room for `need` elements */

typedef enum td_arg_kind { TD_ARG_TEXT, TD_ARG_NUMBER, TD_ARG_FLAG } td_arg_kind;

typedef struct td_arg {
  const char *name, *value; /* "--rate", "R,..." */
  const char *help;
  td_arg_kind kind;
  void *to; /* const char **, double *, bool * */
} td_arg;

/* Reads "--name VALUE" and "--name=VALUE". TD_ERR_CONFIG names the word at fault. */
TD_MUST_CHECK td_status td_tool_read_args(const td_arg *args, size_t n_args, int argc, char **argv,
                                          td_error *err);
/* The same for a command: --help prints `about` and the options and ends with 0, an error ends with 64. */
void td_tool_args(const char *about, const td_arg *args, size_t n_args, int argc, char **argv);
/* "1,4,16" into out; TD_ERR_CONFIG names what is no number. */
TD_MUST_CHECK td_status td_tool_read_list(const char *text, double *out, size_t max, size_t *n,
                                          td_error *err);

/* One line on stderr that says how far it is: rewritten in place on a terminal, a line every 15 s elsewhere.
 * share < 0: ends the line. */
void td_tool_progress(double share, const char *fmt, ...) TD_PRINTF(2, 3);

/* "AMD EPYC ..., 2 cores". */
void td_tool_machine(char *out, size_t size);

/* Writes and frees the object; ends the program where that fails. */
void td_tool_write_json(const char *path, cJSON *o);

#endif
