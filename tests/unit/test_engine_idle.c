/* Work in idle moments (engine/idle.c) and which steps are captured when (engine/capture.c), with the real
 * step loop and scheduler: when pieces of work begin, that they yield to requests, what a busy engine
 * captures, what is learned about steps meanwhile, and when it ends. On the test's device a piece takes a
 * millisecond and now and then changes an algorithm. Its clock moves only with the engine's work and waits.
 */
#include "fake_device.h"

#include <stdio.h>

#include "config/limits.h"
#include "stderr_fixture.h"

enum {
  MAX_ROWS = 20,
  N_SLOTS = 8,
  CONTEXT = 256,
  EVENTS_MAX = 1200,
  PIECE_US = 1000,
  CAPTURE_US = 6000,
  STEP_US = 3000,
  QUEUED_US = 4000 /* duration of a step whose ops run one by one */
};

typedef enum event_kind { PIECE = 1, END, CAPTURE, STEP, LAUNCH, WAIT, ASLEEP } event_kind;

typedef struct event {
  event_kind what;
  uint32_t n; /* the piece's number; rows; ms */
  double at_us;
} event;

static fake_device device;

static struct {
  td_engine *e;
  uint32_t n_pieces, n_done;                      /* the work ends with the last piece */
  uint32_t changing, changed_least, changed_most; /* rows whose algorithms that piece changes */
  bool changes_at_end;                            /* or the end changes them, if measuring ends early */
  uint32_t submit_in;                             /* a request arrives during this piece */
  uint32_t submit_ms;                             /* or during the first wait, after this time */
  uint32_t fails_in;                              /* this piece fails, */
  td_status fails_as;                             /* as this */
  uint32_t submit_in_capture;                     /* or during the first capture of this many rows */
  uint32_t capture_fails_at;                      /* for this many rows, first or repeated, */
  bool only_anew;                                 /* or repeated captures alone */
  td_status capture_fails_as;
  uint32_t least_of[MAX_ROWS + 1]; /* fewest rows for a captured step; 0: it is not captured */
  uint32_t most_under_way;
  uint32_t n_begun;
  event events[EVENTS_MAX];
  uint32_t n_events;
} d;

static const char not_fused[] = "more than 2 rows";

static void note(event_kind what, uint32_t n)
{
  assert_true(d.n_events < EVENTS_MAX);
  d.events[d.n_events++] = (event){what, n, now_us};
}

static void submit_longer(uint32_t n_new)
{
  fx_submit(d.e, 0, (td_engine_request){.n_prompt = 2, .max_new = n_new});
}

static void submit(void) { submit_longer(3); }

