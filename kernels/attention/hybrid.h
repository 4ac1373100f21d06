/* Cuts a step's prefill into work items, and decides by predicted time where decodes run: after prefill,
 * beside it on SMs of their own, or colocated on the same SMs. Plain C, so that it is tested without a
 * GPU. */
#ifndef TD_KERNELS_ATTENTION_HYBRID_H
#define TD_KERNELS_ATTENTION_HYBRID_H

#include "kernels/attention/plan.h"

enum {
  TD_PREFILL_PARTIALS_MAX = 528,      /* most KV splits x kv heads x tiles of a step's prefill */
  TD_PREFILL_SPLITS_OF_TILE_MAX = 16, /* a warp reads all of them together, one per lane */
  TD_COLOCATED_SPLITS_MAX = 8,        /* of a colocated decode: its last split reduces all of them */
};

/* The device and its kernels. */
typedef struct td_hybrid_config {
  const td_attention_policy *policy; /* may be NULL */
  uint32_t n_sms, n_kv_heads, head_dim;
  uint32_t tile_tokens; /* queries of a prefill tile */
  uint32_t tile_keys;   /* of a KV tile; 0: the kernel has no splits or pairs; decodes come after prefill */
  uint32_t window_tokens;
  bool has_pairs;          /* the kernel has clusters of two CTAs, a tile each */
  uint32_t colocated_rows; /* most query rows of a colocated decode; 0: none is colocated */
  double memory_bytes_us;  /* rate of reading scattered pages */
} td_hybrid_config;

/* A prefill chunk of the step: n_tokens queries, the last of which sees n_keys keys. */
typedef struct td_hybrid_chunk {
  uint32_t n_tokens, n_keys;
} td_hybrid_chunk;

/* A step's decodes. keys: all private keys; 0: no decode may run beside prefill. shared_us: time of their
 * prefix splits on all SMs. may_colocate: they may run on prefill's SMs. */
typedef struct td_hybrid_decodes {
  uint64_t keys;
  uint32_t longest_keys; /* of the longest decode */
  double shared_us;
  bool may_colocate;
} td_hybrid_decodes;

td_hybrid_cut td_hybrid_cut_of(const td_hybrid_config *c, const td_hybrid_chunk *chunks, uint32_t n_chunks,
                               const td_hybrid_decodes *decodes);

/* The first key that any query of an item sees, rounded down to a KV tile. */
static inline uint32_t td_hybrid_first_key(const td_hybrid_config *c, uint32_t position)
{
  uint32_t unseen =
      c->window_tokens > 0 && position + 1 > c->window_tokens ? position + 1 - c->window_tokens : 0;
  return c->tile_keys > 0 ? unseen / c->tile_keys * c->tile_keys : 0;
}

/* The number of KV splits of an item with n_keys keys. */
static inline uint32_t td_hybrid_splits(const td_hybrid_cut *cut, uint32_t n_keys)
{
  uint32_t n = cut->split_keys > 0 ? (n_keys + cut->split_keys - 1) / cut->split_keys : 1;
  return n < 1 ? 1 : n < TD_PREFILL_SPLITS_OF_TILE_MAX ? n : TD_PREFILL_SPLITS_OF_TILE_MAX;
}

#endif
