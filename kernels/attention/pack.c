/* Which shared pages get a span of their own.
 *
 * A node's keys are read once for all its rows if they have a span of their own; that costs each row a partial more. Or
 * they are left to the spans below: a child's span, or a row's own, then begins at the node, and its keys are read once
 * per child. So at each node every child *stays* (the node's span covers it) or is *pushed* (it takes the keys along).
 * That is PAT's choice of split or merge; here it is made by predicted time: memory or the L2 cache for what is read again,
 * the tensor cores for tiles of many rows, and a partial's writing and merge.
 *
 * best[u][j] is the least time for all below u if u's span would begin at its j-th ancestor; it needs only the children's,
 * so one pass from the bottom and one from the top do. Rows that no child shares are alike, whatever their length: each gains
 * keys x time of a key, and costs one partial. Source: PAT (section 5.1), with costs in place of its counts of bytes. */
#include "kernels/attention/planner.h"

/* What becomes of a node: children of several rows that gain more than row_us for each of their rows, and n_own of its own rows, have a span;
 * the rest is pushed. */
typedef struct choice {
  double us;
  bool any;
  double row_us;
  uint32_t n_own;
} choice;

/* A span (or several, in tiles) of keys for so many rows, without partials. */
static inline double span_us(const td_attention_planner *p, uint32_t n_rows, uint32_t keys)
{
  if (n_rows == 0)
    return 0;
  if (n_rows <= p->tile)
    return (p->config.cost.start_us + keys * key_us(p, n_rows * p->config.group, false)) * p->config.n_kv_heads;
  uint32_t n_tiles = ceil_div(n_rows, p->tile), tile_rows = ceil_div(n_rows, n_tiles) * p->config.group;
  bool in_l2 = stays_in_l2(p, keys);
  double us = n_tiles * p->config.cost.start_us + keys * (key_us(p, tile_rows, false) + (n_tiles - 1) * key_us(p, tile_rows, in_l2));
  return us * p->config.n_kv_heads;
}

static double partials_us(const td_attention_planner *p, uint32_t n_rows)
{
  return n_rows * p->unit.partial_us * p->config.n_kv_heads;
}

/* The gain of a child that stays: its keys at this node are not read for it alone. */
static double child_gain(const td_attention_planner *p, uint32_t child, uint32_t keys, uint32_t carried)
{
  uint32_t n_rows = p->tree.nodes[child].n_rows;
  if (p->config.policy == TD_ATTENTION_PAT)
    return (double)keys - 4.0 * n_rows;
  const double *best = p->best[child];
  return best[carried + 1 < CARRY_MAX ? carried + 1 : CARRY_MAX - 1] - best[0] - partials_us(p, n_rows);
}

/* What keys of a node take for a row that reads them by itself: from the L2 cache, if they fit there, but once from memory. */
typedef struct reading {
  double row_us, first_us; /* each; and what the first one takes more, if no span reads them */
} reading;

static reading reading_of(const td_attention_planner *p, uint32_t keys)
{
  double memory = key_us(p, p->config.group, false), again = key_us(p, p->config.group, stays_in_l2(p, keys));
  return (reading){keys * again * p->config.n_kv_heads, keys * (memory - again) * p->config.n_kv_heads};
}

/* A tile more of the keys, for each of its rows. */
static double tile_row_us(const td_attention_planner *p, uint32_t keys)
{
  double us = p->config.cost.start_us + keys * key_us(p, p->tile * p->config.group, stays_in_l2(p, keys));
  return us * p->config.n_kv_heads / p->tile;
}

/* How many of a node's own rows stay beside n_staying others: all; none; or as many as make the last tile superfluous.
 * Adds what they take. */
static void choose_own(const td_attention_planner *p, const tree_node *u, uint32_t keys, uint32_t n_staying, reading own, choice *c)
{
  double row_gain = own.row_us - partials_us(p, 1), least = 0;
  uint32_t left = n_staying + u->n_own > p->tile ? (n_staying + u->n_own) % p->tile : 0;
  uint32_t tries[3] = {u->n_own, left <= u->n_own ? u->n_own - left : u->n_own, 0};
  for (uint32_t i = 0; i < 3; i++) {
    if (i > 0 && tries[i] == tries[i - 1])
      continue;
    double us = span_us(p, n_staying + tries[i], keys) - tries[i] * row_gain;
    us += n_staying + tries[i] == 0 && u->n_own > 0 ? own.first_us : 0;
    if (i == 0 || us < least) {
      least = us;
      c->n_own = tries[i];
    }
  }
  c->us += least + u->n_own * own.row_us;
  c->any = n_staying + c->n_own > 0;
}

