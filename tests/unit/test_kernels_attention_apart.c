/* Decode attention in two launches: shared spans by a plan of them alone, the rest of each row by items. Together they have every key of
 * every row exactly once, and what the second launch is told of the first one's partials is where these are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention_plan_fixture.h"
#include "kernels/cuda/attention_items.h"

static td_attention_planner_config apart_config(void)
{
  td_attention_planner_config c = random_config();
  c.policy = TD_ATTENTION_UNIFIED;
  c.invariant_keys = 0;
  c.shared_only = true;
  c.group = 1 + below(TD_DECODE_ROWS);
  c.cost.start_us *= below(3); /* so that small batches are packed too */
  c.cost.partial_us *= below(3);
  c.cost.apart_us = below(4) ? 0 : below(20); /* some are not worth a launch */
  return c;
}

/* Some rows are chunks of prompts, or have a few tokens; tokens one after another. */
static void mix(td_plan *plan)
{
  plan->n_tokens = 0;
  for (uint32_t r = 0; r < plan->n_rows; r++) {
    uint32_t most = rows[r].kv_len < 40 ? rows[r].kv_len : 40;
    rows[r].q_len = below(6) ? 1 : 1 + below(most);
    rows[r].q_start = plan->n_tokens;
    plan->n_tokens += rows[r].q_len;
  }
}

/* ---- the first launch ---- */

typedef struct written {
  uint32_t member, head, begin, end; /* keys of the span */
  uint32_t span;
  bool is;
} written;

/* Who writes which partial. */
static written *write_partials(const view *v, const td_attention_planner_config *c)
{
  const td_attention_header *h = v->h;
  written *w = calloc((size_t)h->n_slots + 1, sizeof *w);
  uint32_t n_tasks = 0, n = h->n_workers;
  assert_non_null(w);
  for (uint32_t s = 0; s < h->n_shared_spans; s++) {
    const td_attention_span *sp = &v->spans[s];
    assert_int_equal(sp->first_task, n_tasks);
    assert_true(sp->n_tasks > 0 && sp->shared && sp->n_members * c->group <= (c->tile_rows > c->group ? c->tile_rows : c->group));
    for (uint32_t t = n_tasks; t < n_tasks + sp->n_tasks; t++)
      for (piece p = begin_of(&v->tasks[t]); next_piece(&v->tasks[t], &p);)
        for (uint32_t i = 0; i < sp->n_members; i++) {
          assert_true(p.slot != TD_ATTENTION_DIRECT && p.slot + i < h->n_slots && !w[p.slot + i].is);
          w[p.slot + i] = (written){sp->first_member + i, p.head, p.begin, p.end, s, true};
        }
    n_tasks += sp->n_tasks;
  }
  assert_int_equal(n_tasks, h->n_tasks);
  for (uint32_t s = h->n_shared_spans; s < h->n_spans; s++)
    assert_true(v->spans[s].n_tasks == 0 && v->spans[s].slot == TD_ATTENTION_DIRECT);
  assert_true(h->shared_only && v->first_task[0] == 0 && v->first_task[n] == n_tasks);
  for (uint32_t i = 0; i <= n; i++) {
    assert_int_equal(v->first_task[n + 1 + i], n_tasks);
    assert_true(i == 0 || v->first_task[i - 1] <= v->first_task[i]);
  }
  return w;
}

/* The partials that the row's end adds up, one after another: its keys [0, own.begin), each once. Returns how many there are. */
static uint32_t check_shared(const view *v, const td_plan *plan, uint32_t row, td_attention_own own, uint32_t n_heads, const written *w)
{
  static uint32_t slots[1 << 16];
  const td_plan_row *r = &plan->rows[row];
  uint32_t n_all = 0;
  if (own.member == TD_ATTENTION_NO_MEMBER) {
    assert_int_equal(own.begin, 0);
    return 0;
  }
  const td_attention_member *m = &v->members[own.member];
  assert_true(r->q_len == 1 && m->token == r->q_start && m->n_keys == r->kv_len);
  assert_in_range(m->n_sources, 1, TD_ATTENTION_LEVELS_MAX);
  for (uint32_t head = 0; head < n_heads; head++) {
    uint32_t key = 0;
    for (uint32_t i = 0; i < m->n_sources; i++) {
      uint32_t span = v->sources[m->first_source + i], n = partials_of(v, span, own.member, head, slots), in_span = 0;
      const td_attention_span *s = &v->spans[span];
      assert_true(span < v->h->n_shared_spans && n > 0);
      for (uint32_t k = 0; k < n; k++) {
        const written *p = &w[slots[k]];
        assert_true(p->is && p->member == own.member && p->head == head && p->span == span && p->begin == in_span && p->end > p->begin);
        in_span = p->end;
      }
      assert_int_equal(in_span, s->n_keys);
      for (uint32_t k = 0; k < s->n_keys && head == 0 && right_tables; k += plan->page_tokens)
        assert_int_equal(page_table[s->first_page + k / plan->page_tokens],
                         page_table[r->page_table_offset + (key + k) / plan->page_tokens]);
      key += s->n_keys;
      n_all += n;
    }
    assert_int_equal(key, own.begin);
  }
  assert_true(own.begin % plan->page_tokens == 0 && own.begin < r->kv_len); /* what the step writes is the row's own */
  return n_all;
}

