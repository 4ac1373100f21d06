/* The sampler's exact definition, for every backend: the weight of a token, which tokens are kept, and how
 * one is drawn.
 *
 * The same logits, seed and position give the same token on every CPU and GPU, because nothing here depends
 * on how a machine or compiler rounds. A weight is a fixed sequence of IEEE operations ending in an integer,
 * sums of integers do not depend on their order, and every threshold is a comparison of integers. A backend
 * may process elements in any order and in vectors (the CPU's are in cpu/pointwise.inc), as long as each
 * element goes through these operations.
 *
 * The definition for a row of logits x[0..n), with the state of its slot and a position:
 * - bad: the row has a NaN, a +inf or no finite value. It sets TD_LOGITS_NAN.
 * - best: the lowest id that has the highest logit `max`. Greedy rows choose it.
 * - weight: w[i] = floor(2^30 * exp((x[i] - max) * inv_temperature)); w[best] = 2^30.
 * - kept: w[i] >= least. `least` is 1 without min-p, so a token whose weight is 0 is never drawn.
 * - top-k: if more than k tokens are kept, t is the highest logit such that at least k kept tokens have x >=
 *   t. Tokens with x < t are dropped. Equal logits are kept or dropped together, so more than k may stay (as
 *   in vLLM).
 * - top-p: likewise, where t is the highest logit such that the weights of x >= t sum up to at least `want`.
 * - draw: left = random * total / 2^64. The drawn token is the first, in the order of ids, whose running sum
 *   of weights exceeds left. */
#ifndef TD_KERNELS_SAMPLE_MATH_H
#define TD_KERNELS_SAMPLE_MATH_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { TD_SAMPLED_NAN = -1 }; /* stands for an id until the outcome gets TD_LOGITS_NAN (step/outcome.h) */

#ifdef __CUDACC__
#define TD_SAMPLE_FN static __host__ __device__ __forceinline__
#else
#define TD_SAMPLE_FN static inline
#endif

#ifdef __CUDA_ARCH__ /* intrinsics, because the compiler must neither contract nor approximate these */
#define TD_SAMPLE_FMA(a, b, c) __fmaf_rn(a, b, c)
#define TD_SAMPLE_MUL(a, b) __fmul_rn(a, b)
#define TD_SAMPLE_ADD(a, b) __fadd_rn(a, b)
#define TD_SAMPLE_DIV(a, b) __fdiv_rn(a, b)
#define TD_SAMPLE_DOUBLE_MUL(a, b) __dmul_rn(a, b)
#else
#define TD_SAMPLE_FMA(a, b, c) fmaf(a, b, c)
#define TD_SAMPLE_MUL(a, b) ((a) * (b))
#define TD_SAMPLE_ADD(a, b) ((a) + (b))
#define TD_SAMPLE_DIV(a, b) ((a) / (b))
#define TD_SAMPLE_DOUBLE_MUL(a, b) ((a) * (b))
#endif

/* e^x: x = n ln2 + r, then a polynomial of degree 6 in r (minimax, relative error 3e-9 before rounding), then
 * times 2^n. */
#define TD_EXP_MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
#define TD_EXP_LOG2E 0x1.715476p+0f
#define TD_EXP_LN2_HIGH 0x1.62e430p-1f /* ln2 = high - low */
#define TD_EXP_LN2_LOW 0x1.05c610p-29f
#define TD_EXP_C6 0x1.6a23cep-10f
#define TD_EXP_C5 0x1.123a20p-7f
#define TD_EXP_C4 0x1.5558f2p-5f
#define TD_EXP_C3 0x1.555492p-3f
#define TD_EXP_C2 0x1.fffffcp-2f

#define TD_SAMPLE_ONE (1u << 30) /* the highest logit's weight */

/* Lower temperatures are greedy: 1/temperature must stay finite, and only the maximum would have a weight. */
#define TD_SAMPLE_TEMPERATURE_MIN 1e-5f

