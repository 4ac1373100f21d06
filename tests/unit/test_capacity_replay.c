/* The simulator on cases whose times can be worked out by hand; and the same load gives the same run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "capacity/device.h"
#include "capacity/search.h"

#define NEAR(a, b, tolerance) assert_true(fabs((double)(a) - (double)(b)) <= (tolerance)*fabs((double)(b)))
/* A histogram's percentile is right to 0.1 %. */
#define ABOUT(a, b) NEAR(a, b, 1e-3)

/* A millisecond a step, whatever is in it. */
static const td_cost_model constant = {.n_points = 1, .tokens = {1}, .tokens_us = {1000}};

static td_replay_config make_config(const td_cost_model *cost, uint32_t max_running, uint32_t step_tokens)
{
  return (td_replay_config){.daemon = {.sched = {.n_slots = 8,
                                                 .max_running = max_running,
                                                 .step_tokens = step_tokens,
                                                 .page_tokens = 16,
                                                 .n_pages = 64,
                                                 .max_context_tokens = 512,
                                                 .policy = TD_POLICY_SARATHI},
                                       .cost = cost},
                            .n_replicas = 1,
                            .speed = 1,
                            .slo = {INFINITY, INFINITY, INFINITY}};
}

static void add(td_load *l, double due_ms, uint64_t seed, uint32_t n_in, uint32_t n_out)
{
  td_load_add_request(l, due_ms / 1e3, n_out);
  td_load_add_segment(l, seed, n_in);
}

static td_replay_result run(const td_load *l, const td_replay_config *c, td_sim_result **results)
{
  td_replay_result r;
  td_error err;
  assert_int_equal(td_replay_with_results(l, c, &r, results, &err), TD_OK);
  return r;
}

static void test_histogram(void **state)
{
  td_log_histogram s = {0};
  assert_true(isnan(td_log_histogram_quantile(&s, 0.5)));
  for (int i = 1; i <= 1000; i++)
    td_log_histogram_add(&s, i * 0.37, 1);
  ABOUT(td_log_histogram_quantile(&s, 0.5), 500.5 * 0.37);
  ABOUT(td_log_histogram_quantile(&s, 0.99), 990.01 * 0.37);
  assert_true(td_log_histogram_quantile(&s, 1) == 370 && td_log_histogram_quantile(&s, 0) == 0.37);
  td_log_histogram_add(&s, 5e5, 9000); /* nine tenths of all */
  td_stats_summary sum = td_log_histogram_summary(&s);
  assert_int_equal(sum.n, 10000);
  ABOUT(sum.p50, 5e5);
  ABOUT(td_log_histogram_quantile(&s, 0.05), 500.95 * 0.37);
  NEAR(sum.mean, (0.37 * 500500 + 9000 * 5e5) / 10000, 1e-12);
  td_log_histogram_deinit(&s);
  td_log_histogram_add(&s, 100, 1);
  td_log_histogram_add(&s, 200, 1);
  td_log_histogram_add(&s, 600, 1);
  ABOUT(td_log_histogram_quantile(&s, 0.25), 150); /* between two ranks, as in tandem-bench */
  ABOUT(td_log_histogram_quantile(&s, 0.95), 560);
  td_log_histogram_deinit(&s);
  td_log_histogram_add(&s, 0, 3);
  td_log_histogram_add(&s, 1e300, 1);
  assert_true(td_log_histogram_quantile(&s, 0) == 0 && td_log_histogram_quantile(&s, 1) > 1e11);
  td_log_histogram_deinit(&s);
}

/* The prompt in one step, then a step a token. */
static void test_one_request(void **state)
{
  td_load l = {0};
  td_sim_result *results;
  td_replay_config c = make_config(&constant, 4, 64);
  add(&l, 2, 1, 10, 3);
  td_replay_result r = run(&l, &c, &results);
  assert_true(results[0].first_us == 3000 && results[0].end_us == 5000 && results[0].first_run_us == 2000);
  assert_int_equal(r.m.n_done, 1);
  assert_int_equal(r.n_steps, 3);
  ABOUT(r.m.ttft.p50, 1);
  ABOUT(r.m.tbt.p99, 1);
  assert_int_equal(r.m.tbt.n, 2);
  NEAR(r.end_s, 0.005, 1e-12);
  NEAR(r.busy_share, 3.0 / 5, 1e-12);
  NEAR(r.m.out_tokens_per_s, 3 / 0.005, 1e-12);
  NEAR(r.m.in_and_out_tokens_per_s, 13 / 0.005, 1e-12);
  assert_true(r.kv_most_share == 1.0 / 64);
  free(results);
  td_load_deinit(&l);
}

