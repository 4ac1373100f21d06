/* The fixture of what runs on a backend (kernels, attention, steps): the backend that the options name, a KV
 * store, and plans made by hand, with rows of as much context as wanted on scattered pages that hold zeros or
 * what td_stage_fill wrote. A step's work does not depend on the values, so no context is computed; zeros
 * cost a GPU less power, though. What fails ends the program. */
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

/* The options that every such command has. */
typedef struct td_stage_options {
  const char *backend, *policy, *json; /* policy: bench/attention_policies.h */
  double threads, cpu_exact, device, gpu_memory_percent, gb_s, tflop_s;
} td_stage_options;
/* clang-format off */
#define TD_STAGE_OPTIONS {.backend = "auto", .policy = "auto", .cpu_exact = 1, .gpu_memory_percent = 90}
#define TD_STAGE_ARGS(o) \
  {"--backend", "NAME", "auto, cpu or cuda (auto)", TD_ARG_TEXT, &(o).backend}, \
  {"--threads", "N", "of the CPU backend; 0: one per core", TD_ARG_NUMBER, &(o).threads}, \
  {"--cpu-exact", "N", "as tandemd's: 0 rounds activations (1)", TD_ARG_NUMBER, &(o).cpu_exact}, \
  {"--device", "N", "which GPU (0)", TD_ARG_NUMBER, &(o).device}, \
  {"--gb-s", "X", "memory ceiling; 0: an H200's, or measured on a CPU", TD_ARG_NUMBER, &(o).gb_s}, \
  {"--json", "FILE", "where all figures go", TD_ARG_TEXT, &(o).json}
#define TD_STAGE_ARGS_OF_STEPS(o) \
  {"--tflop-s", "X", "compute ceiling; as --gb-s", TD_ARG_NUMBER, &(o).tflop_s}, \
  {"--policy", "NAME", \
   "what decodes share: auto, as the daemon has it, or another of `attention --policies` (auto)", \
   TD_ARG_TEXT, &(o).policy}
/* clang-format on */

typedef struct td_stage {
  td_backend *be;     /* owned */
  td_model_desc desc; /* the heads of rope and attention */
  td_devptr inv_freq;
  uint32_t n_layers; /* of the KV store */
  td_kv *kv;
  td_dummy_plan dummy;
  td_compiled *nothing; /* a program without ops */
} td_stage;

/* max_rows, max_tokens, max_context_tokens and what else differs stand in `sizes`; the options give the rest.
 */
void td_stage_open(td_stage *s, const td_stage_options *o, const td_model_desc *d, td_backend_config sizes);
/* After weights and workspace are there: a KV store of so many layers, of as many pages as min(wanted,
 * budget), and the page table for rows of up to max_context_tokens. */
td_kv_spec td_stage_kv_spec(const td_stage *s, uint32_t n_layers);
void td_stage_add_kv(td_stage *s, uint32_t n_layers, double n_pages_wanted, uint32_t max_context_tokens);
double td_stage_kv_token_bytes(const td_stage *s, uint32_t n_layers);
void td_stage_close(td_stage *s);
bool td_stage_on_cpu(const td_stage *s);
/* Backend and ceilings, for the JSON. */
void td_stage_describe(const td_stage *s, const td_ceiling *c, cJSON *o);

/* ---- what ops read and write ---- */

td_devptr td_stage_alloc(td_stage *s, size_t bytes);
td_devptr td_stage_upload(td_stage *s, const float *v, size_t n);
/* Random activations in the backend's width: zeros would cost a GPU less power than a model does. */
td_devptr td_stage_random(td_stage *s, size_t bytes);

/* ---- programs ---- */

td_op td_stage_rope_op(const td_stage *s, td_devptr qkv, uint32_t layer);
td_op td_stage_attention_op(const td_stage *s, td_devptr qkv, td_devptr out, uint32_t layer);
/* The program as this backend runs it; td_stage_discard gives it back. */
td_compiled *td_stage_compile(td_stage *s, const td_program *program);
/* A program of the ops 0 to n - 1 that `op` makes. */
td_compiled *td_stage_compile_ops(td_stage *s, td_op (*op)(const void *arg, uint32_t i), const void *arg,
                                  uint32_t n);
void td_stage_discard(td_stage *s, td_compiled *compiled);
/* The step of so many decodes is captured from now on, where the backend does that. */
void td_stage_capture(td_stage *s, td_compiled *compiled, uint32_t n_rows);

/* ---- plans (and by hand: s->dummy) ---- */

/* A decode whose first tokens, whole pages, are those of the row before. False: no page or row is left. */
bool td_stage_add_decode(td_stage *s, uint32_t kv_len, uint32_t n_shared, bool wants_logits);

/* Steps of as many new tokens as fit one, until each page was written; none where a step holds fewer tokens
 * than a page. Leaves an empty plan. */
void td_stage_fill(td_stage *s, td_compiled *compiled);
/* The same with keys and values out of qkv. */
void td_stage_fill_from(td_stage *s, td_devptr qkv);

/* ---- steps ---- */

void td_stage_submit(td_stage *s, td_compiled *compiled); /* the plan; NULL: an empty step */
/* With a sampling program behind it; NULL: nothing is sampled. */
void td_stage_submit_sampled(td_stage *s, td_compiled *compiled, td_compiled *sampling);
void td_stage_wait(td_stage *s);
/* Seconds of the planned step, the median of n_rounds; of an empty one if compiled is NULL. */
double td_stage_step_s(td_stage *s, td_compiled *compiled, uint32_t n_rounds, double max_seconds);
/* The same step again and again for so long. */
void td_stage_warm(td_stage *s, td_compiled *compiled, double seconds);

/* Calls once(arg) n_warm times, then until both n_min calls and min_seconds are reached or max_seconds are
 * over; seconds of each call go to `out`. */
void td_stage_time(double (*once)(void *arg), void *arg, int n_warm, int n_min, double min_seconds,
                   double max_seconds, td_stats_list *out);

#endif
