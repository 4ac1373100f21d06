/* tandem-bench steps: whole steps of a model (plan up, forward, sampling, token ids back), beside the floors
 * of its shape: decodes by batch and context, prompts by length, a chunk beside decodes.
 *
 * There are two figures. `alone` is the time from submission to outcome, host work included. `step` is the
 * pace of consecutive steps if the backend lets two be under way, as in a daemon that plans ahead. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/commands.h"
#include "bench/stage.h"
#include "loadgen/shapes.h"
#include "common/log.h"
#include "models/model.h"

enum { LIST_MAX = 32, WARM = 3, PAGE_TOKENS = TD_STAGE_PAGE_TOKENS, SPARE_TOKENS = 64, TURNS = 4 };

typedef struct steps {
  td_stage_options options;
  const char *model_path, *shape, *batches, *contexts, *prompts, *chunks, *without;
  double step_tokens, n_min, max_seconds, shared, tune_ms;
  bool dummy, no_capture, batch_invariant;
  double batch[LIST_MAX], context[LIST_MAX], prompt[LIST_MAX], chunk[LIST_MAX];
  size_t n_batch, n_context, n_prompt, n_chunk;
  td_model_files *files;
  td_model_desc desc;
  td_model *model;
  td_program *program;
  td_compiled *whole, *part; /* part: without the ops of --without; NULL: no such option */
  td_compiled *now;          /* the one that steps run */
  td_compiled *sampling;     /* runs after the forward */
  bool part_samples;         /* sampling runs after `part` too */
  td_stage stage;
  td_floor_model floor;
  td_ceiling ceiling;
  uint32_t max_context;
  bool under_way; /* step_paced has submitted a step and not waited for it */
  uint32_t prompt_tokens;
  td_report report;
} steps;

/* ---- setup ---- */

static double largest(const double *v, size_t n)
{
  double m = 0;
  for (size_t i = 0; i < n; i++)
    m = fmax(m, v[i]);
  return m;
}

/* Bytes of all matrices that a step reads. An untied embedding is only looked up, so it does not count; a
 * tied one is also the head. */
static double weight_bytes(const steps *s)
{
  const td_model_desc *d = &s->desc;
  const td_backend *be = s->stage.be;
  const td_tensor *t = s->dummy ? NULL : td_model_files_find(s->files, "token_embd.weight");
  if (!t && !s->dummy)
    t = td_model_files_find(s->files, "model.embed_tokens.weight");
  td_dtype kept = be->ops->weight_type(be, t ? t->dtype : TD_BF16).storage;
  uint64_t row_bytes = 0;
  (void)td_dtype_row_bytes(kept, d->width, &row_bytes);
  double unused = d->tied_embeddings ? 0 : (double)d->vocab * (double)row_bytes;
  return (double)td_model_weight_bytes(s->dummy ? NULL : s->files, d, be) - unused;
}

/* The list "0" is empty. */
static void read_list(const char *text, double *list, size_t *n)
{
  td_error err;
  td_tool_check(td_tool_read_list(text, list, LIST_MAX, n, &err), &err);
  *n -= *n == 1 && list[0] <= 0;
}

static void read_lists(steps *s)
{
  read_list(s->batches, s->batch, &s->n_batch);
  read_list(s->contexts, s->context, &s->n_context);
  read_list(s->prompts, s->prompt, &s->n_prompt);
  read_list(s->chunks, s->chunk, &s->n_chunk);
  if (largest(s->batch, s->n_batch) > 4096 || largest(s->context, s->n_context) > 1 << 20 ||
      largest(s->prompt, s->n_prompt) > 1 << 20 || largest(s->chunk, s->n_chunk) > 1 << 16)
    td_tool_die("a batch, context, prompt or chunk is too large");
}

