/* Opening a model, a GGUF file or a folder, and the accessors. On failure open_any closes whatever was
 * opened, so the functions that it calls need no clean-up of their own. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/io.h"
#include "models/weights/internal.h"

td_status td_model_files_map(td_model_files *files, const char *name, bool *absent, const td_mapping **out,
                             td_error *err)
{
  td_mapping *maps = realloc(files->maps, (files->n_maps + 1) * sizeof *maps);
  if (!maps)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the list of files");
  files->maps = maps;
  TD_TRY(td_mapping_open(files->dir >= 0 ? files->dir : AT_FDCWD, name, name, absent, &maps[files->n_maps],
                         err));
  if (absent && *absent)
    return TD_OK;
  *out = &maps[files->n_maps++];
  files->mapped_bytes += (*out)->bytes;
  return TD_OK;
}

td_status td_folder_json(const td_model_files *files, const char *name, bool *absent, cJSON **out,
                         td_error *err)
{
  const td_json_limits limits = {td_limit_max(TD_LIMIT_MODEL_JSON_DEPTH),
                                 td_limit_max(TD_LIMIT_MODEL_JSON_NODES), TD_ERR_MODEL};
  const uint64_t max = td_limit_max(TD_LIMIT_MODEL_JSON_BYTES);
  td_mapping m;
  *out = NULL;
  TD_TRY(td_mapping_open(files->dir, name, name, absent, &m, err));
  if (absent && *absent)
    return TD_OK;
  td_status st;
  if (m.bytes > max)
    st = td_fail(err, TD_ERR_MODEL, "%s: %" PRIu64 " bytes, more than %" PRIu64, name, m.bytes, max);
  else if ((st = td_json_parse((const char *)m.data, m.bytes, &limits, out, err)) != TD_OK && err)
    st = td_error_prefix(err, "%s", name);
  td_mapping_close(&m);
  return st;
}

static td_status open_chat_template(td_model_files *files, const char *name, bool *is_there, td_mapping *out,
                                    td_error *err)
{
  const uint64_t max = td_limit_max(TD_LIMIT_TEMPLATE_BYTES);
  bool absent;
  TD_TRY(td_mapping_open(files->dir, name, name, &absent, out, err));
  *is_there = !absent;
  if (out->bytes > max)
    return td_fail(err, TD_ERR_MODEL, "%s: %" PRIu64 " bytes, more than %" PRIu64, name, out->bytes, max);
  return TD_OK;
}

/* *out is an object, or NULL if the file is absent. */
static td_status open_json_object(const td_model_files *files, const char *name, bool *absent, cJSON **out,
                                  td_error *err)
{
  TD_TRY(td_folder_json(files, name, absent, out, err));
  if (!*out || cJSON_IsObject(*out))
    return TD_OK;
  cJSON_Delete(*out);
  *out = NULL;
  return td_fail(err, TD_ERR_MODEL, "%s: not a JSON object", name);
}

/* Adds the special tokens that tokenizer_config.json lacks from special_tokens_map.json. */
static td_status add_special_tokens(td_model_files *files, td_error *err)
{
  static const char *const keys[] = {"bos_token", "eos_token", "unk_token",  "pad_token",
                                     "sep_token", "cls_token", "mask_token", "additional_special_tokens"};
  cJSON *map;
  bool absent;
  TD_TRY(open_json_object(files, "special_tokens_map.json", &absent, &map, err));
  if (!files->tokenizer_config) {
    files->tokenizer_config = map;
    return TD_OK;
  }
  td_status st = TD_OK;
  for (size_t i = 0; map && i < sizeof keys / sizeof *keys; i++) {
    const cJSON *there = td_json_get(files->tokenizer_config, keys[i]);
    if (there && !cJSON_IsNull(there))
      continue;
    cJSON_DeleteItemFromObjectCaseSensitive(files->tokenizer_config, keys[i]);
    cJSON *item = cJSON_DetachItemFromObjectCaseSensitive(map, keys[i]);
    if (item && !cJSON_AddItemToObject(files->tokenizer_config, keys[i], item)) {
      cJSON_Delete(item);
      st = td_fail(err, TD_ERR_NOMEM, "no memory for special_tokens_map.json");
    }
  }
  cJSON_Delete(map);
  return st;
}

