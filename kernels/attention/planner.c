/* A plan per step: see plan.h. Most steps have the rows of the step before, each a token longer (PAT's lazy update): then every
 * row's last task of each head grows with it, and cuts stay where they are, until all rows together have grown by a part in
 * RECUT_PART. Whether they are the same rows is seen in the rows themselves: slot, place in the page table, a length that
 * has not shrunk, and, of rows that share pages, the last page that they share. */
#include "kernels/attention/planner.h"

#include <stdlib.h>
#include <string.h>

enum {
  GROWTH_MAX = 64, /* tokens between two plans; more: taken for another row */
  RECUT_PART = 64,
  PERSISTENTKV_PIECES = 32, /* 20 to 32 in the paper */
};

/* Rows of a span of several members, at most. */
static uint32_t tile_members(const td_attention_planner_config *c)
{
  uint32_t rows = c->policy == TD_ATTENTION_PAT && c->tile_rows > 64 ? 64 : c->tile_rows;
  return rows / c->group ? rows / c->group : 1;
}

uint32_t td_attention_shared_spans_max(const td_attention_planner_config *c, uint32_t n_rows)
{
  return n_rows + TD_ATTENTION_LEVELS_MAX * (n_rows / tile_members(c) + 1);
}

static uint32_t shared_spans_max(const td_attention_planner_config *c) { return td_attention_shared_spans_max(c, c->max_rows); }

static uint32_t tasks_max(const td_attention_planner_config *c)
{
  return shared_spans_max(c) + c->max_rows + 2 * c->n_workers;
}

uint32_t td_attention_slots_default(uint32_t max_rows, uint32_t n_kv_heads, uint32_t n_workers)
{
  return 4 * max_rows * n_kv_heads + n_workers * (n_kv_heads + 1);
}

uint32_t td_attention_slots_of(const td_attention_planner_config *c)
{
  enum { LEVELS = 6 };
  uint32_t fixed = c->max_rows * c->n_kv_heads * TD_ATTENTION_INVARIANT_PIECES;
  uint32_t shared = c->max_rows * c->n_kv_heads * LEVELS + PIECE_ROUNDS * c->n_workers * tile_members(c); /* each cut is a tile's partials more */
  uint32_t any = td_attention_slots_default(c->max_rows, c->n_kv_heads, c->n_workers);
  return c->invariant_keys > 0 ? fixed : c->shared_only && shared > any ? shared : any;
}

uint32_t td_attention_block_bytes_max(const td_attention_planner_config *c)
{
  return (uint32_t)(sizeof(td_attention_header) + (2 * c->n_workers + 8) * sizeof(uint32_t) + c->max_rows * sizeof(td_attention_member) +
                    (c->max_rows * TD_ATTENTION_LEVELS_MAX + 4) * sizeof(td_attention_source) +
                    (shared_spans_max(c) + c->max_rows) * sizeof(td_attention_span) + tasks_max(c) * sizeof(td_attention_task));
}

static uint32_t aligned(uint32_t bytes) { return (bytes + 15) / 16 * 16; }

