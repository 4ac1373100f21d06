/* How often the step loop computes a forecast (engine/predict.c): rarely while it works, but such that an
 * idle engine shows the right one. And from which answers it learns. On a clock that only the device moves.
 */
#include "fake_device.h"

enum { N_ROWS = 8, N_PROMPT = 20, N_NEW = 405, STEP_US = 700, RARE_US = 5000 };

/* The linker replaces the scheduler's functions with these. */
static uint32_t n_forecasts;
static double forecast_us;
static td_sched_forecast last;
td_sched_forecast __real_td_sched_make_forecast(const td_sched *s);
td_sched_forecast __wrap_td_sched_make_forecast(const td_sched *s);
td_sched_forecast __wrap_td_sched_make_forecast(const td_sched *s)
{
  n_forecasts++;
  forecast_us = now_us;
  return last = __real_td_sched_make_forecast(s);
}

static td_ticket complete, left;
static uint32_t n_complete, n_cancelled; /* calls for the one, and for the other */
void __real_td_sched_end(td_sched *s, uint32_t slot);
void __wrap_td_sched_end(td_sched *s, uint32_t slot);
void __wrap_td_sched_end(td_sched *s, uint32_t slot)
{
  n_complete += slot == complete.slot;
  __real_td_sched_end(s, slot);
}

void __real_td_sched_cancel(td_sched *s, uint32_t slot);
void __wrap_td_sched_cancel(td_sched *s, uint32_t slot);
void __wrap_td_sched_cancel(td_sched *s, uint32_t slot)
{
  n_cancelled += slot == left.slot;
  __real_td_sched_cancel(s, slot);
}

static fake_device device;
static uint32_t n_steps, n_wrong;
static uint32_t end_at; /* in this step the loop thread completes one answer and cancels another, whose client
                           has disconnected; 0: never */

static void begin_step(fake_device *d, const td_plan *plan, fake_step *s) { s->us = STEP_US; }

/* The published forecast is the last one and not an old one. The idle engine's forecast is gone before its
 * first step, which may be long. */
static td_status end_step(fake_device *d, const fake_step *s, td_error *err)
{
  td_engine_stats st;
  td_engine_get_stats(d->e, &st);
  n_steps++;
  n_wrong += st.queue_delay_us != last.start_us || !(st.queue_delay_us > 0) ||
             st.next_end_us != last.next_end_us || st.end_interval_us != last.end_interval_us ||
             st.n_waiting + st.n_running == 0 || now_us - forecast_us > RARE_US + STEP_US;
  if (n_steps == end_at) {
    td_engine_end(d->e, complete);
    td_engine_end(d->e, complete); /* twice is once */
    td_engine_cancel(d->e, left);
  }
  return TD_OK;
}

static const td_backend_ops ops = {FAKE_DEVICE_OPS};

static td_engine *make_engine(void)
{
  td_options o = fx_options(N_ROWS);
  td_sched_config c = {.n_slots = N_ROWS,
                       .max_running = N_ROWS,
                       .step_tokens = 256,
                       .page_tokens = 16,
                       .n_pages = 1000,
                       .max_context_tokens = N_PROMPT + N_NEW,
                       .cost = &td_cost_h200_llama3_8b};
  device = (fake_device){.base = {.ops = &ops, .pipeline_depth = 1}, .begin = begin_step, .end = end_step};
  device.e = fx_create(&o, &device.base, N_PROMPT + N_NEW);
  fx_get_ready(device.e, &c);
  n_steps = n_wrong = end_at = 0;
  return device.e;
}

static td_ticket submit(td_engine *e)
{
  return fx_submit(e, 0, (td_engine_request){.n_prompt = N_PROMPT, .max_new = N_NEW});
}

static void forecasts_are_rare_and_right_at_idle(void **state)
{
  td_engine_stats st;
  td_engine *e = make_engine();
  for (uint32_t round = 0; round < 2;
       round++) { /* the second round begins while the last forecast is recent */
    n_forecasts = n_steps = 0;
    for (uint32_t i = 0; i < N_ROWS; i++)
      submit(e);
    fake_run(&device, TD_OK);
    td_engine_get_stats(e, &st);
    assert_true(st.queue_delay_us == 0 && st.next_end_us == 0 && st.end_interval_us == 0 &&
                st.prompt_token_us == 0);
    assert_true(st.ahead_lead_us == 0); /* this device runs one step at a time */
    assert_int_equal(n_wrong, 0);
    assert_in_range(n_steps, N_NEW, N_NEW + N_ROWS);
    assert_in_range(n_forecasts, n_steps * STEP_US / (RARE_US + STEP_US),
                    n_steps * STEP_US / RARE_US + N_ROWS);
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
  td_engine *e = make_engine();
  end_at = 20;
  complete = submit(e);
  left = submit(e);
  n_complete = n_cancelled = 0;
  fake_run(&device, TD_OK);
  assert_in_range(n_steps, 20, 22);
  assert_true(n_complete == 1 && n_cancelled == 1);
  td_engine_destroy(e);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(forecasts_are_rare_and_right_at_idle),
                                     cmocka_unit_test(who_is_complete_is_told_apart)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
