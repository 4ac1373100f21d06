/* Getters of GGUF metadata. Entries are sorted by key, so a getter is a binary search and a conversion. */
#include <string.h>

#include "models/weights/gguf.h"
#include "models/weights/internal.h"

static const td_gguf_entry *find(const td_model_files *files, const char *key)
{
  uint32_t low = 0, high = files->n_entries;
  while (low < high) {
    uint32_t mid = low + (high - low) / 2;
    const td_gguf_entry *e = &files->entries[mid];
    int order = td_gguf_compare_keys(key, strlen(key), e->key, e->key_bytes);
    if (order == 0)
      return e;
    if (order < 0)
      high = mid;
    else
      low = mid + 1;
  }
  return NULL;
}

static bool is_integer(uint32_t type)
{
  return td_gguf_scalar_bytes(type) > 0 && type != TD_GGUF_BOOL && type != TD_GGUF_F32 && type != TD_GGUF_F64;
}

/* Reads a value of any integer type, as sign and magnitude, which cover both u64 and i64. */
static bool read_integer(uint32_t type, const unsigned char *p, bool *negative, uint64_t *magnitude)
{
  uint64_t bits = 0;
  if (!is_integer(type))
    return false;
  size_t n = td_gguf_scalar_bytes(type);
  bool is_signed = type == TD_GGUF_I8 || type == TD_GGUF_I16 || type == TD_GGUF_I32 || type == TD_GGUF_I64;
  memcpy(&bits, p, n);
  *negative = is_signed && (p[n - 1] & 0x80);
  if (*negative && n < 8)
    bits |= ~(uint64_t)0 << 8 * n;
  *magnitude = *negative ? 0 - bits : bits;
  return true;
}

static bool read_number(uint32_t type, const unsigned char *p, double *out)
{
  bool negative;
  uint64_t magnitude;
  float single;
  if (read_integer(type, p, &negative, &magnitude)) {
    *out = negative ? -(double)magnitude : (double)magnitude;
    return true;
  }
  if (type == TD_GGUF_F32) {
    memcpy(&single, p, 4);
    *out = (double)single;
    return true;
  }
  if (type != TD_GGUF_F64)
    return false;
  memcpy(out, p, 8);
  return true;
}

bool td_gguf_get_u64(const td_model_files *files, const char *key, uint64_t *out)
{
  const td_gguf_entry *e = find(files, key);
  bool negative;
  uint64_t v;
  if (!e || !read_integer(e->type, e->value, &negative, &v) || negative)
    return false;
  *out = v;
  return true;
}

bool td_gguf_get_f64(const td_model_files *files, const char *key, double *out)
{
  const td_gguf_entry *e = find(files, key);
  return e && read_number(e->type, e->value, out);
}

bool td_gguf_get_bool(const td_model_files *files, const char *key, bool *out)
{
  const td_gguf_entry *e = find(files, key);
  if (!e || e->type != TD_GGUF_BOOL)
    return false;
  *out = e->value[0] != 0;
  return true;
}

bool td_gguf_get_string(const td_model_files *files, const char *key, td_gguf_string *out)
{
  const td_gguf_entry *e = find(files, key);
  if (!e || e->type != TD_GGUF_STRING)
    return false;
  *out = (td_gguf_string){(const char *)e->value, e->count};
  return true;
}

bool td_gguf_get_array_count(const td_model_files *files, const char *key, uint64_t *count)
{
  const td_gguf_entry *e = find(files, key);
  if (!e || e->type != TD_GGUF_ARRAY)
    return false;
  *count = e->count;
  return true;
}

bool td_gguf_get_array_f64(const td_model_files *files, const char *key, uint64_t i, double *out)
{
  const td_gguf_entry *e = find(files, key);
  if (!e || e->type != TD_GGUF_ARRAY || i >= e->count)
    return false;
  return read_number(e->array_type, e->value + i * td_gguf_scalar_bytes(e->array_type), out);
}

bool td_gguf_string_array(const td_model_files *files, const char *key, td_gguf_string_iter *it)
{
  const td_gguf_entry *e = find(files, key);
  if (!e || e->type != TD_GGUF_ARRAY || e->array_type != TD_GGUF_STRING)
    return false;
  *it = (td_gguf_string_iter){e->value, e->value + e->value_bytes, e->count};
  return true;
}

bool td_gguf_string_next(td_gguf_string_iter *it, td_gguf_string *out)
{
  uint64_t n;
  if (it->left == 0 || it->end - it->at < 8)
    return false;
  memcpy(&n, it->at, 8);
  if (n > (uint64_t)(it->end - it->at) - 8)
    return false;
  *out = (td_gguf_string){(const char *)it->at + 8, n};
  it->at += 8 + n;
  it->left--;
  return true;
}
