/* The step loop (engine/step.c) with the real scheduler and hand-over, on a device without a model: the
 * token after token t at position p is a function of both. So each answer is known beforehand, and any
 * mix-up of rows, slots or steps shows in it. With one step under way and with two. Runs under TSan in CI. */
#include "engine_fixture.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
  N_SLOTS = 24,
  MAX_ROWS = 8,
  PROMPT_LOGITS = 6,
  MAX_LOGITS = MAX_ROWS + PROMPT_LOGITS,
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

/* A mask allows a third of the ids, others after each token; the device takes the next allowed one. */
static bool is_allowed(int32_t id, uint32_t n_tokens) { return ((uint32_t)id + n_tokens) % 3 == 0; }

static int32_t allowed_from(int32_t id, uint32_t n_tokens)
{
  while (id != NOT_A_NUMBER && !is_allowed(id, n_tokens))
    id = (id + 1) % N_VOCAB;
  return id;
}

/* ---- the device ---- */

typedef struct outcome {
  uint32_t n;
  int32_t ids[MAX_LOGITS];
  uint8_t n_ids[MAX_LOGITS], flags[MAX_LOGITS];
  td_token_logprob logprobs[MAX_LOGITS];
  td_top_token top[MAX_LOGITS][2];
} outcome;

/* Any function of both. */
static float logprob_of(int32_t id, uint32_t position) { return -(float)(id % 100) - (float)position / 64; }

typedef struct device {
  td_backend base;
  td_engine *engine;
  outcome under_way[2];
  uint32_t first, n_under_way;
  int32_t sampled[MAX_LOGITS]; /* sampled by the step before; a plan made ahead refers to them */
  const td_plan *plan;         /* whose forward ran last */
  int32_t last[MAX_LOGITS];    /* of its logits, the tokens */
  uint32_t n_polls;            /* until its forward has ended */
  /* read when the thread has ended */
  uint32_t n_ahead, n_past_commands, n_after_stop, n_broken, n_masked, n_late, n_others;
} device;

static void device_set_sampling(td_backend *b, uint32_t slot, const td_sampling *s)
{
  device *d = (device *)b;
  d->n_broken +=
      d->n_under_way != 0 || slot >= N_SLOTS; /* commands are processed only when no step is under way */
}

/* A request that arrives while a step is planned may miss it; missing the next one too is an error. */
static void check_commands(device *d)
{
  bool passes = d->n_under_way == 1 && !td_ring_is_empty(&d->engine->inbox);
  d->n_past_commands = passes ? d->n_past_commands + 1 : 0;
  d->n_after_stop += atomic_load(&d->engine->stop_requested);
  d->n_broken += d->n_past_commands > 1 || d->n_after_stop > 1;
}

/* The forward, all of it: so nothing asks for a model. */
static void compute(device *d, const td_plan *plan)
{
  d->plan = plan;
  d->n_polls = plan->step % 5;
  for (uint32_t i = 0; i < plan->n_logits; i++) {
    int32_t id = plan->token_ids[plan->logits[i].token];
    d->last[i] = id < 0 ? d->sampled[-1 - id] : id;
  }
}

/* A row with a mask is sampled with it or is late; no other row is ever late. */
static void check_input(device *d, uint32_t i, const td_sample_input *input)
{
  const td_slot *s = &d->engine->slots[d->plan->rows[d->plan->logits[i].row].slot];
  bool late = input && input->late && input->late[i], has_mask = input && input->masks && input->masks[i];
  d->n_broken += (s->active && s->mask) != (late || has_mask) || (late && has_mask);
}

static void device_submit(td_backend *b, td_compiled *compiled, const td_plan *plan)
{
  device *d = (device *)b;
  check_commands(d);
  compute(d, plan);
  d->n_broken += d->n_under_way >= d->base.pipeline_depth;
  d->n_ahead += d->n_under_way == 1;
  d->under_way[(d->first + d->n_under_way++) % 2].n = plan->n_logits;
}

static bool device_forward_ended(td_backend *b)
{
  device *d = (device *)b;
  if (d->n_polls == 0)
    return true;
  d->n_polls--;
  return false;
}

static void note_logprobs(outcome *o, uint32_t i, int32_t id, uint32_t position)
{
  float logprob = logprob_of(id, position);
  o->logprobs[i] = (td_token_logprob){.logprob = logprob};
  o->top[i][0] = (td_top_token){id, logprob};
  o->top[i][1] = (td_top_token){id + 1, logprob};
}

