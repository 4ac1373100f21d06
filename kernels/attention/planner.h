/* Declarations that the files of kernels/attention/ share.
 *
 *   planner.c        creates a planner; makes a plan from nothing, or updates only lengths
 *   tree.c           finds in the page tables which rows have which pages in common
 *   pack.c           chooses the shared-prefix groups and orders their members
 *   prefix_splits.c  chooses the number of prefix splits, and how many CTAs do them
 *   cost.c           predicts the time of keys, splits and partials */
#ifndef TD_KERNELS_ATTENTION_PLANNER_H
#define TD_KERNELS_ATTENTION_PLANNER_H

#include <stdbool.h>

#include "kernels/attention/plan.h"

#define TD_NONE UINT32_MAX

/* For functions that get the address of a loop's local copy of its state. The copy stays in registers only if
 * all of them are inlined; otherwise the compiler must assume that any store may change the copy. */
#define TD_ALWAYS_INLINE inline __attribute__((always_inline))

/* A decode, as the last plan has it. */
typedef struct planned_row {
  uint32_t slot, page_table_offset, kv_len;
  uint32_t token;
  uint32_t member;    /* index of its member */
  uint32_t first_key; /* of its private KV, unless a window moves it */
  uint32_t probe;     /* its last shared page, as an index into page_table, or TD_NONE */
  int32_t probe_page;
  uint32_t next; /* next in the list of rows that end at the same node */
} planned_row;

/* A node of the radix tree: rows that have pages [begin, end) and all pages before in common. `rep` is one of
 * them. The root has no pages. A node with one row is that row alone. */
typedef struct tree_node {
  uint32_t begin, end;
  int32_t first_page, last_page;
  uint32_t rep;                          /* a row that passes this node */
  uint32_t parent, child, sibling;       /* child: head of the list of all children */
  uint32_t shared_child, shared_sibling; /* likewise, of children with several rows */
  uint32_t rows;                         /* head of the list of rows that end here */
  uint32_t n_rows;                       /* rows that pass this node or end here */
  uint32_t n_own;                        /* of n_rows, those that no shared child has (pack.c) */
  uint32_t hash_next;
  uint32_t reserved[2];
} tree_node;
_Static_assert(sizeof(tree_node) == 64, "a node is a line of the cache");

enum { BUCKETS_PER_ROW = 4 }; /* a row makes at most two nodes */

/* A node on the path of the last row. Since it was pushed, n_rows rows ended here or were popped from below;
 * they are not yet counted in the node's n_rows. */
typedef struct path_step {
  uint32_t node, end;
  int32_t last_page;
  uint32_t n_rows;
} path_step;

typedef struct page_tree {
  tree_node *nodes;            /* [2 * max_rows + 1]; 0 is the root */
  path_step *path;             /* [max_rows + 2] from the root to the node where the last row ended */
  uint32_t depth, parted_node; /* parted_node: the previous row's next node where the last one parted from it,
                                  or TD_NONE */
  uint32_t n_nodes;
  uint32_t *buckets; /* hash table by a node's first page */
  uint32_t mask;
} page_tree;

/* config.cost for this planner's shape. */
typedef struct unit_costs {
  double key_us[2][3]; /* time of a key of one head: [from memory, from the L2 cache] [for at most 16, 64, 128
                          query rows] */
  double partial_us;   /* of a member and head */
  uint32_t l2_keys;    /* keys of all heads that stay in the L2 cache */
  /* For all heads: a row's partial; and a row's part of a full tile: of its start, and of a key from memory
   * or from the L2 cache. */
  float row_partial_us, row_tile_us, row_tile_key_us[2];
} unit_costs;

enum { ANCESTORS_MAX = 8 }; /* ancestors that pack.c considers as a group's begin */

/* Vectors over the ANCESTORS_MAX ancestors, four lanes each. The compiler would break wider vectors into
 * scalars on a machine that has none. */
enum { LANES = 4, ANCESTOR_PARTS = ANCESTORS_MAX / LANES };
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t int_lanes __attribute__((vector_size(LANES * sizeof(int32_t))));

/* pack.c's results for a shared node. Lane j of each vector assumes that the node's group begins where the
 * node's j-th ancestor begins. */
