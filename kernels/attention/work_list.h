/* The work list of a step: what each CTA of the attention kernels does, one item per CTA and kv head, or
 * several warp-level ones, made or grown on the host once per step. Plain C data and arithmetic, so that it
 * is tested with no GPU. */
#ifndef TD_KERNELS_ATTENTION_WORK_LIST_H
#define TD_KERNELS_ATTENTION_WORK_LIST_H

#include "kernels/attention/hybrid.h"
#include "kernels/attention/plan.h"

#include <assert.h>
#include <stdalign.h>

enum {
  TD_SPLITS_MAX = 1024,     /* partials of KV splits in a step, however many CTAs there are */
  TD_WORK_LIST_SCRATCH = 4, /* elements for each row */
};

/* All that a CTA must know of its work, so that it finds the first keys by one look-up, of their pages. */
typedef struct td_attention_item {
  alignas(16) uint32_t query; /* the first one's place among the step's tokens */
  uint32_t n_tokens; /* queries; 0: a prefix split of the plan, for one query of each of n_members members */
  uint32_t position; /* of the first query in its row */
  uint32_t page_table_offset; /* of the row, or of the group */
  uint32_t kv_begin, kv_end;  /* keys, of the row or of the group */
  uint32_t partial; /* of a split row: where the partial of this KV split goes; of a prefix split: the slot of
                       head 0 */
  uint32_t first_partial; /* and where those of the row begin; of a prefix split: its number */
  uint32_t n_partials;    /* 0: prefill tiles; 1: a decode tile; more: one of so many KV splits of either, or
                             prefix    splits of the group */
  uint32_t member;        /* of the plan, the row's or the prefix split's first */
  union {
    uint32_t n_sources; /* of a row: how many the plan has for it, which have the keys before, */
    uint32_t n_members;
  };
  union {
    uint32_t first_source; /* and the first */
    uint32_t next;         /* of a prefix split: the item that its CTA does after it, 0: none */
  };
} td_attention_item;
static_assert(sizeof(td_attention_item) == 48, "what a CTA asks for, and each step sends");

typedef struct td_work_list {
  td_attention_item *items; /* [max_items]: prefill tiles, prefix splits, decodes, warp-level decodes; then
                               prefix splits that are other items' next */
  uint32_t max_items;
  uint32_t n_items;            /* without the n_next last */
  uint32_t n_prefill;          /* prefill tiles, which stand first */
  td_hybrid_cut prefill;       /* how these are cut */
  uint32_t n_prefill_partials; /* KV splits of theirs, for each kv head and tile */
  uint32_t longest_prefill;    /* keys of the longest chunk */
  uint32_t n_wide;             /* all but the warp-level ones */
  uint32_t n_next;
  uint32_t n_partials;
  uint32_t n_unsplit; /* decodes that are whole because partials do not suffice */
  uint32_t *scratch;  /* [TD_WORK_LIST_SCRATCH * a plan's rows]: what td_work_list_make works with */
  td_attention_private *of_rows;                /* [a plan's rows]: what no shared-prefix group has */
  struct {                                      /* when it was made, for td_work_list_grow */
    uint32_t n_rows;                            /* 0: not only decodes of one token, and cannot grow */
    uint32_t warp_tokens, longest, prefix_ctas; /* longest: tokens of a wide item */
    uint64_t tokens;
  } made;
} td_work_list;

/* What of the device and the model decides how a step's attention is cut. */
typedef struct td_work_list_config {
  const td_attention_policy *policy; /* or NULL */
  uint32_t gqa_group, n_kv_heads;
  uint32_t n_resident;    /* CTAs of decodes that run at once */
  uint32_t prefill_rows;  /* query rows (tokens x GQA group) of a prefill tile */
  uint32_t decode_rows;   /* of a decode's item; rows of more are prefill tiles, and so are some of as many */
  uint32_t warp_rows_min; /* decodes of a step that may have warp-level items; 0: the kernel has none */
  td_hybrid_config hybrid; /* of which td_work_list_make fills in tile_tokens */
  bool tiles_only; /* decodes are prefill tiles too: then a row's result does not depend on the batch */
} td_work_list_config;

/* Partials of any step. With a policy's KV splits as many as there can be. */
uint32_t td_work_list_partials_max(const td_work_list_config *c);

/* Room that any plan of max_rows rows and max_tokens tokens needs, beside prefix splits
 * (td_attention_prefix_splits_max). */
uint32_t td_work_list_items_max(uint32_t max_rows, uint32_t max_tokens);

/* CTAs that do all decodes and what they share, for each kv head; a CTA does so many warp-level items. */
uint32_t td_work_list_ctas(const td_work_list *list, uint32_t warps);

/* The same of any plan of at most n_rows decodes that share nothing. */
uint32_t td_work_list_ctas_max(const td_work_list_config *c, uint32_t n_rows);

/* What attention does in a step of these rows. planner: its last plan was made of them; NULL: every row by
 * itself. Longest prefill tiles first, so that the tail of the launch is short. */
void td_work_list_make(td_work_list *out, const td_plan *plan, const td_work_list_config *c,
                       const td_attention_planner *planner);

/* The list of the step before, if its rows are now the plan's, in this order, each as long as then or longer,
 * and what they share is the same: their lengths anew, while the cuts are still good. False: it must be made,
 * from nothing. */
bool td_work_list_grow(td_work_list *list, const td_plan *plan, const td_attention_planner *planner);

#endif
