/* A cell: one load that is sent in one way, and one line of the table. A preset is a list of cells. */
#ifndef TD_LOADGEN_CELL_H
#define TD_LOADGEN_CELL_H

#include "loadgen/load.h"

typedef struct td_cell {
  char name[48];
  td_load load;
  uint32_t streams; /* closed: how many streams, each with one request at a time; 0: open, by due_s */
  double rate;      /* requests/s of open arrivals, for table and picture; 0: none */
  double seconds;   /* open: end of arrivals and of counting; 0: last arrival */
  double drain_s;   /* requests that are unfinished this long after the last arrival are cut */
  uint32_t n_warm;  /* closed: the first requests warm up: they are not counted, and end before the rest */
} td_cell;

enum { TD_CELLS_MAX = 64 };

/* The cells of a preset, and their number in *n. rates, n_rates (0: none) and seconds (0: none) replace the
 * preset's own, if its arrivals are open. TD_ERR_CONFIG: no such preset. */
TD_MUST_CHECK td_status td_preset_cells(const char *name, const double *rates, size_t n_rates, double seconds,
                                        uint64_t seed, td_cell cells[TD_CELLS_MAX], size_t *n, td_error *err);
/* For --help: a line for each preset, with its name and what it is. */
const char *td_preset_help(void);

#endif
