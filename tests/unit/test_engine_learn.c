/* What a run learned about its steps (engine/learn.c): it is kept only at an orderly end, used by the next
 * start, and never overwrites a file that another process wrote. With the real step loop and scheduler, on
 * a device that is slower than when it was measured by a given factor, and a clock that only the device
 * moves. */
#include "fake_device.h"

#include "cache_folder_fixture.h"
#include "config/limits.h"
#include "scheduler/cost_text.h"

enum { MAX_ROWS = 16, MAX_TOKENS = 256, PAGE = 16, N_PAGES = 2048, CONTEXT = 4096, N_SLOTS = 64 };

typedef struct device {
  fake_device fake;
  double times[2];  /* factors by which steps [without, with] prompts are slower than the model */
  uint32_t stop_at; /* in this step the loop is told to stop, or the device fails */
  bool fails;
  uint32_t n_steps;
} device;

static const td_cost_model truth = {.n_points = 4,
                                    .tokens = {1, 16, 64, 256},
                                    .tokens_us = {3000, 3200, 5000, 13000},
                                    .logits_us_per_row = 20,
                                    .decode_us_per_kv_token = 0.2,
                                    .prefill_us_per_chunk = 200,
                                    .prefill_us_per_pair = 0.02};

/* One step in seven is disturbed, which must not count as the normal speed. */
static void begin_step(fake_device *f, const td_plan *plan, fake_step *s)
{
  device *d = (device *)f;
  td_step_work w = td_step_work_of(plan);
  s->us = td_cost_step_us(&truth, &w) * d->times[w.n_rows > w.n_decode_rows];
  if (++d->n_steps % 7 == 0 && d->stop_at > 0)
    s->us *= 5;
}

static td_status end_step(fake_device *f, const fake_step *s, td_error *err)
{
  device *d = (device *)f;
  if (d->n_steps != d->stop_at)
    return TD_OK;
  atomic_store(&f->e->stop_requested, true);
  return d->fails ? td_fail(err, TD_ERR_DEVICE, "the device is gone") : TD_OK;
}

static const td_backend_ops ops = {FAKE_DEVICE_OPS};

/* ---- a daemon's life ---- */

static td_engine *create(device *d, const char *cache_dir)
{
  td_options o = fx_options(N_SLOTS);
  snprintf(o.cache_dir, sizeof o.cache_dir, "%s", cache_dir);
  *d = (device){.fake = {.base = {.ops = &ops,
                                  .pipeline_depth = 1,
                                  .on_device = true,
                                  .max_rows = MAX_ROWS,
                                  .max_logits = MAX_ROWS,
                                  .max_tokens = MAX_TOKENS,
                                  .identity = "a device"},
                         .begin = begin_step,
                         .end = end_step},
                .times = {1, 1}};
  td_engine *e = d->fake.e = fx_create(&o, &d->fake.base, CONTEXT);
  e->desc = (td_model_desc){.vocab = FX_VOCAB,
                            .n_layers = 32,
                            .width = 4096,
                            .ffn_width = 14336,
                            .n_heads = 32,
                            .n_kv_heads = 8,
                            .head_dim = 128};
  e->info.weight_bytes = 16000000000;
  td_engine_load_times(e, PAGE);
  return e;
}

static td_engine *get_ready(td_engine *e)
{
  td_sched_config c = {.n_slots = N_SLOTS,
                       .max_running = MAX_ROWS,
                       .step_tokens = MAX_TOKENS,
                       .page_tokens = PAGE,
                       .n_pages = N_PAGES,
                       .max_context_tokens = CONTEXT,
                       .cost = &e->cost,
                       .cost_is_guess = e->cost_source == TD_TIMES_BUILT_IN};
  fx_get_ready(e, &c);
  return e;
}

/* With times that were measured: kept from before, or now. */
static td_engine *start(device *d, const char *cache_dir)
{
  td_error err;
  td_engine *e = create(d, cache_dir);
  if (e->cost_source != TD_TIMES_KEPT) {
    assert_int_equal(td_engine_measure_times(e, PAGE, N_PAGES, CONTEXT, &err), TD_OK);
    assert_int_equal(e->cost_source, TD_TIMES_MEASURED);
  }
  return get_ready(e);
}

