/* tandem-bench engine: the engine's own speed, without HTTP: prompt, decode alone, decode in a batch. Prints
 * one JSON object.
 *
 * It times what llama-bench and llama-batched-bench time. `pp`: a prompt's tokens over the time to its first
 * answer token. `tg`: the tokens after the first over their time. `batch N`: all tokens of N requests while
 * all N decode. Prompts are random token ids, each different, so that no prefix is found in the cache. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/commands.h"
#include "common/log.h"
#include "config/options.h"
#include "engine/engine.h"
#include "loadgen/random.h"
#include "loadgen/tool.h"

enum { BATCH_MAX = 64, BATCHES_MAX = 16, REPETITIONS_MAX = 64, BATCH_PROMPT = 128, WARM_TOKENS = 8 };

typedef struct bench {
  td_engine *engine;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool news;
  td_random random;
  uint64_t n_requests;
} bench;

/* Requests of one shape, submitted together. */
typedef struct job {
  uint32_t n, n_prompt, n_answer;
} job;

typedef struct run {
  uint32_t n; /* requests */
  td_ticket tickets[BATCH_MAX];
  td_engine_update last[BATCH_MAX];
} run;

/* ---- the engine's wake-up ---- */

static void wake(void *arg)
{
  bench *b = arg;
  pthread_mutex_lock(&b->lock);
  b->news = true;
  pthread_cond_signal(&b->changed);
  pthread_mutex_unlock(&b->lock);
}

static void wait_for_news(bench *b)
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
  td_random_init(&b->random, 1);
  td_tool_check(td_engine_create(o, &b->engine, &err), &err);
  td_tool_check(td_engine_start(b->engine, wake, b, &err), &err);
  while (td_engine_get_state(b->engine) == TD_ENGINE_LOADING)
    wait_for_news(b);
  if (td_engine_get_state(b->engine) != TD_ENGINE_READY) {
    td_engine_failure(b->engine, &err);
    td_tool_die("the model was not loaded: %s", err.message);
  }
}

/* ---- requests ---- */

static td_ticket submit(bench *b, const job *j, uint32_t place)
{
  td_error err = {0};
  td_ticket ticket;
  td_engine_request r = {.n_prompt = j->n_prompt,
                         .max_new = j->n_answer,
                         .ignore_eos = true,
                         .terms.namespace_id = ++b->n_requests};
  r.tokens = td_tool_alloc((size_t)j->n_prompt + j->n_answer, sizeof *r.tokens);
  r.user = (void *)(uintptr_t)place;
  r.sampling.top_p = 1;
  for (uint32_t i = 0; i < j->n_prompt; i++)
    r.tokens[i] = (int32_t)td_random_below(&b->random, td_engine_get_info(b->engine)->vocab);
  td_tool_check(td_engine_submit(b->engine, &r, &ticket, &err), &err);
  return ticket;
}

static void begin(bench *b, run *r, const job *j)
{
  memset(r, 0, sizeof *r);
  r->n = j->n;
  for (uint32_t i = 0; i < j->n; i++)
    r->tickets[i] = submit(b, j, i);
}

/* Waits for news and takes it into r->last. */
static void collect_updates(bench *b, run *r)
{
  td_engine_update u[16];
  uint32_t n;
  wait_for_news(b);
  do {
    n = td_engine_poll(b->engine, u, 16);
    for (uint32_t i = 0; i < n; i++) {
      r->last[(uintptr_t)u[i].user] = u[i];
      if (u[i].finish == TD_FINISH_ERROR)
        td_tool_die("%s", u[i].error);
    }
  } while (n == 16);
  if (td_engine_get_state(b->engine) == TD_ENGINE_FAILED)
    td_tool_die("the engine failed");
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
    collect_updates(b, r);
  for (uint32_t i = 0; i < r->n; i++)
    td_engine_release(b->engine, r->tickets[i]);
}

/* ---- measurements: tokens per second of one repetition ---- */

static double measure_prompt(bench *b, const job *j)
{
  run r;
  begin(b, &r, j);
  finish(b, &r);
  return j->n_prompt / ((double)(r.last[0].first_token_us - r.last[0].submit_us) / 1e6);
}

