/* The attention plan of a step: which keys decodes share, and how the shared keys are split.
 *
 * A *shared-prefix group* is a run of consecutive keys and the decodes ("members") that attend to all of
 * them. It is a node of the prefix tree with the sequences that share it, at most one tile of them, or at
 * most as many as a decode item has query rows (a *small* group). Its keys are cut into *prefix splits*. For
 * each kv head one CTA computes a split for all members and writes a *partial* for each member: the softmax's
 * maximum, sum and output. The keys of a sequence that no group covers are its *private KV*. Their work items
 * (kernels/attention/work_list.h) are made from td_attention_planner_private. The CTA that finishes a
 * sequence waits for the splits of its groups and reduces their partials in the order of keys, so a result
 * does not depend on the order of arrival. Every key of every decode is in exactly one split or work item.
 *
 * Header, members and memberships lie in one block of memory, so one copy takes them to the device. All
 * layers of a KV group use the same plan. Sources: PAT (packing by profit), FlashDecoding (splits). README.md
 * in this folder gives the reasons. */
#ifndef TD_KERNELS_ATTENTION_PLAN_H
#define TD_KERNELS_ATTENTION_PLAN_H

#include <stdint.h>

#include "step/plan.h"

enum {
  TD_ATTENTION_TILE_ROWS_MAX = 128,    /* most query rows (members x GQA group) of a shared-prefix group */
  TD_ATTENTION_LEVELS_MAX = 16,        /* most shared-prefix groups of a sequence */
  TD_ATTENTION_SPLIT_FIXED_KEYS = 300, /* a prefix split's prologue and epilogue, in keys of the same time */
};

/* The keys of a shared-prefix group, and how they are split. All splits but the last have split_keys keys.
 * The partial of head h, split c and member i is first_partial + (h * n_splits + c) * n_members + i. */
typedef struct td_attention_group {
  uint32_t n_keys, first_page; /* key k is in page page_table[first_page + k / page_tokens] */
  uint32_t first_member, n_members;
  uint32_t first_split, n_splits, split_keys; /* split_keys: a multiple of 64 */
  uint32_t first_partial;
} td_attention_group;

/* What the CTA that reduces a sequence needs to know of a group. The partial of head h, split c and member i
 * is base_partial + (h * n_splits + c) * n_members + i, modulo 2^32. */
typedef struct td_attention_membership {
  uint32_t base_partial; /* the group's first_partial, moved as if its members began with member 0 */
  uint32_t n_splits, n_members;
  uint32_t first_split; /* the group's first split */
} td_attention_membership;

/* A decode. Its groups are memberships[first_membership .. + n_memberships), in the order of keys. */
typedef struct td_attention_member {
  uint32_t token;  /* its query, as an index into the step's tokens */
  uint32_t n_keys; /* in its groups and its private KV together */
  uint32_t first_membership, n_memberships;
} td_attention_member;

/* Begins the block. members_at and memberships_at are byte offsets from the block's begin. */
typedef struct td_attention_header {
  uint32_t n_members, n_memberships, n_groups;
  uint32_t n_splits;    /* prefix splits of one head; 0: nothing is shared */
  uint32_t n_partials;  /* of prefix splits */
  uint32_t prefix_ctas; /* most CTAs for each kv head that do prefix splits of groups that are not small */
  uint32_t block_bytes;
  uint32_t members_at, memberships_at;
  uint32_t reserved[3];
} td_attention_header;

/* How a step's prefill is cut (kernels/attention/hybrid.h). */
typedef struct td_hybrid_cut {
  uint32_t tiles;          /* prefill tiles of a work item, done by a cluster of as many CTAs */
  uint32_t split_keys;     /* most keys of a work item, a multiple of a KV tile; 0: all */
  uint32_t sms_beside;     /* SMs that prefill leaves to decodes beside it; 0: decodes run after prefill */
  uint32_t colocated_keys; /* most keys of a KV split of colocated decodes; more if partials or
                              TD_COLOCATED_SPLITS_MAX require it; 0: no decodes are colocated */
  uint32_t beside_keys;    /* likewise, of decodes beside prefill; 0: they are cut as without prefill */
} td_hybrid_cut;

/* Decides in place of predicted time, for comparisons (bench/attention_policies.h). A NULL function leaves
 * its decision to the planner. */
typedef struct td_attention_policy {
  const char *name;
  bool always_shares; /* otherwise sharing must save more than it costs */
  bool never_small;   /* groups of few decodes are not cut into small ones */
  /* Whether n_rows decodes read n_keys keys in the group of all decodes that have these keys in common. */
  bool (*shares)(uint32_t n_keys, uint32_t n_rows);
  /* The number of KV splits, of one length, into which each decode's private KV is cut. The step has
   * n_decodes decodes, and n_resident CTAs for each kv head run at the same time. */
  uint32_t (*kv_splits)(uint32_t n_decodes, uint32_t n_resident);
  td_hybrid_cut hybrid; /* used if its `tiles` is not 0 */
  bool never_beside;    /* decodes run after prefill */
} td_attention_policy;

/* Packs by predicted time, but shares however much sharing costs a step. It shows what the kernel alone
 * gains, and makes small test batches have groups. */
extern const td_attention_policy td_attention_always;

