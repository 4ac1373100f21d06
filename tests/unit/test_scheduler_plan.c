/* The contents of a step: decodes first, chunks that fill the budget, ends of requests, refusals. */
#include "test_scheduler_fixture.h"

#include "scheduler/cost_model.h"

static const td_sched_config config = {.n_slots = FX_SLOTS,
                                       .max_running = 4,
                                       .step_tokens = 64,
                                       .page_tokens = 16,
                                       .n_pages = 100,
                                       .max_context_tokens = 1024};

static void chunks_fill_the_budget(void **state)
{
  static fx f;
  fx_open(&f, &config);
  assert_false(fx_plan(&f));
  fx_submit(&f, 0, 100, 3, 1);
  fx_submit(&f, 1, 30, 3, 2);
  fx_submit(&f, 2, 10, 3, 3);

  assert_true(fx_plan(&f)); /* the oldest prompt takes the whole budget */
  assert_int_equal(f.plan->step, 1);
  assert_int_equal(f.plan->n_rows, 1);
  fx_row(&f, 0, 0, 64, 64);
  assert_int_equal(f.plan->n_logits, 0);
  assert_int_equal(f.plan->n_page_updates, 4);
  assert_int_equal(f.plan->token_ids[63], 10063);
  fx_commit(&f, 0);

  assert_true(fx_plan(&f)); /* two prompts share a step; the second is cut */
  assert_int_equal(f.plan->n_rows, 2);
  fx_row(&f, 0, 0, 36, 100);
  fx_row(&f, 1, 1, 28, 28);
  assert_int_equal(f.plan->n_logits, 1);
  assert_int_equal(f.plan->logits[0].row, 0);
  assert_int_equal(f.plan->positions[0], 64);
  assert_int_equal(f.plan->token_ids[36], 20000);
  fx_commit(&f, 0);

  assert_true(fx_plan(&f)); /* a decode, the rest of a prompt, a whole prompt */
  assert_int_equal(f.plan->n_rows, 3);
  assert_int_equal(f.plan->n_decode_rows, 1);
  assert_int_equal(f.plan->n_prefill_tokens, 12);
  fx_row(&f, 0, 0, 1, 101);
  fx_row(&f, 1, 1, 2, 30);
  fx_row(&f, 2, 2, 10, 10);
  assert_int_equal(f.plan->token_ids[0], 100);
  assert_int_equal(f.plan->positions[0], 100);
  assert_int_equal(f.plan->n_logits, 3);
  fx_commit(&f, 0);
  assert_int_equal(f.n_finished, 0);

  fx_step(&f); /* slot 0's third token */
  assert_int_equal(f.n_finished, 1);
  assert_int_equal(f.finished[0], 0);
  assert_int_equal(f.tokens[0][102], 102);
  fx_run_dry(&f);
  assert_int_equal(fx_stats(&f).pages_owned, 0);
  fx_close(&f);
}

static void a_decode_never_waits(void **state)
{
  static fx f;
  fx_open(&f, &config);
  for (uint32_t i = 0; i < 3; i++)
    fx_submit(&f, i, 5, 100, (int32_t)i);
  fx_step(&f);
  fx_submit(&f, 3, 700, 5, 9);
  for (uint32_t done = 0; done < 700; done += 61) {
    assert_true(fx_plan(&f));
    assert_int_equal(f.plan->n_decode_rows, 3);
    fx_row(&f, 3, 3, 700 - done < 61 ? 700 - done : 61, 700 - done < 61 ? 700 : done + 61);
    fx_commit(&f, 0);
  }
  assert_true(fx_plan(&f));
  assert_int_equal(f.plan->n_decode_rows, 4);
  fx_commit(&f, 0);
  fx_close(&f);
}

