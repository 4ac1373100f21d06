/* Accounts that hold less get from accounts that hold more, within a bound, and only until they are even
 * (scheduler/fair.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "scheduler/fair.h"
#include "scheduler/scheduler.h"

enum { SLOTS = 256, LONGEST = 4096, MAX_ROWS = 32 };

typedef struct world {
  td_sched *s;
  td_plan *plan;
  int32_t *tokens[SLOTS];
  uint32_t account[SLOTS], n_steps;
  bool there[SLOTS];
  uint64_t now_us;
} world;

static void open_world(world *w, uint32_t n_accounts, uint32_t n_pages)
{
  td_sched_config c = {.n_slots = SLOTS,
                       .max_running = MAX_ROWS,
                       .step_tokens = 1024,
                       .page_tokens = 16,
                       .n_pages = n_pages,
                       .max_context_tokens = LONGEST,
                       .n_accounts = n_accounts};
  td_error err;
  memset(w, 0, sizeof *w);
  assert_int_equal(td_sched_create(&c, &w->s, &err), TD_OK);
  assert_int_equal(td_sched_plan_create(w->s, &w->plan, &err), TD_OK);
}

static void close_world(world *w)
{
  td_plan_destroy(w->plan);
  td_sched_destroy(w->s);
  for (uint32_t i = 0; i < SLOTS; i++)
    free(w->tokens[i]);
}

/* The first n_shared tokens of the prompt are the same in all slots. */
static void submit_shared(world *w, uint32_t slot, uint32_t account, uint32_t n_shared, uint32_t n_prompt,
                          uint32_t max_new)
{
  td_error err;
  free(w->tokens[slot]);
  w->tokens[slot] = malloc((n_prompt + max_new) * sizeof *w->tokens[slot]);
  assert_non_null(w->tokens[slot]);
  for (uint32_t i = 0; i < n_prompt; i++)
    w->tokens[slot][i] = (int32_t)(i < n_shared ? i : slot * 7919 + i);
  td_sched_request r = {
      .tokens = w->tokens[slot], .n_prompt = n_prompt, .max_new = max_new, .terms.account = account};
  assert_int_equal(td_sched_submit(w->s, slot, &r, ++w->now_us, &err), TD_OK);
  w->account[slot] = account;
  w->there[slot] = true;
}

static void submit(world *w, uint32_t slot, uint32_t account, uint32_t n_prompt, uint32_t max_new)
{
  submit_shared(w, slot, account, 0, n_prompt, max_new);
}

static bool step(world *w)
{
  static int32_t sampled[MAX_ROWS];
  static uint8_t goes_on[MAX_ROWS];
  uint32_t finished[MAX_ROWS], n;
  w->now_us += 1000;
  if (!td_sched_plan(w->s, w->now_us, w->plan))
    return false;
  td_sched_commit(w->s, w->plan, sampled, goes_on, finished, &n);
  td_sched_check(w->s);
  for (uint32_t i = 0; i < n; i++)
    w->there[finished[i]] = false;
  w->n_steps++;
  return true;
}

static uint32_t running_of(const world *w, uint32_t account)
{
  uint32_t n = 0;
  for (uint32_t i = 0; i < SLOTS; i++)
    n += w->there[i] && w->account[i] == account && td_sched_is_running(w->s, i);
  return n;
}

static uint64_t n_taken(const world *w)
{
  td_sched_stats st;
  td_sched_get_stats(w->s, &st);
  return st.fair_preemptions;
}

/* One account holds all places for long; another arrives and wants as many. It gets its k-th place with the
 * k-th turn, until both have half. The first account's oldest request continues in every step, and nothing is
 * taken back. */
