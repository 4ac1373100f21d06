/* See ops_attention.h. */
#include "ops_attention.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops_harness.h"

typedef struct sequence {
  uint32_t kv_len, q_len;
  int32_t pages[MAX_CONTEXT / 16];
  float *qkv;   /* [kv_len, width] inputs of every position */
  double *k, *v; /* what the reference holds in KV: [kv_len, n_kv_heads * head_dim] */
} sequence;

static double activation_round(double v)
{
  return be->activation_bytes == 2 ? td_bf16_to_f32(td_f32_to_bf16((float)v)) : v;
}

static void reference_head(const heads *h, const float *src, const float *norm, const float *inv_freq, int32_t pos, double *out)
{
  uint32_t hd = h->head_dim, half = hd / 2;
  double sum = 0;
  for (uint32_t i = 0; i < hd; i++)
    sum += (double)src[i] * src[i];
  double scale = norm ? 1 / sqrt(sum / hd + 1e-6) : 1;
  for (uint32_t i = 0; i < half; i++) {
    uint32_t lo = h->style == TD_ROPE_PAIRS ? 2 * i : i, hi = h->style == TD_ROPE_PAIRS ? 2 * i + 1 : i + half;
    double u = src[lo] * scale * (norm ? norm[lo] : 1), v = src[hi] * scale * (norm ? norm[hi] : 1);
    double angle = (double)((float)pos * inv_freq[i]); /* the product is defined in f32, as HF has it */
    out[lo] = activation_round(u * cos(angle) - v * sin(angle));
    out[hi] = activation_round(v * cos(angle) + u * sin(angle));
  }
}

/* Steps of at most MAX_TOKENS tokens that run rope_kv over positions [from, to) of one sequence. */
static void write_kv(const heads *h, const td_rope_kv_params *base, const sequence *s, const float *qkv, uint32_t from, uint32_t to)
{
  uint32_t width = (h->n_heads + 2 * h->n_kv_heads) * h->head_dim;
  for (uint32_t at = from; at < to;) {
    uint32_t n = to - at < 500 ? to - at : 500;
    td_rope_kv_params p = *base;
    plan_reset(h->page_tokens);
    plan_add_row(n, at + n, s->pages);
    be->ops->step_begin(be, plan);
    p.qkv = activations(qkv + (size_t)at * width, n, width);
    be->ops->rope_kv(be, &p);
    step_end();
    at += n;
  }
}

static void reference_query(const heads *h, const sequence *s, const float *q_norm, const float *inv_freq, uint32_t i, uint32_t head, double *o)
{
  uint32_t hd = h->head_dim, width = (h->n_heads + 2 * h->n_kv_heads) * hd, kvh = head / (h->n_heads / h->n_kv_heads);
  uint32_t pos = s->kv_len - s->q_len + i, first = h->window && pos + 1 > h->window ? pos + 1 - h->window : 0;
  double *p = malloc(s->kv_len * sizeof *p), q[256], max = -INFINITY, sum = 0;
  reference_head(h, s->qkv + (size_t)pos * width + head * hd, q_norm, inv_freq, (int32_t)pos, q);
  for (uint32_t t = first; t <= pos; t++) {
    p[t] = 0;
    for (uint32_t d = 0; d < hd; d++)
      p[t] += q[d] * s->k[((size_t)t * h->n_kv_heads + kvh) * hd + d];
    p[t] /= sqrt(hd);
    max = fmax(max, p[t]);
  }
  for (uint32_t d = 0; d < hd; d++)
    o[d] = 0;
  for (uint32_t t = first; t <= pos; t++) {
    double w = exp(p[t] - max);
    sum += w;
    for (uint32_t d = 0; d < hd; d++)
      o[d] += w * s->v[((size_t)t * h->n_kv_heads + kvh) * hd + d];
  }
  for (uint32_t d = 0; d < hd; d++)
    o[d] /= sum;
  free(p);
}

static void reference_attention(const heads *h, const sequence *s, const float *q_norm, const float *inv_freq, double *out)
{
#pragma omp parallel for collapse(2) schedule(dynamic, 4)
  for (uint32_t i = 0; i < s->q_len; i++)
    for (uint32_t head = 0; head < h->n_heads; head++)
      reference_query(h, s, q_norm, inv_freq, i, head, out + ((size_t)i * h->n_heads + head) * h->head_dim);
}

