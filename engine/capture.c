/* Before the first request, where the backend can: capturing decode steps (kernels.h: capture).
 *
 * Row counts between two captured steps run on the next larger one, so counts lie close where decode steps
 * are short and far apart where a few rows more cost nothing. Largest first: a start that runs out of its
 * time has what serves everything. */
#include "engine/internal.h"

#include "common/clock.h"
#include "common/log.h"

/* 1, 2, 4, 8, then multiples of 8, from 256 on of 32. */
static uint32_t next_smaller(uint32_t n_rows)
{
  if (n_rows > 256)
    return (n_rows - 1) / 32 * 32;
  return n_rows > 8 ? (n_rows - 1) / 8 * 8 : n_rows / 2;
}

uint32_t td_engine_captured_within(const td_engine *e, uint32_t n_rows)
{
  uint32_t n = e->backend->max_rows;
  while (n > n_rows)
    n = next_smaller(n);
  return n >= e->least_captured ? n : 0;
}

static void note_not_fused(td_engine_info *info, const char *reason)
{
  uint32_t i = 0;
  while (i < info->n_not_fused && info->not_fused[i].reason != reason)
    i++;
  TD_BUG_ON(i == TD_NOT_FUSED_MAX);
  info->not_fused[i].reason = reason;
  info->not_fused[i].n_steps++;
  info->n_not_fused += i == info->n_not_fused;
}

td_status td_engine_capture_steps(td_engine *e, td_error *err)
{
  uint64_t begin_us = td_clock_us(), budget_us = (uint64_t)td_option(&e->options, TD_LIMIT_CAPTURE_MS) * 1000;
  uint32_t n_forms = 0, n_fused = 0, n_fitted = 0, n_rows = e->backend->max_rows;
  td_capture c;
  if (!e->backend->ops->capture || budget_us == 0)
    return TD_OK;
  for (; n_rows > 0 && td_clock_us() - begin_us < budget_us; n_rows = next_smaller(n_rows)) {
    TD_TRY(e->backend->ops->capture(e->backend, e->forward, n_rows, &c, err));
    e->least_captured = n_rows;
    n_forms += c.n_forms;
    n_fitted += c.n_fitted;
    for (uint32_t i = 0; i < c.n_forms; i++)
      if (c.not_fused[i])
        note_not_fused(&e->info, c.not_fused[i]);
      else
        n_fused++;
  }
  if (n_rows > 0)
    td_warn("capture_ms is over: steps of fewer than %u requests run padded", n_rows);
  td_info("captured %u decode steps in %.2f s: %u fused, %u with a grid of attention for each launch",
          n_forms, (double)(td_clock_us() - begin_us) / 1e6, n_fused, n_fitted);
  for (uint32_t i = 0; i < e->info.n_not_fused; i++)
    td_info("%u captured steps are not fused: %s", e->info.not_fused[i].n_steps, e->info.not_fused[i].reason);
  return TD_OK;
}
