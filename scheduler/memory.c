/* How a running request takes, shares and leaves pages. */
#include "scheduler/internal.h"

uint32_t td_sched_grow(td_sched *s, td_request *r, uint32_t n)
{
  TD_BUG_ON(n > s->stripe_pages - r->n_pages);
  int32_t *pages = td_sched_stripe(s, r) + r->n_pages;
  uint32_t first = r->stripe * s->stripe_pages + r->n_pages, i = 0;
  while (i < n && s->pool.n_free > 0)
    pages[i++] = td_page_pool_take(&s->pool);
  td_prefix_tree_evict(&s->tree, pages + i, n - i);
  r->n_pages += n;
  return first;
}

uint32_t td_sched_cache_pages(td_sched *s, td_request *r, uint32_t *first)
{
  uint32_t n_whole = r->n_computed / s->config.page_tokens, n_switched;
  *first = r->stripe * s->stripe_pages + r->n_tree_pages;
  if (n_whole <= r->n_tree_pages)
    return 0;
  const int32_t *tokens = r->tokens + (size_t)r->n_tree_pages * s->config.page_tokens;
  r->node = td_prefix_tree_extend(&s->tree, td_sched_terms(s, r)->namespace_id, r->node, tokens,
                                  s->page_table + *first, n_whole - r->n_tree_pages, &n_switched);
  r->n_tree_pages = n_whole;
  return n_switched;
}

void td_sched_leave(td_sched *s, td_request *r)
{
  uint32_t first;
  s->reserved_pages -= td_sched_reserved_for(s, r);
  td_sched_cache_pages(s, r, &first);
  const int32_t *stripe = td_sched_stripe(s, r);
  for (uint32_t i = r->n_tree_pages; i < r->n_pages; i++)
    td_page_pool_give(&s->pool, stripe[i]);
  td_prefix_tree_unpin(&s->tree, r->node);
  s->free_stripes[s->n_free_stripes++] = r->stripe;
  td_places_give(&s->places, r->account);
  r->node = TD_NO_NODE;
  r->n_computed = r->n_pages = r->n_tree_pages = 0;
  r->is_late = false;
  td_follow_wake(s, td_sched_slot_of(s, r), UINT32_MAX);
}
