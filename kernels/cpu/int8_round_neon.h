/* Rounds activations for int8 linears, in NEON registers. */
#ifndef TD_KERNELS_CPU_INT8_ROUND_NEON_H
#define TD_KERNELS_CPU_INT8_ROUND_NEON_H

#include <arm_neon.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/int8.h"
#include "kernels/cpu/int8_formats.h"

/* See round_strip of int8_scalar.c. */
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
  out->minus_high.one = -vaddvq_s16(vaddq_s16(q[2], q[3]));
  out->minus_sum.one = out->minus_high.one - vaddvq_s16(vaddq_s16(q[0], q[1]));
  out->d = largest / 127;
  out->d_sum = out->d * (float)-out->minus_sum.one;
}

#endif