static td_status open_folder(td_model_files *files, bool weights, td_error *err)
{
  bool absent;
  files->format = TD_FILES_SAFETENSORS;
  files->dir = td_open_at(AT_FDCWD, files->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (files->dir < 0)
    return td_fail(err, TD_ERR_IO, "%s", strerror(errno));
  TD_TRY(open_json_object(files, "config.json", &absent, &files->config, err));
  if (absent)
    return td_fail(err, TD_ERR_MODEL, "no config.json: a model folder needs config.json and safetensors");
  TD_TRY(open_json_object(files, "generation_config.json", &absent, &files->generation_config, err));
  TD_TRY(open_json_object(files, "tokenizer_config.json", &absent, &files->tokenizer_config, err));
  TD_TRY(add_special_tokens(files, err));
  TD_TRY(open_chat_template(files, "chat_template.jinja", &files->has_chat_template, &files->chat_template,
                            err));
  TD_TRY(open_chat_template(files, "additional_chat_templates/tool_use.jinja", &files->has_tool_template,
                            &files->tool_template, err));
  return weights ? td_shards_open(files, err) : TD_OK;
}

static td_status open_gguf(td_model_files *files, td_error *err)
{
  const td_mapping *map;
  const char *slash = strrchr(files->path, '/'), *base = slash ? slash + 1 : files->path;
  files->format = TD_FILES_GGUF;
  TD_TRY(td_model_files_map(files, files->path, NULL, &map, err));
  const char *file = td_arena_strdup(&files->names, base, strlen(base));
  if (!file)
    return td_fail(err, TD_ERR_NOMEM, "no memory for file names");
  if (map->bytes > 8 && memcmp(map->data, "GGUF", 4) != 0 && map->data[8] == '{')
    return td_fail(err, TD_ERR_MODEL,
                   "%s: a safetensors file: give the folder that holds it and its config.json", base);
  TD_TRY(td_gguf_parse(files, map, file, err));
  TD_TRY(td_gguf_open_parts(files, file, err));
  return td_tensor_table_seal(&files->tensors, err);
}

static td_status open_any(const char *path, bool weights, td_model_files **out, td_error *err)
{
  struct stat st;
  *out = NULL;
  if (stat(path, &st) != 0)
    return td_fail(err, TD_ERR_IO, "%s: %s", path, strerror(errno));
  td_model_files *files = calloc(1, sizeof *files);
  if (!files || !(files->path = strdup(path))) {
    free(files);
    return td_fail(err, TD_ERR_NOMEM, "no memory to open %s", path);
  }
  files->dir = -1;
  td_arena_init(&files->names, SIZE_MAX / 2); /* holds names found in the files, so file sizes bound it */
  td_status status = S_ISDIR(st.st_mode) ? open_folder(files, weights, err) : open_gguf(files, err);
  if (status != TD_OK) {
    if (err && S_ISDIR(st.st_mode))
      status = td_error_prefix(err, "%s", path);
    td_model_files_close(files);
    return status;
  }
  *out = files;
  return TD_OK;
}

td_status td_model_files_open(const char *path, td_model_files **out, td_error *err)
{
  return open_any(path, true, out, err);
}

td_status td_model_files_open_described(const char *path, td_model_files **out, td_error *err)
{
  return open_any(path, false, out, err);
}

void td_model_files_close(td_model_files *files)
{
  if (!files)
    return;
  for (uint32_t i = 0; i < files->n_maps; i++)
    td_mapping_close(&files->maps[i]);
  free(files->maps);
  td_mapping_close(&files->chat_template);
  td_mapping_close(&files->tool_template);
  td_tensor_table_deinit(&files->tensors);
  td_arena_deinit(&files->names);
  free(files->entries);
  cJSON_Delete(files->config);
  cJSON_Delete(files->generation_config);
  cJSON_Delete(files->tokenizer_config);
  if (files->dir >= 0)
    close(files->dir);
  free(files->path);
  free(files);
}

td_files_format td_model_files_format(const td_model_files *files) { return files->format; }
const char *td_model_files_path(const td_model_files *files) { return files->path; }
uint64_t td_model_files_bytes(const td_model_files *files) { return files->mapped_bytes; }
uint32_t td_model_files_tensor_count(const td_model_files *files) { return files->tensors.n; }
const cJSON *td_model_files_config(const td_model_files *files) { return files->config; }
const cJSON *td_model_files_generation_config(const td_model_files *files)
{
  return files->generation_config;
}
const cJSON *td_model_files_tokenizer_config(const td_model_files *files) { return files->tokenizer_config; }

const td_tensor *td_model_files_tensor(const td_model_files *files, uint32_t i)
{
  return i < files->tensors.n ? &files->tensors.items[i] : NULL;
}

const td_tensor *td_model_files_find(const td_model_files *files, const char *name)
{
  return td_tensor_table_find(&files->tensors, name);
}

bool td_model_files_locate(const td_model_files *files, const void *data, int *fd, uint64_t *offset_bytes)
{
  uintptr_t at = (uintptr_t)data;
  for (uint32_t i = 0; i < files->n_maps; i++) {
    const td_mapping *m = &files->maps[i];
    if (m->fd >= 0 && at >= (uintptr_t)m->data && at < (uintptr_t)m->data + m->bytes) {
      *fd = m->fd;
      *offset_bytes = at - (uintptr_t)m->data;
      return true;
    }
  }
  return false;
}

td_status td_model_files_read(const td_model_files *files, const td_tensor *t, void *dst, td_error *err)
{
  int fd;
  uint64_t offset;
  if (!td_model_files_locate(files, t->data, &fd, &offset)) {
    memcpy(dst, t->data, t->bytes);
    return TD_OK;
  }
  ssize_t got = td_read_at(fd, dst, t->bytes, offset);
  if (got < 0 || (uint64_t)got < t->bytes)
    return td_fail(err, TD_ERR_IO, "%s: tensor '%s': %s", t->file, t->name,
                   got < 0 ? strerror(errno) : "the file was cut while it was read");
  return TD_OK;
}

void td_model_files_close_descriptors(td_model_files *files)
{
  for (uint32_t i = 0; i < files->n_maps; i++)
    td_mapping_close_descriptor(&files->maps[i]);
}

bool td_model_files_has_tokenizer(const td_model_files *files)
{
  return files->dir < 0 || faccessat(files->dir, "tokenizer.json", F_OK, 0) == 0 ||
         td_model_files_has_only_tokenizer_model(files);
}

bool td_model_files_has_only_tokenizer_model(const td_model_files *files)
{
  return files->dir >= 0 && faccessat(files->dir, "tokenizer.json", F_OK, 0) != 0 &&
         faccessat(files->dir, "tokenizer.model", F_OK, 0) == 0;
}

td_status td_model_files_load_tokenizer_model(const td_model_files *files, void **bytes, size_t *n_bytes,
                                              td_error *err)
{
  const char *name = "tokenizer.model";
  const uint64_t max = td_limit_max(TD_LIMIT_MODEL_JSON_BYTES);
  td_mapping m;
  TD_TRY(td_mapping_open(files->dir, name, name, NULL, &m, err));
  td_status st = TD_OK;
  if (m.bytes > max)
    st = td_fail(err, TD_ERR_MODEL, "%s: %" PRIu64 " bytes, more than %" PRIu64, name, m.bytes, max);
  else if (!(*bytes = malloc(m.bytes + 1)))
    st = td_fail(err, TD_ERR_NOMEM, "no memory for %s", name);
  else
    memcpy(*bytes, m.data, m.bytes);
  *n_bytes = m.bytes;
  td_mapping_close(&m);
  return st;
}

td_status td_model_files_load_added_tokens(const td_model_files *files, cJSON **out, td_error *err)
{
  bool absent;
  return open_json_object(files, "added_tokens.json", &absent, out, err);
}

td_status td_model_files_load_tokenizer_json(const td_model_files *files, cJSON **out, td_error *err)
{
  bool absent = files->dir < 0;
  *out = NULL;
  if (!absent) {
    td_status st = td_folder_json(files, "tokenizer.json", &absent, out, err);
    if (st != TD_OK)
      return err ? td_error_prefix(err, "%s", files->path) : st;
  }
  return absent ? td_fail(err, TD_ERR_MODEL, "%s: neither tokenizer.json nor tokenizer.model", files->path)
                : TD_OK;
}

bool td_model_files_chat_template(const td_model_files *files, bool for_tools, const char **text,
                                  size_t *n_bytes)
{
  const td_mapping *m = for_tools ? &files->tool_template : &files->chat_template;
  if (!(for_tools ? files->has_tool_template : files->has_chat_template))
    return false;
  *text = (const char *)m->data;
  *n_bytes = m->bytes;
  return true;
}
