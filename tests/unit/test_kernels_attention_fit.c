/* Attention's costs from times: a made-up device whose constants are known must be found again, also when its times are noisy; what was
 * found is kept, taken again, and measured anew when the device has become another. The device is written down anew here, from plan.h. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "attention_plan_fixture.h"
#include "kernels/attention/fit.h"

/* ---- the device ---- */

typedef struct device {
  td_attention_planner_config c;
  double memory_key_us, l2_key_us, tile_us, start_us, partial_us, launch_us; /* partial_us: with its bytes */
  double noise;                                                              /* every time is off by about that share */
  bool disturbed;                                                            /* some take twice as long */
  uint32_t n_runs;
} device;

static double uniform(void) { return (double)below(1 << 20) / (1 << 20); }

static double normal(void) { return sqrt(-2 * log(uniform() + 1e-9)) * cos(6.283185307 * uniform()); }

/* What a worker takes for a task's pieces; `again`: other tiles of the same keys came before. */
static double task_us(const device *d, const td_attention_task *t, bool again)
{
  uint32_t queries = t->n_members * d->c.group, tiles = queries <= 16 ? 0 : (queries + 63) / 64;
  double us = 0, key = fmax(again ? d->l2_key_us : d->memory_key_us, tiles * d->tile_us);
  for (piece p = begin_of(t); next_piece(t, &p);)
    us += d->start_us + (p.end - p.begin) * key + (p.slot == TD_ATTENTION_DIRECT ? 0 : t->n_members * d->partial_us);
  return us;
}

static td_status run_device(void *arg, const td_plan *plan, const td_attention_header *h, double *us, td_error *err)
{
  device *d = arg;
  view v = {h, td_attention_at(h, h->members_at), td_attention_at(h, h->sources_at), td_attention_first_task(h),
            td_attention_at(h, h->spans_at), td_attention_at(h, h->tasks_at)};
  double longest = 0;
  (void)err;
  d->n_runs++;
  for (uint32_t w = 0; w < h->n_workers; w++) {
    double worker = 0;
    for (uint32_t part = 0; part < 2; part++) {
      const uint32_t *range = v.first_task + part * (h->n_workers + 1) + w;
      for (uint32_t t = range[0]; t < range[1]; t++) {
        bool again = false, fits = 4.0 * d->c.head_dim * d->c.n_kv_heads * v.tasks[t].n_keys <= d->c.cost.l2_bytes;
        for (uint32_t s = 0; s < h->n_shared_spans && fits && v.tasks[t].n_members > 1 && !again; s++)
          again = v.spans[s].first_task + v.spans[s].n_tasks <= t && v.spans[s].n_keys == v.tasks[t].n_keys &&
                  plan->page_table[v.spans[s].first_page] == plan->page_table[v.tasks[t].first_page];
        worker += task_us(d, &v.tasks[t], again);
      }
    }
    longest = fmax(longest, worker);
  }
  *us = (d->launch_us + longest) * exp(d->noise * normal());
  if (d->disturbed && below(10) == 0)
    *us *= 1 + uniform();
  return TD_OK;
}

static double times(double most) { return exp((2 * uniform() - 1) * log(most)); }

/* Up to 2.5 times as good or as bad as the one that the search begins with. */
static device random_device(uint32_t group, uint32_t n_kv_heads, uint32_t head_dim)
{
  device d = {.c = config_of(16)};
  d.c.max_rows = 256;
  d.c.group = group;
  d.c.n_kv_heads = n_kv_heads;
  d.c.head_dim = head_dim;
  d.c.max_slots = 1 << 20;
  const td_attention_cost *c = &d.c.cost;
  d.memory_key_us = 4.0 * head_dim / c->memory_bytes_us * times(2.5);
  d.l2_key_us = d.memory_key_us * (0.4 + 0.5 * uniform());
  d.tile_us = 256.0 * head_dim / c->tensor_flop_us * times(2.5);
  d.start_us = c->start_us * times(2.5);
  d.partial_us = 0.04 * times(3) + 2.0 * group * TD_ATTENTION_PARTIAL_BYTES(head_dim) / (4.0 * head_dim) * d.l2_key_us;
  d.launch_us = 1 + 4 * uniform();
  return d;
}