static void open_model(steps *s)
{
  td_error err;
  if ((s->model_path != NULL) == (s->shape != NULL))
    td_tool_die("steps needs --model PATH or --shape NAME; --help lists the options");
  if (s->shape) {
    s->dummy = true;
    td_tool_check(td_shapes_find(s->shape, &s->desc, &err), &err);
    return;
  }
  td_tool_check(s->dummy ? td_model_files_open_described(s->model_path, &s->files, &err)
                         : td_model_files_open(s->model_path, &s->files, &err),
                &err);
  td_tool_check(td_model_desc_read(s->files, &s->desc, &err), &err);
}

static void show_load(void *arg, double share) { td_tool_progress(share, "weights"); }

static void load(steps *s)
{
  td_error err;
  td_backend *be;
  double longest = fmax(largest(s->context, s->n_context), largest(s->prompt, s->n_prompt));
  s->max_context = ((uint32_t)longest + SPARE_TOKENS + PAGE_TOKENS - 1) / PAGE_TOKENS * PAGE_TOKENS;
  if (s->max_context > s->desc.context_tokens)
    fprintf(stderr,
            "  note: contexts beyond the %u tokens this model was made for: times are right, answers would "
            "not be\n",
            s->desc.context_tokens);
  td_stage_open(&s->stage, &s->options, &s->desc,
                (td_backend_config){.max_rows = (uint32_t)largest(s->batch, s->n_batch) + 1,
                                    .max_tokens = (uint32_t)s->step_tokens,
                                    .max_context_tokens = s->max_context,
                                    .max_vocab = s->desc.vocab,
                                    .batch_invariant = s->batch_invariant});
  be = s->stage.be;
  td_tool_check(s->dummy ? td_model_make_up(&s->desc, be, 0, be->max_tokens, be->max_rows, show_load, NULL,
                                            &s->model, &err)
                         : td_model_load(s->files, &s->desc, be, be->max_tokens, be->max_rows, show_load,
                                         NULL, &s->model, &err),
                &err);
  td_tool_check(be->ops->weights_wait(be, &err), &err);
  td_tool_progress(-1, " ");
  double pages = largest(s->batch, s->n_batch) * s->max_context / PAGE_TOKENS * 1.1 + 4096;
  td_stage_add_kv(&s->stage, s->desc.n_layers, pages, s->max_context);
  s->floor = td_floor_make(&s->desc, weight_bytes(s), td_stage_kv_token_bytes(&s->stage, s->desc.n_layers));
  s->ceiling =
      td_ceilings_of(be->ops->name, s->options.gb_s, s->options.tflop_s, (uint32_t)s->options.threads);
}

/* ---- steps ---- */

static void submit(steps *s)
{
  bool samples = s->now != s->part || s->part_samples;
  td_stage_submit_sampled(&s->stage, s->now, samples ? s->sampling : NULL);
}

static double step_alone(void *arg)
{
  steps *s = arg;
  double begin = td_tool_now_s();
  submit(s);
  td_stage_wait(&s->stage);
  return td_tool_now_s() - begin;
}

/* Submits one more step before it waits for the oldest. From the second step on, the device takes the input
 * tokens from the step before. */
static double step_paced(void *arg)
{
  steps *s = arg;
  double begin = td_tool_now_s();
  if (!s->under_way) {
    submit(s);
    s->under_way = true;
    td_plan *p = s->stage.dummy.plan;
    for (uint32_t i = 0; i < p->n_decode_rows; i++)
      p->token_ids[p->rows[i].q_start] = -1 - (int32_t)i;
  }
  submit(s);
  td_stage_wait(&s->stage);
  return td_tool_now_s() - begin;
}

static void finish_pace(steps *s)
{
  if (s->under_way)
    td_stage_wait(&s->stage);
  s->under_way = false;
}

static double prompt_alone(void *arg)
{
  steps *s = arg;
  double begin = td_tool_now_s();
  for (uint32_t at = 0; at < s->prompt_tokens;) {
    uint32_t n = s->prompt_tokens - at < s->stage.dummy.plan->max_tokens ? s->prompt_tokens - at
                                                                         : s->stage.dummy.plan->max_tokens;
    at += n;
    td_dummy_plan_clear(&s->stage.dummy);
    td_dummy_plan_add(&s->stage.dummy, n, at, 0, at == s->prompt_tokens);
    submit(s);
    td_stage_wait(&s->stage);
  }
  return td_tool_now_s() - begin;
}

