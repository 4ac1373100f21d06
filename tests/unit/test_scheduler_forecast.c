/* Predicted queue delays and ends of answers compared with the real ones, in a scheduler whose steps take
 * exactly what its cost model says. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/cost_model.h"
#include "scheduler/scheduler.h"

enum {
  SLOTS = 512,
  RUNNING = 32,
  RUNNING_MAX = 256,
  CONTEXT = 2048,
  SEEN_MAX = 4000,
  ENDS_AHEAD = 16,
  GAP_ENDS = 48, /* with 16, chance changes the gap by a quarter */
  ENDS_MAX = 60000,
  STEPS_APART = 10
};

/* A forecast made while a request waited, and how many answers had ended by then. */
typedef struct probe {
  double at_us, next_us, later_us; /* later: the ENDS_AHEAD-th end */
  uint32_t n_ends;
} probe;

typedef struct world {
  td_sched *s;
  td_plan *plan;
  double now_us;
  uint64_t random;
  int32_t tokens[SLOTS][CONTEXT];
  bool used[SLOTS], started[SLOTS], of_other[SLOTS];
  double predicted_us[SLOTS], predicted_start_us,
      seen_us;             /* for each request; and for the last one that started */
  uint32_t stop_at[SLOTS]; /* the answer stops here */
  uint32_t end_at[SLOTS];  /* or is ended */
  double ratio[SEEN_MAX];  /* predicted / seen delay of those that waited */
  uint32_t n_seen;
  probe probes[SEEN_MAX];
  double ends_us[ENDS_MAX];
  uint32_t n_probes, n_ends, n_steps;
} world;

static world w;

static uint32_t below(uint32_t n)
{
  w.random = w.random * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)((w.random >> 33) % n);
}

static void open_world(const td_sched_config *c)
{
  td_error err;
  memset(&w, 0, sizeof w);
  w.random = 3;
  assert_int_equal(td_sched_create(c, &w.s, &err), TD_OK);
  assert_int_equal(td_sched_plan_create(w.s, &w.plan, &err), TD_OK);
}

static void close_world(void)
{
  td_plan_destroy(w.plan);
  td_sched_destroy(w.s);
}

static uint32_t submit_as(uint32_t account, uint32_t n_prompt, uint32_t max_new, uint32_t n_answer)
{
  uint32_t slot = 0;
  td_error err;
  while (w.used[slot])
    slot++;
  for (uint32_t i = 0; i < n_prompt; i++)
    w.tokens[slot][i] = (int32_t)below(50000);
  w.used[slot] = true;
  w.started[slot] = false;
  w.stop_at[slot] = n_answer;
  w.predicted_us[slot] = td_sched_make_forecast(w.s).start_us;
  assert_int_equal(td_sched_submit(w.s, slot,
                                   &(td_sched_request){.tokens = w.tokens[slot],
                                                       .n_prompt = n_prompt,
                                                       .max_new = max_new,
                                                       .terms.account = account},
                                   (uint64_t)w.now_us, &err),
                   TD_OK);
  w.of_other[slot] = false;
  return slot;
}

static void submit(uint32_t n_prompt, uint32_t max_new, uint32_t n_answer)
{
  submit_as(0, n_prompt, max_new, n_answer);
}

static void look_ahead(void)
{
  td_sched_stats st;
  td_sched_get_stats(w.s, &st);
  if (st.n_waiting == 0 || w.n_probes == SEEN_MAX || w.n_steps++ % STEPS_APART != 0)
    return;
  td_sched_forecast f = td_sched_make_forecast(w.s);
  w.probes[w.n_probes++] =
      (probe){w.now_us, f.next_end_us, f.next_end_us + (ENDS_AHEAD - 1) * f.end_interval_us, w.n_ends};
}

