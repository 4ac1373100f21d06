/* The interface of a backend: one device with its memory, which compiles programs and runs them.
 *
 * A backend (cpu/, cuda/) is one device with its threads or streams. It compiles a program (program.h) once
 * and runs it with any step plan. It never knows what a model is, and no other room looks behind a td_devptr.
 *
 * A step is three calls. td_backend_submit(forward, plan) queues the forward. td_backend_sample(sampling,
 * input) queues the ops that choose tokens from its logits. td_backend_wait hands out the outcome. With
 * pipeline_depth 2 the next forward may be submitted before the wait for this step. Meanwhile the host can
 * make the masks of the next step's sampling out of this step's tokens:
 *
 *   submit k, sample k, submit k+1, wait k, [masks], sample k+1, submit k+2, wait k+1, [masks], ...
 *
 * A token id below 0 in a plan then means the token that the previous step chose for its logits entry -1 - id
 * (the last of them, if the entry has several). Ops return nothing: a fault shows at the wait. A forward of
 * decodes alone may be captured once and launched again, which saves the host from queueing every op
 * (capture).
 *
 * The batch rule (CPU backend, and CUDA with batch_invariant): every output element is computed by one fixed
 * sequence of operations. The sequence does not depend on how many rows the step has, how a prompt was
 * chunked, which pages hold its KV, how many threads run, or which instruction set was picked. So a request's
 * tokens are bit-identical alone or in any batch. kernels/cpu/README.md states the sequences.
 *
 * Thread: the engine thread, except weight_import and alloc before the engine starts. */
#ifndef TD_KERNELS_KERNELS_H
#define TD_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "step/outcome.h"
#include "step/plan.h"
#include "step/sampling.h"
#include "common/status.h"
#include "kernels/dtype.h"
#include "kernels/kv.h"
#include "kernels/program.h"
#include "kernels/weight.h"

typedef struct td_backend td_backend;
typedef struct td_compiled td_compiled; /* a program as the backend runs it */

/* The progress of tuning a program: choosing an algorithm for each shape of a linear and bucket of rows. */
typedef struct td_tuning {
  uint32_t n_all, n_known; /* choices to make; of these, those made: measured, now or by an earlier run */
  uint32_t n_measured, n_not_first; /* measured since tune_begin; of these, not the library's first choice */
  bool is_done;                     /* nothing is left that can be measured */
  uint32_t changed_least, changed_most; /* the last call changed algorithms of steps of changed_least to
                                           changed_most rows; 0, 0: of none */
} td_tuning;

/* What the host adds to a step's sampling after it queued the forward. td_backend_sample reads it all before
 * it returns. */
typedef struct td_sample_input {
  const uint8_t *late; /* [n_logits of the plan] nonzero: this entry is not sampled in this step. NULL: all
                          are sampled */
  const uint32_t *const *masks; /* [n_logits] of [(vocab + 31) / 32] words: bit i % 32 of word i / 32 says
                                   whether id i may be chosen. NULL entry, NULL array: any id may be */
} td_sample_input;

/* What capturing a step made. A step is captured in two forms if its decodes may share prefixes: one for
 * steps that share, one for steps that do not. */
typedef struct td_capture {
  uint32_t n_forms;
  const char *not_fused[2]; /* [n_forms] why this form is not a fused step; NULL: it is one */
  uint32_t n_fitted;        /* forms whose attention grid is fitted to each step at launch */
} td_capture;

