/* The lanes of int8 linears in AVX-512 registers with VNNI: sixteen rows. Quads of products are added in 32
 * bits. */
#ifndef TD_KERNELS_CPU_INT8_LANES16_H
#define TD_KERNELS_CPU_INT8_LANES16_H

#define TD_INT8_NAME "avx512"
enum { LANES = 16, TILE_TOKENS_MAX = 6, SUMS_OF_PAIRS = 0 };
#include "kernels/cpu/int8_round_avx2.h"

#ifdef TD_INT8_PAIR /* two AVX2 registers for one, to test this layout on every machine */
#include "kernels/cpu/int8_pair.h"
#else
typedef __m512i vi;
typedef __m512 vr;
TD_INLINE vi vi_zero(void) { return _mm512_setzero_si512(); }
TD_INLINE vi vi_set(int32_t x) { return _mm512_set1_epi32(x); }
TD_INLINE vi vi_set8(char x) { return _mm512_set1_epi8(x); }
TD_INLINE vi vi_load(const void *p) { return _mm512_load_si512(p); }
TD_INLINE void vi_store(void *p, vi a) { _mm512_store_si512(p, a); }
TD_INLINE vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
TD_INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
TD_INLINE vi vi_or_and(vi a, vi b, vi mask) { return _mm512_ternarylogic_epi32(a, b, mask, 0xF8); }
TD_INLINE vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
TD_INLINE vi vi_sll16(vi a, int n) { return _mm512_slli_epi16(a, (unsigned)n); }
TD_INLINE vi vi_srl16(vi a, int n) { return _mm512_srli_epi16(a, (unsigned)n); }
TD_INLINE vi vi_sll32(vi a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
TD_INLINE vi vi_srl32(vi a, int n) { return _mm512_srli_epi32(a, (unsigned)n); }
TD_INLINE vi vi_sra32(vi a, int n) { return _mm512_srai_epi32(a, (unsigned)n); }
TD_INLINE vi dots(vi sum, vi w, vi x) { return _mm512_dpbusd_epi32(sum, w, x); }
TD_INLINE vr vr_zero(void) { return _mm512_setzero_ps(); }
TD_INLINE vr vr_load(const float *p) { return _mm512_loadu_ps(p); }
TD_INLINE void vr_store(float *p, vr a) { _mm512_storeu_ps(p, a); }
TD_INLINE vr vr_load_f16(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
TD_INLINE vr low_f16(vi v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); }
TD_INLINE vr vr_of(vi a) { return _mm512_cvtepi32_ps(a); }
TD_INLINE vr vr_set(float x) { return _mm512_set1_ps(x); }
TD_INLINE vr vr_neg(vr a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
TD_INLINE vr vr_add(vr a, vr b) { return _mm512_add_ps(a, b); }
TD_INLINE vr vr_mul(vr a, vr b) { return _mm512_mul_ps(a, b); }
TD_INLINE vr vr_fma(vr a, vr b, vr c) { return _mm512_fmadd_ps(a, b, c); }
#endif

/* Q8_0 weights become unsigned, as the instruction needs them. */
TD_INLINE int lanes_zero_shift(td_dtype t) { return t == TD_Q8_0 ? 7 : zero_shift(t); }
TD_INLINE vi from_signed(vi q) { return vi_xor(q, vi_set8(-128)); }

TD_INLINE vi sums_sub(vi a, vi b) { return vi_sub(a, b); }
TD_INLINE vi sums_sll(vi a, int n) { return vi_sll32(a, n); }
TD_INLINE int tile_tokens(td_dtype t) { return TILE_TOKENS_MAX; }
TD_INLINE void add_quad(td_dtype t, int j, int n, vi *part, vi *sum, vi w, vi x) { *sum = dots(*sum, w, x); }

#endif
