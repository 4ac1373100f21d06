/* rope_kv and attention of the CPU backend against float64, and the batch rule: the same bits for any
 * chunking, mix of rows, page size, pages, threads and instruction set, with K and V as floats and as f16.
 * All pages are filled with NaN first, so that a key that a query must not see is noticed even if it is
 * multiplied by zero. */
#include "kernels_fixture.h"

#include "kernels/cpu/cpu.h"

enum { SEQUENCES = 4, LENGTH_MAX = 640 };

typedef struct shape {
  uint32_t n_heads, n_kv_heads, head_dim, rotary_dim, window, max_length;
  td_rope_style style;
  bool norms;
  float attn_factor;
} shape;

typedef struct problem {
  shape s;
  uint32_t width; /* of qkv */
  uint32_t lengths[SEQUENCES];
  float *qkv[SEQUENCES];
  float *inv_freq, *q_norm, *k_norm;
} problem;

/* lengths NULL: random ones. */
static problem make_problem(shape s, const uint32_t lengths[SEQUENCES])
{
  problem p = {.s = s, .width = (s.n_heads + 2 * s.n_kv_heads) * s.head_dim};
  for (int i = 0; i < SEQUENCES; i++) {
    p.lengths[i] = lengths ? lengths[i] : i == 0 ? s.max_length : 1 + fx_below(s.max_length);
    p.qkv[i] = fx_floats((size_t)p.lengths[i] * p.width, 1);
  }
  p.inv_freq = malloc(s.rotary_dim / 2 * sizeof(float) + 1);
  for (uint32_t i = 0; i < s.rotary_dim / 2; i++)
    p.inv_freq[i] = (float)pow(10000.0, -2.0 * i / s.rotary_dim);
  p.q_norm = fx_floats(s.head_dim, 1);
  p.k_norm = fx_floats(s.head_dim, 1);
  return p;
}

static void free_problem(problem *p)
{
  for (int i = 0; i < SEQUENCES; i++)
    free(p->qkv[i]);
  free(p->inv_freq);
  free(p->q_norm);
  free(p->k_norm);
}

/* One head, normalised and rotated in double; the angle is rounded as float, which is what HF computes. */
static void reference_head(const problem *p, const float *x, const float *norm, uint32_t position,
                           double *out)
{
  const shape *s = &p->s;
  double scale = 1, sum = 0;
  for (uint32_t d = 0; d < s->head_dim; d++)
    sum += (double)x[d] * (double)x[d];
  if (s->norms)
    scale = 1 / sqrt(sum / s->head_dim + 1e-6);
  for (uint32_t d = 0; d < s->head_dim; d++)
    out[d] = (double)x[d] * scale * (s->norms ? (double)norm[d] : 1);
  for (uint32_t i = 0; i < s->rotary_dim / 2; i++) {
    uint32_t lo = s->style == TD_ROPE_PAIRS ? 2 * i : i,
             hi = s->style == TD_ROPE_PAIRS ? lo + 1 : i + s->rotary_dim / 2;
    float angle = (float)position * p->inv_freq[i];
    double c = cos((double)angle) * (double)s->attn_factor, n = sin((double)angle) * (double)s->attn_factor;
    double a = out[lo], b = out[hi];
    out[lo] = a * c - b * n;
    out[hi] = b * c + a * n;
  }
}

/* K or V as a backend with 8-bit activations stores it. */
static double as_f16(double x) { return (double)td_f16_to_f32(td_f32_to_f16((float)x)); }