/* The smallest possible budget: a prompt still advances one token per step. */
static void a_prompt_never_starves(void **state)
{
  static fx f;
  td_sched_config c = config;
  c.step_tokens = c.max_running;
  fx_open(&f, &c);
  for (uint32_t i = 0; i < 3; i++) {
    fx_submit(&f, i, 1, 1000, (int32_t)i);
    fx_step(&f);
  }
  fx_submit(&f, 3, 20, 5, 9);
  for (uint32_t i = 0; i < 20; i++) {
    assert_true(fx_plan(&f));
    assert_int_equal(f.plan->n_decode_rows, 3);
    fx_row(&f, 3, 3, 1, i + 1);
    assert_int_equal(f.plan->rows[3].n_logits, i == 19);
    fx_commit(&f, 0);
  }
  fx_close(&f);
}

static void ends_by_stop_and_by_length(void **state)
{
  static fx f;
  fx_open(&f, &config);
  fx_submit(&f, 0, 5, 100, 1);
  fx_submit(&f, 1, 5, 2, 2);
  fx_step(&f);
  assert_int_equal(f.n_finished, 0);
  assert_true(fx_plan(&f));
  fx_commit(&f, 1u << 0);
  assert_int_equal(f.n_finished, 2);
  assert_int_equal(f.tokens[0][6], 101); /* the stop token is appended too */
  assert_int_equal(f.tokens[1][6], 201);
  assert_false(fx_plan(&f));
  fx_submit(&f, 0, 5, 1, 3); /* the slot is free again */
  fx_step(&f);
  assert_int_equal(f.n_finished, 1);
  fx_close(&f);
}

static void no_more_rows_than_max_running(void **state)
{
  static fx f;
  fx_open(&f, &config);
  for (uint32_t i = 0; i < 6; i++)
    fx_submit(&f, i, 3, 10, (int32_t)i);
  fx_step(&f);
  assert_int_equal(f.plan->n_rows, 4);
  assert_int_equal(fx_stats(&f).n_waiting, 2);
  assert_int_equal(fx_stats(&f).waiting_prompt_tokens, 6);
  assert_true(td_sched_slot(f.s, 3).running);
  assert_false(td_sched_slot(f.s, 4).running);
  assert_int_equal(td_sched_slot(f.s, 4).first_run_us, 0);
  fx_run_dry(&f);
  fx_close(&f);
}

static void refuses_what_could_never_fit(void **state)
{
  static fx f;
  td_error err;
  td_sched_config c = config;
  c.n_pages = 10; /* 160 tokens */
  fx_open(&f, &c);
  assert_int_equal(fx_submit_in(&f, 0, 160, 1, 1, 0, 0, &err), TD_ERR_REQUEST);
  assert_string_equal(err.param, "prompt");
  assert_non_null(strstr(err.message, "159"));
  assert_int_equal(fx_submit_in(&f, 0, 100, 61, 1, 0, 0, &err), TD_ERR_REQUEST);
  assert_string_equal(err.param, "max_tokens");
  assert_non_null(strstr(err.message, "1 to 60"));
  assert_int_equal(fx_submit_in(&f, 0, 0, 1, 1, 0, 0, &err), TD_ERR_REQUEST);
  assert_int_equal(fx_submit_in(&f, 0, 1, 0, 1, 0, 0, &err), TD_ERR_REQUEST);
  assert_int_equal(fx_submit_in(&f, 0, 100, UINT32_MAX, 1, 0, 0, &err), TD_ERR_REQUEST);
  assert_int_equal(fx_submit_in(&f, 0, UINT32_MAX, UINT32_MAX, 1, 0, 0, &err), TD_ERR_REQUEST);
  assert_false(fx_plan(&f));
  fx_submit(&f, 0, 100, 60, 1); /* the whole pool */
  fx_run_dry(&f);
  assert_int_equal(f.tokens[0][159], 159);
  fx_close(&f);
}

