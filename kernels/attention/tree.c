/* Which rows have which pages in common: a radix tree over page ids, made from the page tables.
 *
 * A node is found by a hash of its first page. Two rows that have the same page at one place have all pages before it in
 * common (plan.h), so one comparison at a node's last page says that a row passes it; if not, a binary search finds
 * where they part. So a row costs a look-up and a comparison or a few per level, however long its context is.
 *
 * Only pages that are full and that the step does not write count: a shared span is never longer than what the step
 * finds done, and every row keeps at least one key of its own. */
#include "kernels/attention/planner.h"

#include <string.h>

enum { AHEAD = 8 }; /* rows whose tables are far apart in memory */

static uint32_t bucket_of(const page_tree *t, int32_t page, uint32_t begin)
{
  uint64_t h = ((uint64_t)(uint32_t)page << 20 ^ begin) * 0x9e3779b97f4a7c15u;
  return (uint32_t)(h >> 40) & t->mask;
}

/* A node with no rows yet, in its bucket, in no parent's list. Filled field by field: a copy of a struct just written is slow. */
static uint32_t new_node(page_tree *t, uint32_t begin, uint32_t end, int32_t first_page, uint32_t rep, uint32_t parent)
{
  uint32_t id = t->n_nodes++, *bucket = &t->buckets[bucket_of(t, first_page, begin)];
  tree_node *n = &t->nodes[id];
  n->begin = begin;
  n->end = end;
  n->first_page = first_page;
  n->rep = rep;
  n->parent = parent;
  n->child = n->sibling = n->rows = NONE;
  n->n_rows = n->n_own = 0;
  n->hash_next = *bucket;
  *bucket = id;
  return id;
}

typedef struct tables {
  const int32_t *pages;
  const planned_row *rows;
} tables;

static const int32_t *pages_of(const tables *in, uint32_t row) { return in->pages + in->rows[row].page_table_offset; }

static uint32_t find_child(const page_tree *t, uint32_t parent, int32_t page, uint32_t begin)
{
  uint32_t id = t->buckets[bucket_of(t, page, begin)];
  while (id != NONE && (t->nodes[id].first_page != page || t->nodes[id].begin != begin || t->nodes[id].parent != parent))
    id = t->nodes[id].hash_next;
  return id;
}

/* How far two rows agree, that agree at page begin. */
static uint32_t common_end(const int32_t *a, const int32_t *b, uint32_t begin, uint32_t end)
{
  if (a[end - 1] == b[end - 1])
    return end;
  uint32_t same = begin, other = end - 1;
  while (other - same > 1) {
    uint32_t middle = same + (other - same) / 2;
    if (a[middle] == b[middle])
      same = middle;
    else
      other = middle;
  }
  return other;
}

/* Ends node id at page `end`; what it was goes on below it. */
static void split(page_tree *t, const tables *in, uint32_t id, uint32_t end)
{
  tree_node *n = &t->nodes[id];
  const int32_t *pages = pages_of(in, n->rep);
  uint32_t lower_id = new_node(t, end, n->end, pages[end], n->rep, id);
  tree_node *lower = &t->nodes[lower_id];
  lower->last_page = n->last_page;
  lower->child = n->child;
  lower->rows = n->rows;
  lower->n_rows = n->n_rows;
  for (uint32_t c = lower->child; c != NONE; c = t->nodes[c].sibling)
    t->nodes[c].parent = lower_id;
  n->end = end;
  n->last_page = pages[end - 1];
  n->child = lower_id;
  n->rows = NONE;
}

static void insert(page_tree *t, const tables *in, planned_row *rows, uint32_t row, uint32_t n_pages)
{
  const int32_t *pages = pages_of(in, row);
  uint32_t at = 0, id = 0;
  t->nodes[0].n_rows++;
  while (at < n_pages) {
    uint32_t child = find_child(t, id, pages[at], at);
    if (child == NONE) {
      child = new_node(t, at, n_pages, pages[at], row, id);
      t->nodes[child].last_page = pages[n_pages - 1];
      t->nodes[child].sibling = t->nodes[id].child;
      t->nodes[id].child = child;
      at = n_pages;
    } else {
      uint32_t end = t->nodes[child].end;
      if (end <= n_pages && pages[end - 1] == t->nodes[child].last_page) {
        at = end;
      } else {
        at = common_end(pages, pages_of(in, t->nodes[child].rep), at, end < n_pages ? end : n_pages);
        if (at < end)
          split(t, in, child, at);
      }
    }
    id = child;
    t->nodes[id].n_rows++;
  }
  rows[row].next = t->nodes[id].rows;
  t->nodes[id].rows = row;
}

void td_attention_tree_build(td_attention_planner *p, const int32_t *page_table)
{
  page_tree *t = &p->tree;
  tables in = {page_table, p->rows};
  uint32_t page_tokens = p->config.page_tokens, window = p->config.window_tokens, n_buckets = 16;
  while (n_buckets < 2 * p->n_rows)
    n_buckets *= 2;
  t->mask = n_buckets - 1;
  memset(t->buckets, 0xff, n_buckets * sizeof *t->buckets);
  t->nodes[0] = (tree_node){.rep = NONE, .parent = NONE, .child = NONE, .sibling = NONE, .rows = NONE, .hash_next = NONE};
  t->n_nodes = 1;
  for (uint32_t r = 0; r < p->n_rows; r++) {
    if (r + AHEAD < p->n_rows)
      __builtin_prefetch(page_table + p->rows[r + AHEAD].page_table_offset);
    bool windowed = window > 0 && p->rows[r].kv_len > window; /* its begin moves: no span with others */
    insert(t, &in, p->rows, r, windowed ? 0 : (p->rows[r].kv_len - 1) / page_tokens);
  }
}