static td_attention_fit_request request_of(device *d)
{
  return (td_attention_fit_request){.config = d->c, .n_pages = 70000, .run = run_device, .arg = d};
}

static double off(double found, double real) { return fabs(found / real - 1); }

typedef struct deviations {
  double memory, l2, tensor, start, partial, error;
} deviations;

/* Only what some trial is bound by can be found: tensor cores that no tile waits for leave no trace. */
static deviations fit_and_compare(device *d)
{
  td_attention_fitted f = {0};
  td_error err;
  td_attention_fit_request r = request_of(d);
  if (td_attention_fit(&r, &f, &err) != TD_OK)
    fail_msg("%s", err.message);
  double key_bytes = 4.0 * d->c.head_dim, bytes = 2.0 * d->c.group * TD_ATTENTION_PARTIAL_BYTES(d->c.head_dim);
  bool tensor_bound = 2 * d->tile_us > 1.1 * d->memory_key_us;
  return (deviations){off(f.cost.memory_bytes_us, key_bytes / d->memory_key_us),
                      2 * d->tile_us < 0.8 * d->l2_key_us || d->c.group <= 8 ? off(f.cost.l2_bytes_us, key_bytes / d->l2_key_us) : 0,
                      tensor_bound ? off(f.cost.tensor_flop_us, 256.0 * d->c.head_dim / d->tile_us) : 0,
                      off(f.cost.start_us, d->start_us),
                      off(f.cost.partial_us + bytes / f.cost.l2_bytes_us, d->partial_us),
                      f.error};
}

static void worst_of(deviations *w, deviations d)
{
  w->memory = fmax(w->memory, d.memory), w->l2 = fmax(w->l2, d.l2), w->tensor = fmax(w->tensor, d.tensor);
  w->start = fmax(w->start, d.start), w->partial = fmax(w->partial, d.partial), w->error = fmax(w->error, d.error);
}

static deviations worst_of_devices(uint32_t n, double noise, bool disturbed)
{
  static const uint32_t shapes[][3] = {{4, 8, 128}, {1, 32, 128}, {8, 8, 128}, {4, 4, 64}, {2, 8, 128}};
  deviations worst = {0};
  for (uint32_t i = 0; i < n; i++) {
    device d = random_device(shapes[i % 5][0], shapes[i % 5][1], shapes[i % 5][2]);
    d.noise = noise;
    d.disturbed = disturbed;
    worst_of(&worst, fit_and_compare(&d));
  }
  print_message("noise %.0f %%: memory %.1f %%, L2 %.1f, tensor %.1f, start %.1f, partial %.1f off; trials %.1f\n", 100 * noise,
                100 * worst.memory, 100 * worst.l2, 100 * worst.tensor, 100 * worst.start, 100 * worst.partial, 100 * worst.error);
  return worst;
}

static void test_constants_are_found_again(void **unused)
{
  (void)unused;
  deviations w = worst_of_devices(10, 0, false);
  assert_true(w.memory < 0.01 && w.l2 < 0.02 && w.tensor < 0.02 && w.start < 0.02 && w.partial < 0.02 && w.error < 0.005);
}

static void test_noise_moves_them_little(void **unused)
{
  (void)unused;
  deviations w = worst_of_devices(5, 0.03, true);
  assert_true(w.memory < 0.06 && w.l2 < 0.15 && w.tensor < 0.10 && w.start < 0.20 && w.partial < 0.30 && w.error < 0.03);
}

/* A device where all comes from memory at half the rate and partials are dear: with the costs found, plans are faster than with the
 * costs that the search began with. This is what calibration is for. */
