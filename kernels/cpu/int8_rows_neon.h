/* Unpacking one strip of four weight rows for int8 products, in NEON registers, and rounding activations: as
 * int8_rows.h, with four rows in a register. */
#ifndef TD_KERNELS_CPU_INT8_ROWS_NEON_H
#define TD_KERNELS_CPU_INT8_ROWS_NEON_H

#include <arm_neon.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/int8.h"
#include "kernels/cpu/int8_formats.h"

enum { ROWS4 = 4 };

/* Weight (row, k) of a strip is q * scale[k / 16] + min; scale[1] is of Q6_K only. */
typedef struct rows4 {
  uint8x16_t q[QUADS]; /* Q8_0 signed, all others above their value by 1 << zero_shift */
  float32x4_t scale[2], min;
} rows4;

/* A block of 256 of four rows: its bytes transposed and its header, once for its eight strips. */
typedef struct block4 {
  float32x4_t d, m;
  uint8x16_t scales[4]; /* packed as in the file, four bytes of each row in a vector */
  uint8x16_t low[32], high[16];
} block4;

/* 16 bytes of each row as four vectors of four bytes of each row. */
TD_INLINE void quads16(const uint8_t *const rows[ROWS4], size_t at, uint8x16_t out[4])
{
  uint32x4_t r[ROWS4];
  TD_UNROLL
  for (int i = 0; i < ROWS4; i++)
    r[i] = vreinterpretq_u32_u8(vld1q_u8(rows[i] + at));
  uint64x2_t ab0 = vreinterpretq_u64_u32(vzip1q_u32(r[0], r[1]));
  uint64x2_t ab1 = vreinterpretq_u64_u32(vzip2q_u32(r[0], r[1]));
  uint64x2_t cd0 = vreinterpretq_u64_u32(vzip1q_u32(r[2], r[3]));
  uint64x2_t cd1 = vreinterpretq_u64_u32(vzip2q_u32(r[2], r[3]));
  out[0] = vreinterpretq_u8_u64(vzip1q_u64(ab0, cd0));
  out[1] = vreinterpretq_u8_u64(vzip2q_u64(ab0, cd0));
  out[2] = vreinterpretq_u8_u64(vzip1q_u64(ab1, cd1));
  out[3] = vreinterpretq_u8_u64(vzip2q_u64(ab1, cd1));
}

TD_INLINE uint32x4_t u32_of_rows(const uint8_t *const rows[ROWS4], size_t at)
{
  uint32_t u[ROWS4];
  TD_UNROLL
  for (int r = 0; r < ROWS4; r++)
    memcpy(&u[r], rows[r] + at, 4);
  return vld1q_u32(u);
}

/* The f16 in the low half of each lane. */
TD_INLINE float32x4_t low_f16(uint32x4_t v) { return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(v))); }

TD_INLINE float32x4_t f16_of_rows(const uint8_t *const rows[ROWS4], size_t at)
{
  uint16_t h[ROWS4];
  TD_UNROLL
  for (int r = 0; r < ROWS4; r++)
    memcpy(&h[r], rows[r] + at, 2);
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h)));
}

TD_INLINE uint8x16_t low_nibbles(uint8x16_t v) { return vandq_u8(v, vdupq_n_u8(15)); }

/* Bits 4j .. 4j + 3 of each lane, as 16 in its bytes. */
TD_INLINE uint8x16_t fifth_bits(uint32x4_t bits, int j)
{
  static const uint8_t lane[16] = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
  uint8x16_t from = vaddq_u8(vld1q_u8(lane), vdupq_n_u8((uint8_t)(j / 2)));
  uint8x16_t mask = vreinterpretq_u8_u32(vdupq_n_u32(j % 2 ? 0x80402010u : 0x08040201u));
  uint8x16_t is_set = vtstq_u8(vqtbl1q_u8(vreinterpretq_u8_u32(bits), from), mask);
  return vandq_u8(is_set, vdupq_n_u8(16));
}

