/* What the blocks of the attention kernel do: one item per block and kv head, or several narrow ones, made or grown on the host once per step.
 * Plain C data and arithmetic, so that it is tested with no GPU. */
#ifndef TD_KERNELS_CUDA_ATTENTION_ITEMS_H
#define TD_KERNELS_CUDA_ATTENTION_ITEMS_H

#include "kernels/attention/plan.h"

#include <assert.h>
#include <stdalign.h>

enum {
  TD_PREFILL_ROWS_MMA = 64,    /* packed rows (tokens x group heads) of a prefill tile of attention.cu */
  TD_PREFILL_ROWS_WGMMA = 128, /* and of attention_prefill.cu */
  TD_DECODE_ROWS = 16,         /* of a decode tile */
  TD_GROUP_MAX = 64,           /* query heads of a kv head: no tile holds a token of more */
  TD_SPLITS_MAX = 1024,        /* partials of a step, however many blocks there are */
  TD_NARROW_ITEMS = 4,         /* narrow items of a block: one a warp */
  TD_NARROW_ROWS_MIN = 17,     /* decodes of a step that has narrow items */
  TD_ITEMS_SCRATCH = 3,
};

/* All that a block must know of its work, so that it finds the first keys by one look-up, of their pages. */
typedef struct td_attention_item {
  alignas(16) uint32_t query;  /* the first one's place among the step's tokens */
  uint32_t n_tokens;           /* queries; 0: a prefix split of the plan, for one query of each of n_members members */
  uint32_t position;           /* of the first query in its row */
  uint32_t page_table_offset;  /* of the row, or of the group */
  uint32_t kv_begin, kv_end;   /* keys, of the row or of the group */
  uint32_t partial;            /* of a split row: where this share's partial goes; of a prefix split: the slot of head 0 */
  uint32_t first_partial;      /* and where those of the row begin; of a prefix split: its number */
  uint32_t n_partials;         /* 0: a prefill tile; 1: a decode tile; more: one of so many KV splits of a decode, or prefix splits of the group */
  uint32_t member;             /* of the plan, the row's or the prefix split's first */
  union {
    uint32_t n_sources;        /* of a row: how many the plan has for it, which have the keys before, */
    uint32_t n_members;
  };
  union {
    uint32_t first_source;     /* and the first */
    uint32_t next;             /* of a prefix split: the item that its CTA does after it, 0: none */
  };
} td_attention_item;
static_assert(sizeof(td_attention_item) == 48, "what a block asks for, and each step sends");

typedef struct td_attention_items {
  td_attention_item *items; /* [max_items]: prefill tiles, prefix splits, decodes, narrow decodes, of which a warp does one alone; then
                               prefix splits that are other items' next */
  uint32_t n_items, n_prefill, n_wide, n_next, max_items; /* n_wide: all but the narrow ones; n_items: without the n_next last */
  uint32_t n_partials;
  uint32_t n_unsplit; /* decodes that are whole because partials do not suffice */
  uint32_t *scratch; /* [TD_ITEMS_SCRATCH * a plan's rows]: what td_attention_items_make works with */
  td_attention_private *of_rows; /* [a plan's rows]: what no shared-prefix group has */
  struct {           /* when they were made, for td_attention_items_grow */
    uint32_t n_rows; /* 0: not only decodes of one token, and cannot grow */
    uint32_t narrow_tokens, longest, prefix_ctas; /* longest: tokens of a wide item */
    uint64_t tokens;
  } made;
} td_attention_items;

/* Partials of any step. With a policy's KV splits as many as there can be. */
uint32_t td_attention_partials_max(uint32_t n_kv_heads, uint32_t n_blocks, const td_attention_policy *policy);

/* Room that any plan of max_rows rows and max_tokens tokens needs, beside prefix splits (td_attention_prefix_splits_max). */
uint32_t td_attention_items_max(uint32_t max_rows, uint32_t max_tokens);

/* Blocks of the decode kernel that run on an SM at once, by its shared memory. */
static inline uint32_t td_attention_decode_blocks(uint32_t head_dim) { return head_dim > 128 ? 1 : head_dim == 96 ? 4 : 3; }

/* The same where rows share something. */
static inline uint32_t td_attention_shares_blocks(uint32_t head_dim) { return head_dim == 96 ? 3 : td_attention_decode_blocks(head_dim); }

/* Blocks that do all decodes and what they share, for each kv head. */
static inline uint32_t td_attention_decode_works(const td_attention_items *items)
{
  return items->n_wide - items->n_prefill + (items->n_items - items->n_wide + TD_NARROW_ITEMS - 1) / TD_NARROW_ITEMS;
}

/* The same of any plan of at most n_rows decodes that share nothing. */
uint32_t td_attention_decode_works_max(uint32_t n_rows, uint32_t n_kv_heads, uint32_t n_blocks, const td_attention_policy *policy);

/* What of the device and the model decides how a plan is cut. */
typedef struct td_attention_cut {
  uint32_t group;        /* query heads per kv head, 1..TD_GROUP_MAX */
  uint32_t n_kv_heads;
  uint32_t n_blocks;     /* of decodes that run at once */
  uint32_t prefill_rows; /* packed rows of a prefill tile */
  bool tiles_only;       /* decodes are prefill tiles too: then a row's result does not depend on the batch */
  bool narrow;           /* the kernel knows narrow items */
} td_attention_cut;

/* What attention does in a step of these rows. planner: its last plan was made of them; NULL: every row by itself. Longest prefill tiles first, so
 * that the tail of the launch is short. */
void td_attention_items_make(td_attention_items *out, const td_plan *plan, const td_attention_cut *cut, const td_attention_planner *planner);

/* The items of the step before, if its rows are now the plan's, in this order, each as long as then or longer, and what they share is the same: their
 * lengths anew, while the cuts are still good. False: they must be made, from nothing. */
bool td_attention_items_grow(td_attention_items *items, const td_plan *plan, const td_attention_planner *planner);

#endif
