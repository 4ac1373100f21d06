/* The check itself. sim_scheduler and every test of this room rely on td_sched_check. So each thing that it
 * checks is broken once, in a scheduler that is otherwise right, and it has to abort. */
#include "test_scheduler_fixture.h"

#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scheduler/cost_model.h"
#include "scheduler/internal.h"

enum { N_PAGES = 60, PAGE = 16 };
static const td_sched_config config = {.n_slots = FX_SLOTS,
                                       .max_running = 4,
                                       .step_tokens = 64,
                                       .page_tokens = PAGE,
                                       .n_pages = N_PAGES,
                                       .max_context_tokens = 512,
                                       .coalesces = true,
                                       .slack_percent = 100,
                                       .n_accounts = 2,
                                       .emits_page_events = true,
                                       .cost = &td_cost_h200_llama3_8b};
enum { DECODE, PREFILL, FOLLOWER, SECOND_FOLLOWER, QUEUED, QUEUED_TOO }; /* slots */

static void submit(fx *f, uint32_t slot, uint32_t n_prompt, int32_t family, uint32_t account)
{
  td_error err;
  for (uint32_t i = 0; i < n_prompt; i++)
    f->tokens[slot][i] = family * 10000 + (int32_t)i;
  td_sched_request r = {.tokens = f->tokens[slot],
                        .n_prompt = n_prompt,
                        .max_new = 20,
                        .terms = {.account = account, .deadline_us = UINT64_C(1) << 40}};
  assert_int_equal(td_sched_submit(f->s, slot, &r, ++f->now_us, &err), TD_OK);
}

/* A branching tree, parts of which no request holds; one decode, a running prompt with two followers, and two
 * requests of another account that wait for a place. */
static void make_busy(fx *f)
{
  fx_open(f, &config);
  for (int32_t family = 5; family < 8; family++) {
    submit(f, QUEUED, 70, family == 7 ? 5 : family, 0);
    if (family == 7)
      f->tokens[QUEUED][40] = 1;
    fx_run_dry(f);
  }
  submit(f, DECODE, 40, 1, 0);
  fx_step(f);
  submit(f, PREFILL, 300, 2, 0);
  fx_step(f);
  submit(f, FOLLOWER, 299, 2, 0);
  submit(f, SECOND_FOLLOWER, 299, 2, 0);
  fx_step(f);
  assert_int_equal(fx_stats(f).n_following, 2);
  submit(f, QUEUED, 90, 3, 1);
  submit(f, QUEUED_TOO, 80, 4, 1);
}

/* ---- what can be broken ---- */

static td_request *request(td_sched *s, uint32_t slot) { return &s->table.requests[slot]; }
static td_order_entry *entry(td_sched *s, uint32_t slot) { return &s->order.entries[slot]; }
static td_prefix_node *node_of(td_sched *s, uint32_t slot) { return &s->tree.nodes[request(s, slot)->node]; }
static td_prefix_node *oldest(td_sched *s) { return &s->tree.nodes[s->tree.lru_oldest]; }
static td_prefix_node *second_oldest(td_sched *s) { return &s->tree.nodes[oldest(s)->lru_newer]; }
static int32_t *stripe(td_sched *s, uint32_t slot) { return td_sched_stripe(s, request(s, slot)); }
static td_prefix_node *child(td_sched *s)
{
  uint32_t id = s->tree.lru_oldest;
  while (s->tree.nodes[id].parent == TD_NO_NODE)
    id = s->tree.nodes[id].lru_newer;
  return &s->tree.nodes[id];
}

#define BREAK(NAME, ...)                                                                                     \
  static void NAME(td_sched *s) { __VA_ARGS__; }
