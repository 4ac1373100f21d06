/* The lanes of int8 linears in AVX2 registers: eight rows. Pairs of products are added in 16 bits. */
#ifndef TD_KERNELS_CPU_INT8_LANES8_H
#define TD_KERNELS_CPU_INT8_LANES8_H

#define TD_INT8_NAME "avx2"
enum { LANES = 8, TILE_TOKENS_MAX = 4, SUMS_OF_PAIRS = 1 };
#include "kernels/cpu/int8_round_avx2.h"

typedef __m256i vi;
typedef __m256 vr;

TD_INLINE vi vi_zero(void) { return _mm256_setzero_si256(); }
TD_INLINE vi vi_set(int32_t x) { return _mm256_set1_epi32(x); }
TD_INLINE vi vi_set8(char x) { return _mm256_set1_epi8(x); }
TD_INLINE vi vi_load(const void *p) { return _mm256_load_si256(p); }
TD_INLINE void vi_store(void *p, vi a) { _mm256_store_si256(p, a); }
TD_INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
TD_INLINE vi vi_or_and(vi a, vi b, vi mask) { return _mm256_or_si256(a, _mm256_and_si256(b, mask)); }
TD_INLINE vi vi_sll16(vi a, int n) { return _mm256_slli_epi16(a, n); }
TD_INLINE vi vi_srl16(vi a, int n) { return _mm256_srli_epi16(a, n); }
TD_INLINE vi vi_sll32(vi a, int n) { return _mm256_slli_epi32(a, n); }
TD_INLINE vi vi_srl32(vi a, int n) { return _mm256_srli_epi32(a, n); }
TD_INLINE vi vi_sra32(vi a, int n) { return _mm256_srai_epi32(a, n); }

TD_INLINE vr vr_zero(void) { return _mm256_setzero_ps(); }
TD_INLINE vr vr_load(const float *p) { return _mm256_loadu_ps(p); }
TD_INLINE void vr_store(float *p, vr a) { _mm256_storeu_ps(p, a); }
TD_INLINE vr vr_load_f16(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
TD_INLINE vr low_f16(vi v)
{
  vi low = _mm256_and_si256(v, _mm256_set1_epi32(0xFFFF));
  return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}
TD_INLINE vr vr_of(vi a) { return _mm256_cvtepi32_ps(a); }
TD_INLINE vr vr_set(float x) { return _mm256_set1_ps(x); }
TD_INLINE vr vr_neg(vr a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
TD_INLINE vr vr_add(vr a, vr b) { return _mm256_add_ps(a, b); }
TD_INLINE vr vr_mul(vr a, vr b) { return _mm256_mul_ps(a, b); }
TD_INLINE vr vr_fma(vr a, vr b, vr c) { return _mm256_fmadd_ps(a, b, c); }

/* Weights of Q8_0 stay signed. */
TD_INLINE int lanes_zero_shift(td_dtype t) { return zero_shift(t); }
TD_INLINE vi from_signed(vi q) { return q; }

/* The beginnings of a strip's sums are 16-bit integers. */
TD_INLINE vi sums_sub(vi a, vi b) { return _mm256_sub_epi16(a, b); }
TD_INLINE vi sums_sll(vi a, int n) { return vi_sll16(a, n); }

/* Number of quads whose products may be added in 16 bits. A 16-bit lane adds two columns of each quad, and a
 * product is at most 127 times the largest weight. If weights are stored above their value, the sum begins
 * with the correction (sum_begin). Then only the final sum must fit, because intermediate sums may wrap
 * around. */
TD_INLINE int quads_at_once(td_dtype t)
{
  switch (t) {
  case TD_Q4_0:
  case TD_Q4_1:
  case TD_Q4_K:
  case TD_Q5_0: return 8; /* -16 to 15 */
  case TD_Q5_1:
  case TD_Q5_K: return 4; /* 0 to 31 */
  case TD_Q6_K: return 4; /* -32 to 31 */
  default: return 1;
  }
}

/* Tokens of a tile: as many as keep their sums, and their 16-bit sums, in registers. Q8_0 has no 16-bit sums
 * to keep. */
TD_INLINE int tile_tokens(td_dtype t) { return quads_at_once(t) == 1 ? 4 : 2; }

TD_INLINE vi dots16(td_dtype t, vi w, vi x)
{
  if (t == TD_Q8_0) /* |w| times x with the sign of w */
    return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
  return _mm256_maddubs_epi16(w, x);
}

/* Adds the products of quad j of n to a 16-bit part, and the part to the 32-bit sum before it could overflow.
 * If weights are stored above their value, the first part starts from the sum's beginning. */
TD_INLINE void add_quad(td_dtype t, int j, int n, vi *part, vi *sum, vi w, vi x)
{
  int at_once = quads_at_once(t) < n ? quads_at_once(t) : n;
  vi here = dots16(t, w, x);
  if (j % at_once || lanes_zero_shift(t)) {
    here = _mm256_add_epi16(j ? *part : *sum, here);
    __asm__("" : "+x"(here)); /* else GCC makes a tree of the chain, which does not fit the registers */
  }
  *part = here;
  if ((j + 1) % at_once)
    return;
  here = _mm256_madd_epi16(here, _mm256_set1_epi16(1));
  if (j >= at_once) {
    here = _mm256_add_epi32(*sum, here);
    __asm__("" : "+x"(here)); /* likewise */
  }
  *sum = here;
}

#endif