static void refuses_bad_configurations(void **state)
{
  static const td_sched_config bad[] = {
      {.n_slots = 0,
       .max_running = 4,
       .step_tokens = 64,
       .page_tokens = 16,
       .n_pages = 9,
       .max_context_tokens = 99},
      {.n_slots = 8,
       .max_running = 0,
       .step_tokens = 64,
       .page_tokens = 16,
       .n_pages = 9,
       .max_context_tokens = 99},
      {.n_slots = 8,
       .max_running = 65,
       .step_tokens = 64,
       .page_tokens = 16,
       .n_pages = 9,
       .max_context_tokens = 99},
      {.n_slots = 8,
       .max_running = 4,
       .step_tokens = 64,
       .page_tokens = 17,
       .n_pages = 9,
       .max_context_tokens = 99},
      {.n_slots = 8,
       .max_running = 4,
       .step_tokens = 64,
       .page_tokens = 16,
       .n_pages = 0,
       .max_context_tokens = 99},
      {.n_slots = 8,
       .max_running = 4,
       .step_tokens = 64,
       .page_tokens = 16,
       .n_pages = 9,
       .max_context_tokens = 1},
      {.n_slots = 8,
       .max_running = 65536,
       .step_tokens = 65536,
       .page_tokens = 16,
       .n_pages = 1 << 20,
       .max_context_tokens = 1 << 24},
  };
  td_error err;
  td_sched *s;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_int_equal(td_sched_create(&bad[i], &s, &err), TD_ERR_CONFIG);
}

/* Slot wants the log-probabilities of its prompt's last n tokens. */
static void submit_scored(fx *f, uint32_t slot, uint32_t n_prompt, uint32_t n, uint32_t adapter)
{
  td_error err;
  td_sched_request r = {.tokens = f->tokens[slot],
                        .n_prompt = n_prompt,
                        .max_new = 3,
                        .n_prompt_logits = n,
                        .terms.adapter = adapter};
  for (uint32_t i = 0; i < n_prompt; i++)
    f->tokens[slot][i] = 10000 + (int32_t)i;
  assert_int_equal(td_sched_submit(f->s, slot, &r, ++f->now_us, &err), n < n_prompt ? TD_OK : TD_ERR_REQUEST);
}

/* An embedding needs every token: neither cached pages nor those of another prompt help. */
static void all_tokens_are_computed_where_they_are_wanted(void **state)
{
  static fx f;
  td_error err;
  fx_open(&f, &config);
  submit_scored(&f, 0, 40, 0, 0);
  assert_true(fx_plan(&f));
  fx_commit(&f, 0);
  td_sched_request r = {.tokens = f.tokens[1], .n_prompt = 40, .max_new = 1, .computes_all = true};
  memcpy(f.tokens[1], f.tokens[0], 40 * sizeof **f.tokens);
  memcpy(f.tokens[2], f.tokens[0], 40 * sizeof **f.tokens);
  assert_int_equal(td_sched_submit(f.s, 1, &r, ++f.now_us, &err), TD_OK);
  r.tokens = f.tokens[2];
  assert_int_equal(td_sched_submit(f.s, 2, &r, ++f.now_us, &err), TD_OK);
  assert_true(fx_plan(&f));
  for (uint32_t i = 1; i < 3; i++) {
    assert_int_equal(td_sched_slot(f.s, i).n_cached_prompt, 0);
    assert_int_equal(f.plan->rows[i].q_len, f.plan->rows[i].kv_len);
  }
  fx_commit(&f, 0);
  fx_close(&f);
}

