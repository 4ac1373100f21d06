/* The work list of a step: what each CTA of the attention kernels does. There is one item per CTA and kv
 * head, or several warp-level items per CTA. The host makes or updates it once per step. It is plain C data
 * and arithmetic, so that it is tested without a GPU. */
#ifndef TD_KERNELS_ATTENTION_WORK_LIST_H
#define TD_KERNELS_ATTENTION_WORK_LIST_H

#include "kernels/attention/hybrid.h"
#include "kernels/attention/plan.h"

#include <assert.h>
#include <stdalign.h>

enum {
  TD_SPLITS_MAX = 1024,     /* most partials of KV splits in a step */
  TD_WORK_LIST_SCRATCH = 4, /* elements for each row */
};

/* Everything a CTA must know of its work: only one look-up, of page ids, comes before the first keys. */
typedef struct td_attention_item {
  alignas(16) uint32_t query; /* first query, as an index into the step's tokens */
  uint32_t n_tokens;          /* queries; 0: a prefix split, with one query for each of n_members members */
  uint32_t position;          /* of the first query in its row */
  uint32_t page_table_offset; /* of the row, or of the group */
  uint32_t kv_begin, kv_end;  /* keys of the row, or of the group */
  uint32_t partial;           /* KV split: index of its partial. Prefix split: that of head 0 */
  uint32_t first_partial;     /* KV split: index of the row's first partial. Prefix split: its number */
  uint32_t n_partials; /* 0: prefill tiles. 1: a whole decode. More: it is one of n_partials KV splits. Prefix
                          split: the group's number of splits */
  uint32_t member;     /* in the attention plan: the row's member, or the prefix split's first */
  union {
    uint32_t n_memberships; /* memberships of the row, which hold the keys before kv_begin */
    uint32_t n_members;
  };
  union {
    uint32_t first_membership; /* of the row */
    uint32_t next;             /* prefix split: index of the item that its CTA does next; 0: none */
  };
} td_attention_item;
static_assert(sizeof(td_attention_item) == 48, "what a CTA asks for, and each step sends");

typedef struct td_work_list {
  td_attention_item *items; /* [max_items] prefill tiles, prefix splits, wide decodes, warp-level decodes,
                               then the prefix splits that are the `next` of other items */
  uint32_t max_items;
  uint32_t n_items;            /* without the last n_next items */
  uint32_t n_prefill;          /* prefill items, which come first */
  td_hybrid_cut prefill;       /* how they are cut */
  uint32_t n_prefill_partials; /* their KV splits, for each kv head and tile */
  uint32_t longest_prefill;    /* keys of the longest chunk */
  uint32_t n_wide;             /* items before the warp-level ones */
  uint32_t n_next;
  uint32_t n_partials;
  uint32_t n_unsplit;               /* decodes left whole for lack of partials */
  uint32_t *scratch;                /* [TD_WORK_LIST_SCRATCH * a plan's rows] for td_work_list_make */
  td_attention_private *private_kv; /* [a plan's rows] private KV */
  struct {                          /* values when it was made, for td_work_list_grow */
    uint32_t n_rows;                /* 0: not all rows are decodes of one token, so it cannot grow */
    uint32_t warp_tokens, longest, prefix_ctas; /* longest: keys of the longest item that is not warp-level */
    uint64_t tokens;
  } at_make;
} td_work_list;

/* Properties of the device and the model that decide how a step's attention is cut. */
typedef struct td_work_list_config {
  const td_attention_policy *policy; /* may be NULL */
  uint32_t gqa_group, n_kv_heads;
  uint32_t n_resident;     /* CTAs of decodes that run at the same time */
  uint32_t prefill_rows;   /* query rows (tokens x GQA group) of a prefill tile */
  uint32_t decode_rows;    /* most query rows of a decode's item; other plan rows are prefill tiles */
  uint32_t warp_rows_min;  /* least decodes of a step with warp-level items; 0: the kernel has none. Steps of
                              fewer may be fused: then a CTA does one prefix split at most */
  td_hybrid_config hybrid; /* td_work_list_make fills in tile_tokens */
  bool tiles_only;         /* decodes are prefill tiles too, so a row's result does not depend on the batch */
} td_work_list_config;

/* Most partials of any step; with a policy's KV splits, as many as there can be. */
uint32_t td_work_list_partials_max(const td_work_list_config *c);

/* max_items for any plan of max_rows rows and max_tokens tokens, without prefix splits
 * (td_attention_prefix_splits_max). */
uint32_t td_work_list_items_max(uint32_t max_rows, uint32_t max_tokens);

/* CTAs for each kv head that do all decodes and their prefix splits. warps: warp-level items of a CTA. */
uint32_t td_work_list_ctas(const td_work_list *list, uint32_t warps);

/* Most such CTAs in any plan of at most n_rows decodes that share nothing. */
uint32_t td_work_list_ctas_max(const td_work_list_config *c, uint32_t n_rows);

/* Makes the list of a step. planner: its last plan was made from the same step plan; NULL: nothing is shared.
 * Longer prefill items come first, so that the launch has a short tail. */
void td_work_list_make(td_work_list *out, const td_plan *plan, const td_work_list_config *c,
                       const td_attention_planner *planner);

/* Updates the lengths in the previous step's list. With a planner, its last plan must have grown from the
 * previous one (td_attention_planner_has_grown). Returns false if the list must be made from nothing, because
 * rows have changed or the cuts are no longer good. */
bool td_work_list_grow(td_work_list *list, const td_plan *plan, const td_attention_planner *planner);

#endif
