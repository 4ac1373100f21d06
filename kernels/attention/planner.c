/* Makes a plan for each step: see plan.h. Most steps have the rows of the previous step, each a token longer.
 * Then only lengths are updated (PAT's lazy update). A row counts as the same if it has the same slot, the
 * same place in the page table, a length that has not shrunk and, if it shares pages, the same last shared
 * page. */
#include "kernels/attention/planner.h"

#include <math.h>
#include <stdlib.h>

enum { GROWTH_MAX = 64 /* new tokens of a row between two plans */ };

const td_attention_policy td_attention_always = {.name = "always", .always_shares = true};

/* Whether n_rows decodes are so few that all groups may be small: together they fill one tile at most. */
static bool are_few(const td_attention_planner_config *c, uint32_t n_rows)
{
  return c->gqa_group <= c->small_rows && n_rows * c->gqa_group <= c->tile_rows;
}

/* Most members of a group. */
static uint32_t tile_members(const td_attention_planner_config *c, bool small)
{
  uint32_t n = (small ? c->small_rows : c->tile_rows) / c->gqa_group;
  return n ? n : 1;
}

static uint32_t groups_of_tiles(uint32_t n_rows, uint32_t tile)
{
  return n_rows + TD_ATTENTION_LEVELS_MAX * (n_rows / tile + 1);
}

uint32_t td_attention_groups_max(const td_attention_planner_config *c, uint32_t n_rows)
{
  uint32_t most_few = tile_members(c, false), few = n_rows < most_few ? n_rows : most_few;
  uint32_t n = groups_of_tiles(n_rows, most_few),
           small = are_few(c, few) ? groups_of_tiles(few, tile_members(c, true)) : 0;
  return n > small ? n : small;
}

/* A further split adds the partials of a tile, or of a small group. */
uint32_t td_attention_partials_max(const td_attention_planner_config *c)
{
  enum { LEVELS = 6 };
  uint32_t levels = c->policy ? TD_ATTENTION_LEVELS_MAX : LEVELS;
  return c->max_rows * c->n_kv_heads * levels +
         PREFIX_SPLIT_WAVES_MAX * c->n_resident * tile_members(c, false) +
         c->n_resident * (c->small_rows / c->gqa_group);
}

static uint32_t aligned(uint32_t bytes) { return (bytes + 15) / 16 * 16; }

uint32_t td_attention_block_bytes_max(const td_attention_planner_config *c)
{
  return aligned((uint32_t)(sizeof(td_attention_header) + c->max_rows * sizeof(td_attention_member) +
                            c->max_rows * TD_ATTENTION_LEVELS_MAX * sizeof(td_attention_membership)));
}

static td_status check_config(const td_attention_planner_config *c, td_error *err)
{
  enum { ROWS_MAX = 1 << 16, RESIDENT_MAX = 1 << 14, HEADS_MAX = 1 << 10, DIM_MAX = 1 << 10 };
  if (c->max_rows == 0 || c->max_rows > ROWS_MAX || c->n_resident == 0 || c->n_resident > RESIDENT_MAX)
    return td_fail(err, TD_ERR_CONFIG, "attention plan: %u rows on %u resident CTAs cannot be planned",
                   c->max_rows, c->n_resident);
  if (c->gqa_group == 0 || c->gqa_group > TD_ATTENTION_TILE_ROWS_MAX || c->n_kv_heads == 0 ||
      c->n_kv_heads > HEADS_MAX)
    return td_fail(err, TD_ERR_CONFIG,
                   "attention plan: %u kv heads of %u query heads each; at most %d and %d are planned",
                   c->n_kv_heads, c->gqa_group, HEADS_MAX, TD_ATTENTION_TILE_ROWS_MAX);
  if (c->head_dim == 0 || c->head_dim > DIM_MAX)
    return td_fail(err, TD_ERR_CONFIG, "attention plan: head dim %u; 1 to %d are planned", c->head_dim,
                   DIM_MAX);
  if (c->page_tokens < 16 || (c->page_tokens & (c->page_tokens - 1)) != 0 || c->page_tokens > 1024)
    return td_fail(err, TD_ERR_CONFIG, "attention plan: pages of %u tokens; 16, 32 and 64 are served",
                   c->page_tokens);
  if (c->tile_rows < c->gqa_group || c->tile_rows > TD_ATTENTION_TILE_ROWS_MAX)
    return td_fail(err, TD_ERR_CONFIG,
                   "attention plan: tiles of %u query rows; at least a group's %u, at most %d", c->tile_rows,
                   c->gqa_group, TD_ATTENTION_TILE_ROWS_MAX);
  if (c->small_rows > c->tile_rows)
    return td_fail(err, TD_ERR_CONFIG, "attention plan: small groups of %u query rows; a tile has %u",
                   c->small_rows, c->tile_rows);
  if (!(c->cost.memory_bytes_us > 0 && c->cost.l2_bytes_us > 0 && c->cost.tensor_flop_us > 0 &&
        c->cost.start_us >= 0 && c->cost.partial_us >= 0 && c->cost.alone_bytes_us > 0 &&
        c->cost.sharing_us >= 0 && c->cost.small_sharing_us >= 0 && c->cost.small_group_us >= 0))
    return td_fail(err, TD_ERR_CONFIG, "attention plan: a rate that is not above 0");
  return TD_OK;
}

