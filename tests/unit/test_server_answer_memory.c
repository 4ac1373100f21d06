/* Which answers are admitted and which are ended when there is no room for answers (server/answer_memory.c),
 * compared with a plain walk over all connections. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "config/share.h"
#include "server/call.h"
#include "server/answer_memory.h"

enum { N_TENANTS = 6, N_CONNS = 40, N_SMALL = 4, ROUNDS = 20000, LEAST_WAIT_MS = 1000, BUDGET = 1 << 12 };

static td_server *s;
static td_options options;
static td_conn conns[N_CONNS];
static td_call calls[N_CONNS];
static uint64_t now_ms;
static const td_conn *ended; /* the first one that a trim ended */

uint64_t __wrap_uv_now(const uv_loop_t *loop);
void __wrap_td_conn_cut(td_conn *c, td_cut why);
void __wrap_td_call_fail(td_call *call, const td_api_error *e);

uint64_t __wrap_uv_now(const uv_loop_t *loop) { return now_ms; }

/* The first one is remembered, and then there is room: nothing changes. */
static void note(const td_conn *c)
{
  ended = c;
  options.limit[TD_LIMIT_ANSWERS_BYTES] = 1e15;
}

void __wrap_td_conn_cut(td_conn *c, td_cut why)
{
  assert_true(why == TD_CUT_ANSWER_MEMORY && c->answer_memory_bytes > 0);
  note(c);
}

void __wrap_td_call_fail(td_call *call, const td_api_error *e)
{
  assert_string_equal(e->code, "answers_full");
  assert_int_equal(call->conn->answer_memory_bytes, 0);
  note(call->conn);
}

/* ---- the plain walk ---- */

static bool is_open(const td_conn *c) { return c->state != TD_CONN_CLOSING; }
static uint64_t bytes_of(const td_conn *c)
{
  return c->answer_memory_bytes + (c->call ? c->call->answer_memory_bytes : 0);
}

static uint64_t bytes_of_tenant(const td_tenant *t)
{
  uint64_t sum = 0;
  for (int i = 0; i < N_CONNS; i++)
    if (is_open(&conns[i]) && conns[i].tenant == t)
      sum += bytes_of(&conns[i]);
  return sum;
}

static double cost(const td_conn *c)
{
  return (double)bytes_of(c) * (double)(LEAST_WAIT_MS + now_ms - c->progress_ms);
}

static uint64_t most(const td_conn *c) { return c->call->n_choices * sizeof(int32_t) * c->call->max_new; }

static bool goes_before(const td_conn *a, const td_conn *b)
{
  uint64_t of_a = bytes_of_tenant(a->tenant), of_b = bytes_of_tenant(b->tenant);
  if (of_a != of_b)
    return of_a > of_b;
  if ((a->answer_memory_bytes > 0) != (b->answer_memory_bytes > 0))
    return a->answer_memory_bytes > 0;
  if (a->answer_memory_bytes > 0)
    return cost(a) > cost(b);
  return most(a) != most(b) ? most(a) > most(b) : a->call->arrival_us > b->call->arrival_us;
}

static const td_conn *walk_for_victim(void)
{
  const td_conn *found = NULL;
  for (int i = 0; i < N_CONNS; i++)
    if (is_open(&conns[i]) && bytes_of(&conns[i]) > 0 && (!found || goes_before(&conns[i], found)))
      found = &conns[i];
  return found;
}

static bool walk_for_room(const td_conn *c)
{
  uint64_t all = 0, own = bytes_of_tenant(c->tenant);
  for (int i = 0; i < N_CONNS; i++)
    all += is_open(&conns[i]) ? bytes_of(&conns[i]) : 0;
  if (s->tenants.n_keys > 1 ? td_share_allows(BUDGET, all, own, 1) : all < BUDGET)
    return true;
  for (int i = 0; i < N_CONNS; i++)
    if (is_open(&conns[i]) && bytes_of_tenant(conns[i].tenant) > own)
      return true;
  return false;
}

/* ---- what happens to connections ---- */

