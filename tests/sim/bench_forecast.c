/* bench_forecast [--quick]: how accurate the forecast is (scheduler/forecast.c). It compares the delay
 * until the start as predicted at submission, and the ends of answers as predicted while a request waits,
 * with the real ones. Load varies: half of the time there is more than can be served. Steps take exactly
 * what the cost model says, so every error is the forecast's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/cost_model.h"
#include "scheduler/scheduler.h"

enum {
  SLOTS = 1024,
  CONTEXT = 32768,
  SEEN_MAX = 20000,
  ENDS_MAX = 100000,
  ENDS_AHEAD = 16,
  WAITING_MAX = 400,
  PHASES = 4
};

static uint64_t random_state;

static double uniform(void)
{
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return ((double)(random_state >> 11) + 0.5) * 0x1p-53;
}

static uint32_t between(double low, double high) { return (uint32_t)(low + (high - low) * uniform()); }
static double normal(void) { return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()); }

static double lognormal(double mean, double sd)
{
  double v = log(1 + sd * sd / (mean * mean));
  return exp(log(mean) - v / 2 + sqrt(v) * normal());
}

static uint32_t within(double x, double low, double high) { return (uint32_t)fmin(fmax(x, low), high); }

/* ---- loads ---- */

typedef struct request {
  uint32_t n_prompt, max_new, n_answer, family; /* family 0: shares its beginning with no other */
} request;

static request short_prompts(void) { return (request){between(16, 216), 400, between(1, 401), 0}; }
static request short_answers(void) { return (request){between(16, 216), 1600, between(1, 201), 0}; }
static request prompts_only(void) { return (request){between(16, 1916), 8, between(1, 9), 0}; }
static request many_pages(void) { return (request){between(16, 1016), 300, between(1, 301), 0}; }
static request shared(void)
{
  return (request){between(1500, 2000), 256, between(50, 256), 1 + between(0, 8)};
}
static request on_a_cpu(void) { return (request){between(20, 220), 100, between(20, 100), 0}; }

static request chat(void)
{
  return (request){within(lognormal(2340, 2133), 16, 16384), 2048, within(415 + 327 * normal(), 8, 2048), 0};
}

static request papers(void)
{
  return (request){within(lognormal(10041, 5551), 512, 28000), 2000, within(-471 * log(uniform()), 20, 2000),
                   0};
}

static request short_and_long(void)
{
  if (uniform() < 0.8)
    return (request){between(50, 150), 512, between(100, 300), 0};
  return (request){between(6000, 10000), 512, between(50, 150), 0};
}

static request known_lengths(void)
{
  uint32_t n = between(300, 400);
  return (request){between(1000, 4000), n, n, 0};
}

/* Most are short, a few ten times as long as the mean; and the same when requests state their length. */
static request varied(void)
{
  return (request){between(16, 216), 4000, within(lognormal(300, 500), 4, 4000), 0};
}

static request varied_known(void)
{
  request r = varied();
  r.max_new = r.n_answer;
  return r;
}

static const td_cost_model cpu = {.n_points = 5,
                                  .tokens = {1, 8, 32, 128, 512},
                                  .tokens_us = {12000, 40000, 120000, 450000, 1800000},
                                  .decode_us_per_kv_token = 3,
                                  .prefill_us_per_pair = 0.5};

typedef struct load {
  const char *name;
  request (*draw)(void);
  uint32_t rows, step_tokens, n_pages, slack_percent;
  double target_us, per_second, seconds;
  const td_cost_model *cost;
} load;

static const load loads[] = {
    {"places are short", short_prompts, 32, 2048, 20000, 0, 25000, 55, 240, &td_cost_h200_llama3_8b},
    {"answers shorter than allowed", short_answers, 32, 2048, 20000, 0, 25000, 100, 200,
     &td_cost_h200_llama3_8b},
    {"prompts, short answers", prompts_only, 32, 2048, 20000, 0, 25000, 60, 120, &td_cost_h200_llama3_8b},
    {"pages are short", many_pages, 32, 2048, 700, 0, 25000, 16, 240, &td_cost_h200_llama3_8b},
    {"chat, 256 rows, slack", chat, 256, 8192, 57505, 100, 0, 16, 400, &td_cost_h200_llama3_8b},
    {"chat, 64 rows, slack", chat, 64, 8192, 57505, 100, 0, 12, 400, &td_cost_h200_llama3_8b},
    {"arXiv-like, slack", papers, 256, 8192, 57505, 100, 0, 3, 800, &td_cost_h200_llama3_8b},
    {"arXiv-like, as they come", papers, 256, 8192, 57505, 0, 0, 3, 800, &td_cost_h200_llama3_8b},
    {"short and long, slack", short_and_long, 128, 4096, 20000, 100, 0, 30, 300, &td_cost_h200_llama3_8b},
    {"short and long, as they come", short_and_long, 128, 4096, 20000, 0, 0, 30, 300,
     &td_cost_h200_llama3_8b},
    {"nine tenths of prompts shared", shared, 64, 2048, 20000, 100, 0, 60, 200, &td_cost_h200_llama3_8b},
    {"lengths are known", known_lengths, 32, 4096, 20000, 0, 0, 13, 300, &td_cost_h200_llama3_8b},
    {"lengths vary", varied, 32, 2048, 20000, 0, 25000, 35, 300, &td_cost_h200_llama3_8b},
    {"lengths vary, and are known", varied_known, 32, 2048, 20000, 0, 25000, 35, 300,
     &td_cost_h200_llama3_8b},
    {"a CPU, 8 rows", on_a_cpu, 8, 512, 8000, 100, 0, 1, 4000, &cpu},
};

