/* Fits a cost model: see cost_fit.h.
 *
 * The unknowns are the table's values (a sample between two points depends on both) and the ten coefficients:
 * up to 106 numbers, all >= 0. Coordinate descent solves the normal equations and keeps the unknowns >= 0 by
 * clamping each. Few samples depend on each table point, so the equations are nearly diagonal and it
 * converges fast. The first solution minimises squares of relative errors. Then samples are weighted by 1 /
 * error a few times (iteratively reweighted least squares: least absolute errors).
 *
 * The coefficient BESIDE, the hidden share of the shorter attention, multiplies the previous solution's
 * time of that attention. So the first solution leaves it out, and its errors are not used as weights. It
 * is fitted only if the backend runs both attentions beside each other; otherwise it would fit noise. Few
 * steps have two long attentions, so the value of the H200's table counts like a sample or two of those. */
#include "scheduler/cost_fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
  N_COEFFICIENTS = 10,
  BESIDE = 9, /* the last coefficient */
  N_UNKNOWN_MAX = TD_COST_POINTS_MAX + N_COEFFICIENTS,
  REWEIGHTINGS = 12,
  SWEEPS_MAX = 4000,
  CONTEXTS_APART = 2, /* the ratio of hybrids' contexts that tells the cost of their rows from that of
                       * their KV */
  APART_MIN = 3
};
#define CONVERGED 1e-7
/* Smaller errors count as this: it bounds a sample's weight. */
#define SMALL_ERROR 0.005
/* The weight of the prior of BESIDE, as a sum of (shorter attention / step)^2 over samples. */
#define BESIDE_WEIGHT 0.02
/* The least time of a table's point; and of a KV token beside chunks, where 0 would mean the same as
 * without. */
#define SMALLEST_US 1e-3
#define SMALLEST_KV_US 1e-9

typedef struct fit {
  const td_cost_sample *samples;
  uint32_t n_samples, n_unknown;
  td_cost_model *m;
  bool prices_hybrid_kv, beside; /* beside: BESIDE is fitted in this pass */
  double weight[TD_COST_SAMPLES_MAX];
  double gram[N_UNKNOWN_MAX][N_UNKNOWN_MAX], target[N_UNKNOWN_MAX], x[N_UNKNOWN_MAX];
} fit;

