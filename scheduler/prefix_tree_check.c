/* Checks every invariant of the prefix tree, in O(total), for tests. */
#include "scheduler/prefix_tree.h"

static void check_run(const td_prefix_tree *t, const td_prefix_node *n, uint32_t *held)
{
  int32_t page = n->first_page, prev = TD_NO_PAGE;
  for (uint32_t i = 0; i < n->n_pages; i++, prev = page, page = t->links[page].next) {
    TD_BUG_ON(page < 0 || (uint32_t)page >= t->pool->n_pages);
    TD_BUG_ON(i > 0 && t->links[page].prev != prev);
    TD_BUG_ON(t->events && t->events->pages[page].name == 0);
    held[page]++;
  }
  TD_BUG_ON(prev != n->last_page);
}

/* Checks that the node is in its bucket once, and that no other child of its parent has the same first
 * page. */
static void check_bucket(const td_prefix_tree *t, uint32_t id)
{
  const td_prefix_node *n = &t->nodes[id];
  const int32_t *a = t->page_tokens_of + (size_t)n->first_page * t->page_tokens;
  uint32_t found = 0;
  for (uint32_t i = t->buckets[n->hash & t->bucket_mask]; i != TD_NO_NODE; i = t->nodes[i].hash_next) {
    const td_prefix_node *m = &t->nodes[i];
    TD_BUG_ON(m->n_pages == 0);
    if (m->parent != n->parent || m->namespace_id != n->namespace_id)
      continue;
    const int32_t *b = t->page_tokens_of + (size_t)m->first_page * t->page_tokens;
    uint32_t k = 0;
    while (k < t->page_tokens && a[k] == b[k])
      k++;
    found += k == t->page_tokens;
  }
  TD_BUG_ON(found != 1);
}

static void check_lru(const td_prefix_tree *t)
{
  uint32_t n_list = 0, n_unpinned = 0, n_pages = 0, older = TD_NO_NODE;
  for (uint32_t id = t->lru_oldest; id != TD_NO_NODE; id = t->nodes[id].lru_newer) {
    const td_prefix_node *n = &t->nodes[id];
    TD_BUG_ON(n->n_pages == 0 || n->pins != 0 || n->lru_older != older);
    TD_BUG_ON(++n_list > t->n_nodes);
    n_pages += n->n_pages;
    older = id;
  }
  TD_BUG_ON(t->lru_newest != older);
  for (uint32_t id = 0; id < t->pool->n_pages; id++)
    n_unpinned += t->nodes[id].n_pages > 0 && t->nodes[id].pins == 0;
  TD_BUG_ON(n_list != n_unpinned || n_pages != t->n_unpinned_pages);
}

/* Walks the list from the front as eviction would, counting down `children`. Each node must be a leaf when
 * it is reached. */
static void check_eviction_order(const td_prefix_tree *t, uint32_t *children)
{
  for (uint32_t id = t->lru_oldest; id != TD_NO_NODE; id = t->nodes[id].lru_newer) {
    TD_BUG_ON(children[id] != 0);
    if (t->nodes[id].parent != TD_NO_NODE)
      children[t->nodes[id].parent]--;
  }
}

void td_prefix_tree_check(const td_prefix_tree *t, uint32_t *expected_pins, uint32_t *held)
{
  uint32_t n_nodes = 0, n_pages = 0, total = t->pool->n_pages;
  for (uint32_t id = 0; id < total; id++) {
    const td_prefix_node *n = &t->nodes[id];
    if (n->n_pages == 0) {
      TD_BUG_ON(expected_pins[id] != 0);
      continue;
    }
    n_nodes++;
    n_pages += n->n_pages;
    check_run(t, n, held);
    check_bucket(t, id);
    if (n->parent != TD_NO_NODE) {
      TD_BUG_ON(t->nodes[n->parent].n_pages == 0 || t->nodes[n->parent].namespace_id != n->namespace_id);
      expected_pins[n->parent] += n->pins > 0;
    }
  }
  TD_BUG_ON(n_nodes != t->n_nodes || n_pages != t->n_pages);
  for (uint32_t id = 0; id < total; id++)
    TD_BUG_ON(t->nodes[id].n_pages > 0 && t->nodes[id].pins != expected_pins[id]);
  check_lru(t);
  if (t->events)
    td_page_events_check(t->events, n_pages);

  /* The pins are checked. The same scratch now counts children. */
  for (uint32_t id = 0; id < total; id++)
    expected_pins[id] = 0;
  for (uint32_t id = 0; id < total; id++)
    if (t->nodes[id].n_pages > 0 && t->nodes[id].parent != TD_NO_NODE)
      expected_pins[t->nodes[id].parent]++;
  for (uint32_t id = 0; id < total; id++)
    TD_BUG_ON(t->nodes[id].n_pages > 0 && t->nodes[id].n_children != expected_pins[id]);
  check_eviction_order(t, expected_pins);
}
