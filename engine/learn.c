/* How much longer than calibrated steps take under load: learned while serving, kept with the calibration at
 * an orderly end.
 *
 * A device that has worked for minutes is slower than one that was measured for seconds (H200: steps without
 * prompts by 1 to 2 %, with prompts by 4). The median over all steps of a run says by how much: it does not
 * care for steps that something disturbed, nor for how the run ended, as the scheduler's correction does,
 * which follows the last hundred. A step counts from the end of the one before, for what the host does
 * between two steps is time for those who wait. Only what is said by enough steps is kept, and only in the
 * file that this start's calibration is in: who removed or replaced that meanwhile meant it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "config/limits.h"
#include "common/log.h"
#include "engine/internal.h"
#include "scheduler/cost_text.h"

/* Bins reach to so many times, and one part in so many; what is beyond is in the outermost. */
#define REACH 4.0

void td_engine_learn_step(td_engine *e, bool with_prompts, double calibrated_us, double measured_us)
{
  double times = calibrated_us > 0 ? measured_us / calibrated_us : 0;
  if (!(times > 0))
    return;
  double at = (1 + log(times) / log(REACH)) / 2 * TD_LEARNED_BINS;
  uint32_t i = (uint32_t)fmin(fmax(at, 0), TD_LEARNED_BINS - 1);
  e->learned.bins[with_prompts][i]++;
  e->learned.n[with_prompts]++;
}

/* 0: too few steps, or nothing to believe. */
static double learned_factor(const td_engine_learned *l, bool with_prompts)
{
  uint64_t n = l->n[with_prompts], n_below = 0;
  uint32_t i = 0;
  if (n < td_limit_max(TD_LIMIT_LEARN_STEPS))
    return 0;
  while (2 * (n_below += l->bins[with_prompts][i]) < n)
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

/* The file as it is now, if it still is what this run's steps were held against. */
static td_status read_own(const td_engine *e, td_cost_model *m, char identity[TD_COST_IDENTITY_BYTES],
                          td_error *err)
{
  bool found = false;
  td_buf text;
  td_buf_init(&text, TD_COST_TEXT_BYTES);
  td_status st = td_cache_read(e->cost_path, &text, &found, err);
  if (st == TD_OK && !found)
    st = td_fail(err, TD_ERR_CONFIG, "it was removed");
  if (st == TD_OK)
    st = td_cost_parse(text.data, text.len_bytes, m, identity, err);
  if (st == TD_OK && !is_same_calibration(m, &e->cost))
    st = td_fail(err, TD_ERR_CONFIG, "it was measured anew by another");
  td_buf_deinit(&text);
  return st;
}

static td_status write_learned(const td_engine *e, const double factors[2], td_error *err)
{
  char identity[TD_COST_IDENTITY_BYTES];
  td_cost_model m;
  td_buf text;
  TD_TRY(read_own(e, &m, identity, err));
  for (int kind = 0; kind < 2; kind++)
    if (factors[kind] > 0)
      m.learned[kind] = factors[kind];
  td_buf_init(&text, TD_COST_TEXT_BYTES);
  td_cost_print(&m, identity, &text);
  td_status st = text.failed ? td_fail(err, TD_ERR_NOMEM, "no memory")
                             : td_cache_write(e->cost_path, text.data, text.len_bytes, err);
  td_buf_deinit(&text);
  return st;
}

void td_engine_keep_learned(td_engine *e)
{
  const td_engine_learned *l = &e->learned;
  char said[2][80] = {"nothing that can be kept", "nothing that can be kept"};
  double factors[2];
  td_error why;
  if (!*e->cost_path)
    return;
  for (int kind = 0; kind < 2; kind++) {
    factors[kind] = learned_factor(l, kind);
    if (factors[kind] > 0)
      snprintf(said[kind], sizeof said[kind], "%.3f times that (%llu steps)", factors[kind],
               (unsigned long long)l->n[kind]);
  }
  if (factors[0] == 0 && factors[1] == 0)
    return;
  if (write_learned(e, factors, &why) == TD_OK)
    td_info(
        "step times under load, beside what was calibrated: without prompts %s, with prompts %s; kept in %s",
        said[0], said[1], e->cost_path);
  else
    td_info("what steps took under load is not kept in %s: %s", e->cost_path, why.message);
}
