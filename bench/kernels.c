/* tandem-bench kernels: every op of a backend alone, through kernels.h, beside its floor: the bytes it must
 * move or the operations it must do.
 *
 * A figure is the median of many rounds. A round is a step whose program runs one op n times, less an empty
 * step, divided by n. So the host's work hides behind the device's, as in a whole step. The op rotates over
 * several copies of its weights, inputs and KV, which together are larger than the caches, because in a model
 * they would not be cached either. Two exceptions, which a model has just written: a linear's x, and the
 * buffer it adds to. A linear's step is captured if the backend captures decode steps of that many rows. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/commands.h"
#include "bench/kernels.h"
#include "loadgen/shapes.h"
#include "common/log.h"

enum { LIST_MAX = 32, QUEUE_MAX = 1000, LAYERS_MAX = 4, STEP_TOKENS = 512 };

typedef struct bench {
  td_kernels k;
  td_stage_options options;
  const char *shape, *rows, *dtype, *only;
  double n_rounds, round_ms, warm_ms, max_seconds, attention_gb;
  td_ceiling ceiling;
  double list[LIST_MAX];
  size_t n_list;
  td_report report;
  /* the op under test, and how many ops make one */
  td_kernels_op *op;
  uint32_t ops_of_one;
  /* how long it runs before timing: linears bring a GPU to its power limit, and its clock falls */
  double warm_s;
  bool captures; /* capture the op's step, if the backend can */
} bench;

static bool wanted(const bench *b, const char *op) { return td_tool_in_list(b->only, op); }

static void setup(bench *b)
{
  td_stage *s = &b->k.stage;
  td_model_desc d;
  td_error err;
  double largest = STEP_TOKENS;
  td_tool_check(td_shapes_find(b->shape, &d, &err), &err);
  for (size_t i = 0; i < b->n_list; i++)
    largest = fmax(largest, b->list[i]);
  bool gpu_asked = strcmp(b->options.backend, "cpu") != 0;
  uint32_t max_context = gpu_asked ? 65536 : 4096;
  td_stage_open(s, &b->options, &d,
                (td_backend_config){.max_rows = gpu_asked ? 256 : 64,
                                    .max_tokens = (uint32_t)largest,
                                    .max_context_tokens = max_context,
                                    .max_vocab = d.vocab});
  td_kernels_make_inputs(&b->k, wanted(b, "glu"));
  /* attention rotates over the layers */
  uint32_t n_layers = d.n_layers < LAYERS_MAX ? d.n_layers : LAYERS_MAX;
  double gb = b->attention_gb > 0 ? b->attention_gb : gpu_asked ? 20 : 0.5;
  td_stage_add_kv(s, n_layers, gb * 1e9 / (td_stage_kv_token_bytes(s, n_layers) * TD_STAGE_PAGE_TOKENS),
                  max_context);
  td_stage_fill_from(s, b->k.x);
  b->ceiling =
      td_ceilings_of(s->be->ops->name, b->options.gb_s, b->options.tflop_s, (uint32_t)b->options.threads);
}

/* ---- timing ---- */

static td_op under_test(const void *arg, uint32_t i)
{
  const bench *b = arg;
  return b->op(&b->k, i);
}

static td_compiled *compile(bench *b, uint32_t n)
{
  return td_stage_compile_ops(&b->k.stage, under_test, b, n * b->ops_of_one);
}

/* n 0: an empty step. */
static double median_step(bench *b, uint32_t n, int n_rounds)
{
  td_stage *s = &b->k.stage;
  td_compiled *c = n > 0 ? compile(b, n) : NULL;
  double seconds = td_stage_step_s(s, c, (uint32_t)n_rounds, b->max_seconds);
  td_stage_discard(s, c);
  return seconds;
}

/* Plans n tokens in rows of at most the context's length. With `logits`, each row's last token has a logits
 * entry. */
static bool plan_tokens(bench *b, uint32_t n, bool logits)
{
  td_stage *s = &b->k.stage;
  uint32_t left = n, most = s->dummy.stripe_pages * TD_STAGE_PAGE_TOKENS;
  bool fits = true;
  td_dummy_plan_clear(&s->dummy);
  while (left > 0 && fits) {
    uint32_t q = n <= s->dummy.plan->max_rows ? 1 : left < most ? left : most;
    fits = td_dummy_plan_add(&s->dummy, q, q, 0, logits);
    left -= q;
  }
  b->k.n_rows = n;
  return fits;
}

/* Times the op after running it for warm_s. The step is captured if it could be a decode step. */
static double median_warm(bench *b, uint32_t n)
{
  td_stage *s = &b->k.stage;
  td_compiled *c = compile(b, n);
  if (b->captures && s->dummy.plan->n_logits == s->dummy.plan->n_tokens)
    td_stage_capture(s, c, s->dummy.plan->n_rows);
  td_stage_warm(s, c, fmin(b->warm_s, b->max_seconds));
  double seconds = td_stage_step_s(s, c, (uint32_t)b->n_rounds, b->max_seconds);
  td_stage_discard(s, c);
  return seconds;
}

