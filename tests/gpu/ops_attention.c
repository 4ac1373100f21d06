/* See ops_attention.h. */
#include "ops_attention.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops_watch.h"

/* The values of one token, which follow its keys. */
static float *values_at(const batch *b, const batch_row *row, uint32_t token)
{
  return batch_kv_at(b, row, token) + (size_t)b->h->n_kv_heads * b->h->head_dim;
}

/* shares: see batch_make. All values are times `scale`, a power of two or 0. kept: NULL, or see
 * test_attention_kept. */
static void test_rows(const heads *h, const uint32_t (*rows)[2], const uint32_t (*shares)[2], uint32_t n_rows,
                      float scale, double **kept)
{
  char what[160];
  batch *b = batch_make(h, rows, shares, n_rows);
  for (uint32_t r = 0; r < n_rows; r++)
    for (uint32_t t = b->rows[r].n_shared; t < b->rows[r].kv_len; t++)
      for (uint32_t i = 0; i < h->n_kv_heads * h->head_dim; i++)
        values_at(b, &b->rows[r], t)[i] *= scale;
  batch_poison(b);
  batch_write(b);
  float *got = batch_attend(b, b->rows, n_rows);
  double *want = kept && *kept ? *kept : batch_reference(b, b->rows, n_rows);
  size_t n_out = (size_t)batch_tokens(b->rows, n_rows) * h->n_heads * h->head_dim;
  snprintf(what, sizeof what,
           "attention heads=%u/%u dim=%u page=%u window=%u style=%d norm=%d rows=%u first=%u@%u%s scale=%g",
           h->n_heads, h->n_kv_heads, h->head_dim, h->page_tokens, h->window, h->style, h->norm, n_rows,
           rows[0][0], rows[0][1], shares ? " shared" : "", scale);
  check(what, got, want, n_out, be->activation_bytes == 2 ? 1.5 * eps_out : 2e-5);
  free(got);
  if (kept)
    *kept = want;
  else
    free(want);
  batch_free(b);
}

void test_attention(const heads *h, const uint32_t (*rows)[2], uint32_t n_rows)
{
  test_rows(h, rows, NULL, n_rows, 1, NULL);
}

void test_attention_kept(const heads *h, const uint32_t (*rows)[2], uint32_t n_rows, double **kept)
{
  test_rows(h, rows, NULL, n_rows, 1, kept);
}

void test_attention_again(const heads *h, uint32_t n_rows, uint32_t n_fewer, uint32_t n_tokens)
{
  uint32_t lens[MAX_ROWS][2], steps[] = {n_rows, n_fewer, n_fewer, n_rows};
  char what[160];
  for (uint32_t r = 0; r < n_rows; r++) {
    lens[r][0] = 1;
    lens[r][1] = n_tokens;
  }
  batch *b = batch_make(h, (const uint32_t(*)[2])lens, NULL, n_rows);
  batch_poison(b);
  batch_write(b);
  for (uint32_t turn = 0; turn < sizeof steps / sizeof *steps; turn++) {
    uint32_t n = steps[turn];
    size_t n_out = (size_t)n * h->n_heads * h->head_dim;
    random_fill(b->q, (size_t)n_rows * h->n_heads * h->head_dim, 1.5);
    float *got = batch_attend(b, b->rows, n);
    double *want = batch_reference(b, b->rows, n);
    snprintf(what, sizeof what,
             "attention again, turn %u, heads=%u/%u dim=%u page=%u window=%u, %u rows of %u", turn,
             h->n_heads, h->n_kv_heads, h->head_dim, h->page_tokens, h->window, n, n_tokens);
    check(what, got, want, n_out, be->activation_bytes == 2 ? 1.5 * eps_out : 2e-5);
    free(got), free(want);
  }
  batch_free(b);
}

void test_attention_mixed_shared(const heads *h, const uint32_t (*rows)[2], const uint32_t (*shares)[2],
                                 uint32_t n_rows)
{
  test_rows(h, rows, shares, n_rows, 1, NULL);
}

/* A prefix of all rows, one of every fifth of them, one of each pair; then private tokens of each row. */
static void test_shared(const heads *h, uint32_t n_rows, const uint32_t tokens[3], float scale)
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
  test_rows(h, (const uint32_t(*)[2])rows, (const uint32_t(*)[2])shares, n_rows, scale, NULL);
}

void test_attention_shared(const heads *h, uint32_t n_rows, const uint32_t tokens[3])
{
  test_shared(h, n_rows, tokens, 1);
}

void test_attention_shared_values(const heads *h, uint32_t n_rows, const uint32_t tokens[3])
{
  static const float scales[] = {1 << 20, 1.0f / (1 << 20), 0};
  for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
    test_shared(h, n_rows, tokens, scales[i]);
}

