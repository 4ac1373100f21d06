/* Model shapes by name, and what a model's shape says about the least time that its steps can take. */
#ifndef TD_LOADGEN_SHAPES_H
#define TD_LOADGEN_SHAPES_H

#include "models/model_desc.h"

/* "llama3-8b", "smollm2", ... TD_ERR_CONFIG lists the names. */
TD_MUST_CHECK td_status td_shapes_find(const char *name, td_model_desc *out, td_error *err);
const char *td_shapes_names(void); /* "llama3-8b, llama2-7b, ..." */

/* What the device can do at most. */
typedef struct td_ceiling {
  double bytes_per_s, flop_per_s;
} td_ceiling;

/* Bytes that must be read and operations that must be done, whatever the kernels. */
typedef struct td_floor_model {
  double layer_parameters, head_parameters; /* of matrices that tokens are multiplied with */
  double weight_bytes;                      /* of both, as the backend keeps them */
  double kv_bytes_per_token;                /* all layers */
  double attention_flop;                    /* per (query, key) pair, all layers */
} td_floor_model;
/* weight_bytes: what all matrices take but the embedding; kv_bytes_per_token as the backend stores it. */
td_floor_model td_floor_make(const td_model_desc *d, double weight_bytes, double kv_bytes_per_token);

/* Seconds. Linears: weights once, or their operations; decodes' attention: their KV once. Operations and
 * reading overlap within each of the two, and chunk attention overlaps with decode attention. */
double td_floor_decode_s(const td_floor_model *m, const td_ceiling *c, uint32_t batch, double context_tokens);
double td_floor_prefill_s(const td_floor_model *m, const td_ceiling *c, double prompt_tokens);
/* A chunk whose last token is at chunk_context, beside `batch` decodes at context_tokens each. */
double td_floor_hybrid_s(const td_floor_model *m, const td_ceiling *c, double chunk, double chunk_context,
                         uint32_t batch, double context_tokens);

#endif
