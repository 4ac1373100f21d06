/* Element types of weights: names, block shapes and sizes, as GGUF and safetensors store them. Sources: the
 * GGUF specification (ggml's block layouts) and the safetensors format. */
#ifndef TD_KERNELS_DTYPE_H
#define TD_KERNELS_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

/* One row for each element type: name, elements and bytes of a block, type number in GGUF files. */
/* clang-format off */
#define TD_DTYPES(F) \
  F(F32,    1,   4,  0) \
  F(F16,    1,   2,  1) \
  F(BF16,   1,   2, 30) \
  F(Q4_0,  32,  18,  2) /* f16 d, 16 bytes of nibbles (low half first): (q - 8) * d */ \
  F(Q4_1,  32,  20,  3) /* f16 d, f16 m, 16 bytes of nibbles: q * d + m */ \
  F(Q5_0,  32,  22,  6) /* f16 d, 4 bytes of fifth bits, 16 bytes of nibbles: (q - 16) * d */ \
  F(Q5_1,  32,  24,  7) /* f16 d, f16 m, 4 bytes of fifth bits, 16 bytes of nibbles: q * d + m */ \
  F(Q8_0,  32,  34,  8) /* f16 d, 32 int8: q * d */ \
  F(Q4_K, 256, 144, 12) /* f16 d, f16 dmin, 12 bytes of 6-bit scales and mins, 128 bytes of nibbles */ \
  F(Q5_K, 256, 176, 13) /* as Q4_K with 32 bytes of fifth bits before the nibbles */ \
  F(Q6_K, 256, 210, 14) /* 128 bytes low nibbles, 64 bytes high pairs, 16 int8 scales, f16 d */
/* clang-format on */

typedef enum td_dtype {
#define TD_DTYPE_ENUM(NAME, elements, bytes, ggml) TD_##NAME,
  TD_DTYPES(TD_DTYPE_ENUM)
#undef TD_DTYPE_ENUM
      TD_DTYPE_COUNT
} td_dtype;

typedef struct td_dtype_info {
  const char *name;
  uint32_t block_elements;
  uint32_t block_bytes;
} td_dtype_info;

extern const td_dtype_info td_dtypes[TD_DTYPE_COUNT];

/* Bytes of one row of n elements. Returns false if n is not a multiple of the block or the size overflows. */
bool td_dtype_row_bytes(td_dtype t, uint64_t n, uint64_t *bytes);

/* Widens one row of n elements to float, exactly as the format defines it. This is the reference for every
 * kernel that reads weights. n must be a multiple of the block. */
void td_dtype_to_f32(td_dtype t, const void *src, uint64_t n, float *dst);

float td_f16_to_f32(uint16_t h);
float td_bf16_to_f32(uint16_t h);
uint16_t td_f32_to_bf16(float f); /* round to nearest, ties to even */
uint16_t td_f32_to_f16(float f);  /* likewise; values that are too large become infinite */

#endif
