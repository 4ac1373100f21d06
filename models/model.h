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

/* Binds every tensor to a role, imports the weights into the backend, and allocates workspace for steps of
 * max_tokens tokens and max_logits logits rows. With several ranks, only this rank's slices are imported
 * (roles.h). A missing or surplus tensor, or a wrong shape, is TD_ERR_MODEL; the message names the tensor and
 * both shapes. progress (may be NULL) is called with the share done, 0..1. */
TD_MUST_CHECK td_status td_model_load(const td_model_files *files, const td_model_desc *desc, td_backend *be,
                                      uint32_t max_tokens, uint32_t max_logits,
                                      void (*progress)(void *arg, double share), void *progress_arg,
                                      td_model **out, td_error *err);
/* The same without files: matrices and biases are pseudo-random by seed (kernels/dummy.h), norms are 1. */
TD_MUST_CHECK td_status td_model_make_up(const td_model_desc *desc, td_backend *be, uint64_t seed,
                                         uint32_t max_tokens, uint32_t max_logits,
                                         void (*progress)(void *arg, double share), void *progress_arg,
                                         td_model **out, td_error *err);
void td_model_destroy(td_model *m);

/* Bytes of all tensors that a load reads, or, where files is NULL, that td_model_make_up fills. */
uint64_t td_model_read_bytes(const td_model_files *files, const td_model_desc *desc);
/* Bytes of workspace that td_model_load would allocate, for the memory plan. */
size_t td_model_workspace_bytes(const td_model_desc *desc, const td_backend *be, uint32_t max_tokens,
                                uint32_t max_logits);
/* Bytes of the weights in the form in which the backend keeps them, whether it copies them or not. files is
 * NULL for made-up weights. */
uint64_t td_model_weight_bytes(const td_model_files *files, const td_model_desc *desc, const td_backend *be);
/* One KV group for each window size, in the order in which the layers first use it. */
td_kv_spec td_model_kv_spec(const td_model_desc *desc, td_dtype dtype, uint32_t n_pages,
                            uint32_t page_tokens);

/* The programs below belong to the caller, who destroys them before the model.
 *
 * This one is the forward pass of a step that generates; the model must not be headless. It writes the KV of
 * its tokens, and its buffer "logits" holds f32 [n_logits, vocab]. */
TD_MUST_CHECK td_status td_model_program(const td_model *m, td_kv *kv, td_program **out, td_error *err);
/* The forward pass of a step that computes a vector for each sequence: the last norm's output, pooled. After
 * each step its buffer "vectors" holds f32 [n_slots, width], pooled over all tokens so far. Sequences use
 * slots below n_slots. Their first chunk starts at position 0, so they take no pages from a prefix tree, and
 * they want no logits. The buffers are allocated from the backend. */
TD_MUST_CHECK td_status td_model_embedding(const td_model *m, td_kv *kv, td_pooling pooling, uint32_t n_slots,
                                           td_program **out, td_error *err);
/* Runs after a forward pass with logits: chooses tokens from the logits, and may overwrite them. */
TD_MUST_CHECK td_status td_model_sampling(const td_model *m, td_program **out, td_error *err);

#endif