static void places_become_even_within_a_bound(void **state)
{
  static world w;
  open_world(&w, 2, 4096);
  for (uint32_t i = 0; i < 60; i++)
    submit(&w, i, 1, 20, 1500);
  for (int i = 0; i < 40; i++)
    assert_true(step(&w));
  uint32_t had = running_of(&w, 1);
  assert_int_equal(had, MAX_ROWS - 1); /* one is kept */
  assert_int_equal(n_taken(&w), 0);
  for (uint32_t i = 100; i < 160; i++)
    submit(&w, i, 2, 20, 1500);
  for (uint32_t k = 1; k <= 16; k++) {
    for (int i = 0; i < TD_FAIR_STEPS; i++)
      assert_true(step(&w));
    assert_true(running_of(&w, 2) >= k);
  }
  for (int i = 0; i < 200; i++) {
    assert_true(step(&w) && td_sched_is_running(w.s, 0));
    assert_true(running_of(&w, 1) >= 15 && running_of(&w, 2) >= 15);
  }
  assert_true(n_taken(&w) <= 16); /* and no more */
  while (step(&w))                /* all end */
    ;
  for (uint32_t i = 0; i < SLOTS; i++)
    assert_false(w.there[i]);
  close_world(&w);
}

/* The same for pages: answers of one account fill the memory. Another account's prompt, no longer than its
 * half, does not wait for their ends; one that would make its account hold more waits. */
static void pages_too(void **state)
{
  static world w;
  open_world(&w, 2, 512);
  for (uint32_t i = 0; i < 8; i++)
    submit(&w, i, 1, 900, 1000); /* 456 pages, and growing */
  for (int i = 0; i < 60; i++)
    assert_true(step(&w));
  assert_true(running_of(&w, 1) >= 6);
  submit(&w, 100, 2, 2000, 100); /* 125 pages */
  int waited = 0;
  for (; !td_sched_is_running(w.s, 100); waited++)
    assert_true(step(&w));
  assert_true(waited <= 2 * TD_FAIR_STEPS && n_taken(&w) > 0 && n_taken(&w) <= 4);
  assert_true(td_sched_is_running(w.s, 0));
  uint64_t taken = n_taken(&w);
  submit(&w, 101, 2, 3000, 100); /* with this one it would hold more than the other */
  for (int i = 0; i < 3 * TD_FAIR_STEPS && td_sched_is_running(w.s, 100); i++)
    assert_true(step(&w));
  assert_int_equal(n_taken(&w), taken);
  while (step(&w))
    ;
  for (uint32_t i = 0; i < SLOTS; i++)
    assert_false(w.there[i]);
  close_world(&w);
}

/* Preempting a request does not free pages that other requests of its account read too, so none is preempted
 * for them. */
static void shared_pages_free_nothing(void **state)
{
  static world w;
  open_world(&w, 2, 440);
  submit_shared(&w, 0, 1, 3200, 3300, 700);
  for (int i = 0; i < 8; i++)
    assert_true(step(&w));
  for (uint32_t i = 1; i < 8; i++)
    submit_shared(&w, i, 1, 3200, 3300, 700); /* 200 pages together, and few each */
  for (int i = 0; i < 40; i++)
    assert_true(step(&w));
  assert_int_equal(running_of(&w, 1), 8);
  submit(&w, 100, 2, 3900, 100); /* 250 pages: more than is free if all but the oldest end */
  for (int i = 0; i < 4 * TD_FAIR_STEPS; i++)
    assert_true(step(&w));
  assert_true(!td_sched_is_running(w.s, 100) && n_taken(&w) == 0);
  while (step(&w))
    ;
  assert_false(w.there[100]);
  close_world(&w);
}

/* Of several accounts, the one that runs least is next, and the one that runs most gives way. */
static void the_richest_gives_to_the_poorest(void **state)
{
  static world w;
  open_world(&w, 3, 4096);
  for (uint32_t i = 0; i < 40; i++)
    submit(&w, i, 1, 20, 2000);
  for (int i = 0; i < 20; i++)
    assert_true(step(&w));
  for (uint32_t i = 60; i < 100; i++)
    submit(&w, i, 2, 20, 2000);
  for (int i = 0; i < 20 * TD_FAIR_STEPS; i++)
    assert_true(step(&w));
  uint32_t second = running_of(&w, 2);
  for (uint32_t i = 120; i < 160; i++)
    submit(&w, i, 3, 20, 2000);
  for (int i = 0; i < 12 * TD_FAIR_STEPS; i++)
    assert_true(step(&w));
  assert_true(second >= 14 && running_of(&w, 1) >= 10 && running_of(&w, 2) >= 10 && running_of(&w, 3) >= 10);
  uint64_t taken = n_taken(&w);
  for (int i = 0; i < 10 * TD_FAIR_STEPS; i++)
    assert_true(step(&w));
  assert_true(n_taken(&w) <= taken + 1); /* it is at rest */
  close_world(&w);
}

