/* From a step's outcome to tokens of requests: sampling with the masks that are made, commit, and the
 * hand-over of tokens and log-probabilities to the loop.
 *
 * An entry whose mask is late is not sampled; its row computes its last token again in the next step. The
 * engine waits for late masks only while the device computes the forward anyway. It waits longer only if
 * every row of the step is late. */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/clock.h"

/* How long to wait for masks before checking the device, or the inbox, again. */
enum { MASK_POLL_US = 50, ALL_LATE_POLL_US = 1000 };
enum { NO_SLOT = UINT32_MAX };

td_status td_engine_make_step_memory(td_engine *e, uint32_t max_running, uint32_t max_logits, td_error *err)
{
  e->sampled = calloc(max_logits, sizeof *e->sampled);
  e->verdict = calloc(max_logits, sizeof *e->verdict);
  e->late = calloc(max_logits, sizeof *e->late);
  e->next_late = calloc(max_logits, sizeof *e->next_late);
  e->row_masks = calloc(max_logits, sizeof *e->row_masks);
  e->finished = calloc(max_running, sizeof *e->finished);
  if (!e->sampled || !e->verdict || !e->late || !e->next_late || !e->row_masks || !e->finished)
    return td_fail(err, TD_ERR_NOMEM, "no memory for %u rows", max_running);
  return TD_OK;
}

void td_engine_free_step_memory(td_engine *e)
{
  free(e->sampled);
  free(e->verdict);
  free(e->late);
  free(e->next_late);
  free(e->row_masks);
  free(e->finished);
}

/* ---- masks ---- */

/* A request that ended with the step before, after this one was planned, is not active. Its slot may belong
 * to the loop again. */
static bool obeys_mask(const td_engine *e, const td_plan *plan, uint32_t i)
{
  const td_slot *s = &e->slots[td_engine_slot_of(plan, i)];
  return plan->logits[i].target == TD_SAMPLE_HERE && s->active && s->mask;
}

bool td_engine_awaits_masks(const td_engine *e, const td_plan *plan)
{
  for (uint32_t i = 0; e->n_masked > 0 && i < plan->n_logits; i++)
    if (obeys_mask(e, plan, i))
      return true;
  return false;
}

static void queue_mask(td_engine *e, uint32_t slot)
{
  td_slot *s = &e->slots[slot];
  td_masks_queue(e->masks, slot, s->request.terms.account, &s->request.mask, s->request.tokens,
                 s->request.n_prompt + s->n_new, s->mask);
}

void td_engine_queue_mask(td_engine *e, uint32_t slot)
{
  if (e->slots[slot].mask)
    queue_mask(e, slot);
}

/* Sets row_masks and late[] for the plan's entries. Returns how many are late. */
static uint32_t collect_masks(td_engine *e, const td_plan *plan, uint8_t *late)
{
  uint32_t n_late = 0;
  for (uint32_t i = 0; i < plan->n_logits; i++) {
    uint32_t slot = td_engine_slot_of(plan, i);
    bool obeys = obeys_mask(e, plan, i), made = obeys && td_masks_is_made(e->masks, slot);
    e->row_masks[i] = made ? e->slots[slot].mask : NULL;
    late[i] = obeys && !made;
    n_late += late[i];
  }
  return n_late;
}

/* If all rows are late: whether to wait on for a mask. Stops when there is a command, a stop or a
 * deadline. */
static bool may_wait_on(td_engine *e)
{
  uint64_t now_us = td_clock_us();
  atomic_store(&e->heartbeat_us, now_us);
  return td_ring_is_empty(&e->inbox) && !atomic_load(&e->stop_requested) &&
         td_sched_next_expiry_us(e->sched) > now_us;
}

void td_engine_sample(td_engine *e, const td_plan *plan, uint8_t *late, bool *has_late)
{
  *has_late = false;
  if (e->n_masked == 0) {
    td_backend_sample(e->backend, e->sampling, NULL);
    return;
  }
  uint32_t n_late;
  while ((n_late = collect_masks(e, plan, late)) > 0) {
    bool ended = td_backend_forward_ended(e->backend), all = n_late == plan->n_rows;
    if (ended && !(all && may_wait_on(e)))
      break;
    td_masks_wait(e->masks, ended ? ALL_LATE_POLL_US : MASK_POLL_US);
  }
  *has_late = n_late > 0;
  e->n_late_rows += n_late;
  td_sample_input input = {.late = n_late > 0 ? late : NULL, .masks = e->row_masks};
  td_backend_sample(e->backend, e->sampling, &input);
}

/* ---- tokens ---- */

static bool is_stop_token(const td_engine *e, const td_engine_request *r, int32_t id)
{
  if (!r->ignore_eos)
    for (uint32_t i = 0; i < e->desc.n_eos_ids; i++)
      if (e->desc.eos_ids[i] == id)
        return true;
  for (uint32_t i = 0; i < r->n_stop_ids; i++)
    if (r->stop_ids[i] == id)
      return true;
  return false;
}

