/* Int8 lanes in NEON: eight rows in two registers, so that two chains of sums run side by side. */
#ifndef TD_KERNELS_CPU_INT8_LANES_NEON_H
#define TD_KERNELS_CPU_INT8_LANES_NEON_H

#include "kernels/cpu/int8_rows_neon.h"

enum { LANES = 8, TILE_TOKENS_MAX = 3 }; /* of 16 rows and 3 tokens all sums stay in 32 registers */
typedef struct vi {
  int32x4_t v[2];
} vi;
typedef struct vr {
  float32x4_t v[2];
} vr;
typedef struct strip_rows {
  vi q[QUADS];
  vr scale[2], min;
} strip_rows;
typedef struct block_rows {
  block4 a, b;
} block_rows;

TD_INLINE vi vi_join(int32x4_t a, int32x4_t b) { return (vi){{a, b}}; }
TD_INLINE vr vr_join(float32x4_t a, float32x4_t b) { return (vr){{a, b}}; }
TD_INLINE vi vi_zero(void) { return vi_join(vdupq_n_s32(0), vdupq_n_s32(0)); }
TD_INLINE vi vi_load(const void *p)
{
  const int32_t *at = p;
  return vi_join(vld1q_s32(at), vld1q_s32(at + 4));
}
TD_INLINE void vi_store(void *p, vi a)
{
  int32_t *at = p;
  vst1q_s32(at, a.v[0]);
  vst1q_s32(at + 4, a.v[1]);
}
TD_INLINE vi vi_add(vi a, vi b) { return vi_join(vaddq_s32(a.v[0], b.v[0]), vaddq_s32(a.v[1], b.v[1])); }
TD_INLINE vi vi_sub_shifted(vi a, int32_t sum, int shift)
{
  int32x4_t b = vdupq_n_s32(sum * (1 << shift));
  return vi_join(vsubq_s32(a.v[0], b), vsubq_s32(a.v[1], b));
}
TD_INLINE vi quad_of(const int8_t *q)
{
  int32_t u;
  memcpy(&u, q, 4);
  return vi_join(vdupq_n_s32(u), vdupq_n_s32(u));
}

/* sum + four products of each row. Weights above their value still fit signed bytes. */
TD_INLINE int32x4_t dots4(int32x4_t sum, int32x4_t w32, int32x4_t x32)
{
  int8x16_t w = vreinterpretq_s8_s32(w32), x = vreinterpretq_s8_s32(x32);
#ifdef __ARM_FEATURE_DOTPROD
  return vdotq_s32(sum, w, x);
#else
  int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x)), high = vmull_high_s8(w, x);
  return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}
TD_INLINE vi dots(vi sum, vi w, vi x)
{
  return vi_join(dots4(sum.v[0], w.v[0], x.v[0]), dots4(sum.v[1], w.v[1], x.v[1]));
}

TD_INLINE vr vr_zero(void) { return vr_join(vdupq_n_f32(0), vdupq_n_f32(0)); }
TD_INLINE vr vr_load(const float *p) { return vr_join(vld1q_f32(p), vld1q_f32(p + 4)); }
TD_INLINE void vr_store(float *p, vr a)
{
  vst1q_f32(p, a.v[0]);
  vst1q_f32(p + 4, a.v[1]);
}
TD_INLINE vr vr_of(vi a) { return vr_join(vcvtq_f32_s32(a.v[0]), vcvtq_f32_s32(a.v[1])); }
TD_INLINE vr vr_set(float x) { return vr_join(vdupq_n_f32(x), vdupq_n_f32(x)); }
TD_INLINE vr vr_add(vr a, vr b) { return vr_join(vaddq_f32(a.v[0], b.v[0]), vaddq_f32(a.v[1], b.v[1])); }
TD_INLINE vr vr_mul(vr a, vr b) { return vr_join(vmulq_f32(a.v[0], b.v[0]), vmulq_f32(a.v[1], b.v[1])); }
TD_INLINE vr vr_fma(vr a, vr b, vr c)
{
  return vr_join(vfmaq_f32(c.v[0], a.v[0], b.v[0]), vfmaq_f32(c.v[1], a.v[1], b.v[1]));
}

TD_INLINE void unpack_block(td_dtype t, const uint8_t *const rows[LANES], uint32_t s, block_rows *block)
{
  unpack_block4(t, rows, s, &block->a);
  unpack_block4(t, rows + ROWS4, s, &block->b);
}

TD_INLINE void unpack(td_dtype t, const uint8_t *const rows[LANES], uint32_t s, const block_rows *block,
                      strip_rows *w)
{
  rows4 a, b;
  unpack4(t, rows, s, &block->a, &a);
  unpack4(t, rows + ROWS4, s, &block->b, &b);
  TD_UNROLL
  for (int j = 0; j < QUADS; j++)
    w->q[j] = vi_join(vreinterpretq_s32_u8(a.q[j]), vreinterpretq_s32_u8(b.q[j]));
  w->scale[0] = vr_join(a.scale[0], b.scale[0]);
  if (t == TD_Q6_K)
    w->scale[1] = vr_join(a.scale[1], b.scale[1]);
  if (has_min(t))
    w->min = vr_join(a.min, b.min);
}

/* Weights of Q8_0 are signed. */
TD_INLINE int lanes_zero_shift(td_dtype t) { return zero_shift(t); }
TD_INLINE int quads_at_once(td_dtype t) { return QUADS; }
TD_INLINE int tile_tokens(td_dtype t) { return TILE_TOKENS_MAX; }
TD_INLINE vi dots_first(td_dtype t, vi w, vi x) { return dots(vi_zero(), w, x); }
TD_INLINE vi dots_add(td_dtype t, vi sum, vi w, vi x) { return dots(sum, w, x); }
TD_INLINE vi dots_end(vi sum) { return sum; }

#endif
