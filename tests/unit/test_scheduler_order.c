/* Which request is next: long prompts beside short ones, accounts, priorities that age, prompts computed
 * once, deadlines. Time is that of a device that takes 50 us per token. */
#include <stdio.h>

#include "scheduler/cost_model.h"
#include "test_scheduler_fixture.h"

#include "scheduler/coalesce.h"

#include <stdlib.h>

enum { SLOTS = 256, NS_PER_TOKEN = 50000, STEP_US = 1000, LONG = 100000 };

typedef struct world {
  td_sched *s;
  td_plan *plan;
  int32_t *tokens[SLOTS];
  uint64_t now_us, arrived_us[SLOTS], first_us[SLOTS]; /* first_us 0: no token yet */
  bool there[SLOTS];
  uint64_t prompt_tokens; /* computed */
  uint32_t ended[SLOTS], n_ended;
  uint32_t n_steps;
  uint32_t ns_per_token; /* of this device */
  bool observed;         /* the scheduler knows the times of steps */
} world;

static const td_sched_config by_slack = {.n_slots = SLOTS,
                                         .max_running = 128,
                                         .step_tokens = 2048,
                                         .page_tokens = 16,
                                         .n_pages = 30000,
                                         .max_context_tokens = 131072,
                                         .prompt_ns_per_token = NS_PER_TOKEN,
                                         .slack_percent = 100,
                                         .priority_us = 1000000,
                                         .coalesces = true};

static void open_world(world *w, const td_sched_config *c)
{
  td_error err;
  memset(w, 0, sizeof *w);
  w->now_us = 1;
  w->ns_per_token = NS_PER_TOKEN;
  assert_int_equal(td_sched_create(c, &w->s, &err), TD_OK);
  assert_int_equal(td_sched_plan_create(w->s, &w->plan, &err), TD_OK);
}

static void close_world(world *w)
{
  td_sched_check(w->s);
  td_plan_destroy(w->plan);
  td_sched_destroy(w->s);
  for (uint32_t i = 0; i < SLOTS; i++)
    free(w->tokens[i]);
}

/* Prompts of a family are equal as far as they go. */
static void submit(world *w, uint32_t slot, uint32_t n_prompt, uint32_t max_new, int32_t family,
                   td_sched_request r)
{
  td_error err;
  free(w->tokens[slot]);
  w->tokens[slot] = malloc((n_prompt + max_new) * sizeof *w->tokens[slot]);
  assert_non_null(w->tokens[slot]);
  for (uint32_t i = 0; i < n_prompt; i++)
    w->tokens[slot][i] = (int32_t)((i ^ ((uint32_t)family * 0x9E3779B1u)) & INT32_MAX);
  r.tokens = w->tokens[slot];
  r.n_prompt = n_prompt;
  r.max_new = max_new;
  assert_int_equal(td_sched_submit(w->s, slot, &r, w->now_us, &err), TD_OK);
  w->arrived_us[slot] = w->now_us;
  w->first_us[slot] = 0;
  w->there[slot] = true;
}

static bool step(world *w)
{
  static int32_t sampled[SLOTS];
  static uint8_t stop[SLOTS];
  uint32_t finished[SLOTS], n_finished;
  if (!td_sched_plan(w->s, w->now_us, w->plan))
    return false;
  uint64_t step_us = STEP_US + (uint64_t)w->plan->n_tokens * w->ns_per_token / 1000;
  if (w->observed)
    td_sched_observe(w->s, w->plan, (double)step_us);
  w->now_us += step_us;
  w->prompt_tokens += w->plan->n_prefill_tokens;
  w->n_steps++;
  for (uint32_t i = 0; i < w->plan->n_logits; i++) {
    uint32_t slot = w->plan->rows[w->plan->logits[i].row].slot;
    sampled[i] = 7000000 + (int32_t)slot;
    if (w->first_us[slot] == 0)
      w->first_us[slot] = w->now_us;
  }
  td_sched_commit(w->s, w->plan, sampled, stop, finished, &n_finished);
  for (uint32_t i = 0; i < n_finished; i++) {
    w->ended[w->n_ended++] = finished[i];
    w->there[finished[i]] = false;
  }
  return true;
}