/* The step under test: the last q_len tokens of all sequences at once. Returns [n_tokens, n_heads * head_dim]. */
static float *attend(const heads *h, td_rope_kv_params rope, const sequence *seqs, uint32_t n_rows, uint32_t n_tokens)
{
  uint32_t hd = h->head_dim, width = (h->n_heads + 2 * h->n_kv_heads) * hd;
  float *x = malloc((size_t)n_tokens * width * sizeof *x);
  plan_reset(h->page_tokens);
  for (uint32_t r = 0; r < n_rows; r++) {
    memcpy(x + (size_t)plan->n_tokens * width, seqs[r].qkv + (size_t)(seqs[r].kv_len - seqs[r].q_len) * width,
           (size_t)seqs[r].q_len * width * sizeof *x);
    plan_add_row(seqs[r].q_len, seqs[r].kv_len, seqs[r].pages);
  }
  be->ops->step_begin(be, plan);
  td_devptr qkv = activations(x, n_tokens, width);
  td_devptr out = device_alloc((size_t)n_tokens * h->n_heads * hd * be->activation_bytes);
  rope.qkv = qkv;
  be->ops->rope_kv(be, &rope);
  be->ops->attention(be, &(td_attention_params){.qkv = qkv,
                                                .out = out,
                                                .kv = rope.kv,
                                                .scale = (float)(1 / sqrt(hd)),
                                                .window_tokens = h->window,
                                                .layer = 1,
                                                .n_heads = h->n_heads,
                                                .n_kv_heads = h->n_kv_heads,
                                                .head_dim = hd});
  step_end();
  free(x);
  return fetch(out, (size_t)n_tokens * h->n_heads * hd, false);
}

