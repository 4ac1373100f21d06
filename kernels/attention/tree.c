/* Finds which rows have which pages in common: a radix tree over page ids, made from the page tables.
 *
 * A hash of its first page finds a node. Two rows with the same page at the same index have all pages before
 * it in common (plan.h), so one comparison at a node's last page shows that a row passes the node. If it does
 * not pass, a binary search finds where it parts. So a row costs a look-up and a few comparisons per level,
 * however long its context is.
 *
 * Only full pages that the step does not write count. So a shared-prefix group holds only keys that are
 * computed before the step, and every row keeps at least one key of its own. */
#include "kernels/attention/planner.h"

#include <string.h>

enum { AHEAD = 8 /* rows whose tables are prefetched: they are far apart in memory */, NEAR_PAGES = 32 };

static uint32_t bucket_of(const page_tree *t, int32_t page, uint32_t begin)
{
  uint64_t h = ((uint64_t)(uint32_t)page << 20 ^ begin) * 0x9e3779b97f4a7c15u;
  return (uint32_t)(h >> 40) & t->mask;
}

/* Makes a node without rows and puts it into its bucket, but into no parent's list. Sets field by field,
 * because copying a struct that was just written is slow. */
static TD_ALWAYS_INLINE uint32_t new_node(page_tree *t, uint32_t begin, uint32_t end, int32_t first_page,
                                          uint32_t rep, uint32_t parent)
{
  uint32_t id = t->n_nodes++, *bucket = &t->buckets[bucket_of(t, first_page, begin)];
  tree_node *n = &t->nodes[id];
  n->begin = begin;
  n->end = end;
  n->first_page = first_page;
  n->rep = rep;
  n->parent = parent;
  n->child = n->sibling = n->shared_child = n->rows = TD_NONE;
  n->n_rows = 0;
  n->hash_next = *bucket;
  *bucket = id;
  return id;
}

typedef struct tables {
  const int32_t *pages;
  const planned_row *rows;
} tables;

static const int32_t *pages_of(const tables *in, uint32_t row)
{
  return in->pages + in->rows[row].page_table_offset;
}

static TD_ALWAYS_INLINE uint32_t find_child(const page_tree *t, uint32_t parent, int32_t page, uint32_t begin)
{
  uint32_t id = t->buckets[bucket_of(t, page, begin)];
  while (id != TD_NONE &&
         (t->nodes[id].first_page != page || t->nodes[id].begin != begin || t->nodes[id].parent != parent))
    id = t->nodes[id].hash_next;
  return id;
}

/* Returns the page at which two rows part that agree at page `begin`. Most part soon, so the first pages are
 * compared in order, two at a time. Then a binary search halves the rest, without branches on the data. */
static TD_ALWAYS_INLINE uint32_t common_end(const int32_t *a, const int32_t *b, uint32_t begin, uint32_t end)
{
  if (a[end - 1] == b[end - 1])
    return end;
  uint32_t at = begin + 1, near = end - begin > NEAR_PAGES ? begin + NEAR_PAGES : end - 1;
  for (; at + 2 <= near; at += 2) {
    uint64_t x, y;
    memcpy(&x, a + at, sizeof x);
    memcpy(&y, b + at, sizeof y);
    if (x != y)
      return at + (a[at] == b[at]);
  }
  uint32_t same = at - 1;
  for (uint32_t left = end - 1 - same, half; left > 1;
       left -= half) { /* they part at one of same + 1 .. same + left */
    half = left / 2;
    same += a[same + half] == b[same + half] ? half : 0;
  }
  return same + 1;
}

/* Ends node `id` at page `end` and moves the rest of it into a new child. */
static TD_ALWAYS_INLINE void split(page_tree *t, const tables *in, uint32_t id, uint32_t end)
{
  tree_node *n = &t->nodes[id];
  const int32_t *pages = pages_of(in, n->rep);
  uint32_t lower_id = new_node(t, end, n->end, pages[end], n->rep, id);
  tree_node *lower = &t->nodes[lower_id];
  lower->last_page = n->last_page;
  lower->child = n->child;
  lower->rows = n->rows;
  lower->n_rows = n->n_rows;
  lower->shared_child = n->shared_child;
  lower->shared_sibling = TD_NONE;
  for (uint32_t c = lower->child; c != TD_NONE; c = t->nodes[c].sibling)
    t->nodes[c].parent = lower_id;
  n->end = end;
  n->last_page = pages[end - 1];
  n->child = lower_id;
  n->shared_child = n->n_rows > 1 ? lower_id : TD_NONE;
  n->rows = TD_NONE;
}

