/* Learns step times: see cost_learn.h.
 *
 * An extended Kalman filter. log(us) of a step is the log of the sum over parts of part x exp(log_factor).
 * Its derivative by a part's log_factor is the part's share of the sum. So the shares are the row of the
 * observation matrix. */
#include "scheduler/cost_learn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Standard deviations of logarithms: of all factors together; of one part (correlated between neighbouring
 * knots, and between decode attention alone and beside prompts); of a single step. */
#define COMMON_SIGMA 1.2
#define PART_SIGMA 0.5
#define STEP_SIGMA 0.15
/* A step that is off by more than this many sigma counts as off by that much. The clip is within bounds. */
#define CLIP_SIGMAS 2.0
#define CLIP_MIN 0.2
#define CLIP_MAX 0.7
/* Each step adds this share of the first covariance: some 64 steps are remembered. */
#define FORGETTING 2.5e-6
#define LOG_FACTOR_MAX 7.0
enum { ROWS_PART = TD_COST_KNOTS, DECODE_PART, BESIDE_PART, PROMPT_PART };
#define BESIDE_ALIKE 0.8

static double first_covariance(const td_cost_learner *l, int i, int k)
{
  bool both_table = i < TD_COST_KNOTS && k < TD_COST_KNOTS;
  bool both_decode = (i == DECODE_PART && k == BESIDE_PART) || (i == BESIDE_PART && k == DECODE_PART);
  double alike = i == k ? 1 : both_table ? exp(-abs(i - k)) : both_decode ? BESIDE_ALIKE : 0;
  return l->uncertainty * l->uncertainty * (COMMON_SIGMA * COMMON_SIGMA + PART_SIGMA * PART_SIGMA * alike);
}

void td_cost_learner_init(td_cost_learner *l, const td_cost_model *base, double uncertainty)
{
  *l = (td_cost_learner){.base = *base, .uncertainty = uncertainty};
  for (int i = 0; i < TD_COST_PARTS; i++)
    for (int k = 0; k < TD_COST_PARTS; k++)
      l->covariance[i][k] = first_covariance(l, i, k);
}

/* The knot at or below n_tokens. *beyond: how far n_tokens is on the way to the next knot, 0 to 1. */
static int find_knot(uint32_t n_tokens, double *beyond)
{
  double at = fmin(log2(fmax(n_tokens, 1)) / 2, TD_COST_KNOTS - 1);
  int knot = (int)at < TD_COST_KNOTS - 1 ? (int)at : TD_COST_KNOTS - 2;
  *beyond = at - knot;
  return knot;
}

/* Writes the time of each part by what is known now. Returns their sum. */
static double parts_of(const td_cost_learner *l, const td_step_work *w, double parts[TD_COST_PARTS])
{
  const td_cost_model *m = &l->base;
  uint32_t n_chunks = w->n_rows - w->n_decode_rows;
  double sum = 0, beyond, tokens_us = td_cost_tokens_us(m, w->n_tokens);
  int knot = find_knot(w->n_tokens, &beyond);
  memset(parts, 0, TD_COST_PARTS * sizeof *parts);
  parts[knot] = tokens_us * (1 - beyond);
  parts[knot + 1] = tokens_us * beyond;
  parts[n_chunks > 0 ? BESIDE_PART : DECODE_PART] = td_cost_kv_us(m, w);
  parts[PROMPT_PART] = td_cost_prefill_attention_us(m, w);
  parts[ROWS_PART] = m->logits_us_per_row * w->n_logits + m->decode_us_per_row * w->n_decode_rows +
                     m->prefill_us_per_chunk * n_chunks;
  if (td_cost_is_hybrid(w))
    parts[ROWS_PART] += m->hybrid_us + m->hybrid_us_per_decode_row * w->n_decode_rows;
  for (int i = 0; i < TD_COST_PARTS; i++)
    parts[i] *= exp(l->log_factor[i]);
  if (td_cost_is_hybrid(w))
    parts[parts[BESIDE_PART] < parts[PROMPT_PART] ? BESIDE_PART : PROMPT_PART] *= 1 - m->hybrid_beside;
  for (int i = 0; i < TD_COST_PARTS; i++)
    sum += parts[i];
  return sum;
}

void td_cost_learner_observe(td_cost_learner *l, const td_step_work *w, double us)
{
  double share[TD_COST_PARTS], seen[TD_COST_PARTS], sum = parts_of(l, w, share);
  if (w->n_tokens == 0 || !(sum > 0) || !(us > 0) || !isfinite(us))
    return;
  double expected = STEP_SIGMA * STEP_SIGMA; /* variance of the observation */
  bool old[TD_COST_PARTS];                   /* unseen for so long that its variance grows no further */
  for (int i = 0; i < TD_COST_PARTS; i++) {
    share[i] /= sum;
    old[i] = l->covariance[i][i] >= first_covariance(l, i, i);
  }
  for (int i = 0; i < TD_COST_PARTS; i++) {
    seen[i] = 0;
    for (int k = 0; k < TD_COST_PARTS; k++) {
      l->covariance[i][k] += old[i] || old[k] ? 0 : FORGETTING * first_covariance(l, i, k);
      seen[i] += l->covariance[i][k] * share[k];
    }
    expected += share[i] * seen[i];
  }
  double off = log(us / sum), clip = fmin(fmax(CLIP_SIGMAS * sqrt(expected), CLIP_MIN), CLIP_MAX);
  double moved = fmin(fmax(off, -clip), clip), belief = off == moved ? 1 : moved / off;
  for (int i = 0; i < TD_COST_PARTS; i++) {
    l->log_factor[i] += seen[i] / expected * moved;
    l->log_factor[i] = fmin(fmax(l->log_factor[i], -LOG_FACTOR_MAX), LOG_FACTOR_MAX);
    for (int k = 0; k < TD_COST_PARTS; k++)
      l->covariance[i][k] -= belief * belief * seen[i] * seen[k] / expected;
  }
  l->n_steps++;
}

td_cost_model td_cost_learner_model(const td_cost_learner *l)
{
  td_cost_model m = l->base;
  double rows = exp(l->log_factor[ROWS_PART]), prompts = exp(l->log_factor[PROMPT_PART]);
  for (uint32_t i = 0; i < m.n_points; i++) {
    double beyond;
    int knot = find_knot(m.tokens[i], &beyond);
    m.tokens_us[i] *= (1 - beyond) * exp(l->log_factor[knot]) + beyond * exp(l->log_factor[knot + 1]);
  }
  m.logits_us_per_row *= rows;
  m.decode_us_per_row *= rows;
  m.prefill_us_per_chunk *= rows;
  m.hybrid_us *= rows;
  m.hybrid_us_per_decode_row *= rows;
  m.hybrid_us_per_kv_token =
      exp(l->log_factor[BESIDE_PART]) *
      (m.hybrid_us_per_kv_token > 0 ? m.hybrid_us_per_kv_token : m.decode_us_per_kv_token);
  m.decode_us_per_kv_token *= exp(l->log_factor[DECODE_PART]);
  m.prefill_us_per_pair *= prompts;
  m.prefill_us_per_kv_token *= prompts;
  m.prefill_us_per_short_chunk_key *= prompts;
  return m;
}