static double *reference(const problem *p, int seq)
{
  const shape *s = &p->s;
  uint32_t n = p->lengths[seq], group = s->n_heads / s->n_kv_heads, dim = s->head_dim;
  double *out = calloc((size_t)n * s->n_heads * dim, sizeof *out);
  double *k = calloc((size_t)n * dim, sizeof *k), *v = calloc((size_t)n * dim, sizeof *v), q[256],
         *w = calloc(n, sizeof *w);
  for (uint32_t kvh = 0; kvh < s->n_kv_heads; kvh++) {
    for (uint32_t t = 0; t < n; t++) {
      const float *kt = p->qkv[seq] + (size_t)t * p->width + (s->n_heads + kvh) * dim,
                  *vt = kt + (size_t)s->n_kv_heads * dim;
      reference_head(p, kt, p->k_norm, t, k + (size_t)t * dim);
      for (uint32_t d = 0; d < dim; d++) {
        double *kd = k + (size_t)t * dim + d;
        *kd = fx_int8_activations ? as_f16(*kd) : *kd;
        v[(size_t)t * dim + d] = fx_int8_activations ? as_f16((double)vt[d]) : (double)vt[d];
      }
    }
    for (uint32_t h = kvh * group; h < (kvh + 1) * group; h++)
      for (uint32_t t = 0; t < n; t++) {
        reference_head(p, p->qkv[seq] + (size_t)t * p->width + h * dim, p->q_norm, t, q);
        uint32_t lo = s->window && t + 1 > s->window ? t + 1 - s->window : 0;
        double max = -INFINITY, sum = 0;
        for (uint32_t j = lo; j <= t; j++) {
          w[j] = 0;
          for (uint32_t d = 0; d < dim; d++)
            w[j] += q[d] * k[(size_t)j * dim + d];
          w[j] /= sqrt(dim);
          max = w[j] > max ? w[j] : max;
        }
        for (uint32_t j = lo; j <= t; j++)
          sum += w[j] = exp(w[j] - max);
        double *o = out + ((size_t)t * s->n_heads + h) * dim;
        for (uint32_t j = lo; j <= t; j++)
          for (uint32_t d = 0; d < dim; d++)
            o[d] += w[j] / sum * v[(size_t)j * dim + d];
      }
  }
  free(k);
  free(v);
  free(w);
  return out;
}

/* One layer, in an array with other layers of the same store and plan. */
typedef struct runner {
  td_backend *be;
  const problem *p;
  uint32_t kv_group, kv_layer;
  td_plan *plan;
  td_kv *kv;
  uint32_t pages_per_row;
  int32_t *page_table;
  td_devptr qkv, out, inv_freq, q_norm, k_norm;
  float *result[SEQUENCES];
  uint32_t done[SEQUENCES];
} runner;

static void step(runner *r, float *qkv_host, bool with_attention)
{
  const shape *s = &r->p->s;
  memcpy((void *)r->qkv.addr, qkv_host,
         (size_t)r->plan->n_tokens * r->p->width * sizeof(float)); /* CPU memory */
  const td_op ops[] = {{.kind = TD_OP_ROPE_KV,
                        .rope_kv = {.qkv = r->qkv,
                                    .q_norm = s->norms ? r->q_norm : (td_devptr){0},
                                    .k_norm = s->norms ? r->k_norm : (td_devptr){0},
                                    .inv_freq = r->inv_freq,
                                    .attn_factor = s->attn_factor,
                                    .norm_eps = 1e-6f,
                                    .style = s->style,
                                    .kv = r->kv,
                                    .kv_group = r->kv_group,
                                    .layer = r->kv_layer,
                                    .n_heads = s->n_heads,
                                    .n_kv_heads = s->n_kv_heads,
                                    .head_dim = s->head_dim,
                                    .rotary_dim = s->rotary_dim}},
                       {.kind = TD_OP_ATTENTION,
                        .attention = {.qkv = r->qkv,
                                      .out = r->out,
                                      .kv = r->kv,
                                      .scale = (float)(1 / sqrt(s->head_dim)),
                                      .window_tokens = s->window,
                                      .kv_group = r->kv_group,
                                      .layer = r->kv_layer,
                                      .n_heads = s->n_heads,
                                      .n_kv_heads = s->n_kv_heads,
                                      .head_dim = s->head_dim}}};
  fx_run(r->be, r->plan, ops, with_attention ? 2 : 1, NULL);
}

static void add_row(runner *r, uint32_t slot, uint32_t first, uint32_t n)
{
  td_plan *plan = r->plan;
  plan->rows[plan->n_rows++] = (td_plan_row){.slot = slot,
                                             .q_start = plan->n_tokens,
                                             .q_len = n,
                                             .kv_len = first + n,
                                             .page_table_offset = slot * r->pages_per_row};
  for (uint32_t i = 0; i < n; i++)
    plan->positions[plan->n_tokens++] = (int32_t)(first + i);
}

/* Every line of every page gets NaN keys and values. */
static void poison(runner *r, float *host)
{
  for (uint32_t slot = 0; slot < SEQUENCES; slot++)
    for (uint32_t first = 0; first < r->pages_per_row * r->plan->page_tokens; first += r->plan->page_tokens) {
      td_plan_clear(r->plan);
      add_row(r, slot, first, r->plan->page_tokens);
      for (size_t i = 0; i < (size_t)r->plan->page_tokens * r->p->width; i++)
        host[i] = NAN;
      step(r, host, false);
    }
}