void test_attention_shared_nan(const heads *h)
{
  enum { N = 8, PREFIX = 512, TOKEN = 5, CHANNEL = 7 };
  uint32_t rows[N][2], shares[N][2];
  char what[100];
  for (uint32_t r = 0; r < N; r++) {
    rows[r][0] = 1;
    rows[r][1] = PREFIX + 1 + 37 * r;
    shares[r][0] = r % (N / 2) ? r - 1 : 0;
    shares[r][1] = r % (N / 2) ? PREFIX : 0;
  }
  batch *b = batch_make(h, (const uint32_t(*)[2])rows, (const uint32_t(*)[2])shares, N);
  values_at(b, &b->rows[0], TOKEN)[CHANNEL] = NAN;
  batch_write(b);
  float *out = batch_attend(b, b->rows, N);
  size_t width = (size_t)h->n_heads * h->head_dim;
  bool ok = true;
  for (size_t i = 0; i < N * width; i++) {
    size_t row = i / width, head = i % width / h->head_dim;
    if (row >= N / 2)
      ok &= isfinite(out[i]);
    else if (head < h->n_heads / h->n_kv_heads && i % h->head_dim == CHANNEL)
      ok &= isnan(out[i]);
  }
  snprintf(what, sizeof what, "attention passes NaN of a shared prefix on, heads=%u/%u dim=%u", h->n_heads,
           h->n_kv_heads, h->head_dim);
  expect(ok, what);
  free(out);
  batch_free(b);
}

/* A step of b's rows, alone or together with other's, against float64. */
static void check_stores(const batch *b, const batch *other, const char *when)
{
  char what[160];
  const batch *both[] = {b, other};
  uint32_t n_stores = other ? 2 : 1, n_tokens = batch_tokens(b->rows, b->n_rows);
  td_devptr qkv[2], out[2];
  plan_reset(b->h->page_tokens);
  for (uint32_t r = 0; r < b->n_rows; r++)
    plan_add_row(b->rows[r].q_len, b->rows[r].kv_len, b->rows[r].pages);
  for (uint32_t i = 0; i < n_stores; i++) {
    qkv[i] = batch_qkv(both[i], both[i]->rows, both[i]->n_rows);
    out[i] =
        device_alloc((size_t)n_tokens * both[i]->h->n_heads * both[i]->h->head_dim * be->activation_bytes);
  }
  td_op ops[4];
  for (uint32_t i = 0; i < n_stores; i++)
    batch_attention_ops(both[i], qkv[i], out[i], ops + 2 * i);
  run_ops(ops, 2 * n_stores);
  for (uint32_t i = 0; i < n_stores; i++) {
    const heads *h = both[i]->h;
    size_t n_out = (size_t)n_tokens * h->n_heads * h->head_dim;
    float *got = fetch(out[i], n_out, false);
    double *want = batch_reference(both[i], both[i]->rows, both[i]->n_rows);
    snprintf(what, sizeof what, "attention of two stores, %s, heads=%u/%u dim=%u window=%u", when, h->n_heads,
             h->n_kv_heads, h->head_dim, h->window);
    check(what, got, want, n_out, be->activation_bytes == 2 ? 1.5 * eps_out : 2e-5);
    free(got), free(want);
  }
}

void test_attention_of_two_stores(const heads *first, const heads *second, bool mixed)
{
  enum { N = 20, PREFIX = 512 };
  uint32_t rows[N][2], shares[N][2];
  for (uint32_t r = 0; r < N; r++) {
    rows[r][0] = mixed && r == 7 ? 40 : 1;
    rows[r][1] = PREFIX + 50 + 37 * r;
    shares[r][0] = r ? r - 1 : 0;
    shares[r][1] = r % (N / 2) ? PREFIX : 0;
  }
  batch *a = batch_make(first, (const uint32_t(*)[2])rows, (const uint32_t(*)[2])shares, N);
  batch *b = batch_make(second, (const uint32_t(*)[2])rows, (const uint32_t(*)[2])shares, N);
  for (uint32_t r = 0; r < N; r++) /* groups share page ids */
    memcpy(b->rows[r].pages, a->rows[r].pages, sizeof b->rows[r].pages);
  batch_poison(a), batch_write(a);
  batch_poison(b), batch_write(b);
  check_stores(a, NULL, "the first alone");
  check_stores(b, NULL, "the second alone");
  check_stores(a, b, "both in one step");
  check_stores(b, a, "both the other way round");
  batch_free(b);
  check_stores(a, NULL, "the first when the second is gone");
  batch_free(a);
}

