/* What is done in idle moments (engine/idle.c), with the real step loop and scheduler: when pieces begin,
 * that they give way to whoever comes, which captured steps are captured anew, and when it ends. The device
 * has pieces that take a millisecond and decide something now and then; its clock moves with what the engine
 * does and waits for, nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "config/limits.h"
#include "engine/internal.h"

enum { MAX_ROWS = 20, N_SLOTS = 8, CONTEXT = 256, EVENTS_MAX = 400, PIECE_US = 1000, STEP_US = 3000 };

typedef enum event_kind { PIECE = 1, END, CAPTURE, STEP, WAIT, ASLEEP } event_kind;

typedef struct event {
  event_kind what;
  uint32_t n; /* the piece's number; rows; ms */
} event;

typedef struct device {
  td_backend base;
  td_engine *e;
  uint32_t n_pieces, n_done;                      /* the last piece ends it */
  uint32_t changing, changed_least, changed_most; /* what that piece changes */
  bool changes_at_end;                            /* or the end, where measuring ends early */
  uint32_t submit_in;                             /* during this piece somebody comes */
  uint32_t submit_ms;                             /* or during the first wait, after so long */
  uint32_t fails_in;                              /* this piece fails, */
  td_status fails_as;                             /* as this */
  bool capture_fails;
  uint32_t n_begun;
  event events[EVENTS_MAX];
  uint32_t n_events;
  uint32_t n_logits;
} device;

static device d;
static double now;

uint64_t __wrap_td_clock_us(void); /* the linker puts these in place of the engine's */
int __wrap_poll(struct pollfd *fds, nfds_t n, int max_ms);
int __real_poll(struct pollfd *fds, nfds_t n, int max_ms);

uint64_t __wrap_td_clock_us(void) { return (uint64_t)now; }

static void note(event_kind what, uint32_t n)
{
  assert_true(d.n_events < EVENTS_MAX);
  d.events[d.n_events++] = (event){what, n};
}

static void submit(td_engine *e)
{
  td_engine_request r = {.n_prompt = 2, .max_new = 3, .ignore_eos = true};
  td_error err;
  td_ticket t;
  r.tokens = calloc(5, sizeof *r.tokens);
  assert_non_null(r.tokens);
  assert_int_equal(td_engine_submit(e, &r, &t, &err), TD_OK);
}

/* Whoever would sleep for ever is told to stop. The log asks it of stderr, which is not watched here. */
int __wrap_poll(struct pollfd *fds, nfds_t n, int max_ms)
{
  uint64_t one = 1;
  if (fds->fd == STDERR_FILENO)
    return __real_poll(fds, n, max_ms);
  assert_true(n == 1 && fds->fd == d.e->wake_fd);
  if (max_ms < 0) {
    note(ASLEEP, 0);
    atomic_store(&d.e->stop_asked, true);
    assert_int_equal(write(fds->fd, &one, sizeof one), sizeof one);
    return 1;
  }
  if (max_ms > 0)
    note(WAIT, (uint32_t)max_ms);
  if (max_ms > 0 && d.submit_ms > 0) {
    now += d.submit_ms * 1000.0;
    d.submit_ms = 0;
    submit(d.e); /* which wakes: is_asleep is set */
    return 1;
  }
  now += max_ms * 1000.0;
  return 0;
}

/* ---- the device ---- */

static td_status device_tune_begin(td_backend *b, td_compiled *compiled, const char *folder, td_tuning *out,
                                   td_error *err)
{
  assert_string_equal(folder, "");
  d.n_begun++;
  *out = (td_tuning){.n_all = d.n_pieces, .is_done = d.n_pieces == 0};
  return TD_OK;
}

static td_status device_tune(td_backend *b, td_compiled *compiled, td_tuning *out, td_error *err)
{
  assert_true(d.n_begun == 1 && d.n_done < d.n_pieces);
  assert_true(b->n_under_way == 0 && d.e->stats.n_running == 0);
  if (d.n_done > 0 && d.changing == 0 && !d.e->calibrates) /* 1: the end is not yet told */
    assert_int_equal(d.e->stats.tuning_left, 1 + d.n_pieces - d.n_done);
  note(PIECE, ++d.n_done);
  now += PIECE_US;
  if (d.submit_in == d.n_done)
    submit(d.e);
  if (d.fails_in == d.n_done)
    return td_fail(err, d.fails_as, "the device said so");
  bool changes = d.n_done == d.changing;
  *out = (td_tuning){.n_all = d.n_pieces,
                     .n_known = d.n_done,
                     .n_measured = d.n_done,
                     .is_done = d.n_done == d.n_pieces,
                     .changed_least = changes ? d.changed_least : 0,
                     .changed_most = changes ? d.changed_most : 0};
  return TD_OK;
}