static td_kv_group group_of(const shape *s, td_dtype dtype)
{
  return (td_kv_group){.n_layers = 2,
                       .dtype = dtype,
                       .n_kv_heads = s->n_kv_heads,
                       .head_dim = s->head_dim,
                       .n_heads = s->n_heads,
                       .window_tokens = s->window};
}

/* The store and the plan of all layers, and each layer's own memory. Layer l is layer l / n_groups of group l
 * % n_groups; the contents of the group's other layers are ignored. */
static void open_layers(runner *r, uint32_t n, td_backend *be, const problem *p, uint32_t page_tokens)
{
  uint32_t n_groups = n < 2 ? 1 : 2, pages_per_row = LENGTH_MAX / page_tokens;
  td_kv_spec spec = {.n_pages = pages_per_row * SEQUENCES, .page_tokens = page_tokens, .n_groups = n_groups};
  td_kv *kv;
  td_plan *plan;
  int32_t *table = malloc(spec.n_pages * sizeof *table);
  for (uint32_t i = 0; i < spec.n_pages; i++)
    table[i] = (int32_t)i;
  for (uint32_t i = spec.n_pages - 1; i > 0; i--) {
    uint32_t j = fx_below(i + 1);
    int32_t tmp = table[i];
    table[i] = table[j];
    table[j] = tmp;
  }
  for (uint32_t g = 0; g < n_groups; g++)
    spec.groups[g] = group_of(&p[g].s, be->kv_dtype);
  assert_int_equal(be->ops->kv_create(be, &spec, &kv, NULL), TD_OK);
  assert_int_equal(td_plan_create(FX_MAX_ROWS, FX_MAX_TOKENS, FX_MAX_ROWS, 1, page_tokens, &plan, NULL),
                   TD_OK);
  plan->page_table = table;
  plan->page_table_len = spec.n_pages;
  for (uint32_t l = 0; l < n; l++) {
    const shape *s = &p[l].s;
    r[l] = (runner){.be = be,
                    .p = &p[l],
                    .kv_group = l % n_groups,
                    .kv_layer = n < 2 ? 1 : l / n_groups,
                    .plan = plan,
                    .kv = kv,
                    .pages_per_row = pages_per_row,
                    .page_table = table,
                    .qkv = fx_alloc(be, (size_t)FX_MAX_TOKENS * p[l].width),
                    .out = fx_alloc(be, (size_t)FX_MAX_TOKENS * s->n_heads * s->head_dim),
                    .inv_freq = fx_upload(be, p[l].inv_freq, s->rotary_dim / 2),
                    .q_norm = fx_upload(be, p[l].q_norm, s->head_dim),
                    .k_norm = fx_upload(be, p[l].k_norm, s->head_dim)};
    for (int i = 0; i < SEQUENCES; i++)
      r[l].result[i] = calloc((size_t)p[l].lengths[i] * s->n_heads * s->head_dim, sizeof(float));
  }
}

/* Takes some of the remaining tokens of some sequences. Returns false if none are left. */
static bool next_plan(runner *r, uint32_t max_chunk)
{
  bool more = false;
  td_plan_clear(r->plan);
  for (uint32_t i = 0; i < SEQUENCES; i++) {
    uint32_t left = r->p->lengths[i] - r->done[i], n = 1 + fx_below(max_chunk),
             room = FX_MAX_TOKENS - r->plan->n_tokens;
    more |= left > 0;
    n = n < left ? n : left;
    n = n < room ? n : room;
    if (n == 0 || (max_chunk > 1 && fx_below(4) == 0))
      continue;
    add_row(r, i, r->done[i], n);
    r->done[i] += n;
  }
  return more;
}

