/* Costs from times. Each trial is a plan made by hand: rows alone, rows in many pieces, prefixes packed in full tiles or in small ones.
 * Its time is launch_us and that of the worker with most: so many keys of each kind, so many pieces and partials, each times what it
 * takes. What these take is found by damped least squares over the logarithms of predicted and measured times (Levenberg, Marquardt),
 * from several beginnings, since a limit that no trial meets has no slope. */
#include "kernels/attention/fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attention/planner.h"

enum { LAUNCH, KEY_MEMORY, KEY_L2, TILE, START, PARTIAL, N_UNKNOWN };
enum { RUNS = 5, RUNS_MAX = 15, FEWEST_TRIALS = 10, STEPS = 80 };
/* A fitted cost so many times larger or smaller than where the search began is no device's. */
#define SANE_TIMES 30.0

typedef enum trial_kind { ALONE, IN_PIECES, PACKED, PACKED_SMALL, KINDS } trial_kind;

typedef struct trial_shape {
  trial_kind kind;
  uint32_t n_rows, shared_keys, own_keys;
} trial_shape;

static const trial_shape shapes[] = {
    {ALONE, 1, 0, 16384},        {ALONE, 8, 0, 16384},        {ALONE, 16, 0, 4096},        {ALONE, 64, 0, 64},
    {ALONE, 64, 0, 1024},        {ALONE, 64, 0, 4096},        {ALONE, 256, 0, 64},         {ALONE, 256, 0, 256},
    {ALONE, 256, 0, 1024},       {IN_PIECES, 8, 0, 8192},     {IN_PIECES, 16, 0, 2048},    {IN_PIECES, 64, 0, 1024},
    {IN_PIECES, 64, 0, 4096},    {IN_PIECES, 256, 0, 256},    {IN_PIECES, 256, 0, 1024},   {PACKED, 16, 8192, 64},
    {PACKED, 32, 16384, 64},     {PACKED, 64, 4096, 64},      {PACKED, 128, 8192, 64},     {PACKED, 256, 1024, 64},
    {PACKED, 256, 4096, 64},     {PACKED, 256, 16384, 64},    {PACKED_SMALL, 64, 4096, 64}, {PACKED_SMALL, 64, 16384, 64},
    {PACKED_SMALL, 256, 1024, 64}, {PACKED_SMALL, 256, 4096, 64}, {PACKED_SMALL, 256, 8192, 64}};
enum { SHAPES = sizeof shapes / sizeof *shapes };
/* Trials by which a kept calibration is held to the device: one of each kind. */
static const uint8_t proofs[] = {5, 12, 20, 25};
#define HOLDS_WITHIN 0.25

/* What one worker has to do. */
typedef struct load {
  double keys[2][3]; /* as unit_costs.key_us */
  double n_pieces, n_partials;
} load;

typedef struct trial {
  load *loads; /* [n_workers] */
  double us[RUNS_MAX];
  uint32_t n_runs;
  double measured_us;
} trial;

typedef struct fit {
  const td_attention_fit_request *r;
  td_attention_planner *planners[KINDS]; /* NULL: a kind that this shape has not */
  td_plan_row *rows;
  int32_t *page_table;
  td_plan plan;
  trial trials[SHAPES];
  double key_bytes, partial_bytes;
} fit;

/* ---- plans ---- */

static td_attention_planner_config config_of(const td_attention_fit_request *r, trial_kind kind)
{
  td_attention_planner_config c = r->config;
  c.window_tokens = c.invariant_keys = 0;
  c.shared_only = false; /* the costs of rows' own spans are found too, with the kernel that does both */
  c.policy = kind == IN_PIECES ? TD_ATTENTION_PERSISTENTKV : TD_ATTENTION_UNIFIED;
  if (kind == PACKED_SMALL)
    c.tile_rows = 16 / c.group * c.group;
  if (kind == PACKED || kind == PACKED_SMALL) { /* so that all is packed, and who reads from the L2 cache has so much that all wait for it */
    c.cost.start_us = c.cost.partial_us = 0;
    c.cost.l2_bytes_us = 4 * c.cost.memory_bytes_us;
    c.cost.tensor_flop_us *= 1e3;
  }
  return c;
}