static void device_sample(td_backend *b, td_compiled *sampling, const td_sample_input *input)
{
  device *d = (device *)b;
  outcome *o = &d->under_way[(d->first + d->n_under_way - 1) % 2];
  uint32_t n_late = 0;
  for (uint32_t i = 0; i < o->n; i++) {
    uint32_t position = (uint32_t)d->plan->positions[d->plan->logits[i].token];
    bool late = input && input->late && input->late[i];
    const uint32_t *mask = input && input->masks ? input->masks[i] : NULL;
    int32_t id = token_after(d->last[i], (int32_t)position), target = d->plan->logits[i].target;
    if (target != TD_SAMPLE_HERE) {
      o->flags[i] = o->n_ids[i] = 0;
      note_logprobs(o, i, target, position + 1);
      continue;
    }
    check_input(d, i, input);
    for (int32_t k = 0; mask && k < N_VOCAB; k++) /* the mask belongs to this number of tokens */
      d->n_broken += (mask[k / 32] >> k % 32 & 1) != is_allowed(k, position + 1);
    if (mask)
      id = allowed_from(id, position + 1);
    o->flags[i] = late ? TD_LOGITS_LATE : id == NOT_A_NUMBER ? TD_LOGITS_NAN : 0;
    o->n_ids[i] = o->flags[i] == 0;
    o->ids[i] = d->sampled[i] = id;
    note_logprobs(o, i, id, position + 1);
    n_late += late;
    d->n_masked += mask != NULL;
  }
  d->n_late += n_late;
  d->n_others += n_late > 0 ? o->n - n_late : 0;
}

static td_status device_wait(td_backend *b, td_outcome *out, td_error *err)
{
  device *d = (device *)b;
  const outcome *o = &d->under_way[d->first];
  usleep(20); /* long enough for clients to arrive and leave while it runs */
  *out = (td_outcome){.n_logits = o->n,
                      .ids = o->ids,
                      .n_ids = o->n_ids,
                      .flags = o->flags,
                      .logprobs = o->logprobs,
                      .top = o->top[0],
                      .top_stride = 2};
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
                                          .forward_ended = device_forward_ended,
                                          .wait = device_wait};

/* ---- the engine ---- */

static td_engine *make_engine(device *d, uint32_t depth)
{
  td_options o = fx_options(N_SLOTS);
  td_error err;
  /* pages for a fifth of what may run: requests are preempted */
  td_sched_config c = {.n_slots = N_SLOTS,
                       .max_running = MAX_ROWS,
                       .step_tokens = 64,
                       .prompt_logits = PROMPT_LOGITS,
                       .page_tokens = 16,
                       .n_pages = 16,
                       .max_context_tokens = N_CONTEXT};
  *d = (device){.base = {.ops = &device_ops, .pipeline_depth = depth}};
  td_engine *e = d->engine = fx_create(&o, &d->base, N_CONTEXT);
  e->info.vocab = N_VOCAB;
  e->desc.eos_ids[0] = EOS;
  e->desc.n_eos_ids = 1;
  assert_int_equal(td_masks_create(N_SLOTS, 2, e->wake_fd, &e->masks, &err), TD_OK);
  fx_get_ready(e, &c);
  fx_start_thread(e);
  return e;
}

/* ---- the clients ---- */

typedef struct client {
  td_ticket ticket;
  int32_t answer[MAX_NEW];
  uint32_t n_answer, seen, cancel_after; /* cancel_after 0: never */
  td_finish finish;
  bool live, obeys;
} client;

typedef struct filler {
  uint32_t n; /* number of tokens after which its last mask was made */
  _Atomic bool is_filling;
} filler;

static bool gives_up(int32_t last) { return last % 61 == 0; }
static const char gave_up[] = "gave up";

/* As long as a step, or much longer. Fills for one request do not overlap, and each is for more tokens than
 * the one before. */
static const char *fill(void *arg, const int32_t *tokens, uint32_t n, uint32_t *mask)
{
  filler *f = arg;
  if (atomic_exchange(&f->is_filling, true) || n <= f->n)
    abort();
  f->n = n;
  usleep((uint32_t)tokens[n - 1] % 20 == 0 ? 1500 : 20);
  memset(mask, 0, (N_VOCAB + 31) / 32 * sizeof *mask);
  for (int32_t i = 0; i < N_VOCAB; i++)
    mask[i / 32] |= (uint32_t)is_allowed(i, n) << i % 32;
  atomic_store(&f->is_filling, false);
  return gives_up(tokens[n - 1]) ? gave_up : NULL;
}

static uint32_t n_fillers, n_refused;

static void drop_filler(void *arg)
{
  assert_false(atomic_load(&((filler *)arg)->is_filling));
  free(arg);
  n_fillers--;
}

static uint32_t seed;

static uint32_t below(uint32_t n)
{
  seed = seed * 1664525 + 1013904223;
  return (uint32_t)((uint64_t)(seed >> 8) * n >> 24);
}