/* Runs one layer of a step, and stores its results in their places. */
static void run_layer(runner *r, float *host)
{
  const problem *p = r->p;
  const td_plan *plan = r->plan;
  uint32_t out_width = p->s.n_heads * p->s.head_dim;
  for (uint32_t i = 0; i < plan->n_rows; i++) {
    const td_plan_row *row = &plan->rows[i];
    memcpy(host + (size_t)row->q_start * p->width,
           p->qkv[row->slot] + (size_t)(row->kv_len - row->q_len) * p->width,
           (size_t)row->q_len * p->width * sizeof *host);
  }
  step(r, host, true);
  float *out = fx_download(r->be, r->out, (size_t)plan->n_tokens * out_width);
  for (uint32_t i = 0; i < plan->n_rows; i++) {
    const td_plan_row *row = &plan->rows[i];
    memcpy(r->result[row->slot] + (size_t)(row->kv_len - row->q_len) * out_width,
           out + (size_t)row->q_start * out_width, (size_t)row->q_len * out_width * sizeof *out);
  }
  free(out);
}

/* max_chunk 1: token by token. Layers of one length each, all in every step. Returns results in r->result. */
static void run_layers(runner *r, uint32_t n, td_backend *be, const problem *p, uint32_t page_tokens,
                       uint32_t max_chunk)
{
  uint32_t widest = 0;
  open_layers(r, n, be, p, page_tokens);
  for (uint32_t l = 0; l < n; l++)
    widest = p[l].width > widest ? p[l].width : widest;
  float *host = malloc((size_t)FX_MAX_TOKENS * widest * sizeof *host);
  for (uint32_t l = 0; l < n; l++)
    poison(&r[l], host);
  while (next_plan(r, max_chunk))
    for (uint32_t l = 0; l < n && r->plan->n_tokens; l++)
      run_layer(&r[l], host);
  free(host);
}

static void run(runner *r, td_backend *be, const problem *p, uint32_t page_tokens, uint32_t max_chunk)
{
  run_layers(r, 1, be, p, page_tokens, max_chunk);
}

static void free_results(runner *r)
{
  for (int i = 0; i < SEQUENCES; i++)
    free(r->result[i]);
}

static void free_run(runner *r)
{
  free_results(r);
  free(r->page_table);
  td_plan_destroy(r->plan);
}

/* A key halfway between two f16 values in float64 may be rounded to the other one here. So if K and V are
 * f16, one result in a hundred may differ by that rounding. */
static void compare(const runner *r)
{
  uint32_t out_width = r->p->s.n_heads * r->p->s.head_dim;
  size_t n = 0, n_off = 0;
  double most = fx_int8_activations ? 2e-4 : 2e-5;
  for (int i = 0; i < SEQUENCES; i++) {
    double *want = reference(r->p, i);
    for (size_t e = 0; e < (size_t)r->p->lengths[i] * out_width; e++, n++) {
      double off = fabs((double)r->result[i][e] - want[e]);
      n_off += off > 2e-5;
      if (!(off <= most))
        fail_msg("group %u layer %u sequence %d token %zu element %zu: %.9g, want %.9g", r->kv_group,
                 r->kv_layer, i, e / out_width, e % out_width, (double)r->result[i][e], want[e]);
    }
    free(want);
  }
  if (n_off * 100 > n)
    fail_msg("%zu of %zu results are off by more than 2e-5", n_off, n);
}