/* ---- ablation: an op's cost in a step shows best when it is left out ---- */

/* Reads "rmsnorm,linear" as bits of td_op_kind. */
static uint32_t op_kinds(const char *ops)
{
  char list[128], *rest = list;
  uint32_t kinds = 0;
  if ((size_t)snprintf(list, sizeof list, "%s", ops) >= sizeof list)
    td_tool_die("--without: too long");
  for (const char *op; (op = strsep(&rest, ","));) {
    uint32_t k = 0;
    while (k < TD_OP_KINDS && strcmp(op, td_op_names[k]) != 0)
      k++;
    if (k == TD_OP_KINDS)
      td_tool_die("--without: no op '%s'", op);
    kinds |= 1u << k;
  }
  return kinds;
}

/* Compiles the forward with these kinds of ops only. */
static td_compiled *compile_kinds(steps *s, uint32_t kinds)
{
  td_error err;
  td_program *kept;
  td_tool_check(td_program_keep(s->program, kinds, &kept, &err), &err);
  td_compiled *compiled = td_stage_compile(&s->stage, kept);
  td_program_destroy(kept);
  return compiled;
}

static void compile(steps *s)
{
  td_error err;
  td_tool_check(td_model_program(s->model, s->stage.kv, &s->program, &err), &err);
  s->whole = s->now = compile_kinds(s, TD_OP_ALL);
  if (s->without) {
    s->part = compile_kinds(s, TD_OP_ALL & ~op_kinds(s->without));
    s->part_samples = !(op_kinds(s->without) >> TD_OP_SAMPLE & 1);
  }
  td_program *sampling;
  td_tool_check(td_model_sampling(s->model, &sampling, &err), &err);
  s->sampling = td_stage_compile(&s->stage, sampling);
  td_program_destroy(sampling);
}

static bool has_power_limit(const steps *s) { return !td_stage_on_cpu(&s->stage); }

/* At its power limit, a device computes zeros faster than other values. Zeros would come from KV that was
 * never written, or from the input of a linear behind an op that is left out. So this computes one whole
 * prompt, whose activations stay in memory, and writes the keys and values of its last layer to every
 * page. */
static void fill(steps *s)
{
  s->prompt_tokens = (uint32_t)fmin(fmin(s->stage.dummy.plan->max_tokens, s->max_context),
                                    (double)s->stage.dummy.n_pages * PAGE_TOKENS);
  prompt_alone(s);
  td_compiled *writes_kv = compile_kinds(s, 1u << TD_OP_EMBED | 1u << TD_OP_ROPE_KV);
  td_stage_fill(&s->stage, writes_kv);
  td_stage_discard(&s->stage, writes_kv);
}

/* ---- cells ---- */

typedef struct cell {
  const char *kind;
  uint32_t batch, context, chunk, chunk_context;
  double floor_s, tokens;
} cell;

