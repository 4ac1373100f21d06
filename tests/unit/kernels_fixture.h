/* Shared by the kernel tests: random data, backends of every instruction set, plans, exact comparison. */
#ifndef TD_TESTS_KERNELS_FIXTURE_H
#define TD_TESTS_KERNELS_FIXTURE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"

static uint64_t fx_state = 88172645463325252ull;

static inline uint64_t fx_random(void)
{
  fx_state ^= fx_state << 13;
  fx_state ^= fx_state >> 7;
  fx_state ^= fx_state << 17;
  return fx_state * 2685821657736338717ull;
}

static inline uint32_t fx_below(uint32_t n) { return (uint32_t)((fx_random() >> 32) * n >> 32); }
static inline double fx_uniform(void) { return (double)(fx_random() >> 11) * 0x1p-53; }

/* Near enough to normal for test data. */
static inline float fx_normal(void)
{
  double s = 0;
  for (int i = 0; i < 12; i++)
    s += fx_uniform();
  return (float)(s - 6);
}

static inline float *fx_floats(size_t n, float scale)
{
  float *p = malloc((n ? n : 1) * sizeof *p);
  assert_non_null(p);
  for (size_t i = 0; i < n; i++)
    p[i] = fx_normal() * scale;
  return p;
}

static inline void fx_put_f16(uint8_t *p, float f)
{
  uint16_t h = td_f32_to_f16(f);
  memcpy(p, &h, 2);
}

/* One random block: any bits for the integers, finite scales. */
static inline void fx_block(td_dtype t, uint8_t *p)
{
  for (uint32_t i = 0; i < td_dtypes[t].block_bytes; i++)
    p[i] = (uint8_t)fx_random();
  float d = (float)(fx_uniform() - 0.3) * 0.05f, m = (float)(fx_uniform() - 0.5) * 0.2f;
  uint32_t u;
  switch (t) {
  case TD_F32: memcpy(p, &(float){fx_normal()}, 4); return;
  case TD_F16: fx_put_f16(p, fx_normal()); return;
  case TD_BF16:
    u = td_f32_to_bf16(fx_normal());
    memcpy(p, &u, 2);
    return;
  case TD_Q6_K: fx_put_f16(p + 208, d * 0.1f); return;
  case TD_Q4_K:
  case TD_Q5_K: d *= 0.1f; m *= 0.1f; /* fall through */
  case TD_Q4_1:
  case TD_Q5_1: fx_put_f16(p + 2, m); /* fall through */
  default: fx_put_f16(p, d);
  }
}

/* A random matrix; freed by the caller. Starts at an odd address if `odd`, as safetensors may. */
static inline uint8_t *fx_matrix(td_dtype t, uint32_t n_rows, uint32_t n_cols)
{
  uint64_t row_bytes;
  assert_true(td_dtype_row_bytes(t, n_cols, &row_bytes));
  uint8_t *p = malloc(row_bytes * n_rows);
  assert_non_null(p);
  for (uint64_t at = 0; at < row_bytes * n_rows; at += td_dtypes[t].block_bytes)
    fx_block(t, p + at);
  return p;
}

#ifdef TD_ISA_ARM64
static const char *const fx_isas[] = {"scalar", "neon"};
#else
static const char *const fx_isas[] = {"scalar", "avx2", "avx512"};
#endif
enum {
  FX_ISAS = sizeof fx_isas / sizeof *fx_isas,
  FX_MAX_TOKENS = 600,
  FX_MAX_ROWS = 80,
  FX_MAX_VOCAB = 60000
};

static const td_backend_config fx_config = {
    .n_threads = 1,
    .max_slots = 80,
    .max_rows = FX_MAX_ROWS,
    .max_tokens = FX_MAX_TOKENS,
    .max_context_tokens = 8192,
    .max_vocab = FX_MAX_VOCAB,
};

static bool fx_int8_activations; /* of backends made from here on */

