/* A batch of KV events as vLLM (0.23 and later) writes them, in MessagePack:
 *
 *   [time, [event, ...], data_parallel_rank]
 *   {"type": "BlockStored", "block_hashes": [...], "parent_block_hash": N or nil, "token_ids": [...],
 *    "block_size": N, "lora_id": nil, "medium": "GPU", "lora_name": nil, "extra_keys": [[...] or nil, ...]}
 *   {"type": "BlockRemoved", "block_hashes": [...], "medium": "GPU"}
 *   {"type": "AllBlocksCleared"}
 *
 * Consecutive pages of a prefix form one event. medium is always "GPU", even if we compute on a CPU, because
 * to routers "CPU" means that KV must be copied from there. extra_keys is present only if the event begins a
 * prefix in a cache namespace other than 0 and plain_namespace. */
#ifndef TD_SERVER_KV_BATCH_H
#define TD_SERVER_KV_BATCH_H

#include "common/buf.h"
#include "engine/engine.h"

typedef struct td_kv_batch {
  double time_s; /* Unix time */
  uint32_t page_tokens;
  uint64_t plain_namespace; /* published without extra_keys, like namespace 0 */
} td_kv_batch;

void td_kv_batch_render(const td_kv_batch *b, const td_engine_kv_event *events, uint32_t n, td_buf *out);
/* A batch of one event: all pages are gone. */
void td_kv_batch_render_cleared(const td_kv_batch *b, td_buf *out);

#endif
