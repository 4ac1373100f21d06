/* Unpacks one strip of LANES packed rows for int8 linears, in the registers of int8_lanes*.h.
 *
 * Lanes are rows: a vector holds four consecutive columns of each row. So four activations are multiplied
 * with all rows together, and no sum runs across lanes. q[j] holds columns 4j .. 4j + 3. */
#ifndef TD_KERNELS_CPU_INT8_UNPACK_H
#define TD_KERNELS_CPU_INT8_UNPACK_H

enum { UNIT_BYTES = LANES * 4 };

/* Weight (row, k) of a strip is q * scale[k / 16] + min. Only Q6_K has scale[1]. */
typedef struct strip_rows {
  vi q[QUADS]; /* bytes, above their value by 1 << lanes_zero_shift */
  vr scale[2], min;
} strip_rows;

/* A group of packed rows. */
typedef struct group_rows {
  const uint8_t *units, *scales;
} group_rows;

/* The f16 in the high half of each lane. */
TD_INLINE vr high_f16(vi v) { return low_f16(vi_srl32(v, 16)); }

TD_INLINE vi low_nibbles(vi v) { return vi_and(v, vi_set8(15)); }

/* Adds bit j of each byte to q as 16. */
TD_INLINE vi or_fifth(vi q, vi bits, int j)
{
  return vi_or_and(q, j < 4 ? vi_sll16(bits, 4 - j) : vi_srl16(bits, j - 4), vi_set8(16));
}

TD_INLINE void unpack_block32(td_dtype t, const group_rows *g, uint32_t s, strip_rows *w)
{
  const uint8_t *u = g->units + (size_t)s * block_units(t) * UNIT_BYTES;
  if (has_min(t)) {
    vi both = vi_load(u);
    w->scale[0] = low_f16(both);
    w->min = high_f16(both);
    u += UNIT_BYTES;
  } else {
    w->scale[0] = vr_load_f16(g->scales + (size_t)s * LANES * 2);
  }
  if (t == TD_Q8_0) {
    TD_UNROLL
    for (int j = 0; j < QUADS; j++)
      w->q[j] = from_signed(vi_load(u + j * UNIT_BYTES));
    return;
  }
  vi bits = vi_load(u);
  if (has_fifth(t))
    u += UNIT_BYTES;
  TD_UNROLL
  for (int j = 0; j < 4; j++) {
    vi both = vi_load(u + j * UNIT_BYTES);
    w->q[j] = low_nibbles(both);
    w->q[j + 4] = low_nibbles(vi_srl16(both, 4));
  }
  TD_UNROLL
  for (int j = 0; j < QUADS; j++)
    w->q[j] = has_fifth(t) ? or_fifth(w->q[j], bits, j) : w->q[j];
}

/* Scale and minimum j from the 12 packed bytes, for all rows: see dtype.c. */
TD_INLINE void k_scales(const uint8_t *packed, int j, vi *scale, vi *min)
{
  vi low6 = vi_set(63), low4 = vi_set(15), high2 = vi_set(0x30);
  vi a = vi_srl32(vi_load(packed), j % 4 * 8), b = vi_srl32(vi_load(packed + UNIT_BYTES), j % 4 * 8);
  if (j < 4) {
    *scale = vi_and(a, low6);
    *min = vi_and(b, low6);
    return;
  }
  vi c = vi_srl32(vi_load(packed + 2 * UNIT_BYTES), j % 4 * 8);
  *scale = vi_or_and(vi_and(c, low4), vi_srl32(a, 2), high2);
  *min = vi_or_and(vi_and(vi_srl32(c, 4), low4), vi_srl32(b, 2), high2);
}

/* Strip j of Q4_K or Q5_K: 32 low or high nibbles, and fifth bit j. */
TD_INLINE void unpack_q45k(td_dtype t, const uint8_t *u, int j, strip_rows *w)
{
  const uint8_t *high = u + 4 * UNIT_BYTES, *low = high + (t == TD_Q5_K ? QUADS * UNIT_BYTES : 0);
  vi scale, min, both = vi_load(u);
  k_scales(u + UNIT_BYTES, j, &scale, &min);
  w->scale[0] = vr_mul(low_f16(both), vr_of(scale));
  w->min = vr_neg(vr_mul(high_f16(both), vr_of(min)));
  TD_UNROLL
  for (int i = 0; i < QUADS; i++) {
    vi v = vi_load(low + (j / 2 * QUADS + i) * UNIT_BYTES);
    w->q[i] = low_nibbles(j % 2 ? vi_srl16(v, 4) : v);
    if (t == TD_Q5_K)
      w->q[i] = or_fifth(w->q[i], vi_load(high + i * UNIT_BYTES), j);
  }
}

/* Byte i, signed, of 16 that lie in four units, for all rows. */
TD_INLINE vi signed_byte(const uint8_t *packed, int i)
{
  return vi_sra32(vi_sll32(vi_load(packed + i / 4 * UNIT_BYTES), 24 - i % 4 * 8), 24);
}

/* Strip j of Q6_K, in half j / 4: nibbles, bit pair j % 4, two scales. */
TD_INLINE void unpack_q6k(const uint8_t *u, const uint8_t *d, int j, strip_rows *w)
{
  int half = j / 4, k = j % 4;
  const uint8_t *low = u + (half * 2 + k % 2) * QUADS * UNIT_BYTES;
  const uint8_t *high = u + (4 + half) * QUADS * UNIT_BYTES, *scales = u + 6 * QUADS * UNIT_BYTES;
  TD_UNROLL
  for (int i = 0; i < 2; i++)
    w->scale[i] = vr_mul(vr_load_f16(d), vr_of(signed_byte(scales, 2 * j + i)));
  TD_UNROLL
  for (int i = 0; i < QUADS; i++) {
    vi v = vi_load(low + i * UNIT_BYTES), two = vi_load(high + i * UNIT_BYTES);
    two = k < 2 ? vi_sll16(two, 4 - 2 * k) : vi_srl16(two, 2 * k - 4);
    w->q[i] = vi_or_and(low_nibbles(k < 2 ? v : vi_srl16(v, 4)), two, vi_set8(0x30));
  }
}

/* Unpacks strip j of the block whose first strip is s. */
TD_INLINE void unpack(td_dtype t, const group_rows *g, uint32_t s, int j, strip_rows *w)
{
  const uint8_t *u = g->units + (size_t)(s / block_strips(t)) * block_units(t) * UNIT_BYTES;
  if (!is_block256(t))
    unpack_block32(t, g, s, w);
  else if (t == TD_Q6_K)
    unpack_q6k(u, g->scales + (size_t)(s / 8) * LANES * 2, j, w);
  else
    unpack_q45k(t, u, j, w);
}

#endif
