/* The prefix tree: a radix tree over token ids of the computed pages that can be used again.
 *
 * A node is a run of one or more pages. A path from the top spells the tokens of a prefix. The children of a
 * node differ in their first page and are found by a hash of that page's tokens. The hash only chooses where
 * to look: pages match if they compare equal token by token. A node is split at a page boundary when a path
 * must end inside it, so every path in use ends at the end of a node. Split nodes are not merged again.
 *
 * Requests pin the path that they use. A node's pins are the requests whose path ends there plus its children
 * that have pins. So pinning a path whose upper part is in use anyway costs one step, and a node with no pins
 * has no pinned descendant. Unpinned nodes are in one list, least recently used first. A node enters the list
 * when its last pin goes, children before parents. So the front of the list is always a leaf, and eviction
 * takes the last page of the front node in O(1).
 *
 * Namespaces: a node of the top level belongs to the namespace that made it, and is invisible to the
 * others. */
#ifndef TD_SCHEDULER_PREFIX_TREE_H
#define TD_SCHEDULER_PREFIX_TREE_H

#include <stdbool.h>
#include <stdint.h>

#include "scheduler/page_events.h"
#include "scheduler/page_pool.h"

#define TD_NO_NODE UINT32_MAX
#define TD_NO_PAGE (-1)

typedef struct td_prefix_node {
  uint64_t namespace_id;
  uint32_t parent;  /* TD_NO_NODE: top level */
  uint32_t n_pages; /* >= 1; 0: the node is unused */
  int32_t first_page, last_page;
  uint32_t pins; /* requests that end here + children with pins */
  uint32_t n_children;
  uint32_t hash;                 /* of (namespace, parent, first page's tokens) */
  uint32_t hash_next;            /* chain of the bucket; the free list of unused nodes */
  uint32_t lru_older, lru_newer; /* only while pins == 0 */
} td_prefix_node;

/* A page of a node's run. prev of the first page and next of the last are undefined: the node's n_pages
 * ends the run. */
typedef struct td_page_link {
  int32_t prev, next;
  int32_t far; /* a page some way before it in the run when it was appended. A walk back along the run
                * prefetches that page's line */
  int32_t unused;
} td_page_link;

typedef struct td_prefix_tree {
  td_page_pool *pool;     /* borrowed: takes back pages that the tree turns out to have already */
  td_page_events *events; /* borrowed: is told of pages that come and go; NULL: not wanted */
  uint32_t page_tokens;
  uint64_t hash_seed;
  td_prefix_node *nodes; /* [pool->n_pages]: a node has at least one page, so this is enough */
  uint32_t free_node;    /* list through hash_next */
  uint32_t *buckets;     /* [bucket_mask + 1] */
  uint32_t bucket_mask;
  int32_t *page_tokens_of;         /* [n_pages][page_tokens]: the tokens of each page of the tree; whole cache
                                    * lines */
  td_page_link *links;             /* [n_pages] */
  uint32_t lru_oldest, lru_newest; /* unpinned nodes */
  uint32_t n_nodes, n_pages, n_unpinned_pages;
  uint64_t n_evicted_pages;
} td_prefix_tree;

/* The longest path that matches. Valid until the tree changes. */
typedef struct td_prefix_hit {
  uint32_t n_pages;          /* of the whole path; 0: no hit */
  uint32_t n_unpinned_pages; /* how many of them are evictable until the path is pinned */
  uint32_t node;             /* the last node */
  uint32_t n_node_pages;     /* pages matched in the last node; may be fewer than it has */
} td_prefix_hit;

/* hash_seed only decides which nodes share a bucket. Keep it secret, because clients choose tokens. */
TD_MUST_CHECK bool td_prefix_tree_init(td_prefix_tree *t, td_page_pool *pool, uint32_t page_tokens,
                                       uint64_t hash_seed); /* false: no memory */
void td_prefix_tree_deinit(td_prefix_tree *t);

/* The tokens of a page of the tree: [page_tokens]. */
static inline const int32_t *td_prefix_tree_tokens(const td_prefix_tree *t, int32_t page)
{
  return t->page_tokens_of + (size_t)page * t->page_tokens;
}

/* The hash of the child of `parent` (TD_NO_NODE: at the top) that begins with this page of tokens. */
uint32_t td_prefix_tree_hash(const td_prefix_tree *t, uint64_t namespace_id, uint32_t parent,
                             const int32_t *tokens);
/* The longest prefix of tokens[0 .. max_pages * page_tokens) in the namespace. Changes nothing. */
td_prefix_hit td_prefix_tree_find(const td_prefix_tree *t, uint64_t namespace_id, const int32_t *tokens,
                                  uint32_t max_pages);
/* Pins the path of a hit (splitting its last node if the hit ends inside) and returns the node at its end.
 * Writes the path's page ids to pages [hit->n_pages]. The caller may use these pages while it pins the
 * path. */
uint32_t td_prefix_tree_pin_hit(td_prefix_tree *t, const td_prefix_hit *hit, int32_t *pages);

/* Adds n computed pages below the end of the caller's pinned path (TD_NO_NODE: at the top), moves the pin
 * to the new end and returns it. The tree owns the pages from then on. tokens: the n * page_tokens tokens
 * of these pages. If the tree has a page already, the caller's page goes back to the pool and pages[i]
 * becomes the tree's page. This holds for the first *n_switched pages. */
uint32_t td_prefix_tree_extend(td_prefix_tree *t, uint64_t namespace_id, uint32_t node, const int32_t *tokens,
                               int32_t *pages, uint32_t n, uint32_t *n_switched);
void td_prefix_tree_unpin(td_prefix_tree *t, uint32_t node); /* TD_NO_NODE: nothing to do */

/* Takes n pages out of the tree and hands them to the caller: each time the last page of the least
 * recently used leaf. n must be at most n_unpinned_pages. */
void td_prefix_tree_evict(td_prefix_tree *t, int32_t *pages, uint32_t n);

/* Checks structure, counters, list and pins. The caller counts the pins of requests into expected_pins
 * [n_pages of the pool]. The check adds the children's pins, compares, and then overwrites the array. Adds
 * 1 to held[page] for each page of the tree. */
void td_prefix_tree_check(const td_prefix_tree *t, uint32_t *expected_pins, uint32_t *held);

#endif
