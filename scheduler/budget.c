/* The budget of a step: see budget.h. */
#include "scheduler/budget.h"

#include <math.h>

/* If the decodes alone exceed the SLO, prompts get this share of the decodes' time. */
#define FLOOR_SHARE 0.1
/* The weight of a decode's wait, relative to a prompt's. */
#define DECODE_WORTH 0.25
/* A chunk is shortened only if a token gets cheaper by this share. */
#define WORTH_CUTTING 0.03
/* A step moves the correction by 1/32 at first, and by 1/128 after 96 steps. */
enum { CORRECTION_FIRST = 32, CORRECTION_LAST = 128 };
#define CORRECTION_MAX 4.0

static td_step_work with_chunk(td_step_work w, uint32_t q_len, uint32_t kv_len, uint32_t n_logits)
{
  w.n_tokens += q_len;
  w.n_rows++;
  w.n_logits += n_logits;
  w.prefill_pairs += td_cost_pairs(q_len, kv_len);
  w.prefill_kv_tokens += kv_len;
  w.prefill_short_chunk_keys += td_cost_short_chunk_keys(q_len, kv_len);
  return w;
}

static td_step_work decodes_of(uint32_t n_rows, uint64_t kv_tokens)
{
  return (td_step_work){.n_tokens = n_rows,
                        .n_rows = n_rows,
                        .n_logits = n_rows,
                        .n_decode_rows = n_rows,
                        .decode_kv_tokens = kv_tokens};
}

double td_budget_smallest_step_us(const td_cost_model *cost, const td_sched_config *config)
{
  td_step_work w =
      with_chunk(decodes_of(1, config->page_tokens), config->page_tokens, config->page_tokens, false);
  return td_cost_step_us(cost, &w);
}

td_status td_budget_init(td_budget *b, const td_sched_config *c, td_error *err)
{
  if ((uint32_t)c->policy >= TD_POLICY_COUNT)
    return td_fail_param(err, TD_ERR_CONFIG, "policy", "policy %u is none that this scheduler has",
                         (uint32_t)c->policy);
  if (c->policy == TD_POLICY_ORCA &&
      (uint64_t)c->max_context_tokens + c->max_running > (uint64_t)c->step_tokens + 1)
    return td_fail_param(
        err, TD_ERR_CONFIG, "step_tokens",
        "policy = orca computes each prompt in one step: step_tokens (%u) must be at least context_tokens + "
        "running_requests - 1 = %llu",
        c->step_tokens, (unsigned long long)c->max_context_tokens + c->max_running - 1);
  *b = (td_budget){.policy = c->policy,
                   .step_tokens = c->step_tokens,
                   .page_tokens = c->page_tokens,
                   .correction = {1, 1}};
  if (!c->cost)
    return TD_OK;
  b->has_cost = true;
  b->cost = *c->cost;
  for (int kind = 0; kind < 2; kind++)
    b->correction[kind] = fmin(fmax(td_cost_learned(c->cost, kind), 1 / CORRECTION_MAX), CORRECTION_MAX);
  if (c->policy == TD_POLICY_TANDEM)
    b->slo_us = (double)c->tbt_slo_us;
  b->adaptive_slo = c->adaptive_slo;
  return TD_OK;
}

void td_budget_set_cost(td_budget *b, const td_cost_model *cost)
{
  b->cost = *cost;
  for (int kind = 0; kind < 2; kind++) {
    b->correction[kind] = 1;
    b->n_observed[kind] = 0;
  }
}

/* ---- one step ---- */

void td_budget_begin(td_budget *b)
{
  b->work = (td_step_work){0};
  b->target_us = b->limit_us = 0;
  b->most_tokens = b->step_tokens;
}

double td_budget_calibrated_us(const td_budget *b, const td_step_work *w)
{
  return b->has_cost ? td_cost_step_us(&b->cost, w) : 0;
}

double td_budget_predict_us(const td_budget *b, const td_step_work *w)
{
  return td_budget_calibrated_us(b, w) * b->correction[w->n_rows > w->n_decode_rows];
}

/* The corrected time of the step with such a chunk. tokens_us: the table's time for all its tokens. */
static double time_with(const td_budget *b, double tokens_us, uint32_t n_computed, uint32_t q_len,
                        bool wants_logits)
{
  td_step_work w = with_chunk(b->work, q_len, n_computed + q_len, wants_logits);
  return td_cost_step_of_tokens_us(&b->cost, tokens_us, &w) * b->correction[1];
}

static double chunk_us(const td_budget *b, uint32_t point, uint32_t n_computed, uint32_t q_len,
                       bool wants_logits)
{
  return time_with(b, td_cost_tokens_at_us(&b->cost, point, b->work.n_tokens + q_len), n_computed, q_len,
                   wants_logits);
}