static td_status make_planners(fit *f, td_error *err)
{
  for (trial_kind k = 0; k < KINDS; k++) {
    td_attention_planner_config c = config_of(f->r, k);
    if (k == PACKED_SMALL && c.group > 8)
      continue; /* no tile is smaller than a row */
    TD_TRY(td_attention_planner_create(&c, &f->planners[k], err));
  }
  return TD_OK;
}

/* Rows of the shape on pages 0, 1, ...; false: there are not so many pages, or rows. */
static bool make_rows(fit *f, const trial_shape *s)
{
  uint32_t page_tokens = f->r->config.page_tokens, n_shared = s->shared_keys / page_tokens;
  uint32_t n_own = ceil_div(s->own_keys, page_tokens), n = n_shared + n_own;
  if (s->n_rows > f->r->config.max_rows || n_shared + (uint64_t)s->n_rows * n_own > f->r->n_pages ||
      (uint64_t)s->n_rows * n > f->plan.page_table_len)
    return false;
  f->plan.n_rows = f->plan.n_tokens = f->plan.n_decode_rows = s->n_rows;
  for (uint32_t r = 0; r < s->n_rows; r++) {
    f->rows[r] = (td_plan_row){.slot = r, .q_start = r, .q_len = 1, .kv_len = n_shared * page_tokens + s->own_keys,
                               .page_table_offset = r * n};
    for (uint32_t i = 0; i < n; i++) /* own pages apart from each other: the step through them is odd */
      f->page_table[r * n + i] = (int32_t)(i < n_shared ? i : n_shared + r * n_own + (i - n_shared) * 7919ull % n_own);
  }
  return true;
}

/* ---- what a plan makes workers do ---- */

static void add_task(load *l, const td_attention_task *t, uint32_t tiles, bool again, uint32_t chunk)
{
  for (uint32_t head = t->begin_head; head <= t->end_head; head++) {
    uint32_t key = head == t->begin_head ? t->begin_key : 0, end = head == t->end_head ? t->end_key : t->n_keys;
    while (key < end) {
      uint32_t stop = chunk && key / chunk * chunk + chunk < end ? key / chunk * chunk + chunk : end;
      bool direct = t->slot == TD_ATTENTION_DIRECT || (!t->shared && stop - key == t->n_keys);
      l->keys[again][tiles] += stop - key;
      l->n_pieces++;
      l->n_partials += direct ? 0 : t->n_members;
      key = stop;
    }
  }
}

static void find_loads(const td_attention_planner *p, load *loads)
{
  const td_attention_header *h = p->block;
  const td_attention_span *spans = td_attention_at(h, h->spans_at);
  const td_attention_task *tasks = td_attention_at(h, h->tasks_at);
  const uint32_t *first_task = td_attention_first_task(h);
  memset(loads, 0, h->n_workers * sizeof *loads);
  for (uint32_t part = 0; part < 2; part++)
    for (uint32_t w = 0, span = part ? h->n_shared_spans : 0; w < h->n_workers; w++) {
      const uint32_t *range = first_task + part * (h->n_workers + 1) + w;
      for (uint32_t t = range[0]; t < range[1]; t++) {
        while (t >= spans[span].first_task + spans[span].n_tasks)
          span++;
        uint8_t cost = span < p->n_shared ? p->shared_cost[span] : cost_class(p->config.group, false);
        add_task(&loads[w], &tasks[t], cost % 3, cost / 3, chunk_keys(&spans[span]));
      }
    }
}

static double predicted_us(const trial *t, uint32_t n_workers, const double x[N_UNKNOWN])
{
  double longest = 0, read[2] = {x[KEY_MEMORY], x[KEY_L2]};
  for (uint32_t w = 0; w < n_workers; w++) {
    const load *l = &t->loads[w];
    double us = l->n_pieces * x[START] + l->n_partials * x[PARTIAL];
    for (int again = 0; again < 2; again++)
      for (int tiles = 0; tiles < 3; tiles++)
        us += l->keys[again][tiles] * fmax(read[again], tiles * x[TILE]);
    longest = fmax(longest, us);
  }
  return x[LAUNCH] + longest;
}

/* ---- times ---- */

