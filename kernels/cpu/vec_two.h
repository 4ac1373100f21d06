/* Sixteen float lanes as two vectors of eight. Include it after the vec_*.h of an instruction set whose
 * registers hold eight lanes or fewer. */
#ifndef TD_KERNELS_CPU_VEC_TWO_H
#define TD_KERNELS_CPU_VEC_TWO_H

typedef struct v16 {
  vf low, high;
} v16;
TD_INLINE v16 v16_set(float x) { return (v16){vset(x), vset(x)}; }
TD_INLINE v16 v16_load(const float *p) { return (v16){vload(p), vload(p + 8)}; }
TD_INLINE v16 v16_load_f16(const uint16_t *p) { return (v16){vload_f16(p), vload_f16(p + 8)}; }
TD_INLINE void v16_store(float *p, v16 a)
{
  vstore(p, a.low);
  vstore(p + 8, a.high);
}
TD_INLINE v16 v16_mul(v16 a, v16 b) { return (v16){vmul(a.low, b.low), vmul(a.high, b.high)}; }
TD_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
  return (v16){vfma(a.low, b.low, c.low), vfma(a.high, b.high, c.high)};
}

#endif
