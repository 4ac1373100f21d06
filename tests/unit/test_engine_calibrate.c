/* Calibration (engine/calibrate.c) on a device whose step times follow a cost model: the model is recovered
 * and kept, within the allowed time. A start (engine/times.c) uses kept times, or else a guess, and never
 * runs a step. */
#include "fake_device.h"

#include "cache_folder_fixture.h"
#include "config/limits.h"
#include "scheduler/cost_fit.h"
#include "scheduler/cost_text.h"

enum {
  MAX_ROWS = 16,
  MAX_TOKENS = 256,
  PAGE = 16,
  N_PAGES = 1024,
  CONTEXT = 4096,
  MOST_PAGES = 1 << 20,
  MOST_CONTEXT = 1 << 20,
  HEAVY_TOKENS = 256
};

typedef struct device {
  fake_device fake;
  double slow;   /* how many times slower than the model */
  double beside; /* factor by which KV costs decodes more beside chunks; 0: no difference */
  double hot, hot_after_us,
      hot_us; /* factor for heavy steps, after this many us of them; duration of heavy work so far */
  double busy, busy_share; /* this share of steps takes longer by this factor */
  uint32_t n_steps;
  bool fails, busy_first; /* busy_first: the first step is one that takes longer */
  /* an unusual delay, otherwise 0 */
  uint32_t max_rows, max_tokens, n_pages, context, window;
  size_t host_page_bytes; /* KV in host memory, in such pages */
  bool batch_invariant;
} device;

static const td_cost_model truth = {.n_points = 4,
                                    .tokens = {1, 16, 64, 256},
                                    .tokens_us = {300, 320, 500, 1300},
                                    .logits_us_per_row = 2,
                                    .decode_us_per_kv_token = 0.02,
                                    .prefill_us_per_chunk = 20,
                                    .prefill_us_per_pair = 0.002};

static uint64_t steps_ever;

/* A power limit: a device that computes without a break slows down after a while; reading memory lets it
 * cool. */
static double heat(device *d, const td_step_work *w, double us)
{
  bool heavy = w->n_tokens >= HEAVY_TOKENS && w->n_rows > w->n_decode_rows;
  bool hot = heavy && d->hot > 0 && d->hot_us >= d->hot_after_us;
  d->hot_us = heavy ? d->hot_us + us : 0;
  return hot ? d->hot : 1;
}

/* Plans must be complete: the table has pages of the store, and rows do not share them. */
static void begin_step(fake_device *f, const td_plan *plan, fake_step *s)
{
  device *d = (device *)f;
  static uint64_t owned[MOST_PAGES]; /* in this step */
  uint32_t n_pages = d->n_pages ? d->n_pages : N_PAGES;
  assert_true(plan->n_rows > 0 && plan->n_rows <= f->base.max_rows && plan->n_tokens <= f->base.max_tokens);
  steps_ever++;
  for (uint32_t i = 0; i < plan->n_rows; i++) {
    const td_plan_row *r = &plan->rows[i];
    assert_true(r->kv_len <= (d->context ? d->context : CONTEXT) && r->slot < f->base.max_rows &&
                (i < plan->n_decode_rows) == (r->q_len == 1));
    for (uint32_t p = 0; p * PAGE < r->kv_len; p++) {
      assert_true(r->page_table_offset + p < plan->page_table_len);
      int32_t page = plan->page_table[r->page_table_offset + p];
      assert_true(page >= 0 && (uint32_t)page < n_pages && owned[page] != steps_ever);
      owned[page] = steps_ever;
    }
  }
  td_step_work w = td_step_work_of(plan);
  td_cost_model of = truth;
  of.hybrid_us_per_kv_token = d->beside * truth.decode_us_per_kv_token;
  s->us = d->slow * td_cost_step_us(&of, &w);
  s->us *= heat(d, &w, s->us);
  if (d->busy_first && d->n_steps == 0)
    s->us *= d->busy;
  else if ((d->n_steps * 2654435761u >> 16) % 100 < 100 * d->busy_share)
    s->us *= d->busy;
  d->n_steps++;
}

static td_status end_step(fake_device *f, const fake_step *s, td_error *err)
{
  return ((device *)f)->fails ? td_fail(err, TD_ERR_DEVICE, "the device is gone") : TD_OK;
}

static void device_discard(td_backend *b, td_compiled *compiled) {}

/* The results of steps are ignored. */
static td_status device_compile(td_backend *b, const td_program *program, td_compiled **out, td_error *err)
{
  assert_non_null(program);
  *out = NULL;
  return TD_OK;
}

static size_t device_page_bytes(const td_backend *b, const td_kv_spec *shape)
{
  return ((const device *)b)->host_page_bytes;
}

static const td_backend_ops ops = {FAKE_DEVICE_OPS, .compile = device_compile, .discard = device_discard,
                                   .kv_bytes_per_page = device_page_bytes};