static int by_value(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Trial i once more; those that this device has no room for stay without runs. The lower quartile counts: what disturbs a run only
 * lengthens it. */
static td_status run_trial(fit *f, uint32_t i, td_error *err)
{
  trial *t = &f->trials[i];
  td_attention_planner *p = f->planners[shapes[i].kind];
  td_error no_room;
  if (!p || !make_rows(f, &shapes[i]))
    return TD_OK;
  td_attention_planner_forget(p);
  uint64_t n_unpacked = p->stats.n_unpacked; /* by other trials */
  if (td_attention_planner_make(p, &f->plan, &no_room) != TD_OK)
    return TD_OK;
  bool too_large = f->r->max_block_bytes > 0 && p->block->block_bytes > f->r->max_block_bytes;
  if (too_large || (p->stats.n_unpacked > n_unpacked && shapes[i].kind != ALONE)) /* not what the trial is for */
    return TD_OK;
  double us = 0;
  TD_TRY(f->r->run(f->r->arg, &f->plan, p->block, &us, err));
  if (!(us > 0) || !isfinite(us))
    return td_fail(err, TD_ERR_CONFIG, "attention costs: a trial took %g us", us);
  find_loads(p, t->loads);
  t->us[t->n_runs++] = us;
  double sorted[RUNS_MAX];
  memcpy(sorted, t->us, sizeof sorted);
  qsort(sorted, t->n_runs, sizeof *sorted, by_value);
  t->measured_us = sorted[t->n_runs / 4];
  return TD_OK;
}

/* ---- the search ---- */

/* Of logarithms x: residuals of all trials that were run, and the sum of their squares; large ones count linearly. */
static double residuals(const fit *f, const double logs[N_UNKNOWN], double out[SHAPES])
{
  enum { PERCENT_MAX = 15 };
  double x[N_UNKNOWN], sum = 0, most = PERCENT_MAX / 100.0;
  for (int k = 0; k < N_UNKNOWN; k++)
    x[k] = exp(logs[k]);
  for (uint32_t i = 0; i < SHAPES; i++) {
    const trial *t = &f->trials[i];
    out[i] = t->n_runs > 0 ? log(predicted_us(t, f->r->config.n_workers, x) / t->measured_us) : 0;
    double a = fabs(out[i]);
    if (a > most)
      out[i] *= sqrt(2 * most / a - most * most / (a * a));
    sum += out[i] * out[i];
  }
  return sum;
}

/* Solves a symmetric positive system in place; false: it is not. */
static bool solve(double a[N_UNKNOWN][N_UNKNOWN], double b[N_UNKNOWN])
{
  for (int i = 0; i < N_UNKNOWN; i++) {
    for (int j = 0; j <= i; j++) {
      double sum = a[i][j];
      for (int k = 0; k < j; k++)
        sum -= a[i][k] * a[j][k];
      if (i == j && sum <= 0)
        return false;
      a[i][j] = i == j ? sqrt(sum) : sum / a[j][j];
    }
    for (int k = 0; k < i; k++)
      b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  for (int i = N_UNKNOWN - 1; i >= 0; i--) {
    for (int k = i + 1; k < N_UNKNOWN; k++)
      b[i] -= a[k][i] * b[k];
    b[i] /= a[i][i];
  }
  return true;
}

/* From logs on; returns the least sum of squares found. */
static double descend(const fit *f, double logs[N_UNKNOWN])
{
  double r[SHAPES], moved[SHAPES], slopes[N_UNKNOWN][SHAPES], damping = 1e-2, sum = residuals(f, logs, r);
  for (int step = 0; step < STEPS && damping < 1e6; step++) {
    double a[N_UNKNOWN][N_UNKNOWN] = {{0}}, b[N_UNKNOWN] = {0}, next[N_UNKNOWN], h = 1e-3;
    for (int k = 0; k < N_UNKNOWN; k++) {
      memcpy(next, logs, sizeof next);
      next[k] += h;
      residuals(f, next, moved);
      for (uint32_t i = 0; i < SHAPES; i++)
        slopes[k][i] = (moved[i] - r[i]) / h;
    }
    for (int k = 0; k < N_UNKNOWN; k++) {
      for (uint32_t i = 0; i < SHAPES; i++) {
        b[k] -= slopes[k][i] * r[i];
        for (int q = 0; q <= k; q++)
          a[k][q] += slopes[k][i] * slopes[q][i];
      }
      a[k][k] += damping * (a[k][k] + 1e-3); /* what no trial shows stays where it is */
    }
    if (!solve(a, b))
      return sum;
    for (int k = 0; k < N_UNKNOWN; k++)
      next[k] = logs[k] + fmax(-1, fmin(1, b[k]));
    double there = residuals(f, next, moved);
    if (there < sum) {
      bool done = sum - there < 1e-7 * sum + 1e-13;
      damping /= 5;
      memcpy(logs, next, sizeof next);
      memcpy(r, moved, sizeof moved);
      sum = there;
      if (done)
        return sum;
    } else {
      damping *= 4;
    }
  }
  return sum;
}

static void begin_at(const fit *f, double logs[N_UNKNOWN])
{
  const td_attention_cost *c = &f->r->config.cost;
  double tile_flop = 4.0 * 64 * f->r->config.head_dim;
  logs[LAUNCH] = log(2);
  logs[KEY_MEMORY] = log(f->key_bytes / c->memory_bytes_us);
  logs[KEY_L2] = log(f->key_bytes / c->l2_bytes_us);
  logs[TILE] = log(tile_flop / c->tensor_flop_us);
  logs[START] = log(fmax(c->start_us, 1e-2));
  logs[PARTIAL] = log(fmax(c->partial_us, 1e-3) + f->partial_bytes / c->l2_bytes_us);
}

static td_status take_costs(const fit *f, const double begun[N_UNKNOWN], const double logs[N_UNKNOWN], td_attention_fitted *out,
                            td_error *err)
{
  td_attention_cost *c = &out->cost;
  *c = f->r->config.cost;
  for (int k = KEY_MEMORY; k <= TILE; k++)
    if (fabs(logs[k] - begun[k]) > log(SANE_TIMES))
      return td_fail(err, TD_ERR_CONFIG, "attention costs: the trials fit only costs that no device has (%g times the usual)",
                     exp(logs[k] - begun[k]));
  out->launch_us = exp(logs[LAUNCH]);
  c->memory_bytes_us = f->key_bytes / exp(logs[KEY_MEMORY]);
  c->l2_bytes_us = f->key_bytes / exp(logs[KEY_L2]);
  c->tensor_flop_us = 4.0 * 64 * f->r->config.head_dim / exp(logs[TILE]);
  c->start_us = exp(logs[START]);
  c->partial_us = fmax(0, exp(logs[PARTIAL]) - f->partial_bytes / c->l2_bytes_us); /* beside its bytes */
  return TD_OK;
}

static void find_errors(const fit *f, const double logs[N_UNKNOWN], td_attention_fitted *out)
{
  double x[N_UNKNOWN], errors[SHAPES];
  uint32_t n = 0;
  for (int k = 0; k < N_UNKNOWN; k++)
    x[k] = exp(logs[k]);
  for (uint32_t i = 0; i < SHAPES; i++)
    if (f->trials[i].n_runs > 0)
      errors[n++] = fabs(predicted_us(&f->trials[i], f->r->config.n_workers, x) / f->trials[i].measured_us - 1);
  qsort(errors, n, sizeof *errors, by_value);
  out->n_trials = n;
  out->error = errors[n / 2];
  out->error_of_nine = errors[n * 9 / 10];
}

static td_status search(const fit *f, td_attention_fitted *out, td_error *err)
{
  static const double tile_times[] = {1, 4, 0.25}, l2_times[] = {1, 3};
  double begun[N_UNKNOWN], best[N_UNKNOWN] = {0}, least = INFINITY;
  begin_at(f, begun);
  for (int i = 0; i < 6; i++) {
    double logs[N_UNKNOWN];
    memcpy(logs, begun, sizeof logs);
    logs[TILE] += log(tile_times[i / 2]);
    logs[KEY_L2] += log(l2_times[i % 2]);
    double sum = descend(f, logs);
    if (sum < least * 0.999) {
      least = sum;
      memcpy(best, logs, sizeof best);
    }
  }
  TD_TRY(take_costs(f, begun, best, out, err));
  find_errors(f, best, out);
  return TD_OK;
}

/* ---- all of it ---- */

static void deinit(fit *f)
{
  for (int k = 0; k < KINDS; k++)
    td_attention_planner_destroy(f->planners[k]);
  for (uint32_t i = 0; i < SHAPES; i++)
    free(f->trials[i].loads);
  free(f->rows), free(f->page_table);
}

static td_status init(fit *f, const td_attention_fit_request *r, td_error *err)
{
  uint32_t most = r->page_table_entries > 0 ? r->page_table_entries : TD_ATTENTION_FIT_PAGES_MAX;
  *f = (fit){.r = r, .key_bytes = 4.0 * r->config.head_dim, .partial_bytes = 2.0 * r->config.group * TD_ATTENTION_PARTIAL_BYTES(r->config.head_dim)};
  TD_TRY(make_planners(f, err)); /* looks at the config */
  for (uint32_t i = 0; i < SHAPES; i++) {
    f->trials[i].loads = calloc(r->config.n_workers, sizeof *f->trials[i].loads);
    if (!f->trials[i].loads)
      return td_fail(err, TD_ERR_NOMEM, "no memory for measuring attention");
  }
  f->rows = calloc(r->config.max_rows, sizeof *f->rows);
  f->page_table = calloc(most, sizeof *f->page_table);
  if (!f->rows || !f->page_table)
    return td_fail(err, TD_ERR_NOMEM, "no memory for measuring attention");
  f->plan = (td_plan){.rows = f->rows, .max_rows = r->config.max_rows, .page_tokens = r->config.page_tokens, .page_table_len = most,
                      .page_table = f->page_table};
  return TD_OK;
}

static td_status measure(fit *f, td_attention_fitted *out, td_error *err)
{
  uint32_t n_runs = f->r->n_runs == 0 ? RUNS : f->r->n_runs < RUNS_MAX ? f->r->n_runs : RUNS_MAX, n_trials = 0, n_packed = 0;
  for (uint32_t run = 0; run < n_runs; run++) /* round after round: what disturbs the device for a while hits each once */
    for (uint32_t i = 0; i < SHAPES; i++)
      TD_TRY(run_trial(f, i, err));
  for (uint32_t i = 0; i < SHAPES; i++) {
    n_trials += f->trials[i].n_runs > 0;
    n_packed += f->trials[i].n_runs > 0 && shapes[i].kind == PACKED;
  }
  if (n_trials < FEWEST_TRIALS || n_packed < 2)
    return td_fail(err, TD_ERR_CAPACITY, "attention costs: only %u trials fit into %u rows and %u pages", n_trials,
                   f->r->config.max_rows, f->r->n_pages);
  return search(f, out, err);
}

td_status td_attention_fit(const td_attention_fit_request *r, td_attention_fitted *out, td_error *err)
{
  fit *f = calloc(1, sizeof *f);
  if (!f)
    return td_fail(err, TD_ERR_NOMEM, "no memory for measuring attention");
  td_status st = init(f, r, err);
  if (st == TD_OK)
    st = measure(f, out, err);
  deinit(f);
  free(f);
  return st;
}

bool td_attention_fit_holds(const td_attention_fit_request *r, const td_attention_fitted *kept, double *worst, td_status *st,
                            td_error *err)
{
  fit *f = calloc(1, sizeof *f);
  *worst = 0;
  *st = f ? init(f, r, err) : td_fail(err, TD_ERR_NOMEM, "no memory for measuring attention");
  for (uint32_t k = 0; *st == TD_OK && k < sizeof proofs; k++)
    for (int run = 0; *st == TD_OK && run < RUNS; run++)
      *st = run_trial(f, proofs[k], err);
  if (*st == TD_OK) {
    const td_attention_cost *c = &kept->cost;
    double x[N_UNKNOWN] = {kept->launch_us, f->key_bytes / c->memory_bytes_us, f->key_bytes / c->l2_bytes_us,
                           4.0 * 64 * r->config.head_dim / c->tensor_flop_us, c->start_us,
                           c->partial_us + f->partial_bytes / c->l2_bytes_us};
    for (uint32_t k = 0; k < sizeof proofs; k++) {
      const trial *t = &f->trials[proofs[k]];
      if (t->n_runs > 0)
        *worst = fmax(*worst, fabs(predicted_us(t, r->config.n_workers, x) / t->measured_us - 1));
    }
  }
  if (f)
    deinit(f);
  free(f);
  return *st == TD_OK && *worst <= fmax(HOLDS_WITHIN, 2 * kept->error_of_nine);
}
