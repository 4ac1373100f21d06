/* Learns step times from the steps that are served, and writes them to a file at an orderly end.
 *
 * A measured table keeps its shape, but a device that has worked for minutes is slower than one that was
 * measured for seconds (H200: by 1 to 2 % for steps without prompts, by 4 % with). The factor is the median
 * of measured / calibrated, weighted by time. The median ignores steps that something disturbed, and does not
 * depend on how the run ended. The scheduler's correction does depend on it, because it follows the last
 * hundred steps. The weight is time, not the number of steps, because queues consist of long steps.
 *
 * A table that was guessed, or learned before, is itself corrected (scheduler/cost_learn.h). The scheduler
 * gets the corrected table after each of the first steps, then at intervals.
 *
 * A step's time counts from the end of the step before, because waiting requests also wait for what the host
 * does in between. Results are kept only if there were enough steps. If the file was measured anew, removed
 * or replaced during this run, that was intended, and it is left alone. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "config/limits.h"
#include "common/log.h"
#include "engine/internal.h"

/* Bins cover ratios from 1/REACH to REACH; ratios outside count in the outermost bins. */
#define REACH 4.0

/* The scheduler gets a new table after each of the first UPDATE_EVERY steps, then after every UPDATE_EVERY.
 */
enum { UPDATE_EVERY = 64 };

static bool is_measured(const td_engine *e) { return e->cost_source > TD_TIMES_LEARNED; }

void td_engine_begin_learning(td_engine *e)
{
  td_cost_learner_init(&e->learned.learner, &e->cost, e->cost_uncertainty);
}

static void record_factor(td_engine_learned *l, bool with_prompts, double calibrated_us, double measured_us)
{
  double times = calibrated_us > 0 ? measured_us / calibrated_us : 0;
  if (!(times > 0))
    return;
  double at = (1 + log(times) / log(REACH)) / 2 * TD_LEARNED_BINS;
  uint32_t i = (uint32_t)fmin(fmax(at, 0), TD_LEARNED_BINS - 1);
  l->bins_us[with_prompts][i] += calibrated_us;
  l->n[with_prompts]++;
}

static void learn_table(td_engine *e, const td_step_work *w, double measured_us)
{
  td_cost_learner *l = &e->learned.learner;
  td_cost_learner_observe(l, w, measured_us);
  if (l->n_steps > UPDATE_EVERY && l->n_steps % UPDATE_EVERY != 0)
    return;
  td_cost_model m = td_cost_learner_model(l);
  td_sched_set_cost(e->sched, &m);
  if (l->n_steps >= td_limit_max(TD_LIMIT_LEARN_STEPS))
    e->cost_source = TD_TIMES_LEARNED;
}

void td_engine_learn_step(td_engine *e, const td_step_work *w, double calibrated_us, double measured_us)
{
  if (is_measured(e))
    record_factor(&e->learned, w->n_rows > w->n_decode_rows, calibrated_us, measured_us);
  else
    learn_table(e, w, measured_us);
}

/* 0: too few steps, or a factor too far from 1 to be believed. */
static double learned_factor(const td_engine_learned *l, bool with_prompts)
{
  const double *us = l->bins_us[with_prompts];
  double all_us = 0, below_us = 0;
  uint32_t i = 0;
  if (l->n[with_prompts] < td_limit_max(TD_LIMIT_LEARN_STEPS))
    return 0;
  for (uint32_t k = 0; k < TD_LEARNED_BINS; k++)
    all_us += us[k];
  while (i < TD_LEARNED_BINS - 1 && 2 * (below_us += us[i]) < all_us)
    i++;
  double factor = pow(REACH, 2 * (i + 0.5) / TD_LEARNED_BINS - 1);
  if (td_cost_is_learnable(factor))
    return factor;
  td_info("steps %s prompts took %.2f times what was calibrated: too far off to be kept",
          with_prompts ? "with" : "without", factor);
  return 0;
}

static bool is_same_calibration(const td_cost_model *a, const td_cost_model *b)
{
  return a->n_points == b->n_points && memcmp(a->tokens, b->tokens, a->n_points * sizeof *a->tokens) == 0 &&
         memcmp(a->tokens_us, b->tokens_us, a->n_points * sizeof *a->tokens_us) == 0;
}

/* ---- beside a measured table ---- */

/* Reads the file, and fails unless it still holds the table of this run. */
static td_status reread_table(const td_engine *e, td_kept_times *stored, td_error *err)
{
  bool found = false;
  TD_TRY(td_engine_read_times(e, &found, stored, err));
  if (!found)
    return td_fail(err, TD_ERR_CONFIG, "it was removed");
  if (!is_same_calibration(&stored->cost, &e->cost))
    return td_fail(err, TD_ERR_CONFIG, "it was measured anew by another");
  return TD_OK;
}

static td_status write_factors(const td_engine *e, const double factors[2], td_error *err)
{
  td_kept_times stored;
  TD_TRY(reread_table(e, &stored, err));
  for (int kind = 0; kind < 2; kind++)
    if (factors[kind] > 0)
      stored.cost.learned[kind] = factors[kind];
  return td_engine_write_times(e, &stored.cost, stored.history, err);
}

static void save_factors(const td_engine *e)
{
  const td_engine_learned *l = &e->learned;
  char texts[2][80] = {"nothing that can be kept", "nothing that can be kept"};
  double factors[2];
  td_error why;
  for (int kind = 0; kind < 2; kind++) {
    factors[kind] = learned_factor(l, kind);
    if (factors[kind] > 0)
      snprintf(texts[kind], sizeof texts[kind], "%.3f times that (%llu steps)", factors[kind],
               (unsigned long long)l->n[kind]);
  }
  if (factors[0] == 0 && factors[1] == 0)
    return;
  if (write_factors(e, factors, &why) == TD_OK)
    td_info(
        "step times under load, beside what was calibrated: without prompts %s, with prompts %s; kept in %s",
        texts[0], texts[1], e->cost_path);
  else
    td_info("what steps took under load is not kept in %s: %s", e->cost_path, why.message);
}

/* ---- as a learned table ---- */

static td_status write_table(const td_engine *e, uint64_t n_steps, td_error *err)
{
  td_cost_model m = td_cost_learner_model(&e->learned.learner);
  char history[TD_TIMES_HISTORY_BYTES];
  td_kept_times now;
  bool found;
  if (td_engine_read_times(e, &found, &now, err) == TD_OK && found && now.source == TD_TIMES_KEPT)
    return td_fail(err, TD_ERR_CONFIG, "they were measured meanwhile");
  if (!td_cost_is_valid(&m))
    return td_fail(err, TD_ERR_CONFIG, "they are out of range");
  td_engine_format_learned(history, n_steps);
  return td_engine_write_times(e, &m, history, err);
}

static void save_table(const td_engine *e)
{
  uint64_t n_steps = e->learned.learner.n_steps;
  td_error why;
  if (n_steps < td_limit_max(TD_LIMIT_LEARN_STEPS))
    return;
  if (write_table(e, e->n_learned_before + n_steps, &why) == TD_OK)
    td_info("step times learned from %llu steps are kept in %s", (unsigned long long)n_steps, e->cost_path);
  else
    td_info("what was learned of step times is not kept in %s: %s", e->cost_path, why.message);
}

void td_engine_save_learned(td_engine *e)
{
  if (!*e->cost_path)
    return;
  if (is_measured(e))
    save_factors(e);
  else
    save_table(e);
}
