/* Packs rows of a weight from the file for loops whose lanes are rows: see int8_formats.h. They take as many
 * bytes as in the file, are read from end to end, and need no transposition in the loops. */
#include <string.h>

#include "kernels/cpu/int8.h"
#include "kernels/cpu/int8_formats.h"

/* Moves bit 4j + c to bit j of byte c. Then one shift brings the fifth bits of columns 4j .. 4j + 3 into
 * place. */
static uint32_t fifths_by_quad(uint32_t bits)
{
  uint32_t out = 0;
  for (int c = 0; c < 4; c++) {
    uint32_t v = bits >> c & 0x11111111;
    v = (v | v >> 3) & 0x03030303;
    v = (v | v >> 6) & 0x000F000F;
    v = (v | v >> 12) & 0xFF;
    out |= v << 8 * c;
  }
  return out;
}

size_t td_int8_group_bytes(td_dtype t, uint32_t n_strips, uint32_t lanes)
{
  return packed_group_bytes(t, n_strips, lanes);
}

void td_int8_pack(td_dtype t, const uint8_t *rows, uint64_t row_bytes, uint32_t n_rows, uint32_t n_strips,
                  uint32_t lanes, uint8_t *group)
{
  uint32_t n_blocks = n_strips / block_strips(t), units = block_units(t),
           block_bytes = td_dtypes[t].block_bytes;
  uint8_t *scales = group + packed_units_bytes(t, n_strips, lanes);
  uint32_t scale_at = t == TD_Q6_K ? 208 : 0, units_at = has_min(t) || t == TD_Q6_K ? 0 : 2;
  for (uint32_t r = 0; r < n_rows; r++)
    for (uint32_t b = 0; b < n_blocks; b++) {
      const uint8_t *block = rows + r * row_bytes + (size_t)b * block_bytes;
      uint8_t *out = group + ((size_t)b * units * lanes + r) * 4;
      if (!has_min(t))
        memcpy(scales + ((size_t)b * lanes + r) * 2, block + scale_at, 2);
      for (uint32_t u = 0; u < units; u++, out += (size_t)lanes * 4) {
        uint32_t v;
        memcpy(&v, block + units_at + 4 * u, 4);
        if (has_fifth(t) && u == has_min(t))
          v = fifths_by_quad(v);
        memcpy(out, &v, 4);
      }
    }
}