/* The longest time to first token of the short ones (slots from 8 on). Three of them arrive every other step
 * from `from_us` on, while long prompts in slots 0 .. n_long - 1 are computed. */
static uint64_t slowest_short(const td_sched_config *c, uint32_t n_long, uint64_t from_us, uint64_t *long_us)
{
  static world w;
  uint64_t slowest = 0;
  open_world(&w, c);
  for (uint32_t i = 0; i < n_long; i++)
    submit(&w, i, LONG, 2, (int32_t)i + 1, (td_sched_request){0});
  uint32_t n_short = 0;
  for (bool more = true; more;) {
    for (uint32_t k = 0;
         w.now_us >= from_us && n_short < 50 && w.n_steps % 2 == 0 && w.there[n_long - 1] && k < 3; k++) {
      submit(&w, 8 + n_short, 200, 4, 100 + (int32_t)n_short, (td_sched_request){0});
      n_short++;
    }
    more = step(&w);
  }
  assert_int_equal(n_short, 50);
  for (uint32_t i = 0; i < n_short; i++) {
    assert_true(w.first_us[8 + i] > 0);
    if (w.first_us[8 + i] - w.arrived_us[8 + i] > slowest)
      slowest = w.first_us[8 + i] - w.arrived_us[8 + i];
  }
  *long_us = 0;
  for (uint32_t i = 0; i < n_long; i++)
    if (w.first_us[i] > *long_us)
      *long_us = w.first_us[i];
  close_world(&w);
  return slowest;
}

enum { FULL_STEP_US = STEP_US + 2048 * NS_PER_TOKEN / 1000 };

/* Fifty prompts of 200 tokens beside one of 100,000 that takes 5 s: each has its first token within two
 * steps, and the long one is delayed only by their computation. */
static void a_long_prompt_does_not_block_short_ones(void **state)
{
  uint64_t alone_us = LONG / 2048 * (uint64_t)FULL_STEP_US + FULL_STEP_US, long_us;
  for (uint64_t from_us = 0; from_us <= 1600000; from_us += 800000) {
    assert_in_range(slowest_short(&by_slack, 1, from_us, &long_us), 1, 2 * FULL_STEP_US);
    assert_in_range(long_us, alone_us / 2,
                    alone_us + 50 * (200 + 4) * NS_PER_TOKEN / 1000 + 2 * FULL_STEP_US);
  }
  td_sched_config as_they_come = by_slack;
  as_they_come.slack_percent = 0;
  assert_in_range(slowest_short(&as_they_come, 1, 0, &long_us), 30 * FULL_STEP_US, 60 * FULL_STEP_US);
}

/* The same with two equal long ones, one of which waits for what the other computes: when late, they are no
 * more urgent than one. */
static void nor_does_one_that_others_wait_for(void **state)
{
  static world w;
  uint32_t n_short = 0;
  open_world(&w, &by_slack);
  submit(&w, 0, LONG, 2, 1, (td_sched_request){0});
  submit(&w, 1, LONG, 2, 1, (td_sched_request){0});
  while (step(&w))
    if (w.now_us > 1000000 && n_short < 50 && w.there[0]) { /* the latest start of the follower has passed */
      submit(&w, 8 + n_short, 200, 4, 100 + (int32_t)n_short, (td_sched_request){0});
      n_short++;
    }
  assert_true(n_short > 20);
  for (uint32_t i = 8; i < 8 + n_short; i++)
    assert_in_range(w.first_us[i] - w.arrived_us[i], 1, 2 * FULL_STEP_US);
  close_world(&w);
}

/* Four of them: those that cannot start yet must not be before the short ones in the queue when their time
 * has come. */
static void long_prompts_make_way_in_the_queue(void **state)
{
  uint64_t long_us;
  assert_in_range(slowest_short(&by_slack, 4, 9000000, &long_us), 1, 2 * FULL_STEP_US);
}

/* The time of a token was not measured: the order still follows tokens, also on a device 40 times slower.
 * Once a step was seen, places are as with a calibration: twelve long prompts behave like one. */
