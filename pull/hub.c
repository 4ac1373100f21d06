/* See hub.h. */
#include "pull/hub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "pull/http.h"

static bool ends_with(const char *s, const char *end)
{
  size_t n = strlen(s), m = strlen(end);
  return n > m && strcmp(s + n - m, end) == 0;
}

/* Only files at the repository's top level. Weights in other formats are left out, and so is a second copy
 * of the weights ("consolidated"). */
static bool is_needed(const char *name)
{
  if (strchr(name, '/'))
    return false;
  if (ends_with(name, ".safetensors"))
    return strncmp(name, "model", 5) == 0;
  return strcmp(name, "tokenizer.model") == 0 || ends_with(name, ".json") || ends_with(name, ".jinja") ||
         strncmp(name, "LICENSE", 7) == 0;
}

/* Whether `name` is the file that was asked for, or another part of it. */
static bool is_wanted(const char *file, const char *name)
{
  size_t stem, other;
  if (strcmp(file, name) == 0)
    return true;
  return td_pulled_part(file, &stem) == 1 && td_pulled_part(name, &other) > 1 && stem == other &&
         strncmp(file, name, stem) == 0 && strcmp(file + stem + 5, name + stem + 5) == 0;
}

/* Commits and hashes become parts of URLs, so they must be hex. */
static bool is_hex(const char *s, size_t at_most)
{
  size_t n = strspn(s, "0123456789abcdef");
  return n > 0 && n <= at_most && s[n] == '\0';
}

static td_status read_file(const cJSON *sibling, const char *name, td_hub_file *f, td_error *err)
{
  const cJSON *lfs = td_json_get(sibling, "lfs");
  const char *sha256 = NULL;
  int64_t size = -1;
  snprintf(f->name, sizeof f->name, "%s", name);
  TD_TRY(td_json_get_int64(sibling, "size", 0, INT64_MAX, &size, NULL, err));
  TD_TRY(td_json_get_string(lfs, "sha256", &sha256, err));
  f->n_bytes = size >= 0 ? (uint64_t)size : TD_HTTP_UNKNOWN;
  if (sha256 && (!is_hex(sha256, 64) || strlen(sha256) != 64))
    return td_fail(err, TD_ERR_IO, "what it tells as the SHA-256 of %s is none", name);
  snprintf(f->sha256, sizeof f->sha256, "%s", sha256 ? sha256 : "");
  return TD_OK;
}

/* Leaves out files whose names we do not allow. */
static td_status read_siblings(const cJSON *answer, const td_model_ref *ref, td_hub_list *out, td_error *err)
{
  const cJSON *siblings = td_json_get(answer, "siblings"), *one;
  const char *name = NULL;
  size_t n = cJSON_IsArray(siblings) ? (size_t)cJSON_GetArraySize(siblings) : 0;
  if (n == 0 || n > TD_HUB_FILES)
    return td_fail(err, TD_ERR_IO, "the hub lists %zu files", n);
  out->files = calloc(n, sizeof *out->files);
  if (!out->files)
    return td_fail(err, TD_ERR_NOMEM, "no memory for %zu files", n);
  cJSON_ArrayForEach(one, siblings)
  {
    name = NULL;
    TD_TRY(td_json_get_string(one, "rfilename", &name, err));
    if (name && td_pulled_is_name(name) && (*ref->file ? is_wanted(ref->file, name) : is_needed(name)))
      TD_TRY(read_file(one, name, &out->files[out->n_files++], err));
  }
  return TD_OK;
}