typedef struct td_backend_ops {
  const char *name; /* "cpu" */

  void (*destroy)(td_backend *be); /* frees all its memory, weights and KV; joins its threads */

  /* Allocates zeroed memory, aligned for every op; destroy frees it. Only called at start. */
  td_status (*alloc)(td_backend *be, size_t bytes, td_devptr *out, td_error *err);
  td_status (*upload_f32)(td_backend *be, const float *src, size_t n, td_devptr *out, td_error *err);
  /* Copies to the host and waits for it, for tests and tools. */
  td_status (*download)(td_backend *be, td_devptr src, size_t bytes, void *dst, td_error *err);

  /* How this backend keeps a stored type. */
  td_weight_type (*weight_type)(const td_backend *be, td_dtype stored);
  /* Weights live until destroy. n_cols must be a multiple of each part's block (checked: TD_ERR_MODEL). */
  td_status (*weight_import)(td_backend *be, const td_weight_part *parts, uint32_t n_parts, uint64_t n_cols,
                             td_weight **out, td_error *err);
  /* Imports may run in the background. Waits for all of them and returns the first error. Call it before the
   * first step. */
  td_status (*weights_wait)(td_backend *be, td_error *err);

  /* KV store; the layout of a page is the backend's own. kv_check refuses what no kernel serves, before
   * anything is loaded. It ignores n_pages. */
  td_status (*kv_check)(const td_backend *be, const td_kv_spec *spec, td_error *err);
  size_t (*kv_bytes_per_page)(const td_backend *be, const td_kv_spec *spec);
  /* What kv_create allocates besides the pages: partials of attention, for as many rows as a step may
   * have. */
  size_t (*kv_fixed_bytes)(const td_backend *be, const td_kv_spec *spec);
  /* Bytes that KV pages may take by default, once weights and workspace are allocated. Before that, the bytes
   * that weights, workspace and pages may take together. */
  uint64_t (*kv_budget_bytes)(const td_backend *be);
  td_status (*kv_create)(td_backend *be, const td_kv_spec *spec, td_kv **out, td_error *err);
  /* Frees a store before destroy would. No step may be under way, and no compiled program that uses the store
   * may run again. */
  void (*kv_destroy)(td_backend *be, td_kv *kv);

  /* Replaces a slot's whole sampling state. Does not follow the pointers in `sampling`. */
  void (*set_sampling)(td_backend *be, uint32_t slot, const td_sampling *sampling);
  /* Gives a slot its sampler state (sampler_cache.h), if its sampling is not plain. Call it before the
   * submission of a step that samples for the slot. If the slot has no state yet or lost it, the state is
   * made here, and no step may be under way. The step's other slots with such sampling must be prepared too.
   * sampling: as in set_sampling. Everything is copied. */
  void (*prepare_slot)(td_backend *be, uint32_t slot, const td_sampling *sampling,
                       const td_sample_history *history);

  /* The caller owns the result. The program may be freed afterwards, but what its ops point to must live on.
   * TD_ERR_UNSUPPORTED: this backend lacks an op. */
  td_status (*compile)(td_backend *be, const td_program *program, td_compiled **out, td_error *err);
  void (*discard)(td_backend *be, td_compiled *compiled); /* NULL: does nothing */

  /* td_backend_submit, _sample, _forward_ended and _wait call these; their contracts are there. A NULL
   * forward_ended means that submit returns after the forward has run. */
  void (*submit)(td_backend *be, td_compiled *forward, const td_plan *plan);
  void (*sample)(td_backend *be, td_compiled *sampling, const td_sample_input *input);
  bool (*forward_ended)(td_backend *be);
  td_status (*wait)(td_backend *be, td_outcome *out, td_error *err);

  /* Tuning finds the fastest algorithms for a program's linears. tune_begin measures nothing: it takes what
   * earlier runs kept, and the library's first choice for the rest. Call it once, after kv_create and before
   * capture. cache_folder is the option cache_dir: "auto", a path, or "" for none. NULL in a backend that has
   * nothing to choose. */
  td_status (*tune_begin)(td_backend *be, td_compiled *compiled, const char *cache_folder, td_tuning *out,
                          td_error *err);
  /* Measures one more thing, which takes at most a step's time, and keeps the choices that it settles. No
   * step may be under way, but steps may run between two calls. It overwrites what linears read and write,
   * but not the KV store. Captured steps keep the algorithms of their capture. */
  td_status (*tune)(td_backend *be, td_compiled *compiled, td_tuning *out, td_error *err);
  /* Ends tuning early: the time is over, or a call of tune failed. Reports the choices made so far as
   * changed, unless the last call of tune did, and keeps them for later runs. */
  void (*tune_end)(td_backend *be, td_compiled *compiled, td_tuning *out);
  /* Captures the program's step of n_rows decodes. Steps of least_rows to n_rows rows are then launched from
   * it, unless a smaller captured step fits. Replaces an earlier capture of as many rows. No step may be
   * under way. Nothing is written to the KV store. NULL in a backend that gains nothing from it. */
  td_status (*capture)(td_backend *be, td_compiled *compiled, uint32_t least_rows, uint32_t n_rows,
                       td_capture *out, td_error *err);
  /* Makes the device fail after the work that is queued (fault.h). NULL in a backend that cannot. */
  void (*trap)(td_backend *be);
} td_backend_ops;

/* What TANDEM_FAULT asks for (fault.h): which submission fails, and at which plan's step the device stalls.
 */
typedef struct td_fault {
  uint64_t step, stall_step, n_submitted, n_ended;
  uint64_t stalls_at; /* n_ended at the end of the step that stalls, which may not be the next one: two may be
                         under way */
} td_fault;