static void test_plans_get_faster(void **unused)
{
  (void)unused;
  device d = random_device(4, 8, 128);
  td_attention_fitted f = {0};
  td_error err;
  d.memory_key_us = 512 / d.c.cost.memory_bytes_us * 1.2;
  d.l2_key_us = 0.5 * d.memory_key_us;
  d.tile_us = 256.0 * 128 / d.c.cost.tensor_flop_us * 2;
  d.start_us = 6;
  d.partial_us = 1.5;
  td_attention_fit_request r = request_of(&d);
  assert_int_equal(td_attention_fit(&r, &f, &err), TD_OK);
  static const uint32_t nodes[] = {1, 8, 16, 32, 64, 256}, tokens[] = {256, 128, 64, 32, 32, 32};
  td_plan plan = tree_plan(6, nodes, tokens, 16);
  double us[2];
  for (int fitted = 0; fitted < 2; fitted++) {
    td_attention_planner *p = planner_of(&d.c);
    if (fitted)
      assert_int_equal(td_attention_planner_set_cost(p, &f.cost, &err), TD_OK);
    make(p, &plan);
    assert_int_equal(run_device(&d, &plan, td_attention_planner_block(p), &us[fitted], &err), TD_OK);
    td_attention_planner_destroy(p);
  }
  print_message("a tree of six levels: %.1f us with the costs begun with, %.1f with those found\n", us[0], us[1]);
  assert_true(us[1] < 0.9 * us[0]);
}

/* ---- keeping ---- */

/* All of it, digit by digit. */
static void assert_same(const td_attention_fitted *a, const td_attention_fitted *b)
{
  td_buf texts[2];
  for (int i = 0; i < 2; i++) {
    td_buf_init(&texts[i], TD_ATTENTION_FIT_TEXT_BYTES);
    td_attention_fitted_print(i ? b : a, "", &texts[i]);
  }
  assert_int_equal(texts[0].len_bytes, texts[1].len_bytes);
  assert_memory_equal(texts[0].data, texts[1].data, texts[0].len_bytes);
  td_buf_deinit(&texts[0]), td_buf_deinit(&texts[1]);
}

static void test_text_comes_back(void **unused)
{
  (void)unused;
  td_attention_fitted f = {.cost = td_attention_cost_of_h200(132), .launch_us = 3.25, .error = 0.01, .error_of_nine = 0.1, .n_trials = 27}, g;
  td_error err;
  td_buf text;
  td_buf_init(&text, TD_ATTENTION_FIT_TEXT_BYTES);
  f.cost.start_us = 1.0 / 3;
  td_attention_fitted_print(&f, "a device", &text);
  g = f;
  g.cost.start_us = g.launch_us = 0;
  g.n_trials = 0;
  assert_int_equal(td_attention_fitted_parse(text.data, text.len_bytes, "a device", &g, &err), TD_OK);
  assert_same(&f, &g);
  assert_int_equal(td_attention_fitted_parse(text.data, text.len_bytes, "another", &g, &err), TD_ERR_CONFIG);
  for (size_t n = 0; n < text.len_bytes; n++) { /* cut anywhere, and with any byte another */
    assert_int_equal(td_attention_fitted_parse(text.data, n, "a device", &g, &err), TD_ERR_CONFIG);
    text.data[n] ^= 1;
    assert_int_equal(td_attention_fitted_parse(text.data, text.len_bytes, "a device", &g, &err), TD_ERR_CONFIG);
    text.data[n] ^= 1;
  }
  assert_same(&f, &g);
  td_buf_deinit(&text);
}

