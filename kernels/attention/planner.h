/* What the files of kernels/attention/ share.
 *
 *   planner.c  create; one plan: from nothing, or only lengths anew
 *   tree.c     which rows have which pages in common, found in the page tables
 *   pack.c     which of that is worth a span of its own; members in order, shared spans
 *   cut.c      lines to tasks: equal ranges for the workers
 *   cost.c     what pieces take, as predicted */
#ifndef TD_KERNELS_ATTENTION_PLANNER_H
#define TD_KERNELS_ATTENTION_PLANNER_H

#include <stdbool.h>

#include "kernels/attention/plan.h"

#define NONE UINT32_MAX

/* A decode row, as the plan before had it. */
typedef struct planned_row {
  uint32_t slot, page_table_offset, kv_len;
  uint32_t token;
  uint32_t member;    /* its place among the members */
  uint32_t first_key; /* of its own span, if no window moves it */
  uint32_t probe;     /* its last shared page: index into page_table, or NONE */
  int32_t probe_page;
  uint32_t next; /* in the list of rows that end at the same node */
} planned_row;

/* Rows that begin with the same pages, up to where some of them part. Pages [begin, end), as rep's table has them. The
 * root has none; a node of one row is that row's own. */
typedef struct tree_node {
  uint32_t begin, end;
  int32_t first_page, last_page;
  uint32_t rep; /* a row that passes here */
  uint32_t parent, child, sibling;
  uint32_t rows; /* list of those that end here */
  uint32_t n_rows, n_own; /* that pass or end here; of them, those that no child shares with others */
  uint32_t own_child;     /* pack.c puts children of one row into a list of their own; child has the others then */
  uint32_t hash_next;
} tree_node;

typedef struct page_tree {
  tree_node *nodes; /* [2 * max_rows + 1], 0 is the root */
  uint32_t n_nodes;
  uint32_t *buckets; /* by a node's first page */
  uint32_t mask;
} page_tree;

/* The costs of config.cost for this shape. */
typedef struct unit_costs {
  double key_us[2][3]; /* a key of one head: [read from memory, from the L2 cache], for at most 16, 64 and 128 query rows */
  double partial_us;   /* of a member and head */
} unit_costs;

enum { CARRY_MAX = 8 }; /* levels over which pack.c looks ahead */

struct td_attention_planner {
  td_attention_planner_config config;
  unit_costs unit;
  uint32_t tile; /* members of a shared span, at most */
  bool has_plan;
  uint32_t n_rows;
  planned_row *rows; /* [max_rows] */
  page_tree tree;
  uint32_t *walk;              /* [nodes] shared nodes, parents before children */
  double (*best)[CARRY_MAX];   /* [nodes] pack.c */
  uint32_t *member_row;        /* [max_rows] */
  td_attention_span *shared;   /* [max_shared] */
  double *shared_key_us;       /* [max_shared] */
  uint32_t *sources;           /* [max_sources] */
  double *ends_us, *shared_us; /* [n_workers] cut.c: where ranges end; what shared spans take of each */
  uint32_t max_shared, max_sources, max_slots, max_tasks;
  uint32_t n_shared, n_members, n_sources, n_sharing; /* n_sharing: members with shared spans */
  uint64_t own_keys; /* of all rows' own spans */
  uint64_t cut_keys; /* own_keys when the cuts were made */
  td_attention_header *block;
  uint32_t block_bytes;
  td_attention_stats stats;
};

/* tree.c: from rows[0 .. n_rows). */
void td_attention_tree_build(td_attention_planner *p, const int32_t *page_table);

/* pack.c: members, shared spans and sources, from the tree; pack false: from the rows alone. */
void td_attention_pack(td_attention_planner *p, bool pack);

/* cut.c: spans' tasks and slots in the block. False: more slots than there are. */
bool td_attention_cut(td_attention_planner *p);
double td_attention_longest_us(const td_attention_planner *p);

/* cost.c */
unit_costs td_attention_unit_costs(const td_attention_planner_config *c);

static inline uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

/* A key of one head for so many query rows; again: some other span has read it too, and it is in the L2 cache. */
static inline double key_us(const td_attention_planner *p, uint32_t query_rows, bool again)
{
  return p->unit.key_us[again][query_rows <= 16 ? 0 : query_rows <= 64 ? 1 : 2];
}

static inline bool stays_in_l2(const td_attention_planner *p, uint32_t keys)
{
  return (double)keys * p->config.n_kv_heads * p->config.head_dim * 4 <= p->config.cost.l2_bytes;
}

static inline uint32_t chunk_keys(const td_attention_span *s) { return s->chunk16 * 16u; }

#endif
