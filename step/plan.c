/* Allocation of the step plan: see plan.h. */
#include "step/plan.h"

#include <stdlib.h>

td_status td_plan_create(uint32_t max_rows, uint32_t max_tokens, uint32_t max_logits,
                         uint32_t max_page_updates, uint32_t page_tokens, td_plan **out, td_error *err)
{
  td_plan *p = calloc(1, sizeof *p);
  if (p) {
    p->max_rows = max_rows;
    p->max_tokens = max_tokens;
    p->max_logits = max_logits;
    p->max_page_updates = max_page_updates;
    p->page_tokens = page_tokens;
    p->rows = calloc(max_rows, sizeof *p->rows);
    p->token_ids = calloc(max_tokens, sizeof *p->token_ids);
    p->positions = calloc(max_tokens, sizeof *p->positions);
    p->logits = calloc(max_logits, sizeof *p->logits);
    p->page_updates = calloc(max_page_updates, sizeof *p->page_updates);
  }
  if (!p || !p->rows || !p->token_ids || !p->positions || !p->logits || !p->page_updates) {
    td_plan_destroy(p);
    return td_fail(err, TD_ERR_NOMEM, "no memory for a step plan of %u rows and %u tokens", max_rows,
                   max_tokens);
  }
  *out = p;
  return TD_OK;
}

void td_plan_destroy(td_plan *p)
{
  if (!p)
    return;
  free(p->rows);
  free(p->token_ids);
  free(p->positions);
  free(p->logits);
  free(p->page_updates);
  free(p);
}

void td_plan_clear(td_plan *p)
{
  p->n_rows = p->n_tokens = p->n_logits = p->n_scored = p->n_page_updates = 0;
  p->n_decode_rows = p->n_prefill_tokens = 0;
  p->repeated_kv_tokens = 0;
}
