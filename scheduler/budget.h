/* How much of a prompt a step takes: the policies, and for `tandem` the cost model against the TBT target.
 *
 * The rule of `tandem`: the largest chunk whose predicted step keeps the target, cut back to where the
 * products' table gives the most tokens for its time. What a step may take is the target, or a tenth more
 * than its decodes take alone if they exceed it, and one chunk of a page is taken in any case: prompts never
 * starve. A step without decodes keeps nobody waiting for his next token and is filled up. Pure, no
 * allocation. Source: SARATHI, sections 4.3 (decode-maximal batches) and 4.4 (chunk size, tile quantisation).
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
  double target_us;     /* 0: none */
  double correction[2]; /* measured / predicted of steps [without, with] prompts; begins at what the cost
                           model has learned */
  uint32_t n_observed[2];

  /* of the step that is being planned */
  td_step_work work;
  double limit_us; /* the step's predicted time stays below; 0: not limited by time */
} td_budget;

/* TD_ERR_CONFIG: no such policy, or a target that cannot be reached (the message says the smallest that can).
 */
TD_MUST_CHECK td_status td_budget_init(td_budget *b, const td_sched_config *config, td_error *err);

/* Another cost model, which nothing corrects yet; a target that was chosen is chosen by it. */
void td_budget_set_cost(td_budget *b, const td_cost_model *cost, const td_sched_config *config);

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
/* The decodes are in: from here on there is a limit. */
void td_budget_end_decodes(td_budget *b);
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

/* ---- targets ---- */

/* Decoding alone with a page of a prompt beside it: no target below this can be kept. */
double td_budget_smallest_target_us(const td_cost_model *cost, const td_sched_config *config);
/* What is aimed at where the operator does not say: a step with as many tokens as products need to be
 * efficient (nine tenths of the most tokens per time within step_tokens) and all rows decoding over half of
 * the KV memory. So a busy daemon keeps it and still computes prompts efficiently; a larger target would gain
 * no tenth of throughput. */
double td_budget_automatic_target_us(const td_cost_model *cost, const td_sched_config *config);

/* ---- SARATHI 4.4 and 5.1.3, for a static chunk ---- */

/* Tile quantisation: the chunk beside n_decodes so that all tokens together are whole tiles, at most `chunk`
 * (a multiple of the tile). "The prefill chunk size should be 256 - (B - 1)". */
uint32_t td_sarathi_chunk_beside(uint32_t chunk, uint32_t tile, uint32_t n_decodes);
/* The P:D ratio at which chunks of this size just carry all decodes of a batch of n_requests, one of which is
 * in prefill: C / (B - 1). With a higher one, decodes run out first; with a lower one, prompts do. */
double td_sarathi_balanced_ratio(uint32_t chunk, uint32_t n_requests);
/* Time of a batch of n_requests >= 2 in steady state, each with a prompt of n_prompt and n_decode tokens, per
 * request: chunks with n_requests - 1 decodes beside them as long as there are both, then what is left alone.
 */
double td_sarathi_request_us(const td_cost_model *cost, uint32_t chunk, uint32_t tile, uint32_t n_requests,
                             uint32_t n_prompt, uint32_t n_decode);
/* The multiple of `tile` up to max_chunk with the least of that time. */
uint32_t td_sarathi_best_chunk(const td_cost_model *cost, uint32_t tile, uint32_t max_chunk,
                               uint32_t n_requests, uint32_t n_prompt, uint32_t n_decode);

#endif