/* PAT's rule: a child is split from its parent where 4 x rows < keys; a row is a child too. */
static choice choose_as_pat(const tree_node *u, uint32_t keys)
{
  return (choice){.any = true, .n_own = keys > 4 ? u->n_own : 0};
}

/* Tried: every child that gains anything stays; those that gain more than their part of a full tile; or none. */
static choice choose(const td_attention_planner *p, uint32_t node, uint32_t keys, uint32_t carried)
{
  enum { TRIES = 2 };
  const tree_node *u = &p->tree.nodes[node];
  if (p->config.policy == TD_ATTENTION_PAT)
    return choose_as_pat(u, keys);
  uint32_t next = carried + 1 < CARRY_MAX ? carried + 1 : CARRY_MAX - 1, n_staying[TRIES] = {0};
  choice tries[TRIES] = {{0}, {.row_us = u->n_own < u->n_rows ? tile_row_us(p, keys) : 0}};
  double pushed = 0;
  for (uint32_t v = u->child; v != NONE; v = p->tree.nodes[v].sibling) {
    double gain = child_gain(p, v, keys, carried);
    pushed += p->best[v][next];
    for (uint32_t i = 0; i < TRIES; i++)
      if (gain > tries[i].row_us * p->tree.nodes[v].n_rows) {
        tries[i].us -= gain;
        n_staying[i] += p->tree.nodes[v].n_rows;
      }
  }
  reading own = reading_of(p, keys);
  choice best = {.us = u->n_own > 0 ? u->n_own * own.row_us + own.first_us : 0};
  for (uint32_t i = 0; i < TRIES && (i == 0 || n_staying[1] != n_staying[0]); i++) {
    choose_own(p, u, keys, n_staying[i], own, &tries[i]);
    if (tries[i].us < best.us)
      best = tries[i];
  }
  best.us += pushed;
  return best;
}

static bool stays(const td_attention_planner *p, const choice *c, uint32_t child, uint32_t keys, uint32_t carried)
{
  return c->any && child_gain(p, child, keys, carried) > c->row_us * p->tree.nodes[child].n_rows;
}

/* Sorts a node's children into those of several rows, which go to the walk, and those of one. */
static uint32_t walk_children(td_attention_planner *p, tree_node *u, uint32_t n_walk)
{
  tree_node *nodes = p->tree.nodes;
  uint32_t own = NONE, *last = &u->child;
  u->n_own = u->n_rows;
  for (uint32_t v = u->child, next; v != NONE; v = next) {
    next = nodes[v].sibling;
    if (nodes[v].n_rows > 1) {
      u->n_own -= nodes[v].n_rows;
      p->walk[n_walk++] = v;
      *last = v;
      last = &nodes[v].sibling;
    } else {
      nodes[v].sibling = own;
      own = v;
    }
  }
  *last = NONE;
  u->own_child = own;
  return n_walk;
}

/* Shared nodes to p->walk, parents before children. */
static uint32_t walk_tree(td_attention_planner *p)
{
  uint32_t n = 1;
  p->walk[0] = 0;
  for (uint32_t i = 0; i < n; i++)
    n = walk_children(p, &p->tree.nodes[p->walk[i]], n);
  return n;
}

static void find_best(td_attention_planner *p, uint32_t n_walk)
{
  const tree_node *nodes = p->tree.nodes;
  for (uint32_t i = n_walk; --i > 0;) {
    uint32_t u = p->walk[i], above = u, j = 0;
    for (; j < CARRY_MAX && above != 0; j++, above = nodes[above].parent)
      p->best[u][j] = choose(p, u, (nodes[u].end - nodes[above].begin) * p->config.page_tokens, j).us;
    for (; j < CARRY_MAX; j++)
      p->best[u][j] = p->best[u][j - 1];
  }
}

/* ---- from the top: members in order, so that a span's are neighbours ---- */

typedef struct level {
  uint32_t first_span, first_member, n_tile; /* spans of n_tile members each */
} level;

typedef struct emission {
  td_attention_planner *p;
  td_attention_member *members;
  level levels[TD_ATTENTION_LEVELS_MAX];
  uint32_t n_levels;
} emission;

static void place_row(emission *e, uint32_t row, uint32_t first_key)
{
  td_attention_planner *p = e->p;
  planned_row *r = &p->rows[row];
  uint32_t i = p->n_members++;
  TD_BUG_ON(p->n_sources + e->n_levels > p->max_sources);
  p->n_sharing += e->n_levels > 0;
  e->members[i] = (td_attention_member){.token = r->token, .first_source = p->n_sources, .n_sources = e->n_levels};
  for (uint32_t l = 0; l < e->n_levels; l++)
    p->sources[p->n_sources++] = e->levels[l].first_span + (i - e->levels[l].first_member) / e->levels[l].n_tile;
  p->member_row[i] = row;
  r->member = i;
  r->first_key = first_key;
  r->probe = NONE;
}