/* Counts the steps until n_long prompts of one account, which arrive together, have their first tokens, while
 * a given number of prompts of 500 tokens always waits. *slowest_us: the longest time of the latter from
 * arrival to first token. */
static uint32_t steps_beside_light_ones(uint32_t n_long, uint32_t n_light, int32_t priority,
                                        uint64_t *slowest_us)
{
  static world w;
  uint32_t slot = n_long, n_steps;
  *slowest_us = 0;
  open_world(&w, &by_slack);
  for (uint32_t i = 0; i < n_long; i++)
    submit(&w, i, 30000, 1, (int32_t)i + 1, (td_sched_request){0});
  for (bool more = true; more;) {
    uint32_t n_there = 0;
    for (uint32_t i = n_long; i < SLOTS; i++)
      n_there += w.there[i];
    for (; w.n_steps >= 40 && n_there < n_light; slot = slot + 1 < SLOTS ? slot + 1 : n_long)
      if (!w.there[slot]) {
        submit(&w, slot, 250, 1, 1000 + (int32_t)w.n_steps * 50 + (int32_t)n_there++,
               (td_sched_request){.terms.priority = priority});
      }
    step(&w);
    more = false;
    for (uint32_t i = 0; i < n_long; i++)
      more |= w.there[i];
    for (uint32_t i = 0; i < w.n_ended; i++)
      if (w.ended[i] >= n_long && w.first_us[w.ended[i]] - w.arrived_us[w.ended[i]] > *slowest_us)
        *slowest_us = w.first_us[w.ended[i]] - w.arrived_us[w.ended[i]];
    w.n_ended = 0;
    assert_true(w.n_steps < 5000);
  }
  n_steps = w.n_steps;
  close_world(&w);
  return n_steps;
}

/* More long prompts are overdue than may be started to make way. A request with few tokens to compute passes
 * them nevertheless, and they lose only the time that it takes; a flood of such requests takes three
 * quarters. A less urgent request passes none. */
static void light_ones_pass_late_long_ones(void **state)
{
  uint64_t slowest_us;
  uint32_t alone = steps_beside_light_ones(14, 0, 0, &slowest_us);
  uint32_t beside = steps_beside_light_ones(14, 1, 0, &slowest_us);
  assert_true(slowest_us <= 3 * (STEP_US + 2048 * (NS_PER_TOKEN / 1000)));
  assert_true(beside <= alone * 4 / 3 + 4); /* the long prompts have a quarter of each step */
  assert_true(steps_beside_light_ones(14, 30, 0, &slowest_us) <= 4 * alone + 40);
  steps_beside_light_ones(14, 1, 1, &slowest_us);
  assert_true(slowest_us > 5 * (STEP_US + 2048 * (NS_PER_TOKEN / 1000)));
}

static void expect_light(world *w, uint32_t n_prompt, int32_t family, bool is_light)
{
  submit(w, 0, n_prompt, 2, family, (td_sched_request){0});
  assert_true(td_sched_slot(w->s, 0).is_light == is_light);
  while (step(w))
    ;
}

/* Light: up to an eighth of a step's tokens that the tree does not have, or two pages; no request is light
 * under first come, first served. */
static void who_is_light(void **state)
{
  static world w;
  for (int by_place = 0; by_place < 2; by_place++) {
    td_sched_config c = by_slack;
    c.slack_percent = by_place ? 0 : 100;
    open_world(&w, &c);
    expect_light(&w, 256, 1, !by_place);
    expect_light(&w, 257, 2, false);
    expect_light(&w, 512, 2, !by_place); /* half of them are cached */
    expect_light(&w, 512 + 257, 2, false);
    close_world(&w);
    c.step_tokens = 128;
    open_world(&w, &c);
    expect_light(&w, 32, 1, !by_place);
    expect_light(&w, 33, 2, false);
    close_world(&w);
  }
}

