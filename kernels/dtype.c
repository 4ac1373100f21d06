/* Element types: the table, and scalar widening, which is the reference in tests of vector kernels. */
#include "kernels/dtype.h"

#include <string.h>

#include "common/checked.h"

#define TD_DTYPE_ROW(NAME, elements, bytes, ggml) {#NAME, elements, bytes},
const td_dtype_info td_dtypes[TD_DTYPE_COUNT] = {TD_DTYPES(TD_DTYPE_ROW)};

bool td_dtype_row_bytes(td_dtype t, uint64_t n, uint64_t *bytes)
{
  const td_dtype_info *d = &td_dtypes[t];
  return n % d->block_elements == 0 && td_mul_u64(n / d->block_elements, d->block_bytes, bytes);
}

static float bits_f32(uint32_t u)
{
  float f;
  memcpy(&f, &u, 4);
  return f;
}

static uint32_t f32_bits(float f)
{
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}

float td_f16_to_f32(uint16_t h)
{
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 0x1F, man = h & 0x3FF;
  if (exp == 31)
    return bits_f32(sign | 0x7F800000 | man << 13);
  if (exp == 0) { /* zero or subnormal: man * 2^-24, exact in float */
    float f = (float)man * 5.9604644775390625e-08f;
    return bits_f32(sign | f32_bits(f));
  }
  return bits_f32(sign | (exp + 112) << 23 | man << 13);
}

float td_bf16_to_f32(uint16_t h) { return bits_f32((uint32_t)h << 16); }

uint16_t td_f32_to_bf16(float f)
{
  uint32_t u = f32_bits(f);
  if ((u & 0x7FFFFFFF) > 0x7F800000)
    return (uint16_t)(u >> 16 | 0x40);
  return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

/* v / 2^n, rounded to the nearest integer, ties to even. */
static uint32_t divide_pow2(uint32_t v, uint32_t n) { return (v + (1u << (n - 1)) - 1 + (v >> n & 1)) >> n; }

uint16_t td_f32_to_f16(float f)
{
  enum { INF = 0x7C00, QUIET = 0x200, MAN_BITS = 23 - 10 };
  uint32_t u = f32_bits(f), sign = u >> 16 & 0x8000, a = u & 0x7FFFFFFF, exp = a >> 23;
  if (a > 0x7F800000) /* NaN: converted as hardware instructions do */
    return (uint16_t)(sign | INF | QUIET | (a >> MAN_BITS & 0x3FF));
  if (exp < 127 - 25) /* less than half of the least subnormal */
    return (uint16_t)sign;
  if (exp < 127 - 14) /* subnormal: units of 2^-24 */
    return (uint16_t)(sign | divide_pow2((a & 0x7FFFFF) | 0x800000, 127 - 1 - exp));
  if (exp > 127 + 15)
    return (uint16_t)(sign | INF);
  return (uint16_t)(sign | divide_pow2(a - ((127 - 15) << 23), MAN_BITS)); /* a carry may reach INF */
}

static uint16_t load_u16(const uint8_t *p)
{
  uint16_t v;
  memcpy(&v, p, 2);
  return v;
}

static uint32_t load_u32(const uint8_t *p)
{
  uint32_t v;
  memcpy(&v, p, 4);
  return v;
}

static float load_f16(const uint8_t *p) { return td_f16_to_f32(load_u16(p)); }

/* The formats with blocks of 32 elements. Some have a fifth bit, some a minimum. */
static void widen_block32(td_dtype t, const uint8_t *p, float *y)
{
  float d = load_f16(p);
  if (t == TD_Q8_0) {
    for (int i = 0; i < 32; i++)
      y[i] = (float)(int8_t)p[2 + i] * d;
    return;
  }
  bool has_min = t == TD_Q4_1 || t == TD_Q5_1, five = t == TD_Q5_0 || t == TD_Q5_1;
  const uint8_t *q = p + (has_min ? 4 : 2) + (five ? 4 : 0);
  uint32_t high = five ? load_u32(q - 4) : 0;
  float m = has_min ? load_f16(p + 2) : 0;
  int zero = has_min ? 0 : five ? 16 : 8;
  for (int i = 0; i < 32; i++) {
    int v = (i < 16 ? q[i] & 15 : q[i - 16] >> 4) | (int)(high >> i & 1) << 4;
    y[i] = has_min ? (float)v * d + m : (float)(v - zero) * d;
  }
}

/* Scale and minimum of sub-block j (0..7) from the 12 packed bytes of Q4_K and Q5_K. */
static void k_scale_min(int j, const uint8_t *s, int *scale, int *min)
{
  if (j < 4) {
    *scale = s[j] & 63;
    *min = s[j + 4] & 63;
  } else {
    *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    *min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
  }
}

static void widen_q45k(td_dtype t, const uint8_t *p, float *y)
{
  float d = load_f16(p), dmin = load_f16(p + 2);
  const uint8_t *qh = p + 16, *q = p + (t == TD_Q5_K ? 48 : 16);
  for (int j = 0; j < 8; j++) { /* 32 elements: low (j even) or high nibbles */
    int sc, mn;
    k_scale_min(j, p + 4, &sc, &mn);
    float scale = d * (float)sc, min = dmin * (float)mn;
    for (int i = 0; i < 32; i++) {
      int byte = q[j / 2 * 32 + i], v = j % 2 ? byte >> 4 : byte & 15;
      if (t == TD_Q5_K)
        v |= (qh[i] >> j & 1) << 4;
      y[j * 32 + i] = scale * (float)v - min;
    }
  }
}

static void widen_q6k(const uint8_t *p, float *y)
{
  float d = load_f16(p + 208);
  const int8_t *scales = (const int8_t *)p + 192;
  for (int half = 0; half < 2; half++)
    for (int k = 0; k < 4; k++) /* 32 elements: nibbles of 32 bytes, and bit pair k of qh */
      for (int i = 0; i < 32; i++) {
        int low = p[half * 64 + k % 2 * 32 + i], high = p[128 + half * 32 + i] >> 2 * k & 3;
        int v = ((k < 2 ? low & 15 : low >> 4) | high << 4) - 32;
        y[half * 128 + k * 32 + i] = d * (float)scales[half * 8 + k * 2 + i / 16] * (float)v;
      }
}

void td_dtype_to_f32(td_dtype t, const void *src, uint64_t n, float *dst)
{
  const uint8_t *p = src;
  const td_dtype_info *d = &td_dtypes[t];
  switch (t) {
  case TD_F32: memcpy(dst, src, n * 4); return;
  case TD_F16:
    for (uint64_t i = 0; i < n; i++)
      dst[i] = load_f16(p + 2 * i);
    return;
  case TD_BF16:
    for (uint64_t i = 0; i < n; i++)
      dst[i] = td_bf16_to_f32(load_u16(p + 2 * i));
    return;
  default: break;
  }
  for (uint64_t i = 0; i < n; i += d->block_elements, p += d->block_bytes)
    if (t == TD_Q4_K || t == TD_Q5_K)
      widen_q45k(t, p, dst + i);
    else if (t == TD_Q6_K)
      widen_q6k(p, dst + i);
    else
      widen_block32(t, p, dst + i);
}
