/* A loaded model: weights bound to roles on a backend, and the forward pass as a program.
 * Ownership: borrows files and backend, which must outlive it. Thread: load before the engine starts. */
#ifndef TD_MODELS_MODEL_H
#define TD_MODELS_MODEL_H

#include "step/plan.h"
#include "common/status.h"
#include "kernels/kernels.h"
#include "models/model_desc.h"
#include "models/weights/weights.h"

typedef struct td_model td_model;

/* Binds every tensor (missing, surplus-free, shapes checked: TD_ERR_MODEL names the tensor and both shapes),
 * imports it into the backend (of several ranks that rank's slice, roles.h), and allocates workspace for
 * steps of max_tokens tokens and max_logits logits rows. progress (may be NULL) is told the share done, 0..1.
 */
TD_MUST_CHECK td_status td_model_load(const td_model_files *files, const td_model_desc *desc, td_backend *be,
                                      uint32_t max_tokens, uint32_t max_logits,
                                      void (*progress)(void *arg, double share), void *progress_arg,
                                      td_model **out, td_error *err);
/* The same without a file: matrices and biases are random by seed (kernels/dummy.h), norms are 1. */
TD_MUST_CHECK td_status td_model_make_up(const td_model_desc *desc, td_backend *be, uint64_t seed,
                                         uint32_t max_tokens, uint32_t max_logits,
                                         void (*progress)(void *arg, double share), void *progress_arg,
                                         td_model **out, td_error *err);
void td_model_destroy(td_model *m);

/* Bytes of the tensors that a load reads; files NULL: those that it makes up. */
uint64_t td_model_read_bytes(const td_model_files *files, const td_model_desc *desc);
/* Bytes of workspace that td_model_load would allocate, for the memory plan. */
size_t td_model_workspace_bytes(const td_model_desc *desc, const td_backend *be, uint32_t max_tokens,
                                uint32_t max_logits);
/* Bytes that its weights take as the backend keeps them, whether it copies them or not. files NULL: made up.
 */
uint64_t td_model_weight_bytes(const td_model_files *files, const td_model_desc *desc, const td_backend *be);
/* Layers with another window are another group, in the order in which they come. */
td_kv_spec td_model_kv_spec(const td_model_desc *desc, td_dtype dtype, uint32_t n_pages,
                            uint32_t page_tokens);

/* Programs; the caller destroys them, before the model's end.
 *
 * The forward of a step that generates, of a model that is not headless: KV of its tokens is written, and its
 * buffer "logits" holds f32 [n_logits, vocab]. */
TD_MUST_CHECK td_status td_model_program(const td_model *m, td_kv *kv, td_program **out, td_error *err);
/* Of a step that makes a vector of each of its sequences, which belong to slots below n_slots: the last
 * norm's output, pooled. Its buffer "vectors" holds f32 [n_slots, width] after each step, of all tokens so
 * far; rows begin at position 0 with their first chunk, want no logits, and take nothing from a prefix tree.
 * Memory for it is taken from the backend. */
TD_MUST_CHECK td_status td_model_embedding(const td_model *m, td_kv *kv, td_pooling pooling, uint32_t n_slots,
                                           td_program **out, td_error *err);
/* Behind a forward with logits: tokens are chosen from the logits, which may be overwritten. */
TD_MUST_CHECK td_status td_model_sampling(const td_model *m, td_program **out, td_error *err);

#endif
