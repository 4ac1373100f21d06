/* bench_predict MODEL [--rounds N] [--kinds N] [--calibrate-ms N] [--threads N]: how accurate the cost
 * model is on this machine, compared with how well this machine repeats its own times.
 *
 * The model is loaded and calibrated as in the daemon. Then steps that calibration never saw (ragged
 * decodes, several chunks after context of any length) are run by hand, all kinds once per round, in
 * another order each round. The times of the same step differ: |time / median of its kind - 1| is the floor
 * below which no prediction can be. In addition to the clock, the program records the CPU time of the step
 * and the time that it waited for a CPU (Linux: schedstat), which show whether other processes interfered.
 * Two fixed pieces of work before each step, one in registers and one in memory, show how fast the machine
 * was just then. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/internal.h"
#include "scheduler/budget.h"

enum { KINDS_MAX = 200, ROWS_MAX = 64, ROUNDS_MAX = 400, PROBE_BYTES = 8 << 20 };

typedef struct row {
  uint32_t n_new, n_kv;
} row;

typedef struct kind {
  row rows[ROWS_MAX];
  uint32_t n_rows;
  double predicted_us, us[ROUNDS_MAX], cpu_us[ROUNDS_MAX], wait_us[ROUNDS_MAX], alu_us[ROUNDS_MAX],
      memory_us[ROUNDS_MAX];
  double relative[ROUNDS_MAX]; /* relative to a short step right before and after */
} kind;

static kind kinds[KINDS_MAX];
static double learned[KINDS_MAX * ROUNDS_MAX]; /* error with the correction that the daemon would have learned
                                                  from the steps before */
static uint32_t n_learned;
static td_budget budget;
static uint32_t n_kinds = 40, n_rounds = 20;
static uint64_t random_state = 11;

static void must(bool ok, const char *what)
{
  if (ok)
    return;
  fprintf(stderr, "%s\n", what);
  exit(2);
}

static double uniform(void)
{
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return ((double)(random_state >> 11) + 0.5) * 0x1p-53;
}

/* Log-uniform: as often between 1 and 2 as between 512 and 1024. */
static uint32_t any_size(double low, double high) { return (uint32_t)(low * pow(high / low, uniform())); }

