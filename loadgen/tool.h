/* What every program that measures needs: a clock, a way to end, options, a progress line, the machine's
 * name. */
#ifndef TD_LOADGEN_TOOL_H
#define TD_LOADGEN_TOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "common/status.h"

double td_tool_now_s(void); /* CLOCK_MONOTONIC */
double td_tool_cpu_s(void); /* processor time of this process, all threads */
_Noreturn void td_tool_die(const char *fmt, ...) TD_PRINTF(1, 2);
void td_tool_check(td_status st,
                   const td_error *err);    /* anything but TD_OK: ends the program with its message */
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
/* The same for a program or its command ("tandem-bench serve"): --help prints `about` and the options and
 * ends with 0, an error ends with 64. */
void td_tool_args(const char *program, const char *about, const td_arg *args, size_t n_args, int argc,
                  char **argv);
/* "1,4,16" into out; TD_ERR_CONFIG names what is no number. */
TD_MUST_CHECK td_status td_tool_read_list(const char *text, double *out, size_t max, size_t *n,
                                          td_error *err);

/* Whether `word` is one of "a,b,c"; every word is one of NULL. */
bool td_tool_in_list(const char *list, const char *word);

/* One line on stderr that says how far it is: rewritten in place on a terminal, a line every 15 s elsewhere.
 * share < 0: ends the line. */
void td_tool_progress(double share, const char *fmt, ...) TD_PRINTF(2, 3);

void td_tool_machine(char *out, size_t size); /* "AMD EPYC ..., 2 cores" */
/* The program's arguments, as "command". */
void td_tool_add_command(cJSON *o, int argc, char **argv);

void td_tool_write_json(const char *path, const cJSON *o); /* ends the program where that fails */

#endif
