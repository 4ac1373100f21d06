// Sampling state of the slots, on the device and as the host last said it (step.cu).
//
// Owner: the backend. Life: from its creation to its end; a slot's state is replaced whole, and travels with
// the next plan.
#pragma once

extern "C" {
#include "step/sampling.h"
}

#include <cstdint>

struct cuda_sampling {
  td_sampling *slots;  // device, [max_slots]
  td_sampling *host;   // [max_slots]
  uint32_t *changed;   // [max_slots] slots whose sampling changed since the last plan
  uint8_t *is_changed; // [max_slots]
  uint32_t n_changed;
  struct sampling_extra *extra; // logits_processors.cuh: state of slots that need more
};
