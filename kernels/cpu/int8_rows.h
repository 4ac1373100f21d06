/* Unpacking one strip of eight weight rows for int8 products, in AVX2 registers, and rounding activations.
 *
 * Lanes are rows: a vector holds four consecutive columns of each of eight rows, so that four activations are
 * multiplied with all of them at once, and no sum runs across lanes. q[j] holds columns 4j .. 4j + 3. */
#ifndef TD_KERNELS_CPU_INT8_ROWS_H
#define TD_KERNELS_CPU_INT8_ROWS_H

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/int8.h"
#include "kernels/cpu/int8_formats.h"

enum { ROWS8 = 8 };

/* Weight (row, k) of a strip is q * scale[k / 16] + min; scale[1] is of Q6_K only. */
typedef struct rows8 {
  __m256i
      q[QUADS]; /* bytes: Q8_0 signed, all others unsigned, and zero_shift below tells what they are above */
  __m256 scale[2], min;
} rows8;

/* A block of 256 of eight rows: its bytes transposed and its header, once for its eight strips. */
typedef struct block8 {
  __m256 d, m;
  __m256i scales[4]; /* packed as in the file, four bytes of each row in a vector */
  __m256i low[32], high[16];
} block8;

TD_INLINE __m256i pair(const uint8_t *a, const uint8_t *b)
{
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)a)),
                                 _mm_loadu_si128((const __m128i *)b), 1);
}

/* 16 bytes of each row as four vectors of four bytes of each row. */
TD_INLINE void quads16(const uint8_t *const rows[ROWS8], size_t at, __m256i out[4])
{
  __m256i a = pair(rows[0] + at, rows[4] + at), b = pair(rows[1] + at, rows[5] + at);
  __m256i c = pair(rows[2] + at, rows[6] + at), d = pair(rows[3] + at, rows[7] + at);
  __m256i ab0 = _mm256_unpacklo_epi32(a, b), ab1 = _mm256_unpackhi_epi32(a, b);
  __m256i cd0 = _mm256_unpacklo_epi32(c, d), cd1 = _mm256_unpackhi_epi32(c, d);
  out[0] = _mm256_unpacklo_epi64(ab0, cd0);
  out[1] = _mm256_unpackhi_epi64(ab0, cd0);
  out[2] = _mm256_unpacklo_epi64(ab1, cd1);
  out[3] = _mm256_unpackhi_epi64(ab1, cd1);
}

TD_INLINE uint32_t load_u32(const uint8_t *p)
{
  uint32_t v;
  memcpy(&v, p, 4);
  return v;
}

TD_INLINE __m256i u32_of_rows(const uint8_t *const rows[ROWS8], size_t at)
{
  int u[ROWS8];
  TD_UNROLL
  for (int r = 0; r < ROWS8; r++)
    u[r] = (int)load_u32(rows[r] + at);
  return _mm256_setr_epi32(u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7]);
}

/* The f16 in the low half of each lane. */
TD_INLINE __m256 low_f16(__m256i v)
{
  __m256i low = _mm256_and_si256(v, _mm256_set1_epi32(0xFFFF));
  return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}

TD_INLINE __m256 f16_of_rows(const uint8_t *const rows[ROWS8], size_t at)
{
  short h[ROWS8];
  TD_UNROLL
  for (int r = 0; r < ROWS8; r++)
    memcpy(&h[r], rows[r] + at, 2);
  return _mm256_cvtph_ps(_mm_setr_epi16(h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]));
}

TD_INLINE __m256i low_nibbles(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
TD_INLINE __m256i high_nibbles(__m256i v) { return low_nibbles(_mm256_srli_epi16(v, 4)); }

/* Bits 4j .. 4j + 3 of each lane, as 16 in its bytes. */
TD_INLINE __m256i fifth_bits(__m256i bits, int j)
{
  __m256i from = _mm256_set1_epi32(j / 2 * 0x01010101);
  from = _mm256_add_epi32(
      from, _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0C0C0C0C, 0, 0x04040404, 0x08080808, 0x0C0C0C0C));
  __m256i mask = _mm256_set1_epi32(j % 2 ? (int)0x80402010u : 0x08040201);
  __m256i here = _mm256_and_si256(_mm256_shuffle_epi8(bits, from), mask);
  return _mm256_and_si256(_mm256_cmpeq_epi8(here, mask), _mm256_set1_epi8(16));
}