/* ---- the second ---- */

/* Items of a decode row: its keys [own.begin, kv_len), each once. */
static void check_own(const td_attention_items *items, const td_plan *plan, uint32_t row, td_attention_own own, uint32_t group)
{
  const td_plan_row *r = &plan->rows[row];
  uint32_t key = own.begin, n = 0, n_of_row = 0;
  for (uint32_t i = 0; i < items->n_items; i++) {
    const td_attention_item *it = &items->items[i];
    if (it->query < r->q_start || it->query >= r->q_start + r->q_len)
      continue;
    if (r->q_len * group > TD_DECODE_ROWS) {
      assert_true(i < items->n_prefill && it->member == TD_ATTENTION_NO_MEMBER && it->kv_begin == 0);
      continue;
    }
    assert_true(i >= items->n_prefill && it->member == own.member && it->n_tokens == r->q_len);
    assert_true(it->kv_begin == key && it->kv_end > key && it->kv_begin % 16 == 0);
    assert_true(it->n_partials == 1 || (it->partial == it->first_partial + n && it->partial < items->n_partials));
    assert_true(it->kv_end % 16 == 0 || it->kv_end == r->kv_len); /* only a row's last keys are less than a strip */
    key = it->kv_end;
    n_of_row = it->n_partials;
    n++;
  }
  assert_true(r->q_len * group > TD_DECODE_ROWS || (key == r->kv_len && n == n_of_row));
}

typedef struct launches {
  td_attention_planner *p;
  const td_attention_planner_config *c;
  td_attention_items items;
  uint32_t n_partials, n_sharing, n_split, n_unpacked;
} launches;

static void check_step(launches *run, const td_plan *plan)
{
  const td_attention_planner_config *c = run->c;
  td_attention_own own[ROWS_MAX];
  td_attention_cut cut = {c->group, c->n_kv_heads, 3 * c->n_workers, TD_PREFILL_ROWS_WGMMA, false, false, true, own};
  make(run->p, plan);
  td_attention_planner_own(run->p, plan, own);
  td_attention_items_make(&run->items, plan, &cut);
  view v = view_of(run->p);
  assert_true(v.h->block_bytes <= td_attention_block_bytes_max(c) && v.h->n_slots <= td_attention_slots_of(c));
  written *w = write_partials(&v, c);
  uint32_t n_written = 0, n_read = 0, n_singles = 0;
  for (uint32_t r = 0; r < plan->n_rows; r++) {
    n_read += check_shared(&v, plan, r, own[r], c->n_kv_heads, w);
    check_own(&run->items, plan, r, own[r], c->group);
    run->n_sharing += own[r].member != TD_ATTENTION_NO_MEMBER;
    assert_true(c->window_tokens == 0 || rows[r].kv_len <= c->window_tokens || own[r].begin == 0);
    n_singles += rows[r].q_len == 1;
  }
  for (uint32_t i = 0; i < v.h->n_slots; i++)
    n_written += w[i].is;
  assert_int_equal(n_written, n_read); /* all that is written is added up, once */
  if (n_singles == plan->n_rows) /* the grid of a recorded step */
    assert_in_range(td_attention_decode_works(&run->items), 1,
                    td_attention_decode_works_max(plan->n_rows, c->n_kv_heads, 3 * c->n_workers));
  run->n_partials += n_written;
  run->n_split += run->items.n_partials;
  run->n_unpacked += (uint32_t)td_attention_planner_stats(run->p).n_unpacked;
  free(w);
}

static void open_run(launches *r, const td_attention_planner_config *c)
{
  r->c = c;
  r->p = planner_of(c);
  r->items.max_items = td_attention_items_max(ROWS_MAX, ROWS_MAX * 40);
  r->items.items = calloc(r->items.max_items, sizeof *r->items.items);
  r->items.tokens = calloc(ROWS_MAX, sizeof *r->items.tokens);
  assert_true(r->items.items && r->items.tokens);
}

static void close_run(launches *r)
{
  td_attention_planner_destroy(r->p);
  free(r->items.items);
  free(r->items.tokens);
}

