/* Parses GGUF: header, metadata, tensor list (ggml's GGUF specification, versions 2 and 3, little-endian).
 *
 * A cursor walks through the file once, and each step first checks that its bytes are there. Counts in the
 * header are only loop bounds: tables grow as entries are really found. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "models/weights/gguf.h"
#include "models/weights/internal.h"

enum { GGUF_ALIGNMENT_DEFAULT = 32 };

typedef struct cursor {
  const unsigned char *start, *at, *end;
  const char *file;
  td_error *err;
} cursor;

static td_status cut_off(const cursor *c, const char *what, uint64_t need)
{
  return td_fail(c->err, TD_ERR_MODEL,
                 "%s: cut off in %s: byte %" PRIu64 " and the %" PRIu64
                 " from there are needed, the file has %" PRIu64,
                 c->file, what, (uint64_t)(c->at - c->start), need, (uint64_t)(c->end - c->start));
}

static td_status take(cursor *c, uint64_t n, const char *what, const unsigned char **out)
{
  *out = c->at;
  if (n > (uint64_t)(c->end - c->at))
    return cut_off(c, what, n);
  c->at += n;
  return TD_OK;
}

static td_status take_u32(cursor *c, const char *what, uint32_t *out)
{
  const unsigned char *p;
  TD_TRY(take(c, 4, what, &p));
  memcpy(out, p, 4);
  return TD_OK;
}

static td_status take_u64(cursor *c, const char *what, uint64_t *out)
{
  const unsigned char *p;
  TD_TRY(take(c, 8, what, &p));
  memcpy(out, p, 8);
  return TD_OK;
}

static td_status take_string(cursor *c, const char *what, const unsigned char **out, uint64_t *n)
{
  TD_TRY(take_u64(c, what, n));
  return take(c, *n, what, out);
}

uint32_t td_gguf_scalar_bytes(uint32_t type)
{
  switch (type) {
  case TD_GGUF_U8:
  case TD_GGUF_I8:
  case TD_GGUF_BOOL: return 1;
  case TD_GGUF_U16:
  case TD_GGUF_I16: return 2;
  case TD_GGUF_U32:
  case TD_GGUF_I32:
  case TD_GGUF_F32: return 4;
  case TD_GGUF_U64:
  case TD_GGUF_I64:
  case TD_GGUF_F64: return 8;
  default: return 0;
  }
}

static td_status bad_key(const cursor *c, const td_gguf_entry *e, const char *what, uint32_t type)
{
  return td_fail(c->err, TD_ERR_MODEL, "%s: key '%.*s': %s (type %" PRIu32 ")", c->file,
                 (int)(e->key_bytes < 160 ? e->key_bytes : 160), (const char *)e->key, what, type);
}

static td_status take_array(cursor *c, td_gguf_entry *e)
{
  const unsigned char *p;
  uint64_t n, bytes;
  TD_TRY(take_u32(c, "the type of an array", &e->array_type));
  TD_TRY(take_u64(c, "the length of an array", &e->count));
  e->value = c->at;
  if (e->array_type == TD_GGUF_STRING) {
    for (uint64_t i = 0; i < e->count; i++)
      TD_TRY(take_string(c, "an array of strings", &p, &n));
    e->value_bytes = (uint64_t)(c->at - e->value);
    return TD_OK;
  }
  uint32_t size = td_gguf_scalar_bytes(e->array_type);
  if (size == 0)
    return bad_key(c, e,
                   e->array_type == TD_GGUF_ARRAY ? "an array of arrays" : "an array of an unknown type",
                   e->array_type);
  if (!td_mul_u64(e->count, size, &bytes))
    return cut_off(c, "an array", UINT64_MAX);
  e->value_bytes = bytes;
  return take(c, bytes, "an array", &p);
}

static td_status take_entry(cursor *c, td_gguf_entry *e)
{
  *e = (td_gguf_entry){0};
  TD_TRY(take_string(c, "a metadata key", &e->key, &e->key_bytes));
  TD_TRY(take_u32(c, "the type of a metadata value", &e->type));
  if (e->type == TD_GGUF_ARRAY)
    return take_array(c, e);
  if (e->type == TD_GGUF_STRING) {
    TD_TRY(take_string(c, "a metadata string", &e->value, &e->count));
    e->value_bytes = e->count;
    return TD_OK;
  }
  e->value_bytes = td_gguf_scalar_bytes(e->type);
  if (e->value_bytes == 0)
    return bad_key(c, e, "a value of an unknown type", e->type);
  return take(c, e->value_bytes, "a metadata value", &e->value);
}

int td_gguf_compare_keys(const void *a, uint64_t n_a, const void *b, uint64_t n_b)
{
  int order = memcmp(a, b, n_a < n_b ? n_a : n_b);
  return order ? order : (n_a > n_b) - (n_a < n_b);
}

static int compare_entries(const void *a, const void *b)
{
  const td_gguf_entry *x = a, *y = b;
  return td_gguf_compare_keys(x->key, x->key_bytes, y->key, y->key_bytes);
}

static td_status parse_metadata(cursor *c, uint64_t n_keys, td_model_files *files)
{
  uint32_t cap = 0;
  if (n_keys > td_limit_max(TD_LIMIT_GGUF_KEYS))
    return td_fail(c->err, TD_ERR_MODEL, "%s: %" PRIu64 " metadata keys, more than %" PRIu64, c->file, n_keys,
                   td_limit_max(TD_LIMIT_GGUF_KEYS));
  for (uint64_t i = 0; i < n_keys; i++) {
    td_gguf_entry e;
    TD_TRY(take_entry(c, &e));
    if (files->n_entries == cap) {
      cap = cap ? 2 * cap : 64;
      td_gguf_entry *entries = realloc(files->entries, cap * sizeof *entries);
      if (!entries)
        return td_fail(c->err, TD_ERR_NOMEM, "no memory for the metadata of %s", c->file);
      files->entries = entries;
    }
    files->entries[files->n_entries++] = e;
  }
  if (files->n_entries > 1)
    qsort(files->entries, files->n_entries, sizeof *files->entries, compare_entries);
  for (uint32_t i = 1; i < files->n_entries; i++)
    if (compare_entries(&files->entries[i - 1], &files->entries[i]) == 0)
      return bad_key(c, &files->entries[i], "stands twice", files->entries[i].type);
  return TD_OK;
}

/* Maps ggml's type numbers to those types that kernels/ can read; -1 for all others. */
static int dtype_of_ggml(uint32_t type)
{
#define TD_GGML_CASE(NAME, elements, bytes, ggml)                                                            \
  case ggml: return TD_##NAME;
  switch (type) {
    TD_DTYPES(TD_GGML_CASE)
  default: return -1;
  }
}

