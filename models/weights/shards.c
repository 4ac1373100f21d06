/* A folder's safetensors: model.safetensors or, if that is absent, the files that
 * model.safetensors.index.json names.
 *
 * The index is not trusted: only plain names inside the folder are opened. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "models/weights/internal.h"

#define SINGLE_FILE "model.safetensors"
#define INDEX_FILE "model.safetensors.index.json"

static td_status open_one(td_model_files *files, const char *name, bool *absent, td_error *err)
{
  const td_mapping *map;
  TD_TRY(td_model_files_map(files, name, absent, &map, err));
  if (absent && *absent)
    return TD_OK;
  const char *file = td_arena_strdup(&files->names, name, strlen(name));
  if (!file)
    return td_fail(err, TD_ERR_NOMEM, "no memory for file names");
  return td_safetensors_parse(files, map, file, err);
}

static td_status check_shard_name(const cJSON *entry, td_error *err)
{
  if (!cJSON_IsString(entry))
    return td_fail(err, TD_ERR_MODEL, INDEX_FILE ": tensor '%.160s' is not given a file name", entry->string);
  const char *name = entry->valuestring;
  if (name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL)
    return td_fail(err, TD_ERR_MODEL,
                   INDEX_FILE ": tensor '%.100s' is said to be in '%.100s', which is no plain file name",
                   entry->string, name);
  return TD_OK;
}

static int compare_strings(const void *a, const void *b)
{
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Lists the distinct file names of weight_map, sorted. The caller frees *out; the names belong to
 * weight_map. */
static td_status list_shards(const cJSON *weight_map, const char ***out, uint32_t *n_out, td_error *err)
{
  const cJSON *entry;
  uint32_t n = 0, kept = 0;
  cJSON_ArrayForEach(entry, weight_map)
  {
    TD_TRY(check_shard_name(entry, err));
    n++;
  }
  const char **names = malloc((n + 1) * sizeof *names);
  if (!names)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the list of shards");
  n = 0;
  cJSON_ArrayForEach(entry, weight_map) names[n++] = entry->valuestring;
  qsort(names, n, sizeof *names, compare_strings);
  for (uint32_t i = 0; i < n; i++)
    if (kept == 0 || strcmp(names[kept - 1], names[i]) != 0)
      names[kept++] = names[i];
  *out = names;
  *n_out = kept;
  return TD_OK;
}

/* Checks that every tensor of the index is in the file that the index names. Tensors that are in a shard but
 * not in the index are kept: binding decides whether they belong to the model. */
static td_status check_index(const td_model_files *files, const cJSON *weight_map, td_error *err)
{
  const cJSON *entry;
  cJSON_ArrayForEach(entry, weight_map)
  {
    const td_tensor *t = td_tensor_table_find(&files->tensors, entry->string);
    if (!t || strcmp(t->file, entry->valuestring) != 0)
      return td_fail(err, TD_ERR_MODEL,
                     INDEX_FILE ": tensor '%.160s' is said to be in %.100s, but is %s%.100s", entry->string,
                     entry->valuestring, t ? "in " : "not there", t ? t->file : "");
  }
  return TD_OK;
}

static td_status open_shards(td_model_files *files, const cJSON *weight_map, td_error *err)
{
  const char **names = NULL;
  uint32_t n = 0;
  TD_TRY(list_shards(weight_map, &names, &n, err));
  td_status st = TD_OK;
  if (n == 0 || n > td_limit_max(TD_LIMIT_MODEL_SHARDS))
    st = td_fail(err, TD_ERR_MODEL, INDEX_FILE ": names %" PRIu32 " files, not 1 to %" PRIu64, n,
                 td_limit_max(TD_LIMIT_MODEL_SHARDS));
  for (uint32_t i = 0; i < n && st == TD_OK; i++)
    st = open_one(files, names[i], NULL, err);
  free(names);
  TD_TRY(st);
  TD_TRY(td_tensor_table_seal(&files->tensors, err));
  return check_index(files, weight_map, err);
}

td_status td_shards_open(td_model_files *files, td_error *err)
{
  bool absent;
  cJSON *index;
  TD_TRY(open_one(files, SINGLE_FILE, &absent, err));
  if (!absent)
    return td_tensor_table_seal(&files->tensors, err);
  TD_TRY(td_folder_json(files, INDEX_FILE, &absent, &index, err));
  if (absent)
    return td_fail(err, TD_ERR_MODEL,
                   "neither " SINGLE_FILE " nor " INDEX_FILE
                   " is there (load_format = dummy makes up weights for a test)");
  const cJSON *weight_map = td_json_get(index, "weight_map");
  td_status st = cJSON_IsObject(weight_map)
                     ? open_shards(files, weight_map, err)
                     : td_fail(err, TD_ERR_MODEL, INDEX_FILE ": no object 'weight_map'");
  cJSON_Delete(index);
  return st;
}
