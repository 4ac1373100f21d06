// The frame: the memory that carries one step to the device and its results back (step.cu).
//
// Owner: the backend. Lifetime: the backend's. The contents belong to the step that is being queued and to
// the step before, which may still run.
#pragma once

#include <cuda_runtime.h>

extern "C" {
#include "step/plan.h"
}

// The step plan as kernels see it. All pointers are device memory at fixed addresses, so captured graphs can
// use them.
struct device_batch {
  int32_t *token_ids;     // [n_tokens]
  int32_t *positions;     // [n_tokens]
  uint32_t *kv_lines;     // [n_tokens] where its KV goes: page * page_tokens + line in the page
  td_plan_row *rows;      // [n_rows]
  td_plan_logits *logits; // [n_logits]
  int32_t *page_table;
  uint32_t page_tokens;
  const uint32_t *counts;   // [N_COUNTS] the step's true counts; a captured step's grids may be larger
  const uint32_t *n_logits; // counts + COUNT_LOGITS
};

// COUNT_WIDE_ITEMS: the work items before the first warp-level item. COUNT_STEP: the step's number. Each KV
// group has its own copy of the counts, with the counts of its own work list.
enum { COUNT_TOKENS, COUNT_ROWS, COUNT_LOGITS, COUNT_ITEMS, COUNT_WIDE_ITEMS, COUNT_STEP, N_COUNTS };

// A packed plan on its way to the device, and the results of its step. Two of them alternate.
struct step_buffer {
  unsigned char *packed; // pinned
  size_t n_packed;
  int32_t *sampled;       // pinned, [max_logits]
  uint8_t *n_ids, *flags; // [max_logits] as in td_outcome
  uint8_t *late;          // [max_logits] which logits entries are late (td_sample_input)
  const td_plan *plan;
  bool is_late;  // at least one entry is late
  bool captured; // launched from a captured step
  bool may_wait; // sampling may start later than the forward ends; the next two events measure the wait
  cudaEvent_t forward_end, sampling_begin;
  cudaEvent_t begin[2],
      end[2]; // indexed by `phase`: when this buffer is used for the next step, `end` of its last step may
              // still be asked for.
  uint32_t phase;
  bool under_way;
};

struct cuda_frame {
  step_buffer buffers[2];
  uint32_t packing;      // index of the buffer of the current or next step
  unsigned char *packed; // device
  size_t packed_bytes;
  uint32_t *counts;    // device, [GROUP_SLOTS][N_COUNTS]
  const td_plan *plan; // null between steps
  device_batch batch;
  int32_t *sampled; // device, [max_logits]
  uint32_t page_table_entries, max_page_updates;
  uint32_t n_steps; // number of steps so far
  bool has_run;     // a step has ended
};
