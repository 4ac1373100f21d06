/* The free KV pages of the device, as ids. This is only bookkeeping: no memory belongs to it.
 *
 * A page has one holder at any time: the pool (it is free), one running request (it is not shared), or the
 * prefix tree. So there are no reference counts: a request that shares a page of the tree has pinned the
 * path that the page lies on (prefix_tree.h). The free list is a stack, so that the page used last, which
 * may still be in a cache, is used again first. */
#ifndef TD_SCHEDULER_PAGE_POOL_H
#define TD_SCHEDULER_PAGE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

typedef struct td_page_pool {
  uint32_t n_pages;
  uint32_t n_free;
  int32_t *free_stack; /* [n_pages]; the first n_free are free */
} td_page_pool;

TD_MUST_CHECK bool td_page_pool_init(td_page_pool *p, uint32_t n_pages); /* false: no memory */
void td_page_pool_deinit(td_page_pool *p);

/* Hands a page to the caller. The pool must not be empty. */
static inline int32_t td_page_pool_take(td_page_pool *p)
{
  TD_BUG_ON(p->n_free == 0);
  return p->free_stack[--p->n_free];
}

/* Takes a page back from its only holder. */
static inline void td_page_pool_give(td_page_pool *p, int32_t page)
{
  TD_BUG_ON(p->n_free == p->n_pages);
  p->free_stack[p->n_free++] = page;
}

/* Adds 1 to held[page] for each free page, and checks that no page is free twice. held: [n_pages], 0 for
 * free pages at entry. */
void td_page_pool_check(const td_page_pool *p, uint32_t *held);

#endif
