/* Eight float lanes in two NEON registers: the operations of vec_scalar.h, bit for bit. */
#ifndef TD_KERNELS_CPU_VEC_NEON_H
#define TD_KERNELS_CPU_VEC_NEON_H

#include <arm_neon.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define TD_INLINE static inline __attribute__((always_inline))

typedef struct vf {
  float32x4_t v[2];
} vf;

TD_INLINE vf vpair(float32x4_t low, float32x4_t high) { return (vf){{low, high}}; }

TD_INLINE vf vload(const float *p) { return vpair(vld1q_f32(p), vld1q_f32(p + 4)); }
TD_INLINE void vstore(float *p, vf a)
{
  vst1q_f32(p, a.v[0]);
  vst1q_f32(p + 4, a.v[1]);
}

/* The first n < 8 lanes; the others are 0. */
TD_INLINE vf vload_n(const float *p, uint32_t n)
{
  float lanes[8] = {0};
  memcpy(lanes, p, n * sizeof *p);
  return vload(lanes);
}
TD_INLINE void vstore_n(float *p, vf a, uint32_t n)
{
  float lanes[8];
  vstore(lanes, a);
  memcpy(p, lanes, n * sizeof *p);
}

TD_INLINE vf vload_f16(const uint16_t *p)
{
  float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(p));
  return vpair(vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h));
}
TD_INLINE void vstore_f16(uint16_t *p, vf a)
{
  vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(a.v[0]), a.v[1])));
}

/* Keeps a value in registers, so that the compiler does not compute or load it again for each use. */
TD_INLINE vf vkeep(vf a)
{
  __asm__("" : "+w"(a.v[0]), "+w"(a.v[1]));
  return a;
}
TD_INLINE vf vset(float x) { return vpair(vdupq_n_f32(x), vdupq_n_f32(x)); }
TD_INLINE vf vadd(vf a, vf b) { return vpair(vaddq_f32(a.v[0], b.v[0]), vaddq_f32(a.v[1], b.v[1])); }
TD_INLINE vf vsub(vf a, vf b) { return vpair(vsubq_f32(a.v[0], b.v[0]), vsubq_f32(a.v[1], b.v[1])); }
TD_INLINE vf vmul(vf a, vf b) { return vpair(vmulq_f32(a.v[0], b.v[0]), vmulq_f32(a.v[1], b.v[1])); }
TD_INLINE vf vdiv(vf a, vf b) { return vpair(vdivq_f32(a.v[0], b.v[0]), vdivq_f32(a.v[1], b.v[1])); }
TD_INLINE vf vfma(vf a, vf b, vf c)
{
  return vpair(vfmaq_f32(c.v[0], a.v[0], b.v[0]), vfmaq_f32(c.v[1], a.v[1], b.v[1]));
}

/* b if a and b do not compare (NaN). FMAX would return the NaN. */
TD_INLINE float32x4_t max4(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
TD_INLINE float32x4_t min4(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
TD_INLINE vf vmax(vf a, vf b) { return vpair(max4(a.v[0], b.v[0]), max4(a.v[1], b.v[1])); }
TD_INLINE vf vmin(vf a, vf b) { return vpair(min4(a.v[0], b.v[0]), min4(a.v[1], b.v[1])); }

TD_INLINE vf vkeep_unless_less(vf a, vf x, vf y)
{
  vf zero = vset(0);
  return vpair(vbslq_f32(vcltq_f32(x.v[0], y.v[0]), zero.v[0], a.v[0]),
               vbslq_f32(vcltq_f32(x.v[1], y.v[1]), zero.v[1], a.v[1]));
}

TD_INLINE float32x4_t pow2_4(float32x4_t t)
{
  uint32x4_t u = vshlq_n_u32(vreinterpretq_u32_f32(t), 23);
  return vreinterpretq_f32_u32(vaddq_u32(u, vdupq_n_u32(0x3F800000)));
}
TD_INLINE vf vpow2_of_magic(vf t) { return vpair(pow2_4(t.v[0]), pow2_4(t.v[1])); }

/* Neighbours, then pairs, then halves. */
TD_INLINE float vsum(vf a)
{
  float32x4_t two = vpaddq_f32(a.v[0], a.v[1]);
  float32x2_t four = vget_low_f32(vpaddq_f32(two, two));
  return vget_lane_f32(four, 0) + vget_lane_f32(four, 1);
}

TD_INLINE void vsum4(const vf a[4], float out[4])
{
  float32x4_t b[4];
  for (int i = 0; i < 4; i++)
    b[i] = vpaddq_f32(a[i].v[0], a[i].v[1]);
  vst1q_f32(out, vpaddq_f32(vpaddq_f32(b[0], b[1]), vpaddq_f32(b[2], b[3])));
}

TD_INLINE float vmax_lanes(vf a) { return vmaxvq_f32(max4(a.v[0], a.v[1])); }

TD_INLINE bool vany_nan(vf a)
{
  uint32x4_t same = vandq_u32(vceqq_f32(a.v[0], a.v[0]), vceqq_f32(a.v[1], a.v[1]));
  return vminvq_u32(same) == 0;
}
TD_INLINE vf vnote_nan(vf seen, vf x)
{
  return vpair(vbslq_f32(vceqq_f32(x.v[0], x.v[0]), seen.v[0], x.v[0]),
               vbslq_f32(vceqq_f32(x.v[1], x.v[1]), seen.v[1], x.v[1]));
}

TD_INLINE void vstore_fixed30(uint32_t *out, vf a)
{
  for (int i = 0; i < 2; i++)
    vst1q_u32(out + 4 * i, vreinterpretq_u32_s32(vcvtq_s32_f32(vmulq_n_f32(a.v[i], 1073741824.0f))));
}

#include "kernels/cpu/vec_one_row.h"
#include "kernels/cpu/vec_two.h"

#endif
