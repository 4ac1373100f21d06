// KV groups: layers of a store that agree in heads, head size and window. One attention plan and one work
// list a step serve all layers of a group. A group keeps its slot for its whole life, because captured graphs
// hold the address of its counts. Creating or destroying another store does not move it.
#include "kernels/cuda/attention_colocated.cuh"
#include "kernels/cuda/attention_prefill_sums.cuh"

#include <algorithm>
#include <cstdlib>
#include <new>

// ---- sizes and configurations ----

// Bandwidth for scattered pages. This fraction of the nominal rate was measured on an H100 and on an H200.
static double pages_bytes_us(const cuda_backend *b)
{
  const double part = 0.91, h200 = 4.9e6;
  return part * (b->device.bytes_us > 0 ? b->device.bytes_us : h200);
}

// Heads of 256 elements have no kernel for prefix splits. GQA groups with more heads than a decode item has
// rows are computed as prefill tiles.
bool td_cuda_planner_config(const cuda_backend *b, uint32_t page_tokens, const td_kv_group *s,
                            td_attention_planner_config *out)
{
  uint32_t gqa_group = s->n_heads / s->n_kv_heads;
  if (b->config.batch_invariant || !b->device.has_wgmma || s->head_dim > 128 ||
      !td_cuda_has_wgmma_attention(s->head_dim) || gqa_group > TD_DECODE_ROWS)
    return false;
  td_attention_planner_config c = {};
  c.policy = b->config.attention_policy;
  c.max_rows = b->config.max_rows;
  c.n_resident = td_cuda_resident_ctas(b, s->head_dim, true);
  c.n_kv_heads = s->n_kv_heads;
  c.gqa_group = gqa_group;
  c.head_dim = s->head_dim;
  c.page_tokens = page_tokens;
  c.window_tokens = s->window_tokens;
  c.tile_rows = PREFIX_TILE_ROWS;
  c.small_rows = TD_DECODE_ROWS;
  c.reduces_in_tiles = gqa_group > TD_REDUCE_BY_HEAD_GQA_GROUP_MAX;
  c.max_partials = td_attention_partials_max(&c);
  c.cost = td_attention_cost_of_h200(c.n_resident);
  c.cost.memory_bytes_us = pages_bytes_us(b) / c.n_resident;
  *out = c;
  return true;
}

static td_hybrid_config hybrid_config(const cuda_backend *b, const td_kv_group *s, bool wgmma)
{
  td_hybrid_config c = {};
  c.policy = b->config.attention_policy;
  c.n_sms = (uint32_t)b->device.n_sms;
  c.n_kv_heads = s->n_kv_heads;
  c.head_dim = s->head_dim;
  c.tile_keys = wgmma ? prefill_keys(s->head_dim) : 0;
  c.window_tokens = s->window_tokens;
  c.memory_bytes_us = pages_bytes_us(b);
  return c;
}

static td_work_list_config list_config(const cuda_backend *b, const td_kv_group *s, bool shares)
{
  bool wgmma = b->device.has_wgmma && td_cuda_has_wgmma_attention(s->head_dim);
  td_work_list_config c = {};
  c.policy = b->config.attention_policy;
  c.gqa_group = s->n_heads / s->n_kv_heads;
  c.n_kv_heads = s->n_kv_heads;
  c.n_resident = td_cuda_resident_ctas(b, s->head_dim, shares);
  c.prefill_rows = wgmma ? TD_PREFILL_ROWS_WGMMA : TD_PREFILL_ROWS_MMA;
  c.hybrid = hybrid_config(b, s, wgmma);
  bool colocates =
      wgmma && !shares && !b->config.batch_invariant && c.gqa_group <= colocated_rows(s->head_dim);
  c.hybrid.colocated_rows = colocates ? colocated_rows(s->head_dim) : 0;
  c.decode_rows = TD_DECODE_ROWS;
  c.warp_rows_min = wgmma ? TD_WARP_ITEM_ROWS_MIN : 0;
  c.tiles_only = b->config.batch_invariant;
  return c;
}

// Sizes of a group's device arrays, in elements.
struct group_sizes {
  size_t items, split_floats, prefill_floats, prefill_flags, tickets, plan_bytes, prefix_partial_bytes, flags;
};