static void nor_without_a_calibration(void **state)
{
  static world w;
  for (uint32_t i = 0; i < 8; i++) {
    td_sched_config c = by_slack;
    uint32_t n_long = i & 1 ? i & 4 ? 12 : 6 : 1, n_short = 0;
    c.prompt_ns_per_token = 0;
    open_world(&w, &c);
    w.ns_per_token = i & 2 ? 800000 : 20000;
    w.observed = i & 4;
    uint64_t full_step_us = STEP_US + 2048 * (uint64_t)w.ns_per_token / 1000;
    submit(&w, 0, 2000, 1, 0, (td_sched_request){0});
    assert_true(step(&w));
    for (uint32_t k = 0; k < n_long; k++)
      submit(&w, k, 20000, 2, (int32_t)k + 1, (td_sched_request){0});
    while (step(&w))
      for (uint32_t k = 0; k < 7 && n_short < 50 && w.n_steps > 2; k++, n_short++)
        submit(&w, 20 + n_short, 200, 4, 100 + (int32_t)n_short, (td_sched_request){0});
    for (uint32_t k = 20; k < 20 + n_short; k++)
      assert_in_range(w.first_us[k] - w.arrived_us[k], 1, 2 * full_step_us);
    close_world(&w);
  }
}

/* Without a calibration the fastest step is used: a place is that much later than the arrival. It refuses no
 * request. */
static void the_fastest_step_stands_in(void **state)
{
  static world w;
  uint32_t slot;
  td_sched_config c = by_slack;
  c.prompt_ns_per_token = 0;
  open_world(&w, &c);
  w.observed = true;
  for (uint32_t i = 0; i < 3; i++) { /* a slower step first, and last */
    static const uint32_t ns[] = {300000, 40000, 90000}, seen[] = {300000, 40000, 40000};
    w.ns_per_token = ns[i];
    submit(&w, i, 1000, 1, (int32_t)i,
           (td_sched_request){.terms.ttft_deadline_us = i < 2 ? 0 : w.now_us + 5000});
    assert_int_equal(td_sched_expire(w.s, w.now_us, (td_sched_expired[1]){0}, 1),
                     0); /* by 40 ms, 5 would be too few */
    while (step(&w))
      ;
    uint64_t least_us = (STEP_US + (uint64_t)seen[i] * 1000 / 1000) * 1000 / 1000; /* for 1000 tokens */
    submit(&w, 100 + i, 10000, 1, 50 + (int32_t)i, (td_sched_request){0});
    slot = 100 + i;
    assert_in_range(td_sched_slot(w.s, slot).place_us, w.now_us + 10 * least_us - 10,
                    w.now_us + 10 * least_us + 10);
    td_sched_cancel(w.s, slot);
    w.there[slot] = false;
  }
  close_world(&w);
}

/* A step of decodes that was planned ahead may be over before the host looks for its end, and then seems to
 * have taken no time. The order must not take that for the time of a prompt token, which would last forever.
 */
static void a_step_of_decodes_says_nothing_of_prompts(void **state)
{
  static world w;
  td_sched_config c = by_slack;
  uint64_t behind_us[2];
  c.prompt_ns_per_token = 0;
  open_world(&w, &c);
  w.observed = true;
  submit(&w, 0, 1000, 9, 0, (td_sched_request){0});
  assert_true(step(&w));
  for (uint32_t i = 0; i < 2; i++) {
    submit(&w, 1 + i, 10000, 1, 1 + (int32_t)i, (td_sched_request){0});
    behind_us[i] = td_sched_slot(w.s, 1 + i).place_us - w.now_us;
    td_sched_cancel(w.s, 1 + i);
    w.there[1 + i] = false;
    assert_true(step(&w) && w.plan->n_rows == 1 && w.plan->n_decode_rows == 1);
    td_sched_observe(w.s, w.plan, 1);
  }
  assert_true(behind_us[0] > 100000 && behind_us[1] == behind_us[0]);
  close_world(&w);
}

/* An endless supply of short prompts that fills the steps: the long one is done within four times the time
 * that it takes alone. */
