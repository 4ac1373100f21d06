/* The inner loops of the CPU backend, compiled once per instruction set from the same source (isa_body.inc).
 * All instruction sets give the same bits (README.md lists the sequences). The backend picks one table at
 * create. */
#ifndef TD_KERNELS_CPU_ISA_H
#define TD_KERNELS_CPU_ISA_H

#include <stdint.h>

#include "config/limits.h"
#include "kernels/dtype.h"

/* A linear's rows [row_begin, row_end) of a weight, for n_tokens activations. */
typedef struct td_isa_linear {
  td_dtype dtype;
  const uint8_t *weight; /* of row 0 */
  uint64_t row_bytes;
  uint32_t row_begin, row_end;
  uint32_t n_cols; /* as stored; activations are padded with zeros to n_strips * 32 */
  uint32_t n_strips;
  uint32_t n_tokens;
  const float *x; /* direct: [n_tokens, x_stride]; panel: packed, see pack */
  uint32_t x_stride;
  float *out; /* of output feature 0, token 0 */
  uint64_t out_stride;
  const float *bias; /* [rows] or NULL */
  bool add;          /* adds to what out holds */
  float *panel;      /* panel: scratch for TD_ISA_PANEL_ROWS widened rows */
} td_isa_linear;

enum {
  TD_ISA_DIRECT_TOKENS = 8, /* most tokens of one direct call */
  TD_ISA_PANEL_ROWS = 8,    /* rows widened together */
};

enum {
  TD_KEY_LANES = 16,      /* keys that lie side by side: K is [group][dim][16] */
  TD_KV_TILE_KEYS = 64,   /* keys of one update of the running softmax */
  TD_KEY_SEGMENT = 512,   /* keys of one partial */
  TD_ATTENTION_TILE = 12, /* most queries (tokens x heads) of one call */
};

/* The running softmax of one query over one segment. */
typedef struct td_isa_softmax {
  float max;
  float sum[8]; /* in lanes that are not added up yet */
} td_isa_softmax;

/* Queries of one kv head: tokens at positions first_position .. + n_tokens - 1, each with n_heads heads. */
typedef struct td_isa_attention {
  const float *q; /* of head 0 of the tile, token 0 */
  uint64_t q_stride;
  float *out;
  uint64_t out_stride;
  uint32_t first_position, n_tokens, n_heads; /* n_tokens * n_heads <= TD_ATTENTION_TILE */
  uint32_t head_dim, padded_dim;              /* padded_dim: rounded up to a multiple of 8 */
  uint32_t window_tokens;
  float scale;
  const void *kv; /* of this layer and kv head, page 0 */
  bool f16;       /* K and V are f16; otherwise floats */
  uint64_t page_bytes;
  const int32_t *pages;
  uint32_t page_tokens;
  /* Does segments [segment_begin, segment_end). If partial_out is given, writes a partial for each segment
   * and query: partial_state[segment - segment_begin][query]. */
  uint32_t segment_begin, segment_end;
  td_isa_softmax *partial_state;
  float *partial_out; /* [segment - segment_begin][query][TD_HEAD_DIM_MAX] */
} td_isa_attention;

typedef struct td_isa {
  const char *name;
  uint32_t tile_tokens; /* tokens of a packed tile */
  /* For 1 to TD_ISA_DIRECT_TOKENS tokens: widens each weight in registers and uses it for all tokens. */
  void (*linear_direct)(const td_isa_linear *p);
  /* For any number of tokens: widens TD_ISA_PANEL_ROWS rows at a time to scratch, then a register tile runs
   * over the packed activations. */
  void (*linear_panel)(const td_isa_linear *p);
  /* Packs tile number `tile` of x: dst[strip * 4 + i][token of tile][8], with zeros for missing tokens and
   * columns. */
  void (*pack)(const float *x, uint32_t n_tokens, uint32_t n_cols, uint32_t n_strips, uint32_t tile,
               float *dst);
  void (*rmsnorm)(const float *x, const float *weight, float *out, uint32_t width, float eps);
  void (*swiglu)(const float *gate, const float *up, float *out, uint32_t width);
  /* Rotates n_pairs pairs of one head in place. neighbours 0: pairs (i, i + n_pairs); 1: pairs (2i, 2i +
   * 1). */
  void (*rotate)(float *x, const float *cos_sin, uint32_t n_pairs, uint32_t neighbours);
  void (*widen)(td_dtype t, const void *src, uint32_t n, float *dst);
  /* Converts to f16. Values that are too large become the largest finite f16; NaN stays NaN. */
  void (*to_f16)(const float *x, uint32_t n, uint16_t *out);
  void (*attention)(const td_isa_attention *p);
  /* Reduces the partials of all segments of one tile, in ascending order. */
  void (*attention_reduce)(const td_isa_attention *p);
  /* Returns the lowest id of the highest logit, and that logit. Returns -1 for a NaN, +inf or no finite
   * value. */
  int32_t (*argmax)(const float *x, uint32_t n, float *max);
  /* w[i] = floor(2^30 * exp((x[i] - max) * inv_temperature)). Returns their sum. */
  uint64_t (*weights)(const float *x, uint32_t n, float max, float inv_temperature, uint32_t *w);
  /* Returns the sum of floor(2^44 * exp(x[i] - max)): td_logprob_weight. */
  uint64_t (*exp_sum)(const float *x, uint32_t n, float max);
  void (*exp)(const float *x, uint32_t n, float *out); /* for tests */
} td_isa;

extern const td_isa td_isa_scalar;
#ifdef TD_ISA_X86
extern const td_isa td_isa_avx2;
#endif
#ifdef TD_ISA_AVX512
extern const td_isa td_isa_avx512;
#endif
#ifdef TD_ISA_ARM64
extern const td_isa td_isa_neon;
#endif

#endif
