/* Rounds activations for int8 linears, in AVX2 registers. */
#ifndef TD_KERNELS_CPU_INT8_ROUND_AVX2_H
#define TD_KERNELS_CPU_INT8_ROUND_AVX2_H

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/int8.h"
#include "kernels/cpu/int8_formats.h"

/* Minus the sums of 16 integers: lane 0 has the even pairs, lane 1 the odd pairs; lanes 2 and 3 repeat
 * them. */
TD_INLINE __m128i minus_pairs(__m256i q)
{
  __m256i pairs = _mm256_madd_epi16(q, _mm256_set1_epi16(-1));
  __m128i v = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  return _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4E));
}

TD_INLINE int32_t sum_of_pairs(__m128i v)
{
  return _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32(v, 0xB1)));
}

TD_INLINE int32_t sum_for_table(__m128i v)
{
  return SUMS_OF_PAIRS ? _mm_cvtsi128_si32(_mm_packs_epi32(v, v)) : sum_of_pairs(v);
}

TD_INLINE float largest_of(const __m256 x[4], uint32_t *bits)
{
  __m256i most = _mm256_setzero_si256();
  for (int i = 0; i < 4; i++)
    most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(x[i]), _mm256_set1_epi32(0x7FFFFFFF)));
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
  *bits = (uint32_t)_mm_cvtsi128_si32(m);
  return _mm_cvtss_f32(_mm_castsi128_ps(m));
}

/* See round_strip of int8_scalar.c. */
TD_INLINE void round_strip(const float *x, td_int8_strip *out)
{
  __m256 v[4];
  __m256i q[4];
  uint32_t bits;
  for (int i = 0; i < 4; i++)
    v[i] = _mm256_loadu_ps(x + 8 * i);
  float largest = largest_of(v, &bits);
  if (bits >= 0x7F800000 || largest < TD_INT8_LEAST) {
    memset(out, 0, sizeof *out);
    if (bits >= 0x7F800000)
      out->d = out->d_sum = NAN;
    return;
  }
  __m256 inverse = _mm256_set1_ps(127 / largest);
  for (int i = 0; i < 4; i++)
    q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
  __m256i low = _mm256_packs_epi32(q[0], q[1]), high = _mm256_packs_epi32(q[2], q[3]);
  __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256((__m256i *)out->q, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order));
  __m128i minus_high = minus_pairs(high), minus = _mm_add_epi32(minus_high, minus_pairs(low));
  out->minus_high.one = sum_for_table(minus_high);
  out->minus_sum.one = sum_for_table(minus);
  out->d = largest / 127;
  out->d_sum = out->d * (float)-sum_of_pairs(minus);
}

#endif