static double measure_decode(bench *b, const job *j)
{
  run r;
  begin(b, &r, j);
  finish(b, &r);
  return (j->n_answer - 1) / ((double)(r.last[0].last_token_us - r.last[0].first_token_us) / 1e6);
}

/* While all n decode: from the last request's first token to the first request's end. */
static double measure_batch(bench *b, const job *j)
{
  run r;
  begin(b, &r, j);
  while (count_begun(&r) < j->n)
    collect_updates(b, &r);
  double begin_s = td_tool_now_s();
  uint64_t begin_tokens = count_tokens(&r);
  while (count_ended(&r) == 0)
    collect_updates(b, &r);
  double took = td_tool_now_s() - begin_s;
  uint64_t tokens = count_tokens(&r) - begin_tokens;
  finish(b, &r);
  return (double)tokens / took;
}

static void add(cJSON *all, bench *b, const char *name, uint32_t n_of_name, uint32_t repetitions,
                double (*measure)(bench *b, const job *j), job j)
{
  char text[32];
  snprintf(text, sizeof text, "%s%u", name, n_of_name);
  cJSON *list = cJSON_AddArrayToObject(all, text);
  for (uint32_t i = 0; i < repetitions; i++)
    cJSON_AddItemToArray(list, cJSON_CreateNumber(round(100 * measure(b, &j)) / 100));
}

static void print_usage(FILE *to)
{
  fprintf(to, "usage: tandem-bench engine --model PATH [--threads N] [options of tandemd] [-- "
              "REPETITIONS PROMPT ANSWER BATCH...]\n"
              "       default: -- 3 512 128 1 4 8 16\n");
}

static void usage(void)
{
  print_usage(stderr);
  exit(64);
}

/* Reads the numbers after "--" and returns how many there are. */
static uint32_t read_numbers(int argc, char **argv, int *n_args, uint32_t numbers[3 + BATCHES_MAX])
{
  uint32_t n = 0;
  *n_args = argc;
  for (int i = 1; i < argc; i++)
    if (strcmp(argv[i], "--") == 0) {
      *n_args = i;
      for (i++; i < argc && n < 3 + BATCHES_MAX; i++)
        numbers[n++] = (uint32_t)strtoul(argv[i], NULL, 10);
      return n;
    }
  memcpy(numbers, (uint32_t[]){3, 512, 128, 1, 4, 8, 16}, 7 * sizeof *numbers);
  return 7;
}

int td_bench_engine(int argc, char **argv)
{
  static td_options o;
  td_options_action action;
  td_error err = {0};
  bench b = {0};
  int n_args;
  if (argc > 1 && strcmp(argv[1], "--help") == 0) {
    print_usage(stdout);
    return 0;
  }
  uint32_t numbers[3 + BATCHES_MAX], n_numbers = read_numbers(argc, argv, &n_args, numbers);
  if (n_numbers < 3 || numbers[0] < 1 || numbers[0] > REPETITIONS_MAX || numbers[1] < 1 || numbers[2] < 2)
    usage();
  for (uint32_t k = 3; k < n_numbers; k++)
    if (numbers[k] < 1 || numbers[k] > BATCH_MAX)
      usage();
  uint32_t repetitions = numbers[0], n_prompt = numbers[1], n_answer = numbers[2];
  td_options_init(&o);
  td_tool_check(td_options_read(&o, n_args, argv, &action, &err), &err);
  if (action != TD_ACTION_RUN)
    usage();
  td_log_init(TD_LOG_WARN, false);
  start(&b, &o);
  measure_decode(
      /* uncounted, as in llama-bench: memory is touched for the first time */
      &b, &(job){1, n_prompt, WARM_TOKENS + 1});
  cJSON *all = cJSON_CreateObject();
  add(all, &b, "pp", n_prompt, repetitions, measure_prompt, (job){1, n_prompt, 1});
  add(all, &b, "tg", n_answer, repetitions, measure_decode, (job){1, 1, n_answer + 1});
  for (uint32_t k = 3; k < n_numbers; k++)
    add(all, &b, "batch", numbers[k], repetitions, measure_batch, (job){numbers[k], BATCH_PROMPT, n_answer});
  char *text = cJSON_Print(all);
  printf("%s\n", text);
  cJSON_free(text);
  cJSON_Delete(all);
  td_engine_stop(b.engine);
  td_engine_destroy(b.engine);
  return 0;
}
