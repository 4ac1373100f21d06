/* Chooses which shared pages get a shared-prefix group of their own.
 *
 * If a node has a group, its keys are read once for all the group's rows, and each row costs one more
 * partial. If it has none, its keys are left to what is below: a child's group, or a row's private KV, then
 * begins at the node, and the node's keys are read once per child. So at each node every child either *stays*
 * (the node's group covers it; PAT's "split") or is *pushed* (it takes the node's keys along; PAT's "merge",
 * section 5.1). PAT chooses by counts of bytes, this file by predicted time: memory or the L2 cache for keys
 * that are read again, the tensor cores for tiles of many rows, and the writing and reduction of partials.
 *
 * A node's packing holds, for each j, the least time of everything below the node if its group begins at its
 * j-th ancestor. These times depend only on the children's. So one pass from the leaves to the root finds the
 * best choice for every j, and one from the root to the leaves makes the groups.
 *
 * Own rows of a node, which no shared child has, are all alike, whatever their length: each gains keys x time
 * of a key and costs one partial. So the time of each choice is a straight line over the node's keys, the
 * same for all j. */
#include "kernels/attention/planner.h"

#include <string.h>

/* Whether the policy decides in place of predicted time. */
static bool policy_decides(const td_attention_planner *p)
{
  return p->config.policy && p->config.policy->shares;
}

/* Two rules for the children that stay: all that gain anything, or all that gain more than their part of
 * a full tile. */
enum { RULES = 2, LINES_CACHED_LOG = 6, LINES_CACHED = 1 << LINES_CACHED_LOG };

/* The time of a node as a line over its keys: at_us + key_us[in L2] * keys. n_own of its own rows are in its
 * group, and its other own rows read the keys by themselves. key_us depends on whether the keys stay in the
 * L2 cache. */
typedef struct line {
  float at_us, key_us[2];
  uint32_t n_own;
} line;

/* A node's choices for its own rows, if n_staying other rows stay. */
typedef struct lines {
  uint32_t n_staying, n_own, n;
  line line[3];
} lines;

static line line_of(const td_attention_planner *p, uint32_t n_staying, uint32_t n_own, uint32_t n_alone)
{
  uint32_t n_heads = p->config.n_kv_heads, group = p->config.gqa_group, n_rows = n_staying + n_own;
  double memory = key_us(p, group, false), at_us = n_own * p->unit.partial_us, per_key[2];
  uint32_t n_tiles = 0, tile = 0;
  if (n_rows > 0) {
    n_tiles = n_rows <= p->tile ? 1 : ceil_div(n_rows, p->tile);
    tile = (n_tiles == 1 ? n_rows : ceil_div(n_rows, n_tiles)) * group;
    at_us += n_tiles * p->config.cost.start_us;
  }
  /* Of rows that read by themselves, all but the first one read from the L2 cache if in_l2. */
  for (int in_l2 = 0; in_l2 < 2; in_l2++) {
    double again = key_us(p, group, in_l2);
    per_key[in_l2] = n_alone * again + (n_rows == 0 && n_alone > 0 ? memory - again : 0);
    if (n_rows > 0)
      per_key[in_l2] += key_us(p, tile, false) + (n_tiles - 1) * key_us(p, tile, in_l2);
  }
  return (line){
      (float)(at_us * n_heads), {(float)(per_key[0] * n_heads), (float)(per_key[1] * n_heads)}, n_own};
}

/* Returns the lines for all own rows in the group, for none, and for as many as save the last tile. Keeps
 * them in `cache`, because many nodes are alike. The lines with n_staying 0 have a half of `cache` to
 * themselves, so a caller that holds some may ask for others. */
