/* Measures step times on this device with this model (`tandemd --calibrate`) and writes them to cache_dir for
 * later starts.
 *
 * Dummy steps of all kinds run over the empty KV memory: decodes and chunks of the table's token counts,
 * decodes over long context, chunks behind long context, and both together. Each kind runs once, the most
 * important kinds first; then all repeat until each has been measured often enough or the time (calibrate_ms)
 * is used up. A cost model is fitted to the medians.
 *
 * A busy device is slower than one that has just begun. An H200 takes 10.9 ms for 512 prompt tokens after a
 * pause, but 12.5 to 13.2 ms when such steps follow one another: after 80 ms its power limit lowers the clock
 * from 1980 MHz to 1500 to 1800 MHz. Prompts come in runs of steps. So steps that are bound by arithmetic are
 * measured in such runs, after a warm-up that brings the device to its steady clock. Steps that are bound by
 * memory are measured apart from them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "engine/internal.h"
#include "scheduler/cost_fit.h"

/* Host memory is allocated when it is first written. So only this much of the KV memory is touched, or
 * HOST_KV_PAGES pages if that is more; the rest is left for requests. */
#define HOST_KV_BYTES ((uint64_t)64 << 20)
enum { HOST_KV_PAGES = 64 };
/* CASES_MAX: what a fit takes; options ask for at most about 220 (test_engine_calibrate) */
enum { CASES_MAX = TD_COST_SAMPLES_MAX, RUNS_MAX = 9, RUNS_WANTED = 3, FEWEST_CASES = 4 };
enum { SHORT_CONTEXT = 64, MANY_CONTEXT = 4096, FULL_CONTEXT = 8192, FULL_ROWS = 128, LONG_CONTEXT = 32768 };
/* On a device: below this many tokens, reading the weights bounds a step, and its time rises evenly. */
enum { STAIRS_FROM = 256 };
/* Limits on cases that take long. During the extremes: a case that has taken more than 1/BUDGET_SHARE of all
 * time is not repeated. Later, by predicted time: a case of more than 1/LEFT_SHARE of the time left waits
 * until all others have run, and one of more than 1/LAST_SHARE never runs. */
enum { BUDGET_SHARE = 40, LEFT_SHARE = 16, LAST_SHARE = 3 };
/* Warm-up, on a device: before heavy steps, one heavy case runs until the means of two consecutive windows of
 * WARM_WINDOW_US agree, for at most 1/WARM_SHARE of the time. */
enum { HEAVY_FROM = STAIRS_FROM, WARM_SHARE = 20 };
#define WARM_WINDOW_US 50000
#define WARM_AGREES 0.02
/* A short step is repeated until its runs add up to this time, because its time varies more. */
#define CASE_US 30000.0

/* A kind of step: n_decodes decodes with decode_context tokens of context each, and n_chunks chunks of
 * chunk_tokens with chunk_behind tokens before each. */
typedef struct timed_case {
  uint32_t n_decodes, decode_context, n_chunks, chunk_tokens, chunk_behind;
  uint32_t n_runs;
  double us[RUNS_MAX];
  td_step_work work;
} timed_case;

typedef struct calibration {
  td_engine *e;
  td_dummy_run run;
  uint64_t begin_us, budget_us;
  /* kv_tokens: of all rows together; row_tokens: of one row */
  uint32_t max_rows, max_tokens, kv_tokens, row_tokens;
  timed_case cases[CASES_MAX];
  uint32_t n_cases;
  bool is_warm; /* the last step was a heavy one */
} calibration;

static bool time_is_over(const calibration *c) { return td_clock_us() - c->begin_us >= c->budget_us; }

/* ---- the cases ---- */

static td_step_work work_of(const timed_case *k)
{
  uint32_t n_rows = k->n_decodes + k->n_chunks, kv_len = k->chunk_behind + k->chunk_tokens;
  return (td_step_work){.n_tokens = k->n_decodes + k->n_chunks * k->chunk_tokens,
                        .n_rows = n_rows,
                        .n_logits = n_rows,
                        .n_decode_rows = k->n_decodes,
                        .decode_kv_tokens = (uint64_t)k->n_decodes * k->decode_context,
                        .prefill_pairs = k->n_chunks * td_cost_pairs(k->chunk_tokens, kv_len),
                        .prefill_kv_tokens = (uint64_t)k->n_chunks * kv_len,
                        .prefill_short_chunk_keys =
                            k->n_chunks * td_cost_short_chunk_keys(k->chunk_tokens, kv_len)};
}

