/* Decodes of unequal length: the traces that PersistentKV was measured on (its section 3.8), generated from
 * their definition and a seed. Requests fill a few places one after another. A step has a row for each
 * occupied place, and each row is one token longer than in the step before. */
#ifndef TD_BENCH_ATTENTION_TRACES_H
#define TD_BENCH_ATTENTION_TRACES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

enum {
  TD_TRACE_ROWS_MAX = 8,
  TD_TRACE_REQUESTS = 24,
  TD_TRACE_CALIBRATION_SEED = 0,
  TD_TRACE_SEEDS = 5,
  TD_TRACE_TOKENS_MAX = 69632
};

typedef enum td_trace_kind {
  TD_TRACE_BUCKETED,
  TD_TRACE_UNIFORM,
  TD_TRACE_BIMODAL,
  TD_TRACE_ZIPF,
  TD_TRACE_HOMOGENEOUS
} td_trace_kind;

static const struct td_attention_trace {
  const char *name;
  td_trace_kind kind;
  uint32_t batch, decode_min, decode_max;
} td_attention_traces[] = {
    {"bucketed B1", TD_TRACE_BUCKETED, 1, 32, 96}, {"uniform B8", TD_TRACE_UNIFORM, 8, 16, 96},
    {"bimodal B8", TD_TRACE_BIMODAL, 8, 16, 96},   {"bimodal B4", TD_TRACE_BIMODAL, 4, 16, 96},
    {"zipf B8", TD_TRACE_ZIPF, 8, 16, 96},         {"homogeneous B8", TD_TRACE_HOMOGENEOUS, 8, 16, 96}};
enum { TD_ATTENTION_TRACES = sizeof td_attention_traces / sizeof *td_attention_traces };

typedef struct td_trace_run {
  uint32_t trace;
  uint64_t random;
  uint32_t n_taken; /* requests begun so far */
  uint32_t left[TD_TRACE_ROWS_MAX], kv_len[TD_TRACE_ROWS_MAX], request[TD_TRACE_ROWS_MAX];
} td_trace_run;

static inline uint32_t td_trace_between(uint64_t *random, uint32_t from, uint32_t to)
{
  *random = *random * 6364136223846793005u + 1442695040888963407u;
  return from + (uint32_t)((*random >> 33) % (to - from + 1));
}

static inline uint32_t td_trace_prompt(td_trace_kind kind, uint32_t request, uint64_t *random)
{
  switch (kind) {
  case TD_TRACE_BUCKETED: return 8192u << request % 4;
  case TD_TRACE_UNIFORM: return td_trace_between(random, 4096, 32768);
  case TD_TRACE_HOMOGENEOUS: return 32768;
  case TD_TRACE_BIMODAL:
    return request % 4 == 3 ? td_trace_between(random, 24576, 65536) : td_trace_between(random, 2048, 12288);
  default: {
    uint32_t rank = td_trace_between(random, 1, 32), jitter = td_trace_between(random, 0, 1024);
    return (uint32_t)(2048 + 65536 / sqrt(rank)) + jitter - 512;
  }
  }
}

static inline td_trace_run td_trace_begin(uint32_t trace, uint64_t seed)
{
  return (td_trace_run){.trace = trace, .random = seed * 1000003 + 7};
}

/* Advances to the next step: each place with left[i] > 0 has a row of kv_len[i] tokens. Returns false when
 * all requests are done. */
static inline bool td_trace_run_step(td_trace_run *t)
{
  const struct td_attention_trace *d = &td_attention_traces[t->trace];
  bool any = false;
  for (uint32_t i = 0; i < d->batch; i++) {
    t->left[i] -= t->left[i] > 0;
    if (t->left[i] == 0 && t->n_taken < TD_TRACE_REQUESTS) {
      t->request[i] = t->n_taken;
      t->kv_len[i] = td_trace_prompt(d->kind, t->n_taken++, &t->random);
      t->left[i] = td_trace_between(&t->random, d->decode_min, d->decode_max);
    }
    t->kv_len[i] += t->left[i] > 0;
    any |= t->left[i] > 0;
  }
  return any;
}

#endif