static group_sizes sizes_of(const cuda_backend *b, uint32_t page_tokens, const td_kv_group *s)
{
  const td_work_list_config list = list_config(b, s, false);
  group_sizes n = {};
  td_attention_planner_config c;
  n.items = td_work_list_items_max(b->config.max_rows, b->config.max_tokens);
  n.split_floats = (size_t)td_work_list_partials_max(&list) * s->n_kv_heads * TD_DECODE_ROWS *
                   kv_split_floats(s->head_dim);
  if (list.hybrid.tile_keys > 0 && !list.tiles_only) {
    n.prefill_flags = (size_t)TD_PREFILL_PARTIALS_MAX * 2; // one for each warpgroup
    n.prefill_floats = n.prefill_flags * prefill_partial_floats(s->head_dim);
  }
  n.tickets = list.hybrid.colocated_rows > 0 ? TICKET_COUNTERS : 0;
  if (td_cuda_planner_config(b, page_tokens, s, &c)) {
    uint32_t n_splits = td_attention_prefix_splits_max(&c, c.max_rows);
    n.items += n_splits;
    n.plan_bytes = td_attention_block_bytes_max(&c);
    n.prefix_partial_bytes = (size_t)c.max_partials * c.gqa_group * TD_ATTENTION_PARTIAL_BYTES(c.head_dim);
    n.flags = (size_t)n_splits * c.n_kv_heads;
  }
  return n;
}

// Rounds up to the granularity of cudaMalloc.
static size_t granules(size_t bytes)
{
  const size_t granule = (size_t)2 << 20;
  return (bytes + granule - 1) / granule * granule;
}

size_t td_cuda_group_packed_bytes(const cuda_backend *b, uint32_t page_tokens, const td_kv_group *s)
{
  const group_sizes n = sizes_of(b, page_tokens, s);
  return n.items * sizeof(td_attention_item) + n.plan_bytes;
}

size_t td_cuda_group_bytes(const cuda_backend *b, uint32_t page_tokens, const td_kv_group *s)
{
  const group_sizes n = sizes_of(b, page_tokens, s);
  return granules(n.items * sizeof(td_attention_item)) + granules(n.split_floats * sizeof(float)) +
         granules(n.prefill_floats * sizeof(float)) + granules(n.prefill_flags * sizeof(uint64_t)) +
         granules(n.tickets * sizeof(uint32_t)) + granules(n.plan_bytes) + granules(n.prefix_partial_bytes) +
         granules(n.flags * sizeof(uint64_t)) + granules(td_cuda_group_packed_bytes(b, page_tokens, s));
}

// ---- add, remove ----

void td_cuda_remove_group(cuda_backend *b, attention_group *g)
{
  if (!g)
    return;
  if (b->attention.groups[g->slot] == g)
    b->attention.groups[g->slot] = nullptr;
  for (void *p : {(void *)g->data, (void *)g->device_items, (void *)g->split_partials,
                  (void *)g->prefill_partials, (void *)g->prefill_flags, (void *)g->tickets,
                  (void *)g->device_plan, (void *)g->prefix_partials, (void *)g->prefix_flags})
    td_cuda_free(&b->device, p);
  free(g->work.items);
  free(g->work.scratch);
  free(g->work.private_kv);
  td_attention_planner_destroy(g->planner);
  delete g;
}

static td_status make_group(cuda_backend *b, attention_group *g, td_error *err)
{
  const td_kv_group *s = &g->spec;
  const group_sizes n = sizes_of(b, g->page_tokens, s);
  size_t page_bytes = s->n_layers * kv_page_elements(g->page_tokens, s) * kv_element_bytes(s);
  size_t max_rows = b->config.max_rows;
  td_attention_planner_config c;
  g->work.max_items = (uint32_t)n.items;
  g->work.items = (td_attention_item *)calloc(n.items, sizeof *g->work.items);
  g->work.scratch = (uint32_t *)calloc(max_rows * TD_WORK_LIST_SCRATCH, sizeof *g->work.scratch);
  g->work.private_kv = (td_attention_private *)calloc(max_rows, sizeof *g->work.private_kv);
  if (!g->work.items || !g->work.scratch || !g->work.private_kv)
    return td_fail(err, TD_ERR_NOMEM, "no memory for a step's work list");
  TD_TRY(td_cuda_attention_allow_smem(g, err));
  TD_TRY(td_cuda_alloc_bytes(&b->device, page_bytes * g->n_pages, (void **)&g->data, err));
  TD_TRY(td_cuda_alloc_array(&b->device, n.items, &g->device_items, err));
  TD_TRY(td_cuda_alloc_empty(&b->device, n.split_floats, &g->split_partials, err));
  TD_TRY(td_cuda_alloc_array(&b->device, n.prefill_floats, &g->prefill_partials, err));
  TD_TRY(td_cuda_alloc_array(&b->device, n.prefill_flags, &g->prefill_flags, err));
  TD_TRY(td_cuda_alloc_array(&b->device, n.tickets, &g->tickets, err));
  if (!td_cuda_planner_config(b, g->page_tokens, s, &c))
    return TD_OK;
  TD_TRY(td_attention_planner_create(&c, &g->planner, err));
  TD_TRY(td_cuda_alloc_array(&b->device, n.plan_bytes, &g->device_plan, err));
  TD_TRY(td_cuda_alloc_array(&b->device, n.prefix_partial_bytes, &g->prefix_partials, err));
  return td_cuda_alloc_array(&b->device, n.flags, &g->prefix_flags, err);
}