static const lines *find_lines(const td_attention_planner *p, uint32_t n_staying, uint32_t n_own,
                               lines cache[LINES_CACHED])
{
  uint32_t hash = (n_staying * 0x9e3779b1u + n_own * 0x85ebca6bu) >>
                  (33 - LINES_CACHED_LOG); /* counts are often multiples of 16 */
  lines *l = &cache[n_staying == 0 ? hash : LINES_CACHED / 2 + hash];
  if (l->n > 0 && l->n_staying == n_staying && l->n_own == n_own)
    return l;
  l->n_staying = n_staying;
  l->n_own = n_own;
  l->n = 0;
  if (n_own > 0)
    l->line[l->n++] = line_of(p, n_staying, n_own, 0);
  if (n_own > 0 && n_staying + n_own > p->tile) {
    uint32_t left = (n_staying + n_own) % p->tile;
    if (left > 0 && left < n_own)
      l->line[l->n++] = line_of(p, n_staying, n_own - left, left);
  }
  l->line[l->n++] = line_of(p, n_staying, 0, n_own);
  return l;
}

/* a where `mask` is set, b elsewhere. */
#define PICK(mask, a, b) (((mask) & (a)) | (~(mask) & (b)))

/* A node's view of one part of its ancestors: a lane for each place where its group may begin. */
typedef struct ancestor_view {
  lanes far_keys, near_keys; /* its keys: near_keys if they stay in the L2 cache, else far_keys */
  lanes gain_us[RULES], pushed_us;
  int_lanes n_staying[RULES];
} ancestor_view;

/* Adds up what the children gain. A child that stays gains the time of reading the node's keys for itself. */
static inline void sum_gains(td_attention_planner *p, uint32_t node, uint32_t part, ancestor_view *o)
{
  const tree_node *nodes = p->tree.nodes;
  const unit_costs *unit = &p->unit;
  lanes row_us =
      unit->row_tile_us + (o->far_keys * unit->row_tile_key_us[0] + o->near_keys * unit->row_tile_key_us[1]);
  lanes gains[RULES] = {0}, pushed = {0};
  int_lanes staying[RULES] = {0};
  for (uint32_t v = nodes[node].shared_child; v != TD_NONE; v = nodes[v].shared_sibling) {
    node_packing *c = &p->packing[v];
    int32_t n_rows = (int32_t)nodes[v].n_rows;
    lanes alone = c->pushed_us[part], gain = alone - (c->us + (float)n_rows * unit->row_partial_us);
    int_lanes any = gain > 0, much = gain > row_us * (float)n_rows;
    c->gain_us[part] = gain;
    pushed += alone;
    gains[0] += (lanes)(any & (int_lanes)gain);
    gains[1] += (lanes)(much & (int_lanes)gain);
    staying[0] += any & n_rows;
    staying[1] += much & n_rows;
  }
  o->pushed_us = pushed;
  for (uint32_t rule = 0; rule < RULES; rule++)
    o->gain_us[rule] = gains[rule], o->n_staying[rule] = staying[rule];
}

/* The best choice so far, in each lane. */
typedef struct least {
  lanes us;
  int_lanes n_group, own_rule;
} least;

/* Takes the lines that are faster than *k, in the lanes in which l->n_staying rows stay. */
static inline void keep_faster(least *k, const ancestor_view *o, int32_t rule, const lines *l,
                               uint32_t n_lines)
{
  int_lanes here = o->n_staying[rule] == (int32_t)l->n_staying;
  for (uint32_t i = 0; i < n_lines; i++) {
    int32_t n_own = (int32_t)l->line[i].n_own, n_group = n_own + (int32_t)l->n_staying,
            own_rule = 2 * n_own + rule;
    lanes us = l->line[i].at_us + o->far_keys * l->line[i].key_us[0] + o->near_keys * l->line[i].key_us[1] -
               o->gain_us[rule];
    int_lanes less = here & (us < k->us);
    k->us = (lanes)PICK(less, (int_lanes)us, (int_lanes)k->us);
    k->n_group = PICK(less, n_group, k->n_group);
    k->own_rule = PICK(less, own_rule, k->own_rule);
  }
}

/* Tries both rules for the children that stay. Skips the second rule in lanes where it chooses as many
 * rows as the first. */