static double clock_us(clockid_t clock)
{
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* ---- what disturbs ---- */

static double waited_us(void)
{
  static int fd = -1;
  char text[96] = {0};
  unsigned long long ran, waited = 0;
  if (fd < 0)
    fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  if (fd < 0 || pread(fd, text, sizeof text - 1, 0) <= 0 || sscanf(text, "%llu %llu", &ran, &waited) != 2)
    return 0;
  return (double)waited * 1e-3;
}

static double probe_alu_us(void)
{
  double begin = clock_us(CLOCK_THREAD_CPUTIME_ID);
  uint64_t x = random_state;
  for (int i = 0; i < 100000; i++)
    x = x * 6364136223846793005u + 1442695040888963407u;
  random_state ^= x & 0; /* so that it is computed */
  __asm__ volatile("" : : "r"(x));
  return clock_us(CLOCK_THREAD_CPUTIME_ID) - begin;
}

static double probe_memory_us(void)
{
  static uint64_t *bytes;
  if (!bytes)
    must((bytes = calloc(1, PROBE_BYTES)) != NULL, "no memory");
  double begin = clock_us(CLOCK_THREAD_CPUTIME_ID);
  uint64_t sum = 0;
  for (size_t i = 0; i < PROBE_BYTES / sizeof *bytes; i += 8)
    sum += bytes[i];
  __asm__ volatile("" : : "r"(sum));
  return clock_us(CLOCK_THREAD_CPUTIME_ID) - begin;
}

/* ---- steps ---- */

/* Steps of three kinds: decodes, prompts, both. */
static void draw(kind *k, const td_engine *e, uint32_t context, uint32_t kv_tokens)
{
  uint32_t max_rows = e->backend->max_rows < ROWS_MAX ? e->backend->max_rows : ROWS_MAX,
           left = e->backend->max_tokens;
  uint32_t what = (uint32_t)(3 * uniform()), n_decodes = what == 1 ? 0 : any_size(1, max_rows);
  uint32_t n_chunks = what == 0 ? 0 : 1 + (uint32_t)(3 * uniform());
  for (uint32_t i = 0; i < n_decodes + n_chunks && i < max_rows; i++) {
    uint32_t n_new = 1, n_kv = any_size(16, context);
    if (i >= n_decodes) {
      n_new = any_size(2, left / 2.0);
      n_kv = n_new + (uniform() < 0.5 ? 0 : any_size(16, context));
    }
    if (n_kv > context)
      n_kv = context;
    if (n_new > n_kv || n_new > left || n_kv + 64 > kv_tokens)
      continue;
    left -= n_new;
    kv_tokens -= n_kv + 63;
    k->rows[k->n_rows++] = (row){n_new, n_kv};
  }
}

/* A short step, always the same, to measure the machine's speed at the moment. */
static double probe_step_us(td_dummy_run *t)
{
  td_error err = {0};
  double us, sum = 0;
  for (int i = 0; i < 2; i++) {
    td_dummy_run_begin(t);
    must(td_dummy_run_add(t, 2, 1, 64) && td_dummy_run_measure(t, &us, &err) == TD_OK, err.message);
    sum += us / 2;
  }
  return sum;
}

static void run_kind(td_dummy_run *t, kind *k, uint32_t round)
{
  td_error err = {0};
  double us;
  static double before;
  if (before == 0)
    before = probe_step_us(t);
  td_dummy_run_begin(t);
  for (uint32_t i = 0; i < k->n_rows; i++)
    must(td_dummy_run_add(t, 1, k->rows[i].n_new, k->rows[i].n_kv), "a step that does not fit");
  td_step_work w = td_step_work_of(t->dummy.plan);
  k->predicted_us = td_cost_step_us(&budget.cost, &w);
  k->alu_us[round] = probe_alu_us();
  k->memory_us[round] = probe_memory_us();
  double cpu = clock_us(CLOCK_PROCESS_CPUTIME_ID), waited = waited_us();
  must(td_dummy_run_measure(t, &us, &err) == TD_OK, err.message);
  k->us[round] = us;
  k->wait_us[round] = waited_us() - waited;
  learned[n_learned++] = fabs(td_budget_predict_us(&budget, &w) / us - 1);
  td_budget_observe(&budget, &w, us);
  double after = probe_step_us(t);
  k->relative[round] = us / ((before + after) / 2);
  before = after;
  k->cpu_us[round] = clock_us(CLOCK_PROCESS_CPUTIME_ID) - cpu;
}

static void run_all(td_dummy_run *t)
{
  uint32_t order[KINDS_MAX];
  for (uint32_t round = 0; round < n_rounds; round++) {
    for (uint32_t i = 0; i < n_kinds; i++) {
      uint32_t j = (uint32_t)((i + 1) * uniform());
      order[i] = order[j];
      order[j] = i;
    }
    for (uint32_t i = 0; i < n_kinds; i++)
      run_kind(t, &kinds[order[i]], round);
  }
}

/* ---- what it says ---- */

static int compare(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double quantile(double *v, uint32_t n, double share)
{
  qsort(v, n, sizeof *v, compare);
  return v[(uint32_t)(share * (n - 1) + 0.5)];
}

static double median_of(const double *v)
{
  double copy[ROUNDS_MAX];
  memcpy(copy, v, n_rounds * sizeof *v);
  return quantile(copy, n_rounds, 0.5);
}

static void say(const char *what, double *errors, uint32_t n)
{
  double p50 = quantile(errors, n, 0.5), p90 = quantile(errors, n, 0.9), p99 = quantile(errors, n, 0.99);
  printf("%-58s %6.1f %6.1f %6.1f %6.1f\n", what, 100 * p50, 100 * p90, 100 * p99, 100 * errors[n - 1]);
}

/* The values |of / median of its kind - 1| of all runs. */
static void say_spread(const char *what, size_t offset)
{
  static double e[KINDS_MAX * ROUNDS_MAX];
  uint32_t n = 0;
  for (uint32_t i = 0; i < n_kinds; i++) {
    const double *v = (const double *)((const char *)&kinds[i] + offset);
    double median = median_of(v);
    for (uint32_t r = 0; r < n_rounds; r++)
      e[n++] = fabs(v[r] / median - 1);
  }
  say(what, e, n);
}

static uint64_t ticks(bool stolen)
{
  unsigned long long v[8] = {0};
  FILE *f = fopen("/proc/stat", "r");
  if (f && fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", v, v + 1, v + 2, v + 3, v + 4, v + 5,
                  v + 6, v + 7) != 8)
    v[7] = 0;
  if (f)
    fclose(f);
  return stolen ? v[7] : v[0] + v[1] + v[2] + v[5] + v[6] + v[7];
}

static void report(double probe_predicted_us)
{
  static double shape[KINDS_MAX * ROUNDS_MAX], shape_by_median[KINDS_MAX];
  static double raw[KINDS_MAX * ROUNDS_MAX], by_median[KINDS_MAX];
  double steps_us = 0, waits_us = 0, off_us = 0;
  uint32_t n = 0;
  for (uint32_t i = 0; i < n_kinds; i++) {
    kind *k = &kinds[i];
    by_median[i] = fabs(k->predicted_us / median_of(k->us) - 1);
    shape_by_median[i] = fabs(k->predicted_us / probe_predicted_us / median_of(k->relative) - 1);
    for (uint32_t r = 0; r < n_rounds; r++) {
      shape[n] = fabs(k->predicted_us / probe_predicted_us / k->relative[r] - 1);
      raw[n++] = fabs(k->predicted_us / k->us[r] - 1);
      steps_us += k->us[r];
      waits_us += k->wait_us[r];
      off_us += fmax(0, k->us[r] - k->cpu_us[r] - k->wait_us[r]);
    }
  }
  printf("%u kinds of steps, %u times each, %.2f ms on average\n", n_kinds, n_rounds, steps_us / n / 1e3);
  printf("%-58s %6s %6s %6s %6s\n", "error, %", "p50", "p90", "p99", "most");
  say("predicted beside each time", raw, n);
  say("  corrected by the steps before, as the daemon's metric", learned, n_learned);
  say_spread("a step beside the median of its kind: the floor", offsetof(kind, us));
  say_spread("  its processor time beside the median of that", offsetof(kind, cpu_us));
  say_spread("  work in registers before it, beside its median", offsetof(kind, alu_us));
  say_spread("  work in memory before it, beside its median", offsetof(kind, memory_us));
  say("predicted beside the median of the kind: the model", by_median, n_kinds);
  printf("all in units of a short step run just before and after, so that the machine's speed of the moment "
         "is out of it:\n");
  say("predicted beside each time", shape, n);
  say_spread("a step beside the median of its kind: the floor", offsetof(kind, relative));
  say("predicted beside the median of the kind: the model", shape_by_median, n_kinds);
  printf("waiting for a processor: %.1f %% of the steps' time; neither running nor waiting: %.1f %%\n",
         100 * waits_us / steps_us, 100 * off_us / steps_us);
}

static void list_worst(void)
{
  for (uint32_t i = 0; i < n_kinds; i++) {
    const kind *k = &kinds[i];
    double off = k->predicted_us / median_of(k->us) - 1;
    if (fabs(off) < 0.08)
      continue;
    printf("  %+5.1f %% of %8.2f ms:", 100 * off, median_of(k->us) / 1e3);
    for (uint32_t r = 0; r < k->n_rows; r++)
      printf(" %u@%u", k->rows[r].n_new, k->rows[r].n_kv);
    printf("\n");
  }
}

static void read_arguments(int argc, char **argv, td_options *o)
{
  td_options_init(o);
  o->limit[TD_LIMIT_CONTEXT_TOKENS] = 2048;
  o->limit[TD_LIMIT_THREADS] = 1;
  *o->cache_dir = 0;
  must(argc > 1, "usage: bench_predict MODEL [--rounds N] [--kinds N] [--calibrate-ms N] [--threads N]");
  snprintf(o->model, sizeof o->model, "%s", argv[1]);
  for (int i = 2; i + 1 < argc; i += 2) {
    double n = atof(argv[i + 1]);
    if (strcmp(argv[i], "--rounds") == 0)
      n_rounds = (uint32_t)fmin(n, ROUNDS_MAX);
    else if (strcmp(argv[i], "--kinds") == 0)
      n_kinds = (uint32_t)fmin(n, KINDS_MAX);
    else if (strcmp(argv[i], "--calibrate-ms") == 0)
      o->limit[TD_LIMIT_CALIBRATE_MS] = n;
    else if (strcmp(argv[i], "--threads") == 0)
      o->limit[TD_LIMIT_THREADS] = n;
    else
      must(false, argv[i]);
  }
}

int main(int argc, char **argv)
{
  static td_options o;
  td_engine *e = NULL;
  td_error err = {0};
  td_dummy_run t;
  read_arguments(argc, argv, &o);
  must(td_engine_create(&o, &e, &err) == TD_OK, err.message);
  e->calibrates = true;
  must(td_engine_load(e, &err) == TD_OK, err.message);
  td_sched_config c = {.max_running = e->info.max_running,
                       .step_tokens = e->info.step_tokens,
                       .page_tokens = e->info.page_tokens,
                       .n_pages = e->info.n_pages,
                       .cost = &e->cost};
  must(td_budget_init(&budget, &c, &err) == TD_OK, err.message);
  uint32_t context = e->info.max_context_tokens, n_pages = e->info.n_pages, page = e->info.page_tokens;
  must(td_dummy_run_init(&t, td_engine_stepper(e), page, n_pages, context, &err) == TD_OK &&
           td_dummy_run_touch_pages(&t, &err) == TD_OK,
       err.message);
  for (uint32_t i = 0; i < n_kinds; i++)
    do
      draw(&kinds[i], e, context, n_pages * page);
    while (kinds[i].n_rows == 0);
  uint64_t used = ticks(false), stolen = ticks(true);
  run_all(&t);
  td_dummy_run_begin(&t);
  must(td_dummy_run_add(&t, 2, 1, 64), "a step that does not fit");
  td_step_work w = td_step_work_of(t.dummy.plan);
  report(td_cost_step_us(&e->cost, &w));
  printf("stolen from this machine by others on its host: %.1f %% of what it used\n",
         100.0 * (double)(ticks(true) - stolen) / (double)(ticks(false) - used + 1));
  list_worst();
  td_dummy_run_deinit(&t);
  td_engine_destroy(e);
  return 0;
}