static void device_tune_end(td_backend *b, td_compiled *compiled, td_tuning *out)
{
  note(END, 0);
  out->is_done = true;
  if (d.changes_at_end) {
    out->changed_least = d.changed_least;
    out->changed_most = d.changed_most;
  }
}

static td_status device_capture(td_backend *b, td_compiled *compiled, uint32_t n_rows, td_capture *out,
                                td_error *err)
{
  assert_true(b->n_under_way == 0);
  note(CAPTURE, n_rows);
  if (d.capture_fails && d.n_done > 0)
    return td_fail(err, TD_ERR_NOMEM, "no memory for a captured step");
  *out = (td_capture){.n_forms = 1};
  return TD_OK;
}

static void device_set_sampling(td_backend *b, uint32_t slot, const td_sampling *s) {}

static void device_submit(td_backend *b, td_compiled *compiled, const td_plan *plan)
{
  note(STEP, plan->n_rows);
  d.n_logits = plan->n_logits;
}

static void device_sample(td_backend *b, td_compiled *sampling, const td_sample_input *input) {}

static td_status device_wait(td_backend *b, td_outcome *out, td_error *err)
{
  static const int32_t ids[MAX_ROWS];
  static const uint8_t none[MAX_ROWS];
  static uint8_t ones[MAX_ROWS];
  memset(ones, 1, sizeof ones);
  now += STEP_US;
  *out = (td_outcome){.n_logits = d.n_logits, .ids = ids, .n_ids = ones, .flags = none};
  return TD_OK;
}

static void device_destroy(td_backend *b) {}

static const td_backend_ops ops = {.name = "none",
                                   .destroy = device_destroy,
                                   .set_sampling = device_set_sampling,
                                   .submit = device_submit,
                                   .sample = device_sample,
                                   .wait = device_wait,
                                   .tune_begin = device_tune_begin,
                                   .tune = device_tune,
                                   .tune_end = device_tune_end,
                                   .capture = device_capture};

/* ---- a daemon's life ---- */

static void wake(void *arg) {}

/* Up to where it would be ready. */
static void start(uint32_t n_pieces, int64_t tune_ms)
{
  td_options o;
  td_error err;
  td_sched_config c = {.n_slots = N_SLOTS,
                       .max_running = N_SLOTS,
                       .step_tokens = 64,
                       .page_tokens = 16,
                       .n_pages = 64,
                       .max_context_tokens = CONTEXT};
  td_options_init(&o);
  o.limit[TD_LIMIT_QUEUE_REQUESTS] = N_SLOTS;
  if (tune_ms >= 0)
    o.limit[TD_LIMIT_TUNE_MS] = (double)tune_ms;
  snprintf(o.cache_dir, sizeof o.cache_dir, "%s", "");
  now = 1e6;
  d = (device){.base = {.ops = &ops, .pipeline_depth = 1, .on_device = true, .max_rows = MAX_ROWS},
               .n_pieces = n_pieces};
  assert_int_equal(td_engine_create(&o, &d.e, &err), TD_OK);
  d.e->backend = &d.base;
  d.e->info.max_context_tokens = CONTEXT;
  d.e->info.vocab = 1000;
  d.e->wake = wake;
  assert_int_equal(td_sched_create(&c, &d.e->sched, &err), TD_OK);
  assert_int_equal(td_sched_plan_create(d.e->sched, &d.e->plan, &err), TD_OK);
  assert_int_equal(td_sched_plan_create(d.e->sched, &d.e->next, &err), TD_OK);
  assert_int_equal(td_engine_make_step_memory(d.e, N_SLOTS, N_SLOTS, &err), TD_OK);
  assert_int_equal(td_engine_begin_tuning(d.e, &err), TD_OK);
  assert_int_equal(td_engine_capture_steps(d.e, &err), TD_OK);
  atomic_store(&d.e->state, TD_ENGINE_READY);
}

static void run(td_status want)
{
  td_error err;
  assert_int_equal(td_engine_run(d.e, &err), want);
  if (want != TD_OK)
    assert_string_equal(err.message, "the device said so");
}

