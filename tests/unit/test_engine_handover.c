/* The hand-over between loop and engine thread (engine/requests.c). The engine thread is a stand-in that
 * follows the rules of step.c but has no model. Every request's tokens must arrive complete, in order and
 * once, whatever is cancelled in between, and every slot must be returned. Runs under TSan in CI. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include <sched.h>

#include "engine/internal.h"

enum { N_SLOTS = 32, N_REQUESTS = 20000, MAX_NEW = 20, N_RING = 2000000 };

/* ---- the ring alone ---- */

static void *ring_producer(void *arg)
{
  td_ring *r = arg;
  for (uint32_t i = 0; i < N_RING; i++)
    while (!td_ring_push(r, (td_ring_item){i, i * 3, ~i}))
      sched_yield();
  return NULL;
}

static void test_ring_keeps_order(void **state)
{
  (void)state;
  static td_ring r; /* on the stack, a sanitizer may not align it */
  pthread_t t;
  td_ring_item item;
  assert_true(td_ring_init(&r, 64));
  assert_false(td_ring_pop(&r, &item));
  assert_int_equal(pthread_create(&t, NULL, ring_producer, &r), 0);
  for (uint32_t i = 0; i < N_RING; i++) {
    while (!td_ring_pop(&r, &item))
      sched_yield();
    if (item.kind != i || item.slot != i * 3 || item.generation != ~i)
      fail_msg("item %u arrived as %u", i, item.kind);
  }
  assert_false(td_ring_pop(&r, &item));
  pthread_join(t, NULL);
  td_ring_deinit(&r);
}

static void test_ring_says_full(void **state)
{
  (void)state;
  static td_ring r; /* on the stack, a sanitizer may not align it */
  td_ring_item item;
  uint32_t n = 0;
  assert_true(td_ring_init(&r, 16));
  while (td_ring_push(&r, (td_ring_item){n, 0, 0}))
    n++;
  assert_int_equal(n, 16);
  assert_true(td_ring_pop(&r, &item));
  assert_int_equal(item.kind, 0);
  assert_true(td_ring_push(&r, (td_ring_item){n, 0, 0}));
  td_ring_deinit(&r);
}

/* ---- the hand-over ---- */

static _Atomic bool quit;

/* Token k of a request whose first prompt token is p. */
static int32_t expected_token(int32_t p, uint32_t k) { return (int32_t)((uint32_t)p * 31 + k); }

static void engine_take(td_engine *e, const td_ring_item *item)
{
  td_slot *s = &e->slots[item->slot];
  if (item->kind == TD_COMMAND_SUBMIT) {
    s->active = true;
    s->active_generation = item->generation;
    s->n_new = 0;
  } else if (s->active && s->active_generation == item->generation) {
    td_engine_end_slot(e, item->slot, TD_SLOT_ENDED_CANCELLED);
  }
}

static void engine_token(td_engine *e, uint32_t slot)
{
  td_slot *s = &e->slots[slot];
  td_engine_request *r = &s->request;
  r->tokens[r->n_prompt + s->n_new] = expected_token(r->tokens[0], s->n_new);
  s->n_new++;
  atomic_store_explicit(&s->n_generated, s->n_new, memory_order_release);
  if (s->n_new == r->max_new)
    td_engine_end_slot(e, slot, TD_FINISH_LENGTH);
  else
    td_engine_notify_slot(e, slot);
}

static void *fake_engine(void *arg)
{
  td_engine *e = arg;
  td_ring_item item;
  while (!atomic_load(&quit)) {
    bool busy = false;
    while (td_ring_pop(&e->inbox, &item))
      engine_take(e, &item);
    for (uint32_t i = 0; i < e->n_slots; i++)
      if (e->slots[i].active) {
        engine_token(e, i);
        busy = true;
      }
    if (!busy)
      sched_yield();
  }
  return NULL;
}

typedef struct client {
  td_ticket ticket;
  int32_t first;
  uint32_t max_new, seen, cancel_after; /* cancel_after 0: never */
  bool live;
} client;

static td_engine *make_engine(void)
{
  td_options o;
  td_error err;
  td_engine *e = NULL;
  td_options_init(&o);
  o.limit[TD_LIMIT_QUEUE_REQUESTS] = N_SLOTS;
  assert_int_equal(td_engine_create(&o, &e, &err), TD_OK);
  e->info.max_context_tokens = 100;
  e->info.vocab = 1 << 30;
  atomic_store(&e->state, TD_ENGINE_READY);
  return e;
}

static td_status submit(td_engine *e, client *c, int32_t first, uint32_t max_new, uint32_t cancel_after)
{
  td_error err;
  td_engine_request r = {.n_prompt = 3, .max_new = max_new, .user = c};
  r.tokens = malloc((3 + max_new) * sizeof *r.tokens);
  for (int i = 0; i < 3; i++)
    r.tokens[i] = first;
  td_status st = td_engine_submit(e, &r, &c->ticket, &err);
  if (st != TD_OK)
    free(r.tokens);
  *c = (client){c->ticket, first, max_new, 0, cancel_after, st == TD_OK};
  return st;
}

static void check_update(td_engine *e, const td_engine_update *u)
{
  client *c = u->user;
  assert_non_null(c);
  assert_true(c->live);
  assert_int_equal(u->ticket.generation, c->ticket.generation);
  for (uint32_t k = c->seen; k < u->n_generated; k++)
    assert_int_equal(u->tokens[u->n_prompt + k], expected_token(c->first, k));
  assert_true(u->n_generated >= c->seen);
  c->seen = u->n_generated;
  if (u->finish == TD_FINISH_LENGTH) {
    assert_int_equal(c->seen, c->max_new);
    c->live = false;
    td_engine_release(e, u->ticket);
  } else {
    assert_int_equal(u->finish, TD_FINISH_NONE);
    if (c->cancel_after > 0 && c->seen >= c->cancel_after) {
      c->live = false;
      td_engine_cancel(e, u->ticket);
      td_engine_cancel(e, u->ticket); /* twice is once */
    }
  }
}

