/* The length of steps, and the chunks in them: see sim_decisions.h. */
#include "sim_decisions.h"
#include "sim_world.h"

enum { LINES = 330 };

/* Whole numbers, and an SLO that often equals the time of one of the points, so that equality is tested too.
 */
static const td_cost_model whole = {.n_points = 9,
                                    .tokens = {1, 8, 16, 32, 33, 64, 128, 160, 256},
                                    .tokens_us = {1000, 1000, 1100, 1600, 2000, 2000, 5000, 4000, 9000}};
/* The same with everything that a step may hold. Decodes cost nothing in the table, so their times are whole
 * too. */
static const td_cost_model all_parts = {.n_points = 6,
                                        .tokens = {1, 16, 64, 65, 256, 512},
                                        .tokens_us = {1000, 1500, 3000, 4500, 9000, 16000},
                                        .logits_us_per_row = 2,
                                        .decode_us_per_row = 4,
                                        .decode_us_per_kv_token = 0.25,
                                        .prefill_us_per_chunk = 64,
                                        .prefill_us_per_pair = 0.0625,
                                        .prefill_us_per_kv_token = 0.5,
                                        .prefill_us_per_short_chunk_key = 0.125,
                                        .hybrid_us = 128,
                                        .hybrid_us_per_decode_row = 2,
                                        .hybrid_us_per_kv_token = 0.125,
                                        .hybrid_beside = 0.5,
                                        .learned = {1.25, 0.75}};
static const td_cost_model *const models[] = {&whole, &all_parts, &td_cost_h200_llama3_8b,
                                              &td_cost_epyc_smollm2};
static const char *const names[] = {"whole", "parts", "h200", "epyc"};

static td_sched_config draw_config(sim_rng *r, uint32_t which)
{
  const td_cost_model *m = models[which];
  td_sched_config c = {.max_running = 64, .page_tokens = 16u << sim_below(r, 3), .max_context_tokens = 8192};
  c.cost = m;
  c.step_tokens = sim_chance(r, 0.5) ? m->tokens[m->n_points - 1 - sim_below(r, 3)] : 64 + sim_below(r, 1000);
  c.policy = sim_chance(r, 0.9) ? TD_POLICY_TANDEM : TD_POLICY_SARATHI;
  double at = m->tokens_us[m->n_points / 4 + sim_below(r, m->n_points / 2)];
  c.tbt_slo_us =
      sim_chance(r, 0.1) ? 0 : (uint64_t)(sim_chance(r, 0.5) ? at : at * (1 + 0.001 * sim_below(r, 1000)));
  if (sim_chance(r, 0.3))
    c.adaptive_slo = (td_adaptive_slo){1 + sim_below(r, 5), (uint64_t)(at / 2)};
  return c;
}

static void print_line(td_buf *out, sim_rng *r, uint32_t which)
{
  td_sched_config c = draw_config(r, which);
  td_budget b;
  td_error err;
  td_status st = td_budget_init(&b, &c, &err);
  TD_BUG_ON(st != TD_OK);
  uint32_t n_decodes = sim_chance(r, 0.15) ? 0 : 1 + sim_below(r, sim_chance(r, 0.5) ? 4 : 60);
  uint32_t n_prompts = sim_chance(r, 0.2) ? 0 : 1 + sim_below(r, sim_chance(r, 0.6) ? 4 : 200);
  uint32_t n_computed = sim_chance(r, 0.6) ? 0 : c.page_tokens * sim_below(r, 200);
  uint64_t kv_tokens = (uint64_t)n_decodes * (16 + sim_below(r, 2000));
  td_budget_begin(&b);
  td_budget_add_decodes(&b, n_decodes, kv_tokens);
  td_budget_end_decodes(&b, (td_budget_prompts){n_prompts, n_computed});
  td_buf_printf(out, "%s %u/%u slo %.3f: %u decodes %.3f us, %u prompts: %u tokens, target %.3f limit %.3f:",
                names[which], c.step_tokens, c.page_tokens, b.slo_us, n_decodes,
                td_budget_predict_us(&b, &b.work), n_prompts, b.most_tokens, b.target_us, b.limit_us);
  for (uint32_t i = 0; i < 4; i++) { /* chunk after chunk, some of them a prompt's end */
    uint32_t n_rest = sim_chance(r, 0.5) ? 1 + sim_below(r, 300) : 5000,
             q = td_budget_chunk(&b, n_computed, n_rest);
    td_buf_printf(out, " %u%s", q, q == n_rest ? "." : "");
    if (q == 0)
      break;
    td_budget_add_chunk(&b, q, n_computed + q, q == n_rest);
    n_computed = c.page_tokens * sim_below(r, 10);
  }
  td_buf_printf(out, " %.3f us", td_budget_predict_us(&b, &b.work));
  for (uint32_t i = 0; i < 2; i++)
    td_budget_observe(&b, &b.work, 700 + sim_below(r, 20000));
  td_buf_printf(out, ", then %.4f\n", td_budget_predict_us(&b, &b.work));
}

void sim_print_lengths(td_buf *out)
{
  sim_rng r = {.state = 7};
  for (uint32_t i = 0; i < LINES; i++)
    print_line(out, &r, i % 4);
}
