// What a KV store's attention is planned with: the planner of kernels/attention, and the memory that plans need on the device.
#include "kernels/cuda/attention.cuh"

// Heads of 256 elements have no kernel for prefix splits; GQA groups of more heads than a decode item holds are prefill tiles.
bool td_cuda_planner_config(const cuda_backend *b, const td_kv_shape *s, td_attention_planner_config *out)
{
  uint32_t group = s->n_heads / s->n_kv_heads;
  if (b->config.batch_invariant || !b->has_wgmma || s->head_dim > 128 || !td_cuda_has_wgmma_attention(s->head_dim) || group > TD_DECODE_ROWS)
    return false;
  td_attention_planner_config c = {};
  c.policy = b->config.attention_policy;
  c.max_rows = b->config.max_rows;
  c.n_resident = td_cuda_shares_blocks(b, s->head_dim);
  c.n_kv_heads = s->n_kv_heads;
  c.gqa_group = group;
  c.head_dim = s->head_dim;
  c.page_tokens = s->page_tokens;
  c.window_tokens = s->window_tokens;
  c.tile_rows = SPAN_ROWS;
  c.reduces_in_tiles = group > TD_ATTENTION_BY_ROW_GROUP;
  c.max_slots = td_attention_slots_of(&c);
  c.cost = td_attention_cost_of_h200(c.n_resident);
  *out = c;
  return true;
}

td_status td_cuda_make_planner(cuda_backend *b, const td_kv *kv, td_error *err)
{
  td_attention_planner_config c;
  td_attention_planner_destroy(b->planner);
  b->planner = nullptr;
  if (!td_cuda_planner_config(b, &kv->shape, &c))
    return TD_OK;
  TD_TRY(td_attention_planner_create(&c, &b->planner, err));
  TD_TRY(td_cuda_alloc_array(b, td_attention_block_bytes_max(&c), &b->device_plan, err));
  TD_TRY(td_cuda_alloc_array(b, td_cuda_plan_partial_bytes(&c), &b->plan_partials, err));
  return td_cuda_alloc_array(b, td_cuda_prefix_flags(&c), &b->pieces_done, err);
}
