/* Predicts a step's time: see cost_model.h. A plan's work takes O(rows), a time O(points). */
#include "scheduler/cost_model.h"

td_step_work td_step_work_of(const td_plan *plan)
{
  td_step_work w = {.n_tokens = plan->n_tokens,
                    .n_rows = plan->n_rows,
                    .n_logits = plan->n_logits,
                    .n_decode_rows = plan->n_decode_rows};
  for (uint32_t i = 0; i < plan->n_decode_rows; i++)
    w.decode_kv_tokens += plan->rows[i].kv_len;
  w.decode_kv_tokens -= td_cost_saved_tokens(plan->repeated_kv_tokens);
  for (uint32_t i = plan->n_decode_rows; i < plan->n_rows; i++) {
    w.prefill_pairs += td_cost_pairs(plan->rows[i].q_len, plan->rows[i].kv_len);
    w.prefill_kv_tokens += plan->rows[i].kv_len;
    w.prefill_short_chunk_keys += td_cost_short_chunk_keys(plan->rows[i].q_len, plan->rows[i].kv_len);
  }
  return w;
}

uint32_t td_cost_find_point(const td_cost_model *m, uint32_t n_tokens)
{
  uint32_t n_below = 0;
  for (uint32_t i = 0; i < m->n_points; i++) /* no mispredicted branch: faster than bisection */
    n_below += m->tokens[i] <= n_tokens;
  return n_below > 0 ? n_below - 1 : 0;
}

double td_cost_tokens_us(const td_cost_model *m, uint32_t n_tokens)
{
  return td_cost_tokens_at_us(m, td_cost_find_point(m, n_tokens), n_tokens);
}

double td_cost_tokens_at_us(const td_cost_model *m, uint32_t i, uint32_t n_tokens)
{
  if (m->n_points == 0)
    return 0;
  if (m->n_points == 1 || n_tokens <= m->tokens[i])
    return m->tokens_us[i];
  bool beyond = i + 1 == m->n_points;
  uint32_t k = beyond ? i - 1 : i;
  double slope = (m->tokens_us[k + 1] - m->tokens_us[k]) / (double)(m->tokens[k + 1] - m->tokens[k]);
  if (beyond && slope < 0)
    slope = 0;
  return m->tokens_us[i] + slope * (double)(n_tokens - m->tokens[i]);
}

double td_cost_step_us(const td_cost_model *m, const td_step_work *w)
{
  return td_cost_step_of_tokens_us(m, td_cost_tokens_us(m, w->n_tokens), w);
}
