/* What one launch of decode attention shares: the attention plan of a step.
 *
 * A *shared-prefix group* is a run of consecutive keys and the decodes ("members") that attend to all of it:
 * a node of the prefix tree with a tile of the sequences that share it. Its keys are cut into *prefix
 * splits*. For each kv head one CTA computes a split for all members and writes a *partial* for each: the
 * softmax's maximum, sum and output. What of a sequence no group covers is its *private KV*; its work items
 * (kernels/attention/work_list.h) come from td_attention_planner_private. The CTA that ends a sequence waits
 * for the splits of its groups and reduces their partials in the order of keys, so a result does not depend
 * on the order of arrival. Every key of every decode is in exactly one split or work item.
 *
 * A kernel reads one block of memory, so that one copy takes it to the device: header, members, sources. The
 * same plan serves all layers of a KV group. Sources: PAT (packing by profit), FlashDecoding (splits);
 * README.md beside this says why. */
#ifndef TD_KERNELS_ATTENTION_PLAN_H
#define TD_KERNELS_ATTENTION_PLAN_H

#include <stdint.h>

#include "step/plan.h"

enum {
  TD_ATTENTION_TILE_ROWS_MAX = 128, /* query rows (members x heads of a GQA group) of a shared-prefix group */
  TD_ATTENTION_LEVELS_MAX = 16,     /* shared-prefix groups of a sequence */
  TD_ATTENTION_SPLIT_FIXED_KEYS =
      300, /* a prefix split's prologue and epilogue, in the keys that its CTA would have done meanwhile */
};

/* The keys of a shared-prefix group, and how they are split: all splits but the last have split_keys keys.
 * The partial of head h, split c and member i is first_slot + (h * n_splits + c) * n_members + i. */
typedef struct td_attention_group {
  uint32_t n_keys, first_page; /* key k lies in page page_table[first_page + k / page_tokens] */
  uint32_t first_member, n_members;
  uint32_t first_split, n_splits, split_keys; /* split_keys: a multiple of 64 */
  uint32_t first_slot;
} td_attention_group;

/* What the end of a sequence must know of a group. The partial of head h, split c and member i is slot + (h *
 * n_splits + c) * n_members + i, modulo 2^32. */
typedef struct td_attention_source {
  uint32_t slot; /* as if the group's members began with member 0 */
  uint32_t n_splits, n_members;
  uint32_t first_split; /* the group's first split */
} td_attention_source;

/* A decode; its groups are sources[first_source .. + n_sources), in the order of keys. */
typedef struct td_attention_member {
  uint32_t token;  /* its query: index of the step's tokens */
  uint32_t n_keys; /* of all its groups and its private KV */
  uint32_t first_source, n_sources;
} td_attention_member;

/* The block begins with this. Places are in bytes from the block's begin. */
typedef struct td_attention_header {
  uint32_t n_members, n_sources, n_groups;
  uint32_t n_splits;    /* prefix splits of one head; 0: nothing is shared */
  uint32_t n_slots;     /* partials */
  uint32_t prefix_ctas; /* for each kv head, that do the splits, at most */
  uint32_t block_bytes;
  uint32_t members_at, sources_at;
  uint32_t reserved[3];
} td_attention_header;

/* How a step's prefill is cut (kernels/attention/hybrid.h). */
typedef struct td_hybrid_cut {
  uint32_t tiles;          /* of an item, by a cluster of as many CTAs */
  uint32_t split_keys;     /* an item has at most so many, a KV tile's multiple; 0: all */
  uint32_t sms_beside;     /* that prefill leaves to decodes, which begin at once; 0: they come after it */
  uint32_t colocated_keys; /* decodes also run on prefill's SMs, in KV splits of at most so many keys, or of
                              as many as partials and TD_COLOCATED_SPLITS_MAX allow; 0: they do not */
  uint32_t beside_keys;    /* of decodes on SMs of their own, the same; 0: they are cut as without prefill */
} td_hybrid_cut;

/* What decides in the place of predicted time, for comparisons (bench/attention_policies.h). A function that
 * is NULL leaves its decision to the planner. */
typedef struct td_attention_policy {
  const char *name;
  bool always_shares; /* else what sharing saves must be more than what it costs */
  /* Whether n_rows decodes that have n_keys keys in common with others read them in the group of all these.
   */
  bool (*shares)(uint32_t n_keys, uint32_t n_rows);
  /* Into how many KV splits of one length the private KV of each decode is cut, in a step of n_decodes whose
   * CTAs run n_resident at once for each kv head. */
  uint32_t (*kv_splits)(uint32_t n_decodes, uint32_t n_resident);
  td_hybrid_cut hybrid; /* where its tiles are not 0 */
  bool never_beside;    /* decodes come after prefill */
} td_attention_policy;

/* Groups by predicted time, whatever sharing costs a step beside them: what the kernel is worth alone; and
 * small batches, of tests, have groups too. */
extern const td_attention_policy td_attention_always;

