/* Int8 lanes in AVX-512 registers with VNNI: sixteen rows, quads of products added in 32 bits. Rows are
 * unpacked by eights, as for AVX2. */
#ifndef TD_KERNELS_CPU_INT8_LANES16_H
#define TD_KERNELS_CPU_INT8_LANES16_H

#include "kernels/cpu/int8_rows.h"

#define TD_INT8_NAME "avx512"
enum { LANES = 16, TILE_TOKENS_MAX = 6 };

#ifdef TD_INT8_PAIR /* two AVX2 registers for one: so that this layout is tested on every machine */
#include "kernels/cpu/int8_pair.h"
#else
typedef __m512i vi;
typedef __m512 vr;
TD_INLINE vi vi_join(__m256i a, __m256i b) { return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1); }
TD_INLINE vr vr_join(__m256 a, __m256 b) { return _mm512_insertf32x8(_mm512_castps256_ps512(a), b, 1); }
TD_INLINE vi vi_zero(void) { return _mm512_setzero_si512(); }
TD_INLINE vi vi_load(const void *p) { return _mm512_load_si512(p); }
TD_INLINE void vi_store(void *p, vi a) { _mm512_store_si512(p, a); }
TD_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
TD_INLINE vi vi_sub_shifted(vi a, int32_t sum, int shift)
{
  return _mm512_sub_epi32(a, _mm512_slli_epi32(_mm512_set1_epi32(sum), (unsigned)shift));
}
TD_INLINE vi quad_of(const int8_t *q)
{
  int32_t u;
  memcpy(&u, q, 4);
  return _mm512_set1_epi32(u);
}
TD_INLINE vi dots(vi sum, vi w, vi x) { return _mm512_dpbusd_epi32(sum, w, x); }
TD_INLINE vr vr_zero(void) { return _mm512_setzero_ps(); }
TD_INLINE vr vr_load(const float *p) { return _mm512_loadu_ps(p); }
TD_INLINE void vr_store(float *p, vr a) { _mm512_storeu_ps(p, a); }
TD_INLINE vr vr_of(vi a) { return _mm512_cvtepi32_ps(a); }
TD_INLINE vr vr_set(float x) { return _mm512_set1_ps(x); }
TD_INLINE vr vr_add(vr a, vr b) { return _mm512_add_ps(a, b); }
TD_INLINE vr vr_mul(vr a, vr b) { return _mm512_mul_ps(a, b); }
TD_INLINE vr vr_fma(vr a, vr b, vr c) { return _mm512_fmadd_ps(a, b, c); }
#endif

typedef struct strip_rows {
  vi q[QUADS];
  vr scale[2], min;
} strip_rows;
typedef struct block_rows {
  block8 a, b;
} block_rows;

/* Q8_0 becomes unsigned: the instruction wants it. */
TD_INLINE int lanes_zero_shift(td_dtype t) { return t == TD_Q8_0 ? 7 : zero_shift(t); }

TD_INLINE void unpack_block(td_dtype t, const uint8_t *const rows[LANES], uint32_t s, block_rows *block)
{
  unpack_block8(t, rows, s, &block->a);
  unpack_block8(t, rows + ROWS8, s, &block->b);
}

TD_INLINE void unpack(td_dtype t, const uint8_t *const rows[LANES], uint32_t s, const block_rows *block,
                      strip_rows *w)
{
  rows8 a, b;
  unpack8(t, rows, s, &block->a, &a);
  unpack8(t, rows + ROWS8, s, &block->b, &b);
  __m256i flip = _mm256_set1_epi8(t == TD_Q8_0 ? -128 : 0);
  TD_UNROLL
  for (int j = 0; j < QUADS; j++)
    w->q[j] = vi_join(_mm256_xor_si256(a.q[j], flip), _mm256_xor_si256(b.q[j], flip));
  w->scale[0] = vr_join(a.scale[0], b.scale[0]);
  if (t == TD_Q6_K)
    w->scale[1] = vr_join(a.scale[1], b.scale[1]);
  if (has_min(t))
    w->min = vr_join(a.min, b.min);
}

TD_INLINE int quads_at_once(td_dtype t) { return QUADS; }
TD_INLINE int tile_tokens(td_dtype t) { return TILE_TOKENS_MAX; }
TD_INLINE vi dots_first(td_dtype t, vi w, vi x) { return dots(vi_zero(), w, x); }
TD_INLINE vi dots_add(td_dtype t, vi sum, vi w, vi x) { return dots(sum, w, x); }
TD_INLINE vi dots_end(vi sum) { return sum; }

#endif
