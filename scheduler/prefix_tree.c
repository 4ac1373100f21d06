/* The radix tree of computed pages: see prefix_tree.h for the idea. */
#include "scheduler/prefix_tree.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Tokens of a cache line. A page has 1, 2 or 4 lines of tokens. */
enum { LINE_TOKENS = 16 };
enum { FAR_PAGES = 8 };

bool td_prefix_tree_init(td_prefix_tree *t, td_page_pool *pool, uint32_t page_tokens, uint64_t hash_seed)
{
  uint32_t n = pool->n_pages, n_buckets = 1;
  while (n_buckets < n && n_buckets < 1u << 31)
    n_buckets *= 2;
  *t = (td_prefix_tree){.pool = pool,
                        .page_tokens = page_tokens,
                        .hash_seed = hash_seed,
                        .bucket_mask = n_buckets - 1,
                        .lru_oldest = TD_NO_NODE,
                        .lru_newest = TD_NO_NODE};
  t->nodes = calloc(n, sizeof *t->nodes);
  t->buckets = calloc(n_buckets, sizeof *t->buckets);
  t->page_tokens_of = aligned_alloc(LINE_TOKENS * sizeof *t->page_tokens_of,
                                    (size_t)n * page_tokens * sizeof *t->page_tokens_of);
  t->links = calloc(n, sizeof *t->links);
  if (!t->nodes || !t->buckets || !t->page_tokens_of || !t->links)
    return false;
  memset(t->buckets, 0xff, n_buckets * sizeof *t->buckets); /* TD_NO_NODE */
  for (uint32_t i = 0; i < n; i++)
    t->nodes[i].hash_next = i + 1 < n ? i + 1 : TD_NO_NODE;
  return true;
}

void td_prefix_tree_deinit(td_prefix_tree *t)
{
  free(t->nodes);
  free(t->buckets);
  free(t->page_tokens_of);
  free(t->links);
  memset(t, 0, sizeof *t);
}

static int32_t *tokens_of(const td_prefix_tree *t, int32_t page)
{
  return t->page_tokens_of + (size_t)page * t->page_tokens;
}

static bool page_equals(const td_prefix_tree *t, int32_t page, const int32_t *tokens)
{
  return memcmp(tokens_of(t, page), tokens, t->page_tokens * sizeof *tokens) == 0;
}

/* ---- children, by hash of their first page ---- */

uint32_t td_prefix_tree_hash(const td_prefix_tree *t, uint64_t namespace_id, uint32_t parent,
                             const int32_t *tokens)
{
  uint64_t where[2] = {namespace_id, parent};
  uint64_t seed = XXH3_64bits_withSeed(where, sizeof where, t->hash_seed);
  return (uint32_t)XXH3_64bits_withSeed(tokens, t->page_tokens * sizeof *tokens, seed);
}

static uint32_t find_child(const td_prefix_tree *t, uint64_t namespace_id, uint32_t parent,
                           const int32_t *tokens)
{
  uint32_t hash = td_prefix_tree_hash(t, namespace_id, parent, tokens);
  for (uint32_t id = t->buckets[hash & t->bucket_mask]; id != TD_NO_NODE; id = t->nodes[id].hash_next) {
    const td_prefix_node *n = &t->nodes[id];
    if (n->hash == hash && n->parent == parent && n->namespace_id == namespace_id &&
        page_equals(t, n->first_page, tokens))
      return id;
  }
  return TD_NO_NODE;
}

static void link_child(td_prefix_tree *t, uint32_t id)
{
  td_prefix_node *n = &t->nodes[id];
  n->hash = td_prefix_tree_hash(t, n->namespace_id, n->parent, tokens_of(t, n->first_page));
  uint32_t *bucket = &t->buckets[n->hash & t->bucket_mask];
  n->hash_next = *bucket;
  *bucket = id;
}

static void unlink_child(td_prefix_tree *t, uint32_t id)
{
  uint32_t *at = &t->buckets[t->nodes[id].hash & t->bucket_mask];
  while (*at != id)
    at = &t->nodes[*at].hash_next;
  *at = t->nodes[id].hash_next;
}