static void chunks_that_want_logits_are_cut(void **state)
{
  static fx f;
  td_sched_config c = config;
  c.prompt_logits = 7;
  fx_open(&f, &c);
  submit_scored(&f, 0, 40, 40, 0); /* before the first token there is none */
  submit_scored(&f, 0, 40, 20, 0);
  submit_scored(&f, 1, 40, 39, 7);
  assert_true(fx_plan(&f)); /* tokens 19 to 26 of the first, and one of the second: the room is used up */
  fx_row(&f, 0, 0, 27, 27);
  fx_row(&f, 1, 1, 1, 1);
  assert_int_equal(f.plan->rows[0].n_logits, 8);
  assert_int_equal(f.plan->n_logits, 9);
  assert_int_equal(f.plan->n_scored, 9);
  assert_int_equal(f.plan->rows[1].adapter, 7);
  for (uint32_t i = 0; i < 8; i++) {
    assert_int_equal(f.plan->logits[i].token, 19 + i);
    assert_int_equal(f.plan->logits[i].target, 10020 + i); /* the token that follows */
  }
  fx_commit(&f, 0);
  for (uint32_t end = 35; end <= 40; end += 5) { /* the elder has its quarter of the logits too */
    assert_true(fx_plan(&f));
    assert_int_equal(f.plan->rows[0].slot, 0);
    assert_true(f.plan->n_logits <= c.prompt_logits + f.plan->n_rows);
    fx_commit(&f, 0);
  }
  assert_int_equal(td_sched_slot(f.s, 0).n_generated, 1);
  fx_run_dry(&f);
  fx_close(&f);
}

/* Cached pages do not spare tokens whose logits are needed; and pages of another adapter are different pages.
 */
static void scored_tokens_take_no_hits(void **state)
{
  static fx f;
  td_sched_config c = config;
  c.prompt_logits = 64;
  fx_open(&f, &c);
  submit_scored(&f, 0, 60, 0, 0);
  fx_run_dry(&f);
  submit_scored(&f, 0, 60, 20, 0); /* token 39 is the first */
  assert_true(fx_plan(&f));
  fx_row(&f, 0, 0, 60 - 32, 60);
  assert_int_equal(f.plan->n_logits, 21);
  assert_int_equal(f.plan->logits[0].target, 10040);
  assert_int_equal(f.plan->logits[20].target, TD_SAMPLE_HERE);
  fx_commit(&f, 1);
  submit_scored(&f, 0, 60, 0, 3);
  assert_true(fx_plan(&f));
  fx_row(&f, 0, 0, 60, 60);
  fx_commit(&f, 1);
  fx_close(&f);
}

/* Its token is computed again; the others go on, also in a step that was planned ahead. */
static void a_late_row_is_computed_again(void **state)
{
  static fx f;
  td_plan *next;
  td_error err;
  int32_t sampled[2] = {5, 6};
  uint8_t verdict[2] = {TD_TOKEN_GOES_ON, TD_TOKEN_LATE}, late[2] = {0, 1};
  fx_open(&f, &config);
  assert_int_equal(td_sched_plan_create(f.s, &next, &err), TD_OK);
  fx_submit(&f, 0, 15, 9, 1);
  fx_submit(&f, 1, 16, 9, 2); /* ends with a page */
  assert_true(fx_plan(&f));
  assert_false(td_sched_may_plan_ahead(f.s, f.plan, late)); /* a prompt is computed on */
  td_sched_commit(f.s, f.plan, sampled, verdict, f.finished, &f.n_finished);
  td_sched_check(f.s);
  assert_true(fx_plan(&f));
  fx_row(&f, 0, 0, 1, 16);
  fx_row(&f, 1, 1, 1, 16);
  assert_int_equal(f.plan->token_ids[1], 20015);
  td_sched_commit(f.s, f.plan, sampled, (uint8_t[]){0, 0}, f.finished, &f.n_finished);
  assert_true(fx_plan(&f));
  fx_row(&f, 1, 1, 1, 17);
  assert_true(td_sched_may_plan_ahead(f.s, f.plan, late));
  td_sched_plan_ahead(f.s, f.plan, late, next);
  td_sched_check(f.s);
  assert_int_equal(next->token_ids[0], -1);
  assert_int_equal(next->rows[0].kv_len, 18);
  assert_int_equal(next->token_ids[1], 6);
  assert_int_equal(next->positions[1], 16);
  assert_int_equal(next->rows[1].kv_len, 17);
  td_sched_commit(f.s, f.plan, sampled, verdict, f.finished, &f.n_finished);
  td_sched_check(f.s);
  td_sched_commit(f.s, next, sampled, (uint8_t[]){0, 0}, f.finished, &f.n_finished);
  td_sched_check(f.s);
  assert_int_equal(td_sched_slot(f.s, 0).n_generated, 4);
  assert_int_equal(td_sched_slot(f.s, 1).n_generated, 2);
  td_plan_destroy(next);
  fx_close(&f);
}

