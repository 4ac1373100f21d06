/* The cost model: how long a step takes, as a function of what is in it. Chunk sizes, deadlines, the forecast
 * and tandem-plan depend on it.
 *
 * A step's time is the sum of:
 * - GEMMs and all other work that is per token: a table over the number of tokens. Tiles make it a stair: 384
 *   tokens cost almost as much as 512.
 * - Attention of prompt chunks, by (query, key) pairs.
 * - Attention of decodes, by the KV tokens that it reads. The price of a token differs in steps with chunks.
 * - Costs of each logits entry, decode row and chunk.
 * - A constant for hybrid steps (H200: 0.86 ms; without it, short hybrid steps were predicted 11 % too
 *   short).
 * - Minus the share of the shorter attention that runs beside the longer one: p + d - beside x min(p, d).
 *   This grows with each of them and is piecewise linear, as the searches need it.
 * All coefficients come from a calibration of this device and model, or, for planning without one, from
 * published figures.
 *
 * Accuracy (`bench_predict MODEL --kinds 60 --rounds 8 --calibrate-ms 40000`; steps that calibration never
 * saw, SmolLM2-135M, one thread, a busy host; two runs). Errors as p50; p99:
 * - Against the median of a kind of step: 2.5 and 5.5 %; 12.7 and 18.9 %. After 6 s of calibration (six runs)
 *   5 to 10 %; 15 to 29 %, and without the machine's momentary speed 4 to 8 %; 14 to 19 %.
 * - Against single steps: 6 %; 26 and 32 %. After 6 s of calibration 5.0 to 8.4 %; 29 to 40 %.
 * - Noise floor, the same step repeated against its own median: 5.5 and 4.3 %; 24 %, and in the six runs 2.4
 *   to 7.7 %; 22 to 57 %. This is the host's noise: processor time itself varies, with 0.5 % waiting and 1 %
 *   stolen, and as much when our other processor is idle.
 * So p99 <= 20 % holds for the model's shape, and p50 <= 5 % nearly. Neither holds for single steps on such a
 * host.
 *
 * Pure, no allocation. Thread: any; read-only once made. Source: SARATHI, sections 4.2 to 4.4. */
#ifndef TD_SCHEDULER_COST_MODEL_H
#define TD_SCHEDULER_COST_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "step/plan.h"

/* The contents of a step that its time depends on. */
typedef struct td_step_work {
  uint32_t n_tokens; /* of all rows */
  uint32_t n_rows;
  uint32_t n_logits; /* logits entries */
  uint32_t n_decode_rows;
  uint64_t decode_kv_tokens;         /* sum of the decodes' kv_len, less td_cost_saved_tokens */
  uint64_t prefill_pairs;            /* sum over chunks of the (query, key) pairs that are not masked */
  uint64_t prefill_kv_tokens;        /* sum of the chunks' kv_len */
  uint64_t prefill_short_chunk_keys; /* sum over chunks of td_cost_short_chunk_keys */
} td_step_work;

enum { TD_COST_POINTS_MAX = 96, TD_COST_SHORT_CHUNK_TOKENS = 400 };
#define TD_COST_BESIDE_MAX 0.9 /* below 1, so that more attention always takes longer */

typedef struct td_cost_model {
  /* The time of a step of `tokens` tokens without attention and sampling, with its fixed cost. tokens
   * ascend. The times may fall where a GEMM of more tokens has a better algorithm. Between points the time
   * is linear; past the last it goes on by the slope of the last two, or stays the same if that slope is
   * negative. */
  uint32_t n_points;
  uint32_t tokens[TD_COST_POINTS_MAX];
  double tokens_us[TD_COST_POINTS_MAX];
  double logits_us_per_row;
  double decode_us_per_row, decode_us_per_kv_token;
  double prefill_us_per_chunk, prefill_us_per_pair, prefill_us_per_kv_token;
  double prefill_us_per_short_chunk_key;      /* calibrations set this, not prefill_us_per_kv_token */
  double hybrid_us, hybrid_us_per_decode_row; /* added if decodes and chunks are in one step */
  double hybrid_us_per_kv_token; /* replaces decode_us_per_kv_token in steps with chunks, which read and
                                  * compute at the same time; 0: no difference */
  double hybrid_beside;          /* the share of the shorter attention that is hidden behind the longer: 0
                                  * to TD_COST_BESIDE_MAX */
  double learned[2]; /* measured / td_cost_step_us under load, of steps [without, with] prompts; 0: not
                      * known. The scheduler's correction starts here. td_cost_step_us does not include it */
} td_cost_model;

