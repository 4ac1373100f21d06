/* One safetensors file: 8 bytes of header length, a JSON header, then the data section
 * (hf.co/docs/safetensors). td_json_parse checks the header against the JSON limits before anything is built
 * from it. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/checked.h"
#include "models/weights/internal.h"

/* JSON values per tensor in a header: an object with three members and two arrays of numbers. The rest is for
 * free-text metadata. */
enum { HEADER_NODES_PER_TENSOR = 16 };

static td_status bad_tensor(const char *file, const char *name, const char *what, td_error *err)
{
  return td_fail(err, TD_ERR_MODEL, "%s: tensor '%.160s': %s", file, name, what);
}

/* Reads a number of the header as an integer. Doubles are exact up to 2^53, which is more than any file
 * holds. */
static bool read_count(const cJSON *item, uint64_t *out)
{
  if (!cJSON_IsNumber(item))
    return false;
  double v = item->valuedouble;
  if (!(v >= 0 && v <= 9007199254740992.0) || v != floor(v))
    return false;
  *out = (uint64_t)v;
  return true;
}

static td_status read_dtype(const cJSON *entry, td_tensor *t, td_error *err)
{
  static const td_dtype served[] = {TD_F32, TD_F16, TD_BF16};
  const cJSON *dtype = td_json_get(entry, "dtype");
  if (!cJSON_IsString(dtype))
    return bad_tensor(t->file, t->name, "no 'dtype'", err);
  for (size_t i = 0; i < sizeof served / sizeof *served; i++)
    if (strcmp(dtype->valuestring, td_dtypes[served[i]].name) == 0) {
      t->dtype = served[i];
      return TD_OK;
    }
  return td_fail(err, TD_ERR_UNSUPPORTED, "%s: tensor '%.160s' has dtype %.40s; F32, F16 and BF16 are served",
                 t->file, t->name, dtype->valuestring);
}

static td_status read_shape(const cJSON *entry, td_tensor *t, td_error *err)
{
  const cJSON *shape = td_json_get(entry, "shape"), *dim;
  if (!cJSON_IsArray(shape))
    return bad_tensor(t->file, t->name, "no 'shape'", err);
  cJSON_ArrayForEach(dim, shape)
  {
    if (t->n_dims == TD_TENSOR_DIMS_MAX)
      return td_fail(err, TD_ERR_MODEL, "%s: tensor '%.160s': more than %d dimensions", t->file, t->name,
                     TD_TENSOR_DIMS_MAX);
    if (!read_count(dim, &t->shape[t->n_dims++]))
      return bad_tensor(t->file, t->name, "'shape' must hold integers from 0 to 2^53", err);
  }
  if (!td_tensor_size(t))
    return bad_tensor(t->file, t->name, "the size of its shape is past 2^64", err);
  return TD_OK;
}

static td_status read_tensor(const cJSON *entry, td_tensor *t, const unsigned char *section,
                             uint64_t section_bytes, td_error *err)
{
  char text[TD_SHAPE_TEXT_BYTES];
  uint64_t begin, end;
  const cJSON *offsets = td_json_get(entry, "data_offsets");
  TD_TRY(read_dtype(entry, t, err));
  TD_TRY(read_shape(entry, t, err));
  if (cJSON_GetArraySize(offsets) != 2 || !read_count(offsets->child, &begin) ||
      !read_count(offsets->child->next, &end) || begin > end)
    return bad_tensor(t->file, t->name, "'data_offsets' must be two ascending integers", err);
  if (end - begin != t->bytes)
    return td_fail(err, TD_ERR_MODEL,
                   "%s: tensor '%.160s': shape %s in %s is %" PRIu64
                   " bytes, but 'data_offsets' span %" PRIu64,
                   t->file, t->name, td_tensor_shape_text(t->shape, t->n_dims, text),
                   td_dtypes[t->dtype].name, t->bytes, end - begin);
  return td_tensor_place(t, section, section_bytes, begin, err);
}

static td_status read_header(td_model_files *files, const cJSON *header, const td_mapping *map,
                             uint64_t header_bytes, const char *file, td_error *err)
{
  const cJSON *entry;
  if (!cJSON_IsObject(header))
    return td_fail(err, TD_ERR_MODEL, "%s: the header is not a JSON object", file);
  cJSON_ArrayForEach(entry, header)
  {
    if (strcmp(entry->string, "__metadata__") == 0)
      continue;
    td_tensor t = {.file = file};
    t.name = td_arena_strdup(&files->names, entry->string, strlen(entry->string));
    if (!t.name)
      return td_fail(err, TD_ERR_NOMEM, "no memory for tensor names");
    TD_TRY(read_tensor(entry, &t, map->data + 8 + header_bytes, map->bytes - 8 - header_bytes, err));
    TD_TRY(td_tensor_table_push(&files->tensors, &t, err));
  }
  return TD_OK;
}

td_status td_safetensors_parse(td_model_files *files, const td_mapping *map, const char *file, td_error *err)
{
  const td_json_limits limits = {td_limit_max(TD_LIMIT_MODEL_JSON_DEPTH),
                                 HEADER_NODES_PER_TENSOR * td_limit_max(TD_LIMIT_MODEL_TENSORS),
                                 TD_ERR_MODEL};
  uint64_t header_bytes, max = td_limit_max(TD_LIMIT_SAFETENSORS_HEADER_BYTES);
  cJSON *header;
  if (map->bytes < 8)
    return td_fail(err, TD_ERR_MODEL,
                   "%s: cut off in the header length: 8 bytes are needed, the file has %" PRIu64, file,
                   map->bytes);
  memcpy(&header_bytes, map->data, 8);
  if (!td_range_inside(8, header_bytes, map->bytes))
    return td_fail(err, TD_ERR_MODEL, "%s: the header says it has %" PRIu64 " bytes, the file has %" PRIu64,
                   file, header_bytes, map->bytes);
  if (header_bytes > max)
    return td_fail(err, TD_ERR_MODEL, "%s: the header has %" PRIu64 " bytes, more than %" PRIu64, file,
                   header_bytes, max);
  td_status st = td_json_parse((const char *)map->data + 8, header_bytes, &limits, &header, err);
  if (st != TD_OK)
    return err ? td_error_prefix(err, "%s: header", file) : st;
  st = read_header(files, header, map, header_bytes, file, err);
  cJSON_Delete(header);
  return st;
}
