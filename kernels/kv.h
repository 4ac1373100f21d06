/* The shape of a KV store: pages that several groups of layers share.
 *
 * A page id names the KV of page_tokens tokens in all groups. Layers of a group agree in type, heads and
 * window. A page that is behind one group's window is not freed, because its id is still used by the other
 * groups. An op names its layer by (group, layer in the group). Every backend's store struct begins with a
 * td_kv. */
#ifndef TD_KERNELS_KV_H
#define TD_KERNELS_KV_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

enum { TD_KV_GROUPS_MAX = 4 };

typedef struct td_kv_group {
  uint32_t n_layers;
  td_dtype dtype; /* of K and V: td_backend.kv_dtype, for now the same in all groups */
  uint32_t n_kv_heads, head_dim;
  uint32_t n_heads;       /* query heads, for the attention plan */
  uint32_t window_tokens; /* attention window, for the attention plan; 0: none */
} td_kv_group;

typedef struct td_kv_spec {
  uint32_t n_pages, page_tokens, n_groups;
  td_kv_group groups[TD_KV_GROUPS_MAX];
} td_kv_spec;

typedef struct td_kv {
  td_kv_spec spec;
} td_kv;

/* Bytes of K and V of one token in all layers, without a backend's padding. */
static inline uint64_t td_kv_token_bytes(const td_kv_spec *s)
{
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < s->n_groups; i++) {
    const td_kv_group *g = &s->groups[i];
    bytes += (uint64_t)g->n_layers * 2 * g->n_kv_heads * g->head_dim * td_dtypes[g->dtype].block_bytes /
             td_dtypes[g->dtype].block_elements;
  }
  return bytes;
}

#endif
