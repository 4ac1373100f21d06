/* What a backend is: a device with its memory, that compiles programs and runs them.
 *
 * A backend (cpu/, cuda/) is one device with its threads or streams. It takes a program (program.h), compiles
 * it once, and runs it with any step plan: it never knows what a model is, and nobody looks behind a
 * td_devptr.
 *
 * The step: td_backend_submit(forward, plan) queues its forward, td_backend_sample(sampling, input) what
 * chooses tokens from its logits, td_backend_wait hands out its outcome. With pipeline_depth 2 the next
 * forward may be submitted before the wait for this step, so that the host can still make out of this step's
 * tokens what the next step's sampling must obey:
 *
 *   submit k, sample k, submit k+1, wait k, [masks], sample k+1, submit k+2, wait k+1, [masks], ...
 *
 * A token id below 0 in a plan then means the token that the step before chose for its logits entry -1 - id,
 * the last one if several. Ops return nothing: a fault shows at the wait. Forwards of decodes alone may be
 * captured once and launched again, which spares the host queueing every op (capture).
 *
 * The batch rule (CPU backend, and CUDA with batch_invariant): every output element is computed by one fixed
 * sequence of operations that does not depend on how many rows the step has, how a prompt was chunked, which
 * pages hold its KV, how many threads run, or which instruction set was picked. So a request's tokens are
 * bit-identical alone or in any batch. kernels/cpu/README.md states the sequences.
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

/* How far the tuning of a program is. An algorithm is chosen for each shape of a linear and bucket of rows.
 */
typedef struct td_tuning {
  uint32_t n_all, n_known;              /* algorithms; of them, kept from earlier or measured */
  uint32_t n_measured, n_not_first;     /* since tune_begin; of them, not the library's first choice */
  bool is_done;                         /* nothing is left that can be measured */
  uint32_t changed_least, changed_most; /* by the last call: steps of so many rows have other algorithms now;
                                          0, 0: none has */
} td_tuning;

/* What the host adds to a step's sampling after its forward was queued. All is read before td_backend_sample
 * returns. */
typedef struct td_sample_input {
  const uint8_t *late;          /* [n_logits of the plan] nonzero: not sampled in this step; NULL: all are */
  const uint32_t *const *masks; /* [n_logits] of [(vocab + 31) / 32] words: bit i % 32 of word i / 32 says
                                   whether id i may be chosen; NULL: any may. NULL: no entry has one */
} td_sample_input;

/* A captured step may be kept in several forms, by what its rows share. */
typedef struct td_capture {
  uint32_t n_forms;
  const char *not_fused[2]; /* [n_forms] why its ops do not run as few large kernels; NULL: they do */
  uint32_t n_fitted;        /* forms whose attention gets its grid step by step */
} td_capture;

