/* The plan of decode attention where it must be fixed: batch-invariant pieces, the same for a row alone and in any batch; and buffers
 * of a fixed size, past which nothing is written whatever comes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention_plan_fixture.h"
#include "config/options.h"
#include "kernels/attention/planner.h"

/* ---- what is done of a row ---- */

enum { PIECES_MAX = 1 << 14 };

typedef struct key_range {
  uint32_t head, begin, end; /* keys of the row */
} key_range;

typedef struct row_work {
  key_range pieces[PIECES_MAX]; /* in the order in which they are added up */
  uint32_t n;
} row_work;

/* The piece of a head that writes to `slot` (of its member 0), or that is all of the head and needs none. */
static key_range piece_of_slot(const view *v, const td_attention_span *s, uint32_t head, uint32_t slot)
{
  for (uint32_t t = s->first_task; t < s->first_task + s->n_tasks; t++)
    for (piece p = begin_of(&v->tasks[t]); next_piece(&v->tasks[t], &p);)
      if (p.head == head && (p.slot == slot || p.slot == TD_ATTENTION_DIRECT))
        return (key_range){head, p.begin, p.end};
  fail_msg("no piece writes partial %u", slot);
  return (key_range){0};
}

static void work_of_row(const view *v, const td_plan *plan, uint32_t row, uint32_t n_heads, row_work *out)
{
  static uint32_t slots[PIECES_MAX];
  uint32_t member = 0;
  while (v->members[member].token != plan->rows[row].q_start)
    assert_true(++member < v->h->n_members);
  const td_attention_member *m = &v->members[member];
  out->n = 0;
  for (uint32_t head = 0; head < n_heads; head++) {
    uint32_t first_key = plan->rows[row].kv_len - m->n_keys;
    for (uint32_t i = 0; i <= m->n_sources; i++) {
      uint32_t span = i < m->n_sources ? v->sources[m->first_source + i] : v->h->n_shared_spans + member, n = 1;
      const td_attention_span *s = &v->spans[span];
      if (s->slot != TD_ATTENTION_DIRECT) {
        n = partials_of(v, span, member, head, slots);
        for (uint32_t k = 0; k < n; k++)
          slots[k] -= member - s->first_member;
      }
      for (uint32_t k = 0; k < n; k++) {
        assert_true(out->n < PIECES_MAX);
        key_range r = piece_of_slot(v, s, head, slots[k]);
        out->pieces[out->n++] = (key_range){head, first_key + r.begin, first_key + r.end};
      }
      first_key += s->n_keys;
    }
  }
}

static bool same_work(const row_work *a, const row_work *b)
{
  return a->n == b->n && memcmp(a->pieces, b->pieces, a->n * sizeof *a->pieces) == 0;
}

/* Of up to 12 rows of a batch: whether the work is what it is for the row alone. */
static uint32_t rows_that_differ(const td_attention_planner_config *c, td_attention_planner *batch, td_plan *plan)
{
  static row_work together, by_itself;
  uint32_t n_differ = 0;
  td_attention_planner *alone = planner_of(c);
  for (uint32_t i = 0; i < 12; i++) {
    uint32_t r = below(plan->n_rows);
    td_plan_row one = plan->rows[r];
    one.q_start = 0;
    td_plan single = *plan;
    single.rows = &one;
    single.n_rows = single.n_tokens = 1;
    view v = view_of(batch);
    work_of_row(&v, plan, r, c->n_kv_heads, &together);
    make(alone, &single);
    td_attention_planner_forget(alone);
    v = view_of(alone);
    work_of_row(&v, &single, 0, c->n_kv_heads, &by_itself);
    n_differ += !same_work(&together, &by_itself);
  }
  td_attention_planner_destroy(alone);
  return n_differ;
}

/* A row's list of key ranges, in the order of the merge, is the same alone and in any batch, and so it stays while rows grow. */
static void test_invariant_rows(void **unused)
{
  (void)unused;
  uint32_t n_differ_without = 0;
  for (uint32_t round = 0; round < 60; round++) {
    td_attention_planner_config c = random_config();
    c.n_kv_heads = 1 + below(4);
    c.invariant_keys = 64 * (1 + below(10));
    td_plan plan = random_plan(1 + below(100), c.page_tokens, below(2) ? 3000 : 60000);
    td_attention_planner *p = planner_of(&c);
    for (uint32_t step = 0; step < 4; step++) {
      make(p, &plan);
      assert_int_equal(rows_that_differ(&c, p, &plan), 0);
      for (uint32_t r = 0; r < plan.n_rows; r++) {
        rows[r].kv_len += 1 + below(40);
        for (uint32_t i = 0; i * c.page_tokens < rows[r].kv_len; i++)
          if (i * c.page_tokens >= rows[r].kv_len - 41)
            page_table[rows[r].page_table_offset + i] = next_page++;
      }
    }
    td_attention_planner_destroy(p);
    c.invariant_keys = 0; /* the same without: so that the comparison is known to see differences */
    c.policy = TD_ATTENTION_UNIFIED;
    c.max_slots = 1 << 24;
    p = planner_of(&c);
    make(p, &plan);
    n_differ_without += rows_that_differ(&c, p, &plan);
    td_attention_planner_destroy(p);
  }
  assert_true(n_differ_without > 100);
}

