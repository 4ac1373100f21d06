/* See ops_batch.h. */
#include "ops_batch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops_watch.h"

enum { BEHIND = 70 }; /* tokens after a row's end that are poisoned */

static size_t kv_width(const heads *h) { return 2 * (size_t)h->n_kv_heads * h->head_dim; }

static size_t place(const batch *b, const batch_row *r, uint32_t token)
{
  return (size_t)r->pages[token / b->h->page_tokens] * b->h->page_tokens + token % b->h->page_tokens;
}

float *batch_kv_at(const batch *b, const batch_row *row, uint32_t token)
{
  return b->kv + place(b, row, token) * kv_width(b->h);
}

uint32_t batch_tokens(const batch_row *rows, uint32_t n_rows)
{
  uint32_t n = 0;
  for (uint32_t r = 0; r < n_rows; r++)
    n += rows[r].q_len;
  return n;
}

/* ---- making ---- */

static int32_t *shuffled(uint32_t n)
{
  int32_t *order = malloc(n * sizeof *order);
  for (uint32_t i = 0; i < n; i++)
    order[i] = (int32_t)i;
  for (uint32_t i = n; i > 1; i--) {
    uint32_t j = (uint32_t)(rng() % i);
    int32_t t = order[i - 1];
    order[i - 1] = order[j];
    order[j] = t;
  }
  return order;
}

static uint32_t pages_for(const heads *h, uint32_t tokens)
{
  return (tokens + h->page_tokens - 1) / h->page_tokens;
}

static void place_rows(batch *b, const uint32_t (*rows)[2], const uint32_t (*shares)[2])
{
  uint32_t used = 0, q_at = 0;
  for (uint32_t r = 0; r < b->n_rows; r++)
    b->n_pages += pages_for(b->h, rows[r][1] + BEHIND) - (shares ? shares[r][1] / b->h->page_tokens : 0);
  int32_t *order = shuffled(b->n_pages);
  for (uint32_t r = 0; r < b->n_rows; r++) {
    batch_row *s = &b->rows[r];
    *s = (batch_row){
        .q_len = rows[r][0], .kv_len = rows[r][1], .n_shared = shares ? shares[r][1] : 0, .q_at = q_at};
    s->q_from = s->kv_len - s->q_len;
    q_at += s->q_len;
    for (uint32_t i = 0; i < pages_for(b->h, s->kv_len + BEHIND); i++)
      s->pages[i] = i < s->n_shared / b->h->page_tokens ? b->rows[shares[r][0]].pages[i] : order[used++];
  }
  free(order);
}

static void fill_inv_freq(float *inv_freq, uint32_t rotary_dim)
{
  for (uint32_t i = 0; i < rotary_dim / 2; i++)
    inv_freq[i] = (float)pow(10000, -2.0 * i / rotary_dim);
}

batch *batch_make(const heads *h, const uint32_t (*rows)[2], const uint32_t (*shares)[2], uint32_t n_rows)
{
  td_error err;
  float inv_freq[128];
  batch *b = calloc(1, sizeof *b);
  watch_case(rng_now(), "attention of %u rows, first %u@%u%s, heads %u/%u of %u, page %u, window %u", n_rows,
             rows[0][0], rows[0][1], shares ? ", shared" : "", h->n_heads, h->n_kv_heads, h->head_dim,
             h->page_tokens, h->window);
  *b = (batch){.h = h, .n_rows = n_rows, .rows = calloc(n_rows, sizeof *b->rows)};
  place_rows(b, rows, shares);
  b->q = random_values((size_t)batch_tokens(b->rows, n_rows) * h->n_heads * h->head_dim, 1.5);
  b->kv = random_values((size_t)b->n_pages * h->page_tokens * kv_width(h), 1.5);
  b->q_norm = h->norm ? random_values(h->head_dim, 1) : NULL;
  b->k_norm = h->norm ? random_values(h->head_dim, 1) : NULL;
  fill_inv_freq(inv_freq, rotated_dim(h));
  b->rope = (td_rope_kv_params){.q_norm = h->norm ? device_f32(b->q_norm, h->head_dim) : (td_devptr){0},
                                .k_norm = h->norm ? device_f32(b->k_norm, h->head_dim) : (td_devptr){0},
                                .inv_freq = device_f32(inv_freq, rotated_dim(h) / 2),
                                .attn_factor = 1,
                                .norm_eps = 1e-6f,
                                .style = h->style,
                                .layer = 1,
                                .n_heads = h->n_heads,
                                .n_kv_heads = h->n_kv_heads,
                                .head_dim = h->head_dim,
                                .rotary_dim = rotated_dim(h)};
  td_kv_spec shape = {.n_pages = b->n_pages,
                      .page_tokens = h->page_tokens,
                      .n_groups = 1,
                      .groups = {{.dtype = be->kv_dtype,
                                  .n_layers = 2,
                                  .n_kv_heads = h->n_kv_heads,
                                  .head_dim = h->head_dim,
                                  .n_heads = h->n_heads,
                                  .window_tokens = h->window}}};
  die(be->ops->kv_create(be, &shape, &b->rope.kv, &err), &err, "kv");
  return b;
}

