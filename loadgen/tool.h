/* What every measuring program needs: a clock, a way to end, options, a progress line, the machine's name. */
#ifndef TD_LOADGEN_TOOL_H
#define TD_LOADGEN_TOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "common/status.h"

double td_tool_now_s(void); /* CLOCK_MONOTONIC */
double td_tool_cpu_s(void); /* CPU time of this process, all threads */
_Noreturn void td_tool_die(const char *fmt, ...) TD_PRINTF(1, 2);
void td_tool_check(td_status st, const td_error *err); /* ends the program if st is not TD_OK */
void *td_tool_alloc(size_t n, size_t size);            /* zeroed; ends the program if there is no memory */
void td_tool_grow(void **p, size_t *cap, size_t need, size_t size); /* makes room for `need` elements */

typedef enum td_arg_kind { TD_ARG_TEXT, TD_ARG_NUMBER, TD_ARG_FLAG } td_arg_kind;

typedef struct td_arg {
  const char *name, *value; /* "--rate", "R,..." */
  const char *help;
  td_arg_kind kind;
  void *to; /* const char **, double *, bool * */
} td_arg;

/* Reads "--name VALUE" and "--name=VALUE". The message of a TD_ERR_CONFIG names the wrong word. */
TD_MUST_CHECK td_status td_tool_read_args(const td_arg *args, size_t n_args, int argc, char **argv,
                                          td_error *err);
/* Reads the arguments of a program or of its command ("tandem-bench serve"). --help prints `about` and the
 * options, and ends the program with 0. An error ends it with 64. */
void td_tool_args(const char *program, const char *about, const td_arg *args, size_t n_args, int argc,
                  char **argv);
/* Reads a list like "1,4,16" into out. The message of a TD_ERR_CONFIG names the part that is not a number. */
TD_MUST_CHECK td_status td_tool_read_list(const char *text, double *out, size_t max, size_t *n,
                                          td_error *err);

/* Whether `word` is in a list like "a,b,c". A list of NULL contains every word. */
bool td_tool_in_list(const char *list, const char *word);

/* Shows the progress on stderr: a line that is rewritten on a terminal, or else a new line every 15 s. share
 * < 0 ends the line. */
void td_tool_progress(double share, const char *fmt, ...) TD_PRINTF(2, 3);

void td_tool_machine(char *out, size_t size); /* for example "AMD EPYC ..., 2 cores" */
/* Adds the program's arguments as "command". */
void td_tool_add_command(cJSON *o, int argc, char **argv);

void td_tool_write_json(const char *path, const cJSON *o); /* ends the program if it fails */

#endif
