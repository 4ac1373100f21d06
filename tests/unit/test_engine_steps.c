/* The step loop itself (engine/step.c) with the real scheduler and hand-over, on a device that has no model:
 * the token after token t at position p is a function of both. So each answer is known beforehand, and every
 * way in which rows, slots or steps could be mixed up shows in it. With one step under way and with two; run
 * under TSan in CI. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include <sched.h>
#include <unistd.h>

#include "engine/internal.h"

enum {
  N_SLOTS = 24,
  MAX_ROWS = 8,
  N_REQUESTS = 1500,
  MAX_PROMPT = 40,
  MAX_NEW = 120,
  N_CONTEXT = MAX_PROMPT + MAX_NEW
};
enum { N_VOCAB = 3000, EOS = 7 };

enum { NOT_A_NUMBER = -1 }; /* now and then */
static int32_t token_after(int32_t token, int32_t position)
{
  uint64_t x = ((uint64_t)(uint32_t)token << 32 | (uint32_t)position) * 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 29) * 0xBF58476D1CE4E5B9u;
  return (x >> 20) % 499 == 0 ? NOT_A_NUMBER : (int32_t)((x >> 32) % N_VOCAB);
}

/* ---- the device ---- */

typedef struct outcome {
  uint32_t n;
  int32_t ids[MAX_ROWS];
  uint8_t n_ids[MAX_ROWS], flags[MAX_ROWS];
} outcome;

typedef struct device {
  td_backend base;
  td_engine *engine;
  outcome under_way[2];
  uint32_t first, n_under_way;
  int32_t sampled[MAX_ROWS]; /* by the step before: what a plan made ahead points at */
  /* read when the thread has ended */
  uint32_t n_ahead, n_past_commands, n_after_stop, n_broken;
} device;

static void device_set_sampling(td_backend *b, uint32_t slot, const td_sampling *s)
{
  device *d = (device *)b;
  d->n_broken += d->n_under_way != 0 || slot >= N_SLOTS; /* commands are taken with nothing under way */
}

/* What comes while a step is being planned may miss it, so one step is no fault; the next is. */
static void check_commands(device *d)
{
  bool passes = d->n_under_way == 1 && !td_ring_is_empty(&d->engine->inbox);
  d->n_past_commands = passes ? d->n_past_commands + 1 : 0;
  d->n_after_stop += atomic_load(&d->engine->stop_asked);
  d->n_broken += d->n_past_commands > 1 || d->n_after_stop > 1;
}

/* The step's work, all of it: so nothing asks for a model. */
static void compute(device *d, const td_plan *plan)
{
  int32_t sampled[MAX_ROWS];
  for (uint32_t i = 0; i < plan->n_logits; i++) {
    const td_plan_row *row = &plan->rows[plan->logits[i].row];
    uint32_t last = row->q_start + row->q_len - 1;
    int32_t id = plan->token_ids[last];
    if (id < 0)
      id = d->sampled[-1 - id];
    sampled[i] = token_after(id, plan->positions[last]);
  }
  memcpy(d->sampled, sampled, sizeof sampled);
}

static void device_submit(td_backend *b, td_compiled *compiled, const td_plan *plan)
{
  device *d = (device *)b;
  check_commands(d);
  compute(d, plan);
  d->n_broken += d->n_under_way >= d->base.pipeline_depth;
  d->n_ahead += d->n_under_way == 1;
  outcome *o = &d->under_way[(d->first + d->n_under_way++) % 2];
  o->n = plan->n_logits;
  memcpy(o->ids, d->sampled, sizeof o->ids);
  for (uint32_t i = 0; i < o->n; i++) {
    o->flags[i] = o->ids[i] == NOT_A_NUMBER ? TD_LOGITS_NAN : 0;
    o->n_ids[i] = o->ids[i] != NOT_A_NUMBER;
  }
}

static void device_sample(td_backend *b, td_compiled *sampling, const td_sample_input *input) {}

static td_status device_wait(td_backend *b, td_outcome *out, td_error *err)
{
  device *d = (device *)b;
  const outcome *o = &d->under_way[d->first];
  usleep(20); /* long enough for clients to come and go while it runs */
  *out = (td_outcome){.n_logits = o->n, .ids = o->ids, .n_ids = o->n_ids, .flags = o->flags};
  d->first ^= 1;
  d->n_under_way--;
  return TD_OK;
}

static void device_destroy(td_backend *b) {}

static const td_backend_ops device_ops = {.name = "none",
                                          .destroy = device_destroy,
                                          .set_sampling = device_set_sampling,
                                          .submit = device_submit,
                                          .sample = device_sample,
                                          .wait = device_wait};

