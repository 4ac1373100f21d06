/* Planning ahead as late as it can be, on a virtual clock: when the next step is submitted, and with which
 * step a request begins that comes in between. */
#include "fake_device.h"

enum { MAX_ROWS = 4, N_SLOTS = 8, CONTEXT = 2048, STEP_US = 10000, STEPS_MAX = 1200, HOST_US = 100 };

typedef struct step {
  double submitted_us, ended_us;
  uint32_t n_rows, n_prefill_tokens;
} step;

static fake_device device;

static struct {
  step steps[STEPS_MAX];
  uint32_t n_submitted, n_waited;
  double takes; /* times the prediction */
  double busy_host_us;
  uint32_t submit_in; /* a request comes while the host waits during this step, */
  double submit_after_us;
  double submitted_us; /* and came then; 0: not yet */
} d;

static void submit(uint32_t n_new)
{
  fx_submit(device.e, 0, (td_engine_request){.n_prompt = 2, .max_new = n_new});
}

static bool someone_comes(fake_device *f, double max_us)
{
  if (max_us == INFINITY || d.n_submitted != d.submit_in || d.submitted_us > 0 || d.submit_after_us > max_us)
    return false;
  now_us += d.submit_after_us;
  d.submitted_us = now_us;
  submit(1); /* which wakes: is_asleep is set */
  return true;
}

static void begin_step(fake_device *f, const td_plan *plan, fake_step *s)
{
  assert_true(d.n_submitted < STEPS_MAX);
  now_us += HOST_US + d.busy_host_us;
  d.steps[d.n_submitted++] = (step){now_us, 0, plan->n_rows, plan->n_prefill_tokens};
  s->us = STEP_US * d.takes;
}

static td_status end_step(fake_device *f, const fake_step *s, td_error *err)
{
  d.steps[d.n_waited++].ended_us = s->end_us;
  return TD_OK;
}

static const td_backend_ops ops = {FAKE_DEVICE_OPS};
static const td_cost_model cost = {.n_points = 2, .tokens = {1, 1024}, .tokens_us = {STEP_US, STEP_US}};

static void start_with(double takes, const td_cost_model *predictions)
{
  td_options o = fx_options(N_SLOTS);
  td_sched_config c = {.n_slots = N_SLOTS,
                       .max_running = MAX_ROWS,
                       .step_tokens = 64,
                       .page_tokens = 16,
                       .n_pages = 512,
                       .max_context_tokens = CONTEXT,
                       .cost = predictions};
  memset(&d, 0, sizeof d);
  d.takes = takes;
  device = (fake_device){.base = {.ops = &ops, .pipeline_depth = 2, .max_rows = MAX_ROWS},
                         .begin = begin_step,
                         .end = end_step,
                         .sleep = someone_comes};
  device.e = fx_create(&o, &device.base, CONTEXT);
  device.e->cost = cost;
  fx_get_ready(device.e, &c);
}

static void start(double takes) { start_with(takes, &cost); }
static void run(void) { fake_run(&device, TD_OK); }
static void end(void) { td_engine_destroy(device.e); }

/* How long the device waited before this step. */
static double idle_us(uint32_t i)
{
  double us = d.steps[i].submitted_us - d.steps[i - 1].ended_us;
  return us > 0 ? us : 0;
}

static void a_step_is_planned_shortly_before_the_one_before_ends(void **state)
{
  start(1);
  submit(50);
  run();
  assert_int_equal(d.n_waited, 50);
  for (uint32_t i = 2; i < 49; i++) {
    double before_us = d.steps[i - 1].ended_us - d.steps[i].submitted_us;
    assert_true(before_us > 150 && before_us < 1000);
    assert_true(idle_us(i) == 0);
  }
  end();
}

/* A request that comes while the engine still waits begins with the next step. */
static void who_comes_before_begins_with_the_next_step(void **state)
{
  start(1);
  d.submit_in = 10;
  d.submit_after_us = STEP_US / 2.0;
  submit(50);
  run();
  assert_true(d.submitted_us > d.steps[8].ended_us && d.submitted_us < d.steps[9].ended_us);
  assert_int_equal(d.steps[9].n_rows, 1);
  assert_int_equal(d.steps[10].n_rows, 2); /* the first token of it */
  assert_int_equal(d.steps[10].n_prefill_tokens, 2);
  assert_true(d.steps[10].submitted_us > d.steps[9].ended_us);
  assert_int_equal(d.n_waited, 50);
  end();
}

/* Steps that end earlier than predicted, or a host that takes long: the lead grows until the device does not
 * wait. Its value is reported. */
static void the_lead_is_learned(void **state)
{
  static const struct {
    double takes, host_us;
  } cases[] = {{0.8, 0}, {1, 2000}, {0.3, 0}};
  td_engine_stats st;
  for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
    double waited_us = 0;
    uint32_t n_waits = 0;
    start(cases[k].takes);
    d.busy_host_us = cases[k].host_us;
    submit(1000);
    run();
    for (uint32_t i = 1; i < 999; i++) {
      waited_us += idle_us(i);
      n_waits += idle_us(i) > 0;
    }
    assert_true(waited_us < 30000 && n_waits <= 6); /* of 3 to 10 s */
    td_engine_get_stats(device.e, &st);
    assert_true(st.ahead_lead_us > cases[k].host_us && st.ahead_lead_us < STEP_US);
    end();
  }
}

/* Without a prediction, or with one that is too long to be waited for, the next step is planned at once. */
static void at_once(void **state)
{
  static const td_cost_model too_long = {.n_points = 2, .tokens = {1, 1024}, .tokens_us = {200000, 200000}};
  for (int predicted = 0; predicted < 2; predicted++) {
    start_with(1, predicted ? &too_long : NULL);
    submit(50);
    run();
    assert_int_equal(d.n_waited, 50);
    for (uint32_t i = 2; i < 20; i++) /* later, the prediction is corrected */
      assert_true(d.steps[i].submitted_us - d.steps[i - 2].ended_us < 2 * HOST_US);
    end();
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_step_is_planned_shortly_before_the_one_before_ends),
      cmocka_unit_test(who_comes_before_begins_with_the_next_step),
      cmocka_unit_test(the_lead_is_learned),
      cmocka_unit_test(at_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