/* Serves until the loop is told to stop in some step. */
static void serve_until(device *d, uint32_t n_prompts, uint32_t stop_at, td_status want)
{
  for (uint32_t i = 0; i < n_prompts; i++)
    fx_submit(d->fake.e, i, (td_engine_request){.n_prompt = 1000, .max_new = 30});
  /* and a request that never ends */
  fx_submit(d->fake.e, n_prompts, (td_engine_request){.n_prompt = 2, .max_new = 3000});
  d->n_steps = 0;
  d->stop_at = stop_at;
  d->fails = want != TD_OK;
  fake_run(&d->fake, want);
  assert_int_equal(d->n_steps, stop_at);
}

/* The same, and ends. */
static void serve(device *d, uint32_t n_prompts, double without, double with, uint32_t stop_at,
                  td_status want)
{
  d->times[0] = without;
  d->times[1] = with;
  serve_until(d, n_prompts, stop_at, want);
  td_engine_destroy(d->fake.e);
}

static char text[TD_COST_TEXT_BYTES], identity[TD_COST_IDENTITY_BYTES];

/* The only file's bytes; their number. */
static size_t read_kept(void)
{
  assert_true(find_files() <= 1);
  FILE *f = *path ? fopen(path, "r") : NULL;
  size_t n = f ? fread(text, 1, sizeof text, f) : 0;
  if (f)
    fclose(f);
  return n;
}

static void write_kept(const char *bytes, size_t n)
{
  FILE *f = fopen(path, "w");
  assert_int_equal(fwrite(bytes, 1, n, f), n);
  fclose(f);
}

static td_cost_model kept(void)
{
  td_cost_model m;
  td_error err;
  size_t n = read_kept();
  assert_int_equal(td_cost_parse(text, n, &m, identity, &err), TD_OK);
  return m;
}

static bool is_near(double got, double want) { return fabs(got / want - 1) < 0.02; }

static void what_steps_took_is_kept(void **state)
{
  device d;
  empty_folder();
  td_engine *e = start(&d, folder);
  td_cost_model fresh = kept();
  assert_true(fresh.learned[0] == 0 && fresh.learned[1] == 0 && e->cost.learned[1] == 0);
  serve(&d, 40, 1.1, 1.3, 600, TD_OK);
  td_cost_model m = kept();
  print_message("learned %.4f and %.4f\n", m.learned[0], m.learned[1]);
  assert_true(is_near(m.learned[0], 1.1) && is_near(m.learned[1], 1.3));
  assert_memory_equal(m.tokens_us, fresh.tokens_us, sizeof m.tokens_us); /* measured times are unchanged */
  assert_true(m.hybrid_us == fresh.hybrid_us && m.prefill_us_per_pair == fresh.prefill_us_per_pair);

  td_sched_stats s; /* and the next start begins there */
  e = start(&d, folder);
  assert_true(e->cost.learned[0] == m.learned[0] && e->cost.learned[1] == m.learned[1]);
  td_sched_get_stats(e->sched, &s);
  assert_true(s.cost_correction[0] == m.learned[0] && s.cost_correction[1] == m.learned[1]);
  serve(&d, 0, 0.9, 1, 300,
        TD_OK); /* it learns relative to the calibration, not to that; and nothing about prompts */
  td_cost_model again = kept();
  assert_true(is_near(again.learned[0], 0.9) && again.learned[1] == m.learned[1]);

  d.times[0] = 0;
  e = start(&d, folder);
  td_engine_destroy(e); /* without a request */
  assert_true(kept().learned[0] == again.learned[0]);
}

/* Long steps make queues, however many short ones there are. */
static void long_steps_count_by_their_time(void **state)
{
  device d;
  td_step_work decode = {.n_tokens = 4, .n_rows = 4, .n_logits = 4, .n_decode_rows = 4},
               prompt = {.n_tokens = 200, .n_rows = 1};
  empty_folder();
  td_engine *e = start(&d, folder);
  for (int i = 0; i < 300; i++) {
    td_engine_learn_step(e, &prompt, 1000, i < 200 ? 1000 : 0); /* 0: not measured */
    td_engine_learn_step(e, &decode, i % 3 ? 1000 : 4000, i % 3 ? 1000 : 4000 * (i % 6 ? 1.18 : 1.22));
    if (i < 100)
      td_engine_learn_step(e, &prompt, 10000, 12000);
  }
  td_engine_save_learned(e);
  print_message("learned %.4f and %.4f\n", kept().learned[0], kept().learned[1]);
  assert_true(is_near(kept().learned[0], 1.18) && is_near(kept().learned[1], 1.2));
  td_engine_destroy(e);
}

