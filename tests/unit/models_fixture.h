/* A backend that only records what it gets, and reads every byte of it: for tests of loading. */
#ifndef TD_TESTS_MODELS_FIXTURE_H
#define TD_TESTS_MODELS_FIXTURE_H

#include "weights_fixture.h"

#include "models/model.h"

typedef struct recorder {
  td_backend be;
  uint32_t n_imports, n_uploads;
  td_weight_part last[TD_WEIGHT_PARTS_MAX];
  uint64_t rows; /* of all imports */
  uint32_t n_looked_up;
  size_t allocated;
  bool refuse;
  uint64_t touched; /* so that reads are not optimised away */
} recorder;

static inline td_status rec_alloc(td_backend *be, size_t bytes, td_devptr *out, td_error *err)
{
  ((recorder *)be)->allocated += bytes;
  out->addr = 4096;
  return TD_OK;
}

static inline td_status rec_upload(td_backend *be, const float *src, size_t n, td_devptr *out, td_error *err)
{
  for (size_t i = 0; i < n; i++)
    ((recorder *)be)->touched += (uint64_t)(src[i] == 0);
  ((recorder *)be)->n_uploads++;
  out->addr = 4096;
  return TD_OK;
}

static inline td_status rec_import(td_backend *be, const td_weight_part *parts, uint32_t n_parts,
                                   uint64_t n_cols, td_weight **out, td_error *err)
{
  recorder *r = (recorder *)be;
  if (r->refuse)
    return td_fail(err, TD_ERR_MODEL, "columns do not suit");
  for (uint32_t i = 0; i < n_parts; i++) {
    uint64_t row_bytes;
    r->rows += parts[i].n_rows;
    r->n_looked_up += parts[i].is_looked_up;
    if (!td_dtype_row_bytes(parts[i].dtype, n_cols, &row_bytes))
      return td_fail(err, TD_ERR_MODEL, "columns do not suit");
    for (uint64_t k = 0; k < parts[i].n_rows * row_bytes; k++)
      r->touched += ((const unsigned char *)parts[i].data)[k];
    for (uint64_t k = 0; k < parts[i].n_rows && parts[i].bias; k++)
      r->touched += (uint64_t)(parts[i].bias[k] == 0);
  }
  memcpy(r->last, parts, n_parts * sizeof *parts);
  r->n_imports++;
  *out = (td_weight *)(uintptr_t)4096;
  return TD_OK;
}

static inline td_status rec_wait(td_backend *be, td_error *err) { return TD_OK; }

static const td_backend_ops recorder_ops = {.name = "recorder",
                                            .alloc = rec_alloc,
                                            .upload_f32 = rec_upload,
                                            .weight_import = rec_import,
                                            .weights_wait = rec_wait};

#endif