void test_attention_alone(const heads *h, uint32_t len)
{
  uint32_t cuts[][2] = {{1, len}, {1, 1}, {2, len / 2}, {37, len - 100}, {1, 129}, {20, 140}, {1, len - 1}};
  enum { N = sizeof cuts / sizeof *cuts };
  char what[100];
  size_t out_width = (size_t)h->n_heads * h->head_dim;
  batch *b = batch_make(h, (const uint32_t[][2]){{len, len}}, NULL, 1);
  batch_row *rows = calloc(N, sizeof *rows);
  float *all = batch_attend(b, b->rows, 1);
  for (uint32_t r = 0; r < N; r++) {
    rows[r] = b->rows[0];
    rows[r].q_len = cuts[r][0];
    rows[r].kv_len = cuts[r][1];
  }
  float *together = batch_attend(b, rows, N);
  for (uint32_t r = 0, t = 0; r < N; t += cuts[r][0], r++) {
    const float *want = all + (cuts[r][1] - cuts[r][0]) * out_width;
    size_t bytes = cuts[r][0] * out_width * sizeof *want;
    float *alone = batch_attend(b, &rows[r], 1);
    snprintf(what, sizeof what, "batch rule: attention heads=%u/%u dim=%u window=%u, %u@%u", h->n_heads,
             h->n_kv_heads, h->head_dim, h->window, cuts[r][0], cuts[r][1]);
    expect(memcmp(want, together + t * out_width, bytes) == 0 && memcmp(want, alone, bytes) == 0, what);
    free(alone);
  }
  free(rows), free(all), free(together);
  batch_free(b);
}

void test_attention_passes_nan_on(const heads *h)
{
  static const uint32_t lens[][2] = {{1, 70}, {3, 90}, {100, 200}, {1, 3000}, {1, 65}};
  enum { N = sizeof lens / sizeof *lens, CLEAN = 4, TOKEN = 5 };
  char what[100];
  batch *b = batch_make(h, lens, NULL, N);
  for (uint32_t r = 0; r < N; r++)
    for (uint32_t i = 0; i < 2 * h->n_kv_heads * h->head_dim && r != CLEAN; i++)
      batch_kv_at(b, &b->rows[r], TOKEN)[i] = NAN;
  batch_write(b);
  float *out = batch_attend(b, b->rows, N);
  size_t n_all = (size_t)batch_tokens(b->rows, N) * h->n_heads * h->head_dim,
         clean = n_all - (size_t)h->n_heads * h->head_dim;
  bool ok = true;
  for (size_t i = 0; i < n_all; i++)
    ok &= i < clean ? isnan(out[i]) : isfinite(out[i]);
  snprintf(what, sizeof what, "attention passes NaN on, heads=%u/%u dim=%u", h->n_heads, h->n_kv_heads,
           h->head_dim);
  expect(ok, what);
  free(out);
  batch_free(b);
}

/* ---- captured steps ---- */

typedef struct captured_step {
  const batch *b;
  td_weight *table; /* [rows, width] qkv of each row's token */
  td_devptr qkv, out;
  td_compiled *plain, *captured; /* the same program */
} captured_step;

static uint32_t qkv_width(const heads *h) { return (h->n_heads + 2 * h->n_kv_heads) * h->head_dim; }

static td_compiled *compile_step(const captured_step *r)
{
  td_op ops[3] = {{.kind = TD_OP_EMBED, .embed = {r->table, r->qkv, qkv_width(r->b->h), 0}}};
  batch_attention_ops(r->b, r->qkv, r->out, ops + 1);
  return compile_ops(ops, 3);
}

static float *run_captured(const captured_step *r, const batch_row *rows, uint32_t n, bool captured)
{
  plan_reset(r->b->h->page_tokens);
  for (uint32_t i = 0; i < n; i++)
    plan_add_row(1, rows[i].kv_len, rows[i].pages);
  expect(run_step(captured ? r->captured : r->plain) == captured, "a captured step is launched");
  return fetch(r->out, (size_t)n * r->b->h->n_heads * r->b->h->head_dim, false);
}

static void compare_captured(const captured_step *r, const batch_row *rows, uint32_t n, const char *which)
{
  char what[120];
  const heads *h = r->b->h;
  size_t n_out = (size_t)n * h->n_heads * h->head_dim;
  float *replayed = run_captured(r, rows, n, true), *queued = run_captured(r, rows, n, false);
  bool ok = memcmp(replayed, queued, n_out * sizeof *queued) == 0;
  for (size_t i = 0; i < n_out; i++)
    ok &= isfinite(queued[i]);
  snprintf(what, sizeof what, "attention replayed = queued, heads=%u/%u dim=%u page=%u%s", h->n_heads,
           h->n_kv_heads, h->head_dim, h->page_tokens, which);
  expect(ok, what);
  free(replayed), free(queued);
}

