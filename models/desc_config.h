/* Internal to desc_config*.c: the table of families, and functions that read keys of config.json. */
#ifndef TD_MODELS_DESC_CONFIG_H
#define TD_MODELS_DESC_CONFIG_H

#include "models/desc.h"

#define TD_CONFIG_FILE "config.json"

/* Which family's scaling keys a model uses. */
typedef enum td_config_multipliers { NO_MULTIPLIERS, GRANITE, MINICPM, COHERE } td_config_multipliers;
/* Which layers have the sliding window. */
typedef enum td_config_windows {
  NO_WINDOW,
  WINDOW_OF_ALL,
  WINDOW_SWITCH, /* those from max_window_layers on, if use_sliding_window is true */
  WINDOW_OF_SOME /* by layer_types; without it, all but every absent_pattern-th layer */
} td_config_windows;

/* One row of the families table: how transformers' class for that model_type differs from Llama. The absent_*
 * fields say what a missing key means, where that differs from Llama. */
typedef struct td_config_family {
  const char *model_type, *architecture;
  uint32_t absent_head_dim, absent_window, absent_pattern;
  double absent_theta, absent_eps;
  bool absent_tied;
  bool qkv_bias, attention_bias_key, mlp_bias_key, qk_norm, wide_qk_norm, fused, layer_norm;
  bool rope_pairs, partial_rotary, mrope;
  bool no_rope_layers_key;     /* no_rope_layers, or else every fourth layer, is not rotated */
  bool no_rope_without_window; /* layers without the window are not rotated */
  bool rope_by_windows;        /* layers with the window have frequencies of their own */
  bool is_wrapper;             /* config.json describes the text model and other parts in one object */
  td_block_form block_form;
  td_config_multipliers multipliers;
  td_config_windows window;
} td_config_family;

typedef struct td_config_reader {
  const cJSON *config;  /* the text model's object */
  const cJSON *wrapper; /* the object that contains it as text_config, or NULL */
  const td_model_files *files;
  const char *file; /* for messages */
  const td_config_family *family;
  td_error *err;
} td_config_reader;

/* The JSON getters report TD_ERR_REQUEST. This turns that into TD_ERR_MODEL, because here the value is in a
 * model file. */
TD_MUST_CHECK td_status td_config_as_model_error(const td_config_reader *r, td_status st);
/* If the key is absent, *out keeps its value; an initial 0 makes the key required. */
TD_MUST_CHECK td_status td_config_read_u32(const td_config_reader *r, const char *key, td_limit_id limit,
                                           uint32_t *out);
/* If the key is absent, *out keeps its value. */
TD_MUST_CHECK td_status td_config_read_double(const td_config_reader *r, const cJSON *object, const char *key,
                                              double *out);
/* True if the item is absent, null, false or 0. */
bool td_config_is_unset(const cJSON *item);

/* In desc_config_rope.c: how layers are rotated. Sizes and windows must have been read. */
TD_MUST_CHECK td_status td_config_read_rope(const td_config_reader *r, td_model_desc *d, td_rope_spec *alt);
/* In desc_config_generation.c: end tokens and sampling defaults. generation is that file's object, or
 * NULL. */
TD_MUST_CHECK td_status td_config_read_generation(td_config_reader *r, const cJSON *generation,
                                                  td_model_desc *d);

#endif