static bool sleep_and_note(fake_device *f, double max_us)
{
  if (max_us == INFINITY)
    note(ASLEEP, 0);
  else if (max_us > 0)
    note(WAIT, (uint32_t)(max_us / 1000));
  if (!(max_us > 0) || max_us == INFINITY || d.submit_ms == 0)
    return false;
  now_us += d.submit_ms * 1000.0;
  d.submit_ms = 0;
  submit(); /* which wakes: is_asleep is set */
  return true;
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
  if (d.n_done > 0 && d.changing == 0 && !d.e->calibrates) /* 1: the end is not reported yet */
    assert_int_equal(d.e->stats.tuning_left, 1 + d.n_pieces - d.n_done);
  note(PIECE, ++d.n_done);
  now_us += PIECE_US;
  if (d.submit_in == d.n_done)
    submit();
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

static td_status device_capture(td_backend *b, td_compiled *compiled, uint32_t least_rows, uint32_t n_rows,
                                td_capture *out, td_error *err)
{
  assert_true(b->n_under_way == 0 && !b->awaits_sample);
  assert_true(1 <= least_rows && least_rows <= n_rows && n_rows <= MAX_ROWS);
  note(CAPTURE, n_rows);
  if (d.submit_in_capture == n_rows && d.least_of[n_rows] == 0)
    submit();
  now_us += CAPTURE_US;
  if (d.capture_fails_at == n_rows && (!d.only_anew || d.least_of[n_rows] > 0))
    return td_fail(err, d.capture_fails_as, "the device said so");
  d.least_of[n_rows] = least_rows;
  *out = (td_capture){.n_forms = 1, .not_fused = {n_rows > 2 ? not_fused : NULL}};
  return TD_OK;
}

static bool is_captured(uint32_t n_rows)
{
  for (uint32_t i = n_rows; i <= MAX_ROWS; i++)
    if (d.least_of[i] > 0 && d.least_of[i] <= n_rows)
      return true;
  return false;
}

static void begin_step(fake_device *f, const td_plan *plan, fake_step *s)
{
  bool decodes = plan->n_tokens == plan->n_rows && plan->n_logits == plan->n_rows;
  s->captured = decodes && is_captured(plan->n_rows);
  s->us = s->captured ? STEP_US : QUEUED_US;
  note(s->captured ? LAUNCH : STEP, plan->n_rows);
  if (d.most_under_way < f->base.n_under_way)
    d.most_under_way = f->base.n_under_way;
}

static const td_backend_ops ops = {FAKE_DEVICE_OPS, .tune_begin = device_tune_begin, .tune = device_tune,
                                   .tune_end = device_tune_end, .capture = device_capture};

/* ---- a daemon's life ---- */

/* Runs the start up to the point where it would be ready. Negative: the default. */
static void start_with(uint32_t n_pieces, int64_t tune_ms, int64_t capture_ms)
{
  td_options o = fx_options(N_SLOTS);
  td_error err;
  td_sched_config c = {.n_slots = N_SLOTS,
                       .max_running = N_SLOTS,
                       .step_tokens = 64,
                       .page_tokens = 16,
                       .n_pages = 64,
                       .max_context_tokens = CONTEXT};
  if (tune_ms >= 0)
    o.limit[TD_LIMIT_TUNE_MS] = (double)tune_ms;
  if (capture_ms >= 0)
    o.limit[TD_LIMIT_CAPTURE_MS] = (double)capture_ms;
  device = (fake_device){.base = {.ops = &ops, .pipeline_depth = 1, .on_device = true, .max_rows = MAX_ROWS},
                         .begin = begin_step,
                         .sleep = sleep_and_note};
  memset(&d, 0, sizeof d);
  d.n_pieces = n_pieces;
  d.e = device.e = fx_create(&o, &device.base, CONTEXT);
  fx_get_ready(d.e, &c);
  assert_int_equal(td_engine_begin_tuning(d.e, &err), TD_OK);
  td_engine_begin_captures(d.e);
  td_engine_publish_idle_work(d.e);
}

static void start(uint32_t n_pieces, int64_t tune_ms) { start_with(n_pieces, tune_ms, -1); }

static void run(td_status want)
{
  fake_run(&device, want);
  if (want != TD_OK)
    assert_string_equal(d.e->failure.message, "the device said so");
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

static void expect_all_captures(uint32_t *at)
{
  expect_captures(at, (const uint32_t[]){1, 2, 4, 8, 16, 20}, 6);
}

static uint32_t idle_ms(void) { return (uint32_t)td_limit_max(TD_LIMIT_IDLE_MS); }

/* Runs to the end; the events up to the first piece of tuning. */
static void run_to_idleness(uint32_t *at)
{
  run(TD_OK);
  expect(at, WAIT, idle_ms());
  expect_all_captures(at);
}

/* The steps of one request: its prompt, then decodes. */
static void expect_steps(uint32_t *at, event_kind decodes)
{
  expect(at, STEP, 1);
  expect(at, decodes, 1);
  expect(at, decodes, 1);
}

static void a_start_captures_and_measures_nothing(void **state)
{
  uint32_t at = 0;
  start(3, -1);
  assert_int_equal(d.n_events, 0);
  assert_int_equal(d.e->stats.tuning_left, 6 + 1 + 3); /* 1: the end is not reported yet */
  run(TD_OK);
  expect(&at, WAIT, idle_ms());
  expect_all_captures(&at);
  for (uint32_t i = 1; i <= 3; i++)
    expect(&at, PIECE, i);
  expect(&at, ASLEEP, 0); /* nothing more is done, and nothing wakes the engine */
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
  expect_steps(&at, LAUNCH);
  expect(&at, WAIT, idle_ms()); /* a new idle moment begins */
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
  run(TD_OK);
  expect(&at, WAIT, idle_ms());
  expect_steps(&at, STEP);
  expect(&at, WAIT, idle_ms());
  expect_all_captures(&at);
  expect(&at, PIECE, 1);
  expect(&at, ASLEEP, 0);
  end();
}

/* Captures steps again for the rows that changed, largest first, before more is measured. */
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
    assert_int_equal(d.e->captures.n_recaptured, cases[i].n);
    assert_int_equal(d.e->stats.n_not_fused, 1); /* none is counted twice */
    assert_ptr_equal(d.e->stats.not_fused[0].reason, not_fused);
    assert_int_equal(d.e->stats.not_fused[0].n_steps, 4);
    end();
  }
}