/* NULL if this machine lacks the instruction set. */
static inline td_backend *fx_backend(const char *isa, uint32_t n_threads)
{
  td_backend_config c = fx_config;
  c.int8_activations = fx_int8_activations;
  td_backend *be = NULL;
  td_error err = {0};
  c.n_threads = n_threads;
  setenv("TANDEM_ISA", isa, 1);
  td_status st = td_backend_create("cpu", &c, &be, &err);
  unsetenv("TANDEM_ISA");
  if (st != TD_OK) {
    assert_int_equal(st, TD_ERR_CONFIG);
    printf("    skipped: %s\n", err.message);
    return NULL;
  }
  return be;
}

/* A backend of every instruction set with 1, 2 and 3 threads; [0] is scalar with one thread. */
enum { FX_BACKENDS = 3 * FX_ISAS };
static inline void fx_backends(td_backend *out[FX_BACKENDS])
{
  for (int i = 0; i < FX_BACKENDS; i++)
    out[i] = fx_backend(fx_isas[i / 3], (uint32_t)(i % 3) + 1);
}

static inline void fx_backends_destroy(td_backend *bes[FX_BACKENDS])
{
  for (int i = 0; i < FX_BACKENDS; i++)
    if (bes[i])
      bes[i]->ops->destroy(bes[i]);
}

static inline td_devptr fx_alloc(td_backend *be, size_t n_floats)
{
  td_devptr p;
  assert_int_equal(be->ops->alloc(be, n_floats * sizeof(float), &p, NULL), TD_OK);
  return p;
}

static inline td_devptr fx_upload(td_backend *be, const float *src, size_t n)
{
  td_devptr p;
  assert_int_equal(be->ops->upload_f32(be, src, n, &p, NULL), TD_OK);
  return p;
}

static inline float *fx_download(td_backend *be, td_devptr src, size_t n)
{
  float *p = malloc((n ? n : 1) * sizeof *p);
  assert_non_null(p);
  assert_int_equal(be->ops->download(be, src, n * sizeof *p, p, NULL), TD_OK);
  return p;
}

enum { FX_NAN = -1 };

/* Runs a step of these ops only; ids (may be NULL) receives the sampled ids, FX_NAN where that flag is set.
 */
static inline void fx_run(td_backend *be, const td_plan *plan, const td_op *ops, uint32_t n_ops, int32_t *ids)
{
  td_program *program;
  td_compiled *compiled;
  td_outcome out;
  assert_int_equal(td_program_create(n_ops, &program, NULL), TD_OK);
  for (uint32_t i = 0; i < n_ops; i++)
    td_program_add(program, ops[i]);
  assert_int_equal(be->ops->compile(be, program, &compiled, NULL), TD_OK);
  td_program_destroy(program);
  td_backend_queue_step(be, compiled, NULL, plan);
  assert_int_equal(td_backend_wait(be, &out, NULL), TD_OK);
  assert_int_equal(out.n_logits, plan->n_logits);
  for (uint32_t i = 0; ids && i < out.n_logits; i++) {
    assert_int_equal(out.n_ids[i], out.flags[i] == 0);
    ids[i] = out.flags[i] == TD_LOGITS_NAN ? FX_NAN : out.ids[i * TD_STEP_IDS];
  }
  be->ops->discard(be, compiled);
}

/* The same for n tokens whose results are ignored. */
static inline void fx_run_rows(td_backend *be, uint32_t n, const td_op *op)
{
  td_plan *plan;
  assert_int_equal(td_plan_create(1, n, 1, 1, 16, &plan, NULL), TD_OK);
  plan->n_rows = 1;
  plan->n_tokens = n;
  plan->rows[0] = (td_plan_row){.q_len = n, .kv_len = n};
  fx_run(be, plan, op, 1, NULL);
  td_plan_destroy(plan);
}

/* Same bits. */
static inline void fx_same(const float *a, const float *b, size_t n, const char *what)
{
  for (size_t i = 0; i < n; i++)
    if (memcmp(&a[i], &b[i], sizeof *a) != 0)
      fail_msg("%s: element %zu of %zu: %.9g and %.9g", what, i, n, (double)a[i], (double)b[i]);
}

#endif
