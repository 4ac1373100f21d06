/* How a running request takes, shares and gives up pages. */
#include "scheduler/internal.h"

uint32_t td_sched_add_pages(td_sched *s, td_request *r, uint32_t n)
{
  TD_BUG_ON(n > s->stripe_pages - r->n_pages);
  int32_t *pages = td_sched_stripe(s, r) + r->n_pages;
  uint32_t first = r->stripe * s->stripe_pages + r->n_pages, i = 0;
  while (i < n && s->pool.n_free > 0)
    pages[i++] = td_page_pool_take(&s->pool);
  td_prefix_tree_evict(&s->tree, pages + i, n - i);
  r->n_pages += n;
  s->places.n_pages[r->account] += n;
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

/* How many nodes of a path are looked at. A running prompt grows in one node; only other requests split
 * it. */
enum { UNSHARED_NODES_MAX = 4 };

uint32_t td_sched_unshared_pages(const td_sched *s, const td_request *r)
{
  uint32_t n = r->n_pages - r->n_tree_pages, node = r->node;
  for (int i = 0; i < UNSHARED_NODES_MAX && node != TD_NO_NODE && s->tree.nodes[node].pins == 1; i++) {
    n += s->tree.nodes[node].n_pages;
    node = s->tree.nodes[node].parent;
  }
  return n;
}

/* The pages that running requests hold, each counted once, are the pool's pages that are neither free nor
 * evictable. */
uint64_t td_sched_repeated_kv(const td_sched *s, uint64_t decode_pages, uint64_t others_pages)
{
  uint64_t n_held = s->pool.n_pages - td_sched_available_pages(s);
  return s->config.reads_shared_once && decode_pages + others_pages > n_held
             ? (decode_pages + others_pages - n_held) * s->config.page_tokens
             : 0;
}

bool td_sched_take_page_event(td_sched *s, td_page_event *out)
{
  int32_t page = s->tree.events ? td_page_events_take(s->tree.events, out) : TD_NO_PAGE;
  if (page != TD_NO_PAGE && out->is_stored)
    out->tokens = td_prefix_tree_tokens(&s->tree, page);
  return page != TD_NO_PAGE;
}

void td_sched_release(td_sched *s, td_request *r)
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
  s->places.n_pages[r->account] -= r->n_pages;
  r->node = TD_NO_NODE;
  r->n_computed = r->n_pages = r->n_tree_pages = 0;
  r->is_late = false;
  td_coalesce_wake(s, td_sched_slot_of(s, r), UINT32_MAX);
}