/* The cost model's parts: 10 tokens at 100 us each, decodes at 7 us a token of KV, pairs at 3 us. */
static void test_step_times(void **state)
{
  const td_cost_model m = {.n_points = 2,
                           .tokens = {1, 101},
                           .tokens_us = {100, 10100},
                           .decode_us_per_kv_token = 7,
                           .prefill_us_per_pair = 3};
  td_load l = {0};
  td_sim_result *results;
  td_replay_config c = make_config(&m, 4, 64);
  add(&l, 0, 1, 10, 3);
  run(&l, &c, &results);
  double first = 10 * 100 + 3 * 55, second = 100 + 7 * 11, third = 100 + 7 * 12;
  NEAR(results[0].first_us, first, 1e-12);
  NEAR(results[0].end_us, first + second + third, 1e-12);
  NEAR(results[0].longest_tbt_us, third, 1e-12);
  free(results);
  td_load_deinit(&l);
}

/* Two streams with requests of three steps: the next is due when one has ended. If there are more requests
 * than places, streams do not notice; a refused request makes room immediately. */
static void test_closed_streams(void **state)
{
  td_load l = {0};
  td_sim_result *results;
  td_replay_config c = make_config(&constant, 4, 64);
  c.n_streams = 2;
  for (uint64_t i = 0; i < 5; i++)
    add(&l, 7, 1 + i, 10, 3); /* their moments are not looked at */
  add(&l, 0, 9, 600, 1);      /* longer than the context */
  td_replay_result r = run(&l, &c, &results);
  for (size_t i = 0; i < 5; i++)
    assert_true(results[i].due_us == 3000.0 * (double)(i / 2) &&
                results[i].end_us == results[i].due_us + 3000);
  assert_int_equal(results[5].result, TD_RESULT_HTTP_4XX);
  assert_true(results[5].due_us == 6000);
  assert_true(r.m.n_sent == 6 && r.m.n_done == 5);
  NEAR(r.m.out_tokens_per_s, 15 / 0.009, 1e-12);
  NEAR(r.mean_decode_rows, 10 / 9.0, 1e-12);
  ABOUT(r.m.ttft.p99, 1);
  free(results);
  c.n_streams = 100; /* all at once; four rows */
  r = run(&l, &c, &results);
  for (size_t i = 0; i < 5; i++)
    assert_true(results[i].due_us == 0);
  NEAR(r.end_s, 0.006, 1e-12);
  free(results);
  td_load_deinit(&l);
}

/* Two warm-up requests whose prompts are sent again: their times are in no figure. */
static void test_warm_requests(void **state)
{
  td_load l = {0};
  td_replay_config c = make_config(&constant, 4, 64);
  c.n_streams = 2;
  c.n_warm = 2;
  add(&l, 0, 1, 32, 1);
  add(&l, 0, 2, 48, 5);
  add(&l, 0, 1, 32, 3);
  add(&l, 0, 2, 48, 3);
  td_sim_result *results;
  td_replay_result r = run(&l, &c, &results);
  assert_true(results[1].end_us > results[0].end_us && results[2].due_us == results[1].end_us);
  assert_true(results[3].due_us == results[1].end_us);
  assert_true(r.m.n_sent == 2 && r.m.n_done == 2 && r.n_steps == 3 && r.m.tokens_out == 6);
  assert_int_equal(r.m.ttft.n, 2);
  assert_int_equal(r.m.tokens_in, 80);
  NEAR(r.m.seconds, 0.003, 1e-12);
  NEAR(r.m.out_tokens_per_s, 6 / 0.003, 1e-12);
  NEAR(r.busy_share, 1, 1e-12);
  NEAR(r.prefix_hit_share, 48 / 80.0,
       1e-12); /* the last token of a prompt is always computed, with its page */
  free(results);
  td_load_deinit(&l);
}

/* At most two rows and four tokens per step: A's prompt of 10 takes 4 + 4 + 2; B, of 5, arrives at 1.5 ms.
 * Steps of 1 ms: 1: A4 2: A4 3: A2 B2 (A's first token) 4: A B3 (B's first) 5: A B ... */
