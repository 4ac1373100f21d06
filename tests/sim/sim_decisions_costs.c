/* Cost models, fitted, guessed and learned, and the chances of lengths: see sim_decisions.h. */
#include "scheduler/cost_fit.h"
#include "scheduler/cost_guess.h"
#include "scheduler/cost_learn.h"
#include "scheduler/output_lengths.h"
#include "sim_decisions.h"
#include "sim_world.h"

/* Smaller differences are rounding. */
#define NOTHING 1e-9

static double rounded(double x) { return x < NOTHING ? 0 : x; }

static void print_model(td_buf *out, const td_cost_model *m, int digits)
{
  for (uint32_t i = 0; i < m->n_points; i++)
    td_buf_printf(out, "%s%u %.*g", i ? ", " : "  ", m->tokens[i], digits, m->tokens_us[i]);
  const double c[] = {m->logits_us_per_row,
                      m->decode_us_per_row,
                      m->decode_us_per_kv_token,
                      m->prefill_us_per_chunk,
                      m->prefill_us_per_pair,
                      m->prefill_us_per_kv_token,
                      m->prefill_us_per_short_chunk_key,
                      m->hybrid_us,
                      m->hybrid_us_per_decode_row,
                      m->hybrid_us_per_kv_token,
                      m->hybrid_beside};
  td_buf_printf(out, "\n  then");
  for (size_t i = 0; i < sizeof c / sizeof *c; i++)
    td_buf_printf(out, " %.*g", digits, rounded(c[i]));
  td_buf_printf(out, "\n");
}

/* As in a calibration, of any size. */
static td_step_work draw_work(sim_rng *r, uint32_t n_tokens, bool hybrids)
{
  uint32_t kind = sim_below(r, hybrids ? 3 : 2);
  uint32_t n_decodes = kind == 0 ? n_tokens : kind == 1 ? 0 : 1 + sim_below(r, n_tokens);
  uint32_t chunk = n_tokens - n_decodes, end = chunk + 16 * sim_below(r, 300);
  td_step_work w = {.n_tokens = n_tokens, .n_rows = n_decodes + (chunk > 0), .n_decode_rows = n_decodes};
  w.n_logits = n_decodes + (chunk > 0 && sim_chance(r, 0.5));
  w.decode_kv_tokens = (uint64_t)n_decodes * (16 + sim_below(r, 3000));
  if (chunk > 0) {
    w.prefill_pairs = td_cost_pairs(chunk, end);
    w.prefill_kv_tokens = end;
    w.prefill_short_chunk_keys = td_cost_short_chunk_keys(chunk, end);
  }
  return w;
}

static void print_fit(td_buf *out, sim_rng *r, uint32_t n, bool hybrids, bool beside, double noise)
{
  static td_cost_sample s[TD_COST_SAMPLES_MAX];
  td_cost_model m;
  td_error err;
  for (uint32_t i = 0; i < n; i++) {
    s[i].work = draw_work(r, 1 + sim_below(r, 12) * (1 + sim_below(r, n)), hybrids);
    s[i].us = td_cost_step_us(&td_cost_h200_llama3_8b, &s[i].work) *
              (1 + noise * (0.001 * sim_below(r, 1000) - 0.3));
    s[i].us *= sim_chance(r, 0.05) ? 3 : 1;
  }
  td_status st = td_cost_fit(s, n, beside, &m, &err);
  TD_BUG_ON(st != TD_OK);
  td_buf_printf(out, "%u steps%s%s: off by", n, hybrids ? ", hybrids" : "", beside ? ", beside" : "");
  for (uint32_t i = 0; i <= 8; i++)
    td_buf_printf(out, " %.7g", rounded(td_cost_fit_error(&m, s, n, i / 8.0)));
  td_buf_printf(out, "\n");
  print_model(out, &m, 7);
  td_cost_make_stairs(&m, n / 4);
  td_buf_printf(out, "  %u stairs:", m.n_points);
  for (uint32_t i = 0; i < m.n_points; i++)
    td_buf_printf(out, " %u %.4g", m.tokens[i], m.tokens_us[i]);
  td_buf_printf(out, "\n");
}