static td_status take_tensor_name(cursor *c, td_model_files *files, td_tensor *t)
{
  const unsigned char *name;
  uint64_t n;
  TD_TRY(take_string(c, "a tensor name", &name, &n));
  if (memchr(name, '\0', n) != NULL)
    return td_fail(c->err, TD_ERR_MODEL, "%s: a tensor name holds a zero byte: '%.*s'", c->file,
                   (int)(n < 160 ? n : 160), (const char *)name);
  t->name = td_arena_strdup(&files->names, (const char *)name, n);
  return t->name ? TD_OK : td_fail(c->err, TD_ERR_NOMEM, "no memory for tensor names");
}

enum { GGML_DIMS_MAX = 4 };

/* Reads one entry of the tensor list. Its data is placed later, when the end of the list is known. */
static td_status take_tensor(cursor *c, td_model_files *files, td_tensor *t, uint64_t *offset)
{
  char text[TD_SHAPE_TEXT_BYTES];
  uint64_t dims[GGML_DIMS_MAX];
  uint32_t type;
  *t = (td_tensor){.file = c->file};
  TD_TRY(take_tensor_name(c, files, t));
  TD_TRY(take_u32(c, "the number of dimensions of a tensor", &t->n_dims));
  if (t->n_dims < 1 || t->n_dims > GGML_DIMS_MAX)
    return td_fail(c->err, TD_ERR_MODEL, "%s: tensor '%.160s' has %" PRIu32 " dimensions, not 1 to %d",
                   c->file, t->name, t->n_dims, GGML_DIMS_MAX);
  for (uint32_t i = 0; i < t->n_dims; i++)
    TD_TRY(take_u64(c, "the shape of a tensor", &dims[i]));
  for (uint32_t i = 0; i < t->n_dims; i++) /* the file has them innermost first */
    t->shape[i] = dims[t->n_dims - 1 - i];
  TD_TRY(take_u32(c, "the type of a tensor", &type));
  TD_TRY(take_u64(c, "the offset of a tensor", offset));
  int dtype = dtype_of_ggml(type);
  if (dtype < 0)
    return td_fail(c->err, TD_ERR_UNSUPPORTED,
                   "%s: tensor '%.160s' has ggml type %" PRIu32 ", which is not served", c->file, t->name,
                   type);
  t->dtype = (td_dtype)dtype;
  if (!td_tensor_size(t))
    return td_fail(c->err, TD_ERR_MODEL,
                   "%s: tensor '%.160s' cannot have shape %s in type %s (blocks of %" PRIu32 ")", c->file,
                   t->name, td_tensor_shape_text(t->shape, t->n_dims, text), td_dtypes[dtype].name,
                   td_dtypes[dtype].block_elements);
  return TD_OK;
}

