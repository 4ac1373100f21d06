/* Dummy plans: step plans made by hand, for dummy runs at start and for benchmarks. The caller chooses
 * each row's context. Its pages are in scattered order, as in a daemon that has served for a while. The
 * order is the same in every run. */
#ifndef TD_STEP_DUMMY_PLAN_H
#define TD_STEP_DUMMY_PLAN_H

#include "step/plan.h"

typedef struct td_dummy_plan {
  td_plan *plan;
  int32_t *table, *pages; /* the plan's page table, a stripe for each row; all page ids in scattered order */
  uint32_t n_pages, stripe_pages, next_page;
  uint32_t n_ids; /* token ids are below this */
} td_dummy_plan;

typedef struct td_dummy_plan_config {
  uint32_t max_rows, max_tokens, max_logits, page_tokens, n_pages, n_ids;
  uint32_t max_row_tokens; /* longest context of one row */
} td_dummy_plan_config;

/* td_dummy_plan_deinit may be called after an error too. */
TD_MUST_CHECK td_status td_dummy_plan_init(td_dummy_plan *d, const td_dummy_plan_config *c, td_error *err);
void td_dummy_plan_deinit(td_dummy_plan *d);

void td_dummy_plan_clear(td_dummy_plan *d);
/* Adds a row whose last token is at position kv_len - 1. Add decodes (q_len 1) first. Its first n_shared
 * pages are those of the previous row. Returns false if no row, token or page is left. */
bool td_dummy_plan_add(td_dummy_plan *d, uint32_t q_len, uint32_t kv_len, uint32_t n_shared,
                       bool wants_logits);
/* Makes a step of one row that writes the pages from `first` on, as many as fit. Returns their number. It
 * is 0 if no page is left, or if a step holds fewer tokens than a page. */
uint32_t td_dummy_plan_write_pages(td_dummy_plan *d, uint32_t first);

#endif