static bool alloc_all(td_attention_planner *p)
{
  size_t rows = p->config.max_rows, nodes = 2 * rows + 1, buckets = 16;
  while (buckets < BUCKETS_PER_ROW * rows)
    buckets *= 2;
  p->rows = calloc(rows, sizeof *p->rows);
  p->tree.nodes = calloc(nodes, sizeof *p->tree.nodes);
  p->tree.path = calloc(rows + 2, sizeof *p->tree.path);
  p->tree.buckets = calloc(buckets, sizeof *p->tree.buckets);
  p->packing = calloc(nodes, sizeof *p->packing);
  p->groups = calloc(p->max_groups, sizeof *p->groups);
  p->group_cost = calloc(p->max_groups, sizeof *p->group_cost);
  p->sorted.first = calloc((size_t)p->config.max_rows + 1, sizeof *p->sorted.first);
  p->sorted.new_index = calloc(p->max_groups, sizeof *p->sorted.new_index);
  p->sorted.groups = calloc(p->max_groups, sizeof *p->sorted.groups);
  p->sorted.cost = calloc(p->max_groups, sizeof *p->sorted.cost);
  p->memberships = calloc(p->max_memberships, sizeof *p->memberships);
  p->block = calloc(1, td_attention_block_bytes_max(&p->config));
  return p->rows && p->tree.nodes && p->tree.path && p->tree.buckets && p->packing && p->groups &&
         p->group_cost && p->sorted.first && p->sorted.new_index && p->sorted.groups && p->sorted.cost &&
         p->memberships && p->block;
}

td_status td_attention_planner_create(const td_attention_planner_config *config, td_attention_planner **out,
                                      td_error *err)
{
  TD_TRY(check_config(config, err));
  td_attention_planner *p = calloc(1, sizeof *p);
  if (!p)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the attention plan");
  p->config = *config;
  p->page_shift = (uint32_t)__builtin_ctz(config->page_tokens);
  p->unit_of_tiles = td_attention_unit_costs(config, tile_members(config, false), false);
  p->unit_of_small = td_attention_unit_costs(config, tile_members(config, true), true);
  p->max_groups = td_attention_groups_max(config, config->max_rows);
  p->max_memberships = config->max_rows * TD_ATTENTION_LEVELS_MAX;
  p->max_partials = config->max_partials ? config->max_partials : td_attention_partials_max(config);
  if (!alloc_all(p)) {
    td_attention_planner_destroy(p);
    return td_fail(err, TD_ERR_NOMEM, "no memory for the attention plan");
  }
  p->block->members_at = sizeof *p->block;
  *out = p;
  return TD_OK;
}

void td_attention_planner_destroy(td_attention_planner *p)
{
  if (!p)
    return;
  free(p->rows), free(p->tree.nodes), free(p->tree.path), free(p->tree.buckets), free(p->packing);
  free(p->sorted.first), free(p->sorted.new_index), free(p->sorted.groups), free(p->sorted.cost);
  free(p->groups), free(p->group_cost), free(p->memberships), free(p->block);
  free(p);
}

static void *in_block(const td_attention_planner *p, uint32_t at) { return (unsigned char *)p->block + at; }

/* ---- lengths ---- */

/* The values of a config that lengths depend on. */
typedef struct pages {
  uint32_t window, mask;
} pages;

static pages pages_of(const td_attention_planner *p)
{
  return (pages){p->config.window_tokens, -p->config.page_tokens};
}

/* Updates a row's member to the row's length. Returns its private keys. */
static TD_ALWAYS_INLINE uint32_t set_length(const pages *in, td_attention_member *members,
                                            const planned_row *row)
{
  const planned_row r = *row;
  uint32_t begin = in->window > 0 && r.kv_len > in->window ? (r.kv_len - in->window) & in->mask : 0;
  members[r.member].token = r.token;
  members[r.member].n_keys = r.kv_len - begin;
  return r.kv_len - (begin > r.first_key ? begin : r.first_key);
}