static td_status check_config(const td_attention_planner_config *c, td_error *err)
{
  enum { ROWS_MAX = 1 << 16, WORKERS_MAX = 1 << 14, HEADS_MAX = 1 << 10, DIM_MAX = 1 << 10 };
  if (c->max_rows == 0 || c->max_rows > ROWS_MAX || c->n_workers == 0 || c->n_workers > WORKERS_MAX)
    return td_fail(err, TD_ERR_CONFIG, "attention plan: %u rows on %u workers cannot be planned", c->max_rows, c->n_workers);
  if (c->group == 0 || c->group > TD_ATTENTION_TILE_ROWS_MAX || c->n_kv_heads == 0 || c->n_kv_heads > HEADS_MAX)
    return td_fail(err, TD_ERR_CONFIG, "attention plan: %u kv heads of %u query heads each; at most %d and %d are planned",
                   c->n_kv_heads, c->group, HEADS_MAX, TD_ATTENTION_TILE_ROWS_MAX);
  if (c->head_dim == 0 || c->head_dim > DIM_MAX)
    return td_fail(err, TD_ERR_CONFIG, "attention plan: head dim %u; 1 to %d are planned", c->head_dim, DIM_MAX);
  if (c->page_tokens < 16 || (c->page_tokens & (c->page_tokens - 1)) != 0 || c->page_tokens > 1024)
    return td_fail(err, TD_ERR_CONFIG, "attention plan: pages of %u tokens; 16, 32 and 64 are served", c->page_tokens);
  if (c->tile_rows < c->group || c->tile_rows > TD_ATTENTION_TILE_ROWS_MAX)
    return td_fail(err, TD_ERR_CONFIG, "attention plan: tiles of %u query rows; at least a group's %u, at most %d", c->tile_rows,
                   c->group, TD_ATTENTION_TILE_ROWS_MAX);
  uint32_t unit = c->cost.unit_keys;
  if (unit < 16 || unit > 4096 || (unit & (unit - 1)) != 0)
    return td_fail(err, TD_ERR_CONFIG, "attention plan: cuts at every %u keys; a power of two from 16 on is needed", unit);
  if (c->invariant_keys % 64 != 0 || c->invariant_keys / 16 > UINT16_MAX)
    return td_fail(err, TD_ERR_CONFIG, "attention plan: pieces of %u keys; a multiple of 64 is needed", c->invariant_keys);
  if (c->shared_only && (c->policy != TD_ATTENTION_UNIFIED || c->invariant_keys > 0))
    return td_fail(err, TD_ERR_CONFIG, "attention plan: shared spans alone are planned by predicted time, not by policy %d in pieces of %u keys",
                   (int)c->policy, c->invariant_keys);
  if (!(c->cost.memory_bytes_us > 0 && c->cost.l2_bytes_us > 0 && c->cost.tensor_flop_us > 0 && c->cost.start_us >= 0 &&
        c->cost.partial_us >= 0 && c->cost.shared_range_us >= 0 && c->cost.alone_bytes_us > 0 && c->cost.apart_us >= 0))
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
  p->shared = calloc(p->max_shared, sizeof *p->shared);
  p->shared_cost = calloc(p->max_shared, sizeof *p->shared_cost);
  p->sorted.first = calloc((size_t)p->config.max_rows + 1, sizeof *p->sorted.first);
  p->sorted.place = calloc(p->max_shared, sizeof *p->sorted.place);
  p->sorted.shared = calloc(p->max_shared, sizeof *p->sorted.shared);
  p->sorted.cost = calloc(p->max_shared, sizeof *p->sorted.cost);
  p->sources = calloc(p->max_sources, sizeof *p->sources);
  p->ends_us = calloc(p->config.n_workers, sizeof *p->ends_us);
  p->shared_us = calloc(p->config.n_workers, sizeof *p->shared_us);
  p->block = calloc(1, p->block_bytes);
  return p->rows && p->tree.nodes && p->tree.path && p->tree.buckets && p->packing && p->shared && p->shared_cost && p->sorted.first && p->sorted.place &&
         p->sorted.shared && p->sorted.cost &&
         p->sources && p->ends_us && p->shared_us && p->block;
}

