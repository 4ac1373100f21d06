/* Pages of requests: prefix hits, sharing while running, preemption, cancellation in every state. */
#include "test_scheduler_fixture.h"

#include "scheduler/cost_model.h"

static const td_sched_config config = {.n_slots = FX_SLOTS,
                                       .max_running = 4,
                                       .step_tokens = 64,
                                       .page_tokens = 16,
                                       .n_pages = 40,
                                       .max_context_tokens = 512};

static void a_prompt_seen_before_is_not_computed_again(void **state)
{
  static fx f;
  td_error err;
  fx_open(&f, &config);
  fx_submit(&f, 0, 50, 1, 1); /* 3 whole pages */
  fx_run_dry(&f);
  assert_int_equal(fx_stats(&f).pages_cached, 3);

  fx_submit(&f, 1, 50, 5, 1);
  assert_true(fx_plan(&f));
  fx_row(&f, 0, 1, 2, 50);
  assert_int_equal(td_sched_slot(f.s, 1).n_cached_prompt, 48);
  assert_int_equal(f.plan->n_page_updates, 4); /* 3 shared, 1 new */
  fx_commit(&f, 0);
  td_sched_cancel(f.s, 1);

  fx_submit(&f, 2, 48, 1,
            1); /* whole pages only: the last token's logits are needed, so its page is computed again */
  assert_true(fx_plan(&f));
  fx_row(&f, 0, 2, 16, 48);
  assert_int_equal(td_sched_slot(f.s, 2).n_cached_prompt, 32);
  fx_commit(&f, 0);
  assert_int_equal(fx_stats(&f).pages_cached, 3); /* and what was computed twice is stored once */

  assert_int_equal(fx_submit_in(&f, 3, 40, 1, 1, 777, 0, &err), TD_OK); /* differs in its 40th token */
  fx_step(&f);
  fx_row(&f, 0, 3, 8, 40);
  assert_int_equal(fx_stats(&f).prefix_query_tokens, 50 + 50 + 48 + 40);
  assert_int_equal(fx_stats(&f).prefix_hit_tokens, 48 + 32 + 32);
  fx_close(&f);
}

static void namespaces_share_nothing(void **state)
{
  static fx f;
  td_error err;
  fx_open(&f, &config);
  fx_submit(&f, 0, 50, 1, 1);
  fx_run_dry(&f);
  assert_int_equal(fx_submit_in(&f, 1, 50, 2, 1, 0, 1, &err), TD_OK);
  fx_step(&f);
  assert_int_equal(td_sched_slot(f.s, 1).n_cached_prompt, 0);
  fx_run_dry(&f);
  assert_int_equal(fx_stats(&f).pages_cached, 6);
  fx_close(&f);
}

static void answers_are_found_by_the_next_turn(void **state)
{
  static fx f;
  fx_open(&f, &config);
  fx_submit(&f, 0, 20, 30, 1);
  fx_run_dry(&f); /* 50 tokens, the last of which is not computed: 3 whole pages */
  memcpy(f.tokens[1], f.tokens[0], 50 * sizeof(int32_t));
  for (uint32_t i = 50; i < 60; i++)
    f.tokens[1][i] = 7;
  td_error err;
  td_sched_request r = {.tokens = f.tokens[1], .n_prompt = 60, .max_new = 2};
  assert_int_equal(td_sched_submit(f.s, 1, &r, 1, &err), TD_OK);
  fx_step(&f);
  assert_int_equal(td_sched_slot(f.s, 1).n_cached_prompt, 48);
  fx_close(&f);
}

/* 40 tokens of three requests are two pages that all read and one private page each. */
static void kv_that_decodes_share_counts_once(void **state)
{
  static fx f;
  td_sched_config c = config;
  td_error err;
  for (int reads_once = 0; reads_once < 2; reads_once++) {
    c.reads_shared_once = reads_once;
    fx_open(&f, &c);
    fx_submit(&f, 0, 40, 5, 1);
    fx_step(&f);
    fx_submit(&f, 1, 40, 5, 1);
    assert_int_equal(fx_submit_in(&f, 2, 40, 5, 1, 777, 0, &err), TD_OK);
    fx_step(&f);
    fx_submit(&f, 3, 100, 5, 2); /* a running prompt shares nothing with them */
    fx_step(&f);
    assert_true(fx_plan(&f));
    assert_int_equal(f.plan->n_decode_rows, 3);
    assert_int_equal(f.plan->n_rows, 4);
    uint64_t repeated = reads_once ? 2 * 32 : 0;
    assert_int_equal(f.plan->repeated_kv_tokens, repeated);
    td_step_work w = td_step_work_of(f.plan);
    assert_int_equal(w.decode_kv_tokens, 43 + 42 + 42 - td_cost_saved_tokens(repeated));
    fx_commit(&f, 0);
    fx_close(&f);
  }
  assert_int_equal(td_cost_saved_tokens(1000), 600);     /* found in the L2 cache */
  assert_int_equal(td_cost_saved_tokens(100000), 87400); /* read once */
}

