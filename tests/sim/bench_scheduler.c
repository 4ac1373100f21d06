/* bench_scheduler [--quick]: host time of td_sched_plan and td_sched_commit with a full pool (1M pages, most
 * of them cached prefixes, so that every new page evicts one): decode-only steps, and steps that admit
 * prompts and prefill. Order as in the daemon: 16 keys, priorities, slack, a deadline each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "scheduler/scheduler.h"

enum {
  PAGE_TOKENS = 16,
  CONTEXT = 8192,
  FILL_PROMPT = 2048,
  PROMPT = 256,
  PREFILL_TOKENS = 2048,
  ACCOUNTS = 16,
  MAX_STEPS = 2000
};

typedef struct bench {
  td_sched *sched;
  td_plan *plan;
  uint32_t n_slots;
  int32_t **tokens; /* [n_slots][CONTEXT] */
  uint32_t *free_slots;
  uint32_t n_free;
  int32_t *sampled;
  uint8_t *stop;
  uint32_t *finished;
  uint64_t random, clock_us;
  double plan_us, commit_us; /* of the last step */
} bench;

static void *must_alloc(size_t n, size_t size)
{
  void *p = calloc(n, size);
  if (!p) {
    fprintf(stderr, "no memory\n");
    exit(2);
  }
  return p;
}