static void a_long_prompt_does_not_starve(void **state)
{
  static world w;
  open_world(&w, &by_slack);
  submit(&w, 0, LONG, 2, 1, (td_sched_request){0});
  assert_true(step(&w));
  uint32_t next = 0, shorts = 0;
  while (w.first_us[0] == 0) {
    for (uint32_t k = 0; k < 12; k++)
      for (uint32_t tries = 0; tries < SLOTS; tries++) {
        uint32_t slot = 1 + next++ % (SLOTS - 1);
        if (w.there[slot])
          continue;
        submit(&w, slot, 400, 1, 2 + (int32_t)(next % 1900), (td_sched_request){0});
        shorts++;
        break;
      }
    w.n_ended = 0;
    assert_true(step(&w));
    assert_true(w.n_steps <= 4 * (LONG / (2048 - 1) + 1));
  }
  assert_true(shorts > 400 && w.n_steps > 2 * LONG / 2048); /* they had their share */
  close_world(&w);
}

/* One running place. A request of priority 3 is overtaken by those of priority 0 that arrive within three
 * seconds, and by no others. */
static void a_priority_is_worth_so_much_waiting(void **state)
{
  static world w;
  td_sched_config c = by_slack;
  c.max_running = 1;
  c.slack_percent = 0;
  open_world(&w, &c);
  submit(&w, 0, 10, 2, 1, (td_sched_request){0});
  submit(&w, 1, 10, 2, 2, (td_sched_request){.terms.priority = 3});
  for (uint32_t slot = 2; w.there[1]; slot = slot == 9 ? 2 : slot + 1) {
    if (!w.there[slot])
      submit(&w, slot, 100, 100, (int32_t)(10 + slot), (td_sched_request){0});
    w.n_ended = 0;
    assert_true(step(&w));
    assert_true(w.now_us < 10000000);
  }
  assert_in_range(w.first_us[1], 3000000, 3000000 + 9 * 120000); /* each takes less than 120 ms */
  submit(&w, 20, 10, 1, 20, (td_sched_request){.terms.priority = 2000000000}); /* an hour at most */
  assert_int_equal(td_sched_slot(w.s, 20).place_us, (int64_t)w.now_us + 3600000000);
  submit(&w, 21, 10, 1, 21, (td_sched_request){.terms.priority = -2000000000});
  assert_int_equal(td_sched_slot(w.s, 21).place_us, (int64_t)w.now_us - 3600000000);
  close_world(&w);
}

/* 100 requests of one account, 10 of another that arrive later: while both have waiting requests, both get
 * the same number of tokens. */
static void accounts_share_equally(void **state)
{
  static world w;
  td_sched_config c = by_slack;
  c.max_running = 4;
  open_world(&w, &c);
  for (uint32_t i = 0; i < 100; i++)
    submit(&w, i, 300, 50, (int32_t)i + 1, (td_sched_request){.terms.account = 7, .terms.priority = -5});
  for (uint32_t i = 0; i < 100; i++)
    assert_true(step(&w));
  uint32_t before = w.n_ended;
  for (uint32_t i = 0; i < 10; i++)
    submit(&w, 100 + i, 300, 50, 200 + (int32_t)i, (td_sched_request){.terms.account = 8});
  while (w.there[109])
    assert_true(step(&w));
  uint32_t others = 0;
  for (uint32_t i = before; i < w.n_ended; i++)
    others += w.ended[i] < 100;
  assert_in_range(others, 7,
                  16); /* 4 ran when they arrived, and 10 of the others take as long as 10 of these */
  close_world(&w);
}

/* Requests that arrive while the prompt is computed wait for it. It is computed once except for the last
 * page, and they hold no pages meanwhile. */