td_status td_attention_planner_create(const td_attention_planner_config *config, td_attention_planner **out, td_error *err)
{
  TD_TRY(check_config(config, err));
  td_attention_planner *p = calloc(1, sizeof *p);
  if (!p)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the attention plan");
  p->config = *config;
  p->page_shift = (uint32_t)__builtin_ctz(config->page_tokens);
  p->tile = tile_members(config);
  p->unit = td_attention_unit_costs(config, p->tile);
  p->max_shared = shared_spans_max(config);
  p->max_sources = config->max_rows * TD_ATTENTION_LEVELS_MAX;
  p->max_slots = config->max_slots ? config->max_slots : td_attention_slots_of(config);
  p->block_bytes = td_attention_block_bytes_max(config);
  if (!alloc_all(p)) {
    td_attention_planner_destroy(p);
    return td_fail(err, TD_ERR_NOMEM, "no memory for the attention plan");
  }
  p->block->n_workers = config->n_workers;
  p->block->invariant_keys = config->invariant_keys;
  p->block->shared_only = config->shared_only;
  p->block->members_at = aligned((uint32_t)(sizeof *p->block + (config->shared_only ? 0 : 2 * (config->n_workers + 1) * sizeof(uint32_t))));
  *out = p;
  return TD_OK;
}

void td_attention_planner_destroy(td_attention_planner *p)
{
  if (!p)
    return;
  free(p->rows), free(p->tree.nodes), free(p->tree.path), free(p->tree.buckets), free(p->packing);
  free(p->sorted.first), free(p->sorted.place), free(p->sorted.shared), free(p->sorted.cost);
  free(p->shared), free(p->shared_cost), free(p->sources), free(p->ends_us), free(p->shared_us),
      free(p->block);
  free(p);
}

uint32_t td_attention_of(const char *word)
{
  static const char *const words[] = {"serial", "unified", "pat", "persistentkv", "flashdecode", "auto"};
  for (uint32_t i = 0; i < sizeof words / sizeof *words; i++)
    if (strcmp(words[i], word) == 0)
      return i;
  return UINT32_MAX;
}

static void *in_block(const td_attention_planner *p, uint32_t at) { return (unsigned char *)p->block + at; }

/* ---- lengths ---- */

/* What lengths need of a config. */
typedef struct pages {
  uint32_t window, mask, shift;
} pages;

static pages pages_of(const td_attention_planner *p)
{
  return (pages){p->config.window_tokens, -p->config.page_tokens, p->page_shift};
}

/* A row's own span and its member, as long as the row is now. Returns the span's keys. */
static ALWAYS_INLINE uint32_t set_length(const pages *in, td_attention_member *members, td_attention_span *own, const planned_row *row)
{
  const planned_row r = *row;
  uint32_t begin = in->window > 0 && r.kv_len > in->window ? (r.kv_len - in->window) & in->mask : 0;
  uint32_t first_key = begin > r.first_key ? begin : r.first_key;
  members[r.member].token = r.token;
  members[r.member].n_keys = r.kv_len - begin;
  own[r.member].first_page = r.page_table_offset + (first_key >> in->shift);
  own[r.member].n_keys = r.kv_len - first_key;
  return r.kv_len - first_key;
}

static uint32_t chunk_of(uint32_t keys) /* in 16 keys, a multiple of 64 keys; what is too long for it has more pieces */
{
  uint32_t n = ceil_div(keys, 64) * 4, most = UINT16_MAX / 4 * 4;
  return n < most ? n : most;
}

/* Fixed pieces: their length follows from the span's alone. A row too long for that has more of them. */
static uint32_t invariant_chunk_of(uint32_t invariant_keys, uint32_t keys)
{
  uint32_t chunk16 = invariant_keys / 16;
  while (keys > chunk16 * 16ull * TD_ATTENTION_INVARIANT_PIECES && 2 * chunk16 <= UINT16_MAX)
    chunk16 *= 2;
  return chunk16;
}

