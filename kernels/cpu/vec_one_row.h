/* The tile kernel's wide vector for registers that hold one weight row. Include it after an instruction set's
 * vec_*.h, whose names it uses. */
#ifndef TD_KERNELS_CPU_VEC_ONE_ROW_H
#define TD_KERNELS_CPU_VEC_ONE_ROW_H

#define TD_WIDE_ROWS 1
typedef vf vw;
TD_INLINE vw wzero(void) { return vset(0); }
TD_INLINE vw wload(const float *p) { return vload(p); }
TD_INLINE vw wrepeat(const float *p) { return vload(p); }
TD_INLINE vw wfma(vw a, vw b, vw c) { return vfma(a, b, c); }
TD_INLINE void wsplit(vw a, vf out[TD_WIDE_ROWS]) { out[0] = a; }

#endif