/* ---- the engine ---- */

static void wake(void *arg) {}

static void *run_engine(void *arg)
{
  td_engine *e = arg;
  return td_engine_run(e, &e->failure) == TD_OK ? e : NULL;
}

static td_engine *make_engine(device *d, uint32_t depth)
{
  td_options o;
  td_error err;
  td_engine *e = NULL;
  /* pages for a fifth of what may run: requests are preempted */
  td_sched_config c = {.n_slots = N_SLOTS,
                       .max_running = MAX_ROWS,
                       .step_tokens = 64,
                       .page_tokens = 16,
                       .n_pages = 16,
                       .max_context_tokens = N_CONTEXT};
  td_options_init(&o);
  o.limit[TD_LIMIT_QUEUE_REQUESTS] = N_SLOTS;
  assert_int_equal(td_engine_create(&o, &e, &err), TD_OK);
  *d = (device){.base = {.ops = &device_ops, .pipeline_depth = depth}, .engine = e};
  e->backend = &d->base;
  e->info.max_context_tokens = N_CONTEXT;
  e->info.vocab = N_VOCAB;
  e->desc.eos_ids[0] = EOS;
  e->desc.n_eos_ids = 1;
  assert_int_equal(td_sched_create(&c, &e->sched, &err), TD_OK);
  assert_int_equal(td_sched_plan_create(e->sched, &e->plan, &err), TD_OK);
  assert_int_equal(td_sched_plan_create(e->sched, &e->next, &err), TD_OK);
  e->sampled = calloc(MAX_ROWS, sizeof *e->sampled);
  e->stop = calloc(MAX_ROWS, sizeof *e->stop);
  e->finished = calloc(MAX_ROWS, sizeof *e->finished);
  assert_true(e->sampled && e->stop && e->finished);
  e->wake = wake;
  atomic_store(&e->state, TD_ENGINE_READY);
  assert_int_equal(pthread_create(&e->thread, NULL, run_engine, e), 0);
  e->thread_started = true;
  return e;
}

/* ---- the clients ---- */

typedef struct client {
  td_ticket ticket;
  int32_t answer[MAX_NEW];
  uint32_t n_answer, seen, cancel_after; /* cancel_after 0: never */
  td_finish finish;
  bool live;
} client;

static uint32_t seed;

static uint32_t below(uint32_t n)
{
  seed = seed * 1664525 + 1013904223;
  return (uint32_t)((uint64_t)(seed >> 8) * n >> 24);
}

/* What the request must be told, from the function alone. */
static void foresee(client *c, const td_engine_request *r)
{
  int32_t token = r->tokens[r->n_prompt - 1];
  c->finish = TD_FINISH_NONE;
  for (c->n_answer = 0; c->finish == TD_FINISH_NONE;) {
    token = token_after(token, (int32_t)(r->n_prompt - 1 + c->n_answer));
    if (token == NOT_A_NUMBER) {
      c->finish = TD_FINISH_ERROR;
      continue;
    }
    c->answer[c->n_answer++] = token;
    if ((token == EOS && !r->ignore_eos) || (r->n_stop_ids > 0 && token == r->stop_ids[0]))
      c->finish = TD_FINISH_STOP;
    else if (c->n_answer == r->max_new)
      c->finish = TD_FINISH_LENGTH;
  }
}

static bool submit(td_engine *e, client *c)
{
  td_error err;
  td_engine_request r = {
      .n_prompt = 1 + below(MAX_PROMPT), .max_new = 1 + below(MAX_NEW), .user = c, .ignore_eos = below(2)};
  r.tokens = calloc(r.n_prompt + r.max_new, sizeof *r.tokens);
  assert_non_null(r.tokens);
  int32_t family = (int32_t)below(4); /* prompts that begin alike share pages */
  for (uint32_t i = 0; i < r.n_prompt; i++)
    r.tokens[i] = i < 20 ? family * 100 + (int32_t)i : (int32_t)below(N_VOCAB);
  foresee(c, &r);
  if (below(3) == 0 && c->n_answer > 1) { /* a stop that comes before the length */
    r.n_stop_ids = 1;
    r.stop_ids[0] = c->answer[below(c->n_answer)];
    foresee(c, &r);
  }
  c->seen = 0;
  c->cancel_after = below(4) ? 0 : 1 + below(20);
  c->live = td_engine_submit(e, &r, &c->ticket, &err) == TD_OK;
  if (!c->live)
    free(r.tokens);
  else if (below(32) == 0) { /* before anything came */
    td_engine_cancel(e, c->ticket);
    c->live = false;
  }
  return c->live;
}