static void test_every_key_is_had_once(void **unused)
{
  (void)unused;
  uint64_t n_partials = 0, n_sharing = 0, n_split = 0, n_unpacked = 0;
  for (uint32_t round = 0; round < 700; round++) {
    td_attention_planner_config c = apart_config();
    launches r = {0};
    uint32_t n = below(4) ? 1 + below(40) : 1 + below(256);
    td_plan plan = random_plan(n, c.page_tokens, n > 40 ? 4000 : 100000);
    if (below(2))
      mix(&plan);
    open_run(&r, &c);
    check_step(&r, &plan);
    n_partials += r.n_partials, n_sharing += r.n_sharing, n_split += r.n_split, n_unpacked += r.n_unpacked;
    close_run(&r);
  }
  assert_true(n_partials > 100000 && n_sharing > 5000 && n_split > 5000); /* there was something to see */
  assert_int_equal(n_unpacked, 0);
}

/* Tables that no scheduler makes. */
static void test_wrong_tables_do_no_harm(void **unused)
{
  (void)unused;
  right_tables = false;
  for (uint32_t round = 0; round < 150; round++) {
    td_attention_planner_config c = apart_config();
    launches r = {0};
    td_plan plan = random_plan(1 + below(80), c.page_tokens, 2000);
    uint32_t n_ids = 1 + below(40);
    for (uint32_t i = 0; i < plan.n_rows; i++)
      for (uint32_t k = 0; k * c.page_tokens < rows[i].kv_len; k++)
        page_table[i * STRIPE + k] = below(4) ? (int32_t)below(n_ids) : page_table[i * STRIPE + k];
    open_run(&r, &c);
    check_step(&r, &plan);
    close_run(&r);
  }
  right_tables = true;
}

/* Rows grow by a token a step, some leave; between them stand some that have two tokens a step. */
static void test_steps_one_after_another(void **unused)
{
  (void)unused;
  uint64_t n_sharing = 0;
  for (uint32_t round = 0; round < 40; round++) {
    td_attention_planner_config c = apart_config();
    launches r = {0};
    td_plan plan = random_plan(2 + below(60), c.page_tokens, 3000);
    open_run(&r, &c);
    for (uint32_t i = 0; i < plan.n_rows; i++)
      rows[i].q_len = rows[i].kv_len > 1 && i > 0 && below(5) == 0 ? 2 : 1;
    for (uint32_t step = 0; step < 40; step++) {
      plan.n_tokens = 0;
      for (uint32_t i = 0; i < plan.n_rows; plan.n_tokens += rows[i++].q_len)
        rows[i].q_start = plan.n_tokens;
      check_step(&r, &plan);
      uint32_t event = below(8), who = below(plan.n_rows);
      if (event == 0 && plan.n_rows > 1)
        rows[who] = rows[--plan.n_rows];
      for (uint32_t i = 0; i < plan.n_rows; i++) {
        rows[i].kv_len++;
        page_table[rows[i].page_table_offset + (rows[i].kv_len - 1) / c.page_tokens] = next_page++;
      }
    }
    n_sharing += r.n_sharing;
    td_attention_stats s = td_attention_planner_stats(r.p);
    assert_true(s.n_lazy >= 10 && s.n_lazy < 40 && s.n_cut == 0); /* what grows has no cuts */
    close_run(&r);
  }
  assert_true(n_sharing > 1000);
}

/* ---- and that little of it is any worker's ---- */

static void test_workers_have_even_shares(void **unused)
{
  (void)unused;
  static const uint32_t nodes[] = {1, 4, 16, 256}, tokens[] = {1024, 4096, 2048, 500};
  td_attention_planner_config c = config_of(16);
  c.shared_only = true;
  td_attention_planner *p = planner_of(&c);
  td_plan plan = tree_plan(4, nodes, tokens, 16);
  make(p, &plan);
  td_attention_stats s = td_attention_planner_stats(p);
  assert_true(s.total_us > 0 && s.longest_us <= 1.15 * s.total_us / c.n_workers + 2 * c.cost.start_us);
  td_attention_planner_destroy(p);
}

/* As one H200 took a step with and without sharing, Llama-3-8B's heads, 512 tokens of each row behind what all share. Where both took the same
 * within 3 us a layer, either will do. */
