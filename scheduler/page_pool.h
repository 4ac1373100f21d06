/* The KV pages of the device, as ids with reference counts: pure bookkeeping, no memory behind it.
 *
 * A page has one reference for every running request whose page table names it, and one for the prefix tree
 * if it holds the page. It is free exactly when it has none. The free list is a stack, so that the page used
 * last, whose lines may still be in a cache, is used again first. */
#ifndef TD_SCHEDULER_PAGE_POOL_H
#define TD_SCHEDULER_PAGE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "config/status.h"

typedef struct td_page_pool {
  uint32_t n_pages;
  uint32_t n_free;
  int32_t *free_stack; /* [n_pages]; the first n_free are free */
  uint32_t *refs;      /* [n_pages] */
} td_page_pool;

TD_MUST_CHECK bool td_page_pool_init(td_page_pool *p, uint32_t n_pages); /* false: no memory */
void td_page_pool_deinit(td_page_pool *p);

/* A page with one reference, the caller's. The pool must not be empty. */
static inline int32_t td_page_pool_take(td_page_pool *p)
{
  TD_BUG_ON(p->n_free == 0);
  int32_t page = p->free_stack[--p->n_free];
  p->refs[page] = 1;
  return page;
}

static inline void td_page_pool_ref(td_page_pool *p, int32_t page)
{
  TD_BUG_ON(p->refs[page] == 0);
  p->refs[page]++;
}

static inline void td_page_pool_unref(td_page_pool *p, int32_t page)
{
  TD_BUG_ON(p->refs[page] == 0);
  if (--p->refs[page] == 0)
    p->free_stack[p->n_free++] = page;
}

/* Every page is either once on the free stack or referenced. mark: scratch, [n_pages]. */
void td_page_pool_check(const td_page_pool *p, uint32_t *mark);

#endif
