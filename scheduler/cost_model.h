/* How long a step takes, as a function of what is in it: what chunk sizes, admission and tandem-plan are
 * decided by.
 *
 * These make a step's time: products and everything else that goes token by token, a table over the
 * number of tokens (tiles make it a stair: 384 tokens cost almost what 512 do); attention of prompt chunks,
 * by (query, key) pairs; attention of decodes, by the KV that it reads, which has another price beside
 * chunks; and where there are both, what it takes longer that they are in one step (H200: 0.86 ms, without
 * which short ones were predicted 11 % too short); and of the shorter of both attentions the share that runs
 * beside the longer one: p + d - beside x min(p, d), which grows with each of them and is made of straight
 * lines, as searches want it. All coefficients come from a calibration of the very device and model, or, for
 * planning without one, from published figures.
 *
 * How right it is (`bench_predict MODEL --kinds 60 --rounds 8 --calibrate-ms 40000`; steps that calibration
 * never saw, SmolLM2-135M, one thread, a busy host; two runs): off a kind's median by 2.5 and 5.5 % in the
 * median, 12.7 and 18.9 % at p99. Single steps: 6 %, 26 and 32 %; but the same step repeated is off its own
 * median by 5.5 and 4.3 %, p99 24 %: that noise is the host's, for processor time itself varies, with 0.5 %
 * waiting, 1 % stolen, and as much with our other processor idle. After 6 s of calibration (six runs) kinds 5
 * to 10 and 15 to 29 % (the speed of the moment taken out, 4 to 8 and 14 to 19), single steps 5.0 to 8.4 and
 * 29 to 40 %, floor 2.4 to 7.7 and 22 to 57 %. So p99 <= 20 % holds for the model's shape, p50 <= 5 % nearly,
 * neither for single steps on such a machine.
 *
 * Pure, no allocation. Thread: any, read-only once made. Source: SARATHI, sections 4.2 to 4.4. */
#ifndef TD_SCHEDULER_COST_MODEL_H
#define TD_SCHEDULER_COST_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "step/plan.h"

/* What is in a step, as far as its time depends on it. */
typedef struct td_step_work {
  uint32_t n_tokens; /* of all rows */
  uint32_t n_rows;
  uint32_t n_logits; /* rows that sample */
  uint32_t n_decode_rows;
  uint64_t decode_kv_tokens;  /* sum of the decodes' kv_len, less what sharing saves (td_cost_saved_tokens) */
  uint64_t prefill_pairs;     /* sum over chunks of the (query, key) pairs that are not masked */
  uint64_t prefill_kv_tokens; /* sum of the chunks' kv_len */
  uint64_t prefill_thin_tokens; /* the same, of chunks of few tokens: td_cost_thin_tokens */
} td_step_work;

enum { TD_COST_POINTS_MAX = 96, TD_COST_THIN = 400 };
#define TD_COST_BESIDE_MAX 0.9 /* so that more attention always takes longer */

typedef struct td_cost_model {
  /* A step of so many tokens without attention and sampling, with all that a step costs anyway. Ascending
   * tokens; the times may fall where a product of more tokens has a better algorithm. Between points linear,
   * past the last by the slope of the last two. */
  uint32_t n_points;
  uint32_t tokens[TD_COST_POINTS_MAX];
  double tokens_us[TD_COST_POINTS_MAX];
  double logits_us_per_row;
  double decode_us_per_row, decode_us_per_kv_token;
  double prefill_us_per_chunk, prefill_us_per_pair, prefill_us_per_kv_token;
  double prefill_us_per_thin_token; /* calibrations have this instead of prefill_us_per_kv_token */
  double hybrid_us,
      hybrid_us_per_decode_row;  /* what decodes and chunks in one step take longer than the sums above */
  double hybrid_us_per_kv_token; /* instead of decode_us_per_kv_token where there are chunks too, which read
                                  * and compute at the same time; 0: the same */
  double hybrid_beside;          /* of the shorter of both attentions, the share that takes no time: 0 to
                                    TD_COST_BESIDE_MAX */
  double learned[2]; /* steps [without, with] prompts took so many times all this under load; 0: not known. It
                      * is where the scheduler's correction begins: td_cost_step_us is as calibrated */
} td_cost_model;

/* (query, key) pairs of a chunk of q_len tokens that ends at kv_len: each token sees itself and all before
 * it. */