/* What the device is good for, as one CTA sees it when all are busy. */
typedef struct td_attention_cost {
  double memory_bytes_us; /* KV from memory */
  double l2_bytes_us;     /* KV that another CTA has just read, and partials */
  double l2_bytes;        /* how much KV is such */
  double tensor_flop_us;  /* of 64 query rows and more */
  double start_us;        /* of a prefix split */
  double partial_us;      /* of each member's partial and head, beside its bytes */
  double alone_bytes_us;  /* KV that decodes have in common, where each reads it by itself */
  double sharing_us;      /* of a step that shares, whatever it shares: what it saves must be more */
} td_attention_cost;

/* An H200's, shared out over so many resident CTAs. */
td_attention_cost td_attention_cost_of_h200(uint32_t n_resident);

typedef struct td_attention_planner_config {
  const td_attention_policy *policy; /* NULL: all is decided by predicted time */
  uint32_t max_rows;                 /* decodes of a step */
  uint32_t n_resident;               /* CTAs of the launch that run at once */
  uint32_t n_kv_heads, gqa_group, head_dim, page_tokens;
  uint32_t window_tokens; /* 0: none. What lies before every window is not read; the kernel masks what its
                             page holds */
  uint32_t tile_rows;     /* at most so many query rows in a group: what the kernel has; at least gqa_group */
  uint32_t max_slots;     /* 0: as many as td_attention_slots_of says */
  bool reduces_in_tiles;  /* the kernel adds partials up for all heads of a GQA group at once, so that each
                             costs more */
  td_attention_cost cost;
} td_attention_planner_config;

/* What the last plan is, and plans since create. */
typedef struct td_attention_stats {
  uint64_t n_full, n_grown;
  uint64_t n_unshared; /* of the full ones, without sharing because the slots would not have sufficed */
  double shared_us;    /* predicted, of all prefix splits together */
  double longest_us;   /* of the longest one */
  uint64_t private_keys, shared_keys; /* of one head; shared ones once */
} td_attention_stats;

/* What of a decode no group has: its keys from `begin` on, a page's first. */
typedef struct td_attention_private {
  uint32_t begin;
  uint32_t member, first_source,
      n_sources; /* n_sources 0: it shares nothing; then begin is 0, whatever its window */
} td_attention_private;

typedef struct td_attention_planner td_attention_planner;

/* Partials that a planner of this config needs: for six levels of groups; with a policy for as many as there
 * can be, so that no batch lacks any. */
uint32_t td_attention_slots_of(const td_attention_planner_config *config);
/* Prefix splits of one head, of any plan of n_rows decodes. */
uint32_t td_attention_prefix_splits_max(const td_attention_planner_config *config, uint32_t n_rows);
uint32_t td_attention_block_bytes_max(const td_attention_planner_config *config);

/* TD_ERR_CONFIG for a shape that no plan can have, naming it. */
TD_MUST_CHECK td_status td_attention_planner_create(const td_attention_planner_config *config,
                                                    td_attention_planner **out, td_error *err);
void td_attention_planner_destroy(td_attention_planner *p);

/* Plans the rows of q_len 1; others are left out. Where these are the rows of the plan before, grown by some
 * tokens, only lengths are made anew. A page id that two rows have at the same place means that they have all
 * pages before it in common: KV depends on all tokens before it, so no right page table is otherwise.
 * TD_ERR_CAPACITY: more rows than max_rows, or keys than there are page table entries; nothing was planned.
 */
TD_MUST_CHECK td_status td_attention_planner_make(td_attention_planner *p, const td_plan *plan,
                                                  td_error *err);
void td_attention_planner_reset(td_attention_planner *p); /* the next plan is made from nothing */

td_attention_planner_config td_attention_planner_config_of(const td_attention_planner *p);

/* Whether the last plan is the one before with other lengths: the same rows in the same order, sharing the
 * same. */
bool td_attention_planner_has_grown(const td_attention_planner *p);

/* The last plan. Valid until the next one is made. */
const td_attention_header *td_attention_planner_block(const td_attention_planner *p);
const td_attention_group *
td_attention_planner_groups(const td_attention_planner *p); /* [n_groups], in the order of splits */
td_attention_stats td_attention_planner_stats(const td_attention_planner *p);

/* Of each of plan's rows; the last plan was made of them. out: [plan->n_rows]. */
void td_attention_planner_private(const td_attention_planner *p, const td_plan *plan,
                                  td_attention_private *out);

/* A partial of one query head in the device's memory: elements as f16 in units of the largest, then the
 * softmax's maximum and sum, the unit, and a word that fills 16 bytes. Half of what f32 takes. Its error is
 * an eighth of the bf16 output's, for elements of less than 2^-14 of the largest 2^-25 of that: as large as
 * the output's at 2^-17. An infinite element makes all of its row NaN, which ends the request. */
#define TD_ATTENTION_PARTIAL_BYTES(head_dim) (2u * (head_dim) + 16)

static inline const void *td_attention_at(const td_attention_header *h, uint32_t at)
{
  return (const unsigned char *)h + at;
}

#endif
