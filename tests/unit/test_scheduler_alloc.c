/* A scheduler when memory runs out: whichever allocation fails, there is an error and nothing leaks. */
#include "allocations_fixture.h"
#include "test_scheduler_fixture.h"

#include "scheduler/cost_model.h"

enum { ALLOCATIONS_MAX = 200 };

static long refused_at_each(const td_sched_config *config)
{
  td_error err;
  td_sched *s;
  for (long k = 0; k < ALLOCATIONS_MAX; k++) {
    s = NULL;
    n_calls = n_alive = 0;
    fails_at = k;
    td_status st = td_sched_create(config, &s, &err);
    fails_at = -1;
    if (st == TD_OK) {
      assert_true(n_calls <= k); /* the allocation that should fail was no longer made */
      td_sched_destroy(s);
      assert_int_equal(n_alive, 0);
      return k;
    }
    assert_int_equal(st, TD_ERR_NOMEM);
    assert_non_null(strstr(err.message, "no memory for"));
    assert_null(s);
    assert_int_equal(n_alive, 0);
  }
  fail_msg("more than %d allocations", ALLOCATIONS_MAX);
  return 0;
}

static void each_allocation_may_fail(void **state)
{
  td_sched_config config = {.n_slots = 8,
                            .max_running = 4,
                            .step_tokens = 64,
                            .page_tokens = 16,
                            .n_pages = 40,
                            .max_context_tokens = 512};
  long n = refused_at_each(&config);
  assert_true(n > 20);
  config.emits_page_events = true;
  assert_int_equal(refused_at_each(&config), n + 3);
}

/* Configurations for which no scheduler is made. */
static void impossible_sizes_are_refused(void **state)
{
  const td_sched_config good = {.n_slots = 8,
                                .max_running = 4,
                                .step_tokens = 64,
                                .page_tokens = 16,
                                .n_pages = 40,
                                .max_context_tokens = 512};
  td_sched_config bad[] = {good, good, good, good, good, good};
  bad[0].n_slots = 0;
  bad[1].n_slots = UINT32_MAX;
  bad[2].n_pages = 0;
  bad[3].n_pages = (uint32_t)INT32_MAX + 1;
  bad[4].max_context_tokens = 1;
  bad[5].max_context_tokens = UINT32_MAX;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    td_error err;
    td_sched *s = NULL;
    n_alive = 0;
    assert_int_equal(td_sched_create(&bad[i], &s, &err), TD_ERR_CONFIG);
    assert_null(s);
    assert_int_equal(n_alive, 0);
  }
  td_sched_destroy(NULL);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_allocation_may_fail),
      cmocka_unit_test(impossible_sizes_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