typedef struct td_backend_ops {
  const char *name; /* "cpu" */

  void (*destroy)(td_backend *be); /* frees all its memory, weights and KV; joins its threads */

  /* Memory: zeroed, aligned for every op; freed by destroy. Sized at start only. */
  td_status (*alloc)(td_backend *be, size_t bytes, td_devptr *out, td_error *err);
  td_status (*upload_f32)(td_backend *be, const float *src, size_t n, td_devptr *out, td_error *err);
  /* Blocking copy to host, for tests and tools. */
  td_status (*download)(td_backend *be, td_devptr src, size_t bytes, void *dst, td_error *err);

  /* What this backend makes of a stored type. */
  td_weight_type (*weight_type)(const td_backend *be, td_dtype stored);
  /* Weights live until destroy. n_cols must suit each part's block size (checked: TD_ERR_MODEL). */
  td_status (*weight_import)(td_backend *be, const td_weight_part *parts, uint32_t n_parts, uint64_t n_cols,
                             td_weight **out, td_error *err);
  /* Imports may go on behind the caller's back; waits for all of them and says what failed. Before the first
   * step. */
  td_status (*weights_wait)(td_backend *be, td_error *err);

  /* KV store: page layout is the backend's own. kv_check refuses what no kernel serves, before anything is
   * loaded (n_pages is not looked at). */
  td_status (*kv_check)(const td_backend *be, const td_kv_spec *spec, td_error *err);
  size_t (*kv_bytes_per_page)(const td_backend *be, const td_kv_spec *spec);
  /* What kv_create takes beside the pages: partials of attention, for as many rows as a step may have. */
  size_t (*kv_fixed_bytes)(const td_backend *be, const td_kv_spec *spec);
  /* Bytes that KV pages may take by default, asked once weights and workspace are there; before that, what
   * all of them may take together. */
  uint64_t (*kv_budget_bytes)(const td_backend *be);
  td_status (*kv_create)(td_backend *be, const td_kv_spec *spec, td_kv **out, td_error *err);
  /* Frees a store before its backend, which would free it too. No step is under way, and no compiled program
   * that uses it runs any more. */
  void (*kv_destroy)(td_backend *be, td_kv *kv);

  /* Replaces a slot's whole sampling state. What the parameters point to is not looked at. */
  void (*set_sampling)(td_backend *be, uint32_t slot, const td_sampling *sampling);
  /* Before the submission of a step that samples for a slot whose sampling is not plain: sees to it that the
   * slot has its state (sampler_cache.h), and makes it, with no step under way, if it has none yet or lost
   * it. The step's other slots with such sampling are prepared too. sampling: as set; all is copied. */
  void (*prepare_slot)(td_backend *be, uint32_t slot, const td_sampling *sampling,
                       const td_sample_history *history);

  /* A program may be freed once it is compiled; what its ops point to must live on. TD_ERR_UNSUPPORTED for an
   * op that this backend has not got. Owned by the caller. */
  td_status (*compile)(td_backend *be, const td_program *program, td_compiled **out, td_error *err);
  void (*discard)(td_backend *be, td_compiled *compiled); /* NULL: does nothing */

  /* See td_backend_submit, _sample, _forward_ended and _wait, which call them. forward_ended may be NULL: a
   * submission returns when its forward has run. */
  void (*submit)(td_backend *be, td_compiled *forward, const td_plan *plan);
  void (*sample)(td_backend *be, td_compiled *sampling, const td_sample_input *input);
  bool (*forward_ended)(td_backend *be);
  td_status (*wait)(td_backend *be, td_outcome *out, td_error *err);

  /* Which algorithms are fastest for a program's linears. tune_begin takes what earlier runs kept, and the
   * library's first choice for the rest: nothing is measured. Once, after kv_create and before capture.
   * cache_folder: option cache_dir: "auto", a path, or "" for none. NULL where there is nothing to choose. */
  td_status (*tune_begin)(td_backend *be, td_compiled *compiled, const char *cache_folder, td_tuning *out,
                          td_error *err);
  /* Measures one thing more, at most a step, and keeps what is decided with it; with no step under way.
   * Between two calls steps may run. What linears read and write is overwritten, nothing is written to the KV
   * store. Steps that were captured keep the algorithms of their capture. */
  td_status (*tune)(td_backend *be, td_compiled *compiled, td_tuning *out, td_error *err);
  /* No more is measured, though not all is: the time is over, or a call of tune failed. What was decided so
   * far is told as changed, if the call before has not done so, and kept for other runs. */
  void (*tune_end)(td_backend *be, td_compiled *compiled, td_tuning *out);
  /* Captures the program's step of n_rows decodes: steps of least_rows to n_rows rows are then launched from
   * it, if no smaller one holds them. In the place of an earlier capture of as many, with no step under way.
   * Nothing is written to the KV store. NULL where a backend gains nothing from it. */
  td_status (*capture)(td_backend *be, td_compiled *compiled, uint32_t least_rows, uint32_t n_rows,
                       td_capture *out, td_error *err);
  /* Makes the device fail behind what is queued (see fault.h). NULL where it cannot. */
  void (*trap)(td_backend *be);
} td_backend_ops;

/* TANDEM_FAULT (fault.h): the step that fails, or the plan's that stalls; how many steps there were. */
typedef struct td_fault {
  uint64_t step, stall_step, n_submitted, n_ended;
  uint64_t stalls_at; /* n_ended when the plan's step ends: two may be under way */
} td_fault;