static TD_ALWAYS_INLINE void push(page_tree *t, uint32_t id)
{
  const tree_node *n = &t->nodes[id];
  t->path[t->depth++] = (path_step){id, n->end, n->last_page, 0};
}

/* Removes the path's last node: adds its rows to the node and to its parent's count on the path. */
static TD_ALWAYS_INLINE void pop(page_tree *t)
{
  const path_step *step = &t->path[--t->depth];
  tree_node *n = &t->nodes[step->node], *parent = &t->nodes[n->parent];
  bool was_shared = n->n_rows > 1;
  n->n_rows += step->n_rows;
  t->path[t->depth - 1].n_rows += step->n_rows;
  if (n->n_rows > 1 && !was_shared) {
    n->shared_sibling = parent->shared_child;
    parent->shared_child = step->node;
  }
}

/* Returns the child of node `id` on which the row goes on at page `at`. Makes or splits a node if needed. */
static TD_ALWAYS_INLINE uint32_t find_or_make(page_tree *t, const tables *in, uint32_t row, uint32_t n_pages,
                                              uint32_t id, uint32_t at)
{
  const int32_t *pages = pages_of(in, row);
  uint32_t child = t->parted_node; /* mostly a node that the previous row left here, or none */
  if (child == TD_NONE || t->nodes[child].first_page != pages[at] || t->nodes[child].parent != id)
    child = find_child(t, id, pages[at], at);
  if (child == TD_NONE) {
    child = new_node(t, at, n_pages, pages[at], row, id);
    t->nodes[child].last_page = pages[n_pages - 1];
    t->nodes[child].sibling = t->nodes[id].child;
    t->nodes[id].child = child;
    return child;
  }
  uint32_t end = t->nodes[child].end;
  if (end > n_pages || pages[end - 1] != t->nodes[child].last_page) {
    uint32_t part = common_end(pages, pages_of(in, t->nodes[child].rep), at, end < n_pages ? end : n_pages);
    if (part < end)
      split(t, in, child, part);
  }
  return child;
}

/* Inserts a row. It follows the previous row's path as far as it can, because neighbours mostly have their
 * first pages in common. */
static TD_ALWAYS_INLINE void insert(page_tree *t, const tables *in, planned_row *rows, uint32_t row,
                                    uint32_t n_pages)
{
  const int32_t *pages = pages_of(in, row);
  uint32_t same = t->depth; /* from the end: a row that passes a node passes all nodes above it */
  while (same > 1 &&
         (t->path[same - 1].end > n_pages || pages[t->path[same - 1].end - 1] != t->path[same - 1].last_page))
    same--;
  t->parted_node = same < t->depth ? t->path[same].node : TD_NONE;
  while (t->depth > same)
    pop(t);
  for (const path_step *at = &t->path[t->depth - 1]; at->end < n_pages; at++)
    push(t, find_or_make(t, in, row, n_pages, at->node, at->end));
  path_step *end = &t->path[t->depth - 1];
  end->n_rows++;
  rows[row].next = t->nodes[end->node].rows;
  t->nodes[end->node].rows = row;
}

void td_attention_tree_build(td_attention_planner *p, const int32_t *page_table)
{
  page_tree tree = p->tree, *t = &tree;
  planned_row *rows = p->rows;
  tables in = {page_table, rows};
  uint32_t window = p->config.window_tokens, n_buckets = 16;
  while (n_buckets < BUCKETS_PER_ROW * p->n_rows)
    n_buckets *= 2;
  t->mask = n_buckets - 1;
  memset(t->buckets, 0xff, n_buckets * sizeof *t->buckets);
  t->nodes[0] = (tree_node){.first_page = -1,
                            .rep = TD_NONE,
                            .parent = TD_NONE,
                            .child = TD_NONE,
                            .sibling = TD_NONE,
                            .shared_child = TD_NONE,
                            .shared_sibling = TD_NONE,
                            .rows = TD_NONE,
                            .hash_next = TD_NONE};
  t->n_nodes = 1;
  t->depth = 0;
  push(t, 0);
  uint32_t page_shift = p->page_shift, n_rows = p->n_rows;
  for (uint32_t r = 0; r < n_rows; r++) {
    if (r + AHEAD < n_rows)
      __builtin_prefetch(page_table + rows[r + AHEAD].page_table_offset);
    bool windowed = window > 0 && rows[r].kv_len > window; /* its first key moves: no group */
    insert(t, &in, rows, r, windowed ? 0 : (rows[r].kv_len - 1) >> page_shift);
  }
  while (t->depth > 1)
    pop(t);
  t->nodes[0].n_rows = n_rows;
  p->tree = tree;
}
