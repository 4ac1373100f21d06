/* Shared by the sampling sections of test_ops: a backend with a sampler, and random rows for it. */
#ifndef TD_TESTS_GPU_SAMPLE_SIDE_H
#define TD_TESTS_GPU_SAMPLE_SIDE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "random.h"

enum { N_KINDS = 12 };

typedef struct side {
  td_backend *be;
  td_plan *plan;
} side;

static uint64_t rng_state = 0x9E3779B97F4A7C15u;
static inline uint64_t rng(void) { return random_next(&rng_state); }

static inline uint32_t below(uint32_t n) { return (uint32_t)((rng() >> 32) * n >> 32); }
static inline float uniform(void) { return (float)(rng() >> 40) * 0x1p-24f; }

/* Roughly normal. */
static inline float normal(void)
{
  uint64_t r = rng();
  uint32_t sum = (uint32_t)(r & 0xFFFF) + (uint32_t)(r >> 16 & 0xFFFF) + (uint32_t)(r >> 32 & 0xFFFF) +
                 (uint32_t)(r >> 48);
  return ((float)sum - 131070.0f) * (1.7f / 65536);
}

static inline void must(td_status st, const td_error *err)
{
  if (st == TD_OK)
    return;
  printf("sampling: %s\n", err->message);
  exit(1);
}

static inline side open_side(const char *name, const char *isa, uint32_t vocab, uint32_t max_rows,
                             uint32_t max_slots)
{
  td_error err;
  side s;
  td_backend_config config = {.max_slots = max_slots,
                              .max_rows = max_rows,
                              .max_tokens = max_rows,
                              .max_context_tokens = 64,
                              .max_vocab = vocab};
  if (isa)
    setenv("TANDEM_ISA", isa, 1);
  must(td_backend_create(name, &config, &s.be, &err), &err);
  unsetenv("TANDEM_ISA");
  must(td_plan_create(max_rows, max_rows, max_rows, 1, 16, &s.plan, &err), &err);
  return s;
}

static inline void close_side(side *s)
{
  s->be->ops->destroy(s->be);
  td_plan_destroy(s->plan);
}

static inline td_devptr upload(side *s, const float *x, size_t n)
{
  td_error err;
  td_devptr p;
  must(s->be->ops->upload_f32(s->be, x, n, &p, &err), &err);
  return p;
}

/* ---- rows ---- */

static inline float make_logit(uint32_t kind, float scale)
{
  float v = normal() * scale;
  switch (kind) {
  case 1: return roundf(v * 2) / 2; /* ties */
  case 2: return 1.5f;              /* nothing but ties */
  case 3: return below(10) ? -INFINITY : v;
  case 4: return -INFINITY; /* but one: see make_row */
  case 5: return below(2) ? 0.0f : -0.0f;
  case 6: return v * 1e-6f;
  case 7: return 100 + uniform() * 1e-4f;
  case 8: return roundf(v * 64) / 64;
  case 9: return -3e38f * uniform(); /* differences overflow */
  default: return v;
  }
}

static inline void make_row(float *x, uint32_t n)
{
  uint32_t kind = below(N_KINDS);
  float scale = expf(uniform() * 6 - 3);
  for (uint32_t i = 0; i < n; i++)
    x[i] = make_logit(kind, scale);
  if (kind == 4 && below(8))
    x[below(n)] = -3;
  if (below(6) == 0) /* one far above */
    x[below(n)] = 10 * scale;
  if (below(24) == 0)
    x[below(n)] = below(3) ? NAN : INFINITY;
}

static inline td_sampling make_sampling(uint32_t n)
{
  td_sampling s = {.temperature = 0.05f + 2 * uniform() * uniform(), .top_p = 1, .seed = rng()};
  if (below(8) == 0)
    s.temperature = below(2) ? 0 : 1e-4f;
  if (below(2))
    s.top_p = below(4) ? 0.001f + 0.998f * uniform() : 0.999999f;
  if (below(4) == 0)
    s.min_p = below(6) ? 0.4f * uniform() * uniform() * uniform() : 1;
  if (below(2))
    s.top_k = 1 + (int32_t)(below(3) ? below(60) : below(2 * n));
  return s;
}

/* n_ops times the same. */
static inline td_compiled *compile(side *s, td_devptr logits, uint32_t vocab, uint32_t n_ops)
{
  td_error err;
  td_program *p;
  td_compiled *compiled;
  must(td_program_create(n_ops, &p, &err), &err);
  for (uint32_t i = 0; i < n_ops; i++)
    td_program_add(p, (td_op){.kind = TD_OP_SAMPLE, .extent = TD_EXTENT_LOGITS, .sample = {logits, vocab}});
  must(s->be->ops->compile(s->be, p, &compiled, &err), &err);
  td_program_destroy(p);
  return compiled;
}

#endif