/* The device's rates and costs, as one CTA sees them when all are busy. */
typedef struct td_attention_cost {
  double memory_bytes_us;  /* KV from memory */
  double l2_bytes_us;      /* KV that another CTA has just read, and partials */
  double l2_bytes;         /* how much recently read KV stays in the L2 cache */
  double tensor_flop_us;   /* with 64 query rows or more */
  double start_us;         /* fixed cost of a prefix split */
  double partial_us;       /* fixed cost of a partial, for each member and head; its bytes come on top */
  double alone_bytes_us;   /* shared KV, if each decode reads it by itself */
  double sharing_us;       /* fixed cost of a step that shares: sharing must save more */
  double small_sharing_us; /* the same if all groups are small, with the first of them */
  double small_group_us;   /* and with each further one */
} td_attention_cost;

/* The costs of an H200, whose rates n_resident CTAs divide equally. */
td_attention_cost td_attention_cost_of_h200(uint32_t n_resident);

typedef struct td_attention_planner_config {
  const td_attention_policy *policy; /* NULL: predicted time decides everything */
  uint32_t max_rows;                 /* most decodes of a step */
  uint32_t n_resident;               /* CTAs of the launch that run at the same time */
  uint32_t n_kv_heads, gqa_group, head_dim, page_tokens;
  uint32_t window_tokens; /* 0: none. The planner leaves out whole pages before the window; the kernel masks
                             the rest */
  uint32_t tile_rows;     /* most query rows of a group that the kernel can do; at least gqa_group */
  /* Groups of at most so many query rows are small: a CTA attends to one of their splits as to a decode. As
   * many as the kernel's decode items have, or 0: no group is small. */
  uint32_t small_rows;
  uint32_t max_partials; /* 0: as many as td_attention_partials_max returns */
  bool reduces_in_tiles; /* the kernel reduces partials for all heads of a GQA group together, so each partial
                            costs more */
  td_attention_cost cost;
} td_attention_planner_config;

/* Numbers of the last plan, and counts of plans since create. */
typedef struct td_attention_stats {
  uint64_t n_full, n_grown;
  uint64_t n_unshared;                /* plans made from nothing that share nothing for lack of partials */
  double shared_us;                   /* predicted time of all prefix splits, added up */
  double longest_us;                  /* predicted time of the longest split */
  uint64_t private_keys, shared_keys; /* of one head; a shared key counts once */
} td_attention_stats;

/* The keys of a decode that no group covers: those from `begin` on, the first key of a page. */
typedef struct td_attention_private {
  uint32_t begin;
  uint32_t member, first_membership,
      n_memberships; /* 0: it shares nothing; then begin is 0, even with a window */
} td_attention_private;

typedef struct td_attention_planner td_attention_planner;

/* Partials that a planner of this config needs: enough for six levels of groups, or, with a policy, for the
 * most levels that there can be. */
uint32_t td_attention_partials_max(const td_attention_planner_config *config);
/* Most prefix splits of one head in any plan of n_rows decodes. */
uint32_t td_attention_prefix_splits_max(const td_attention_planner_config *config, uint32_t n_rows);
uint32_t td_attention_block_bytes_max(const td_attention_planner_config *config);

/* TD_ERR_CONFIG, with a message that names the value: no plan can have this shape. */
TD_MUST_CHECK td_status td_attention_planner_create(const td_attention_planner_config *config,
                                                    td_attention_planner **out, td_error *err);
void td_attention_planner_destroy(td_attention_planner *p);

/* Plans the rows with q_len 1 and ignores the others. If they are the rows of the previous plan, grown by
 * some tokens, only their lengths are updated. If two rows have the same page at the same index, the planner
 * takes all pages before it as common too: KV depends on all tokens before it, so a correct page table has no
 * other case. TD_ERR_CAPACITY: more rows than max_rows, or keys beyond the page table; then nothing was
 * planned. */
TD_MUST_CHECK td_status td_attention_planner_make(td_attention_planner *p, const td_plan *plan,
                                                  td_error *err);
void td_attention_planner_reset(td_attention_planner *p); /* the next plan is made from nothing */

td_attention_planner_config td_attention_planner_config_of(const td_attention_planner *p);

/* Whether the last plan differs from the previous one only in lengths: the same rows share the same keys, in
 * the same order. */
bool td_attention_planner_has_grown(const td_attention_planner *p);

/* The last plan. Valid until the next one is made. */
const td_attention_header *td_attention_planner_block(const td_attention_planner *p);
const td_attention_group *
td_attention_planner_groups(const td_attention_planner *p); /* [n_groups], in the order of splits */
td_attention_stats td_attention_planner_stats(const td_attention_planner *p);

/* Fills in out [plan->n_rows]. The last plan must have been made from this step plan. */
void td_attention_planner_private(const td_attention_planner *p, const td_plan *plan,
                                  td_attention_private *out);

/* Bytes of a partial of one query head in device memory, half of what f32 would take. It holds the elements
 * as f16 in units of the largest, then the softmax's maximum and sum, the unit, and a word of padding to 16
 * bytes. The error of an element is an eighth of the bf16 output's. Elements below 2^-14 of the largest have
 * an error of 2^-25 of the largest, which is as much as the output's error for elements of 2^-17. An infinite
 * element makes its whole row NaN, which ends the request. */
#define TD_ATTENTION_PARTIAL_BYTES(head_dim) (2u * (head_dim) + 16)

static inline const void *td_attention_at(const td_attention_header *h, uint32_t at)
{
  return (const unsigned char *)h + at;
}

#endif
