/* Tensors by name: filled in file order, then sorted once, so that a look-up is a binary search. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "models/weights/internal.h"

td_status td_tensor_table_push(td_tensor_table *t, const td_tensor *tensor, td_error *err)
{
  if (t->n >= td_limit_max(TD_LIMIT_MODEL_TENSORS))
    return td_fail(err, TD_ERR_MODEL, "%s: the model has more than %" PRIu64 " tensors", tensor->file,
                   td_limit_max(TD_LIMIT_MODEL_TENSORS));
  if (t->n == t->cap) {
    uint32_t cap = t->cap ? 2 * t->cap : 64;
    td_tensor *items = realloc(t->items, cap * sizeof *items);
    if (!items)
      return td_fail(err, TD_ERR_NOMEM, "no memory for the table of tensors");
    t->items = items;
    t->cap = cap;
  }
  t->items[t->n++] = *tensor;
  return TD_OK;
}

static int compare_names(const void *a, const void *b)
{
  return strcmp(((const td_tensor *)a)->name, ((const td_tensor *)b)->name);
}

static int compare_places(const void *a, const void *b)
{
  const td_tensor *x = *(const td_tensor *const *)a, *y = *(const td_tensor *const *)b;
  return x->data < y->data ? -1 : x->data > y->data;
}

/* Files have separate mappings, so one pass in address order finds every overlap. */
static td_status refuse_overlaps(const td_tensor_table *t, td_error *err)
{
  const td_tensor **by_place = malloc((t->n + 1) * sizeof *by_place), *last = NULL;
  td_status st = TD_OK;
  if (!by_place)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the table of tensors");
  for (uint32_t i = 0; i < t->n; i++)
    by_place[i] = &t->items[i];
  qsort(by_place, t->n, sizeof *by_place, compare_places);
  for (uint32_t i = 0; i < t->n && st == TD_OK; i++) {
    if (by_place[i]->bytes == 0)
      continue;
    if (last && (const char *)last->data + last->bytes > (const char *)by_place[i]->data)
      st = td_fail(err, TD_ERR_MODEL,
                   "%s: tensors '%.120s' (%" PRIu64 " bytes) and '%.120s' (%" PRIu64 " bytes) overlap",
                   last->file, last->name, last->bytes, by_place[i]->name, by_place[i]->bytes);
    last = by_place[i];
  }
  free(by_place);
  return st;
}

td_status td_tensor_table_seal(td_tensor_table *t, td_error *err)
{
  if (t->n == 0)
    return TD_OK;
  qsort(t->items, t->n, sizeof *t->items, compare_names);
  for (uint32_t i = 1; i < t->n; i++)
    if (strcmp(t->items[i - 1].name, t->items[i].name) == 0)
      return td_fail(err, TD_ERR_MODEL, "tensor '%.160s' stands twice: in %s and in %s", t->items[i].name,
                     t->items[i - 1].file, t->items[i].file);
  return refuse_overlaps(t, err);
}

const td_tensor *td_tensor_table_find(const td_tensor_table *t, const char *name)
{
  td_tensor wanted = {.name = name};
  return t->n ? bsearch(&wanted, t->items, t->n, sizeof *t->items, compare_names) : NULL;
}

void td_tensor_table_deinit(td_tensor_table *t)
{
  free(t->items);
  *t = (td_tensor_table){0};
}

bool td_tensor_size(td_tensor *t)
{
  uint64_t cols = t->n_dims ? t->shape[t->n_dims - 1] : 1, bytes;
  if (!td_dtype_row_bytes(t->dtype, cols, &bytes))
    return false;
  /* Sizes are multiplied as if bytes were not 0, so that [0, 2^63, 2^63] is refused too. */
  for (uint32_t i = 0; i + 1 < t->n_dims; i++)
    if (!td_mul_u64(bytes ? bytes : 1, t->shape[i], &bytes))
      return false;
  for (uint32_t i = 0; i < t->n_dims; i++)
    if (t->shape[i] == 0)
      bytes = 0;
  t->bytes = bytes;
  return true;
}

const char *td_tensor_shape_text(const uint64_t *shape, uint32_t n_dims, char out[TD_SHAPE_TEXT_BYTES])
{
  int n = snprintf(out, TD_SHAPE_TEXT_BYTES, "[");
  for (uint32_t i = 0; i < n_dims; i++)
    n += snprintf(out + n, TD_SHAPE_TEXT_BYTES - (size_t)n, "%s%" PRIu64, i ? ", " : "", shape[i]);
  snprintf(out + n, TD_SHAPE_TEXT_BYTES - (size_t)n, "]");
  return out;
}

td_status td_tensor_place(td_tensor *t, const unsigned char *section, uint64_t section_bytes, uint64_t offset,
                          td_error *err)
{
  if (!td_range_inside(offset, t->bytes, section_bytes))
    return td_fail(err, TD_ERR_MODEL,
                   "%s: tensor '%.160s' needs bytes %" PRIu64 " .. +%" PRIu64
                   " of the data, but the file has %" PRIu64 " bytes of data",
                   t->file, t->name, offset, t->bytes, section_bytes);
  t->data = section + offset;
  if (t->dtype == TD_F32 && (uintptr_t)t->data % sizeof(float) != 0)
    return td_fail(err, TD_ERR_MODEL, "%s: tensor '%.160s' is F32 but its data is not aligned to %zu bytes",
                   t->file, t->name, sizeof(float));
  return TD_OK;
}
