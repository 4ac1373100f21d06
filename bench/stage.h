/* A backend with plans made by hand: rows with as much context as wanted, on scattered pages of a KV store
 * that holds zeros or what td_stage_fill wrote. A step's work does not depend on the values, so no context is
 * computed; zeros cost a GPU less power, though. */
#ifndef TD_BENCH_STAGE_H
#define TD_BENCH_STAGE_H

#include "bench/stats.h"
#include "step/plan.h"
#include "kernels/kernels.h"

/* Of an option (bench/attention_policies.h); no such name ends the program. */
const struct td_attention_policy *td_stage_policy(const char *name);

typedef struct td_stage {
  td_backend *be; /* owned */
  td_kv *kv;
  td_plan *plan;
  int32_t *table, *scattered; /* page table; a permutation of all pages */
  uint32_t n_pages, page_tokens, stripe_pages, next_page;
  td_compiled *nothing; /* a program without ops */
} td_stage;

/* After weights and workspace are there: as many pages as min(wanted, budget) and the page table for rows of
 * up to max_context_tokens (the backend's config). Ends the program on failure. */
void td_stage_init(td_stage *s, td_backend *be, const td_kv_spec *spec, uint32_t n_pages_wanted,
                   uint32_t max_context_tokens);
void td_stage_deinit(td_stage *s);

void td_stage_plan_begin(td_stage *s);
/* false: no page, row or token is left for it. The row's last token is at kv_len - 1. */
bool td_stage_plan_row(td_stage *s, uint32_t q_len, uint32_t kv_len, bool wants_logits);
/* A decode whose first tokens, whole pages, are those of the row before. */
bool td_stage_plan_shared(td_stage *s, uint32_t kv_len, uint32_t n_shared, bool wants_logits);
/* The same plan again: its page table entries are on the device already. */
void td_stage_plan_repeat(td_stage *s);

/* The program as this backend runs it; td_stage_discard gives it back. Both end the program on failure, as
 * all below do. */
td_compiled *td_stage_compile(td_stage *s, const td_program *program);
void td_stage_discard(td_stage *s, td_compiled *compiled);

/* Steps of as many new tokens as fit one, until each page was written; none where a step holds fewer tokens
 * than a page. Leaves an empty plan. */
void td_stage_fill(td_stage *s, td_compiled *compiled);

/* Seconds of the planned step, the median of n_rounds; of an empty one if compiled is NULL. */
double td_stage_step_s(td_stage *s, td_compiled *compiled, uint32_t n_rounds, double max_seconds);
/* The same step again and again for so long. */
void td_stage_warm(td_stage *s, td_compiled *compiled, double seconds);

/* Calls once(arg) n_warm times, then until both n_min calls and min_seconds are reached or max_seconds are
 * over; seconds of each call go to `out`. */
void td_stage_time(double (*once)(void *arg), void *arg, int n_warm, int n_min, double min_seconds,
                   double max_seconds, td_stats_list *out);

#endif