void batch_free(batch *b)
{
  be->ops->kv_destroy(be, b->rope.kv);
  free(b->rows), free(b->q), free(b->kv), free(b->q_norm), free(b->k_norm);
  free(b);
}

/* ---- to the device ---- */

/* One query head only, whose output is ignored. */
static size_t write_width(const heads *h) { return h->head_dim + kv_width(h); }

static void run_rope(const batch *b, td_devptr qkv)
{
  td_rope_kv_params p = b->rope;
  p.n_heads = 1;
  p.qkv = qkv;
  run_ops(&(td_op){.kind = TD_OP_ROPE_KV, .rope_kv = p}, 1);
}

/* Runs the step of the plan. nan_values: used instead of the tokens' own values, if not NULL. */
static void write_step(const batch *b, const batch_row *const *rows, td_devptr nan_values)
{
  const heads *h = b->h;
  if (nan_values.addr) {
    run_rope(b, nan_values);
    return;
  }
  size_t width = write_width(h);
  float *x = malloc(plan->n_tokens * width * sizeof *x);
#pragma omp parallel
  for (uint32_t r = 0; r < plan->n_rows; r++)
#pragma omp for nowait
    for (uint32_t i = 0; i < plan->rows[r].q_len; i++) {
      uint32_t t = plan->rows[r].q_start + i;
      const float *kv = batch_kv_at(b, rows[r], (uint32_t)plan->positions[t]);
      memcpy(x + t * width, kv, h->head_dim * sizeof *x);
      memcpy(x + t * width + h->head_dim, kv, kv_width(h) * sizeof *x);
    }
  run_rope(b, activations(x, plan->n_tokens, (uint32_t)width));
  free(x);
}

typedef struct span {
  uint32_t from, to;
} span;

/* rope_kv over these tokens of all rows, in full steps. */
static void write_spans(const batch *b, const span *spans, td_devptr nan_values)
{
  const batch_row *rows[MAX_ROWS];
  plan_reset(b->h->page_tokens);
  for (uint32_t r = 0; r < b->n_rows; r++)
    for (uint32_t at = spans[r].from, n; at < spans[r].to; at += n) {
      n = MAX_TOKENS - plan->n_tokens;
      n = n < spans[r].to - at ? n : spans[r].to - at;
      rows[plan->n_rows] = &b->rows[r];
      plan_add_row(n, at + n, b->rows[r].pages);
      if (plan->n_tokens == MAX_TOKENS || plan->n_rows == MAX_ROWS) {
        write_step(b, rows, nan_values);
        plan_reset(b->h->page_tokens);
      }
    }
  if (plan->n_rows > 0)
    write_step(b, rows, nan_values);
}

void batch_poison(const batch *b)
{
  size_t n_all = 0, width = write_width(b->h);
  span *spans = malloc(b->n_rows * sizeof *spans);
  for (uint32_t r = 0; r < b->n_rows; r++) {
    spans[r] = (span){b->rows[r].kv_len - b->rows[r].q_len, b->rows[r].kv_len + BEHIND};
    n_all += spans[r].to - spans[r].from;
  }
  n_all = (n_all < MAX_TOKENS ? n_all : MAX_TOKENS);
  float *x = malloc(n_all * width * sizeof *x);
#pragma omp parallel for
  for (size_t i = 0; i < n_all * width; i++)
    x[i] = NAN;
  write_spans(b, spans,
              activations(x, (uint32_t)n_all, (uint32_t)width)); /* rotated in place, NaN stays NaN */
  free(x), free(spans);
}

void batch_write(const batch *b)
{
  span *spans = malloc(b->n_rows * sizeof *spans);
  for (uint32_t r = 0; r < b->n_rows; r++)
    spans[r] = (span){b->rows[r].n_shared, b->rows[r].kv_len - b->rows[r].q_len};
  write_spans(b, spans, (td_devptr){0});
  free(spans);
}