/* A step of n_tokens: its time, and the weighted wait of all requests for each of its prompt tokens
 * (budget.h). */
typedef struct length {
  uint32_t n_tokens;
  double us, cost;
} length;

static length length_of(const td_budget *b, uint32_t n_tokens, double tokens_us, td_budget_prompts prompts)
{
  uint32_t q_len = n_tokens - b->work.n_tokens;
  length l = {n_tokens, time_with(b, tokens_us, prompts.n_computed, q_len, 0), 0};
  double later_us = fmax(l.us - td_budget_predict_us(b, &b->work), 0); /* KV may be cheaper beside chunks */
  l.cost = (prompts.n * l.us + DECODE_WORTH * b->work.n_decode_rows * later_us) / q_len;
  return l;
}

/* The longest step that keeps the SLO, between a step that keeps it and one that does not. */
static length longest_between(const td_budget *b, length fits, length fails, td_budget_prompts prompts)
{
  double share = (b->target_us - fits.us) / (fails.us - fits.us);
  uint32_t n_tokens = fits.n_tokens + (uint32_t)(share * (fails.n_tokens - fits.n_tokens));
  if (n_tokens == fits.n_tokens)
    return fits;
  return length_of(b, n_tokens, td_cost_tokens_us(&b->cost, n_tokens), prompts);
}

/* The step length with the least cost, among the points of the table, where tiles end, and the longest
 * that keeps the SLO. A length with less than a page of prompts is not a candidate. Without candidates the
 * SLO alone decides; prompts get a page in any case. */
static uint32_t tokens_by_need(const td_budget *b, td_budget_prompts prompts)
{
  const td_cost_model *m = &b->cost;
  double most_us = b->target_us > 0 ? b->target_us : INFINITY;
  uint32_t n_before = b->work.n_tokens;
  length best = {b->step_tokens, 0, INFINITY}, before = {n_before, td_budget_predict_us(b, &b->work), 0};
  for (uint32_t i = 0; i <= m->n_points; i++) {
    bool last = i == m->n_points || m->tokens[i] >= b->step_tokens;
    uint32_t n_tokens = last ? b->step_tokens : m->tokens[i];
    if (n_tokens <= n_before)
      continue;
    length l = length_of(b, n_tokens, last ? td_cost_tokens_us(m, n_tokens) : m->tokens_us[i], prompts);
    bool fits = l.us <= most_us;
    if (!fits && before.us < most_us)
      l = longest_between(b, before, l, prompts);
    if (l.us <= most_us && l.n_tokens >= n_before + b->page_tokens && l.cost <= best.cost)
      best = l;
    if (last || !fits)
      break;
    before = l;
  }
  return best.n_tokens;
}

void td_budget_end_decodes(td_budget *b, td_budget_prompts prompts)
{
  if (b->policy != TD_POLICY_TANDEM || !b->has_cost || b->work.n_decode_rows == 0)
    return;
  double decodes_us = td_budget_predict_us(b, &b->work);
  b->target_us = b->slo_us;
  if (b->adaptive_slo.decode_factor > 0)
    b->target_us =
        fmin(b->slo_us, fmax((double)b->adaptive_slo.least_us, b->adaptive_slo.decode_factor * decodes_us));
  if (b->slo_us > 0)
    b->limit_us = fmax(b->target_us, (1 + FLOOR_SHARE) * decodes_us);
  if (prompts.n > 0)
    b->most_tokens = tokens_by_need(b, prompts);
}

/* A chunk of q_len tokens that does not end its prompt, and the step's time with it. */
typedef struct probe {
  uint32_t q_len;
  double us;
} probe;

/* The most tokens that keep the limit, from `fits`, which keeps it, to below `fails`, which does not.
 * Between two points of the table a step's time is nearly linear, so probing where the line meets the
 * limit takes a few probes. If it does not converge, bisection ends the search. */
static uint32_t search(const td_budget *b, uint32_t point, uint32_t n_computed, probe fits, probe fails)
{
  enum { LINES_MAX = 6 };
  for (int i = 0; fails.q_len - fits.q_len > 1; i++) {
    uint32_t span = fails.q_len - fits.q_len, ahead = span / 2;
    if (i < LINES_MAX && fits.us <= b->limit_us && fails.us > b->limit_us)
      ahead = (uint32_t)((b->limit_us - fits.us) / (fails.us - fits.us) * span);
    ahead = ahead < 1 ? 1 : ahead > span - 1 ? span - 1 : ahead;
    probe p = {fits.q_len + ahead, chunk_us(b, point, n_computed, fits.q_len + ahead, false)};
    if (p.us <= b->limit_us)
      fits = p;
    else
      fails = p;
  }
  return fits.q_len;
}