static void test_chunks(void **state)
{
  td_load l = {0};
  td_sim_result *results;
  td_replay_config c = make_config(&constant, 2, 4);
  add(&l, 0, 1, 10, 4);
  add(&l, 1.5, 2, 5, 2);
  td_replay_result r = run(&l, &c, &results);
  assert_true(results[0].first_us == 3000 && results[0].end_us == 6000);
  assert_true(results[1].first_run_us == 2000 && results[1].first_us == 4000 && results[1].end_us == 5000);
  assert_int_equal(r.n_steps, 6);
  assert_int_equal(r.n_hybrid_steps, 1);
  ABOUT(r.queue_ms.max, 0.5);
  free(results);
  td_load_deinit(&l);
}

/* A decodes; B arrives during step 2, which lasts from 10 to 20 ms. It starts in step 3, unless that was
 * planned before B came, shortly before the end of step 2: then in step 4. */
static void test_planned_ahead(void **state)
{
  static const td_cost_model long_steps = {.n_points = 1, .tokens = {1}, .tokens_us = {10000}};
  for (int ahead = 0; ahead < 2; ahead++)
    for (int late = 0; late < 2; late++) {
      td_load l = {0};
      td_sim_result *results;
      td_replay_config c = make_config(&long_steps, 4, 64);
      c.daemon.ahead = ahead;
      add(&l, 0, 1, 10, 8);
      add(&l, late ? 19 : 15, 2, 10, 1);
      run(&l, &c, &results);
      assert_true(results[1].first_us == (ahead && late ? 40000 : 30000));
      assert_true(results[0].end_us == 80000);
      free(results);
      td_load_deinit(&l);
    }
}

static void test_host_time(void **state)
{
  td_load l = {0};
  td_sim_result *results;
  td_replay_config c = make_config(&constant, 4, 64);
  c.host_us = 10;
  add(&l, 0, 1, 10, 3);
  run(&l, &c, &results);
  assert_true(results[0].end_us == 3030);
  free(results);
  td_load_deinit(&l);
}

/* Steps without prompts take twice, steps with prompts three times as long as the model says. */
static void test_correction(void **state)
{
  td_load l = {0};
  td_sim_result *results;
  td_replay_config c = make_config(&constant, 4, 64);
  c.daemon.correction[0] = 2;
  c.daemon.correction[1] = 3;
  add(&l, 0, 1, 10, 3);
  run(&l, &c, &results);
  assert_true(results[0].first_us == 3000 && results[0].end_us == 7000);
  free(results);
  td_load_deinit(&l);
}

/* The same, kept with the calibration. Factors given by option, and a run's own slowdowns, replace it for the
 * kinds of steps that they have. */
static void test_learned(void **state)
{
  td_cost_model learned = constant;
  td_slowdown half = {0, 0.5};
  td_measured_steps only_with = {.slowdowns = {NULL, &half}, .n_slowdowns = {0, 1}};
  const struct {
    double correction[2];
    const td_measured_steps *measured_steps;
    double first_us, end_us;
  } cases[] = {{{0, 0}, NULL, 3000, 7000},
               {{1, 1}, NULL, 1000, 3000},
               {{5, 4}, NULL, 4000, 14000},
               {{0, 0}, &only_with, 500, 4500},
               {{1, 1}, &only_with, 500, 2500}};
  learned.learned[0] = 2;
  learned.learned[1] = 3;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    td_load l = {0};
    td_sim_result *results;
    td_replay_config c = make_config(&learned, 4, 64);
    memcpy(c.daemon.correction, cases[i].correction, sizeof cases[i].correction);
    c.daemon.measured_steps = cases[i].measured_steps;
    add(&l, 0, 1, 10, 3);
    run(&l, &c, &results);
    assert_true(results[0].first_us == cases[i].first_us && results[0].end_us == cases[i].end_us);
    free(results);
    td_load_deinit(&l);
  }
}

/* The scheduler knows from the start what the cost model has learned, and keeps it; factors given by option
 * it has to learn. */
