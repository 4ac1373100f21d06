/* What must be true of every plan, judged from outside: see sim_world.h. */
#include "sim_world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Noreturn void sim_fail(const sim_world *w, const char *file, int line, const char *what)
{
  fprintf(stderr, "%s:%d: step %llu of this world (%u pages of %u, %u rows, %u tokens a step): failed: %s\n",
          file, line, (unsigned long long)w->step, w->config.n_pages, w->config.page_tokens,
          w->config.max_running, w->config.step_tokens, what);
  abort();
}

/* The plan has logits of the requested prompt tokens, once, and of the last known token. */
static uint32_t wanted_logits(const sim_world *w, const sim_slot *slot, const td_plan_row *row, uint32_t at)
{
  uint32_t n = 0;
  for (uint32_t t = row->kv_len - row->q_len; t < row->kv_len; t++) {
    bool scored = t >= slot->scored_to && t + 1 < slot->n_prompt, samples = t + 1 == slot->n_tokens;
    if (!scored && !samples)
      continue;
    const td_plan_logits *l = &w->plan->logits[at + n++];
    SIM_CHECK(w, l->token == row->q_start + row->q_len - (row->kv_len - t));
    SIM_CHECK(w, l->target == (samples ? TD_SAMPLE_HERE : slot->tokens[t + 1]));
  }
  return n;
}

/* first_logits: of the row, if it has any. */
static void verify_row(sim_world *w, uint32_t i, uint32_t first_logits)
{
  const td_plan *plan = w->plan;
  const td_plan_row *row = &plan->rows[i];
  SIM_CHECK(w, row->slot < w->config.n_slots);
  if (w->ended[i])
    return;
  SIM_CHECK(w, w->slots[row->slot].used);
  const sim_slot *slot = &w->slots[row->slot];
  uint32_t start = row->kv_len - row->q_len, pt = w->config.page_tokens;
  bool is_decode = i < plan->n_decode_rows;

  SIM_CHECK(w, row->q_len >= 1 && row->kv_len <= slot->n_tokens);
  SIM_CHECK(w, row->n_logits == wanted_logits(w, slot, row, first_logits));
  SIM_CHECK(w, start <= slot->scored_to || slot->scored_to + 1 >= slot->n_prompt); /* none is passed over */
  SIM_CHECK(w, row->adapter == slot->terms.adapter);
  SIM_CHECK(w, is_decode == slot->answering);
  SIM_CHECK(w, !is_decode || (row->q_len == 1 && row->n_logits == 1));
  for (uint32_t k = 0; k < row->q_len; k++) {
    int32_t id = plan->token_ids[row->q_start + k];
    SIM_CHECK(w, (id < 0) == (w->ahead && !w->was_late[i]));
    SIM_CHECK(w, (id < 0 ? w->sampled_before[-1 - id] : id) == slot->tokens[start + k]);
    SIM_CHECK(w, plan->positions[row->q_start + k] == (int32_t)(start + k));
  }
  for (uint32_t p = 0; p < row->kv_len; p += pt) {
    uint32_t at = row->page_table_offset + p / pt;
    SIM_CHECK(w, at < plan->page_table_len);
    int32_t page = w->device_table[at];
    SIM_CHECK(w, page >= 0 && (uint32_t)page < w->config.n_pages);
    if (!w->ahead) /* otherwise a later commit may have switched it to the tree's */
      SIM_CHECK(w, page == plan->page_table[at]);
    w->repeated_pages += is_decode && w->readers[page] > 0;
    w->readers[page]++;
    w->writers[page] += p + pt > start;
  }
  for (uint32_t p = 0; p < start; p++) { /* the row will read KV of its own prefix */
    uint32_t page = (uint32_t)w->device_table[row->page_table_offset + p / pt];
    SIM_CHECK(w, w->device_lines[page * pt + p % pt] == slot->lines[p]);
  }
}

