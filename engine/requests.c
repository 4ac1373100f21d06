/* The hand-over between the loop thread and the engine thread.
 *
 * A slot belongs to the loop until its submit command is in the inbox, and again after the engine has
 * published `ended`. In between the engine appends tokens to the slot's array and publishes their count; the
 * loop reads only tokens below that count. An outbox entry is a hint to look at a slot. Each slot is in the
 * outbox at most once, so the ring cannot overflow however slow the loop is, and a stale hint does no harm.
 * See engine/README.md. */
#include "engine/internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "config/share.h"

enum { NO_SLOT = UINT32_MAX };

td_status td_engine_requests_init(td_engine *e, td_error *err)
{
  e->n_slots = (uint32_t)td_option(&e->options, TD_LIMIT_QUEUE_REQUESTS);
  e->slots = calloc(e->n_slots, sizeof *e->slots);
  /* inbox, for each slot: at most a submit, its cancel, and a stale cancel of the slot's previous request */
  if (!e->slots || !td_ring_init(&e->inbox, 4 * e->n_slots) || !td_ring_init(&e->outbox, e->n_slots))
    return td_fail(err, TD_ERR_NOMEM, "no memory for %u request slots", e->n_slots);
  for (uint32_t i = 0; i < e->n_slots; i++)
    e->slots[i].next_free = i + 1 < e->n_slots ? i + 1 : NO_SLOT;
  e->free_head = 0;
  e->first_pending_end = NO_SLOT;
  return TD_OK;
}

/* Frees the request's own memory and what allocate_memory allocated for it. */
static void free_memory(td_slot *s)
{
  free(s->request.tokens);
  free(s->logprobs);
  free(s->top);
  free(s->vector);
  free(s->sampling_arrays);
  free(s->mask);
  if (s->request.mask.drop)
    s->request.mask.drop(s->request.mask.arg);
  s->request.tokens = NULL;
  s->sampling_arrays = NULL;
  s->request.mask = (td_mask_provider){0};
  s->logprobs = NULL;
  s->top = NULL;
  s->vector = NULL;
  s->mask = NULL;
}

/* Allocates all that the slot's request will need, so that nothing is allocated while it runs. */
static bool allocate_memory(const td_engine *e, td_slot *s)
{
  const td_engine_request *r = &s->request;
  size_t n = (size_t)r->n_prompt_logits + r->max_new, n_top = r->sampling.n_top;
  if (r->mask.fill)
    s->mask = calloc((e->info.vocab + 31) / 32, sizeof *s->mask);
  if (r->sampling.wants_logprobs)
    s->logprobs = calloc(n, sizeof *s->logprobs);
  if (r->sampling.wants_logprobs && n_top > 0)
    s->top = calloc(n * n_top, sizeof *s->top);
  if (e->info.makes_embeddings)
    s->vector = calloc(e->info.width, sizeof *s->vector);
  return td_engine_copy_sampling_arrays(e, s) && (s->vector || !e->info.makes_embeddings) &&
         (s->mask || !r->mask.fill) && (s->logprobs || !r->sampling.wants_logprobs) &&
         (s->top || !s->logprobs || n_top == 0);
}

void td_engine_requests_deinit(td_engine *e)
{
  for (uint32_t i = 0; e->slots && i < e->n_slots; i++)
    free_memory(&e->slots[i]);
  free(e->slots);
  free(e->account_tokens);
  td_ring_deinit(&e->inbox);
  td_ring_deinit(&e->outbox);
}

/* ---- loop thread ---- */

void td_engine_wake_thread(td_engine *e)
{
  uint64_t one = 1;
  if (write(e->wake_fd, &one, sizeof one) < 0)
    td_warn("waking the engine: %s", strerror(errno));
}

static void send_command(td_engine *e, uint32_t kind, uint32_t slot)
{
  TD_BUG_ON(!td_ring_push(&e->inbox, (td_ring_item){kind, slot, e->slots[slot].generation}));
  if (atomic_exchange(&e->is_asleep, false)) /* an engine that is awake checks the inbox after the step */
    td_engine_wake_thread(e);
}