/* As the file was before. */
static void check_unchanged(uint32_t n_prompts, double without, double with, uint32_t stop_at, td_status want)
{
  static char before[TD_COST_TEXT_BYTES];
  device d;
  (void)start(&d, folder);
  size_t n = read_kept();
  assert_true(n > 0);
  memcpy(before, text, n);
  serve(&d, n_prompts, without, with, stop_at, want);
  assert_int_equal(read_kept(), n);
  assert_memory_equal(text, before, n);
}

static void too_few_steps_say_nothing(void **state)
{
  device d;
  uint32_t least = (uint32_t)td_limit_max(TD_LIMIT_LEARN_STEPS); /* the first step computes a prompt */
  empty_folder();
  check_unchanged(0, 1.1, 1.3, least, TD_OK);
  (void)start(&d, folder);
  serve(&d, 0, 1.1, 1.3, least + 1, TD_OK);
  assert_true(is_near(kept().learned[0], 1.1) && kept().learned[1] == 0);
}

static void after_a_fault_nothing_is_kept(void **state)
{
  empty_folder();
  check_unchanged(40, 1.1, 1.3, 600, TD_ERR_DEVICE);
}

static void what_is_absurd_is_not_kept(void **state)
{
  device d;
  empty_folder();
  check_unchanged(40, 2.1, 0.45, 600, TD_OK);
  (void)start(&d, folder);
  serve(&d, 40, 9, 1.9, 600, TD_OK);
  assert_true(kept().learned[0] == 0 && is_near(kept().learned[1], 1.9));
}

/* Removed, damaged or measured again while this daemon ran. */
static void what_others_did_meanwhile_stays(void **state)
{
  device d;
  static char before[TD_COST_TEXT_BYTES];
  empty_folder();
  (void)start(&d, folder);
  size_t n = read_kept();
  memcpy(before, text, n);
  unlink(path);
  serve(&d, 40, 1.1, 1.3, 600, TD_OK);
  assert_int_equal(read_kept(), 0);

  snprintf(path, sizeof path, "%s/other", folder);
  (void)start(&d, folder);
  n = read_kept();
  memcpy(before, text, n);
  before[300] ^= 1;
  write_kept(before, n);
  serve(&d, 40, 1.1, 1.3, 600, TD_OK);
  assert_int_equal(read_kept(), n);
  assert_memory_equal(text, before, n);

  empty_folder();
  (void)start(&d, folder);
  td_cost_model m = kept();
  td_buf other;
  m.tokens_us[m.n_points - 1] *= 1.01;
  td_buf_init(&other, 0);
  td_cost_print(&m, identity, &other);
  write_kept(other.data, other.len_bytes);
  serve(&d, 40, 1.1, 1.3, 600, TD_OK);
  assert_int_equal(read_kept(), other.len_bytes);
  assert_memory_equal(text, other.data, other.len_bytes);
  td_buf_deinit(&other);
}

/* A new calibration has learned nothing yet; and without a folder nothing can be kept. */
static void a_new_calibration_begins_anew(void **state)
{
  device d;
  td_error err;
  empty_folder();
  (void)start(&d, folder);
  serve(&d, 40, 1.1, 1.3, 600, TD_OK);
  assert_true(is_near(kept().learned[1], 1.3));
  td_engine *e = create(&d, folder);
  assert_int_equal(td_engine_measure_times(e, PAGE, N_PAGES, CONTEXT, &err), TD_OK);
  td_engine_destroy(e);
  assert_true(kept().learned[0] == 0 && kept().learned[1] == 0);

  empty_folder();
  (void)start(&d, "");
  serve(&d, 40, 1.1, 1.3, 600, TD_OK);
  assert_int_equal(read_kept(), 0);
}

/* ---- without a calibration ---- */

/* The median error of the last steps' predictions, and the source of step times. */
static double serve_and_see(device *d, double times, uint32_t stop_at, td_times_source *source)
{
  td_engine *e = d->fake.e;
  td_engine_stats st;
  double median, p99;
  d->times[0] = d->times[1] = times;
  serve_until(d, 40, stop_at, TD_OK);
  td_engine_step_errors(e, &median, &p99);
  td_engine_get_stats(e, &st);
  *source = st.times_source;
  td_engine_destroy(e);
  return median;
}

