/* The lanes of int8 linears in NEON: eight rows in two registers, so that two chains of sums run side by
 * side. */
#ifndef TD_KERNELS_CPU_INT8_LANES_NEON_H
#define TD_KERNELS_CPU_INT8_LANES_NEON_H

#include "kernels/cpu/int8_round_neon.h"

enum { LANES = 8, TILE_TOKENS_MAX = 3 }; /* with 16 rows and 3 tokens, all sums stay in 32 registers */
typedef struct vi {
  int32x4_t v[2];
} vi;
typedef struct vr {
  float32x4_t v[2];
} vr;

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
TD_INLINE vi vi_set(int32_t x) { return vi_join(vdupq_n_s32(x), vdupq_n_s32(x)); }
TD_INLINE vi vi_set8(char x) { return vi_set((int32_t)((uint8_t)x * 0x01010101u)); }
TD_INLINE vi vi_sub(vi a, vi b) { return vi_join(vsubq_s32(a.v[0], b.v[0]), vsubq_s32(a.v[1], b.v[1])); }
TD_INLINE vi vi_and(vi a, vi b) { return vi_join(vandq_s32(a.v[0], b.v[0]), vandq_s32(a.v[1], b.v[1])); }
TD_INLINE vi vi_or_and(vi a, vi b, vi mask)
{
  b = vi_and(b, mask);
  return vi_join(vorrq_s32(a.v[0], b.v[0]), vorrq_s32(a.v[1], b.v[1]));
}

/* Shifts by a count in a register. A negative count shifts to the right. */
TD_INLINE int32x4_t shift16(int32x4_t a, int n)
{
  return vreinterpretq_s32_u16(vshlq_u16(vreinterpretq_u16_s32(a), vdupq_n_s16((int16_t)n)));
}
TD_INLINE int32x4_t shift32(int32x4_t a, int n)
{
  return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(n)));
}
TD_INLINE vi vi_sll16(vi a, int n) { return vi_join(shift16(a.v[0], n), shift16(a.v[1], n)); }
TD_INLINE vi vi_srl16(vi a, int n) { return vi_join(shift16(a.v[0], -n), shift16(a.v[1], -n)); }
TD_INLINE vi vi_sll32(vi a, int n) { return vi_join(shift32(a.v[0], n), shift32(a.v[1], n)); }
TD_INLINE vi vi_srl32(vi a, int n) { return vi_join(shift32(a.v[0], -n), shift32(a.v[1], -n)); }
TD_INLINE vi vi_sra32(vi a, int n)
{
  return vi_join(vshlq_s32(a.v[0], vdupq_n_s32(-n)), vshlq_s32(a.v[1], vdupq_n_s32(-n)));
}

/* sum + four products of each row. Weights stored above their value still fit signed bytes. */
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
TD_INLINE vr vr_load_f16(const uint8_t *p)
{
  uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(p));
  return vr_join(vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(h))),
                 vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(h))));
}
TD_INLINE float32x4_t low_f16_of4(int32x4_t v)
{
  return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(vreinterpretq_u32_s32(v))));
}
TD_INLINE vr low_f16(vi v) { return vr_join(low_f16_of4(v.v[0]), low_f16_of4(v.v[1])); }
TD_INLINE vr vr_of(vi a) { return vr_join(vcvtq_f32_s32(a.v[0]), vcvtq_f32_s32(a.v[1])); }
TD_INLINE vr vr_set(float x) { return vr_join(vdupq_n_f32(x), vdupq_n_f32(x)); }
TD_INLINE vr vr_neg(vr a) { return vr_join(vnegq_f32(a.v[0]), vnegq_f32(a.v[1])); }
TD_INLINE vr vr_add(vr a, vr b) { return vr_join(vaddq_f32(a.v[0], b.v[0]), vaddq_f32(a.v[1], b.v[1])); }
TD_INLINE vr vr_mul(vr a, vr b) { return vr_join(vmulq_f32(a.v[0], b.v[0]), vmulq_f32(a.v[1], b.v[1])); }
TD_INLINE vr vr_fma(vr a, vr b, vr c)
{
  return vr_join(vfmaq_f32(c.v[0], a.v[0], b.v[0]), vfmaq_f32(c.v[1], a.v[1], b.v[1]));
}

/* Weights of Q8_0 are signed. */
TD_INLINE int lanes_zero_shift(td_dtype t) { return zero_shift(t); }
TD_INLINE vi from_signed(vi q) { return q; }
TD_INLINE vi sums_sub(vi a, vi b) { return vi_sub(a, b); }
TD_INLINE vi sums_sll(vi a, int n) { return vi_sll32(a, n); }
TD_INLINE int tile_tokens(td_dtype t) { return TILE_TOKENS_MAX; }
TD_INLINE void add_quad(td_dtype t, int j, int n, vi *part, vi *sum, vi w, vi x) { *sum = dots(*sum, w, x); }

#endif