/* Pieces begin at multiples of a number that follows from the length, and are never more than there is room for. */
static void test_invariant_pieces(void **unused)
{
  (void)unused;
  td_attention_planner_config c = config_of(16);
  c.invariant_keys = 512;
  assert_int_equal(td_attention_slots_of(&c), ROWS_MAX * c.n_kv_heads * TD_ATTENTION_INVARIANT_PIECES);
  td_attention_planner *p = planner_of(&c);
  for (uint32_t round = 0; round < 50; round++) {
    td_plan plan = random_plan(1 + below(100), 16, round % 2 ? 2000 : 100000);
    make(p, &plan);
    view v = view_of(p);
    assert_int_equal(v.h->invariant_keys, 512);
    assert_int_equal(v.h->n_shared_spans, 0);
    for (uint32_t t = 0; t < v.h->n_tasks; t++) {
      uint32_t size = 512, n = v.tasks[t].n_keys;
      while (n > size * TD_ATTENTION_INVARIANT_PIECES)
        size *= 2;
      for (piece pc = begin_of(&v.tasks[t]); next_piece(&v.tasks[t], &pc);) {
        assert_int_equal(pc.begin % size, 0);
        assert_true(pc.end - pc.begin == size || pc.end == n);
      }
    }
  }
  td_attention_planner_destroy(p);
}

/* As many rows as fit, each in as many pieces as a row can have: the slots suffice. */
static void test_invariant_slots_suffice(void **unused)
{
  (void)unused;
  td_attention_planner_config c = config_of(16);
  c.max_rows = 40;
  c.invariant_keys = 64;
  td_attention_planner *p = planner_of(&c);
  td_plan plan = begin_plan(16);
  for (uint32_t r = 0; r < c.max_rows; r++)
    add_row(&plan, r % 2 ? 64 * TD_ATTENTION_INVARIANT_PIECES : 64 * TD_ATTENTION_INVARIANT_PIECES * 4 - 63, 0, 0);
  make(p, &plan);
  assert_int_equal(td_attention_planner_block(p)->n_slots, c.max_rows * c.n_kv_heads * TD_ATTENTION_INVARIANT_PIECES);
  td_attention_planner_destroy(p);
}

/* ---- fixed buffers ---- */

enum { GUARD_BYTES = 4096, GUARD = 0xa5, GUARDED = 11 };

/* A planner's arrays in memory of ours, each with a guard behind it. */
typedef struct guarded {
  td_attention_planner *p;
  unsigned char *memory[GUARDED];
  size_t bytes[GUARDED];
} guarded;

static void *guard(guarded *g, uint32_t i, void *array, size_t bytes)
{
  g->memory[i] = malloc(bytes + GUARD_BYTES);
  g->bytes[i] = bytes;
  assert_non_null(g->memory[i]);
  memcpy(g->memory[i], array, bytes);
  memset(g->memory[i] + bytes, GUARD, GUARD_BYTES);
  free(array);
  return g->memory[i];
}

static guarded guarded_planner(const td_attention_planner_config *c)
{
  guarded g = {.p = planner_of(c)};
  td_attention_planner *p = g.p;
  size_t n = c->max_rows, n_buckets = 16;
  while (n_buckets < BUCKETS_PER_ROW * n)
    n_buckets *= 2;
  p->rows = guard(&g, 0, p->rows, n * sizeof *p->rows);
  p->tree.nodes = guard(&g, 1, p->tree.nodes, (2 * n + 1) * sizeof *p->tree.nodes);
  p->tree.path = guard(&g, 2, p->tree.path, (n + 2) * sizeof *p->tree.path);
  p->tree.buckets = guard(&g, 3, p->tree.buckets, n_buckets * sizeof *p->tree.buckets);
  p->packing = guard(&g, 4, p->packing, (2 * n + 1) * sizeof *p->packing);
  p->shared = guard(&g, 5, p->shared, p->max_shared * sizeof *p->shared);
  p->shared_cost = guard(&g, 6, p->shared_cost, p->max_shared * sizeof *p->shared_cost);
  p->sources = guard(&g, 7, p->sources, p->max_sources * sizeof *p->sources);
  p->ends_us = guard(&g, 8, p->ends_us, c->n_workers * sizeof *p->ends_us);
  p->shared_us = guard(&g, 9, p->shared_us, c->n_workers * sizeof *p->shared_us);
  p->block = guard(&g, 10, p->block, td_attention_block_bytes_max(c));
  return g;
}