static void one_prompt_is_computed_once(void **state)
{
  static world w;
  open_world(&w, &by_slack);
  for (uint32_t i = 0; i < 64; i++)
    submit(&w, i, 20000, 3, 1, (td_sched_request){0});
  assert_true(step(&w));
  assert_int_equal(w.plan->n_rows, 1);
  td_sched_stats st;
  td_sched_get_stats(w.s, &st);
  assert_int_equal(st.n_waiting, 63);
  assert_int_equal(st.pages_owned, 128);
  td_sched_check(w.s);
  while (step(&w))
    td_sched_check(w.s);
  assert_int_equal(w.prompt_tokens, 20000 + 63 * 16);
  close_world(&w);

  open_world(&w, &by_slack); /* 5000 common tokens, then private ones; the shorter one would overtake */
  submit(&w, 0, 20000, 3, 1, (td_sched_request){0});
  submit(&w, 1, 7000, 3, 1, (td_sched_request){0});
  for (uint32_t i = 5000; i < 6999; i++)
    w.tokens[1][i] = 1;
  submit(&w, 2, 100, 3, 9, (td_sched_request){0});
  assert_true(step(&w)); /* the shorter one is first, and the longer one follows it */
  assert_true(td_sched_slot(w.s, 0).n_follows + td_sched_slot(w.s, 1).n_follows <= 1);
  while (step(&w))
    td_sched_check(w.s);
  assert_int_equal(w.prompt_tokens, 20000 + 7000 + 100 - 5000 / 16 * 16);
  close_world(&w);
}

/* The leader is cancelled: one of its followers continues where it was, for all of them. Each is shorter than
 * the one before, and so would overtake it. */
static void a_leader_that_leaves_is_replaced(void **state)
{
  static world w;
  open_world(&w, &by_slack);
  for (uint32_t i = 0; i < 4; i++) {
    submit(&w, i, 20000 - 1000 * i, 3, 1, (td_sched_request){0});
    if (i == 0)
      assert_true(step(&w));
  }
  assert_true(step(&w));
  for (uint32_t i = 1; i < 4; i++)
    assert_true(td_sched_slot(w.s, i).following);
  td_sched_cancel(w.s, 2); /* a follower */
  td_sched_check(w.s);
  td_sched_cancel(w.s, 0);
  td_sched_check(w.s);
  assert_true(step(&w)); /* 3 is the shortest, so it continues */
  assert_true(td_sched_is_running(w.s, 3));
  td_sched_stats now;
  td_sched_get_stats(w.s, &now);
  assert_int_equal(now.n_waiting, 1);
  while (step(&w))
    ;
  assert_true(w.first_us[3] > 0 && w.first_us[1] > 0 && w.first_us[0] == 0);
  assert_int_equal(w.prompt_tokens,
                   19000 +
                       17000 % 16); /* the longest that was not cancelled, and the other one's last page */
  td_sched_stats st;
  td_sched_get_stats(w.s, &st);
  assert_int_equal(st.pages_owned, 0);
  assert_int_equal(st.n_following, 0);
  close_world(&w);
}

/* Leaders that arrive and leave cannot delay a request forever: after following TD_COALESCE_MAX times it
 * computes by itself. Here each leader is more urgent than slot 0, and has one page more of its prompt than
 * the one before. */
static void nobody_follows_for_ever(void **state)
{
  static world w;
  open_world(&w, &by_slack);
  submit(&w, 0, 1000, 1, 1, (td_sched_request){0});
  for (uint32_t n = 1; n <= TD_COALESCE_MAX + 1; n++) {
    submit(&w, n, 16 * n + 1, 1, 1, (td_sched_request){.terms.priority = -9});
    assert_int_equal(w.first_us[0], 0);
    assert_true(step(&w));
    if (n <= TD_COALESCE_MAX)
      assert_int_equal(td_sched_slot(w.s, 0).n_follows, n);
  }
  assert_true(w.first_us[0] > 0);
  close_world(&w);
}

/* A leader works for its followers, so it has the turn of the most urgent one. Here that is before a prompt
 * that would overtake it. */
static void a_leader_has_its_followers_urgency(void **state)
{
  static world w;
  open_world(&w, &by_slack);
  submit(&w, 0, 20000, 1, 1, (td_sched_request){0});
  assert_true(step(&w));
  submit(&w, 1, 12000, 1, 2, (td_sched_request){0});
  submit(&w, 2, 6000, 1, 1, (td_sched_request){0});
  assert_true(step(&w));
  assert_true(td_sched_slot(w.s, 2).following && td_sched_is_running(w.s, 1));
  while (w.first_us[2] == 0)
    assert_true(step(&w));
  assert_true(w.n_steps <= 5 && w.first_us[1] == 0);
  close_world(&w);
}