/* The first steps correct a guess, and the next start uses what was learned as its table. */
static void a_guess_is_learned_and_kept(void **state)
{
  device d;
  td_times_source source;
  uint32_t least = (uint32_t)td_limit_max(TD_LIMIT_LEARN_STEPS);
  empty_folder();
  td_engine *e = get_ready(create(&d, folder));
  assert_int_equal(e->cost_source, TD_TIMES_BUILT_IN);
  (void)serve_and_see(&d, 5, least - 1, &source);
  assert_int_equal(source, TD_TIMES_BUILT_IN);
  assert_int_equal(read_kept(), 0); /* too few steps */

  (void)get_ready(create(&d, folder));
  double first = serve_and_see(&d, 5, 100, &source);
  assert_int_equal(source, TD_TIMES_LEARNED);
  assert_true(read_kept() > 0 && strstr(text, "; learned from 100 steps\n"));

  e = get_ready(create(&d, folder));
  assert_int_equal(e->cost_source, TD_TIMES_LEARNED);
  td_sched_stats ss;
  td_sched_get_stats(e->sched, &ss);
  assert_true(ss.cost_correction[0] == 1 && ss.cost_correction[1] == 1);
  double second = serve_and_see(&d, 5, 100, &source);
  print_message("median error of 100 steps of a device five times slower than another: %.3f, then %.3f\n",
                first, second);
  assert_true(first < 0.15 && second < 0.08);
  assert_true(read_kept() > 0 && strstr(text, "; learned from 200 steps\n"));
}

/* Nothing is kept after a fault, and a file measured meanwhile is not overwritten. */
static void what_was_learned_gives_way(void **state)
{
  static char before[TD_COST_TEXT_BYTES];
  device d, other;
  empty_folder();
  (void)get_ready(create(&d, folder));
  serve(&d, 40, 5, 5, 300, TD_ERR_DEVICE);
  assert_int_equal(read_kept(), 0);

  (void)get_ready(create(&d, folder));
  td_engine_destroy(start(&other, folder));
  size_t n = read_kept();
  assert_true(n > 0);
  memcpy(before, text, n);
  serve(&d, 40, 5, 5, 300, TD_OK);
  assert_int_equal(read_kept(), n);
  assert_memory_equal(text, before, n);
}

/* The host takes time between two steps; and after an answer is complete, the engine is idle for a second. */
enum { HOST_US = 500 };

static void wake_slowly(void *arg)
{
  td_engine_update u;
  now_us += HOST_US;
  if (td_engine_poll(arg, &u, 1) == 1 && u.finish != TD_FINISH_NONE)
    td_engine_release(arg, u.ticket);
}

static bool next_comes(fake_device *d, double max_us)
{
  now_us += 1e6;
  fx_submit(d->e, 0, (td_engine_request){.n_prompt = 40, .max_new = 3});
  return true;
}

static void the_hosts_time_counts_and_idleness_does_not(void **state)
{
  device d;
  empty_folder();
  td_engine *e = start(&d, folder);
  e->wake = wake_slowly;
  e->wake_arg = e;
  d.fake.sleep = next_comes;
  d.n_steps = 0;
  d.stop_at = 600;
  fake_run(&d.fake, TD_OK);
  td_engine_destroy(e);
  td_step_work decode = {
      .n_tokens = 1, .n_rows = 1, .n_logits = 1, .n_decode_rows = 1, .decode_kv_tokens = 42};
  double us = td_cost_step_us(&truth, &decode);
  assert_true(is_near(kept().learned[0], (us + HOST_US) / us)); /* a decode follows another step */
  assert_true(is_near(kept().learned[1], 1));                   /* a prompt follows an idle moment */
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_steps_took_is_kept),
      cmocka_unit_test(long_steps_count_by_their_time),
      cmocka_unit_test(too_few_steps_say_nothing),
      cmocka_unit_test(after_a_fault_nothing_is_kept),
      cmocka_unit_test(what_is_absurd_is_not_kept),
      cmocka_unit_test(what_others_did_meanwhile_stays),
      cmocka_unit_test(a_new_calibration_begins_anew),
      cmocka_unit_test(a_guess_is_learned_and_kept),
      cmocka_unit_test(what_was_learned_gives_way),
      cmocka_unit_test(the_hosts_time_counts_and_idleness_does_not),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