/* A request that the engine could never serve is the client's error (TD_ERR_REQUEST). */
static td_status check_request(const td_engine *e, const td_engine_request *r, td_error *err)
{
  const td_engine_info *info = &e->info;
  if (r->n_prompt == 0)
    return td_fail_param(err, TD_ERR_REQUEST, "prompt", "the prompt is empty");
  if (r->max_new == 0)
    return td_fail_param(err, TD_ERR_REQUEST, "max_tokens", "max_tokens must be at least 1");
  if ((uint64_t)r->n_prompt + r->max_new > (uint64_t)info->max_context_tokens + td_engine_beyond_context(e))
    return td_fail_param(
        err, TD_ERR_REQUEST, "max_tokens",
        "This model's maximum context length is %u tokens. However, you requested %llu tokens "
        "(%u in the prompt, %u in the completion).",
        info->max_context_tokens, (unsigned long long)r->n_prompt + r->max_new, r->n_prompt, r->max_new);
  if (r->n_prompt_logits >= r->n_prompt)
    return td_fail_param(err, TD_ERR_REQUEST, "prompt_logprobs",
                         "a prompt of %u tokens has %u with another before", r->n_prompt, r->n_prompt - 1);
  for (uint32_t i = 0; i < r->n_prompt; i++)
    if (r->tokens[i] < 0 || (uint32_t)r->tokens[i] >= info->vocab)
      return td_fail_param(err, TD_ERR_REQUEST, "prompt", "token id %d is not in the vocabulary of %u",
                           r->tokens[i], info->vocab);
  return TD_OK;
}

/* A prompt is always accepted while the queue is empty. Otherwise one longer than the queue could never
 * be. */
static td_status check_queued_tokens(const td_engine *e, const td_engine_request *r, td_error *err)
{
  uint64_t cap = (uint64_t)td_option(&e->options, TD_LIMIT_QUEUE_TOKENS), all = e->n_queued_tokens;
  if (all > 0 && all + r->n_prompt > cap)
    return td_fail(err, TD_ERR_CAPACITY, "the queue is full: %llu prompt tokens wait",
                   (unsigned long long)all);
  if (e->n_accounts < 2 || all == 0)
    return TD_OK;
  uint64_t own = e->account_tokens[r->terms.account];
  if (td_share_allows(cap, all, own, r->n_prompt))
    return TD_OK;
  return td_fail(err, TD_ERR_CAPACITY,
                 "your requests already take %llu of the %llu prompt tokens that may wait; "
                 "what is left is for other keys",
                 (unsigned long long)own, (unsigned long long)cap);
}

td_status td_engine_submit(td_engine *e, const td_engine_request *r, td_ticket *out, td_error *err)
{
  switch (td_engine_get_state(e)) {
  case TD_ENGINE_READY: break;
  case TD_ENGINE_LOADING: return td_fail(err, TD_ERR_CAPACITY, "the model is still loading");
  default: return td_fail(err, TD_ERR_CAPACITY, "the engine has stopped");
  }
  TD_TRY(check_request(e, r, err));
  if (e->free_head == NO_SLOT)
    return td_fail(err, TD_ERR_CAPACITY, "the queue is full: %u requests", e->n_slots);
  TD_TRY(check_queued_tokens(e, r, err));
  uint32_t slot = e->free_head;
  td_slot *s = &e->slots[slot];
  s->request = *r;
  if (!allocate_memory(e, s)) {
    s->request = (td_engine_request){0}; /* its memory stays the caller's */
    free_memory(s);
    return td_fail(err, TD_ERR_NOMEM, "no memory for the request");
  }
  e->free_head = s->next_free;
  e->n_used_slots++;
  s->phase = TD_SLOT_LIVE;
  if (++s->generation == 0)
    s->generation = 1;
  s->n_reported = 0;
  s->queued_tokens = r->n_prompt;
  e->n_queued_tokens += r->n_prompt;
  if (e->account_tokens)
    e->account_tokens[r->terms.account] += r->n_prompt;
  s->submit_us = td_clock_us();
  s->error = NULL;
  s->mask_failed = false;
  atomic_store(&s->n_generated, 0);
  atomic_store(&s->ended, TD_FINISH_NONE);
  atomic_store(&s->n_cached_prompt, 0);
  atomic_store(&s->predicted_queue_us, UINT64_MAX);
  atomic_store(&s->first_run_us, 0);
  atomic_store(&s->first_token_us, 0);
  atomic_store(&s->last_token_us, 0);
  *out = (td_ticket){slot, s->generation};
  send_command(e, TD_COMMAND_SUBMIT, slot);
  return TD_OK;
}

static void leave_queue(td_engine *e, td_slot *s)
{
  e->n_queued_tokens -= s->queued_tokens;
  if (e->account_tokens)
    e->account_tokens[s->request.terms.account] -= s->queued_tokens;
  s->queued_tokens = 0;
}

static void free_slot(td_engine *e, uint32_t slot)
{
  td_slot *s = &e->slots[slot];
  leave_queue(e, s);
  free_memory(s);
  s->phase = TD_SLOT_FREE;
  s->next_free = e->free_head;
  e->n_used_slots--;
  e->free_head = slot;
}

