// Sampler state of the slots: on the device, and the host's newest copy (step.cu).
//
// Owner: the backend. Lifetime: the backend's. The host replaces a slot's state as a whole; the new state
// goes up with the next plan.
#pragma once

extern "C" {
#include "step/sampling.h"
}

#include <cstdint>

struct cuda_sampling {
  td_sampling *slots;  // device, [max_slots]
  td_sampling *host;   // [max_slots]
  uint32_t *changed;   // [max_slots] slots whose parameters changed since the last plan
  uint8_t *is_changed; // [max_slots]
  uint32_t n_changed;
  struct logits_processors *processors; // logits_processors.cuh: state of slots that are not plain
};