/* Prompts keep the SLO, except for one page of the first prompt, or a tenth of the decodes' time alone. */
static void verify_target(sim_world *w)
{
  const td_plan *plan = w->plan;
  const td_cost_model *cost = sim_cost_of(w);
  td_sched_stats st;
  td_plan decodes = *plan;
  if (!cost || plan->n_decode_rows == 0 || plan->n_prefill_tokens == 0)
    return;
  td_sched_get_stats(w->sched, &st);
  decodes.n_rows = decodes.n_tokens = decodes.n_logits = plan->n_decode_rows;
  td_step_work all = td_step_work_of(plan), alone = td_step_work_of(&decodes);
  double us = td_cost_step_us(cost, &all) * st.cost_correction[1],
         alone_us = td_cost_step_us(cost, &alone) * st.cost_correction[0];
  SIM_CHECK(w, us == td_sched_predict_us(w->sched, plan));
  SIM_CHECK(w, st.cost_correction[1] <= 4 && st.cost_correction[1] >= 0.25);
  SIM_CHECK(w, st.tbt_slo_us == (double)w->config.tbt_slo_us);
  SIM_CHECK(w, plan->n_prefill_tokens <= w->config.page_tokens || st.tbt_slo_us == 0 || us <= st.tbt_slo_us ||
                   us <= 1.1 * alone_us);
  w->totals->timed_steps++;
  w->totals->floor_steps += alone_us >= st.tbt_slo_us;
}

/* Counts KV that decodes read more than once. Pages of running prompts may hide some of it, and a plan made
 * ahead knows less. */
static void verify_repeated(sim_world *w)
{
  const td_plan *plan = w->plan;
  uint64_t all = w->repeated_pages * w->config.page_tokens;
  bool under_way = false; /* also those that the policy lets wait */
  if (w->ahead)
    return;
  for (uint32_t i = 0; i < w->config.n_slots; i++)
    under_way |= w->slots[i].used && !w->slots[i].answering && td_sched_is_running(w->sched, i);
  if (!w->config.reads_shared_once)
    SIM_CHECK(w, plan->repeated_kv_tokens == 0);
  else
    SIM_CHECK(w, plan->repeated_kv_tokens == all || (plan->repeated_kv_tokens < all && under_way));
  w->totals->repeating_steps += plan->repeated_kv_tokens > 0;
}

/* The rules of each policy. */
static void verify_policy(sim_world *w)
{
  const td_plan *plan = w->plan;
  switch (w->config.policy) {
  case TD_POLICY_PREFILL_FIRST:
  case TD_POLICY_DECODE_FIRST: SIM_CHECK(w, plan->n_decode_rows == 0 || plan->n_prefill_tokens == 0); break;
  case TD_POLICY_ORCA:
    for (uint32_t i = plan->n_decode_rows; i < plan->n_rows; i++)
      SIM_CHECK(w, plan->rows[i].n_logits > 0 || w->slots[plan->rows[i].slot].n_prompt_logits > 0);
    break;
  default: verify_target(w);
  }
}

/* Whether a running request may be missing in this step: a decode only under a policy that lets decodes wait;
 * a prompt if another one makes progress and the budget is used up, in tokens or time. */
static void verify_left_out(sim_world *w, const sim_slot *slot)
{
  const td_plan *plan = w->plan;
  bool prompts = plan->n_prefill_tokens > 0;
  switch (w->config.policy) {
  case TD_POLICY_PREFILL_FIRST:
    SIM_CHECK(w, prompts && (slot->answering || plan->n_tokens == w->config.step_tokens));
    break;
  case TD_POLICY_DECODE_FIRST:
    SIM_CHECK(w, !slot->answering && (!prompts || plan->n_tokens == w->config.step_tokens));
    break;
  case TD_POLICY_ORCA: SIM_CHECK(w, !slot->answering && prompts); break;
  default:
    SIM_CHECK(w, !slot->answering && prompts);
    SIM_CHECK(w, sim_cost_of(w) || plan->n_tokens == w->config.step_tokens);
  }
}

/* Every decode is in the plan, and so is the request that was started first. No token of the budget is left
 * while a prompt could use it. The policies for comparison have their own exceptions. */
static void verify_nobody_forgotten(sim_world *w)
{
  bool planned[SIM_MAX_SLOTS] = {false};
  bool first_goes_on =
      w->config.policy != TD_POLICY_PREFILL_FIRST && w->config.policy != TD_POLICY_DECODE_FIRST;
  uint32_t first = SIM_MAX_SLOTS;
  for (uint32_t i = 0; i < w->plan->n_rows; i++) {
    SIM_CHECK(w, !planned[w->plan->rows[i].slot]);
    planned[w->plan->rows[i].slot] = !w->ended[i];
  }
  for (uint32_t i = 0; i < w->config.n_slots; i++) {
    sim_slot *slot = &w->slots[i];
    if (!slot->used)
      continue;
    if (slot->running && (first == SIM_MAX_SLOTS || slot->start_seq < w->slots[first].start_seq))
      first = i;
    td_sched_slot_info info = td_sched_slot(w->sched, i);
    SIM_CHECK(w, info.n_tokens == slot->n_tokens && info.n_generated == slot->n_tokens - slot->n_prompt);
    SIM_CHECK(w, info.running || !planned[i]);
    if (info.running && !planned[i])
      verify_left_out(w, slot);
  }
  if (w->ahead && (first == SIM_MAX_SLOTS || !planned[first]))
    for (uint32_t i = 0; i < w->plan->n_rows; i++) /* all its requests have ended: a lost step */
      SIM_CHECK(w, w->ended[i]);
  else
    SIM_CHECK(w, first != SIM_MAX_SLOTS && (planned[first] || !first_goes_on));
}