/* Ways to run the same thing; with sanitizers each takes a minute. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { VARIANTS = 2 };
#else
enum { VARIANTS = 9 };
#endif

static void check_shape(shape s)
{
  problem p = make_problem(s, NULL);
  td_backend *bes[FX_BACKENDS];
  runner first, other;
  uint32_t out_width = s.n_heads * s.head_dim;
  fx_backends(bes);
  run(&first, bes[0], &p, 16, 64);
  compare(&first);
  static const uint32_t page_sizes[] = {16, 32, 64}, chunks[] = {1, 7, 600};
  for (int v = 0; v < VARIANTS; v++) {
    td_backend *be = bes[v % FX_BACKENDS] ? bes[v % FX_BACKENDS] : bes[v % 3];
    run(&other, be, &p, page_sizes[fx_below(3)], chunks[v % 3]);
    for (int i = 0; i < SEQUENCES; i++)
      fx_same(first.result[i], other.result[i], (size_t)p.lengths[i] * out_width,
              "attention run differently");
    free_run(&other);
  }
  free_run(&first);
  free_problem(&p);
  fx_backends_destroy(bes);
}

static void test_grouped_heads(void **state)
{
  check_shape((shape){9, 3, 64, 64, 0, 150, TD_ROPE_PAIRS, false, 1});
  check_shape((shape){8, 1, 32, 32, 0, 120, TD_ROPE_HALVES, true, 1});
}

static void test_one_head_each(void **state)
{
  check_shape((shape){4, 4, 16, 16, 0, 200, TD_ROPE_HALVES, false, 1});
}

static void test_odd_dims_and_partial_rotation(void **state)
{
  check_shape((shape){4, 2, 22, 10, 0, 100, TD_ROPE_HALVES, true, 1.25f});
  check_shape((shape){2, 1, 2, 2, 0, 90, TD_ROPE_PAIRS, false, 1});
  check_shape((shape){2, 2, 256, 256, 0, 60, TD_ROPE_HALVES, false, 1});
}

static void test_sliding_window(void **state)
{
  check_shape((shape){6, 2, 32, 32, 20, 200, TD_ROPE_HALVES, false, 1});
  check_shape((shape){2, 1, 16, 16, 1, 100, TD_ROPE_HALVES, false, 1});
  check_shape((shape){2, 1, 16, 16, 100, 560, TD_ROPE_HALVES, false, 1});
}

static void test_more_heads_than_a_tile(void **state)
{
  check_shape((shape){30, 2, 16, 16, 0, 80, TD_ROPE_HALVES, false, 1});
}

static void test_several_segments(void **state)
{
  check_shape((shape){3, 1, 8, 8, 0, LENGTH_MAX, TD_ROPE_HALVES, false, 1});
}

static void test_f16(void **state)
{
  fx_int8_activations = true;
  check_shape((shape){9, 3, 64, 64, 0, 150, TD_ROPE_PAIRS, false, 1});
  check_shape((shape){4, 2, 96, 96, 70, 130, TD_ROPE_HALVES, true, 1});
  check_shape((shape){7, 1, 128, 128, 0, 100, TD_ROPE_HALVES, false, 1});
  check_shape((shape){2, 2, 256, 256, 20, 60, TD_ROPE_HALVES, false, 1});
  check_shape((shape){4, 2, 22, 10, 0, 100, TD_ROPE_HALVES, true, 1.25f});
  check_shape((shape){30, 2, 16, 16, 0, 80, TD_ROPE_HALVES, false, 1});
  check_shape((shape){3, 1, 8, 8, 0, LENGTH_MAX, TD_ROPE_HALVES, false, 1});
  fx_int8_activations = false;
}

/* A token that sees only itself returns its V as stored: values that f16 cannot hold become the nearest that
 * it can. */
static void test_f16_is_saturated(void **state)
{
  enum { DIM = 20 };
  const shape s = {1, 1, DIM, DIM, 0, 1, TD_ROPE_HALVES, false, 1};
  static const float v[][2] = {{1e6f, 65504}, {-3e38f, -65504},    {65519, 65504}, {65520, 65504},
                               {1, 1},        {0.1f, 0x1.998p-4f}, {1e-9f, 0},     {-6e-8f, -0x1p-24f}};
  const uint32_t lengths[SEQUENCES] = {1, 1, 1, 1}, n_values = sizeof v / sizeof *v;
  fx_int8_activations = true;
  problem p = make_problem(s, lengths);
  for (uint32_t i = 0; i < SEQUENCES * DIM; i++)
    p.qkv[i / DIM][2 * DIM + i % DIM] = v[i % n_values][0];
  for (uint32_t d = 0; d < DIM; d++) /* K, too, is finite */
    p.qkv[0][DIM + d] = 1e30f;
  p.qkv[1][2 * DIM + 3] = NAN; /* and stays */
  for (int isa = 0; isa < FX_ISAS; isa++) {
    td_backend *be = fx_backend(fx_isas[isa], 1);
    runner r;
    if (!be)
      continue;
    run(&r, be, &p, 16, 1);
    for (uint32_t i = 0; i < SEQUENCES * DIM; i++) {
      double got = (double)r.result[i / DIM][i % DIM];
      if (i == DIM + 3)
        assert_true(isnan(got));
      else
        assert_true(got == (double)v[i % n_values][1]);
    }
    free_run(&r);
    be->ops->destroy(be);
  }
  fx_int8_activations = false;
  free_problem(&p);
}

/* Layers alternate between a group without and one with a window, whose heads differ too, over the same
 * pages. */
