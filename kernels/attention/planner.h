/* What the files of kernels/attention/ share.
 *
 *   planner.c  create; one plan: from nothing, or only lengths anew
 *   tree.c     which rows have which pages in common, found in the page tables
 *   pack.c     which of that becomes a shared-prefix group; members in order
 *   prefix_splits.c  into how many splits groups are cut, and how many CTAs do them
 *   cost.c     what keys, splits and partials take, as predicted */
#ifndef TD_KERNELS_ATTENTION_PLANNER_H
#define TD_KERNELS_ATTENTION_PLANNER_H

#include <stdbool.h>

#include "kernels/attention/plan.h"

#define NONE UINT32_MAX

/* For what a loop does with a copy of its state: the copy stays in registers only where all that gets its
 * address is inlined. What is written elsewhere would have to be taken for a change of it otherwise. */
#define ALWAYS_INLINE inline __attribute__((always_inline))

/* A decode, as the plan before had it. */
typedef struct planned_row {
  uint32_t slot, page_table_offset, kv_len;
  uint32_t token;
  uint32_t member;    /* its place among the members */
  uint32_t first_key; /* of its private KV, if no window moves it */
  uint32_t probe;     /* its last shared page: index into page_table, or NONE */
  int32_t probe_page;
  uint32_t next; /* in the list of rows that end at the same node */
} planned_row;

/* Rows that begin with the same pages, up to where some of them part. Pages [begin, end), as rep's table has
 * them. The root has none; a node of one row is that row's own. */
typedef struct tree_node {
  uint32_t begin, end;
  int32_t first_page, last_page;
  uint32_t rep;                          /* a row that passes here */
  uint32_t parent, child, sibling;       /* child: the first of a list of all */
  uint32_t shared_child, shared_sibling; /* those that several rows pass */
  uint32_t rows;                         /* list of those that end here */
  uint32_t n_rows;                       /* that pass or end here; */
  uint32_t n_own;                        /* of them, those that no child shares with others: pack.c */
  uint32_t hash_next;
  uint32_t reserved[2];
} tree_node;
_Static_assert(sizeof(tree_node) == 64, "a node is a line of the cache");

enum { BUCKETS_PER_ROW = 4 }; /* and a row makes two nodes at most */

/* A node that the last row passed; of what came since the row before last parted from it, n_rows are not yet
 * in the node's. */
typedef struct path_step {
  uint32_t node, end;
  int32_t last_page;
  uint32_t n_rows;
} path_step;

typedef struct page_tree {
  tree_node *nodes;     /* [2 * max_rows + 1], 0 is the root */
  path_step *path;      /* [max_rows + 1] from the root to where the last row ended */
  uint32_t depth, left; /* left: where the row before went on when the last one parted from it, or NONE */
  uint32_t n_nodes;
  uint32_t *buckets; /* by a node's first page */
  uint32_t mask;
} page_tree;

/* The costs of config.cost for this shape. */
typedef struct unit_costs {
  double key_us[2][3]; /* a key of one head: [read from memory, from the L2 cache], for at most 16, 64 and 128
                          query rows */
  double partial_us;   /* of a member and head */
  uint32_t l2_keys;    /* of all heads, that stay in the L2 cache */
  /* of all heads: a row's partial; for each of its rows, a full tile more: its begin, and a key, from memory
   * or the L2 cache */
  float row_partial_us, row_tile_us, row_tile_key_us[2];
} unit_costs;

enum { CARRY_MAX = 8 }; /* levels over which pack.c looks ahead */

/* Something for each of CARRY_MAX ancestors, four at once: wider ones are made of single numbers where the
 * machine has none. */
enum { LANES = 4, CARRY_PARTS = CARRY_MAX / LANES };
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t int_lanes __attribute__((vector_size(LANES * sizeof(int32_t))));

/* What pack.c finds for a shared node, by j in all: its group would begin where its j-th ancestor does. */
typedef struct node_packing {
  int_lanes begin[CARRY_PARTS]; /* page */
  lanes pushed_us[CARRY_PARTS]; /* the least time of all below, if it begins at j + 1, or at the last there is
                                 */
  lanes gain_us[CARRY_PARTS];   /* of staying in its parent's group, if that begins at the parent's j-th
                                   ancestor */
  int_lanes n_group[CARRY_PARTS]; /* rows of its group, 0: it has none; */
  int_lanes own_way[CARRY_PARTS]; /* twice those of them that no child shares, and 1 where children need to
                                     gain a tile's part to stay */
  float us;                       /* the least time of all below, if its group begins with it */
  uint32_t depth;                 /* at most CARRY_MAX: so many j there are */
} node_packing;

struct td_attention_planner {
  td_attention_planner_config config;
  unit_costs unit;
  uint32_t tile;       /* members of a group, at most */
  uint32_t page_shift; /* page_tokens is 1 << this */
  bool has_plan, has_grown;
  uint32_t n_rows;
  planned_row *rows; /* [max_rows] */
  page_tree tree;
  node_packing *packing;        /* [nodes] */
  td_attention_group *groups;   /* [max_groups] */
  uint8_t *group_cost;          /* [max_groups] cost_class of its keys */
  uint32_t *sources;            /* [max_sources] numbers of groups */
  struct {                      /* pack.c: groups in another order */
    uint32_t *first, *place;    /* [max_rows + 1] of each member's first ones, [max_groups] of each group */
    td_attention_group *groups; /* [max_groups] */
    uint8_t *cost;              /* [max_groups] */
  } sorted;
  uint32_t max_groups, max_sources, max_slots;
  uint32_t n_groups, n_members, n_sources;
  uint64_t private_keys; /* of all rows */
  uint64_t shared_keys;  /* of all groups, once */
  td_attention_header *block;
  td_attention_stats stats;
};

/* tree.c: from rows[0 .. n_rows). */
void td_attention_tree_build(td_attention_planner *p, const int32_t *page_table);

/* pack.c: members, groups and sources, from the tree; share false: from the rows alone. */
void td_attention_pack(td_attention_planner *p, bool share);

enum { SPLIT_ROUNDS = 2 }; /* of resident CTAs, for which groups are split at most */

/* planner.c */
uint32_t td_attention_groups_max(const td_attention_planner_config *c, uint32_t n_rows);

/* prefix_splits.c: groups' splits and slots, sources in the block. False: more slots than there are. */
bool td_attention_split_prefixes(td_attention_planner *p);
double td_attention_longest_us(const td_attention_planner *p);
uint32_t td_attention_prefix_ctas(
    const td_attention_planner *p); /* as rows are now: td_attention_header.prefix_ctas */

/* cost.c */
unit_costs td_attention_unit_costs(const td_attention_planner_config *c, uint32_t tile_members);

static inline uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

static inline uint32_t tiles_of(uint32_t query_rows)
{
  return query_rows <= 16 ? 0 : query_rows <= 64 ? 1 : 2;
}

/* A key of one head for so many query rows; again: some other group has read it too, and it is in the L2
 * cache. */
static inline double key_us(const td_attention_planner *p, uint32_t query_rows, bool again)
{
  return p->unit.key_us[again][tiles_of(query_rows)];
}

static inline bool stays_in_l2(const td_attention_planner *p, uint32_t keys)
{
  return keys <= p->unit.l2_keys;
}

/* The same cost as a number: index of key_us as a flat array. */
static inline uint8_t cost_class(uint32_t query_rows, bool again)
{
  return (uint8_t)(again * 3 + tiles_of(query_rows));
}

#endif
