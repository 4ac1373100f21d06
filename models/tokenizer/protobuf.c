/* Reads Protocol Buffers' wire format field by field, for SentencePiece's model files.
 *
 * A reader is a range of bytes; an embedded message is a range inside that range. Every length is checked
 * against what is left. Groups, which are obsolete, are refused. Source: protobuf.dev, "Encoding". */
#include "models/tokenizer/internal.h"

static bool read_varint(td_protobuf *r, uint64_t *out)
{
  *out = 0;
  for (unsigned shift = 0; shift < 64 && r->at < r->end; shift += 7) {
    unsigned char b = *r->at++;
    *out |= (uint64_t)(b & 0x7F) << shift;
    if (b < 0x80)
      return true;
  }
  return false;
}

/* Reads n little-endian bytes. */
static bool read_fixed(td_protobuf *r, unsigned n, uint64_t *out)
{
  *out = 0;
  if ((size_t)(r->end - r->at) < n)
    return false;
  for (unsigned i = 0; i < n; i++)
    *out |= (uint64_t)*r->at++ << 8 * i;
  return true;
}

int td_protobuf_next(td_protobuf *r, td_protobuf_field *f)
{
  uint64_t key;
  if (r->at == r->end)
    return 0;
  if (!read_varint(r, &key) || key >> 3 == 0 || key >> 3 > 536870911)
    return -1;
  *f = (td_protobuf_field){.number = (uint32_t)(key >> 3), .wire = key & 7};
  switch (f->wire) {
  case 0: return read_varint(r, &f->value) ? 1 : -1;
  case 1: return read_fixed(r, 8, &f->value) ? 1 : -1;
  case 5: return read_fixed(r, 4, &f->value) ? 1 : -1;
  case 2:
    if (!read_varint(r, &f->value) || f->value > (uint64_t)(r->end - r->at))
      return -1;
    f->bytes = r->at;
    f->n_bytes = (size_t)f->value;
    r->at += f->n_bytes;
    return 1;
  default: return -1;
  }
}