static int compare_u32(const void *a, const void *b)
{
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

static void choose_points(td_cost_model *m, const td_cost_sample *samples, uint32_t n_samples)
{
  uint32_t tokens[TD_COST_SAMPLES_MAX], n = 0;
  for (uint32_t i = 0; i < n_samples; i++)
    tokens[i] = samples[i].work.n_tokens;
  qsort(tokens, n_samples, sizeof *tokens, compare_u32);
  for (uint32_t i = 0; i < n_samples; i++)
    if (i == 0 || tokens[i] != tokens[i - 1])
      tokens[n++] = tokens[i];
  m->n_points = n < TD_COST_POINTS_MAX ? n : TD_COST_POINTS_MAX;
  memcpy(m->tokens, tokens, m->n_points * sizeof *tokens);
  m->tokens[m->n_points - 1] = tokens[n - 1];
}

/* Whether decodes beside chunks were measured with long and with short contexts. */
static bool can_fit_hybrid_kv(const td_cost_sample *samples, uint32_t n)
{
  double least = INFINITY;
  uint32_t n_apart = 0;
  for (uint32_t i = 0; i < n; i++)
    if (td_cost_is_hybrid(&samples[i].work))
      least = fmin(least, (double)samples[i].work.decode_kv_tokens / samples[i].work.n_decode_rows);
  for (uint32_t i = 0; i < n; i++)
    n_apart +=
        td_cost_is_hybrid(&samples[i].work) &&
        (double)samples[i].work.decode_kv_tokens > CONTEXTS_APART * least * samples[i].work.n_decode_rows;
  return n_apart >= APART_MIN;
}

/* The factor of each unknown in this step's time. */
static void row_of(const fit *f, const td_step_work *w, double row[N_UNKNOWN_MAX])
{
  const td_cost_model *m = f->m;
  double *coefficients = row + m->n_points;
  uint32_t i = 0;
  memset(row, 0, N_UNKNOWN_MAX * sizeof *row);
  while (i + 1 < m->n_points && m->tokens[i + 1] <= w->n_tokens)
    i++;
  row[i] = 1;
  if (i + 1 < m->n_points && w->n_tokens > m->tokens[i]) {
    row[i + 1] = (double)(w->n_tokens - m->tokens[i]) / (m->tokens[i + 1] - m->tokens[i]);
    row[i] = 1 - row[i + 1];
  }
  coefficients[0] = w->n_logits;
  coefficients[1] = w->n_decode_rows;
  coefficients[f->prices_hybrid_kv && td_cost_is_hybrid(w) ? 8 : 2] = (double)w->decode_kv_tokens;
  coefficients[3] = w->n_rows - w->n_decode_rows;
  coefficients[4] = (double)w->prefill_pairs;
  coefficients[5] = (double)w->prefill_short_chunk_keys;
  coefficients[6] = td_cost_is_hybrid(w) ? 1 : 0;
  coefficients[7] = td_cost_is_hybrid(w) ? w->n_decode_rows : 0;
  if (td_cost_is_hybrid(w) && f->beside)
    coefficients[BESIDE] = -fmin(td_cost_prefill_attention_us(m, w), td_cost_kv_us(m, w));
}

static void make_equations(fit *f)
{
  double row[N_UNKNOWN_MAX];
  memset(f->gram, 0, sizeof f->gram);
  memset(f->target, 0, sizeof f->target);
  for (uint32_t s = 0; s < f->n_samples; s++) {
    double scale = 1 / f->samples[s].us, w = f->weight[s];
    row_of(f, &f->samples[s].work, row);
    for (uint32_t i = 0; i < f->n_unknown; i++) {
      if (row[i] == 0)
        continue;
      f->target[i] += w * row[i] * scale;
      for (uint32_t k = 0; k < f->n_unknown; k++)
        f->gram[i][k] += w * row[i] * scale * row[k] * scale;
    }
  }
}

static void expect_beside(fit *f)
{
  uint32_t i = f->m->n_points + BESIDE;
  f->gram[i][i] += BESIDE_WEIGHT;
  f->target[i] += BESIDE_WEIGHT * td_cost_h200_llama3_8b.hybrid_beside;
}

static void solve(fit *f)
{
  for (int sweep = 0; sweep < SWEEPS_MAX; sweep++) {
    double moved = 0;
    for (uint32_t i = 0; i < f->n_unknown; i++) {
      if (f->gram[i][i] <= 0)
        continue;
      double rest = f->target[i];
      for (uint32_t k = 0; k < f->n_unknown; k++)
        rest -= f->gram[i][k] * f->x[k];
      double x = fmax(0, f->x[i] + rest / f->gram[i][i]);
      x = i == f->m->n_points + BESIDE ? fmin(x, TD_COST_BESIDE_MAX) : x;
      moved = fmax(moved, fabs(x - f->x[i]) * sqrt(f->gram[i][i]));
      f->x[i] = x;
    }
    if (moved < CONVERGED)
      return;
  }
}

static void store_solution(fit *f)
{
  const double *c = f->x + f->m->n_points;
  memcpy(f->m->tokens_us, f->x, f->m->n_points * sizeof *f->x);
  f->m->logits_us_per_row = c[0];
  f->m->decode_us_per_row = c[1];
  f->m->decode_us_per_kv_token = c[2];
  f->m->prefill_us_per_chunk = c[3];
  f->m->prefill_us_per_pair = c[4];
  f->m->prefill_us_per_short_chunk_key = c[5];
  f->m->hybrid_us = c[6];
  f->m->hybrid_us_per_decode_row = c[7];
  f->m->hybrid_beside = c[BESIDE];
  f->m->hybrid_us_per_kv_token = f->prices_hybrid_kv ? fmax(c[8], SMALLEST_KV_US) : 0;
}

static double error_of(const td_cost_model *m, const td_cost_sample *s)
{
  return fabs(td_cost_step_us(m, &s->work) - s->us) / s->us;
}

static bool is_usable(const td_cost_sample *s)
{
  const td_step_work *w = &s->work;
  return isfinite(s->us) && s->us > 0 && w->n_tokens > 0 && w->n_rows >= w->n_decode_rows;
}

td_status td_cost_fit(const td_cost_sample *samples, uint32_t n_samples, bool beside, td_cost_model *out,
                      td_error *err)
{
  static const td_cost_model none;
  fit f = {.samples = samples, .n_samples = n_samples, .m = out};
  if (n_samples == 0 || n_samples > TD_COST_SAMPLES_MAX)
    return td_fail(err, TD_ERR_CONFIG, "%u measured steps: 1 to %d are needed", n_samples,
                   TD_COST_SAMPLES_MAX);
  for (uint32_t i = 0; i < n_samples; i++)
    if (!is_usable(&samples[i]))
      return td_fail(err, TD_ERR_CONFIG, "measured step %u is none", i);
  *out = none;
  choose_points(out, samples, n_samples);
  f.n_unknown = out->n_points + N_COEFFICIENTS;
  f.prices_hybrid_kv = can_fit_hybrid_kv(samples, n_samples);
  for (uint32_t i = 0; i < n_samples; i++)
    f.weight[i] = 1;
  for (int k = 0; k <= REWEIGHTINGS; k++) {
    f.beside = beside && k > 0;
    make_equations(&f);
    if (f.beside)
      expect_beside(&f);
    solve(&f);
    store_solution(&f);
    for (uint32_t i = 0; i < n_samples && f.beside == beside; i++)
      f.weight[i] = SMALL_ERROR / fmax(error_of(out, &samples[i]), SMALL_ERROR);
  }
  for (uint32_t i = 0; i < out->n_points; i++)
    out->tokens_us[i] = fmax(out->tokens_us[i], SMALLEST_US);
  return TD_OK;
}

void td_cost_make_stairs(td_cost_model *m, uint32_t from_tokens)
{
  td_cost_model old = *m;
  uint32_t n = 0;
  for (uint32_t i = 0; i < old.n_points; i++) {
    uint32_t left = old.n_points - i, begin = i > 0 ? old.tokens[i - 1] + 1 : 0;
    bool differs = i > 0 && old.tokens_us[i - 1] != old.tokens_us[i];
    if (differs && begin > from_tokens && begin < old.tokens[i] && n + left < TD_COST_POINTS_MAX) {
      m->tokens[n] = begin;
      m->tokens_us[n++] = old.tokens_us[i];
    }
    m->tokens[n] = old.tokens[i];
    m->tokens_us[n++] = old.tokens_us[i];
  }
  m->n_points = n;
}

static int compare_double(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double td_cost_fit_error(const td_cost_model *m, const td_cost_sample *samples, uint32_t n_samples,
                         double share)
{
  double errors[TD_COST_SAMPLES_MAX];
  TD_BUG_ON(n_samples == 0 || n_samples > TD_COST_SAMPLES_MAX);
  for (uint32_t i = 0; i < n_samples; i++)
    errors[i] = error_of(m, &samples[i]);
  qsort(errors, n_samples, sizeof *errors, compare_double);
  return errors[(uint32_t)(share * (n_samples - 1) + 0.5)];
}