static double now_us(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static uint64_t next_random(bench *b)
{
  b->random = b->random * 6364136223846793005u + 1442695040888963407u;
  return b->random >> 33;
}

static void setup(bench *b, uint32_t n_running, uint32_t n_pages)
{
  td_error err;
  td_sched_config config = {.n_slots = n_running + 64,
                            .max_running = n_running,
                            .step_tokens = n_running + PREFILL_TOKENS,
                            .page_tokens = PAGE_TOKENS,
                            .n_pages = n_pages,
                            .max_context_tokens = CONTEXT,
                            .prompt_ns_per_token = 20000,
                            .slack_percent = 100,
                            .priority_us = 10000000,
                            .coalesces = true,
                            .reads_shared_once = true,
                            .hash_seed = 7};
  *b = (bench){.n_slots = config.n_slots, .random = 1};
  if (td_sched_create(&config, &b->sched, &err) != TD_OK ||
      td_sched_plan_create(b->sched, &b->plan, &err) != TD_OK) {
    fprintf(stderr, "%s\n", err.message);
    exit(2);
  }
  b->tokens = must_alloc(b->n_slots, sizeof *b->tokens);
  b->free_slots = must_alloc(b->n_slots, sizeof *b->free_slots);
  b->sampled = must_alloc(n_running, sizeof *b->sampled);
  b->stop = must_alloc(n_running, 1);
  b->finished = must_alloc(n_running, sizeof *b->finished);
  for (uint32_t i = 0; i < b->n_slots; i++) {
    b->tokens[i] = must_alloc(CONTEXT, sizeof **b->tokens);
    memset(b->tokens[i], 1, CONTEXT * sizeof **b->tokens); /* page faults are not the scheduler's */
    b->free_slots[b->n_free++] = i;
  }
}

static void teardown(bench *b)
{
  for (uint32_t i = 0; i < b->n_slots; i++)
    free(b->tokens[i]);
  free(b->tokens);
  free(b->free_slots);
  free(b->sampled);
  free(b->stop);
  free(b->finished);
  td_plan_destroy(b->plan);
  td_sched_destroy(b->sched);
}

static void submit(bench *b, uint32_t n_prompt, uint32_t max_new)
{
  td_error err;
  uint32_t slot = b->free_slots[--b->n_free];
  for (uint32_t i = 0; i < n_prompt; i++)
    b->tokens[slot][i] = (int32_t)(next_random(b) % 50000);
  td_sched_request r = {.tokens = b->tokens[slot],
                        .n_prompt = n_prompt,
                        .max_new = max_new,
                        .terms.account = (uint32_t)(next_random(b) % ACCOUNTS),
                        .terms.priority = (int32_t)(next_random(b) % 3),
                        .terms.deadline_us = UINT64_MAX - 1};
  if (td_sched_submit(b->sched, slot, &r, ++b->clock_us, &err) != TD_OK) {
    fprintf(stderr, "%s\n", err.message);
    exit(2);
  }
}

static bool step(bench *b)
{
  uint32_t n_finished;
  td_sched_expired late;
  double t0 = now_us();
  if (td_sched_expire(b->sched, ++b->clock_us, &late, 1) > 0 ||
      !td_sched_plan(b->sched, b->clock_us, b->plan))
    return false;
  double t1 = now_us();
  for (uint32_t i = 0; i < b->plan->n_logits; i++)
    b->sampled[i] = (int32_t)(next_random(b) % 50000);
  double t2 = now_us();
  td_sched_commit(b->sched, b->plan, b->sampled, b->stop, b->finished, &n_finished);
  b->plan_us = t1 - t0;
  b->commit_us = now_us() - t2;
  for (uint32_t i = 0; i < n_finished; i++)
    b->free_slots[b->n_free++] = b->finished[i];
  return true;
}

static int compare(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void measure(bench *b, uint32_t n_running, uint32_t n_steps, bool prefill)
{
  static double plan_us[MAX_STEPS], commit_us[MAX_STEPS];
  td_sched_stats st;
  uint64_t rows = 0, prompt_tokens = 0;
  for (uint32_t i = 0; i < n_steps; i++) {
    if (prefill) /* eight prompts per step keep the budget full; as many requests end as begin */
      for (uint32_t k = 0; k < PREFILL_TOKENS / PROMPT && b->n_free > 0; k++)
        submit(b, PROMPT, 1);
    step(b);
    plan_us[i] = b->plan_us;
    commit_us[i] = b->commit_us;
    rows += b->plan->n_rows;
    prompt_tokens += b->plan->n_prefill_tokens;
  }
  qsort(plan_us, n_steps, sizeof *plan_us, compare);
  qsort(commit_us, n_steps, sizeof *commit_us, compare);
  td_sched_get_stats(b->sched, &st);
  printf(
      "%6u %-12s %9.1f %9.1f %9.1f %9.1f   %llu rows and %llu prompt tokens a step, %u of %u pages cached\n",
      n_running, prefill ? "with prefill" : "decode-only", plan_us[n_steps / 2], plan_us[n_steps * 99 / 100],
      commit_us[n_steps / 2], commit_us[n_steps * 99 / 100], (unsigned long long)(rows / n_steps),
      (unsigned long long)(prompt_tokens / n_steps), st.pages_cached, st.pages_total);
}

static void bench_running(uint32_t n_running, uint32_t n_pages, uint32_t n_steps)
{
  bench b;
  setup(&b, n_running, n_pages);
  for (uint32_t done = 0; done < n_pages;
       done += FILL_PROMPT / PAGE_TOKENS) { /* prefixes of requests long gone */
    if (b.n_free == 0)
      step(&b);
    if (b.n_free > 0)
      submit(&b, FILL_PROMPT, 1);
    else
      done -= FILL_PROMPT / PAGE_TOKENS;
  }
  while (step(&b))
    ;
  uint32_t n_decodes = n_running - PREFILL_TOKENS / PROMPT;
  for (uint32_t i = 0; i < n_decodes; i++)
    submit(&b, PROMPT - i % PAGE_TOKENS,
           CONTEXT - PROMPT); /* so that a 16th of them need a page in each step */
  do
    step(&b);
  while (b.plan->n_decode_rows < n_decodes);
  measure(&b, n_running, n_steps, false);
  measure(&b, n_running, n_steps, true);
  teardown(&b);
}

int main(int argc, char **argv)
{
  bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
  uint32_t n_pages = quick ? 1u << 16 : 1u << 20, n_steps = quick ? 100 : MAX_STEPS;
  printf("running              plan p50  plan p99  comm. p50 comm. p99 (us)\n");
  bench_running(64, n_pages, n_steps);
  bench_running(1024, n_pages, n_steps);
  if (!quick)
    bench_running(4096, n_pages, n_steps);
  return 0;
}