static inline bool has_pages(const td_attention_planner *p, const td_plan_row *r, const td_plan *plan)
{
  return r->kv_len > 0 &&
         r->page_table_offset + (uint64_t)((r->kv_len - 1) >> p->page_shift) < plan->page_table_len;
}

/* ---- plans made from nothing ---- */

static td_status read_rows(td_attention_planner *p, const td_plan *plan, td_error *err)
{
  uint32_t n = 0, max_rows = p->config.max_rows, longest = UINT32_MAX / p->config.n_kv_heads / 2,
           n_rows = plan->n_rows;
  planned_row *rows = p->rows;
  const td_plan_row *from = plan->rows;
  for (uint32_t i = 0; i < n_rows; i++) {
    const td_plan_row r = from[i];
    if (r.q_len != 1)
      continue;
    if (n == max_rows)
      return td_fail(err, TD_ERR_CAPACITY, "attention plan: more than %u decode rows", max_rows);
    if (!has_pages(p, &r, plan))
      return td_fail(err, TD_ERR_CAPACITY,
                     "attention plan: a row of %u keys at %u of a page table of %u entries", r.kv_len,
                     r.page_table_offset, plan->page_table_len);
    if (r.kv_len > longest)
      return td_fail(err, TD_ERR_CAPACITY, "attention plan: a row of %u keys; at most %u are planned",
                     r.kv_len, longest);
    planned_row *row = &rows[n++];
    row->slot = r.slot;
    row->page_table_offset = r.page_table_offset;
    row->kv_len = r.kv_len;
    row->token = r.q_start;
  }
  p->n_rows = n;
  return TD_OK;
}

/* Sets the offsets in the block. */
static void lay_out(td_attention_planner *p)
{
  td_attention_header *h = p->block;
  h->n_members = p->n_members;
  h->n_memberships = p->n_memberships;
  h->n_groups = p->n_groups;
  h->memberships_at = aligned(h->members_at + p->n_members * (uint32_t)sizeof(td_attention_member));
  h->block_bytes = aligned(h->memberships_at + p->n_memberships * (uint32_t)sizeof(td_attention_membership));
}

/* ---- a plan ---- */

static bool make_structure(td_attention_planner *p, const td_plan *plan, bool share)
{
  if (share)
    td_attention_tree_build(p, plan->page_table);
  td_attention_pack(p, share);
  lay_out(p);
  td_attention_member *members = in_block(p, p->block->members_at);
  const pages in = pages_of(p);
  const int32_t *page_table = plan->page_table;
  planned_row *rows = p->rows;
  uint64_t private_keys = 0;
  for (uint32_t r = 0, n = p->n_rows; r < n; r++) {
    private_keys += set_length(&in, members, &rows[r]);
    rows[r].probe_page = rows[r].probe == TD_NONE ? 0 : page_table[rows[r].probe];
  }
  p->private_keys = private_keys;
  return td_attention_split_prefixes(p);
}

/* Whether r is the row that it was in the last plan. */
static inline bool is_same(const td_attention_planner *p, const planned_row *old, const td_plan_row *r,
                           const td_plan *plan)
{
  if (r->slot != old->slot || r->page_table_offset != old->page_table_offset || r->kv_len < old->kv_len ||
      r->kv_len - old->kv_len > GROWTH_MAX || !has_pages(p, r, plan))
    return false;
  uint32_t window = p->config.window_tokens;
  return old->probe == TD_NONE ||
         (plan->page_table[old->probe] == old->probe_page && (window == 0 || r->kv_len <= window));
}

/* If the plan's rows are those of the previous plan, updates their lengths. Returns false if the plan must be
 * made from nothing. Groups and splits stay, because shared keys do not grow. */
static bool grow(td_attention_planner *p, const td_plan *plan)
{
  td_attention_member *members = in_block(p, p->block->members_at);
  const pages in = pages_of(p);
  uint32_t n = 0;
  uint64_t private_keys = 0;
  for (uint32_t i = 0; i < plan->n_rows; i++) {
    const td_plan_row *r = &plan->rows[i];
    if (r->q_len != 1)
      continue;
    planned_row *row = &p->rows[n];
    if (n == p->n_rows || !is_same(p, row, r, plan))
      return false;
    row->kv_len = r->kv_len;
    row->token = r->q_start;
    private_keys += set_length(&in, members, row);
    n++;
  }
  p->private_keys = private_keys;
  if (n != p->n_rows)
    return false;
  p->block->prefix_ctas = td_attention_prefix_ctas(p);
  return true;
}