static inline uint64_t td_cost_pairs(uint32_t q_len, uint32_t kv_len)
{
  return (uint64_t)q_len * (kv_len - q_len) + (uint64_t)q_len * ((uint64_t)q_len + 1) / 2;
}
/* A chunk of few tokens is few tiles, whose attention takes as long as one of them that goes through all
 * keys; many tiles take as long as all their pairs. The longer of A kv_len and B pairs is B pairs + A (what
 * this says): where both are equal is at about 400 tokens of a chunk, as measured on an H200 (0.39 us a
 * key, 1.0 us a thousand pairs; with kv_len for it, 630 tokens behind 12,000 were predicted 20 % too short).
 * Elsewhere the fit makes of it what it can. */
static inline uint64_t td_cost_thin_tokens(uint32_t q_len, uint32_t kv_len)
{
  uint64_t by_pairs = td_cost_pairs(q_len, kv_len) / TD_COST_THIN;
  return by_pairs < kv_len ? kv_len - by_pairs : 0;
}
/* Tokens of KV that need not be read from memory where decodes read so many that others read too. As
 * kernels/attention plans it: each decode finds them in the L2 cache, 2.5 times as fast; or, from some number
 * on, they are read once, and what that takes beside is 12 us a layer, the time of so many tokens. */
enum { TD_COST_SHARING_TOKENS = 12600 };
static inline uint64_t td_cost_saved_tokens(uint64_t n_repeated)
{
  uint64_t by_cache = n_repeated / 5 * 3,
           once = n_repeated > TD_COST_SHARING_TOKENS ? n_repeated - TD_COST_SHARING_TOKENS : 0;
  return once > by_cache ? once : by_cache;
}
static inline double td_cost_learned(const td_cost_model *m, bool with_prompts)
{
  return m->learned[with_prompts] > 0 ? m->learned[with_prompts] : 1;
}
/* The work of a plan; O(rows). */
td_step_work td_step_work_of(const td_plan *plan);
/* The table alone: what so many tokens take without attention and sampling. */
double td_cost_tokens_us(const td_cost_model *m, uint32_t n_tokens);
/* The last point at or below so many tokens, 0 if they are below all; and the same time where that point is
 * known. */
uint32_t td_cost_find_point(const td_cost_model *m, uint32_t n_tokens);
double td_cost_tokens_at_us(const td_cost_model *m, uint32_t point, uint32_t n_tokens);
/* Predicted time, > 0 where the model has a point. */
double td_cost_step_us(const td_cost_model *m, const td_step_work *w);
static inline bool td_cost_is_hybrid(const td_step_work *w)
{
  return w->n_decode_rows > 0 && w->n_rows > w->n_decode_rows;
}
/* What reading the decodes' KV takes. */
static inline double td_cost_kv_us(const td_cost_model *m, const td_step_work *w)
{
  bool is_priced = td_cost_is_hybrid(w) && m->hybrid_us_per_kv_token > 0;
  return (double)w->decode_kv_tokens * (is_priced ? m->hybrid_us_per_kv_token : m->decode_us_per_kv_token);
}
/* And the chunks' attention. */
static inline double td_cost_prefill_attention_us(const td_cost_model *m, const td_step_work *w)
{
  return m->prefill_us_per_pair * (double)w->prefill_pairs +
         m->prefill_us_per_kv_token * (double)w->prefill_kv_tokens +
         m->prefill_us_per_thin_token * (double)w->prefill_thin_tokens;
}
/* The same where what the table says of w->n_tokens is known. */
static inline double td_cost_step_of_tokens_us(const td_cost_model *m, double tokens_us,
                                               const td_step_work *w)
{
  double prefill_us = td_cost_prefill_attention_us(m, w), kv_us = td_cost_kv_us(m, w), hybrid_us = 0;
  if (td_cost_is_hybrid(w))
    hybrid_us = m->hybrid_us + m->hybrid_us_per_decode_row * w->n_decode_rows -
                m->hybrid_beside * (prefill_us < kv_us ? prefill_us : kv_us);
  return tokens_us + hybrid_us + m->logits_us_per_row * w->n_logits +
         m->decode_us_per_row * w->n_decode_rows + kv_us +
         m->prefill_us_per_chunk * (w->n_rows - w->n_decode_rows) + prefill_us;
}

/* Llama-3-8B in bf16 on one NVIDIA H200, from published figures and measured steps of this daemon: for
 * planning and tests where no calibration of the device at hand is given, and as a class to guess from. */
extern const td_cost_model td_cost_h200_llama3_8b;
/* SmolLM2-135M in Q4_1 on one core of an AMD EPYC: a class to guess from (cost_guess.h). */
extern const td_cost_model td_cost_epyc_smollm2;

#endif