/* (query, key) pairs of a chunk of q_len tokens that ends at kv_len. Each token attends to itself and to
 * all tokens before it. */
static inline uint64_t td_cost_pairs(uint32_t q_len, uint32_t kv_len)
{
  return (uint64_t)q_len * (kv_len - q_len) + (uint64_t)q_len * ((uint64_t)q_len + 1) / 2;
}
/* The short-chunk keys of a chunk. A chunk of few tokens has few tiles, and its attention takes as long as
 * one tile that goes through all keys: A x kv_len. Many tiles take as long as all their pairs: B x pairs. The
 * larger of the two is B x pairs + A x (short-chunk keys). On an H200 both are equal at about 400 tokens of a
 * chunk (0.39 us a key, 1.0 us a thousand pairs). With kv_len instead of short-chunk keys, 630 tokens after
 * 12,000 were predicted 20 % too short. On other devices the fit makes the best of this form. */
static inline uint64_t td_cost_short_chunk_keys(uint32_t q_len, uint32_t kv_len)
{
  uint64_t by_pairs = td_cost_pairs(q_len, kv_len) / TD_COST_SHORT_CHUNK_TOKENS;
  return by_pairs < kv_len ? kv_len - by_pairs : 0;
}
/* The KV tokens by which decodes read less if they read n_repeated tokens again. This follows the plan of
 * kernels/attention. A repeated token comes from the L2 cache, 2.5 times as fast. Or, from some number on,
 * shared tokens are read once, at an extra cost of 12 us a layer, the time of TD_COST_SHARING_TOKENS
 * tokens. */
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
/* The table alone: the time of n_tokens without attention and sampling. */
double td_cost_tokens_us(const td_cost_model *m, uint32_t n_tokens);
/* find_point: the last point at or below n_tokens; 0 if all are above. tokens_at_us: td_cost_tokens_us for
 * a known point. */
uint32_t td_cost_find_point(const td_cost_model *m, uint32_t n_tokens);
double td_cost_tokens_at_us(const td_cost_model *m, uint32_t point, uint32_t n_tokens);
/* The predicted time, > 0 if the model has a point. */
double td_cost_step_us(const td_cost_model *m, const td_step_work *w);
static inline bool td_cost_is_hybrid(const td_step_work *w)
{
  return w->n_decode_rows > 0 && w->n_rows > w->n_decode_rows;
}
/* The time of reading the decodes' KV. */
static inline double td_cost_kv_us(const td_cost_model *m, const td_step_work *w)
{
  bool is_priced = td_cost_is_hybrid(w) && m->hybrid_us_per_kv_token > 0;
  return (double)w->decode_kv_tokens * (is_priced ? m->hybrid_us_per_kv_token : m->decode_us_per_kv_token);
}
/* The time of the chunks' attention. */
static inline double td_cost_prefill_attention_us(const td_cost_model *m, const td_step_work *w)
{
  return m->prefill_us_per_pair * (double)w->prefill_pairs +
         m->prefill_us_per_kv_token * (double)w->prefill_kv_tokens +
         m->prefill_us_per_short_chunk_key * (double)w->prefill_short_chunk_keys;
}
/* td_cost_step_us, given the table's time for w->n_tokens. */
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

/* Llama-3-8B in bf16 on one NVIDIA H200, from published figures and measured steps of this daemon. For
 * planning and tests without a calibration, and as a class to guess from (cost_guess.h). */
extern const td_cost_model td_cost_h200_llama3_8b;
/* SmolLM2-135M in Q4_1 on one core of an AMD EPYC: a class to guess from (cost_guess.h). */
extern const td_cost_model td_cost_epyc_smollm2;

#endif