static td_engine *create(device *d, uint32_t depth, double calibrate_ms, const char *identity)
{
  td_options o = fx_options(1);
  td_error err;
  o.limit[TD_LIMIT_CALIBRATE_MS] = calibrate_ms;
  snprintf(o.cache_dir, sizeof o.cache_dir, "%s", folder);
  o.limit[TD_LIMIT_BATCH_INVARIANT] = d->batch_invariant;
  d->fake = (fake_device){.base = {.ops = &ops,
                                   .pipeline_depth = depth,
                                   .on_device = !d->host_page_bytes,
                                   .max_rows = d->max_rows ? d->max_rows : MAX_ROWS,
                                   .max_logits = d->max_rows ? d->max_rows : MAX_ROWS,
                                   .max_tokens = d->max_tokens ? d->max_tokens : MAX_TOKENS},
                          .begin = begin_step,
                          .end = end_step};
  snprintf(d->fake.base.identity, sizeof d->fake.base.identity, "%s", identity);
  d->n_steps = 0;
  td_engine *e = fx_create(&o, &d->fake.base, d->context ? d->context : CONTEXT);
  assert_int_equal(td_program_create(0, &e->program, &err), TD_OK);
  e->desc = (td_model_desc){.vocab = 1000,
                            .window_tokens = d->window,
                            .n_layers = 2,
                            .width = 64,
                            .ffn_width = 128,
                            .n_heads = 4,
                            .n_kv_heads = 2,
                            .head_dim = 16};
  e->info.weight_bytes = 1000000;
  return e;
}

/* Measures on purpose. Returns the seconds that it took. */
static double calibrate(device *d, uint32_t depth, double calibrate_ms, const char *identity,
                        td_cost_model *m, td_status want)
{
  td_error err;
  td_engine *e = create(d, depth, calibrate_ms, identity);
  double begin_us = now_us;
  td_engine_load_times(e, PAGE);
  assert_int_equal(td_engine_measure_times(e, PAGE, d->n_pages ? d->n_pages : N_PAGES,
                                           d->context ? d->context : CONTEXT, &err),
                   want);
  assert_true(want != TD_OK || (e->cost_source == TD_TIMES_MEASURED && td_cost_is_valid(&e->cost)));
  *m = e->cost;
  td_engine_destroy(e);
  return (now_us - begin_us) * 1e-6;
}

/* A start: no step is run. */
static td_times_source know(device *d, const char *identity, td_cost_model *m)
{
  td_engine *e = create(d, 1, 20000, identity);
  td_engine_load_times(e, PAGE);
  td_times_source source = e->cost_source;
  assert_true(d->n_steps == 0 && td_cost_is_valid(&e->cost));
  *m = e->cost;
  td_engine_destroy(e);
  return source;
}

/* The median error over steps of all sizes, and not the largest, because other programs may disturb some
 * steps. */
static double median_error(const td_cost_model *m, double slow)
{
  uint32_t n = 0, above = 0;
  double limit = 0.05;
  for (uint32_t rows = 1; rows <= MAX_ROWS; rows += 3)
    for (uint32_t chunk = 0; chunk + rows <= MAX_TOKENS; chunk += 24, n++) {
      td_step_work w = {.n_tokens = rows + chunk,
                        .n_rows = rows + (chunk > 0),
                        .n_logits = rows + (chunk > 0),
                        .n_decode_rows = rows,
                        .decode_kv_tokens = 500 * rows,
                        .prefill_pairs = td_cost_pairs(chunk, chunk),
                        .prefill_short_chunk_keys = td_cost_short_chunk_keys(chunk, chunk)};
      above += fabs(td_cost_step_us(m, &w) / (slow * td_cost_step_us(&truth, &w)) - 1) > limit;
    }
  return 2 * above > n ? 1 : limit;
}

static void finds_the_device_and_keeps_it(void **state)
{
  device d = {.slow = 1};
  td_cost_model m, again;
  empty_folder();
  assert_int_equal(know(&d, "a device", &again), TD_TIMES_BUILT_IN);
  assert_int_equal(find_files(), 0);
  calibrate(&d, 1, 20000, "a device", &m, TD_OK);
  assert_true(d.n_steps > 200);
  assert_true(median_error(&m, 1) <= 0.05);
  assert_int_equal(find_files(), 1);
  assert_int_equal(know(&d, "a device", &again), TD_TIMES_KEPT);
  assert_memory_equal(&m, &again, sizeof m);
  assert_int_equal(know(&d, "another device", &again), TD_TIMES_BUILT_IN);
  d.slow = 2; /* a busy machine: measured times are used nevertheless */
  assert_int_equal(know(&d, "a device", &again), TD_TIMES_KEPT);
  assert_memory_equal(&m, &again, sizeof m);
  calibrate(&d, 1, 20000, "a device", &again, TD_OK); /* except by an explicit calibration */
  assert_true(again.tokens_us[0] > 1.5 * m.tokens_us[0]);
  assert_int_equal(find_files(), 1);
}

