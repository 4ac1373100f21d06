/* Inside desc_config*.c: the families, and reading keys of config.json. */
#ifndef TD_MODELS_DESC_CONFIG_H
#define TD_MODELS_DESC_CONFIG_H

#include "models/desc.h"

#define TD_CONFIG_FILE "config.json"

/* Keys that multiply: of which family. */
typedef enum td_config_multipliers { NO_MULTIPLIERS, GRANITE, MINICPM, COHERE } td_config_multipliers;
/* Which layers have the window. */
typedef enum td_config_windows {
  NO_WINDOW,
  WINDOW_OF_ALL,
  WINDOW_SWITCH, /* only where use_sliding_window says so, and from max_window_layers on */
  WINDOW_OF_SOME /* all but each absent_pattern-th, if layer_types does not say */
} td_config_windows;

/* A row: how transformers' class of that model_type differs from Llama. absent_*: what a missing key means
 * where that is not Llama's meaning. */
typedef struct td_config_family {
  const char *model_type, *architecture;
  uint32_t absent_head_dim, absent_window, absent_pattern;
  double absent_theta, absent_eps;
  bool absent_tied;
  bool qkv_bias, attention_bias_key, mlp_bias_key, qk_norm, wide_qk_norm, fused, layer_norm;
  bool rope_pairs, partial_rotary, mrope;
  bool nope_layers;     /* no_rope_layers, or each fourth layer is not rotated */
  bool nope_full;       /* layers without the window are not rotated */
  bool rope_by_windows; /* layers with the window have frequencies of their own */
  bool is_wrapper;      /* the description of a text model and of others in one object */
  td_block_form form;
  td_config_multipliers by;
  td_config_windows window;
} td_config_family;

typedef struct td_config_reader {
  const cJSON *config;  /* of the text model */
  const cJSON *wrapper; /* the object that has it as text_config, or NULL */
  const td_model_files *files;
  const char *file; /* for messages */
  const td_config_family *family;
  td_error *err;
} td_config_reader;

/* The JSON getters speak of requests; here a wrong value is the model's fault. */
TD_MUST_CHECK td_status td_config_as_model_error(const td_config_reader *r, td_status st);
/* An absent key keeps *out; 0 there means that the key is required. */
TD_MUST_CHECK td_status td_config_read_u32(const td_config_reader *r, const char *key, td_limit_id limit,
                                           uint32_t *out);
/* Absent keeps *out. */
TD_MUST_CHECK td_status td_config_read_double(const td_config_reader *r, const cJSON *object, const char *key,
                                              double *out);
/* Absent, null, false or 0. */
bool td_config_is_unset(const cJSON *item);

/* desc_config_rope.c: how layers are rotated; sizes and windows are read. */
TD_MUST_CHECK td_status td_config_read_rope(const td_config_reader *r, td_model_desc *d, td_rope_spec *other);
/* desc_config_generation.c: end tokens and defaults of sampling. generation: NULL, or its file's object. */
TD_MUST_CHECK td_status td_config_read_generation(td_config_reader *r, const cJSON *generation,
                                                  td_model_desc *d);

#endif