#define BREAKS(X)                                                                                            \
  /* requests */                                                                                             \
  X(waiting_has_pages, request(s, QUEUED)->n_pages = 1)                                                      \
  X(waiting_has_tree_pages, request(s, QUEUED)->n_tree_pages = 1)                                            \
  X(waiting_has_computed, request(s, QUEUED)->n_computed = 1)                                                \
  X(waiting_has_node, request(s, QUEUED)->node = 0)                                                          \
  X(waiting_beyond_its_end, request(s, QUEUED)->max_tokens = request(s, QUEUED)->n_tokens)                   \
  X(decode_has_another_last_token, request(s, DECODE)->last_token++)                                         \
  X(decode_has_computed_all, request(s, DECODE)->n_computed++)                                               \
  X(decode_is_late_by_two, request(s, DECODE)->is_late = true; request(s, DECODE)->n_computed -= 2)          \
  X(decode_lacks_a_page, request(s, DECODE)->n_pages--)                                                      \
  X(prompt_has_computed_all, request(s, PREFILL)->n_computed = request(s, PREFILL)->n_tokens)                \
  X(prompt_is_in_no_tree, request(s, PREFILL)->node = TD_NO_NODE)                                            \
  X(prompt_has_a_stripe_of_nobody, request(s, PREFILL)->stripe = config.max_running)                         \
  X(two_have_one_stripe, request(s, PREFILL)->stripe = request(s, DECODE)->stripe)                           \
  X(a_stripe_is_free_twice, s->free_stripes[0] = s->free_stripes[1])                                         \
  X(a_free_stripe_is_used, s->free_stripes[1] = request(s, DECODE)->stripe)                                  \
  X(a_stripe_is_lost, s->n_free_stripes--)                                                                   \
  X(a_start_is_not_later, request(s, PREFILL)->start_seq = request(s, DECODE)->start_seq)                    \
  X(a_waiting_one_runs, s->table.running[0] = QUEUED)                                                        \
  X(one_that_runs_is_not_listed, s->table.n_running--)                                                       \
  X(a_free_slot_waits, request(s, FX_SLOTS - 1)->state = TD_REQUEST_WAITING)                                 \
  /* pages */                                                                                                \
  X(a_page_that_is_none, stripe(s, DECODE)[request(s, DECODE)->n_pages - 1] = N_PAGES)                       \
  X(a_page_below_none, stripe(s, DECODE)[request(s, DECODE)->n_pages - 1] = -1)                              \
  X(a_page_of_another, stripe(s, DECODE)[request(s, DECODE)->n_pages - 1] = stripe(s, PREFILL)[0])           \
  X(a_path_of_another, stripe(s, PREFILL)[0] = stripe(s, DECODE)[0])                                         \
  X(a_token_of_another, request(s, PREFILL)->tokens[3]++)                                                    \
  X(a_last_token_of_a_page, request(s, PREFILL)->tokens[PAGE - 1]++)                                         \
  X(a_page_is_free_twice, s->pool.free_stack[0] = s->pool.free_stack[1])                                     \
  X(a_page_is_lost, s->pool.n_free--)                                                                        \
  X(a_promise_is_forgotten, s->reserved_pages--)                                                             \
  X(too_many_updates, s->n_pending_updates = s->max_pending_updates + 1)                                     \
  /* waiting requests */                                                                                     \
  X(a_free_slot_is_watched, entry(s, FX_SLOTS - 1)->expiry_at = 0)                                           \
  X(one_is_not_watched, entry(s, QUEUED)->expiry_at = TD_NO_SLOT)                                            \
  X(a_prompt_is_not_watched, entry(s, QUEUED)->expiry_at = TD_NO_SLOT;                                       \
    entry(s, QUEUED)->terms.deadline_us = 0; entry(s, QUEUED)->terms.ttft_deadline_us = 1)                   \
  X(a_later_deadline_is_first, s->deadlines.heap[s->deadlines.n - 1].us = 0)                                 \
  X(a_place_in_the_heap, entry(s, s->deadlines.heap[1].slot)->expiry_at = 0)                                 \
  X(a_follower_of_another, entry(s, FOLLOWER)->leader = DECODE)                                              \
  X(a_follower_linked_wrongly,                                                                               \
    entry(s, FOLLOWER)->prev = entry(s, FOLLOWER)->prev == TD_NO_SLOT ? DECODE : TD_NO_SLOT)                 \
  X(a_follower_sleeps_on, entry(s, FOLLOWER)->wake_pages = request(s, PREFILL)->n_tree_pages)                \
  X(a_follower_of_another_namespace, entry(s, FOLLOWER)->terms.namespace_id++)                               \
  X(a_follower_is_more_urgent, entry(s, FOLLOWER)->latest_start_us = entry(s, PREFILL)->followers_us - 1)    \
  X(a_follower_is_not_counted, s->order.n_following--)                                                       \
  X(a_leader_decodes, entry(s, DECODE)->followers = entry(s, PREFILL)->followers;                            \
    entry(s, PREFILL)->followers = TD_NO_SLOT)                                                               \
  X(followers_go_in_a_circle, entry(s, FOLLOWER)->next = SECOND_FOLLOWER;                                    \
    entry(s, SECOND_FOLLOWER)->next = FOLLOWER)                                                              \
  X(prompt_tokens_are_miscounted, s->order.waiting_prompt_tokens--)                                          \
  X(expected_uncached_tokens_are_miscounted, s->answers.accounts[1].waiting_tokens++)                        \
  X(expected_uncached_tokens_of_the_first, s->answers.accounts[0].waiting_tokens++)                          \
  X(max_new_tokens_are_miscounted, s->answers.max_new_tokens[0]++)                                           \
  X(max_new_tokens_of_the_longest, s->answers.max_new_tokens[TD_LENGTH_BINS - 1]++)                          \
  X(one_is_queued_twice, s->order.n_queued++)                                                                \
  /* order */                                                                                                \
  X(an_entry_of_another_account, entry(s, QUEUED)->terms.account = 0)                                        \
  X(a_later_place_is_first, entry(s, td_order_first(&s->order, 1))->place_us = INT64_MAX)                    \
  X(a_rank_is_wrong, entry(s, td_order_first(&s->order, 1))->rank++)                                         \
  X(a_parent_is_wrong, entry(s, td_order_first(&s->order, 1))->parent = DECODE)                              \
  X(a_light_one_is_among_others, entry(s, td_order_first(&s->order, 1))->is_light ^= true)                   \
  X(an_account_stands_elsewhere, s->order.accounts[1].at = 1)                                                \
  X(an_account_was_served_less, s->order.accounts[1].heap_served = s->order.served[1] + 1)                   \
  X(an_account_is_not_in_the_heap, s->order.n_heap--)                                                        \
  /* places */                                                                                               \
  X(a_place_is_not_counted, s->places.n_running[0]--)                                                        \
  X(a_place_of_nobody, s->places.n_running[5]++)                                                             \
  X(a_place_of_another, s->places.n_running[0]--; s->places.n_running[7]++; s->places.n_holders++)           \
  X(a_holder_is_not_counted, s->places.n_holders--)                                                          \
  X(pages_are_not_counted, s->places.n_pages[0]--)                                                           \
  X(pages_of_nobody, s->places.n_pages[5]++)                                                                 \
  X(no_place_is_kept, s->places.n_accounts = s->places.most_kept = 4)                                        \
  /* tree */                                                                                                 \
  X(a_pin_is_lost, node_of(s, DECODE)->pins--)                                                               \
  X(a_pin_too_many, oldest(s)->pins++)                                                                       \
  X(a_run_ends_elsewhere, node_of(s, PREFILL)->last_page = node_of(s, DECODE)->last_page)                    \
  X(a_run_goes_nowhere, s->tree.links[oldest(s)->first_page].next = N_PAGES)                                 \
  X(a_run_goes_below, s->tree.links[oldest(s)->first_page].next = -1)                                        \
  X(a_run_is_shorter, oldest(s)->n_pages--)                                                                  \
  X(a_run_comes_from_elsewhere, s->tree.links[s->tree.links[oldest(s)->first_page].next].prev = TD_NO_PAGE)  \
  X(a_page_has_no_name, s->page_events.pages[oldest(s)->first_page].name = 0)                                \
  X(a_node_in_another_bucket, oldest(s)->hash++)                                                             \
  X(two_children_alike,                                                                                      \
    memcpy(s->tree.page_tokens_of + (size_t)oldest(s)->first_page * PAGE,                                    \
           s->tree.page_tokens_of + (size_t)second_oldest(s)->first_page * PAGE, PAGE * sizeof(int32_t));    \
    oldest(s)->parent = second_oldest(s)->parent; oldest(s)->hash = second_oldest(s)->hash)                  \
  X(a_node_of_another_namespace, child(s)->namespace_id++)                                                   \
  X(a_parent_is_none, child(s)->parent = s->tree.free_node)                                                  \
  X(a_child_is_not_counted, s->tree.nodes[child(s)->parent].n_children--)                                    \
  X(a_node_is_not_counted, s->tree.n_nodes++)                                                                \
  X(a_page_of_the_tree_is_not_counted, s->tree.n_pages++)                                                    \
  X(an_evictable_page_is_not_counted, s->tree.n_unpinned_pages--)                                            \
  X(the_oldest_has_an_older, oldest(s)->lru_older = s->tree.lru_newest)                                      \
  X(the_newest_is_another, s->tree.lru_newest = s->tree.lru_oldest)                                          \
  X(the_list_ends_early, oldest(s)->lru_newer = TD_NO_NODE)                                                  \
  X(the_list_goes_in_a_circle, s->tree.nodes[s->tree.lru_newest].lru_newer = s->tree.lru_oldest)             \
  X(one_in_use_is_evictable, s->tree.lru_oldest = request(s, DECODE)->node)                                  \
  /* page events */                                                                                          \
  X(an_event_is_not_counted, s->page_events.n++)