/* Requests of other namespaces neither follow nor lead; and none does if coalescing is off. */
static void only_inside_a_namespace(void **state)
{
  static world w;
  open_world(&w, &by_slack);
  submit(&w, 0, 2000, 3, 1, (td_sched_request){0});
  submit(&w, 1, 2000, 3, 1, (td_sched_request){.terms.namespace_id = 5});
  while (step(&w))
    assert_false(w.there[1] && td_sched_slot(w.s, 1).following);
  assert_int_equal(w.prompt_tokens, 4000);
  close_world(&w);
  td_sched_config c = by_slack;
  c.coalesces = false;
  open_world(&w, &c);
  submit(&w, 0, 1000, 3, 1, (td_sched_request){0});
  submit(&w, 1, 1000, 3, 1, (td_sched_request){0});
  while (step(&w))
    ;
  assert_int_equal(w.prompt_tokens, 2000);
  close_world(&w);
}

static uint32_t expire(world *w, uint32_t *slot)
{
  td_sched_expired out[4];
  uint32_t n = td_sched_expire(w->s, w->now_us, out, 4);
  if (n > 0) {
    *slot = out[0].slot;
    w->there[out[0].slot] = false;
  }
  return n;
}

static void deadlines_end_what_cannot_be_in_time(void **state)
{
  static world w;
  uint32_t slot;
  open_world(&w, &by_slack);
  assert_true(td_sched_next_expiry_us(w.s) == UINT64_MAX);
  /* 2000 tokens take 100 ms: 99 ms are too few, which is reported immediately; 200 ms are enough */
  submit(&w, 0, 2000, 3, 1, (td_sched_request){.terms.ttft_deadline_us = w.now_us + 99000});
  submit(&w, 1, 2000, 3, 2,
         (td_sched_request){.terms.ttft_deadline_us = w.now_us + 200000,
                            .terms.deadline_us = w.now_us + 300000});
  assert_int_equal(expire(&w, &slot), 1);
  assert_int_equal(slot, 0);
  assert_true(step(&w));
  assert_int_equal(expire(&w, &slot), 0);
  assert_true(w.first_us[1] > 0); /* its first token was sent, so only the end counts */
  w.now_us = w.arrived_us[1] + 250000;
  assert_int_equal(expire(&w, &slot), 0);
  w.now_us = w.arrived_us[1] + 300000;
  assert_int_equal(expire(&w, &slot), 0);
  w.now_us++;
  assert_int_equal(expire(&w, &slot), 1);
  assert_int_equal(slot, 1);
  assert_false(step(&w));
  /* cached pages need not be computed: the same prompt has enough time now */
  submit(&w, 2, 2000, 3, 2, (td_sched_request){.terms.ttft_deadline_us = w.now_us + 5000});
  assert_int_equal(expire(&w, &slot), 0);
  assert_true(step(&w));
  assert_true(w.first_us[2] > 0);
  /* a running prompt that will be late: 20,000 tokens in 900 ms, and it needs more than a second */
  submit(&w, 3, 20000, 3, 3, (td_sched_request){.terms.ttft_deadline_us = w.now_us + 1000000 + 20000});
  assert_int_equal(expire(&w, &slot), 0);
  assert_true(step(&w));
  w.now_us += 100000;
  assert_int_equal(expire(&w, &slot), 1);
  assert_int_equal(slot, 3);
  while (step(&w))
    ;
  assert_true(td_sched_next_expiry_us(w.s) == UINT64_MAX);
  close_world(&w);
}

/* A guess about the device refuses no request, however slow it seems; measured times do. A better table makes
 * a prompt with a deadline cheaper, never dearer. */
