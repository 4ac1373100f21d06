/* The step plan: one flat struct that says what one step of the engine computes.
 *
 * The scheduler writes it; the engine, the forward and every kernel read it and nothing else. It is the
 * same for every backend. All arrays are allocated once (td_plan_create) for the largest step and live until
 * td_plan_destroy; planning and running a step allocate nothing.
 *
 * A row is one sequence's share of the step: q_len new tokens (1 for a decode, more for a prefill
 * chunk) at positions kv_len - q_len .. kv_len - 1. Tokens of all rows lie one after another:
 * row r owns token_ids[q_start .. q_start + q_len). Rows are ordered: decodes first, then chunks.
 *
 * Pages: KV of token position p of a row lives in page page_table[row.page_table_offset + p / page_tokens],
 * line p % page_tokens. page_table is the scheduler's persistent table (one stripe per running request);
 * entries for [0, ceil(kv_len / page_tokens)) are valid. page_updates lists the table entries written since
 * the last plan, so that a device copy of the table can follow; an index may come twice, with the same page.
 *
 * Thread: owned by the engine thread. Source: the hybrid batch of SARATHI (section 4) over vLLM-style pages.
 */
#ifndef TD_STEP_PLAN_H
#define TD_STEP_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

typedef struct td_plan_row {
  uint32_t slot;              /* request slot: index into per-slot state (sampling, page stripe) */
  uint32_t q_start;           /* first token of the row in token_ids */
  uint32_t q_len;             /* new tokens, >= 1 */
  uint32_t kv_len;            /* tokens in KV after this step, >= q_len */
  uint32_t page_table_offset; /* index of the row's first entry in page_table */
  uint32_t wants_logits;      /* 1: the last token's logits are needed, a token is sampled */
} td_plan_row;

typedef struct td_plan_page_update {
  uint32_t index; /* into page_table */
  int32_t page_id;
} td_plan_page_update;

typedef struct td_plan {
  uint64_t step; /* counts from 1 */

  uint32_t n_rows, max_rows;
  td_plan_row *rows; /* [max_rows] */

  uint32_t n_tokens, max_tokens;
  int32_t *token_ids; /* [max_tokens] */
  int32_t *positions; /* [max_tokens] */

  /* Rows that sample, in row order: logits_rows[i] is a row index. */
  uint32_t n_logits;
  uint32_t *logits_rows; /* [max_rows] */

  uint32_t page_tokens;      /* 16, 32 or 64 */
  uint32_t page_table_len;   /* entries in page_table */
  const int32_t *page_table; /* borrowed from the scheduler */

  uint32_t n_page_updates, max_page_updates;
  td_plan_page_update *page_updates; /* [max_page_updates] */

  uint32_t n_decode_rows;    /* rows [0, n_decode_rows) are decodes */
  uint32_t n_prefill_tokens; /* tokens in the other rows */
} td_plan;

TD_MUST_CHECK td_status td_plan_create(uint32_t max_rows, uint32_t max_tokens, uint32_t max_page_updates,
                                       uint32_t page_tokens, td_plan **out, td_error *err);
void td_plan_destroy(td_plan *plan);
void td_plan_clear(td_plan *plan); /* n_* = 0; step kept */

#endif