/* n of a node's own rows, from where *list, of those that end there, and *child, of those that go on alone, stand. */
static void place_own(emission *e, uint32_t *list, uint32_t *child, uint32_t n, uint32_t first_key)
{
  const tree_node *nodes = e->p->tree.nodes;
  for (; n > 0; n--) {
    if (*list != NONE) {
      uint32_t row = *list;
      *list = e->p->rows[row].next;
      place_row(e, row, first_key);
      continue;
    }
    place_row(e, nodes[*child].rows, first_key); /* a node of one row has no children: it ends there */
    *child = nodes[*child].sibling;
  }
}

static void open_spans(emission *e, uint32_t first_page, uint32_t n_keys, uint32_t n_rows)
{
  td_attention_planner *p = e->p;
  uint32_t n_tiles = ceil_div(n_rows, p->tile), n_tile = ceil_div(n_rows, n_tiles), done = 0;
  e->levels[e->n_levels++] = (level){p->n_shared, p->n_members, n_tile};
  for (; done < n_rows; done += n_tile) {
    TD_BUG_ON(p->n_shared == p->max_shared);
    uint32_t n = n_rows - done < n_tile ? n_rows - done : n_tile;
    p->shared_key_us[p->n_shared] = key_us(p, n * p->config.group, done > 0 && stays_in_l2(p, n_keys));
    p->shared[p->n_shared++] = (td_attention_span){.n_keys = n_keys, .first_page = first_page, .first_member = p->n_members + done,
                                                   .n_members = (uint8_t)n, .shared = 1};
  }
}

/* Depth of the recursion: of the tree, so at most max_rows. */
static void emit(emission *e, uint32_t node, uint32_t first_page, uint32_t carried)
{
  td_attention_planner *p = e->p;
  const tree_node *nodes = p->tree.nodes, *u = &nodes[node];
  uint32_t page_tokens = p->config.page_tokens, next = carried + 1 < CARRY_MAX ? carried + 1 : CARRY_MAX - 1;
  uint32_t keys = (u->end - first_page) * page_tokens, list = u->rows, own_child = u->own_child;
  choice c = node == 0 || e->n_levels == TD_ATTENTION_LEVELS_MAX ? (choice){0} : choose(p, node, keys, carried);
  uint32_t n_staying = c.n_own;
  for (uint32_t v = u->child; v != NONE; v = nodes[v].sibling)
    if (stays(p, &c, v, keys, carried))
      n_staying += nodes[v].n_rows;
  if (n_staying > 0) {
    open_spans(e, first_page, keys, n_staying);
    place_own(e, &list, &own_child, c.n_own, u->end * page_tokens);
    for (uint32_t v = u->child; v != NONE; v = nodes[v].sibling)
      if (stays(p, &c, v, keys, carried))
        emit(e, v, u->end, 0);
    e->n_levels--;
  }
  for (uint32_t v = u->child; v != NONE; v = nodes[v].sibling)
    if (!stays(p, &c, v, keys, carried))
      emit(e, v, node == 0 ? 0 : first_page, node == 0 ? 0 : next);
  place_own(e, &list, &own_child, u->n_own - c.n_own, first_page * page_tokens);
}

/* The pages of a span are taken from its first member's table. By a row's last shared page it can be seen that it still is the
 * row that it was (planner.c). */
static void tie_to_tables(td_attention_planner *p)
{
  for (uint32_t s = 0; s < p->n_shared; s++) {
    td_attention_span *span = &p->shared[s];
    uint32_t last = span->first_page + span->n_keys / p->config.page_tokens - 1;
    span->first_page += p->rows[p->member_row[span->first_member]].page_table_offset;
    for (uint32_t i = 0; i < span->n_members; i++) { /* inner spans come after outer ones */
      planned_row *r = &p->rows[p->member_row[span->first_member + i]];
      r->probe = r->page_table_offset + last;
    }
  }
}

void td_attention_pack(td_attention_planner *p, bool pack)
{
  emission e = {.p = p, .members = (td_attention_member *)(void *)((unsigned char *)p->block + p->block->members_at)};
  p->n_shared = p->n_members = p->n_sources = p->n_sharing = 0;
  if (pack) {
    uint32_t n_walk = walk_tree(p);
    if (p->config.policy != TD_ATTENTION_PAT)
      find_best(p, n_walk);
    emit(&e, 0, 0, 0);
  } else {
    for (uint32_t r = 0; r < p->n_rows; r++)
      place_row(&e, r, 0);
  }
  TD_BUG_ON(p->n_members != p->n_rows);
  tie_to_tables(p);
}