/* Steps that the last piece changed are captured again too; if there were no captures, nothing is. */
static void changes_of_the_last_piece_count(void **state)
{
  for (int captures = 1; captures >= 0; captures--) {
    uint32_t at = 0;
    start_with(1, -1, captures ? -1 : 0);
    d.changing = 1;
    d.changed_least = 1;
    d.changed_most = 16;
    run(TD_OK);
    expect(&at, WAIT, idle_ms());
    if (captures)
      expect_all_captures(&at);
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
  uint32_t first_at = 0;
  start(0, -1);
  d.submit_in_capture = 4;
  run(TD_OK);
  expect(&first_at, WAIT, idle_ms());
  expect_captures(&first_at, (const uint32_t[]){1, 2, 4}, 3);
  expect_steps(&first_at, LAUNCH);
  expect(&first_at, WAIT, idle_ms());
  expect_captures(&first_at, (const uint32_t[]){8, 16, 20}, 3);
  expect(&first_at, ASLEEP, 0);
  end();

  uint32_t at = 0;
  start(1, -1);
  d.submit_in = d.changing = 1;
  d.changed_least = 1;
  d.changed_most = 16;
  run_to_idleness(&at);
  expect(&at, PIECE, 1);
  expect_steps(&at, LAUNCH);
  expect(&at, WAIT, idle_ms());
  expect_captures(&at, (const uint32_t[]){16, 8, 4, 2, 1}, 5);
  expect(&at, ASLEEP, 0);
  end();
}

/* tune_ms limits all idle moments together; 0: kept results are used, and nothing is measured. */
static void tune_ms_bounds_it(void **state)
{
  static const uint32_t ms[] = {0, 4};
  for (size_t i = 0; i < 2; i++) {
    uint32_t at = 0;
    start(100, ms[i]);
    d.submit_in = 2;
    run_to_idleness(&at);
    assert_int_equal(d.n_begun, 1);
    assert_int_equal(d.n_done, ms[i] * 1000 / PIECE_US);
    assert_int_equal(d.events[d.n_events - 1].what, ASLEEP);
    assert_int_equal(d.e->stats.tuning_left, 0);
    if (ms[i] == 0)
      expect(&at, ASLEEP, 0);
    end();
  }
}

/* When the time is up, or a piece fails, steps that earlier pieces changed are captured again too. */
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
  start_with(0, -1, 0);
  run(TD_OK);
  expect(&at, ASLEEP, 0);
  end();
}

/* A captured step is not used for steps that the next smaller one can hold, in whatever order they occur. */
static void a_captured_step_serves_those_above_the_count_before(void **state)
{
  static const uint32_t least[MAX_ROWS + 1] = {[1] = 1, [2] = 2, [4] = 3, [8] = 5, [16] = 9, [20] = 17};
  start(0, -1);
  run(TD_OK);
  assert_memory_equal(d.least_of, least, sizeof least);
  assert_int_equal(d.e->stats.tuning_left, 0);
  end();
}

/* capture_ms is used up: nothing more is captured, not even for running requests; tuning continues. */
static void capture_ms_bounds_it(void **state)
{
  uint32_t at = 0;
  start_with(1, -1, 2 * CAPTURE_US / 1000 - 1);
  capture();
  d.submit_in = d.changing = 1;
  d.changed_least = 1;
  d.changed_most = 16;
  run(TD_OK);
  const char *said = captured();
  expect(&at, WAIT, idle_ms());
  expect_captures(&at, (const uint32_t[]){1, 2}, 2);
  expect(&at, PIECE, 1);
  expect_steps(&at, LAUNCH);
  expect(&at, WAIT, idle_ms());
  expect_captures(&at, (const uint32_t[]){2, 1}, 2); /* captured again, which does not count */
  expect(&at, ASLEEP, 0);
  assert_int_equal(d.e->stats.tuning_left, 0);
  assert_non_null(strstr(said, "capture_ms is over: 4 of 6 row counts are not captured\n"));
  assert_non_null(strstr(said, "captured 2 decode steps in 0.01 s: 2 fused"));
  end();
}