static void test_who_knows_what_is_learned(void **state)
{
  for (int given = 0; given < 2; given++) {
    td_load l = {0};
    td_sim_result result = {0};
    td_tally tally = {0};
    td_sched_stats s[2];
    td_sim_daemon daemon;
    td_error err;
    td_cost_model learned = constant;
    td_replay_config c = make_config(&learned, 4, 64);
    learned.learned[0] = given ? 0 : 2;
    learned.learned[1] = given ? 0 : 3;
    c.daemon.correction[0] = given ? 2 : 0;
    c.daemon.correction[1] = given ? 3 : 0;
    c.daemon.sched.cost = &learned;
    add(&l, 0, 1, 10, 3);
    assert_int_equal(td_sim_daemon_init(&daemon, &c.daemon, &l, &result, &tally, &err), TD_OK);
    td_sched_get_stats(daemon.sched, &s[0]);
    td_sim_daemon_send(&daemon, 0, 0);
    for (double now_us = 0; td_sim_daemon_begin_step(&daemon, now_us);) {
      now_us += daemon.step_us;
      td_sim_daemon_end_step(&daemon, now_us);
    }
    td_sched_get_stats(daemon.sched, &s[1]);
    assert_true(result.end_us == 7000);
    for (int i = 0; i < 2; i++)
      assert_true(given ? s[i].cost_correction[0] < 1.1
                        : s[i].cost_correction[0] == 2 && s[i].cost_correction[1] == 3);
    assert_true(!given ||
                (s[0].cost_correction[0] == 1 && s[1].cost_correction[0] > 1 && s[1].cost_correction[1] > 1));
    td_sim_daemon_deinit(&daemon);
    td_tally_deinit(&tally);
    td_load_deinit(&l);
  }
}

/* At most one row: two simultaneous requests take turns on one daemon but not on two. */
static void test_replicas(void **state)
{
  for (uint32_t n = 1; n <= 2; n++) {
    td_load l = {0};
    td_sim_result *results;
    td_replay_config c = make_config(&constant, 1, 64);
    c.n_replicas = n;
    add(&l, 0, 1, 10, 3);
    add(&l, 0, 2, 10, 3);
    run(&l, &c, &results);
    assert_true(results[0].end_us == 3000 && results[1].end_us == (n == 1 ? 6000 : 3000));
    free(results);
    td_load_deinit(&l);
  }
}

static void test_shared_prefix(void **state)
{
  td_load l = {0};
  td_sim_result *results;
  td_replay_config c = make_config(&constant, 4, 256);
  for (int i = 0; i < 2; i++) {
    td_load_add_request(&l, i * 0.010, 2);
    td_load_add_segment(&l, 77, 64);                /* four pages */
    td_load_add_segment(&l, 100 + (uint64_t)i, 36); /* its own */
  }
  td_replay_result r = run(&l, &c, &results);
  NEAR(r.prefix_hit_share, 64.0 / 200, 1e-12);
  free(results);
  td_load_deinit(&l);
}

static void test_refusals(void **state)
{
  td_load l = {0};
  td_sim_result *results;
  td_replay_config c = make_config(&constant, 1, 64);
  c.daemon.sched.n_slots = 2;
  add(&l, 0, 1, 10, 3);
  add(&l, 0.1, 2, 510, 3); /* longer than the context */
  add(&l, 0.2, 3, 10, 3);
  add(&l, 0.3, 4, 10, 3); /* one runs, one waits */
  td_replay_result r = run(&l, &c, &results);
  assert_int_equal(results[1].result, TD_RESULT_HTTP_4XX);
  assert_int_equal(results[2].result, TD_RESULT_DONE);
  assert_int_equal(results[3].result, TD_RESULT_HTTP_429);
  assert_true(r.m.by_result[TD_RESULT_HTTP_4XX] == 1 && r.m.by_result[TD_RESULT_HTTP_429] == 1 &&
              r.m.n_done == 2 && !r.held);
  free(results);
  td_load_deinit(&l);
}

static void test_cut(void **state)
{
  td_load l = {0};
  td_sim_result *results;
  td_replay_config c = make_config(&constant, 1, 64);
  c.window_s = 0.004;
  c.drain_s = 0.0025;
  add(&l, 0, 1, 10, 3);
  add(&l, 0, 2, 10, 30);
  add(&l, 0, 3, 10, 1);
  td_replay_result r = run(&l, &c, &results);
  assert_true(r.m.n_done == 1 && r.m.by_result[TD_RESULT_UNFINISHED] == 2 && r.m.n_no_first_token == 1 &&
              !r.held);
  NEAR(r.end_s, 0.0065, 1e-12);
  NEAR(r.m.out_tokens_per_s, 4 / 0.004, 1e-12); /* the tokens of 1, 2, 3 and 4 ms */
  free(results);
  td_load_deinit(&l);
}

