/* A heap of tenants: see answer_heap.h. */
#include "server/answer_heap.h"

#include <stdlib.h>

#include "server/tenant.h"

bool td_answer_heap_reserve(td_answer_heap *h, uint32_t n)
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

void td_answer_heap_deinit(td_answer_heap *h)
{
  free(h->heap);
  *h = (td_answer_heap){0};
}

static void put(td_answer_heap *h, uint32_t at, td_tenant *t)
{
  h->heap[at] = t;
  t->answer_heap_index = at;
}

static void sift_up(td_answer_heap *h, uint32_t at)
{
  td_tenant *t = h->heap[at];
  for (; at > 1 && h->heap[at / 2]->answer_memory_bytes < t->answer_memory_bytes; at /= 2)
    put(h, at, h->heap[at / 2]);
  put(h, at, t);
}

static void sift_down(td_answer_heap *h, uint32_t at)
{
  td_tenant *t = h->heap[at];
  for (uint32_t below; (below = 2 * at) <= h->n; at = below) {
    below += below < h->n && h->heap[below + 1]->answer_memory_bytes > h->heap[below]->answer_memory_bytes;
    if (h->heap[below]->answer_memory_bytes <= t->answer_memory_bytes)
      break;
    put(h, at, h->heap[below]);
  }
  put(h, at, t);
}

static void remove_tenant(td_answer_heap *h, td_tenant *t)
{
  uint32_t at = t->answer_heap_index;
  td_tenant *last = h->heap[h->n--];
  t->answer_heap_index = 0;
  if (last == t)
    return;
  put(h, at, last);
  sift_up(h, at);
  sift_down(h, last->answer_heap_index);
}

void td_answer_heap_update(td_answer_heap *h, td_tenant *t)
{
  bool belongs = t->conns && t->answer_memory_bytes > 0;
  if (!belongs) {
    if (t->answer_heap_index > 0)
      remove_tenant(h, t);
    return;
  }
  if (t->answer_heap_index == 0) {
    TD_BUG_ON(h->n == h->capacity);
    put(h, ++h->n, t);
  }
  sift_up(h, t->answer_heap_index);
  sift_down(h, t->answer_heap_index);
}

uint64_t td_answer_heap_max_bytes(const td_answer_heap *h)
{
  return h->n > 0 ? h->heap[1]->answer_memory_bytes : 0;
}
