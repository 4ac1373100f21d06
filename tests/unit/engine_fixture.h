/* An engine without a model, for test_engine_*.c: the real step loop, scheduler and hand-over on a backend of
 * the test's. */
#ifndef TD_TESTS_ENGINE_FIXTURE_H
#define TD_TESTS_ENGINE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "engine/internal.h"

enum { FX_VOCAB = 1000 };

/* Options of an engine that keeps no files. */
static inline td_options fx_options(uint32_t n_slots)
{
  td_options o;
  td_options_init(&o);
  o.limit[TD_LIMIT_QUEUE_REQUESTS] = n_slots;
  *o.cache_dir = '\0';
  return o;
}

static inline void fx_wake(void *arg) {}

/* An engine that only lacks what fx_get_ready makes. The test may change it in between. */
static inline td_engine *fx_create(const td_options *o, td_backend *b, uint32_t max_context_tokens)
{
  td_engine *e;
  td_error err;
  assert_int_equal(td_engine_create(o, &e, &err), TD_OK);
  e->backend = b;
  e->cost_source = TD_TIMES_KEPT;
  e->info.max_context_tokens = max_context_tokens;
  e->info.vocab = FX_VOCAB;
  e->wake = fx_wake;
  return e;
}

static inline void fx_get_ready(td_engine *e, const td_sched_config *c)
{
  td_error err;
  assert_int_equal(td_sched_create(c, &e->sched, &err), TD_OK);
  assert_int_equal(td_sched_plan_create(e->sched, &e->plan, &err), TD_OK);
  assert_int_equal(td_sched_plan_create(e->sched, &e->next, &err), TD_OK);
  assert_int_equal(td_engine_make_step_memory(e, c->max_running, c->max_running + c->prompt_logits, &err),
                   TD_OK);
  atomic_store(&e->state, TD_ENGINE_READY);
}

static inline void *fx_run(void *arg)
{
  td_engine *e = arg;
  return td_engine_run(e, &e->failure) == TD_OK ? e : NULL;
}

/* Runs it on a thread of its own, until td_engine_stop. */
static inline void fx_start_thread(td_engine *e)
{
  assert_int_equal(pthread_create(&e->thread, NULL, fx_run, e), 0);
  e->thread_started = true;
}

/* Submits r, which needs no tokens. Its prompt becomes first, first + 1 and so on, and no token ends it. */
static inline td_ticket fx_submit(td_engine *e, uint32_t first, td_engine_request r)
{
  td_error err;
  td_ticket t;
  r.ignore_eos = true;
  r.tokens = calloc(r.n_prompt + r.max_new, sizeof *r.tokens);
  assert_non_null(r.tokens);
  for (uint32_t i = 0; i < r.n_prompt; i++)
    r.tokens[i] = (int32_t)((first + i) % FX_VOCAB);
  assert_int_equal(td_engine_submit(e, &r, &t, &err), TD_OK);
  return t;
}

#endif
