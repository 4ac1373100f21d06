/* An opened model: every tensor by name, the metadata, and the files for tokenizer and chat template.
 *
 * td_model_files_open takes a GGUF file, or a folder with config.json and safetensors (single, or sharded by
 * model.safetensors.index.json). Files are mapped read-only, never read whole: opening a 16 GB model costs a
 * few page faults. Every offset and size is checked against the file before it is used. A wrong one is
 * TD_ERR_MODEL, with a message that names the file, the tensor or key, and both sizes.
 * Source: GGUF specification (ggml, version 2 and 3); safetensors format (hf.co/docs/safetensors).
 * Ownership: everything returned borrows from td_model_files. Thread: read-only after open. */
#ifndef TD_MODELS_WEIGHTS_WEIGHTS_H
#define TD_MODELS_WEIGHTS_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/json.h"
#include "common/status.h"
#include "kernels/dtype.h"

enum { TD_TENSOR_DIMS_MAX = 5 }; /* a vision part's convolution over time has 5 */

typedef struct td_tensor {
  const char *name;
  const char *file; /* base name of the file that holds it */
  td_dtype dtype;
  uint32_t n_dims;
  uint64_t shape[TD_TENSOR_DIMS_MAX]; /* outermost first, as PyTorch prints it: [rows, cols] */
  const void *data;                   /* borrowed from the mapping */
  uint64_t bytes;
} td_tensor;

typedef enum td_files_format { TD_FILES_GGUF, TD_FILES_SAFETENSORS } td_files_format;

typedef struct td_model_files td_model_files;

TD_MUST_CHECK td_status td_model_files_open(const char *path, td_model_files **out, td_error *err);
/* The same for callers that need no weights: a folder's safetensors are not opened and may be absent. */
TD_MUST_CHECK td_status td_model_files_open_described(const char *path, td_model_files **out, td_error *err);
void td_model_files_close(td_model_files *files);

td_files_format td_model_files_format(const td_model_files *files);
const char *td_model_files_path(const td_model_files *files); /* as given to open */
uint64_t td_model_files_bytes(const td_model_files *files);   /* sum of mapped sizes */
uint32_t td_model_files_tensor_count(const td_model_files *files);
const td_tensor *td_model_files_tensor(const td_model_files *files, uint32_t i);
const td_tensor *td_model_files_find(const td_model_files *files, const char *name); /* NULL if absent */

/* The file that contains a tensor's bytes, and where. Returns false if data is not in any of the mappings, or
 * if descriptors are closed. */
bool td_model_files_locate(const td_model_files *files, const void *data, int *fd, uint64_t *offset_bytes);

/* Reads a tensor's bytes from its file. If the file was truncated meanwhile, this returns an error, where
 * touching t->data would raise SIGBUS. */
TD_MUST_CHECK td_status td_model_files_read(const td_model_files *files, const td_tensor *t, void *dst,
                                            td_error *err);
/* Call after weights are loaded: closes descriptors and keeps mappings. td_model_files_locate then finds
 * nothing. */
void td_model_files_close_descriptors(td_model_files *files);

/* Whether there may be a tokenizer to load: true for a folder with tokenizer.json or tokenizer.model, and for
 * every GGUF file. */
bool td_model_files_has_tokenizer(const td_model_files *files);
/* Whether a folder has tokenizer.model and no tokenizer.json. */
bool td_model_files_has_only_tokenizer_model(const td_model_files *files);
/* Reads tokenizer.model. The caller frees *bytes. */
TD_MUST_CHECK td_status td_model_files_load_tokenizer_model(const td_model_files *files, void **bytes,
                                                            size_t *n_bytes, td_error *err);
/* Reads added_tokens.json. *out is an object, or NULL if the file is absent; the caller owns it. */
TD_MUST_CHECK td_status td_model_files_load_added_tokens(const td_model_files *files, cJSON **out,
                                                         td_error *err);

/* Folder models: parsed JSON files, NULL if the folder has none (config.json is required to open). For GGUF
 * all of these are NULL. Special tokens that tokenizer_config.json lacks are taken from
 * special_tokens_map.json. */
const cJSON *td_model_files_config(const td_model_files *files);
const cJSON *td_model_files_generation_config(const td_model_files *files);
const cJSON *td_model_files_tokenizer_config(const td_model_files *files);
/* Parses tokenizer.json, which is large, at each call. TD_ERR_MODEL and NULL if it is absent. The caller owns
 * *out: cJSON_Delete. */
TD_MUST_CHECK td_status td_model_files_load_tokenizer_json(const td_model_files *files, cJSON **out,
                                                           td_error *err);
/* The folder's chat_template.jinja or, for tools, additional_chat_templates/tool_use.jinja. False if absent.
 * *text is borrowed and not terminated. */
bool td_model_files_chat_template(const td_model_files *files, bool for_tools, const char **text,
                                  size_t *n_bytes);

/* GGUF metadata. Getters return false if the key is absent or its value has another type. */
typedef struct td_gguf_string {
  const char *data; /* not terminated */
  uint64_t n_bytes;
} td_gguf_string;

bool td_gguf_get_u64(const td_model_files *files, const char *key, uint64_t *out); /* any integer >= 0 */
bool td_gguf_get_f64(const td_model_files *files, const char *key, double *out);   /* any number */
bool td_gguf_get_bool(const td_model_files *files, const char *key, bool *out);
bool td_gguf_get_string(const td_model_files *files, const char *key, td_gguf_string *out);
/* Arrays: element count, then elements by index. Strings are read in order, because GGUF has no index of
 * them. */
bool td_gguf_get_array_count(const td_model_files *files, const char *key, uint64_t *count);
bool td_gguf_get_array_f64(const td_model_files *files, const char *key, uint64_t i, double *out);
typedef struct td_gguf_string_iter {
  const unsigned char *at, *end;
  uint64_t left;
} td_gguf_string_iter;
bool td_gguf_string_array(const td_model_files *files, const char *key, td_gguf_string_iter *it);
bool td_gguf_string_next(td_gguf_string_iter *it, td_gguf_string *out);

#endif
