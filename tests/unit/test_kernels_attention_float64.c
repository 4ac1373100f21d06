/* Runs plans and work lists in float64: prefix splits as CTAs compute them, private KV as in the work
 * items, partials reduced where a row ends. The result must be attention, in whatever order splits are
 * computed. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention_plan_fixture.h"

enum { DIM = 8, HEADS_MAX = 4, GROUP_MAX = 4 };

typedef struct partial {
  double m, l, o[DIM];
} partial;

typedef struct store {
  double *k, *v; /* [page][head][page_tokens][DIM] */
  double *q;     /* [token][head][group][DIM] */
  const td_plan *plan;
  const td_attention_planner_config *c;
} store;

static double random_value(void) { return (double)below(2001) / 1000 - 1; }

static const double *kv_at(const store *st, const double *base, uint32_t first_page, uint32_t head,
                           uint32_t key)
{
  uint32_t pt = st->plan->page_tokens;
  size_t page = (size_t)st->plan->page_table[first_page + key / pt];
  return base + ((page * st->c->n_kv_heads + head) * pt + key % pt) * DIM;
}

/* One query over keys [begin, end), starting at a page; keys before `seen` are outside its window. */
static partial attend(const store *st, uint32_t first_page, uint32_t head, uint32_t begin, uint32_t end,
                      uint32_t seen, const double *q)
{
  partial p = {.m = -INFINITY};
  for (uint32_t key = begin > seen ? begin : seen; key < end; key++) {
    const double *k = kv_at(st, st->k, first_page, head, key), *v = kv_at(st, st->v, first_page, head, key);
    double s = 0;
    for (uint32_t d = 0; d < DIM; d++)
      s += q[d] * k[d];
    double m = fmax(p.m, s), f = exp(p.m - m), w = exp(s - m);
    p.l = p.l * f + w;
    for (uint32_t d = 0; d < DIM; d++)
      p.o[d] = p.o[d] * f + w * v[d];
    p.m = m;
  }
  return p;
}

static void add_partial(partial *to, const partial *p)
{
  double m = fmax(to->m, p->m), f = to->m == -INFINITY ? 0 : exp(to->m - m),
         g = p->m == -INFINITY ? 0 : exp(p->m - m);
  to->l = to->l * f + p->l * g;
  for (uint32_t d = 0; d < DIM; d++)
    to->o[d] = to->o[d] * f + p->o[d] * g;
  to->m = m;
}

static uint32_t seen_from(const store *st, uint32_t token)
{
  uint32_t kv_len = st->plan->rows[token].kv_len, w = st->c->window_tokens;
  return w && kv_len > w ? kv_len - w : 0;
}

typedef struct sums {
  partial *shared;  /* [slots][GQA group] */
  partial *private; /* [kv splits][kv heads][GQA group] */
} sums;

static size_t query_of(const store *st, uint32_t token, uint32_t head, uint32_t g)
{
  return ((size_t)token * st->c->n_kv_heads + head) * st->c->gqa_group + g;
}

/* One prefix split, for all heads and members. */
static void run_prefix_split(const view *v, const store *st, const td_attention_item *it, sums *s)
{
  for (uint32_t head = 0; head < st->c->n_kv_heads; head++)
    for (uint32_t i = 0; i < it->n_members; i++)
      for (uint32_t g = 0; g < st->c->gqa_group; g++) {
        uint32_t index = it->partial + head * it->n_partials * it->n_members + i;
        const double *q = st->q + query_of(st, v->members[it->member + i].token, head, g) * DIM;
        s->shared[(size_t)index * st->c->gqa_group + g] =
            attend(st, it->page_table_offset, head, it->kv_begin, it->kv_end, 0, q);
      }
}

/* A KV split, or all of a row's private KV. */
static void run_private(const store *st, const td_attention_item *it, sums *s, partial *whole)
{
  for (uint32_t head = 0; head < st->c->n_kv_heads; head++)
    for (uint32_t g = 0; g < st->c->gqa_group; g++) {
      size_t q = query_of(st, it->query, head, g),
             of_split = ((size_t)it->partial * st->c->n_kv_heads + head) * st->c->gqa_group + g;
      partial p = attend(st, it->page_table_offset, head, it->kv_begin, it->kv_end, seen_from(st, it->query),
                         st->q + q * DIM);
      *(it->n_partials > 1 ? &s->private[of_split] : &whole[q]) = p;
    }
}

