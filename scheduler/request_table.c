/* Queue and running array of the requests: see request_table.h. */
#include "scheduler/request_table.h"

#include <stdlib.h>
#include <string.h>

bool td_request_table_init(td_request_table *t, uint32_t n_slots, uint32_t max_running)
{
  *t = (td_request_table){
      .n_slots = n_slots, .max_running = max_running, .wait_front = TD_NO_SLOT, .wait_back = TD_NO_SLOT};
  t->requests = calloc(n_slots, sizeof *t->requests);
  t->running = calloc(max_running, sizeof *t->running);
  return t->requests && t->running;
}

void td_request_table_deinit(td_request_table *t)
{
  free(t->requests);
  free(t->running);
  memset(t, 0, sizeof *t);
}

/* Between prev and the one after it; TD_NO_SLOT: at the front. */
static void queue_insert(td_request_table *t, uint32_t slot, uint32_t prev)
{
  td_request *r = &t->requests[slot];
  r->state = TD_REQUEST_WAITING;
  r->prev = prev;
  r->next = prev == TD_NO_SLOT ? t->wait_front : t->requests[prev].next;
  *(r->prev == TD_NO_SLOT ? &t->wait_front : &t->requests[r->prev].next) = slot;
  *(r->next == TD_NO_SLOT ? &t->wait_back : &t->requests[r->next].prev) = slot;
  t->n_waiting++;
  t->waiting_prompt_tokens += r->n_prompt;
}

static void queue_remove(td_request_table *t, uint32_t slot)
{
  td_request *r = &t->requests[slot];
  *(r->prev == TD_NO_SLOT ? &t->wait_front : &t->requests[r->prev].next) = r->next;
  *(r->next == TD_NO_SLOT ? &t->wait_back : &t->requests[r->next].prev) = r->prev;
  t->n_waiting--;
  t->waiting_prompt_tokens -= r->n_prompt;
}

void td_request_table_add(td_request_table *t, uint32_t slot, const td_request *r)
{
  TD_BUG_ON(slot >= t->n_slots || t->requests[slot].state != TD_REQUEST_FREE);
  t->requests[slot] = *r;
  t->requests[slot].seq = ++t->next_seq;
  queue_insert(t, slot, t->wait_back);
}

void td_request_table_start_front(td_request_table *t)
{
  uint32_t slot = t->wait_front;
  TD_BUG_ON(slot == TD_NO_SLOT || t->n_running == t->max_running);
  queue_remove(t, slot);
  t->requests[slot].state = TD_REQUEST_PREFILL;
  t->running[t->n_running++] = slot;
}

void td_request_table_stop_youngest(td_request_table *t)
{
  TD_BUG_ON(t->n_running == 0);
  queue_insert(t, t->running[--t->n_running], TD_NO_SLOT);
}

static uint32_t find_running(const td_request_table *t, uint64_t seq)
{
  uint32_t low = 0, high = t->n_running;
  while (low < high) {
    uint32_t mid = low + (high - low) / 2;
    if (t->requests[t->running[mid]].seq < seq)
      low = mid + 1;
    else
      high = mid;
  }
  return low;
}

void td_request_table_remove(td_request_table *t, uint32_t slot)
{
  td_request *r = &t->requests[slot];
  if (r->state == TD_REQUEST_WAITING) {
    queue_remove(t, slot);
  } else if (r->state != TD_REQUEST_FREE) {
    uint32_t at = find_running(t, r->seq);
    TD_BUG_ON(at == t->n_running || t->running[at] != slot);
    memmove(t->running + at, t->running + at + 1, (t->n_running - at - 1) * sizeof *t->running);
    t->n_running--;
  }
  r->state = TD_REQUEST_FREE;
}

void td_request_table_sweep(td_request_table *t)
{
  uint32_t n = 0;
  for (uint32_t i = 0; i < t->n_running; i++)
    if (t->requests[t->running[i]].state != TD_REQUEST_FREE)
      t->running[n++] = t->running[i];
  t->n_running = n;
}

void td_request_table_check(const td_request_table *t)
{
  uint64_t seq = 0, prompt_tokens = 0;
  uint32_t n_waiting = 0, n_used = 0, prev = TD_NO_SLOT;
  TD_BUG_ON(t->n_running > t->max_running);
  for (uint32_t i = 0; i < t->n_running; i++) {
    const td_request *r = &t->requests[t->running[i]];
    TD_BUG_ON(r->state != TD_REQUEST_PREFILL && r->state != TD_REQUEST_DECODE);
    TD_BUG_ON(r->seq <= seq);
    seq = r->seq;
  }
  for (uint32_t slot = t->wait_front; slot != TD_NO_SLOT; slot = t->requests[slot].next) {
    const td_request *r = &t->requests[slot];
    TD_BUG_ON(r->state != TD_REQUEST_WAITING || r->prev != prev);
    TD_BUG_ON(r->seq <= seq); /* so every waiting one is younger than every running one */
    TD_BUG_ON(++n_waiting > t->n_waiting);
    prompt_tokens += r->n_prompt;
    seq = r->seq;
    prev = slot;
  }
  TD_BUG_ON(t->wait_back != prev || n_waiting != t->n_waiting || prompt_tokens != t->waiting_prompt_tokens);
  for (uint32_t i = 0; i < t->n_slots; i++)
    n_used += t->requests[i].state != TD_REQUEST_FREE;
  TD_BUG_ON(n_used != t->n_running + n_waiting);
}