void batch_attention_ops(const batch *b, td_devptr qkv, td_devptr out, td_op ops[2])
{
  const heads *h = b->h;
  ops[0] = (td_op){.kind = TD_OP_ROPE_KV, .rope_kv = b->rope};
  ops[0].rope_kv.qkv = qkv;
  ops[1] = (td_op){.kind = TD_OP_ATTENTION,
                   .attention = {.qkv = qkv,
                                 .out = out,
                                 .kv = b->rope.kv,
                                 .scale = (float)(1 / sqrt(h->head_dim)),
                                 .window_tokens = h->window,
                                 .layer = 1,
                                 .n_heads = h->n_heads,
                                 .n_kv_heads = h->n_kv_heads,
                                 .head_dim = h->head_dim}};
}

static const float *q_of(const batch *b, const batch_row *r, uint32_t pos)
{
  return b->q + (size_t)(r->q_at + pos - r->q_from) * b->h->n_heads * b->h->head_dim;
}

td_devptr batch_qkv(const batch *b, const batch_row *rows, uint32_t n_rows)
{
  const heads *h = b->h;
  uint32_t n_tokens = batch_tokens(rows, n_rows);
  size_t n_q = (size_t)h->n_heads * h->head_dim, width = n_q + kv_width(h);
  float *x = malloc(n_tokens * width * sizeof *x), *to = x;
  for (uint32_t r = 0; r < n_rows; r++)
    for (uint32_t pos = rows[r].kv_len - rows[r].q_len; pos < rows[r].kv_len; pos++, to += width) {
      memcpy(to, q_of(b, &rows[r], pos), n_q * sizeof *x);
      memcpy(to + n_q, batch_kv_at(b, &rows[r], pos), kv_width(h) * sizeof *x);
    }
  td_devptr qkv = activations(x, n_tokens, (uint32_t)width);
  free(x);
  return qkv;
}

float *batch_attend(const batch *b, const batch_row *rows, uint32_t n_rows)
{
  const heads *h = b->h;
  uint32_t n_tokens = batch_tokens(rows, n_rows);
  size_t n_q = (size_t)h->n_heads * h->head_dim;
  plan_reset(h->page_tokens);
  for (uint32_t r = 0; r < n_rows; r++)
    plan_add_row(rows[r].q_len, rows[r].kv_len, rows[r].pages);
  td_devptr qkv = batch_qkv(b, rows, n_rows), out = device_alloc(n_tokens * n_q * be->activation_bytes);
  td_op ops[2];
  batch_attention_ops(b, qkv, out, ops);
  run_ops(ops, 2);
  return fetch(out, n_tokens * n_q, false);
}

/* ---- float64 ---- */

typedef struct turn {
  double cosine, sine;
} turn;

/* For every position: [MAX_CONTEXT, rotary_dim / 2]. The product of the angle is defined in f32, as in HF. */
static const turn *turns_of(uint32_t rotary_dim)
{
  static turn *made[257];
  float inv_freq[128];
  if (made[rotary_dim])
    return made[rotary_dim];
  fill_inv_freq(inv_freq, rotary_dim);
  turn *t = made[rotary_dim] = malloc((size_t)MAX_CONTEXT * (rotary_dim / 2) * sizeof *t);
#pragma omp parallel for
  for (uint32_t pos = 0; pos < MAX_CONTEXT; pos++)
    for (uint32_t i = 0; i < rotary_dim / 2; i++) {
      double angle = (double)((float)pos * inv_freq[i]);
      t[(size_t)pos * (rotary_dim / 2) + i] = (turn){cos(angle), sin(angle)};
    }
  return t;
}

static double activation_round(double v)
{
  return be->activation_bytes == 2 ? td_bf16_to_f32(td_f32_to_bf16((float)v)) : v;
}

static void rotate(const heads *h, const float *src, const float *norm, const turn *turns, double *out)
{
  uint32_t hd = h->head_dim, half = rotated_dim(h) / 2;
  double sum = 0;
  for (uint32_t i = 0; i < hd; i++)
    sum += (double)src[i] * src[i];
  double scale = norm ? 1 / sqrt(sum / hd + 1e-6) : 1;
  for (uint32_t i = 0; i < half; i++) {
    uint32_t lo = h->style == TD_ROPE_PAIRS ? 2 * i : i,
             hi = h->style == TD_ROPE_PAIRS ? 2 * i + 1 : i + half;
    double u = src[lo] * scale * (norm ? norm[lo] : 1), v = src[hi] * scale * (norm ? norm[hi] : 1);
    out[lo] = activation_round(u * turns[i].cosine - v * turns[i].sine);
    out[hi] = activation_round(v * turns[i].cosine + u * turns[i].sine);
  }
  for (uint32_t i = 2 * half; i < hd; i++)
    out[i] = activation_round(src[i] * scale * (norm ? norm[i] : 1));
}

