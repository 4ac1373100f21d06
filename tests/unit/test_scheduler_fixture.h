/* A small scheduler and its requests, for test_scheduler_*.c. */
#ifndef TD_TESTS_SCHEDULER_FIXTURE_H
#define TD_TESTS_SCHEDULER_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/scheduler.h"

enum { FX_SLOTS = 8, FX_TOKENS = 2048, FX_LOGITS = 256 };

typedef struct fx {
  td_sched *s;
  td_plan *plan;
  int32_t tokens[FX_SLOTS][FX_TOKENS];
  uint32_t finished[FX_SLOTS], n_finished;
  uint64_t now_us;
} fx;

static inline void fx_open(fx *f, const td_sched_config *config)
{
  td_error err;
  memset(f, 0, sizeof *f);
  assert_int_equal(td_sched_create(config, &f->s, &err), TD_OK);
  assert_int_equal(td_sched_plan_create(f->s, &f->plan, &err), TD_OK);
}

static inline void fx_close(fx *f)
{
  td_plan_destroy(f->plan);
  td_sched_destroy(f->s);
}

/* A prompt of n tokens: those of family `family` (equal up to any length), the last one `last` unless that is
 * 0. */
static inline td_status fx_submit_in(fx *f, uint32_t slot, uint32_t n, uint32_t max_new, int32_t family,
                                     int32_t last, uint64_t namespace_id, td_error *err)
{
  for (uint32_t i = 0; i < n && i < FX_TOKENS; i++)
    f->tokens[slot][i] = family * 10000 + (int32_t)i;
  if (last && n > 0)
    f->tokens[slot][n - 1] = last;
  td_sched_request r = {
      .tokens = f->tokens[slot], .n_prompt = n, .max_new = max_new, .terms.namespace_id = namespace_id};
  return td_sched_submit(f->s, slot, &r, ++f->now_us, err);
}

static inline void fx_submit(fx *f, uint32_t slot, uint32_t n, uint32_t max_new, int32_t family)
{
  td_error err;
  assert_int_equal(fx_submit_in(f, slot, n, max_new, family, 0, 0, &err), TD_OK);
}

static inline bool fx_plan(fx *f)
{
  bool any = td_sched_plan(f->s, ++f->now_us, f->plan);
  td_sched_check(f->s);
  return any;
}

/* Row i samples token 100 * (its slot + 1) + tokens generated before; stops those slots in the mask. */
static inline void fx_commit(fx *f, uint32_t stop_slots)
{
  int32_t sampled[FX_LOGITS];
  uint8_t stop[FX_LOGITS];
  for (uint32_t i = 0; i < f->plan->n_logits; i++) {
    uint32_t slot = f->plan->rows[f->plan->logits[i].row].slot;
    sampled[i] = (int32_t)(100 * (slot + 1) + td_sched_slot(f->s, slot).n_generated);
    stop[i] = stop_slots >> slot & 1;
  }
  ++f->now_us;
  td_sched_commit(f->s, f->plan, sampled, stop, f->finished, &f->n_finished);
  td_sched_check(f->s);
}

static inline void fx_step(fx *f)
{
  assert_true(fx_plan(f));
  fx_commit(f, 0);
}

static inline void fx_run_dry(fx *f)
{
  while (fx_plan(f))
    fx_commit(f, 0);
}

/* Row i is slot's, of q_len tokens that end at kv_len. */
static inline void fx_row(fx *f, uint32_t i, uint32_t slot, uint32_t q_len, uint32_t kv_len)
{
  assert_true(i < f->plan->n_rows);
  assert_int_equal(f->plan->rows[i].slot, slot);
  assert_int_equal(f->plan->rows[i].q_len, q_len);
  assert_int_equal(f->plan->rows[i].kv_len, kv_len);
}

static inline td_sched_stats fx_stats(const fx *f)
{
  td_sched_stats st;
  td_sched_get_stats(f->s, &st);
  assert_int_equal(st.pages_free + st.pages_cached + st.pages_owned, st.pages_total);
  return st;
}

static inline int32_t fx_page(const fx *f, uint32_t row, uint32_t i)
{
  return f->plan->page_table[f->plan->rows[row].page_table_offset + i];
}

#endif