/* Decodes are measured as they are served: one after the other, so that host work during a step costs
 * nothing. */
static void two_under_way(void **state)
{
  device d = {.slow = 1};
  td_cost_model m;
  empty_folder();
  calibrate(&d, 2, 20000, "a device", &m, TD_OK);
  assert_true(median_error(&m, 1) <= 0.05);
}

/* Steps that usually take longer are predicted to take longer; those that do so now and then are not. */
static void a_busy_machine(void **state)
{
  device d = {.slow = 1, .busy = 1.25, .busy_share = 0.67},
         interrupted = {.slow = 1, .busy = 3, .busy_share = 0.2};
  td_cost_model m;
  empty_folder();
  calibrate(&d, 1, 20000, "a busy device", &m, TD_OK);
  assert_true(median_error(&m, 1.25) <= 0.05);
  calibrate(&interrupted, 1, 20000, "another one", &m, TD_OK);
  assert_true(median_error(&m, 1) <= 0.05);
}

/* Time to read weights from a file during the first step is not part of it. */
static void the_first_step_does_not_count(void **state)
{
  device d = {.slow = 1, .busy = 100, .busy_first = true};
  td_cost_model m;
  empty_folder();
  calibrate(&d, 1, 10, "a cold device", &m, TD_OK);
  td_step_work w = {.n_tokens = 1, .n_rows = 1, .n_logits = 1, .n_decode_rows = 1, .decode_kv_tokens = 64};
  assert_true(td_cost_step_us(&m, &w) < 1.1 * td_cost_step_us(&truth, &w));
}

/* Close to the highest rate of long prompts, steps have many decodes with much context, beside a chunk. The
 * times of decodes alone, and of a few beside chunks, do not tell what these take. */
static void full_steps_of_long_prompts(void **state)
{
  td_cost_model of = truth, m;
  for (double beside = 0.5; beside < 3; beside *= 3) {
    device d = {.slow = 1,
                .beside = beside,
                .max_rows = 64,
                .max_tokens = 4096,
                .n_pages = 1 << 16,
                .context = 1 << 15};
    of.hybrid_us_per_kv_token = beside * truth.decode_us_per_kv_token;
    empty_folder();
    calibrate(&d, 2, 20000, "a device", &m, TD_OK);
    for (uint32_t rows = 8; rows <= 48; rows += 8)
      for (uint32_t chunk = 200; chunk <= 1800; chunk += 400) {
        td_step_work w = {.n_tokens = rows + chunk,
                          .n_rows = rows + 1,
                          .n_logits = rows + 1,
                          .n_decode_rows = rows,
                          .decode_kv_tokens = 9400 * rows,
                          .prefill_pairs = td_cost_pairs(chunk, 7000),
                          .prefill_short_chunk_keys = td_cost_short_chunk_keys(chunk, 7000)};
        assert_true(fabs(td_cost_step_us(&m, &w) / td_cost_step_us(&of, &w) - 1) < 0.03);
      }
  }
}

/* Prompts are computed in runs of steps, so the time in the middle of a run counts; other steps are not
 * slower for it. */
static void a_device_that_slows_at_work(void **state)
{
  device d = {.slow = 1, .hot = 1.2, .hot_after_us = 80000, .max_tokens = 2048, .n_pages = 4096};
  td_cost_model m;
  empty_folder();
  double seconds = calibrate(&d, 2, 20000, "a device", &m, TD_OK);
  assert_true(seconds < 20);
  for (uint32_t n = 16; n <= 2048; n *= 2)
    for (uint32_t decodes = 0; decodes <= 8; decodes += 4) {
      td_step_work w = {.n_tokens = n,
                        .n_rows = decodes + 1,
                        .n_logits = decodes + 1,
                        .n_decode_rows = decodes,
                        .decode_kv_tokens = 500 * decodes,
                        .prefill_pairs = td_cost_pairs(n - decodes, n - decodes),
                        .prefill_short_chunk_keys = td_cost_short_chunk_keys(n - decodes, n - decodes)};
      double want = td_cost_step_us(&truth, &w) * (n >= HEAVY_TOKENS ? d.hot : 1);
      assert_true(fabs(td_cost_step_us(&m, &w) / want - 1) < 0.05);
    }
}

/* Steps too long compared with all others are measured at the end, if there is time left. */
static void uses_its_time(void **state)
{
  device d = {.slow = 100};
  td_cost_model m;
  empty_folder();
  double seconds = calibrate(&d, 1, 2000, "a slow device", &m, TD_OK);
  assert_true(seconds > 1.85 && seconds < 2.2);
  assert_true(median_error(&m, 100) <= 0.05);
}