void sim_verify_plan(sim_world *w)
{
  const td_plan *plan = w->plan;
  uint32_t pt = w->config.page_tokens, n_tokens = 0, n_logits = 0, n_prompts = 0, n_extra = 0;
  SIM_CHECK(w, plan->step == w->step && plan->page_tokens == pt);
  SIM_CHECK(w, plan->n_rows >= 1 && plan->n_rows <= w->config.max_running);
  SIM_CHECK(w, plan->n_tokens <= w->config.step_tokens && plan->n_page_updates <= plan->max_page_updates);

  for (uint32_t i = 0; i < plan->n_page_updates; i++)
    w->device_table[plan->page_updates[i].index] = plan->page_updates[i].page_id;
  for (uint32_t i = 0; i < plan->n_page_updates; i++) /* in whatever order they are applied */
    SIM_CHECK(w, w->device_table[plan->page_updates[i].index] == plan->page_updates[i].page_id);

  w->repeated_pages = 0;
  memset(w->readers, 0, w->config.n_pages * sizeof *w->readers);
  memset(w->writers, 0, w->config.n_pages * sizeof *w->writers);
  for (uint32_t i = 0; i < plan->n_rows; i++) {
    SIM_CHECK(w, plan->rows[i].q_start == n_tokens);
    verify_row(w, i, n_logits);
    for (uint32_t k = 0; k < plan->rows[i].n_logits; k++)
      SIM_CHECK(w, plan->logits[n_logits++].row == i);
    n_extra += plan->rows[i].n_logits > 1 ? plan->rows[i].n_logits - 1 : 0;
    n_tokens += plan->rows[i].q_len;
    n_prompts += i >= plan->n_decode_rows;
  }
  SIM_CHECK(w, n_tokens == plan->n_tokens && n_logits == plan->n_logits);
  SIM_CHECK(w, n_extra <= w->config.prompt_logits);
  w->totals->full_of_logits += n_extra > 0 && n_extra == w->config.prompt_logits;
  SIM_CHECK(w, plan->n_decode_rows + plan->n_prefill_tokens == n_tokens);
  for (uint32_t i = 0; i < w->config.n_pages; i++)
    SIM_CHECK(w, w->writers[i] == 0 || w->readers[i] == 1); /* a page being written is nobody else's */
  verify_nobody_forgotten(w);
  verify_policy(w);
  verify_repeated(w);
  w->totals->rows += plan->n_rows;
  w->totals->decode_rows += plan->n_decode_rows;
  w->totals->shared_steps += n_prompts > 1;
}

/* In any state. bench_forecast measures its accuracy. */
enum { FORESEE_EVERY = 16 };

static void verify_forecast(sim_world *w)
{
  td_sched_forecast f = td_sched_make_forecast(w->sched);
  const double us[] = {f.start_us, f.next_end_us, f.end_interval_us, f.prompt_token_us, f.step_us};
  SIM_CHECK(w, td_sched_forecast_start_us(w->sched) == f.start_us);
  for (uint32_t i = 0; i < sizeof us / sizeof *us; i++)
    SIM_CHECK(w, isfinite(us[i]) && us[i] >= 0 && (us[i] == 0 || sim_cost_of(w)));
}

void sim_verify_stats(sim_world *w)
{
  td_sched_stats st;
  uint32_t n_used = 0;
  td_sched_get_stats(w->sched, &st);
  for (uint32_t i = 0; i < w->config.n_slots; i++)
    n_used += w->slots[i].used;
  SIM_CHECK(w, st.pages_total == w->config.n_pages);
  SIM_CHECK(w, st.pages_free + st.pages_cached + st.pages_owned == st.pages_total);
  SIM_CHECK(w, st.n_running + st.n_waiting == n_used);
  SIM_CHECK(w, st.prefix_hit_tokens <= st.prefix_query_tokens);
  if (w->step % FORESEE_EVERY == 0)
    verify_forecast(w);
}