static void test_handover(void **state)
{
  (void)state;
  td_engine *e = make_engine();
  td_engine_update updates[5];
  client clients[N_SLOTS] = {0};
  pthread_t t;
  uint32_t started = 0, live = 0, seed = 12345;
  atomic_store(&quit, false);
  assert_int_equal(pthread_create(&t, NULL, fake_engine, e), 0);
  while (started < N_REQUESTS || live > 0) {
    for (uint32_t i = 0; i < N_SLOTS && started < N_REQUESTS; i++) {
      if (clients[i].live)
        continue;
      seed = seed * 1664525 + 1013904223;
      if (submit(e, &clients[i], (int32_t)(started % 1000), 1 + seed % MAX_NEW,
                 seed >> 20 & 3 ? 0 : 1 + (seed >> 24) % 8))
        break; /* refused, because the engine has not confirmed cancelled slots */
      started++;
      if ((seed >> 18 & 31) == 0) { /* cancelled before the first update */
        td_engine_cancel(e, clients[i].ticket);
        clients[i].live = false;
      }
    }
    uint32_t n = td_engine_poll(e, updates, 5);
    for (uint32_t i = 0; i < n; i++)
      check_update(e, &updates[i]);
    live = 0;
    for (uint32_t i = 0; i < N_SLOTS; i++)
      live += clients[i].live;
  }
  /* everything is released: N_SLOTS requests fit again */
  for (int tries = 0; tries < 100000 && e->free_head != UINT32_MAX; tries++) {
    uint32_t n_free = 0;
    assert_int_equal(td_engine_poll(e, updates, 5), 0);
    for (uint32_t s = e->free_head; s != UINT32_MAX; s = e->slots[s].next_free)
      n_free++;
    if (n_free == N_SLOTS)
      break;
    assert_true(tries < 99999);
    sched_yield();
  }
  assert_int_equal(e->n_queued_tokens, 0);
  atomic_store(&quit, true);
  pthread_join(t, NULL);
  td_engine_destroy(e);
}

/* Publishes updates of one request over and over, as fast as it can. */
static void *insistent_engine(void *arg)
{
  td_engine *e = arg;
  td_slot *s = &e->slots[e->n_slots - 1];
  while (!atomic_load(&quit)) {
    if (atomic_load(&s->in_outbox)) {
      sched_yield();
      continue;
    }
    atomic_fetch_add_explicit(&s->n_generated, 1, memory_order_release);
    td_engine_notify_slot(e, e->n_slots - 1);
  }
  return NULL;
}

/* A caller may release a request at its update; a second update in the same batch would come too late. */
static void test_a_poll_tells_of_a_request_once(void **state)
{
  (void)state;
  td_engine *e = make_engine();
  client c[N_SLOTS] = {0};
  pthread_t t;
  uint32_t n_polls = 0, last = 0;
  for (uint32_t i = 0; i < N_SLOTS; i++)
    assert_int_equal(submit(e, &c[i], 1, 1, 0), TD_OK);
  atomic_store(&quit, false);
  assert_int_equal(pthread_create(&t, NULL, insistent_engine, e), 0);
  while (n_polls < 20000) { /* polls that had news */
    td_engine_update updates[16];
    uint32_t n = td_engine_poll(e, updates, 16);
    assert_in_range(n, 0, 1);
    n_polls += n;
    if (n > 0) {
      assert_true(updates[0].n_generated > last);
      last = updates[0].n_generated;
    } else {
      sched_yield();
    }
  }
  atomic_store(&quit, true);
  pthread_join(t, NULL);
  td_engine_destroy(e);
}

static void test_queue_is_bounded(void **state)
{
  (void)state;
  td_engine *e = make_engine();
  client clients[N_SLOTS + 1] = {0};
  for (uint32_t i = 0; i < N_SLOTS; i++)
    assert_int_equal(submit(e, &clients[i], 1, 1, 0), TD_OK);
  assert_int_equal(submit(e, &clients[N_SLOTS], 1, 1, 0), TD_ERR_CAPACITY);
  td_engine_destroy(e);
}

static void test_bad_requests_are_refused(void **state)
{
  (void)state;
  td_engine *e = make_engine();
  td_error err;
  td_ticket t;
  int32_t tokens[200] = {0};
  td_engine_request r = {.tokens = tokens, .n_prompt = 90, .max_new = 11};
  assert_int_equal(td_engine_submit(e, &r, &t, &err), TD_ERR_REQUEST);
  assert_string_equal(err.param, "max_tokens");
  r.n_prompt = 0;
  assert_int_equal(td_engine_submit(e, &r, &t, &err), TD_ERR_REQUEST);
  r.n_prompt = 1;
  r.max_new = 0;
  assert_int_equal(td_engine_submit(e, &r, &t, &err), TD_ERR_REQUEST);
  r.max_new = 1;
  tokens[0] = -1;
  assert_int_equal(td_engine_submit(e, &r, &t, &err), TD_ERR_REQUEST);
  tokens[0] = 0;
  td_engine_destroy(e);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ring_keeps_order),
      cmocka_unit_test(test_ring_says_full),
      cmocka_unit_test(test_handover),
      cmocka_unit_test(test_queue_is_bounded),
      cmocka_unit_test(test_bad_requests_are_refused),
      cmocka_unit_test(test_a_poll_tells_of_a_request_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