/* The bytes and operations that the op needs at least, which give its floor. */
typedef struct work {
  double bytes, flop;
} work;

static void report(bench *b, const char *op, const char *size, const work *w, double s)
{
  double floor_s = fmax(w->bytes / b->ceiling.bytes_per_s, w->flop / b->ceiling.flop_per_s);
  const td_report_field fields[] = {
      {"op", "op", -10, 0, 0, op},
      {"size", "size", -22, 0, 0, size},
      {"us", "us", 11, 2, s * 1e6, NULL},
      {"gb_s", "GB/s", 10, 1, w->bytes / s * 1e-9, NULL},
      {"tflop_s", "TFLOP/s", 9, 2, w->flop / s * 1e-12, NULL},
      {"floor_us", "floor us", 11, 2, floor_s * 1e6, NULL},
      {"share", "share", 7, TD_REPORT_PERCENT, floor_s / s, NULL},
  };
  td_report_row(&b->report, fields, sizeof fields / sizeof *fields);
}

/* A round has as many ops as fill round_ms, so that the empty step and the clock's resolution matter
 * little. */
static void measure(bench *b, const char *op, const char *size, const work *w)
{
  double one = median_step(b, 1, 3), empty = median_step(b, 0, (int)b->n_rounds);
  double n = floor(b->round_ms * 1e-3 / fmax(one - empty, 0.5e-6));
  n = fmin(fmax(n, 2), QUEUE_MAX);
  double s = (median_warm(b, (uint32_t)n) - empty) / n;
  if (s > 0)
    report(b, op, size, w, s);
  else
    printf("%-10s %-22s too short to tell from an empty step\n", op, size);
}

/* ---- the list of figures ---- */

static double warm_s_of(const bench *b)
{
  return b->warm_ms >= 0 ? b->warm_ms * 1e-3 : td_stage_on_cpu(&b->k.stage) ? 0 : 0.2;
}

static void measure_linears(bench *b)
{
  td_kernels *k = &b->k;
  char size[64];
  double a = k->stage.be->activation_bytes;
  b->op = td_kernels_linear;
  b->captures = true;
  b->warm_s = warm_s_of(b);
  for (k->m = 0; k->m < TD_KERNELS_MATRICES; k->m++)
    for (size_t i = 0; i < b->n_list && wanted(b, td_kernels_matrix_names[k->m]); i++) {
      uint32_t n = (uint32_t)b->list[i], rows = td_kernels_rows(k, k->m), cols = td_kernels_cols(k, k->m);
      bool head = k->m == TD_KERNELS_HEAD;
      if ((head && n > k->stage.be->max_rows) || !plan_tokens(b, n, true))
        continue;
      double out = head ? 4 : td_kernels_adds(k->m) ? 2 * a : a;
      work w = {k->matrix_bytes[k->m] + n * (cols * a + rows * out), 2.0 * n * rows * cols};
      snprintf(size, sizeof size, "%u x %u->%u", n, cols, rows);
      measure(b, td_kernels_matrix_names[k->m], size, &w);
    }
  b->captures = false;
  b->warm_s = 0;
}

/* Whether the backend has the op for this many rows. */
static bool has_glu(bench *b)
{
  td_error err;
  td_outcome ignored;
  td_compiled *compiled;
  td_stage *s = &b->k.stage;
  td_op op = td_kernels_glu(&b->k, 0);
  td_program program = {.ops = &op, .n_ops = 1, .n_unsampled = 1};
  if (s->be->ops->compile(s->be, &program, &compiled, &err) != TD_OK)
    return false;
  td_stage_submit(s, compiled);
  bool has = td_backend_wait(s->be, &ignored, &err) == TD_OK;
  td_stage_discard(s, compiled);
  return has;
}

static void measure_glu(bench *b)
{
  td_kernels *k = &b->k;
  char size[64];
  double a = k->stage.be->activation_bytes;
  uint32_t rows = td_kernels_rows(k, TD_KERNELS_GATE_UP), cols = td_kernels_cols(k, TD_KERNELS_GATE_UP);
  b->warm_s = warm_s_of(b);
  for (size_t i = 0; i < b->n_list && wanted(b, "glu"); i++) {
    uint32_t n = (uint32_t)b->list[i];
    work w = {k->matrix_bytes[TD_KERNELS_GATE_UP] + n * a * (cols + rows / 2), 2.0 * n * rows * cols};
    if (!plan_tokens(b, n, true))
      continue;
    snprintf(size, sizeof size, "%u x %u->2x%u", n, cols, rows / 2);
    b->op = td_kernels_glu_by_two;
    b->ops_of_one = 2;
    measure(b, "glu by two", size, &w);
    b->op = td_kernels_glu;
    b->ops_of_one = 1;
    if (has_glu(b))
      measure(b, "glu", size, &w);
  }
  b->warm_s = 0;
}