struct td_backend {
  const td_backend_ops *ops;
  uint32_t activation_bytes;     /* size of one activation element: 4 on the CPU */
  uint32_t pipeline_depth;       /* steps that may be under way at once: 1 or 2 */
  bool on_device;                /* memory of its own: weights are copied there, KV is not the host's */
  bool attends_beside;           /* a step's chunks and decodes may be attended to at once */
  td_dtype kv_dtype;             /* of K and V */
  uint32_t rank, n_ranks;        /* the config's: which part of each weight it is given */
  uint64_t sampling_bytes;       /* memory of sampler state that is not plain */
  uint32_t max_rows, max_tokens; /* of a step: the config's, or this backend's own choice where that was 0 */
  uint32_t max_logits;           /* of a step: max_rows and the config's prompt_logits */
  bool awaits_sample;            /* a step was submitted and is not yet sampled */
  uint32_t n_under_way;          /* steps that were submitted and not waited for */
  td_fault fault;
  char pci_bus_id[32]; /* of a GPU: what the driver's tools call it; "": none */
  char identity[256];  /* what times that were measured here are good for: device, driver, threads */
  /* What such a device reads and computes in a microsecond, as far as it is known without measuring; 0: not.
   * A first guess of step times goes by them, nothing else. */
  double bytes_us, flop_us;
};

typedef struct td_backend_config {
  uint32_t n_threads;     /* compute threads, the caller's included; 0 = one per usable core */
  uint32_t max_slots;     /* sampling states */
  uint32_t max_rows;      /* rows of a plan, each with logits; 0: the backend's choice */
  uint32_t prompt_logits; /* logits of a plan beside those */
  uint32_t max_tokens;    /* tokens of a plan; 0: the backend's choice; at least max_rows is taken */
  uint32_t max_context_tokens;
  uint32_t max_vocab;          /* for the sampler's workspace */
  uint32_t device;             /* which GPU; the CPU backend does not look */
  uint32_t rank, n_ranks;      /* of the backends that share a model; n_ranks 0: this one alone */
  uint32_t gpu_memory_percent; /* share of a GPU's memory that may be taken in all */
  bool int8_activations;       /* the CPU backend multiplies quantised weights by rounded activations, and
                                  keeps K and V as f16 */
  bool batch_invariant;        /* the batch rule holds on a GPU too; the CPU backend does not look */
  const struct td_attention_policy
      *attention_policy; /* for benches and tests: decides in the place of predicted time what decodes on a
                            GPU share (kernels/attention/plan.h). NULL: as the daemon has it */
} td_backend_config;

/* name: "cpu", "cuda", or "auto": CUDA where this build has it and a device is usable, else the CPU.
 * TD_ERR_CONFIG for a name that this build does not have. */
TD_MUST_CHECK td_status td_backend_create(const char *name, const td_backend_config *config, td_backend **out,
                                          td_error *err);

/* Queues a step's forward: the program with what the plan says. NULL: a program without ops. The plan is
 * borrowed until the wait for it. */
void td_backend_submit(td_backend *be, td_compiled *forward, const td_plan *plan);
/* Queues the sampling of the step that was submitted last, once for each step and before the next submission.
 * sampling: a program of ops that read logits; NULL: nothing is chosen. input: NULL where nothing is late. */
void td_backend_sample(td_backend *be, td_compiled *sampling, const td_sample_input *input);
/* Whether the device waits for td_backend_sample: it has run the forward of the step submitted last. Asked
 * first right behind the submission, it also tells the device's time from what it waits (td_outcome). */
bool td_backend_forward_ended(td_backend *be);
/* Both at once, where nothing is late. */
void td_backend_queue_step(td_backend *be, td_compiled *forward, td_compiled *sampling, const td_plan *plan);
/* Waits for the oldest step that was submitted and not waited for. TD_ERR_DEVICE on a fault. */
TD_MUST_CHECK td_status td_backend_wait(td_backend *be, td_outcome *out, td_error *err);

/* Tunes a program at once (tune_begin, tune), until all is known or the time is over. Does nothing where
 * there is nothing to choose. Before capture. */
TD_MUST_CHECK td_status td_backend_tune(td_backend *be, td_compiled *compiled, const char *cache_folder,
                                        uint32_t budget_ms, td_tuning *out, td_error *err);

/* For backends: fills max_rows, max_tokens and n_ranks where they are 0. */
void td_backend_choose_sizes(td_backend_config *config, uint32_t own_max_rows, uint32_t own_max_tokens);

#endif