static uint32_t alloc_node(td_prefix_tree *t)
{
  uint32_t id = t->free_node;
  TD_BUG_ON(id == TD_NO_NODE);
  t->free_node = t->nodes[id].hash_next;
  t->nodes[id] = (td_prefix_node){.lru_older = TD_NO_NODE, .lru_newer = TD_NO_NODE};
  t->n_nodes++;
  return id;
}

static void free_node(td_prefix_tree *t, uint32_t id)
{
  t->nodes[id] = (td_prefix_node){.hash_next = t->free_node};
  t->free_node = id;
  t->n_nodes--;
}

/* ---- the list of unpinned nodes ---- */

/* Inserts after `older`, or at the front if that is TD_NO_NODE. */
static void lru_insert(td_prefix_tree *t, uint32_t id, uint32_t older)
{
  td_prefix_node *n = &t->nodes[id];
  n->lru_older = older;
  n->lru_newer = older == TD_NO_NODE ? t->lru_oldest : t->nodes[older].lru_newer;
  *(n->lru_older == TD_NO_NODE ? &t->lru_oldest : &t->nodes[n->lru_older].lru_newer) = id;
  *(n->lru_newer == TD_NO_NODE ? &t->lru_newest : &t->nodes[n->lru_newer].lru_older) = id;
}

static void lru_remove(td_prefix_tree *t, uint32_t id)
{
  td_prefix_node *n = &t->nodes[id];
  *(n->lru_older == TD_NO_NODE ? &t->lru_oldest : &t->nodes[n->lru_older].lru_newer) = n->lru_newer;
  *(n->lru_newer == TD_NO_NODE ? &t->lru_newest : &t->nodes[n->lru_newer].lru_older) = n->lru_older;
  n->lru_older = n->lru_newer = TD_NO_NODE;
}

static void pin(td_prefix_tree *t, uint32_t id)
{
  for (; id != TD_NO_NODE && t->nodes[id].pins++ == 0; id = t->nodes[id].parent) {
    lru_remove(t, id);
    t->n_unpinned_pages -= t->nodes[id].n_pages;
  }
}

void td_prefix_tree_unpin(td_prefix_tree *t, uint32_t id)
{
  for (; id != TD_NO_NODE; id = t->nodes[id].parent) {
    TD_BUG_ON(t->nodes[id].pins == 0);
    if (--t->nodes[id].pins > 0)
      return;
    lru_insert(t, id, t->lru_newest);
    t->n_unpinned_pages += t->nodes[id].n_pages;
  }
}

/* ---- runs ---- */

/* The page FAR_PAGES before pages[i], or the run's first page. `pages` are appended to a run of n_before
 * pages. far: the same for the previous page. */
static int32_t page_far_before(const td_prefix_tree *t, const int32_t *pages, uint32_t i, uint32_t n_before,
                               int32_t far)
{
  if (i >= FAR_PAGES)
    return pages[i - FAR_PAGES];
  return n_before + i > FAR_PAGES ? t->links[far].next : far;
}

static void append_pages(td_prefix_tree *t, td_prefix_node *n, const int32_t *tokens, const int32_t *pages,
                         uint32_t n_pages)
{
  uint32_t n_before = n->n_pages;
  if (n_before == 0)
    n->first_page = n->last_page = pages[0];
  int32_t last = n->last_page, far = n_before == 0 ? pages[0] : t->links[last].far;
  for (uint32_t i = 0; i < n_pages; i++) {
    int32_t page = pages[i], *to = tokens_of(t, page);
    for (uint32_t k = 0; k < t->page_tokens; k += LINE_TOKENS, tokens += LINE_TOKENS)
      memcpy(to + k, tokens, LINE_TOKENS * sizeof *tokens);
    far = page_far_before(t, pages, i, n_before, far);
    t->links[last].next = page;
    t->links[page] = (td_page_link){.prev = last, .far = far};
    last = page;
  }
  n->last_page = last;
  n->n_pages += n_pages;
  t->n_pages += n_pages;
}