/* shares[r] {row, tokens}: the first so many tokens of row r, whole pages, are those of an earlier row; NULL: none are. */
static void test_rows(const heads *h, const uint32_t (*rows)[2], const uint32_t (*shares)[2], uint32_t n_rows)
{
  char what[160];
  td_error err;
  uint32_t hd = h->head_dim, width = (h->n_heads + 2 * h->n_kv_heads) * hd, n_pages = 1, n_tokens = 0;
  float *q_norm = h->norm ? random_values(hd, 1) : NULL, *k_norm = h->norm ? random_values(hd, 1) : NULL;
  float inv_freq[128];
  for (uint32_t i = 0; i < hd / 2; i++)
    inv_freq[i] = (float)pow(10000, -2.0 * i / hd);
  for (uint32_t r = 0; r < n_rows; r++)
    n_pages += (rows[r][1] + 80 + h->page_tokens - 1) / h->page_tokens;
  int32_t *order = malloc(n_pages * sizeof *order);
  for (uint32_t i = 0; i < n_pages; i++)
    order[i] = (int32_t)i;
  for (uint32_t i = n_pages; i > 1; i--) {
    uint32_t j = (uint32_t)(rng() % i);
    int32_t t = order[i - 1];
    order[i - 1] = order[j];
    order[j] = t;
  }
  td_kv *kv = NULL;
  td_kv_shape shape = {2, n_pages, h->page_tokens, h->n_kv_heads, hd, h->n_heads, h->window};
  die(be->ops->kv_create(be, &shape, &kv, &err), &err, "kv");
  td_rope_kv_params rope = {.q_norm = h->norm ? device_f32(q_norm, hd) : (td_devptr){0},
                            .k_norm = h->norm ? device_f32(k_norm, hd) : (td_devptr){0},
                            .inv_freq = device_f32(inv_freq, hd / 2),
                            .attn_factor = 1,
                            .norm_eps = 1e-6f,
                            .style = h->style,
                            .kv = kv,
                            .layer = 1,
                            .n_heads = h->n_heads,
                            .n_kv_heads = h->n_kv_heads,
                            .head_dim = hd,
                            .rotary_dim = hd};
  sequence *seqs = calloc(n_rows, sizeof *seqs);
  uint32_t used = 0;
  for (uint32_t r = 0; r < n_rows; r++) {
    sequence *s = &seqs[r];
    s->q_len = rows[r][0];
    s->kv_len = rows[r][1];
    uint32_t poisoned = s->kv_len + 70; /* NaN behind the row's end, then the real past over it */
    const sequence *like = shares ? &seqs[shares[r][0]] : NULL;
    uint32_t n_shared = shares ? shares[r][1] : 0;
    for (uint32_t i = 0; i < (poisoned + h->page_tokens - 1) / h->page_tokens; i++)
      s->pages[i] = i < n_shared / h->page_tokens ? like->pages[i] : order[used++];
    float *nan_values = malloc((size_t)poisoned * width * sizeof *nan_values);
    for (size_t i = 0; i < (size_t)poisoned * width; i++)
      nan_values[i] = NAN;
    write_kv(h, &rope, s, nan_values, s->kv_len - s->q_len, poisoned);
    free(nan_values);
    s->qkv = malloc((size_t)s->kv_len * width * sizeof *s->qkv);
    for (uint32_t t = 0; t < n_shared; t++)
      memcpy(s->qkv + (size_t)t * width, like->qkv + (size_t)t * width, width * sizeof *s->qkv);
    random_fill(s->qkv + (size_t)n_shared * width, (size_t)(s->kv_len - n_shared) * width, 1.5);
    s->k = malloc((size_t)s->kv_len * h->n_kv_heads * hd * sizeof *s->k);
    s->v = malloc((size_t)s->kv_len * h->n_kv_heads * hd * sizeof *s->v);
    for (size_t i = 0; i < (size_t)n_shared * h->n_kv_heads * hd; i++) {
      s->k[i] = like->k[i];
      s->v[i] = like->v[i];
    }
#pragma omp parallel for collapse(2)
    for (uint32_t t = n_shared; t < s->kv_len; t++)
      for (uint32_t j = 0; j < h->n_kv_heads; j++) {
        const float *src = s->qkv + (size_t)t * width + (h->n_heads + j) * hd;
        reference_head(h, src, k_norm, inv_freq, (int32_t)t, s->k + ((size_t)t * h->n_kv_heads + j) * hd);
        for (uint32_t d = 0; d < hd; d++)
          s->v[((size_t)t * h->n_kv_heads + j) * hd + d] = src[h->n_kv_heads * hd + d];
      }
    write_kv(h, &rope, s, s->qkv, n_shared, s->kv_len - s->q_len);
    n_tokens += s->q_len;
  }
  float *got = attend(h, rope, seqs, n_rows, n_tokens);
  size_t n_out = (size_t)n_tokens * h->n_heads * hd;
  double *want = malloc(n_out * sizeof *want);
  for (uint32_t r = 0, t = 0; r < n_rows; t += seqs[r].q_len, r++)
    reference_attention(h, &seqs[r], q_norm, inv_freq, want + (size_t)t * h->n_heads * hd);
  snprintf(what, sizeof what, "attention heads=%u/%u dim=%u page=%u window=%u style=%d norm=%d rows=%u first=%u@%u%s", h->n_heads,
           h->n_kv_heads, hd, h->page_tokens, h->window, h->style, h->norm, n_rows, rows[0][0], rows[0][1], shares ? " shared" : "");
  check(what, got, want, n_out, be->activation_bytes == 2 ? 1.5 * eps_out : 2e-5);
  for (uint32_t r = 0; r < n_rows; r++) {
    free(seqs[r].qkv);
    free(seqs[r].k);
    free(seqs[r].v);
  }
  free(seqs), free(order), free(got), free(want), free(q_norm), free(k_norm);
}

void test_attention(const heads *h, const uint32_t (*rows)[2], uint32_t n_rows) { test_rows(h, rows, NULL, n_rows); }

/* A prefix of all rows, one of each fifth of them, one of each pair; then a row's own tokens. */
void test_attention_shared(const heads *h, uint32_t n_rows, const uint32_t tokens[3])
{
  uint32_t rows[MAX_ROWS][2], shares[MAX_ROWS][2];
  for (uint32_t r = 0; r < n_rows; r++) {
    uint32_t fifth = (n_rows + 4) / 5, n = r == 0 ? 0 : tokens[0];
    n += r % fifth ? tokens[1] : 0;
    n += r % fifth && r % 2 ? tokens[2] : 0;
    shares[r][0] = r ? r - 1 : 0;
    shares[r][1] = n / h->page_tokens * h->page_tokens;
    rows[r][0] = 1;
    rows[r][1] = tokens[0] + tokens[1] + tokens[2] + 1 + (uint32_t)(rng() % (r % 3 ? 40 : 300));
  }
  test_rows(h, (const uint32_t (*)[2])rows, (const uint32_t (*)[2])shares, n_rows);
}

