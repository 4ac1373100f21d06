/* A cell: one load driven in one way, one line of the table. Presets are lists of cells. */
#ifndef TD_LOADGEN_CELL_H
#define TD_LOADGEN_CELL_H

#include "loadgen/load.h"

typedef struct td_cell {
  char name[48];
  td_load load;
  uint32_t streams; /* closed: so many streams, each sends its next request when the last has ended; 0: open,
                       by due_s */
  double rate;      /* requests/s of open arrivals, for the table and the picture; 0: none to tell */
  double
      seconds; /* open: arrivals end then, and throughput is counted until then; 0: with the last arrival */
  double drain_s; /* what is unfinished so long after the last arrival is cut */
  uint32_t
      n_warm; /* first requests of a closed cell: not counted, and all ended before the others are sent */
} td_cell;

enum { TD_CELLS_MAX = 64 };

/* Cells of a preset. rates, n_rates: instead of the preset's own where it has any; seconds: the same (0: its
 * own). TD_ERR_CONFIG: no such preset. Returns their number in *n. */
TD_MUST_CHECK td_status td_preset_cells(const char *name, const double *rates, size_t n_rates, double seconds,
                                        uint64_t seed, td_cell cells[TD_CELLS_MAX], size_t *n, td_error *err);
/* For --help: "name  what" lines. */
const char *td_preset_help(void);

#endif