static void add_case(calibration *c, timed_case k)
{
  uint32_t page = c->run.dummy.plan->page_tokens; /* rows share no pages, so each rounds up */
  uint64_t n_pages = (uint64_t)k.n_decodes * ((k.decode_context + page - 1) / page) +
                     (uint64_t)k.n_chunks * ((k.chunk_tokens + k.chunk_behind + page - 1) / page);
  uint32_t n_rows = k.n_decodes + k.n_chunks, n_tokens = k.n_decodes + k.n_chunks * k.chunk_tokens;
  bool fits = n_rows > 0 && n_rows <= c->max_rows && n_tokens <= c->max_tokens &&
              n_pages <= c->run.dummy.n_pages && k.decode_context <= c->row_tokens &&
              k.chunk_tokens + k.chunk_behind <= c->row_tokens;
  if (!fits || (k.n_decodes > 0 && k.decode_context == 0) || (k.n_chunks > 0 && k.chunk_tokens < 2) ||
      c->n_cases == CASES_MAX)
    return;
  for (uint32_t i = 0; i < c->n_cases; i++) {
    const timed_case *o = &c->cases[i];
    if (o->n_decodes == k.n_decodes && o->decode_context == k.decode_context && o->n_chunks == k.n_chunks &&
        o->chunk_tokens == k.chunk_tokens && o->chunk_behind == k.chunk_behind)
      return;
  }
  k.work = work_of(&k);
  c->cases[c->n_cases++] = k;
}

static void add_decodes(calibration *c, uint32_t n, uint32_t context)
{
  add_case(c,
           (timed_case){.n_decodes = n, .decode_context = context < c->row_tokens ? context : c->row_tokens});
}

static void add_chunks(calibration *c, uint32_t n, uint32_t tokens, uint32_t behind)
{
  uint32_t room = c->row_tokens > tokens ? c->row_tokens - tokens : 0;
  add_case(
      c, (timed_case){.n_chunks = n, .chunk_tokens = tokens, .chunk_behind = behind < room ? behind : room});
}

static void add_hybrid(calibration *c, uint32_t n_decodes, uint32_t context, uint32_t chunk, uint32_t behind)
{
  uint32_t room = c->row_tokens > chunk ? c->row_tokens - chunk : 0;
  add_case(c, (timed_case){.n_decodes = n_decodes,
                           .decode_context = context < c->row_tokens ? context : c->row_tokens,
                           .n_chunks = 1,
                           .chunk_tokens = chunk,
                           .chunk_behind = behind < room ? behind : room});
}

/* The context of each of n_rows rows: `wanted`, or less if the KV memory holds less. */
static uint32_t context_of(const calibration *c, uint32_t n_rows, uint32_t wanted)
{
  uint32_t each = c->kv_tokens / n_rows / c->run.dummy.plan->page_tokens * c->run.dummy.plan->page_tokens;
  return wanted < each ? wanted : each;
}

/* The extremes, which alone suffice for a rough cost model. */
static void choose_extremes(calibration *c)
{
  uint32_t rows = c->max_rows, tokens = c->max_tokens, some = (rows + 3) / 4;
  add_decodes(c, 1, SHORT_CONTEXT);
  add_chunks(c, 1, tokens / 4, 0);
  add_decodes(c, rows, SHORT_CONTEXT);
  add_chunks(c, 1, tokens, 0);
  add_decodes(c, rows, context_of(c, rows, MANY_CONTEXT));
  add_chunks(c, 1, tokens / 2, context_of(c, 1, LONG_CONTEXT) / 2);
  if (tokens / 2 > some)
    add_hybrid(c, some, context_of(c, rows, MANY_CONTEXT), tokens / 2 - some, 0);
  add_decodes(c, some, context_of(c, some, MANY_CONTEXT));
  add_chunks(c, 1, tokens / 16, 0);
}

/* All kinds of steps on a grid whose lines are a factor of `factor` apart: token counts, contexts, and both
 * together. */
