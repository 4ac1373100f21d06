/* Shared by the sections of test_ops: the backend under test, inputs, a plan filled by hand, the comparison
 * with a reference. Activations are uploaded by upload_f32, as the words that a download returns, because
 * loading them as weights would start reader threads and take pinned memory each time. */
#ifndef TD_TESTS_GPU_OPS_HARNESS_H
#define TD_TESTS_GPU_OPS_HARNESS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"

enum { MAX_TOKENS = 1024, MAX_ROWS = 64, MAX_SLOTS = 64, MAX_CONTEXT = 8704, VOCAB_MAX = 131072 };

extern td_backend *be;
extern double eps_out; /* relative precision of an activation */
extern int n_passed, n_failed;
extern td_plan *plan;
extern int32_t *page_table;
enum { SAMPLED_NAN = -1 };
extern int32_t sampled[MAX_ROWS]; /* ids of the last step; SAMPLED_NAN where that flag was set */

void rng_seed(uint64_t seed);
uint64_t rng_now(void); /* the seed of what comes */
uint64_t rng(void);
double uniform(void);
float random_value(double scale);                   /* a bf16 number, roughly normal */
void random_fill(float *v, size_t n, double scale); /* with such */
float *random_values(size_t n, double scale);

bool is_hopper(void); /* `be` is a Hopper GPU and was built for it: sm_90a */

void die(td_status st, const td_error *err, const char *what);
td_devptr device_alloc(size_t bytes);
td_devptr device_f32(const float *v, size_t n);
td_weight *device_weight(const td_weight_part *parts, uint32_t n_parts, uint64_t n_cols);

void plan_reset(uint32_t page_tokens);
void plan_add_row(uint32_t q_len, uint32_t kv_len, const int32_t *pages);
void plan_tokens_only(uint32_t n);
td_compiled *compile_ops(const td_op *ops, uint32_t n); /* be->ops->discard gives it back */
bool run_step(td_compiled *compiled); /* Runs a step of the plan; `sampled` has its ids. Returns true if it
                                         was launched from a captured step. */
void run_ops(const td_op *ops, uint32_t n); /* a step of these alone */
td_devptr activations(const float *v, uint32_t n, uint32_t width);
float *fetch(td_devptr p, size_t n, bool f32); /* the caller frees */

/* Counts, and reports failures. tolerance: for the norm ratio and for the largest difference, see
 * ops_harness.c. */
void check(const char *what, const float *got, const double *want, size_t n, double tolerance);
void expect(bool ok, const char *what);

#endif