static void end(void) { td_engine_destroy(d.e); }

/* The next events, from *at on. */
static void expect(uint32_t *at, event_kind what, uint32_t n)
{
  assert_true(*at < d.n_events);
  assert_int_equal(d.events[*at].what, what);
  assert_int_equal(d.events[*at].n, n);
  ++*at;
}

static void expect_captures(uint32_t *at, const uint32_t *n_rows, size_t n)
{
  for (size_t i = 0; i < n; i++)
    expect(at, CAPTURE, n_rows[i]);
}

static void expect_start(uint32_t *at) { expect_captures(at, (const uint32_t[]){20, 16, 8, 4, 2, 1}, 6); }

static uint32_t idle_ms(void) { return (uint32_t)td_limit_max(TD_LIMIT_IDLE_MS); }

/* Runs to the end; the events behind the start, and up to the first piece. */
static void run_to_idleness(uint32_t *at)
{
  run(TD_OK);
  expect_start(at);
  expect(at, WAIT, idle_ms());
}

/* Of one request. */
static void expect_steps(uint32_t *at)
{
  for (int i = 0; i < 3; i++)
    expect(at, STEP, 1);
}

static void a_start_measures_nothing(void **state)
{
  uint32_t at = 0;
  start(3, -1);
  expect_start(&at);
  assert_int_equal(d.n_events, at);
  run(TD_OK);
  expect(&at, WAIT, idle_ms());
  for (uint32_t i = 1; i <= 3; i++)
    expect(&at, PIECE, i);
  expect(&at, ASLEEP, 0); /* no more is done, and nobody is woken for it */
  assert_int_equal(d.n_events, at);
  assert_int_equal(d.e->stats.tuning_left, 0);
  end();
}

static void whoever_comes_waits_for_one_piece(void **state)
{
  uint32_t at = 0;
  start(5, -1);
  d.submit_in = 2;
  run_to_idleness(&at);
  expect(&at, PIECE, 1);
  expect(&at, PIECE, 2);
  expect_steps(&at);
  expect(&at, WAIT, idle_ms()); /* an idle moment begins anew */
  for (uint32_t i = 3; i <= 5; i++)
    expect(&at, PIECE, i);
  expect(&at, ASLEEP, 0);
  end();
}

static void a_short_pause_is_no_idle_moment(void **state)
{
  uint32_t at = 0;
  start(1, -1);
  d.submit_ms = idle_ms() - 1;
  run_to_idleness(&at);
  expect_steps(&at);
  expect(&at, WAIT, idle_ms());
  expect(&at, PIECE, 1);
  expect(&at, ASLEEP, 0);
  end();
}

/* Those of the rows that changed, largest first, before more is measured. */
static void steps_that_changed_are_captured_anew(void **state)
{
  static const struct {
    uint32_t least, most, n;
    uint32_t captures[4];
  } cases[] = {
      {9, 16, 1, {16}}, {1, 8, 4, {8, 4, 2, 1}}, {17, 24, 1, {20}}, {257, 320, 0, {0}}, {3, 3, 0, {0}}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    uint32_t at = 0;
    start(2, -1);
    d.changing = 1;
    d.changed_least = cases[i].least;
    d.changed_most = cases[i].most;
    run_to_idleness(&at);
    expect(&at, PIECE, 1);
    expect_captures(&at, cases[i].captures, cases[i].n);
    expect(&at, PIECE, 2);
    expect(&at, ASLEEP, 0);
    assert_int_equal(d.e->idle.n_recaptured, cases[i].n);
    end();
  }
}

/* What the last piece changed is captured anew, too; and where nothing is captured, nothing. */
static void changes_of_the_last_piece_count(void **state)
{
  for (int captures = 1; captures >= 0; captures--) {
    uint32_t at = 0;
    start(1, -1);
    d.changing = 1;
    d.changed_least = 1;
    d.changed_most = 16;
    if (!captures)
      d.e->least_captured = UINT32_MAX;
    run_to_idleness(&at);
    expect(&at, PIECE, 1);
    if (captures)
      expect_captures(&at, (const uint32_t[]){16, 8, 4, 2, 1}, 5);
    expect(&at, ASLEEP, 0);
    assert_int_equal(d.e->stats.tuning_left, 0);
    end();
  }
}

