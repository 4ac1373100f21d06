/* The running array of the requests: see request_table.h. */
#include "scheduler/request_table.h"

#include <stdlib.h>
#include <string.h>

bool td_request_table_init(td_request_table *t, uint32_t n_slots, uint32_t max_running)
{
  *t = (td_request_table){.n_slots = n_slots, .max_running = max_running};
  size_t n_bytes = n_slots * sizeof *t->requests;
  t->requests = aligned_alloc(sizeof *t->requests, n_bytes);
  if (t->requests)
    memset(t->requests, 0, n_bytes);
  t->histories = calloc(n_slots, sizeof *t->histories);
  t->wants = calloc(n_slots, sizeof *t->wants);
  t->running = calloc(max_running, sizeof *t->running);
  return t->requests && t->histories && t->wants && t->running;
}

void td_request_table_deinit(td_request_table *t)
{
  free(t->requests);
  free(t->histories);
  free(t->wants);
  free(t->running);
  memset(t, 0, sizeof *t);
}

void td_request_table_add(td_request_table *t, uint32_t slot, const td_request *r, uint64_t now_us,
                          uint64_t step)
{
  TD_BUG_ON(slot >= t->n_slots || t->requests[slot].state != TD_REQUEST_FREE);
  t->histories[slot] = (td_request_history){.submit_us = now_us, .submit_step = step};
  t->requests[slot] = *r;
  t->requests[slot].state = TD_REQUEST_WAITING;
}

void td_request_table_start(td_request_table *t, uint32_t slot)
{
  td_request *r = &t->requests[slot];
  TD_BUG_ON(r->state != TD_REQUEST_WAITING || t->n_running == t->max_running);
  r->state = TD_REQUEST_PREFILL;
  r->start_seq = ++t->next_start_seq;
  t->running[t->n_running++] = slot;
}

static void close_gap(td_request_table *t, uint32_t at)
{
  memmove(t->running + at, t->running + at + 1, (t->n_running - at - 1) * sizeof *t->running);
  t->n_running--;
}

void td_request_table_stop(td_request_table *t, uint32_t at)
{
  TD_BUG_ON(at >= t->n_running);
  t->requests[t->running[at]].state = TD_REQUEST_WAITING;
  close_gap(t, at);
}

static uint32_t find_running(const td_request_table *t, uint64_t start_seq)
{
  uint32_t low = 0, high = t->n_running;
  while (low < high) {
    uint32_t mid = low + (high - low) / 2;
    if (t->requests[t->running[mid]].start_seq < start_seq)
      low = mid + 1;
    else
      high = mid;
  }
  return low;
}

void td_request_table_remove(td_request_table *t, uint32_t slot)
{
  td_request *r = &t->requests[slot];
  if (r->state == TD_REQUEST_PREFILL || r->state == TD_REQUEST_DECODE) {
    uint32_t at = find_running(t, r->start_seq);
    TD_BUG_ON(at == t->n_running || t->running[at] != slot);
    close_gap(t, at);
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

uint32_t td_request_table_check(const td_request_table *t)
{
  uint64_t start_seq = 0;
  uint32_t n_used = 0, n_waiting = 0;
  TD_BUG_ON(t->n_running > t->max_running);
  for (uint32_t i = 0; i < t->n_running; i++) {
    const td_request *r = &t->requests[t->running[i]];
    TD_BUG_ON(r->state != TD_REQUEST_PREFILL && r->state != TD_REQUEST_DECODE);
    TD_BUG_ON(r->start_seq <= start_seq);
    start_seq = r->start_seq;
  }
  for (uint32_t i = 0; i < t->n_slots; i++) {
    n_used += t->requests[i].state != TD_REQUEST_FREE;
    n_waiting += t->requests[i].state == TD_REQUEST_WAITING;
  }
  TD_BUG_ON(n_used != t->n_running + n_waiting);
  return n_waiting;
}
