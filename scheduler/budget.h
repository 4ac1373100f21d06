/* How many prompt tokens a step takes: the policies, and the rule of policy `tandem`, which uses the cost
 * model.
 *
 * The rule of `tandem` takes the number of tokens that makes all requests together wait least. While a step
 * runs, each prompt waits for its first token as long as the step takes. Each decode waits longer for its
 * next token by the time that the prompts add to the step. The rule sums both waits, a decode's at a quarter,
 * and divides by the step's prompt tokens. It compares the step lengths where tiles end (points of the table)
 * and the longest that keeps the SLO, and takes the one with the least quotient. So one prompt beside many
 * decodes goes in small chunks, each in the time that reading the weights takes anyway. The more prompts
 * wait, the more it pays to share the step's fixed time among more tokens, until only the SLO bounds the
 * step. A longer queue never gives a shorter step. The rule has no memory, so step lengths do not oscillate.
 *
 * If the SLO follows the decodes (the default on a CPU), it is a multiple of the time of each step's decodes
 * alone, within bounds. On a CPU a longer chunk saves less than it delays answers.
 *
 * Chunks are the longest within those tokens whose predicted step keeps the SLO, shortened to where the table
 * gives the most tokens for its time. If the decodes alone exceed the SLO, a step may take a tenth longer
 * than they do. The first chunk of a step gets at least a page, so prompts never starve. A step without
 * decodes is filled, because no request waits for its next token.
 *
 * Pure, no allocation. Source: SARATHI, sections 4.3 (decode-maximal batches) and 4.4 (chunk size, tile
 * quantisation). Its choice by the prompt:decode ratio follows from the rule: prompts wait if there are
 * more than the decodes carry. */
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
  td_adaptive_slo adaptive_slo;
  double correction[2]; /* measured / predicted of steps [without, with] prompts; starts at the cost
                         * model's `learned` */
  uint32_t n_observed[2];

  /* The step that is being planned: */
  td_step_work work;
  double target_us;     /* the SLO, or a lower one that follows the decodes; 0: none */
  double limit_us;      /* the bound on the step's predicted time; 0: not limited by time */
  uint32_t most_tokens; /* by the rule above; step_tokens: all that fit */
} td_budget;

/* TD_ERR_CONFIG: no such policy. */
TD_MUST_CHECK td_status td_budget_init(td_budget *b, const td_sched_config *config, td_error *err);

/* Replaces the cost model. The correction starts anew at 1. */
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
/* n: prompts that wait for their first token. n_computed: computed tokens before the next chunk; attention
 * to them takes a part of the step. */
typedef struct td_budget_prompts {
  uint32_t n, n_computed;
} td_budget_prompts;
/* Call it when all decodes are added. It sets the limits for the prompts. */
void td_budget_end_decodes(td_budget *b, td_budget_prompts prompts);
static inline uint32_t td_budget_left(const td_budget *b)
{
  return b->most_tokens > b->work.n_tokens ? b->most_tokens - b->work.n_tokens : 0;
}
/* How many tokens the step takes of a prompt with n_computed computed tokens and n_rest >= 1 to go; 0:
 * none, and none of the prompts after it. */
uint32_t td_budget_chunk(const td_budget *b, uint32_t n_computed, uint32_t n_rest);
void td_budget_add_chunk(td_budget *b, uint32_t q_len, uint32_t kv_len, uint32_t n_logits);
/* Removes a chunk that was added, so that another can be added. */
void td_budget_remove_chunk(td_budget *b, uint32_t q_len, uint32_t kv_len, uint32_t n_logits);

/* Takes a step's measured time. It moves the correction towards it by a fixed share (1/32 at first, 1/128
 * later), however far off the step was. So the correction follows the median of measured / predicted, not
 * outliers. It stays within a factor of 4. */
void td_budget_observe(td_budget *b, const td_step_work *w, double measured_us);
/* The corrected prediction; 0 without a cost model. */
double td_budget_predict_us(const td_budget *b, const td_step_work *w);
double td_budget_calibrated_us(const td_budget *b, const td_step_work *w); /* uncorrected */

/* The time of one decode with a page of a prompt. No SLO below it can be kept. */
double td_budget_smallest_step_us(const td_cost_model *cost, const td_sched_config *config);
#endif