/* Places of prompts follow from their times, 1 ms per token. */
static void open_with_places(fx *f)
{
  td_sched_config c = config;
  c.slack_percent = 100;
  c.prompt_ns_per_token = 1000000;
  fx_open(f, &c);
}

/* Two late prompts with equally much left: the one that was started first is first; if the other has a token
 * less, it is. */
static void of_equals_the_first_started_goes_on(void **state)
{
  for (uint32_t less = 0; less < 2; less++) {
    static fx f;
    open_with_places(&f);
    fx_submit(&f, 0, 64 + 200, 1, 1);
    fx_step(&f);
    fx_submit(&f, 1, 200 - less, 1, 2);
    f.now_us += 10000000;
    assert_true(fx_plan(&f));
    assert_int_equal(f.plan->rows[0].slot, less);
    fx_commit(&f, 0);
    fx_run_dry(&f);
    fx_close(&f);
  }
}

/* A long front with others behind it is started by a page, beside a longer prompt, once its time has passed,
 * but not at that exact moment. */
static void way_is_made_behind_time(void **state)
{
  for (uint32_t late = 0; late < 2; late++) {
    static fx f;
    open_with_places(&f);
    fx_submit(&f, 0, 64 + 200, 1, 1);
    fx_step(&f);
    fx_submit(&f, 1, 300, 1, 2);
    fx_submit(&f, 2, 300, 1, 3);
    f.now_us = (uint64_t)td_sched_slot(f.s, 1).place_us - 1 + late;
    assert_true(fx_plan(&f));
    assert_int_equal(f.plan->n_rows, 1 + late);
    fx_row(&f, 0, late, late ? config.page_tokens : config.step_tokens,
           late ? config.page_tokens : 2 * config.step_tokens);
    fx_commit(&f, 0);
    fx_run_dry(&f);
    fx_close(&f);
  }
}

/* If the logits of every token are needed, a hit saves no time: the place in the queue is that of the whole
 * prompt. */
static void a_place_counts_what_is_computed(void **state)
{
  for (int all = 0; all < 2; all++) {
    static fx f;
    td_error err;
    open_with_places(&f);
    submit_scored(&f, 0, 40, 0, 0);
    fx_run_dry(&f);
    td_sched_request r = {.tokens = f.tokens[0], .n_prompt = 40, .max_new = 1, .computes_all = all};
    assert_int_equal(td_sched_submit(f.s, 0, &r, f.now_us, &err), TD_OK);
    assert_int_equal(td_sched_slot(f.s, 0).place_us, f.now_us + (all ? 40000 : 8000));
    fx_run_dry(&f);
    fx_close(&f);
  }
}

/* Each request with a long cached prefix costs a walk along it: after some thousand pages, the others wait
 * for the next step. */
static void look_ups_have_a_bound(void **state)
{
  enum { PAGES = 2100, LONG = PAGES * 16, WAITING = 5, TOKENS = LONG + 400 };
  static int32_t tokens[WAITING + 1][TOKENS];
  static fx f;
  td_error err;
  td_sched_config c = config;
  c.n_pages = 4 * PAGES;
  c.max_context_tokens = TOKENS;
  c.step_tokens = LONG + 100;
  c.coalesces = true;
  fx_open(&f, &c);
  for (uint32_t slot = 0; slot <= WAITING; slot++)
    for (int32_t i = 0; i < TOKENS; i++)
      tokens[slot][i] = i;
  td_sched_request r = {.tokens = tokens[WAITING], .n_prompt = LONG + 1, .max_new = 1};
  assert_int_equal(td_sched_submit(f.s, WAITING, &r, ++f.now_us, &err), TD_OK);
  fx_run_dry(&f);                                   /* the prefix is cached */
  for (uint32_t slot = 0; slot < WAITING; slot++) { /* the first computes the next pages, others follow it */
    r = (td_sched_request){.tokens = tokens[slot], .n_prompt = TOKENS - 1, .max_new = 1};
    assert_int_equal(td_sched_submit(f.s, slot, &r, ++f.now_us, &err), TD_OK);
  }
  assert_true(fx_plan(&f));
  assert_int_equal(f.plan->n_rows, 1);
  assert_int_equal(fx_stats(&f).n_following, 1); /* two walks of 2,100 pages, and no more in this step */
  fx_commit(&f, 0);
  fx_run_dry(&f);
  fx_close(&f);
}

