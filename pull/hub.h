/* Asks a hub for the files of a repository at one commit: their names, sizes and hashes.
 *
 * The API is Hugging Face's: GET /api/models/REPO/revision/REV?blobs=true lists the files, and
 * /REPO/resolve/COMMIT/FILE is a file. */
#ifndef TD_PULL_HUB_H
#define TD_PULL_HUB_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "pull/sha256.h"
#include "pull/model_ref.h"

enum {
  TD_HUB_ANSWER_BYTES = 64 << 20,
  TD_HUB_VALUES = 1 << 20,
  TD_HUB_FILES = 4096,
  TD_HUB_COMMIT_BYTES = 65
};

typedef struct td_hub {
  const char *endpoint, *revision, *token;
  uint32_t stall_s;
} td_hub;

typedef struct td_hub_file {
  char name[TD_PULLED_NAME_BYTES];
  char sha256[TD_SHA256_HEX_BYTES]; /* "": the hub has none, because the file is small */
  uint64_t n_bytes;                 /* TD_HTTP_UNKNOWN: the hub does not say */
} td_hub_file;

typedef struct td_hub_list {
  td_hub_file *files; /* only the wanted ones */
  size_t n_files;
  char commit[TD_HUB_COMMIT_BYTES];
} td_hub_list;

/* Lists the one file that ref names, with its parts, or all files that a model needs: configuration,
 * tokenizer, template and safetensors. */
TD_MUST_CHECK td_status td_hub_find(const td_hub *hub, const td_model_ref *ref, td_hub_list *out,
                                    td_error *err);
void td_hub_list_deinit(td_hub_list *list);
TD_MUST_CHECK td_status td_hub_url(const td_hub *hub, const td_model_ref *ref, const td_hub_list *list,
                                   const char *file, char out[TD_MODEL_REF_URL_BYTES], td_error *err);

#endif
