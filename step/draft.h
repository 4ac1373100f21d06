/* Plans made by hand, for steps that no scheduler planned: trials at start, benchmarks. Rows have as much
 * context as wanted, on pages in scattered order, as they lie after a while; the same order in every run. */
#ifndef TD_STEP_DRAFT_H
#define TD_STEP_DRAFT_H

#include "step/plan.h"

typedef struct td_draft {
  td_plan *plan;
  int32_t *table, *pages; /* the plan's page table, a stripe a row; the store's pages in scattered order */
  uint32_t n_pages, stripe_pages, next_page;
  uint32_t n_ids; /* token ids are below */
} td_draft;

typedef struct td_draft_config {
  uint32_t max_rows, max_tokens, max_logits, page_tokens, n_pages, n_ids;
  uint32_t max_row_tokens; /* context of one row */
} td_draft_config;

/* After an error td_draft_deinit may be called too. */
TD_MUST_CHECK td_status td_draft_init(td_draft *d, const td_draft_config *c, td_error *err);
void td_draft_deinit(td_draft *d);

void td_draft_clear(td_draft *d);
/* Adds a row whose last token is at kv_len - 1, decodes (q_len 1) first. Its first n_shared pages are those
 * of the row before. False: no row, token or page is left. */
bool td_draft_add(td_draft *d, uint32_t q_len, uint32_t kv_len, uint32_t n_shared, bool wants_logits);
/* A step of one row that writes the pages from `first` on, as many as fit. Returns their number; 0: that was
 * all, or a step holds fewer tokens than a page. */
uint32_t td_draft_write_pages(td_draft *d, uint32_t first);

#endif