static void test_groups_share_pages(void **state)
{
  enum { LAYERS = 4 };
  static const shape shapes[2] = {{4, 2, 32, 32, 0, 150, TD_ROPE_HALVES, false, 1},
                                  {6, 1, 16, 16, 16, 150, TD_ROPE_HALVES, false, 1}};
  static const uint32_t chunks[] = {1, 7, 64};
  problem p[LAYERS];
  td_backend *bes[FX_BACKENDS];
  runner r[LAYERS];
  fx_backends(bes);
  for (uint32_t l = 0; l < LAYERS; l++)
    p[l] = make_problem(shapes[l % 2], l ? p[0].lengths : NULL);
  for (uint32_t v = 0; v < 3; v++) {
    run_layers(r, LAYERS, bes[0], p, 16u << v, chunks[v]);
    for (uint32_t l = 0; l < LAYERS; l++)
      compare(&r[l]);
    for (uint32_t l = 1; l < LAYERS; l++)
      free_results(&r[l]);
    bes[0]->ops->kv_destroy(bes[0], r[0].kv);
    free_run(&r[0]);
  }
  for (uint32_t l = 0; l < LAYERS; l++)
    free_problem(&p[l]);
  fx_backends_destroy(bes);
}

static void check_type(bool int8_activations, td_dtype has, td_dtype has_not, const char *refusal)
{
  td_error err = {0};
  const shape s = {4, 2, 32, 32, 0, 150, TD_ROPE_HALVES, false, 1};
  td_kv_spec spec = {.n_pages = 1, .page_tokens = 16, .n_groups = 1, .groups = {group_of(&s, has_not)}};
  td_kv *kv;
  fx_int8_activations = int8_activations;
  td_backend *be = fx_backend("scalar", 1);
  fx_int8_activations = false;
  assert_int_equal(be->kv_dtype, has);
  assert_int_equal(be->ops->kv_create(be, &spec, &kv, &err), TD_ERR_UNSUPPORTED);
  assert_non_null(strstr(err.message, refusal));
  spec.groups[0].dtype = has;
  uint32_t bytes = 2 * 2 * 2 * 32 * td_dtypes[has].block_bytes;
  assert_int_equal(td_kv_token_bytes(&spec), bytes);
  assert_int_equal(be->ops->kv_bytes_per_page(be, &spec), 16 * bytes);
  be->ops->destroy(be);
}

/* So a step that reaches a new page writes new memory in one place, and not in one per layer. */
static void test_a_pages_layers_lie_together(void **state)
{
  const shape s[] = {{4, 2, 32, 32, 0, 150, TD_ROPE_HALVES, false, 1},
                     {6, 3, 64, 64, 0, 150, TD_ROPE_HALVES, false, 1}};
  td_backend *be = fx_backend("scalar", 1);
  td_kv_spec spec = {.n_pages = 5,
                     .page_tokens = 16,
                     .n_groups = 2,
                     .groups = {group_of(&s[0], be->kv_dtype), group_of(&s[1], be->kv_dtype)}};
  td_kv *kv;
  uint64_t bytes = 0;
  spec.groups[0].n_layers = 3;
  spec.groups[1].n_layers = 7;
  assert_int_equal(be->ops->kv_create(be, &spec, &kv, NULL), TD_OK);
  for (uint32_t g = 0; g < 2; g++) {
    const cpu_kv_group *group = cpu_kv_group_of(kv, g);
    assert_int_equal(group->page_bytes, spec.groups[g].n_layers * group->layer_bytes);
    bytes += group->page_bytes;
  }
  assert_int_equal(bytes, be->ops->kv_bytes_per_page(be, &spec));
  be->ops->kv_destroy(be, kv);
  be->ops->destroy(be);
}

static void test_kv_is_of_the_backends_type(void **state)
{
  check_type(false, TD_F32, TD_BF16, "F32, not BF16");
  check_type(true, TD_F16, TD_F32, "F16, not F32");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_grouped_heads),
      cmocka_unit_test(test_one_head_each),
      cmocka_unit_test(test_odd_dims_and_partial_rotation),
      cmocka_unit_test(test_sliding_window),
      cmocka_unit_test(test_more_heads_than_a_tile),
      cmocka_unit_test(test_several_segments),
      cmocka_unit_test(test_f16),
      cmocka_unit_test(test_f16_is_saturated),
      cmocka_unit_test(test_groups_share_pages),
      cmocka_unit_test(test_a_pages_layers_lie_together),
      cmocka_unit_test(test_kv_is_of_the_backends_type),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
