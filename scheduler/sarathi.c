/* SARATHI's own choice of a static chunk (sections 4.4 and 5.1.3): for policy = sarathi, and to hold our cost
 * model against the paper's tables (gains within 6 %: test_scheduler_sarathi). See budget.h. */
#include <math.h>

#include "scheduler/budget.h"

uint32_t td_sarathi_chunk_beside(uint32_t chunk, uint32_t tile, uint32_t n_decodes)
{
  uint32_t total = chunk / tile * tile;
  while (total > 0 && total <= n_decodes) /* more decodes than a chunk: the next whole tile holds both */
    total += tile;
  return total - n_decodes;
}

double td_sarathi_balanced_ratio(uint32_t chunk, uint32_t n_requests)
{
  return (double)chunk / (n_requests - 1);
}

static double step_us(const td_cost_model *cost, uint32_t chunk, uint32_t at, uint32_t n_decodes,
                      uint32_t kv_len)
{
  td_step_work w = {.n_tokens = chunk + n_decodes,
                    .n_rows = n_decodes + (chunk > 0),
                    .n_logits = n_decodes,
                    .n_decode_rows = n_decodes,
                    .decode_kv_tokens = (uint64_t)n_decodes * kv_len,
                    .prefill_pairs = chunk ? td_cost_pairs(chunk, at + chunk) : 0,
                    .prefill_kv_tokens = chunk ? at + chunk : 0,
                    .prefill_thin_tokens = chunk ? td_cost_thin_tokens(chunk, at + chunk) : 0};
  return td_cost_step_us(cost, &w);
}

double td_sarathi_request_us(const td_cost_model *cost, uint32_t chunk, uint32_t tile, uint32_t n_requests,
                             uint32_t n_prompt, uint32_t n_decode)
{
  uint32_t beside = n_requests - 1, kv_len = n_prompt + n_decode / 2;
  double us = 0, left = n_decode; /* decode tokens that the batch owes for each prompt that it computes */
  for (uint32_t at = 0, q_len; at < n_prompt; at += q_len) {
    uint32_t n_decodes = left < beside ? (uint32_t)left : beside;
    q_len = td_sarathi_chunk_beside(chunk, tile, n_decodes);
    if (q_len > n_prompt - at)
      q_len = n_prompt - at;
    us += step_us(cost, q_len, at, n_decodes, kv_len);
    left -= n_decodes;
  }
  return us + left / n_requests * step_us(cost, 0, 0, n_requests, kv_len);
}

uint32_t td_sarathi_best_chunk(const td_cost_model *cost, uint32_t tile, uint32_t max_chunk,
                               uint32_t n_requests, uint32_t n_prompt, uint32_t n_decode)
{
  uint32_t best = tile;
  double best_us = INFINITY;
  for (uint32_t chunk = tile; chunk <= max_chunk; chunk += tile) {
    double us = td_sarathi_request_us(cost, chunk, tile, n_requests, n_prompt, n_decode);
    if (us < best_us) {
      best_us = us;
      best = chunk;
    }
  }
  return best;
}
