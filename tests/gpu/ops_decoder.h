/* The section of test_ops about whole decode steps: a small decoder's captured steps compared with the same
 * steps op by op, and both compared with the CPU backend. */
#ifndef TD_TESTS_GPU_OPS_DECODER_H
#define TD_TESTS_GPU_OPS_DECODER_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"

typedef struct decoder_shape {
  uint32_t width, n_heads, n_kv_heads, head_dim, ffn_width, vocab, page_tokens, window;
  td_rope_style style;
  bool bias, norm; /* of q|k|v; of q's and k's heads */
} decoder_shape;

/* Steps of 1 to 16 rows, each with a separate backend. Does nothing if the backend captures nothing.
 * alternates: only every second layer has the window. shares: long rows have their first pages in common. */
void test_decoder(const char *backend, const td_backend_config *config, const decoder_shape *s,
                  bool alternates, bool shares);

#endif
