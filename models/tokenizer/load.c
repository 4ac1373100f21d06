/* Chooses the file from which a model's tokenizer is loaded. */
#include <stdlib.h>

#include "models/tokenizer/internal.h"

static td_status load_json(const td_model_files *files, td_tokenizer **out, td_error *err)
{
  cJSON *json;
  TD_TRY(td_model_files_load_tokenizer_json(files, &json, err));
  td_status status = td_tokenizer_load_json(json, td_model_files_tokenizer_config(files), out, err);
  cJSON_Delete(json);
  return status;
}

static td_status load_spm(const td_model_files *files, td_tokenizer *t, td_error *err)
{
  void *bytes;
  size_t n_bytes;
  cJSON *added = NULL;
  TD_TRY(td_model_files_load_tokenizer_model(files, &bytes, &n_bytes, err));
  td_status st = td_model_files_load_added_tokens(files, &added, err);
  if (st == TD_OK)
    st = td_tokenizer_load_spm(t, bytes, n_bytes, td_model_files_tokenizer_config(files), added, err);
  cJSON_Delete(added);
  free(bytes);
  return st;
}

td_status td_tokenizer_load(const td_model_files *files, td_tokenizer **out, td_error *err)
{
  const bool gguf = td_model_files_format(files) == TD_FILES_GGUF;
  *out = NULL;
  if (!gguf && !td_model_files_has_only_tokenizer_model(files))
    return load_json(files, out, err);
  td_tokenizer *t = td_tokenizer_new(err);
  if (!t)
    return TD_ERR_NOMEM;
  td_status status = gguf ? td_tokenizer_load_gguf(files, t, err) : load_spm(files, t, err);
  if (status != TD_OK) {
    td_tokenizer_destroy(t);
    return status;
  }
  *out = t;
  return TD_OK;
}
