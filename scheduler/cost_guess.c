/* Scaling the table of a device class: see cost_guess.h. */
#include "scheduler/cost_guess.h"

#include <math.h>

#include "scheduler/cost_learn.h"

const td_cost_class td_cost_class_gpu = {.cost = &td_cost_h200_llama3_8b,
                                         .basis = {.weight_bytes = 16.06e9,
                                                   .token_flop = 2 * 6.98e9,
                                                   .kv_token_bytes = 131072,
                                                   .pair_flop = 524288,
                                                   .n_layers = 32,
                                                   .bytes_us = 4.9e6,
                                                   .flop_us = 1070e6},
                                         .bytes_until = 64,
                                         .flop_from = 384,
                                         .layer_us = 10};

const td_cost_class td_cost_class_cpu = {.cost = &td_cost_epyc_smollm2,
                                         .basis = {.weight_bytes = 97e6,
                                                   .token_flop = 2 * 106e6,
                                                   .kv_token_bytes = 46080,
                                                   .pair_flop = 69120,
                                                   .n_layers = 30,
                                                   .bytes_us = 8e3,
                                                   .flop_us = 64e3},
                                         .bytes_until = 2,
                                         .flop_from = 16,
                                         .layer_us = 20};

/* 0 where reading weights takes the time, 1 where computing GEMMs does. */
static double share_computed(const td_cost_class *c, double n_tokens)
{
  double at = log(n_tokens / c->bytes_until) / log(c->flop_from / c->bytes_until);
  return fmin(fmax(at, 0), 1);
}

td_cost_model td_cost_guess(const td_cost_class *c, const td_cost_basis *to)
{
  const td_cost_basis *of = &c->basis;
  td_cost_model m = *c->cost;
  double bytes = of->bytes_us / to->bytes_us, flop = of->flop_us / to->flop_us;
  double weights = bytes * to->weight_bytes / of->weight_bytes,
         products = flop * to->token_flop / of->token_flop;
  double kv = bytes * to->kv_token_bytes / of->kv_token_bytes, pairs = flop * to->pair_flop / of->pair_flop;
  double least_us = c->layer_us * to->n_layers;
  for (uint32_t i = 0; i < m.n_points; i++) {
    double computed = share_computed(c, m.tokens[i]);
    m.tokens_us[i] = fmax(m.tokens_us[i] * pow(weights, 1 - computed) * pow(products, computed), least_us);
  }
  m.logits_us_per_row *= products;
  m.hybrid_us *= to->n_layers / of->n_layers;
  m.decode_us_per_kv_token *= kv;
  m.hybrid_us_per_kv_token *= kv;
  m.prefill_us_per_kv_token *= kv;
  m.prefill_us_per_short_chunk_key *= kv;
  m.prefill_us_per_pair *= pairs;
  return m;
}

double td_cost_guess_uncertainty(const td_cost_class *c, const td_cost_basis *to)
{
  const td_cost_basis *of = &c->basis;
  const double scales[] = {to->weight_bytes / of->weight_bytes,
                           to->token_flop / of->token_flop,
                           to->kv_token_bytes / of->kv_token_bytes,
                           to->pair_flop / of->pair_flop,
                           to->n_layers / of->n_layers,
                           to->bytes_us / of->bytes_us,
                           to->flop_us / of->flop_us};
  double furthest = 0;
  for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
    furthest = fmax(furthest, fabs(log(scales[i])));
  return fmin(TD_COST_UNCERTAINTY_LEARNED + furthest, TD_COST_UNCERTAINTY_GUESSED);
}
