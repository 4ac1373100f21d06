/* How often the step loop computes a forecast (engine/predict.c): rarely while it works, but such that an
 * idle engine shows the right one. And from which answers it learns. On a clock that only the device moves.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/clock.h"
#include "engine/internal.h"

enum { N_ROWS = 8, N_PROMPT = 20, N_NEW = 400, STEP_US = 700, RARE_US = 5000 };

/* The linker replaces functions of the engine and the scheduler with these. */
static uint64_t now;
uint64_t __wrap_td_clock_us(void);
uint64_t __wrap_td_clock_us(void) { return now; }

static uint32_t n_forecasts;
static uint64_t forecast_us;
static td_sched_forecast last;
td_sched_forecast __real_td_sched_make_forecast(const td_sched *s);
td_sched_forecast __wrap_td_sched_make_forecast(const td_sched *s);
td_sched_forecast __wrap_td_sched_make_forecast(const td_sched *s)
{
  n_forecasts++;
  forecast_us = now;
  return last = __real_td_sched_make_forecast(s);
}

static uint32_t n_complete, n_cancelled;
void __real_td_sched_end(td_sched *s, uint32_t slot);
void __wrap_td_sched_end(td_sched *s, uint32_t slot);
void __wrap_td_sched_end(td_sched *s, uint32_t slot)
{
  n_complete++;
  __real_td_sched_end(s, slot);
}

void __real_td_sched_cancel(td_sched *s, uint32_t slot);
void __wrap_td_sched_cancel(td_sched *s, uint32_t slot);
void __wrap_td_sched_cancel(td_sched *s, uint32_t slot)
{
  n_cancelled++;
  __real_td_sched_cancel(s, slot);
}

typedef struct device {
  td_backend base;
  td_engine *engine;
  uint32_t n_logits, n_steps, n_wrong;
  uint32_t end_at; /* in this step the loop thread completes one answer and cancels another, whose client has
                      disconnected; 0: never */
  td_ticket complete, left;
} device;

static void device_set_sampling(td_backend *b, uint32_t slot, const td_sampling *s) {}
static void device_submit(td_backend *b, td_compiled *compiled, const td_plan *plan)
{
  ((device *)b)->n_logits = plan->n_logits;
}
static void device_sample(td_backend *b, td_compiled *sampling, const td_sample_input *input) {}
static void device_destroy(td_backend *b) {}

/* The published forecast is the last one and not an old one. The idle engine's forecast is gone before its
 * first step, which may be long. */
static td_status device_wait(td_backend *b, td_outcome *out, td_error *err)
{
  device *d = (device *)b;
  static const int32_t ids[N_ROWS];
  static const uint8_t none[N_ROWS];
  static uint8_t ones[N_ROWS];
  memset(ones, 1, sizeof ones);
  td_engine_stats st;
  td_engine_get_stats(d->engine, &st);
  d->n_steps++;
  d->n_wrong += st.queue_delay_us != last.start_us || !(st.queue_delay_us > 0) ||
                st.next_end_us != last.next_end_us || st.end_interval_us != last.end_interval_us ||
                st.n_waiting + st.n_running == 0 || now - forecast_us > RARE_US + STEP_US;
  if (d->n_steps == d->end_at) {
    td_engine_end(d->engine, d->complete);
    td_engine_end(d->engine, d->complete); /* twice is once */
    td_engine_cancel(d->engine, d->left);
  }
  now += STEP_US;
  *out = (td_outcome){.n_logits = d->n_logits, .ids = ids, .n_ids = ones, .flags = none};
  return TD_OK;
}

static const td_backend_ops ops = {.name = "none",
                                   .destroy = device_destroy,
                                   .set_sampling = device_set_sampling,
                                   .submit = device_submit,
                                   .sample = device_sample,
                                   .wait = device_wait};

/* No request is left: the loop is told, and the engine stops before it would sleep. */
static void stop_when_idle(void *arg)
{
  td_engine *e = arg;
  td_engine_stats st;
  td_engine_get_stats(e, &st);
  if (st.n_running + st.n_waiting == 0) { /* as td_engine_stop does, without the thread, which is this one */
    const uint64_t one = 1;
    atomic_store(&e->stop_requested, true);
    assert_int_equal(write(e->wake_fd, &one, sizeof one), sizeof one);
  }
}