/* Piece lengths of the policies that have such. */
static void set_chunks(td_attention_planner *p, td_attention_span *spans, uint32_t n_spans)
{
  const td_attention_planner_config *c = &p->config;
  uint64_t keys = 0;
  uint32_t n_heads = c->n_kv_heads;
  if (n_spans == 0 || (c->invariant_keys == 0 && c->policy == TD_ATTENTION_UNIFIED))
    return;
  for (uint32_t i = 0; i < n_spans; i++)
    keys += spans[i].n_keys;
  uint32_t mean = (uint32_t)(keys / n_spans) + 1, n_lines = n_spans * n_heads;
  uint32_t few = ceil_div(2 * c->n_workers, n_lines), many = ceil_div(16 * c->n_workers, n_lines); /* pieces of a row's head */
  many = many < PERSISTENTKV_PIECES ? many : PERSISTENTKV_PIECES;
  for (uint32_t i = 0; i < n_spans; i++) {
    uint32_t chunk = c->invariant_keys > 0 ? invariant_chunk_of(c->invariant_keys, spans[i].n_keys) : 0;
    if (chunk == 0 && c->policy == TD_ATTENTION_PAT)
      chunk = spans[i].n_keys > mean ? chunk_of(ceil_div(spans[i].n_keys, ceil_div(spans[i].n_keys, mean))) : 0;
    else if (chunk == 0 && c->policy == TD_ATTENTION_PERSISTENTKV)
      chunk = chunk_of(ceil_div(spans[i].n_keys, many));
    else if (chunk == 0)
      chunk = chunk_of(ceil_div(spans[i].n_keys, few));
    if (chunk == 0) /* one piece a head, so that ranges are of whole pieces here too */
      chunk = chunk_of(spans[i].n_keys);
    spans[i].chunk16 = (uint16_t)chunk;
  }
}

static inline bool has_pages(const td_attention_planner *p, const td_plan_row *r, const td_plan *plan)
{
  return r->kv_len > 0 && r->page_table_offset + (uint64_t)((r->kv_len - 1) >> p->page_shift) < plan->page_table_len;
}

/* ---- from nothing ---- */

static td_status take_rows(td_attention_planner *p, const td_plan *plan, td_error *err)
{
  uint32_t n = 0, max_rows = p->config.max_rows, longest = UINT32_MAX / p->config.n_kv_heads / 2, n_rows = plan->n_rows;
  planned_row *rows = p->rows;
  const td_plan_row *from = plan->rows;
  for (uint32_t i = 0; i < n_rows; i++) {
    const td_plan_row r = from[i];
    if (r.q_len != 1)
      continue;
    if (n == max_rows)
      return td_fail(err, TD_ERR_CAPACITY, "attention plan: more than %u decode rows", max_rows);
    if (!has_pages(p, &r, plan))
      return td_fail(err, TD_ERR_CAPACITY, "attention plan: a row of %u keys at %u of a page table of %u entries", r.kv_len,
                     r.page_table_offset, plan->page_table_len);
    if (r.kv_len > longest)
      return td_fail(err, TD_ERR_CAPACITY, "attention plan: a row of %u keys; at most %u are planned", r.kv_len, longest);
    planned_row *row = &rows[n++];
    row->slot = r.slot;
    row->page_table_offset = r.page_table_offset;
    row->kv_len = r.kv_len;
    row->token = r.q_start;
  }
  p->n_rows = n;
  return TD_OK;
}

/* Where things lie in the block, and what of it stays while rows only grow. */
static void lay_out(td_attention_planner *p)
{
  td_attention_header *h = p->block;
  h->n_members = p->n_members;
  h->n_sources = p->n_sources;
  h->n_shared_spans = p->n_shared;
  h->n_spans = p->n_shared + p->n_members;
  h->sources_at = aligned(h->members_at + p->n_members * (uint32_t)sizeof(td_attention_member));
  h->spans_at = aligned(h->sources_at + p->n_sources * (uint32_t)(p->config.shared_only ? sizeof(td_attention_source) : sizeof *p->sources));
  h->tasks_at = aligned(h->spans_at + h->n_spans * (uint32_t)sizeof(td_attention_span));
  if (!p->config.shared_only) /* else cut.c's */
    memcpy(in_block(p, h->sources_at), p->sources, p->n_sources * sizeof *p->sources);
  memcpy(in_block(p, h->spans_at), p->shared, p->n_shared * sizeof *p->shared);
  const td_attention_member *members = in_block(p, h->members_at);
  td_attention_span *own = (td_attention_span *)in_block(p, h->spans_at) + p->n_shared;
  for (uint32_t i = 0, n = p->n_members; i < n; i++)
    own[i] = (td_attention_span){.first_member = i, .n_members = 1, .shared = members[i].n_sources > 0};
}