static void check_guards(const guarded *g)
{
  for (uint32_t i = 0; i < GUARDED; i++)
    for (uint32_t k = 0; k < GUARD_BYTES; k++)
      assert_int_equal(g->memory[i][g->bytes[i] + k], GUARD);
}

/* Batches of any size and kind through a planner for few: planned or refused, and the guards stay whole. After a refusal the next
 * batch is planned as if there had been none. */
static void test_nothing_is_written_past_the_buffers(void **unused)
{
  (void)unused;
  uint32_t n_refused = 0, n_planned = 0;
  for (uint32_t round = 0; round < 400; round++) {
    td_attention_planner_config c = random_config();
    c.max_rows = 1 + below(24);
    c.max_slots = below(3) ? 0 : 1 + below(600);
    if (below(3) == 0) {
      c.policy = TD_ATTENTION_UNIFIED;
      c.invariant_keys = 0;
      c.shared_only = true;
    }
    guarded g = guarded_planner(&c);
    for (uint32_t k = 0; k < 4; k++) {
      td_plan plan = random_plan(1 + below(k == 3 ? c.max_rows : 3 * c.max_rows), c.page_tokens, below(3) ? 4000 : 40000);
      if (below(4) == 0) /* tables that no scheduler makes */
        for (uint32_t r = 0; r < plan.n_rows; r++)
          for (uint32_t i = 0; i * c.page_tokens < rows[r].kv_len; i++)
            page_table[r * STRIPE + i] = below(4) ? (int32_t)below(20) : page_table[r * STRIPE + i];
      td_error err;
      td_status st = td_attention_planner_make(g.p, &plan, &err);
      check_guards(&g);
      assert_true(st == TD_OK || st == TD_ERR_CAPACITY);
      assert_true(st != TD_OK || plan.n_rows <= c.max_rows);
      assert_true(st != TD_OK || td_attention_planner_block(g.p)->n_slots <= g.p->max_slots);
      assert_true(st != TD_OK || td_attention_planner_block(g.p)->block_bytes <= td_attention_block_bytes_max(&c));
      n_refused += st != TD_OK;
      n_planned += st == TD_OK;
    }
    td_attention_planner_destroy(g.p);
  }
  assert_true(n_refused > 200 && n_planned > 200);
}

/* Rows that are not what a plan can have: no key, or more keys than their table has pages. */
static void test_rows_without_pages_are_refused(void **unused)
{
  (void)unused;
  td_attention_planner_config c = config_of(16);
  td_attention_planner *p = planner_of(&c);
  td_error err;
  td_plan plan = random_plan(4, 16, 1000);
  uint32_t kv_len = rows[2].kv_len;
  rows[2].kv_len = 0;
  assert_int_equal(td_attention_planner_make(p, &plan, &err), TD_ERR_CAPACITY);
  rows[2].kv_len = kv_len;
  plan.page_table_len = 3 * STRIPE + (rows[3].kv_len + 15) / 16;
  make(p, &plan);
  rows[3].kv_len = (rows[3].kv_len + 15) / 16 * 16 + 1; /* grown past it, which the lazy way must see too */
  assert_int_equal(td_attention_planner_make(p, &plan, &err), TD_ERR_CAPACITY);
  assert_non_null(strstr(err.message, "page table"));
  plan.page_table_len++;
  make(p, &plan);
  td_attention_planner_destroy(p);
}

/* What the option takes the backend must know, the default among them. */
static void test_words(void **unused)
{
  (void)unused;
  static const struct {
    const char *word;
    uint32_t value;
  } words[] = {{"serial", 0},
               {"unified", 1 + TD_ATTENTION_UNIFIED},
               {"pat", 1 + TD_ATTENTION_PAT},
               {"persistentkv", 1 + TD_ATTENTION_PERSISTENTKV},
               {"flashdecode", 1 + TD_ATTENTION_FLASHDECODE},
               {"auto", TD_ATTENTION_AUTO}};
  td_options o;
  td_error err;
  td_options_init(&o);
  assert_int_equal(td_attention_of(o.attention), TD_ATTENTION_AUTO);
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    assert_int_equal(td_options_set(&o, "attention", words[i].word, "here", &err), TD_OK);
    assert_int_equal(td_attention_of(o.attention), words[i].value);
  }
  assert_int_equal(td_attention_of("some"), UINT32_MAX);
  assert_int_not_equal(td_options_set(&o, "attention", "some", "here", &err), TD_OK);
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
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_invariant_rows), cmocka_unit_test(test_invariant_pieces),
                                     cmocka_unit_test(test_invariant_slots_suffice),
                                     cmocka_unit_test(test_nothing_is_written_past_the_buffers),
                                     cmocka_unit_test(test_rows_without_pages_are_refused), cmocka_unit_test(test_words)};
  (void)tree_plan;
  (void)right_tables;
  return cmocka_run_group_tests(tests, make_table, free_table);
}
