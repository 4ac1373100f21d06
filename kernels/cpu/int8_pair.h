/* The registers of int8_lanes16.h as pairs of AVX2 registers, for tests on machines without AVX-512. */
#ifndef TD_KERNELS_CPU_INT8_PAIR_H
#define TD_KERNELS_CPU_INT8_PAIR_H

typedef struct vi {
  __m256i v[2];
} vi;
typedef struct vr {
  __m256 v[2];
} vr;

TD_INLINE vi vi_join(__m256i a, __m256i b) { return (vi){{a, b}}; }
TD_INLINE vr vr_join(__m256 a, __m256 b) { return (vr){{a, b}}; }
TD_INLINE vi vi_zero(void) { return vi_join(_mm256_setzero_si256(), _mm256_setzero_si256()); }
TD_INLINE vi vi_load(const void *p)
{
  const __m256i *at = p;
  return vi_join(_mm256_load_si256(at), _mm256_load_si256(at + 1));
}
TD_INLINE void vi_store(void *p, vi a)
{
  __m256i *at = p;
  _mm256_store_si256(at, a.v[0]);
  _mm256_store_si256(at + 1, a.v[1]);
}

#define TD_PAIR_OP(NAME, OP)                                                                                 \
  TD_INLINE vi NAME(vi a, vi b) { return vi_join(OP(a.v[0], b.v[0]), OP(a.v[1], b.v[1])); }
TD_PAIR_OP(vi_sub, _mm256_sub_epi32)
TD_PAIR_OP(vi_and, _mm256_and_si256)
TD_PAIR_OP(vi_xor, _mm256_xor_si256)
#define TD_PAIR_SHIFT(NAME, OP)                                                                              \
  TD_INLINE vi NAME(vi a, int n) { return vi_join(OP(a.v[0], n), OP(a.v[1], n)); }
TD_PAIR_SHIFT(vi_sll16, _mm256_slli_epi16)
TD_PAIR_SHIFT(vi_srl16, _mm256_srli_epi16)
TD_PAIR_SHIFT(vi_sll32, _mm256_slli_epi32)
TD_PAIR_SHIFT(vi_srl32, _mm256_srli_epi32)
TD_PAIR_SHIFT(vi_sra32, _mm256_srai_epi32)
TD_INLINE vi vi_set(int32_t x) { return vi_join(_mm256_set1_epi32(x), _mm256_set1_epi32(x)); }
TD_INLINE vi vi_set8(char x) { return vi_join(_mm256_set1_epi8(x), _mm256_set1_epi8(x)); }
TD_INLINE vi vi_or_and(vi a, vi b, vi mask)
{
  b = vi_and(b, mask);
  return vi_join(_mm256_or_si256(a.v[0], b.v[0]), _mm256_or_si256(a.v[1], b.v[1]));
}

/* Multiplies unsigned by signed bytes, after widening to 16 bits: then no sum of two products can
 * overflow. */
TD_INLINE __m256i dots8(__m256i sum, __m256i w, __m256i x)
{
  __m256i low8 = _mm256_set1_epi16(255);
  __m256i even = _mm256_madd_epi16(_mm256_and_si256(w, low8), _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
  __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(x, 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
TD_INLINE vi dots(vi sum, vi w, vi x)
{
  return vi_join(dots8(sum.v[0], w.v[0], x.v[0]), dots8(sum.v[1], w.v[1], x.v[1]));
}
TD_INLINE vr vr_zero(void) { return vr_join(_mm256_setzero_ps(), _mm256_setzero_ps()); }
TD_INLINE vr vr_load(const float *p) { return vr_join(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
TD_INLINE void vr_store(float *p, vr a)
{
  _mm256_storeu_ps(p, a.v[0]);
  _mm256_storeu_ps(p + 8, a.v[1]);
}
TD_INLINE vr vr_load_f16(const uint8_t *p)
{
  const __m128i *at = (const __m128i *)p;
  return vr_join(_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at + 1)));
}
TD_INLINE __m256 low_f16_of8(__m256i v)
{
  v = _mm256_and_si256(v, _mm256_set1_epi32(0xFFFF));
  return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)));
}
TD_INLINE vr low_f16(vi v) { return vr_join(low_f16_of8(v.v[0]), low_f16_of8(v.v[1])); }
TD_INLINE vr vr_of(vi a) { return vr_join(_mm256_cvtepi32_ps(a.v[0]), _mm256_cvtepi32_ps(a.v[1])); }
TD_INLINE vr vr_set(float x) { return vr_join(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
TD_INLINE vr vr_neg(vr a)
{
  __m256 sign = _mm256_set1_ps(-0.0f);
  return vr_join(_mm256_xor_ps(a.v[0], sign), _mm256_xor_ps(a.v[1], sign));
}
TD_INLINE vr vr_add(vr a, vr b)
{
  return vr_join(_mm256_add_ps(a.v[0], b.v[0]), _mm256_add_ps(a.v[1], b.v[1]));
}
TD_INLINE vr vr_mul(vr a, vr b)
{
  return vr_join(_mm256_mul_ps(a.v[0], b.v[0]), _mm256_mul_ps(a.v[1], b.v[1]));
}
TD_INLINE vr vr_fma(vr a, vr b, vr c)
{
  return vr_join(_mm256_fmadd_ps(a.v[0], b.v[0], c.v[0]), _mm256_fmadd_ps(a.v[1], b.v[1], c.v[1]));
}

#endif
