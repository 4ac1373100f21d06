/* Which rows have which pages in common: a radix tree over page ids, made from the page tables.
 *
 * A node is found by a hash of its first page. Two rows that have the same page at one place have all pages
 * before it in common (plan.h), so one comparison at a node's last page says that a row passes it; if not, a
 * binary search finds where they part. So a row costs a look-up and a comparison or a few per level, however
 * long its context is.
 *
 * Only pages that are full and that the step does not write count: a shared-prefix group is never longer than
 * what the step finds done, and every row keeps at least one key of its own. */
#include "kernels/attention/planner.h"

#include <string.h>

enum { AHEAD = 8 /* rows whose tables are far apart in memory */, NEAR_PAGES = 32 };

static uint32_t bucket_of(const page_tree *t, int32_t page, uint32_t begin)
{
  uint64_t h = ((uint64_t)(uint32_t)page << 20 ^ begin) * 0x9e3779b97f4a7c15u;
  return (uint32_t)(h >> 40) & t->mask;
}

/* A node with no rows yet, in its bucket, in no parent's list. Filled field by field: a copy of a struct just
 * written is slow. */
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

/* How far two rows agree, that agree at page begin: mostly not far, so a few pages are looked at one after
 * another, two at once; then each step halves what is left, without a branch on what it finds. */
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

/* Ends node id at page `end`; what it was goes on below it. */
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

/* The path's last node gets its rows, and its parent has them too. */
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

/* Where the row goes on at page `at` below node id. */
static TD_ALWAYS_INLINE uint32_t find_or_make(page_tree *t, const tables *in, uint32_t row, uint32_t n_pages,
                                              uint32_t id, uint32_t at)
{
  const int32_t *pages = pages_of(in, row);
  uint32_t child = t->left; /* mostly a node that the row before has left here, or none */
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

/* A row goes along the path of the row before as far as it can: neighbours mostly have their first pages in
 * common. */
static TD_ALWAYS_INLINE void insert(page_tree *t, const tables *in, planned_row *rows, uint32_t row,
                                    uint32_t n_pages)
{
  const int32_t *pages = pages_of(in, row);
  uint32_t same = t->depth; /* from below: who passes a node has passed those above it */
  while (same > 1 &&
         (t->path[same - 1].end > n_pages || pages[t->path[same - 1].end - 1] != t->path[same - 1].last_page))
    same--;
  t->left = same < t->depth ? t->path[same].node : TD_NONE;
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
    bool windowed = window > 0 && rows[r].kv_len > window; /* its begin moves: no group with others */
    insert(t, &in, rows, r, windowed ? 0 : (rows[r].kv_len - 1) >> page_shift);
  }
  while (t->depth > 1)
    pop(t);
  t->nodes[0].n_rows = n_rows;
  p->tree = tree;
}