/* The end of a row, at its last item: shared keys in order, then its private KV. */
static void end_row(const view *v, const store *st, const td_attention_item *it, const sums *s,
                    const partial *whole, double *out)
{
  for (uint32_t head = 0; head < st->c->n_kv_heads; head++)
    for (uint32_t g = 0; g < st->c->gqa_group; g++) {
      size_t q = query_of(st, it->query, head, g);
      partial sum = {.m = -INFINITY};
      for (uint32_t i = 0; i < it->n_memberships; i++) {
        const td_attention_membership *from = &v->memberships[it->first_membership + i];
        for (uint32_t c = 0; c < from->n_splits; c++) {
          uint32_t index = from->base_partial + it->member + (head * from->n_splits + c) * from->n_members;
          add_partial(&sum, &s->shared[(size_t)index * st->c->gqa_group + g]);
        }
      }
      for (uint32_t i = 0; i < it->n_partials && it->n_partials > 1; i++)
        add_partial(
            &sum,
            &s->private[((size_t)(it->first_partial + i) * st->c->n_kv_heads + head) * st->c->gqa_group + g]);
      if (it->n_partials == 1)
        add_partial(&sum, &whole[q]);
      for (uint32_t d = 0; d < DIM; d++)
        out[q * DIM + d] = sum.o[d] / sum.l;
    }
}

static bool is_last(const td_attention_item *it)
{
  return it->partial + 1 >= it->first_partial + it->n_partials;
}

/* Splits in the order of items, or in reverse; then the rows. */
static void run_step(const steps *r, const store *st, bool backwards, double *out)
{
  const view v = view_of(r->p);
  uint32_t n_all = r->items.n_items + r->items.n_next, group = st->c->gqa_group;
  sums s = {calloc(((size_t)v.h->n_partials + 1) * group, sizeof *s.shared),
            calloc(((size_t)r->items.n_partials + 1) * st->c->n_kv_heads * group, sizeof *s.private)};
  partial *whole = calloc((size_t)st->plan->n_rows * st->c->n_kv_heads * group, sizeof *whole);
  assert_true(s.shared && s.private && whole);
  for (uint32_t k = 0; k < n_all; k++) {
    const td_attention_item *it = &r->items.items[backwards ? n_all - 1 - k : k];
    if (it->n_tokens == 0)
      run_prefix_split(&v, st, it, &s);
    else
      run_private(st, it, &s, whole);
  }
  for (uint32_t k = 0; k < r->items.n_items; k++)
    if (r->items.items[k].n_tokens > 0 && is_last(&r->items.items[k]))
      end_row(&v, st, &r->items.items[k], &s, whole, out);
  free(s.shared), free(s.private), free(whole);
}

static store make_store(const td_plan *plan, const td_attention_planner_config *c)
{
  size_t n_kv = (size_t)next_page * c->n_kv_heads * c->page_tokens * DIM,
         n_q = (size_t)plan->n_rows * c->n_kv_heads * c->gqa_group * DIM;
  store st = {malloc(n_kv * 8), malloc(n_kv * 8), malloc(n_q * 8), plan, c};
  assert_true(st.k && st.v && st.q);
  for (size_t i = 0; i < n_kv; i++) {
    st.k[i] = 3 * random_value();
    st.v[i] = random_value();
  }
  for (size_t i = 0; i < n_q; i++)
    st.q[i] = random_value();
  return st;
}

static void test_plans_are_attention(void **unused)
{
  (void)unused;
  double worst = 0;
  uint32_t n_shared = 0, n_split = 0;
  for (uint32_t round = 0; round < 200; round++) {
    td_attention_planner_config c = random_config();
    c.n_kv_heads = 1 + below(HEADS_MAX);
    c.gqa_group = 1 + below(GROUP_MAX);
    c.tile_rows = 8 + below(121);
    c.small_rows = below(c.tile_rows + 1);
    c.window_tokens = c.window_tokens % 400;
    td_plan plan = random_plan(1 + below(30), c.page_tokens, 2000);
    store st = make_store(&plan, &c);
    size_t n_q = (size_t)plan.n_rows * c.n_kv_heads * c.gqa_group * DIM;
    double *out = malloc(n_q * 8), *again = malloc(n_q * 8);
    assert_true(out && again);
    for (size_t i = 0; i < n_q; i++)
      out[i] = again[i] = NAN;
    steps r = {0};
    open_run(&r, &c);
    make_step(&r, &plan);
    n_shared += td_attention_planner_block(r.p)->n_splits, n_split += r.items.n_partials;
    run_step(&r, &st, false, out);
    run_step(&r, &st, true, again);
    assert_memory_equal(out, again, n_q * 8);
    for (uint32_t row = 0; row < plan.n_rows; row++)
      for (uint32_t h = 0; h < c.n_kv_heads * c.gqa_group; h++) {
        size_t at = ((size_t)row * c.n_kv_heads * c.gqa_group + h) * DIM;
        partial want = attend(&st, rows[row].page_table_offset, h / c.gqa_group, 0, rows[row].kv_len,
                              seen_from(&st, row), st.q + at);
        for (uint32_t d = 0; d < DIM; d++)
          worst = fmax(worst, fabs(out[at + d] - want.o[d] / want.l));
      }
    assert_true(worst < 1e-12);
    close_run(&r);
    free(st.k), free(st.v), free(st.q), free(out), free(again);
  }
  print_message("%u prefix splits, %u KV splits\n", n_shared, n_split);
  assert_true(n_shared > 500 && n_split > 500);
}

int main(void)
{
  use_all();
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_plans_are_attention)};
  return cmocka_run_group_tests(tests, make_table, free_table);
}
