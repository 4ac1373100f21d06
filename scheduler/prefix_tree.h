/* Which computed pages can be used again: a radix tree over token ids, one page of tokens per step down.
 *
 * A node is a run of one or more pages; a path from the top spells the tokens of a prefix. The children of a
 * node differ in their first page, and are found by a hash of that page's tokens; the hash only chooses where
 * to look, equal is what compares equal token by token. A node is split at a page boundary when a path must
 * end inside it, so every path in use ends at the end of a node.
 *
 * Requests pin the path they use. A pin is counted once per request at the end of its path, and once at a
 * node for each of its children that is pinned; so pinning a path whose upper part is in use anyway costs one
 * step, and a node with no pins has no pinned descendant. Unpinned nodes stand in one list, least recently
 * used first. A node enters it when its last pin goes, children before parents, so the front of the list
 * always is a leaf: eviction takes the last page of the front node, in O(1). What was split is not merged
 * again.
 *
 * Namespaces: a node of the top level belongs to the namespace that made it, and is invisible to the others.
 */
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
  uint32_t hash_next;            /* chain of the bucket; of unused nodes, the free list */
  uint32_t lru_older, lru_newer; /* only while pins == 0 */
} td_prefix_node;

/* A page of a node's run. Of the first page prev, and of the last one next, are whatever they were: runs are
 * counted. */
typedef struct td_page_link {
  int32_t prev, next;
  int32_t far; /* one some way before it, as it was appended: who goes back along the run may ask for that
                  one's line meanwhile */
  int32_t unused;
} td_page_link;

typedef struct td_prefix_tree {
  td_page_pool *pool;     /* borrowed: where pages go that turn out to be in the tree already */
  td_page_events *events; /* borrowed: what is told of pages that come and go; NULL: nobody asks */
  uint32_t page_tokens;
  uint64_t hash_seed;
  td_prefix_node *nodes; /* [pool->n_pages]: a node has at least one page, so this is enough */
  uint32_t free_node;    /* list through hash_next */
  uint32_t *buckets;     /* [bucket_mask + 1] */
  uint32_t bucket_mask;
  int32_t *page_tokens_of; /* [n_pages][page_tokens]: what each page of the tree was computed from; whole
                              cache lines */
  td_page_link *links;     /* [n_pages] */
  uint32_t lru_oldest, lru_newest; /* unpinned nodes */
  uint32_t n_nodes, n_pages, n_unpinned_pages;
  uint64_t n_evicted_pages;
} td_prefix_tree;

/* The longest path that matches. Valid until the tree changes. */
typedef struct td_prefix_hit {
  uint32_t n_pages;          /* whole path; 0: no hit */
  uint32_t n_unpinned_pages; /* those of them which pinning the path would take from the evictable ones */
  uint32_t node;             /* the last node */
  uint32_t n_node_pages;     /* pages matched in it; may end inside */
} td_prefix_hit;

/* hash_seed changes nothing but which nodes share a bucket; keep it secret from clients who choose tokens. */
TD_MUST_CHECK bool td_prefix_tree_init(td_prefix_tree *t, td_page_pool *pool, uint32_t page_tokens,
                                       uint64_t hash_seed); /* false: no memory */
void td_prefix_tree_deinit(td_prefix_tree *t);

/* [page_tokens] of a page of the tree. */
static inline const int32_t *td_prefix_tree_tokens(const td_prefix_tree *t, int32_t page)
{
  return t->page_tokens_of + (size_t)page * t->page_tokens;
}

/* Where to look for the child of `parent` (TD_NO_NODE: at the top) that begins with this page of tokens. */
uint32_t td_prefix_tree_hash(const td_prefix_tree *t, uint64_t namespace_id, uint32_t parent,
                             const int32_t *tokens);
/* The longest prefix of tokens[0 .. max_pages * page_tokens) in the namespace. Changes nothing. */
td_prefix_hit td_prefix_tree_find(const td_prefix_tree *t, uint64_t namespace_id, const int32_t *tokens,
                                  uint32_t max_pages);
/* Pins the path of a hit (splitting its last node if it ends inside) and returns the node at its end; writes
 * the path's page ids to pages [hit->n_pages]: the caller's to use while it pins the path. */
uint32_t td_prefix_tree_pin_hit(td_prefix_tree *t, const td_prefix_hit *hit, int32_t *pages);

/* Adds n computed pages below the caller's pinned path end (TD_NO_NODE: at the top), and moves the pin to the
 * new end, which is returned; the pages are the tree's from then on. tokens: the n * page_tokens tokens of
 * these pages. Where the tree has a page already, the caller's goes back to the pool and pages[i] becomes the
 * tree's: these are the first *n_switched ones. */
uint32_t td_prefix_tree_extend(td_prefix_tree *t, uint64_t namespace_id, uint32_t node, const int32_t *tokens,
                               int32_t *pages, uint32_t n, uint32_t *n_switched);
void td_prefix_tree_unpin(td_prefix_tree *t, uint32_t node); /* TD_NO_NODE: nothing to do */

/* Takes out n pages, one after the other the last page of the least recently used leaf; they are the caller's
 * now. There must be so many that nobody has pinned (n_unpinned_pages). */
void td_prefix_tree_evict(td_prefix_tree *t, int32_t *pages, uint32_t n);

/* Structure, counters and list; not the pins, which only the owner of the requests can count: it sums into
 * expected_pins [n_pages of the pool] what the requests hold, and this adds the children's part and compares.
 * Adds 1 to held[page] for each page of the tree. */
void td_prefix_tree_check(const td_prefix_tree *t, uint32_t *expected_pins, uint32_t *held);

#endif