void test_attention_alone(const heads *h, uint32_t len)
{
  uint32_t cuts[][2] = {{1, len}, {1, 1}, {2, len / 2}, {37, len - 100}, {1, 129}, {20, 140}, {1, len - 1}};
  enum { N = sizeof cuts / sizeof *cuts };
  char what[100];
  td_error err;
  uint32_t hd = h->head_dim, width = (h->n_heads + 2 * h->n_kv_heads) * hd, out_width = h->n_heads * hd, n_tokens = 0;
  float inv_freq[128];
  for (uint32_t i = 0; i < hd / 2; i++)
    inv_freq[i] = (float)pow(10000, -2.0 * i / hd);
  sequence *seqs = calloc(N, sizeof *seqs), whole = {.kv_len = len, .q_len = len, .qkv = random_values((size_t)len * width, 1.5)};
  uint32_t n_pages = (len + h->page_tokens - 1) / h->page_tokens;
  for (uint32_t i = 0; i < n_pages; i++)
    whole.pages[i] = (int32_t)(n_pages - 1 - i);
  td_kv_shape shape = {2, n_pages, h->page_tokens, h->n_kv_heads, hd, h->n_heads, h->window};
  td_kv *kv = NULL;
  die(be->ops->kv_create(be, &shape, &kv, &err), &err, "kv");
  td_rope_kv_params rope = {.inv_freq = device_f32(inv_freq, hd / 2), .attn_factor = 1, .style = h->style, .kv = kv, .layer = 1,
                            .n_heads = h->n_heads, .n_kv_heads = h->n_kv_heads, .head_dim = hd, .rotary_dim = hd};
  float *all = attend(h, rope, &whole, 1, len);
  for (uint32_t r = 0; r < N; r++) {
    seqs[r] = whole;
    seqs[r].q_len = cuts[r][0];
    seqs[r].kv_len = cuts[r][1];
    n_tokens += cuts[r][0];
  }
  float *together = attend(h, rope, seqs, N, n_tokens);
  for (uint32_t r = 0, t = 0; r < N; t += cuts[r][0], r++) {
    const float *want = all + (size_t)(cuts[r][1] - cuts[r][0]) * out_width;
    size_t bytes = (size_t)cuts[r][0] * out_width * sizeof *want;
    float *alone = attend(h, rope, &seqs[r], 1, cuts[r][0]);
    snprintf(what, sizeof what, "batch rule: attention heads=%u/%u dim=%u window=%u, %u@%u", h->n_heads, h->n_kv_heads, hd, h->window,
             cuts[r][0], cuts[r][1]);
    expect(memcmp(want, together + (size_t)t * out_width, bytes) == 0 && memcmp(want, alone, bytes) == 0, what);
    free(alone);
  }
  free(seqs), free(whole.qkv), free(all), free(together);
}