static inline void try_rules(td_attention_planner *p, const tree_node *u, uint32_t n_lanes,
                             const ancestor_view *o, lines *cache, least *best)
{
  for (int32_t rule = 0; rule < RULES; rule++) {
    int32_t done = -1;
    for (uint32_t j = 0; j < n_lanes; j++) { /* mostly the same for all j */
      int32_t n_staying = o->n_staying[rule][j];
      if (n_staying == done || (rule > 0 && n_staying == o->n_staying[0][j]))
        continue;
      const lines *with = find_lines(p, (uint32_t)n_staying, u->n_own, cache);
      keep_faster(best, o, rule, with, n_staying > 0 ? with->n : with->n - 1);
      done = n_staying;
    }
  }
}

static inline lanes find_part(td_attention_planner *p, uint32_t node, uint32_t part, const lines *alone,
                              lines *cache)
{
  node_packing *k = &p->packing[node];
  const tree_node *u = &p->tree.nodes[node];
  const int_lanes none = {0};
  lanes keys =
      __builtin_convertvector((int32_t)u->end - k->begin[part], lanes) * (float)p->config.page_tokens;
  int_lanes near = keys <= (float)p->unit.l2_keys;
  ancestor_view o = {.far_keys = (lanes)(~near & (int_lanes)keys),
                     .near_keys = (lanes)(near & (int_lanes)keys)};
  const line *unshared = &alone->line[alone->n - 1]; /* no group */
  least best = {o.far_keys * unshared->key_us[0] + o.near_keys * unshared->key_us[1], none, none};
  sum_gains(p, node, part, &o);
  uint32_t n_lanes = k->depth - part * LANES;
  try_rules(p, u, n_lanes < LANES ? n_lanes : LANES, &o, cache, &best);
  best.us += o.pushed_us;
  k->n_group[part] = best.n_group;
  k->own_rule[part] = best.own_rule;
  return best.us;
}

static void find_best(td_attention_planner *p, uint32_t node, lines *cache)
{
  node_packing *k = &p->packing[node];
  uint32_t n_parts = ceil_div(k->depth, LANES);
  const lines *alone = find_lines(p, 0, p->tree.nodes[node].n_own, cache);
  lanes us[ANCESTOR_PARTS];
  for (uint32_t part = 0; part < n_parts; part++)
    us[part] = find_part(p, node, part, alone, cache);
  for (uint32_t part = 0; part < n_parts; part++) {
    float last = part + 1 < n_parts ? us[part + 1][0] : us[part][LANES - 1];
    k->pushed_us[part] = (lanes){us[part][1], us[part][2], us[part][3], last};
  }
  k->us = us[0][0];
}

/* find_best for a node without shared children, as most are. */
_Static_assert(ANCESTOR_PARTS == 2, "as many as find_leaf has");
static inline void find_leaf(td_attention_planner *p, uint32_t node, lines *cache)
{
  node_packing *k = &p->packing[node];
  const tree_node *u = &p->tree.nodes[node];
  const lines *alone = find_lines(p, 0, u->n_own, cache);
  const line *unshared = &alone->line[alone->n - 1];
  const int_lanes none = {0};
  float l2_keys = (float)p->unit.l2_keys, page_tokens = (float)p->config.page_tokens;
  uint32_t n_parts = k->depth > LANES ? 2 : 1, n_lines = alone->n - 1;
  lanes us[ANCESTOR_PARTS];
  for (uint32_t part = 0; part < n_parts; part++) {
    lanes keys = __builtin_convertvector((int32_t)u->end - k->begin[part], lanes) * page_tokens;
    int_lanes near = keys <= l2_keys, n_group = none, own_rule = none;
    lanes far_keys = (lanes)(~near & (int_lanes)keys), near_keys = (lanes)(near & (int_lanes)keys);
    lanes best = far_keys * unshared->key_us[0] + near_keys * unshared->key_us[1];
    for (uint32_t i = 0; i < n_lines; i++) {
      const line *l = &alone->line[i];
      lanes at = l->at_us + far_keys * l->key_us[0] + near_keys * l->key_us[1];
      int_lanes less = at < best;
      best = (lanes)PICK(less, (int_lanes)at, (int_lanes)best);
      n_group = PICK(less, (int32_t)l->n_own, n_group);
      own_rule = PICK(less, 2 * (int32_t)l->n_own, own_rule);
    }
    us[part] = best;
    k->n_group[part] = n_group;
    k->own_rule[part] = own_rule;
  }
  k->us = us[0][0];
  k->pushed_us[0] = (lanes){us[0][1], us[0][2], us[0][3], n_parts > 1 ? us[1][0] : us[0][3]};
  if (n_parts > 1)
    k->pushed_us[1] = (lanes){us[1][1], us[1][2], us[1][3], us[1][3]};
}