/* One short row, for which a captured step is made smaller (kernels/cuda/capture.cu); rows alone; rows of
 * which each n_together share a prefix of n_shared tokens, in whole pages; and rows alone again, when an
 * earlier step's plan is still there. */
static void test_captured(const heads *h, const uint32_t *lens, uint32_t n_alone, const uint32_t *shared_lens,
                          uint32_t n_captured, uint32_t n_together, uint32_t n_shared)
{
  td_error err;
  uint32_t rows[2 * MAX_ROWS][2], shares[2 * MAX_ROWS][2] = {{0}};
  td_capture ignored;
  if (!be->ops->capture)
    return;
  for (uint32_t r = 0; r < n_alone + n_captured; r++) {
    rows[r][0] = 1;
    rows[r][1] = r < n_alone ? lens[r] : shared_lens[r - n_alone];
    if (r > n_alone && (r - n_alone) % n_together > 0)
      shares[r][0] = r - 1, shares[r][1] = n_shared;
  }
  batch *b = batch_make(h, (const uint32_t(*)[2])rows, (const uint32_t(*)[2])shares, n_alone + n_captured);
  float *last = random_values((size_t)n_captured * qkv_width(h), 1.5);
  captured_step r = {
      .b = b,
      .table = device_weight(&(td_weight_part){.dtype = TD_F32, .data = last, .n_rows = n_captured}, 1,
                             qkv_width(h)),
      .qkv = device_alloc((size_t)n_captured * qkv_width(h) * be->activation_bytes),
      .out = device_alloc((size_t)n_captured * h->n_heads * h->head_dim * be->activation_bytes)};
  batch_poison(b);
  batch_write(b);
  r.plain = compile_step(&r);
  r.captured = compile_step(&r);
  die(watch_capture(be, r.captured, 1, n_captured, &ignored, &err), &err, "capture");
  compare_captured(&r, b->rows, 1, " one row");
  compare_captured(&r, b->rows, n_alone, "");
  compare_captured(&r, b->rows + n_alone, 1, " one row with a prefix");
  compare_captured(&r, b->rows + n_alone, n_captured, " shared");
  compare_captured(&r, b->rows, n_alone, " after shared");
  compare_captured(&r, b->rows + n_alone, n_captured, " shared again");
  die(watch_capture(be, r.captured, 1, n_captured, &ignored, &err), &err, "capture"); /* in an idle moment */
  compare_captured(&r, b->rows, n_alone, " captured anew");
  compare_captured(&r, b->rows + n_alone, n_captured, " shared, captured anew");
  die(watch_capture(be, r.captured, n_alone, n_captured, &ignored, &err), &err, "capture");
  compare_captured(&r, b->rows, n_alone, " as few as it is for");
  plan_reset(h->page_tokens);
  for (uint32_t i = 0; i < n_alone - 1; i++)
    plan_add_row(1, b->rows[i].kv_len, b->rows[i].pages);
  expect(!run_step(r.captured), "a step of fewer rows than a captured one is for runs op by op");
  be->ops->discard(be, r.plain);
  be->ops->discard(be, r.captured);
  free(last);
  batch_free(b);
}

void test_attention_captured(const heads *h)
{
  static const uint32_t lens[] = {1, 16, 17, 300, 2000},
                        shared_lens[] = {1100, 1025, 1040, 1041, 1300, 2000, 1026, 3000};
  test_captured(h, lens, sizeof lens / sizeof *lens, shared_lens, sizeof shared_lens / sizeof *shared_lens,
                UINT32_MAX, 1024);
}

void test_attention_captured_short(const heads *h)
{
  enum { ALONE = 37, CAPTURED = 40, SHARED = 256 };
  uint32_t lens[ALONE], shared_lens[CAPTURED];
  for (uint32_t i = 0; i < ALONE; i++)
    lens[i] = i % 9 ? 1 + i * 7 % 130 : 250 + 17 * i;
  for (uint32_t i = 0; i < CAPTURED; i++)
    shared_lens[i] = SHARED + 1 + (i % 9 ? i * 11 % 100 : 20 * i);
  test_captured(h, lens, ALONE, shared_lens, CAPTURED, UINT32_MAX, SHARED);
}

void test_attention_captured_long(const heads *h)
{
  enum { ALONE = 2, CAPTURED = 16, SHARED = 1520 };
  static const uint32_t lens[ALONE] = {300, 1};
  uint32_t shared_lens[CAPTURED];
  for (uint32_t i = 0; i < CAPTURED; i++)
    shared_lens[i] = SHARED + 1 + 37 * i;
  test_captured(h, lens, ALONE, shared_lens, CAPTURED, 2, SHARED);
}
