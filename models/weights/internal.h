/* Internal to weights/: mappings, the tensor table, and the structures that the parsers of both formats fill.
 *
 * A parser turns file bytes into td_tensor entries that borrow from the mapping. It pushes no entry before it
 * has checked the entry's range against the mapping's size. Allocations grow with what was really found in
 * the file, never with a count that the file merely claims. */
#ifndef TD_MODELS_WEIGHTS_INTERNAL_H
#define TD_MODELS_WEIGHTS_INTERNAL_H

#include "common/arena.h"
#include "config/limits.h"
#include "models/weights/weights.h"

/* ---- mapping.c ---- */

/* A regular file, mapped read-only. If bytes is 0, nothing is mapped and data is "". */
typedef struct td_mapping {
  const unsigned char *data;
  uint64_t bytes;
  int fd; /* stays open for readers that must not fault; -1 if nothing is mapped */
} td_mapping;

/* Opens name relative to the folder dir (with AT_FDCWD, as open(2) does). shown is the path for messages. If
 * absent is not NULL, a missing file is no error: *absent is set instead. */
TD_MUST_CHECK td_status td_mapping_open(int dir, const char *name, const char *shown, bool *absent,
                                        td_mapping *out, td_error *err);
void td_mapping_close(td_mapping *m);
void td_mapping_close_descriptor(td_mapping *m);

/* ---- tensor_table.c ---- */

typedef struct td_tensor_table {
  td_tensor *items; /* sorted by name once sealed */
  uint32_t n, cap;
} td_tensor_table;

TD_MUST_CHECK td_status td_tensor_table_push(td_tensor_table *t, const td_tensor *tensor, td_error *err);
/* Sorts by name. Refuses duplicate names, and tensors that share bytes. */
TD_MUST_CHECK td_status td_tensor_table_seal(td_tensor_table *t, td_error *err);
const td_tensor *td_tensor_table_find(const td_tensor_table *t, const char *name);
void td_tensor_table_deinit(td_tensor_table *t);

/* Computes bytes from dtype and shape. Returns false if a row is not a whole number of blocks or the size
 * overflows. */
bool td_tensor_size(td_tensor *t);
/* "[49152, 576]" */
enum { TD_SHAPE_TEXT_BYTES = 128 }; /* enough for the most dimensions, of 20 digits each */
const char *td_tensor_shape_text(const uint64_t *shape, uint32_t n_dims, char out[TD_SHAPE_TEXT_BYTES]);
/* Points the tensor's data at `offset` in the data section. Checks that its bytes are inside the section and
 * that F32 is aligned for reading as floats. */
TD_MUST_CHECK td_status td_tensor_place(td_tensor *t, const unsigned char *section, uint64_t section_bytes,
                                        uint64_t offset, td_error *err);

/* ---- files ---- */

typedef struct td_gguf_entry {
  const unsigned char *key, *value; /* value: the scalar, the string's bytes, or the array's first element */
  uint64_t key_bytes;
  uint64_t count; /* elements of an array, bytes of a string, 1 for other scalars */
  uint64_t value_bytes;
  uint32_t type;       /* type of the value; TD_GGUF_ARRAY for arrays */
  uint32_t array_type; /* type of an array's elements */
} td_gguf_entry;

struct td_model_files {
  char *path;
  td_files_format format;
  td_mapping *maps; /* of weights files; [n_maps] */
  uint32_t n_maps;
  uint64_t mapped_bytes;
  td_arena names; /* tensor and file names */
  td_tensor_table tensors;

  td_gguf_entry *entries; /* GGUF metadata, sorted by key; [n_entries] */
  uint32_t n_entries;

  int dir; /* descriptor of the folder, -1 for GGUF */
  cJSON *config, *generation_config, *tokenizer_config;
  td_mapping chat_template, tool_template;
  bool has_chat_template, has_tool_template;
};

/* file: the base name, owned by files->names. */
TD_MUST_CHECK td_status td_gguf_parse(td_model_files *files, const td_mapping *map, const char *file,
                                      td_error *err);
/* After the first file of a split model has been parsed: maps and parses the other files. */
TD_MUST_CHECK td_status td_gguf_open_parts(td_model_files *files, const char *file, td_error *err);
TD_MUST_CHECK td_status td_safetensors_parse(td_model_files *files, const td_mapping *map, const char *file,
                                             td_error *err);
/* Maps and parses the folder's safetensors file or files. */
TD_MUST_CHECK td_status td_shards_open(td_model_files *files, td_error *err);
/* Maps one weights file in files->dir (or AT_FDCWD) and adds the mapping to files->maps. *out is valid until
 * the next call. */
TD_MUST_CHECK td_status td_model_files_map(td_model_files *files, const char *name, bool *absent,
                                           const td_mapping **out, td_error *err);
/* Reads and parses a JSON file of the folder. absent: as in td_mapping_open. */
TD_MUST_CHECK td_status td_folder_json(const td_model_files *files, const char *name, bool *absent,
                                       cJSON **out, td_error *err);

#endif