static uint8_t verdict_of(const td_engine *e, uint32_t slot, uint32_t i)
{
  td_slot *s = &e->slots[slot];
  if (s->vector) /* nothing is sampled */
    return TD_TOKEN_ENDS;
  if (e->outcome.flags[i] & TD_LOGITS_LATE)
    return TD_TOKEN_LATE;
  s->error = s->mask ? td_masks_error(e->masks, slot) : NULL;
  if (s->error) { /* the sampled id is never published */
    s->mask_failed = true;
    return TD_TOKEN_ENDS;
  }
  if (e->outcome.flags[i] & TD_LOGITS_NAN) { /* nor is this one */
    s->error = "the model's output is not a number";
    return TD_TOKEN_ENDS;
  }
  TD_BUG_ON(e->outcome.n_ids[i] != 1); /* speculative decoding is not implemented */
  return is_stop_token(e, &s->request, e->sampled[i]) ? TD_TOKEN_ENDS : TD_TOKEN_GOES_ON;
}

/* Sets the verdicts on the step's sampled tokens, before the commit. */
static void judge_tokens(td_engine *e)
{
  const td_plan *plan = e->plan;
  TD_BUG_ON(e->outcome.n_logits != plan->n_logits);
  for (uint32_t i = 0; i < plan->n_logits; i++) {
    uint32_t slot = td_engine_slot_of(plan, i);
    e->sampled[i] = e->outcome.ids[i * TD_STEP_IDS];
    e->verdict[i] = TD_TOKEN_GOES_ON;
    if (e->slots[slot].active && plan->logits[i].target == TD_SAMPLE_HERE)
      e->verdict[i] = verdict_of(e, slot, i);
  }
}

/* Stores the log-probabilities of the token after entry i's: a sampled one, or one of the prompt. */
static void store_logprobs(td_engine *e, td_slot *s, uint32_t i)
{
  const td_engine_request *r = &s->request;
  const td_outcome *o = &e->outcome;
  uint32_t token = (uint32_t)e->plan->positions[e->plan->logits[i].token] + 1, n_top = r->sampling.n_top;
  size_t at = token - (r->n_prompt - r->n_prompt_logits), n = n_top < o->top_stride ? n_top : o->top_stride;
  if (!s->logprobs || !o->logprobs)
    return;
  s->logprobs[at] = o->logprobs[(size_t)i * TD_STEP_IDS];
  if (n > 0)
    memcpy(s->top + at * n_top, o->top + (size_t)i * o->top_stride, n * sizeof *s->top);
}

static void publish_token(td_engine *e, uint32_t slot, bool stop, uint64_t now_us)
{
  td_slot *s = &e->slots[slot];
  if (s->error) {
    td_engine_end_slot(e, slot, s->mask_failed ? TD_FINISH_REFUSED : TD_FINISH_ERROR);
    return;
  }
  if (s->n_new++ == 0)
    atomic_store(&s->first_token_us, now_us);
  atomic_store(&s->last_token_us, now_us);
  atomic_store_explicit(&s->n_generated, s->n_new, memory_order_release);
  if (stop)
    td_engine_end_slot(e, slot, TD_FINISH_STOP);
  else if (s->n_new == s->request.max_new)
    td_engine_end_slot(e, slot, TD_FINISH_LENGTH);
  else {
    td_engine_queue_mask(e, slot);
    td_engine_notify_slot(e, slot);
  }
}

static void publish_entry(td_engine *e, uint32_t i, uint64_t now_us)
{
  const td_plan *plan = e->plan;
  uint32_t slot = td_engine_slot_of(plan, i);
  if (!e->slots[slot].active || e->verdict[i] == TD_TOKEN_LATE)
    return;
  store_logprobs(e, &e->slots[slot], i);
  if (plan->logits[i].target == TD_SAMPLE_HERE)
    publish_token(e, slot, e->verdict[i] == TD_TOKEN_ENDS, now_us);
}

/* The commit may end requests in the scheduler, so scheduler data for updates is read before it. */
void td_engine_commit(td_engine *e)
{
  const td_plan *plan = e->plan;
  uint64_t now_us = td_clock_us();
  uint32_t n_finished;
  judge_tokens(e);
  for (uint32_t i = 0; i < plan->n_logits; i++) {
    uint32_t slot = td_engine_slot_of(plan, i);
    if (e->slots[slot].active && e->slots[slot].n_new == 0) {
      td_sched_slot_info first = td_sched_slot(e->sched, slot);
      atomic_store(&e->slots[slot].first_run_us, first.first_run_us);
      atomic_store(&e->slots[slot].n_cached_prompt, first.n_cached_prompt);
    }
  }
  td_sched_commit(e->sched, plan, e->sampled, e->verdict, e->finished, &n_finished);
  for (uint32_t i = 0; i < plan->n_logits; i++)
    publish_entry(e, i, now_us);
  td_engine_publish_pending_ends(e);
}

bool td_engine_publish_pending_ends(td_engine *e)
{
  bool any = false;
  for (uint32_t *at = &e->first_pending_end; *at != NO_SLOT;) {
    uint32_t slot = *at;
    if (!td_masks_drop(e->masks, slot)) {
      at = &e->slots[slot].next_pending_end;
      continue;
    }
    *at = e->slots[slot].next_pending_end;
    td_engine_publish_end(e, slot, e->slots[slot].pending_finish);
    any = true;
  }
  return any;
}