static void report(steps *s, const cell *c, const char *without, const td_stats_summary *alone,
                   const td_stats_summary *pace)
{
  char what[64];
  const td_stats_summary *best = pace->n > 0 && pace->p50 < alone->p50 ? pace : alone;
  if (without)
    snprintf(what, sizeof what, "  without");
  else if (strcmp(c->kind, "prefill") == 0)
    snprintf(what, sizeof what, "prefill %u", c->chunk);
  else if (c->chunk > 0)
    snprintf(what, sizeof what, "%u@%u + %ux%u", c->chunk, c->chunk_context, c->batch, c->context);
  else
    snprintf(what, sizeof what, "decode %ux%u", c->batch, c->context);
  const td_report_field fields[] = {
      {NULL, "", -26, 0, 0, what},
      {"alone_ms_p50", "alone", 10, 3, alone->p50 * 1e3, NULL},
      {"pace_ms_p50", "step", 10, 3, pace->p50 * 1e3, NULL},
      {"floor_ms", "floor", 10, 3, c->floor_s * 1e3, NULL},
      {NULL, "share", 7, TD_REPORT_PERCENT, c->floor_s / best->p50, NULL},
      {"tokens_per_s", "tokens/s", 11, 1, c->tokens / best->p50, NULL},
      {"runs", "runs", 5, 0, (double)best->n, NULL},
      {"kind", NULL, 0, 0, 0, c->kind},
      {"batch", NULL, 0, 0, c->batch, NULL},
      {"context", NULL, 0, 0, c->context, NULL},
      {"chunk", NULL, 0, 0, c->chunk, NULL},
      {"chunk_context", NULL, 0, 0, c->chunk_context, NULL},
      {"alone_ms_p99", NULL, 0, 0, alone->p99 * 1e3, NULL},
      {"pace_ms_p99", NULL, 0, 0, pace->p99 * 1e3, NULL},
      {without ? "without" : NULL, NULL, 0, 0, 0, without},
  };
  td_report_row(&s->report, fields, sizeof fields / sizeof *fields);
}

/* Times of a cell's steps. */
typedef struct times {
  td_stats_list alone, pace;
} times;

static void measure_times(steps *s, double (*alone)(void *), bool paced, uint32_t n_turns, times *t)
{
  int n = ((int)s->n_min + (int)n_turns - 1) / (int)n_turns;
  td_stage_time(alone, s, WARM, n, 0.2 / n_turns, s->max_seconds / n_turns, &t->alone);
  if (paced && s->stage.be->pipeline_depth > 1) {
    td_stage_time(step_paced, s, WARM, n, 0.2 / n_turns, s->max_seconds / n_turns, &t->pace);
    finish_pace(s);
  }
}

static void report_times(steps *s, const cell *c, const char *without, times *t)
{
  td_stats_summary alone = td_stats_summarise(&t->alone), pace = td_stats_summarise(&t->pace);
  report(s, c, without, &alone, &pace);
  td_stats_deinit(&t->alone);
  td_stats_deinit(&t->pace);
}

/* With --without, whole and partial steps take turns, because the speed of a device at its power limit
 * changes over time. */
static void measure(steps *s, const cell *c, double (*alone)(void *), bool paced)
{
  times whole = {0}, part = {0};
  for (uint32_t i = 0; i < (s->without ? 2 * TURNS : 1); i++) {
    s->now = i % 2 ? s->part : s->whole;
    measure_times(s, alone, paced, s->without ? TURNS : 1, i % 2 ? &part : &whole);
  }
  report_times(s, c, NULL, &whole);
  if (s->without)
    report_times(s, c, s->without, &part);
}

static void skip(const char *what, uint32_t a, uint32_t b)
{
  printf("%-26s %ux%u: no room for it in this memory or step\n", what, a, b);
}

static bool plan_decodes(steps *s, uint32_t batch, uint32_t context)
{
  bool fits = true;
  td_dummy_plan_clear(&s->stage.dummy);
  for (uint32_t i = 0; i < batch && fits; i++)
    fits = td_stage_add_decode(&s->stage, context, (uint32_t)fmin(s->shared, context - 1), true);
  return fits;
}

static void measure_decodes(steps *s)
{
  for (size_t k = 0; k < s->n_context; k++)
    for (size_t i = 0; i < s->n_batch; i++) {
      cell c = {.kind = "decode",
                .batch = (uint32_t)s->batch[i],
                .context = (uint32_t)s->context[k],
                .tokens = s->batch[i]};
      c.floor_s = td_floor_decode_s(&s->floor, &s->ceiling, c.batch, c.context);
      if (plan_decodes(s, c.batch, c.context))
        measure(s, &c, step_alone, true);
      else
        skip("decode", c.batch, c.context);
    }
}