static void measure_simple(bench *b)
{
  td_kernels *k = &b->k;
  const td_model_desc *d = &k->stage.desc;
  double a = k->stage.be->activation_bytes, kv = 2.0 * d->n_kv_heads * d->head_dim;
  const struct {
    const char *name;
    td_kernels_op *op;
    double bytes_per_token;
    bool of_logits;
  } ops[] = {
      {"embed", td_kernels_embed, k->matrix_bytes[TD_KERNELS_HEAD] / d->vocab + d->width * a, false},
      {"rmsnorm", td_kernels_norm, 2 * d->width * a, false},
      {"rope_kv", td_kernels_rope, (k->q_dim * 2 + kv) * a + kv * a, false},
      {"swiglu", td_kernels_swiglu, 3 * d->ffn_width * a, false},
      {"sample", td_kernels_sample, d->vocab * 4.0, true},
  };
  char size[64];
  for (size_t o = 0; o < sizeof ops / sizeof *ops; o++)
    for (size_t i = 0; i < b->n_list && wanted(b, ops[o].name); i++) {
      uint32_t n = (uint32_t)b->list[i];
      b->op = ops[o].op;
      if ((ops[o].of_logits && n > k->stage.be->max_rows) || !plan_tokens(b, n, ops[o].of_logits))
        continue;
      work w = {n * ops[o].bytes_per_token, 0};
      snprintf(size, sizeof size, "%u", n);
      measure(b, ops[o].name, size, &w);
    }
}

typedef struct attention_case {
  uint32_t batch, context, chunk, chunk_context;
} attention_case;

static void measure_attention(bench *b, const attention_case *c)
{
  td_stage *s = &b->k.stage;
  char size[64];
  bool fits = true;
  td_dummy_plan_clear(&s->dummy);
  for (uint32_t i = 0; i < c->batch && fits; i++)
    fits = td_dummy_plan_add(&s->dummy, 1, c->context, 0, false);
  if (c->chunk > 0)
    fits = fits && td_dummy_plan_add(&s->dummy, c->chunk, c->chunk_context, 0, false);
  if (!fits)
    return;
  double pairs = (double)c->chunk * (c->chunk_context - c->chunk) + (double)c->chunk * c->chunk / 2 +
                 (double)c->batch * c->context;
  work w = {td_stage_kv_token_bytes(s, 1) * ((double)c->batch * c->context + c->chunk_context) +
                2.0 * b->k.q_dim * s->be->activation_bytes * (c->batch + c->chunk),
            4.0 * b->k.q_dim * pairs};
  b->k.n_rows = c->batch + c->chunk;
  b->op = td_kernels_attention;
  if (c->chunk == 0)
    snprintf(size, sizeof size, "%ux%u", c->batch, c->context);
  else if (c->batch == 0)
    snprintf(size, sizeof size, "%u@%u", c->chunk, c->chunk_context);
  else
    snprintf(size, sizeof size, "%u@%u + %ux%u", c->chunk, c->chunk_context, c->batch, c->context);
  measure(b, "attention", size, &w);
}

static void measure_attentions(bench *b)
{
  static const attention_case gpu[] = {
      {1, 1024, 0, 0},         {1, 16384, 0, 0},         {1, 65536, 0, 0},        {8, 16384, 0, 0},
      {16, 4096, 0, 0},        {64, 1024, 0, 0},         {32, 4096, 0, 0},        {64, 4096, 0, 0},
      {256, 1024, 0, 0},       {256, 2048, 0, 0},        {64, 16384, 0, 0},       {0, 0, 512, 4096},
      {0, 0, 512, 16384},      {0, 0, 1024, 16384},      {0, 0, 2048, 16384},     {0, 0, 2048, 2048},
      {64, 16384, 512, 16384}, {80, 12288, 1024, 12288}, {128, 2048, 1024, 8192}, {32, 8192, 2048, 16384},
      {16, 16384, 1024, 16384}};
  static const attention_case cpu[] = {{1, 256, 0, 0},    {1, 1024, 0, 0},  {1, 4096, 0, 0},
                                       {8, 1024, 0, 0},   {32, 1024, 0, 0}, {0, 0, 128, 128},
                                       {0, 0, 128, 1024}, {0, 0, 512, 512}, {8, 1024, 128, 1024}};
  bool on_gpu = !td_stage_on_cpu(&b->k.stage);
  const attention_case *list = on_gpu ? gpu : cpu;
  size_t n = on_gpu ? sizeof gpu / sizeof *gpu : sizeof cpu / sizeof *cpu;
  for (size_t i = 0; i < n && wanted(b, "attention"); i++)
    measure_attention(b, &list[i]);
}