static td_slot *find_slot(td_engine *e, td_ticket t)
{
  if (t.slot >= e->n_slots || t.generation == 0 || e->slots[t.slot].generation != t.generation)
    return NULL;
  return &e->slots[t.slot];
}

static void stop_request(td_engine *e, td_ticket ticket, uint32_t command)
{
  td_slot *s = find_slot(e, ticket);
  if (!s)
    return;
  if (s->phase == TD_SLOT_ENDED) {
    free_slot(e, ticket.slot);
  } else if (s->phase == TD_SLOT_LIVE) {
    s->phase = TD_SLOT_CANCELLED;
    s->request.user = NULL;
    if (atomic_load(&s->ended) != TD_FINISH_NONE)
      free_slot(e, ticket.slot);
    else
      send_command(e, command, ticket.slot);
  }
}

void td_engine_cancel(td_engine *e, td_ticket ticket) { stop_request(e, ticket, TD_COMMAND_CANCEL); }
void td_engine_end(td_engine *e, td_ticket ticket) { stop_request(e, ticket, TD_COMMAND_END); }

void td_engine_release(td_engine *e, td_ticket ticket)
{
  td_slot *s = find_slot(e, ticket);
  TD_BUG_ON(!s || s->phase != TD_SLOT_ENDED);
  free_slot(e, ticket.slot);
}

/* Fills *u if the slot has news. Returns false if the hint was stale. */
static bool fill_update(td_engine *e, uint32_t slot, td_engine_update *u)
{
  td_slot *s = &e->slots[slot];
  int ended = atomic_load_explicit(&s->ended, memory_order_acquire);
  uint32_t n = atomic_load_explicit(&s->n_generated, memory_order_acquire);
  if (s->phase == TD_SLOT_CANCELLED && ended != TD_FINISH_NONE)
    free_slot(e, slot);
  if (s->phase != TD_SLOT_LIVE || (ended == TD_FINISH_NONE && n == s->n_reported))
    return false;
  leave_queue(e, s);
  s->n_reported = n;
  if (ended != TD_FINISH_NONE)
    s->phase = TD_SLOT_ENDED;
  *u = (td_engine_update){
      .ticket = {slot, s->generation},
      .user = s->request.user,
      .tokens = s->request.tokens,
      .n_prompt = s->request.n_prompt,
      .n_generated = n,
      .logprobs = s->logprobs,
      .top = s->top,
      .vector = s->vector,
      .n_cached_prompt = atomic_load(&s->n_cached_prompt),
      .finish = (td_finish)ended,
      .error = ended == TD_FINISH_ERROR || ended == TD_FINISH_REFUSED ? s->error : NULL,
      .submit_us = s->submit_us,
      .predicted_queue_us = atomic_load(&s->predicted_queue_us),
      .first_run_us = atomic_load(&s->first_run_us),
      .first_token_us = atomic_load(&s->first_token_us),
      .last_token_us = atomic_load(&s->last_token_us),
  };
  return true;
}

uint32_t td_engine_poll(td_engine *e, td_engine_update *out, uint32_t max)
{
  uint32_t n = 0;
  td_ring_item item;
  e->n_polls++;
  while (n < max && td_ring_pop(&e->outbox, &item)) {
    td_slot *s = &e->slots[item.slot];
    /* cleared before the slot is read, so that anything published after the read makes a new hint */
    atomic_store(&s->in_outbox, false);
    /* A second hint for a slot in this call updates the same entry of out[]: the caller may release the slot
     * after its first update. */
    bool again = s->last_poll == e->n_polls;
    uint32_t at = again ? s->last_update_index : n;
    if (!fill_update(e, item.slot, &out[at]) || again)
      continue;
    s->last_poll = e->n_polls;
    s->last_update_index = n++;
  }
  return n;
}

/* ---- engine thread ---- */

void td_engine_notify_slot(td_engine *e, uint32_t slot)
{
  if (!atomic_exchange(&e->slots[slot].in_outbox, true))
    TD_BUG_ON(!td_ring_push(&e->outbox, (td_ring_item){0, slot, 0}));
}

void td_engine_end_slot(td_engine *e, uint32_t slot, int ended)
{
  td_slot *s = &e->slots[slot];
  s->active = false;
  e->n_masked -= s->mask != NULL;
  if (!s->mask || td_masks_drop(e->masks, slot)) {
    td_engine_publish_end(e, slot, ended);
    return;
  }
  s->pending_finish = ended;
  s->next_pending_end = e->first_pending_end;
  e->first_pending_end = slot;
}

void td_engine_publish_end(td_engine *e, uint32_t slot, int ended)
{
  atomic_store_explicit(&e->slots[slot].ended, ended, memory_order_release);
  td_engine_notify_slot(e, slot);
}
