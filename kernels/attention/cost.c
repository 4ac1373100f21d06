/* Predicted times. Reading a key takes its bytes at the rate of memory or the L2 cache, or its operations at
 * the rate of the tensor cores, whichever takes longer. A prefix split has a prologue and an epilogue. A
 * partial is written once and read once. */
#include "kernels/attention/planner.h"

/* Measured on an H200 with 132 SMs. Scattered pages come from memory at 4.47 TB/s. Keys that many rows read
 * at the same time come from the L2 cache at 6.6 to 8.3 TB/s. Attention of prompts reaches 560 TFLOP/s. Steps
 * with shared prefixes take the same time within 2 % for a start_us from 2 to 6 and a partial_us from 0.1 to
 * 0.6. What sharing costs, and alone_bytes_us: tandem-bench steps --shared, with and without sharing, 2 to 64
 * rows that share 512 to 8,192 tokens (docs/lab). */
td_attention_cost td_attention_cost_of_h200(uint32_t n_resident)
{
  double n = n_resident > 0 ? n_resident : 1;
  return (td_attention_cost){.memory_bytes_us = 4.47e6 / n,
                             .l2_bytes_us = 7.5e6 / n,
                             .l2_bytes = 30e6,
                             .tensor_flop_us = 560e6 / n,
                             .start_us = 3,
                             .partial_us = 0.3,
                             .alone_bytes_us = 10.7e6 / n,
                             .sharing_us = 12,
                             .small_sharing_us = 2.5,
                             .small_group_us = 0.6};
}

unit_costs td_attention_unit_costs(const td_attention_planner_config *c, uint32_t tile_members, bool small)
{
  double key_bytes = 4.0 * c->head_dim,
         partial_bytes = (double)c->gqa_group * TD_ATTENTION_PARTIAL_BYTES(c->head_dim);
  /* CTAs of small groups read the same keys at the same time, as decodes do that read them by themselves */
  double read[2] = {key_bytes / c->cost.memory_bytes_us,
                    key_bytes / (small ? c->cost.alone_bytes_us : c->cost.l2_bytes_us)};
  double tile_us = 4.0 * 64 * c->head_dim / c->cost.tensor_flop_us;
  unit_costs u = {.partial_us = c->cost.partial_us + 2 * partial_bytes / c->cost.l2_bytes_us};
  double l2_keys = c->cost.l2_bytes / (key_bytes * c->n_kv_heads);
  u.l2_keys = l2_keys < INT32_MAX && !small ? (uint32_t)l2_keys : INT32_MAX;
  for (int again = 0; again < 2; again++)
    for (int tiles = 0; tiles < 3; tiles++)
      u.key_us[again][tiles] = read[again] > tiles * tile_us ? read[again] : tiles * tile_us;
  uint32_t heads = c->n_kv_heads, full = tiles_of(tile_members * c->gqa_group);
  u.row_partial_us = (float)(u.partial_us * heads);
  u.row_tile_us = (float)(c->cost.start_us * heads / tile_members);
  for (int again = 0; again < 2; again++)
    u.row_tile_key_us[again] = (float)(u.key_us[again][full] * heads / tile_members);
  return u;
}