TD_SAMPLE_FN bool td_sample_is_greedy(float temperature)
{
  return !(temperature >= TD_SAMPLE_TEMPERATURE_MIN);
}
TD_SAMPLE_FN float td_sample_inv_temperature(float temperature) { return TD_SAMPLE_DIV(1.0f, temperature); }

/* The exponent: 0 for the highest logit, below 0 for others, never NaN for a row that is not bad. */
TD_SAMPLE_FN float td_sample_exponent(float logit, float max, float inv_temperature)
{
  return TD_SAMPLE_MUL(TD_SAMPLE_ADD(logit, -max), inv_temperature);
}

/* At and below this exponent a weight is 0 (ln 2^-30 is -20.79). */
#define TD_SAMPLE_EXPONENT_MIN -20.875f

/* The weight of an exponent. The multiplication by 2^30 is exact, so it is done in the exponent field. */
TD_SAMPLE_FN uint32_t td_sample_weight(float u)
{
  uint32_t bits;
  float e, c = u > TD_SAMPLE_EXPONENT_MIN ? u : TD_SAMPLE_EXPONENT_MIN;
  float t = TD_SAMPLE_FMA(c, TD_EXP_LOG2E, TD_EXP_MAGIC), n = TD_SAMPLE_ADD(t, -TD_EXP_MAGIC);
  float r = TD_SAMPLE_FMA(n, -TD_EXP_LN2_HIGH, c);
  r = TD_SAMPLE_FMA(n, TD_EXP_LN2_LOW, r);
  float q = TD_EXP_C6;
  q = TD_SAMPLE_FMA(q, r, TD_EXP_C5);
  q = TD_SAMPLE_FMA(q, r, TD_EXP_C4);
  q = TD_SAMPLE_FMA(q, r, TD_EXP_C3);
  q = TD_SAMPLE_FMA(q, r, TD_EXP_C2);
  q = TD_SAMPLE_FMA(q, TD_SAMPLE_MUL(r, r), r);
  memcpy(&bits, &t, sizeof bits);
  bits = (bits << 23) + ((127u + 30u) << 23);
  memcpy(&e, &bits, sizeof e);
  return (uint32_t)(int32_t)TD_SAMPLE_FMA(q, e, e);
}

/* Unsigned keys that order logits by value; -0 and +0 have the same key. */
TD_SAMPLE_FN uint32_t td_sample_key(float logit)
{
  uint32_t u;
  float f = TD_SAMPLE_ADD(logit, 0.0f);
  memcpy(&u, &f, sizeof u);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}

TD_SAMPLE_FN float td_sample_logit_of_key(uint32_t key)
{
  uint32_t u = key & 0x80000000u ? key & 0x7FFFFFFFu : ~key;
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

/* The least weight that is kept: 1 without min-p, more than any weight if min_p is above 1. */
TD_SAMPLE_FN uint32_t td_sample_least(float min_p)
{
  if (!(min_p > 0))
    return 1;
  return min_p > 1 ? TD_SAMPLE_ONE + 1
                   : (uint32_t)ceil(TD_SAMPLE_DOUBLE_MUL((double)min_p, (double)TD_SAMPLE_ONE));
}

/* The sum of weights that top-p must reach; total < 2^53. */
TD_SAMPLE_FN uint64_t td_sample_want(uint64_t total, float top_p)
{
  double want = ceil(TD_SAMPLE_DOUBLE_MUL((double)total, (double)top_p));
  return want >= 1 ? (uint64_t)want : 1;
}

/* Philox4x32-10 (Salmon et al. 2011): 64 random bits for (seed, position). */
TD_SAMPLE_FN uint64_t td_sample_random(uint64_t seed, uint32_t position)
{
  uint32_t c0 = position, c1 = 0, c2 = 0, c3 = 0, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int i = 0; i < 10; i++) {
    uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return (uint64_t)c1 << 32 | c0;
}

/* random * total / 2^64, which is below total. */
TD_SAMPLE_FN uint64_t td_sample_draw(uint64_t random, uint64_t total)
{
#ifdef __CUDA_ARCH__
  return __umul64hi(random, total);
#else
  return (uint64_t)((unsigned __int128)random * total >> 64);
#endif
}

#endif