/* What is not a number in a row's past must come out: all heads of all its tokens see it, and nobody else does. */
void test_attention_passes_nan_on(const heads *h)
{
  static const uint32_t lens[][2] = {{1, 70}, {3, 90}, {100, 200}, {1, 3000}, {1, 65}};
  enum { N = sizeof lens / sizeof *lens, CLEAN = 4 };
  char what[100];
  td_error err;
  uint32_t hd = h->head_dim, width = (h->n_heads + 2 * h->n_kv_heads) * hd, n_pages = 0, n_tokens = 0;
  float inv_freq[128] = {0};
  sequence *seqs = calloc(N, sizeof *seqs);
  for (uint32_t r = 0; r < N; r++) {
    sequence *s = &seqs[r];
    s->q_len = lens[r][0];
    s->kv_len = lens[r][1];
    for (uint32_t i = 0; i * h->page_tokens < s->kv_len; i++)
      s->pages[i] = (int32_t)n_pages++;
    s->qkv = random_values((size_t)s->kv_len * width, 1);
    for (uint32_t i = 0; i < width && r != CLEAN; i++)
      s->qkv[(size_t)5 * width + i] = NAN;
    n_tokens += s->q_len;
  }
  td_kv_shape shape = {2, n_pages, h->page_tokens, h->n_kv_heads, hd, h->n_heads, h->window};
  td_kv *kv = NULL;
  die(be->ops->kv_create(be, &shape, &kv, &err), &err, "kv");
  td_rope_kv_params rope = {.inv_freq = device_f32(inv_freq, hd / 2), .attn_factor = 1, .style = h->style, .kv = kv, .layer = 1,
                            .n_heads = h->n_heads, .n_kv_heads = h->n_kv_heads, .head_dim = hd, .rotary_dim = hd};
  for (uint32_t r = 0; r < N; r++)
    write_kv(h, &rope, &seqs[r], seqs[r].qkv, 0, seqs[r].kv_len - seqs[r].q_len);
  float *out = attend(h, rope, seqs, N, n_tokens);
  bool ok = true;
  for (size_t i = 0, clean = (size_t)(n_tokens - 1) * h->n_heads * hd; i < (size_t)n_tokens * h->n_heads * hd; i++)
    ok &= i < clean ? isnan(out[i]) : isfinite(out[i]);
  snprintf(what, sizeof what, "attention passes NaN on, heads=%u/%u dim=%u", h->n_heads, h->n_kv_heads, hd);
  expect(ok, what);
  for (uint32_t r = 0; r < N; r++)
    free(seqs[r].qkv);
  free(seqs), free(out);
}

typedef struct recorded_step {
  const heads *h;
  td_weight *table; /* [rows, width] qkv of each row's token */
  td_devptr qkv, out;
  td_rope_kv_params rope;
} recorded_step;

static void queue_recorded(void *arg, const td_plan *p)
{
  const recorded_step *r = arg;
  uint32_t hd = r->h->head_dim, width = (r->h->n_heads + 2 * r->h->n_kv_heads) * hd;
  (void)p;
  be->ops->embed(be, &(td_embed_params){r->table, r->qkv, width});
  be->ops->rope_kv(be, &r->rope);
  be->ops->attention(be, &(td_attention_params){.qkv = r->qkv, .out = r->out, .kv = r->rope.kv, .scale = (float)(1 / sqrt(hd)),
                                                .window_tokens = r->h->window, .layer = 1, .n_heads = r->h->n_heads,
                                                .n_kv_heads = r->h->n_kv_heads, .head_dim = hd});
}

static float *run_recorded(const recorded_step *r, const sequence *seqs, uint32_t n, bool replay)
{
  plan_reset(r->h->page_tokens);
  for (uint32_t i = 0; i < n; i++)
    plan_add_row(1, seqs[i].kv_len, seqs[i].pages);
  be->ops->step_begin(be, plan);
  if (!replay)
    queue_recorded((void *)r, plan);
  else
    expect(be->ops->replay(be), "a recorded step is replayed");
  step_end();
  return fetch(r->out, (size_t)n * r->h->n_heads * r->h->head_dim, false);
}

/* Rows of one token; the first n_shared tokens of all, whole pages, are the first one's. NaN where the step itself writes: it must not be
 * read before. */
static sequence *make_recorded(const heads *h, const td_rope_kv_params *rope, const uint32_t *lens, uint32_t n, uint32_t n_shared,
                               int32_t *next_page)
{
  uint32_t width = (h->n_heads + 2 * h->n_kv_heads) * h->head_dim;
  sequence *seqs = calloc(n, sizeof *seqs);
  for (uint32_t r = 0; r < n; r++) {
    sequence *s = &seqs[r];
    uint32_t from = r > 0 ? n_shared : 0;
    s->kv_len = lens[r];
    s->q_len = 1;
    for (uint32_t i = 0; i * h->page_tokens < s->kv_len; i++)
      s->pages[i] = i < from / h->page_tokens ? seqs[0].pages[i] : (*next_page)++;
    s->qkv = random_values((size_t)s->kv_len * width, 1.5);
    for (uint32_t i = 0; i < width; i++)
      s->qkv[(size_t)(s->kv_len - 1) * width + i] = NAN;
    write_kv(h, rope, s, s->qkv, from, s->kv_len);
  }
  return seqs;
}

static void free_recorded(sequence *seqs, uint32_t n)
{
  for (uint32_t i = 0; i < n; i++)
    free(seqs[i].qkv);
  free(seqs);
}

