/* The planner's costs from the device itself: what memory, the L2 cache, the tensor cores, a piece's begin and a partial take is found
 * in the times of a few dozen plans, run before the first request and kept in cache_dir. No threshold of PersistentKV's or PAT's is
 * set by hand: whether to split or to pack follows from these costs. */
#ifndef TD_KERNELS_ATTENTION_FIT_H
#define TD_KERNELS_ATTENTION_FIT_H

#include "config/buf.h"
#include "kernels/attention/plan.h"

enum { TD_ATTENTION_FIT_TEXT_BYTES = 4096, TD_ATTENTION_IDENTITY_BYTES = 512, TD_ATTENTION_FIT_PAGES_MAX = 1 << 19 };

typedef struct td_attention_fit_request {
  td_attention_planner_config config; /* as serving has it; cost: where the search begins; max_slots: partials that there are */
  uint32_t n_pages;                   /* page ids 0 .. n_pages - 1 may be read */
  uint32_t page_table_entries;        /* of the trials' plans; 0: TD_ATTENTION_FIT_PAGES_MAX */
  uint32_t max_block_bytes;           /* what `run` has room for; 0: for any */
  uint32_t n_runs;                    /* of each trial; 0: 5 */
  /* Runs `block`, which was made for `plan`, once (or often, and takes the mean), and says how long it took from begin to end. */
  td_status (*run)(void *arg, const td_plan *plan, const td_attention_header *block, double *us, td_error *err);
  void *arg;
} td_attention_fit_request;

typedef struct td_attention_fitted {
  td_attention_cost cost;
  double launch_us;     /* of a launch that has nothing to do */
  double error;         /* |predicted / measured - 1|: the median of the trials, */
  double error_of_nine; /* and of nine in ten */
  uint32_t n_trials;
} td_attention_fitted;

/* Measures and fits. TD_ERR_CAPACITY: too little memory for trials that tell anything apart; TD_ERR_CONFIG: costs that no device has. */
TD_MUST_CHECK td_status td_attention_fit(const td_attention_fit_request *r, td_attention_fitted *out, td_error *err);

/* What was kept of an earlier start in cache_dir (`folder` is the option's word) for this device, driver and shape, if a few trials
 * show that it holds; else measures and keeps. `measure` false: nothing is run, what is kept is taken as it is; *out is the request's
 * own costs if there is nothing, with n_trials 0. */
TD_MUST_CHECK td_status td_attention_calibrate(const td_attention_fit_request *r, const char *folder, const char *device, bool measure,
                                               td_attention_fitted *out, td_error *err);

void td_attention_fitted_print(const td_attention_fitted *f, const char *identity, td_buf *out);
/* *out->cost's fields that are not in the text stay as they are. */
TD_MUST_CHECK td_status td_attention_fitted_parse(const char *text, size_t n_bytes, const char *identity, td_attention_fitted *out,
                                                  td_error *err);

#endif