TD_INLINE void unpack_block32(td_dtype t, const uint8_t *const rows[ROWS8], size_t at, rows8 *w)
{
  if (has_min(t)) {
    __m256i dm = u32_of_rows(rows, at);
    w->scale[0] = low_f16(dm);
    w->min = low_f16(_mm256_srli_epi32(dm, 16));
    at += 4;
  } else {
    w->scale[0] = f16_of_rows(rows, at);
    at += 2;
  }
  if (t == TD_Q8_0) {
    quads16(rows, at, w->q);
    quads16(rows, at + 16, w->q + 4);
    return;
  }
  bool five = t == TD_Q5_0 || t == TD_Q5_1;
  __m256i both[4];
  quads16(rows, five ? at + 4 : at, both);
  TD_UNROLL
  for (int j = 0; j < 4; j++) {
    w->q[j] = low_nibbles(both[j]);
    w->q[j + 4] = high_nibbles(both[j]);
  }
  if (!five)
    return;
  __m256i bits = u32_of_rows(rows, at);
  TD_UNROLL
  for (int j = 0; j < QUADS; j++)
    w->q[j] = _mm256_or_si256(w->q[j], fifth_bits(bits, j));
}

/* Scale and minimum j of the 12 packed bytes, of all rows: see dtype.c. */
TD_INLINE void k_scales(const __m256i packed[4], uint32_t j, __m256i *scale, __m256i *min)
{
  __m256i low6 = _mm256_set1_epi32(63), low4 = _mm256_set1_epi32(15), high2 = _mm256_set1_epi32(0x30);
  __m128i shift = _mm_cvtsi32_si128((int)(j % 4 * 8));
  __m256i a = _mm256_srl_epi32(packed[1], shift), b = _mm256_srl_epi32(packed[2], shift);
  if (j < 4) {
    *scale = _mm256_and_si256(a, low6);
    *min = _mm256_and_si256(b, low6);
    return;
  }
  __m256i c = _mm256_srl_epi32(packed[3], shift);
  *scale = _mm256_or_si256(_mm256_and_si256(c, low4), _mm256_and_si256(_mm256_srli_epi32(a, 2), high2));
  *min = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(c, 4), low4),
                         _mm256_and_si256(_mm256_srli_epi32(b, 2), high2));
}

/* The block that begins with strip s; nothing for blocks of 32, which are strips. */
TD_INLINE void unpack_block8(td_dtype t, const uint8_t *const rows[ROWS8], uint32_t s, block8 *b)
{
  size_t at = (size_t)(s / 8) * block256_bytes(t), low = at, high = at + 128;
  if (!is_block256(t))
    return;
  if (t == TD_Q6_K) {
    quads16(rows, at + 192, b->scales);
    b->d = f16_of_rows(rows, at + 208);
  } else {
    quads16(rows, at, b->scales);
    b->d = low_f16(b->scales[0]);
    b->m = _mm256_xor_ps(low_f16(_mm256_srli_epi32(b->scales[0], 16)), _mm256_set1_ps(-0.0f));
    low = at + (t == TD_Q5_K ? 48 : 16);
    high = at + 16;
  }
  for (size_t i = 0; i < 8; i++)
    quads16(rows, low + 16 * i, b->low + 4 * i);
  for (size_t i = 0; i < (t == TD_Q6_K ? 4 : t == TD_Q5_K ? 2 : 0); i++)
    quads16(rows, high + 16 * i, b->high + 4 * i);
}

