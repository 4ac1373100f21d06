/* How much of prompts a step takes: the policies, and for `tandem` the cost model.
 *
 * The rule of `tandem`: as many tokens as make all wait least. While a step runs, each prompt waits for its
 * first token as long as the step takes, and each decode for its next one as much longer as the step takes
 * with prompts than without. The sum of both, the second at a quarter, is looked at for each prompt token: of
 * the step lengths where tiles end (points of the table), and the longest that keeps the SLO, the
 * one where it is least is taken. So one prompt beside many decodes goes in small chunks, each in the time
 * that reading the weights takes anyway; the more prompts wait, the more the step's fixed part is worth
 * sharing out, until the SLO is all that bounds it. A longer queue never gives a shorter step, and
 * nothing is remembered, so lengths do not swing by themselves.
 *
 * Where the SLO follows the decodes (a CPU, if nobody says), it is for each step so many times what its
 * decodes take alone, within bounds: what a longer chunk saves there is less than what it holds answers up.
 *
 * Chunks are the longest whose predicted step keeps the SLO within those tokens, cut back to where the table
 * gives the most tokens for its time. A step may take a tenth more than its decodes take alone if they exceed
 * the SLO, and one chunk of a page is taken in any case: prompts never starve. A step without decodes keeps
 * nobody waiting for his next token and is filled up. Pure, no allocation. Source: SARATHI, sections 4.3
 * (decode-maximal batches) and 4.4 (chunk size, tile quantisation; its choice by the prompt:decode ratio
 * comes out by itself, for prompts wait where they are more than the decodes carry).
 */
#ifndef TD_SCHEDULER_BUDGET_H
#define TD_SCHEDULER_BUDGET_H

#include "scheduler/cost_model.h"
#include "scheduler/scheduler.h"

typedef struct td_budget {
  td_policy policy;
  uint32_t step_tokens, page_tokens;
  bool has_cost;
  td_cost_model cost;
  double slo_us; /* 0: none */
  td_tbt_pace pace;
  double correction[2]; /* measured / predicted of steps [without, with] prompts; begins at what the cost
                           model has learned */
  uint32_t n_observed[2];

  /* of the step that is being planned */
  td_step_work work;
  double target_us;     /* the SLO, or what follows the decodes below it; 0: none */
  double limit_us;      /* the step's predicted time stays below; 0: not limited by time */
  uint32_t most_tokens; /* by need; step_tokens: all that fit */
} td_budget;

/* TD_ERR_CONFIG: no such policy. */
TD_MUST_CHECK td_status td_budget_init(td_budget *b, const td_sched_config *config, td_error *err);

/* Another cost model, which nothing corrects yet. */
void td_budget_set_cost(td_budget *b, const td_cost_model *cost);

/* ---- one step: begin, all decodes, then prompts ---- */

void td_budget_begin(td_budget *b);
static inline void td_budget_add_decodes(td_budget *b, uint32_t n_rows, uint64_t kv_tokens)
{
  b->work.n_tokens += n_rows;
  b->work.n_rows += n_rows;
  b->work.n_logits += n_rows;
  b->work.n_decode_rows += n_rows;
  b->work.decode_kv_tokens += kv_tokens;
}
/* Prompts that wait for their first token, and how many tokens stand before the next chunk: attention to them
 * is a part of what the step takes, and of what the SLO leaves. */
typedef struct td_budget_prompts {
  uint32_t n, n_computed;
} td_budget_prompts;
/* The decodes are in: from here on there are limits. */
void td_budget_end_decodes(td_budget *b, td_budget_prompts prompts);
static inline uint32_t td_budget_left(const td_budget *b)
{
  return b->most_tokens > b->work.n_tokens ? b->most_tokens - b->work.n_tokens : 0;
}
/* Tokens that the step takes of a prompt that has n_computed and lacks n_rest >= 1; 0: none, and none of
 * those behind it. */
uint32_t td_budget_chunk(const td_budget *b, uint32_t n_computed, uint32_t n_rest);
void td_budget_add_chunk(td_budget *b, uint32_t q_len, uint32_t kv_len, uint32_t n_logits);
/* Takes back what was added, to add something else. */
void td_budget_remove_chunk(td_budget *b, uint32_t q_len, uint32_t kv_len, uint32_t n_logits);

/* A step's measured time, as an input like any other: moves the correction a little towards it, by the same
 * share however far it is (1/32 at first, 1/128 later), so that it follows the median of measured / predicted
 * and no outlier; within 4. */
void td_budget_observe(td_budget *b, const td_step_work *w, double measured_us);
/* Corrected. 0 without a cost model. */
double td_budget_predict_us(const td_budget *b, const td_step_work *w);
double td_budget_calibrated_us(const td_budget *b, const td_step_work *w); /* not corrected */

/* Decoding alone with a page of a prompt beside it: no SLO below this can be kept. */
double td_budget_smallest_step_us(const td_cost_model *cost, const td_sched_config *config);
#endif