static void choose_grid(calibration *c, uint32_t factor)
{
  uint32_t rows = c->max_rows, tokens = c->max_tokens;
  for (uint32_t n = 1; n <= tokens; n *= factor) {
    add_decodes(c, n, SHORT_CONTEXT);
    add_chunks(c, 1, n, 0);
  }
  for (uint32_t n = 1; n <= rows; n *= factor)
    for (uint32_t context = 512; context <= LONG_CONTEXT; context *= 2 * factor)
      add_decodes(c, n, context_of(c, n, context));
  for (uint32_t n = 4; n < rows; n *= 2 * factor)
    for (uint32_t n_all = 32; n_all <= tokens; n_all *= factor) {
      if (n_all > 2 * n)
        add_hybrid(c, n, context_of(c, 2 * n, 1024), n_all - n, n_all % 3 ? 0 : 1024);
    }
  for (uint32_t n = 8; n <= tokens; n *= factor)
    for (uint32_t behind = 1024; behind <= LONG_CONTEXT; behind *= 2 * factor)
      add_chunks(c, 1, n, behind);
  add_chunks(c, 4, tokens / factor / 2, 0);
}

/* Steps as they are close to the highest rate of long prompts, where queues form: many decodes over long
 * context, beside a chunk behind long context. */
static void choose_full(calibration *c)
{
  for (uint32_t n = 8; n <= FULL_ROWS && n <= c->max_rows; n *= 4)
    for (uint32_t n_all = c->max_tokens / 8; n_all <= c->max_tokens / 2; n_all *= 2)
      if (n_all > 2 * n)
        add_hybrid(c, n, context_of(c, 2 * n, FULL_CONTEXT), n_all - n, context_of(c, 2, FULL_CONTEXT));
}

/* Between the grid's lines: GEMMs have tiles, and an algorithm for each range of rows. So times over token
 * counts form stairs, which sometimes even fall. */
static void choose_stairs(calibration *c)
{
  for (uint32_t n = 32; n <= c->max_tokens; n += n < 256    ? 32
                                                 : n < 1024 ? 64
                                                 : n < 2048 ? 128
                                                            : n / 4 / 128 * 128)
    add_chunks(c, 1, n, 0);
  for (uint32_t n = 24; n <= c->max_rows; n *= 2)
    add_decodes(c, n, SHORT_CONTEXT);
}

/* ---- running them ---- */

static td_status run_case(calibration *c, const timed_case *k, double *us, td_error *err)
{
  td_dummy_run_begin(&c->run);
  TD_BUG_ON(!td_dummy_run_add(&c->run, k->n_decodes, 1, k->decode_context));
  TD_BUG_ON(!td_dummy_run_add(&c->run, k->n_chunks, k->chunk_tokens, k->chunk_behind + k->chunk_tokens));
  return td_dummy_run_measure(&c->run, us, err);
}

