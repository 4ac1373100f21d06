/* Log-probabilities: the log-softmax of a row of the model's logits, with the same bits on every backend.
 *
 * For a row x[0..n) that is not bad (sample_math.h) and whose highest logit is `max`:
 * - weight: w[i] = floor(2^44 * exp(x[i] - max)), an integer. The sum of the weights is below 2^63 for 2^18
 *   tokens and does not depend on their order. The floor drops up to 2^-44 a token: at most 2^-26 of the sum.
 * - logprob: x[i] - max - ln(sum / 2^44), in double, rounded to float once.
 * - top: the tokens from the highest logit down; among equal logits, the lower id comes first. */
#ifndef TD_KERNELS_LOGPROB_MATH_H
#define TD_KERNELS_LOGPROB_MATH_H

#include "kernels/sample_math.h"

#ifdef __CUDA_ARCH__
#define TD_LOGPROB_FMA(a, b, c) __fma_rn(a, b, c)
#define TD_LOGPROB_DIV(a, b) __ddiv_rn(a, b)
#define TD_LOGPROB_ADD(a, b) __dadd_rn(a, b)
#else
#define TD_LOGPROB_FMA(a, b, c) fma(a, b, c)
#define TD_LOGPROB_DIV(a, b) ((a) / (b))
#define TD_LOGPROB_ADD(a, b) ((a) + (b))
#endif

enum { TD_LOGPROB_BITS = 44 };
#define TD_LOGPROB_EXPONENT_MIN -31.0f /* at and below this exponent a weight is 0: ln 2^-44 is -30.5 */

/* td_sample_weight with 44 instead of 30 bits. */
TD_SAMPLE_FN uint64_t td_logprob_weight(float logit, float max)
{
  uint32_t bits;
  float e, u = TD_SAMPLE_ADD(logit, -max);
  if (!(u > TD_LOGPROB_EXPONENT_MIN))
    return 0;
  float t = TD_SAMPLE_FMA(u, TD_EXP_LOG2E, TD_EXP_MAGIC), n = TD_SAMPLE_ADD(t, -TD_EXP_MAGIC);
  float r = TD_SAMPLE_FMA(n, -TD_EXP_LN2_HIGH, u);
  r = TD_SAMPLE_FMA(n, TD_EXP_LN2_LOW, r);
  float q = TD_EXP_C6;
  q = TD_SAMPLE_FMA(q, r, TD_EXP_C5);
  q = TD_SAMPLE_FMA(q, r, TD_EXP_C4);
  q = TD_SAMPLE_FMA(q, r, TD_EXP_C3);
  q = TD_SAMPLE_FMA(q, r, TD_EXP_C2);
  q = TD_SAMPLE_FMA(q, TD_SAMPLE_MUL(r, r), r);
  memcpy(&bits, &t, sizeof bits);
  bits = (bits << 23) + ((127u + TD_LOGPROB_BITS) << 23);
  memcpy(&e, &bits, sizeof e);
  return (uint64_t)TD_SAMPLE_FMA(q, e, e);
}

/* ln(sum / 2^44), with a relative error of 2^-52. The sum is m * 2^e with m in [1/sqrt 2, sqrt 2), and ln m
 * is a series of atanh((m - 1) / (m + 1)). */
TD_SAMPLE_FN double td_logprob_of_sum(uint64_t sum)
{
  double m = (double)sum, z, s, p;
  uint64_t bits;
  memcpy(&bits, &m, sizeof bits);
  int exponent = (int)(bits >> 52) - 1023;
  bits = (bits & 0xFFFFFFFFFFFFFull) | 1023ull << 52;
  memcpy(&m, &bits, sizeof m);
  if (m > 0x1.6a09e667f3bcdp+0) {
    m = TD_SAMPLE_DOUBLE_MUL(m, 0.5);
    exponent++;
  }
  z = TD_LOGPROB_DIV(TD_LOGPROB_ADD(m, -1.0), TD_LOGPROB_ADD(m, 1.0));
  s = TD_SAMPLE_DOUBLE_MUL(z, z);
  p = 0;
  for (int k = 21; k >= 1; k -= 2)
    p = TD_LOGPROB_FMA(p, s, TD_LOGPROB_DIV(2.0, (double)k));
  return TD_LOGPROB_FMA((double)(exponent - TD_LOGPROB_BITS), 0x1.62e42fefa39efp-1,
                        TD_SAMPLE_DOUBLE_MUL(p, z));
}

TD_SAMPLE_FN float td_logprob(float logit, float max, double log_sum)
{
  return (float)TD_LOGPROB_ADD(TD_LOGPROB_ADD((double)logit, -(double)max), -log_sum);
}

/* Sort key of a token: more probable tokens have higher keys. No two tokens of a row have the same key. */
TD_SAMPLE_FN uint64_t td_logprob_rank(float logit, uint32_t id)
{
  return (uint64_t)td_sample_key(logit) << 32 | (uint32_t)~id;
}
TD_SAMPLE_FN uint32_t td_logprob_id_of_rank(uint64_t rank) { return ~(uint32_t)rank; }
TD_SAMPLE_FN float td_logprob_logit_of_rank(uint64_t rank)
{
  return td_sample_logit_of_key((uint32_t)(rank >> 32));
}

#endif