void sim_print_fits(td_buf *out)
{
  static const uint32_t sizes[] = {1, 2, 3, 4, 7, 12, 25, 60, 150, TD_COST_SAMPLES_MAX};
  sim_rng r = {.state = 3};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int kind = 0; kind < 3; kind++)
      print_fit(out, &r, sizes[i], kind > 0, kind > 1, i % 2 ? 0.1 : 0);
}

/* Few digits, because log and exp depend on the library. */
void sim_print_guesses(td_buf *out)
{
  static const td_cost_class *const classes[] = {&td_cost_class_gpu, &td_cost_class_cpu};
  sim_rng r = {.state = 5};
  for (int i = 0; i < 12; i++) {
    const td_cost_class *c = classes[i % 2];
    td_cost_basis to = c->basis;
    double *const scaled[] = {&to.weight_bytes, &to.token_flop, &to.kv_token_bytes, &to.pair_flop,
                              &to.n_layers,     &to.bytes_us,   &to.flop_us};
    for (size_t k = 0; i > 1 && k < sizeof scaled / sizeof *scaled; k++)
      *scaled[k] *= i < 9 ? 0.25 + 0.01 * sim_below(&r, 300) : (int)k == i - 9 ? 1.5 : 1;
    td_cost_model m = td_cost_guess(c, &to);
    if (i > 5) { /* and what no class has */
      m.decode_us_per_row = 2;
      m.prefill_us_per_chunk = 30;
      m.prefill_us_per_kv_token = 0.25;
      m.prefill_us_per_short_chunk_key = 0.125;
      m.hybrid_us_per_decode_row = 3;
      m.hybrid_us_per_kv_token = i > 8 ? 0.0625 : 0;
    }
    double uncertainty = td_cost_guess_uncertainty(c, &to);
    td_buf_printf(out, "guess %d, unsure by %.5g\n", i, uncertainty);
    print_model(out, &m, 6);
    td_cost_learner l;
    td_cost_learner_init(&l, &m, uncertainty);
    for (uint32_t k = 1; k <= 300; k++) {
      td_step_work w = draw_work(&r, 1 + sim_below(&r, sim_chance(&r, 0.5) ? 20 : 20000), true);
      double off = 0.5 + 0.2 * (i % 5) + 0.0005 * sim_below(&r, 1000);
      td_cost_learner_observe(&l, &w, td_cost_step_us(c->cost, &w) * off * (sim_chance(&r, 0.03) ? 9 : 1));
      if (k != 1 && k != 9 && k != 300)
        continue;
      td_cost_model learned = td_cost_learner_model(&l);
      td_buf_printf(out, "  learned of %llu\n", (unsigned long long)l.n_steps);
      print_model(out, &learned, 5);
    }
  }
}

void sim_print_chances(td_buf *out)
{
  enum { ACCOUNTS = 3, ROUNDS = 60 };
  td_output_lengths a;
  sim_rng r = {.state = 11};
  bool ok = td_output_lengths_init(&a, ACCOUNTS);
  TD_BUG_ON(!ok);
  for (uint32_t i = 0; i < ROUNDS; i++) {
    for (uint32_t k = 0; k < i; k++) {
      uint32_t account = sim_below(&r, 2), n = 1 + sim_below(&r, sim_chance(&r, 0.2) ? 2000 : 60);
      td_output_lengths_observe(&a, account, n, n * (1 + sim_below(&r, 30)) / 10, sim_chance(&r, 0.3));
      td_output_lengths_start(&a, account, sim_below(&r, 90000), sim_below(&r, 90000));
    }
    for (uint32_t k = 0; k < 6; k++) {
      uint32_t account = sim_below(&r, ACCOUNTS), age = sim_chance(&r, 0.4) ? 0 : sim_below(&r, 300);
      uint32_t max_new = age + 1 + sim_below(&r, sim_chance(&r, 0.5) ? 9 : 3000);
      td_length_chance c = td_output_lengths_chance(&a, account, age, max_new);
      td_buf_printf(out, "account %u, %u of %u: full %.7g at %.7g %.7g %.7g %.7g, share %.7g\n", account, age,
                    max_new, c.full, c.at[0], c.at[1], c.at[2], c.at[3],
                    td_output_lengths_uncached_ratio(&a.accounts[account]));
    }
  }
  td_output_lengths_deinit(&a);
}