static void test_what_holds_is_kept(void **unused)
{
  (void)unused;
  char folder[] = "/tmp/tandem-attention-fit-XXXXXX", command[128];
  td_attention_fitted first, again;
  td_error err;
  assert_non_null(mkdtemp(folder));
  device d = random_device(4, 8, 128);
  td_attention_fit_request r = request_of(&d);
  assert_int_equal(td_attention_calibrate(&r, folder, "gpu", false, &first, &err), TD_OK); /* nothing kept, nothing measured */
  assert_int_equal(d.n_runs, 0);
  assert_int_equal(first.n_trials, 0);
  assert_true(first.cost.memory_bytes_us == d.c.cost.memory_bytes_us && first.cost.partial_us == d.c.cost.partial_us);

  assert_int_equal(td_attention_calibrate(&r, folder, "gpu", true, &first, &err), TD_OK);
  uint32_t n_full = d.n_runs;
  assert_true(n_full > 100 && first.n_trials > 20);
  d.n_runs = 0;
  assert_int_equal(td_attention_calibrate(&r, folder, "gpu", true, &again, &err), TD_OK); /* a few trials show that it holds */
  assert_true(d.n_runs > 0 && d.n_runs <= 25);
  assert_same(&first, &again);
  d.n_runs = 0;
  assert_int_equal(td_attention_calibrate(&r, folder, "gpu", false, &again, &err), TD_OK);
  assert_int_equal(d.n_runs, 0);
  assert_same(&first, &again);

  d.memory_key_us *= 2; /* the device has become another */
  assert_int_equal(td_attention_calibrate(&r, folder, "gpu", true, &again, &err), TD_OK);
  assert_true(d.n_runs > n_full && off(again.cost.memory_bytes_us, first.cost.memory_bytes_us / 2) < 0.02);
  d.n_runs = 0;
  r.config.head_dim = 64; /* another shape: another file */
  d.c.head_dim = 64;
  assert_int_equal(td_attention_calibrate(&r, folder, "gpu", false, &again, &err), TD_OK);
  assert_int_equal(again.n_trials, 0);
  snprintf(command, sizeof command, "rm -r %s", folder);
  assert_int_equal(system(command), 0);
}

/* ---- what cannot be measured ---- */

/* Partials that do not suffice for one trial are no reason to leave out others: each is run as often as it was asked for. */
static void test_little_room_costs_only_its_trials(void **unused)
{
  (void)unused;
  device d = random_device(4, 8, 128);
  td_attention_fitted f;
  td_error err;
  td_attention_fit_request r = request_of(&d);
  for (r.config.max_slots = 512; r.config.max_slots < 1 << 16; r.config.max_slots *= 2)
    for (r.n_runs = 1; r.n_runs <= 2; r.n_runs++) {
      d.n_runs = 0;
      if (td_attention_fit(&r, &f, &err) == TD_OK)
        assert_int_equal(d.n_runs, f.n_trials * r.n_runs);
    }
}

static td_status run_broken(void *arg, const td_plan *plan, const td_attention_header *h, double *us, td_error *err)
{
  (void)plan, (void)h;
  *us = *(double *)arg;
  return *us == -1 ? td_fail(err, TD_ERR_DEVICE, "no device") : TD_OK;
}

static void test_what_cannot_be_is_refused(void **unused)
{
  (void)unused;
  device d = random_device(4, 8, 128);
  td_attention_fitted f;
  td_error err;
  double wrong[] = {-1, 0, NAN, INFINITY};
  td_attention_fit_request r = request_of(&d);
  r.run = run_broken;
  for (int i = 0; i < 4; i++) {
    r.arg = &wrong[i];
    assert_int_equal(td_attention_fit(&r, &f, &err), i == 0 ? TD_ERR_DEVICE : TD_ERR_CONFIG);
  }
  double same = 1e7; /* whatever is run */
  r.arg = &same;
  td_status st = td_attention_fit(&r, &f, &err);
  assert_true(st == TD_ERR_CONFIG || f.error < 1);
  r = request_of(&d);
  r.n_pages = 500; /* hardly a trial fits */
  assert_int_equal(td_attention_fit(&r, &f, &err), TD_ERR_CAPACITY);
  r = request_of(&d);
  r.config.page_tokens = 24;
  assert_int_equal(td_attention_fit(&r, &f, &err), TD_ERR_CONFIG);
}

static int make_table(void **unused)
{
  (void)unused;
  page_table = calloc(PAGES, sizeof *page_table);
  return page_table ? 0 : -1;
}

static int free_table(void **unused)
{
  (void)unused;
  free(page_table);
  return 0;
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_constants_are_found_again), cmocka_unit_test(test_noise_moves_them_little),
                                     cmocka_unit_test(test_plans_get_faster),          cmocka_unit_test(test_text_comes_back),
                                     cmocka_unit_test(test_what_holds_is_kept),        cmocka_unit_test(test_what_cannot_be_is_refused),
                                     cmocka_unit_test(test_little_room_costs_only_its_trials)};
  (void)right_tables, (void)random_plan, (void)random_config, (void)view_of, (void)partials_of;
  return cmocka_run_group_tests(tests, make_table, free_table);
}