typedef struct node_packing {
  int_lanes begin[ANCESTOR_PARTS]; /* that ancestor's first page */
  lanes pushed_us[ANCESTOR_PARTS]; /* least time of everything below, if the group begins at ancestor j + 1,
                                      or at the last one */
  lanes gain_us[ANCESTOR_PARTS];   /* gained by staying in the parent's group, if that begins at the parent's
                                     j-th ancestor */
  int_lanes n_group[ANCESTOR_PARTS];  /* rows of the node's group; 0: it has none */
  int_lanes own_rule[ANCESTOR_PARTS]; /* twice the own rows among them; plus 1 if children stay only if they
                                     gain more than their part of a tile */
  float us;                           /* least time of everything below, if the group begins at this node */
  uint32_t depth;                     /* number of ancestors in use, at most ANCESTORS_MAX */
} node_packing;

struct td_attention_planner {
  td_attention_planner_config config;
  unit_costs unit_of_tiles, unit_of_small; /* if groups may fill a tile; if all are small */
  unit_costs unit;                         /* that of this plan */
  uint32_t tile;                           /* most members of a group of this plan */
  uint32_t page_shift;                     /* page_tokens is 1 << page_shift */
  bool has_plan, has_grown;
  uint32_t n_rows;
  planned_row *rows; /* [max_rows] */
  page_tree tree;
  node_packing *packing;         /* [nodes] */
  td_attention_group *groups;    /* [max_groups] */
  uint8_t *group_cost;           /* [max_groups] cost_class of the group's keys */
  uint32_t *memberships;         /* [max_memberships] indices of groups */
  struct {                       /* pack.c: the groups in another order */
    uint32_t *first, *new_index; /* [max_rows + 1] a member's first group; [max_groups] new indices */
    td_attention_group *groups;  /* [max_groups] */
    uint8_t *cost;               /* [max_groups] */
  } sorted;
  uint32_t max_groups, max_memberships, max_partials;
  uint32_t n_groups, n_members, n_memberships;
  uint64_t private_keys; /* of all rows */
  uint64_t shared_keys;  /* of all groups; each key counts once */
  td_attention_header *block;
  td_attention_stats stats;
};

/* tree.c: builds the tree of rows[0 .. n_rows). */
void td_attention_tree_build(td_attention_planner *p, const int32_t *page_table);

/* pack.c: makes members, groups and memberships from the tree; or, if !share, members from the rows alone. */
void td_attention_pack(td_attention_planner *p, bool share);

enum { PREFIX_SPLIT_WAVES_MAX = 2 }; /* groups are split for at most this many waves of resident CTAs */

/* planner.c */
uint32_t td_attention_groups_max(const td_attention_planner_config *c, uint32_t n_rows);

static inline bool is_small_group(const td_attention_planner_config *c, const td_attention_group *g)
{
  return g->n_members * c->gqa_group <= c->small_rows;
}

/* prefix_splits.c: sets the groups' splits and partials, and the memberships in the block. Returns false if
 * there are too few partials. */
bool td_attention_split_prefixes(td_attention_planner *p);
double td_attention_longest_us(const td_attention_planner *p);
uint32_t td_attention_prefix_ctas(
    const td_attention_planner *p); /* td_attention_header.prefix_ctas for the rows' lengths now */

/* cost.c */
unit_costs td_attention_unit_costs(const td_attention_planner_config *c, uint32_t tile_members, bool small);

static inline uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

static inline uint32_t tiles_of(uint32_t query_rows)
{
  return query_rows <= 16 ? 0 : query_rows <= 64 ? 1 : 2;
}

/* Time of a key of one head for this many query rows. again: another group has read the key too, so it is in
 * the L2 cache. */
static inline double key_us(const td_attention_planner *p, uint32_t query_rows, bool again)
{
  return p->unit.key_us[again][tiles_of(query_rows)];
}

static inline bool stays_in_l2(const td_attention_planner *p, uint32_t keys)
{
  return keys <= p->unit.l2_keys;
}

/* A cost as a number: the index into key_us as a flat array. */
static inline uint8_t cost_class(uint32_t query_rows, bool again)
{
  return (uint8_t)(again * 3 + tiles_of(query_rows));
}

#endif