/* Sets a node's ancestors: itself, then its parent's. */
static inline void descend(const node_packing *parent, node_packing *k, int32_t begin)
{
  int_lanes b = parent->begin[0];
  uint32_t depth = parent->depth + 1;
  k->begin[0] = (int_lanes){begin, b[0], b[1], b[2]};
  for (uint32_t part = 1; part < ANCESTOR_PARTS && depth > LANES; part++) {
    int32_t last = b[LANES - 1];
    b = parent->begin[part];
    k->begin[part] = (int_lanes){last, b[0], b[1], b[2]};
  }
  k->depth = depth < ANCESTORS_MAX ? depth : ANCESTORS_MAX;
}

/* Finds the best choices of all shared nodes at and below `node`, children first. This recursion, and that of
 * emit, is as deep as the tree, so at most max_rows. */
static void find_best_below(td_attention_planner *p, uint32_t node, lines *cache)
{
  tree_node *nodes = p->tree.nodes, *u = &nodes[node];
  u->n_own = u->n_rows;
  for (uint32_t v = u->shared_child; v != TD_NONE; v = nodes[v].shared_sibling) {
    u->n_own -= nodes[v].n_rows;
    descend(&p->packing[node], &p->packing[v], (int32_t)nodes[v].begin);
    if (nodes[v].shared_child != TD_NONE || policy_decides(p)) {
      find_best_below(p, v, cache);
    } else {
      nodes[v].n_own = nodes[v].n_rows;
      find_leaf(p, v, cache);
    }
  }
  if (node != 0 && !policy_decides(p))
    find_best(p, node, cache);
}

/* ---- from the root: orders members so that those of a group are neighbours ---- */

/* An open group, or several open groups of n_tile members each. */
typedef struct level {
  uint32_t group, end_member, n_tile; /* the next member's group, and where that group ends */
  uint32_t last_page;
} level;

typedef struct emission {
  td_attention_planner *p;
  td_attention_member *members;
  level levels[TD_ATTENTION_LEVELS_MAX];
  uint32_t n_levels, n_tiled; /* n_tiled: levels with several groups */
  bool same;                  /* the next member joins the groups of the previous one */
} emission;

/* In each level whose group is full, goes on to the next group. */
static void next_tiles(emission *e, uint32_t member)
{
  for (uint32_t l = 0; l < e->n_levels; l++)
    if (e->levels[l].end_member == member) {
      e->levels[l].group++;
      e->levels[l].end_member += e->levels[l].n_tile;
      e->same = false;
    }
}

/* Adds the groups that the next member joins to its memberships. A group's pages are those of its first
 * member's table. */
static void add_memberships(emission *e, uint32_t member, uint32_t page_table_offset)
{
  td_attention_planner *p = e->p;
  TD_BUG_ON(p->n_memberships + e->n_levels > p->max_memberships);
  e->same = true;
  for (uint32_t l = 0; l < e->n_levels; l++) {
    td_attention_group *g = &p->groups[e->levels[l].group];
    g->first_page += g->first_member == member ? page_table_offset : 0;
    p->memberships[p->n_memberships++] = e->levels[l].group;
  }
}

