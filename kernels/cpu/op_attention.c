/* Attention: splits the plan's rows into items (a few query tokens, heads of one kv head) for the threads. If
 * there are few items, long ones are split further, by segments of keys. Their partials are reduced in the
 * order in which an unsplit item meets them, so the split changes no bit. */
#include "common/checked.h"
#include "kernels/cpu/cpu.h"

typedef struct attention_job {
  cpu_backend *be;
  const td_attention_params *p;
  uint32_t group;       /* query heads per kv head */
  uint32_t tile_heads;  /* heads of an item: the whole GQA group, if it fits in a tile */
  uint32_t tile_tokens; /* tokens of an item */
  cpu_attention_item *items;
  uint32_t n_items;
  bool none_run; /* no item of this step has run yet */
} attention_job;

static td_isa_attention item_params(const attention_job *j, const cpu_attention_item *item)
{
  const td_attention_params *p = j->p;
  const td_plan *plan = j->be->plan;
  const td_plan_row *row = &plan->rows[item->row];
  const cpu_kv_group *kv = cpu_kv_group_of(p->kv, p->kv_group);
  uint32_t dim = p->head_dim, token = row->q_start + item->first_token;
  uint32_t head = item->kv_head * j->group + item->first_head;
  uint64_t q_stride = (uint64_t)(p->n_heads + 2 * p->n_kv_heads) * dim,
           out_stride = (uint64_t)p->n_heads * dim;
  td_isa_attention a = {
      .q = cpu_floats(p->qkv) + token * q_stride + (size_t)head * dim,
      .q_stride = q_stride,
      .out = cpu_floats(p->out) + token * out_stride + (size_t)head * dim,
      .out_stride = out_stride,
      .first_position = row->kv_len - row->q_len + item->first_token,
      .n_tokens = item->n_tokens,
      .n_heads = item->n_heads,
      .head_dim = dim,
      .padded_dim = kv->padded_dim,
      .window_tokens = p->window_tokens,
      .scale = p->scale,
      .kv = kv->data + p->layer * kv->layer_bytes + item->kv_head * kv->head_bytes,
      .f16 = kv->f16,
      .page_bytes = kv->page_bytes,
      .pages = plan->page_table + row->page_table_offset,
      .page_tokens = plan->page_tokens,
      .segment_begin = item->segment_begin,
      .segment_end = item->segment_end,
  };
  if (item->partial != CPU_NO_PARTIAL) {
    a.partial_state = j->be->partial_state + item->partial;
    a.partial_out = j->be->partial_out + (size_t)item->partial * TD_HEAD_DIM_MAX;
  }
  return a;
}

static void item_task(void *arg, uint32_t task, uint32_t thread)
{
  const attention_job *j = arg;
  td_isa_attention a = item_params(j, &j->items[task]);
  j->be->isa->attention(&a);
}

/* Sets the segments that the item's queries can see. */
static void item_segments(const attention_job *j, cpu_attention_item *item)
{
  const td_plan_row *row = &j->be->plan->rows[item->row];
  uint32_t first = row->kv_len - row->q_len + item->first_token, end = first + item->n_tokens;
  uint32_t window = j->p->window_tokens, lowest = window && first >= window ? first + 1 - window : 0;
  item->segment_begin = lowest / TD_KEY_SEGMENT;
  item->segment_end = (uint32_t)td_div_ceil_u64(end, TD_KEY_SEGMENT);
}

static void run_items(attention_job *j)
{
  td_thread_pool_run(j->be->pool, item_task, j, j->n_items);
  j->n_items = 0;
  j->none_run = false;
}

static void reduce_task(void *arg, uint32_t task, uint32_t thread)
{
  const attention_job *j = arg;
  td_isa_attention a = item_params(j, &j->be->items[task]);
  if (a.partial_out)
    j->be->isa->attention_reduce(&a);
}

/* Runs few items. Each item with several segments becomes one item per segment, as long as there is room for
 * partials. */
static void run_split(attention_job *j)
{
  cpu_backend *be = j->be;
  uint32_t n_whole = j->n_items, n_partials = 0, n = 0;
  bool any = false;
  for (uint32_t i = 0; i < n_whole; i++) {
    cpu_attention_item *item = &be->items[i];
    uint32_t n_segments = item->segment_end - item->segment_begin, queries = item->n_tokens * item->n_heads;
    if (n_segments == 1 || n_segments > (CPU_PARTIALS - n_partials) / queries ||
        n + n_segments + (n_whole - i) > CPU_ITEMS) {
      be->split_items[n++] = *item;
      continue;
    }
    any = true;
    item->partial = n_partials;
    for (uint32_t s = item->segment_begin; s < item->segment_end; s++, n_partials += queries) {
      be->split_items[n] = *item;
      be->split_items[n].segment_begin = s;
      be->split_items[n].segment_end = s + 1;
      be->split_items[n++].partial = n_partials;
    }
  }
  j->items = be->split_items;
  j->n_items = n;
  run_items(j);
  if (any)
    td_thread_pool_run(be->pool, reduce_task, j, n_whole);
}

static void add_item(attention_job *j, cpu_attention_item item)
{
  if (j->n_items == CPU_ITEMS)
    run_items(j);
  item_segments(j, &item);
  j->items[j->n_items++] = item;
}

/* Late tokens of a prompt see the most keys. Their items come first, so that the threads end together. */
static void add_row(attention_job *j, uint32_t r)
{
  uint32_t q_len = j->be->plan->rows[r].q_len;
  for (uint32_t tile = (uint32_t)td_div_ceil_u64(q_len, j->tile_tokens); tile-- > 0;) {
    uint32_t first = tile * j->tile_tokens, left = q_len - first;
    for (uint32_t kv_head = 0; kv_head < j->p->n_kv_heads; kv_head++)
      for (uint32_t head = 0; head < j->group; head += j->tile_heads)
        add_item(j, (cpu_attention_item){
                        .row = r,
                        .first_token = first,
                        .n_tokens = left < j->tile_tokens ? left : j->tile_tokens,
                        .kv_head = kv_head,
                        .first_head = head,
                        .n_heads = j->group - head < j->tile_heads ? j->group - head : j->tile_heads,
                        .partial = CPU_NO_PARTIAL,
                    });
  }
}

void td_cpu_attention(cpu_backend *be, const td_attention_params *p, uint32_t n_rows)
{
  attention_job j = {
      .be = be, .p = p, .group = p->n_heads / p->n_kv_heads, .items = be->items, .none_run = true};
  TD_BUG_ON(be->plan->page_tokens != p->kv->spec.page_tokens);
  j.tile_heads = j.group < TD_ATTENTION_TILE ? j.group : TD_ATTENTION_TILE;
  j.tile_tokens = TD_ATTENTION_TILE / j.tile_heads;
  for (uint32_t r = be->plan->n_rows; r-- > 0;)
    add_row(&j, r);
  if (j.none_run && j.n_items < 4 * td_thread_pool_threads(be->pool) && td_thread_pool_threads(be->pool) > 1)
    run_split(&j);
  else
    run_items(&j);
}