/* The most tokens, up to n_most, that keep the limit. The table may fall, so its points are tried from the
 * largest down. */
static uint32_t longest_within(const td_budget *b, uint32_t n_computed, uint32_t n_most, uint32_t n_rest)
{
  const td_cost_model *m = &b->cost;
  uint32_t n_before = b->work.n_tokens, i = td_cost_find_point(m, n_before + n_most);
  probe fails = {n_most, chunk_us(b, i, n_computed, n_most, n_most == n_rest)};
  if (fails.us <= b->limit_us)
    return n_most;
  for (; m->tokens[i] > n_before; i--) {
    probe p = {m->tokens[i] - n_before, 0};
    if (p.q_len < n_most) {
      p.us = time_with(b, m->tokens_us[i], n_computed, p.q_len, false);
      if (p.us <= b->limit_us)
        return search(b, i, n_computed, p, fails);
      fails = p;
    }
    if (i == 0)
      break;
  }
  return search(b, i, n_computed, (probe){0, chunk_us(b, i, n_computed, 0, false)}, fails);
}

/* Tile quantisation: a step that ends just past an edge of the table's stair pays for tiles that it does
 * not fill. Shortens the step of n_tokens to the point of the table where a token costs least, by at most
 * half of the chunk. Returns the chunk's length. */
static uint32_t cut_to_edge(const td_budget *b, uint32_t n_tokens, uint32_t q_len)
{
  const td_cost_model *m = &b->cost;
  double best = td_cost_tokens_us(m, n_tokens) / n_tokens * (1 - WORTH_CUTTING);
  uint32_t edge = n_tokens, least = n_tokens - q_len / 2;
  for (uint32_t i = m->n_points; i-- > 0 && m->tokens[i] >= least;)
    if (m->tokens[i] < n_tokens && m->tokens_us[i] / m->tokens[i] < best) {
      best = m->tokens_us[i] / m->tokens[i];
      edge = m->tokens[i];
    }
  return q_len - (n_tokens - edge);
}

static uint32_t tandem_chunk(const td_budget *b, uint32_t n_computed, uint32_t n_most, uint32_t n_rest)
{
  bool is_first = b->work.n_rows == b->work.n_decode_rows;
  uint32_t floor = is_first ? b->page_tokens : 0, q_len = n_most;
  if (b->limit_us > 0)
    q_len = longest_within(b, n_computed, n_most, n_rest);
  if (q_len < floor)
    return n_most < floor ? n_most : floor;
  if (q_len == 0 || q_len == n_rest || !b->has_cost)
    return q_len;
  q_len = cut_to_edge(b, b->work.n_tokens + q_len, q_len);
  return q_len;
}

uint32_t td_budget_chunk(const td_budget *b, uint32_t n_computed, uint32_t n_rest)
{
  uint32_t left = td_budget_left(b), n_most = n_rest < left ? n_rest : left;
  switch (b->policy) {
  case TD_POLICY_ORCA: return n_rest <= left ? n_rest : 0;
  case TD_POLICY_TANDEM: return n_most == 0 ? 0 : tandem_chunk(b, n_computed, n_most, n_rest);
  default: return n_most;
  }
}

void td_budget_add_chunk(td_budget *b, uint32_t q_len, uint32_t kv_len, uint32_t n_logits)
{
  b->work = with_chunk(b->work, q_len, kv_len, n_logits);
}

void td_budget_remove_chunk(td_budget *b, uint32_t q_len, uint32_t kv_len, uint32_t n_logits)
{
  b->work.n_tokens -= q_len;
  b->work.n_rows--;
  b->work.n_logits -= n_logits;
  b->work.prefill_pairs -= td_cost_pairs(q_len, kv_len);
  b->work.prefill_kv_tokens -= kv_len;
  b->work.prefill_short_chunk_keys -= td_cost_short_chunk_keys(q_len, kv_len);
}

void td_budget_observe(td_budget *b, const td_step_work *w, double measured_us)
{
  int kind = w->n_rows > w->n_decode_rows;
  double predicted_us = td_budget_predict_us(b, w), *c = &b->correction[kind];
  if (!(predicted_us > 0) || !(measured_us > 0))
    return;
  uint32_t part = CORRECTION_FIRST + b->n_observed[kind];
  if (part < CORRECTION_LAST)
    b->n_observed[kind]++;
  *c *= measured_us > predicted_us ? 1 + 1.0 / part : 1 - 1.0 / part;
  *c = fmin(fmax(*c, 1 / CORRECTION_MAX), CORRECTION_MAX);
}