static td_status read_alignment(const cursor *c, const td_model_files *files, uint64_t *alignment)
{
  double any;
  *alignment = GGUF_ALIGNMENT_DEFAULT;
  if (!td_gguf_get_u64(files, "general.alignment", alignment) &&
      td_gguf_get_f64(files, "general.alignment", &any))
    *alignment = 0; /* negative or fractional */
  if (*alignment == 0 || (*alignment & (*alignment - 1)) != 0 || *alignment > UINT32_MAX)
    return td_fail(c->err, TD_ERR_MODEL,
                   "%s: key 'general.alignment' must be a power of two below 2^32, not %" PRIu64, c->file,
                   *alignment);
  return TD_OK;
}

/* Places this file's tensors: those in the table from `first` on. */
static td_status place_tensors(const cursor *c, td_model_files *files, uint32_t first,
                               const uint64_t *offsets, uint64_t alignment)
{
  uint64_t total = (uint64_t)(c->end - c->start), used = (uint64_t)(c->at - c->start);
  uint64_t start = td_div_ceil_u64(used, alignment) * alignment; /* cannot overflow: < 2^63 + 2^32 */
  td_tensor_table *table = &files->tensors;
  if (start > total) /* allowed if there is no data, as in vocabulary-only files */
    start = total;
  for (uint32_t i = first; i < table->n; i++) {
    uint64_t offset = offsets[i - first];
    if (offset % alignment != 0)
      return td_fail(c->err, TD_ERR_MODEL,
                     "%s: tensor '%.160s' lies at offset %" PRIu64
                     ", not a multiple of the alignment %" PRIu64,
                     c->file, table->items[i].name, offset, alignment);
    TD_TRY(td_tensor_place(&table->items[i], c->start + start, total - start, offset, c->err));
  }
  return TD_OK;
}

static td_status parse_tensors(cursor *c, uint64_t n_tensors, td_model_files *files)
{
  uint64_t *offsets = NULL, alignment;
  uint32_t cap = 0, first = files->tensors.n;
  td_status st = read_alignment(c, files, &alignment);
  if (st == TD_OK && n_tensors > td_limit_max(TD_LIMIT_MODEL_TENSORS))
    st = td_fail(c->err, TD_ERR_MODEL, "%s: %" PRIu64 " tensors, more than %" PRIu64, c->file, n_tensors,
                 td_limit_max(TD_LIMIT_MODEL_TENSORS));
  for (uint32_t i = 0; i < n_tensors && st == TD_OK; i++) {
    td_tensor t;
    if (i == cap) {
      cap = cap ? 2 * cap : 64;
      uint64_t *more = realloc(offsets, cap * sizeof *more);
      if (!more) {
        st = td_fail(c->err, TD_ERR_NOMEM, "no memory for the table of tensors");
        break;
      }
      offsets = more;
    }
    st = take_tensor(c, files, &t, &offsets[i]);
    if (st == TD_OK)
      st = td_tensor_table_push(&files->tensors, &t, c->err);
  }
  if (st == TD_OK)
    st = place_tensors(c, files, first, offsets, alignment);
  free(offsets);
  return st;
}

static td_status parse_header(cursor *c, uint64_t *n_tensors, uint64_t *n_keys)
{
  const unsigned char *magic;
  uint32_t version;
  TD_TRY(take(c, 4, "the header", &magic));
  if (memcmp(magic, "GGUF", 4) != 0)
    return td_fail(c->err, TD_ERR_MODEL, "%s: not a GGUF file: it starts with %02x %02x %02x %02x", c->file,
                   magic[0], magic[1], magic[2], magic[3]);
  TD_TRY(take_u32(c, "the header", &version));
  if (version != 2 && version != 3)
    return td_fail(c->err, TD_ERR_UNSUPPORTED, "%s: GGUF version %" PRIu32 "%s is not served, only 2 and 3",
                   c->file, version, version & 0xFFFF ? "" : " (a big-endian file?)");
  TD_TRY(take_u64(c, "the header", n_tensors));
  return take_u64(c, "the header", n_keys);
}

td_status td_gguf_parse(td_model_files *files, const td_mapping *map, const char *file, td_error *err)
{
  cursor c = {map->data, map->data, map->data + map->bytes, file, err};
  uint64_t n_tensors = 0, n_keys = 0;
  TD_TRY(parse_header(&c, &n_tensors, &n_keys));
  TD_TRY(parse_metadata(&c, n_keys, files));
  return parse_tensors(&c, n_tensors, files);
}