static inline void add_member(emission *e, uint32_t row, uint32_t first_key)
{
  td_attention_planner *p = e->p;
  planned_row *r = &p->rows[row];
  uint32_t i = p->n_members++, n = e->n_levels;
  if (e->n_tiled > 0)
    next_tiles(e, i);
  if (!e->same)
    add_memberships(e, i, r->page_table_offset);
  td_attention_member *m = &e->members[i];
  m->token = r->token;
  m->first_membership = p->n_memberships - n;
  m->n_memberships = n;
  r->member = i;
  r->first_key = first_key;
  r->probe = n > 0 ? r->page_table_offset + e->levels[n - 1].last_page : TD_NONE;
}

/* Places n of a node's own rows as members. First come the rows that end at the node (*list), then those of
 * children with one row (*child). Advances both. */
static void add_own_members(emission *e, uint32_t *list, uint32_t *child, uint32_t n, uint32_t first_key)
{
  const tree_node *nodes = e->p->tree.nodes;
  for (; n > 0; n--) {
    if (*list != TD_NONE) {
      uint32_t row = *list;
      *list = e->p->rows[row].next;
      add_member(e, row, first_key);
      continue;
    }
    while (nodes[*child].n_rows > 1)
      *child = nodes[*child].sibling;
    add_member(e, nodes[*child].rows,
               first_key); /* a node with one row has no children: the row ends there */
    *child = nodes[*child].sibling;
  }
}

/* Opens a group for the next n_rows members, or several groups if a tile holds fewer. */
static void open_groups(emission *e, uint32_t first_page, uint32_t end_page, uint32_t n_rows)
{
  td_attention_planner *p = e->p;
  uint32_t n_keys = (end_page - first_page) * p->config.page_tokens, n_tile = n_rows, done = 0;
  if (n_rows > p->tile)
    n_tile = ceil_div(n_rows, ceil_div(n_rows, p->tile));
  e->levels[e->n_levels++] = (level){p->n_groups, p->n_members + n_tile, n_tile, end_page - 1};
  e->n_tiled += n_tile < n_rows;
  e->same = false;
  for (; done < n_rows; done += n_tile) {
    TD_BUG_ON(p->n_groups == p->max_groups);
    uint32_t n = n_rows - done < n_tile ? n_rows - done : n_tile;
    p->group_cost[p->n_groups] = cost_class(n * p->config.gqa_group, done > 0 && stays_in_l2(p, n_keys));
    p->groups[p->n_groups++] = (td_attention_group){
        .n_keys = n_keys, .first_page = first_page, .first_member = p->n_members + done, .n_members = n};
  }
}

static void close_groups(emission *e, uint32_t n_rows)
{
  e->n_levels--;
  e->n_tiled -= e->levels[e->n_levels].n_tile < n_rows;
  e->same = false;
}

/* The choice for a node: rows in its group (0: no group), own rows among them, and the rule for the
 * children. */
typedef struct choice {
  uint32_t n_group, n_own, begin; /* begin: the ancestor at which the group begins */
  float row_us;                   /* children stay if they gain more than this for each row */
} choice;

static inline bool stays(const td_attention_planner *p, const choice *c, uint32_t child, uint32_t keys)
{
  uint32_t n_rows = p->tree.nodes[child].n_rows;
  if (policy_decides(p)) /* such a policy is asked about each row too */
    return c->n_group > 0 && p->config.policy->shares(keys, n_rows);
  return c->n_group > 0 &&
         p->packing[child].gain_us[c->begin / LANES][c->begin % LANES] > c->row_us * (float)n_rows;
}

static choice choose(const td_attention_planner *p, uint32_t node, uint32_t keys, uint32_t begin)
{
  const node_packing *k = &p->packing[node];
  const tree_node *u = &p->tree.nodes[node];
  if (!policy_decides(p)) {
    uint32_t own_rule = (uint32_t)k->own_rule[begin / LANES][begin % LANES];
    keys = (u->end - (uint32_t)k->begin[begin / LANES][begin % LANES]) *
           p->config.page_tokens; /* the keys for which this choice was made */
    float row_us =
        own_rule % 2 ? p->unit.row_tile_us + (float)keys * p->unit.row_tile_key_us[stays_in_l2(p, keys)] : 0;
    return (choice){(uint32_t)k->n_group[begin / LANES][begin % LANES], own_rule / 2, begin, row_us};
  }
  choice c = {.n_group = 1, .n_own = p->config.policy->shares(keys, 1) ? u->n_own : 0};
  uint32_t n_staying = 0;
  for (uint32_t v = u->shared_child; v != TD_NONE; v = p->tree.nodes[v].shared_sibling)
    n_staying += stays(p, &c, v, keys) ? p->tree.nodes[v].n_rows : 0;
  c.n_group = n_staying + c.n_own;
  return c.n_group > 1 ? c : (choice){0}; /* a group needs several members */
}

