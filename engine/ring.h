/* A bounded ring between exactly one producer thread and one consumer thread.
 *
 * The capacity is a power of two, chosen so that the ring is never full in a correct program
 * (engine/README.md). td_ring_push returns false if the ring is full; callers treat that as a bug. Source:
 * Lamport's single-producer queue, with C11 atomics. */
#ifndef TD_ENGINE_RING_H
#define TD_ENGINE_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct td_ring_item {
  uint32_t kind, slot, generation;
} td_ring_item;

typedef struct td_ring {
  td_ring_item *items; /* owned */
  uint32_t mask;
  _Alignas(64) _Atomic uint32_t head; /* next to pop; written by the consumer */
  _Alignas(64) _Atomic uint32_t tail; /* next to push; written by the producer */
} td_ring;

static inline bool td_ring_init(td_ring *r, uint32_t min_capacity)
{
  uint32_t cap = 16;
  while (cap < min_capacity)
    cap *= 2;
  r->items = calloc(cap, sizeof *r->items);
  r->mask = cap - 1;
  atomic_init(&r->head, 0);
  atomic_init(&r->tail, 0);
  return r->items != NULL;
}

static inline void td_ring_deinit(td_ring *r)
{
  free(r->items);
  r->items = NULL;
}

static inline bool td_ring_push(td_ring *r, td_ring_item item)
{
  uint32_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
  if (tail - atomic_load_explicit(&r->head, memory_order_acquire) > r->mask)
    return false;
  r->items[tail & r->mask] = item;
  atomic_store_explicit(&r->tail, tail + 1, memory_order_release);
  return true;
}

/* Consumer thread only. */
static inline bool td_ring_is_empty(const td_ring *r)
{
  return atomic_load_explicit(&r->head, memory_order_relaxed) ==
         atomic_load_explicit(&r->tail, memory_order_acquire);
}

static inline bool td_ring_pop(td_ring *r, td_ring_item *item)
{
  uint32_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
  if (head == atomic_load_explicit(&r->tail, memory_order_acquire))
    return false;
  *item = r->items[head & r->mask];
  atomic_store_explicit(&r->head, head + 1, memory_order_release);
  return true;
}

#endif
