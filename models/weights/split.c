/* GGUF models in several files, as gguf-split writes them. NAME-00001-of-00003.gguf is the first and has the
 * metadata. Each file has some of the tensors, and says which one of how many it is. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/weights/internal.h"

enum { TAIL_BYTES = sizeof "-00001-of-00003.gguf" - 1 };

/* Parses one further file. Its metadata is used only to check its number, then dropped: the first file's
 * metadata counts. */
static td_status parse_part(td_model_files *files, const td_mapping *map, const char *file, uint64_t no,
                            uint64_t n, td_error *err)
{
  td_gguf_entry *entries = files->entries;
  uint32_t n_entries = files->n_entries;
  uint64_t own_no = UINT64_MAX, own_n = UINT64_MAX;
  files->entries = NULL;
  files->n_entries = 0;
  td_status st = td_gguf_parse(files, map, file, err);
  if (st == TD_OK && (!td_gguf_get_u64(files, "split.no", &own_no) ||
                      !td_gguf_get_u64(files, "split.count", &own_n) || own_no != no || own_n != n))
    st = td_fail(err, TD_ERR_MODEL,
                 "%s: keys 'split.no' and 'split.count' do not say that it is file %" PRIu64 " of %" PRIu64,
                 file, no + 1, n);
  free(files->entries);
  files->entries = entries;
  files->n_entries = n_entries;
  return st;
}

static td_status open_part(td_model_files *files, uint64_t no, uint64_t n, td_error *err)
{
  size_t n_stem = strlen(files->path) - TAIL_BYTES, size = strlen(files->path) + 1;
  const td_mapping *map;
  char tail[64], *path = malloc(size);
  if (!path)
    return td_fail(err, TD_ERR_NOMEM, "no memory for file names");
  snprintf(tail, sizeof tail, "-%05" PRIu64 "-of-%05" PRIu64 ".gguf", no + 1, n);
  snprintf(path, size, "%.*s%s", (int)n_stem, files->path, tail);
  const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
  const char *file = td_arena_strdup(&files->names, base, strlen(base));
  td_status st = file ? td_model_files_map(files, path, NULL, &map, err)
                      : td_fail(err, TD_ERR_NOMEM, "no memory for file names");
  if (st == TD_OK)
    st = parse_part(files, map, file, no, n, err);
  free(path);
  return st;
}

td_status td_gguf_open_parts(td_model_files *files, const char *file, td_error *err)
{
  char tail[64];
  uint64_t n = 1, no = 0, n_tensors, most = td_limit_max(TD_LIMIT_MODEL_SHARDS);
  if (!td_gguf_get_u64(files, "split.count", &n) || n <= 1)
    return TD_OK;
  if (n > most)
    return td_fail(err, TD_ERR_MODEL, "%s: key 'split.count' is %" PRIu64 ", more than %" PRIu64, file, n,
                   most);
  if (td_gguf_get_u64(files, "split.no", &no) && no != 0)
    return td_fail(err, TD_ERR_MODEL, "%s: file %" PRIu64 " of %" PRIu64 " of a split model: give the first",
                   file, no + 1, n);
  snprintf(tail, sizeof tail, "-00001-of-%05" PRIu64 ".gguf", n);
  if (strlen(file) < TAIL_BYTES || strcmp(file + strlen(file) - TAIL_BYTES, tail) != 0)
    return td_fail(err, TD_ERR_MODEL,
                   "%s: key 'split.count' is %" PRIu64
                   ", so its name must end in '%s' for the others to be found",
                   file, n, tail);
  for (no = 1; no < n; no++)
    TD_TRY(open_part(files, no, n, err));
  if (td_gguf_get_u64(files, "split.tensors.count", &n_tensors) && n_tensors != files->tensors.n)
    return td_fail(err, TD_ERR_MODEL,
                   "%s: key 'split.tensors.count' is %" PRIu64 ", but the files have %" PRIu32 " tensors",
                   file, n_tensors, files->tensors.n);
  return TD_OK;
}