td_status td_cuda_add_group(cuda_backend *b, const td_kv_spec *store, const td_kv_group *spec,
                            attention_group **out, td_error *err)
{
  attention_group **slots = b->attention.groups, **free_slot = std::find(slots, slots + GROUP_SLOTS, nullptr);
  if (free_slot == slots + GROUP_SLOTS)
    return td_fail(err, TD_ERR_CAPACITY, "the CUDA backend plans attention for %d KV groups at once",
                   (int)GROUP_SLOTS);
  attention_group *g = new (std::nothrow) attention_group();
  if (!g)
    return td_fail(err, TD_ERR_NOMEM, "no memory for a KV group");
  g->spec = *spec;
  g->n_pages = store->n_pages;
  g->page_tokens = store->page_tokens;
  g->slot = (uint32_t)(free_slot - slots);
  g->wgmma = b->device.has_wgmma && td_cuda_has_wgmma_attention(spec->head_dim);
  td_status st = make_group(b, g, err);
  // CTAs that wait for KV splits of other CTAs rely on all of them being resident
  // (docs/attention-progress.md).
  g->has_prefill_pairs =
      st == TD_OK && g->wgmma && 2 * td_cuda_prefill_pairs(spec->head_dim) >= (uint32_t)b->device.n_sms;
  if (st == TD_OK) {
    *free_slot = g;
    st = td_cuda_fit_packed(b, err);
  }
  if (st != TD_OK)
    td_cuda_remove_group(b, g);
  else
    *out = g;
  return st;
}

// ---- a step ----

// A group whose page size differs from the step's has no work in it.
static bool is_of_step(const attention_group *g, const td_plan *plan)
{
  return g->page_tokens == plan->page_tokens;
}

void td_cuda_plan_attention(cuda_backend *b, const td_plan *plan)
{
  b->attention.mode = ATTENTION_PRIVATE;
  for (attention_group *g : groups_of{&b->attention}) {
    // planning fails for sequences without pages (in tests); then no sequence shares a prefix
    g->is_planned =
        g->planner && is_of_step(g, plan) && td_attention_planner_make(g->planner, plan, nullptr) == TD_OK;
    if (g->is_planned && td_attention_planner_block(g->planner)->n_splits > 0)
      b->attention.mode = ATTENTION_SHARED;
  }
  for (attention_group *g : groups_of{&b->attention}) {
    const td_attention_planner *planner = g->is_planned ? g->planner : nullptr;
    td_work_list_config c = list_config(b, &g->spec, g->planner && shares_prefixes(&b->attention));
    c.hybrid.has_pairs = g->has_prefill_pairs;
    bool same_mode = g->work_list_mode == b->attention.mode;
    g->work_list_mode = b->attention.mode;
    if (!is_of_step(g, plan)) // an empty list; setting at_make.n_rows to 0 makes later steps rebuild it
                              // instead of growing it
      g->work.n_items = g->work.n_wide = g->work.n_prefill = g->work.n_next = g->work.at_make.n_rows = 0;
    else if (!planner || !same_mode || !td_attention_planner_has_grown(planner) ||
             !td_work_list_grow(&g->work, plan, planner))
      td_work_list_make(&g->work, plan, &c, planner);
  }
}

attention_grid td_cuda_attention_grid(const cuda_backend *b, const attention_group *g)
{
  if (!is_capture(&b->attention))
    return {g->work.n_prefill, td_work_list_ctas(&g->work, DECODE_WARPS)};
  uint32_t n_rows = b->frame.plan->n_rows; // the grid must hold any step of that many sequences
  bool shares = g->planner && shares_prefixes(&b->attention);
  const td_work_list_config c = list_config(b, &g->spec, shares);
  if (c.tiles_only || c.gqa_group > TD_DECODE_ROWS)
    return {n_rows, 0};
  uint32_t n = td_work_list_ctas_max(&c, n_rows);
  if (shares) {
    const td_attention_planner_config p = td_attention_planner_config_of(g->planner);
    n += td_attention_prefix_splits_max(&p, n_rows);
  }
  return {0, n};
}