static int compare_us(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The median, not the minimum: what disturbs steps now will disturb them later. */
static double us_of(const timed_case *k)
{
  double us[RUNS_MAX];
  memcpy(us, k->us, sizeof us);
  qsort(us, k->n_runs, sizeof *us, compare_us);
  return us[(k->n_runs - 1) / 2];
}

/* Whether its GEMMs make the step bound by arithmetic, not by memory. */
static bool is_heavy(const calibration *c, const timed_case *k)
{
  return c->e->backend->on_device && k->n_chunks > 0 && k->work.n_tokens >= HEAVY_FROM;
}

/* Runs the first heavy case until the means of two windows agree. */
static td_status warm_up(calibration *c, td_error *err)
{
  const timed_case *k = c->cases;
  uint64_t begin_us = td_clock_us();
  double before_us = 0, us;
  while (!is_heavy(c, k))
    k++;
  while (td_clock_us() - begin_us < c->budget_us / WARM_SHARE) {
    uint64_t window_us = td_clock_us();
    uint32_t n_runs = 0;
    do {
      TD_TRY(run_case(c, k, &us, err));
      n_runs++;
    } while (td_clock_us() - window_us < WARM_WINDOW_US);
    double mean_us = (double)(td_clock_us() - window_us) / n_runs;
    if (fabs(mean_us - before_us) <= WARM_AGREES * before_us)
      break;
    before_us = mean_us;
  }
  return TD_OK;
}

/* Runs a case once more. Before the first counted run, a short case runs once uncounted, because something
 * may have to be set up. */
static td_status run_again(calibration *c, timed_case *k, td_error *err)
{
  double us;
  bool heavy = is_heavy(c, k);
  if (heavy && !c->is_warm)
    TD_TRY(warm_up(c, err));
  c->is_warm = heavy;
  TD_TRY(run_case(c, k, &us, err));
  if (k->n_runs == 0 && us < CASE_US && !time_is_over(c))
    TD_TRY(run_case(c, k, &us, err));
  k->us[k->n_runs++] = us;
  return TD_OK;
}

/* Three runs, or more of a short step. */
static bool wants_more(const timed_case *k)
{
  return k->n_runs < RUNS_WANTED || (k->n_runs < RUNS_MAX && k->n_runs * us_of(k) < CASE_US);
}

/* Whether the case takes too long: by prediction against the time left, or without a model, by its own runs
 * against all time. */
static bool is_too_long(const calibration *c, const timed_case *k, const td_cost_model *m,
                        uint32_t left_share)
{
  double left_us = (double)c->budget_us - (double)(td_clock_us() - c->begin_us);
  if (m)
    return td_cost_step_us(m, &k->work) > left_us / left_share;
  return k->n_runs > 0 && k->n_runs * us_of(k) > (double)c->budget_us / BUDGET_SHARE;
}

/* Runs cases [first, end) for n_rounds rounds, except those that are too long. In the first pass of each
 * round all other cases run, in the second the heavy ones. */
static td_status run_cases(calibration *c, uint32_t first, uint32_t end, uint32_t n_rounds,
                           const td_cost_model *m, uint32_t left_share, td_error *err)
{
  for (uint32_t pass = 0; pass < 2 * n_rounds; pass++)
    for (uint32_t i = first; i < end && !time_is_over(c); i++) {
      timed_case *k = &c->cases[i];
      if (is_heavy(c, k) == (pass % 2 == 1) && (k->n_runs > 0 || pass < 2) && wants_more(k) &&
          !is_too_long(c, k, m, left_share))
        TD_TRY(run_again(c, k, err));
    }
  return TD_OK;
}

static uint32_t collect(const calibration *c, td_cost_sample samples[CASES_MAX])
{
  uint32_t n = 0;
  for (uint32_t i = 0; i < c->n_cases; i++)
    if (c->cases[i].n_runs > 0)
      samples[n++] = (td_cost_sample){c->cases[i].work, us_of(&c->cases[i])};
  return n;
}

/* ---- the whole calibration ---- */

/* At log level debug: the measured times, and the model's error for each. */
static void log_cases(const calibration *c)
{
  for (uint32_t i = 0; i < c->n_cases; i++) {
    const timed_case *k = &c->cases[i];
    if (k->n_runs == 0) {
      td_debug("step times: %u @ %u and %u x %u @ %u: no time was left", k->n_decodes, k->decode_context,
               k->n_chunks, k->chunk_tokens, k->chunk_behind + k->chunk_tokens);
      continue;
    }
    td_debug("step times: %u @ %u and %u x %u @ %u: %.2f ms by %u runs, %+.1f %% by the model", k->n_decodes,
             k->decode_context, k->n_chunks, k->chunk_tokens, k->chunk_behind + k->chunk_tokens,
             us_of(k) * 1e-3, k->n_runs, 100 * (td_cost_step_us(&c->e->cost, &k->work) / us_of(k) - 1));
  }
}

static void write_table(const calibration *c, uint32_t n_measured)
{
  char history[TD_TIMES_HISTORY_BYTES];
  td_engine *e = c->e;
  td_error why;
  if (!*e->cost_path)
    return;
  td_engine_format_measured(history, n_measured, c->n_cases, (uint32_t)(c->budget_us / 1000));
  if (td_engine_write_times(e, &e->cost, history, &why) == TD_OK)
    td_info("step times are kept in %s", e->cost_path);
  else
    td_warn("measured step times are not kept (cache_dir): %s", why.message);
}

static td_status fit(calibration *c, td_error *err)
{
  td_cost_sample samples[CASES_MAX];
  td_engine *e = c->e;
  uint32_t n = collect(c, samples);
  double s = (double)(td_clock_us() - c->begin_us) / 1e6;
  if (td_cost_fit(samples, n, e->backend->attends_beside, &e->cost, err) != TD_OK)
    return td_error_prefix(err, "step times");
  if (!td_cost_is_valid(&e->cost))
    return td_fail(err, TD_ERR_CONFIG, "step times: out of range");
  if (e->backend->on_device)
    td_cost_make_stairs(&e->cost, STAIRS_FROM);
  e->cost_source = TD_TIMES_MEASURED;
  td_info("step times: %u kinds of steps measured in %.2f s; the model's error is %.1f %% in the median, "
          "%.1f %% in nine of ten",
          n, s, 100 * td_cost_fit_error(&e->cost, samples, n, 0.5),
          100 * td_cost_fit_error(&e->cost, samples, n, 0.9));
  log_cases(c);
  return TD_OK;
}

/* Measures the extremes first, several times each. A rough model fitted to them predicts the times of the
 * other kinds, and so which of them there is time for. */
static td_status measure(calibration *c, td_error *err)
{
  td_cost_sample samples[CASES_MAX];
  td_cost_model rough;
  double cold_us;
  choose_extremes(c);
  uint32_t n_extremes = c->n_cases;
  if (n_extremes > 0) /* uncounted: the weights may not be in memory yet */
    TD_TRY(run_case(c, &c->cases[0], &cold_us, err));
  c->begin_us = td_clock_us(); /* calibrate_ms is for measuring, not for reading weights */
  TD_TRY(run_cases(c, 0, n_extremes, RUNS_WANTED, NULL, 1, err));
  uint32_t n = collect(c, samples);
  if (n == 0 || (n < FEWEST_CASES && n < n_extremes))
    return td_fail_param(err, TD_ERR_CONFIG, "calibrate_ms",
                         "calibrate_ms is over after %u kinds of steps, too few to tell what steps take", n);
  TD_TRY(td_cost_fit(samples, n, c->e->backend->attends_beside, &rough, err));
  choose_grid(c, 4);
  choose_full(c);
  choose_stairs(c);
  uint32_t n_coarse = c->n_cases;
  choose_grid(c, 2);
  TD_TRY(run_cases(c, n_extremes, n_coarse, 1, &rough, LEFT_SHARE, err));
  TD_TRY(run_cases(c, n_coarse, c->n_cases, 1, &rough, LEFT_SHARE, err));
  TD_TRY(run_cases(c, n_extremes, c->n_cases, RUNS_WANTED - 1, &rough, LEFT_SHARE, err));
  TD_TRY(run_cases(c, 0, c->n_cases, RUNS_MAX, &rough, LAST_SHARE, err));
  TD_TRY(fit(c, err));
  write_table(c, collect(c, samples));
  return TD_OK;
}

static td_status calibrate(calibration *c, td_error *err)
{
  if (!c->e->backend->on_device)
    TD_TRY(td_dummy_run_touch_pages(&c->run, err));
  return measure(c, err);
}

td_status td_engine_measure_times(td_engine *e, uint32_t page_tokens, uint32_t n_pages, uint32_t max_context,
                                  td_error *err)
{
  uint64_t kv_tokens = (uint64_t)n_pages * page_tokens;
  uint64_t budget_us = (uint64_t)td_option(&e->options, TD_LIMIT_CALIBRATE_MS) * 1000;
  calibration *c = calloc(1, sizeof *c);
  if (!c)
    return td_fail(err, TD_ERR_NOMEM, "no memory for measuring steps");
  c->e = e;
  c->begin_us = td_clock_us();
  c->budget_us = budget_us;
  c->max_rows = e->backend->max_rows;
  c->max_tokens = e->backend->max_tokens;
  if (!e->backend->on_device) { /* host memory is allocated as it is written */
    td_kv_spec one = td_model_kv_spec(&e->desc, e->backend->kv_dtype, 1, page_tokens);
    uint64_t most = HOST_KV_BYTES / e->backend->ops->kv_bytes_per_page(e->backend, &one);
    most = (most > HOST_KV_PAGES ? most : HOST_KV_PAGES) * page_tokens;
    kv_tokens = kv_tokens < most ? kv_tokens : most;
  }
  c->kv_tokens = kv_tokens < UINT32_MAX ? (uint32_t)kv_tokens : UINT32_MAX / page_tokens * page_tokens;
  c->row_tokens = max_context < c->kv_tokens ? max_context : c->kv_tokens;
  if (c->row_tokens > LONG_CONTEXT)
    c->row_tokens = LONG_CONTEXT;
  td_status st = td_dummy_run_init(&c->run, td_engine_stepper(e), page_tokens, c->kv_tokens / page_tokens,
                                   c->row_tokens, err);
  if (st == TD_OK)
    st = calibrate(c, err);
  td_dummy_run_deinit(&c->run);
  free(c);
  return st;
}