/* Another account's front lacks pages, because its own answer holds most of them. Accounts that hold less and
 * find room do not wait with it. */
static void who_holds_most_holds_up_nobody(void **state)
{
  static world w;
  open_world(&w, 2, 400);
  submit(&w, 0, 1, 2600, 1400); /* 163 pages, and growing */
  for (int i = 0; i < 8; i++)
    assert_true(step(&w));
  submit(&w, 1, 1, 3900, 100); /* 244: not before the first is done */
  assert_true(step(&w) && !td_sched_is_running(w.s, 1));
  for (uint32_t i = 0; i < 8; i++)
    submit(&w, 100 + i, 2, 60, 40);
  uint32_t waited = w.n_steps;
  while (w.there[107])
    assert_true(step(&w));
  assert_true(w.n_steps - waited <= 50 && !td_sched_is_running(w.s, 1));
  uint32_t slot = 110, n_most = 0;
  for (; w.there[1] && !td_sched_is_running(w.s, 1); slot = slot < 250 ? slot + 1 : 110) {
    if (!w.there[slot])
      submit(&w, slot, 2, 400, 300); /* as much as there is room for, but no more than the other holds */
    assert_true(step(&w));
    uint32_t n = running_of(&w, 2);
    n_most = n > n_most ? n : n_most;
    assert_true(w.n_steps < 4000);
  }
  assert_true(n_most >= 3 && !w.there[0]); /* it waits for that request's end, and for nothing else */
  while (step(&w))
    ;
  assert_false(w.there[1]);
  close_world(&w);
}

/* Turns for pages go to the account that holds fewest, even if it runs most. */
static void many_short_ones_get_pages_from_few_long_ones(void **state)
{
  static world w;
  open_world(&w, 2, 620);
  for (uint32_t i = 0; i < 4; i++)
    submit(&w, i, 1, 2200, 1800); /* 138 pages each, and growing */
  for (int i = 0; i < 14; i++)
    assert_true(step(&w));
  for (uint32_t i = 0; i < 20; i++)
    submit(&w, 100 + i, 2, 200, 600); /* 13 pages, and growing */
  for (int i = 0; i < 3 * TD_FAIR_STEPS; i++)
    assert_true(step(&w));
  assert_true(running_of(&w, 2) >= 15 && running_of(&w, 1) >= 2);
  assert_true(td_sched_is_running(w.s, 0));
  while (step(&w))
    ;
  for (uint32_t i = 0; i < SLOTS; i++)
    assert_false(w.there[i]);
  close_world(&w);
}

/* No request gives way within one account, under another policy, or for an account that has enough. */
static void nothing_is_taken_for_nothing(void **state)
{
  static world w;
  for (uint32_t n_accounts = 0; n_accounts < 2; n_accounts++) {
    open_world(&w, n_accounts, 4096);
    for (uint32_t i = 0; i < 60; i++)
      submit(&w, i, i % 2, 20, 300);
    while (step(&w))
      ;
    assert_int_equal(n_taken(&w), 0);
    close_world(&w);
  }
  open_world(&w, 2, 4096);
  for (uint32_t i = 0; i < 60; i++) /* both accounts have the same */
    submit(&w, i, i % 2, 20, 300);
  while (step(&w))
    ;
  assert_true(n_taken(&w) <= 2);
  close_world(&w);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(places_become_even_within_a_bound),
      cmocka_unit_test(pages_too),
      cmocka_unit_test(shared_pages_free_nothing),
      cmocka_unit_test(the_richest_gives_to_the_poorest),
      cmocka_unit_test(nothing_is_taken_for_nothing),
      cmocka_unit_test(who_holds_most_holds_up_nobody),
      cmocka_unit_test(many_short_ones_get_pages_from_few_long_ones),
  };
  return cmocka_run_group_tests_name("scheduler fair", tests, NULL, NULL);
}