/* ---- the world ---- */

typedef struct world {
  const load *l;
  td_sched *sched;
  td_plan *plan;
  double now_us, next_us, probed_us;
  int32_t *tokens[SLOTS];
  uint32_t n_answer[SLOTS];
  bool used[SLOTS], started[SLOTS];
  double predicted_start_us[SLOTS];
  double ends_us[ENDS_MAX];
  double start[SEEN_MAX], next_end[SEEN_MAX], later_end[SEEN_MAX]; /* predicted / seen */
  double probe_at_us[SEEN_MAX], probe_next_us[SEEN_MAX], probe_gap_us[SEEN_MAX];
  uint32_t probe_ends[SEEN_MAX];
  uint32_t n_ends, n_started, n_probes;
} world;

static world w;

static void must(bool ok, const char *what)
{
  if (ok)
    return;
  fprintf(stderr, "%s\n", what);
  exit(2);
}

static void submit(void)
{
  td_error err = {0};
  request r = w.l->draw();
  uint32_t slot = 0;
  while (slot < SLOTS && w.used[slot])
    slot++;
  must(slot < SLOTS, "no slot");
  for (uint32_t i = 0; i < r.n_prompt; i++)
    w.tokens[slot][i] = r.family > 0 && i < r.n_prompt * 9 / 10 ? (int32_t)(r.family * 100000 + i)
                                                                : (int32_t)between(0, 50000);
  w.used[slot] = true;
  w.started[slot] = false;
  w.n_answer[slot] = r.n_answer;
  w.predicted_start_us[slot] = td_sched_make_forecast(w.sched).start_us;
  td_sched_request sr = {.tokens = w.tokens[slot], .n_prompt = r.n_prompt, .max_new = r.max_new};
  must(td_sched_submit(w.sched, slot, &sr, (uint64_t)w.now_us, &err) == TD_OK, err.message);
}

/* A wait shorter than this is no wait. */
static double least_us(void) { return fmax(100000, w.l->seconds * 1e6 / 2000); }

static void look(void)
{
  td_sched_stats st;
  td_sched_get_stats(w.sched, &st);
  if (st.n_waiting == 0 || w.now_us < w.probed_us + w.l->seconds * 1e6 / 2000 || w.n_probes == SEEN_MAX)
    return;
  td_sched_forecast f = td_sched_make_forecast(w.sched);
  w.probe_at_us[w.n_probes] = w.probed_us = w.now_us;
  w.probe_next_us[w.n_probes] = f.next_end_us;
  w.probe_gap_us[w.n_probes] = f.end_interval_us;
  w.probe_ends[w.n_probes++] = w.n_ends;
}

static void note_starts(void)
{
  for (uint32_t i = 0; i < w.plan->n_rows; i++) {
    uint32_t slot = w.plan->rows[i].slot;
    if (w.started[slot])
      continue;
    td_sched_slot_info info = td_sched_slot(w.sched, slot);
    double seen_us = (double)(info.first_run_us - info.submit_us);
    w.started[slot] = true;
    if (seen_us > least_us() && w.n_started < SEEN_MAX)
      w.start[w.n_started++] = w.predicted_start_us[slot] / seen_us;
  }
}