/* Rotated k at its page. In f32: values rounded to bf16 are exact in it, and an f32 backend stores the same.
 */
static float *rotated_k(const batch *b)
{
  const heads *h = b->h;
  const turn *turns = turns_of(rotated_dim(h));
  size_t n_k = kv_width(h) / 2;
  float *k = malloc((size_t)b->n_pages * h->page_tokens * n_k * sizeof *k);
#pragma omp parallel
  for (uint32_t r = 0; r < b->n_rows; r++)
#pragma omp for nowait
    for (uint32_t t = b->rows[r].n_shared; t < b->rows[r].kv_len; t++)
      for (uint32_t head = 0; head < h->n_kv_heads; head++) {
        double out[256];
        float *to = k + place(b, &b->rows[r], t) * n_k + head * h->head_dim;
        rotate(h, batch_kv_at(b, &b->rows[r], t) + head * h->head_dim, b->k_norm,
               turns + (size_t)t * (rotated_dim(h) / 2), out);
        for (uint32_t d = 0; d < h->head_dim; d++)
          to[d] = (float)out[d];
      }
  return k;
}

static double dot(const double *q, const float *k, uint32_t n)
{
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (uint32_t d = 0; d < n; d++)
    sum += q[d] * (double)k[d];
  return sum;
}

/* weights: room for one a key. */
static void attend_one(const batch *b, const float *k, const batch_row *r, uint32_t pos, uint32_t head,
                       double *weights, double *o)
{
  const heads *h = b->h;
  uint32_t hd = h->head_dim, first = h->window && pos + 1 > h->window ? pos + 1 - h->window : 0;
  size_t n_k = kv_width(h) / 2, at = head / (h->n_heads / h->n_kv_heads) * hd;
  double q[256], sum_of[256] = {0}, max = -INFINITY, sum = 0, scale = 1 / sqrt(hd);
  rotate(h, q_of(b, r, pos) + head * hd, b->q_norm,
         turns_of(rotated_dim(h)) + (size_t)pos * (rotated_dim(h) / 2), q);
  for (uint32_t t = first; t <= pos; t++) {
    weights[t] = dot(q, k + place(b, r, t) * n_k + at, hd) * scale;
    max = fmax(max, weights[t]);
  }
  for (uint32_t t = first; t <= pos; t++) {
    const float *v = batch_kv_at(b, r, t) + n_k + at;
    double w = exp(weights[t] - max);
    sum += w;
    for (uint32_t d = 0; d < hd; d++)
      sum_of[d] += w * (double)v[d];
  }
  for (uint32_t d = 0; d < hd; d++)
    o[d] = sum_of[d] / sum;
}

double *batch_reference(const batch *b, const batch_row *rows, uint32_t n_rows)
{
  const heads *h = b->h;
  uint32_t n_tokens = batch_tokens(rows, n_rows), *row_of = malloc(n_tokens * sizeof *row_of),
           *pos_of = malloc(n_tokens * sizeof *pos_of);
  double *out = malloc((size_t)n_tokens * h->n_heads * h->head_dim * sizeof *out);
  float *k = rotated_k(b);
  for (uint32_t r = 0, t = 0; r < n_rows; r++)
    for (uint32_t i = 0; i < rows[r].q_len; i++, t++) {
      row_of[t] = r;
      pos_of[t] = rows[r].kv_len - rows[r].q_len + i;
    }
#pragma omp parallel
  {
    double *weights = malloc(MAX_CONTEXT * sizeof *weights);
#pragma omp for collapse(2) schedule(dynamic, 2)
    for (uint32_t t = 0; t < n_tokens; t++)
      for (uint32_t head = 0; head < h->n_heads; head++)
        attend_one(b, k, &rows[row_of[t]], pos_of[t], head, weights,
                   out + ((size_t)t * h->n_heads + head) * h->head_dim);
    free(weights);
  }
  free(k), free(row_of), free(pos_of);
  return out;
}
