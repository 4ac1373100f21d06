/* The registers of int8_lanes16.h as pairs of AVX2's, for tests on machines without AVX-512. */
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
TD_INLINE vi vi_add(vi a, vi b)
{
  return vi_join(_mm256_add_epi32(a.v[0], b.v[0]), _mm256_add_epi32(a.v[1], b.v[1]));
}
TD_INLINE vi vi_sub_shifted(vi a, int32_t sum, int shift)
{
  __m256i b = _mm256_slli_epi32(_mm256_set1_epi32(sum), shift);
  return vi_join(_mm256_sub_epi32(a.v[0], b), _mm256_sub_epi32(a.v[1], b));
}
TD_INLINE vi quad_of(const int8_t *q)
{
  int32_t u;
  memcpy(&u, q, 4);
  return vi_join(_mm256_set1_epi32(u), _mm256_set1_epi32(u));
}

/* Unsigned times signed bytes, by way of 16 bits, where no sum of two can overflow. */
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
TD_INLINE vr vr_of(vi a) { return vr_join(_mm256_cvtepi32_ps(a.v[0]), _mm256_cvtepi32_ps(a.v[1])); }
TD_INLINE vr vr_set(float x) { return vr_join(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
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