static void keeps_to_its_time(void **state)
{
  device d = {.slow = 1};
  td_cost_model m;
  empty_folder();
  double seconds = calibrate(&d, 1, 150, "a device", &m, TD_OK); /* the extremes are measured first */
  assert_true(seconds < 0.3);
  empty_folder();
  d.slow = 50;
  seconds = calibrate(&d, 1, 60, "a slow device", &m,
                      TD_ERR_CONFIG); /* too few samples for a fit: nothing is kept */
  assert_true(seconds < 0.4);
  assert_int_equal(find_files(), 0);
}

static void damaged_files_are_not_believed(void **state)
{
  device d = {.slow = 1};
  td_cost_model m;
  empty_folder();
  calibrate(&d, 1, 300, "a device", &m, TD_OK);
  assert_int_equal(find_files(), 1);
  FILE *file = fopen(path, "r+");
  fseek(file, 200, SEEK_SET);
  fputs("?", file);
  fclose(file);
  assert_int_equal(know(&d, "a device", &m), TD_TIMES_BUILT_IN);
  d.fails = true;
  calibrate(&d, 1, 300, "a device", &m, TD_ERR_DEVICE);
}

/* Rows share no page, so a step that fits by tokens may not fit by pages. */
static void few_pages(void **state)
{
  td_cost_model m;
  for (uint32_t n_pages = 4; n_pages < 40; n_pages++) {
    device d = {.slow = 1, .max_tokens = 200, .n_pages = n_pages};
    empty_folder();
    calibrate(&d, 1, 20000, "a small device", &m, TD_OK);
  }
}

/* One page alone is larger than the host memory that may be written. */
static void huge_pages_on_a_host(void **state)
{
  device d = {.slow = 1, .host_page_bytes = (size_t)65 << 20};
  td_cost_model m;
  empty_folder();
  calibrate(&d, 1, 20000, "a host", &m, TD_OK);
}

static void other_attention_is_another_device(void **state)
{
  device d = {.slow = 1};
  td_cost_model m;
  empty_folder();
  calibrate(&d, 1, 20000, "a device", &m, TD_OK);
  d.window = 512;
  assert_int_equal(know(&d, "a device", &m), TD_TIMES_BUILT_IN);
  d.window = 0;
  d.batch_invariant = true;
  assert_int_equal(know(&d, "a device", &m), TD_TIMES_BUILT_IN);
  d.batch_invariant = false;
  assert_int_equal(know(&d, "a device", &m), TD_TIMES_KEPT);
}

/* The number of kinds of steps measured, and wanted, according to the only file in the folder. */
static void read_kinds(unsigned *n_measured, unsigned *n_kinds)
{
  char line[1024], *at = NULL;
  assert_int_equal(find_files(), 1);
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  while (!at && fgets(line, sizeof line, file))
    at = strstr(line, " kinds of steps");
  fclose(file);
  assert_non_null(at);
  while (at > line && *at != ';')
    at--;
  assert_int_equal(sscanf(at, "; %u of %u", n_measured, n_kinds), 2);
}

/* No kind is left out for lack of room, however large steps are. */
static void the_largest_steps(void **state)
{
  device d = {.slow = 1,
              .max_rows = (uint32_t)td_limit_max(TD_LIMIT_RUNNING_REQUESTS),
              .max_tokens = (uint32_t)td_limit_max(TD_LIMIT_STEP_TOKENS),
              .n_pages = MOST_PAGES,
              .context = MOST_CONTEXT};
  td_cost_model m;
  unsigned n_measured, n_kinds;
  empty_folder();
  calibrate(&d, 1, 60000, "a large device", &m, TD_OK);
  read_kinds(&n_measured, &n_kinds);
  print_message("%u of %u kinds, %u steps\n", n_measured, n_kinds, d.n_steps);
  assert_true(n_measured == n_kinds && n_kinds > 200 && n_kinds < TD_COST_SAMPLES_MAX);
  assert_true(m.n_points < TD_COST_POINTS_MAX); /* nor a size of steps in the table */
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(finds_the_device_and_keeps_it),
      cmocka_unit_test(two_under_way),
      cmocka_unit_test(a_busy_machine),
      cmocka_unit_test(the_first_step_does_not_count),
      cmocka_unit_test(a_device_that_slows_at_work),
      cmocka_unit_test(full_steps_of_long_prompts),
      cmocka_unit_test(uses_its_time),
      cmocka_unit_test(keeps_to_its_time),
      cmocka_unit_test(damaged_files_are_not_believed),
      cmocka_unit_test(few_pages),
      cmocka_unit_test(huge_pages_on_a_host),
      cmocka_unit_test(other_attention_is_another_device),
      cmocka_unit_test(the_largest_steps),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