/* Strip j of Q4_K or Q5_K: 32 nibbles of one half, fifth bit j. */
TD_INLINE void unpack_q45k(td_dtype t, const block8 *b, uint32_t j, rows8 *w)
{
  __m256i scale, min, bit = _mm256_set1_epi8((char)(1 << j));
  __m128i shift = _mm_cvtsi32_si128(j % 2 ? 4 : 0);
  k_scales(b->scales, j, &scale, &min);
  w->scale[0] = _mm256_mul_ps(b->d, _mm256_cvtepi32_ps(scale));
  w->min = _mm256_mul_ps(b->m, _mm256_cvtepi32_ps(min));
  TD_UNROLL
  for (uint32_t i = 0; i < QUADS; i++) {
    w->q[i] = low_nibbles(_mm256_srl_epi16(b->low[j / 2 * QUADS + i], shift));
    if (t == TD_Q5_K) {
      __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(b->high[i], bit), bit);
      w->q[i] = _mm256_or_si256(w->q[i], _mm256_and_si256(is_set, _mm256_set1_epi8(16)));
    }
  }
}

/* Byte i of 16 that lie as four in each of four vectors, signed, of all rows. */
TD_INLINE __m256i signed_byte(const __m256i packed[4], uint32_t i)
{
  __m256i up = _mm256_sll_epi32(packed[i / 4], _mm_cvtsi32_si128((int)(24 - i % 4 * 8)));
  return _mm256_srai_epi32(up, 24);
}

/* Strip j of Q6_K: half j / 4; low nibbles, bit pair j % 4, two scales. */
TD_INLINE void unpack_q6k(const block8 *b, uint32_t j, rows8 *w)
{
  uint32_t half = j / 4, k = j % 4;
  const __m256i *low = b->low + (half * 2 + k % 2) * QUADS, *high = b->high + half * QUADS;
  __m128i low_shift = _mm_cvtsi32_si128(k < 2 ? 0 : 4), high_shift = _mm_cvtsi32_si128((int)(2 * k));
  TD_UNROLL
  for (uint32_t i = 0; i < 2; i++)
    w->scale[i] = _mm256_mul_ps(b->d, _mm256_cvtepi32_ps(signed_byte(b->scales, 2 * j + i)));
  TD_UNROLL
  for (int i = 0; i < QUADS; i++) {
    __m256i two = _mm256_and_si256(_mm256_srl_epi16(high[i], high_shift), _mm256_set1_epi8(3));
    w->q[i] = _mm256_or_si256(low_nibbles(_mm256_srl_epi16(low[i], low_shift)), _mm256_slli_epi16(two, 4));
  }
}

/* Strip s of eight rows, which is of block b. */
TD_INLINE void unpack8(td_dtype t, const uint8_t *const rows[ROWS8], uint32_t s, const block8 *b, rows8 *w)
{
  switch (t) {
  case TD_Q4_K:
  case TD_Q5_K: unpack_q45k(t, b, s % 8, w); return;
  case TD_Q6_K: unpack_q6k(b, s % 8, w); return;
  default: unpack_block32(t, rows, (size_t)s * block32_bytes(t), w); return;
  }
}

TD_INLINE int32_t sum_lanes(__m128i v)
{
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32(v, 0xB1)));
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

/* As round_strip of int8_scalar.c. */
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
  __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7), ones = _mm256_set1_epi16(1);
  _mm256_storeu_si256((__m256i *)out->q, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order));
  __m256i sum_low = _mm256_madd_epi16(low, ones), sum_high = _mm256_madd_epi16(high, ones);
  out->sum_high =
      sum_lanes(_mm_add_epi32(_mm256_castsi256_si128(sum_high), _mm256_extracti128_si256(sum_high, 1)));
  out->sum = out->sum_high +
             sum_lanes(_mm_add_epi32(_mm256_castsi256_si128(sum_low), _mm256_extracti128_si256(sum_low, 1)));
  out->d = largest / 127;
  out->d_sum = out->d * (float)out->sum;
}

#endif