static void emit(emission *e, uint32_t node, uint32_t first_page, uint32_t ancestor)
{
  td_attention_planner *p = e->p;
  tree_node *nodes = p->tree.nodes, *u = &nodes[node];
  uint32_t page_tokens = p->config.page_tokens,
           next = ancestor + 1 < ANCESTORS_MAX ? ancestor + 1 : ANCESTORS_MAX - 1;
  uint32_t keys = (u->end - first_page) * page_tokens, list = u->rows, child = u->child,
           pushed = u->shared_child;
  choice c =
      node == 0 || e->n_levels == TD_ATTENTION_LEVELS_MAX ? (choice){0} : choose(p, node, keys, ancestor);
  if (c.n_group > 0) {
    open_groups(e, first_page, u->end, c.n_group);
    add_own_members(e, &list, &child, c.n_own, u->end * page_tokens);
    pushed = TD_NONE;
    for (uint32_t v = u->shared_child, after; v != TD_NONE; v = after) {
      after = nodes[v].shared_sibling;
      if (stays(p, &c, v, keys)) {
        emit(e, v, u->end, 0);
      } else {
        nodes[v].shared_sibling = pushed;
        pushed = v;
      }
    }
    close_groups(e, c.n_group);
  }
  for (uint32_t v = pushed; v != TD_NONE; v = nodes[v].shared_sibling)
    emit(e, v, node == 0 ? 0 : first_page, node == 0 ? 0 : next);
  add_own_members(e, &list, &child, u->n_own - c.n_own, first_page * page_tokens);
}

/* Sorts groups by their first members, so that the splits that the first rows wait for are done first. Groups
 * with the same first member stay in the order of keys, as a row's memberships always are. */
static void sort_groups(td_attention_planner *p)
{
  uint32_t *first = p->sorted.first;
  td_attention_group *groups = p->groups;
  uint8_t *cost = p->group_cost;
  memset(first, 0, (p->n_members + 1) * sizeof *first);
  for (uint32_t i = 0; i < p->n_groups; i++)
    first[groups[i].first_member + 1]++;
  for (uint32_t m = 0; m < p->n_members; m++)
    first[m + 1] += first[m];
  for (uint32_t i = 0; i < p->n_groups; i++) {
    uint32_t to = p->sorted.new_index[i] = first[groups[i].first_member]++;
    p->sorted.groups[to] = groups[i];
    p->sorted.cost[to] = cost[i];
  }
  for (uint32_t i = 0; i < p->n_memberships; i++)
    p->memberships[i] = p->sorted.new_index[p->memberships[i]];
  p->groups = p->sorted.groups, p->sorted.groups = groups;
  p->group_cost = p->sorted.cost, p->sorted.cost = cost;
}

void td_attention_pack(td_attention_planner *p, bool share)
{
  emission e = {.p = p,
                .members = (td_attention_member *)(void *)((unsigned char *)p->block + p->block->members_at)};
  p->n_groups = p->n_members = p->n_memberships = 0;
  if (share) {
    lines cache[LINES_CACHED];
    for (uint32_t i = 0; i < LINES_CACHED; i++)
      cache[i].n = 0;
    p->packing[0] = (node_packing){.depth = 0};
    find_best_below(p, 0, cache);
    emit(&e, 0, 0, 0);
  } else {
    for (uint32_t r = 0; r < p->n_rows; r++)
      add_member(&e, r, 0);
  }
  TD_BUG_ON(p->n_members != p->n_rows);
  if (p->n_groups > 0)
    sort_groups(p);
}