/* The updates that the request must get, computed from the function alone. */
static void compute_expected(client *c, const td_engine_request *r)
{
  int32_t token = r->tokens[r->n_prompt - 1];
  c->finish = TD_FINISH_NONE;
  for (c->n_answer = 0; c->finish == TD_FINISH_NONE;) {
    if (c->obeys && gives_up(token)) {
      c->finish = TD_FINISH_REFUSED;
      continue;
    }
    token = token_after(token, (int32_t)(r->n_prompt - 1 + c->n_answer));
    if (c->obeys)
      token = allowed_from(token, r->n_prompt + c->n_answer);
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
  int32_t family = (int32_t)below(4); /* prompts with a common beginning share pages */
  for (uint32_t i = 0; i < r.n_prompt; i++)
    r.tokens[i] = i < 20 ? family * 100 + (int32_t)i : (int32_t)below(N_VOCAB);
  c->obeys = below(4) == 0;
  if (c->obeys) {
    r.mask = (td_mask_provider){fill, drop_filler, calloc(1, sizeof(filler))};
    assert_non_null(r.mask.arg);
    n_fillers++;
  }
  compute_expected(c, &r);
  if (below(3) == 0 && c->n_answer > 1) { /* a stop before the maximum length */
    r.n_stop_ids = 1;
    r.stop_ids[0] = c->answer[below(c->n_answer)];
    compute_expected(c, &r);
  }
  c->seen = 0;
  c->cancel_after = below(4) ? 0 : 1 + below(20);
  c->live = td_engine_submit(e, &r, &c->ticket, &err) == TD_OK;
  if (!c->live) {
    free(r.tokens);
    if (c->obeys)
      drop_filler(r.mask.arg);
  } else if (below(32) == 0) { /* before the first token */
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
    assert_true((u->finish == TD_FINISH_REFUSED) == (u->error == gave_up));
    n_refused += u->finish == TD_FINISH_REFUSED;
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
  for (int tries = 0;; tries++) { /* cancels are processed, and the running step ends */
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
        below(8) == 0) /* in bursts, between which nothing arrives, so that steps can be planned ahead */
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
  assert_int_equal(n_fillers, 0);
  assert_true(n_refused > 0);
  td_engine_get_stats(e, &stats);
  td_engine_stop(e);
  print_message(
      "%u requests, %llu steps, %u of them planned ahead, %llu preemptions; %u masks, %u late beside "
      "%u tokens\n",
      n_started, (unsigned long long)stats.steps, d.n_ahead, (unsigned long long)stats.preemptions,
      d.n_masked, d.n_late, d.n_others);
  assert_true(d.n_masked > 1000 && d.n_late > 100 && d.n_others > 100);
  assert_true(stats.late_rows >= d.n_late - MAX_ROWS && stats.late_rows <= d.n_late);
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
    for (uint32_t i = 0; i < MAX_ROWS; i++)
      fx_submit(e, i, (td_engine_request){.n_prompt = 1, .max_new = MAX_NEW});
    td_engine_update u;
    while (td_engine_poll(e, &u, 1) == 0)
      sched_yield();
    td_engine_stop(e);
    assert_int_equal(d.n_broken, 0);
    assert_int_equal(d.n_under_way, 0);
    td_engine_destroy(e);
  }
}

/* ---- one request at a time ---- */

/* Waits for the last update of the request that ends next. */
static td_engine_update next_end(td_engine *e)
{
  td_engine_update u;
  do
    while (td_engine_poll(e, &u, 1) == 0)
      sched_yield();
  while (u.finish == TD_FINISH_NONE);
  return u;
}

static _Atomic bool is_held, is_in_fill;

static const char *held_fill(void *arg, const int32_t *tokens, uint32_t n, uint32_t *mask)
{
  atomic_store(&is_in_fill, true);
  while (atomic_load(&is_held))
    usleep(100);
  memset(mask, 0, (N_VOCAB + 31) / 32 * sizeof *mask);
  for (int32_t i = 0; i < N_VOCAB; i++)
    mask[i / 32] |= (uint32_t)is_allowed(i, n) << i % 32;
  atomic_store(&is_in_fill, false);
  return NULL;
}

static void test_a_late_mask_holds_up_nobody_else(void **state)
{
  for (uint32_t depth = 1; depth <= 2; depth++) {
    static device d;
    td_engine *e = make_engine(&d, depth);
    int held;
    atomic_store(&is_held, true);
    td_ticket a = fx_submit(
        e, 10, (td_engine_request){.n_prompt = 5, .max_new = 3, .mask = {.fill = held_fill, .arg = &held}});
    for (int i = 0; i < 3; i++) { /* whole answers of others go by */
      td_ticket b = fx_submit(e, 10, (td_engine_request){.n_prompt = 7, .max_new = 50});
      td_engine_update u = next_end(e);
      assert_int_equal(u.ticket.slot, b.slot);
      assert_true(u.finish == TD_FINISH_LENGTH || u.finish == TD_FINISH_ERROR);
      td_engine_release(e, b);
    }
    atomic_store(&is_held, false);
    td_engine_update u = next_end(e);
    assert_int_equal(u.ticket.slot, a.slot);
    for (uint32_t i = 0; i < u.n_generated; i++)
      assert_true(is_allowed(u.tokens[u.n_prompt + i], u.n_prompt + i));
    td_engine_release(e, a);
    td_engine_stop(e);
    assert_int_equal(d.n_broken, 0);
    td_engine_destroy(e);
  }
}

/* All waiting masks belong to one account. Then one of another account arrives: it is next. */
static uint32_t fill_order[4], n_filled;
static const char *noting_fill(void *arg, const int32_t *tokens, uint32_t n, uint32_t *mask)
{
  held_fill(arg, tokens, n, mask);
  fill_order[n_filled++] = n;
  return NULL;
}

static void test_accounts_take_turns_for_masks(void **state)
{
  static uint32_t bits[(N_VOCAB + 31) / 32];
  td_mask_provider p = {.fill = noting_fill};
  td_masks *m;
  td_error err;
  int fd = eventfd(0, EFD_NONBLOCK);
  assert_int_equal(td_masks_create(N_SLOTS, 1, fd, &m, &err), TD_OK);
  n_filled = 0;
  atomic_store(&is_held, true);
  td_masks_queue(m, 0, 0, &p, NULL, 0, bits);
  while (!atomic_load(&is_in_fill))
    sched_yield();
  for (uint32_t i = 1; i < 4; i++)
    td_masks_queue(m, i, i == 3, &p, NULL, i, bits);
  atomic_store(&is_held, false);
  for (uint32_t i = 0; i < 4; i++)
    while (!td_masks_is_made(m, i))
      sched_yield();
  td_masks_destroy(m);
  close(fd);
  const uint32_t expected[] = {0, 3, 1, 2};
  assert_memory_equal(fill_order, expected, sizeof expected);
}

/* Memory that a fill uses stays valid until it ends; only then does the loop get the slot back. */
static void test_a_cancel_waits_for_the_fill(void **state)
{
  static device d;
  td_engine *e = make_engine(&d, 1);
  int held;
  atomic_store(&is_held, true);
  td_ticket a = fx_submit(
      e, 10, (td_engine_request){.n_prompt = 5, .max_new = 3, .mask = {.fill = held_fill, .arg = &held}});
  while (!atomic_load(&is_in_fill))
    sched_yield();
  td_engine_cancel(e, a);
  td_ticket b = fx_submit(e, 10, (td_engine_request){.n_prompt = 7, .max_new = 50});
  td_engine_update u = next_end(e);
  assert_int_equal(u.ticket.slot, b.slot);
  assert_int_not_equal(a.slot, b.slot);
  td_engine_release(e, b);
  assert_int_equal(atomic_load(&e->slots[a.slot].ended), TD_FINISH_NONE);
  atomic_store(&is_held, false);
  wait_until_empty(e);
  td_engine_stop(e);
  td_engine_destroy(e);
}

/* The number for token t, next to it: for the prompt's last tokens, then the answer's. */
static void test_log_probabilities_lie_beside_their_tokens(void **state)
{
  enum { PROMPT = 30, SCORED = 21, NEW = 9, TOP = 2 };
  for (uint32_t depth = 1; depth <= 2; depth++) {
    static device d;
    td_engine *e = make_engine(&d, depth);
    td_ticket t = fx_submit(e, 10,
                            (td_engine_request){.n_prompt = PROMPT,
                                                .max_new = NEW,
                                                .n_prompt_logits = SCORED,
                                                .sampling = {.wants_logprobs = true, .n_top = TOP}});
    td_engine_update u = next_end(e);
    for (uint32_t i = 0; i < SCORED + u.n_generated; i++) {
      int32_t id = u.tokens[PROMPT - SCORED + i];
      assert_true(u.logprobs[i].logprob == logprob_of(id, PROMPT - SCORED + i));
      assert_int_equal(u.top[i * TOP].id, id);
      assert_int_equal(u.top[i * TOP + 1].id, id + 1);
    }
    td_engine_release(e, t);
    td_engine_stop(e);
    td_engine_destroy(e);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_step_under_way),
                                     cmocka_unit_test(test_two_steps_under_way),
                                     cmocka_unit_test(test_stop_ends_with_the_step),
                                     cmocka_unit_test(test_a_late_mask_holds_up_nobody_else),
                                     cmocka_unit_test(test_accounts_take_turns_for_masks),
                                     cmocka_unit_test(test_a_cancel_waits_for_the_fill),
                                     cmocka_unit_test(test_log_probabilities_lie_beside_their_tokens)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