static td_load make_mixed(uint64_t seed, size_t n)
{
  td_load l = {0};
  td_load_spec spec = {.seed = seed,
                       .rate = 60,
                       .seconds = INFINITY,
                       .max_requests = n,
                       .in = {TD_LOAD_LOGNORMAL, 120, 100, 1, 400},
                       .out = {TD_LOAD_EXPONENTIAL, 20, 0, 1, 100}};
  td_load_make(&l, &spec);
  return l;
}

/* Equal to the last bit. Another order of hash buckets gives the same schedule. */
static void test_same_again(void **state)
{
  td_load l = make_mixed(5, 400);
  td_sim_result *results[2];
  td_replay_result r[2];
  memset(r, 0, sizeof r);
  for (int i = 0; i < 2; i++) {
    td_replay_config c = make_config(&constant, 8, 64);
    c.daemon.sched.hash_seed = (uint64_t)i * 12345;
    c.daemon.sched.n_slots = 400;
    c.daemon.ahead = true;
    c.n_replicas = 2;
    assert_int_equal(td_replay_with_results(&l, &c, &r[i], &results[i], NULL), TD_OK);
  }
  assert_true(r[0].m.n_done == 400 && r[0].m.tokens_out > 4000);
  assert_memory_equal(results[0], results[1], l.n * sizeof *results[0]);
  assert_true(r[0].n_steps == r[1].n_steps && r[0].end_s == r[1].end_s &&
              r[0].n_preemptions == r[1].n_preemptions);
  free(results[0]);
  free(results[1]);
  td_load_deinit(&l);
}

/* A small pool: requests are preempted, but all end with all their tokens. */
static void test_pressure(void **state)
{
  td_load l = make_mixed(6, 300);
  td_sim_result *results;
  td_replay_config c = make_config(&constant, 8, 64);
  c.daemon.sched.n_pages = 36;
  c.daemon.sched.n_slots = 300;
  c.speed = 10;
  td_replay_result r = run(&l, &c, &results);
  assert_true(r.m.n_done == 300 && r.n_preemptions > 0 && r.kv_most_share > 0.9 && r.n_evicted_pages > 0);
  for (size_t i = 0; i < l.n; i++)
    assert_int_equal(results[i].n_tokens, l.requests[i].n_out);
  free(results);
  td_load_deinit(&l);
}

/* One at a time, a millisecond each, at equal intervals: 1000 per second can be served and no more. */
/* Equal prompts at equal intervals, and once twenty together: the lengths of steps settle again. Otherwise,
 * if the length followed the queue with a delay, first tokens would alternate between early and late. */
static void test_lengths_settle(void **state)
{
  static const double rates[] = {2, 6, 9, 12, 14};
  enum { N = 400, BURST = 100, BURST_END = 120, SETTLED = 200, DRAINS = 380 };
  for (size_t k = 0; k < sizeof rates / sizeof *rates; k++) {
    td_load l = {0};
    td_sim_result *results;
    for (int i = 0; i < N; i++)
      add(&l, (i > BURST && i <= BURST_END ? BURST : i) * 1000 / rates[k], (uint64_t)i, 2000, 200);
    td_replay_config c = make_config(&td_cost_h200_llama3_8b, 256, 4096);
    td_sched_config *s = &c.daemon.sched;
    s->policy = TD_POLICY_TANDEM;
    s->cost = c.daemon.cost;
    s->tbt_slo_us = 50000;
    s->slack_percent = 100;
    s->n_slots = 512;
    s->n_pages = 50000;
    s->max_context_tokens = 4096;
    c.daemon.ahead = true;
    td_replay_result r = run(&l, &c, &results);
    double least = INFINITY, most = 0;
    for (int i = SETTLED; i < DRAINS; i++) {
      least = fmin(least, results[i].first_us - results[i].due_us);
      most = fmax(most, results[i].first_us - results[i].due_us);
    }
    assert_true(r.m.tbt.max <= 50.001 || rates[k] < 3); /* a step without decodes is filled */
    assert_true(most - least <= 2e3 * r.m.tbt.p99);     /* two steps */
    assert_true(rates[k] > 12 || most < 90e3);
    free(results);
    td_load_deinit(&l);
  }
}

