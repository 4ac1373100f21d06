/* The memory of the forward pass: one allocation, laid out once.
 *
 * The description has been checked (limits.def bounds every factor), so the products fit 64 bits. */
#include "models/model_internal.h"

enum { WORKSPACE_ALIGN = 256 }; /* enough for the widest vector loads and for device kernels */

static size_t reserve(size_t *top, uint64_t rows, uint64_t cols, size_t element_bytes)
{
  size_t at = *top;
  *top += (rows * cols * element_bytes + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN * WORKSPACE_ALIGN;
  return at;
}

td_workspace td_workspace_lay_out(const td_model_desc *d, uint32_t activation_bytes, uint32_t max_tokens,
                                  uint32_t max_logits)
{
  td_workspace w = {0};
  uint64_t q = (uint64_t)d->n_heads * d->head_dim, kv = (uint64_t)d->n_kv_heads * d->head_dim;
  size_t a = activation_bytes;
  w.x = reserve(&w.bytes, max_tokens, d->width, a);
  w.h = reserve(&w.bytes, max_tokens, d->width, a);
  w.qkv = reserve(&w.bytes, max_tokens, q + 2 * kv, a);
  w.attn = reserve(&w.bytes, max_tokens, q, a);
  w.gate_up = reserve(&w.bytes, max_tokens, 2 * (uint64_t)d->ffn_width, a);
  w.act = reserve(&w.bytes, max_tokens, d->ffn_width, a);
  max_logits = d->headless ? 0 : max_logits;
  w.last_x = reserve(&w.bytes, max_logits, d->width, a);
  w.last_attn = reserve(&w.bytes, max_logits, q, a);
  w.logits = reserve(&w.bytes, max_logits, d->vocab, sizeof(float));
  return w;
}

size_t td_model_workspace_bytes(const td_model_desc *desc, const td_backend *be, uint32_t max_tokens,
                                uint32_t max_logits)
{
  return td_workspace_lay_out(desc, be->activation_bytes, max_tokens, max_logits).bytes;
}