/* Makes the error for a repository without a fitting file. It lists the GGUF files that one could ask for. */
static td_status nothing_fits(const cJSON *answer, const td_model_ref *ref, td_error *err)
{
  char list[400] = "";
  const cJSON *one;
  size_t n = 0;
  cJSON_ArrayForEach(one, td_json_get(answer, "siblings"))
  {
    const char *name = NULL;
    if (td_json_get_string(one, "rfilename", &name, NULL) == TD_OK && name && td_pulled_is_name(name) &&
        ends_with(name, ".gguf") && n + strlen(name) + 3 < sizeof list)
      n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", n > 0 ? ", " : "", name);
  }
  if (*ref->file)
    return td_fail(err, TD_ERR_CONFIG, "%s has no file %s%s%s", ref->repo, ref->file,
                   n > 0 ? ". It has " : "", list);
  return td_fail(err, TD_ERR_CONFIG, "%s has no config.json with safetensors%s%s", ref->repo,
                 n > 0 ? "; name one of its files, as in OWNER/REPO/FILE: " : "", list);
}

static bool is_model(const td_hub_list *list)
{
  bool config = false, weights = false;
  for (size_t i = 0; i < list->n_files; i++) {
    config = config || strcmp(list->files[i].name, "config.json") == 0;
    weights = weights || ends_with(list->files[i].name, ".safetensors");
  }
  return config && weights;
}

static td_status read_answer(const td_buf *text, const td_model_ref *ref, td_hub_list *out, td_error *err)
{
  td_json_limits limits = {.max_depth = 32, .max_nodes = TD_HUB_VALUES, .error = TD_ERR_IO};
  cJSON *answer;
  const char *commit = NULL;
  TD_TRY(td_json_parse(text->data ? text->data : "", text->len_bytes, &limits, &answer, err));
  td_status st = td_json_get_string(answer, "sha", &commit, err);
  if (st == TD_OK && (!commit || !is_hex(commit, TD_HUB_COMMIT_BYTES - 1)))
    st = td_fail(err, TD_ERR_IO, "the hub names no commit");
  if (st == TD_OK) {
    strcpy(out->commit, commit);
    st = read_siblings(answer, ref, out, err);
  }
  if (st == TD_OK && (*ref->file ? out->n_files == 0 : !is_model(out)))
    st = nothing_fits(answer, ref, err);
  cJSON_Delete(answer);
  return st;
}

td_status td_hub_find(const td_hub *hub, const td_model_ref *ref, td_hub_list *out, td_error *err)
{
  char url[TD_MODEL_REF_URL_BYTES];
  td_http_reply reply;
  td_buf text;
  *out = (td_hub_list){0};
  int n = snprintf(url, sizeof url, "%s/api/models/%s/revision/%s?blobs=true", hub->endpoint, ref->repo,
                   hub->revision);
  if (n < 0 || (size_t)n >= sizeof url)
    return td_fail(err, TD_ERR_CONFIG, "the hub's address is too long");
  td_buf_init(&text, TD_HUB_ANSWER_BYTES);
  td_status st = td_http_get_text(url, ref->repo, hub->token, hub->stall_s, &text, &reply, err);
  if (st == TD_OK && reply.status != 200)
    st = td_http_status_error(ref->repo, reply.status, *hub->token != '\0', err);
  else if (st == TD_OK && read_answer(&text, ref, out, err) != TD_OK)
    st = err->code == TD_ERR_CONFIG ? err->code : td_error_prefix(err, "%s: the hub's answer", ref->repo);
  td_buf_deinit(&text);
  if (st != TD_OK)
    td_hub_list_deinit(out);
  return st;
}

void td_hub_list_deinit(td_hub_list *list)
{
  free(list->files);
  *list = (td_hub_list){0};
}

td_status td_hub_url(const td_hub *hub, const td_model_ref *ref, const td_hub_list *list, const char *file,
                     char out[TD_MODEL_REF_URL_BYTES], td_error *err)
{
  int n = snprintf(out, TD_MODEL_REF_URL_BYTES, "%s/%s/resolve/%s/%s", hub->endpoint, ref->repo, list->commit,
                   file);
  return n > 0 && n < TD_MODEL_REF_URL_BYTES ? TD_OK
                                             : td_fail(err, TD_ERR_CONFIG, "the hub's address is too long");
}
