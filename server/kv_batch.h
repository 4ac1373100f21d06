/* A batch of KV events as vLLM (0.23 and later) writes them, in MessagePack:
 *
 *   [time, [event, ...], data_parallel_rank]
 *   {"type": "BlockStored", "block_hashes": [...], "parent_block_hash": N or nil, "token_ids": [...],
 *    "block_size": N, "lora_id": nil, "medium": "GPU", "lora_name": nil, "extra_keys": [[...] or nil, ...]}
 *   {"type": "BlockRemoved", "block_hashes": [...], "medium": "GPU"}
 *   {"type": "AllBlocksCleared"}
 *
 * Pages that follow one another in a prefix are one event. medium is where vLLM says that it computes, on a
 * CPU too; routers know "CPU" as a place from which KV has to be copied. extra_keys stands there only where a
 * prefix begins in a cache namespace of its own. */
#ifndef TD_SERVER_KV_BATCH_H
#define TD_SERVER_KV_BATCH_H

#include "common/buf.h"
#include "engine/engine.h"

typedef struct td_kv_batch {
  double time_s; /* of the day: Unix */
  uint32_t page_tokens;
  uint64_t plain_namespace; /* told as if it were none, beside 0 */
} td_kv_batch;

void td_kv_batch_render(const td_kv_batch *b, const td_engine_kv_event *events, uint32_t n, td_buf *out);
/* One event: all is cleared. */
void td_kv_batch_render_cleared(const td_kv_batch *b, td_buf *out);

#endif
