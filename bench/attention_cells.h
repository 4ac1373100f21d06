/* The cells that `tandem-bench attention` measures: batches of decodes, by their lengths and by what
 * neighbours share. Any program with attention over pages can run a cell, so peers are measured on the same
 * cells. */
#ifndef TD_BENCH_ATTENTION_CELLS_H
#define TD_BENCH_ATTENTION_CELLS_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TD_CELL_NAME_BYTES = 128, TD_CELL_ROWS_MAX = 1024, TD_CELL_PAGE_TOKENS = 16 };

typedef enum td_cell_kind { TD_CELL_DECODE, TD_CELL_TREE, TD_CELL_TRACE, TD_CELL_KINDS } td_cell_kind;
extern const char *const td_cell_kinds[TD_CELL_KINDS];

typedef struct td_attention_cell {
  td_cell_kind kind;
  char name[TD_CELL_NAME_BYTES];
  uint32_t n_heads, n_kv_heads, head_dim, n_rows;
  uint32_t *kv_len;     /* [n_rows] */
  uint32_t *shared;     /* [n_rows] tokens shared with the row before, whole pages */
  uint32_t trace, seed; /* of kind TRACE: which trace, and its seed */
  double unique_keys;   /* the number of keys, shared ones counted once */
} td_attention_cell;

typedef struct td_attention_cells {
  td_attention_cell *cells;
  size_t n, cap;
} td_attention_cells;

typedef struct td_cells_request {
  bool kinds[TD_CELL_KINDS];
  uint32_t head_dim;
  uint32_t n_heads, n_kv_heads; /* 0: all head shapes, see attention_cells.c */
  uint32_t steps_of_a_trace;    /* evenly spread over the trace */
  uint32_t max_keys;            /* larger cells are left out; 0: no limit */
  const char *name;             /* only the cells of this name; NULL: all */
} td_cells_request;

void td_attention_cells_make(td_attention_cells *out, const td_cells_request *r);
void td_attention_cells_deinit(td_attention_cells *c);

/* Figures of one trace and policy, from the microseconds of its steps. */
typedef struct td_trace_figures {
  double mean_us, sd_us; /* over the held-out seeds; each seed's value is its steps' mean */
  double calibration_us; /* mean of the calibration seed, which is not held out */
  uint32_t n_seeds;
} td_trace_figures;
/* us[i]: microseconds of cell i; NaN: not measured. */
td_trace_figures td_attention_trace_figures(const td_attention_cells *c, const double *us, uint32_t trace);

cJSON *td_attention_cells_json(const td_attention_cells *c); /* the format that peers read */

#endif
