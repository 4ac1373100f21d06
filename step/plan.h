/* The step plan: one flat struct that says what one step of the engine computes.
 *
 * The scheduler writes it. The engine, the forward and every kernel read it and nothing else. It is the same
 * for every backend. All arrays are allocated once (td_plan_create) for the largest step and live until
 * td_plan_destroy. Planning and running a step allocate nothing.
 *
 * A row is one sequence's share of the step: q_len new tokens (1 for a decode, more for a prefill chunk) at
 * positions kv_len - q_len .. kv_len - 1. The tokens of all rows are contiguous: row r owns token_ids[q_start
 * .. q_start + q_len). Decode rows come first, then chunks.
 *
 * Pages: KV of token position p of a row lives in page page_table[row.page_table_offset + p / page_tokens],
 * line p % page_tokens. page_table is the scheduler's persistent table (one stripe per running request). Its
 * entries for [0, ceil(kv_len / page_tokens)) are valid. page_updates lists the table entries written since
 * the last plan, so that a device copy of the table can follow. An index may occur twice, with the same page.
 *
 * Thread: owned by the engine thread. Source: the hybrid batch of SARATHI (section 4) over vLLM-style
 * pages. */
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
  uint32_t n_logits;          /* how many of its last tokens want logits: 0, 1 or more */
  uint32_t adapter;           /* the adapter's weights are added to the model's; 0: none. No kernel uses it
                               * yet */
} td_plan_row;

enum { TD_SAMPLE_HERE = -1 };

/* A logits entry: one token whose logits are computed, and their purpose. */
typedef struct td_plan_logits {
  uint32_t token; /* index into token_ids */
  uint32_t row;
  int32_t target; /* TD_SAMPLE_HERE; or an id whose log-probability is wanted, and then no token is sampled */
} td_plan_logits;

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

  /* The last n_logits tokens of each row, in the order of their tokens. Only a row's last token may be
   * sampled from. */
  uint32_t n_logits, max_logits;
  td_plan_logits *logits; /* [max_logits] */
  uint32_t n_scored;      /* how many of them have a target */

  uint32_t page_tokens;      /* 16, 32 or 64 */
  uint32_t page_table_len;   /* entries in page_table */
  const int32_t *page_table; /* borrowed from the scheduler */

  uint32_t n_page_updates, max_page_updates;
  td_plan_page_update *page_updates; /* [max_page_updates] */

  uint32_t n_decode_rows;      /* rows [0, n_decode_rows) are decodes */
  uint32_t n_prefill_tokens;   /* tokens in the other rows */
  uint64_t repeated_kv_tokens; /* KV tokens that several decodes read, counted once for each reader except
                                * the first, if the backend may read them once; otherwise 0 */
} td_plan;

TD_MUST_CHECK td_status td_plan_create(uint32_t max_rows, uint32_t max_tokens, uint32_t max_logits,
                                       uint32_t max_page_updates, uint32_t page_tokens, td_plan **out,
                                       td_error *err);
void td_plan_destroy(td_plan *plan);
void td_plan_clear(td_plan *plan); /* n_* = 0; step kept */

/* Asks for the logits of the row's token i (0: its first), to sample from them or for the target's
 * log-probability. Call it in the order of the tokens. It increments n_logits of the row and of the plan. */
static inline void td_plan_add_logits(td_plan *p, uint32_t row, uint32_t i, int32_t target)
{
  p->logits[p->n_logits++] = (td_plan_logits){p->rows[row].q_start + i, row, target};
  p->rows[row].n_logits++;
  p->n_scored += target != TD_SAMPLE_HERE;
}
/* Asks for a sample at the row's last token. */
static inline void td_plan_add_sample(td_plan *p, uint32_t row)
{
  td_plan_add_logits(p, row, p->rows[row].q_len - 1, TD_SAMPLE_HERE);
}

#endif
