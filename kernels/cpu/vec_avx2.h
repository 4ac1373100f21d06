/* Eight float lanes in one AVX2 register: the operations of vec_scalar.h, bit for bit. */
#ifndef TD_KERNELS_CPU_VEC_AVX2_H
#define TD_KERNELS_CPU_VEC_AVX2_H

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define TD_INLINE static inline __attribute__((always_inline))

typedef __m256 vf;

TD_INLINE vf vload(const float *p) { return _mm256_loadu_ps(p); }
TD_INLINE void vstore(float *p, vf a) { _mm256_storeu_ps(p, a); }

TD_INLINE __m256i lanes_below(uint32_t n)
{
  return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

TD_INLINE vf vload_n(const float *p, uint32_t n) { return _mm256_maskload_ps(p, lanes_below(n)); }
TD_INLINE void vstore_n(float *p, vf a, uint32_t n) { _mm256_maskstore_ps(p, lanes_below(n), a); }
TD_INLINE vf vload_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
TD_INLINE void vstore_f16(uint16_t *p, vf a)
{
  _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
/* Keeps a value in a register, so that the compiler does not compute or load it again for each use. */
TD_INLINE vf vkeep(vf a)
{
  __asm__("" : "+x"(a));
  return a;
}
TD_INLINE vf vset(float x) { return _mm256_set1_ps(x); }
TD_INLINE vf vadd(vf a, vf b) { return _mm256_add_ps(a, b); }
TD_INLINE vf vsub(vf a, vf b) { return _mm256_sub_ps(a, b); }
TD_INLINE vf vmul(vf a, vf b) { return _mm256_mul_ps(a, b); }
TD_INLINE vf vdiv(vf a, vf b) { return _mm256_div_ps(a, b); }
TD_INLINE vf vfma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
TD_INLINE vf vmax(vf a, vf b) { return _mm256_max_ps(a, b); }
TD_INLINE vf vmin(vf a, vf b) { return _mm256_min_ps(a, b); }
TD_INLINE vf vkeep_unless_less(vf a, vf x, vf y)
{
  return _mm256_andnot_ps(_mm256_cmp_ps(x, y, _CMP_LT_OQ), a);
}

TD_INLINE vf vpow2_of_magic(vf t)
{
  __m256i u = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(u, _mm256_set1_epi32(0x3F800000)));
}

TD_INLINE float vsum(vf a)
{
  vf h = _mm256_hadd_ps(a, a);
  h = _mm256_hadd_ps(h, h);
  return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1)));
}

TD_INLINE void vsum4(const vf a[4], float out[4])
{
  vf h = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1)));
}

TD_INLINE float vmax_lanes(vf a)
{
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

TD_INLINE bool vany_nan(vf a) { return _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)) != 0; }
TD_INLINE vf vnote_nan(vf seen, vf x) { return _mm256_blendv_ps(seen, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)); }

TD_INLINE void vstore_fixed30(uint32_t *out, vf a)
{
  _mm256_storeu_si256((__m256i *)out, _mm256_cvttps_epi32(_mm256_mul_ps(a, _mm256_set1_ps(1073741824.0f))));
}

#ifdef TD_WIDE_PAIR /* AVX-512: two weight rows side by side */
#define TD_WIDE_ROWS 2
typedef __m512 vw;
TD_INLINE vw wzero(void) { return _mm512_setzero_ps(); }
TD_INLINE vw wload(const float *p) { return _mm512_loadu_ps(p); }
TD_INLINE vw wrepeat(const float *p)
{
  return _mm512_castpd_ps(_mm512_broadcast_f64x4(_mm256_loadu_pd((const double *)p)));
}
TD_INLINE vw wfma(vw a, vw b, vw c) { return _mm512_fmadd_ps(a, b, c); }
TD_INLINE void wsplit(vw a, vf out[TD_WIDE_ROWS])
{
  out[0] = _mm512_castps512_ps256(a);
  out[1] = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1));
}

typedef __m512 v16; /* the operations of vec_two.h */
TD_INLINE v16 v16_set(float x) { return _mm512_set1_ps(x); }
TD_INLINE v16 v16_load(const float *p) { return _mm512_loadu_ps(p); }
TD_INLINE v16 v16_load_f16(const uint16_t *p)
{
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
TD_INLINE void v16_store(float *p, v16 a) { _mm512_storeu_ps(p, a); }
TD_INLINE v16 v16_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
TD_INLINE v16 v16_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
#else
#include "kernels/cpu/vec_two.h"
#include "kernels/cpu/vec_one_row.h"
#endif

#endif
