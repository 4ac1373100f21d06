/* Which tensor has which role in the decoder, by its names in both formats. */
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
  TD_ROLE_ATTN_OUT_NORM, /* applied to what attention adds to x */
  TD_ROLE_FFN_OUT_NORM,
  TD_ROLE_COUNT
} td_role;

enum { TD_ROLE_NAME_BYTES = 96 };

/* The tensor's name in the files of a model with this description. layer is ignored for roles that a model
 * has only once. Several roles may be row ranges of one stored tensor: see td_role_stored. */
const char *td_role_name(td_role role, const td_model_desc *d, uint32_t layer, char out[TD_ROLE_NAME_BYTES]);
/* Fills the shape of the stored tensor, and the role's first row in it. Returns n_dims, 1 or 2. */
uint32_t td_role_stored(td_role role, const td_model_desc *d, uint64_t shape[2], uint64_t *first_row);
/* Whether a model of this description has the tensor; and the role's own shape (returns n_dims, 1 or 2). */
bool td_role_present(td_role role, const td_model_desc *d);
uint32_t td_role_shape(td_role role, const td_model_desc *d, uint64_t shape[2]);
/* Every made-up matrix and bias has a seed of its own. */
uint64_t td_role_seed(uint64_t seed, td_role role, uint32_t layer);
/* Whether the role is a norm's factors, which are 1 where weights are made up. */
bool td_role_is_norm(td_role role);

/* The part of a tensor that one of several ranks holds. Matrices that read the residual stream are cut by
 * outputs (heads, columns of the feed-forward, vocabulary); those that write it are cut by inputs. A layer
 * then needs two all-reduces. Norms and the embedding table are whole on every rank. */
typedef struct td_role_slice {
  td_shard shard;
  uint64_t first_row, n_rows, first_col, n_cols; /* n_cols 0: a vector */
} td_role_slice;
td_role_slice td_role_slice_of(td_role role, const td_model_desc *d, uint32_t rank, uint32_t n_ranks);
/* Whether this rank uses the tensor. The bias of a matrix that is cut by inputs belongs to rank 0 alone,
 * because the all-reduce would otherwise add it once for each rank. */
bool td_role_is_on(td_role role, uint32_t rank);
/* TD_ERR_UNSUPPORTED if heads, widths or vocabulary are not multiples of n_ranks. */
TD_MUST_CHECK td_status td_role_check_ranks(const td_model_desc *d, uint32_t n_ranks, td_error *err);
/* True for tensors that change nothing: extras that checkpoints carry, other parts of a wrapper, and the
 * output matrix of a headless model. */
bool td_role_is_harmless(const td_model_desc *d, const td_tensor *t);

#endif