static bool step(void)
{
  int32_t sampled[RUNNING_MAX];
  uint8_t stop[RUNNING_MAX];
  uint32_t finished[RUNNING_MAX], n_finished;
  look_ahead();
  if (!td_sched_plan(w.s, (uint64_t)w.now_us, w.plan))
    return false;
  for (uint32_t i = 0; i < w.plan->n_rows; i++) {
    uint32_t slot = w.plan->rows[i].slot;
    td_sched_slot_info info = td_sched_slot(w.s, slot);
    if (w.started[slot])
      continue;
    w.started[slot] = true;
    double seen = (double)info.first_run_us - (double)info.submit_us;
    w.predicted_start_us = w.predicted_us[slot];
    w.seen_us = seen;
    if (seen > 100000 && w.n_seen < SEEN_MAX)
      w.ratio[w.n_seen++] = w.predicted_us[slot] / seen;
  }
  w.now_us += td_sched_predict_us(w.s, w.plan);
  for (uint32_t i = 0; i < w.plan->n_logits; i++) {
    uint32_t slot = w.plan->rows[w.plan->logits[i].row].slot;
    sampled[i] = (int32_t)below(50000);
    stop[i] = td_sched_slot(w.s, slot).n_generated + 1 >= w.stop_at[slot];
  }
  td_sched_commit(w.s, w.plan, sampled, stop, finished, &n_finished);
  for (uint32_t i = 0; i < n_finished; i++) {
    assert_true(w.n_ends < ENDS_MAX);
    w.ends_us[w.n_ends++] = w.now_us;
    w.used[finished[i]] = false;
  }
  return true;
}

