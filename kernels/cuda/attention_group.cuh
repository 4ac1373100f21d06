// Attention of a backend: KV stores, their groups with the step's plan and work list, and the step's mode
// (attention_group.cu).
//
// Owner: the backend. Life: a store and its groups from kv_create to kv_destroy; plans, work lists and the
// mode are of the current step.
#pragma once

#include "kernels/cuda/frame.cuh"
#include "kernels/cuda/kernel.cuh"

#include <vector>

extern "C" {
#include "kernels/attention/work_list.h"
#include "kernels/kernels.h"
}

struct cuda_backend;

// Which kernels and grids a step's attention uses. Chosen once a step by td_cuda_plan_attention; for ops that
// are queued only to be captured or timed, before these are queued. Grids of a capture are for any step of so
// many sequences.
enum attention_mode {
  ATTENTION_PRIVATE, // every sequence reads its keys by itself
  ATTENTION_SHARED,  // prefix splits, and private KV of the sequences that wait for them, in one launch
  ATTENTION_CAPTURE_PRIVATE, // the same two, captured
  ATTENTION_CAPTURE_SHARED,
};

// KV groups of all stores: a model's, and those of a second model beside it.
enum { GROUP_SLOTS = 2 * TD_KV_GROUPS_MAX };

// A group of a store. Pages of a layer: [page][kv head]{ K, V }, each page_tokens x head_dim in the order of
// kv_chunk_at (attention.cuh).
struct attention_group {
  td_kv_group spec;
  uint32_t n_pages, page_tokens; // of the store
  uint32_t slot;                 // of cuda_attention.groups: does not change, captured graphs hold it
  bf16 *data;                    // [layer]
  bool wgmma;                    // attention_prefill.cu and attention_decode.cu serve it
  td_attention_planner *planner; // null: every sequence by itself
  bool is_planned;               // this step has a plan
  attention_mode made_for;       // of the step for which the work list was made
  td_work_list work;             // of the step
  std::vector<cudaGraphNode_t> captured_decodes; // attention for decodes, of the step that is being captured
  // on the device
  td_attention_item *device_items;
  float *split_partials;   // of KV splits; empty between launches (attention_kv_splits.cuh)
  float *prefill_partials; // of KV splits of prefill tiles (attention_prefill_sums.cuh), and their flags
  uint64_t *prefill_flags;
  unsigned char *device_plan; // the plan's block
  unsigned char *slots;       // partials of prefix splits: [slots, GQA group] of TD_ATTENTION_PARTIAL_BYTES
  uint64_t *prefix_flags;     // [prefix splits, n_kv_heads]: last step and launch
  uint32_t *tickets;          // [TICKET_COUNTERS], of colocated decodes
  uint32_t n_colocated;       // such launches so far
  bool has_prefill_pairs;     // as many run at once as there are SMs for
};

// What a td_kv * points to.
struct td_cuda_kv : td_kv {
  attention_group *groups[TD_KV_GROUPS_MAX]; // as its spec says
};

static inline attention_group *cuda_kv_group(const td_kv *kv, uint32_t group)
{
  return ((const td_cuda_kv *)kv)->groups[group];
}

static inline size_t kv_element_bytes(const td_kv_group *g) { return td_dtypes[g->dtype].block_bytes; }
static inline size_t kv_page_elements(uint32_t page_tokens, const td_kv_group *g) // of a layer
{
  return (size_t)g->n_kv_heads * 2 * page_tokens * g->head_dim;
}
// A layer's pages, as the kernels take them.
static inline bf16 *kv_layer(const attention_group *g, uint32_t layer)
{
  return g->data + layer * (g->n_pages * kv_page_elements(g->page_tokens, &g->spec));
}

struct cuda_attention {
  std::vector<td_cuda_kv *> stores;
  attention_group *groups[GROUP_SLOTS]; // of all stores; null: free
  attention_mode mode;
  uint32_t n_launches; // of decodes, so far
};

static inline bool is_capture(const cuda_attention *a) { return a->mode >= ATTENTION_CAPTURE_PRIVATE; }
static inline bool shares_prefixes(const cuda_attention *a)
{
  return a->mode == ATTENTION_SHARED || a->mode == ATTENTION_CAPTURE_SHARED;
}

// The groups that there are.
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

// The config of this group's planner on this device. False: the group has none.
bool td_cuda_planner_config(const cuda_backend *b, uint32_t page_tokens, const td_kv_group *spec,
                            td_attention_planner_config *out);
// Bytes of device memory that a group takes beside its pages; bytes that a step sends for it.
size_t td_cuda_group_bytes(const cuda_backend *b, uint32_t page_tokens, const td_kv_group *spec);
size_t td_cuda_group_packed_bytes(const cuda_backend *b, uint32_t page_tokens, const td_kv_group *spec);
td_status td_cuda_add_group(cuda_backend *b, const td_kv_spec *store, const td_kv_group *spec,
                            attention_group **out, td_error *err);
void td_cuda_remove_group(cuda_backend *b, attention_group *g); // or null
// Chooses the step's mode, and makes each group's plan and work list.
void td_cuda_plan_attention(cuda_backend *b, const td_plan *plan);
// CTAs of an op for each kv head: prefill tiles, and those that do decodes.
struct attention_grid {
  uint32_t n_tiles, n_decode;
};
attention_grid td_cuda_attention_grid(const cuda_backend *b, const attention_group *g);