static void take_update(td_engine *e, const td_engine_update *u)
{
  client *c = u->user;
  assert_true(c && c->live && u->ticket.generation == c->ticket.generation);
  assert_true(u->n_generated >= c->seen && u->n_generated <= c->n_answer);
  assert_memory_equal(u->tokens + u->n_prompt + c->seen, c->answer + c->seen,
                      (u->n_generated - c->seen) * sizeof(int32_t));
  c->seen = u->n_generated;
  if (u->finish != TD_FINISH_NONE) {
    assert_int_equal(u->finish, c->finish);
    assert_int_equal(u->n_generated, c->n_answer);
    c->live = false;
    td_engine_release(e, u->ticket);
  } else if (c->cancel_after > 0 && c->seen >= c->cancel_after) {
    c->live = false;
    td_engine_cancel(e, u->ticket);
  }
}

/* Returns when nothing is free to start, or all have started. */
static uint32_t start_some(td_engine *e, client *clients, uint32_t n)
{
  uint32_t n_started = 0;
  for (uint32_t i = 0; i < N_SLOTS && n_started < n; i++)
    if (!clients[i].live)
      n_started += submit(e, &clients[i]);
  return n_started;
}

static void wait_until_empty(td_engine *e)
{
  td_engine_stats s;
  td_engine_update u;
  for (int tries = 0;; tries++) { /* cancels are told, and the step under way ends */
    assert_int_equal(td_engine_poll(e, &u, 1), 0);
    td_engine_get_stats(e, &s);
    uint32_t n_free = 0;
    for (uint32_t i = e->free_head; i != UINT32_MAX; i = e->slots[i].next_free)
      n_free++;
    if (n_free == N_SLOTS && s.n_running + s.n_waiting + s.pages_owned == 0)
      return;
    assert_true(tries < 20000);
    usleep(1000);
  }
}

static void serve(uint32_t depth)
{
  static client clients[N_SLOTS];
  static device d;
  td_engine_update updates[5];
  td_engine_stats stats;
  uint32_t n_started = 0, n_live = 0;
  memset(clients, 0, sizeof clients);
  seed = 99;
  td_engine *e = make_engine(&d, depth);
  while (n_started < N_REQUESTS || n_live > 0) {
    if (n_live < N_SLOTS / 2 ||
        below(8) == 0) /* in bursts: between them nothing arrives, and steps can be planned ahead */
      n_started += start_some(e, clients, N_REQUESTS - n_started);
    uint32_t n = td_engine_poll(e, updates, 5);
    for (uint32_t i = 0; i < n; i++)
      take_update(e, &updates[i]);
    if (n == 0)
      sched_yield();
    n_live = 0;
    for (uint32_t i = 0; i < N_SLOTS; i++)
      n_live += clients[i].live;
  }
  wait_until_empty(e);
  td_engine_get_stats(e, &stats);
  td_engine_stop(e);
  print_message("%u requests, %llu steps, %u of them planned ahead, %llu preemptions\n", n_started,
                (unsigned long long)stats.steps, d.n_ahead, (unsigned long long)stats.preemptions);
  assert_true(stats.preemptions > 20 && stats.prefix_hit_tokens > 0);
  assert_int_equal(d.n_broken, 0);
  assert_true(depth == 1 ? d.n_ahead == 0 : d.n_ahead > 100);
  td_engine_destroy(e);
}

static void test_one_step_under_way(void **state) { serve(1); }
static void test_two_steps_under_way(void **state) { serve(2); }

/* In the middle of long answers. */
static void test_stop_ends_with_the_step(void **state)
{
  for (uint32_t depth = 1; depth <= 2; depth++) {
    static device d;
    td_engine *e = make_engine(&d, depth);
    for (uint32_t i = 0; i < MAX_ROWS; i++) {
      td_engine_request r = {.n_prompt = 1, .max_new = MAX_NEW, .ignore_eos = true};
      td_error err;
      td_ticket t;
      r.tokens = calloc(1 + MAX_NEW, sizeof *r.tokens);
      assert_non_null(r.tokens);
      r.tokens[0] = (int32_t)i;
      assert_int_equal(td_engine_submit(e, &r, &t, &err), TD_OK);
    }
    td_engine_update u;
    while (td_engine_poll(e, &u, 1) == 0)
      sched_yield();
    td_engine_stop(e);
    assert_int_equal(d.n_broken, 0);
    assert_int_equal(d.n_under_way, 0);
    td_engine_destroy(e);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_step_under_way),
                                     cmocka_unit_test(test_two_steps_under_way),
                                     cmocka_unit_test(test_stop_ends_with_the_step)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