static void begin_report(bench *b)
{
  const td_backend *be = b->k.stage.be;
  td_report_begin(&b->report, "tandem-bench kernels", "ops");
  td_stage_describe(&b->k.stage, &b->ceiling, b->report.json);
  cJSON_AddStringToObject(b->report.json, "shape", b->shape);
  printf("%s, backend %s, weights %s; floors: %.0f GB/s, %.2f TFLOP/s. Attention: BxC decodes at context C, "
         "K@C a chunk of K tokens\n"
         "that ends at C; KV is random. Weights, and other ops' inputs, go round %.0f MB. Medians of %.0f "
         "rounds.\n",
         b->shape, be->ops->name, td_dtypes[be->ops->weight_type(be, b->k.weight_dtype).storage].name,
         b->ceiling.bytes_per_s * 1e-9, b->ceiling.flop_per_s * 1e-12, b->k.cache_mb, b->n_rounds);
}

static void check_options(bench *b)
{
  td_error err;
  td_tool_check(td_tool_read_list(b->rows, b->list, LIST_MAX, &b->n_list, &err), &err);
  for (size_t i = 0; i < b->n_list; i++)
    if (b->list[i] < 1 || b->list[i] > 65536)
      td_tool_die("--rows: from 1 to 65536");
  td_dtype *t = &b->k.weight_dtype;
  for (*t = 0; *t < TD_DTYPE_COUNT && strcmp(td_dtypes[*t].name, b->dtype) != 0; ++*t)
    ;
  if (*t == TD_DTYPE_COUNT)
    td_tool_die("--dtype: no type '%s'", b->dtype);
  if (b->n_rounds < 1 || b->k.cache_mb < 1 || b->attention_gb < 0 || b->round_ms <= 0 ||
      (b->warm_ms < 0 && b->warm_ms != -1))
    td_tool_die("a number is out of range");
}

int td_bench_kernels(int argc, char **argv)
{
  static bench b = {.options = TD_STAGE_OPTIONS,
                    .k.cache_mb = 128,
                    .shape = "llama3-8b",
                    .rows = "1,2,4,8,16,32,64,128,256,512,1024,2048",
                    .dtype = "BF16",
                    .n_rounds = 20,
                    .round_ms = 4,
                    .max_seconds = 3,
                    .warm_ms = -1,
                    .ops_of_one = 1};
  const td_arg args[] = {
      {"--shape", "NAME", "one of the shapes above (llama3-8b)", TD_ARG_TEXT, &b.shape},
      {"--rows", "N,...", "tokens of linears and of ops on tokens (1,2,4,...,2048)", TD_ARG_TEXT, &b.rows},
      {"--only", "OP,...", "qkv o gate_up down lm_head glu embed rmsnorm rope_kv swiglu sample attention",
       TD_ARG_TEXT, &b.only},
      {"--dtype", "TYPE", "type of weights on the CPU: BF16, Q8_0, Q4_1, ... (BF16)", TD_ARG_TEXT, &b.dtype},
      {"--rounds", "N", "a figure is their median (20)", TD_ARG_NUMBER, &b.n_rounds},
      {"--round-ms", "MS", "a round repeats an op until it takes about this long (4)", TD_ARG_NUMBER,
       &b.round_ms},
      {"--max-seconds", "S", "no figure takes longer than about three times this (3)", TD_ARG_NUMBER,
       &b.max_seconds},
      {"--warm-ms", "MS", "a linear runs for this time before it is timed; -1: 200 on a GPU, 0 on a CPU",
       TD_ARG_NUMBER, &b.warm_ms},
      {"--cache-mb", "MB", "copies of inputs are larger together than this (128)", TD_ARG_NUMBER,
       &b.k.cache_mb},
      {"--attention-gb", "GB", "memory for KV; 0: 20 on a GPU, 0.5 on a CPU", TD_ARG_NUMBER, &b.attention_gb},
      TD_STAGE_ARGS(b.options),
      TD_STAGE_ARGS_OF_STEPS(b.options),
  };
  char text[1024];
  snprintf(text, sizeof text, "Times every op of a backend alone, beside its floor.\nShapes: %s.",
           td_shapes_names());
  td_tool_args("tandem-bench kernels", text, args, sizeof args / sizeof *args, argc, argv);
  td_log_init(TD_LOG_WARN, false);
  check_options(&b);
  setup(&b);
  begin_report(&b);
  measure_linears(&b);
  measure_glu(&b);
  measure_simple(&b);
  measure_attentions(&b);
  td_report_end(&b.report, b.options.json);
  td_stage_close(&b.k.stage);
  td_kernels_free_inputs(&b.k);
  return 0;
}