BREAKS(BREAK)

static const struct {
  const char *name;
  void (*breaks)(td_sched *s);
} breaks[] = {
#define ROW(NAME, ...) {#NAME, NAME},
    BREAKS(ROW)};

static void nothing(td_sched *s) {}

/* Returns true if the check aborts, in a forked copy of this process, whose output is discarded. */
static bool aborts(td_sched *s, void (*broken)(td_sched *s))
{
  int status = 0;
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    signal(SIGABRT, SIG_DFL); /* not cmocka's */
    setrlimit(RLIMIT_CORE, &(struct rlimit){0});
    setrlimit(RLIMIT_CPU, &(struct rlimit){2, 2}); /* in case a cycle is not detected */
    if (!freopen("/dev/null", "w", stderr))
      _exit(2);
    broken(s);
    td_sched_check(s);
    _exit(0);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void each_broken_thing_is_seen(void **state)
{
  static fx f;
  int n_unseen = 0;
  make_busy(&f);
  assert_false(aborts(f.s, nothing));
  for (size_t i = 0; i < sizeof breaks / sizeof *breaks; i++)
    if (!aborts(f.s, breaks[i].breaks)) {
      print_error("not seen: %s\n", breaks[i].name);
      n_unseen++;
    }
  assert_int_equal(n_unseen, 0);
  fx_close(&f);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(each_broken_thing_is_seen)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
