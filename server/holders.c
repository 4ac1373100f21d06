/* A heap of tenants: see holders.h. */
#include "server/holders.h"

#include <stdlib.h>

#include "server/tenant.h"

bool td_holders_reserve(td_holders *h, uint32_t n)
{
  if (n <= h->capacity)
    return true;
  uint32_t capacity = n > 2 * h->capacity ? n : 2 * h->capacity;
  td_tenant **more = realloc(h->heap, (capacity + 1) * sizeof *more);
  if (!more)
    return false;
  h->heap = more;
  h->capacity = capacity;
  return true;
}

void td_holders_deinit(td_holders *h)
{
  free(h->heap);
  *h = (td_holders){0};
}

static void put(td_holders *h, uint32_t at, td_tenant *t)
{
  h->heap[at] = t;
  t->held_at = at;
}

static void rise(td_holders *h, uint32_t at)
{
  td_tenant *t = h->heap[at];
  for (; at > 1 && h->heap[at / 2]->held_bytes < t->held_bytes; at /= 2)
    put(h, at, h->heap[at / 2]);
  put(h, at, t);
}

static void sink(td_holders *h, uint32_t at)
{
  td_tenant *t = h->heap[at];
  for (uint32_t below; (below = 2 * at) <= h->n; at = below) {
    below += below < h->n && h->heap[below + 1]->held_bytes > h->heap[below]->held_bytes;
    if (h->heap[below]->held_bytes <= t->held_bytes)
      break;
    put(h, at, h->heap[below]);
  }
  put(h, at, t);
}

static void take_out(td_holders *h, td_tenant *t)
{
  uint32_t at = t->held_at;
  td_tenant *last = h->heap[h->n--];
  t->held_at = 0;
  if (last == t)
    return;
  put(h, at, last);
  rise(h, at);
  sink(h, last->held_at);
}

void td_holders_renew(td_holders *h, td_tenant *t)
{
  bool is_one = t->conns && t->held_bytes > 0;
  if (!is_one) {
    if (t->held_at > 0)
      take_out(h, t);
    return;
  }
  if (t->held_at == 0) {
    TD_BUG_ON(h->n == h->capacity);
    put(h, ++h->n, t);
  }
  rise(h, t->held_at);
  sink(h, t->held_at);
}

uint64_t td_holders_most(const td_holders *h) { return h->n > 0 ? h->heap[1]->held_bytes : 0; }
