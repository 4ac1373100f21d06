// The attention state of a backend: KV stores, their KV groups with plan and work list, and the step's
// attention mode (attention_group.cu).
//
// Owner: the backend. Lifetime: a store and its groups live from kv_create to kv_destroy. Plans, work lists
// and the mode belong to the current step.
#pragma once

#include "kernels/cuda/frame.cuh"
#include "kernels/cuda/kernel.cuh"

#include <vector>

extern "C" {
#include "kernels/attention/work_list.h"
#include "kernels/kernels.h"
}

struct cuda_backend;

// Which kernels and grids a step's attention uses. td_cuda_plan_attention chooses it once a step. For ops
// that are queued only to be captured or timed, the caller sets it before. A captured step's grids hold any
// step of that many sequences.
enum attention_mode {
  ATTENTION_PRIVATE, // every sequence reads all of its keys itself
  ATTENTION_SHARED,  // one launch has prefix splits, and the private KV of sequences that wait for them
  ATTENTION_CAPTURE_PRIVATE, // the same two for a captured step
  ATTENTION_CAPTURE_SHARED,
};

// KV groups of all stores: those of a model and of a second model next to it.
enum { GROUP_SLOTS = 2 * TD_KV_GROUPS_MAX };

// A KV group of a store. A layer's pages: [page][kv head]{ K, V }; K and V are page_tokens x head_dim in the
// layout of kv_chunk_at (attention.cuh).
struct attention_group {
  td_kv_group spec;
  uint32_t n_pages, page_tokens; // as in the store
  uint32_t slot;                 // index in cuda_attention.groups; fixed, because captured graphs contain it
  bf16 *data;                    // [layer]
  bool wgmma;                    // attention_prefill.cu and attention_decode.cu compute it
  td_attention_planner *planner; // null: sequences never share prefixes
  bool is_planned;               // the current step has an attention plan
  attention_mode work_list_mode; // mode of the step for which the work list was made
  td_work_list work;             // work list of the current step
  std::vector<cudaGraphNode_t> captured_decodes; // decode attention nodes of the step that is being captured
  // device memory:
  td_attention_item *device_items;
  float *split_partials;   // partials of KV splits; all empty values between launches
                           // (attention_kv_splits.cuh)
  float *prefill_partials; // KV splits of prefill tiles (attention_prefill_sums.cuh), and their flags
  uint64_t *prefill_flags;
  unsigned char *device_plan; // the attention plan
  unsigned char
      *prefix_partials;   // partials of prefix splits: [slots, GQA group] of TD_ATTENTION_PARTIAL_BYTES
  uint64_t *prefix_flags; // [prefix splits, n_kv_heads] step and launch that wrote the partial last
  uint32_t *tickets;      // [TICKET_COUNTERS] of colocated decodes
  uint32_t n_colocated;   // launches with colocated decodes so far
  bool has_prefill_pairs; // enough pairs run at once to use all SMs
};

// What a td_kv * points to.
struct td_cuda_kv : td_kv {
  attention_group *groups[TD_KV_GROUPS_MAX]; // in the order of the spec
};

static inline attention_group *cuda_kv_group(const td_kv *kv, uint32_t group)
{
  return ((const td_cuda_kv *)kv)->groups[group];
}

static inline size_t kv_element_bytes(const td_kv_group *g) { return td_dtypes[g->dtype].block_bytes; }
static inline size_t kv_page_elements(uint32_t page_tokens, const td_kv_group *g) // of one layer
{
  return (size_t)g->n_kv_heads * 2 * page_tokens * g->head_dim;
}
// The pages of one layer, as kernels take them.
static inline bf16 *kv_layer(const attention_group *g, uint32_t layer)
{
  return g->data + layer * (g->n_pages * kv_page_elements(g->page_tokens, &g->spec));
}

struct cuda_attention {
  std::vector<td_cuda_kv *> stores;
  attention_group *groups[GROUP_SLOTS]; // of all stores; null: a free slot
  attention_mode mode;
  uint32_t n_launches; // decode attention launches so far
};

static inline bool is_capture(const cuda_attention *a) { return a->mode >= ATTENTION_CAPTURE_PRIVATE; }
static inline bool shares_prefixes(const cuda_attention *a)
{
  return a->mode == ATTENTION_SHARED || a->mode == ATTENTION_CAPTURE_SHARED;
}

// Iterates over the groups in use.
struct groups_of {
  const cuda_attention *a;
  struct iterator {
    attention_group *const *at, *const *end;
    attention_group *operator*() const { return *at; }
    bool operator!=(const iterator &o) const { return at != o.at; }
    iterator &operator++()
    {
      at++;
      return skip();
    }
    iterator &skip()
    {
      while (at != end && !*at)
        at++;
      return *this;
    }
  };
  iterator begin() const { return iterator{a->groups, a->groups + GROUP_SLOTS}.skip(); }
  iterator end() const { return {a->groups + GROUP_SLOTS, a->groups + GROUP_SLOTS}; }
};

// The configuration of this group's planner on this device. Returns false if the group has none.
bool td_cuda_planner_config(const cuda_backend *b, uint32_t page_tokens, const td_kv_group *spec,
                            td_attention_planner_config *out);
// Device memory of a group without its pages, and the most bytes that a step sends for it.
size_t td_cuda_group_bytes(const cuda_backend *b, uint32_t page_tokens, const td_kv_group *spec);
size_t td_cuda_group_packed_bytes(const cuda_backend *b, uint32_t page_tokens, const td_kv_group *spec);
td_status td_cuda_add_group(cuda_backend *b, const td_kv_spec *store, const td_kv_group *spec,
                            attention_group **out, td_error *err);
void td_cuda_remove_group(cuda_backend *b, attention_group *g); // null is allowed
// Chooses the step's mode, and makes each group's attention plan and work list.
void td_cuda_plan_attention(cuda_backend *b, const td_plan *plan);
// CTAs of an attention op for each kv head: those of prefill and those of decodes.
struct attention_grid {
  uint32_t n_prefill_items, n_decode_ctas;
};
attention_grid td_cuda_attention_grid(const cuda_backend *b, const attention_group *g);
