/* Creates, frees and checks the page pool: see page_pool.h. */
#include "scheduler/page_pool.h"

#include <stdlib.h>
#include <string.h>

bool td_page_pool_init(td_page_pool *p, uint32_t n_pages)
{
  p->n_pages = p->n_free = n_pages;
  p->free_stack = calloc(n_pages, sizeof *p->free_stack);
  if (!p->free_stack)
    return false;
  for (uint32_t i = 0; i < n_pages; i++)
    p->free_stack[i] = (int32_t)(n_pages - 1 - i); /* page 0 is taken first */
  return true;
}

void td_page_pool_deinit(td_page_pool *p)
{
  free(p->free_stack);
  memset(p, 0, sizeof *p);
}

void td_page_pool_check(const td_page_pool *p, uint32_t *held)
{
  TD_BUG_ON(p->n_free > p->n_pages);
  for (uint32_t i = 0; i < p->n_free; i++) {
    int32_t page = p->free_stack[i];
    TD_BUG_ON(page < 0 || (uint32_t)page >= p->n_pages);
    TD_BUG_ON(held[page]++ != 0);
  }
}