static td_engine *make_engine(device *d)
{
  td_options o;
  td_error err;
  td_engine *e = NULL;
  td_sched_config c = {.n_slots = N_ROWS,
                       .max_running = N_ROWS,
                       .step_tokens = 256,
                       .page_tokens = 16,
                       .n_pages = 1000,
                       .max_context_tokens = N_PROMPT + N_NEW,
                       .cost = &td_cost_h200_llama3_8b};
  td_options_init(&o);
  o.limit[TD_LIMIT_QUEUE_REQUESTS] = N_ROWS;
  now = 1000000;
  assert_int_equal(td_engine_create(&o, &e, &err), TD_OK);
  *d = (device){.base = {.ops = &ops, .pipeline_depth = 1}, .engine = e};
  e->backend = &d->base;
  e->info.max_context_tokens = N_PROMPT + N_NEW;
  e->info.vocab = 1000;
  e->cost_source = TD_TIMES_KEPT;
  e->wake = stop_when_idle;
  e->wake_arg = e;
  assert_int_equal(td_sched_create(&c, &e->sched, &err), TD_OK);
  assert_int_equal(td_sched_plan_create(e->sched, &e->plan, &err), TD_OK);
  assert_int_equal(td_engine_make_step_memory(e, N_ROWS, N_ROWS, &err), TD_OK);
  atomic_store(&e->state, TD_ENGINE_READY);
  return e;
}

static void forecasts_are_rare_and_right_at_idle(void **state)
{
  static device d;
  td_error err;
  td_engine_stats st;
  td_engine *e = make_engine(&d);
  for (uint32_t round = 0; round < 2;
       round++) { /* the second round begins while the last forecast is recent */
    n_forecasts = d.n_steps = 0;
    for (uint32_t i = 0; i < N_ROWS; i++) {
      td_ticket t;
      td_engine_request r = {.n_prompt = N_PROMPT, .max_new = N_NEW, .ignore_eos = true};
      r.tokens = calloc(N_PROMPT + N_NEW, sizeof *r.tokens);
      assert_non_null(r.tokens);
      assert_int_equal(td_engine_submit(e, &r, &t, &err), TD_OK);
    }
    atomic_store(&e->stop_requested, false);
    assert_int_equal(td_engine_run(e, &err), TD_OK);
    td_engine_get_stats(e, &st);
    assert_true(st.queue_delay_us == 0 && st.next_end_us == 0 && st.end_interval_us == 0 &&
                st.prompt_token_us == 0);
    assert_int_equal(d.n_wrong, 0);
    assert_in_range(d.n_steps, N_NEW, N_NEW + N_ROWS);
    assert_in_range(n_forecasts, d.n_steps * STEP_US / (RARE_US + STEP_US),
                    d.n_steps * STEP_US / RARE_US + N_ROWS);
    td_engine_update u;
    while (td_engine_poll(e, &u, 1) > 0)
      if (u.finish != TD_FINISH_NONE)
        td_engine_release(e, u.ticket);
  }
  td_engine_destroy(e);
}

/* The engine learns from an answer that a stop string completed, and not from one whose client disconnected.
 */
static void who_is_complete_is_told_apart(void **state)
{
  (void)state;
  static device d;
  td_error err;
  td_engine *e = make_engine(&d);
  d.end_at = 20;
  n_complete = n_cancelled = 0;
  for (uint32_t i = 0; i < 2; i++) {
    td_engine_request r = {.n_prompt = N_PROMPT, .max_new = N_NEW, .ignore_eos = true};
    r.tokens = calloc(N_PROMPT + N_NEW, sizeof *r.tokens);
    assert_non_null(r.tokens);
    assert_int_equal(td_engine_submit(e, &r, i == 0 ? &d.complete : &d.left, &err), TD_OK);
  }
  assert_int_equal(td_engine_run(e, &err), TD_OK);
  assert_in_range(d.n_steps, 20, 22);
  assert_true(n_complete == 1 &&
              n_cancelled == 1); /* in the scheduler an end looks like a cancel, which must not be visible */
  td_engine_destroy(e);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(forecasts_are_rare_and_right_at_idle),
                                     cmocka_unit_test(who_is_complete_is_told_apart)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
