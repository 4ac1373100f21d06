/* Planning ahead as late as it can be, on a virtual clock: when the next step is submitted, and with which
 * step a request begins that comes in between. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "engine/internal.h"

enum { MAX_ROWS = 4, N_SLOTS = 8, CONTEXT = 2048, STEP_US = 10000, STEPS_MAX = 1200, HOST_US = 100 };

typedef struct step {
  double submitted_us, ended_us;
  uint32_t n_rows, n_prefill_tokens;
} step;

typedef struct device {
  td_backend base;
  td_engine *e;
  step steps[STEPS_MAX];
  uint32_t n_submitted, n_waited, n_logits[2];
  double takes; /* times the prediction */
  double busy_host_us;
  uint32_t submit_in; /* a request comes while the host waits during this step, */
  double submit_after_us;
  double submitted_us; /* and came then; 0: not yet */
} device;

static device d;
static double now;

uint64_t __wrap_td_clock_us(void); /* the linker replaces the engine's functions with these */
int __wrap_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *limit, const sigset_t *signals);

uint64_t __wrap_td_clock_us(void) { return (uint64_t)now; }

static void submit(uint32_t n_new)
{
  td_engine_request r = {.n_prompt = 2, .max_new = n_new, .ignore_eos = true};
  td_error err;
  td_ticket t;
  r.tokens = calloc(2 + n_new, sizeof *r.tokens);
  assert_non_null(r.tokens);
  assert_int_equal(td_engine_submit(d.e, &r, &t, &err), TD_OK);
}

/* An engine that would sleep for ever is told to stop. */
int __wrap_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *limit, const sigset_t *signals)
{
  uint64_t one = 1;
  assert_true(n == 1 && fds->fd == d.e->wake_fd && !signals);
  if (!limit) {
    atomic_store(&d.e->stop_requested, true);
    assert_int_equal(write(fds->fd, &one, sizeof one), sizeof one);
    return 1;
  }
  double left_us = (double)limit->tv_sec * 1e6 + (double)limit->tv_nsec / 1e3;
  if (d.submit_in > 0 && d.n_submitted == d.submit_in && d.submitted_us == 0 &&
      d.submit_after_us <= left_us) {
    now += d.submit_after_us;
    d.submitted_us = now;
    submit(1); /* which wakes: is_asleep is set */
    return 1;
  }
  now += left_us;
  return 0;
}

static void device_set_sampling(td_backend *b, uint32_t slot, const td_sampling *s) {}

static void device_submit(td_backend *b, td_compiled *compiled, const td_plan *plan)
{
  assert_true(d.n_submitted < STEPS_MAX);
  now += HOST_US + d.busy_host_us;
  d.n_logits[d.n_submitted % 2] = plan->n_logits;
  d.steps[d.n_submitted++] = (step){now, 0, plan->n_rows, plan->n_prefill_tokens};
}

static void device_sample(td_backend *b, td_compiled *sampling, const td_sample_input *input) {}

/* A step begins when it was submitted and the one before has ended. */
static td_status device_wait(td_backend *b, td_outcome *out, td_error *err)
{
  static const int32_t ids[MAX_ROWS];
  static const uint8_t none[MAX_ROWS];
  static uint8_t ones[MAX_ROWS];
  memset(ones, 1, sizeof ones);
  step *s = &d.steps[d.n_waited];
  double before_us = d.n_waited > 0 ? d.steps[d.n_waited - 1].ended_us : 0;
  s->ended_us = (s->submitted_us > before_us ? s->submitted_us : before_us) + STEP_US * d.takes;
  now = now > s->ended_us ? now : s->ended_us;
  *out = (td_outcome){.n_logits = d.n_logits[d.n_waited++ % 2], .ids = ids, .n_ids = ones, .flags = none};
  return TD_OK;
}

static void device_destroy(td_backend *b) {}

static const td_backend_ops ops = {.name = "none",
                                   .destroy = device_destroy,
                                   .set_sampling = device_set_sampling,
                                   .submit = device_submit,
                                   .sample = device_sample,
                                   .wait = device_wait};

static const td_cost_model cost = {.n_points = 2, .tokens = {1, 1024}, .tokens_us = {STEP_US, STEP_US}};

static void wake(void *arg) {}

static void start_with(double takes, const td_cost_model *predictions)
{
  td_options o;
  td_error err;
  td_sched_config c = {.n_slots = N_SLOTS,
                       .max_running = MAX_ROWS,
                       .step_tokens = 64,
                       .page_tokens = 16,
                       .n_pages = 512,
                       .max_context_tokens = CONTEXT,
                       .cost = predictions};
  td_options_init(&o);
  o.limit[TD_LIMIT_QUEUE_REQUESTS] = N_SLOTS;
  o.limit[TD_LIMIT_CAPTURE_MS] = 0;
  o.limit[TD_LIMIT_TUNE_MS] = 0;
  now = 1e6;
  d = (device){.base = {.ops = &ops, .pipeline_depth = 2, .max_rows = MAX_ROWS}, .takes = takes};
  assert_int_equal(td_engine_create(&o, &d.e, &err), TD_OK);
  d.e->backend = &d.base;
  d.e->cost = cost;
  d.e->cost_source = TD_TIMES_KEPT;
  d.e->info.max_context_tokens = CONTEXT;
  d.e->info.vocab = 1000;
  d.e->wake = wake;
  assert_int_equal(td_sched_create(&c, &d.e->sched, &err), TD_OK);
  assert_int_equal(td_sched_plan_create(d.e->sched, &d.e->plan, &err), TD_OK);
  assert_int_equal(td_sched_plan_create(d.e->sched, &d.e->next, &err), TD_OK);
  assert_int_equal(td_engine_make_step_memory(d.e, MAX_ROWS, MAX_ROWS, &err), TD_OK);
  atomic_store(&d.e->state, TD_ENGINE_READY);
}

static void start(double takes) { start_with(takes, &cost); }

static void run(void)
{
  td_error err;
  assert_int_equal(td_engine_run(d.e, &err), TD_OK);
}

static void end(void) { td_engine_destroy(d.e); }

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
 * wait. */
static void the_lead_is_learned(void **state)
{
  static const struct {
    double takes, host_us;
  } cases[] = {{0.8, 0}, {1, 2000}, {0.3, 0}};
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
