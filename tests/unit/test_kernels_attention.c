/* rope_kv and attention of the CPU backend against float64, and the batch rule: the same bits for any
 * chunking, mix of rows, page size, pages, threads and instruction set. All pages are filled with NaN first:
 * a key that a query must not see must not enter its sum even times zero. */
#include "kernels_fixture.h"

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

static problem make_problem(shape s)
{
  problem p = {.s = s, .width = (s.n_heads + 2 * s.n_kv_heads) * s.head_dim};
  for (int i = 0; i < SEQUENCES; i++) {
    p.lengths[i] = i == 0 ? s.max_length : 1 + fx_below(s.max_length);
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

static double *reference(const problem *p, int seq)
{
  const shape *s = &p->s;
  uint32_t n = p->lengths[seq], group = s->n_heads / s->n_kv_heads, dim = s->head_dim;
  double *out = calloc((size_t)n * s->n_heads * dim, sizeof *out);
  double *k = calloc((size_t)n * dim, sizeof *k), q[256], *w = calloc(n, sizeof *w);
  for (uint32_t kvh = 0; kvh < s->n_kv_heads; kvh++) {
    for (uint32_t t = 0; t < n; t++)
      reference_head(p, p->qkv[seq] + (size_t)t * p->width + (s->n_heads + kvh) * dim, p->k_norm, t,
                     k + (size_t)t * dim);
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
            o[d] += w[j] / sum *
                    (double)p->qkv[seq][(size_t)j * p->width + (s->n_heads + s->n_kv_heads + kvh) * dim + d];
      }
  }
  free(k);
  free(w);
  return out;
}

typedef struct runner {
  td_backend *be;
  const problem *p;
  td_plan *plan;
  td_kv *kv;
  uint32_t n_pages, pages_per_row;
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
                                    .layer = 1,
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
                                      .layer = 1,
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

/* max_chunk 1: token by token. Returns results in r->result. */
static void run(runner *r, td_backend *be, const problem *p, uint32_t page_tokens, uint32_t max_chunk)
{
  const shape *s = &p->s;
  *r = (runner){.be = be, .p = p, .pages_per_row = LENGTH_MAX / page_tokens};
  r->n_pages = r->pages_per_row * SEQUENCES;
  r->page_table = malloc(r->n_pages * sizeof *r->page_table);
  for (uint32_t i = 0; i < r->n_pages; i++)
    r->page_table[i] = (int32_t)i;
  for (uint32_t i = r->n_pages - 1; i > 0; i--) {
    uint32_t j = fx_below(i + 1);
    int32_t tmp = r->page_table[i];
    r->page_table[i] = r->page_table[j];
    r->page_table[j] = tmp;
  }
  assert_int_equal(td_plan_create(FX_MAX_ROWS, FX_MAX_TOKENS, FX_MAX_ROWS, 1, page_tokens, &r->plan, NULL),
                   TD_OK);
  r->plan->page_table = r->page_table;
  r->plan->page_table_len = r->n_pages;
  td_kv_shape kv = {.n_layers = 2,
                    .n_pages = r->n_pages,
                    .page_tokens = page_tokens,
                    .n_kv_heads = s->n_kv_heads,
                    .head_dim = s->head_dim,
                    .n_heads = s->n_heads};
  assert_int_equal(be->ops->kv_create(be, &kv, &r->kv, NULL), TD_OK);
  r->qkv = fx_alloc(be, (size_t)FX_MAX_TOKENS * p->width);
  r->out = fx_alloc(be, (size_t)FX_MAX_TOKENS * s->n_heads * s->head_dim);
  r->inv_freq = fx_upload(be, p->inv_freq, s->rotary_dim / 2);
  r->q_norm = fx_upload(be, p->q_norm, s->head_dim);
  r->k_norm = fx_upload(be, p->k_norm, s->head_dim);
  float *host = malloc((size_t)FX_MAX_TOKENS * p->width * sizeof *host);
  poison(r, host);
  uint32_t out_width = s->n_heads * s->head_dim;
  for (int i = 0; i < SEQUENCES; i++)
    r->result[i] = calloc((size_t)p->lengths[i] * out_width, sizeof(float));
  for (bool more = true; more;) {
    td_plan_clear(r->plan);
    uint32_t firsts[SEQUENCES];
    for (uint32_t i = 0; i < SEQUENCES; i++) {
      uint32_t left = p->lengths[i] - r->done[i], n = 1 + fx_below(max_chunk),
               room = FX_MAX_TOKENS - r->plan->n_tokens;
      n = n < left ? n : left;
      n = n < room ? n : room;
      if (n == 0 || (max_chunk > 1 && fx_below(4) == 0))
        continue;
      firsts[r->plan->n_rows] = r->done[i];
      memcpy(host + (size_t)r->plan->n_tokens * p->width, p->qkv[i] + (size_t)r->done[i] * p->width,
             (size_t)n * p->width * sizeof *host);
      add_row(r, i, r->done[i], n);
    }
    if (r->plan->n_tokens)
      step(r, host, true);
    float *out = fx_download(be, r->out, (size_t)r->plan->n_tokens * out_width);
    for (uint32_t i = 0; i < r->plan->n_rows; i++) {
      td_plan_row *row = &r->plan->rows[i];
      memcpy(r->result[row->slot] + (size_t)firsts[i] * out_width, out + (size_t)row->q_start * out_width,
             (size_t)row->q_len * out_width * sizeof *out);
      r->done[row->slot] += row->q_len;
    }
    free(out);
    more = false;
    for (int i = 0; i < SEQUENCES; i++)
      more |= r->done[i] < p->lengths[i];
  }
  free(host);
}

static void free_run(runner *r)
{
  for (int i = 0; i < SEQUENCES; i++)
    free(r->result[i]);
  free(r->page_table);
  td_plan_destroy(r->plan);
}

/* Ways to run the same thing; sanitised, each takes a minute. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { VARIANTS = 2 };
#else
enum { VARIANTS = 9 };
#endif

static void check_shape(shape s)
{
  problem p = make_problem(s);
  td_backend *bes[FX_BACKENDS];
  runner first, other;
  uint32_t out_width = s.n_heads * s.head_dim;
  fx_backends(bes);
  run(&first, bes[0], &p, 16, 64);
  for (int i = 0; i < SEQUENCES; i++) {
    double *want = reference(&p, i);
    for (size_t e = 0; e < (size_t)p.lengths[i] * out_width; e++)
      if (!(fabs((double)first.result[i][e] - want[e]) <= 2e-5))
        fail_msg("sequence %d token %zu element %zu: %.9g, want %.9g", i, e / out_width, e % out_width,
                 (double)first.result[i][e], want[e]);
    free(want);
  }
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

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_grouped_heads),
      cmocka_unit_test(test_one_head_each),
      cmocka_unit_test(test_odd_dims_and_partial_rotation),
      cmocka_unit_test(test_sliding_window),
      cmocka_unit_test(test_more_heads_than_a_tile),
      cmocka_unit_test(test_several_segments),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