struct td_backend {
  const td_backend_ops *ops;
  uint32_t activation_bytes; /* size of one activation element: 4 on the CPU */
  uint32_t pipeline_depth;   /* steps that may be under way at the same time: 1 or 2 */
  bool on_device;          /* it has its own memory: weights are copied there, and KV takes no host memory */
  bool attends_beside;     /* attention of a step's chunks and decodes may run at the same time */
  td_dtype kv_dtype;       /* type of K and V */
  uint32_t rank, n_ranks;  /* from the config: which shard of each weight it holds */
  uint64_t sampling_bytes; /* memory of sampler states */
  uint32_t max_rows, max_tokens; /* of a step: from the config, or the backend's choice where that has 0 */
  uint32_t max_logits;           /* of a step: max_rows plus the config's prompt_logits */
  bool awaits_sample;            /* a step was submitted and is not sampled yet */
  uint32_t n_under_way;          /* steps submitted and not waited for */
  td_fault fault;
  char pci_bus_id[32]; /* of a GPU: its name in the driver's tools; "": none */
  char identity[256];  /* device, driver, threads: measured times hold only for the same identity */
  /* Bytes read and operations done in a microsecond, as far as known without measuring; 0: unknown. Only the
   * first guess of step times uses them. */
  double bytes_us, flop_us;
};

typedef struct td_backend_config {
  uint32_t n_threads;     /* compute threads, including the caller's; 0: one for each usable core */
  uint32_t max_slots;     /* request slots, each with sampling parameters */
  uint32_t max_rows;      /* of a plan, each with one logits entry; 0: the backend's choice */
  uint32_t prompt_logits; /* logits entries of a plan in addition to max_rows */
  uint32_t max_tokens;    /* of a plan; 0: the backend's choice; raised to max_rows if it is less */
  uint32_t max_context_tokens;
  uint32_t max_vocab;          /* for the sampler's workspace */
  uint32_t device;             /* which GPU; ignored by the CPU backend */
  uint32_t rank, n_ranks;      /* of the backends that share a model; n_ranks 0: this backend alone */
  uint32_t gpu_memory_percent; /* share of a GPU's memory that may be used in total */
  bool int8_activations; /* the CPU backend rounds activations to 8 bits to multiply quantised weights, and
                            keeps K and V as f16 */
  bool batch_invariant;  /* the batch rule holds on a GPU too; ignored by the CPU backend */
  const struct td_attention_policy
      *attention_policy; /* for benchmarks and tests: decides what decodes on a GPU share, in place of
                            predicted time (kernels/attention/plan.h). NULL: by predicted time */
} td_backend_config;

/* name: "cpu", "cuda", or "auto": CUDA if this build has it and a device is usable, otherwise the CPU.
 * TD_ERR_CONFIG: this build has no backend of that name. */
TD_MUST_CHECK td_status td_backend_create(const char *name, const td_backend_config *config, td_backend **out,
                                          td_error *err);

/* Queues a step's forward. forward NULL: a program without ops. The plan is borrowed until the wait for this
 * step. */
void td_backend_submit(td_backend *be, td_compiled *forward, const td_plan *plan);
/* Queues the sampling of the step submitted last. Call it once for each step, before the next submission.
 * sampling: a program of ops that read logits; NULL: nothing is chosen. input NULL: no entry is late or
 * masked. */
void td_backend_sample(td_backend *be, td_compiled *sampling, const td_sample_input *input);
/* Whether the device has run the forward of the step submitted last, and so waits for td_backend_sample. If
 * it is called right after the submission, the outcome tells the time that the device waited. */
bool td_backend_forward_ended(td_backend *be);
/* td_backend_submit and td_backend_sample in one call, for a step without late entries and masks. */
void td_backend_queue_step(td_backend *be, td_compiled *forward, td_compiled *sampling, const td_plan *plan);
/* Waits for the oldest step that was submitted and not waited for. TD_ERR_DEVICE: a fault. */
TD_MUST_CHECK td_status td_backend_wait(td_backend *be, td_outcome *out, td_error *err);

/* Tunes a program in one go (tune_begin, tune), until all choices are made or the time is over. Call it
 * before capture. Does nothing if there is nothing to choose. */
TD_MUST_CHECK td_status td_backend_tune(td_backend *be, td_compiled *compiled, const char *cache_folder,
                                        uint32_t budget_ms, td_tuning *out, td_error *err);

/* For backends: fills in max_rows, max_tokens and n_ranks where they are 0. */
void td_backend_choose_sizes(td_backend_config *config, uint32_t own_max_rows, uint32_t own_max_tokens);

#endif
