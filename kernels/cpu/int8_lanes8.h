/* Int8 lanes in AVX2 registers: eight rows, pairs of products in 16 bits. */
#ifndef TD_KERNELS_CPU_INT8_LANES8_H
#define TD_KERNELS_CPU_INT8_LANES8_H

#include "kernels/cpu/int8_rows.h"

#define TD_INT8_NAME "avx2"
enum { LANES = 8, TILE_TOKENS_MAX = 4 };
typedef __m256i vi;
typedef __m256 vr;

typedef rows8 strip_rows;
typedef block8 block_rows;
TD_INLINE void unpack_block(td_dtype t, const uint8_t *const rows[LANES], uint32_t s, block_rows *b)
{
  unpack_block8(t, rows, s, b);
}
TD_INLINE void unpack(td_dtype t, const uint8_t *const rows[LANES], uint32_t s, const block_rows *b,
                      strip_rows *w)
{
  unpack8(t, rows, s, b, w);
}

/* Weights of Q8_0 stay signed. */
TD_INLINE int lanes_zero_shift(td_dtype t) { return zero_shift(t); }

/* Quads whose products fit 16 bits together: 2 * 127 times the largest weight. */
TD_INLINE int quads_at_once(td_dtype t)
{
  switch (t) {
  case TD_Q4_0:
  case TD_Q4_1:
  case TD_Q4_K: return 8;
  case TD_Q5_0:
  case TD_Q5_1:
  case TD_Q5_K: return 4;
  case TD_Q6_K: return 2;
  default: return 1;
  }
}

/* Tokens of a tile: their sums, and those of 16 bits, stay in registers. */
TD_INLINE int tile_tokens(td_dtype t) { return quads_at_once(t) == 8 || quads_at_once(t) == 1 ? 4 : 2; }

TD_INLINE vi vi_zero(void) { return _mm256_setzero_si256(); }
TD_INLINE vi vi_load(const void *p) { return _mm256_load_si256(p); }
TD_INLINE void vi_store(void *p, vi a) { _mm256_store_si256(p, a); }
TD_INLINE vi vi_add(vi a, vi b)
{
  a = _mm256_add_epi32(a, b);
  __asm__("" : "+x"(a)); /* as dots_add */
  return a;
}
TD_INLINE vi vi_sub_shifted(vi a, int32_t sum, int shift)
{
  return _mm256_sub_epi32(a, _mm256_slli_epi32(_mm256_set1_epi32(sum), shift));
}
TD_INLINE vi quad_of(const int8_t *q)
{
  int32_t u;
  memcpy(&u, q, 4);
  return _mm256_set1_epi32(u);
}

/* Sums of 16 bits of up to quads_at_once quads; dots_end makes 32 of them. */
TD_INLINE vi dots_first(td_dtype t, vi w, vi x)
{
  if (t == TD_Q8_0) /* |w| times x with w's sign */
    return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
  return _mm256_maddubs_epi16(w, x);
}
TD_INLINE vi dots_add(td_dtype t, vi sum, vi w, vi x)
{
  sum = _mm256_add_epi16(sum, dots_first(t, w, x));
  __asm__("" : "+x"(sum)); /* or GCC makes a tree of the chain, which does not fit the registers */
  return sum;
}
TD_INLINE vi dots_end(vi sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }

TD_INLINE vr vr_zero(void) { return _mm256_setzero_ps(); }
TD_INLINE vr vr_load(const float *p) { return _mm256_loadu_ps(p); }
TD_INLINE void vr_store(float *p, vr a) { _mm256_storeu_ps(p, a); }
TD_INLINE vr vr_of(vi a) { return _mm256_cvtepi32_ps(a); }
TD_INLINE vr vr_set(float x) { return _mm256_set1_ps(x); }
TD_INLINE vr vr_add(vr a, vr b) { return _mm256_add_ps(a, b); }
TD_INLINE vr vr_mul(vr a, vr b) { return _mm256_mul_ps(a, b); }
TD_INLINE vr vr_fma(vr a, vr b, vr c) { return _mm256_fmadd_ps(a, b, c); }

#endif
