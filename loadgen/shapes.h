/* Model shapes by name, and the floor of a model's steps: the least time that they can take. */
#ifndef TD_LOADGEN_SHAPES_H
#define TD_LOADGEN_SHAPES_H

#include "models/model_desc.h"

/* Finds a shape like "llama3-8b". The message of a TD_ERR_CONFIG lists all names. */
TD_MUST_CHECK td_status td_shapes_find(const char *name, td_model_desc *out, td_error *err);
const char *td_shapes_names(void); /* "llama3-8b, llama2-7b, ..." */

/* The peak rates of the device. */
typedef struct td_ceiling {
  double bytes_per_s, flop_per_s;
} td_ceiling;

/* Bytes that must be read and operations that must be done, whatever the kernels are. */
typedef struct td_floor_model {
  double layer_parameters, head_parameters; /* of the matrices that tokens are multiplied by */
  double weight_bytes;                      /* of layers and head, as the backend stores them */
  double kv_bytes_per_token;                /* of all layers */
  double attention_flop;                    /* for each pair of query and key, all layers */
} td_floor_model;
/* weight_bytes: of all matrices but the embedding. kv_bytes_per_token: as the backend stores it. */
td_floor_model td_floor_make(const td_model_desc *d, double weight_bytes, double kv_bytes_per_token);

/* Floors in seconds. The linears read the weights once, or do their operations, whichever takes longer.
 * Attention reads the KV of the decodes once, or does the operations of the chunk, whichever takes longer. A
 * step does first the one, then the other; the floor of a prefill counts all its operations together. */
double td_floor_decode_s(const td_floor_model *m, const td_ceiling *c, uint32_t batch, double context_tokens);
double td_floor_prefill_s(const td_floor_model *m, const td_ceiling *c, double prompt_tokens);
/* A chunk whose last token is at position chunk_context, with `batch` decodes of context_tokens each. */
double td_floor_hybrid_s(const td_floor_model *m, const td_ceiling *c, double chunk, double chunk_context,
                         uint32_t batch, double context_tokens);

#endif