static void test_search(void **state)
{
  td_source s = {.rate = 100};
  td_search_result found;
  td_error err;
  td_replay_config c = make_config(&constant, 1, 64);
  c.daemon.sched.n_slots = 2000;
  c.slo.queue_p50_ms = 1;
  for (int i = 0; i < 2000; i++)
    add(&s.load, i * 10, (uint64_t)i, 8, 1);
  NEAR(td_source_rate(&s.load), 100, 1e-9);
  assert_int_equal(td_search(&s, &c, 0.01, &found, &err), TD_OK);
  assert_true(found.rate > 985 && found.rate < 1005);
  assert_true(found.at.held && found.at.queue_ms.p50 <= 1);
  /* a first token takes a millisecond, so no rate can keep half of that */
  c.slo.ttft_p99_ms = 0.5;
  assert_int_equal(td_search(&s, &c, 0.01, &found, &err), TD_OK);
  assert_true(found.rate == 0 && !found.all_at_once);
  td_load_deinit(&s.load);
  /* two requests that arrive together have no rate; nothing may divide by it or draw it */
  c = make_config(&constant, 2, 64);
  for (int i = 0; i < 2; i++)
    add(&s.load, i * 10, (uint64_t)i, 8, 1);
  assert_int_equal(td_search(&s, &c, 0.01, &found, &err), TD_OK);
  assert_true(found.all_at_once && found.rate == 0 && found.at.held);
  td_load_deinit(&s.load);
}

static void test_devices(void **state)
{
  td_device one, qwen;
  td_error err;
  assert_int_equal(td_device_h200("llama3-8b", &one, &err), TD_OK);
  assert_true(one.kv_token_bytes == 131072);
  NEAR(one.weight_bytes, 16.06e9, 0.002);
  NEAR(one.n_kv_tokens, 900000, 0.01); /* vLLM at 0.92 of the memory: 920,080 */
  td_device two = td_device_tp2(&one);
  NEAR(two.n_kv_tokens, 2.136 * (double)one.n_kv_tokens, 0.01); /* weights are loaded once */
  td_step_work decode = {
      .n_tokens = 1, .n_rows = 1, .n_logits = 1, .n_decode_rows = 1, .decode_kv_tokens = 16384};
  double halves = td_cost_step_us(&one.cost, &decode) / 2;
  NEAR(td_cost_step_us(&two.cost, &decode), halves + 64 * 9.8, 1e-9);
  one.cost.prefill_us_per_short_chunk_key = 0.4; /* as calibrations have it */
  two = td_device_tp2(&one);
  td_step_work chunk = {.n_tokens = 1, .n_rows = 1, .prefill_pairs = 8192, .prefill_short_chunk_keys = 8192};
  halves = td_cost_step_us(&one.cost, &chunk) / 2;
  NEAR(td_cost_step_us(&two.cost, &chunk), halves + 64 * 9.8, 1e-9);
  NEAR(td_device_all_reduce_us(3072, 4096), (76.9 + 138) / 2, 1e-12);
  NEAR(td_device_all_reduce_us(6144, 2048), (76.9 + 138) / 2, 1e-12);
  NEAR(td_device_all_reduce_us(8192, 4096), 138 + 2 * (138 - 76.9), 1e-12);
  assert_int_equal(td_device_h200("qwen2.5-7b", &qwen, &err), TD_OK);
  assert_true(qwen.cost.decode_us_per_kv_token < one.cost.decode_us_per_kv_token); /* 28 layers of 4 heads */
  NEAR(qwen.cost.hybrid_us, one.cost.hybrid_us * 28 / 32, 1e-12);
  assert_int_equal(td_device_h200("gpt-5", &qwen, &err), TD_ERR_CONFIG);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_histogram),
      cmocka_unit_test(test_one_request),
      cmocka_unit_test(test_step_times),
      cmocka_unit_test(test_closed_streams),
      cmocka_unit_test(test_warm_requests),
      cmocka_unit_test(test_chunks),
      cmocka_unit_test(test_planned_ahead),
      cmocka_unit_test(test_host_time),
      cmocka_unit_test(test_correction),
      cmocka_unit_test(test_learned),
      cmocka_unit_test(test_who_knows_what_is_learned),
      cmocka_unit_test(test_replicas),
      cmocka_unit_test(test_shared_prefix),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_cut),
      cmocka_unit_test(test_same_again),
      cmocka_unit_test(test_pressure),
      cmocka_unit_test(test_lengths_settle),
      cmocka_unit_test(test_search),
      cmocka_unit_test(test_devices),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
