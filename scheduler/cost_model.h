/* How long a step takes, as a function of what is in it: what chunk sizes, admission and tandem-plan are decided by.
 *
 * Three sums make a step's time: products and everything else that goes token by token, a table over the number of tokens
 * (tiles make it a stair: 384 tokens cost almost what 512 do); attention of prompt chunks, by (query, key) pairs; attention of
 * decodes, by the KV that it reads. All coefficients come from a calibration of the very device and model, or, for
 * planning without one, from published figures.
 *
 * Pure, no allocation. Thread: any, read-only once made. Source: SARATHI section 4.3; HOPPER-like tables of measured steps. */
#ifndef TD_SCHEDULER_COST_MODEL_H
#define TD_SCHEDULER_COST_MODEL_H

#include <stdint.h>

#include "config/plan.h"

/* What is in a step, as far as its time depends on it. */
typedef struct td_step_work {
  uint32_t n_tokens;         /* of all rows */
  uint32_t n_rows;
  uint32_t n_logits;         /* rows that sample */
  uint32_t n_decode_rows;
  uint64_t decode_kv_tokens; /* sum of the decodes' kv_len */
  uint64_t prefill_pairs;    /* sum over chunks of the (query, key) pairs that are not masked */
  uint64_t prefill_kv_tokens; /* sum of the chunks' kv_len */
} td_step_work;

enum { TD_COST_POINTS_MAX = 48 };

typedef struct td_cost_model {
  /* A step of so many tokens without attention and sampling, with all that a step costs anyway. Ascending; between points linear, past the
   * last by the slope of the last two. */
  uint32_t n_points;
  uint32_t tokens[TD_COST_POINTS_MAX];
  double tokens_us[TD_COST_POINTS_MAX];
  double logits_us_per_row;
  double decode_us_per_row, decode_us_per_kv_token;
  double prefill_us_per_chunk, prefill_us_per_pair, prefill_us_per_kv_token;
} td_cost_model;

/* The work of a plan; O(rows). */
td_step_work td_step_work_of(const td_plan *plan);
/* Predicted time, > 0 where the model has a point. */
double td_cost_step_us(const td_cost_model *m, const td_step_work *w);

#endif