static int compare(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void expect_near_one(const char *what, double *ratio, uint32_t n, double median_within,
                            double nine_of_ten_within)
{
  assert_true(n > 300);
  qsort(ratio, n, sizeof *ratio, compare);
  double p5 = ratio[n / 20], p50 = ratio[n / 2], p95 = ratio[n - 1 - n / 20];
  print_message("%s, predicted / seen: p5 %.2f, p50 %.2f, p95 %.2f of %u\n", what, p5, p50, p95, n);
  if (fabs(p50 - 1) > median_within || p5 < 1 / nine_of_ten_within || p95 > nine_of_ten_within)
    fail_msg("%s, predicted / seen: p5 %.3f, p50 %.3f, p95 %.3f of %u", what, p5, p50, p95, n);
}

static void expect_ratios(double median_within, double nine_of_ten_within)
{
  expect_near_one("start", w.ratio, w.n_seen, median_within, nine_of_ten_within);
}

/* The end of the next answer is mostly random; the time by which many have ended is not. */
static void expect_ends(double next_within, double later_within, double nine_of_ten_within)
{
  static double next[SEEN_MAX], later[SEEN_MAX];
  uint32_t n = 0;
  for (uint32_t i = 0; i < w.n_probes; i++) {
    const probe *p = &w.probes[i];
    if (p->n_ends + ENDS_AHEAD > w.n_ends)
      continue;
    next[n] = p->next_us / (w.ends_us[p->n_ends] - p->at_us);
    later[n++] = p->later_us / (w.ends_us[p->n_ends + ENDS_AHEAD - 1] - p->at_us);
  }
  expect_near_one("next end", next, n, next_within, 20);
  expect_near_one("ends", later, n, later_within, nine_of_ten_within);
}

static td_sched_config config(void)
{
  return (td_sched_config){.n_slots = SLOTS,
                           .max_running = RUNNING,
                           .step_tokens = 2048,
                           .page_tokens = 16,
                           .n_pages = 20000,
                           .max_context_tokens = CONTEXT,
                           .cost = &td_cost_h200_llama3_8b,
                           .tbt_slo_us = 25000};
}

/* For a while more than can be served, then less: the queue grows and shrinks. */
static void run_load(uint32_t max_prompt, uint32_t max_new, uint32_t longest_answer, double per_step)
{
  double owed = 0;
  for (uint32_t i = 0; i < 12000; i++) {
    td_sched_stats st;
    td_sched_get_stats(w.s, &st);
    for (owed += i % 3000 < 1500 ? per_step : 0; owed >= 1; owed--)
      if (st.n_waiting + st.n_running < 400)
        submit(16 + below(max_prompt), max_new, 1 + below(longest_answer));
    step();
  }
  while (step())
    ;
}

static void places_are_short(void **state)
{
  (void)state;
  td_sched_config c = config();
  open_world(&c);
  run_load(200, 400, 400, 0.25); /* answers of 1 to 400 of the 400 allowed */
  expect_ratios(0.15, 2.2);
  expect_ends(0.4, 0.2, 2.2);
  close_world();
}

static void answers_are_shorter_than_allowed(void **state)
{
  (void)state;
  td_sched_config c = config();
  open_world(&c);
  run_load(200, 1600, 200, 0.5);
  expect_ratios(0.2, 2.1);
  expect_ends(0.4, 0.2, 2.2);
  close_world();
}

static void prompts_are_in_the_way(void **state)
{
  (void)state;
  td_sched_config c = config();
  open_world(&c);
  run_load(1900, 8, 8, 1.5);
  expect_ratios(0.1, 1.5);
  expect_ends(0.5, 0.2, 2);
  close_world();
}

static void pages_are_short(void **state)
{
  (void)state;
  td_sched_config c = config();
  c.n_pages = 700; /* ten requests of a thousand tokens */
  open_world(&c);
  run_load(1000, 300, 300, 0.2);
  expect_ratios(0.25, 3);
  expect_ends(0.4, 0.25, 2.2);
  close_world();
}

/* Many more places than prompts can fill: waiting requests start immediately, and decode later. */
static void there_are_places_for_many(void **state)
{
  (void)state;
  td_sched_config c = config();
  c.max_running = RUNNING_MAX;
  c.slack_percent = 100;
  open_world(&c);
  run_load(1700, 300, 300, 3);
  expect_ratios(0.1, 1.7);
  expect_ends(0.65, 0.25, 3.2);
  close_world();
}

/* Half of the answers are short, half as long as allowed: an answer older than the short ones will last until
 * its maximum. */
static void some_go_to_the_end(void **state)
{
  (void)state;
  td_sched_config c = config();
  open_world(&c);
  for (uint32_t i = 0; i < 12000; i++) {
    td_sched_stats st;
    td_sched_get_stats(w.s, &st);
    if (i % 3000 < 1500 && i % 4 == 0 && st.n_waiting + st.n_running < 400)
      submit(50, 400, below(2) ? 400 : 1 + below(20));
    step();
  }
  while (step())
    ;
  expect_ratios(0.25, 3);
  expect_ends(0.6, 0.5, 6);
  close_world();
}

/* Every request states the length of its answer, so only arrivals are random. */
static void lengths_are_known(void **state)
{
  (void)state;
  td_sched_config c = config();
  open_world(&c);
  for (uint32_t i = 0; i < 8000; i++) {
    uint32_t max_new = 100 + below(50);
    td_sched_stats st;
    td_sched_get_stats(w.s, &st);
    if (i % 3000 < 1500 && i % 3 == 0 && st.n_waiting + st.n_running < 400)
      submit(400 + below(800), max_new, max_new);
    step();
  }
  while (step())
    ;
  expect_ratios(0.1, 1.3);
  expect_ends(0.3, 0.1, 1.4);
  close_world();
}

/* Many simultaneous requests to an idle daemon: those without a place wait for the others' answers, round
 * after round. */
static void a_burst(void **state)
{
  (void)state;
  td_sched_config c = config();
  open_world(&c);
  for (uint32_t i = 0; i < 500; i++)
    submit(100 + below(800), 150, 150);
  while (step())
    ;
  expect_ratios(0.25, 2);
  close_world();
}

/* An answer begins when its prompt is computed. */
static void an_end_waits_for_its_prompt(void **state)
{
  (void)state;
  td_sched_config c = config();
  c.step_tokens = 128;
  open_world(&c);
  submit(1900, 10, 10);
  for (uint32_t i = 0; i < 4; i++)
    step();
  double next_us = td_sched_make_forecast(w.s).next_end_us, from_us = w.now_us;
  while (step())
    ;
  double ratio = next_us / (w.now_us - from_us);
  print_message("predicted / seen: %.2f\n", ratio);
  assert_true(fabs(ratio - 1) < 0.2);
  close_world();
}

static void idle_or_without_a_model(void **state)
{
  (void)state;
  td_sched_config c = config();
  open_world(&c);
  td_sched_forecast f = td_sched_make_forecast(w.s);
  assert_true(f.start_us == 0 && f.next_end_us == 0 && f.prompt_token_us == 0);
  submit(100, 100, 100);
  step();
  f = td_sched_make_forecast(w.s);
  assert_true(f.start_us > 0 && f.start_us < 5000); /* half a step, because there is room */
  assert_true(fabs(f.next_end_us / (99 * 4100) - 1) < 0.5);
  assert_true(f.prompt_token_us > 5 &&
              f.prompt_token_us < 50); /* the time that a prompt token adds, although no prompt waits */
  close_world();
  c.cost = NULL;
  c.tbt_slo_us = 0;
  open_world(&c);
  submit(100, 100, 100);
  assert_true(td_sched_make_forecast(w.s).start_us == 0);
  close_world();
}

/* Nearly all places hold answers of up to 1000 tokens that end after 50 to 150. From step 1000 on, another
 * account also has many requests under way: of one token; cancelled before or after they start; that ask for
 * as much and stop after 3 tokens; that never end; that ask for 40 tokens and use them. Then 100 more arrive:
 * compares the prediction for the last of them with what happens. */
typedef enum beside { NOTHING, TINY, TAKEN_BACK, LEFT, QUICK, ENDLESS, CUT } beside;

typedef struct accuracy {
  double start, gap; /* predicted / seen */
} accuracy;

static uint32_t n_of(bool other)
{
  uint32_t n = 0;
  for (uint32_t i = 0; i < SLOTS; i++)
    n += w.used[i] && w.of_other[i] == other;
  return n;
}

static void take_back(bool waiting_too)
{
  for (uint32_t i = 0; i < SLOTS; i++)
    if (w.used[i] && w.of_other[i] && (waiting_too || td_sched_is_running(w.s, i))) {
      td_sched_cancel(w.s, i);
      w.used[i] = false;
    }
}

static void submit_other(beside kind, uint32_t account)
{
  static const uint32_t max_new[] = {0, 1, 99000, 99000, 1000, 99000, 40};
  w.of_other[submit_as(account, 16, max_new[kind], kind == QUICK ? 3 : 99000)] = true;
}

static void submit_usual(void) { submit_as(0, 16 + below(100), 1000, 50 + below(100)); }

static accuracy accuracy_beside(beside kind, uint32_t each, uint32_t account)
{
  td_sched_config c = config();
  c.max_context_tokens = 100000;
  open_world(&c);
  for (uint32_t i = 0; i < 3000; i++) {
    uint32_t n = i > 1000 && kind != NOTHING ? each : 0;
    while (n_of(false) < RUNNING - n)
      submit_usual();
    while (n_of(true) < n)
      submit_other(kind, account);
    if (kind == TAKEN_BACK)
      take_back(true);
    step();
    if (kind == LEFT)
      take_back(false);
  }
  if (kind != ENDLESS)
    take_back(true);
  for (uint32_t i = 0; i < 100; i++) {
    if (kind == ENDLESS && i == 50)
      submit_other(kind, account); /* and one more after it */
    submit_usual();
  }
  td_sched_forecast f = td_sched_make_forecast(w.s);
  uint32_t first = w.n_ends;
  while (n_of(false) > 0)
    step();
  accuracy r = {w.predicted_start_us / w.seen_us,
                f.end_interval_us * GAP_ENDS / (w.ends_us[first + GAP_ENDS] - w.ends_us[first])};
  print_message("%u times kind %u, account %u: predicted / seen: start %.2f, from end to end %.2f\n", each,
                kind, account, r.start, r.gap);
  close_world();
  return r;
}

static void expect_within(double ratio, double low, double high) { assert_true(ratio > low && ratio < high); }

static void nobody_drives_what_others_are_told(void **state)
{
  (void)state;
  accuracy_beside(NOTHING, 0, 0);
  for (uint32_t n = 1; n <= 8; n *= 8)
    for (beside kind = TINY; kind <= ENDLESS; kind++) {
      accuracy f = accuracy_beside(kind, n, 1);
      expect_within(f.start, 0.8, 1.2);
      expect_within(f.gap, 0.65, 1.4);
    }
  /* If clients share a key, those that stop early count less, because they are present for a shorter time. */
  accuracy few = accuracy_beside(QUICK, 1, 0), many = accuracy_beside(QUICK, 8, 0);
  expect_within(few.start, 0.75, 1.2);
  expect_within(many.start, 0.5, 1.2);
  expect_within(accuracy_beside(CUT, 8, 0).start, 0.85,
                1.2); /* requests for short answers say nothing about requests for long ones */
}

/* All answers reach their max_new, and one that waits asks for a very long one. */
static void nor_by_asking_for_much(void **state)
{
  (void)state;
  td_sched_config c = config();
  c.max_context_tokens = 100000;
  open_world(&c);
  for (uint32_t i = 0; i < 300; i++) {
    if (i == 100)
      w.of_other[submit_as(0, 16, 99000, 99000)] = true;
    submit(16 + below(100), 150, 150);
  }
  while (n_of(false) > 0)
    step();
  print_message("predicted / seen %.2f\n", w.predicted_start_us / w.seen_us);
  expect_within(w.predicted_start_us / w.seen_us, 0.8, 1.2);
  close_world();
}

/* Answers completed by a stop string are ended from outside, but count as answers. */
static void answers_ended_from_outside(void **state)
{
  (void)state;
  td_sched_config c = config();
  open_world(&c);
  for (uint32_t i = 0; i < 6000; i++) {
    td_sched_stats st;
    td_sched_get_stats(w.s, &st);
    if (i % 3000 < 1500 && i % 4 < 2 && st.n_waiting + st.n_running < 400)
      w.end_at[submit_as(0, 16 + below(200), 1600, 1600)] = 1 + below(200);
    step();
    for (uint32_t slot = 0; slot < SLOTS; slot++)
      if (w.used[slot] && td_sched_slot(w.s, slot).n_generated >= w.end_at[slot]) {
        td_sched_end(w.s, slot);
        w.used[slot] = false;
      }
  }
  expect_ratios(0.2, 2.1);
  close_world();
}

/* New prompts wait; it does not matter that other prompts were cached a thousand times. */
static void nor_by_prompts_that_are_cached(void **state)
{
  double start_us[2];
  (void)state;
  for (uint32_t i = 0; i < 2; i++) {
    td_error err;
    td_sched_config c = config();
    td_sched_request r = {.tokens = w.tokens[SLOTS - 1], .n_prompt = 1900, .max_new = 1};
    open_world(&c);
    for (uint32_t n = 0; n < 1000 * i; n++) {
      w.used[SLOTS - 1] = true;
      assert_int_equal(td_sched_submit(w.s, SLOTS - 1, &r, (uint64_t)w.now_us, &err), TD_OK);
      while (w.used[SLOTS - 1])
        step();
    }
    for (uint32_t n = 0; n < 200; n++)
      submit(1900, 8, 8);
    start_us[i] = td_sched_make_forecast(w.s).start_us;
    close_world();
  }
  print_message("start %.0f us, %.0f after prompts that were cached\n", start_us[0], start_us[1]);
  assert_true(fabs(start_us[1] / start_us[0] - 1) < 0.2);
}

/* One key asks for eight answers to each prompt, in one request or in eight. Checks the predictions for
 * other, unshared prompts, and for requests that wait for such answers. */
static void submit_choices(uint32_t account, uint32_t n_prompt, bool in_one)
{
  td_error err;
  td_sched_request r = {.n_prompt = n_prompt, .max_new = 8, .terms.account = account};
  for (uint32_t i = 0, first = 0; i < 8; i++) {
    uint32_t slot = 0;
    while (w.used[slot])
      slot++;
    if (i == 0)
      first = slot;
    for (uint32_t k = 0; k < n_prompt; k++)
      w.tokens[slot][k] = i == 0 ? (int32_t)below(50000) : w.tokens[first][k];
    r.tokens = w.tokens[slot];
    r.terms.is_further_choice = in_one && i > 0;
    w.used[slot] = true;
    w.started[slot] = false;
    w.stop_at[slot] = 8;
    w.predicted_us[slot] = td_sched_make_forecast(w.s).start_us;
    assert_int_equal(td_sched_submit(w.s, slot, &r, (uint64_t)w.now_us, &err), TD_OK);
  }
}

static double told_behind(bool in_one, uint32_t account, bool choices_wait)
{
  td_sched_config c = config();
  c.coalesces = true;
  open_world(&c);
  for (uint32_t n = 0; n < 50; n++) {
    submit_choices(account, 1000, in_one);
    while (step())
      ;
  }
  for (uint32_t n = 0; n < 40; n++)
    if (choices_wait)
      submit_choices(0, 1900, in_one);
    else
      submit(1900, 8, 8);
  submit(1900, 8, 8);
  while (step())
    ;
  print_message("in one %u, account %u, choices wait %u: predicted / seen %.2f\n", in_one, account,
                choices_wait, w.predicted_start_us / w.seen_us);
  double ratio = w.predicted_start_us / w.seen_us;
  close_world();
  return ratio;
}

static void choices_of_a_prompt(void **state)
{
  (void)state;
  expect_within(told_behind(true, 0, false), 0.8, 1.2);
  expect_within(told_behind(true, 0, true), 0.8, 1.3);
  expect_within(told_behind(false, 1, false), 0.8, 1.2);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(places_are_short),
      cmocka_unit_test(answers_are_shorter_than_allowed),
      cmocka_unit_test(prompts_are_in_the_way),
      cmocka_unit_test(pages_are_short),
      cmocka_unit_test(there_are_places_for_many),
      cmocka_unit_test(some_go_to_the_end),
      cmocka_unit_test(lengths_are_known),
      cmocka_unit_test(a_burst),
      cmocka_unit_test(an_end_waits_for_its_prompt),
      cmocka_unit_test(idle_or_without_a_model),
      cmocka_unit_test(nobody_drives_what_others_are_told),
      cmocka_unit_test(nor_by_asking_for_much),
      cmocka_unit_test(answers_ended_from_outside),
      cmocka_unit_test(nor_by_prompts_that_are_cached),
      cmocka_unit_test(choices_of_a_prompt),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