static void a_prompt_is_shared_while_it_runs(void **state)
{
  static fx f;
  fx_open(&f, &config);
  fx_submit(&f, 0, 40, 50, 1);
  fx_step(&f);
  fx_submit(&f, 1, 40, 50, 1);
  assert_true(fx_plan(&f));
  fx_row(&f, 1, 1, 8, 40);
  assert_int_equal(fx_page(&f, 0, 0), fx_page(&f, 1, 0));
  assert_int_equal(fx_page(&f, 0, 1), fx_page(&f, 1, 1));
  assert_int_not_equal(fx_page(&f, 0, 2), fx_page(&f, 1, 2)); /* still being written, so each has its own */
  fx_commit(&f, 0);
  assert_int_equal(fx_stats(&f).pages_owned, 4);
  fx_close(&f);
}

static void pages_computed_twice_at_once_become_one(void **state)
{
  static fx f;
  fx_open(&f, &config);
  fx_submit(&f, 0, 32, 50, 1);
  fx_submit(&f, 1, 32, 50, 1);
  assert_true(fx_plan(&f));
  assert_int_equal(fx_stats(&f).pages_owned, 4);
  int32_t own = fx_page(&f, 1, 0);
  assert_int_not_equal(fx_page(&f, 0, 0), own);
  fx_commit(&f, 0);
  assert_int_equal(fx_stats(&f).pages_owned, 2);
  assert_true(fx_plan(&f));
  assert_int_equal(fx_page(&f, 0, 0), fx_page(&f, 1, 0));
  assert_int_equal(fx_page(&f, 0, 1), fx_page(&f, 1, 1));
  assert_int_equal(f.plan->n_page_updates, 4); /* two switched pages, and a new page for each decode */
  assert_int_equal(f.plan->page_updates[0].index, f.plan->rows[1].page_table_offset);
  assert_int_equal(f.plan->page_updates[0].page_id, fx_page(&f, 0, 0));
  fx_commit(&f, 0);
  fx_close(&f);
}

static void the_youngest_is_preempted_and_goes_on(void **state)
{
  static fx f;
  td_sched_config c = config;
  c.n_pages = 8;
  c.max_context_tokens = 128;
  c.slack_percent = 100;
  fx_open(&f, &c);
  fx_submit(&f, 0, 16, 80, 1); /* 6 pages in the end */
  fx_submit(&f, 1, 16, 80, 2); /* as many */
  assert_true(td_sched_slot(f.s, 1).is_light);
  bool preempted = false;
  while (!preempted) {
    fx_step(&f);
    assert_false(td_sched_slot(f.s, 0).n_preemptions);
    preempted = td_sched_slot(f.s, 1).n_preemptions;
  }
  td_sched_slot_info info = td_sched_slot(f.s, 1);
  assert_false(info.running);
  assert_false(info.is_light); /* it has 65 tokens to compute again, and the limit is 32 */
  assert_int_equal(info.n_computed, 0);
  assert_int_equal(info.n_generated,
                   49); /* 4 pages each hold 64 tokens; 16 + 48 computed, one more sampled */
  assert_int_equal(fx_stats(&f).preemptions, 1);
  assert_int_equal(fx_stats(&f).pages_cached, 3); /* its 4 whole pages, minus the evicted one */
  assert_int_equal(fx_stats(&f).n_waiting, 1);

  while (!td_sched_slot(f.s, 1).running)
    fx_step(&f);
  assert_true(f.plan->n_rows == 1 && f.plan->rows[0].slot == 1); /* alone, because the other has ended */
  info = td_sched_slot(f.s, 1);
  assert_int_equal(f.plan->rows[0].kv_len, 65); /* the prompt and the generated tokens, as one prompt */
  assert_true(f.plan->rows[0].q_len < 65);      /* some of its pages were still there */
  assert_int_equal(info.n_cached_prompt, 0);    /* the value of the first admission */
  fx_run_dry(&f);
  for (int32_t i = 0; i < 80; i++) {
    assert_int_equal(f.tokens[0][16 + i], 100 + i);
    assert_int_equal(f.tokens[1][16 + i], 200 + i);
  }
  assert_int_equal(fx_stats(&f).pages_owned, 0);
  fx_close(&f);
}

/* Cached pages are evicted before any request is preempted, and a running prompt keeps its promised pages. */
static void the_cache_makes_room_first(void **state)
{
  static fx f;
  td_sched_config c = config;
  c.n_pages = 12;
  fx_open(&f, &c);
  fx_submit(&f, 0, 160, 1, 1);
  fx_run_dry(&f);
  assert_int_equal(fx_stats(&f).pages_cached, 10);
  fx_submit(&f, 1, 80, 100, 2);
  fx_run_dry(&f);
  assert_int_equal(fx_stats(&f).preemptions, 0);
  assert_true(fx_stats(&f).evicted_pages >= 9);
  fx_close(&f);
}

