/* KV events between the engine's thread and a reader (engine/kv_feed.h): all of them, in order, complete,
 * also if there are more than the ring holds and the reader is slow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "engine/kv_feed.h"

enum { PT = 16, PAGES = 5000, PROMPT = PT * PAGES - 1, ROUNDS = 60 };

typedef struct world {
  td_sched *s;
  td_plan *plan;
  td_kv_feed *feed;
  int32_t *tokens; /* [PAGES * PT] */
  _Atomic bool wanted, done;
} world;

static void open_world(world *w)
{
  td_error err;
  td_sched_config c = {.n_slots = 1,
                       .max_running = 1,
                       .step_tokens = PAGES * PT,
                       .page_tokens = PT,
                       .n_pages = PAGES,
                       .max_context_tokens = PAGES * PT,
                       .emits_page_events = true};
  assert_int_equal(td_sched_create(&c, &w->s, &err), TD_OK);
  assert_int_equal(td_sched_plan_create(w->s, &w->plan, &err), TD_OK);
  w->tokens = calloc(PAGES, PT * sizeof *w->tokens);
  w->feed = aligned_alloc(_Alignof(td_kv_feed), sizeof *w->feed);
  assert_true(w->tokens && w->feed);
  memset(w->feed, 0, sizeof *w->feed);
  assert_int_equal(td_kv_feed_init(w->feed, PT, &err), TD_OK);
  atomic_init(&w->wanted, false);
  atomic_init(&w->done, false);
}

static void close_world(world *w)
{
  td_kv_feed_deinit(w->feed);
  td_plan_destroy(w->plan);
  td_sched_destroy(w->s);
  free(w->tokens);
  free(w->feed);
}

/* A prompt that fills the pool; each token encodes its position. */
static void run_prompt(world *w, int32_t first)
{
  td_error err;
  int32_t sampled = 1;
  uint8_t verdict = TD_TOKEN_GOES_ON;
  uint32_t finished, n_finished;
  for (int32_t i = 0; i < PROMPT; i++)
    w->tokens[i] = first + i;
  td_sched_request r = {.tokens = w->tokens, .n_prompt = PROMPT, .max_new = 1};
  assert_int_equal(td_sched_submit(w->s, 0, &r, 1, &err), TD_OK);
  for (n_finished = 0; n_finished == 0;) {
    assert_true(td_sched_plan(w->s, 1, w->plan));
    td_sched_commit(w->s, w->plan, &sampled, &verdict, &finished, &n_finished);
  }
}

static void more_than_it_holds(void **state)
{
  world w;
  const td_engine_kv_event *e;
  uint64_t before = 0;
  uint32_t n_all = 0, n_wanted = 0;
  bool wanted;
  open_world(&w);
  assert_int_equal(td_kv_feed_read(w.feed, &e, 7, &wanted), 0);
  run_prompt(&w, 0);
  td_kv_feed_fill(w.feed, w.s);
  uint64_t news;
  assert_int_equal(read(w.feed->fd, &news, sizeof news), sizeof news);
  for (uint32_t n; (n = td_kv_feed_read(w.feed, &e, 100, &wanted)) > 0 || wanted; n_all += n) {
    for (uint32_t i = 0; i < n; i++) {
      assert_true(e[i].is_stored && e[i].before == before && e[i].namespace_id == 0);
      for (int32_t k = 0; k < PT; k++)
        assert_int_equal(e[i].tokens[k], (int32_t)(n_all + i) * PT + k);
      before = e[i].name;
    }
    n_wanted += wanted;
    if (wanted) /* what the engine does when it wakes */
      td_kv_feed_fill(w.feed, w.s);
  }
  assert_int_equal(n_all, PAGES - 1); /* the last one is incomplete */
  assert_true(n_wanted > 0);
  close_world(&w);
}

static void *read_all(void *arg)
{
  world *w = arg;
  const td_engine_kv_event *e;
  int64_t n_held = 0;
  for (bool done = false, wanted; !done;) {
    done = atomic_load(&w->done);
    uint32_t n = td_kv_feed_read(w->feed, &e, 100, &wanted);
    if (wanted)
      atomic_store(&w->wanted, true);
    for (uint32_t i = 0; i < n; i++) {
      n_held += e[i].is_stored ? 1 : -1;
      assert_true(n_held >= 0 && n_held <= PAGES);
      for (int32_t k = 1; e[i].is_stored && k < PT; k++)
        assert_int_equal(e[i].tokens[k], e[i].tokens[0] + k);
    }
    done = done && n == 0;
    if (n == 0)
      sched_yield();
  }
  return (void *)(intptr_t)n_held;
}

static void two_threads(void **state)
{
  world w;
  pthread_t thread;
  void *n_held;
  open_world(&w);
  assert_int_equal(pthread_create(&thread, NULL, read_all, &w), 0);
  for (int32_t i = 0; i < ROUNDS; i++) {
    run_prompt(&w, 1000000 * i);
    td_kv_feed_fill(w.feed, w.s);
    if (atomic_exchange(&w.wanted, false))
      td_kv_feed_fill(w.feed, w.s);
  }
  for (uint64_t put = 0, had_room = 0; !had_room || put != atomic_load(&w.feed->n_stored); sched_yield()) {
    put = atomic_load(&w.feed->n_stored);
    had_room = put - atomic_load(&w.feed->n_consumed) < TD_KV_FEED_EVENTS;
    td_kv_feed_fill(w.feed, w.s);
  }
  atomic_store(&w.done, true);
  pthread_join(thread, &n_held);
  td_sched_stats st;
  td_sched_get_stats(w.s, &st);
  assert_int_equal((intptr_t)n_held, st.pages_cached);
  close_world(&w);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(more_than_it_holds),
      cmocka_unit_test(two_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