static bool step(void)
{
  static int32_t sampled[SLOTS];
  static uint8_t stop[SLOTS];
  static uint32_t finished[SLOTS];
  uint32_t n_finished;
  if (!td_sched_plan(w.sched, (uint64_t)w.now_us, w.plan))
    return false;
  note_starts();
  w.now_us += td_sched_predict_us(w.sched, w.plan);
  for (uint32_t i = 0; i < w.plan->n_logits; i++) {
    uint32_t slot = w.plan->rows[w.plan->logits[i].row].slot;
    sampled[i] = (int32_t)between(0, 50000);
    stop[i] = td_sched_slot(w.sched, slot).n_generated + 1 >= w.n_answer[slot];
  }
  td_sched_commit(w.sched, w.plan, sampled, stop, finished, &n_finished);
  for (uint32_t i = 0; i < n_finished; i++) {
    must(w.n_ends < ENDS_MAX, "too many ends");
    w.used[finished[i]] = false;
    w.ends_us[w.n_ends++] = w.now_us;
  }
  return true;
}

/* Half of each phase at the full rate, half at a third of it. A request that finds the queue full is not sent
 * again. */
static void arrive(void)
{
  double phase_us = w.l->seconds * 1e6 / PHASES;
  while (w.next_us <= w.now_us) {
    td_sched_stats st;
    bool busy = fmod(w.next_us, phase_us) < phase_us / 2;
    w.next_us -= log(uniform()) * 1e6 / (w.l->per_second * (busy ? 1 : 0.3));
    td_sched_get_stats(w.sched, &st);
    if (st.n_waiting + st.n_running < w.l->rows + WAITING_MAX)
      submit();
  }
}

/* ---- what it says ---- */

static int compare(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void say(double *ratio, uint32_t n)
{
  static double error[SEEN_MAX];
  if (n < 20) {
    printf(" | %5s %5s %6s", "-", "-", "-");
    return;
  }
  for (uint32_t i = 0; i < n; i++)
    error[i] = fabs(ratio[i] - 1);
  qsort(ratio, n, sizeof *ratio, compare);
  qsort(error, n, sizeof *error, compare);
  printf(" | %5.2f %5.0f %6.0f", ratio[n / 2], 100 * error[n / 2], 100 * error[n * 9 / 10]);
}

static void report(void)
{
  uint32_t n = 0;
  for (uint32_t i = 0; i < w.n_probes; i++) {
    const double *seen = w.ends_us + w.probe_ends[i];
    if (w.probe_ends[i] + ENDS_AHEAD > w.n_ends)
      continue;
    w.next_end[n] = w.probe_next_us[i] / (seen[0] - w.probe_at_us[i]);
    w.later_end[n++] = (w.probe_next_us[i] + (ENDS_AHEAD - 1) * w.probe_gap_us[i]) /
                       (seen[ENDS_AHEAD - 1] - w.probe_at_us[i]);
  }
  printf("%-30s", w.l->name);
  say(w.start, w.n_started);
  say(w.next_end, n);
  say(w.later_end, n);
  printf("\n");
}

static void run(const load *l, double share)
{
  td_error err = {0};
  load part = *l;
  part.seconds *= share;
  td_sched_config c = {.n_slots = SLOTS,
                       .max_running = l->rows,
                       .step_tokens = l->step_tokens,
                       .page_tokens = 16,
                       .n_pages = l->n_pages,
                       .max_context_tokens = CONTEXT,
                       .cost = l->cost,
                       .tbt_slo_us = (uint64_t)l->target_us,
                       .slack_percent = l->slack_percent,
                       .coalesces = l->slack_percent > 0};
  int32_t *tokens[SLOTS];
  memcpy(tokens, w.tokens, sizeof tokens);
  memset(&w, 0, sizeof w);
  memcpy(w.tokens, tokens, sizeof tokens);
  w.l = &part;
  w.now_us = 1;
  random_state = 3;
  must(td_sched_create(&c, &w.sched, &err) == TD_OK && td_sched_plan_create(w.sched, &w.plan, &err) == TD_OK,
       err.message);
  while (w.now_us < part.seconds * 1e6) {
    arrive();
    look();
    if (!step())
      w.now_us = w.next_us;
  }
  while (step())
    ;
  report();
  td_plan_destroy(w.plan);
  td_sched_destroy(w.sched);
}

int main(int argc, char **argv)
{
  bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
  for (uint32_t i = 0; i < SLOTS; i++)
    must((w.tokens[i] = malloc(CONTEXT * sizeof *w.tokens[i])) != NULL, "no memory");
  printf("predicted / seen, p50; error in %%, p50 and p90\n%-30s | %-18s | %-18s | %-18s\n", "load", "start",
         "next end", "16th end");
  for (size_t i = 0; i < sizeof loads / sizeof *loads; i++)
    run(&loads[i], quick ? 0.05 : 1);
  for (uint32_t i = 0; i < SLOTS; i++)
    free(w.tokens[i]);
  return 0;
}
