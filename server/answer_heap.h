/* The tenants that hold most memory of answers (answer_memory.h). A binary heap of all tenants that have
 * connections and hold some, so that neither look-ups nor updates scan all connections. */
#ifndef TD_SERVER_ANSWER_HEAP_H
#define TD_SERVER_ANSWER_HEAP_H

#include <stdbool.h>
#include <stdint.h>

typedef struct td_tenant td_tenant;

typedef struct td_answer_heap {
  td_tenant **heap; /* [1..n], max-heap by answer_memory_bytes: the parent of i is i / 2 */
  uint32_t n, capacity;
} td_answer_heap;

/* Makes room for n tenants. Returns false if there is no memory; the heap is unchanged then. */
bool td_answer_heap_reserve(td_answer_heap *h, uint32_t n);
void td_answer_heap_deinit(td_answer_heap *h);
/* Call when t's answer_memory_bytes has changed, or whether t has connections: moves, adds or removes t. */
void td_answer_heap_update(td_answer_heap *h, td_tenant *t);
/* The bytes of the tenant that holds most; 0 if none holds any. */
uint64_t td_answer_heap_max_bytes(const td_answer_heap *h);

#endif