/* Three requests that end one after the other, without an idle moment: the steps that they need are captured
 * between two steps, but only now and then. */
static void a_busy_engine_captures_what_it_needs(void **state)
{
  static const uint32_t wanted[] = {4, 2, 1, 8, 16, 20}; /* the last three are captured in the idle moment */
  uint64_t pause_us = td_limit_max(TD_LIMIT_CAPTURE_PAUSE_MS) * 1000;
  double last_us = 0;
  uint32_t n = 0, n_waits = 0;
  start(0, -1);
  device.base.pipeline_depth = 2;
  for (uint32_t i = 1; i <= 3; i++)
    submit_longer(80 * i);
  last_us = now_us;
  run(TD_OK);
  for (uint32_t i = 0; i < d.n_events; i++) {
    const event *it = &d.events[i];
    n_waits += it->what == WAIT;
    if (it->what == LAUNCH) /* the sizes that were needed, and none below */
      assert_int_equal(it->n, 4 - n);
    if (it->what != CAPTURE)
      continue;
    assert_true(n < 6);
    assert_int_equal(it->n, wanted[n]);
    if (n < 3) {
      assert_int_equal(d.events[i - 1].what, STEP); /* a step of this many rows ran op by op, */
      assert_int_equal(d.events[i - 1].n, 3 - n);
      assert_int_equal(d.events[i + 1].what, LAUNCH); /* and no later one does */
      assert_true(it->at_us - last_us >= (double)pause_us);
      assert_true(it->at_us - last_us < (double)pause_us + 4 * QUEUED_US);
    }
    assert_int_equal(n_waits, n >= 3);
    last_us = it->at_us + CAPTURE_US;
    n++;
  }
  assert_int_equal(n, 6);
  assert_int_equal(d.most_under_way, 2);
  assert_int_equal(d.e->stats.tuning_left, 0);
  end();
}

/* The last step of all is reported too, although nothing wakes the engine for that. */
static void behind_the_last_step(void **state)
{
  uint32_t n_steps =
      1 + (uint32_t)(td_limit_max(TD_LIMIT_CAPTURE_PAUSE_MS) * 1000 + QUEUED_US - 1) / QUEUED_US;
  start(0, -1);
  device.base.max_rows = 1;
  td_engine_begin_captures(d.e);
  submit_longer(n_steps);
  run(TD_OK);
  assert_int_equal(d.n_events, n_steps + 2);
  assert_int_equal(d.events[n_steps].what, CAPTURE);
  assert_int_equal(d.events[n_steps + 1].what, ASLEEP);
  assert_int_equal(d.e->stats.tuning_left, 0);
  end();
}

static void a_step_with_a_prompt_needs_none(void **state)
{
  uint32_t at = 0;
  start(0, -1);
  submit_longer(1);
  now_us += td_limit_max(TD_LIMIT_CAPTURE_PAUSE_MS) * 1000.0;
  run(TD_OK);
  expect(&at, STEP, 1);
  expect(&at, WAIT, idle_ms());
  end();
}

/* The time of a step that will soon be captured is not learned. If none will be captured, it is. */
static void steps_that_will_be_captured_teach_nothing(void **state)
{
  for (int captures = 0; captures <= 1; captures++) {
    uint32_t n_queued = 0, n_launched = 0;
    start_with(0, -1, captures ? -1 : 0);
    device.base.pipeline_depth = 2;
    d.e->cost = (td_cost_model){.n_points = 2, .tokens = {1, 2}, .tokens_us = {STEP_US, STEP_US}};
    submit_longer(100);
    run(TD_OK);
    for (uint32_t i = 1; i < d.n_events; i++) {
      n_queued += d.events[i].what == STEP;
      n_launched += d.events[i].what == LAUNCH;
    }
    assert_int_equal(n_queued + n_launched, 99); /* the prompt's step produces the first token */
    assert_true(captures ? n_queued > 50 && n_launched > 30 : n_launched == 0);
    assert_int_equal(d.e->learned.n[0], captures ? n_launched : n_queued);
    if (captures) /* as long as calibrated: the capture between them does not count as a step's time */
      assert_true(d.e->learned.bins_us[0][TD_LEARNED_BINS / 2] == n_launched * (double)STEP_US);
    end();
  }
}