static void test_what_is_not_worth_a_launch_is_not_shared(void **unused)
{
  (void)unused;
  static const struct { uint32_t n_rows, n_shared; bool pays; } steps[] = {
      {2, 512, false}, {2, 8192, false}, {4, 512, false}, {4, 4096, false}, {4, 8192, false}, {8, 512, false}, {8, 1024, false},
      {8, 2048, false}, {8, 4096, false}, {16, 512, false}, {16, 1024, false}, {16, 2048, false}, {16, 8192, true}, {32, 512, false},
      {32, 1024, false}, {32, 2048, true}, {32, 4096, true}, {32, 8192, true}};
  td_attention_planner_config c = config_of(16);
  c.shared_only = true;
  for (uint32_t priced = 0; priced < 2; priced++) {
    c.cost = td_attention_cost_of_h200_apart(c.n_workers);
    if (!priced)
      c.cost.apart_us = 0;
    td_attention_planner *p = planner_of(&c);
    for (uint32_t i = 0; i < sizeof steps / sizeof *steps; i++) {
      uint32_t nodes[] = {1, steps[i].n_rows}, tokens[] = {steps[i].n_shared, 512};
      td_attention_own own[ROWS_MAX];
      td_plan plan = tree_plan(2, nodes, tokens, 16);
      make(p, &plan);
      td_attention_planner_own(p, &plan, own);
      bool shares = td_attention_planner_block(p)->n_tasks > 0;
      assert_true(priced ? shares == steps[i].pays : shares || steps[i].n_rows < 16);
      assert_int_equal(own[0].begin, shares ? steps[i].n_shared : 0);
      assert_int_equal(own[0].member == TD_ATTENTION_NO_MEMBER, !shares);
    }
    td_attention_planner_destroy(p);
  }
}

/* What is shared, and so what is saved, is the same however long rows' own keys become. */
static void test_what_is_worth_a_launch_stays_so(void **unused)
{
  (void)unused;
  static const uint32_t own_tokens[] = {64, 512, 8192, 60000};
  td_attention_planner_config c = config_of(16);
  c.shared_only = true;
  c.cost = td_attention_cost_of_h200_apart(c.n_workers);
  for (uint32_t shared = 0; shared < 2; shared++)
    for (uint32_t i = 0; i < sizeof own_tokens / sizeof *own_tokens; i++) {
      uint32_t nodes[] = {1, 16}, tokens[] = {shared ? 4096 : 1024, own_tokens[i]};
      td_attention_planner *p = planner_of(&c);
      td_plan plan = tree_plan(2, nodes, tokens, 16);
      for (uint32_t step = 0; step < 40; step++) {
        make(p, &plan);
        assert_int_equal(td_attention_planner_block(p)->n_tasks > 0, shared);
        for (uint32_t r = 0; r < plan.n_rows; r++) {
          rows[r].kv_len++;
          page_table[rows[r].page_table_offset + (rows[r].kv_len - 1) / 16] = next_page++;
        }
      }
      assert_true(td_attention_planner_stats(p).n_full == 1);
      td_attention_planner_destroy(p);
    }
}

/* Of more query rows than a tile has, memory gives the keys once all the same. */
static void test_keys_of_several_tiles_count_once(void **unused)
{
  (void)unused;
  uint32_t nodes[] = {1, 64}, tokens[] = {2048, 64};
  td_attention_planner_config c = config_of(16);
  c.shared_only = true;
  c.cost = td_attention_cost_of_h200_apart(c.n_workers);
  double mb = 4.0 * 128 * 8 * 2048 / 1e6, saves_us = mb * (64 / 10.7 - 1 / 4.47);
  for (int more = 0; more < 2; more++) {
    c.cost.apart_us = saves_us + (more ? 0.1 : -0.1);
    td_attention_planner *p = planner_of(&c);
    td_plan plan = tree_plan(2, nodes, tokens, 16);
    make(p, &plan);
    assert_int_equal(td_attention_planner_block(p)->n_tasks > 0, !more);
    td_attention_planner_destroy(p);
  }
}

static void test_what_is_not_planned_so_is_refused(void **unused)
{
  (void)unused;
  td_attention_planner *p = NULL;
  td_error err;
  for (uint32_t i = 0; i < 2; i++) {
    td_attention_planner_config c = config_of(16);
    c.shared_only = true;
    c.policy = i ? TD_ATTENTION_UNIFIED : TD_ATTENTION_PAT;
    c.invariant_keys = i ? 64 : 0;
    assert_int_equal(td_attention_planner_create(&c, &p, &err), TD_ERR_CONFIG);
    assert_non_null(strstr(err.message, "shared spans alone"));
  }
}

static int make_table(void **unused)
{
  (void)unused;
  page_table = calloc(PAGES, sizeof *page_table);
  return page_table ? 0 : -1;
}

static int free_table(void **unused)
{
  (void)unused;
  free(page_table);
  return 0;
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_key_is_had_once), cmocka_unit_test(test_wrong_tables_do_no_harm),
                                     cmocka_unit_test(test_steps_one_after_another),
                                     cmocka_unit_test(test_workers_have_even_shares),
                                     cmocka_unit_test(test_what_is_not_worth_a_launch_is_not_shared),
                                     cmocka_unit_test(test_what_is_worth_a_launch_stays_so),
                                     cmocka_unit_test(test_keys_of_several_tiles_count_once),
                                     cmocka_unit_test(test_what_is_not_planned_so_is_refused)};
  return cmocka_run_group_tests(tests, make_table, free_table);
}