static void somebody_comes_between_two_captures(void **state)
{
  uint32_t at = 0;
  start(1, -1);
  d.submit_in = d.changing = 1;
  d.changed_least = 1;
  d.changed_most = 16;
  run_to_idleness(&at);
  expect(&at, PIECE, 1);
  expect_steps(&at);
  expect(&at, WAIT, idle_ms());
  expect_captures(&at, (const uint32_t[]){16, 8, 4, 2, 1}, 5);
  expect(&at, ASLEEP, 0);
  end();
}

/* tune_ms is of all idle moments; 0: what is kept is taken, and nothing is measured. */
static void tune_ms_bounds_it(void **state)
{
  static const uint32_t ms[] = {0, 4};
  for (size_t i = 0; i < 2; i++) {
    uint32_t at = 0;
    start(100, ms[i]);
    d.submit_in = 2;
    run(TD_OK);
    expect_start(&at);
    assert_int_equal(d.n_begun, 1);
    assert_int_equal(d.n_done, ms[i] * 1000 / PIECE_US);
    assert_int_equal(d.events[d.n_events - 1].what, ASLEEP);
    assert_int_equal(d.e->stats.tuning_left, 0);
    if (ms[i] == 0)
      expect(&at, ASLEEP, 0);
    end();
  }
}

/* When its time is over, or a piece fails, what was decided before that is captured anew, too. */
static void changes_before_an_early_end_count(void **state)
{
  for (int fails = 0; fails <= 1; fails++) {
    uint32_t at = 0;
    start(100, fails ? -1 : 3);
    d.changes_at_end = true;
    d.changed_least = 1;
    d.changed_most = 8;
    d.fails_in = fails ? 3 : 0;
    d.fails_as = TD_ERR_NOMEM;
    run_to_idleness(&at);
    for (uint32_t i = 1; i <= 3; i++)
      expect(&at, PIECE, i);
    expect(&at, END, 0);
    expect_captures(&at, (const uint32_t[]){8, 4, 2, 1}, 4);
    expect(&at, ASLEEP, 0);
    assert_int_equal(d.e->stats.tuning_left, 0);
    end();
  }
}

static void nothing_is_left_to_do(void **state)
{
  uint32_t at = 0;
  start(0, -1);
  run(TD_OK);
  expect_start(&at);
  expect(&at, ASLEEP, 0);
  end();
}

/* A device that fails ends the engine, as in a step; what cannot be measured or captured does not. */
static void faults(void **state)
{
  start(5, -1);
  d.fails_in = 2;
  d.fails_as = TD_ERR_DEVICE;
  run(TD_ERR_DEVICE);
  end();

  uint32_t at = 0;
  start(5, -1);
  d.fails_in = d.submit_in = 2;
  d.fails_as = TD_ERR_CAPACITY;
  run_to_idleness(&at);
  expect(&at, PIECE, 1);
  expect(&at, PIECE, 2);
  expect(&at, END, 0);
  expect_steps(&at);
  expect(&at, ASLEEP, 0);
  end();

  at = 0;
  start(5, -1);
  d.capture_fails = true;
  d.changing = 1;
  d.changed_least = 1;
  d.changed_most = 16;
  run_to_idleness(&at);
  expect(&at, PIECE, 1);
  expect(&at, CAPTURE, 16);
  expect(&at, ASLEEP, 0);
  end();
}

/* --calibrate measures all of it before it captures, whatever tune_ms says. */
static void calibrating_finishes_it_at_once(void **state)
{
  uint32_t at = 0;
  td_error err;
  start(3, 0);
  d.e->calibrates = true;
  d.n_begun = d.n_events = 0;
  assert_int_equal(td_engine_begin_tuning(d.e, &err), TD_OK);
  for (uint32_t i = 1; i <= 3; i++)
    expect(&at, PIECE, i);
  assert_int_equal(d.n_events, at);
  end();
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_start_measures_nothing),
      cmocka_unit_test(whoever_comes_waits_for_one_piece),
      cmocka_unit_test(a_short_pause_is_no_idle_moment),
      cmocka_unit_test(steps_that_changed_are_captured_anew),
      cmocka_unit_test(changes_of_the_last_piece_count),
      cmocka_unit_test(somebody_comes_between_two_captures),
      cmocka_unit_test(tune_ms_bounds_it),
      cmocka_unit_test(changes_before_an_early_end_count),
      cmocka_unit_test(nothing_is_left_to_do),
      cmocka_unit_test(faults),
      cmocka_unit_test(calibrating_finishes_it_at_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