/* Under every policy predictions are valid times, even if a step of whole prompts has no room for one more.
 */
static void every_policy_foretells(void **state)
{
  for (int policy = 0; policy < TD_POLICY_COUNT; policy++) {
    static fx f;
    td_sched_config c = config;
    c.policy = (td_policy)policy;
    c.cost = &td_cost_h200_llama3_8b;
    c.step_tokens = c.max_context_tokens + c.max_running - 1;
    fx_open(&f, &c);
    fx_submit(&f, 0, 30, 50, 1);
    fx_step(&f);
    fx_submit(&f, 1, 30, 50, 2);
    td_sched_forecast t = td_sched_make_forecast(f.s);
    const double times[] = {t.start_us, t.next_end_us, t.prompt_token_us, t.step_us};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
      assert_true(times[i] > 0 && times[i] < 1e9);
    assert_true(t.start_us == td_sched_forecast_start_us(f.s));
    fx_run_dry(&f);
    fx_close(&f);
  }
}

/* A check between two plans causes no new refusal. A prompt ends, and among the waiting ones, the light one,
 * which precedes the longer one while that is computed, is known to lack pages. */
static void a_check_changes_no_plan(void **state)
{
  static fx f;
  td_sched_config c = config;
  c.step_tokens = 2048;
  c.n_pages = 42;
  c.slack_percent = 100;
  c.prompt_ns_per_token = 50000;
  c.max_context_tokens = 1024;
  fx_open(&f, &c);
  fx_submit(&f, 0, 512, 20, 1);
  fx_submit(&f, 1, 600, 20, 2);
  f.now_us = 1000000;
  fx_submit(&f, 2, 200, 20, 3);
  assert_true(td_sched_slot(f.s, 2).is_light && !td_sched_slot(f.s, 1).is_light);
  assert_true(td_sched_slot(f.s, 1).place_us < td_sched_slot(f.s, 2).place_us);
  assert_true(fx_plan(&f));
  assert_int_equal(f.plan->n_rows, 1);
  fx_row(&f, 0, 0, 512, 512);
  assert_true(td_sched_may_plan_ahead(f.s, f.plan, NULL));
  fx_close(&f);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(chunks_fill_the_budget),
      cmocka_unit_test(a_decode_never_waits),
      cmocka_unit_test(a_prompt_never_starves),
      cmocka_unit_test(ends_by_stop_and_by_length),
      cmocka_unit_test(no_more_rows_than_max_running),
      cmocka_unit_test(refuses_what_could_never_fit),
      cmocka_unit_test(refuses_bad_configurations),
      cmocka_unit_test(chunks_that_want_logits_are_cut),
      cmocka_unit_test(all_tokens_are_computed_where_they_are_wanted),
      cmocka_unit_test(scored_tokens_take_no_hits),
      cmocka_unit_test(a_late_row_is_computed_again),
      cmocka_unit_test(of_equals_the_first_started_goes_on),
      cmocka_unit_test(way_is_made_behind_time),
      cmocka_unit_test(every_policy_foretells),
      cmocka_unit_test(look_ups_have_a_bound),
      cmocka_unit_test(a_place_counts_what_is_computed),
      cmocka_unit_test(a_check_changes_no_plan),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
