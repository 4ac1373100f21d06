/* How the prefill of a step is cut into work items, and whether decodes run beside it, on SMs of their own or
 * on the same ones: by predicted time. Plain C arithmetic, so that it is tested with no GPU. */
#ifndef TD_KERNELS_ATTENTION_HYBRID_H
#define TD_KERNELS_ATTENTION_HYBRID_H

#include "kernels/attention/plan.h"

enum {
  TD_PREFILL_PARTIALS_MAX = 528,      /* KV splits x kv heads x tiles of a step's prefill */
  TD_PREFILL_SPLITS_OF_TILE_MAX = 16, /* a warp asks for all of them at once, a lane each */
  TD_COLOCATED_SPLITS_MAX = 8,        /* of a colocated decode: its last split reduces all of them */
};

/* What the device and its kernels are. */
typedef struct td_hybrid_config {
  const td_attention_policy *policy; /* or NULL */
  uint32_t n_sms, n_kv_heads, head_dim;
  uint32_t tile_tokens; /* queries of a prefill tile */
  uint32_t tile_keys; /* of a KV tile; 0: the kernel neither splits nor pairs tiles, nor lets decodes begin */
  uint32_t window_tokens;
  bool has_pairs;          /* the kernel has clusters of two CTAs with a tile each */
  uint32_t colocated_rows; /* query rows of a decode that may run on prefill's SMs; 0: none may */
  double memory_bytes_us;  /* at which scattered pages come */
} td_hybrid_config;

/* The step's prefill: a chunk of n_tokens queries, the last of which sees n_keys keys. */
typedef struct td_hybrid_chunk {
  uint32_t n_tokens, n_keys;
} td_hybrid_chunk;

/* A step's decodes. keys: private ones of all; 0: none may run beside. shared_us: their prefix splits' time,
 * on all SMs. may_colocate: they may run on prefill's SMs. */
typedef struct td_hybrid_decodes {
  uint64_t keys;
  uint32_t longest_keys; /* of one */
  double shared_us;
  bool may_colocate;
} td_hybrid_decodes;

td_hybrid_cut td_hybrid_cut_of(const td_hybrid_config *c, const td_hybrid_chunk *chunks, uint32_t n_chunks,
                               const td_hybrid_decodes *decodes);

/* First key that any query of an item sees: a KV tile's first. */
static inline uint32_t td_hybrid_first_key(const td_hybrid_config *c, uint32_t position)
{
  uint32_t unseen =
      c->window_tokens > 0 && position + 1 > c->window_tokens ? position + 1 - c->window_tokens : 0;
  return c->tile_keys > 0 ? unseen / c->tile_keys * c->tile_keys : 0;
}

/* Of n_keys keys of an item, into how many KV splits they are cut. */
static inline uint32_t td_hybrid_splits(const td_hybrid_cut *cut, uint32_t n_keys)
{
  uint32_t n = cut->split_keys > 0 ? (n_keys + cut->split_keys - 1) / cut->split_keys : 1;
  return n < 1 ? 1 : n < TD_PREFILL_SPLITS_OF_TILE_MAX ? n : TD_PREFILL_SPLITS_OF_TILE_MAX;
}

#endif
