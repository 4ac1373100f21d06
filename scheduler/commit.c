/* Takes the outcome of a step: computed tokens, sampled tokens, requests that end. */
#include "scheduler/internal.h"

/* Shares the pages of known tokens as soon as they are whole: the prompt's, and after a preemption also
 * those of generated tokens. */
static void cache_computed_pages(td_sched *s, td_request *r)
{
  uint32_t first, n_switched = td_sched_cache_pages(s, r, &first);
  TD_BUG_ON(n_switched > s->max_pending_updates - s->n_pending_updates);
  for (uint32_t i = 0; i < n_switched; i++)
    s->pending_updates[s->n_pending_updates++] = first + i;
  td_coalesce_wake(s, td_sched_slot_of(s, r), r->n_tree_pages);
}

/* Returns true if the request ends with this token. */
static bool append_token(td_request *r, int32_t token, bool stop)
{
  r->tokens[r->n_tokens++] = token;
  r->last_token = token;
  r->state = TD_REQUEST_DECODE;
  return stop || r->n_tokens == r->max_tokens;
}

/* Notes that the logits of the first n prompt tokens are computed. */
static void record_scored(td_sched *s, uint32_t slot, uint32_t n)
{
  td_request_wants *w = &s->table.wants[slot];
  if (w->logits_from < n)
    w->logits_from = n;
}

void td_sched_commit(td_sched *s, const td_plan *plan, const int32_t *sampled, const uint8_t *verdict,
                     uint32_t *finished, uint32_t *n_finished)
{
  TD_BUG_ON(s->n_in_flight == 0 || plan->step != s->step - (s->n_in_flight - 1));
  uint32_t n_ended = 0, n_logits = 0;
  for (uint32_t i = 0; i < plan->n_rows; i++) {
    const td_plan_row *row = &plan->rows[i];
    td_request *r = &s->table.requests[row->slot];
    if (i + TD_REQUEST_PREFETCH < plan->n_rows)
      td_request_prefetch(&s->table.requests[row[TD_REQUEST_PREFETCH].slot]);
    uint32_t at = (n_logits += row->n_logits) - 1; /* the row's last entry, if it has any */
    if (!td_request_runs(r))                       /* the row was planned ahead, but its request ended with
                                                    * the previous step */
      continue;
    bool samples = row->n_logits > 0 && plan->logits[at].target == TD_SAMPLE_HERE;
    r->is_late = samples && verdict[at] == TD_TOKEN_LATE;
    r->n_computed = row->kv_len - r->is_late;
    if (r->has_wants)
      record_scored(s, row->slot, row->kv_len);
    if (i >= plan->n_decode_rows)
      cache_computed_pages(s, r);
    if (!samples || r->is_late)
      continue;
    bool ends = append_token(r, sampled[at], verdict[at] == TD_TOKEN_ENDS);
    td_order_charge(&s->order, r->account, TD_ORDER_TOKEN_COST);
    if (ends) {
      td_output_lengths_observe(&s->answers, r->account, r->n_tokens - r->n_prompt,
                                s->step - s->table.histories[row->slot].submit_step,
                                r->n_tokens == r->max_tokens);
      td_sched_release(s, r);
      td_deadlines_set(&s->deadlines, s->order.entries, row->slot, UINT64_MAX);
      r->state = TD_REQUEST_FREE;
      finished[n_ended++] = row->slot;
    }
  }
  TD_BUG_ON(n_logits != plan->n_logits);
  if (n_ended > 0)
    td_request_table_sweep(&s->table);
  *n_finished = n_ended;
  s->n_in_flight--;
}
