/* A model's files, opened: every tensor by name, the metadata, and where the text parts are.
 *
 * td_model_files_open takes a GGUF file, or a folder with config.json and safetensors (single, or sharded
 * by model.safetensors.index.json). Files are mapped read-only, never read whole: opening a 16 GB model
 * costs a few page faults. Every offset and size is checked against the file before it is believed; a file
 * that lies gets TD_ERR_MODEL naming the file, the tensor or key, and both sizes.
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

enum { TD_TENSOR_DIMS_MAX = 5 }; /* of a vision part's convolution over time */

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
/* The same for who needs no weights: a folder's safetensors are not looked at and may be absent. */
TD_MUST_CHECK td_status td_model_files_open_described(const char *path, td_model_files **out, td_error *err);
void td_model_files_close(td_model_files *files);

td_files_format td_model_files_format(const td_model_files *files);
const char *td_model_files_path(const td_model_files *files); /* as given to open */
uint64_t td_model_files_bytes(const td_model_files *files);   /* sum of mapped sizes */
uint32_t td_model_files_tensor_count(const td_model_files *files);
const td_tensor *td_model_files_tensor(const td_model_files *files, uint32_t i);
const td_tensor *td_model_files_find(const td_model_files *files, const char *name); /* NULL if absent */

/* The file that a tensor's bytes lie in and where; false if data is of no mapping of these files. */
bool td_model_files_locate(const td_model_files *files, const void *data, int *fd, uint64_t *offset_bytes);

/* Reads a tensor's bytes from its file: of a file that was cut meanwhile an error, where touching data would
 * kill. */
TD_MUST_CHECK td_status td_model_files_read(const td_model_files *files, const td_tensor *t, void *dst,
                                            td_error *err);
/* Weights are loaded: descriptors are closed, mappings stay. td_model_files_locate finds nothing any more. */
void td_model_files_close_descriptors(td_model_files *files);

/* Whether there is a tokenizer to load: tokenizer.json or tokenizer.model in a folder; a GGUF file is always
 * asked. */
bool td_model_files_has_tokenizer(const td_model_files *files);
/* tokenizer.model and no tokenizer.json. */
bool td_model_files_has_only_tokenizer_model(const td_model_files *files);
/* Its bytes; the caller frees them. */
TD_MUST_CHECK td_status td_model_files_load_tokenizer_model(const td_model_files *files, void **bytes,
                                                            size_t *n_bytes, td_error *err);
/* added_tokens.json: an object, or NULL where there is none. Caller owns. */
TD_MUST_CHECK td_status td_model_files_load_added_tokens(const td_model_files *files, cJSON **out,
                                                         td_error *err);

/* Folder models: parsed JSON files; NULL where the folder has none (config.json is required to open).
 * For GGUF all of these are NULL. tokenizer_config: with special_tokens_map.json's bos_token and eos_token
 * where it has none. */
const cJSON *td_model_files_config(const td_model_files *files);
const cJSON *td_model_files_generation_config(const td_model_files *files);
const cJSON *td_model_files_tokenizer_config(const td_model_files *files);
/* Parsed on first call (large); NULL and TD_ERR_MODEL if absent. Caller owns: cJSON_Delete. */
TD_MUST_CHECK td_status td_model_files_load_tokenizer_json(const td_model_files *files, cJSON **out,
                                                           td_error *err);
/* chat_template.jinja of the folder, or additional_chat_templates/tool_use.jinja, if there (borrowed, not
 * terminated). */
bool td_model_files_chat_template(const td_model_files *files, bool for_tools, const char **text,
                                  size_t *n_bytes);

/* GGUF metadata. Getters return false when the key is absent or of another kind. */
typedef struct td_gguf_string {
  const char *data; /* not terminated */
  uint64_t n_bytes;
} td_gguf_string;

bool td_gguf_get_u64(const td_model_files *files, const char *key, uint64_t *out); /* any integer kind >= 0 */
bool td_gguf_get_f64(const td_model_files *files, const char *key, double *out);   /* any number kind */
bool td_gguf_get_bool(const td_model_files *files, const char *key, bool *out);
bool td_gguf_get_string(const td_model_files *files, const char *key, td_gguf_string *out);
/* Arrays: element count, then elements by index. Strings are walked in order (their file form has no index).
 */
bool td_gguf_get_array_count(const td_model_files *files, const char *key, uint64_t *count);
bool td_gguf_get_array_f64(const td_model_files *files, const char *key, uint64_t i, double *out);
typedef struct td_gguf_string_iter {
  const unsigned char *at, *end;
  uint64_t left;
} td_gguf_string_iter;
bool td_gguf_string_array(const td_model_files *files, const char *key, td_gguf_string_iter *it);
bool td_gguf_string_next(td_gguf_string_iter *it, td_gguf_string *out);

#endif
