/* bench_engine [--quick]: what a step costs the host in all: the engine's loop with the real scheduler and
 * hand-over, on a device that takes no time, with all rows decoding and no reader. It has a cost model, as
 * in the daemon. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "engine/internal.h"

enum { CONTEXT = 8192, PROMPT = 64, PAGE_TOKENS = 16, WARM_UP = 50, ROWS_MAX = 1024 };

typedef struct device {
  td_backend base;
  td_engine *engine;
  uint32_t n_steps, n_wanted, n_logits;
  uint64_t begin_us, end_us;
} device;

static void set_sampling(td_backend *b, uint32_t slot, const td_sampling *s) { (void)b, (void)slot, (void)s; }

static void submit(td_backend *b, td_compiled *compiled, const td_plan *plan)
{
  (void)compiled;
  ((device *)b)->n_logits = plan->n_logits;
}

static void sample(td_backend *b, td_compiled *sampling, const td_sample_input *input)
{
  (void)b, (void)sampling, (void)input;
}

static td_status wait_for(td_backend *b, td_outcome *out, td_error *err)
{
  device *d = (device *)b;
  static const int32_t ids[ROWS_MAX];
  static const uint8_t none[ROWS_MAX];
  static uint8_t ones[ROWS_MAX];
  (void)err;
  if (!ones[0])
    memset(ones, 1, sizeof ones);
  *out = (td_outcome){.n_logits = d->n_logits, .ids = ids, .n_ids = ones, .flags = none};
  if (++d->n_steps == WARM_UP)
    d->begin_us = td_clock_us();
  if (d->n_steps == WARM_UP + d->n_wanted) {
    d->end_us = td_clock_us();
    atomic_store(&d->engine->stop_requested, true);
  }
  return TD_OK;
}

static void destroy(td_backend *b) { (void)b; }

static const td_backend_ops ops = {.name = "none",
                                   .destroy = destroy,
                                   .set_sampling = set_sampling,
                                   .submit = submit,
                                   .sample = sample,
                                   .wait = wait_for};

static void wake(void *arg) { (void)arg; }

static void must(bool ok, const char *what)
{
  if (ok)
    return;
  fprintf(stderr, "%s\n", what);
  exit(2);
}

static td_engine *make_engine(device *d, uint32_t n_rows, uint32_t n_wanted)
{
  td_options o;
  td_error err = {0};
  td_engine *e = NULL;
  td_sched_config c = {.n_slots = n_rows,
                       .max_running = n_rows,
                       .step_tokens = 8192,
                       .page_tokens = PAGE_TOKENS,
                       .n_pages = n_rows * (CONTEXT / PAGE_TOKENS),
                       .max_context_tokens = CONTEXT,
                       .cost = &td_cost_h200_llama3_8b};
  td_options_init(&o);
  o.limit[TD_LIMIT_QUEUE_REQUESTS] = n_rows;
  must(td_engine_create(&o, &e, &err) == TD_OK, err.message);
  *d = (device){.base = {.ops = &ops, .pipeline_depth = 1}, .engine = e, .n_wanted = n_wanted};
  e->backend = &d->base;
  e->info.max_context_tokens = CONTEXT;
  e->info.vocab = 1000;
  e->cost_source = TD_TIMES_KEPT;
  e->wake = wake;
  must(td_sched_create(&c, &e->sched, &err) == TD_OK &&
           td_sched_plan_create(e->sched, &e->plan, &err) == TD_OK,
       err.message);
  must(td_engine_make_step_memory(e, n_rows, n_rows, &err) == TD_OK, "memory");
  atomic_store(&e->state, TD_ENGINE_READY);
  return e;
}

static void measure(uint32_t n_rows, uint32_t n_steps)
{
  static device d;
  td_error err = {0};
  td_engine *e = make_engine(&d, n_rows, n_steps);
  for (uint32_t i = 0; i < n_rows; i++) {
    td_engine_request r = {.n_prompt = PROMPT, .max_new = CONTEXT - PROMPT, .ignore_eos = true};
    td_ticket t;
    must((r.tokens = calloc(CONTEXT, sizeof *r.tokens)) != NULL, "no memory");
    for (uint32_t k = 0; k < PROMPT; k++)
      r.tokens[k] = (int32_t)((i * 31 + k * 7) % 1000);
    must(td_engine_submit(e, &r, &t, &err) == TD_OK, err.message);
  }
  must(td_engine_run(e, &err) == TD_OK, err.message);
  td_engine_stats s;
  td_engine_get_stats(e, &s);
  printf("%6u  %9.2f  %9.2f\n", s.n_running, (double)(d.end_us - d.begin_us) / n_steps,
         (double)s.plan_us_sum / (double)s.steps);
  td_engine_destroy(e);
}

int main(int argc, char **argv)
{
  bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
  printf("running  us a step  of it planning\n");
  for (uint32_t n_rows = 1; n_rows <= ROWS_MAX; n_rows *= 4) {
    if (n_rows == 256 || !quick)
      measure(n_rows, quick ? 200 : 3000);
  }
  return 0;
}
