/* Linears of quantised weights with int8 activations (option cpu_exact 0). They take a third of the
 * operations of isa.h's float linears, but round each activation to 1/127 of the largest of its strip of 32.
 *
 * The batch rule holds here too: the sums of a strip are integers, hence exact, and the float sums are one
 * fixed sequence for each output (README.md). */
#ifndef TD_KERNELS_CPU_INT8_H
#define TD_KERNELS_CPU_INT8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

/* 32 activations: x[k] is about q[k] * d. */
typedef struct td_int8_strip {
  int8_t q[32];
  float d;     /* largest |x| / 127; 0 if that |x| is too small to divide by; NaN if one is not finite */
  float d_sum; /* d times the sum of q */
  union {
    int32_t one;           /* for all tables but AVX2's */
    int16_t pair[2];       /* for AVX2's: of columns 4j and 4j + 1; of columns 4j + 2 and 4j + 3 */
  } minus_sum, minus_high; /* minus the sum of q; minus the sum of its upper 16 */
} td_int8_strip;

/* A linear's rows [row_begin, row_end) of a quantised weight, for n_tokens activations. */
typedef struct td_int8_linear {
  td_dtype dtype;
  const uint8_t *weight; /* of row 0: packed in groups of `lanes` rows, or as in the file if lanes is 0 */
  uint64_t row_bytes;    /* as in the file */
  uint32_t row_begin, row_end; /* row_begin: a multiple of lanes */
  uint32_t n_strips;
  uint32_t n_tokens;
  const td_int8_strip *x; /* [n_tokens][n_strips] */
  float *out;             /* of output feature 0, token 0 */
  uint64_t out_stride;
  const float *bias; /* [rows] or NULL */
  bool add;          /* adds to what out holds */
  void *panel;       /* panel: scratch of n_strips * panel_bytes, 64-byte aligned */
} td_int8_linear;

/* A strip whose largest |x| is below this is rounded to 0. Above it, 127 / x is finite. */
#define TD_INT8_LEAST 1e-30f
/* 1.5 * 2^23: adding it to a float rounds to an integer. */
#define TD_INT8_MAGIC 12582912.0f

enum { TD_INT8_DIRECT_TOKENS = 8 }; /* most tokens of one direct call */

typedef struct td_int8 {
  const char *name;
  uint32_t lanes;       /* rows that lie side by side (td_int8_pack); 0: weights stay as in the file */
  uint32_t tile_rows;   /* rows computed together; tasks are multiples of it */
  uint32_t panel_bytes; /* scratch of panel for each strip */
  /* Rounds one row of n_cols activations, a multiple of 32. */
  void (*round)(const float *x, uint32_t n_cols, td_int8_strip *out);
  /* For 1 to TD_INT8_DIRECT_TOKENS tokens: unpacks weights in registers and uses them for all tokens. */
  void (*direct)(const td_int8_linear *p);
  /* For any number of tokens: unpacks tile_rows rows to scratch, then uses them for all tokens. */
  void (*panel)(const td_int8_linear *p);
} td_int8;

/* The weight types served: blocks of small integers with scales. A type that is not listed is multiplied
 * exactly. To add one, list it here and extend int8_formats.h, int8_unpack.h and int8_scalar.c. */
// clang-format off
#define TD_INT8_TYPES(F) \
  F(TD_Q4_0) F(TD_Q4_1) F(TD_Q5_0) F(TD_Q5_1) F(TD_Q8_0) F(TD_Q4_K) F(TD_Q5_K) F(TD_Q6_K)
// clang-format on

static inline bool td_int8_serves(td_dtype t)
{
#define TD_INT8_CASE(T) case T:
  switch (t) {
    TD_INT8_TYPES(TD_INT8_CASE)
    return true;
  default: return false;
  }
#undef TD_INT8_CASE
}

/* Packs up to `lanes` rows, row_bytes apart, as one group of td_int8_group_bytes, 64-byte aligned. Does not
 * write the places of missing rows. */
size_t td_int8_group_bytes(td_dtype t, uint32_t n_strips, uint32_t lanes);
void td_int8_pack(td_dtype t, const uint8_t *rows, uint64_t row_bytes, uint32_t n_rows, uint32_t n_strips,
                  uint32_t lanes, uint8_t *group);

extern const td_int8 td_int8_scalar;
#ifdef TD_ISA_X86
extern const td_int8 td_int8_avx2;
#endif
#ifdef TD_ISA_AVX512
extern const td_int8 td_int8_avx512; /* needs AVX512-VNNI */
#endif
#ifdef TD_ISA_ARM64
extern const td_int8 td_int8_neon;
extern const td_int8 td_int8_dotprod; /* needs FEAT_DotProd */
bool td_has_dotprod(void);
#endif

#endif
