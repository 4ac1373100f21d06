/* tandem-bench engine: the engine's own speed, without HTTP: prompt, decode alone, decode at a batch. Prints
 * one JSON object.
 *
 * What is timed is what llama-bench and llama-batched-bench time: `pp` a prompt's tokens over the time to its
 * first answer token; `tg` tokens after the first over their time; `batch N` all tokens of N requests while
 * all N decode. Prompts are random token ids, each its own, so that no prefix is ever found in the cache. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/commands.h"
#include "common/log.h"
#include "config/options.h"
#include "engine/engine.h"

enum { BATCH_MAX = 64, WARM_TOKENS = 8 };

typedef struct bench {
  td_engine *engine;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool news;
  uint64_t random;
  uint64_t n_requests;
} bench;

typedef struct run {
  uint32_t n; /* requests */
  td_ticket tickets[BATCH_MAX];
  td_engine_update last[BATCH_MAX];
} run;

static _Noreturn void die(const char *what, const td_error *err)
{
  fprintf(stderr, "tandem-bench: %s: %s\n", what, err ? err->message : "");
  exit(1);
}

static double seconds(void)
{
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* ---- the engine's wake-up ---- */

static void wake(void *arg)
{
  bench *b = arg;
  pthread_mutex_lock(&b->lock);
  b->news = true;
  pthread_cond_signal(&b->changed);
  pthread_mutex_unlock(&b->lock);
}

static void wait_news(bench *b)
{
  pthread_mutex_lock(&b->lock);
  while (!b->news)
    pthread_cond_wait(&b->changed, &b->lock);
  b->news = false;
  pthread_mutex_unlock(&b->lock);
}

static void start(bench *b, const td_options *o)
{
  td_error err = {0};
  pthread_mutex_init(&b->lock, NULL);
  pthread_cond_init(&b->changed, NULL);
  b->random = 88172645463325252u;
  if (td_engine_create(o, &b->engine, &err) != TD_OK || td_engine_start(b->engine, wake, b, &err) != TD_OK)
    die("start", &err);
  while (td_engine_get_state(b->engine) == TD_ENGINE_LOADING)
    wait_news(b);
  if (td_engine_get_state(b->engine) != TD_ENGINE_READY) {
    td_engine_failure(b->engine, &err);
    die("the model was not loaded", &err);
  }
}

/* ---- requests ---- */

static uint32_t next_random(bench *b)
{
  b->random ^= b->random << 13;
  b->random ^= b->random >> 7;
  b->random ^= b->random << 17;
  return (uint32_t)(b->random >> 32);
}

static td_ticket submit(bench *b, uint32_t n_prompt, uint32_t n_answer, uint32_t place)
{
  td_error err = {0};
  td_ticket ticket;
  td_engine_request r = {
      .n_prompt = n_prompt, .max_new = n_answer, .ignore_eos = true, .terms.namespace_id = ++b->n_requests};
  r.tokens = malloc(sizeof *r.tokens * ((size_t)n_prompt + n_answer));
  r.user = (void *)(uintptr_t)place;
  r.sampling.top_p = 1;
  if (!r.tokens)
    die("submit: no memory", NULL);
  for (uint32_t i = 0; i < n_prompt; i++)
    r.tokens[i] = (int32_t)(next_random(b) % td_engine_get_info(b->engine)->vocab);
  if (td_engine_submit(b->engine, &r, &ticket, &err) != TD_OK)
    die("submit", &err);
  return ticket;
}

static void begin(bench *b, run *r, uint32_t n, uint32_t n_prompt, uint32_t n_answer)
{
  memset(r, 0, sizeof *r);
  r->n = n;
  for (uint32_t i = 0; i < n; i++)
    r->tickets[i] = submit(b, n_prompt, n_answer, i);
}

/* Waits for news and takes it into r->last. */
static void follow(bench *b, run *r)
{
  td_engine_update u[16];
  uint32_t n;
  wait_news(b);
  do {
    n = td_engine_poll(b->engine, u, 16);
    for (uint32_t i = 0; i < n; i++) {
      r->last[(uintptr_t)u[i].user] = u[i];
      if (u[i].finish == TD_FINISH_ERROR)
        die(u[i].error, NULL);
    }
  } while (n == 16);
  if (td_engine_get_state(b->engine) == TD_ENGINE_FAILED)
    die("the engine failed", NULL);
}

static uint32_t count_begun(const run *r)
{
  uint32_t n = 0;
  for (uint32_t i = 0; i < r->n; i++)
    n += r->last[i].n_generated > 0;
  return n;
}

static uint32_t count_ended(const run *r)
{
  uint32_t n = 0;
  for (uint32_t i = 0; i < r->n; i++)
    n += r->last[i].finish != TD_FINISH_NONE;
  return n;
}

static uint64_t count_tokens(const run *r)
{
  uint64_t n = 0;
  for (uint32_t i = 0; i < r->n; i++)
    n += r->last[i].n_generated;
  return n;
}

static void finish(bench *b, run *r)
{
  while (count_ended(r) < r->n)
    follow(b, r);
  for (uint32_t i = 0; i < r->n; i++)
    td_engine_release(b->engine, r->tickets[i]);
}

/* ---- measurements: tokens per second of one repetition ---- */

static double measure_prompt(bench *b, uint32_t n_prompt)
{
  run r;
  begin(b, &r, 1, n_prompt, 1);
  finish(b, &r);
  return n_prompt / ((double)(r.last[0].first_token_us - r.last[0].submit_us) / 1e6);
}

static double measure_decode(bench *b, uint32_t n_answer)
{
  run r;
  begin(b, &r, 1, 1, n_answer + 1);
  finish(b, &r);
  return n_answer / ((double)(r.last[0].last_token_us - r.last[0].first_token_us) / 1e6);
}

/* While all n decode: from the moment that the last of them has its first token to the first one's end. */
static double measure_batch(bench *b, uint32_t n, uint32_t n_prompt, uint32_t n_answer)
{
  run r;
  begin(b, &r, n, n_prompt, n_answer);
  while (count_begun(&r) < n)
    follow(b, &r);
  double begin_s = seconds();
  uint64_t begin_tokens = count_tokens(&r);
  while (count_ended(&r) == 0)
    follow(b, &r);
  double took = seconds() - begin_s;
  uint64_t tokens = count_tokens(&r) - begin_tokens;
  finish(b, &r);
  return (double)tokens / took;
}

static void report(const char *name, const double *v, uint32_t n, bool more)
{
  printf("  \"%s\": [", name);
  for (uint32_t i = 0; i < n; i++)
    printf("%s%.2f", i ? ", " : "", v[i]);
  printf("]%s\n", more ? "," : "");
  fflush(stdout);
}

static void usage(void)
{
  fprintf(stderr, "usage: tandem-bench engine --model PATH [--threads N] [options of tandemd] [-- "
                  "REPETITIONS PROMPT ANSWER BATCH...]\n"
                  "       default: -- 3 512 128 1 4 8 16\n");
  exit(64);
}

int td_bench_engine(int argc, char **argv)
{
  static td_options o;
  td_options_action action;
  td_error err = {0};
  bench b = {0};
  uint32_t numbers[3 + 16] = {3, 512, 128, 1, 4, 8, 16}, n_numbers = 7;
  int n_args = argc;
  for (int i = 1; i < argc; i++)
    if (strcmp(argv[i], "--") == 0) {
      n_args = i;
      n_numbers = 0;
      for (i++; i < argc && n_numbers < 19; i++)
        numbers[n_numbers++] = (uint32_t)strtoul(argv[i], NULL, 10);
    }
  if (n_numbers < 3 || numbers[0] < 1 || numbers[0] > 64 || numbers[1] < 1 || numbers[2] < 2)
    usage();
  td_options_init(&o);
  if (td_options_read_args(&o, n_args, argv, &action, &err) != TD_OK || action != TD_ACTION_RUN)
    die("options", &err);
  td_log_init(TD_LOG_WARN);
  start(&b, &o);
  measure_decode(&b, WARM_TOKENS);

  uint32_t repetitions = numbers[0];
  double v[64];
  char name[32];
  printf("{\n");
  for (uint32_t i = 0; i < repetitions; i++)
    v[i] = measure_prompt(&b, numbers[1]);
  snprintf(name, sizeof name, "pp%u", numbers[1]);
  report(name, v, repetitions, true);
  for (uint32_t i = 0; i < repetitions; i++)
    v[i] = measure_decode(&b, numbers[2]);
  snprintf(name, sizeof name, "tg%u", numbers[2]);
  report(name, v, repetitions, n_numbers > 3);
  for (uint32_t k = 3; k < n_numbers; k++) {
    if (numbers[k] < 1 || numbers[k] > BATCH_MAX)
      usage();
    for (uint32_t i = 0; i < repetitions; i++)
      v[i] = measure_batch(&b, numbers[k], 128, numbers[2]);
    snprintf(name, sizeof name, "batch%u", numbers[k]);
    report(name, v, repetitions, k + 1 < n_numbers);
  }
  printf("}\n");
  td_engine_stop(b.engine);
  td_engine_destroy(b.engine);
  return 0;
}