/* Reports the pages that were appended to the node's run after the page `before`. */
static void emit_stored(td_prefix_tree *t, const td_prefix_node *n, int32_t before, const int32_t *pages,
                        uint32_t n_pages)
{
  for (uint32_t i = 0; i < n_pages; before = pages[i++])
    td_page_events_store(t->events, pages[i], before, n->namespace_id, tokens_of(t, pages[i]),
                         t->page_tokens);
}

/* Cuts node `lower` after its first n_upper pages. Returns the new upper node. The lower one keeps its id,
 * so requests and children that refer to it need no change. */
static uint32_t split(td_prefix_tree *t, uint32_t lower, uint32_t n_upper)
{
  uint32_t upper = alloc_node(t);
  td_prefix_node *l = &t->nodes[lower], *u = &t->nodes[upper];
  int32_t cut = l->first_page;
  for (uint32_t i = 0; i < n_upper; i++)
    cut = t->links[cut].next;

  unlink_child(t, lower);
  u->namespace_id = l->namespace_id;
  u->parent = l->parent;
  u->first_page = l->first_page;
  u->last_page = t->links[cut].prev;
  u->n_pages = n_upper;
  u->n_children = 1;
  u->pins = l->pins > 0;
  l->parent = upper;
  l->first_page = cut;
  l->n_pages -= n_upper;
  link_child(t, upper);
  link_child(t, lower);
  if (u->pins == 0)
    lru_insert(t, upper, lower);
  return upper;
}

/* How many pages of the node's run, at most max_pages, match the tokens. */
static uint32_t match_run(const td_prefix_tree *t, uint32_t id, const int32_t *tokens, uint32_t max_pages)
{
  uint32_t n = 0, most = t->nodes[id].n_pages < max_pages ? t->nodes[id].n_pages : max_pages;
  for (int32_t page = t->nodes[id].first_page; n < most; page = t->links[page].next) {
    if (!page_equals(t, page, tokens + (size_t)n * t->page_tokens))
      break;
    n++;
  }
  return n;
}

/* ---- interface ---- */

td_prefix_hit td_prefix_tree_find(const td_prefix_tree *t, uint64_t namespace_id, const int32_t *tokens,
                                  uint32_t max_pages)
{
  td_prefix_hit hit = {.node = TD_NO_NODE};
  while (hit.n_pages < max_pages) {
    const int32_t *rest = tokens + (size_t)hit.n_pages * t->page_tokens;
    uint32_t child = find_child(t, namespace_id, hit.node, rest);
    if (child == TD_NO_NODE)
      break;
    uint32_t n = match_run(t, child, rest, max_pages - hit.n_pages);
    hit.node = child;
    hit.n_node_pages = n;
    hit.n_pages += n;
    if (t->nodes[child].pins == 0)
      hit.n_unpinned_pages += n;
    if (n < t->nodes[child].n_pages)
      break;
  }
  return hit;
}

uint32_t td_prefix_tree_pin_hit(td_prefix_tree *t, const td_prefix_hit *hit, int32_t *pages)
{
  if (hit->n_pages == 0)
    return TD_NO_NODE;
  uint32_t end = hit->node, n = hit->n_pages;
  if (hit->n_node_pages < t->nodes[end].n_pages)
    end = split(t, end, hit->n_node_pages);
  pin(t, end);
  for (uint32_t id = end; id != TD_NO_NODE; id = t->nodes[id].parent) {
    int32_t page = t->nodes[id].last_page;
    TD_BUG_ON(n < t->nodes[id].n_pages);
    for (uint32_t i = t->nodes[id].n_pages; i-- > 0; page = t->links[page].prev)
      pages[--n] = page;
  }
  TD_BUG_ON(n != 0);
  return end;
}

