/* Which tensor plays which part, by the names of both formats. */
#ifndef TD_MODELS_ROLES_H
#define TD_MODELS_ROLES_H

#include "models/model_desc.h"

typedef enum td_role {
  TD_ROLE_EMBED,
  TD_ROLE_OUT_NORM,
  TD_ROLE_HEAD,
  TD_ROLE_ATTN_NORM, /* from here on: one per layer */
  TD_ROLE_Q,
  TD_ROLE_K,
  TD_ROLE_V,
  TD_ROLE_O,
  TD_ROLE_Q_BIAS,
  TD_ROLE_K_BIAS,
  TD_ROLE_V_BIAS,
  TD_ROLE_O_BIAS,
  TD_ROLE_Q_NORM,
  TD_ROLE_K_NORM,
  TD_ROLE_FFN_NORM,
  TD_ROLE_GATE,
  TD_ROLE_UP,
  TD_ROLE_DOWN,
  TD_ROLE_GATE_BIAS,
  TD_ROLE_UP_BIAS,
  TD_ROLE_DOWN_BIAS,
  TD_ROLE_ATTN_OUT_NORM, /* of what attention adds to x */
  TD_ROLE_FFN_OUT_NORM,
  TD_ROLE_COUNT
} td_role;

enum { TD_ROLE_NAME_BYTES = 96 };

/* The tensor's name in the files of such a model; layer is ignored for roles that the model has once. Several
 * roles may be one tensor, one below the other: see td_role_stored. */
const char *td_role_name(td_role role, const td_model_desc *d, uint32_t layer, char out[TD_ROLE_NAME_BYTES]);
/* The shape of the stored tensor, and the role's first row in it. n_dims is 1 or 2. */
uint32_t td_role_stored(td_role role, const td_model_desc *d, uint64_t shape[2], uint64_t *first_row);
/* Whether a model of this description has the tensor, and its shape: n_dims is 1 or 2. */
bool td_role_present(td_role role, const td_model_desc *d);
uint32_t td_role_shape(td_role role, const td_model_desc *d, uint64_t shape[2]);
/* Every made-up matrix and bias has a seed of its own. */
uint64_t td_role_seed(uint64_t seed, td_role role, uint32_t layer);
/* A norm's factors: 1 where weights are made up. */
bool td_role_is_norm(td_role role);

/* What one of several ranks has of a tensor. Matrices that read the residual stream are cut by outputs
 * (heads, columns of the feed-forward, tokens), those that write it by inputs: a layer then needs two
 * all-reduces. Norms and the embedding table are on every rank. */
typedef struct td_role_slice {
  td_shard shard;
  uint64_t first_row, n_rows, first_col, n_cols; /* n_cols 0: a vector */
} td_role_slice;
td_role_slice td_role_slice_of(td_role role, const td_model_desc *d, uint32_t rank, uint32_t n_ranks);
/* False for what the all-reduce would add once a rank: the bias of a matrix that is cut by inputs is rank
 * 0's.
 */
bool td_role_is_on(td_role role, uint32_t rank);
/* TD_ERR_UNSUPPORTED where heads, widths or vocabulary are no multiples of n_ranks. */
TD_MUST_CHECK td_status td_role_check_ranks(const td_model_desc *d, uint32_t n_ranks, td_error *err);
/* Tensors that change nothing: what checkpoints carry beside the weights, other parts of a wrapper, and the
 * output matrix where none is used. */
bool td_role_is_harmless(const td_model_desc *d, const td_tensor *t);

#endif