/* A device failure ends the engine, as in a step; a failed measurement or capture does not. */
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
  expect_steps(&at, LAUNCH);
  expect(&at, ASLEEP, 0);
  end();

  at = 0;
  start(5, -1);
  d.capture_fails_at = 16;
  d.capture_fails_as = TD_ERR_NOMEM;
  d.only_anew = true;
  d.changing = 1;
  d.changed_least = 1;
  d.changed_most = 16;
  run_to_idleness(&at);
  expect(&at, PIECE, 1);
  expect(&at, CAPTURE, 16);
  expect(&at, ASLEEP, 0);
  end();
}

/* The same for the first captures, in an idle moment or between two steps. Steps that are not captured run op
 * by op. */
static void faults_of_first_captures(void **state)
{
  for (int busy = 0; busy <= 1; busy++) {
    start(1, -1);
    d.capture_fails_at = busy ? 1 : 4;
    d.capture_fails_as = TD_ERR_DEVICE;
    if (busy)
      submit_longer(100);
    run(TD_ERR_DEVICE);
    assert_int_equal(d.events[d.n_events - 1].what, CAPTURE);
    end();

    uint32_t at = 0;
    start(1, -1);
    d.capture_fails_at = busy ? 1 : 4;
    d.capture_fails_as = TD_ERR_NOMEM;
    if (busy)
      submit_longer(100);
    capture();
    run(TD_OK);
    assert_non_null(strstr(captured(), "the device said so: no more steps are captured in this run\n"));
    while (busy && d.events[at].what == STEP)
      at++;
    if (busy) { /* and its other steps run on */
      expect(&at, CAPTURE, 1);
      while (d.events[at].what == STEP)
        at++;
      expect(&at, WAIT, idle_ms());
      assert_int_equal(at, 100 + 2);
    } else {
      expect(&at, WAIT, idle_ms());
      expect_captures(&at, (const uint32_t[]){1, 2, 4}, 3);
    }
    expect(&at, PIECE, 1);
    expect(&at, ASLEEP, 0);
    assert_int_equal(d.e->stats.tuning_left, 0);
    end();
  }
}

/* --calibrate measures everything before it captures, regardless of tune_ms; and captures everything, or
 * fails. */
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
  assert_int_equal(td_engine_capture_all(d.e, &err), TD_OK);
  expect_all_captures(&at);
  assert_int_equal(d.n_events, at);
  end();

  start(0, -1);
  d.capture_fails_at = 8;
  d.capture_fails_as = TD_ERR_NOMEM;
  assert_int_equal(td_engine_capture_all(d.e, &err), TD_ERR_NOMEM);
  end();
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_start_captures_and_measures_nothing),
      cmocka_unit_test(whoever_comes_waits_for_one_piece),
      cmocka_unit_test(a_short_pause_is_no_idle_moment),
      cmocka_unit_test(steps_that_changed_are_captured_anew),
      cmocka_unit_test(changes_of_the_last_piece_count),
      cmocka_unit_test(somebody_comes_between_two_captures),
      cmocka_unit_test(tune_ms_bounds_it),
      cmocka_unit_test(changes_before_an_early_end_count),
      cmocka_unit_test(nothing_is_left_to_do),
      cmocka_unit_test(a_captured_step_serves_those_above_the_count_before),
      cmocka_unit_test(capture_ms_bounds_it),
      cmocka_unit_test(a_busy_engine_captures_what_it_needs),
      cmocka_unit_test(behind_the_last_step),
      cmocka_unit_test(a_step_with_a_prompt_needs_none),
      cmocka_unit_test(steps_that_will_be_captured_teach_nothing),
      cmocka_unit_test(faults),
      cmocka_unit_test(faults_of_first_captures),
      cmocka_unit_test(calibrating_finishes_it_at_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
