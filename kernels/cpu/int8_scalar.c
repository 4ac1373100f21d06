/* Int8 linears in portable C: the reference for the vector versions, and the loops for machines without
 * one. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/int8.h"

/* 32 weights: w[k] = q[k] * scale[k / 16] + min. */
typedef struct strip {
  int8_t q[32];
  float scale[2], min;
} strip;

static float load_f16(const uint8_t *p)
{
  uint16_t h;
  memcpy(&h, p, 2);
  return td_f16_to_f32(h);
}

static void unpack_block32(td_dtype t, const uint8_t *p, strip *w)
{
  bool has_min = t == TD_Q4_1 || t == TD_Q5_1, five = t == TD_Q5_0 || t == TD_Q5_1;
  const uint8_t *q = p + (has_min ? 4 : 2) + (five ? 4 : 0);
  int zero = has_min ? 0 : five ? 16 : 8;
  uint32_t high = 0;
  w->scale[0] = w->scale[1] = load_f16(p);
  w->min = has_min ? load_f16(p + 2) : 0;
  if (t == TD_Q8_0) {
    memcpy(w->q, p + 2, 32);
    return;
  }
  if (five)
    memcpy(&high, q - 4, 4);
  for (int i = 0; i < 32; i++) {
    int v = (i < 16 ? q[i] & 15 : q[i - 16] >> 4) | (int)(high >> i & 1) << 4;
    w->q[i] = (int8_t)(v - zero);
  }
}

/* Strip j of a Q4_K or Q5_K block. */
static void unpack_q45k(td_dtype t, const uint8_t *p, uint32_t j, strip *w)
{
  const uint8_t *s = p + 4, *q = p + (t == TD_Q5_K ? 48 : 16) + j / 2 * 32;
  int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
  int min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
  w->scale[0] = w->scale[1] = load_f16(p) * (float)scale;
  w->min = -(load_f16(p + 2) * (float)min);
  for (int i = 0; i < 32; i++) {
    int v = j % 2 ? q[i] >> 4 : q[i] & 15;
    w->q[i] = (int8_t)(t == TD_Q5_K ? v | (p[16 + i] >> j & 1) << 4 : v);
  }
}

/* Strip j of a Q6_K block. */
static void unpack_q6k(const uint8_t *p, uint32_t j, strip *w)
{
  uint32_t half = j / 4, k = j % 4;
  const uint8_t *low = p + half * 64 + k % 2 * 32, *high = p + 128 + half * 32;
  const int8_t *scales = (const int8_t *)p + 192 + half * 8 + k * 2;
  for (int i = 0; i < 2; i++)
    w->scale[i] = load_f16(p + 208) * (float)scales[i];
  w->min = 0;
  for (int i = 0; i < 32; i++)
    w->q[i] = (int8_t)(((k < 2 ? low[i] & 15 : low[i] >> 4) | (high[i] >> 2 * k & 3) << 4) - 32);
}

static void unpack(td_dtype t, const uint8_t *row, uint32_t s, strip *w)
{
  uint32_t bytes = td_dtypes[t].block_bytes;
  if (t == TD_Q6_K)
    unpack_q6k(row + (size_t)(s / 8) * bytes, s % 8, w);
  else if (t == TD_Q4_K || t == TD_Q5_K)
    unpack_q45k(t, row + (size_t)(s / 8) * bytes, s % 8, w);
  else
    unpack_block32(t, row + (size_t)s * bytes, w);
}

static int32_t dot16(const int8_t *a, const int8_t *b)
{
  int32_t sum = 0;
  for (int i = 0; i < 16; i++)
    sum += (int32_t)a[i] * b[i];
  return sum;
}

/* The sequence of README.md: one multiply-add for each scale of a strip, then one for its minimum. */
static float add_strip(td_dtype t, const strip *w, const td_int8_strip *x, float acc)
{
  int32_t low = dot16(w->q, x->q), high = dot16(w->q + 16, x->q + 16);
  if (t == TD_Q6_K) {
    acc = fmaf((float)low, w->scale[0] * x->d, acc);
    return fmaf((float)high, w->scale[1] * x->d, acc);
  }
  acc = fmaf((float)(low + high), w->scale[0] * x->d, acc);
  bool has_min = t == TD_Q4_1 || t == TD_Q5_1 || t == TD_Q4_K || t == TD_Q5_K;
  return has_min ? fmaf(w->min, x->d_sum, acc) : acc;
}

enum { TOKENS = TD_INT8_DIRECT_TOKENS };

static void some_tokens(const td_int8_linear *p, uint32_t row, uint32_t first, uint32_t n)
{
  const uint8_t *weights = p->weight + (size_t)row * p->row_bytes;
  float acc[TOKENS] = {0};
  for (uint32_t s = 0; s < p->n_strips; s++) {
    strip w;
    unpack(p->dtype, weights, s, &w);
    for (uint32_t i = 0; i < n; i++)
      acc[i] = add_strip(p->dtype, &w, p->x + (size_t)(first + i) * p->n_strips + s, acc[i]);
  }
  for (uint32_t i = 0; i < n; i++) {
    float *out = p->out + (size_t)(first + i) * p->out_stride + row, sum = acc[i];
    if (p->bias)
      sum += p->bias[row];
    *out = p->add ? *out + sum : sum;
  }
}

static void linear(const td_int8_linear *p)
{
  for (uint32_t row = p->row_begin; row < p->row_end; row++)
    for (uint32_t t = 0; t < p->n_tokens; t += TOKENS)
      some_tokens(p, row, t, p->n_tokens - t < TOKENS ? p->n_tokens - t : TOKENS);
}

static void round_strip(const float *x, td_int8_strip *out)
{
  uint32_t most = 0;
  float largest;
  for (int i = 0; i < 32; i++) { /* as integers: NaN is above infinity, and both above all numbers */
    uint32_t u;
    memcpy(&u, &x[i], 4);
    u &= 0x7FFFFFFF;
    most = u > most ? u : most;
  }
  memcpy(&largest, &most, 4);
  memset(out, 0, sizeof *out);
  if (most >= 0x7F800000)
    out->d = out->d_sum = NAN;
  if (most >= 0x7F800000 || largest < TD_INT8_LEAST)
    return;
  float inverse = 127 / largest;
  out->d = largest / 127;
  for (int i = 0; i < 32; i++) {
    float v = x[i] * inverse + TD_INT8_MAGIC; /* rounds to an integer, ties to even */
    out->q[i] = (int8_t)(int32_t)(v - TD_INT8_MAGIC);
    out->minus_sum.one -= out->q[i];
    out->minus_high.one -= i < 16 ? 0 : out->q[i];
  }
  out->d_sum = out->d * (float)-out->minus_sum.one;
}

static void round_row(const float *x, uint32_t n_cols, td_int8_strip *out)
{
  for (uint32_t k = 0; k < n_cols; k += 32)
    round_strip(x + k, out++);
}

const td_int8 td_int8_scalar = {
    .name = "scalar",
    .tile_rows = 1,
    .panel_bytes = 0,
    .round = round_row,
    .direct = linear,
    .panel = linear,
};
