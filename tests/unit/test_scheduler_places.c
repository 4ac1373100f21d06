/* Places that are kept free for accounts with nothing running. */
#include "test_scheduler_fixture.h"

static const td_sched_config four_places = {.n_slots = FX_SLOTS,
                                            .max_running = 4,
                                            .step_tokens = 64,
                                            .page_tokens = 16,
                                            .n_pages = 64,
                                            .max_context_tokens = 128};

static void submit(fx *f, uint32_t slot, uint64_t account, uint32_t max_new)
{
  td_error err;
  for (int32_t i = 0; i < 4; i++)
    f->tokens[slot][i] = (int32_t)slot * 100 + i;
  td_sched_request r = {
      .tokens = f->tokens[slot], .n_prompt = 4, .max_new = max_new, .terms.account = account};
  assert_int_equal(td_sched_submit(f->s, slot, &r, ++f->now_us, &err), TD_OK);
}

static void open_with(fx *f, uint32_t n_accounts)
{
  td_sched_config c = four_places;
  c.n_accounts = n_accounts;
  fx_open(f, &c);
  for (uint32_t slot = 0; slot < 6; slot++)
    submit(f, slot, 1, 100);
  for (int i = 0; i < 4; i++)
    fx_step(f);
}

static void test_one_account_has_all(void **state)
{
  for (uint32_t n_accounts = 0; n_accounts < 2; n_accounts++) {
    fx f;
    open_with(&f, n_accounts);
    assert_int_equal(fx_stats(&f).n_running, 4);
    fx_close(&f);
  }
}

static void test_a_newcomer_is_started_at_once(void **state)
{
  fx f;
  open_with(&f, 2);
  assert_int_equal(fx_stats(&f).n_running, 3);
  submit(&f, 6, 2, 3);
  submit(&f, 7, 2, 3);
  fx_step(&f);
  assert_true(td_sched_is_running(f.s, 6) && !td_sched_is_running(f.s, 7));
  fx_step(&f);
  fx_step(&f);
  assert_int_equal(f.n_finished, 1);
  fx_step(&f);
  assert_true(td_sched_is_running(f.s, 7)); /* and not one of the three that have waited longer */
  for (uint32_t slot = 3; slot < 6; slot++)
    assert_false(td_sched_is_running(f.s, slot));
  fx_run_dry(&f); /* they all end */
  fx_close(&f);
}

/* A place that is kept delays no step that is certain. */
static void test_steps_are_planned_ahead_past_those_that_wait(void **state)
{
  fx f;
  td_plan *next;
  td_error err;
  open_with(&f, 2);
  assert_int_equal(td_sched_plan_create(f.s, &next, &err), TD_OK);
  assert_true(fx_plan(&f));
  assert_true(td_sched_may_plan_ahead(f.s, f.plan, NULL));
  td_sched_plan_ahead(f.s, f.plan, NULL, next);
  assert_int_equal(next->n_rows, 3);
  td_plan_destroy(next);
  fx_close(&f);
}

/* If there are more accounts than an eighth of the places, an eighth is kept; with one place, none. */
static void test_how_many_are_kept(void **state)
{
  static const struct {
    uint32_t max_running, n_accounts, n_running;
  } cases[] = {{1, 9, 1},   {2, 2, 1},   {8, 2, 7},     {8, 9, 7},
               {32, 3, 30}, {32, 5, 28}, {32, 100, 28}, {32, 1, 32}};
  static int32_t tokens[40][8];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    td_sched_config c = {.n_slots = 40,
                         .max_running = cases[i].max_running,
                         .step_tokens = 256,
                         .page_tokens = 16,
                         .n_pages = 64,
                         .max_context_tokens = 8,
                         .n_accounts = cases[i].n_accounts};
    td_error err;
    td_sched *s;
    td_plan *plan;
    td_sched_stats st;
    assert_int_equal(td_sched_create(&c, &s, &err), TD_OK);
    assert_int_equal(td_sched_plan_create(s, &plan, &err), TD_OK);
    for (uint32_t slot = 0; slot < 40; slot++) {
      tokens[slot][0] = (int32_t)slot;
      td_sched_request r = {.tokens = tokens[slot], .n_prompt = 2, .max_new = 2, .terms.account = 1};
      assert_int_equal(td_sched_submit(s, slot, &r, slot, &err), TD_OK);
    }
    assert_true(td_sched_plan(s, 100, plan));
    td_sched_check(s);
    td_sched_get_stats(s, &st);
    assert_int_equal(st.n_running, cases[i].n_running);
    td_plan_destroy(plan);
    td_sched_destroy(s);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_account_has_all),
      cmocka_unit_test(test_a_newcomer_is_started_at_once),
      cmocka_unit_test(test_steps_are_planned_ahead_past_those_that_wait),
      cmocka_unit_test(test_how_many_are_kept),
  };
  return cmocka_run_group_tests_name("scheduler places", tests, NULL, NULL);
}