static void a_guess_ends_nobody(void **state)
{
  static const td_cost_model slow = {.n_points = 2, .tokens = {1, 2048}, .tokens_us = {1000, 2048000}};
  static const td_cost_model quick = {.n_points = 2, .tokens = {1, 2048}, .tokens_us = {10, 20480}};
  static world w;
  uint32_t slot;
  for (int guess = 0; guess < 2; guess++)
    for (int better = 0; better < 2; better++) {
      td_sched_config c = by_slack;
      c.prompt_ns_per_token = 0;
      c.cost = better ? &slow : &quick;
      c.cost_is_guess = guess;
      open_world(&w, &c);
      td_sched_set_cost(w.s, better ? &quick : &slow);
      submit(&w, 0, 2000, 3, 1, (td_sched_request){.terms.ttft_deadline_us = w.now_us + 100000});
      assert_int_equal(expire(&w, &slot), 0); /* 15 ms by the quick table */
      close_world(&w);
    }
  td_sched_config c = by_slack;
  c.prompt_ns_per_token = 0;
  c.cost = &slow;
  open_world(&w, &c);
  submit(&w, 0, 2000, 3, 1, (td_sched_request){.terms.ttft_deadline_us = w.now_us + 100000});
  assert_int_equal(expire(&w, &slot), 1); /* 1.5 s */
  close_world(&w);
  c.cost_is_guess = true;
  open_world(&w, &c);
  submit(&w, 0, 2000, 3, 1, (td_sched_request){.terms.ttft_deadline_us = w.now_us + 100000});
  assert_int_equal(expire(&w, &slot), 0);
  close_world(&w);
}

/* A prompt that had enough time while the tree had its pages: their eviction is noticed when it starts. */
static void a_lost_prefix_is_lost_time(void **state)
{
  static world w;
  uint32_t slot;
  td_sched_config c = by_slack;
  c.n_pages = 300;
  c.max_running = 1;
  c.step_tokens = 256;
  open_world(&w, &c);
  submit(&w, 0, 4000, 1, 1, (td_sched_request){0});
  while (step(&w))
    ;
  uint64_t deadline_us = w.now_us + 150000; /* 200 ms without the cache */
  submit(&w, 1, 4000, 1, 1, (td_sched_request){.terms.ttft_deadline_us = deadline_us});
  submit(&w, 2, 2000, 1, 2, (td_sched_request){.terms.priority = -100});
  assert_int_equal(expire(&w, &slot), 0);
  assert_true(td_sched_next_expiry_us(w.s) > deadline_us - 10000);
  while (w.there[2]) /* 110 ms, and 75 pages of the other's: 60 ms */
    assert_true(step(&w));
  assert_int_equal(expire(&w, &slot), 0); /* not checked yet */
  uint64_t before_us = w.now_us;
  assert_true(step(&w));
  assert_true(td_sched_is_running(w.s, 1) && w.first_us[1] == 0);
  w.now_us = before_us + 1; /* however fast the step was */
  assert_int_equal(expire(&w, &slot), 1);
  assert_int_equal(slot, 1);
  close_world(&w);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_long_prompt_does_not_block_short_ones),
      cmocka_unit_test(nor_does_one_that_others_wait_for),
      cmocka_unit_test(long_prompts_make_way_in_the_queue),
      cmocka_unit_test(light_ones_pass_late_long_ones),
      cmocka_unit_test(who_is_light),
      cmocka_unit_test(nor_without_a_calibration),
      cmocka_unit_test(the_fastest_step_stands_in),
      cmocka_unit_test(a_step_of_decodes_says_nothing_of_prompts),
      cmocka_unit_test(a_long_prompt_does_not_starve),
      cmocka_unit_test(a_priority_is_worth_so_much_waiting),
      cmocka_unit_test(accounts_share_equally),
      cmocka_unit_test(one_prompt_is_computed_once),
      cmocka_unit_test(a_leader_that_leaves_is_replaced),
      cmocka_unit_test(nobody_follows_for_ever),
      cmocka_unit_test(a_leader_has_its_followers_urgency),
      cmocka_unit_test(only_inside_a_namespace),
      cmocka_unit_test(deadlines_end_what_cannot_be_in_time),
      cmocka_unit_test(a_guess_ends_nobody),
      cmocka_unit_test(a_lost_prefix_is_lost_time),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