static void measure_prompts(steps *s)
{
  for (size_t i = 0; i < s->n_prompt; i++) {
    cell c = {.kind = "prefill",
              .chunk = (uint32_t)s->prompt[i],
              .chunk_context = (uint32_t)s->prompt[i],
              .tokens = s->prompt[i]};
    c.floor_s = td_floor_prefill_s(&s->floor, &s->ceiling, c.chunk);
    s->prompt_tokens = c.chunk;
    if (s->stage.dummy.n_pages >= (c.chunk + PAGE_TOKENS - 1) / PAGE_TOKENS)
      measure(s, &c, prompt_alone, false);
    else
      skip("prefill", 1, c.chunk);
  }
}

/* A chunk at the end of each context, beside decodes of that context. */
static void measure_hybrids(steps *s)
{
  uint32_t most = (uint32_t)largest(s->batch, s->n_batch);
  const uint32_t batches[] = {most < 16 ? most : 16, most < 64 ? most : 64};
  for (size_t k = 0; k < s->n_context; k++)
    for (size_t i = 0; i < s->n_chunk; i++)
      for (size_t b = 0; b < (most > 16 ? 2 : 1); b++) {
        cell c = {"hybrid",
                  batches[b],
                  (uint32_t)s->context[k],
                  (uint32_t)s->chunk[i],
                  (uint32_t)s->context[k],
                  0,
                  s->chunk[i] + batches[b]};
        if (c.chunk > c.chunk_context)
          continue;
        c.floor_s = td_floor_hybrid_s(&s->floor, &s->ceiling, c.chunk, c.chunk_context, c.batch, c.context);
        if (plan_decodes(s, c.batch, c.context) &&
            td_dummy_plan_add(&s->stage.dummy, c.chunk, c.chunk_context, 0, true))
          measure(s, &c, step_alone, true);
        else
          skip("chunk beside decodes", c.batch, c.context);
      }
}

/* Tunes as a daemon does in idle moments, but without pauses; writes no file. */
static void tune(steps *s)
{
  td_error err;
  td_tuning ignored;
  td_tool_check(td_backend_tune(s->stage.be, s->whole, "", (uint32_t)s->tune_ms, &ignored, &err), &err);
}

static void capture_all(steps *s)
{
  for (size_t i = 0; i < s->n_batch && !s->no_capture; i++) {
    td_stage_capture(&s->stage, s->whole, (uint32_t)s->batch[i]);
    if (s->part)
      td_stage_capture(&s->stage, s->part, (uint32_t)s->batch[i]);
  }
}

/* Without its folder, because results are published. */
static const char *model_name(const steps *s)
{
  const char *slash = s->shape ? NULL : strrchr(s->model_path, '/');
  return s->shape ? s->shape : slash && slash[1] ? slash + 1 : s->model_path;
}

static void begin_report(steps *s)
{
  const td_backend *be = s->stage.be;
  printf("%s: %s, %u layers, %.2f GB read a step, %.0f KV bytes a token; backend %s, steps of up to %u rows, "
         "%u tokens; %u pages\n",
         model_name(s), s->dummy ? "made-up weights" : "its own weights", s->desc.n_layers,
         s->floor.weight_bytes * 1e-9, s->floor.kv_bytes_per_token, be->ops->name, be->max_rows,
         be->max_tokens, s->stage.dummy.n_pages);
  printf(
      "floors: %.0f GB/s, %.2f TFLOP/s. Contexts are %s on scattered pages, not computed first. decode BxC:\n"
      "B requests at context C; K@C + BxC: a chunk of K tokens that ends at C, beside B decodes. Medians, "
      "ms.\n",
      s->ceiling.bytes_per_s * 1e-9, s->ceiling.flop_per_s * 1e-12,
      has_power_limit(s) ? "one prompt's KV again and again" : "zeros");
  td_report_begin(&s->report, "tandem-bench steps", "steps");
  td_stage_describe(&s->stage, &s->ceiling, s->report.json);
  cJSON_AddStringToObject(s->report.json, "model", model_name(s));
}

