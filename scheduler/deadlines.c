/* Deadlines: see deadlines.h. */
#include "scheduler/deadlines.h"

#include <stdlib.h>

#include "scheduler/internal.h"

bool td_deadlines_init(td_deadlines *d, uint32_t n_slots)
{
  *d = (td_deadlines){.heap = calloc(n_slots, sizeof *d->heap)};
  return d->heap != NULL;
}

void td_deadlines_deinit(td_deadlines *d)
{
  free(d->heap);
  *d = (td_deadlines){0};
}

static bool is_before(const td_deadline *a, const td_deadline *b)
{
  return a->us < b->us || (a->us == b->us && a->slot < b->slot);
}

static void put(td_deadlines *d, td_order_entry *entries, uint32_t at, td_deadline x)
{
  d->heap[at] = x;
  entries[x.slot].expiry_at = at;
}

/* Puts x into the hole `at` and restores the heap. */
static void sift(td_deadlines *d, td_order_entry *entries, uint32_t at, td_deadline x)
{
  for (; at > 0 && is_before(&x, &d->heap[(at - 1) / 2]); at = (at - 1) / 2)
    put(d, entries, at, d->heap[(at - 1) / 2]);
  for (uint32_t child; (child = 2 * at + 1) < d->n; at = child) {
    if (child + 1 < d->n && is_before(&d->heap[child + 1], &d->heap[child]))
      child++;
    if (!is_before(&d->heap[child], &x))
      break;
    put(d, entries, at, d->heap[child]);
  }
  put(d, entries, at, x);
}

void td_deadlines_set(td_deadlines *d, td_order_entry *entries, uint32_t slot, uint64_t us)
{
  uint32_t at = entries[slot].expiry_at;
  if (us != UINT64_MAX) {
    sift(d, entries, at == TD_NO_SLOT ? d->n++ : at, (td_deadline){us, slot});
  } else if (at != TD_NO_SLOT) {
    entries[slot].expiry_at = TD_NO_SLOT;
    td_deadline last = d->heap[--d->n];
    if (last.slot != slot)
      sift(d, entries, at, last);
  }
}

void td_deadlines_check(const td_deadlines *d, const td_order_entry *entries)
{
  for (uint32_t i = 0; i < d->n; i++) {
    TD_BUG_ON(entries[d->heap[i].slot].expiry_at != i);
    TD_BUG_ON(i > 0 && is_before(&d->heap[i], &d->heap[(i - 1) / 2]));
  }
}

/* ---- interface ---- */

/* The least time of n_tokens of a prompt alone; 0: unknown. */
static uint64_t prompt_us(const td_sched *s, uint32_t n_tokens)
{
  return (uint64_t)n_tokens * s->config.prompt_ns_per_token / 1000;
}

/* The last time at which the request can still meet its deadline: for its first token, alone on the
 * device; after that, for its last token. */
static uint64_t latest_us(const td_sched *s, uint32_t slot)
{
  const td_request *r = &s->table.requests[slot];
  const td_order_entry *e = &s->order.entries[slot];
  if (r->n_tokens > r->n_prompt)
    return td_terms_or_never(e->terms.deadline_us);
  uint32_t n_done = r->n_computed;
  if (r->state == TD_REQUEST_WAITING)
    n_done =
        s->config.page_tokens *
        td_prefix_tree_find(&s->tree, e->terms.namespace_id, r->tokens, td_sched_max_hit_pages(s, r)).n_pages;
  uint64_t first = td_terms_first_us(&e->terms);
  uint64_t need = (uint64_t)((double)prompt_us(s, r->n_tokens - n_done) * s->least_correction);
  return first > need ? first - need : 0;
}

void td_sched_set_deadline(td_sched *s, uint32_t slot, uint32_t n_prompt)
{
  uint64_t first_us = td_terms_first_us(&s->order.entries[slot].terms);
  uint64_t need_us = prompt_us(s, n_prompt);
  if (first_us != UINT64_MAX)
    td_deadlines_set(&s->deadlines, s->order.entries, slot, first_us > need_us ? first_us - need_us : 0);
}

void td_sched_refresh_deadline(td_sched *s, uint32_t slot)
{
  if (s->order.entries[slot].expiry_at != TD_NO_SLOT)
    td_deadlines_set(&s->deadlines, s->order.entries, slot, latest_us(s, slot));
}

uint64_t td_sched_next_expiry_us(const td_sched *s)
{
  return s->deadlines.n ? s->deadlines.heap[0].us : UINT64_MAX;
}

uint32_t td_sched_expire(td_sched *s, uint64_t now_us, td_sched_expired *out, uint32_t max)
{
  uint32_t n = 0;
  TD_BUG_ON(s->n_in_flight > 0);
  while (n < max && s->deadlines.n > 0 && s->deadlines.heap[0].us < now_us) {
    uint32_t slot = s->deadlines.heap[0].slot;
    uint64_t us = latest_us(s, slot);
    if (us >= now_us) {
      td_deadlines_set(&s->deadlines, s->order.entries, slot, us);
      continue;
    }
    const td_request *r = &s->table.requests[slot];
    out[n++] = (td_sched_expired){slot, r->has_run, r->n_tokens > r->n_prompt};
    td_sched_cancel(s, slot);
    s->n_expired++;
  }
  return n;
}