/* Makes the plan, with small groups only or with groups that may fill a tile. Returns whether it fits. */
static bool share(td_attention_planner *p, const td_plan *plan, bool small)
{
  p->tile = tile_members(&p->config, small);
  p->unit = small ? p->unit_of_small : p->unit_of_tiles;
  return make_structure(p, plan, true);
}

/* What a step that shares costs, besides its splits. */
static double fixed_us(const td_attention_planner *p)
{
  bool small = true;
  for (uint32_t i = 0; i < p->n_groups; i++)
    small &= is_small_group(&p->config, &p->groups[i]);
  const td_attention_cost *c = &p->config.cost;
  return small ? c->small_sharing_us + (p->n_groups - 1) * c->small_group_us : c->sharing_us;
}

/* How much more time sharing saves than it costs. Without sharing, all rows read the shared keys at the same
 * time: all but the first read them from the L2 cache. Either way, rows read private keys later, at memory's
 * rate. */
static double saved_us(const td_attention_planner *p)
{
  uint64_t keys = 0;
  for (uint32_t i = 0; i < p->n_groups; i++)
    keys += (uint64_t)p->groups[i].n_keys * p->groups[i].n_members;
  double alone_us =
      (double)keys * 4 * p->config.head_dim * p->config.n_kv_heads / p->config.cost.alone_bytes_us;
  return (alone_us - p->stats.shared_us) / p->config.n_resident - fixed_us(p);
}

/* Makes the plan that saves most. Few decodes may have small groups only; or groups that fill a tile, if
 * their keys are so many that reading them again for each small group takes longer. Returns whether to share.
 * *fits: whether there are partials enough. */
static bool make_best(td_attention_planner *p, const td_plan *plan, bool *fits)
{
  const td_attention_policy *policy = p->config.policy;
  *fits = share(p, plan, false);
  if (are_few(&p->config, p->n_rows) && !(policy && policy->never_small)) {
    double of_tiles_us = *fits && p->n_groups > 0 ? saved_us(p) : -INFINITY;
    *fits = share(p, plan, true);
    double of_small_us = *fits && p->n_groups > 0 ? saved_us(p) : -INFINITY;
    if (of_tiles_us > of_small_us)
      *fits = share(p, plan, false);
  }
  return *fits && p->n_groups > 0 &&
         ((policy && policy->always_shares) || fixed_us(p) == 0 || saved_us(p) > 0);
}

td_status td_attention_planner_make(td_attention_planner *p, const td_plan *plan, td_error *err)
{
  bool fits;
  p->has_grown = p->has_plan && grow(p, plan);
  if (p->has_grown) {
    p->stats.n_grown++;
    return TD_OK;
  }
  p->has_plan = false;
  TD_TRY(read_rows(p, plan, err));
  if (!make_best(p, plan, &fits)) {
    TD_BUG_ON(!make_structure(p, plan, false)); /* without sharing, a plan needs no partials */
    p->stats.n_unshared += !fits;
  }
  p->has_plan = true;
  p->stats.n_full++;
  return TD_OK;
}

void td_attention_planner_private(const td_attention_planner *p, const td_plan *plan,
                                  td_attention_private *out)
{
  const td_attention_member *members = in_block(p, p->block->members_at);
  const planned_row *row = p->rows;
  for (uint32_t i = 0; i < plan->n_rows; i++) {
    bool planned = plan->rows[i].q_len == 1, shares = planned && members[row->member].n_memberships > 0;
    const td_attention_member *m = &members[planned ? row->member : 0];
    out[i] = shares
                 ? (td_attention_private){row->first_key, row->member, m->first_membership, m->n_memberships}
                 : (td_attention_private){0};
    row += planned;
  }
}

bool td_attention_planner_has_grown(const td_attention_planner *p) { return p->has_grown; }

void td_attention_planner_reset(td_attention_planner *p) { p->has_plan = false; }

td_attention_planner_config td_attention_planner_config_of(const td_attention_planner *p)
{
  return p->config;
}

const td_attention_header *td_attention_planner_block(const td_attention_planner *p) { return p->block; }

const td_attention_group *td_attention_planner_groups(const td_attention_planner *p) { return p->groups; }

td_attention_stats td_attention_planner_stats(const td_attention_planner *p)
{
  td_attention_stats s = p->stats;
  s.longest_us = td_attention_longest_us(p);
  s.private_keys = p->private_keys;
  s.shared_keys = p->shared_keys;
  return s;
}