/* Replaces the caller's first n pages by the node's, which have the same tokens. */
static void switch_pages(td_prefix_tree *t, uint32_t id, int32_t *pages, uint32_t n)
{
  int32_t page = t->nodes[id].first_page;
  for (uint32_t i = 0; i < n; i++, page = t->links[page].next) {
    TD_BUG_ON(pages[i] == page);
    td_page_pool_give(t->pool, pages[i]);
    pages[i] = page;
  }
}

/* Adds a child to `parent`, with no page yet and one pin (the caller's). */
static uint32_t add_child(td_prefix_tree *t, uint64_t namespace_id, uint32_t parent)
{
  uint32_t id = alloc_node(t);
  td_prefix_node *n = &t->nodes[id];
  n->namespace_id = namespace_id;
  n->parent = parent;
  n->pins = 1;
  if (parent != TD_NO_NODE)
    t->nodes[parent].n_children++; /* the caller's pin on the parent becomes the child's */
  return id;
}

uint32_t td_prefix_tree_extend(td_prefix_tree *t, uint64_t namespace_id, uint32_t node, const int32_t *tokens,
                               int32_t *pages, uint32_t n, uint32_t *n_switched)
{
  uint32_t i = 0;
  while (i < n && (node == TD_NO_NODE || t->nodes[node].n_children > 0)) {
    const int32_t *rest = tokens + (size_t)i * t->page_tokens;
    uint32_t child = find_child(t, namespace_id, node, rest);
    if (child == TD_NO_NODE)
      break;
    uint32_t k = match_run(t, child, rest, n - i);
    switch_pages(t, child, pages + i, k);
    if (k < t->nodes[child].n_pages)
      child = split(t, child, k);
    pin(t, child);
    td_prefix_tree_unpin(t, node);
    node = child;
    i += k;
  }
  *n_switched = i;
  if (i == n)
    return node;

  /* A leaf that no other request uses grows in place. Otherwise the rest becomes a child. */
  bool grows = node != TD_NO_NODE && t->nodes[node].n_children == 0 && t->nodes[node].pins == 1;
  uint32_t end = grows ? node : add_child(t, namespace_id, node);
  int32_t before = node == TD_NO_NODE ? TD_NO_PAGE : t->nodes[node].last_page;
  append_pages(t, &t->nodes[end], tokens + (size_t)i * t->page_tokens, pages + i, n - i);
  if (t->events)
    emit_stored(t, &t->nodes[end], before, pages + i, n - i);
  if (!grows)
    link_child(t, end);
  return end;
}

/* Cuts off the last n pages of an unpinned leaf's run, last page first. The taker writes their tokens
 * soon, so they are prefetched. */
static void cut_run(td_prefix_tree *t, td_prefix_node *leaf, int32_t *pages, uint32_t n)
{
  int32_t page = leaf->last_page;
  for (uint32_t i = 0; i < n; i++) {
    pages[i] = page;
    __builtin_prefetch(tokens_of(t, page), 1);
    __builtin_prefetch(&t->links[t->links[page].far]);
    if (t->events)
      td_page_events_remove(t->events, page);
    page = t->links[page].prev;
  }
  leaf->last_page = page;
  leaf->n_pages -= n;
}

static void remove_leaf(td_prefix_tree *t, uint32_t id)
{
  uint32_t parent = t->nodes[id].parent;
  unlink_child(t, id);
  lru_remove(t, id);
  if (parent != TD_NO_NODE)
    t->nodes[parent].n_children--;
  free_node(t, id);
}

void td_prefix_tree_evict(td_prefix_tree *t, int32_t *pages, uint32_t n)
{
  TD_BUG_ON(n > t->n_unpinned_pages);
  t->n_pages -= n;
  t->n_unpinned_pages -= n;
  t->n_evicted_pages += n;
  while (n > 0) {
    uint32_t id = t->lru_oldest, n_run = t->nodes[id].n_pages < n ? t->nodes[id].n_pages : n;
    TD_BUG_ON(t->nodes[id].n_children != 0);
    cut_run(t, &t->nodes[id], pages, n_run);
    if (t->nodes[id].n_pages == 0)
      remove_leaf(t, id);
    pages += n_run;
    n -= n_run;
  }
}