int td_bench_steps(int argc, char **argv)
{
  static steps s = {.options = TD_STAGE_OPTIONS,
                    .batches = "1,2,4,8,16,32,64,128,256",
                    .contexts = "1024,4096,16384",
                    .prompts = "512,2048,8192,16384",
                    .chunks = "512,1024,2048",
                    .n_min = 20,
                    .max_seconds = 20,
                    .tune_ms = 2000};
  const td_arg args[] = {
      {"--model", "PATH", "GGUF file or model folder", TD_ARG_TEXT, &s.model_path},
      {"--dummy", NULL, "use only the config.json of --model, with random weights", TD_ARG_FLAG, &s.dummy},
      {"--shape", "NAME", "no files: random weights of one of the shapes above", TD_ARG_TEXT, &s.shape},
      TD_STAGE_ARGS(s.options),
      TD_STAGE_ARGS_OF_STEPS(s.options),
      {"--gpu-memory-percent", "N", "the daemon's option (90)", TD_ARG_NUMBER, &s.options.gpu_memory_percent},
      {"--step-tokens", "N", "largest step; 0: the backend's choice", TD_ARG_NUMBER, &s.step_tokens},
      {"--batches", "N,...", "numbers of decodes (1,2,4,8,...,256)", TD_ARG_TEXT, &s.batches},
      {"--contexts", "N,...", "contexts of decodes (1024,4096,16384)", TD_ARG_TEXT, &s.contexts},
      {"--prompts", "N,...", "prompts, one at a time; 0: none (512,2048,8192,16384)", TD_ARG_TEXT,
       &s.prompts},
      {"--chunks", "N,...", "prefill chunks beside decodes; 0: none (512,1024,2048)", TD_ARG_TEXT, &s.chunks},
      {"--without", "OP,...",
       "also measure steps without some of embed rmsnorm linear rope_kv attention swiglu gather sample, "
       "which "
       "gives their share",
       TD_ARG_TEXT, &s.without},
      {"--batch-invariant", NULL, "as the daemon's option, to measure its cost", TD_ARG_FLAG,
       &s.batch_invariant},
      {"--shared", "N", "length of a prefix that all decodes share; the floor ignores it (0)", TD_ARG_NUMBER,
       &s.shared},
      {"--tune-ms", "N", "time for measuring first which algorithms are fastest (2000)", TD_ARG_NUMBER,
       &s.tune_ms},
      {"--no-capture", NULL, "steps are not captured (CUDA graphs)", TD_ARG_FLAG, &s.no_capture},
      {"--runs", "N", "fewest runs of each step (20)", TD_ARG_NUMBER, &s.n_min},
      {"--max-seconds", "S", "longest time for each step (20)", TD_ARG_NUMBER, &s.max_seconds},
  };
  char text[1024];
  snprintf(
      text, sizeof text,
      "Times whole steps of a model without scheduler and HTTP, beside the floors of its shape.\nShapes: %s.",
      td_shapes_names());
  td_tool_args("tandem-bench steps", text, args, sizeof args / sizeof *args, argc, argv);
  td_log_init(TD_LOG_WARN, false);
  if (s.shared < 0)
    td_tool_die("--shared: a number of tokens");
  read_lists(&s);
  open_model(&s);
  load(&s);
  compile(&s);
  if (has_power_limit(&s))
    fill(&s);
  tune(&s);
  capture_all(&s);
  begin_report(&s);
  measure_decodes(&s);
  measure_prompts(&s);
  measure_hybrids(&s);
  td_report_end(&s.report, s.options.json);
  td_program_destroy(s.program);
  td_stage_discard(&s.stage, s.whole);
  td_stage_discard(&s.stage, s.sampling);
  td_stage_discard(&s.stage, s.part);
  td_model_destroy(s.model);
  td_stage_close(&s.stage);
  if (s.files)
    td_model_files_close(s.files);
  return 0;
}
