/* Dummy plans: of steps that no scheduler planned, for dummy runs at start and benchmarks. Rows have as much
 * context as wanted, on pages in scattered order, as they lie after a while; the same order in every run. */
#ifndef TD_STEP_DUMMY_PLAN_H
#define TD_STEP_DUMMY_PLAN_H

#include "step/plan.h"

typedef struct td_dummy_plan {
  td_plan *plan;
  int32_t *table, *pages; /* the plan's page table, a stripe a row; the store's pages in scattered order */
  uint32_t n_pages, stripe_pages, next_page;
  uint32_t n_ids; /* token ids are below */
} td_dummy_plan;

typedef struct td_dummy_plan_config {
  uint32_t max_rows, max_tokens, max_logits, page_tokens, n_pages, n_ids;
  uint32_t max_row_tokens; /* context of one row */
} td_dummy_plan_config;

/* After an error td_dummy_plan_deinit may be called too. */
TD_MUST_CHECK td_status td_dummy_plan_init(td_dummy_plan *d, const td_dummy_plan_config *c, td_error *err);
void td_dummy_plan_deinit(td_dummy_plan *d);

void td_dummy_plan_clear(td_dummy_plan *d);
/* Adds a row whose last token is at kv_len - 1, decodes (q_len 1) first. Its first n_shared pages are those
 * of the row before. False: no row, token or page is left. */
bool td_dummy_plan_add(td_dummy_plan *d, uint32_t q_len, uint32_t kv_len, uint32_t n_shared,
                       bool wants_logits);
/* A step of one row that writes the pages from `first` on, as many as fit. Returns their number; 0: that was
 * all, or a step holds fewer tokens than a page. */
uint32_t td_dummy_plan_write_pages(td_dummy_plan *d, uint32_t first);

#endif