/* ---- a plan ---- */

static bool cut(td_attention_planner *p)
{
  td_attention_span *spans = in_block(p, p->block->spans_at);
  set_chunks(p, spans, p->block->n_spans);
  return td_attention_cut(p);
}

static bool make_structure(td_attention_planner *p, const td_plan *plan, bool pack)
{
  if (pack)
    td_attention_tree_build(p, plan->page_table);
  td_attention_pack(p, pack);
  lay_out(p);
  td_attention_member *members = in_block(p, p->block->members_at);
  td_attention_span *own = (td_attention_span *)in_block(p, p->block->spans_at) + p->n_shared;
  const pages in = pages_of(p);
  const int32_t *page_table = plan->page_table;
  planned_row *rows = p->rows;
  uint64_t own_keys = 0;
  for (uint32_t r = 0, n = p->n_rows; r < n; r++) {
    own_keys += set_length(&in, members, own, &rows[r]);
    rows[r].probe_page = rows[r].probe == NONE ? 0 : page_table[rows[r].probe];
  }
  p->own_keys = own_keys;
  return cut(p);
}

/* Whether r is the row that it was. */
static inline bool is_same(const td_attention_planner *p, const planned_row *old, const td_plan_row *r, const td_plan *plan)
{
  if (r->slot != old->slot || r->page_table_offset != old->page_table_offset || r->kv_len < old->kv_len ||
      r->kv_len - old->kv_len > GROWTH_MAX || !has_pages(p, r, plan))
    return false;
  uint32_t window = p->config.window_tokens;
  return old->probe == NONE || (plan->page_table[old->probe] == old->probe_page && (window == 0 || r->kv_len <= window));
}

enum grown { OTHERS, GROWN, TO_CUT };

/* If the plan's rows are those of the plan before: their new lengths. TO_CUT: a window has moved. */
static enum grown grow_rows(td_attention_planner *p, const td_plan *plan)
{
  td_attention_member *members = in_block(p, p->block->members_at);
  td_attention_span *own = (td_attention_span *)in_block(p, p->block->spans_at) + p->n_shared;
  td_attention_task *tasks = in_block(p, p->block->tasks_at);
  const pages in = pages_of(p);
  uint32_t n = 0;
  uint64_t own_keys = 0;
  enum grown grown = GROWN;
  for (uint32_t i = 0; i < plan->n_rows; i++) {
    const td_plan_row *r = &plan->rows[i];
    if (r->q_len != 1)
      continue;
    planned_row *row = &p->rows[n];
    if (n == p->n_rows || !is_same(p, row, r, plan))
      return OTHERS;
    row->kv_len = r->kv_len;
    row->token = r->q_start;
    td_attention_span *s = &own[row->member];
    uint32_t n_before = s->n_keys, first_page = s->first_page;
    own_keys += set_length(&in, members, own, row);
    if (s->first_page != first_page)
      grown = TO_CUT;
    for (uint32_t t = s->first_task; t < s->first_task + s->n_tasks; t++) {
      tasks[t].n_keys = s->n_keys;
      tasks[t].end_key = tasks[t].end_key == n_before ? s->n_keys : tasks[t].end_key;
    }
    n++;
  }
  p->own_keys = own_keys;
  return n == p->n_rows ? grown : OTHERS;
}

