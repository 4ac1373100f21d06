/* Random worlds, one line each: see sim_decisions.h. */
#include <inttypes.h>
#include <string.h>

#include "sim_decisions.h"
#include "sim_world.h"

enum { WORLDS = 300, STEPS = 160 };

static uint64_t mix_double(uint64_t hash, double x)
{
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return sim_mix(hash, bits);
}

static uint64_t mix_plan(uint64_t hash, const td_plan *p)
{
  hash = sim_mix(hash, (uint64_t)p->n_tokens << 32 | p->n_rows);
  hash = sim_mix(hash, (uint64_t)p->n_decode_rows << 32 | p->n_prefill_tokens);
  hash = sim_mix(hash, (uint64_t)p->n_scored << 32 | p->n_logits);
  hash = sim_mix(hash, p->repeated_kv_tokens);
  for (uint32_t i = 0; i < p->n_tokens; i++)
    hash = sim_mix(hash, (uint64_t)(uint32_t)p->token_ids[i] << 32 | (uint32_t)p->positions[i]);
  for (uint32_t i = 0; i < p->n_logits; i++)
    hash = sim_mix(hash, (uint64_t)p->logits[i].token << 32 | (uint32_t)p->logits[i].target);
  return hash;
}

/* The scheduler's own figures, and those of each request. */
static uint64_t mix_state(uint64_t hash, const sim_world *w)
{
  td_sched_stats st;
  td_sched_get_stats(w->sched, &st);
  const uint64_t counts[] = {st.n_waiting,
                             st.n_running,
                             st.pages_free,
                             st.pages_cached,
                             st.pages_owned,
                             st.waiting_prompt_tokens,
                             st.prefix_query_tokens,
                             st.prefix_hit_tokens,
                             st.preemptions,
                             st.evicted_pages,
                             st.fair_preemptions,
                             st.n_following,
                             st.follows,
                             st.expired,
                             td_sched_next_expiry_us(w->sched)};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
    hash = sim_mix(hash, counts[i]);
  for (uint32_t i = 0; i < SIM_ACCOUNTS; i++)
    hash = sim_mix(hash, td_sched_account_served(w->sched, i));
  for (uint32_t i = 0; i < w->config.n_slots; i++) {
    if (!w->slots[i].used)
      continue;
    td_sched_slot_info x = td_sched_slot(w->sched, i);
    const uint64_t said[] = {x.n_tokens,      x.n_generated, x.n_computed,        x.n_cached_prompt,
                             x.n_preemptions, x.submit_us,   x.first_run_us,      x.running,
                             x.following,     x.n_follows,   (uint64_t)x.place_us};
    for (size_t k = 0; k < sizeof said / sizeof *said; k++)
      hash = sim_mix(hash, said[k]);
  }
  return hash;
}

static uint64_t mix_predictions(uint64_t hash, const sim_world *w)
{
  td_sched_stats st;
  td_sched_get_stats(w->sched, &st);
  td_sched_forecast f = td_sched_make_forecast(w->sched);
  const double said[] = {st.tbt_slo_us,
                         st.cost_correction[0],
                         st.cost_correction[1],
                         f.start_us,
                         f.next_end_us,
                         f.end_interval_us,
                         f.prompt_token_us,
                         f.step_us,
                         td_sched_forecast_start_us(w->sched)};
  for (size_t i = 0; i < sizeof said / sizeof *said; i++)
    hash = mix_double(hash, said[i]);
  return mix_double(hash, td_sched_predict_us(w->sched, w->plan));
}

void sim_print_worlds(td_buf *out)
{
  sim_rng seeds = {.state = 29};
  sim_totals totals = {0};
  for (uint32_t i = 0; i < WORLDS; i++) {
    sim_world *w = sim_world_create(sim_next(&seeds), 1, &totals);
    uint64_t plans = 0, state = 0, predictions = 0;
    for (uint32_t k = 0; k < STEPS; k++) {
      if (!sim_world_step(w, true))
        continue;
      plans = mix_plan(plans, w->plan);
      state = mix_state(state, w);
      predictions = mix_predictions(predictions, w);
    }
    td_buf_printf(
        out, "%u %s%s, %u at once, %u accounts: schedule %08" PRIx64 " plans %08" PRIx64 " state %08" PRIx64,
        i, td_policy_names[w->config.policy], w->config.cost ? " by time" : "", w->config.max_running,
        w->n_accounts, w->schedule_hash >> 32, plans >> 32, state >> 32);
    td_buf_printf(out, " predictions %08" PRIx64 "\n", predictions >> 32);
    sim_world_destroy(w);
  }
}
