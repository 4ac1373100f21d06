/* Eight float lanes in portable C. This file defines every vector operation. vec_avx2.h and vec_neon.h do the
 * same with registers. All give the same bits, because each lane operation is one IEEE operation. */
#ifndef TD_KERNELS_CPU_VEC_SCALAR_H
#define TD_KERNELS_CPU_VEC_SCALAR_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/dtype.h"

/* Where only tests run the loops, there is one copy of each, and not one for each type and size. With lanes
 * unrolled first, sanitizers need not check their indices. */
#ifdef TD_ISA_REFERENCE
#define TD_INLINE static inline
#else
#define TD_INLINE static inline __attribute__((always_inline))
#endif
#if defined(TD_ISA_REFERENCE) && !defined(__clang__)
#define TD_UNROLL_LANES _Pragma("GCC unroll 8")
#else
#define TD_UNROLL_LANES
#endif

typedef struct vf {
  float v[8];
} vf;

#define TD_LANES TD_UNROLL_LANES for (int lane_ = 0; lane_ < 8; lane_++)
#define TD_MAP(expr)                                                                                         \
  vf r_;                                                                                                     \
  TD_LANES r_.v[lane_] = (expr);                                                                             \
  return r_

TD_INLINE vf vload(const float *p)
{
  vf r;
  memcpy(&r, p, sizeof r);
  return r;
}

/* The first n < 8 lanes; the others are 0. */
TD_INLINE vf vload_n(const float *p, uint32_t n)
{
  vf r = {{0}};
  memcpy(&r, p, n * sizeof *p);
  return r;
}

TD_INLINE void vstore(float *p, vf a) { memcpy(p, &a, sizeof a); }
TD_INLINE void vstore_n(float *p, vf a, uint32_t n) { memcpy(p, &a, n * sizeof *p); }
/* From f16, and to f16 (round to nearest, ties to even). */
TD_INLINE vf vload_f16(const uint16_t *p) { TD_MAP(td_f16_to_f32(p[lane_])); }
TD_INLINE void vstore_f16(uint16_t *p, vf a) { TD_LANES p[lane_] = td_f32_to_f16(a.v[lane_]); }
TD_INLINE vf vkeep(vf a) { return a; } /* see vec_avx2.h */
TD_INLINE vf vset(float x) { TD_MAP(x); }
TD_INLINE vf vadd(vf a, vf b) { TD_MAP(a.v[lane_] + b.v[lane_]); }
TD_INLINE vf vsub(vf a, vf b) { TD_MAP(a.v[lane_] - b.v[lane_]); }
TD_INLINE vf vmul(vf a, vf b) { TD_MAP(a.v[lane_] * b.v[lane_]); }
TD_INLINE vf vdiv(vf a, vf b) { TD_MAP(a.v[lane_] / b.v[lane_]); }
TD_INLINE vf vfma(vf a, vf b, vf c) { TD_MAP(fmaf(a.v[lane_], b.v[lane_], c.v[lane_])); }
/* b if a and b do not compare (NaN), as on x86. */
TD_INLINE vf vmax(vf a, vf b) { TD_MAP(a.v[lane_] > b.v[lane_] ? a.v[lane_] : b.v[lane_]); }
TD_INLINE vf vmin(vf a, vf b) { TD_MAP(a.v[lane_] < b.v[lane_] ? a.v[lane_] : b.v[lane_]); }
/* a if x >= y or one of them is NaN, otherwise 0. */
TD_INLINE vf vkeep_unless_less(vf a, vf x, vf y) { TD_MAP(x.v[lane_] < y.v[lane_] ? 0.0f : a.v[lane_]); }

/* 2^n for t = 1.5 * 2^23 + n, whose low bits hold n. */
TD_INLINE vf vpow2_of_magic(vf t)
{
  vf r;
  TD_LANES
  {
    uint32_t u;
    memcpy(&u, &t.v[lane_], 4);
    u = (u << 23) + 0x3F800000u;
    memcpy(&r.v[lane_], &u, 4);
  }
  return r;
}

/* The fixed order of a sum: neighbours, then pairs, then halves. */
TD_INLINE float vsum(vf a)
{
  return ((a.v[0] + a.v[1]) + (a.v[2] + a.v[3])) + ((a.v[4] + a.v[5]) + (a.v[6] + a.v[7]));
}

TD_INLINE void vsum4(const vf a[4], float out[4])
{
  for (int i = 0; i < 4; i++)
    out[i] = vsum(a[i]);
}

TD_INLINE float vmax_lanes(vf a)
{
  float m = a.v[0];
  for (int i = 1; i < 8; i++)
    m = a.v[i] > m ? a.v[i] : m;
  return m;
}

TD_INLINE bool vany_nan(vf a)
{
  bool any = false;
  TD_LANES any |= a.v[lane_] != a.v[lane_];
  return any;
}

/* NaN if the lane of x or of seen is NaN. */
TD_INLINE vf vnote_nan(vf seen, vf x) { TD_MAP(x.v[lane_] != x.v[lane_] ? x.v[lane_] : seen.v[lane_]); }

/* out = (uint32) floor(a * 2^30), a in [0, 1] */
TD_INLINE void vstore_fixed30(uint32_t *out, vf a)
{
  TD_LANES out[lane_] = (uint32_t)(int32_t)(a.v[lane_] * 1073741824.0f);
}

#include "kernels/cpu/vec_two.h"

/* The wide vector of the tile kernel: TD_WIDE_ROWS weight rows of eight lanes each. */
#ifdef TD_WIDE_PAIR /* two rows, as in an AVX-512 register, to test that layout on every machine */
#define TD_WIDE_ROWS 2
typedef struct vw {
  vf row[2];
} vw;
TD_INLINE vw wzero(void) { return (vw){{vset(0), vset(0)}}; }
TD_INLINE vw wload(const float *p) { return (vw){{vload(p), vload(p + 8)}}; }
TD_INLINE vw wrepeat(const float *p) { return (vw){{vload(p), vload(p)}}; }
TD_INLINE vw wfma(vw a, vw b, vw c)
{
  return (vw){{vfma(a.row[0], b.row[0], c.row[0]), vfma(a.row[1], b.row[1], c.row[1])}};
}
TD_INLINE void wsplit(vw a, vf out[TD_WIDE_ROWS]) { memcpy(out, a.row, sizeof a.row); }
#else
#include "kernels/cpu/vec_one_row.h"
#endif

#undef TD_MAP
#undef TD_LANES
#undef TD_UNROLL_LANES
#endif