/* The plan of the step before, grown. False: it must be made from nothing. */
static bool make_lazily(td_attention_planner *p, const td_plan *plan)
{
  enum grown grown = grow_rows(p, plan);
  const td_attention_span *spans = in_block(p, p->block->spans_at);
  bool chunks = p->n_rows > 0 && spans[p->n_shared].chunk16 > 0;
  if (grown == OTHERS)
    return false;
  if (p->config.shared_only) { /* of what grows there are no cuts */
    p->block->n_piece_blocks = td_attention_piece_blocks(p);
    return true;
  }
  if (grown == TO_CUT || chunks || (p->own_keys - p->cut_keys) * RECUT_PART > p->cut_keys) {
    p->stats.n_cut++;
    return cut(p);
  }
  return true;
}

/* Of shared spans alone: whether they save as much time as they take. Where each row reads what it shares by itself, all do so at once, from
 * the L2 cache after the first; their own keys come later, at memory's rate either way. */
static bool is_worth_it(const td_attention_planner *p)
{
  const td_attention_cost *c = &p->config.cost;
  uint64_t keys = 0;
  for (uint32_t i = 0; i < p->n_shared; i++)
    keys += (uint64_t)p->shared[i].n_keys * p->shared[i].n_members;
  double alone_us = (double)keys * 4 * p->config.head_dim * p->config.n_kv_heads / c->alone_bytes_us;
  return c->apart_us == 0 || (alone_us - p->stats.total_us) / p->config.n_workers > c->apart_us;
}

td_status td_attention_planner_make(td_attention_planner *p, const td_plan *plan, td_error *err)
{
  p->has_grown = p->has_plan && make_lazily(p, plan);
  if (p->has_grown) {
    p->stats.n_lazy++;
    return TD_OK;
  }
  p->has_plan = false;
  TD_TRY(take_rows(p, plan, err));
  bool pack = p->config.invariant_keys == 0 &&
              (p->config.policy == TD_ATTENTION_UNIFIED || p->config.policy == TD_ATTENTION_PAT);
  bool fits = make_structure(p, plan, pack);
  if (fits && p->config.shared_only && p->n_shared > 0 && !is_worth_it(p))
    fits = make_structure(p, plan, false);
  if (!fits && pack) {
    fits = make_structure(p, plan, false);
    p->stats.n_unpacked += fits;
  }
  if (!fits)
    return td_fail(err, TD_ERR_CAPACITY, "attention plan: %u rows need more than %u partials", p->n_rows, p->max_slots);
  p->has_plan = true;
  p->stats.n_full++;
  return TD_OK;
}

void td_attention_planner_own(const td_attention_planner *p, const td_plan *plan, td_attention_own *own)
{
  const td_attention_member *members = in_block(p, p->block->members_at);
  const planned_row *row = p->rows;
  for (uint32_t i = 0; i < plan->n_rows; i++) {
    bool planned = plan->rows[i].q_len == 1, shares = planned && members[row->member].n_sources > 0;
    const td_attention_member *m = &members[planned ? row->member : 0];
    own[i] = shares ? (td_attention_own){row->first_key, row->member, m->first_source, m->n_sources} : (td_attention_own){0};
    row += planned;
  }
}

bool td_attention_planner_has_grown(const td_attention_planner *p) { return p->has_grown; }

void td_attention_planner_forget(td_attention_planner *p) { p->has_plan = false; }

td_status td_attention_planner_set_cost(td_attention_planner *p, const td_attention_cost *cost, td_error *err)
{
  td_attention_planner_config c = p->config;
  c.cost = *cost;
  TD_TRY(check_config(&c, err));
  p->config = c;
  p->unit = td_attention_unit_costs(&c, p->tile);
  p->has_plan = false;
  return TD_OK;
}

td_attention_planner_config td_attention_planner_config_of(const td_attention_planner *p) { return p->config; }

uint32_t td_attention_planner_block_bytes(const td_attention_planner *p) { return p->block_bytes; }

const td_attention_header *td_attention_planner_block(const td_attention_planner *p) { return p->block; }

td_attention_stats td_attention_planner_stats(const td_attention_planner *p)
{
  td_attention_stats s = p->stats;
  s.longest_us = td_attention_longest_us(p);
  return s;
}