static uint32_t below(uint32_t n) { return (uint32_t)(rand() % (int)n); }

/* Small numbers, so that many are equal. */
static uint64_t some_bytes(void) { return below(3) == 0 ? 0 : (uint64_t)below(N_SMALL) * 100; }

static void open_conn(td_conn *c)
{
  *c = (td_conn){.server = s, .state = TD_CONN_READING, .progress_ms = now_ms};
  td_answer_memory_add_conn(c);
}

static void end_call(td_conn *c)
{
  td_answer_memory_set(s, c->call->tenant, &c->call->answer_memory_bytes, 0);
  td_tenant_drop(&s->tenants, c->call->tenant);
  c->call = NULL;
}

static void begin_call(td_conn *c)
{
  td_call *call = &calls[c - conns];
  td_conn_set_tenant(c, td_tenant_ref(&s->tenants.keys[1 + below(N_TENANTS)]));
  memset(call, 0, sizeof *call);
  call->server = s;
  call->conn = c;
  call->tenant = td_tenant_ref(c->tenant);
  call->n_choices = 1 + below(2);
  call->max_new = 1 + below(3);
  call->arrival_us = now_ms * 1000 + below(2);
  c->call = call;
}

static void close_conn(td_conn *c)
{
  if (c->call)
    end_call(c);
  td_answer_memory_set(s, c->tenant, &c->answer_memory_bytes, 0);
  td_answer_memory_remove_conn(c);
  td_tenant_drop(&s->tenants, c->tenant);
  c->state = TD_CONN_CLOSING;
}

static void change(td_conn *c)
{
  now_ms += below(3) == 0 ? below(2000) : 0;
  switch (is_open(c) ? below(8) : 8) {
  case 0: close_conn(c); break;
  case 1:
  case 2: c->call ? end_call(c) : begin_call(c); break;
  case 3: c->progress_ms = now_ms; break;
  case 4:
  case 5: td_answer_memory_set(s, c->tenant, &c->answer_memory_bytes, some_bytes()); break;
  case 8: open_conn(c); break;
  default:
    if (c->call)
      td_answer_memory_set(s, c->call->tenant, &c->call->answer_memory_bytes, some_bytes());
  }
}

static void expect_same(void)
{
  td_api_error e;
  const td_conn *want = walk_for_victim();
  options.limit[TD_LIMIT_ANSWERS_BYTES] = 0;
  ended = NULL;
  td_answer_memory_trim(s);
  assert_true((ended != NULL) == (want != NULL));
  assert_false(want && (goes_before(want, ended) || goes_before(ended, want))); /* or as good */
  options.limit[TD_LIMIT_ANSWERS_BYTES] = BUDGET;
  for (int i = 0; i < N_CONNS; i++)
    if (is_open(&conns[i]) && conns[i].tenant)
      assert_int_equal(td_answer_memory_admit(&conns[i], &e), walk_for_room(&conns[i]));
}

static void same_as_a_plain_walk(void **state)
{
  td_error err;
  for (uint32_t n_keys = 1; n_keys <= N_TENANTS; n_keys += N_TENANTS - 1) {
    srand(n_keys);
    s = calloc(1, sizeof *s);
    assert_non_null(s);
    td_options_init(&options);
    s->options = &options;
    assert_int_equal(td_tenants_init(&s->tenants, &(td_keys){.required = true}, &err), TD_OK);
    s->tenants.n_keys = n_keys;
    for (int i = 0; i < N_CONNS; i++)
      open_conn(&conns[i]);
    for (int round = 0; round < ROUNDS; round++) {
      change(&conns[below(N_CONNS)]);
      if (round % 4 == 0)
        expect_same();
    }
    for (int i = 0; i < N_CONNS; i++)
      if (is_open(&conns[i]))
        close_conn(&conns[i]);
    assert_int_equal(s->answer_memory_bytes, 0);
    assert_int_equal(td_answer_heap_max_bytes(&s->tenants.answer_heap), 0);
    td_tenants_deinit(&s->tenants);
    free(s);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(same_as_a_plain_walk),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
