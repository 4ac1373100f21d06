// The frame: what one step carries, on its way to the device, there, and back (step.cu).
//
// Owner: the backend. Life: memory from the backend's creation to its end; what it holds is of the step that
// is being queued, and of the one before that may still be under way.
#pragma once

#include <cuda_runtime.h>

extern "C" {
#include "step/plan.h"
}

// The plan as kernels see it. Pointers into device memory at fixed addresses.
struct device_batch {
  int32_t *token_ids;    // [n_tokens]
  int32_t *positions;    // [n_tokens]
  uint32_t *kv_lines;    // [n_tokens] where its KV goes: page * page_tokens + line in the page
  td_plan_row *rows;     // [n_rows]
  uint32_t *logits_rows; // [n_logits]
  int32_t *page_table;
  uint32_t page_tokens;
  const uint32_t *counts;   // [N_COUNTS] of the step; grids of captured steps are larger
  const uint32_t *n_logits; // one of them
};

// COUNT_WIDE_ITEMS: of the items, those before the warp-level ones. COUNT_STEP: the step's number. Each KV
// group has a copy with its own items.
enum { COUNT_TOKENS, COUNT_ROWS, COUNT_LOGITS, COUNT_ITEMS, COUNT_WIDE_ITEMS, COUNT_STEP, N_COUNTS };

// A packed plan on its way up, and what comes back of its step.
struct step_block {
  unsigned char *packed; // pinned
  size_t n_packed;
  int32_t *sampled; // pinned, [max_rows]
  uint32_t n_logits;
  bool captured; // launched from a captured step
  cudaEvent_t begin[2],
      end[2]; // in alternation: the step before last, which had this block too, may still be asked for its
              // end
  uint32_t phase;
  bool under_way;
};

struct cuda_frame {
  step_block blocks[2];
  uint32_t packing;      // the block of the current or next step
  unsigned char *packed; // device
  size_t packed_bytes;
  uint32_t *counts;    // device, [GROUP_SLOTS][N_COUNTS]
  const td_plan *plan; // null between steps
  device_batch batch;
  int32_t *sampled; // device, [max_rows]
  uint32_t page_table_entries, max_page_updates;
  uint32_t n_steps; // so far
  bool has_run;     // a step has ended
};