static void what_does_not_fit_yet_waits(void **state)
{
  static fx f;
  td_sched_config c = config;
  c.n_pages = 10;
  fx_open(&f, &c);
  fx_submit(&f, 0, 80, 20, 1);  /* 5 pages, then 7 */
  fx_submit(&f, 1, 100, 20, 2); /* 7 pages */
  fx_submit(&f, 2, 5, 20, 3);   /* would fit, but is younger */
  fx_step(&f);
  assert_true(td_sched_slot(f.s, 0).running);
  assert_false(td_sched_slot(f.s, 1).running);
  assert_false(td_sched_slot(f.s, 2).running);
  fx_run_dry(&f);
  assert_int_equal(fx_stats(&f).preemptions, 0);
  fx_close(&f);
}

/* A plan has room for a limited number of entries from hits; the next plan admits the rest. */
static void long_hits_spread_over_plans(void **state)
{
  enum { N = 1600 * 16 };
  static int32_t tokens[4][N + 3];
  static fx f;
  td_error err;
  td_sched_config c = config;
  c.n_pages = 1700;
  c.max_context_tokens = N + 100;
  c.step_tokens = 4096;
  fx_open(&f, &c);
  for (uint32_t i = 0; i < 4; i++) {
    for (uint32_t k = 0; k <= N; k++)
      tokens[i][k] = (int32_t)k;
    td_sched_request r = {.tokens = tokens[i], .n_prompt = N + 1, .max_new = i == 0 ? 1 : 2};
    assert_int_equal(td_sched_submit(f.s, i, &r, 1, &err), TD_OK);
    if (i == 0)
      fx_run_dry(&f);
  }
  assert_true(fx_plan(&f));
  assert_int_equal(f.plan->n_rows, 2);
  assert_int_equal(f.plan->n_page_updates, 2 * 1601);
  fx_commit(&f, 0);
  assert_true(fx_plan(&f));
  assert_int_equal(f.plan->n_rows, 3);
  assert_int_equal(f.plan->n_page_updates, 1601);
  fx_commit(&f, 0);
  fx_run_dry(&f);
  assert_int_equal(fx_stats(&f).pages_owned, 0);
  fx_close(&f);
}

static void cancel_in_every_state(void **state)
{
  static fx f;
  fx_open(&f, &config);
  fx_submit(&f, 0, 100, 10, 1);
  td_sched_cancel(f.s, 0); /* waiting, never run */
  td_sched_check(f.s);
  assert_false(fx_plan(&f));

  fx_submit(&f, 0, 100, 10, 1);
  fx_submit(&f, 1, 100, 10, 2);
  fx_submit(&f, 2, 100, 10, 3);
  fx_step(&f);
  td_sched_cancel(f.s, 0); /* during prefill: its 4 computed pages stay in the tree */
  td_sched_check(f.s);
  assert_int_equal(fx_stats(&f).pages_cached, 4);
  assert_int_equal(fx_stats(&f).pages_owned, 0);

  fx_step(&f);
  fx_step(&f);
  assert_int_equal(td_sched_slot(f.s, 1).n_generated, 1);
  td_sched_cancel(f.s, 1); /* decoding */
  td_sched_check(f.s);
  td_sched_cancel(f.s, 2);
  td_sched_check(f.s);
  assert_false(fx_plan(&f));
  assert_int_equal(fx_stats(&f).pages_owned, 0);
  assert_int_equal(fx_stats(&f).n_waiting, 0);
  fx_close(&f);
}

static void cancel_after_preemption(void **state)
{
  static fx f;
  td_sched_config c = config;
  c.n_pages = 8;
  c.max_context_tokens = 128;
  fx_open(&f, &c);
  fx_submit(&f, 0, 16, 80, 1);
  fx_submit(&f, 1, 16, 80, 2);
  while (td_sched_slot(f.s, 1).n_preemptions == 0)
    fx_step(&f);
  td_sched_cancel(f.s, 1);
  td_sched_check(f.s);
  fx_run_dry(&f);
  assert_int_equal(fx_stats(&f).pages_owned, 0);
  fx_close(&f);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_prompt_seen_before_is_not_computed_again),
      cmocka_unit_test(namespaces_share_nothing),
      cmocka_unit_test(answers_are_found_by_the_next_turn),
      cmocka_unit_test(kv_that_decodes_share_counts_once),
      cmocka_unit_test(a_prompt_is_shared_while_it_runs),
      cmocka_unit_test(pages_computed_twice_at_once_become_one),
      cmocka_unit_test(the_youngest_is_preempted_and_goes_on),
      cmocka_unit_test(the_cache_makes_room_first),
      cmocka_unit_test(what_does_not_fit_yet_waits),
      cmocka_unit_test(long_hits_spread_over_plans),
      cmocka_unit_test(cancel_in_every_state),
      cmocka_unit_test(cancel_after_preemption),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