/* Rows alone, rows with a common prefix, and rows alone again: then an earlier step's plan is still there. */
static void test_recorded(const heads *h, const uint32_t *lens, uint32_t n_alone, const uint32_t *shared_lens, uint32_t n_recorded,
                          uint32_t n_shared)
{
  char what[120];
  td_error err;
  uint32_t hd = h->head_dim, width = (h->n_heads + 2 * h->n_kv_heads) * hd, n_pages = 0;
  float inv_freq[128];
  if (!be->ops->record)
    return;
  for (uint32_t i = 0; i < hd / 2; i++)
    inv_freq[i] = (float)pow(10000, -2.0 * i / hd);
  for (uint32_t r = 0; r < n_alone; r++)
    n_pages += (lens[r] + h->page_tokens - 1) / h->page_tokens;
  for (uint32_t r = 0; r < n_recorded; r++)
    n_pages += (shared_lens[r] + h->page_tokens - 1) / h->page_tokens;
  float *last = random_values((size_t)n_recorded * width, 1.5);
  td_kv_shape shape = {2, n_pages, h->page_tokens, h->n_kv_heads, hd, h->n_heads, h->window};
  td_kv *kv = NULL;
  die(be->ops->kv_create(be, &shape, &kv, &err), &err, "kv");
  recorded_step r = {.h = h,
                     .table = device_weight(&(td_weight_part){.dtype = TD_F32, .data = last, .n_rows = n_recorded}, 1, width),
                     .qkv = device_alloc((size_t)n_recorded * width * be->activation_bytes),
                     .out = device_alloc((size_t)n_recorded * h->n_heads * hd * be->activation_bytes),
                     .rope = {.inv_freq = device_f32(inv_freq, hd / 2), .attn_factor = 1, .style = h->style, .kv = kv, .layer = 1,
                              .n_heads = h->n_heads, .n_kv_heads = h->n_kv_heads, .head_dim = hd, .rotary_dim = hd}};
  r.rope.qkv = r.qkv;
  int32_t next_page = 0;
  sequence *alone = make_recorded(h, &r.rope, lens, n_alone, 0, &next_page);
  sequence *sharing = make_recorded(h, &r.rope, shared_lens, n_recorded, n_shared, &next_page);
  die(be->ops->record(be, n_recorded, queue_recorded, &r, &err), &err, "record");
  for (uint32_t turn = 0; turn < 3; turn++) {
    const sequence *seqs = turn == 1 ? sharing : alone;
    uint32_t n = turn == 1 ? n_recorded : n_alone;
    float *replayed = run_recorded(&r, seqs, n, true), *queued = run_recorded(&r, seqs, n, false);
    snprintf(what, sizeof what, "attention replayed = queued, heads=%u/%u dim=%u page=%u%s", h->n_heads, h->n_kv_heads, hd, h->page_tokens,
             turn == 1 ? " shared" : turn == 2 ? " after shared" : "");
    bool ok = memcmp(replayed, queued, (size_t)n * h->n_heads * hd * sizeof *queued) == 0;
    for (size_t i = 0; i < (size_t)n * h->n_heads * hd; i++)
      ok &= isfinite(queued[i]);
    expect(ok, what);
    free(replayed), free(queued);
  }
  free_recorded(alone, n_alone), free_recorded(sharing, n_recorded);
  free(last);
}

void test_attention_recorded(const heads *h)
{
  static const uint32_t lens[] = {1, 16, 17, 300, 2000}, shared_lens[] = {1100, 1025, 1040, 1041, 1300, 2000, 1026, 3000};
  test_recorded(h, lens, sizeof lens / sizeof *lens, shared_lens, sizeof shared_lens / sizeof *shared_lens, 1024);
}

void test_attention_recorded_short(const heads *h)
{
  enum { ALONE = 37, RECORDED = 40, SHARED = 256 };
  uint32_t lens[ALONE], shared_lens[RECORDED];
  for (uint32_t i = 0; i < ALONE; i++)
    lens[i] = i % 9 ? 1 + i * 7 % 130 : 250 + 17 * i;
  for (uint32_t i = 0; i < RECORDED; i++)
    shared_lens[i] = SHARED + 1 + (i % 9 ? i * 11 % 100 : 20 * i);
  test_recorded(h, lens, ALONE, shared_lens, RECORDED, SHARED);
}
