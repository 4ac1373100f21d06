/* The fixture of `kernels`, `attention`, `hybrid` and `steps`: the backend that the options name, a KV store,
 * and dummy plans. Rows may have any context, on scattered pages that hold zeros or what td_stage_fill wrote.
 * No context is computed, because a step's work does not depend on the values; but zeros cost a GPU less
 * power. Any failure ends the program. */
#ifndef TD_BENCH_STAGE_H
#define TD_BENCH_STAGE_H

#include "bench/ceilings.h"
#include "kernels/kernels.h"
#include "loadgen/report.h"
#include "loadgen/stats.h"
#include "loadgen/tool.h"
#include "models/model_desc.h"
#include "step/dummy_plan.h"

enum { TD_STAGE_PAGE_TOKENS = 16 };

/* Options that all these commands have. */
typedef struct td_stage_options {
  const char *backend, *policy, *json; /* policy: bench/attention_policies.h */
  double threads, cpu_exact, device, gpu_memory_percent, gb_s, tflop_s;
} td_stage_options;
/* clang-format off */
#define TD_STAGE_OPTIONS {.backend = "auto", .policy = "auto", .cpu_exact = 1, .gpu_memory_percent = 90}
#define TD_STAGE_ARGS(o) \
  {"--backend", "NAME", "auto, cpu or cuda (auto)", TD_ARG_TEXT, &(o).backend}, \
  {"--threads", "N", "compute threads of the CPU backend; 0: one per core", TD_ARG_NUMBER, &(o).threads}, \
  {"--cpu-exact", "N", "as tandemd's: 0 rounds activations (1)", TD_ARG_NUMBER, &(o).cpu_exact}, \
  {"--device", "N", "which GPU (0)", TD_ARG_NUMBER, &(o).device}, \
  {"--gb-s", "X", "memory bandwidth for floors; 0: that of an H200, or measured on a CPU", TD_ARG_NUMBER, \
   &(o).gb_s}, \
  {"--json", "FILE", "where all figures go", TD_ARG_TEXT, &(o).json}
#define TD_STAGE_ARGS_OF_STEPS(o) \
  {"--tflop-s", "X", "compute ceiling; as --gb-s", TD_ARG_NUMBER, &(o).tflop_s}, \
  {"--policy", "NAME", \
   "what decodes share: auto, as the daemon has it, or another of `attention --policies` (auto)", \
   TD_ARG_TEXT, &(o).policy}
/* clang-format on */

typedef struct td_stage {
  td_backend *be;     /* owned */
  td_model_desc desc; /* heads for rope and attention */
  td_devptr inv_freq;
  uint32_t n_layers; /* of the KV store */
  td_kv *kv;
  td_dummy_plan dummy;
  td_compiled *nothing; /* a program without ops, for empty steps */
} td_stage;

/* Creates the backend. `sizes` gives max_rows, max_tokens, max_context_tokens and other differences; the
 * options give the rest. */
void td_stage_open(td_stage *s, const td_stage_options *o, const td_model_desc *d, td_backend_config sizes);
/* td_stage_add_kv: call after weights and workspace were allocated. Makes a KV store of n_layers and
 * min(n_pages_wanted, budget) pages, and a dummy plan for rows of up to max_context_tokens. */
td_kv_spec td_stage_kv_spec(const td_stage *s, uint32_t n_layers);
void td_stage_add_kv(td_stage *s, uint32_t n_layers, double n_pages_wanted, uint32_t max_context_tokens);
double td_stage_kv_token_bytes(const td_stage *s, uint32_t n_layers);
void td_stage_close(td_stage *s);
bool td_stage_on_cpu(const td_stage *s);
/* Adds backend and ceilings to the JSON. */
void td_stage_describe(const td_stage *s, const td_ceiling *c, cJSON *o);

/* ---- what ops read and write ---- */

td_devptr td_stage_alloc(td_stage *s, size_t bytes);
td_devptr td_stage_upload(td_stage *s, const float *v, size_t n);
/* Random activations in the backend's width, because zeros would cost a GPU less power than a model's
 * values. */
td_devptr td_stage_random(td_stage *s, size_t bytes);

/* ---- programs ---- */

td_op td_stage_rope_op(const td_stage *s, td_devptr qkv, uint32_t layer);
td_op td_stage_attention_op(const td_stage *s, td_devptr qkv, td_devptr out, uint32_t layer);
/* Compiles a program for the backend; free it with td_stage_discard. */
td_compiled *td_stage_compile(td_stage *s, const td_program *program);
/* Compiles a program of the ops op(arg, 0) to op(arg, n - 1). */
td_compiled *td_stage_compile_ops(td_stage *s, td_op (*op)(const void *arg, uint32_t i), const void *arg,
                                  uint32_t n);
void td_stage_discard(td_stage *s, td_compiled *compiled);
/* Captures the program's step of n_rows decodes, if the backend can. */
void td_stage_capture(td_stage *s, td_compiled *compiled, uint32_t n_rows);

/* ---- plans (or directly: s->dummy) ---- */

/* Adds a decode. It shares its first n_shared tokens, in whole pages, with the row before. False: no page or
 * row is left. */
bool td_stage_add_decode(td_stage *s, uint32_t kv_len, uint32_t n_shared, bool wants_logits);

/* Runs steps of as many new tokens as fit, until every page is written. Writes nothing if a step holds fewer
 * tokens than a page. Leaves an empty plan. */
void td_stage_fill(td_stage *s, td_compiled *compiled);
/* The same, with keys and values from qkv. */
void td_stage_fill_from(td_stage *s, td_devptr qkv);

/* ---- steps ---- */

void td_stage_submit(td_stage *s, td_compiled *compiled); /* runs the plan; NULL: an empty step */
/* Followed by a sampling program; NULL: no sampling. */
void td_stage_submit_sampled(td_stage *s, td_compiled *compiled, td_compiled *sampling);
void td_stage_wait(td_stage *s);
/* Seconds of the planned step, the median of n_rounds. compiled NULL: of an empty step. */
double td_stage_step_s(td_stage *s, td_compiled *compiled, uint32_t n_rounds, double max_seconds);
/* Repeats the planned step for this many seconds. */
void td_stage_warm(td_stage *s, td_compiled *compiled, double seconds);

/* Calls once(arg) n_warm times. Then calls it until n_min calls and min_seconds are reached, or max_seconds
 * are over, and adds the seconds of each of these calls to `out`. */
void td_stage_time(double (*once)(void *arg), void *arg, int n_warm, int n_min, double min_seconds,
                   double max_seconds, td_stats_list *out);

#endif