TD_INLINE void unpack_block32(td_dtype t, const uint8_t *const rows[ROWS4], size_t at, rows4 *w)
{
  if (has_min(t)) {
    uint32x4_t dm = u32_of_rows(rows, at);
    w->scale[0] = low_f16(dm);
    w->min = low_f16(vshrq_n_u32(dm, 16));
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
  uint8x16_t both[4];
  quads16(rows, five ? at + 4 : at, both);
  TD_UNROLL
  for (int j = 0; j < 4; j++) {
    w->q[j] = low_nibbles(both[j]);
    w->q[j + 4] = vshrq_n_u8(both[j], 4);
  }
  if (!five)
    return;
  uint32x4_t bits = u32_of_rows(rows, at);
  TD_UNROLL
  for (int j = 0; j < QUADS; j++)
    w->q[j] = vorrq_u8(w->q[j], fifth_bits(bits, j));
}

/* The block that begins with strip s; nothing for blocks of 32, which are strips. */
TD_INLINE void unpack_block4(td_dtype t, const uint8_t *const rows[ROWS4], uint32_t s, block4 *b)
{
  size_t at = (size_t)(s / 8) * block256_bytes(t), low = at, high = at + 128;
  if (!is_block256(t))
    return;
  if (t == TD_Q6_K) {
    quads16(rows, at + 192, b->scales);
    b->d = f16_of_rows(rows, at + 208);
  } else {
    quads16(rows, at, b->scales);
    uint32x4_t dm = vreinterpretq_u32_u8(b->scales[0]);
    b->d = low_f16(dm);
    b->m = vnegq_f32(low_f16(vshrq_n_u32(dm, 16)));
    low = at + (t == TD_Q5_K ? 48 : 16);
    high = at + 16;
  }
  for (size_t i = 0; i < 8; i++)
    quads16(rows, low + 16 * i, b->low + 4 * i);
  for (size_t i = 0; i < (t == TD_Q6_K ? 4 : t == TD_Q5_K ? 2 : 0); i++)
    quads16(rows, high + 16 * i, b->high + 4 * i);
}

/* Scale and minimum j of the 12 packed bytes, of all rows: see dtype.c. */
TD_INLINE void k_scales(const uint8x16_t packed[4], uint32_t j, uint32x4_t *scale, uint32x4_t *min)
{
  uint32x4_t low6 = vdupq_n_u32(63), low4 = vdupq_n_u32(15), high2 = vdupq_n_u32(0x30);
  int32x4_t right = vdupq_n_s32(-(int)(j % 4 * 8));
  uint32x4_t a = vshlq_u32(vreinterpretq_u32_u8(packed[1]), right);
  uint32x4_t b = vshlq_u32(vreinterpretq_u32_u8(packed[2]), right);
  if (j < 4) {
    *scale = vandq_u32(a, low6);
    *min = vandq_u32(b, low6);
    return;
  }
  uint32x4_t c = vshlq_u32(vreinterpretq_u32_u8(packed[3]), right);
  *scale = vorrq_u32(vandq_u32(c, low4), vandq_u32(vshrq_n_u32(a, 2), high2));
  *min = vorrq_u32(vandq_u32(vshrq_n_u32(c, 4), low4), vandq_u32(vshrq_n_u32(b, 2), high2));
}

/* Strip j of Q4_K or Q5_K: 32 nibbles of one half, fifth bit j. */
TD_INLINE void unpack_q45k(td_dtype t, const block4 *b, uint32_t j, rows4 *w)
{
  uint32x4_t scale, min;
  uint8x16_t bit = vdupq_n_u8((uint8_t)(1 << j)), sixteen = vdupq_n_u8(16);
  int8x16_t right = vdupq_n_s8(j % 2 ? -4 : 0);
  k_scales(b->scales, j, &scale, &min);
  w->scale[0] = vmulq_f32(b->d, vcvtq_f32_u32(scale));
  w->min = vmulq_f32(b->m, vcvtq_f32_u32(min));
  TD_UNROLL
  for (uint32_t i = 0; i < QUADS; i++) {
    w->q[i] = low_nibbles(vshlq_u8(b->low[j / 2 * QUADS + i], right));
    if (t == TD_Q5_K)
      w->q[i] = vorrq_u8(w->q[i], vandq_u8(vtstq_u8(b->high[i], bit), sixteen));
  }
}

/* Byte i of 16 that lie as four in each of four vectors, signed, of all rows. */
TD_INLINE int32x4_t signed_byte(const uint8x16_t packed[4], uint32_t i)
{
  int32x4_t up = vshlq_s32(vreinterpretq_s32_u8(packed[i / 4]), vdupq_n_s32((int)(24 - i % 4 * 8)));
  return vshrq_n_s32(up, 24);
}

/* Strip j of Q6_K: half j / 4; low nibbles, bit pair j % 4, two scales. */
TD_INLINE void unpack_q6k(const block4 *b, uint32_t j, rows4 *w)
{
  uint32_t half = j / 4, k = j % 4;
  const uint8x16_t *low = b->low + (half * 2 + k % 2) * QUADS, *high = b->high + half * QUADS;
  int8x16_t low_right = vdupq_n_s8(k < 2 ? 0 : -4), high_right = vdupq_n_s8((int8_t)(-2 * (int)k));
  TD_UNROLL
  for (uint32_t i = 0; i < 2; i++)
    w->scale[i] = vmulq_f32(b->d, vcvtq_f32_s32(signed_byte(b->scales, 2 * j + i)));
  TD_UNROLL
  for (int i = 0; i < QUADS; i++) {
    uint8x16_t two = vandq_u8(vshlq_u8(high[i], high_right), vdupq_n_u8(3));
    w->q[i] = vorrq_u8(low_nibbles(vshlq_u8(low[i], low_right)), vshlq_n_u8(two, 4));
  }
}

/* Strip s of four rows, which is of block b. */
TD_INLINE void unpack4(td_dtype t, const uint8_t *const rows[ROWS4], uint32_t s, const block4 *b, rows4 *w)
{
  switch (t) {
  case TD_Q4_K:
  case TD_Q5_K: unpack_q45k(t, b, s % 8, w); return;
  case TD_Q6_K: unpack_q6k(b, s % 8, w); return;
  default: unpack_block32(t, rows, (size_t)s * block32_bytes(t), w); return;
  }
}

/* As round_strip of int8_scalar.c. */
TD_INLINE void round_strip(const float *x, td_int8_strip *out)
{
  float32x4_t v[8];
  uint32x4_t most = vdupq_n_u32(0);
  int16x8_t q[4];
  TD_UNROLL
  for (int i = 0; i < 8; i++) { /* as integers: NaN is above infinity, and both above all numbers */
    v[i] = vld1q_f32(x + 4 * i);
    most = vmaxq_u32(most, vandq_u32(vreinterpretq_u32_f32(v[i]), vdupq_n_u32(0x7FFFFFFF)));
  }
  uint32_t bits = vmaxvq_u32(most);
  float largest;
  memcpy(&largest, &bits, 4);
  if (bits >= 0x7F800000 || largest < TD_INT8_LEAST) {
    memset(out, 0, sizeof *out);
    if (bits >= 0x7F800000)
      out->d = out->d_sum = NAN;
    return;
  }
  float inverse = 127 / largest;
  TD_UNROLL
  for (int i = 0; i < 4; i++) { /* to the nearest, ties to even */
    int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(v[2 * i], inverse));
    int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(v[2 * i + 1], inverse));
    q[i] = vcombine_s16(vmovn_s32(a), vmovn_s32(b));
  }
  vst1q_s8(out->q, vcombine_s8(vmovn_s16(q[0]), vmovn_s16(q[1])));
  vst1q_s8(out->q + 16, vcombine_s8(vmovn_s16(q[2]), vmovn_s16(q[3])));
  out->sum_high = vaddvq_s16(vaddq_s16(q[2], q[3]));
  out->sum = out->sum_high + vaddvq_s16(vaddq_s16(q[0], q[1]));
  out->d = largest / 127;
  out->d_sum = out->d * (float)out->sum;
}

#endif
